//! Renewals: one script for a batch of leases, or a pipeline with a script for each, which a cluster's server requires
//! for keys in many slots.

use std::sync::Arc;

use leasehold_protocol::{
    failure::Failure,
    message::{Claim, Owned, Reply, Route, only},
};

use super::{
    Connections,
    replicas::Patience,
    request::{SendOptions, millis, number, value},
};
use crate::node::{
    Answer,
    redis::{
        reply,
        script::{RENEW, RENEW_SHARES, Script},
        wire::Value,
    },
};

/// The script of a batch of leases, all held alone or all shared, and the route that it takes.
struct Renewal {
    script: &'static Script,
    /// How many keys each lease has.
    keys: usize,
    arguments: fn(&[Claim], bool, &mut Vec<Value>),
    options: SendOptions,
    /// Whether the server tracks the keys that the script reads.
    watches: bool,
    /// Whether the locks' keys are read behind it, to have them tracked. Up to Redis 7.0 a server tracks all keys of a
    /// script, and the keys of the sharers change with every renewal.
    looks: bool,
}

impl Renewal {
    fn of(first: Option<&Claim>, options: SendOptions) -> Self {
        let is_tracked = options.route == Route::Tracked;
        if first.is_some_and(|claim| claim.mode.is_shared()) {
            let options = if is_tracked { SendOptions { route: Route::Keeper, ..options } } else { options };
            let (script, arguments) = (&RENEW_SHARES, shares as fn(&[Claim], bool, &mut Vec<Value>));
            Self { script, keys: 2, arguments, options, watches: false, looks: is_tracked }
        } else {
            Self { script: &RENEW, keys: 1, arguments: alone, options, watches: is_tracked, looks: false }
        }
    }
}

impl Connections {
    pub(super) fn renew(&self, options: SendOptions, batch: Arc<[Claim]>) -> Answer<Reply> {
        let Renewal { script, keys, arguments, options, watches, looks } = Renewal::of(batch.first(), options);
        let (connection, keys, claims) = (self.connection(options.route), keys * batch.len(), batch.clone());
        let wanted = connection.endpoint.wanted;
        let arguments = move |all: &mut Vec<Value>| arguments(&batch, watches, all);
        let renewal: Answer<Reply> = self.run(options, script, keys, arguments, move |reply, _| {
            if reply::is_of_no_primary(reply) {
                connection.find_primary();
            }
            reply::renewed(reply, wanted)
        });
        if !looks {
            return renewal;
        }
        let tracking = self.subscription.clone();
        Box::pin(async move {
            let answer = renewal.await?;
            tracking.look_at(&claims.iter().map(|claim| claim.key.lock()).collect());
            Ok(answer)
        })
    }

    /// Renews each lease. An error applies to all of them.
    pub(crate) async fn renew_each(
        &self,
        options: SendOptions,
        claims: &[&Claim],
    ) -> Result<Vec<Result<Owned, Failure>>, Failure> {
        let options = self.passable(options);
        let Renewal { script, keys, arguments, options, watches, looks } =
            Renewal::of(claims.first().copied(), options);
        let (connection, before) = (self.connection(options.route), self.before(options)());
        let arguments = |claim: &&Claim, all: &mut Vec<Value>| {
            arguments(std::slice::from_ref(*claim), watches, all);
            keys
        };
        let began = connection.now();
        let (replies, link) = connection.run_each(script, claims, arguments, options.limit, before).await?;
        if looks {
            self.subscription.look_at(&claims.iter().map(|claim| claim.key.lock()).collect());
        }
        let wanted = connection.endpoint.wanted;
        let read = |reply: &Value| reply::renewed(reply, wanted).ok_or_else(reply::unreadable).and_then(only);
        let renewed: Vec<_> = replies.into_iter().map(|reply| reply.and_then(|reply| read(&reply))).collect();
        let shortest = claims.iter().map(|claim| claim.ttl).min();
        let (Some(replicas), Some(ttl)) = (self.replicas(options.route), shortest) else { return Ok(renewed) };
        let patience =
            Patience::of_renewals(ttl, options.limit).in_rest((began + options.limit).since(connection.now()));
        match replicas.confirmed(link, patience, Reply::Renewed(renewed)).await? {
            Reply::Renewed(renewed) => Ok(renewed),
            _ => Err(reply::unreadable()),
        }
    }
}

/// The keys and arguments of `renew.lua`.
fn alone(batch: &[Claim], watches: bool, all: &mut Vec<Value>) {
    all.extend(batch.iter().map(|claim| claim.key.lock().into()));
    all.extend(batch.iter().flat_map(|claim| [value(claim), millis(claim.life)]));
    if watches {
        all.push("watch".into());
    }
}

/// The keys and arguments of `renew_shares.lua`.
fn shares(batch: &[Claim], _: bool, all: &mut Vec<Value>) {
    all.extend(batch.iter().map(|claim| claim.key.lock().into()));
    all.extend(batch.iter().map(|claim| claim.key.holders().into()));
    all.extend(batch.iter().map(|claim| claim.token.as_str().into()));
    all.extend(batch.iter().map(|claim| millis(claim.life)));
    all.extend(batch.iter().map(|claim| claim.fence.map_or_else(|| "".into(), number)));
}
