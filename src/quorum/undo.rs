//! Taking back what may have happened (rule 6).
//!
//! # Invariants
//!
//! 1. An undo asks until its time is over, whatever it waits for: a turn, an answer, a node that is away. Then it asks
//!    no more before the node answers somebody: a node that stood still may execute an attempt after that, which nobody
//!    else would take back for a TTL.
//! 2. The undos of attempts weigh at most [`FULL`] together on each node; an attempt beyond that is left to expire. Those
//!    of leases have no limit of their own: there are no more of them than leases were held.
//! 3. The first try to release a lease waits for no second one, and for no attempt: the release of a living lease does not
//!    stand behind those of dead ones.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{
    doubling::Doubling,
    failure::Failure,
    message::{Claim, Owned, ReleaseMode, Request, Route},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Member;
use crate::{
    clock::{self, Clock},
    foreign::{self, Event},
    keeper::Host,
};

/// The pause after the first release that got no answer; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The most tries that are under way at a time on one node: thousands at once would time out behind each other.
const AT_ONCE: usize = 256;

/// What the undos of attempts may weigh together on one node, in bytes.
const FULL: usize = 16 * 1024 * 1024;

/// What an undo weighs besides its bytes, about: its task, its timer, and its request.
const EACH: usize = 2048;

/// Takes one token off one node: a token-checked release, repeated until the node has answered it, or until what was
/// there has expired by itself. What a node executes after that is believed by nobody, and gone within one TTL.
#[derive(Debug, Clone)]
pub(crate) struct Undo {
    /// The route of what is undone: on it the release arrives later than that.
    pub(crate) route: Route,
    /// Its TTL is how long what is taken back may live: that of the key, or a place in a queue.
    pub(crate) claim: Claim,
    pub(crate) parting: ReleaseMode,
    /// Whether nobody has asked for it before.
    pub(crate) is_first: bool,
    /// Whether it is an attempt that is undone, and not a lease.
    pub(crate) is_attempt: bool,
}

/// The undos of one node.
#[derive(Debug)]
pub(super) struct Undos {
    of_leases: Semaphore,
    of_leases_again: Semaphore,
    of_attempts: Semaphore,
    weight: AtomicUsize,
    is_full: AtomicBool,
}

impl Undos {
    pub(super) fn new() -> Self {
        Self {
            of_leases: Semaphore::new(AT_ONCE),
            of_leases_again: Semaphore::new(AT_ONCE),
            of_attempts: Semaphore::new(AT_ONCE),
            weight: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    /// Makes room for an undo of an attempt; false if there is none (invariant 2).
    fn enter(&self, weight: usize) -> bool {
        let has_room = self.weight.fetch_add(weight, Ordering::Relaxed) + weight <= FULL;
        if !has_room {
            self.weight.fetch_sub(weight, Ordering::Relaxed);
        }
        has_room
    }

    async fn turn(&self, is_attempt: bool, is_first: bool) -> Option<SemaphorePermit<'_>> {
        let tries = match (is_attempt, is_first) {
            (true, _) => &self.of_attempts,
            (false, true) => &self.of_leases,
            (false, false) => &self.of_leases_again,
        };
        tries.acquire().await.ok()
    }
}

/// Room that an undo takes; given back when dropped.
struct Reservation {
    member: Arc<Member>,
    weight: usize,
}

impl Reservation {
    fn take(member: &Arc<Member>, undo: &Undo) -> Option<Self> {
        let weight =
            if undo.is_attempt { EACH + undo.claim.key.lock().len() + undo.claim.token.as_str().len() } else { 0 };
        let has_room = member.undos.enter(weight);
        let was_full = member.undos.is_full.swap(!has_room, Ordering::Relaxed);
        if !has_room && !was_full {
            foreign::tell(Event::UndosFull { node: member.address().into() });
        }
        has_room.then(|| Self { member: member.clone(), weight })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.member.undos.weight.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

/// An attempt that may be executed when its node goes on, and is to be undone then.
pub(crate) struct Unanswered {
    undo: Undo,
    member: Arc<Member>,
    _reservation: Reservation,
}

/// What an undo came to.
pub(crate) enum Undone {
    /// The node has answered, or what was there has expired.
    Yes {
        /// Whether anything may have changed.
        has_changed: bool,
    },
    NotYet(Unanswered),
}

impl Undo {
    pub(crate) fn run(
        self,
        member: Arc<Member>,
        host: Host,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Undone> + Send + use<> {
        let room = Reservation::take(&member, &self);
        async move {
            let Some(room) = room else { return Undone::Yes { has_changed: true } };
            match self.take_back(&member, &host, &*clock).await {
                // A lease's key was there before, and has expired by now.
                None if self.is_attempt => Undone::NotYet(Unanswered { undo: self, member, _reservation: room }),
                answered => Undone::Yes { has_changed: answered.unwrap_or(true) },
            }
        }
    }

    /// Nothing if the time is over, and the node has not answered.
    async fn take_back(&self, member: &Arc<Member>, host: &Host, clock: &dyn Clock) -> Option<bool> {
        let now = || clock::now(clock);
        let until = now() + self.claim.ttl;
        let (mut pauses, mut may_be_replay) = (Doubling::from(FIRST_PAUSE), !self.is_first);
        // The first route may have died with its runtime, so the keeper's takes turns with it. A request that was to be tracked
        // is not taken out of fred's queue when its time is over, so one undo behind it is enough.
        let again = if self.route == Route::Tracked { Route::Keeper } else { self.route };
        let later = [Route::Keeper, again].into_iter().cycle();
        for (at, route) in std::iter::once(self.route).chain(later).enumerate() {
            let limit = member.command_timeout().min(until.since(now()).max(FIRST_PAUSE));
            let turn = tokio::select! {
                biased;
                turn = member.undos.turn(self.is_attempt, at == 0) => turn,
                () = host.sleep(until.since(now())) => None,
            };
            let Some(turn) = turn else {
                return self.is_over(Failure::unsent("too many undos were under way"));
            };
            let release = Request::Release { claim: self.claim.clone(), mode: self.parting.clone() };
            let outcome: Result<Owned, Failure> = member.ask_without_vote(route, release, limit).await;
            drop(turn);
            match outcome {
                Ok(found) => {
                    foreign::tell_debug(|| {
                        let (lock, label) = self.names();
                        Event::Undone { lock, label, was_ours: found.is_ok() }
                    });
                    return Some(found.is_ok() || may_be_replay);
                }
                Err(failure) if failure.is_refusal() => {
                    let _left_to_expire = self.is_over(failure);
                    return Some(true);
                }
                Err(failure) if now() >= until => return self.is_over(failure),
                Err(failure) => {
                    may_be_replay |= failure.may_have_happened();
                    foreign::tell_debug(|| {
                        let (lock, label) = self.names();
                        Event::UndoFailed { lock, label, failure }
                    });
                }
            }
            tokio::select! {
                () = host.sleep(pauses.next(LONGEST_PAUSE).min(until.since(now()))) => {}
                () = member.back() => {}
            }
        }
        None
    }

    fn is_over(&self, failure: Failure) -> Option<bool> {
        let (lock, label) = self.names();
        foreign::tell(Event::UndoLeft { lock, label, failure });
        None
    }

    fn names(&self) -> (String, String) {
        (self.claim.key.name().to_owned(), self.claim.token.label().to_owned())
    }
}

impl Unanswered {
    /// Waits until the node answers somebody, however long that is, and undoes it then. Whether anything may have changed.
    pub(crate) async fn run(self, host: Host, clock: Arc<dyn Clock>) -> bool {
        loop {
            self.member.back().await;
            if let Some(has_changed) = self.undo.take_back(&self.member, &host, &*clock).await {
                return has_changed;
            }
        }
    }
}
