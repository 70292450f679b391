//! The vocabulary of an acquisition: its settings, requests and their answers, actions and news.

use std::time::Duration;

use crate::{
    attempt::Verdict,
    failure::Failure,
    fence::Fence,
    jitter::Jitter,
    message::{Acquired, Owned, ReleaseMode, Repaired, Route},
    outliving::Outliving,
    release_tally::ReleaseEnd,
    renewal::LeaseConfig,
    tally::Nodes,
    time::Time,
};

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The node's vote.
    Acquire,
    /// To raise the floor of fences.
    Raise,
    /// More time.
    Renew,
    /// To bring a lost key back.
    Repair,
    /// To release the key.
    Release {
        /// Whether no earlier request may have released it.
        only_sending: bool,
        /// Whether no second request follows it.
        is_last: bool,
    },
}

/// A request that was sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sent {
    /// The node.
    pub node: usize,
    /// Its purpose.
    pub ask: Ask,
    /// The time before it was handed to the transport (rule 1).
    pub at: Time,
}

/// A node's answer about our token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Said {
    /// To [`Ask::Acquire`].
    Vote {
        /// The node's vote.
        acquired: Acquired,
        /// Whether a later request on its route may have arrived before it.
        overtaken: bool,
    },
    /// To a raise, a renewal or a release.
    Owned(Owned),
    /// To a repair.
    Repaired(Repaired),
}

/// The driver's orders for now.
#[derive(Debug, Default)]
#[must_use = "actions are there to be carried out"]
pub struct Actions {
    /// Raise the floor on these nodes to this fence.
    pub raise: Option<(Fence, Nodes)>,
    /// Renew on every node.
    pub renew: bool,
    /// Bring the key back on these nodes, but for those that give no vote yet.
    pub repair: Nodes,
    /// The connections to these nodes look dead: make new ones.
    pub reconnect: Nodes,
    /// Release on every node, on the route that [`release`](super::Acquisition::release) was given.
    pub release: bool,
    /// Release on one node once more.
    pub release_again: Option<ReleaseAgain>,
    /// Take the token back.
    pub undo: Option<Undo>,
    /// The news, if there is any.
    pub news: Option<News>,
}

/// The second release on a node, on the keeper's route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseAgain {
    /// The node.
    pub node: usize,
    /// Whether the first request has certainly done nothing.
    pub only_sending: bool,
    /// Whether it is worth waiting until a silent node answers again.
    pub waits: bool,
    /// The failure of the first request. It is the outcome if there is no time for a second.
    pub failure: Failure,
}

impl ReleaseAgain {
    /// The purpose of the second request.
    pub fn ask(&self) -> Ask {
        Ask::Release { only_sending: self.only_sending, is_last: true }
    }
}

/// Where the token is to be taken back, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// From these nodes.
    pub nodes: Nodes,
    /// At first on this route.
    pub route: Route,
    /// How to leave the key.
    pub mode: ReleaseMode,
    /// Whether it is an attempt that is undone, and not a lease.
    pub is_attempt: bool,
}

/// An event in the life of the token.
#[derive(Debug)]
pub enum News {
    /// The lease is ours, with this fence.
    Acquired(Fence),
    /// It is not ours, and will not be.
    NotAcquired(Verdict),
    /// The lease is at risk, is well again, or is lost: see [`phase`](super::Acquisition::phase).
    Phase,
    /// The release is over.
    Released(ReleaseEnd),
}

/// The task left when the holder lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing.
    Nothing,
    /// A release: [`release`](super::Acquisition::release), or [`abandon`](super::Acquisition::abandon) if nobody waits
    /// for it.
    Release {
        /// Whether it does not matter what the nodes find: the lease had reached its `max_hold`.
        is_forgiven: bool,
    },
}

/// The settings of an acquisition, fixed before the first request is sent.
#[derive(Debug, Clone)]
pub struct Config {
    /// The bounds of the lease's life.
    pub lease: LeaseConfig,
    /// How much longer its key lives than the lease.
    pub outliving: Outliving,
    /// How many nodes there are.
    pub nodes: usize,
    /// The route of the attempt.
    pub route: Route,
    /// How long after the attempt the lease is first renewed, if sooner than at a third of its TTL. From then on nodes
    /// notify of changes of the key.
    pub renew_first_after: Option<Duration>,
    /// Spreads renewals. Leases of the same jitter can travel together.
    pub jitter: Jitter,
}
