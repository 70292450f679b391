//! The reports of servers about themselves, for `leasehold doctor` and `leasehold acl`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A question about the rights of a user.
#[derive(Debug, Clone)]
pub struct RightsQuestion {
    /// The user's name.
    pub user: String,
    /// Calls that the user may want to make, each a command and its arguments.
    pub calls: Vec<Vec<String>>,
}

/// The questions of a survey to each server.
#[derive(Debug, Clone)]
pub(crate) struct Inquiry {
    /// The time for each question.
    pub(crate) limit: Duration,
    /// A question that only an administrator may ask.
    pub(crate) rights: Option<Arc<RightsQuestion>>,
}

/// The report of a server about itself.
#[derive(Debug, Clone, Default)]
pub struct ServerSaid {
    /// Its `INFO`.
    pub info: Info,
    /// The settings that matter to locks, as far as it reports them.
    pub settings: BTreeMap<&'static str, String>,
    /// How many bytes the floors of fences take, approximately, if our user may ask for that.
    pub floors: Option<u64>,
    /// Whether it notifies of changes, or why it does not. `None` before it has reported that.
    pub notifications: Option<Result<(), String>>,
    /// Whether it notifies fair waiters of their turn.
    pub notifies_waiters: bool,
    /// The most leases and awaited names of a `Client` that it tracks: half of its table, or zero while that is nearly
    /// full. A name counts twice, and four times for fair waiters.
    pub tracked_keys: usize,
    /// Its `CLUSTER NODES`, if it is part of a cluster.
    pub cluster_nodes: Option<String>,
    /// The report of Sentinels about it, if they watch it.
    pub sentinels: Option<SentinelsSaid>,
    /// Its replicas.
    pub replicas: Vec<ReplicaSaid>,
    /// Its answer to a [`RightsQuestion`], if it was asked one: why it would refuse each call, `None` for a call that it
    /// would allow; or why it does not tell.
    pub refusals: Option<Result<Vec<Option<String>>, String>>,
}

/// A server's `INFO`.
#[derive(Debug, Clone, Default)]
pub struct Info {
    /// Empty if our user may not read it.
    pub text: String,
    /// The time half way through the request, by a clock of this process.
    pub at: Duration,
}

/// The report of Sentinels about a primary.
#[derive(Debug, Clone, Default)]
pub struct SentinelsSaid {
    /// The name that they have for it.
    pub service: String,
    /// Each Sentinel's address, and the primary that it names; `None` if it does not answer.
    pub names: Vec<(String, Option<String>)>,
    /// Why a failover would not happen now: `SENTINEL CKQUORUM`.
    pub no_quorum: Option<String>,
}

/// A replica, as its primary and the replica itself report it.
#[derive(Debug, Clone)]
pub struct ReplicaSaid {
    /// Its address, as its primary names it.
    pub address: String,
    /// The report of its primary: `ip=10.0.0.2,port=6379,state=online,offset=1234,lag=1`.
    pub told: String,
    /// Its own `INFO`, or why it could not be asked.
    pub info: Result<Info, String>,
}
