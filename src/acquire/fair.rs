//! The fair way to acquire: with a place in the queue on the server, and no barging.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::Acquisition,
    check::Check,
    failure::Failure,
    fence::Fence,
    message::{Claim, Poll, Polled, ReleaseMode, Request, Route},
    queue_position::{LEAVES_FOR, QueuePosition, WINDOW},
    tally::WakeCondition,
    time::Time,
    token::Token,
    wait_loop::Queued,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Acquire, in_owner_slot};
use crate::{
    client::{Client, Wanted, Won},
    error::Error,
    lease::Lease,
    quorum::{Asked, Member, Undo},
    random,
    reentry::OwnerSlot,
    wait::FairWaiter,
};

impl Acquire {
    /// Takes a place in the queue, and polls until the lock is ours.
    pub(super) async fn queue_up(&self, owner_slot: Option<Arc<OwnerSlot>>) -> Result<Lease, Error> {
        let client = &self.client;
        let mut standing = Standing::new(client, client.sole()?, &self.wanted);
        let one_try = self.until == self.started;
        let seen = match self.poll(&mut standing, client.quorum.route(), !one_try).await? {
            Ok(won) => return Ok(in_owner_slot(won, owner_slot)),
            Err(look) => look,
        };
        if self.is_over() {
            return Err(self.gives_up(seen));
        }
        let waiter = client.queues.join(&self.wanted.key);
        Ok(in_owner_slot(Box::pin(self.wait(&waiter, seen, Some(standing))).await?, owner_slot))
    }

    /// One poll of a waiter, and what follows from it for the others of its lock.
    pub(super) async fn poll_for_all(
        &self,
        standing: &mut Standing<'_>,
        route: Route,
    ) -> Result<Result<Lease, Check>, Error> {
        let was_called = standing.called.is_granted();
        let outcome = self.poll(standing, route, true).await?;
        // The lock was won without a grant, or our place was lost: the queue may be gone. Waiters that only wait for a
        // notification have to take their places again.
        let is_stranger = if outcome.is_ok() { !was_called } else { standing.had_been_lost };
        if is_stranger {
            self.client.fair_waiters.notify_line(&self.wanted.key, self.client.now());
        }
        Ok(outcome)
    }

    /// One poll. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn poll(
        &self,
        standing: &mut Standing<'_>,
        route: Route,
        enter: bool,
    ) -> Result<Result<Lease, Check>, Error> {
        // A `Standing` counts as under way.
        self.may_begin()?;
        let limit = self.limit(self.client.now());
        let outcome = tokio::select! {
            biased;
            outcome = standing.poll(route, enter, limit) => outcome,
            () = self.client.ended.cancelled() => return Err(self.client.end()),
        };
        self.conclude(outcome)
    }
}

/// The state of a fair acquire on the server: one token from the first poll to the lease, and perhaps a place in the
/// queue. Dropped without a lease, it leaves in the background, and a grant that is on its way passes on.
pub(super) struct Standing<'a> {
    client: &'a Arc<Client>,
    member: &'a Arc<Member>,
    wanted: &'a Wanted,
    token: Token,
    position: QueuePosition,
    pub(super) called: FairWaiter,
    /// How the last poll went.
    route: Route,
    answer: Option<Asked<Polled>>,
    had_been_lost: bool,
    may_be_there: bool,
    /// `close` waits for our leaving.
    _under_way: TaskTrackerToken,
}

impl<'a> Standing<'a> {
    fn new(client: &'a Arc<Client>, member: &'a Arc<Member>, wanted: &'a Wanted) -> Self {
        let token = random::token(&client.options.label);
        // Before the first poll: a notification may come before its answer.
        let called = client.fair_waiters.listen(&wanted.key, &token);
        Self {
            client,
            member,
            wanted,
            token,
            position: QueuePosition::default(),
            called,
            route: Route::Keeper,
            answer: None,
            had_been_lost: false,
            may_be_there: false,
            _under_way: client.host.token(),
        }
    }

    fn grant(&self) -> Duration {
        self.client.options.grant_timeout.min(self.wanted.options.ttl)
    }

    /// The facts for the wait loop.
    pub(super) fn queued(&self) -> Queued<'_> {
        Queued {
            position: &self.position,
            due: self.called.due(),
            is_granted: self.called.is_granted(),
            usual: self.client.quorum.route(),
            polled_on: self.route,
            grant: self.grant(),
        }
    }

    /// The failure of a node that may have forgotten leases, which is noted for everybody else as well.
    fn recovering(&self, left: Duration) -> Failure {
        self.member.note_recovery(left);
        Failure::recovering(self.member.address(), left)
    }

    /// Polls once. A lease is believed from the sending of the poll that confirms it (rule 1). If a grant is late for
    /// that, the next poll confirms it.
    async fn poll(&mut self, route: Route, enter: bool, limit: Duration) -> Result<Won, Check> {
        let poll = Poll {
            claim: self.wanted.claim(self.token.clone()),
            ticket: self.position.ticket,
            grant: self.grant(),
            window: WINDOW,
            enter,
            restart_delay: self.client.quorum.restart_delay(),
        };
        self.called.polls();
        self.route = route;
        let was_there = std::mem::replace(&mut self.may_be_there, true);
        let sent = self.client.now();
        let answered = self.answer.insert(self.member.ask_at(sent, route, Request::Poll(poll), limit)).await;
        self.answer = None;
        match answered {
            Ok(Polled::Granted(fence)) => self.granted(route, sent, fence),
            Ok(Polled::Waits { holder, recovers_for, ticket, ahead, entered, tracked, called }) => {
                self.may_be_there = enter;
                self.had_been_lost = entered && self.position.ticket.is_some();
                self.position = QueuePosition { ticket, ahead, called, recovers_for };
                self.called.tracks(tracked && ahead == 0);
                match recovers_for {
                    Some(left) => Err(Check::Failed(self.recovering(left))),
                    None => Err(Check::Held { holder, tracked, needs: WakeCondition::ANY }),
                }
            }
            Err(failure) => {
                self.position.recovers_for = None;
                self.may_be_there = was_there || failure.may_have_happened();
                Err(Check::Failed(failure))
            }
        }
    }
}

impl Standing<'_> {
    fn granted(&mut self, route: Route, sent: Time, fence: Fence) -> Result<Won, Check> {
        let config = self.client.config(self.wanted, route);
        let Some(acquisition) = Acquisition::granted(config, sent, self.client.now(), fence) else {
            let failure = Failure::unavailable("the grant was confirmed after its lease had run out");
            return Err(Check::Failed(failure));
        };
        self.may_be_there = false;
        Ok(self.client.hold(self.wanted, self.token.clone(), fence, acquisition))
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if !self.may_be_there {
            return;
        }
        let claim = self.wanted.claim(self.token.clone());
        let undo = Undo {
            route: self.route,
            claim: Claim { ttl: LEAVES_FOR.max(claim.ttl), ..claim },
            mode: ReleaseMode::Leave,
            was_asked: true,
            is_attempt: true,
        };
        let leaving = self.client.watchdog.undoing(0, undo);
        let answer = self.answer.take();
        self.client.host.spawn(async move {
            if let Some(answer) = answer {
                let _too_late = answer.await;
            }
            leaving.await;
        });
    }
}
