//! The whole life of one token: attempted, held, released and over. The driver undoes what late answers leave on nodes.
//!
//! The driver sends the requests that [`Actions`] ask for, and returns each answer with the request that was [`Sent`].
//! The driver decides nothing.
//!
//! # Invariants
//!
//! 1. A token that is not used is undone on each node that may have it (rule 6). That is the case after an attempt that
//!    was not won, after a loss, and after a release that the node did not confirm. It is also the case when the node's
//!    vote or repair arrives after the end.
//! 2. A lease that a majority has denied is undone when its holder lets go. Until then its key stays on the other
//!    nodes. That keeps every other caller out while the job stops, as long as the nodes that denied the lease do not
//!    vote yet.
//! 3. After `max_hold`, and when its work has stalled, nothing is undone: the key expires, and the job has the rest of
//!    its TTL to stop (rule 8). When its holder lets go, a lease that has reached its `max_hold` is released, and one
//!    whose work has stalled is undone.
//! 4. The driver releases a second time on a node that gave no answer, but not on one that refused. If the first
//!    request may have released the key, a missing key is not a loss for the second (rule 5).
//! 5. A vote that arrives after a release on its own route needs no undo, because the release reached the node later.
//!    That does not hold for a vote that was overtaken, or that may still arrive. Nor does it hold once a node has not
//!    answered the release, or the caller of the release is gone, because then the release may never have been sent.
//! 6. While a key [outlives](Outliving) its lease, no loss deletes it from a node: it expires everywhere (rule 14).
//!    Otherwise a holder that wakes late would cut its own delay short. A lease that was taken by force, or has reached
//!    its `max_hold`, ends like any other. So does a released lease: the mode of its release states the rest of the
//!    interval.
//! 7. A lease that was handed over ends at once, and nothing deletes its key from a node any more (rule 13). Its heir
//!    replaces our token with another. A key that is not adopted expires.

use std::time::Duration;

pub use self::action::{Actions, Ask, Config, Leaving, News, ReleaseAgain, Said, Sent, Undo};
use crate::{
    attempt::{self, Attempt, late},
    failure::Failure,
    fence::Fence,
    jitter::Jitter,
    loss::{self, Loss, LossReason},
    message::{Acquired, Denial, Owned, ReleaseMode, Repaired, Route},
    outliving::Outliving,
    release_tally::{ReleaseAnswer, ReleaseTally},
    renewal::{self, HeldLease, LeaseConfig, Phase, RenewalAnswer},
    tally::{Nodes, Tally},
    time::Time,
};

mod action;

/// The life of one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acquisition {
    /// When the attempt was sent.
    sent: Time,
    /// The route of the attempt.
    route: Route,
    /// The route of the release, once it has begun and while it is certain that it was sent (invariant 5).
    released_on: Option<Route>,
    fence: Option<Fence>,
    /// Whether the `Client` was closed, and whatever is left has been released.
    is_closed: bool,
    outliving: Outliving,
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage {
    Attempting {
        attempt: Attempt,
        lease: LeaseConfig,
        renew_first_after: Option<Duration>,
        jitter: Jitter,
    },
    /// The lease is held, or was lost and its holder has not let go.
    Held(HeldLease),
    /// The holder has let go.
    Leaving {
        nodes: usize,
        may_be_on: Nodes,
        valid_until: Time,
        if_gone: LossReason,
    },
    Releasing(Releasing),
    Over(Over),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Releasing {
    tally: ReleaseTally,
    mode: ReleaseMode,
    may_be_on: Nodes,
    /// The nodes that failed to confirm the release, and may have the token.
    unconfirmed: Nodes,
}

/// The state after the end, when only late answers may follow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Over {
    may_be_on: Nodes,
    mode: ReleaseMode,
    left: KeyRemains,
}

/// Whether the key is left on the nodes after the end of its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum KeyRemains {
    No,
    /// The lease was lost: the key expires, if it outlives the lease (invariant 6).
    ByLoss,
    /// An heir adopts the key, or it expires (invariant 7).
    ToHeir,
}

impl Acquisition {
    /// Begins an attempt. `sent` is the time before the first of its requests, one to each node, is handed to the
    /// transport.
    pub fn new(config: Config, sent: Time) -> Self {
        let Config { lease, outliving, nodes, route, renew_first_after, jitter } = config;
        let attempt = Attempt::new(sent, lease.ttl, nodes);
        let stage = Stage::Attempting { attempt, lease, renew_first_after, jitter };
        Self { sent, route, released_on: None, fence: None, is_closed: false, outliving, stage }
    }

    /// A lease that one node has granted to a waiter of its queue, or `None` if the grant arrived too late.
    pub fn granted(config: Config, sent: Time, now: Time, fence: Fence) -> Option<Self> {
        let mut acquisition = Self::new(config, sent);
        let vote = Said::Vote { acquired: Acquired::Granted(fence), overtaken: false };
        let actions = acquisition.on_reply(now, Sent { node: 0, ask: Ask::Acquire, at: sent }, Ok(vote));
        matches!(actions.news, Some(News::Acquired(_))).then_some(acquisition)
    }

    /// The fence of the lease, once it was won.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// When the attempt was sent.
    pub fn sent(&self) -> Time {
        self.sent
    }

    /// How much longer the key lives than the lease.
    pub fn outliving(&self) -> Outliving {
        self.outliving
    }

    /// The phase of the lease; `None` before it is won, and once the holder has let go.
    pub fn phase(&self) -> Option<Phase> {
        if let Stage::Held(lease) = &self.stage { Some(lease.phase()) } else { None }
    }

    /// Why the lease ended, if it has and its holder has not let go.
    pub fn loss(&self) -> Option<Loss> {
        if let Stage::Held(lease) = &self.stage { lease.loss() } else { None }
    }

    /// Whether an attempt is under way.
    pub fn is_attempting(&self) -> bool {
        matches!(self.stage, Stage::Attempting { .. })
    }

    /// Whether a release is under way, and its outcome is not certain.
    pub fn is_releasing(&self) -> bool {
        matches!(self.stage, Stage::Releasing(_))
    }

    /// Whether only late answers are left to handle.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_))
    }

    /// Whether a lease is held.
    pub fn is_held(&self) -> bool {
        matches!(self.phase(), Some(Phase::Held | Phase::AtRisk))
    }

    /// Until when the holder may believe the lease; zero if there is none.
    pub fn valid_until(&self) -> Time {
        if let Stage::Held(lease) = &self.stage { lease.valid_until() } else { Time::ZERO }
    }

    /// When the lease ends, however well it is renewed: never, unless it has a `max_hold`.
    pub fn hold_ends(&self) -> Time {
        if let Stage::Held(lease) = &self.stage { lease.hold_ends() } else { Time::NEVER }
    }

    /// When to call [`on_tick`](Self::on_tick) next, if ever.
    pub fn next_tick(&self) -> Option<Time> {
        if let Stage::Held(lease) = &self.stage { lease.next_tick() } else { None }
    }

    /// Whether a majority has confirmed a request that was sent at `sent` or later.
    pub fn is_confirmed(&self, sent: Time) -> bool {
        matches!(&self.stage, Stage::Held(lease) if lease.is_confirmed(sent))
    }

    /// Notes that the work under the lease has made progress at this time.
    pub fn progressed(&mut self, at: Time) {
        if let Stage::Held(lease) = &mut self.stage {
            lease.progressed(at);
        }
    }

    /// For how long the lease is renewed without progress of its work.
    pub fn stall_after(&self) -> Option<Duration> {
        if let Stage::Held(lease) = &self.stage { lease.stall_after() } else { None }
    }

    /// Whether the lease is at risk because its work makes no progress.
    pub fn awaits_progress(&self) -> bool {
        matches!(&self.stage, Stage::Held(lease) if lease.awaits_progress())
    }

    /// Whether a renewal that was ordered at this time only checks the key.
    pub fn is_check(&self, sent: Time) -> bool {
        matches!(&self.stage, Stage::Held(lease) if lease.is_check(sent))
    }

    /// Notes that a replica has taken over from the server that had the lease's key, and may lack it.
    pub fn note_takeover(&mut self, now: Time) {
        if let Stage::Held(lease) = &mut self.stage {
            lease.note_takeover(now);
        }
    }

    /// Notes that the key may have changed: the lease asks about it at this time, or soon after.
    pub fn hint(&mut self, at: Time) {
        if let Stage::Held(lease) = &mut self.stage {
            lease.hint(at);
        }
    }

    /// Notes that the key has changed on this node: the lease asks about it now, or soon.
    pub fn hint_of(&mut self, node: usize, now: Time) {
        if let Stage::Held(lease) = &mut self.stage {
            lease.hint_of(node, now);
        }
    }

    /// Handles the passing of time.
    pub fn on_tick(&mut self, now: Time) -> Actions {
        self.lease(now, |lease| lease.tick(now))
    }

    /// Renews this lease along with others that are renewed now, if that suits it.
    pub fn go_along(&mut self, now: Time, meets: Option<Duration>) -> Actions {
        self.lease(now, |lease| lease.go_along(now, meets))
    }

    /// Ends the lease if its time is up.
    pub fn expire_if_due(&mut self, now: Time) -> Actions {
        self.lease(now, |lease| lease.expire_if_due(now))
    }

    /// Handles a node's answer, or the failure to get one.
    pub fn on_reply(&mut self, now: Time, sent: Sent, reply: Result<Said, Failure>) -> Actions {
        let Sent { node, ask, at } = sent;
        match ask {
            Ask::Acquire => match reply {
                Ok(Said::Vote { acquired, overtaken }) => self.voted(now, node, Ok(acquired), overtaken),
                Ok(Said::Owned(_) | Said::Repaired(_)) => self.voted(now, node, Err(odd()), true),
                Err(failure) => self.voted(now, node, Err(failure), true),
            },
            Ask::Raise => self.raised(now, node, reply.and_then(|said| owned(&said))),
            Ask::Renew => {
                let answer = RenewalAnswer::read(&reply.and_then(|said| owned(&said)));
                self.lease(now, |lease| lease.answer(now, node, at, answer))
            }
            Ask::Repair => self.repaired(now, node, at, &reply.and_then(|said| repaired(&said))),
            Ask::Release { only_sending, is_last } => {
                self.released(now, node, (only_sending, is_last), reply.and_then(|said| owned(&said)))
            }
        }
    }

    /// Ends the lease for a reason that no node has given, such as the end of its keeper.
    pub fn finish(&mut self, now: Time, reason: LossReason) -> Actions {
        self.lease(now, |lease| lease.finish(now, reason))
    }

    /// Ends the lease because its `Client` closes, and has whatever is left of it released in the background.
    pub fn close(&mut self, now: Time) -> Actions {
        let was_closed = std::mem::replace(&mut self.is_closed, true);
        let mut actions = self.finish(now, LossReason::Closed);
        let (is_left, nodes) = match &self.stage {
            Stage::Held(lease) => (actions.news.is_some() || waits_for_its_holder(lease.phase()), lease.may_be_on()),
            _ => (false, Nodes::NONE),
        };
        if is_left && !was_closed && !self.runs_out(now) {
            actions.undo = Some(Undo { nodes, ..self.undo() });
        }
        actions
    }

    /// Notes that the last holder lets go.
    pub fn let_go(&mut self, now: Time) -> (Leaving, Actions) {
        let mut actions = self.expire_if_due(now);
        let runs_out = self.runs_out(now);
        let Stage::Held(lease) = &mut self.stage else { return (Leaving::Nothing, actions) };
        let (nodes, may_be_on, valid_until) = (lease.nodes(), lease.may_be_on(), lease.valid_until());
        let if_gone = lease.reason_of_absence();
        let leaving = match lease.phase() {
            _ if self.is_closed => Leaving::Nothing,
            Phase::Held | Phase::AtRisk => Leaving::Release { is_forgiven: false },
            Phase::Over { reason: LossReason::MaxHold, .. } => Leaving::Release { is_forgiven: true },
            phase if waits_for_its_holder(phase) && !runs_out => {
                // Invariants 2 and 3.
                actions.undo = Some(Undo { nodes: Nodes::all(nodes), ..self.undo() });
                Leaving::Nothing
            }
            Phase::Over { .. } => Leaving::Nothing,
        };
        self.stage = match leaving {
            Leaving::Nothing => Stage::Over(Over {
                may_be_on,
                mode: ReleaseMode::Delete,
                left: if runs_out { KeyRemains::ByLoss } else { KeyRemains::No },
            }),
            Leaving::Release { is_forgiven } => {
                let valid_until = if is_forgiven { now } else { valid_until };
                Stage::Leaving { nodes, may_be_on, valid_until, if_gone }
            }
        };
        (leaving, actions)
    }

    /// Leaves the lease to an heir. Returns whether it was still held: otherwise nothing happens.
    pub fn hand_over(&mut self) -> bool {
        let is_held = self.is_held();
        if is_held {
            let (may_be_on, mode) = (Nodes::NONE, ReleaseMode::Delete);
            self.stage = Stage::Over(Over { may_be_on, mode, left: KeyRemains::ToHeir });
        }
        is_held
    }

    /// Releases the lease that [`let_go`](Self::let_go) has left. The outcome is reported as [`News::Released`].
    pub fn release(&mut self, route: Route, mode: ReleaseMode) -> Actions {
        let Stage::Leaving { nodes, may_be_on, valid_until, if_gone } = self.stage else { return Actions::default() };
        let tally = ReleaseTally::new(nodes, valid_until, if_gone);
        self.stage = Stage::Releasing(Releasing { tally, mode, may_be_on, unconfirmed: Nodes::NONE });
        self.released_on = Some(route);
        Actions { release: true, ..Actions::default() }
    }

    /// Gives up an attempt or a release, because no caller waits for its outcome any more.
    pub fn abandon(&mut self, mode: ReleaseMode) -> Actions {
        let (nodes, mode) = match &self.stage {
            Stage::Attempting { attempt, .. } => (attempt.must_undo(), ReleaseMode::Delete),
            Stage::Leaving { may_be_on, .. } => (*may_be_on, mode),
            Stage::Releasing(releasing) => (releasing.may_be_on, releasing.mode.clone()),
            Stage::Held(_) | Stage::Over(_) => return Actions::default(),
        };
        let undo = Undo { nodes, mode: mode.clone(), ..self.undo() };
        if !undo.is_attempt {
            // Without a caller, the requests of a release may never be sent.
            self.released_on = self.released_on.is_none().then_some(Route::Keeper);
        }
        self.stage = Stage::Over(Over { may_be_on: nodes, mode, left: KeyRemains::No });
        Actions { undo: some(undo), ..Actions::default() }
    }

    fn voted(&mut self, now: Time, node: usize, vote: Result<Acquired, Failure>, overtaken: bool) -> Actions {
        match &mut self.stage {
            Stage::Attempting { attempt, .. } => {
                let step = attempt.answer(now, node, vote);
                self.go_on(step)
            }
            Stage::Held(lease) if lease.next_tick().is_some() => self.voted_late(now, node, &vote),
            Stage::Held(_) | Stage::Leaving { .. } | Stage::Releasing(_) | Stage::Over(_) => {
                // Invariants 5 and 6.
                let is_gone = !overtaken && self.released_on == Some(self.route) || self.runs_out(now);
                let undo = (late(&vote) && !is_gone).then(|| self.undo_of_vote(node));
                Actions { undo, ..Actions::default() }
            }
        }
    }

    /// Handles a vote that arrives after a majority has granted: it counts for the lease.
    fn voted_late(&mut self, now: Time, node: usize, vote: &Result<Acquired, Failure>) -> Actions {
        let sent = self.sent;
        let mut lower = None;
        let answer = match vote {
            Ok(Acquired::Granted(issued)) => {
                // One more node is to keep the floor; a majority does already.
                lower = self.fence.filter(|fence| issued < fence);
                RenewalAnswer::Confirmed
            }
            Ok(Acquired::Busy { .. }) => RenewalAnswer::Denied(Denial::Taken),
            Ok(Acquired::Recovering(_) | Acquired::Gone) => RenewalAnswer::Denied(Denial::Gone),
            // The next renewal finds out.
            Err(_) => return Actions::default(),
        };
        let actions = self.lease(now, |lease| lease.answer(now, node, sent, answer));
        Actions { raise: lower.map(|fence| (fence, Nodes::one(node))), ..actions }
    }

    fn raised(&mut self, now: Time, node: usize, raised: Result<Owned, Failure>) -> Actions {
        let Stage::Attempting { attempt, .. } = &mut self.stage else { return Actions::default() };
        let step = attempt.raised(now, node, raised);
        self.go_on(step)
    }

    fn go_on(&mut self, step: attempt::Step) -> Actions {
        match step {
            attempt::Step::Wait => Actions::default(),
            attempt::Step::Raise { fence, on } => Actions { raise: Some((fence, on)), ..Actions::default() },
            attempt::Step::Won { fence, tally } => {
                self.won(fence, tally);
                Actions { news: Some(News::Acquired(fence)), ..Actions::default() }
            }
            attempt::Step::Lost(verdict) => {
                let actions = self.abandon(ReleaseMode::Delete);
                Actions { news: Some(News::NotAcquired(verdict)), ..actions }
            }
        }
    }

    fn won(&mut self, fence: Fence, tally: Tally) {
        let Stage::Attempting { lease, renew_first_after, jitter, .. } = &self.stage else { return };
        let mut held = HeldLease::new(*lease, tally, jitter.clone());
        if let Some(after) = renew_first_after {
            held.hint(self.sent + *after);
        }
        self.fence = Some(fence);
        self.stage = Stage::Held(held);
    }

    fn repaired(&mut self, now: Time, node: usize, sent: Time, repaired: &Result<Repaired, Failure>) -> Actions {
        if self.next_tick().is_none() {
            let may_be_there = match repaired {
                Ok(repaired) => *repaired == Repaired::Done,
                Err(failure) => failure.may_have_happened(),
            };
            let is_undone = may_be_there && !self.runs_out(now);
            let undo = || Undo { nodes: Nodes::one(node), ..self.undo() };
            return Actions { undo: is_undone.then(undo), ..Actions::default() };
        }
        let answer = match repaired {
            Ok(Repaired::Done) => RenewalAnswer::Confirmed,
            Ok(Repaired::Taken) => RenewalAnswer::Denied(Denial::Taken),
            Ok(Repaired::Recovering(_)) | Err(_) => return Actions::default(),
        };
        self.lease(now, |lease| lease.answer(now, node, sent, answer))
    }

    fn released(
        &mut self,
        now: Time,
        node: usize,
        (only_sending, is_last): (bool, bool),
        said: Result<Owned, Failure>,
    ) -> Actions {
        let may_be_on = match &self.stage {
            Stage::Releasing(releasing) => releasing.may_be_on,
            Stage::Over(over) => over.may_be_on,
            Stage::Attempting { .. } | Stage::Held(_) | Stage::Leaving { .. } => return Actions::default(),
        };
        let may_be_there = may_be_on.contains(node);
        let again = said.as_ref().err().filter(|failure| !is_last && !failure.is_refusal());
        if let Some(failure) = again {
            // The request did not arrive, or the connection broke, or is silent.
            self.released_on = None;
            let only_sending = !failure.may_have_happened();
            let waits = may_be_there || !only_sending;
            let again = ReleaseAgain { node, only_sending, waits, failure: failure.clone() };
            return Actions { release_again: Some(again), ..Actions::default() };
        }
        let unconfirmed = said.is_err() && may_be_there;
        let Stage::Releasing(releasing) = &mut self.stage else {
            let undo = || Undo { nodes: Nodes::one(node), ..self.undo() };
            return Actions { undo: unconfirmed.then(undo), ..Actions::default() };
        };
        if unconfirmed {
            releasing.unconfirmed.insert(node);
        }
        let answer = said.map(|owned| ReleaseAnswer { owned, only_sending });
        let Some(end) = releasing.tally.answer(now, node, answer) else { return Actions::default() };
        let (nodes, mode) = (releasing.unconfirmed, releasing.mode.clone());
        self.stage = Stage::Over(Over { may_be_on, mode, left: KeyRemains::No });
        let undo = some(Undo { nodes, ..self.undo() });
        Actions { undo, news: Some(News::Released(end)), ..Actions::default() }
    }

    /// Passes an event to the lease, if there is one.
    fn lease(&mut self, now: Time, event: impl FnOnce(&mut HeldLease) -> renewal::Orders) -> Actions {
        let Stage::Held(lease) = &mut self.stage else { return Actions::default() };
        let renewal::Orders { renew, reconnect, repair, undo, news } = event(lease);
        let (phase, nodes) = (lease.phase(), Nodes::all(lease.nodes()));
        // Invariants 2, 3 and 6.
        let is_undone = undo && !waits_for_its_holder(phase) && !self.runs_out(now);
        let undo = is_undone.then(|| Undo { nodes, ..self.undo() });
        Actions { renew, reconnect, repair, undo, news: news.then_some(News::Phase), ..Actions::default() }
    }

    /// Whether its key is left to expire: after a loss (invariant 6), or for an heir (invariant 7).
    fn runs_out(&self, now: Time) -> bool {
        let was_lost = match &self.stage {
            Stage::Held(lease) => {
                matches!(lease.phase(), Phase::Over { reason, .. } if loss::is_unforeseen(reason))
            }
            Stage::Over(Over { left: KeyRemains::ToHeir, .. }) => return true,
            Stage::Over(over) => over.left == KeyRemains::ByLoss,
            Stage::Attempting { .. } | Stage::Leaving { .. } | Stage::Releasing(_) => false,
        };
        was_lost && self.outliving.outlives_a_loss(now.since(self.sent))
    }

    /// The undo of this token at its present stage, without any node yet.
    fn undo(&self) -> Undo {
        let (is_attempt, mode) = match &self.stage {
            Stage::Attempting { .. } => (true, ReleaseMode::Delete),
            Stage::Releasing(releasing) => (false, releasing.mode.clone()),
            Stage::Over(over) => (false, over.mode.clone()),
            Stage::Held(_) | Stage::Leaving { .. } => (false, ReleaseMode::Delete),
        };
        let route = if is_attempt { self.route } else { Route::Keeper };
        Undo { nodes: Nodes::NONE, route, mode, is_attempt }
    }

    /// The undo of a vote that arrives when it is no longer used. It takes the vote's own route, so that it arrives
    /// later.
    pub fn undo_of_vote(&self, node: usize) -> Undo {
        let is_attempt = self.fence.is_none();
        Undo { nodes: Nodes::one(node), route: self.route, mode: ReleaseMode::Delete, is_attempt }
    }
}

/// Whether a lease has ended in a way that leaves its keys on the nodes until its holder lets go.
fn waits_for_its_holder(phase: Phase) -> bool {
    let Phase::Over { reason, .. } = phase else { return false };
    matches!(reason, LossReason::MaxHold | LossReason::Stalled) || loss::was_denied(reason)
}

fn some(undo: Undo) -> Option<Undo> {
    (!undo.nodes.is_empty()).then_some(undo)
}

fn owned(said: &Said) -> Result<Owned, Failure> {
    match said {
        Said::Owned(owned) => Ok(owned.clone()),
        Said::Vote { .. } | Said::Repaired(_) => Err(odd()),
    }
}

fn repaired(said: &Said) -> Result<Repaired, Failure> {
    match said {
        Said::Repaired(repaired) => Ok(*repaired),
        Said::Vote { .. } | Said::Owned(_) => Err(odd()),
    }
}

fn odd() -> Failure {
    Failure::unknown("this is the answer to another request")
}

#[cfg(test)]
mod tests;
