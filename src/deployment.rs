//! The servers behind a `Leases`, as far as they tell.

use std::{fmt, time::Duration};

use leasehold_protocol::rounded::Rounded;

/// The servers behind a [`Leases`](crate::Leases), and how they are run: part of its
/// [`Capabilities`](crate::Capabilities). What they keep to themselves is `None`.
///
/// With the feature `serde` it is written as `"servers"`, or as `{"cluster":{…}}` and `{"sentinel":{…}}`, with times in
/// seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Deployment {
    /// One server, or those of a quorum: they know nothing of each other.
    #[default]
    Servers,
    /// A cluster.
    Cluster(ClusterFacts),
    /// A primary that Sentinels watch.
    Sentinel(SentinelFacts),
}

/// How a cluster is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ClusterFacts {
    /// How many primaries have slots.
    pub primaries: usize,
    /// How many of the 16,384 slots a primary has.
    pub slots: u16,
    /// The slots that are being moved key by key.
    pub moving: Vec<u16>,
    /// `cluster-require-full-coverage`: whether a slot without a primary stops all of it.
    pub requires_all_slots: Option<bool>,
    /// `cluster-node-timeout`: after so long without a sign of life a primary is taken for dead.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds"))]
    pub node_timeout: Option<Duration>,
}

/// How a primary is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SentinelFacts {
    /// The name that Sentinels have for it.
    pub service: String,
    /// Each Sentinel's address, and the primary that it names; `None` if it does not answer.
    pub names: Vec<(String, Option<String>)>,
    /// Why a failover would not happen now, in the words of a Sentinel: `SENTINEL CKQUORUM`.
    pub no_quorum: Option<String>,
}

/// A replica: see [`Leases::replicas`](crate::Leases::replicas).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReplicaFacts {
    /// The address of its primary, as [`NodeStatus::address`](crate::NodeStatus::address) has it.
    pub primary: String,
    /// Its address, as its primary names it.
    pub address: String,
    /// Whether it has copied all that was there, and follows.
    pub is_online: bool,
    /// How many bytes of what its primary has written it has not acknowledged.
    pub behind_bytes: Option<u64>,
    /// How long ago it acknowledged anything: as a rule a second, or less.
    #[cfg_attr(feature = "serde", serde(serialize_with = "seconds"))]
    pub acknowledged_ago: Option<Duration>,
    /// Its own `maxmemory-policy`, which counts once it takes over.
    pub eviction: Option<String>,
    /// By how many microseconds its clock is ahead of its primary's. Locks that it has end by its own clock, and so do fences
    /// grow.
    pub clock_ahead_micros: Option<i64>,
    /// Why it could not be asked for these two.
    pub unreachable: Option<String>,
}

#[cfg(feature = "serde")]
#[allow(clippy::ref_option, reason = "serde calls it so")]
fn seconds<S: serde::Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&span.map(|span| span.as_secs_f64()), serializer)
}

/// In one line.
impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers => f.write_str("servers that know nothing of each other"),
            Self::Cluster(ClusterFacts { primaries, slots, moving, node_timeout, .. }) => {
                write!(
                    f,
                    "a cluster of {primaries} primaries with {slots} slots, {} of them being moved",
                    moving.len()
                )?;
                node_timeout.map_or(Ok(()), |timeout| write!(f, ", node time-out {}", Rounded(timeout)))
            }
            Self::Sentinel(SentinelFacts { service, names, .. }) => {
                let answering = names.iter().filter(|(_, named)| named.is_some()).count();
                write!(f, "{service:?}, watched by {} Sentinels, of which {answering} answer", names.len())
            }
        }
    }
}
