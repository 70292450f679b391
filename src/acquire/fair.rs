//! The fair way to acquire: with a place in the queue on the server, and no barging.

use std::{pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    check::Check,
    failure::Failure,
    message::{Poll, Polled, ReleaseMode, Request, Route},
    queue_position::{QueuePosition, WINDOW},
    tally::WakeCondition,
    wait_loop::Queued,
};

use super::{Acquire, attempt::Checked, taken::Taken};
use crate::{error::Error, held::Hold, status::Signal, wait::FairWaiter};

/// The state of a fair acquire on the server: one token from the first poll to the lease, and perhaps a place in the
/// queue. If it is dropped without a lease, it leaves in the background, and a grant on its way is passed on.
pub(super) struct QueuePlace<'a> {
    place: Taken<'a, Polled>,
    position: QueuePosition,
    pub(super) waiter: FairWaiter,
    had_been_lost: bool,
}

impl<'a> QueuePlace<'a> {
    pub(super) fn new(acquire: &'a Acquire) -> Result<Self, Error> {
        let place = Taken::new(acquire, acquire.token(), ReleaseMode::leave())?;
        // Registered before the first poll, because a notification may arrive before its answer.
        let waiter = acquire.engine.fair_waiters.listen(&acquire.wanted.key, &place.token);
        Ok(Self { place, position: QueuePosition::default(), waiter, had_been_lost: false })
    }

    fn grant(&self) -> Duration {
        let Acquire { engine, wanted, .. } = self.place.acquire;
        engine.options.grant_timeout.min(wanted.options.ttl)
    }

    /// The facts for the wait loop.
    pub(super) fn queued(&self) -> Queued<'_> {
        Queued {
            position: &self.position,
            due: self.waiter.due(),
            is_granted: self.waiter.is_granted(),
            usual: self.place.acquire.engine.quorum.route(),
            polled_on: self.place.route,
            grant: self.grant(),
        }
    }

    /// The failure of a node that may have forgotten leases, which is noted for all other requests as well.
    fn recovering(&self, left: Duration) -> Failure {
        self.place.member.note_recovery(left);
        Failure::recovering(self.place.member.address(), left)
    }

    /// Polls once, and notifies the other waiters of the lock if they are affected.
    pub(super) async fn poll_for_all(&mut self, route: Route) -> Checked {
        let was_granted = self.waiter.is_granted();
        let outcome = self.check(route, true).await?;
        // The lock was won without a grant, or our place was lost: the queue may be gone. Waiters that only wait for a
        // notification have to take their places again.
        let is_stranger = if outcome.is_ok() { !was_granted } else { self.had_been_lost };
        if is_stranger {
            let Acquire { engine, wanted, .. } = self.place.acquire;
            engine.fair_waiters.notify_line(&wanted.key, engine.now());
        }
        Ok(outcome)
    }

    pub(super) async fn check(&mut self, route: Route, enter: bool) -> Checked {
        let acquire = self.place.acquire;
        // A `QueuePlace` counts as under way.
        acquire.may_begin()?;
        let outcome = acquire.unless_ended(pin!(self.poll(route, enter))).await?;
        acquire.conclude(outcome)
    }

    /// Polls once. A lease counts from the time that its confirming poll was sent (rule 1). If a grant is too late for
    /// that, the next poll confirms it.
    async fn poll(&mut self, route: Route, enter: bool) -> Result<(Arc<Hold>, Signal), Check> {
        let Acquire { engine, wanted, .. } = self.place.acquire;
        let poll = Poll {
            claim: self.place.claim(),
            ticket: self.position.ticket,
            grant: self.grant(),
            window: WINDOW,
            enter,
            restart_delay: engine.quorum.restart_delay(),
        };
        let (was_there, sent) = (self.place.may_be_there, engine.now());
        self.waiter.polls(sent);
        match self.place.ask(sent, route, Request::Poll(poll)).await {
            Ok(Polled::Granted(fence)) => self.place.granted(sent, fence).map_err(Check::Failed),
            Ok(Polled::Waits { holder, recovers_for, ticket, ahead, entered, tracked, notified }) => {
                self.place.may_be_there = enter;
                self.had_been_lost = entered && self.position.ticket.is_some();
                self.position = QueuePosition { ticket, ahead, notified, recovers_for };
                self.waiter.tracks(tracked && ahead == 0);
                if let Some(left) = recovers_for {
                    return Err(Check::Failed(self.recovering(left)));
                }
                // One free place is enough for a waiter that shares the lock.
                let is_share = wanted.options.mode().is_shared();
                let holder = if is_share { holder.until_the_first() } else { holder };
                Err(Check::Held { holder, tracked, needs: WakeCondition::ANY })
            }
            Err(failure) => {
                self.position.recovers_for = None;
                self.place.may_be_there = was_there || failure.may_have_happened();
                Err(Check::Failed(failure))
            }
        }
    }
}
