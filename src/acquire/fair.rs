//! The fair way to acquire: with a place in the queue on the server, and no barging.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    check::Check,
    failure::Failure,
    message::{Poll, Polled, Request, Route},
    queue_position::{QueuePosition, WINDOW},
    tally::WakeCondition,
    token::Token,
    wait_loop::Queued,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Acquire, attempt::Checked};
use crate::{
    held::Hold,
    quorum::{Asked, Member},
    status::Signal,
    wait::FairWaiter,
};

/// The state of a fair acquire on the server: one token from the first poll to the lease, and perhaps a place in the
/// queue. Dropped without a lease, it leaves in the background, and a grant that is on its way passes on.
pub(super) struct Standing<'a> {
    acquire: &'a Acquire,
    member: &'a Arc<Member>,
    token: Token,
    position: QueuePosition,
    pub(super) waiter: FairWaiter,
    /// How the last poll went.
    route: Route,
    answer: Option<Asked<Polled>>,
    had_been_lost: bool,
    may_be_there: bool,
    /// `close` waits for our leaving.
    _under_way: TaskTrackerToken,
}

impl<'a> Standing<'a> {
    pub(super) fn new(acquire: &'a Acquire, member: &'a Arc<Member>) -> Self {
        let client = &acquire.client;
        let token = acquire.token();
        // Before the first poll: a notification may come before its answer.
        let waiter = client.fair_waiters.listen(&acquire.wanted.key, &token);
        Self {
            acquire,
            member,
            token,
            position: QueuePosition::default(),
            waiter,
            route: Route::Keeper,
            answer: None,
            had_been_lost: false,
            may_be_there: false,
            _under_way: client.host.token(),
        }
    }

    fn grant(&self) -> Duration {
        self.acquire.client.options.grant_timeout.min(self.acquire.wanted.options.ttl)
    }

    /// The facts for the wait loop.
    pub(super) fn queued(&self) -> Queued<'_> {
        Queued {
            position: &self.position,
            due: self.waiter.due(),
            is_granted: self.waiter.is_granted(),
            usual: self.acquire.client.quorum.route(),
            polled_on: self.route,
            grant: self.grant(),
        }
    }

    /// The failure of a node that may have forgotten leases, which is noted for everybody else as well.
    fn recovering(&self, left: Duration) -> Failure {
        self.member.note_recovery(left);
        Failure::recovering(self.member.address(), left)
    }

    /// One poll of a waiter, and what follows from it for the others of its lock.
    pub(super) async fn poll_for_all(&mut self, route: Route) -> Checked {
        let was_granted = self.waiter.is_granted();
        let outcome = self.check(route, true).await?;
        // The lock was won without a grant, or our place was lost: the queue may be gone. Waiters that only wait for a
        // notification have to take their places again.
        let is_stranger = if outcome.is_ok() { !was_granted } else { self.had_been_lost };
        if is_stranger {
            let client = &self.acquire.client;
            client.fair_waiters.notify_line(&self.acquire.wanted.key, client.now());
        }
        Ok(outcome)
    }

    pub(super) async fn check(&mut self, route: Route, enter: bool) -> Checked {
        let acquire = self.acquire;
        // A `Standing` counts as under way.
        acquire.may_begin()?;
        let limit = acquire.limit(acquire.client.now());
        let outcome = tokio::select! {
            biased;
            outcome = self.poll(route, enter, limit) => outcome,
            () = acquire.client.ended.cancelled() => return Err(acquire.client.end()),
        };
        acquire.conclude(outcome)
    }

    /// Polls once. A lease is believed from the sending of the poll that confirms it (rule 1). If a grant is late for
    /// that, the next poll confirms it.
    async fn poll(&mut self, route: Route, enter: bool, limit: Duration) -> Result<(Arc<Hold>, Signal), Check> {
        let client = &self.acquire.client;
        let poll = Poll {
            claim: self.acquire.claim(self.token.clone()),
            ticket: self.position.ticket,
            grant: self.grant(),
            window: WINDOW,
            enter,
            restart_delay: client.quorum.restart_delay(),
        };
        self.waiter.polls();
        self.route = route;
        let was_there = std::mem::replace(&mut self.may_be_there, true);
        let sent = client.now();
        let answered = self.answer.insert(self.member.ask_at(sent, route, Request::Poll(poll), limit)).await;
        self.answer = None;
        match answered {
            Ok(Polled::Granted(fence)) => {
                let won = self.acquire.granted(&self.token, route, sent, fence).map_err(Check::Failed)?;
                self.may_be_there = false;
                Ok(won)
            }
            Ok(Polled::Waits { holder, recovers_for, ticket, ahead, entered, tracked, notified }) => {
                self.may_be_there = enter;
                self.had_been_lost = entered && self.position.ticket.is_some();
                self.position = QueuePosition { ticket, ahead, notified, recovers_for };
                self.waiter.tracks(tracked && ahead == 0);
                if let Some(left) = recovers_for {
                    return Err(Check::Failed(self.recovering(left)));
                }
                // One place is enough for who shares it.
                let is_share = self.acquire.wanted.options.access.mode().is_shared();
                let holder = if is_share { holder.until_the_first() } else { holder };
                Err(Check::Held { holder, tracked, needs: WakeCondition::ANY })
            }
            Err(failure) => {
                self.position.recovers_for = None;
                self.may_be_there = was_there || failure.may_have_happened();
                Err(Check::Failed(failure))
            }
        }
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if self.may_be_there {
            self.acquire.leave_after(&self.token, self.route, self.answer.take());
        }
    }
}
