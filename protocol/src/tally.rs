//! The arithmetic of majorities: pure, and the same for one node as for many.
//!
//! # Invariants
//!
//! 1. A deadline counts from the majority-th largest confirmed send (rule 1). A later denial takes nothing back: the
//!    node's key lived until then, or the node forgot and gives no vote (deployments: a server that forgot stays out).
//! 2. A denial stands until the node has confirmed something that was sent later. On one node nothing brings a key
//!    back, so there it stands for ever.
//! 3. A node that lost the key is repaired once for each denial, when a majority has confirmed the round of that denial
//!    or a later one. A node that [lacks](Tally::lacks) the key is also repaired when something has happened to the key
//!    there.

use std::{
    ops::{Deref, DerefMut},
    slice,
    sync::Arc,
    time::Duration,
};

use crate::{forced::ForcedRelease, time::Time};

/// The allowance for the drift between two machines' clocks: 1 % of the TTL and 2 ms (rule 1).
pub fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a holder may believe in a lease that a majority confirmed for `ttl`, when its request was sent at `sent`
/// (rule 1).
pub fn deadline(sent: Time, ttl: Duration) -> Time {
    sent + ttl.saturating_sub(drift(ttl))
}

/// Some of the nodes, by their numbers. A quorum has nine at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Nodes(u16);

impl Nodes {
    /// No node.
    pub const NONE: Self = Self(0);

    /// The first `count` nodes.
    pub fn all(count: usize) -> Self {
        (0..count).collect()
    }

    /// Adds a node; a number that is too large is left out.
    pub fn insert(&mut self, node: usize) {
        self.0 |= 1_u16.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or_default();
    }

    /// Removes a node.
    pub fn remove(&mut self, node: usize) {
        self.0 &= !Self::one(node).0;
    }

    /// This node only.
    pub fn one(node: usize) -> Self {
        [node].into_iter().collect()
    }

    /// Whether this node is among them.
    pub fn contains(self, node: usize) -> bool {
        self.in_common(Self::one(node)) > 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn in_common(self, other: Self) -> u32 {
        (self.0 & other.0).count_ones()
    }

    /// The nodes' numbers, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> + use<> {
        (0..16).filter(move |node| self.0 & (1 << node) != 0)
    }
}

impl FromIterator<usize> for Nodes {
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        let mut set = Self::NONE;
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

/// How many nodes have to change, and which, before another check is worthwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeCondition {
    /// This many nodes.
    pub count: usize,
    /// Of these nodes.
    pub of: Nodes,
}

impl WakeCondition {
    /// A change of any node.
    pub const ANY: Self = Self { count: 1, of: Nodes(u16::MAX) };
    /// No change: none is of interest.
    pub const NEVER: Self = Self { count: 1, of: Nodes::NONE };

    /// Whether a check is worthwhile, now that these nodes have changed.
    pub fn are_met_by(self, changed: Nodes) -> bool {
        usize::try_from(changed.in_common(self.of)).is_ok_and(|changed| changed >= self.count)
    }
}

/// A node's definite "not yours"; the one that says more is the greater one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Denial {
    /// The key is gone.
    Gone,
    /// The key holds something else.
    Taken,
    /// Either of these, and the node knows who has taken the lock from this token by force.
    Forced(Arc<ForcedRelease>),
}

/// How many of `nodes` make a majority.
pub fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The last word of each node about one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tally {
    words: PerNode<LastWord>,
}

/// A value for each node. That of an only node is kept in place: most leases have one node, and there are many leases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum PerNode<T> {
    One(T),
    Several(Box<[T]>),
}

impl<T: Clone> PerNode<T> {
    /// This value for each of `nodes` nodes.
    pub(crate) fn new(nodes: usize, each: T) -> Self {
        if nodes == 1 { Self::One(each) } else { Self::Several(vec![each; nodes].into()) }
    }
}

impl<T> PerNode<T> {
    /// The nodes for whose value `is_such` holds.
    pub(crate) fn nodes(&self, is_such: impl Fn(&T) -> bool) -> Nodes {
        self.iter().enumerate().filter(|(_, each)| is_such(each)).map(|(node, _)| node).collect()
    }
}

impl<T> Deref for PerNode<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(only) => slice::from_ref(only),
            Self::Several(all) => all,
        }
    }
}

impl<T> DerefMut for PerNode<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(only) => slice::from_mut(only),
            Self::Several(all) => all,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct LastWord {
    /// When the newest request that this node confirmed was sent.
    sent: Time,
    /// When the newest request with an unclear answer was sent.
    unclear: Time,
    /// Its denial, and when the denied request was sent.
    denial: Option<(Time, Denial)>,
    /// When the request that restored a lost key was sent.
    repaired: Time,
    /// The denial for which a repair was ordered.
    repair_ordered: Time,
    /// Whether anything was sent to it that may have left the token there.
    may_hold: bool,
}

impl Tally {
    /// The tally of this number of nodes, which have said nothing.
    pub fn new(nodes: usize) -> Self {
        Self { words: PerNode::new(nodes, LastWord::default()) }
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.words.len()
    }

    /// How many nodes make a majority.
    pub fn majority(&self) -> usize {
        majority(self.words.len())
    }

    /// `node` did what a request asked that was sent at `sent`. An older confirmation takes nothing back.
    pub fn confirm(&mut self, node: usize, sent: Time) {
        let Some(word) = self.words.get_mut(node) else { return };
        word.sent = word.sent.max(sent);
        word.may_hold = true;
        if word.denial.as_ref().is_some_and(|(denied, _)| *denied < sent) {
            word.denial = None;
            word.repaired = word.repaired.max(sent);
        }
    }

    /// `node` answered "not yours" to a request that was sent at `sent`. That counts, whatever the node confirmed
    /// before or since: it may execute requests in another order than they were sent, and does not restore a key by
    /// itself. A denial of a request from before a repair does not count.
    pub fn deny(&mut self, node: usize, sent: Time, denial: Denial) {
        if let Some(word) = self.words.get_mut(node).filter(|word| sent >= word.repaired) {
            word.denial = Some((sent, denial));
        }
    }

    /// `node` was asked to take the token, and has not said whether it did.
    pub fn suspect(&mut self, node: usize) {
        if let Some(word) = self.words.get_mut(node) {
            word.may_hold = true;
        }
    }

    /// The nodes that may have the token. A renewal adds none.
    pub fn may_hold(&self) -> Nodes {
        self.words.nodes(|word| word.may_hold)
    }

    /// `node` gave no answer, or one that says nothing, to a request that was sent at `sent`.
    pub fn note_unclear(&mut self, node: usize, sent: Time) {
        if let Some(word) = self.words.get_mut(node) {
            word.unclear = word.unclear.max(sent);
        }
    }

    /// The majority-th largest of the confirmed sends: what a deadline counts from (rule 1). Zero without a majority.
    pub fn confirmed(&self) -> Time {
        let backed = |sent: Time| self.words.iter().filter(|word| word.sent >= sent).count() >= self.majority();
        self.words.iter().map(|word| word.sent).filter(|&sent| backed(sent)).max().unwrap_or(Time::ZERO)
    }

    /// Whether too many nodes have answered otherwise for a majority to confirm what was sent at `sent`.
    pub fn is_hopeless(&self, sent: Time) -> bool {
        let against = |word: &&LastWord| word.sent < sent && (word.unclear >= sent || word.denial.is_some());
        self.words.iter().filter(against).count() > self.words.len() - self.majority()
    }

    /// The denial of a majority, if there is one; of several, the one that says most.
    pub fn denied(&self) -> Option<&Denial> {
        let denials = || self.words.iter().filter_map(|word| word.denial.as_ref());
        if denials().count() < self.majority() { None } else { denials().map(|(_, denial)| denial).max() }
    }

    /// The nodes that have lost the key and may have it back now (invariant 3).
    pub fn repairs(&mut self) -> Nodes {
        let confirmed = self.confirmed();
        let mut nodes = Nodes::NONE;
        for (node, word) in self.words.iter_mut().enumerate() {
            match word.denial {
                Some((denied, Denial::Gone)) if denied <= confirmed && denied > word.repair_ordered => {
                    word.repair_ordered = denied;
                    word.may_hold = true;
                    nodes.insert(node);
                }
                _ => {}
            }
        }
        nodes
    }

    /// Whether `node` is not known to have the token: it has denied that, or never confirmed it.
    pub fn lacks(&self, node: usize) -> bool {
        self.words.get(node).is_some_and(|word| word.denial.is_some() || word.sent == Time::ZERO)
    }

    /// Those of `nodes` that still lack the token, and may have it back now: not if it was taken by force.
    pub fn repairs_of(&mut self, nodes: Nodes) -> Nodes {
        let forced = self.words.nodes(|word| matches!(word.denial, Some((_, Denial::Forced(_)))));
        let lacking: Nodes = nodes.iter().filter(|&node| self.lacks(node) && !forced.contains(node)).collect();
        lacking.iter().for_each(|node| self.suspect(node));
        lacking
    }

    /// The nodes that have not confirmed what was sent at `sent`, or later.
    pub fn silent_since(&self, sent: Time) -> Nodes {
        self.words.nodes(|word| word.sent < sent)
    }
}

#[cfg(test)]
mod tests;
