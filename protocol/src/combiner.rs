//! Decides which requests to one node travel together. While a few are under way, later ones wait, and the next flight
//! takes all of them in one call. The driver sends what this orders, and gives each caller its answer.
//!
//! A *flight* is a call under way: of one request alone, or of a batch.
//!
//! # Invariants
//!
//! 1. Nothing waits in order to be combined. Below [`BatchLimits::flights`] a request goes out at once and alone. Above
//!    it, a request waits for the next flight to come down. If none has begun or come down for [`BatchLimits::pace`],
//!    the waiting requests get a flight of their own. So neither a caller that does not poll its request nor a distant
//!    server holds up the others.
//! 2. A request is never sent after its answer. It leaves the queue when its time is over, its caller has gone, or its
//!    token is taken back. A request whose time ends in the air is answered as unknown, and left out of a second
//!    sending.
//! 3. An error of a whole call means that none of its requests was executed: the script reads everything before its
//!    first write, or catches the error of each command. So each is asked alone, and gets its own answer ([`after_failure`]). Silence is the answer to all of
//!    them.
//! 4. A request that is answered with "alone" may have been executed. Asked again by itself it says so: it is
//!    idempotent for its token (rule 5).
//! 5. A batch releases before it acquires, so a token's release never travels with its own acquire, nor before it. A
//!    release that knows its fence comes after the answer to its acquire. Where votes are asked for, a majority has given
//!    that fence, and the acquire may wait here still. So there every release takes its acquire out of the queue, and
//!    elsewhere one without a fence, which goes alone. The driver sends a batch before it lets a later release go.
//! 6. Flights and the queue change in one step. If requests wait when a flight ends, the next flight follows. If none
//!    can follow, no request stays behind.
//! 7. Every request has its answer when its time is over, whether or not anything else of the driver runs ([`sweep`]).
//!    If its time ended while nothing ran at all, it gets that time once more ([`stood_still`]).
//! 8. A batch that may have been overtaken on its route was overtaken for each of its requests. A batch has at most
//!    [`BatchLimits::batch`] requests, and the queue at most [`BatchLimits::weight`] bytes.
//! 9. A lone flight whose caller does not look for its answer now, since a majority has decided without it, is no longer
//!    one ([`set_aside`](Combiner::set_aside)): others do not wait for it.
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

/// Bytes of a request in the queue besides its key and token, about.
const EACH: usize = 256;

/// How much a combiner may have under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchLimits {
    /// How many flights may be under way before requests wait.
    pub flights: usize,
    /// Waiting requests get a flight of their own when none has begun or come down for this long.
    pub pace: Duration,
    /// The most requests of a batch.
    pub batch: usize,
    /// The most that all waiting requests weigh together, in bytes.
    pub weight: usize,
}

/// A request that can travel with others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Want {
    /// A lock, and perhaps a vote.
    Acquire(AcquireRequest),
    /// To release one: the claim has its fence, so its acquire was answered; of a vote, by a majority.
    Release(Claim),
}

impl Want {
    /// Reads a request; `None` if it cannot travel with others (invariant 5).
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

    /// The token of the acquire that a request takes back, if that acquire may still wait (invariant 5). With `votes`,
    /// votes are asked for.
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

    /// Whether it can be in one batch with others: that has one memory for its fences, and one restart delay.
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

/// The memory for fences, and the restart delay of votes.
type Terms = (Duration, Option<Duration>);

/// The outcome of each request of a call that failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchVerdict {
    /// Nothing has happened: each asks alone.
    Alone,
    /// Each has failed so.
    Failed(Failure),
}

/// Invariant 3.
pub fn after_failure(failure: Failure) -> BatchVerdict {
    if failure.is_silence() { BatchVerdict::Failed(failure) } else { BatchVerdict::Alone }
}

/// Where a request is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// At once and alone, as a flight. When it has come down, ask whether it [goes on](Combiner::goes_on).
    Alone,
    /// It waits. The next [sweep](Combiner::sweep) is due no later than this.
    Queued(Time),
    /// Nowhere: the queue is full.
    Full,
}

/// The requests of a flight, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    number: usize,
    /// One for each request.
    pub wants: Vec<Want>,
}

/// Requests whose time is over; with each how long it had.
#[derive(Debug)]
pub struct Swept<T> {
    /// They were not sent, and never will be.
    pub unsent: Vec<(T, Duration)>,
    /// They may have been executed.
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
    /// When the last one began, or came down.
    moved: Time,
    /// Whether a flight was called for that has not taken a batch yet.
    is_called_for: bool,
    /// The requests of each batch under way, by its number.
    air: Vec<Option<Vec<InFlight<T>>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InFlight<T> {
    /// Until it has its answer.
    caller: Option<T>,
    until: Time,
    limit: Duration,
}

impl<T> Combiner<T> {
    /// Nothing waits, and nothing is under way.
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

    /// Whether nothing waits, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.waiting.weight() == 0
            && self.flights == 0
            && self.alone.is_empty()
            && self.air.iter().all(Option::is_none)
    }

    /// Enters a request that has `limit` to get its answer (invariant 1).
    pub fn enter(&mut self, now: Time, limit: Duration, request: impl FnOnce() -> (Want, T)) -> Entry {
        if self.waiting.is_empty() && self.flights < self.limits.flights {
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

    fn begin(&mut self, now: Time) {
        self.flights += 1;
        self.moved = now;
    }

    /// The lone flight of this token, which has just begun, can be [set aside](Self::set_aside).
    pub fn may_set_aside(&mut self, token: Token) {
        self.alone.push(token);
    }

    /// The lone flight of this token is none any more: it has come down, or nobody looks for its answer now. Whether it
    /// was one; then ask whether it [goes on](Self::goes_on).
    #[must_use = "what waits would wait on"]
    pub fn set_aside(&mut self, token: &Token) -> bool {
        let place = self.alone.iter().position(|alone| alone == token);
        place.map(|place| self.alone.swap_remove(place)).is_some()
    }

    /// When the waiting requests get a flight of their own; never while one is called for.
    fn stalls_at(&self) -> Time {
        if self.is_called_for { Time::NEVER } else { self.moved + self.limits.pace }
    }

    /// When to sweep next, if a batch has left requests behind.
    pub fn looks_at(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.stalls_at())
    }

    /// A flight has come down. Returns whether it goes on with [the next batch](Self::take); if not, it has ended
    /// (invariant 6).
    #[must_use = "what waits would wait on"]
    pub fn goes_on(&mut self, now: Time) -> bool {
        let goes_on = !self.waiting.is_empty();
        self.moved = now;
        if !goes_on {
            self.is_called_for = false;
            self.flights = self.flights.saturating_sub(1);
        }
        goes_on
    }

    /// Takes the next batch, which is in the air from now on: send it before anything else is asked of this. `None` if
    /// nothing is left that its caller still wants. Also returns the callers whose time is over: their requests are not
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
            *place = Some(sent);
        }
        (Some(Batch { number, wants }), late)
    }

    /// Before a batch is sent a second time: leaves out what has been answered meanwhile (invariant 2). Whether
    /// anything is left.
    pub fn keep_unanswered(&mut self, batch: &mut Batch) -> bool {
        let Some(Some(sent)) = self.air.get_mut(batch.number) else { return false };
        let mut places = sent.iter();
        batch.wants.retain(|_| places.next().is_some_and(|sent| sent.caller.is_some()));
        sent.retain(|sent| sent.caller.is_some());
        !sent.is_empty()
    }

    /// A batch has come down. Returns the callers that have no answer yet, in the order of its wants.
    pub fn landed(&mut self, batch: &Batch) -> Vec<Option<T>> {
        let sent = self.air.get_mut(batch.number).and_then(Option::take).unwrap_or_default();
        sent.into_iter().map(|sent| sent.caller).collect()
    }

    /// The connection has taken nothing since this moment. Takes out the requests that have waited since then or
    /// longer. For later ones the same flight [goes on](Self::goes_on).
    pub fn turn_away(&mut self, since: Time) -> Vec<T> {
        let older = self.waiting.remove(|waiting| waiting.until <= since + waiting.limit);
        self.is_called_for = !self.waiting.is_empty();
        older.into_iter().map(|waiting| waiting.caller).collect()
    }

    /// Nothing ran for a long time before `now`: requests whose time ended meanwhile get it once more.
    pub fn stood_still(&mut self, now: Time) {
        let again = |until: &mut Time, limit: Duration| *until = if *until <= now { now + limit } else { *until };
        self.waiting.iter_mut().for_each(|waiting| again(&mut waiting.until, waiting.limit));
        self.air.iter_mut().flatten().flatten().for_each(|sent| again(&mut sent.until, sent.limit));
    }

    /// A flight has come to a sudden end, and none can follow it (invariant 6): those who wait, and those of its batch.
    pub fn crash(&mut self, batch: Option<&Batch>) -> (Vec<T>, Vec<T>) {
        self.flights = self.flights.saturating_sub(1);
        let sent = batch.map(|batch| self.landed(batch)).unwrap_or_default();
        (self.turn_away(Time::NEVER), sent.into_iter().flatten().collect())
    }

    /// An acquire is being taken back: it need not be sent, if it was not (invariant 5).
    pub fn withdraw(&mut self, token: &Token) -> Option<T> {
        self.waiting.withdraw(token).map(|waiting| waiting.caller)
    }

    /// Looks for whose time is over, and for what has waited long enough for a flight (invariants 1 and 7).
    pub fn sweep(&mut self, now: Time) -> Swept<T> {
        let (mut unsent, mut unknown, mut next) = (Vec::new(), Vec::new(), Time::NEVER);
        if self.waiting.iter().any(|waiting| waiting.until <= now) {
            unsent.extend(
                self.waiting.remove(|waiting| waiting.until <= now).into_iter().map(|late| (late.caller, late.limit)),
            );
        }
        for sent in self.air.iter_mut().flatten().flatten() {
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
        Swept { unsent, unknown, flies, next: Some(next).filter(|&next| next != Time::NEVER) }
    }
}

#[cfg(test)]
mod tests;
