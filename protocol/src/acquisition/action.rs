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
    /// To raise the node's floor of fences.
    Raise,
    /// To extend the lease.
    Renew,
    /// To restore a lost key.
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
    /// The answer to [`Ask::Acquire`].
    Vote {
        /// The node's vote.
        acquired: Acquired,
        /// Whether a later request on its route may have arrived before it.
        overtaken: bool,
    },
    /// The answer to a raise, a renewal or a release.
    Owned(Owned),
    /// The answer to a repair.
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
    /// Restore the key on these nodes, except those that do not vote yet.
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
    /// Whether the first request certainly had no effect.
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

/// Where and how to take a token back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// The nodes to take it back from.
    pub nodes: Nodes,
    /// The route of the first request.
    pub route: Route,
    /// How to leave the key.
    pub mode: ReleaseMode,
    /// Whether an attempt is undone, and not a lease.
    pub is_attempt: bool,
}

/// An event in the life of the token.
#[derive(Debug)]
pub enum News {
    /// The lease is ours, with this fence.
    Acquired(Fence),
    /// The lease is not ours, and will not be.
    NotAcquired(Verdict),
    /// The lease is at risk, is no longer at risk, or is lost: see [`phase`](super::Acquisition::phase).
    Phase,
    /// The release has ended.
    Released(ReleaseEnd),
}

/// The task left when the holder lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Nothing.
    Nothing,
    /// A release: [`release`](super::Acquisition::release), or [`abandon`](super::Acquisition::abandon) if no caller
    /// waits for it.
    Release {
        /// Whether the nodes' answers do not matter, because the lease had reached its `max_hold`.
        is_forgiven: bool,
    },
}

/// The settings of an acquisition, fixed before the first request is sent.
#[derive(Debug, Clone)]
pub struct Config {
    /// The bounds of the lease's life.
    pub lease: LeaseConfig,
    /// How much longer the key lives than the lease.
    pub outliving: Outliving,
    /// How many nodes there are.
    pub nodes: usize,
    /// The route of the attempt.
    pub route: Route,
    /// How long after the attempt the lease is first renewed, if sooner than at a third of its TTL. From then on nodes
    /// report changes of the key.
    pub renew_first_after: Option<Duration>,
    /// Spreads renewals. Leases with the same jitter can be renewed in one batch.
    pub jitter: Jitter,
}
