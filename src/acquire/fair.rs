//! The fair way to acquire: with a place in the queue on the server, and no barging.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    attempt::{Attempt, Step, Verdict},
    failure::Failure,
    look::Look,
    message::{Acquired, Knock, Knocked, Parting, Route},
    queue_position::{LEAVES_FOR, QueuePosition, WINDOW},
    tally::WakeCondition,
    token::Token,
    wait_loop::Queued,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Acquire, seated};
use crate::{
    error::AcquireError,
    lease::Lease,
    node::{Answer, Node},
    owner::Seat,
    quorum::Undo,
    random,
    shared::{Outcome, Shared, Wanted},
    wait::Called,
};

impl Acquire {
    /// Takes a place in the queue, and knocks until the lock is ours.
    pub(super) async fn queue_up(&self, seat: Option<Arc<Seat>>) -> Result<Lease, AcquireError> {
        let shared = &self.shared;
        let node = shared.sole().map_err(|failure| AcquireError::Refused(failure.into()))?;
        let mut standing = Standing::new(shared, node, &self.wanted);
        let one_try = self.until == self.started;
        let seen = match self.knock(&mut standing, shared.quorum.route(), !one_try).await? {
            Ok(won) => return Ok(seated(won, seat)),
            Err(look) => look,
        };
        if self.is_over() {
            return Err(self.over(seen));
        }
        let waiter = shared.queues.join(&self.wanted.key);
        Ok(seated(Box::pin(self.wait(&waiter, seen, Some(standing))).await?, seat))
    }

    /// One knock of a waiter, and what follows from it for the others of its lock.
    pub(super) async fn poll(
        &self,
        standing: &mut Standing<'_>,
        route: Route,
    ) -> Result<Result<Lease, Look>, AcquireError> {
        let was_called = standing.called.is_granted();
        let outcome = self.knock(standing, route, true).await?;
        // A lock that became free otherwise than by a release: perhaps the queue is gone, and who only waits to be called
        // has to take its place again.
        let is_stranger = if outcome.is_ok() { !was_called } else { standing.had_been_lost };
        if is_stranger {
            self.shared.calls.call_line(&self.wanted.key, self.shared.now());
        }
        Ok(outcome)
    }

    /// One knock. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn knock(
        &self,
        standing: &mut Standing<'_>,
        route: Route,
        enter: bool,
    ) -> Result<Result<Lease, Look>, AcquireError> {
        // Who stands is under way.
        self.may_begin()?;
        let limit = self.limit(self.shared.now());
        let outcome = tokio::select! {
            biased;
            outcome = standing.knock(route, enter, limit) => outcome,
            () = self.shared.ended.cancelled() => return Err(self.shared.end()),
        };
        self.judge(outcome)
    }
}

/// What a fair acquire has on the server: one token from the first knock to the lease, and perhaps a place. Dropped
/// without a lease, it leaves in the background: a grant that is on its way passes on.
pub(super) struct Standing<'a> {
    shared: &'a Arc<Shared>,
    node: &'a Arc<dyn Node>,
    wanted: &'a Wanted,
    token: Token,
    position: QueuePosition,
    pub(super) called: Called,
    /// How the last knock went.
    route: Route,
    answer: Option<Answer<Knocked>>,
    had_been_lost: bool,
    may_be_there: bool,
    /// `close` waits for our leaving.
    _under_way: TaskTrackerToken,
}

impl<'a> Standing<'a> {
    fn new(shared: &'a Arc<Shared>, node: &'a Arc<dyn Node>, wanted: &'a Wanted) -> Self {
        let token = random::token(&shared.options.label);
        // Before the first knock, which may be answered by a call before it is answered.
        let called = shared.calls.listen(&wanted.key, &token);
        Self {
            shared,
            node,
            wanted,
            token,
            position: QueuePosition::default(),
            called,
            route: Route::Keeper,
            answer: None,
            had_been_lost: false,
            may_be_there: false,
            _under_way: shared.host.token(),
        }
    }

    fn grant(&self) -> Duration {
        self.shared.options.grant.min(self.wanted.ttl)
    }

    /// What the wait loop decides by.
    pub(super) fn queued(&self) -> Queued<'_> {
        Queued {
            position: &self.position,
            due: self.called.due(),
            is_granted: self.called.is_granted(),
            usual: self.shared.quorum.route(),
            polled_on: self.route,
            grant: self.grant(),
        }
    }

    /// What a node that may have forgotten is to everybody else as well.
    fn recovering(&self, left: Duration) -> Failure {
        if let Some(member) = self.shared.quorum.member(0) {
            member.note_recovery(left);
        }
        Failure::recovering(self.node.address(), left)
    }

    /// A lease is believed from the sending of the knock that confirms it (rule 1), so a grant that is late for that is
    /// confirmed by the next one.
    async fn knock(&mut self, route: Route, enter: bool, limit: Duration) -> Outcome {
        let Wanted { key, ttl, .. } = self.wanted;
        let knock = Knock {
            key: key.clone(),
            token: self.token.clone(),
            ttl: *ttl,
            ticket: self.position.ticket,
            grant: self.grant(),
            window: WINDOW,
            enter,
            restart_delay: self.shared.quorum.restart_delay(),
        };
        self.called.knocks();
        self.route = route;
        let was_there = std::mem::replace(&mut self.may_be_there, true);
        let sent = self.shared.now();
        let answer = self.answer.insert(self.node.knock(route, &knock, limit));
        let answered = answer.await;
        self.answer = None;
        match answered {
            Ok(Knocked::Granted(fence)) => {
                let granted = Ok(Acquired::Granted(fence));
                match Attempt::new(sent, *ttl, 1).answer(self.shared.now(), 0, granted) {
                    Step::Over(Verdict::Won { fence, tally }) => {
                        self.may_be_there = false;
                        let (hold, signal) = self.shared.hold(self.wanted, self.token.clone(), sent, fence, tally);
                        Outcome::Won(hold, signal)
                    }
                    _ => Outcome::Failed(Failure::unavailable("the grant was confirmed after its lease had run out")),
                }
            }
            Ok(Knocked::Waits { holder, recovers_for, ticket, ahead, entered, watched, called }) => {
                self.may_be_there = enter;
                self.had_been_lost = entered && self.position.ticket.is_some();
                self.position = QueuePosition { ticket, ahead, called, recovers_for };
                self.called.watches(watched && ahead == 0);
                match recovers_for {
                    Some(left) => Outcome::Failed(self.recovering(left)),
                    None => Outcome::Busy { holder, needs: WakeCondition::ANY, watched },
                }
            }
            Err(failure) => {
                self.position.recovers_for = None;
                self.may_be_there = was_there || failure.may_have_happened();
                Outcome::Failed(failure)
            }
        }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if !self.may_be_there {
            return;
        }
        let Wanted { key, ttl, .. } = self.wanted;
        let undo = Undo {
            route: self.route,
            key: key.clone(),
            token: self.token.clone(),
            parting: Parting::Leave,
            for_at_most: LEAVES_FOR.max(*ttl),
            is_first: false,
            is_attempt: true,
        };
        let leaving = self.shared.watchdog.undoing(0, undo);
        let answer = self.answer.take();
        self.shared.host.spawn(async move {
            if let Some(answer) = answer {
                let _too_late = answer.await;
            }
            leaving.await;
        });
    }
}
