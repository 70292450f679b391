//! Decides which requests to one node are batched. While a few flights are under way, later requests wait, and the next
//! flight takes all of them in one call. The driver sends what this orders, and gives each caller its answer.
//!
//! A *flight* is a call under way, of a lone request or of a batch. It *lands* when its call ends.
//!
//! # Invariants
//!
//! 1. No request waits only in order to be batched. While no flight is under way, a request is sent at once and alone.
//!    Later requests wait for the next flight to land; from [`BatchLimits::crowd`] of them on, they get one more, up to
//!    [`BatchLimits::flights`]. If no flight has begun or landed for [`BatchLimits::pace`], they get a flight of their
//!    own. So neither a caller that does not poll its request nor a distant server delays the others for longer. A
//!    flight that lands ends if too few requests wait for two, and another one has just begun: flights that follow each
//!    other closely become one, which takes more.
//! 2. A request is never sent after it was answered. It leaves the queue when it expires, its caller stops waiting, or
//!    its token is taken back. A request that expires in flight is answered as unknown, and left out of a second
//!    sending.
//! 3. An error of a whole call means that none of its requests was executed, because the script reads everything before
//!    its first write, or catches the error of each command. So each request is sent alone, and gets its own answer
//!    ([`after_failure`]). If the call has no answer, that applies to all of them.
//! 4. A request that is answered with "alone" may have been executed. If it was, the answer to the lone request shows
//!    that, because a request is idempotent for its token (rule 5).
//! 5. A batch releases before it acquires, so a token's release is never in one batch with its own acquire, nor sent
//!    before it. A release that knows its fence comes after the answer to its acquire. If votes are asked for, that
//!    fence is from a majority, and the acquire may still wait here. So with votes every release withdraws its acquire
//!    from the queue. Without votes only a release without a fence does, which is sent alone. The driver sends a batch
//!    before it sends a later release.
//! 6. Flights and the queue change in one step. If requests wait when a flight lands, the next flight follows. If none
//!    can follow, no request stays in the queue.
//! 7. Every request is answered within its limit, whether or not anything else of the driver runs ([`sweep`]). If it
//!    expired while nothing ran at all, it gets its limit once more ([`stood_still`]).
//! 8. If a batch may have been overtaken on its route, so may each of its requests. A batch has at most
//!    [`BatchLimits::batch`] requests, and the queue at most [`BatchLimits::weight`] bytes.
//! 9. A lone flight no longer counts once a majority has decided without it, because its caller does not await its
//!    answer now ([`set_aside`](Combiner::set_aside)). Other requests do not wait for it.
//!
//! [`sweep`]: Combiner::sweep
//! [`stood_still`]: Combiner::stood_still

mod queue;

use std::time::Duration;

use self::queue::{Queue, Waiting};
use crate::{
    failure::Failure,
    message::{AcquireRequest, Claim, ReleaseMode, Request},
    time::Time,
    token::Token,
};

/// About how many bytes a waiting request takes, besides its key and token.
const EACH: usize = 256;

/// The limits of a combiner's flights, batches and queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchLimits {
    /// How many flights may be under way when many requests wait.
    pub flights: usize,
    /// The number of waiting requests for which a further flight begins.
    pub crowd: usize,
    /// Waiting requests get a flight of their own when no flight has begun or landed for this long.
    pub pace: Duration,
    /// The most requests in a batch.
    pub batch: usize,
    /// The most that all waiting requests weigh together, in bytes.
    pub weight: usize,
}

/// A request that can be batched.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Want {
    /// An acquire, perhaps with a vote.
    Acquire(AcquireRequest),
    /// A release. The claim has its fence, so its acquire was answered; with votes, by a majority.
    Release(Claim),
}

impl Want {
    /// Reads a request; `None` if it cannot be batched (invariant 5).
    pub fn of(request: &Request) -> Option<Self> {
        match request {
            Request::Acquire(request) if request.heir_of.is_none() => Some(Self::Acquire(request.clone())),
            Request::Release { claim, mode: ReleaseMode::Delete }
                if claim.fence.is_some() && !claim.mode.is_shared() =>
            {
                Some(Self::Release(claim.clone()))
            }
            _ => None,
        }
    }

    /// The token of the acquire that a request takes back, if that acquire may still wait (invariant 5). `votes` says
    /// whether votes are asked for.
    pub fn undone_by(request: &Request, votes: bool) -> Option<&Token> {
        match request {
            Request::Release { claim, .. } if votes => Some(&claim.token),
            Request::Release { claim, mode: ReleaseMode::Delete } if claim.fence.is_none() => Some(&claim.token),
            _ => None,
        }
    }

    /// The claim on the lock.
    pub fn claim(&self) -> &Claim {
        match self {
            Self::Acquire(AcquireRequest { claim, .. }) | Self::Release(claim) => claim,
        }
    }

    fn weight(&self) -> usize {
        let Claim { key, token, .. } = self.claim();
        EACH + key.lock().len() + token.as_str().len()
    }

    /// Whether it can join a batch with these terms: a batch has one fence memory, and one restart delay.
    fn goes_with(&self, terms: &mut Option<Terms>) -> bool {
        match self {
            Self::Acquire(AcquireRequest { claim, voting, .. }) => {
                let own = (claim.fence_memory, voting.map(|voting| voting.restart_delay));
                *terms.get_or_insert(own) == own
            }
            Self::Release(_) => true,
        }
    }
}

/// The fence memory, and the restart delay if votes are asked for.
type Terms = (Duration, Option<Duration>);

/// The outcome of each request of a call that failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchVerdict {
    /// None was executed: each is sent alone.
    Alone,
    /// Each failed for this reason.
    Failed(Failure),
}

/// The verdict on a call that failed as a whole (invariant 3).
pub fn after_failure(failure: Failure) -> BatchVerdict {
    if failure.is_silence() { BatchVerdict::Failed(failure) } else { BatchVerdict::Alone }
}

/// How an entered request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// At once and alone, as a flight. When it has landed, call [`goes_on`](Combiner::goes_on).
    Alone,
    /// It waits. The next [sweep](Combiner::sweep) is due no later than this.
    Queued(Time),
    /// Not at all: the queue is full.
    Full,
}

/// The requests of a flight, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    number: usize,
    /// One for each request.
    pub wants: Vec<Want>,
}

/// The outcome of a sweep: the expired requests, each with its limit.
#[derive(Debug)]
pub struct SweepOutcome<T> {
    /// Expired requests that were not sent, and never will be.
    pub unsent: Vec<(T, Duration)>,
    /// Expired requests that may have been executed.
    pub unknown: Vec<(T, Duration)>,
    /// Whether the waiting requests get a flight of their own, which has to [take](Combiner::take) a batch.
    pub flies: bool,
    /// When to sweep again; `None` if nothing is left to sweep.
    pub next: Option<Time>,
}

/// The requests to one node. `T` is the means to give a caller its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Combiner<T> {
    limits: BatchLimits,
    waiting: Queue<T>,
    flights: usize,
    /// The tokens of lone flights that may be set aside.
    alone: Vec<Token>,
    /// When the last flight began or landed.
    moved: Time,
    /// Whether a flight that was called for has not taken its batch yet.
    is_called_for: bool,
    /// The requests of each batch under way, by its number.
    air: Vec<Option<Sent<T>>>,
}

/// A batch under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sent<T> {
    began: Time,
    requests: Vec<InFlight<T>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InFlight<T> {
    /// The caller, until it has its answer.
    caller: Option<T>,
    until: Time,
    limit: Duration,
}

impl<T> Combiner<T> {
    /// A combiner without waiting requests and without flights.
    pub fn new(limits: BatchLimits) -> Self {
        Self {
            limits,
            waiting: Queue::new(),
            flights: 0,
            alone: Vec::new(),
            moved: Time::ZERO,
            is_called_for: false,
            air: Vec::new(),
        }
    }

    /// Whether no request waits or is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.waiting.weight() == 0
            && self.flights == 0
            && self.alone.is_empty()
            && self.air.iter().all(Option::is_none)
    }

    /// When the last flight began or landed.
    pub fn moved(&self) -> Time {
        self.moved
    }

    /// Enters a request that must be answered within `limit` (invariant 1).
    pub fn enter(&mut self, now: Time, limit: Duration, request: impl FnOnce() -> (Want, T)) -> Entry {
        if self.waiting.is_empty() && self.flights == 0 {
            self.begin(now);
            return Entry::Alone;
        }
        let (want, caller) = request();
        if self.waiting.weight() + want.weight() > self.limits.weight {
            return Entry::Full;
        }
        self.waiting.push(Waiting { want, caller, until: now + limit, limit });
        Entry::Queued(self.stalls_at().min(now + limit))
    }

    /// Whether enough requests wait for a further flight.
    fn is_crowded(&self) -> bool {
        self.waiting.len() >= self.limits.crowd
    }

    fn begin(&mut self, now: Time) {
        self.flights += 1;
        self.moved = now;
    }

    /// Allows the lone flight of this token, which has just begun, to be [set aside](Self::set_aside).
    pub fn may_set_aside(&mut self, token: Token) {
        self.alone.push(token);
    }

    /// Stops counting the lone flight of this token, because it has landed or its caller does not await it now. Returns
    /// whether it still counted; if so, call [`goes_on`](Self::goes_on).
    #[must_use = "what waits would wait on"]
    pub fn set_aside(&mut self, token: &Token) -> bool {
        let place = self.alone.iter().position(|alone| alone == token);
        place.map(|place| self.alone.swap_remove(place)).is_some()
    }

    /// When the waiting requests get a flight of their own; never while one is called for.
    fn stalls_at(&self) -> Time {
        if self.is_called_for {
            Time::NEVER
        } else if self.is_crowded() && self.flights < self.limits.flights {
            self.moved
        } else {
            self.moved + self.limits.pace
        }
    }

    /// When to sweep next, if requests still wait after a batch was taken.
    pub fn looks_at(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.stalls_at())
    }

    /// Notes that a flight has landed. Returns whether it continues with [the next batch](Self::take); if not, it has
    /// ended (invariant 6).
    #[must_use = "what waits would wait on"]
    pub fn goes_on(&mut self, now: Time) -> bool {
        let has_just_begun = |other: &Sent<T>| now < other.began + self.limits.pace;
        let joins = !self.is_called_for && !self.is_crowded() && self.air.iter().flatten().any(has_just_begun);
        let goes_on = !self.waiting.is_empty() && !joins;
        self.moved = now;
        if !goes_on {
            self.is_called_for = false;
            self.flights = self.flights.saturating_sub(1);
        }
        goes_on
    }

    /// Takes the next batch, which is under way from now on: send it before any other call to this combiner. `None` if
    /// no caller still wants a waiting request. Also returns the callers whose requests have expired: these are not
    /// sent.
    pub fn take(&mut self, now: Time, wants_it: impl Fn(&T) -> bool) -> (Option<Batch>, Vec<(T, Duration)>) {
        let (mut wants, mut sent, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let mut terms = None;
        (self.moved, self.is_called_for) = (now, false);
        while wants.len() < self.limits.batch {
            if !self.waiting.front().is_some_and(|next| next.want.goes_with(&mut terms)) {
                break;
            }
            let Some(Waiting { want, caller, until, limit }) = self.waiting.pop() else { break };
            if until <= now {
                late.push((caller, limit));
            } else if wants_it(&caller) {
                wants.push(want);
                sent.push(InFlight { caller: Some(caller), until, limit });
            }
        }
        if wants.is_empty() {
            return (None, late);
        }
        let number = self.air.iter().position(Option::is_none).unwrap_or_else(|| {
            self.air.push(None);
            self.air.len() - 1
        });
        if let Some(place) = self.air.get_mut(number) {
            *place = Some(Sent { began: now, requests: sent });
        }
        (Some(Batch { number, wants }), late)
    }

    /// Removes answered requests from a batch, before it is sent a second time (invariant 2). Returns whether any
    /// request is left.
    pub fn keep_unanswered(&mut self, batch: &mut Batch) -> bool {
        let Some(Some(Sent { requests: sent, .. })) = self.air.get_mut(batch.number) else { return false };
        let mut places = sent.iter();
        batch.wants.retain(|_| places.next().is_some_and(|sent| sent.caller.is_some()));
        sent.retain(|sent| sent.caller.is_some());
        !sent.is_empty()
    }

    /// When each request of a batch under way has to be answered.
    pub fn due(&self, batch: &Batch) -> Vec<Time> {
        let sent = self.air.get(batch.number).and_then(Option::as_ref);
        sent.iter().flat_map(|sent| &sent.requests).map(|request| request.until).collect()
    }

    /// Ends a batch that has landed. Returns the callers without an answer yet, in the order of its wants.
    pub fn landed(&mut self, batch: &Batch) -> Vec<Option<T>> {
        let sent = self.air.get_mut(batch.number).and_then(Option::take);
        sent.into_iter().flat_map(|sent| sent.requests).map(|sent| sent.caller).collect()
    }

    /// Removes the requests that have waited since this time or longer, because the connection has taken none since
    /// then. For later requests the same flight [continues](Self::goes_on).
    pub fn turn_away(&mut self, since: Time) -> Vec<T> {
        let older = self.waiting.remove(|waiting| waiting.until <= since + waiting.limit);
        self.is_called_for = !self.waiting.is_empty();
        older.into_iter().map(|waiting| waiting.caller).collect()
    }

    /// Gives requests their limit once more if they expired while nothing ran, for a long time before `now`.
    pub fn stood_still(&mut self, now: Time) {
        let again = |until: &mut Time, limit: Duration| *until = if *until <= now { now + limit } else { *until };
        self.waiting.iter_mut().for_each(|waiting| again(&mut waiting.until, waiting.limit));
        let sent = self.air.iter_mut().flatten().flat_map(|sent| &mut sent.requests);
        sent.for_each(|sent| again(&mut sent.until, sent.limit));
    }

    /// Ends a flight that broke off, if none can follow (invariant 6). Returns the waiting callers, and its batch's.
    pub fn crash(&mut self, batch: Option<&Batch>) -> (Vec<T>, Vec<T>) {
        self.flights = self.flights.saturating_sub(1);
        let sent = batch.map(|batch| self.landed(batch)).unwrap_or_default();
        (self.turn_away(Time::NEVER), sent.into_iter().flatten().collect())
    }

    /// Withdraws an acquire that is being taken back: if it still waits, it need not be sent (invariant 5).
    pub fn withdraw(&mut self, token: &Token) -> Option<T> {
        self.waiting.withdraw(token).map(|waiting| waiting.caller)
    }

    /// Expires requests past their limit, and releases those that waited long enough for a flight (invariants 1 and 7).
    pub fn sweep(&mut self, now: Time) -> SweepOutcome<T> {
        let (mut unsent, mut unknown, mut next) = (Vec::new(), Vec::new(), Time::NEVER);
        if self.waiting.iter().any(|waiting| waiting.until <= now) {
            unsent.extend(
                self.waiting.remove(|waiting| waiting.until <= now).into_iter().map(|late| (late.caller, late.limit)),
            );
        }
        for sent in self.air.iter_mut().flatten().flat_map(|sent| &mut sent.requests) {
            if sent.until <= now {
                unknown.extend(sent.caller.take().map(|caller| (caller, sent.limit)));
            } else if sent.caller.is_some() {
                next = next.min(sent.until);
            }
        }
        let flies = !self.waiting.is_empty() && self.stalls_at() <= now;
        if flies {
            self.begin(now);
            self.is_called_for = true;
        }
        let ends = self.waiting.iter().map(|waiting| waiting.until).min();
        next = ends.map_or(next, |end| next.min(end).min(self.stalls_at()));
        SweepOutcome { unsent, unknown, flies, next: Some(next).filter(|&next| next != Time::NEVER) }
    }
}

#[cfg(test)]
mod tests;
