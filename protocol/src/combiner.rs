//! Which requests to one node travel together: while a few are under way, those that come meanwhile wait, and the next
//! flight takes all of them in one call. The driver sends what this orders, and tells each caller what it is given.
//!
//! A *flight* is a call under way: of one request alone, or of a batch.
//!
//! # Invariants
//!
//! 1. Nothing waits in order to be combined. Below [`Limits::flights`] a request goes out at once and alone; above it waits
//!    for the next flight to come down, and if none has begun or come down for [`Limits::pace`], it has a flight of its own:
//!    a caller that does not poll its request, or a distant server, holds nobody else up.
//! 2. A request that has its answer is never sent after it. One whose time is over, whose caller has gone, or whose token is
//!    taken back is taken out of the queue; what is in the air is answered as unknown, and is left out of a second sending.
//! 3. An error of a whole call means that none of its requests was executed, so each is asked for alone, and has its own
//!    answer ([`after_failure`]). Silence is for all of them. (The script reads everything before its first write.)
//! 4. A request that is answered with "alone" may have been executed. Asked again by itself it says so: it is idempotent for
//!    its token (rule 5).
//! 5. A batch releases before it acquires, so a token's release never travels with its own acquire, nor before it. A
//!    release that knows its fence comes after the answer to its acquire; one that knows none goes alone, and takes its
//!    acquire out of the queue. Where
//!    votes are asked for nothing is combined: they go at once, and would overtake a release that waits.
//! 6. Flights and the queue change in one step. A flight that ends while requests wait is followed by the next; one that
//!    cannot be followed leaves none behind.
//! 7. Every request has its answer when its time is over, whether or not anything else of the driver runs ([`sweep`]); what
//!    ended while nothing ran at all is given its time once more ([`stood_still`]).
//! 8. A batch that may have been overtaken on its route was overtaken for each of its requests; and a batch has at most
//!    [`Limits::batch`] requests, the queue at most [`Limits::weight`].
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
pub struct Limits {
    /// So many flights at a time, before requests wait.
    pub flights: usize,
    /// Waiting requests have a flight of their own when none has begun or come down for so long.
    pub pace: Duration,
    /// The most requests of a batch.
    pub batch: usize,
    /// The most that all waiting requests weigh together, in bytes.
    pub weight: usize,
}

/// A request that can travel with others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Want {
    /// A lock, without a vote.
    Acquire(Claim),
    /// To release one: the claim has its fence, so its acquire was answered.
    Release(Claim),
}

impl Want {
    /// The same of a request that can travel with others (invariant 5).
    pub fn of(request: &Request) -> Option<Self> {
        match request {
            Request::Acquire(AcquireRequest { claim, voting: None }) => Some(Self::Acquire(claim.clone())),
            Request::Release { claim, mode: ReleaseMode::Delete } if claim.fence.is_some() => {
                Some(Self::Release(claim.clone()))
            }
            _ => None,
        }
    }

    /// The acquire that a request takes back, if it may wait still.
    pub fn undone_by(request: &Request) -> Option<&Token> {
        match request {
            Request::Release { claim, mode: ReleaseMode::Delete } if claim.fence.is_none() => Some(&claim.token),
            _ => None,
        }
    }

    /// Of this lock, by this token.
    pub fn claim(&self) -> &Claim {
        match self {
            Self::Acquire(claim) | Self::Release(claim) => claim,
        }
    }

    fn weight(&self) -> usize {
        let Claim { key, token, .. } = self.claim();
        EACH + key.lock().len() + token.as_str().len()
    }

    /// Whether both can be in one batch: it has one memory for its fences.
    fn goes_with(&self, memory: &mut Option<Duration>) -> bool {
        match self {
            Self::Acquire(claim) => *memory.get_or_insert(claim.fence_memory) == claim.fence_memory,
            Self::Release(_) => true,
        }
    }
}

/// The outcome of each request of a call that failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing has happened: each asks alone.
    Alone,
    /// The same for all.
    Failed(Failure),
}

/// Invariant 3.
pub fn after_failure(failure: Failure) -> Verdict {
    if failure.is_silence() { Verdict::Failed(failure) } else { Verdict::Alone }
}

/// Where a request is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// At once and alone: a flight, which must be asked whether it [goes on](Combiner::goes_on) when it has come down.
    Alone,
    /// It waits. The sweeper is to look no later than this.
    Queued(Time),
    /// There is no room for it.
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
    /// Whether what waits has a flight of its own from now on, which is to [take](Combiner::take) a batch.
    pub flies: bool,
    /// When to look again; never if there is nothing to look for.
    pub next: Option<Time>,
}

/// The requests to one node. `T` is what a request's caller is told by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Combiner<T> {
    limits: Limits,
    waiting: Queue<T>,
    flights: usize,
    /// When the last one began, or came down.
    moved: Time,
    /// Whether what waits has a flight that has not taken it yet.
    is_called_for: bool,
    /// The requests of each batch under way, by its number.
    air: Vec<Option<Vec<Sent<T>>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sent<T> {
    /// Until it has its answer.
    caller: Option<T>,
    until: Time,
    limit: Duration,
}

impl<T> Combiner<T> {
    /// Nothing waits, and nothing is under way.
    pub fn new(limits: Limits) -> Self {
        Self { limits, waiting: Queue::new(), flights: 0, moved: Time::ZERO, is_called_for: false, air: Vec::new() }
    }

    /// Whether nothing waits, and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.waiting.weight() == 0
            && self.flights == 0
            && self.air.iter().all(Option::is_none)
    }

    /// A request that has so much time comes (invariant 1).
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

    /// When what waits has a flight of its own; the one that is called for needs no other.
    fn stalls_at(&self) -> Time {
        if self.is_called_for { Time::NEVER } else { self.moved + self.limits.pace }
    }

    /// When to look at what waits, if anything does: a batch that was full has left it behind.
    pub fn looks_at(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then(|| self.stalls_at())
    }

    /// A flight has come down. Whether it is to go on with [the next batch](Self::take); if not, it has ended (invariant 6).
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

    /// The next batch, in the air from now on: it is sent before anything else is asked of this. Nothing, if nothing is left
    /// that its caller still wants. Callers whose time is over are given back: what they asked for is not sent.
    pub fn take(&mut self, now: Time, wants_it: impl Fn(&T) -> bool) -> (Option<Batch>, Vec<(T, Duration)>) {
        let (mut wants, mut sent, mut late) = (Vec::new(), Vec::new(), Vec::new());
        let mut memory = None;
        (self.moved, self.is_called_for) = (now, false);
        while wants.len() < self.limits.batch {
            if !self.waiting.front().is_some_and(|next| next.want.goes_with(&mut memory)) {
                break;
            }
            let Some(Waiting { want, caller, until, limit }) = self.waiting.pop() else { break };
            if until <= now {
                late.push((caller, limit));
            } else if wants_it(&caller) {
                wants.push(want);
                sent.push(Sent { caller: Some(caller), until, limit });
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

    /// Before a batch is sent a second time: leaves out what has been answered meanwhile (invariant 2). Whether anything is
    /// left.
    pub fn keep_unanswered(&mut self, batch: &mut Batch) -> bool {
        let Some(Some(sent)) = self.air.get_mut(batch.number) else { return false };
        let mut places = sent.iter();
        batch.wants.retain(|_| places.next().is_some_and(|sent| sent.caller.is_some()));
        sent.retain(|sent| sent.caller.is_some());
        !sent.is_empty()
    }

    /// A batch has come down: who is still to be told, in the order of its wants.
    pub fn landed(&mut self, batch: &Batch) -> Vec<Option<T>> {
        let sent = self.air.get_mut(batch.number).and_then(Option::take).unwrap_or_default();
        sent.into_iter().map(|sent| sent.caller).collect()
    }

    /// The connection has taken nothing since this moment. Takes out the requests that have waited so long; for later ones the
    /// same flight [goes on](Self::goes_on).
    pub fn turn_away(&mut self, since: Time) -> Vec<T> {
        let older = self.waiting.remove(|waiting| waiting.until <= since + waiting.limit);
        self.is_called_for = !self.waiting.is_empty();
        older.into_iter().map(|waiting| waiting.caller).collect()
    }

    /// Nothing ran for long before `now`: whose time ended meanwhile has it once more.
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
