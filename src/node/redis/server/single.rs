//! Requests that need one key: all that is possible while a slot is being moved.

use leasehold_protocol::{
    fence,
    message::Claim,
    stepwise::{Single, SingleReply},
};

use super::{
    Connections,
    pack::{Argument, packed},
    replicas::Patience,
    request::{SendOptions, millis, number, value},
};
use crate::node::{
    Answer,
    redis::{
        reply,
        script::{CONFIRM, EXTEND_PHASE, EXTEND_SHARE, ISSUE_ALONE, RELEASE_ALONE, TAKE},
        wire::Value,
    },
};

impl Connections {
    /// Sends a one-key request.
    pub(crate) fn ask_single(&self, options: SendOptions, single: Single) -> Answer<SingleReply> {
        let options = self.passable(options);
        let patience = Patience::of_step(&single, options.limit, self.command_timeout);
        let options = SendOptions { patience: patience.filter(|_| self.replicas(options.route).is_some()), ..options };
        match single {
            Single::Take(claim) => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend([claim.key.lock().into(), claim.token.as_str().into(), millis(claim.life)]);
                };
                self.run(options, &TAKE, 1, arguments, |reply, _| reply::taken(reply))
            }
            Single::Issue(claim) => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend(packed([Argument::Parts(claim.key.fence_parts())]));
                    all.push(millis(claim.fence_memory));
                };
                self.run(options, &ISSUE_ALONE, 1, arguments, |reply, _| reply::fence(reply).map(SingleReply::Issued))
            }
            Single::Confirm(claim) => {
                let arguments = move |all: &mut Vec<Value>| {
                    all.extend([claim.key.lock().into(), claim.token.as_str().into()]);
                    all.extend([number(claim.fence.unwrap_or(fence::ZERO)), millis(claim.life)]);
                };
                self.run(options, &CONFIRM, 1, arguments, |reply, _| reply::released(reply).map(SingleReply::Owned))
            }
            Single::Release(claim) => {
                let arguments = move |all: &mut Vec<Value>| all.extend([claim.key.lock().into(), value(&claim)]);
                self.run(options, &RELEASE_ALONE, 1, arguments, |reply, _| {
                    reply::released(reply).map(SingleReply::Owned)
                })
            }
            Single::ExtendPhase(claim) => {
                let arguments = move |all: &mut Vec<Value>| {
                    let fence = number(claim.fence.unwrap_or(fence::ZERO));
                    all.extend([claim.key.lock().into(), fence, millis(claim.life)]);
                };
                self.run(options, &EXTEND_PHASE, 1, arguments, |reply, _| {
                    reply::released(reply).map(SingleReply::Owned)
                })
            }
            Single::ExtendShare(claim) => {
                let life = millis(claim.life);
                self.extend_share(options, claim, life)
            }
            Single::Part(claim) => self.extend_share(options, claim, (-1).into()),
        }
    }

    fn extend_share(&self, options: SendOptions, claim: Claim, life: Value) -> Answer<SingleReply> {
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([claim.key.holders().into(), claim.token.as_str().into(), life.clone()]);
        };
        self.run(options, &EXTEND_SHARE, 1, arguments, |reply, _| reply::released(reply).map(SingleReply::Owned))
    }
}
