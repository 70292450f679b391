//! One acquisition: what its leases, its watchdog and the table of owners share.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_protocol::{
    fence::Fence,
    key::Key,
    loss::LossReason,
    message::{Claim, Route},
    renewal::{Answer, Core, Orders, Phase},
    time::Time,
    token::Token,
};

use crate::{
    clock::wall,
    foreign::{self, Event},
    lost::Lost,
    metrics::{Holding, Turn},
    status::{Signal, Status},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// One acquisition, held by one or more leases of one owner.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
    /// When the winning attempt was sent.
    acquired: Time,
    /// The route of its release, once that has begun.
    parted: OnceLock<Route>,
    /// A copy of the core's answer, so that `check` is one load and one look at the clock.
    valid_until: AtomicU64,
    state: Mutex<State>,
    measured: Holding,
}

struct State {
    core: Core,
    leases: Vec<Arc<Signal>>,
    end: Option<Lost>,
    /// `Leases::close` has released what was on the nodes, and the connections are closed.
    is_closed: bool,
}

/// Whether a majority has denied the lease. What is left on the others stays until its last holder lets go: where those who
/// denied it do not vote yet, that keeps everybody else out while the job stops.
fn is_denial(reason: LossReason) -> bool {
    matches!(reason, LossReason::Deleted | LossReason::Taken)
}

/// What an event means: orders for the watchdog first, then news for the holders.
#[must_use = "orders are there to be carried out, and news to be told"]
pub(crate) struct Ruling {
    pub(crate) orders: Orders,
    pub(crate) news: Option<News>,
}

/// A new phase, noted already. To tell it runs foreign code: once no lock is held, and nothing is left to be done.
#[must_use = "nobody has been told"]
pub(crate) struct News {
    leases: Vec<Arc<Signal>>,
    turn: Turn,
    end: Option<(LossReason, Duration)>,
    event: Event,
}

impl News {
    pub(crate) fn tell(self) {
        // Every lease is woken before any is cancelled: a caller's thread cancels by itself, and may have to wait there.
        for lease in &self.leases {
            lease.wake();
        }
        for lease in &self.leases {
            lease.cancel();
        }
        match self.end {
            Some((reason, held_for)) => self.turn.tell_end(reason, held_for),
            None => self.turn.tell(),
        }
        foreign::tell(self.event);
    }
}

/// What an owner that asks again finds.
pub(crate) enum Entry {
    /// Another lease on the same acquisition.
    Shared(Arc<Signal>),
    /// Not before a renewal has gone through.
    AtRisk,
    /// It has ended, or is being released.
    Over,
}

/// What a lease leaves behind when it lets go.
pub(crate) enum Leaving {
    /// Others hold on; or there is nothing left to release. The lease had been lost if there is a `Lost`.
    Nothing(Result<(), Lost>),
    /// The key has to be released, and it matters whether it was still there: the lease was believed until the moment
    /// given.
    Release { valid_until: Time },
    /// The key has to be released, and whatever the server says is fine (after `MaxHold`).
    Forgiven,
}

impl Hold {
    pub(crate) fn new(
        key: Key,
        token: Token,
        fence: Fence,
        ttl: Duration,
        acquired: Time,
        core: Core,
    ) -> (Arc<Self>, Arc<Signal>) {
        let signal = Signal::new();
        let valid_until = AtomicU64::new(core.valid_until().as_nanos());
        let state = Mutex::new(State { core, leases: vec![signal.clone()], end: None, is_closed: false });
        let (parted, measured) = (OnceLock::new(), Holding::begins());
        (Arc::new(Self { key, token, fence, ttl, acquired, parted, valid_until, state, measured }), signal)
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim { key: self.key.clone(), token: self.token.clone(), ttl: self.ttl }
    }

    /// How long the holder may still believe in it: from the clock, so right even when every timer is late (rule 2).
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        Time::from_nanos(self.valid_until.load(Ordering::Acquire)).since(now)
    }

    /// Whether a key with this value, which will live for so long, is as our last renewal left it: then nobody else has
    /// touched it since, or to no effect.
    pub(crate) fn is_as_left(&self, value: &str, left: Duration, now: Time) -> bool {
        // The server counts in whole milliseconds.
        value == self.token.as_str() && left >= self.remaining(now) && left < self.ttl + Duration::from_millis(1)
    }

    pub(crate) fn next_tick(&self) -> Option<Time> {
        self.state.lock().core.next_tick()
    }

    pub(crate) fn end(&self) -> Option<Lost> {
        self.state.lock().end.clone()
    }

    pub(crate) fn holds(&self) -> usize {
        self.state.lock().leases.len()
    }

    pub(crate) fn expire_if_due(&self, now: Time) -> Ruling {
        self.feed(now, |core| core.expire_if_due(now))
    }

    pub(crate) fn hint(&self, at: Time) {
        self.state.lock().core.hint(at);
    }

    pub(crate) fn tick(&self, now: Time) -> Ruling {
        self.feed(now, |core| core.tick(now))
    }

    pub(crate) fn answer(&self, now: Time, node: usize, sent: Time, answer: Answer) -> Ruling {
        self.feed(now, |core| core.answer(now, node, sent, answer))
    }

    /// Whether a renewal that was sent at `sent` is confirmed by a majority.
    pub(crate) fn is_confirmed(&self, sent: Time) -> bool {
        self.state.lock().core.is_confirmed(sent)
    }

    /// Whether there may be anything to take off this node. Where there is not, a release that comes nowhere is not
    /// repeated: a node that is away for an hour would leave a task for every lease of that hour.
    pub(crate) fn may_be_on(&self, node: usize) -> bool {
        self.state.lock().core.may_be_on(node)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().core.next_tick().is_none()
    }

    /// Its release goes out on this route now.
    pub(crate) fn parts(&self, route: Route) {
        let _first = self.parted.set(route);
    }

    /// The route of its release, if that has begun.
    pub(crate) fn parted(&self) -> Option<Route> {
        self.parted.get().copied()
    }

    /// `Leases::close`: every lease ends. With whether there may be something left on the nodes that nobody releases yet;
    /// from here on that is up to the caller, and not to the last lease.
    pub(crate) fn close(&self, now: Time) -> (bool, Ruling) {
        let ruling = self.finish(now, LossReason::Closed);
        let mut state = self.state.lock();
        let waits_for_its_lease = |end: &Lost| end.reason() == LossReason::MaxHold || is_denial(end.reason());
        let is_left = !state.leases.is_empty() && state.end.as_ref().is_some_and(waits_for_its_lease);
        let was_closed = std::mem::replace(&mut state.is_closed, true);
        (ruling.news.is_some() || is_left && !was_closed, ruling)
    }

    /// Every lease ends, for a reason that no node has given.
    pub(crate) fn finish(&self, now: Time, reason: LossReason) -> Ruling {
        self.feed(now, |core| core.finish(now, reason))
    }

    /// The owner of this hold asks again.
    pub(crate) fn enter(&self, now: Time) -> (Entry, Ruling) {
        let ruling = self.expire_if_due(now);
        let mut state = self.state.lock();
        let entry = match state.core.phase() {
            Phase::Held => {
                let signal = Signal::new();
                state.leases.push(signal.clone());
                Entry::Shared(signal)
            }
            Phase::AtRisk => Entry::AtRisk,
            Phase::Over { .. } => Entry::Over,
        };
        (entry, ruling)
    }

    /// One lease lets go; a second time there is nothing to let go of. From here on no renewal goes out if it was the
    /// last (rule 8).
    pub(crate) fn leave(&self, now: Time, signal: &Arc<Signal>) -> (Leaving, Ruling) {
        let mut ruling = self.expire_if_due(now);
        let released = self.lost(now, now, LossReason::Released);
        let mut state = self.state.lock();
        let before = state.leases.len();
        state.leases.retain(|lease| !Arc::ptr_eq(lease, signal));
        let (gone, last) = (state.leases.len() == before, state.leases.is_empty());
        let is_denied = state.end.as_ref().is_some_and(|end| is_denial(end.reason()));
        ruling.orders.undo |= !gone && last && is_denied && !state.is_closed;
        let mut turn = None;
        let leaving = match &state.end {
            _ if gone => Leaving::Nothing(Ok(())),
            Some(end) if end.reason() != LossReason::MaxHold => Leaving::Nothing(Err(end.clone())),
            Some(_) if last && !state.is_closed => Leaving::Forgiven,
            None if last => {
                let valid_until = state.core.valid_until();
                let _news_for_nobody = state.core.finish(now, LossReason::Released);
                self.valid_until.store(0, Ordering::Release);
                state.end = Some(released.clone());
                turn = Some(self.measured.is_over());
                Leaving::Release { valid_until }
            }
            Some(_) | None => Leaving::Nothing(Ok(())),
        };
        drop(state);
        signal.end(&released);
        if let Some(turn) = turn {
            turn.tell_end(LossReason::Released, now.since(self.acquired));
        }
        (leaving, ruling)
    }

    pub(crate) fn lost(&self, now: Time, since: Time, reason: LossReason) -> Lost {
        let since_wall = wall().checked_sub(now.since(since)).unwrap_or(std::time::UNIX_EPOCH);
        Lost::new(self.key.name(), self.fence, reason, since_wall, since.since(self.acquired))
    }

    fn feed(&self, now: Time, event: impl FnOnce(&mut Core) -> Orders) -> Ruling {
        let mut state = self.state.lock();
        let mut orders = event(&mut state.core);
        self.valid_until.store(state.core.valid_until().as_nanos(), Ordering::Release);
        if !orders.news {
            return Ruling { orders, news: None };
        }
        let phase = state.core.phase();
        if let Phase::Over { reason, since } = phase {
            state.end = Some(self.lost(now, since, reason));
            orders.undo &= state.leases.is_empty() || !is_denial(reason);
        }
        let end = state.end.clone();
        let turn = if end.is_some() { self.measured.is_over() } else { self.measured.is_held(phase == Phase::AtRisk) };
        // Noted under the lock, so that news reach every signal in their order.
        for lease in &state.leases {
            match (&end, phase) {
                (Some(lost), _) => lease.note_end(lost),
                (None, Phase::AtRisk) => lease.note(Status::AtRisk),
                (None, _) => lease.note(Status::Held),
            }
        }
        let leases = state.leases.clone();
        drop(state);
        let event = self.event(phase, end.as_ref());
        let end = end.map(|lost| (lost.reason(), now.since(self.acquired)));
        Ruling { orders, news: Some(News { leases, turn, end, event }) }
    }

    fn event(&self, phase: Phase, end: Option<&Lost>) -> Event {
        let (lock, label) = (self.key.name().to_owned(), self.token.label().to_owned());
        match end {
            Some(lost) => Event::Lost { label, lost: lost.clone() },
            None if phase == Phase::AtRisk => Event::AtRisk { lock, label },
            None => Event::Recovered { lock, label },
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.key)
            .field("token", &self.token)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use leasehold_protocol::{fence, jitter::Jitter, message::Denial, renewal::LeaseConfig, tally::Tally};

    use super::*;
    use crate::random;

    const TTL: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn held() -> (Arc<Hold>, Arc<Signal>) {
        let config = LeaseConfig { ttl: TTL, max_hold: Some(TTL), patience: TTL / 3 };
        let mut tally = Tally::new(1);
        tally.confirm(0, Time::ZERO);
        let core = Core::new(config, tally, Jitter::from_seed(1));
        Hold::new(Key::of_lock("job"), random::token("host:7"), fence::ZERO, TTL, Time::ZERO, core)
    }

    /// What is left of a lease that goes after `close`: no order, and its release says this.
    fn leaves(hold: &Hold, signal: &Arc<Signal>) -> Result<(), LossReason> {
        let (leaving, ruling) = hold.leave(at(3_100), signal);
        assert!(ruling.orders == Orders::default() && ruling.news.is_none());
        let Leaving::Nothing(outcome) = leaving else { panic!("it would ask on a closed connection") };
        outcome.map_err(|lost| lost.reason())
    }

    fn closes(hold: &Hold, millis: u64) -> bool {
        hold.close(at(millis)).0
    }

    #[test]
    fn close_releases_a_held_lease_once() {
        let (hold, signal) = held();
        assert!(closes(&hold, 1) && !closes(&hold, 2));
        assert_eq!(leaves(&hold, &signal), Err(LossReason::Closed));
    }

    #[test]
    fn close_releases_a_lease_that_has_reached_its_max_hold() {
        let (hold, signal) = held();
        let _ruling = hold.answer(at(1_000), 0, at(1_000), Answer::Confirmed);
        let _ruling = hold.tick(at(3_000));
        assert_eq!(hold.end().unwrap().reason(), LossReason::MaxHold);
        assert!(closes(&hold, 3_050) && !closes(&hold, 3_060));
        assert_eq!(leaves(&hold, &signal), Ok(()));
    }

    #[test]
    fn close_releases_a_lease_that_was_denied() {
        let (hold, signal) = held();
        let ruling = hold.answer(at(1_000), 0, at(1_000), Answer::Denied(Denial::Gone));
        assert!(!ruling.orders.undo, "what is left of it stays while it is held");
        assert!(closes(&hold, 3_050) && !closes(&hold, 3_060));
        assert_eq!(leaves(&hold, &signal), Err(LossReason::Deleted));
    }

    #[test]
    fn close_releases_nothing_that_is_released_already() {
        let (hold, signal) = held();
        let (leaving, _) = hold.leave(at(1), &signal);
        assert!(matches!(leaving, Leaving::Release { .. }) && !closes(&hold, 2));
        let (hold, signal) = held();
        // Its end has ordered the release.
        assert!(hold.tick(at(2_990)).orders.undo && !closes(&hold, 2_995));
        assert_eq!(leaves(&hold, &signal), Err(LossReason::Expired));
    }
}
