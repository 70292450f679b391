//! The state of the nodes, for people and for monitoring programs.

use std::time::Duration;

/// The state of a node, as far as its answers have shown it: see
/// [`Client::nodes`](https://docs.rs/leasehold/latest/leasehold/struct.Client.html#method.nodes).
///
/// With the feature `serde` its fields are `address`, `state`, `last_answer_seconds`, `clock_offset_micros`, `slots`
/// and `replicas`; the last four are `null` if they are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NodeStatus {
    address: String,
    state: NodeState,
    #[cfg_attr(feature = "serde", serde(rename = "last_answer_seconds", serialize_with = "seconds::of_some"))]
    last_answer: Option<Duration>,
    clock_offset_micros: Option<i64>,
    slots: Option<u16>,
    replicas: Option<usize>,
}

/// Whether a node serves and votes at the moment.
///
/// With the feature `serde` it is `"unknown"` or `"up"`, or one of these with its details:
/// `{"recovering":{"remaining_seconds":12.5}}`, `{"refused":"…"}`, `{"unreachable":"…"}`, `{"same_server":"…"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NodeState {
    /// It has not answered yet.
    Unknown,
    /// It answers.
    Up,
    /// It answers, but gives no vote: it was started recently, or its clock was set back, and it may have forgotten
    /// leases.
    Recovering {
        /// The time until it votes.
        #[cfg_attr(feature = "serde", serde(rename = "remaining_seconds", serialize_with = "seconds::of"))]
        remaining: Duration,
    },
    /// It refuses, in these words.
    Refused(String),
    /// It gave no answer, for this reason. It is asked again in the background.
    Unreachable(String),
    /// It is the same server as the node of this quorum at this address, so its vote does not count.
    SameServer(String),
}

impl NodeStatus {
    /// The node's address, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the node serves and votes.
    #[must_use]
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// How long ago the node last answered.
    #[must_use]
    pub fn last_answer(&self) -> Option<Duration> {
        self.last_answer
    }

    /// By how many microseconds its clock is ahead of this machine's wall clock (negative: behind), as seen in its last
    /// vote; exact to the time that the answer took. `None` before its first vote, and where no votes are asked for.
    #[must_use]
    pub fn clock_offset_micros(&self) -> Option<i64> {
        self.clock_offset_micros
    }

    /// How many of a cluster's slots it has; `None` if it is not part of a cluster.
    #[must_use]
    pub fn slots(&self) -> Option<u16> {
        self.slots
    }

    /// How many replicas of it its cluster knows; `None` if it is not part of a cluster.
    #[must_use]
    pub fn replicas(&self) -> Option<usize> {
        self.replicas
    }
}

/// The status of a part of a cluster. Not a method, for the same reason as [`of`].
pub fn of_shard(status: NodeStatus, slots: Option<u16>, replicas: Option<usize>) -> NodeStatus {
    NodeStatus { slots, replicas, ..status }
}

/// Builds a status of these parts. Not a method, because users would see it too.
pub fn of(
    address: String,
    state: NodeState,
    last_answer: Option<Duration>,
    clock_offset_micros: Option<i64>,
) -> NodeStatus {
    NodeStatus { address, state, last_answer, clock_offset_micros, slots: None, replicas: None }
}

#[cfg(feature = "serde")]
mod seconds {
    use std::time::Duration;

    use serde::{Serialize as _, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    pub(super) fn of<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        span.as_secs_f64().serialize(serializer)
    }

    #[allow(clippy::ref_option, reason = "as serde calls it")]
    pub(super) fn of_some<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        span.map(|span| span.as_secs_f64()).serialize(serializer)
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn serde_writes_every_state() {
        let json = |state: &NodeState| serde_json::to_string(state).unwrap();
        let recovering = NodeState::Recovering { remaining: Duration::from_millis(12_500) };
        for (state, expected) in [
            (NodeState::Unknown, r#""unknown""#),
            (NodeState::Up, r#""up""#),
            (recovering, r#"{"recovering":{"remaining_seconds":12.5}}"#),
            (NodeState::Refused("no".into()), r#"{"refused":"no"}"#),
            (NodeState::Unreachable("gone".into()), r#"{"unreachable":"gone"}"#),
            (NodeState::SameServer("a:1".into()), r#"{"same_server":"a:1"}"#),
        ] {
            assert_eq!(json(&state), expected);
        }
        let status = of("a:1".into(), NodeState::Up, Some(Duration::from_millis(250)), None);
        let expected = r#"{"address":"a:1","state":"up","last_answer_seconds":0.25,"clock_offset_micros":null,"slots":null,"replicas":null}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), expected);
    }
}
