//! What a node is asked, and what it answers.

use std::time::Duration;

use crate::{fence::Fence, holder::Holder, key::Key, token::Token};

/// Which of a node's connections a request takes. Two requests on one route arrive in the order in which they were
/// handed over; across routes nothing is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// The connection of the runtime on which the node was made.
    Home,
    /// The keeper's connection, which works from everywhere.
    Keeper,
    /// The same; and the node, if it can, notifies us once when a key changes that the request has found held, whoever
    /// changes it.
    Tracked,
}

/// What an acquire asks of a node.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// Of this lock.
    pub key: Key,
    /// For this token.
    pub token: Token,
    /// For so long.
    pub ttl: Duration,
    /// What it takes to be a vote; where one node decides and nobody asked for a restart delay, nothing.
    pub voting: Option<Voting>,
}

/// Under which conditions a node votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voting {
    /// A node that has been up for less may have forgotten a lease, and gives no vote (deployments: a server that forgot stays
    /// out).
    pub restart_delay: Duration,
    /// The fence to draw, if it is large enough: where a majority draws the same, no floor has to be raised.
    pub proposal: Option<Fence>,
}

/// What a node answered to an acquire.
#[derive(Debug, Clone)]
pub struct Vote {
    /// What it came to.
    pub acquired: Acquired,
    /// Who voted, and when by its own clock. There if the request asked for a vote, and the node knows.
    pub sign: Option<ServerIdentity>,
    /// Whether what was asked after the request on its route may have come before it.
    pub overtaken: bool,
}

/// What an acquire found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The lock is the token's, with this fence.
    Granted(Fence),
    /// Somebody else has it.
    Busy {
        /// Who.
        holder: Holder,
        /// Whether the node will tell when the key changes.
        tracked: bool,
    },
    /// It was started too short a time ago to vote, and will for the first time after this one.
    Recovering(Duration),
}

/// A server's own account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its clock, in microseconds since 1970.
    pub time: Option<u64>,
    /// What tells this run of this server from every other.
    pub run_id: Option<Box<str>>,
    /// Whether it is part of a cluster, or watches over others: then it may forget without a restart.
    pub is_alone: bool,
}

/// What bringing a lost key back came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repaired {
    /// The node has the key again.
    Done,
    /// Somebody else has it.
    Taken,
    /// Not before this time is over: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// One lease to be renewed; renewals travel in batches.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// Of this lock.
    pub key: Key,
    /// Held with this token.
    pub token: Token,
    /// For so long from now on.
    pub ttl: Duration,
}

/// What a renewal or a release found under the key: ours (and it was done), or not.
pub type Owned = Result<(), Denial>;

/// What a guarded write found.
#[derive(Debug)]
pub enum Guarding {
    /// It was written.
    Written,
    /// A later holder has written.
    Stale {
        /// With this fence.
        seen: Fence,
    },
}

/// A node's definite "not yours".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The key is gone.
    Gone,
    /// The key holds something else.
    Taken,
}

/// A fair waiter's knock: it enters the queue, says that it still waits, takes the lock when it is its turn, and
/// confirms a grant.
#[derive(Debug, Clone)]
pub struct Poll {
    /// For this lock.
    pub key: Key,
    /// This waiter's, and the holder's once it is granted.
    pub token: Token,
    /// For how long the lock is to be held.
    pub ttl: Duration,
    /// That of an earlier answer, which gives it its place back.
    pub ticket: Option<u64>,
    /// How long the lock may wait for its confirmation.
    pub grant: Duration,
    /// How long a waiter that cannot be called counts as alive, and half of what the queue outlives its last knock by.
    pub window: Duration,
    /// Or only look: a try never enters, and never overtakes.
    pub enter: bool,
    /// A node that has been up for less may have forgotten a lease, and grants this waiter nothing, whoever lets go of the
    /// lock.
    pub restart_delay: Duration,
}

/// What a knock found.
#[derive(Debug)]
pub enum Polled {
    /// The lock is the token's, for its TTL.
    Granted(Fence),
    /// It is not the token's turn.
    Waits {
        /// Who has the lock.
        holder: Holder,
        /// Nobody holds it, but the node was started too short a time ago to grant it, and will after this one.
        recovers_for: Option<Duration>,
        /// `None` for who only looked.
        ticket: Option<u64>,
        /// How many wait before it.
        ahead: u32,
        /// Whether it was not in the queue before.
        entered: bool,
        /// Whether the node will tell when the lock's key changes.
        tracked: bool,
        /// Whether the node can call this waiter when it is its turn.
        called: bool,
    },
}

/// What a release makes of the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// The key goes.
    Delete,
    /// Out of the queue too.
    Leave,
    /// The key stays for so long, under a value of its own, and nobody renews it.
    Retain(Duration, Token),
}
