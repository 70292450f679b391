//! The scripts of requests about shares, their keys and arguments.

use std::time::Duration;

use leasehold_protocol::{
    key::Key,
    message::{Claim, Reply},
    token::Token,
};

use super::{
    Connections,
    pack::packed,
    request::{SendOptions, millis, queue_keys, whole_seconds},
};
use crate::node::{
    Answer,
    redis::{
        reply,
        script::{DOWNGRADE, KEEP_SHARE, PART, SHARERS},
        wire::Value,
    },
};

impl Connections {
    pub(super) fn part(&self, options: SendOptions, claim: Claim) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.push(claim.token.as_str().into());
            witness.testify_to_queues(all);
        };
        self.run(options, &PART, 5, arguments, |reply, _| reply::released(reply))
    }

    pub(super) fn keep_share(&self, options: SendOptions, claim: Claim, keep: Duration, stays: Token) -> Answer<Reply> {
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.extend([claim.token.as_str().into(), millis(keep), stays.as_str().into()]);
        };
        self.run(options, &KEEP_SHARE, 5, arguments, |reply, _| reply::released(reply))
    }

    pub(super) fn sharers(&self, options: SendOptions, key: Key, most: usize) -> Answer<Reply> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let arguments = move |all: &mut Vec<Value>| all.extend([key.lock().into(), key.holders().into(), most.into()]);
        self.run(options, &SHARERS, 2, arguments, |reply, _| reply::sharers(reply))
    }

    pub(super) fn downgrade(
        &self,
        options: SendOptions,
        claim: Claim,
        from: Token,
        restart_delay: Duration,
    ) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.extend([claim.token.as_str().into(), millis(claim.life)]);
            all.extend([from.as_str().into(), millis(claim.fence_memory), whole_seconds(restart_delay)]);
            if restart_delay.is_zero() {
                witness.testify_to_queues(all);
            } else {
                witness.testify(all);
            }
        };
        self.run(options, &DOWNGRADE, 5, arguments, |reply, _| reply::downgraded(reply))
    }
}
