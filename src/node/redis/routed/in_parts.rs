//! Requests for several keys while their slot is being moved, one key at a time, as [`Stepwise`] decides.

use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_protocol::{
    failure::Failure,
    key::Key,
    message::{AcquireRequest, Claim, Owned, ReleaseMode, Reply, Request, VoteReply},
    slot,
    stepwise::{Next, Single, SingleReply, Stepwise},
};

use super::{Cluster, travel::rest};
use crate::node::redis::server::{Connections, SendOptions};

impl Cluster {
    /// Sends a request in steps, if it has any.
    pub(super) async fn send_in_parts(self: &Arc<Self>, via: SendOptions, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Acquire(AcquireRequest { claim, voting: None, heir_of: None }) => {
                self.acquire_in_steps(via, claim).await
            }
            // The place in the queue expires by itself, and so does the key of a phase without sharers.
            Request::Release { claim, mode: ReleaseMode::Delete | ReleaseMode::Leave(_) } => {
                let single = if claim.mode.is_shared() { Single::Part } else { Single::Release };
                Ok(self.ask_owned(via, single, &claim).await?.into())
            }
            Request::Renew(claims) => {
                let shares = claims.iter().map(|claim| self.renew_share_in_steps(via, claim));
                Ok(join_all(shares).await.into())
            }
            request => {
                let slot = request.key().map_or_else(String::new, |key| format!(" {}", slot::of(key.lock())));
                let what = match request {
                    Request::Poll(_) => "fair locks wait until that is done",
                    _ => "try again once that is done",
                };
                Err(Failure::unavailable(format!("slot{slot} is being moved to another server of the cluster: {what}")))
            }
        }
    }

    async fn acquire_in_steps(self: &Arc<Self>, via: SendOptions, claim: Claim) -> Result<Reply, Failure> {
        let (until, key) = (self.now() + via.limit, claim.key.clone());
        let mut steps = Stepwise::new(claim);
        let mut step = steps.first();
        loop {
            let answer = self.ask_single(rest(via, until, self.now()), &key, step).await;
            match steps.heard(answer) {
                Next::Ask(next) => step = next,
                // The steps took several routes, so later requests may have overtaken them.
                Next::Over(outcome) => {
                    return Ok(VoteReply { acquired: outcome?, identity: None, overtaken: true }.into());
                }
            }
        }
    }

    /// The key comes first: no client ends the phase before the share expires, and the second step brings none back.
    async fn renew_share_in_steps(self: &Arc<Self>, via: SendOptions, claim: &Claim) -> Result<Owned, Failure> {
        let until = self.now() + via.limit;
        let phase = self.ask_owned(via, Single::ExtendPhase, claim).await?;
        if phase.is_err() {
            return Ok(phase);
        }
        let via = rest(via, until, self.now());
        self.ask_owned(via, Single::ExtendShare, claim).await.map_err(Failure::halfway)
    }

    async fn ask_owned(
        self: &Arc<Self>,
        via: SendOptions,
        of: fn(Claim) -> Single,
        claim: &Claim,
    ) -> Result<Owned, Failure> {
        match self.ask_single(via, &claim.key, of(claim.clone())).await? {
            SingleReply::Owned(owned) => Ok(owned),
            _ => Err(Failure::unknown("this is the answer to another request")),
        }
    }

    async fn ask_single(self: &Arc<Self>, via: SendOptions, key: &Key, single: Single) -> Result<SingleReply, Failure> {
        let ask = |server: &Arc<Connections>, via| server.ask_single(via, single.clone());
        self.travel(via, self.now(), via.limit, key, ask).await.map(|(reply, _)| reply)
    }
}
