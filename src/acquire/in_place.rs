//! A share in the place of a token that has the lock alone: a downgrade, or the adoption of a ticket by one who shares
//! (rule 13).
//!
//! # Invariants
//!
//! 1. It has one token from the first request to the lease: a replay finds it among those who share the lock.
//! 2. A lease is believed from the sending of the request that was answered (rule 1).
//! 3. Dropped without a lease, it takes its token off when the last request has its answer.

use std::sync::Arc;

use leasehold_protocol::{
    acquisition::{Acquisition, Undo},
    backoff::Backoff,
    failure::Failure,
    loss::Loss,
    message::{Claim, Denial, Downgraded, ReleaseMode, Request},
    queue_position::LEAVES_FOR,
    tally::Nodes,
    token::Token,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Acquire, tell::tell_acquired};
use crate::{
    error::Error,
    held::Hold,
    lease::Lease,
    quorum::{Asked, Member, UndoTask},
    random,
    reentry::OwnerSlot,
    status::Signal,
};

/// The end of the wait: what has the lock instead.
pub(super) enum Ended {
    Denied(Loss),
    Failed(Error),
}

/// Its requests so far.
struct Place<'a> {
    acquire: &'a Acquire,
    member: &'a Arc<Member>,
    token: Token,
    answer: Option<Asked<Downgraded>>,
    may_be_there: bool,
    /// `close` waits for what is under way, and for its undoing.
    _under_way: TaskTrackerToken,
}

impl Acquire {
    /// Shares the lock in the place of this token.
    pub(super) async fn share_in_place_of(&self, from: &Token) -> Result<Lease, Ended> {
        let client = &self.client;
        let member = client.sole().map_err(Ended::Failed)?;
        let (token, under_way) = (self.token(), client.host.token());
        let mut place =
            Place { acquire: self, member, token, answer: None, may_be_there: false, _under_way: under_way };
        let mut backoff = Backoff::new(random::jitter());
        loop {
            self.may_begin().map_err(Ended::Failed)?;
            let outcome = tokio::select! {
                biased;
                outcome = place.ask(from) => outcome,
                () = client.ended.cancelled() => return Err(Ended::Failed(client.end())),
            };
            let failure = match outcome {
                Ok(Ok((hold, signal))) => {
                    let lease = self.own(hold, signal);
                    self.may_begin().map_err(Ended::Failed)?;
                    return Ok(lease);
                }
                Ok(Err(denial)) => return Err(Ended::Denied(Loss::from(&denial))),
                Err(failure) => failure,
            };
            if failure.is_refusal() || self.is_over() {
                return Err(Ended::Failed(Error::of(failure)));
            }
            self.pause(backoff.next(None)).await.map_err(Ended::Failed)?;
        }
    }
}

impl Acquire {
    /// Goes on from a hold in which nobody believes any more.
    pub(crate) async fn downgrade(&mut self, hold: &Hold, slot: Option<Arc<OwnerSlot>>) -> Result<Lease, Error> {
        (self.owner, self.owner_slot) = (hold.owner, slot);
        let lease = self.share_in_place_of(&hold.claim.token).await.map_err(|ended| match ended {
            Ended::Denied(loss) => {
                let now = self.client.now();
                Error::Lost(hold.lost(now, now, loss))
            }
            Ended::Failed(error) => error,
        })?;
        lease.keep_for(self.wanted.keep_for);
        lease.takes_its_owner_slot();
        tell_acquired(&lease);
        Ok(lease)
    }
}

impl Place<'_> {
    async fn ask(&mut self, from: &Token) -> Result<Result<(Arc<Hold>, Signal), Denial>, Failure> {
        let Self { acquire, member, .. } = *self;
        let (client, route) = (&acquire.client, acquire.client.quorum.route());
        let (claim, sent) = (acquire.claim(self.token.clone()), acquire.client.now());
        let request = Request::Downgrade { claim: claim.clone(), from: from.clone() };
        self.may_be_there = true;
        let answered = self.answer.insert(member.ask_at(sent, route, request, acquire.limit(sent))).await;
        self.answer = None;
        let fence = match answered? {
            Ok(fence) => fence,
            Err(denial) => {
                self.may_be_there = false;
                return Ok(Err(denial));
            }
        };
        let Some(acquisition) = Acquisition::granted(acquire.config(route), sent, client.now(), fence) else {
            return Err(Failure::unavailable("the answer came after the lease that it was for had run out"));
        };
        self.may_be_there = false;
        Ok(Ok(acquire.hold(claim, fence, acquisition)))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.may_be_there {
            return;
        }
        let (client, claim) = (&self.acquire.client, self.acquire.claim(self.token.clone()));
        let claim = Claim { life: LEAVES_FOR.max(claim.life), ..claim };
        let (nodes, route, mode) = (Nodes::one(0), client.quorum.route(), ReleaseMode::Leave);
        let leaving = client
            .watchdog
            .undoing(0, UndoTask { order: Undo { nodes, route, mode, is_attempt: true }, claim, was_asked: true });
        let answer = self.answer.take();
        client.host.spawn(async move {
            if let Some(answer) = answer {
                let _too_late = answer.await;
            }
            leaving.await;
        });
    }
}
