//! A node: one independent place that stores keys. This defines what a node must be able to do, but not how.

use std::{
    fmt,
    future::{Future, pending},
    pin::Pin,
    sync::Weak,
    time::Duration,
};

use leasehold_protocol::{
    failure::Failure,
    key::Key,
    message::{Reply, Request, Route, Shard},
    slot::Keys,
    token::Token,
};

pub(crate) use self::{
    address::NodeAddress,
    seat::{Seat, Table},
};
use crate::survey::{Inquiry, ServerSaid};

mod address;
pub(crate) mod memory;
pub(crate) mod redis;
mod seat;

/// A node's pending answer. It runs to its end or its limit only while it is polled; dropping it leaves the outcome
/// unknown.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A listener for what a node notices by itself. Its notifications are not verdicts: they only say what to check.
pub(crate) trait NodeListener: Send + Sync + 'static {
    /// A tracked key was changed.
    fn changed(&self, key: &str);

    /// Whether this lock was acquired here and not let go.
    fn holds(&self, key: &str) -> bool;

    /// Whether the key of a lock that is held here should have this value and this remaining life.
    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool;

    /// A replica has taken over from the server that had these keys: it may lack the last writes. The keys are also
    /// reported as [missed](Self::missed).
    fn taken_over(&self, _keys: &Keys) {}

    /// Tracking was interrupted: each of these keys may have changed.
    fn missed(&self, keys: &Keys);

    /// Whether there is anything left to listen for.
    fn is_needed(&self) -> bool;

    /// The lock is granted to this fair waiter: it has the lock, for its grant, once it polls.
    fn granted(&self, key: &str, token: &str);

    /// This fair waiter is next, and should check after this time: the one before it may be stopped.
    fn next(&self, token: &str, within: Duration);

    /// Whether there are waiters in a fair queue.
    fn has_waiters(&self) -> bool;

    /// Whether a waiter with this token is here to be notified.
    fn has_waiter(&self, token: &str) -> bool;
}

/// A shard of a node, for people.
#[derive(Debug)]
pub(crate) struct ShardInfo {
    pub(crate) shard: Shard,
    /// The address of its primary, without our credentials.
    pub(crate) address: String,
    /// The number of its slots, in a cluster, and of its replicas.
    pub(crate) slots: Option<u16>,
    pub(crate) replicas: Option<usize>,
}

impl ShardInfo {
    /// The only shard of a node at this address.
    pub(crate) fn only(address: &str) -> Self {
        Self { shard: Shard::FIRST, address: address.into(), slots: None, replicas: None }
    }
}

/// One request in, one answer out; and what concerns the connections.
pub(crate) trait Node: fmt::Debug + Send + Sync + 'static {
    /// The route that fits the caller: the connection of its own runtime, if there is one.
    fn route(&self) -> Route;

    /// Sets the listener for changes; once, before the first request.
    fn listen(&self, listener: Weak<dyn NodeListener>);

    /// How many keys may be tracked at a time; zero when the node refuses that, or its table is full.
    fn tracking_capacity(&self) -> usize;

    /// Its shards, if it has any.
    fn sharded(&self) -> Option<&dyn Sharded> {
        None
    }

    /// Its connections. A node without any is in this process, and its answers are ready at the first poll.
    fn links(&self) -> Option<&dyn Links> {
        None
    }

    /// Sends a request. `limit` bounds the wait for the answer; a request that it cuts off has an unknown outcome. The
    /// request is sent at the first poll of the answer, if not before.
    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply>;

    /// The report of a shard's server about itself.
    fn survey(&self, shard: Shard, inquiry: Inquiry) -> Answer<ServerSaid>;

    /// Closes the connections. Ends within `limit`.
    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// The gate through which tests control it, if it is in memory.
    #[cfg(feature = "testing")]
    fn gate(&self) -> Option<&memory::Gate> {
        None
    }
}

/// The shards of a node that has several.
pub(crate) trait Sharded: Send + Sync {
    /// The shard that has this key now.
    fn shard(&self, key: &Key) -> Shard;

    /// All current shards.
    fn shards(&self) -> Vec<ShardInfo>;

    /// The current address of a shard's server, for people; read for thousands of leases at once.
    fn address_of(&self, shard: Shard) -> String;
}

/// The connections of a node outside of this process, and the requests that wait for them.
pub(crate) trait Links: Send + Sync {
    /// Withdraws this token's acquire. Returns whether it was waiting here for its turn, and so is never sent.
    fn withdraw(&self, _token: &Token) -> bool {
        false
    }

    /// Notes that a majority has decided without the answer to this token's request. It is not awaited now, so other
    /// requests must not wait for it.
    fn set_aside(&self, _token: &Token) {}

    /// Why there is no connection for renewals to a shard, if there is none.
    fn trouble(&self, _shard: Shard) -> Option<String> {
        None
    }

    /// Completes once the route has no connection to a shard.
    fn unlinked(&self, _route: Route, _shard: Shard) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(pending())
    }

    /// Replaces the route's connection to a shard, which looks dead, in the background.
    fn reconnect(&self, _route: Route, _shard: Shard) {}
}

impl dyn Node {
    /// Sends a request, and reads the reply that belongs to it.
    pub(crate) fn ask<T>(
        &self,
        route: Route,
        request: Request,
        limit: Duration,
    ) -> impl Future<Output = Result<T, Failure>> + Send + use<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        let answer = self.send(route, request, limit);
        async move { T::try_from(answer.await?) }
    }
}
