//! A share in the place of a token that has the lock alone: a downgrade, or the adoption of a ticket as a share (rule
//! 13).
//!
//! # Invariants
//!
//! 1. It has one token from the first request to the lease: a replay finds it among the sharers of the lock.
//! 2. A lease counts from the time that the answered request was sent (rule 1).
//! 3. If it is dropped without a lease, it takes its token off once the last request is answered. The key stays for the
//!    rest of the interval in which the lock is acquired once.

use std::{pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    backoff::Backoff,
    failure::Failure,
    loss::Loss,
    message::{Denial, Downgraded, Request},
    token::Token,
};

use super::{Acquire, taken::Taken};
use crate::{error::Error, held::Hold, lease::Lease, random, reentry::OwnerSlot, status::Signal};

impl Acquire {
    /// Continues a hold that its holder no longer believes in.
    pub(crate) async fn downgrade(&mut self, hold: &Hold, slot: Option<Arc<OwnerSlot>>) -> Result<Lease, Error> {
        (self.owner, self.owner_slot) = (hold.owner, slot);
        let lost = |loss| {
            let now = self.engine.now();
            Error::Lost(hold.lost(now, now, loss))
        };
        let keep = self.wanted.keep_for;
        Ok(self.goes_on(self.share_in_place_of(&hold.claim.token, keep, lost).await?))
    }

    /// Shares the lock in the place of this token. `lost` makes the error if the token no longer has the lock. After
    /// any other error the key stays for `keep`.
    pub(super) async fn share_in_place_of(
        &self,
        from: &Token,
        keep: Duration,
        lost: impl Fn(Loss) -> Error + Send,
    ) -> Result<Lease, Error> {
        let token = self.token();
        let mode = self.leaves(&token, keep);
        let mut place = Taken::new(self, token, mode)?;
        let mut backoff = Backoff::new(random::jitter());
        loop {
            self.may_begin()?;
            let outcome = self.unless_ended(pin!(place.ask_in_place_of(from))).await?;
            let failure = match outcome {
                Ok(Ok(won)) => return self.own(won),
                Ok(Err(denial)) => return Err(lost(Loss::from(&denial))),
                Err(failure) => failure,
            };
            if failure.is_refusal() || self.is_over() {
                return Err(Error::of(failure));
            }
            self.pause(backoff.next(None)).await?;
        }
    }
}

impl Taken<'_, Downgraded> {
    async fn ask_in_place_of(&mut self, from: &Token) -> Result<Result<(Arc<Hold>, Signal), Denial>, Failure> {
        let restart_delay = self.acquire.engine.quorum.restart_delay();
        let (route, sent) = (self.acquire.engine.quorum.route(), self.acquire.engine.now());
        let request = Request::Downgrade { claim: self.claim(), from: from.clone(), restart_delay };
        match self.ask(sent, route, request).await? {
            Downgraded::Shared(fence) => Ok(Ok(self.granted(sent, fence)?)),
            Downgraded::Denied(denial) => {
                self.may_be_there = false;
                Ok(Err(denial))
            }
            Downgraded::Recovering(left) => {
                self.may_be_there = false;
                Err(Failure::recovering(self.member.address(), left))
            }
        }
    }
}
