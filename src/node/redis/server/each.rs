//! Renewals of one key each, in one pipeline: what a server of a cluster takes for keys in many slots.

use fred::types::Value;
use leasehold_protocol::{
    failure::Failure,
    message::{Claim, Owned, Reply, Route, only},
};

use super::{
    Connections,
    replicas::Patience,
    request::{Via, renewals},
    shares::renewals_of_shares,
};
use crate::node::redis::{
    reply,
    script::{RENEW, RENEW_SHARES},
};

impl Connections {
    /// The outcome of each. An error is that of all.
    pub(crate) async fn renew_each(&self, via: Via, claims: &[&Claim]) -> Result<Vec<Result<Owned, Failure>>, Failure> {
        let is_shared = claims.first().is_some_and(|claim| claim.mode.is_shared());
        let (script, keys) = if is_shared { (&RENEW_SHARES, 2) } else { (&RENEW, 1) };
        let (via, tracks) = if is_shared { Self::untracked(via) } else { (via, false) };
        let (connection, before, watch) = (self.connection(via.route), self.before(via)(), via.route == Route::Tracked);
        let arguments = |claim: &&Claim, all: &mut Vec<Value>| {
            let claim = std::slice::from_ref(*claim);
            if is_shared {
                renewals_of_shares(claim, all);
            } else {
                renewals(claim, watch, all);
            }
            keys
        };
        let began = connection.now();
        let (replies, link) = connection.run_each(script, claims, arguments, via.limit, before).await?;
        if tracks {
            self.subscription.look_at(&claims.iter().map(|claim| claim.key.lock()).collect());
        }
        let read = |reply: &Value| reply::renewed(reply).ok_or_else(reply::unreadable).and_then(only);
        let renewed: Vec<_> = replies.into_iter().map(|reply| reply.and_then(|reply| read(&reply))).collect();
        let shortest = claims.iter().map(|claim| claim.ttl).min();
        let (Some(replicas), Some(ttl)) = (self.replicas(via.route), shortest) else { return Ok(renewed) };
        let patience = Patience::of_renewals(ttl, via.limit).in_rest((began + via.limit).since(connection.now()));
        match replicas.confirmed(link, patience, Reply::Renewed(renewed)).await? {
            Reply::Renewed(renewed) => Ok(renewed),
            _ => Err(reply::unreadable()),
        }
    }
}
