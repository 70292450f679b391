//! One acquisition: what its leases, its watchdog and the table of owners share.

use std::{fmt, panic::RefUnwindSafe, sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::{self, Acquisition, Actions, Said, Sent},
    failure::Failure,
    fence::Fence,
    holder::RELEASED,
    key::Key,
    loss::{self, LossReason},
    message::{Claim, ReleaseMode, Route},
    renewal::Phase,
    time::Time,
    token::Token,
};

use super::noted::Noted;
use crate::{
    clock::wall,
    foreign::{self, Event},
    lost::Lost,
    metrics::{Group, Holding, Turn},
    owner::OwnerId,
    random,
    status::{Board, HasBoard, Signal, Status},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// A server counts in whole milliseconds.
const SHORTEST_KEEP: Duration = Duration::from_millis(1);

/// One acquisition, held by one or more leases of one owner.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) ttl: Duration,
    fence_memory: Duration,
    pub(crate) owner: Option<OwnerId>,
    /// When the winning attempt was sent.
    acquired: Time,
    /// A copy of the acquisition's answer, so that `check` is one load and one look at the clock.
    valid_until: AtomicU64,
    /// The key stays until then, whenever it is released: nanoseconds on our clock, zero for no longer than it is held.
    keep_until: AtomicU64,
    state: Mutex<State>,
    /// The signals of the lease that it was won for.
    first: Board,
    pub(super) measured: Holding,
    pub(super) noted: Noted,
}

struct State {
    acquisition: Acquisition,
    /// Whether the lease that it was won for has not let go.
    has_first: bool,
    more: Vec<Arc<Board>>,
    end: Option<Lost>,
}

impl State {
    fn holds(&self) -> usize {
        usize::from(self.has_first) + self.more.len()
    }
}

/// The consequences of an event: actions for the watchdog first, then news for the holders.
#[must_use = "actions are there to be carried out, and news to be told"]
pub(crate) struct Reaction {
    pub(crate) actions: Actions,
    pub(crate) news: Option<News>,
}

/// A new phase, noted already. To tell it runs foreign code: once no lock is held, and nothing is left to be done.
#[must_use = "nobody has been told"]
pub(crate) struct News {
    leases: Vec<Signal>,
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

/// The result for an owner that asks again.
pub(crate) enum Entry {
    /// Another lease on the same acquisition.
    Shared(Signal),
    /// Not before a renewal has gone through.
    AtRisk,
    /// It has ended, or is being released.
    Over,
}

/// The work that is left when a lease lets go.
pub(crate) enum Leaving {
    /// Others hold on; or there is nothing left to release. The lease had been lost if there is a `Lost`.
    Nothing(Result<(), Lost>),
    /// The key has to be released, and it matters whether it was still there: the lease was believed until the moment
    /// given.
    Release { valid_until: Time },
    /// The key has to be released, and whatever the server says is fine (after `MaxHold`).
    Forgiven,
}

// As for `Client`.
impl RefUnwindSafe for Hold {}

impl HasBoard for Hold {
    fn board(&self) -> &Board {
        &self.first
    }
}

impl Hold {
    /// An acquisition by this owner, which was won with this fence, and is counted in this group.
    pub(crate) fn new(
        claim: Claim,
        fence: Fence,
        owner: Option<OwnerId>,
        acquisition: Acquisition,
        group: Group,
    ) -> (Arc<Self>, Signal) {
        let Claim { key, token, ttl, fence_memory, .. } = claim;
        let acquired = acquisition.sent();
        let valid_until = AtomicU64::new(acquisition.valid_until().as_nanos());
        let keep_until = AtomicU64::new(0);
        let state = Mutex::new(State { acquisition, has_first: true, more: Vec::new(), end: None });
        let measured = Holding::begins(group);
        let hold = Self {
            key,
            token,
            fence,
            ttl,
            fence_memory,
            owner,
            acquired,
            valid_until,
            keep_until,
            state,
            first: Board::new(),
            measured,
            noted: Noted::default(),
        };
        let hold = Arc::new(hold);
        (hold.clone(), Signal::First(hold))
    }

    /// Of every lease that has not let go, in the order in which they came.
    fn boards<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Board> {
        state.has_first.then_some(&self.first).into_iter().chain(state.more.iter().map(|board| &**board))
    }

    /// The same to keep.
    fn signals(self: &Arc<Self>, state: &State) -> Vec<Signal> {
        let first = state.has_first.then(|| Signal::First(self.clone()));
        first.into_iter().chain(state.more.iter().cloned().map(Signal::More)).collect()
    }

    /// One more lease.
    fn join(&self, state: &mut State) -> Signal {
        let board = Arc::new(Board::beside(self.boards(state).next()));
        state.more.push(board.clone());
        Signal::More(board)
    }

    /// Keeps the key for at least so long from now on, or until the time that was asked for before.
    pub(crate) fn keep_for(&self, now: Time, keep: Duration) {
        self.keep_until.fetch_max((now + keep).as_nanos(), Ordering::AcqRel);
    }

    /// Whether a release deletes the key or retains it: for at least `keep` from now on. A lost lease ignores an
    /// earlier `keep_for`: its work has not been done.
    pub(crate) fn release_mode(&self, now: Time, keep: Duration) -> ReleaseMode {
        let asked = Time::from_nanos(self.keep_until.load(Ordering::Acquire)).since(now);
        let is_lost = || self.end().is_some_and(|end| loss::label(end.reason()).is_some());
        let rest = if asked.is_zero() || is_lost() { keep } else { asked.max(keep) };
        if rest.is_zero() {
            return ReleaseMode::Delete;
        }
        let stays = random::token(&format!("{}{RELEASED}", self.token.label()));
        ReleaseMode::Retain(rest.max(SHORTEST_KEEP), stays)
    }

    pub(crate) fn claim(&self) -> Claim {
        let Self { key, token, fence, ttl, fence_memory, .. } = self;
        Claim { key: key.clone(), token: token.clone(), ttl: *ttl, fence: Some(*fence), fence_memory: *fence_memory }
    }

    /// How long the holder may still believe in it: from the clock, so right even when every timer is late (rule 2).
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        Time::from_nanos(self.valid_until.load(Ordering::Acquire)).since(now)
    }

    /// Whether a key with this value, which will live for so long, is as our last renewal left it: then nobody else has
    /// touched it since, or to no effect.
    pub(crate) fn is_as_left(&self, value: &str, left: Duration, now: Time) -> bool {
        // The server counts in whole milliseconds.
        self.token.owns(value) && left >= self.remaining(now) && left < self.ttl + Duration::from_millis(1)
    }

    pub(crate) fn next_tick(&self) -> Option<Time> {
        self.state.lock().acquisition.next_tick()
    }

    pub(crate) fn end(&self) -> Option<Lost> {
        self.state.lock().end.clone()
    }

    pub(crate) fn holds(&self) -> usize {
        self.state.lock().holds()
    }

    pub(crate) fn expire_if_due(self: &Arc<Self>, now: Time) -> Reaction {
        self.feed(now, |acquisition| acquisition.expire_if_due(now))
    }

    pub(crate) fn hint(&self, at: Time) {
        self.state.lock().acquisition.hint(at);
    }

    pub(crate) fn hint_of(&self, node: usize, now: Time) {
        self.state.lock().acquisition.hint_of(node, now);
    }

    pub(crate) fn tick(self: &Arc<Self>, now: Time) -> Reaction {
        self.feed(now, |acquisition| acquisition.on_tick(now))
    }

    /// Others are renewed now.
    pub(crate) fn go_along(self: &Arc<Self>, now: Time, meets: Option<Duration>) -> Reaction {
        self.feed(now, |acquisition| acquisition.go_along(now, meets))
    }

    /// A node has answered, or will not.
    pub(crate) fn on_reply(self: &Arc<Self>, now: Time, sent: Sent, reply: Result<Said, Failure>) -> Reaction {
        self.feed(now, |acquisition| acquisition.on_reply(now, sent, reply))
    }

    /// Whether a renewal that was sent at `sent` is confirmed by a majority.
    pub(crate) fn is_confirmed(&self, sent: Time) -> bool {
        self.state.lock().acquisition.is_confirmed(sent)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.next_tick().is_none()
    }

    /// Its release goes out on this route now, to every node.
    pub(crate) fn release(&self, route: Route, mode: ReleaseMode) {
        let _to_every_node = self.state.lock().acquisition.release(route, mode);
    }

    /// Nobody waits for its release: what is to be undone instead.
    pub(crate) fn abandon(&self, mode: ReleaseMode) -> Option<acquisition::Undo> {
        self.state.lock().acquisition.abandon(mode).undo
    }

    /// `Leases::close`: every lease ends, and what is left on the nodes is released.
    pub(crate) fn close(self: &Arc<Self>, now: Time) -> Reaction {
        let mut reaction = self.feed(now, |acquisition| acquisition.close(now));
        if let Some(undo) = &mut reaction.actions.undo {
            undo.mode = self.release_mode(now, Duration::ZERO);
        }
        reaction
    }

    /// Every holder is to stop, while the lease goes on: who has to be woken for that, and cancelled.
    pub(crate) fn note_stop(self: &Arc<Self>, now: Time, reason: LossReason) -> Vec<Signal> {
        let why = self.lost(now, now, reason);
        let state = self.state.lock();
        // Noted under the lock, so that a lease which joins them later hears of it from them.
        for lease in self.boards(&state) {
            lease.note_stop(&why);
        }
        self.signals(&state)
    }

    /// Every lease ends, for a reason that no node has given.
    pub(crate) fn finish(self: &Arc<Self>, now: Time, reason: LossReason) -> Reaction {
        self.feed(now, |acquisition| acquisition.finish(now, reason))
    }

    /// The owner of this hold asks again.
    pub(crate) fn enter(self: &Arc<Self>, now: Time) -> (Entry, Reaction) {
        let reaction = self.expire_if_due(now);
        let mut state = self.state.lock();
        let entry = match state.acquisition.phase() {
            Some(Phase::Held) => Entry::Shared(self.join(&mut state)),
            Some(Phase::AtRisk) => Entry::AtRisk,
            Some(Phase::Over { .. }) | None => Entry::Over,
        };
        (entry, reaction)
    }

    /// Another lease on it, for whoever has one; an error once it has ended.
    pub(crate) fn share(self: &Arc<Self>, now: Time) -> (Result<Signal, Lost>, Reaction) {
        let reaction = self.expire_if_due(now);
        let mut state = self.state.lock();
        let signal = match state.acquisition.phase() {
            Some(phase @ (Phase::Held | Phase::AtRisk)) => {
                let signal = self.join(&mut state);
                if phase == Phase::AtRisk {
                    signal.note(Status::AtRisk);
                }
                Ok(signal)
            }
            Some(Phase::Over { .. }) | None => {
                Err(state.end.clone().unwrap_or_else(|| self.lost(now, now, LossReason::Released)))
            }
        };
        (signal, reaction)
    }

    /// One lease lets go; a second time there is nothing to let go of. From here on no renewal goes out if it was the
    /// last (rule 8).
    pub(crate) fn leave(self: &Arc<Self>, now: Time, signal: &Signal) -> (Leaving, Reaction) {
        let mut reaction = self.expire_if_due(now);
        let released = self.lost(now, now, LossReason::Released);
        let mut state = self.state.lock();
        let before = state.holds();
        match signal {
            Signal::First(_) => state.has_first = false,
            Signal::More(board) => state.more.retain(|lease| !Arc::ptr_eq(lease, board)),
        }
        if state.holds() == before {
            return (Leaving::Nothing(Ok(())), reaction);
        }
        let lost = state.end.clone().filter(|end| end.reason() != LossReason::MaxHold);
        let mut leaving = Leaving::Nothing(lost.map_or(Ok(()), Err));
        let mut turn = None;
        if state.holds() == 0 {
            let valid_until = state.acquisition.valid_until();
            let (left, Actions { undo, .. }) = state.acquisition.let_go(now);
            reaction.actions.undo = reaction.actions.undo.or(undo);
            self.valid_until.store(0, Ordering::Release);
            match left {
                acquisition::Leaving::Nothing => {}
                acquisition::Leaving::Release { is_forgiven: true } => leaving = Leaving::Forgiven,
                acquisition::Leaving::Release { is_forgiven: false } => {
                    state.end = Some(released.clone());
                    turn = Some(self.measured.is_over());
                    leaving = Leaving::Release { valid_until };
                }
            }
        }
        drop(state);
        signal.end(&released);
        if let Some(turn) = turn {
            turn.tell_end(LossReason::Released, now.since(self.acquired));
        }
        (leaving, reaction)
    }

    pub(crate) fn lost(&self, now: Time, since: Time, reason: LossReason) -> Lost {
        let since_wall = wall().checked_sub(now.since(since)).unwrap_or(std::time::UNIX_EPOCH);
        Lost::new(self.key.name(), self.fence, reason, since_wall, since.since(self.acquired))
    }

    fn feed(self: &Arc<Self>, now: Time, event: impl FnOnce(&mut Acquisition) -> Actions) -> Reaction {
        let mut state = self.state.lock();
        let actions = event(&mut state.acquisition);
        self.valid_until.store(state.acquisition.valid_until().as_nanos(), Ordering::Release);
        let (Some(acquisition::News::Phase), Some(phase)) = (&actions.news, state.acquisition.phase()) else {
            return Reaction { actions, news: None };
        };
        if let Phase::Over { reason, since } = phase {
            state.end = Some(self.lost(now, since, reason));
        }
        let end = state.end.clone();
        let turn = if end.is_some() { self.measured.is_over() } else { self.measured.is_held(phase == Phase::AtRisk) };
        // Noted under the lock, so that news reach every signal in their order.
        for lease in self.boards(&state) {
            match (&end, phase) {
                (Some(lost), _) => lease.note_end(lost),
                (None, Phase::AtRisk) => lease.note(Status::AtRisk),
                (None, _) => lease.note(Status::Held),
            }
        }
        let leases = self.signals(&state);
        drop(state);
        let event = self.event(phase, end.as_ref());
        let end = end.map(|lost| (lost.reason(), now.since(self.acquired)));
        Reaction { actions, news: Some(News { leases, turn, end, event }) }
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
    use leasehold_protocol::{
        acquisition::{Ask, Config},
        fence,
        jitter::Jitter,
        message::Denial,
        renewal::LeaseConfig,
    };

    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn held() -> (Arc<Hold>, Signal) {
        let lease = LeaseConfig { ttl: TTL, max_hold: Some(TTL), patience: TTL / 3 };
        let (route, jitter) = (Route::Home, Jitter::from_seed(1));
        let config = Config { lease, nodes: 1, route, renew_first_after: None, jitter };
        let Some(acquisition) = Acquisition::granted(config, Time::ZERO, Time::ZERO, fence::ZERO) else {
            panic!("it is granted in time")
        };
        let (key, fence_memory) = (Key::of_lock("job"), fence::MEMORY);
        let claim = Claim { key, token: random::token("host:7"), ttl: TTL, fence: None, fence_memory };
        Hold::new(claim, fence::ZERO, None, acquisition, Group::default())
    }

    fn renewed(hold: &Arc<Hold>, millis: u64, owned: Result<(), Denial>) -> Actions {
        let sent = Sent { node: 0, ask: Ask::Renew, at: at(millis) };
        hold.on_reply(at(millis), sent, Ok(Said::Owned(owned))).actions
    }

    /// Lets a lease go after `close`: nothing is left to do, and its release says this.
    fn leaves(hold: &Arc<Hold>, signal: &Signal) -> Result<(), LossReason> {
        let (leaving, Reaction { actions, news }) = hold.leave(at(3_100), signal);
        assert!(actions.undo.is_none() && news.is_none());
        let Leaving::Nothing(outcome) = leaving else { panic!("it would ask on a closed connection") };
        outcome.map_err(|lost| lost.reason())
    }

    fn closes(hold: &Arc<Hold>, millis: u64) -> bool {
        hold.close(at(millis)).actions.undo.is_some()
    }

    #[test]
    fn a_key_is_as_our_last_renewal_left_it_while_it_lives_for_as_long() {
        let ((hold, _signal), now, milli) = (held(), at(100), Duration::from_millis(1));
        let value = hold.token.value(fence::ZERO);
        let is_as_left = |left| hold.is_as_left(&value, left, now);
        let least = hold.remaining(now);
        assert!(is_as_left(least) && is_as_left(TTL), "{least:?}");
        assert!(!is_as_left(least.saturating_sub(milli)), "somebody shortened it");
        assert!(!is_as_left(TTL + milli), "somebody lengthened it");
        assert!(!hold.is_as_left(&random::token("host:7").value(fence::ZERO), least, now), "it is another's");
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
        let _renewed = renewed(&hold, 1_000, Ok(()));
        let _reaction = hold.tick(at(3_000));
        assert_eq!(hold.end().unwrap().reason(), LossReason::MaxHold);
        assert!(closes(&hold, 3_050) && !closes(&hold, 3_060));
        assert_eq!(leaves(&hold, &signal), Ok(()));
    }

    #[test]
    fn close_releases_a_lease_that_was_denied() {
        let (hold, signal) = held();
        let denied = renewed(&hold, 1_000, Err(Denial::Gone));
        assert!(denied.undo.is_none(), "what is left of it stays while it is held");
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
        assert!(hold.tick(at(2_990)).actions.undo.is_some() && !closes(&hold, 2_995));
        assert_eq!(leaves(&hold, &signal), Err(LossReason::Expired));
    }
}
