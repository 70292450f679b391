//! Requests for several keys while their slot is being moved, one key at a time: [`Stepwise`] says which come when.

use std::sync::Arc;

use leasehold_protocol::{
    failure::Failure,
    key::Key,
    message::{AcquireRequest, Claim, ReleaseMode, Reply, Request, VoteReply},
    slot,
    stepwise::{Next, Single, SingleReply, Stepwise},
};

use super::{Cluster, travel::rest};
use crate::node::redis::server::{Connections, Via};

impl Cluster {
    /// The same in steps, if it has any.
    pub(super) async fn send_in_parts(self: &Arc<Self>, via: Via, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Acquire(AcquireRequest { claim, voting: None, heir_of: None }) => {
                self.acquire_in_steps(via, claim).await
            }
            // The place in the queue runs out by itself.
            Request::Release { claim, mode: ReleaseMode::Delete | ReleaseMode::Leave } if !claim.mode.is_shared() => {
                let key = claim.key.clone();
                match self.ask_single(via, &key, Single::Release(claim)).await? {
                    SingleReply::Owned(owned) => Ok(owned.into()),
                    _ => Err(Failure::unknown("this is the answer to another request")),
                }
            }
            request => {
                let slot = request.key().map_or_else(String::new, |key| format!(" {}", slot::of(key.lock())));
                let what = match request {
                    Request::Poll(_) => "fair locks wait until that is done",
                    _ => "try again once that is done",
                };
                let text = format!("slot{slot} is being moved to another server of the cluster: {what}");
                Err(Failure::unavailable(text))
            }
        }
    }

    async fn acquire_in_steps(self: &Arc<Self>, via: Via, claim: Claim) -> Result<Reply, Failure> {
        let (until, key) = (self.now() + via.limit, claim.key.clone());
        let mut steps = Stepwise::new(claim);
        let mut step = steps.first();
        loop {
            let answer = self.ask_single(rest(via, until, self.now()), &key, step).await;
            match steps.heard(answer) {
                Next::Ask(next) => step = next,
                // On many ways: later requests may have come before.
                Next::Over(outcome) => {
                    return Ok(VoteReply { acquired: outcome?, identity: None, overtaken: true }.into());
                }
            }
        }
    }

    async fn ask_single(self: &Arc<Self>, via: Via, key: &Key, single: Single) -> Result<SingleReply, Failure> {
        let ask = |server: &Arc<Connections>, via| server.ask_single(via, single.clone());
        self.travel(via, self.now(), via.limit, key, ask).await.map(|(reply, _)| reply)
    }
}
