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
};

use leasehold_protocol::{
    acquisition,
    failure::Failure,
    message::{Claim, Owned, ReleaseMode, Request, Route},
    time::Time,
    undo::{Next, Outcome, Undoing},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Member;
use crate::{
    clock::{self, Clock},
    foreign::{self, Event},
    keeper::Host,
    metrics,
    troubles::Troubles,
};

/// The most tries that are under way at a time on one node: thousands at once would time out behind each other.
const AT_ONCE: usize = 256;

/// The most that the undos of attempts may weigh together on one node, in bytes.
const FULL: usize = 16 * 1024 * 1024;

/// The approximate weight of an undo besides its bytes: its task, its timer, and its request.
const EACH: usize = 2048;

/// Takes one token off one node, as [`Undoing`] decides.
#[derive(Debug, Clone)]
pub(crate) struct Undo {
    /// The route of what is undone.
    pub(crate) route: Route,
    /// Its TTL is how long what is taken back may live: that of the key, or a place in a queue.
    pub(crate) claim: Claim,
    pub(crate) mode: ReleaseMode,
    /// Whether somebody has asked for it before.
    pub(crate) was_asked: bool,
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
    /// Why some were left.
    left: Troubles,
}

impl Undos {
    pub(super) fn new() -> Self {
        Self {
            of_leases: Semaphore::new(AT_ONCE),
            of_leases_again: Semaphore::new(AT_ONCE),
            of_attempts: Semaphore::new(AT_ONCE),
            weight: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            left: Troubles::default(),
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
        if !has_room {
            metrics::undo_is_unconfirmed();
        }
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

/// The outcome of an undo.
pub(crate) enum Undone {
    /// The node has answered, or what was there has expired.
    Yes {
        /// Whether anything may have changed.
        has_changed: bool,
    },
    NotYet(Unanswered),
}

impl Undo {
    /// The undo that an acquisition has ordered for one of its nodes.
    pub(crate) fn new(order: &acquisition::Undo, claim: Claim) -> Self {
        let acquisition::Undo { route, mode, is_attempt, .. } = order;
        let (route, is_attempt) = (*route, *is_attempt);
        Self { route, claim, mode: mode.clone(), was_asked: !is_attempt, is_attempt }
    }

    pub(crate) fn run(
        self,
        member: Arc<Member>,
        host: Host,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Undone> + Send + use<> {
        let reservation = Reservation::take(&member, &self);
        async move {
            let Some(reservation) = reservation else { return Undone::Yes { has_changed: true } };
            match self.take_back(&member, &host, &*clock).await {
                // A lease's key was there before, and has expired by now.
                Outcome::Unanswered if self.is_attempt => {
                    Undone::NotYet(Unanswered { undo: self, member, _reservation: reservation })
                }
                outcome => Undone::Yes { has_changed: outcome.has_changed() },
            }
        }
    }

    /// Asks until it is over.
    async fn take_back(&self, member: &Arc<Member>, host: &Host, clock: &dyn Clock) -> Outcome {
        let now = || clock::now(clock);
        let mut undoing = Undoing::new(now(), self.claim.ttl, self.route, self.was_asked);
        loop {
            let left = || undoing.until().since(now());
            let turn = tokio::select! {
                biased;
                turn = member.undos.turn(self.is_attempt, undoing.is_first()) => turn,
                // No timer for a turn that comes at once: where a thread is ending, there are none.
                () = async { host.sleep(left()).await } => None,
            };
            let Some(turn) = turn else {
                self.is_left(member, now(), Failure::unsent("too many undos were under way"));
                return Outcome::Unanswered;
            };
            let (route, limit) = undoing.ask(now(), member.command_timeout());
            let release = Request::Release { claim: self.claim.clone(), mode: self.mode.clone() };
            let answer: Result<Owned, Failure> = member.ask_without_vote(route, release, limit).await;
            drop(turn);
            match undoing.answered(now(), &answer) {
                Next::Over(outcome) => {
                    self.tell(member, now(), answer);
                    return outcome;
                }
                Next::After(pause) => {
                    self.tell_again(answer);
                    tokio::select! {
                        () = host.sleep(pause) => {}
                        () = member.back() => {}
                    }
                }
            }
        }
    }

    fn tell(&self, member: &Member, now: Time, answer: Result<Owned, Failure>) {
        match answer {
            Err(failure) => self.is_left(member, now, failure),
            Ok(found) => {
                if let Some(count) = member.undos.left.end() {
                    foreign::tell(Event::UndosGoOn { node: member.address().into(), count });
                }
                foreign::tell_debug(|| {
                    let (lock, label) = self.names();
                    Event::Undone { lock, label, was_ours: found.is_ok() }
                });
            }
        }
    }

    fn tell_again(&self, answer: Result<Owned, Failure>) {
        if let Err(failure) = answer {
            foreign::tell_debug(|| {
                let (lock, label) = self.names();
                Event::UndoFailed { lock, label, failure }
            });
        }
    }

    fn is_left(&self, member: &Member, now: Time, failure: Failure) {
        metrics::undo_is_unconfirmed();
        let (lock, label) = self.names();
        match member.undos.left.meet(now, &failure) {
            Some(count) => foreign::tell(Event::UndoLeft { lock, label, failure, count }),
            None => foreign::tell_debug(|| Event::UndoGivenUp { lock, label, failure }),
        }
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
            let outcome = self.undo.take_back(&self.member, &host, &*clock).await;
            if outcome != Outcome::Unanswered {
                return outcome.has_changed();
            }
        }
    }
}
