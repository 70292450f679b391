//! How the nodes are: for people, and for programs that watch over them.

use std::time::Duration;

/// How a node is, as far as its answers have shown: see [`Leases::nodes`](https://docs.rs/leasehold/latest/leasehold/struct.Leases.html#method.nodes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    address: String,
    state: NodeState,
    last_answer: Option<Duration>,
    clock_offset_micros: Option<i64>,
}

/// What a node is good for at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// It has not been heard of yet.
    Unknown,
    /// It answers.
    Up,
    /// It answers, but gives no vote: it was started lately, or its clock was set back, and it may have forgotten leases.
    Recovering {
        /// How long that lasts.
        remaining: Duration,
    },
    /// It answers no, in these words.
    Refused(String),
    /// It gave no answer, for this reason. It is asked again, in the background.
    Unreachable(String),
    /// It is the same server as another node of this quorum, whose address this is, so its vote does not count.
    SameServer(String),
}

impl NodeStatus {
    /// Where it is, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What it is good for.
    #[must_use]
    pub fn state(&self) -> &NodeState {
        &self.state
    }

    /// How long ago it answered for the last time.
    #[must_use]
    pub fn last_answer(&self) -> Option<Duration> {
        self.last_answer
    }

    /// By how many microseconds its clock is ahead of this machine's wall clock (negative: behind), as seen in its last
    /// vote; exact to the time that the answer took. `None` before, and where no votes are asked for.
    #[must_use]
    pub fn clock_offset_micros(&self) -> Option<i64> {
        self.clock_offset_micros
    }
}

/// A status of these parts. It is none of a user's business, and so no method.
pub fn of(
    address: String,
    state: NodeState,
    last_answer: Option<Duration>,
    clock_offset_micros: Option<i64>,
) -> NodeStatus {
    NodeStatus { address, state, last_answer, clock_offset_micros }
}
