//! Undoes what may have happened (rule 6).
//!
//! # Invariants
//!
//! 1. An undo asks until its time has passed, whatever it waits for: a turn, an answer, an unreachable node. After that
//!    it asks again only when the shard answers any request, or another shard has the key. A server that stood still
//!    may still execute an attempt then, which nothing else would take back for the life of its key.
//! 2. Attempts are left to expire if there is no memory for their undos.

use std::{future::Future, sync::Arc};

use leasehold_protocol::{
    acquisition::Undo,
    failure::Failure,
    message::{Claim, Owned, Request, Route, Shard},
    time::Time,
    undo::{Next, UndoOutcome, Undoing},
};

use super::{Member, undo_limits::Fits};
use crate::{
    clock::{self, Clock},
    foreign::{self, Event},
    keeper::Host,
    metrics,
};

/// The approximate weight of an undo besides its bytes: its task, its timer, and its request.
const EACH: usize = 2048;

/// Takes one token off one node, as [`Undoing`] decides.
#[derive(Debug, Clone)]
pub(crate) struct UndoTask {
    /// The order, for this node among others.
    pub(crate) order: Undo,
    /// Its life is how long what is taken back may exist: the life of the key, or of a place in a queue.
    pub(crate) claim: Claim,
    /// Whether its release was requested before.
    pub(crate) was_asked: bool,
}

/// The memory that an undo takes; given back when dropped.
struct Reservation {
    member: Arc<Member>,
    weight: usize,
}

impl Reservation {
    fn take(member: &Arc<Member>, undo: &UndoTask) -> Option<Self> {
        let UndoTask { order, claim, .. } = undo;
        let weight = if order.is_attempt { EACH + claim.key.lock().len() + claim.token.as_str().len() } else { 0 };
        match member.undos.enter(weight) {
            Fits::Yes => return Some(Self { member: member.clone(), weight }),
            Fits::No { is_news: true } => foreign::tell(Event::UndosFull { node: member.address().into() }),
            Fits::No { is_news: false } => {}
        }
        metrics::undo_is_unconfirmed();
        None
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.member.undos.leave(self.weight);
    }
}

/// An attempt that may be executed when its node continues, and is to be undone then.
pub(crate) struct Unanswered {
    undo: UndoTask,
    member: Arc<Member>,
    /// The shard that was asked last.
    asked: Shard,
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

impl UndoTask {
    /// The undo that an acquisition orders. The release of a lease was requested before; that of an attempt was not.
    pub(crate) fn new(order: Undo, claim: Claim) -> Self {
        let was_asked = !order.is_attempt;
        Self { order, claim, was_asked }
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
                (UndoOutcome::Unanswered, asked) if self.order.is_attempt => {
                    Undone::NotYet(Unanswered { undo: self, member, asked, _reservation: reservation })
                }
                (outcome, _) => Undone::Yes { has_changed: outcome.has_changed() },
            }
        }
    }

    /// Asks until the undo has ended.
    async fn take_back(&self, member: &Arc<Member>, host: &Host, clock: &dyn Clock) -> (UndoOutcome, Shard) {
        let now = || clock::now(clock);
        let mut undoing = Undoing::new(now(), self.claim.life, self.order.route, self.was_asked);
        loop {
            let left = || undoing.until().since(now());
            let asked = member.shard_of(&self.claim.key);
            let shard = member.state(asked);
            let turn = tokio::select! {
                biased;
                turn = shard.undo_turns.take(self.order.is_attempt, undoing.is_first()) => turn,
                // Created lazily, because the turn may come at once, and a thread that is ending has no timers.
                () = async { host.sleep(left()).await } => None,
            };
            let Some(turn) = turn else {
                self.is_left(member, now(), Failure::unsent("too many undos were under way"));
                return (UndoOutcome::Unanswered, asked);
            };
            let (route, limit) = undoing.ask(now(), member.command_timeout);
            let release = Request::Release { claim: self.claim.clone(), mode: self.order.mode.clone() };
            let asking = member.ask_without_vote(route, release, limit);
            let answer: Result<Owned, Failure> = if route == Route::Keeper {
                asking.await
            } else {
                // Without a link it would wait for the next one, and block the turns of others.
                tokio::select! {
                    biased;
                    answer = asking => answer,
                    () = member.unlinked(route, asked) => Err(Failure::unknown("its connection has ended")),
                }
            };
            drop(turn);
            match undoing.answered(now(), &answer) {
                Next::Over(outcome) => {
                    self.tell(member, now(), answer);
                    return (outcome, asked);
                }
                Next::After(pause) => {
                    self.tell_again(answer);
                    tokio::select! {
                        () = host.sleep(pause) => {}
                        () = shard.back() => {}
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
    /// Waits until the node answers any request, however long that takes, and then undoes the attempt. Returns whether
    /// anything may have changed.
    pub(crate) async fn run(self, host: Host, clock: Arc<dyn Clock>) -> bool {
        let mut asked = self.asked;
        loop {
            self.member.answers_for(&self.undo.claim.key, asked, &host).await;
            let (outcome, last) = self.undo.take_back(&self.member, &host, &*clock).await;
            if outcome != UndoOutcome::Unanswered {
                return outcome.has_changed();
            }
            asked = last;
        }
    }
}
