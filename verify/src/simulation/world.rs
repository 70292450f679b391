//! Everything outside of the clients: the nodes, the messages, and the faults.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    failure::Failure,
    fence::{self, Fence},
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Acquired, Claim, Denial, ReleaseMode, Reply, Request, VoteReply},
    mode::Mode,
    outliving::Outliving,
    plurality::Plurality,
    store::{Process, Store},
    tally::majority,
    time::Micros,
    token::Token,
};

use super::{
    chance::{Dice, Real, Skewed, nanos},
    event::Alarm,
    history::{History, Violation},
    profile::Faults,
    session::Session,
};
use crate::seeded::SeededBug;

mod fault;

pub(super) use self::fault::Fault;

const MILLI: Duration = Duration::from_millis(1);

/// The servers, their keys and the messages, over time.
pub(super) struct World {
    pub(super) now: Real,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    pub(super) bug: Option<SeededBug>,
    pub(super) ttl: Duration,
    /// Whether keys outlive their leases, and for how long a key lives at most.
    pub(super) outlives: bool,
    pub(super) longest_life: Duration,
    pub(super) restart_delay: Duration,
    pub(super) command_timeout: Duration,
    pub(super) key: Key,
    pub(super) history: History,
    /// When the world closes: from then on every client lets go, and no fault happens.
    pub(super) closes: Real,
    pub(super) last_arrival: Real,
    /// The events to come, in order. Events of one moment are in the order in which they were settled.
    events: BTreeMap<(Real, u64), Event>,
    tickets: u64,
    servers: Vec<Server>,
    paused_until: Vec<Real>,
    /// Until when a client's messages to and from a node are lost.
    cut_until: Vec<Vec<Real>>,
    /// Until when nothing is lost or slow, so that an arranged fault takes its course.
    lull_until: Real,
    /// The events, for people, if a trace was asked for.
    pub(super) trace: Option<Vec<(Real, String)>>,
}

struct Server {
    clock: Skewed,
    store: Store,
    is_down: bool,
    /// When the key got its present token.
    appeared: Real,
    /// The fence in its value, as a look shows it.
    shown: Option<Fence>,
}

#[derive(Debug, Clone)]
pub(super) enum Event {
    Arrives(Message),
    Answered {
        client: usize,
        request: u64,
        said: Result<Reply, Failure>,
        executed: Real,
    },
    Rings {
        client: usize,
        alarm: Alarm,
    },
    /// A client's process ends, and another begins.
    Dies(usize),
    Restarts(usize),
    Inject(Fault),
}

#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) node: usize,
    pub(super) number: u64,
    pub(super) request: Request,
}

impl World {
    /// The restart delay of repairs.
    pub(super) fn repair_delay(&self) -> Duration {
        if self.bug == Some(SeededBug::RepairUnchecked) { Duration::ZERO } else { self.restart_delay }
    }

    pub(super) fn new(
        clients: usize,
        nodes: usize,
        (ttl, longest_life, restart_delay): (Duration, Duration, Duration),
        faults: Faults,
        bug: Option<SeededBug>,
        mut dice: Dice,
    ) -> Self {
        let command_timeout = if faults.is_sly { ttl } else { dice.between(ttl / 4, ttl * 2) };
        let server = |_| {
            let clock = faults.clock(&mut dice);
            Server { clock, store: Store::default(), is_down: false, appeared: 0, shown: None }
        };
        let servers = (0..nodes).map(server).collect();
        let mut world = Self {
            now: 0,
            dice,
            faults,
            bug,
            ttl,
            outlives: longest_life > ttl,
            longest_life,
            restart_delay,
            command_timeout,
            key: Key::new("", "job").unwrap(),
            history: History::default(),
            closes: nanos(longest_life) * 8,
            last_arrival: 0,
            events: BTreeMap::new(),
            tickets: 0,
            servers,
            paused_until: vec![0; clients],
            cut_until: vec![vec![0; nodes]; clients],
            lull_until: 0,
            trace: None,
        };
        world.schedule_faults();
        world
    }

    pub(super) fn nodes(&self) -> usize {
        self.servers.len()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.now >= self.closes
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push((now, what()));
        }
    }

    pub(super) fn at(&mut self, at: Real, event: Event) {
        self.tickets += 1;
        self.events.insert((at.max(self.now), self.tickets), event);
    }

    /// The next event, with the time moved on to it. An event for a client that stands still waits for that client.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let ((at, _), event) = self.events.pop_first()?;
            let client = match &event {
                Event::Answered { client, .. } | Event::Rings { client, .. } | Event::Dies(client) => Some(*client),
                _ => None,
            };
            self.now = at;
            match client.map(|client| self.paused_until[client]) {
                Some(until) if until > at => self.at(until, event),
                _ => return Some(event),
            }
        }
    }

    /// Sends a request, and returns its number, with which it is answered.
    pub(super) fn send(&mut self, client: usize, node: usize, request: Request) -> u64 {
        self.tickets += 1;
        let number = self.tickets;
        if self.dice.percent(self.faults.refused) {
            self.answer(client, number, Err(Failure::unavailable("not connected")));
            return number;
        }
        let mut is_lost = true;
        let copies = if self.dice.percent(self.faults.doubled) { 2 } else { 1 };
        let message = Message { client, node, number, request };
        if self.is_held_up(&message) {
            return number;
        }
        for _ in 0..copies {
            if self.passes(client, node) {
                is_lost = false;
                let at = self.now + self.delay();
                self.at(at, Event::Arrives(message.clone()));
            }
        }
        if is_lost {
            self.lose(client, number);
        }
        number
    }

    fn passes(&mut self, client: usize, node: usize) -> bool {
        let is_lost = self.dice.percent(self.faults.lost) && self.now >= self.lull_until;
        self.cut_until[client][node] <= self.now && !is_lost
    }

    /// How long a message takes.
    fn delay(&mut self) -> Real {
        let usual = self.dice.between(Duration::from_micros(50), Duration::from_millis(1));
        let is_slow = self.dice.percent(self.faults.slow) && self.now >= self.lull_until;
        let more = if is_slow { self.dice.between(Duration::ZERO, self.faults.slowest) } else { Duration::ZERO };
        nanos(usual + more)
    }

    /// A message is lost. The client gets an error at once, or notices by a timeout.
    fn lose(&mut self, client: usize, number: u64) {
        if self.dice.percent(50) {
            self.answer(client, number, Err(Failure::unknown("the connection was reset")));
        }
    }

    fn answer(&mut self, client: usize, request: u64, said: Result<Reply, Failure>) {
        let at = self.now + self.delay();
        self.at(at, Event::Answered { client, request, said, executed: self.now });
    }

    /// A request arrives.
    pub(super) fn arrive(&mut self, message: Message) {
        let Message { client, node, number, request } = message;
        if self.servers[node].is_down {
            self.lose(client, number);
            return;
        }
        self.last_arrival = self.now;
        let before = self.owner(node);
        let said = self.execute(node, &request);
        let is_same = self.owner(node) == before;
        if !is_same {
            self.servers[node].appeared = self.now;
        }
        if !is_same || self.bug != Some(SeededBug::RaiseLeavesValue) {
            self.servers[node].shown = self.holder(node).and_then(|holder| holder.fence());
        }
        self.note(|| format!("node {node} has {} of client {client}: {}", name(&request), brief(&said)));
        if self.passes(client, node) {
            self.answer(client, number, Ok(said.clone()));
        } else {
            self.lose(client, number);
        }
        if matches!(&said, Reply::Vote(VoteReply { acquired: Acquired::Granted(_), .. })) {
            self.voted(client, node);
        }
    }

    fn execute(&mut self, node: usize, request: &Request) -> Reply {
        let owner = self.owner(node);
        let (now, key) = (self.time_at(node), self.key.clone());
        let store = &mut self.servers[node].store;
        if let (Request::Repair { .. }, Some(SeededBug::RepairOverwrites), Some(token)) =
            (request, self.bug, owner.clone())
        {
            let claim = Claim {
                key,
                token,
                mode: Mode::Exclusive,
                ttl: Duration::ZERO,
                life: Duration::ZERO,
                fence: None,
                fence_memory: fence::MEMORY,
            };
            let _gone = apply(store, now, &Request::Release { claim, mode: ReleaseMode::Delete });
        }
        let Server { store, shown, .. } = &mut self.servers[node];
        let is_own = |claim: &Claim| owner.as_ref() == Some(&claim.token);
        match (request, self.bug) {
            (Request::Release { claim, .. }, Some(SeededBug::WholeValueCompared))
                if is_own(claim) && claim.fence != *shown =>
            {
                Reply::Owned(Err(Denial::Taken))
            }
            (Request::Acquire(AcquireRequest { claim, .. }), Some(SeededBug::ReplayDrawsAnew)) if is_own(claim) => {
                again(apply(store, now, request))
            }
            _ => apply(store, now, request),
        }
    }

    /// The claim of a token for the lock, with this fence.
    pub(super) fn claim(&self, token: &Token, ttl: Duration, fence: Option<Fence>) -> Claim {
        let (key, token) = (self.key.clone(), token.clone());
        Claim { key, token, mode: Mode::Exclusive, ttl, life: ttl, fence, fence_memory: fence::MEMORY }
    }

    /// Checks that a client that asks all nodes is certain of the fence of this lease, or of none.
    pub(super) fn check_shown(&mut self, token: &Token, fence: Fence) {
        let mut held = Vec::new();
        for node in 0..self.nodes() {
            if let Some(there) = self.owner(node) {
                held.push(Holder::of(Some(there), None, self.servers[node].shown));
            }
        }
        let seen = Plurality::largest(&held, majority(self.nodes()));
        let shown = seen.filter(|seen| seen.holder.whole_token() == Some(token)).and_then(|seen| seen.holder.fence());
        if shown.is_some_and(|shown| shown != fence) {
            let at = self.now;
            self.history.saw(Violation::AnotherFence { at });
        }
    }

    /// Draws by how much a key outlives its lease.
    pub(super) fn outliving(&mut self) -> Outliving {
        if !self.outlives {
            return Outliving::NOTHING;
        }
        let Self { dice, ttl, longest_life, .. } = self;
        let delay = if dice.percent(60) {
            dice.between(Duration::ZERO, longest_life.saturating_sub(*ttl))
        } else {
            Duration::ZERO
        };
        let once_per = if dice.percent(40) { dice.between(Duration::ZERO, *longest_life) } else { Duration::ZERO };
        // Rounded up to whole milliseconds.
        Outliving::new(delay.saturating_sub(MILLI), once_per.saturating_sub(MILLI))
    }

    /// Notes that a lease is won: no other client may win before its key can have ended. Two clocks may be wrong.
    pub(super) fn outlives_by(&mut self, session: &Session, lease: usize) {
        let outliving = session.acquisition.outliving();
        let least = |span: Duration| nanos(span) / 100 * 98;
        let interval = least(outliving.interval_left(Duration::ZERO));
        let until = if interval > 0 { session.sent + interval } else { 0 };
        let delay = outliving.life(session.ttl, Duration::MAX).saturating_sub(session.ttl);
        self.history.outlives(lease, until, least(delay).saturating_sub(nanos(MILLI)));
    }

    fn time_at(&self, node: usize) -> Micros {
        self.servers[node].clock.shows(self.now).as_nanos() / 1_000
    }

    /// The owner of the key on a node.
    pub(super) fn owner(&mut self, node: usize) -> Option<Token> {
        self.holder(node)?.whole_token().cloned()
    }

    fn holder(&mut self, node: usize) -> Option<Holder> {
        let now = self.time_at(node);
        self.servers[node].store.holder(now, &self.key)
    }

    /// Since when the key is there.
    pub(super) fn appeared(&self, node: usize) -> Real {
        self.servers[node].appeared
    }

    /// Checks that no node has a key left.
    pub(super) fn check_is_empty(&mut self) {
        if (0..self.nodes()).any(|node| self.holder(node).is_some()) {
            let at = self.now;
            self.history.saw(Violation::Immortal { at });
        }
    }
}

/// A node's answer, without notifications to others.
fn apply(store: &mut Store, now: Micros, request: &Request) -> Reply {
    store.apply(now, request, Process { name: "", hears: false }, &|_| false).reply.unwrap()
}

/// A replayed acquire that was granted with another fence.
fn again(reply: Reply) -> Reply {
    match reply {
        Reply::Vote(VoteReply { acquired: Acquired::Granted(fence), identity, overtaken }) => {
            let fence = Fence::try_from(u64::from(fence) + 1).unwrap_or(fence);
            Reply::Vote(VoteReply { acquired: Acquired::Granted(fence), identity, overtaken })
        }
        other => other,
    }
}

/// Names a request, for people.
fn name(request: &Request) -> &'static str {
    match request {
        Request::Acquire(_) => "an acquire",
        Request::Raise { .. } => "a raise",
        Request::Renew(_) => "a renewal",
        Request::Repair { .. } => "a repair",
        Request::Release { .. } => "a release",
        _ => "another request",
    }
}

/// Describes a reply, for people.
fn brief(reply: &Reply) -> String {
    match reply {
        Reply::Vote(VoteReply { acquired: Acquired::Busy { holder, .. }, .. }) => format!("busy with {holder}"),
        Reply::Vote(VoteReply { acquired, .. }) => format!("{acquired:?}"),
        other => format!("{other:?}"),
    }
}
