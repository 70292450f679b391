//! A node: one independent place that stores keys. What it must be able to do, and nothing about how.

use std::{fmt, future::Future, pin::Pin, sync::Weak, time::Duration};

use leasehold_protocol::{
    failure::Failure,
    fence::Fence,
    holder::Holder,
    key::Key,
    message::{
        AcquireRequest, Guarding, Owned, Poll, Polled, ReleaseMode, Renewal, Repaired, Route, ServerIdentity, Vote,
    },
    token::Token,
};

use crate::capabilities::Capabilities;

pub(crate) mod memory;
pub(crate) mod redis;

/// A node's answer, on its way. It runs to its end or its limit by itself only while it is polled; dropping it leaves
/// the outcome unknown.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Who is told what a node notices by itself. Nothing of it is a verdict: it only says where to look.
pub(crate) trait NodeListener: Send + Sync + 'static {
    /// Something was done to a watched key.
    fn changed(&self, key: &str);

    /// Whether this lock was acquired here, and was not let go of.
    fn holds(&self, key: &str) -> bool;

    /// Whether this is what a lock that is held here should look like: the value, and how long the key will live.
    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool;

    /// What was watched is not any more, or was not for a while: anything may have happened.
    fn missed(&self);

    /// Whether there is anything left to listen for.
    fn is_needed(&self) -> bool;

    /// The lock is this fair waiter's, for its grant, once it knocks.
    fn granted(&self, key: &str, token: &str);

    /// This fair waiter comes next, and should look after this time: the one before it may be stopped.
    fn next(&self, token: &str, within: Duration);

    /// Whether anybody waits in a fair queue.
    fn has_waiters(&self) -> bool;

    /// Whether a waiter with this token is there to be told.
    fn has_waiter(&self, token: &str) -> bool;
}

/// Who waits for a lock, in order: tokens, and how long each has waited.
pub(crate) type Line = Vec<(Token, Duration)>;

/// A part of what a node has, and the cursor of the next part: zero at the end.
pub(crate) type Page = (u64, Vec<String>);

/// Every step is atomic on the node and idempotent for its token (rule 5). `limit` bounds the wait for the answer;
/// what the limit cuts off has an unknown outcome.
pub(crate) trait Node: fmt::Debug + Send + Sync + 'static {
    /// The route that fits the caller's place: its own runtime's connection if there is one.
    fn route(&self) -> Route;

    /// Who hears of changes; set once, before the first request.
    fn listen(&self, listener: Weak<dyn NodeListener>);

    /// How many keys may be watched at a time; zero when the node has turned watching down.
    fn tracking_capacity(&self) -> usize;

    /// Where it is, without who we are there.
    fn address(&self) -> &str;

    fn acquire(&self, route: Route, request: &AcquireRequest, limit: Duration) -> Answer<Vote>;

    /// Lifts the lock's fence to at least this one, if the lock is still the token's (rule 10).
    fn raise(&self, route: Route, key: &Key, token: &Token, fence: Fence, limit: Duration) -> Answer<Owned>;

    /// Brings a key back that the node has lost, with its fence as the floor, unless it is somebody else's by now or the
    /// node was started too short a time ago.
    fn repair(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, limit: Duration) -> Answer<Repaired>;

    /// Whether it is there, and who it is.
    fn probe(&self, limit: Duration) -> Answer<ServerIdentity>;

    /// One verdict for each, in order; an inner error means "cannot tell".
    fn renew(&self, route: Route, batch: &[Renewal], limit: Duration) -> Answer<Vec<Result<Owned, Failure>>>;

    /// Compare and delete (rule 8).
    fn release(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned>;

    /// Compare and set: the key stays for `keep` with the value `stays`.
    fn keep(
        &self,
        route: Route,
        key: &Key,
        token: &Token,
        keep: Duration,
        stays: &Token,
        limit: Duration,
    ) -> Answer<Owned>;

    /// Replayed, it keeps its place.
    fn poll(&self, route: Route, poll: &Poll, limit: Duration) -> Answer<Polled>;

    /// Out of the queue; and if the lock is this token's, it passes on.
    fn leave(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned>;

    /// The first so many of the queue.
    fn line(&self, key: &Key, most: usize, limit: Duration) -> Answer<Line>;

    fn holder(&self, key: &Key, limit: Duration) -> Answer<Option<Holder>>;

    /// A page of the locks that tokens of ours hold, of those that match a pattern of Redis' kind, from a cursor on: zero at
    /// first. In no order; one that comes or goes meanwhile may be missing, and one that stays may come twice.
    fn held(&self, pattern: &str, cursor: u64, limit: Duration) -> Answer<Page>;

    /// Deletes the key whoever holds it, if it is a string. Whether there was one.
    fn force_release(&self, key: &Key, limit: Duration) -> Answer<bool>;

    /// Writes if `fence` is not older than what the key has seen.
    fn guarded_set(&self, key: &Key, value: &[u8], fence: Fence, limit: Duration) -> Answer<Guarding>;

    fn guarded_get(&self, key: &Key, limit: Duration) -> Answer<Option<(Vec<u8>, Fence)>>;

    /// What it can do, and is willing to tell.
    fn capabilities(&self, limit: Duration) -> Answer<Capabilities>;

    /// The route's connection looks dead: make a new one, in the background.
    fn reconnect(&self, route: Route);

    /// Closes the connections. Ends within `limit`.
    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Asks a node to let go of a key as the holder wants it, token-checked and idempotent either way.
pub(crate) fn part(
    node: &dyn Node,
    parting: &ReleaseMode,
    route: Route,
    key: &Key,
    token: &Token,
    limit: Duration,
) -> Answer<Owned> {
    match parting {
        ReleaseMode::Delete => node.release(route, key, token, limit),
        ReleaseMode::Leave => node.leave(route, key, token, limit),
        ReleaseMode::Retain(keep, stays) => node.keep(route, key, token, *keep, stays, limit),
    }
}

/// The answer to a batch of one.
pub(crate) fn only(answers: Vec<Result<Owned, Failure>>) -> Result<Owned, Failure> {
    answers.into_iter().next().unwrap_or_else(|| Err(Failure::unknown("the server's answer is empty")))
}
