//! The scripts of requests about shares, their keys and arguments.

use std::{sync::Arc, time::Duration};

use fred::types::Value;
use leasehold_protocol::{
    key::Key,
    message::{Claim, Reply, Route},
    token::Token,
};

use super::{
    Connections,
    pack::packed,
    request::{Via, millis, number, queue_keys},
};
use crate::node::{
    Answer,
    redis::{
        reply,
        script::{DOWNGRADE, KEEP_SHARE, PART, RENEW_SHARES, SHARERS},
    },
};

impl Connections {
    pub(super) fn part(&self, via: Via, claim: Claim) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.push(claim.token.as_str().into());
            witness.testify_to_queues(all);
        };
        self.run(via, &PART, 5, arguments, |reply, _| reply::released(reply))
    }

    pub(super) fn keep_share(&self, via: Via, claim: Claim, keep: Duration, stays: Token) -> Answer<Reply> {
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.extend([claim.token.as_str().into(), millis(keep), stays.as_str().into()]);
        };
        self.run(via, &KEEP_SHARE, 5, arguments, |reply, _| reply::released(reply))
    }

    pub(super) fn sharers(&self, via: Via, key: Key, most: usize) -> Answer<Reply> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let arguments = move |all: &mut Vec<Value>| all.extend([key.lock().into(), key.holders().into(), most.into()]);
        self.run(via, &SHARERS, 2, arguments, |reply, _| reply::sharers(reply))
    }

    /// Never tracked: up to Redis 7.0 that tracks all keys of a script, and these change with every renewal. Where the
    /// locks' own keys are to be tracked, they are looked at behind it.
    pub(super) fn renew_shares(&self, via: Via, batch: Arc<[Claim]>) -> Answer<Reply> {
        let (via, tracks) = Self::untracked(via);
        let (keys, connection, claims) = (2 * batch.len(), self.connection(via.route), batch.clone());
        let arguments = move |all: &mut Vec<Value>| renewals_of_shares(&batch, all);
        let renewal: Answer<Reply> = self.run(via, &RENEW_SHARES, keys, arguments, move |reply, _| {
            if reply::is_of_no_primary(reply) {
                connection.find_primary();
            }
            reply::renewed(reply)
        });
        if !tracks {
            return renewal;
        }
        let tracking = self.subscription.clone();
        Box::pin(async move {
            let answer = renewal.await?;
            tracking.look_at(&claims.iter().map(|claim| claim.key.lock()).collect());
            Ok(answer)
        })
    }

    /// The way of a request that is not to be tracked, and whether it was to be.
    pub(super) fn untracked(via: Via) -> (Via, bool) {
        if via.route == Route::Tracked { (Via { route: Route::Keeper, ..via }, true) } else { (via, false) }
    }

    pub(super) fn downgrade(&self, via: Via, claim: Claim, from: Token) -> Answer<Reply> {
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(packed(queue_keys(&claim.key)));
            all.extend([claim.token.as_str().into(), millis(claim.life)]);
            all.extend([from.as_str().into(), millis(claim.fence_memory)]);
            witness.testify_to_queues(all);
        };
        self.run(via, &DOWNGRADE, 5, arguments, |reply, _| reply::downgraded(reply))
    }
}

/// The keys and arguments of `renew_shares.lua`.
pub(super) fn renewals_of_shares(batch: &[Claim], all: &mut Vec<Value>) {
    all.extend(batch.iter().map(|claim| claim.key.lock().into()));
    all.extend(batch.iter().map(|claim| claim.key.holders().into()));
    all.extend(batch.iter().map(|claim| claim.token.as_str().into()));
    all.extend(batch.iter().map(|claim| millis(claim.life)));
    all.extend(batch.iter().map(|claim| claim.fence.map_or_else(|| "".into(), number)));
}
