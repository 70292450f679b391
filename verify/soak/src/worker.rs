//! A worker: it acquires, believes, writes, releases, and reports all that, until a byte arrives on its input; then it
//! rests until its input ends.

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Election, Error, Fence, Lease, Lock, Mode, Released, Ticket};

use crate::{
    chance::Chance,
    clients::{built_for, name_primaries},
    log::StallingLog,
    record::{Call, Ending, LeaseId, Line, Nanos, Outcome, Process, now},
    resource::Resource,
    setup::{Access, COMMAND_TIMEOUT, GIVEN_UP, Kind, Pace, Stage, nanos},
};

/// A call that is late by less is not reported.
const LATE: Duration = Duration::from_millis(100);

/// The byte on a worker's input that tells it to rest.
pub const REST: u8 = b'.';
pub const STALL_LOG: u8 = b's';
pub const UNSTALL_LOG: u8 = b'u';

/// A worker's arguments.
#[derive(Debug, Clone)]
pub struct Part {
    pub stage: Stage,
    pub process: Process,
    pub seed: u64,
    /// Which of the stage's kinds it works on, by their bits.
    pub kinds: u64,
    /// How many replicas must confirm a grant.
    pub min_replicas: u8,
    /// The port of the resource, which no fault hits.
    pub resource: u16,
    /// The file with the password for the lone server.
    pub password: String,
    /// The lone server, then the quorum's nodes, each through a proxy; or the url of a cluster, or of Sentinels.
    pub servers: Vec<String>,
}

impl Part {
    pub fn to_args(&self) -> Vec<String> {
        let (process, seed, kinds) = (self.process.to_string(), self.seed.to_string(), self.kinds.to_string());
        let (stage, min_replicas) = (self.stage.to_string(), self.min_replicas.to_string());
        let resource = self.resource.to_string();
        let mut args = vec![stage, process, seed, kinds, min_replicas, resource, self.password.clone()];
        args.extend(self.servers.iter().cloned());
        args
    }

    pub fn from_args(args: &[String]) -> Option<Self> {
        let [stage, process, seed, kinds, min_replicas, resource, password, servers @ ..] = args else { return None };
        Some(Self {
            stage: stage.parse().ok()?,
            process: process.parse().ok()?,
            seed: seed.parse().ok()?,
            kinds: kinds.parse().ok()?,
            min_replicas: min_replicas.parse().ok()?,
            resource: resource.parse().ok()?,
            password: password.clone(),
            servers: servers.to_vec(),
        })
    }
}

/// Plays a part to its end.
pub async fn run(part: Part) {
    let over = Arc::new(AtomicBool::new(false));
    let heard = over.clone();
    let (end, ends) = tokio::sync::oneshot::channel::<()>();
    let log = StallingLog::start();
    std::thread::spawn(move || {
        for word in std::io::stdin().lock().bytes().map_while(Result::ok) {
            match word {
                STALL_LOG | UNSTALL_LOG => log.stall(word == STALL_LOG),
                _ => heard.store(true, Ordering::SeqCst),
            }
        }
        heard.store(true, Ordering::SeqCst);
        log.stall(false);
        drop(end);
    });
    let Some((lone, quorum)) = built_for(&part, &over).await else { return };
    let naming = part.stage.is_routed().then(|| tokio::spawn(name_primaries(part.process, lone.clone())));

    let memory_before = memory();
    let numbers = Arc::new(AtomicU32::new(0));
    let (mut tasks, mut observing) = (Vec::new(), Vec::new());
    for (name, kind) in part.stage.kinds().iter().enumerate().filter(|(name, _)| part.kinds & (1 << name) != 0) {
        let leases = quorum.as_ref().filter(|_| kind.quorum).unwrap_or(&lone);
        observing.push(tokio::spawn(observe(part.process, name, leases.election(kind.name))));
        for task in 0..kind.tasks {
            let place = [part.process.slot.into(), part.process.life.into(), name as u64, task as u64];
            let job = Job {
                name,
                kind: *kind,
                stage: part.stage,
                lock: leases.lock(kind.name).fair(kind.fair).reentrant(part.stage.is_routed()),
                leases: leases.clone(),
                resource: Resource::new(part.resource, format!("resource:{}", kind.name)),
                tickets: Resource::new(part.resource, format!("ticket:{}", kind.name)),
                last_ticket: None,
                chance: Chance::new(part.seed, &place),
                process: part.process,
                numbers: numbers.clone(),
            };
            tasks.push(tokio::spawn(job.run(over.clone())));
        }
    }
    for task in tasks {
        task.await.expect("a task does not panic");
    }
    say([Line::Rested { process: part.process, before: memory_before, after: memory() }]);
    ends.await.ok();
    for task in naming.into_iter().chain(observing) {
        task.abort();
    }
    for leases in quorum.into_iter().chain([lone]) {
        leases.close().await;
    }
}

/// Observes a lock, and reports when a leader has a smaller fence than the previous one.
async fn observe(process: Process, name: usize, election: Election) {
    let Ok(mut leaders) = election.observe() else { return };
    let (mut last, mut told) = (None::<(Fence, Nanos)>, 0_u32);
    while let Some(state) = leaders.next().await {
        let Some(fence) = state.leader().and_then(leasehold::Holder::fence) else { continue };
        let to = now();
        if let Some((before, from)) = last.filter(|(before, _)| fence < *before) {
            let (before, after) = (before.into(), fence.into());
            say([Line::Fell { process, name, from, to, before, after }]);
        }
        last = Some((fence, to));
        told += 1;
        if told % 100 == 0 {
            say([Line::Counted(Outcome::Observed)]);
        }
    }
}

/// Our resident memory, in KiB; zero where the system does not report it.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Reports lines to the parent, at once and in one piece.
pub fn say(lines: impl IntoIterator<Item = Line>) {
    let mut text = Vec::new();
    for line in lines {
        writeln!(text, "{line}").expect("there is memory");
    }
    // The parent has died, so this process ends too.
    if std::io::stdout().lock().write_all(&text).is_err() {
        std::process::exit(3);
    }
}

/// One task and its lock.
pub struct Job {
    name: usize,
    pub kind: Kind,
    stage: Stage,
    /// The lock, to be held alone.
    pub lock: Lock,
    pub leases: Client,
    resource: Resource,
    /// The place of the last ticket that was handed over, and the fence of the last ticket that was read.
    tickets: Resource,
    last_ticket: Option<u64>,
    pub chance: Chance,
    process: Process,
    numbers: Arc<AtomicU32>,
}

/// The request for a lease, and when it was made.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub id: LeaseId,
    pub known_as: LeaseId,
    pub mode: Mode,
    pub ttl: Duration,
    pub invoked: Nanos,
}

/// A lease, as its holder keeps it.
pub struct Held {
    id: LeaseId,
    pub lease: Lease,
    /// The newest successful check, and a deadline known for certain; reported or not.
    at: Nanos,
    until: Nanos,
}

impl Job {
    async fn run(mut self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::SeqCst) {
            self.cycle().await;
        }
    }

    async fn cycle(&mut self) {
        let finds = !self.is_shared() && self.chance.one_in(4);
        let mut handed_over = if finds { self.found().await } else { self.acquire().await };
        while let Some(ticket) = handed_over {
            handed_over = self.adopt(ticket).await;
        }
    }

    /// A ticket that was handed over, if it is not the last one seen. A used ticket is worth a try, too.
    async fn found(&mut self) -> Option<Ticket> {
        let (text, fence) = self.tickets.read().await?;
        let is_new = self.last_ticket.replace(fence).is_none_or(|last| last < fence);
        (is_new || self.chance.one_in(16)).then(|| text.parse().expect("it is a ticket"))
    }

    /// Adopts the lock of the ticket's giver. Returns a ticket, if this task hands the lock over to itself in turn.
    async fn adopt(&mut self, ticket: Ticket) -> Option<Ticket> {
        let ttl = *self.chance.pick(&self.stage.ttls(self.kind.pace));
        let adopting = self.lock.clone().ttl(ttl).adopt(ticket);
        let invoked = now();
        let adopted = self.in_time(Call::Acquire, ttl, adopting).await?;
        let start = now();
        let outcome = match adopted {
            Ok(lease) => {
                say([Line::Counted(Outcome::Adopted)]);
                let id = self.next_id();
                let asked = Asked { id, known_as: id, mode: Mode::Exclusive, ttl, invoked };
                return self.hold(lease, asked, start).await;
            }
            Err(Error::Lost(_)) => Outcome::AdoptedTooLate,
            Err(Error::Unavailable(_)) => Outcome::NotAdopted,
            Err(error) => {
                eprintln!("{} adopts {}: {error}", self.process, self.kind.name);
                Outcome::Failed
            }
        };
        say([Line::Counted(outcome)]);
        None
    }

    async fn acquire(&mut self) -> Option<Ticket> {
        let (ttl, id) = (*self.chance.pick(&self.stage.ttls(self.kind.pace)), self.next_id());
        let lock = if self.is_shared() { self.lock_to_share(id) } else { self.lock.clone() }.ttl(ttl);
        // Half of these report progress, and the others stall if they are held for long.
        let lock = lock.stall_after(self.chance.one_in(10).then_some(ttl / 2));
        let invoked = now();
        let asked = Asked { id, known_as: id, mode: lock.mode(), ttl, invoked };
        let tries = self.is_shared() && self.chance.one_in(8);
        let within = if tries { COMMAND_TIMEOUT } else { self.chance.millis(50, 3_000) };
        let acquire =
            async { if tries { lock.try_acquire().await } else { lock.acquire_within(within).await.map(Some) } };
        let acquired = if self.chance.one_in(100) {
            let dropped_after = self.chance.millis(0, 20);
            let Ok(acquired) = tokio::time::timeout(dropped_after, acquire).await else {
                say([Line::Counted(Outcome::Abandoned)]);
                return None;
            };
            acquired
        } else {
            self.in_time(Call::Acquire, within, acquire).await?
        };
        let start = now();
        match acquired {
            Ok(Some(lease)) => return self.hold(lease, asked, start).await,
            Ok(None) | Err(Error::TimedOut { .. }) => say([Line::Counted(Outcome::TimedOut)]),
            Err(Error::Unavailable(_)) => {
                say([Line::Counted(Outcome::Unavailable)]);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => {
                eprintln!("{} on {}: {error}", self.process, self.kind.name);
                say([Line::Counted(Outcome::Failed)]);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        None
    }

    /// The outcome of a call that has to end within a limit; `None` if it does not.
    pub async fn in_time<T>(&self, call: Call, within: Duration, outcome: impl Future<Output = T>) -> Option<T> {
        let from = now();
        let outcome = tokio::time::timeout(within + GIVEN_UP, outcome).await.ok();
        let (to, process, name) = (now(), self.process, self.name);
        if to > from + nanos(within + LATE) {
            say([Line::Late { process, name, call, within: nanos(within), from, to }]);
        }
        outcome
    }

    async fn hold(&mut self, lease: Lease, asked: Asked, start: Nanos) -> Option<Ticket> {
        let mut held = self.hold_to_its_end(lease, asked, start).await?;
        if self.is_shared() {
            if asked.mode == Mode::Exclusive && self.chance.one_in(3) {
                held = self.downgrade(held, asked).await?;
            }
        } else if self.chance.one_in(20) {
            return self.hand_over(held).await;
        }
        self.let_go(held).await;
        None
    }

    /// Works for as long as it wants to. Returns `None` if the lease is lost before that.
    pub async fn hold_to_its_end(&mut self, lease: Lease, asked: Asked, start: Nanos) -> Option<Held> {
        let mut held = Held::new(asked.id, lease);
        let kept = match self.say_acquired(&mut held, asked, start) {
            Ok(()) => self.work(&mut held, asked.ttl).await,
            Err(how) => Err(how),
        };
        if let Err(how) = kept {
            let at = now();
            // A job that does not check before it writes.
            self.write(&held).await;
            say([Line::Ended { lease: asked.id, at, how }]);
            return None;
        }
        Some(held)
    }

    pub fn is_shared(&self) -> bool {
        self.kind.access != Access::Alone
    }

    /// Leaves the lease to this task's next lease, or to any task of any process that finds the ticket.
    async fn hand_over(&mut self, held: Held) -> Option<Ticket> {
        Self::say_let_go(&held, Ending::HandOver);
        let ticket = held.lease.into_ticket().ok()?;
        if self.chance.one_in(2) {
            return Some(ticket);
        }
        self.tickets.write(ticket.expose(), ticket.fence().into()).await;
        None
    }

    /// Holds the lease for as long as this cycle wants to, and checks it until the end.
    async fn work(&mut self, held: &mut Held, ttl: Duration) -> Result<(), Ending> {
        let time = self.hold_for(ttl);
        if self.stage.is_routed() && self.chance.one_in(20) {
            self.enter_again(held, ttl).await;
            held.check()?;
        }
        if self.kind.pace == Pace::Slow && self.chance.one_in(2) {
            self.rely_on_the_signal(held, time).await?;
            return held.check();
        }
        let (end, reports) = (now() + nanos(time), self.chance.one_in(2));
        if time.is_zero() {
            if self.chance.one_in(16) {
                self.write(held).await;
            }
        } else {
            while now() < end {
                if self.chance.one_in(4) {
                    self.write(held).await;
                }
                tokio::time::sleep(self.chance.millis(1, 12)).await;
                held.check()?;
                if reports {
                    held.lease.progress();
                }
                say([held.believed()]);
            }
        }
        held.check()
    }

    /// A part of the job acquires the lock by itself, and has the same fence. A lease with another fence is its own.
    async fn enter_again(&self, held: &Held, ttl: Duration) {
        let invoked = now();
        let Ok(Some(lease)) = self.lock.clone().ttl(ttl).try_acquire().await else { return };
        if lease.fence() != held.lease.fence() {
            let start = now();
            let id = self.next_id();
            let mut other = Held::new(id, lease);
            self.say_acquired(&mut other, Asked { id, known_as: id, mode: Mode::Exclusive, ttl, invoked }, start).ok();
            return Self::say_let_go(&other, Ending::Drop);
        }
        say([Line::Counted(Outcome::Reentered)]);
        lease.release().await.ok();
    }

    pub fn next_id(&self) -> LeaseId {
        LeaseId { process: self.process, number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Reports a new lease, and checks it for the first time.
    fn say_acquired(&self, held: &mut Held, asked: Asked, start: Nanos) -> Result<(), Ending> {
        let Asked { id, known_as, mode, ttl, invoked } = asked;
        assert_eq!(held.lease.mode(), mode, "it is held as it was asked for");
        let first = held.check();
        let (fence, until) = (held.lease.fence().into(), first.is_ok().then_some(held.until));
        let (lease, name, ttl) = (id, self.name, nanos(ttl));
        say([Line::Acquired { lease, known_as, name, mode, ttl, fence, invoked, start, until }]);
        first
    }

    pub fn say_let_go(held: &Held, how: Ending) {
        say([held.believed(), Line::Ended { lease: held.id, at: now(), how }]);
    }

    /// A job that never checks: the signal has to come by the deadline.
    async fn rely_on_the_signal(&self, held: &Held, time: Duration) -> Result<(), Ending> {
        let (end, mut is_over) = (now() + nanos(time), None);
        let mut lost = std::pin::pin!(held.lease.lost());
        while now() < end || is_over.is_some() {
            let signal = tokio::time::timeout(Duration::from_millis(5), &mut lost).await;
            if let Ok(lost) = signal {
                self.say_if_late(is_over);
                return Err(Ending::of(lost.reason()));
            }
            if is_over.is_none() && held.lease.remaining().is_zero() {
                is_over = Some(now());
            }
            if is_over.is_some_and(|over| now() > over + nanos(GIVEN_UP)) {
                self.say_if_late(is_over);
                break;
            }
        }
        Ok(())
    }

    fn say_if_late(&self, over: Option<Nanos>) {
        let (to, process, name, call) = (now(), self.process, self.name, Call::Signal);
        if let Some(from) = over.filter(|over| to > over + nanos(LATE)) {
            say([Line::Late { process, name, call, within: 0, from, to }]);
        }
    }

    fn hold_for(&mut self, ttl: Duration) -> Duration {
        let chance = &mut self.chance;
        match self.kind.pace {
            Pace::Quick if chance.one_in(2_000) => ttl * 2,
            Pace::Quick if chance.one_in(if self.stage == Stage::Shared { 20 } else { 100 }) => chance.millis(1, 20),
            Pace::Quick => Duration::ZERO,
            Pace::Slow if self.stage.is_routed() && chance.one_in(2) => chance.millis(1, 400),
            Pace::Slow if chance.one_in(2) => ttl * 5 / 2,
            Pace::Slow if chance.one_in(2) => ttl,
            Pace::Slow => chance.millis(1, 50),
        }
    }

    async fn write(&mut self, held: &Held) {
        let from = now();
        let written = self.resource.write(held.id.to_string(), held.fence()).await;
        say([Line::Wrote { lease: held.id, from, to: now(), written }]);
    }

    async fn let_go(&mut self, held: Held) {
        let (drops, keeps) = (self.chance.one_in(10), self.is_shared() && self.chance.one_in(24));
        let keep = self.chance.millis(1, 30);
        let how = if drops { Ending::Drop } else { Ending::Release };
        let lease = held.id;
        Self::say_let_go(&held, how);
        if drops {
            drop(held.lease);
            return;
        }
        let release = async { if keeps { held.lease.release_keeping(keep).await } else { held.lease.release().await } };
        let Some(released) = self.in_time(Call::Release, COMMAND_TIMEOUT, release).await else { return };
        say([match released {
            Ok(Released::Confirmed) if keeps => Line::Counted(Outcome::Kept),
            Ok(Released::Confirmed) => Line::Counted(Outcome::Released),
            Err(Error::Lost(_)) => Line::ReleaseLost { lease, at: now() },
            Ok(_) | Err(_) => Line::Counted(Outcome::ReleaseUnknown),
        }]);
    }
}

impl Held {
    pub fn new(id: LeaseId, lease: Lease) -> Self {
        Self { id, lease, at: 0, until: 0 }
    }

    pub fn id(&self) -> LeaseId {
        self.id
    }

    pub fn fence(&self) -> u64 {
        self.lease.fence().into()
    }

    pub fn until(&self) -> Nanos {
        self.until
    }

    pub async fn release(self) -> Result<Released, Error> {
        self.lease.release().await
    }

    pub fn check(&mut self) -> Result<(), Ending> {
        let at = now();
        self.lease.check().map_err(|error| error.lost().map_or(Ending::OtherLoss, |lost| Ending::of(lost.reason())))?;
        // The remaining time was calculated at a later moment, so the deadline is not before this.
        let remaining = u64::try_from(self.lease.remaining().as_nanos()).unwrap_or(0);
        self.at = at;
        self.until = at + remaining;
        Ok(())
    }

    pub fn believed(&self) -> Line {
        Line::Believed { lease: self.id, at: self.at, until: self.until }
    }
}
