//! An adoption: takes over the lock of a ticket, with our token in the place of the giver's (rule 13).
//!
//! # Invariants
//!
//! 1. Each attempt has a token of its own. It names the tokens of all attempts before it, because one of them may have
//!    been executed without an answer, and have the lock by now.
//! 2. No attempt is undone before the adoption has ended: the next attempt adopts what it has left.

use std::{pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    attempt::Verdict,
    backoff::Backoff,
    failure::Failure,
    loss::{Loss, LossReason},
    message::Route,
    ticket::Ticket,
    token::Token,
};
use tokio_util::sync::CancellationToken;

use super::{
    Acquire,
    attempt::{Predecessors, why},
    tell::tell_acquired,
};
use crate::{
    clock::wall, error::Error, held::Hold, lease::Lease, lost::Lost, random, reentry::Reentry, status::Signal,
};

/// The most attempts without an answer: each of them is named in the next.
const UNHEARD: usize = 64;

/// The most tries against another heir that was first on some of the nodes.
const SPLITS: u32 = 4;

impl Acquire {
    /// Adopts the lock of this ticket. The owner is whoever polls this first.
    pub(crate) async fn adopt(&mut self, ticket: &Ticket) -> Result<Lease, Error> {
        self.owner = self.wanted.owner.resolve();
        if !self.engine.is_connected() {
            self.connect().await?;
        }
        if let Some(owner) = self.owner.filter(|_| self.wanted.reentrant) {
            // The owner may adopt a ticket of a lease that it still has: its slot continues.
            let entered = self.engine.owners.enter(owner, &self.wanted.key, self.engine.now());
            let (Reentry::Free(slot) | Reentry::Held(_, slot)) = entered;
            self.owner_slot = Some(slot);
        }
        let lease = if self.wanted.options.mode().is_shared() {
            let lost = |loss| self.too_late(ticket, loss);
            self.share_in_place_of(ticket.token(), Duration::ZERO, lost).await?
        } else {
            self.succeed(ticket).await?
        };
        Ok(self.goes_on(lease))
    }

    /// Completes a lease that continues another one.
    pub(super) fn goes_on(&self, lease: Lease) -> Lease {
        lease.keep_for(self.wanted.keep_for);
        lease.takes_its_owner_slot();
        // Its key is as it was left here, so the server's notification of the change is not passed on.
        self.engine.observed.notify(self.wanted.key.lock(), self.engine.now());
        tell_acquired(&lease);
        lease
    }

    async fn succeed(&self, ticket: &Ticket) -> Result<Lease, Error> {
        let engine = &self.engine;
        let over = CancellationToken::new();
        let _ends = over.clone().drop_guard();
        let mut tokens = vec![ticket.token().clone()];
        let (mut backoff, mut splits) = (Backoff::new(random::jitter()), 0);
        loop {
            let route = engine.quorum.route();
            let predecessors = Predecessors { tokens: tokens.clone().into(), over: over.clone() };
            // `close` waits for what is under way.
            let under_way = engine.host.token();
            self.may_begin()?;
            let outcome = self.unless_ended(pin!(self.succeed_once(route, &predecessors))).await?;
            let failure = match outcome {
                Ok(won) => return self.own(won),
                Err((Verdict::Gone, _)) => return Err(self.too_late(ticket, LossReason::Deleted)),
                Err((Verdict::Busy { .. }, _)) => return Err(self.too_late(ticket, LossReason::Taken)),
                Err((Verdict::Split { .. }, _)) if splits == SPLITS => {
                    return Err(self.too_late(ticket, LossReason::Taken));
                }
                Err((Verdict::Split { .. }, token)) => {
                    splits += 1;
                    tokens.push(token);
                    Failure::unavailable("another process adopts the same ticket")
                }
                Err((Verdict::Failed(said), token)) => {
                    tokens.push(token);
                    why(&engine.quorum, &said)
                }
            };
            drop(under_way);
            if failure.is_refusal() || self.is_over() || tokens.len() > UNHEARD {
                return Err(Error::of(failure));
            }
            self.pause(backoff.next(None)).await?;
        }
    }

    /// Makes one attempt. The error is its verdict, and its token.
    async fn succeed_once(
        &self,
        route: Route,
        predecessors: &Predecessors,
    ) -> Result<(Arc<Hold>, Signal), (Verdict, Token)> {
        let mut round = self.round(route, self.limit(self.engine.now()), Some(predecessors));
        match round.run().await {
            Ok((fence, acquisition)) => Ok(round.won(fence, acquisition)),
            Err(verdict) => Err((verdict, round.request.claim.token.clone())),
        }
    }

    /// The error if the lease of the ticket has ended.
    fn too_late(&self, ticket: &Ticket, loss: impl Into<Loss>) -> Error {
        let lost = Lost::new(self.wanted.key.name(), ticket.fence(), loss.into(), wall(), Duration::ZERO);
        Error::Lost(lost)
    }
}
