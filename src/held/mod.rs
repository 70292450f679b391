//! One acquisition that was won: the state that its leases, its watchdog and the table of owners share.

use std::{fmt, panic::RefUnwindSafe, sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::{self, Acquisition, Actions, Said, Sent},
    failure::Failure,
    fence::Fence,
    holder::RELEASED,
    loss::{self, Loss, LossReason},
    message::{Claim, ReleaseMode, Route},
    mode,
    outliving::Outliving,
    renewal::Phase,
    time::Time,
    token::Token,
};

use crate::{
    clock::wall,
    foreign::{Event, LeaseSpan},
    lost::Lost,
    metrics::{Group, Holding},
    options::{Access, LockOptions},
    owner::OwnerId,
    random,
    status::{Board, HasBoard, Signal, Status},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

mod change;
mod noted;
mod sharing;
mod trial;

use self::trial::Trial;
pub(crate) use self::{
    change::PhaseChange,
    noted::{NOT_HERE, Noted, SCHEDULED},
    sharing::{AfterLast, Heir, SharedEntry},
};

/// The shortest keep: a server counts in whole milliseconds.
const SHORTEST_KEEP: Duration = Duration::from_millis(1);

/// A release of this token after which the key stays for `rest`, which may be zero.
pub(crate) fn retained(rest: Duration, token: &Token) -> ReleaseMode {
    if rest.is_zero() {
        return ReleaseMode::Delete;
    }
    ReleaseMode::Retain(
        rest.max(SHORTEST_KEEP),
        random::token(&format!("{}{RELEASED}", token.label())).taking(token.permits()),
    )
}

/// One acquisition, held by one or more leases of one owner.
pub(crate) struct Hold {
    /// With the lease's fence, and the longest life of its key.
    pub(crate) claim: Claim,
    pub(crate) fence: Fence,
    pub(crate) owner: Option<OwnerId>,
    /// When the winning attempt was sent.
    acquired: Time,
    outliving: Outliving,
    /// A copy of the acquisition's `valid_until`, so that `check` is one load and one read of the clock.
    valid_until: AtomicU64,
    /// Whether its work has to make progress. Every other lease pays for this question only.
    is_watched: bool,
    /// When progress was reported last, and whether the lease waits for that: a report is a store and a load.
    progressed: AtomicU64,
    awaits_progress: AtomicBool,
    /// Until when the key is kept, whenever it is released: nanoseconds on our clock, zero for no longer than it is
    /// held.
    keep_until: AtomicU64,
    state: Mutex<State>,
    /// The signals of the lease that it was won for.
    first: Board,
    pub(crate) measured: Holding,
    pub(crate) noted: Noted,
    /// The span in the acquirer's trace, if a subscriber wants one, until the last lease lets go.
    span: Mutex<Option<LeaseSpan>>,
    /// Whether there ever was a span: most holds have none, and need not lock `span`.
    had_span: AtomicBool,
}

struct State {
    acquisition: Acquisition,
    /// Whether the lease that it was won for has not let go.
    has_first: bool,
    more: Vec<Arc<Board>>,
    end: Option<Lost>,
    trial: Trial,
}

impl State {
    fn holds(&self) -> usize {
        usize::from(self.has_first) + self.more.len()
    }

    /// Whether the lease with this signal has not let go.
    fn has(&self, signal: &Signal) -> bool {
        match signal {
            Signal::First(_) => self.has_first,
            Signal::More(board) => self.more.iter().any(|lease| Arc::ptr_eq(lease, board)),
        }
    }
}

/// The consequences of an event: actions for the watchdog first, then news for the holders.
#[must_use = "actions are there to be carried out, and news to be told"]
#[derive(Default)]
pub(crate) struct Reaction {
    pub(crate) actions: Actions,
    /// Boxed, because most events cause none.
    pub(crate) news: Option<Box<PhaseChange>>,
}

// For the same reason as `Engine`.
impl RefUnwindSafe for Hold {}

impl HasBoard for Hold {
    fn board(&self) -> &Board {
        &self.first
    }
}

impl Hold {
    /// The hold of an acquisition that this owner won with this fence, counted in this metrics group.
    pub(crate) fn new(
        claim: Claim,
        fence: Fence,
        owner: Option<OwnerId>,
        acquisition: Acquisition,
        group: Group,
    ) -> (Arc<Self>, Signal) {
        let (acquired, outliving) = (acquisition.sent(), acquisition.outliving());
        let is_watched = acquisition.stall_after().is_some();
        let claim = Claim { fence: Some(fence), ..claim };
        let valid_until = AtomicU64::new(acquisition.valid_until().as_nanos());
        let keep_until = AtomicU64::new(0);
        let state = Mutex::new(State { acquisition, has_first: true, more: Vec::new(), end: None, trial: Trial::Over });
        let measured = Holding::begins(group, claim.mode);
        let hold = Self {
            claim,
            fence,
            owner,
            acquired,
            outliving,
            valid_until,
            is_watched,
            progressed: AtomicU64::new(0),
            awaits_progress: AtomicBool::new(false),
            keep_until,
            state,
            first: Board::new(),
            measured,
            noted: Noted::default(),
            span: Mutex::new(None),
            had_span: AtomicBool::new(false),
        };
        let hold = Arc::new(hold);
        (hold.clone(), Signal::First(hold))
    }

    /// Attaches its events to this span from now on.
    pub(crate) fn belongs_to(&self, span: LeaseSpan) {
        *self.span.lock() = Some(span);
        self.had_span.store(true, Ordering::Release);
    }

    /// Whether a subscriber wanted a span of it.
    pub(crate) fn has_span(&self) -> bool {
        self.had_span.load(Ordering::Acquire)
    }

    pub(crate) fn span(&self) -> Option<LeaseSpan> {
        if self.has_span() { self.span.lock().clone() } else { None }
    }

    /// Takes the span, which ends here. Others may know the hold for a while, and are still notified.
    pub(crate) fn end_span(&self) -> Option<LeaseSpan> {
        if self.has_span() { self.span.lock().take() } else { None }
    }

    /// The claim of a request that is sent now, with the rest of its life.
    pub(crate) fn claim_at(&self, now: Time) -> Claim {
        let claim = self.claim.clone();
        if self.outlives_nothing() {
            return claim;
        }
        let is_on_trial = self.state.lock().trial == Trial::ON;
        let outliving = if is_on_trial { self.outliving.brief() } else { self.outliving };
        Claim { life: outliving.life(claim.ttl, now.since(self.acquired)), ..claim }
    }

    /// The claim of a renewal that was ordered at `sent`. One that only checks may arrive after a renewal that is not
    /// answered yet, and so must not shorten the key's life.
    pub(crate) fn renewed_claim(&self, sent: Time, now: Time) -> Claim {
        let is_check = self.is_watched && self.state.lock().acquisition.is_check(sent);
        if is_check { Claim { life: Duration::ZERO, ..self.claim.clone() } } else { self.claim_at(now) }
    }

    /// Whether its key lives for no more than the TTL.
    pub(crate) fn outlives_nothing(&self) -> bool {
        self.outliving == Outliving::NOTHING
    }

    /// Keeps the key for at least `keep` from now on, or until the time that was asked for before.
    pub(crate) fn keep_for(&self, now: Time, keep: Duration) {
        self.keep_until.fetch_max((now + keep).as_nanos(), Ordering::AcqRel);
    }

    /// How long the key is to be kept from `now` on, whenever it is released.
    pub(crate) fn kept_for(&self, now: Time) -> Duration {
        Time::from_nanos(self.keep_until.load(Ordering::Acquire)).since(now)
    }

    /// The options of a lease that continues this one from `now` on.
    pub(crate) fn options(&self, now: Time, access: Access) -> LockOptions {
        let Claim { ttl, fence_memory, .. } = self.claim;
        let state = self.state.lock();
        let (hold_ends, stall_after) = (state.acquisition.hold_ends(), state.acquisition.stall_after());
        drop(state);
        LockOptions {
            ttl,
            stall_after,
            max_hold: (hold_ends != Time::NEVER).then(|| hold_ends.since(now)),
            lock_delay: self.outliving.lock_delay(),
            fair: false,
            access,
            take: 1,
            fence_memory,
            metrics_group: self.measured.group(),
        }
    }

    /// The rest of the interval in which the lock may be acquired only once.
    pub(crate) fn interval_left(&self, now: Time) -> Duration {
        self.outliving.interval_left(now.since(self.acquired))
    }

    /// Whether a release deletes or retains the key. A retained key stays for at least `keep`, and to the end of the
    /// interval in which the lock may be acquired once. A lost lease ignores an earlier `keep_for`: its work was not
    /// done.
    pub(crate) fn release_mode(&self, now: Time, keep: Duration) -> ReleaseMode {
        let interval_left = self.interval_left(now);
        if !interval_left.is_zero() && self.state.lock().trial != Trial::Over {
            return ReleaseMode::Delete;
        }
        let asked = self.kept_for(now);
        let is_lost = || self.end().is_some_and(|end| loss::label(end.reason()).is_some());
        let rest = if asked.is_zero() || is_lost() { keep } else { asked.max(keep) };
        retained(rest.max(interval_left), &self.claim.token)
    }

    /// How long the holder may still rely on it. Read from the clock, so right even if every timer is late (rule 2).
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        Time::from_nanos(self.valid_until.load(Ordering::Acquire)).since(now)
    }

    /// Whether both share the lock in the same phase.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.claim.mode.is_shared() && other.claim.mode.is_shared() && self.fence == other.fence
    }

    /// Whether a key with this value and remaining life is as our last renewal left it. If so, no other client has
    /// changed it since, or only without effect.
    pub(crate) fn is_as_left(&self, value: &str, left: Duration, now: Time) -> bool {
        if self.claim.mode.is_shared() {
            // Sharers extend the key for each other (rule 15).
            return mode::phase_of(value) == Some(self.fence);
        }
        // The server counts in whole milliseconds.
        self.claim.token.owns(value) && left >= self.remaining(now) && left < self.claim.life + Duration::from_millis(1)
    }

    /// Notes that the work makes progress. Returns whether the lease is at risk for want of it, so that it is due now.
    pub(crate) fn progress(&self, now: Time) -> bool {
        self.progressed.store(now.as_nanos(), Ordering::Relaxed);
        let is_awaited = self.awaits_progress.load(Ordering::Relaxed);
        if is_awaited {
            self.state.lock().acquisition.progressed(now);
        }
        is_awaited
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

    /// Notes that a replica has taken over that may lack its key.
    pub(crate) fn note_takeover(&self, now: Time) {
        self.state.lock().acquisition.note_takeover(now);
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

    /// Lets it join a batch that is being renewed.
    pub(crate) fn go_along(self: &Arc<Self>, now: Time, meets: Option<Duration>) -> Reaction {
        self.feed(now, |acquisition| acquisition.go_along(now, meets))
    }

    /// Feeds a node's answer, or the lack of one.
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

    /// Notes that its release is sent now, on this route, to every node.
    pub(crate) fn release(&self, route: Route, mode: ReleaseMode) {
        let _to_every_node = self.state.lock().acquisition.release(route, mode);
    }

    /// Ends a lease whose release is not waited for. Returns what is to be undone instead.
    pub(crate) fn abandon(&self, mode: ReleaseMode) -> Option<acquisition::Undo> {
        self.state.lock().acquisition.abandon(mode).undo
    }

    /// Ends every lease for `Client::close`, and releases what is left on the nodes.
    pub(crate) fn close(self: &Arc<Self>, now: Time) -> Reaction {
        let mut reaction = self.feed(now, |acquisition| acquisition.close(now));
        if let Some(undo) = &mut reaction.actions.undo {
            undo.mode = self.release_mode(now, Duration::ZERO);
        }
        reaction
    }

    /// Ends every lease for a reason that did not come from a node.
    pub(crate) fn finish(self: &Arc<Self>, now: Time, reason: LossReason) -> Reaction {
        self.feed(now, |acquisition| acquisition.finish(now, reason))
    }

    pub(crate) fn lost(&self, now: Time, since: Time, loss: impl Into<Loss>) -> Lost {
        let since_wall = wall().checked_sub(now.since(since)).unwrap_or(std::time::UNIX_EPOCH);
        Lost::new(self.claim.key.name(), self.fence, loss.into(), since_wall, since.since(self.acquired))
    }

    fn feed(self: &Arc<Self>, now: Time, event: impl FnOnce(&mut Acquisition) -> Actions) -> Reaction {
        let mut state = self.state.lock();
        if self.is_watched {
            // Before the work begins, nothing can stall.
            let has_begun = state.trial == Trial::Over;
            let reported = Time::from_nanos(self.progressed.load(Ordering::Relaxed));
            state.acquisition.progressed(if has_begun { reported } else { now });
        }
        let actions = event(&mut state.acquisition);
        let awaits_progress = self.is_watched && state.acquisition.awaits_progress();
        if self.is_watched {
            self.awaits_progress.store(awaits_progress, Ordering::Relaxed);
        }
        self.valid_until.store(state.acquisition.valid_until().as_nanos(), Ordering::Release);
        let (Some(acquisition::News::Phase), Some(phase)) = (&actions.news, state.acquisition.phase()) else {
            return Reaction { actions, news: None };
        };
        if let (Phase::Over { since, .. }, Some(loss)) = (phase, state.acquisition.loss()) {
            state.end = Some(self.lost(now, since, loss));
        }
        let end = state.end.clone();
        let stage = if end.is_some() { self.measured.is_over() } else { self.measured.is_held(phase == Phase::AtRisk) };
        // Noted under the mutex, so that news reach every signal in their order.
        for lease in self.boards(&state) {
            match (&end, phase) {
                (Some(lost), _) => lease.note_end(lost),
                (None, Phase::AtRisk) => lease.note(Status::AtRisk),
                (None, _) => lease.note(Status::Held),
            }
        }
        let leases = self.signals(&state);
        drop(state);
        let cause = awaits_progress.then(|| "its work reports no progress".to_owned());
        let (event, span) = (self.event(now, phase, end.as_ref(), cause), self.span());
        let end = end.map(|lost| (lost.reason(), now.since(self.acquired)));
        Reaction { actions, news: Some(Box::new(PhaseChange { leases, stage, end, event, span })) }
    }

    fn event(&self, now: Time, phase: Phase, end: Option<&Lost>, cause: Option<String>) -> Event {
        let (lock, label) = (self.claim.key.name().to_owned(), self.claim.token.label().to_owned());
        match end {
            Some(lost) => Event::Lost { label, lost: lost.clone(), cause: None },
            None if phase == Phase::AtRisk => {
                Event::AtRisk { lock, label, node: None, left: self.remaining(now), cause }
            }
            None => Event::Recovered { lock, label },
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("key", &self.claim.key)
            .field("token", &self.claim.token)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests;
