//! One acquire from its start to its lease: its owner, its checks, and the waits between them.

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    backoff::Backoff,
    check::Check,
    holder::{self, Holder},
    message::Route,
    rounded::Rounded,
    time::Time,
    troubles::{causes, causes_of_absence},
    wait_loop::{Action, Facts, SHORTEST_CHECK, Surroundings, WaitLoop},
};

use crate::{
    client::{Client, Wanted, Won},
    clock::stood_still,
    error::Error,
    lease::Lease,
    owner::Owner,
    random,
    reentry::{Claim, OwnerSlot},
    wait::{CheckSlot, FairWaiter, Waiter},
    watchdog::{Entry, Hold},
};

mod fair;

use fair::Standing;

/// The most retries against the same rival token in split votes: its undo may be in flight.
const SAME_SPLITS: u32 = 2;

/// The program's own function that is told the holder.
pub(crate) type OnWait = Arc<dyn Fn(&Holder) + Send + Sync>;

/// How long an acquire waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// One try.
    None,
    Within(Duration),
    Unlimited,
}

impl Patience {
    /// Whether it is for one try, which does not wait.
    pub(crate) fn is_one_try(self) -> bool {
        matches!(self, Self::None | Self::Within(Duration::ZERO))
    }
}

/// One acquire under way.
pub(crate) struct Acquire {
    client: Arc<Client>,
    wanted: Wanted,
    owner: Owner,
    reentrant: bool,
    on_wait: Option<OnWait>,
    started: Time,
    until: Time,
}

impl Acquire {
    pub(crate) fn new(
        client: Arc<Client>,
        wanted: Wanted,
        owner: Owner,
        reentrant: bool,
        patience: Patience,
        on_wait: Option<OnWait>,
    ) -> Self {
        let (started, until) = match patience {
            Patience::Unlimited => (client.now(), Time::NEVER),
            Patience::Within(limit) => {
                let started = client.now();
                (started, started + limit)
            }
            // It begins with its first poll.
            Patience::None => (Time::ZERO, Time::ZERO),
        };
        Self { client, wanted, owner, reentrant, on_wait, started, until }
    }

    /// Runs it to its end. The owner is whoever polls this first.
    pub(crate) async fn run(mut self) -> Result<Lease, Error> {
        self.wanted.owner = self.owner.resolve();
        if self.until == self.started {
            self.begin_anew();
        }
        // Boxed, so that no other acquire pays for these.
        if !self.client.is_connected() {
            let is_try = self.until == self.started;
            Box::pin(self.connect()).await?;
            if is_try {
                self.begin_anew();
            }
        }
        let client = &self.client;
        if client.own_releases.is_any() {
            Box::pin(self.follow_own_release()).await;
        }
        let Some(owner) = self.wanted.owner.filter(|_| self.reentrant) else { return self.compete(None).await };
        loop {
            match client.owners.claim(owner, &self.wanted.key, client.now()) {
                Claim::Free(owner_slot) => tokio::select! {
                    biased;
                    () = owner_slot.won() => {}
                    outcome = self.compete(Some(owner_slot.clone())) => return outcome,
                },
                Claim::Held(hold, owner_slot) => {
                    if let Some(lease) = self.enter(hold, owner_slot).await? {
                        return Ok(lease);
                    }
                }
            }
        }
    }

    /// A try has all its time for the lock, however long ago it was called for.
    fn begin_anew(&mut self) {
        self.started = self.client.now();
        self.until = self.started;
    }

    /// Makes the first connection, for as long as this waits.
    async fn connect(&self) -> Result<(), Error> {
        let client = &self.client;
        let (mut backoff, mut last) = (Backoff::new(random::jitter()), None);
        loop {
            let left = self.until.since(client.now());
            let outcome = tokio::select! {
                biased;
                () = client.ended.cancelled() => return Err(client.end()),
                outcome = client.connect() => outcome,
                () = client.host.sleep(left), if self.until != self.started && self.until != Time::NEVER => {
                    let unknown = || Error::unavailable("the wait ended before the server could be reached");
                    return Err(last.map_or_else(unknown, Error::Unavailable));
                }
            };
            match outcome {
                Err(Error::Unavailable(why)) if !self.is_over() => {
                    self.tell_outage(causes_of_absence(&why.to_string(), why.votes()), &why);
                    last = Some(why);
                    self.pause(backoff.next(None)).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits for the release of a lease that was dropped here, so that the program's own next line does not find it
    /// busy. If that release gets no answer, the lock may be free all the same: half of the time is left to check.
    async fn follow_own_release(&self) {
        let client = &self.client;
        let (limit, few) = (self.limit(client.now()) / 2, client.quorum.len() - client.quorum.majority());
        tokio::select! {
            biased;
            () = client.own_releases.over(&self.wanted.key, few) => {}
            () = client.ended.cancelled() => {}
            () = client.host.sleep(limit) => {}
        }
    }

    /// Shares an acquisition of our own. `None`: it has ended, start over.
    async fn enter(&self, hold: Arc<Hold>, owner_slot: Arc<OwnerSlot>) -> Result<Option<Lease>, Error> {
        let client = &self.client;
        let mut backoff = Backoff::new(random::jitter());
        loop {
            let now = client.now();
            let (entry, reaction) = hold.enter(now);
            client.watchdog.execute(&hold, reaction);
            match entry {
                Entry::Shared(signal) => return Ok(Some(Lease::new(client.clone(), hold, signal, Some(owner_slot)))),
                Entry::Over => return Ok(None),
                Entry::AtRisk => {}
            }
            // At risk: not before a renewal has gone through.
            let limit = self.limit(now);
            let renewed = client.watchdog.renew_now(&hold, client.quorum.route(), limit).await;
            if hold.is_over() {
                return Ok(None);
            }
            match renewed {
                Err(failure) if self.is_over() => return Err(Error::of(failure)),
                // Even a confirmation brings nothing while the clock stands still.
                Err(_) | Ok(()) => self.pause(backoff.next(None)).await?,
            }
        }
    }

    /// Competes with everybody else: asks at once unless others of this process wait already.
    async fn compete(&self, owner_slot: Option<Arc<OwnerSlot>>) -> Result<Lease, Error> {
        if self.wanted.options.fair {
            return self.queue_up(owner_slot).await;
        }
        let client = &self.client;
        let mut seen = Check::NotYet;
        if self.until == self.started || !client.lines.has(&self.wanted.key) {
            seen = match self.try_once(client.quorum.route()).await? {
                Ok(won) => return Ok(in_owner_slot(won, owner_slot)),
                Err(look) => look,
            };
            if self.until == self.started {
                return Ok(in_owner_slot(self.settle(seen).await?, owner_slot));
            }
            if self.is_over() {
                return Err(self.gives_up(seen));
            }
        }
        let waiter = client.lines.join(&self.wanted.key);
        // Boxed, so that an acquire of a free lock does not pay for the wait.
        Ok(in_owner_slot(Box::pin(self.wait(&waiter, seen, None)).await?, owner_slot))
    }

    /// Ends a try that has found this. When several try at once and split the nodes' votes, nobody holds the lock: they
    /// go on until one does, for a command time-out in all. A token that is in the way every time is no rival try.
    async fn settle(&self, mut seen: Check) -> Result<Lease, Error> {
        let client = &self.client;
        let (mut backoff, mut again) = (Backoff::new(random::jitter()), 0);
        loop {
            let pause = backoff.after(&seen);
            let other = match &seen {
                // Each attempt has a token of its own, and the token of another library is not known.
                Check::Split { holder, .. } if holder.token().is_some() && again < SAME_SPLITS => holder.clone(),
                _ => return Err(self.gives_up(seen)),
            };
            if pause >= self.limit(client.now()) {
                return Err(self.gives_up(seen));
            }
            tokio::select! {
                biased;
                () = client.ended.cancelled() => return Err(client.end()),
                () = client.host.sleep(pause) => {}
            }
            match self.try_once(client.quorum.route()).await? {
                Ok(won) => return Ok(won),
                Err(look) => {
                    let is_same = matches!(&look, Check::Split { holder, .. } if holder::is_same(holder, &other));
                    (seen, again) = (look, again + u32::from(is_same));
                }
            }
        }
    }

    /// Waits in the line until the lock is ours, and checks when [`WaitLoop`] says so. `seen` is what a first check has found.
    async fn wait(&self, waiter: &Waiter<'_>, seen: Check, mut standing: Option<Standing<'_>>) -> Result<Lease, Error> {
        let client = &self.client;
        let (nodes, command_timeout) = (client.quorum.len(), client.options.command_timeout);
        let mut wait = WaitLoop::new(standing.is_some(), nodes, command_timeout, self.until, random::jitter());
        let (mut told, mut looks) = (Told::default(), waiter.looks());
        if standing.is_none() {
            // A plain follower knows only what the leader has found before.
            looks.mark_changed();
        }
        // Made once, for it has its place in the line.
        let (mut turn, mut next_turn) = (waiter.turn_now(), pin!(waiter.turn()));
        wait.begins(seen, turn.is_some(), &self.facts(waiter, standing.as_ref()));
        loop {
            let action = wait.next(&self.facts(waiter, standing.as_ref()));
            if let Some(look) = wait.report() {
                self.tell(&look, &mut told);
            }
            let until = match action {
                Action::End => return Err(self.over(wait.into_seen())),
                Action::Check(route) => match self.check(&mut wait, route, waiter, standing.as_mut()).await? {
                    Some(lease) => return Ok(lease),
                    None => continue,
                },
                Action::Sleep(until) => until,
            };
            let now = client.now();
            if wait.leads() {
                waiter.saw(wait.seen().clone(), now, until);
            }
            let called = standing.as_ref().map(|standing| &standing.called);
            tokio::select! {
                biased;
                () = client.ended.cancelled() => return Err(client.end()),
                () = notification(waiter, called), if wait.heeds_notifications() => wait.notified(),
                got = &mut next_turn, if turn.is_none() => {
                    turn = Some(got);
                    wait.has_turn(&self.facts(waiter, standing.as_ref()));
                }
                Ok(()) = looks.changed(), if !wait.leads() => {
                    wait.heard(looks.borrow_and_update().clone());
                }
                () = client.host.sleep_until(now, until) => wait.slept(),
            }
        }
    }

    /// One check that the wait loop has asked for.
    async fn check(
        &self,
        wait: &mut WaitLoop,
        route: Route,
        waiter: &Waiter<'_>,
        mut standing: Option<&mut Standing<'_>>,
    ) -> Result<Option<Lease>, Error> {
        let client = &self.client;
        let leads = wait.leads();
        let _slot = self.slot(leads.then_some(waiter)).await;
        let began = client.now();
        let limit = self.limit(began);
        if leads {
            waiter.checks_by(began + limit);
        }
        let outcome = match standing.as_deref_mut() {
            None => self.try_once(route).await?,
            Some(standing) => self.poll_for_all(standing, route).await?,
        };
        match outcome {
            Ok(won) => Ok(Some(won)),
            Err(look) => {
                wait.checked(look, began, limit, &self.facts(waiter, standing.as_deref()));
                Ok(None)
            }
        }
    }

    fn facts<'a>(&'a self, waiter: &Waiter<'_>, standing: Option<&'a Standing<'_>>) -> Facts<'a> {
        Facts { now: self.client.now(), leader_due: waiter.due(), queue: standing.map(Standing::queued), around: self }
    }

    /// One attempt. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn try_once(&self, route: Route) -> Result<Result<Lease, Check>, Error> {
        let client = &self.client;
        // `close` waits for what is under way, and for its undoing.
        let _under_way = client.host.token();
        self.may_begin()?;
        let ended = client.ended.cancelled();
        let outcome = tokio::select! {
            biased;
            outcome = client.attempt(&self.wanted, route, self.limit(client.now())) => outcome,
            () = ended => return Err(client.end()),
        };
        self.conclude(outcome)
    }

    /// An error once the acquire must end: `close` waits only for what was under way before it was called, and may be
    /// done waiting. The caller must count as under way.
    fn may_begin(&self) -> Result<(), Error> {
        if self.client.ended.is_cancelled() { Err(self.client.end()) } else { Ok(()) }
    }

    fn conclude(&self, outcome: Result<Won, Check>) -> Result<Result<Lease, Check>, Error> {
        if !matches!(outcome, Err(Check::Failed(_))) {
            self.tell_answer();
        }
        match outcome {
            Ok((hold, signal)) => {
                // From here on somebody owns the hold, whatever panics or is dropped.
                let lease = Lease::new(self.client.clone(), hold, signal, None);
                // Either `close` has seen this hold, or this sees that `close` was called. The same is true of the end
                // of the keeper's runtime.
                if self.client.ended.is_cancelled() {
                    return Err(self.client.end());
                }
                Ok(Ok(lease))
            }
            Err(Check::Failed(_)) if self.client.ended.is_cancelled() => Err(self.client.end()),
            Err(Check::Failed(failure)) if failure.is_refusal() => Err(Error::of(failure)),
            Err(check) => Ok(Err(check)),
        }
    }

    /// Takes one of the few slots for checks. `None` if there is none within the time for a check: then this checks
    /// without one. `None` also once the acquire must end. The leader of a line tells those behind it how long that
    /// takes.
    async fn slot(&self, line: Option<&Waiter<'_>>) -> Option<CheckSlot<'_>> {
        let client = &self.client;
        let mut now = client.now();
        let until = now + self.limit(now);
        loop {
            if let Some(slot) = client.looks.take(now, now + self.limit(now)) {
                return Some(slot);
            }
            if now >= until || client.ended.is_cancelled() {
                return None;
            }
            if let Some(waiter) = line {
                waiter.waits_until(until);
            }
            let again = client.looks.next_lapse().map_or(now, |lapse| lapse.min(until));
            tokio::select! {
                biased;
                () = client.looks.freed() => {}
                () = client.ended.cancelled() => {}
                () = client.host.sleep_until(now, again) => {}
            }
            now = client.now();
        }
    }

    /// Leaves the server alone for a while, not beyond our time; an error if the acquire ends meanwhile.
    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        let client = &self.client;
        let pause = pause.min(self.until.since(client.now()));
        tokio::select! {
            biased;
            () = client.ended.cancelled() => Err(client.end()),
            // A timer takes a millisecond for nothing, which is ten times what a call takes to get here.
            () = std::future::ready(()), if pause.is_zero() => Ok(()),
            () = client.host.sleep(pause) => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        self.client.now() >= self.until
    }

    /// How long one check may take: a command time-out, or less if the wait ends before. A try has one for all its
    /// checks.
    fn limit(&self, now: Time) -> Duration {
        let most = self.client.options.command_timeout;
        let is_try = self.until == self.started;
        let until = if is_try { self.started + most } else { self.until };
        // A process that stood still between two steps has used no time for the lock.
        if is_try && stood_still(now, until) {
            return most;
        }
        until.since(now).max(SHORTEST_CHECK).min(most)
    }

    /// The end of an acquire that has not waited.
    fn gives_up(&self, look: Check) -> Error {
        self.tell_busy(&look);
        self.over(look)
    }

    /// The end of a wait, from its last check.
    fn over(&self, look: Check) -> Error {
        match look {
            Check::Failed(failure) => Error::of(failure),
            Check::NotYet => Error::unavailable("the wait ended before the server had answered"),
            Check::Held { holder, .. } | Check::Split { holder, .. } => Error::TimedOut {
                name: self.name(),
                waited: self.client.now().since(self.started),
                holder: Box::new(self.client.watchdog.recognize(&self.wanted.key, holder)),
            },
        }
    }

    /// Whether the owner that waits here has acquired the lock itself.
    fn waits_for_itself(&self, holder: &Holder) -> bool {
        let hold = self.client.watchdog.newest(self.wanted.key.lock());
        holder.is_ours() && self.wanted.owner.is_some() && hold.is_some_and(|hold| hold.owner == self.wanted.owner)
    }

    fn name(&self) -> String {
        self.wanted.key.name().into()
    }

    /// Tells the log and the program whom we wait for, when that is news.
    fn tell(&self, look: &Check, told: &mut Told) {
        let (client, lock) = (&self.client, self.wanted.key.name());
        match look {
            // The holder is not known yet.
            Check::NotYet | Check::Split { .. } => {}
            Check::Failed(failure) => self.tell_outage(causes(failure), failure),
            Check::Held { holder, .. } if told.is(holder) => {}
            Check::Held { holder, .. } => {
                let holder = client.watchdog.recognize(&self.wanted.key, holder.clone());
                let remaining = holder.remaining().map(|remaining| tracing::field::display(Rounded(remaining)));
                let label = holder.label();
                if self.waits_for_itself(&holder) {
                    tracing::warn!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}: this task itself acquired it, and has not released it");
                } else if told.0.is_none() {
                    tracing::info!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}");
                } else {
                    // A busy lock changes hands often, and each waiter sees it.
                    tracing::debug!(name: "wait", target: "leasehold", lock, holder = label, remaining, "waiting for {holder}");
                }
                self.tell_program(&holder);
                *told = Told(Some(holder));
            }
        }
    }

    /// Tells the log and the program why an acquire that does not wait has failed.
    fn tell_busy(&self, look: &Check) {
        let lock = self.wanted.key.name();
        match look {
            // The error says it.
            Check::NotYet | Check::Failed(_) => {}
            Check::Split { holder, .. } => {
                tracing::debug!(name: "busy", target: "leasehold", lock, holder = holder.label(), "not acquired: several try at once, and none has a majority of the nodes");
            }
            Check::Held { holder, .. } => {
                let holder = self.client.watchdog.recognize(&self.wanted.key, holder.clone());
                let remaining = holder.remaining().map(|remaining| tracing::field::display(Rounded(remaining)));
                tracing::debug!(name: "busy", target: "leasehold", lock, holder = holder.label(), remaining, "not acquired: it is held by {holder}");
                self.tell_program(&holder);
            }
        }
    }

    /// Tells the program who has the lock, and warns if nobody will release it. Last, for it runs the program's code.
    fn tell_program(&self, holder: &Holder) {
        if let Some(kind) = holder.not_a_lock() {
            let (lock, key) = (self.wanted.key.name(), self.wanted.key.lock());
            let cause = [format!("{kind} {key}")];
            if let Some(count) = self.client.misplaced.meet_causes(self.client.now(), cause) {
                tracing::warn!(name: "misplaced", target: "leasehold", lock, key, kind, count, "the key {key:?} holds a {kind}, which is no lock and is not released: give the lock another name or a prefix, or delete the key");
            }
        }
        if let Some(on_wait) = &self.on_wait {
            on_wait(holder);
        }
    }

    /// Warns of an outage, once for all acquires that meet it.
    fn tell_outage(&self, causes: Vec<String>, failure: &dyn fmt::Display) {
        let (client, lock) = (&self.client, self.wanted.key.name());
        if let Some(count) = client.outages.meet_causes(client.now(), causes) {
            tracing::warn!(name: "wait", target: "leasehold", lock, %failure, count, "waiting for the server");
        }
    }

    /// Tells the end of an outage.
    fn tell_answer(&self) {
        if let Some(count) = self.client.outages.end() {
            let lock = self.wanted.key.name();
            tracing::info!(name: "wait", target: "leasehold", lock, count, "the server answers again");
        }
    }
}

impl Surroundings for Acquire {
    fn held_here(&self) -> Option<Holder> {
        self.client.watchdog.held(&self.wanted.key)
    }

    fn tracks(&self) -> bool {
        self.client.quorum.tracking_capacity() > 0
    }

    fn tracked(&self) -> Route {
        self.client.watchdog.route()
    }
}

/// Completes when something may have happened to the lock.
async fn notification(waiter: &Waiter<'_>, called: Option<&FairWaiter>) {
    match called {
        None => waiter.notified().await,
        Some(called) => called.heard().await,
    }
}

/// The holder that was last told about.
#[derive(Debug, Default)]
struct Told(Option<Holder>);

impl Told {
    fn is(&self, holder: &Holder) -> bool {
        self.0.as_ref().is_some_and(|told| holder::is_same(told, holder))
    }
}

/// A lease takes the place of the acquire that has won it.
fn in_owner_slot(mut lease: Lease, owner_slot: Option<Arc<OwnerSlot>>) -> Lease {
    lease.sit(owner_slot);
    let (lock, label, fence) = (lease.name(), lease.label(), u64::from(lease.fence()));
    tracing::debug!(name: "acquired", target: "leasehold", lock, label, fence, "acquired");
    lease
}
