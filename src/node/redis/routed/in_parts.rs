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
    pub(super) async fn send_in_parts(
        self: &Arc<Self>,
        options: SendOptions,
        request: Request,
    ) -> Result<Reply, Failure> {
        match request {
            Request::Acquire(AcquireRequest { claim, voting: None, heir_of: None }) => {
                self.acquire_in_steps(options, claim).await
            }
            // The place in the queue expires by itself, and so does the key of a phase without sharers.
            Request::Release { claim, mode: ReleaseMode::Delete | ReleaseMode::Leave(_) } => {
                let single = if claim.mode.is_shared() { Single::Part } else { Single::Release };
                Ok(self.ask_owned(options, single, &claim).await?.into())
            }
            Request::Renew(claims) => {
                let shares = claims.iter().map(|claim| self.renew_share_in_steps(options, claim));
                Ok(join_all(shares).await.into())
            }
            request => {
                let slot = request.key().map_or_else(String::new, |key| format!(" {}", slot::of(key.lock())));
                let what = match request {
                    Request::Poll(_) => "queues and sharers wait until that is done",
                    _ => "try again once that is done",
                };
                Err(Failure::unavailable(format!("slot{slot} is being moved to another server of the cluster: {what}")))
            }
        }
    }

    async fn acquire_in_steps(self: &Arc<Self>, options: SendOptions, claim: Claim) -> Result<Reply, Failure> {
        let (until, key) = (self.now() + options.limit, claim.key.clone());
        let mut steps = Stepwise::new(claim);
        let mut step = steps.first();
        loop {
            let answer = self.ask_single(rest(options, until, self.now()), &key, step).await;
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
    async fn renew_share_in_steps(self: &Arc<Self>, options: SendOptions, claim: &Claim) -> Result<Owned, Failure> {
        let until = self.now() + options.limit;
        let phase = self.ask_owned(options, Single::ExtendPhase, claim).await?;
        if phase.is_err() {
            return Ok(phase);
        }
        let options = rest(options, until, self.now());
        self.ask_owned(options, Single::ExtendShare, claim).await.map_err(Failure::halfway)
    }

    async fn ask_owned(
        self: &Arc<Self>,
        options: SendOptions,
        of: fn(Claim) -> Single,
        claim: &Claim,
    ) -> Result<Owned, Failure> {
        match self.ask_single(options, &claim.key, of(claim.clone())).await? {
            SingleReply::Owned(owned) => Ok(owned),
            _ => Err(Failure::unknown("this is the answer to another request")),
        }
    }

    async fn ask_single(
        self: &Arc<Self>,
        options: SendOptions,
        key: &Key,
        single: Single,
    ) -> Result<SingleReply, Failure> {
        let ask = |server: &Arc<Connections>, options| server.ask_single(options, single.clone());
        self.travel(options, self.now(), options.limit, key, ask).await.map(|(reply, _)| reply)
    }
}
