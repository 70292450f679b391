//! Which run of which server each node of a quorum is: pure.
//!
//! # Invariants
//!
//! 1. No two nodes are one run of a server. A node that reports the run of another node has no identity.
//! 2. A run whose answers counted as one node's is no other's while a lease or a call may rest on them. Otherwise one
//!    server could confirm it twice, when two addresses are exchanged.

use std::{mem, time::Duration};

use crate::time::Time;

/// The nodes of one quorum, each with the run of a server that it last reported.
#[derive(Debug)]
pub struct Identities {
    nodes: Box<[Identity]>,
    /// The longest that a call or a lease of ours has rested on an answer so far.
    longest: Duration,
}

#[derive(Debug)]
struct Identity {
    address: Box<str>,
    run_id: Option<Box<str>>,
    /// Whether an answer of this run has counted.
    has_counted: bool,
    /// The runs that it was and whose answers counted, each with the time at which that ended.
    past: Vec<(Box<str>, Time)>,
    /// The number of the other node that is the run it last reported.
    same_as: Option<usize>,
}

impl Identities {
    /// Nodes that have reported no run yet. A call counts answers for at most this long.
    pub fn new(addresses: &[String], call: Duration) -> Self {
        let unknown = |address: &String| Identity {
            address: address.as_str().into(),
            run_id: None,
            has_counted: false,
            past: Vec::new(),
            same_as: None,
        };
        Self { nodes: addresses.iter().map(unknown).collect(), longest: call }
    }

    /// Notes the TTL of a lease that is wanted.
    pub fn note_ttl(&mut self, ttl: Duration) {
        self.longest = self.longest.max(ttl);
    }

    /// Whether an answer of this run counts as the node's. Notes that it did.
    pub fn count(&mut self, at: usize, run_id: &str) -> bool {
        let Some(node) = self.nodes.get_mut(at).filter(|node| node.run_id.as_deref() == Some(run_id)) else {
            return false;
        };
        node.has_counted = true;
        true
    }

    /// Notes which run of a server a node reports. Returns the address of another node that is the same run.
    pub fn enter(&mut self, at: usize, run_id: &str, now: Time) -> Option<&str> {
        if self.is_known(at, run_id) {
            return None;
        }
        let longest = self.longest;
        let has = |node: &Identity| {
            let was = |(past, until): &(Box<str>, Time)| **past == *run_id && now.since(*until) < longest;
            node.run_id.as_deref() == Some(run_id) || node.past.iter().any(was)
        };
        let other = (0..self.nodes.len()).find(|&other| other != at && self.nodes.get(other).is_some_and(has));
        let node = self.nodes.get_mut(at)?;
        node.same_as = other;
        let next = other.is_none().then(|| run_id.into());
        let was = mem::replace(&mut node.run_id, next).filter(|_| mem::take(&mut node.has_counted));
        // A node may become one of its former runs again.
        node.has_counted = node.past.iter().any(|(past, _)| node.run_id.as_ref() == Some(past));
        node.past.retain(|(past, until)| node.run_id.as_ref() != Some(past) && now.since(*until) < longest);
        node.past.extend(was.map(|run| (run, now)));
        self.same_as(at)
    }

    /// The address of the other node that is the run which this node last reported.
    pub fn same_as(&self, at: usize) -> Option<&str> {
        Some(&self.nodes.get(self.nodes.get(at)?.same_as?)?.address)
    }

    /// Whether a node is this run of a server.
    pub fn is_known(&self, at: usize, run_id: &str) -> bool {
        self.nodes.get(at).is_some_and(|node| node.run_id.as_deref() == Some(run_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(60);

    fn two() -> Identities {
        Identities::new(&["a:1".into(), "b:1".into()], CALL)
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn two_nodes_of_one_server_have_one_identity() {
        let mut identities = two();
        assert!(!identities.is_known(0, "run1"), "it has shown nothing yet");
        assert_eq!(identities.enter(0, "run1", at(1)), None);
        assert_eq!(identities.enter(1, "run0", at(1)), None);
        assert_eq!(identities.enter(1, "run1", at(1)), Some("a:1"));
        assert!(identities.is_known(0, "run1") && !identities.is_known(1, "run0"), "the second has none any more");
        assert_eq!(identities.enter(1, "run1", at(1)), Some("a:1"), "and gets none");
        assert_eq!(identities.same_as(1), Some("a:1"));
        assert_eq!(identities.enter(0, "run1", at(1)), None, "the first keeps its identity");
        assert_eq!(identities.enter(1, "run0", at(1)), None, "the second may have its own again");
        assert_eq!(identities.same_as(1), None);
    }

    #[test]
    fn a_restart_is_another_identity() {
        let mut identities = two();
        assert_eq!(identities.enter(0, "run1", at(1)), None);
        assert_eq!(identities.enter(0, "run2", at(2)), None);
        assert!(identities.is_known(0, "run2") && !identities.is_known(0, "run1") && !identities.is_known(1, "run2"));
    }

    #[test]
    fn a_run_is_no_other_nodes_while_a_lease_may_rest_on_it() {
        let mut identities = two();
        identities.note_ttl(LONGEST);
        identities.note_ttl(CALL);
        assert_eq!(identities.enter(0, "run1", at(1)), None);
        assert_eq!(identities.enter(1, "run2", at(1)), None);
        assert!(identities.count(0, "run1") && identities.count(1, "run2"));
        assert!(!identities.count(0, "run2") && !identities.count(2, "run2"), "as another node");
        // The first leads to the second's server, and has no identity.
        assert_eq!(identities.enter(0, "run2", at(10)), Some("b:1"));
        assert_eq!(identities.enter(1, "run1", at(11)), Some("a:1"));
        assert_eq!(identities.enter(1, "run1", at(69)), Some("a:1"));
        // The exchange is over: no lease of the time before is left.
        assert_eq!(identities.enter(1, "run1", at(70)), None);
        assert_eq!(identities.enter(0, "run2", at(70)), Some("b:1"));
        assert_eq!(identities.enter(0, "run2", at(71)), None);
        let past: Vec<usize> = identities.nodes.iter().map(|node| node.past.len()).collect();
        assert!(past.iter().all(|&past| past <= 1), "it keeps no more than that: {past:?}");
    }

    #[test]
    fn without_a_lease_too_no_call_counts_a_run_twice() {
        let mut identities = two();
        assert_eq!(identities.enter(0, "run1", at(1)), None);
        assert!(identities.count(0, "run1"));
        assert_eq!(identities.enter(0, "run2", at(2)), None);
        assert_eq!(identities.enter(1, "run1", at(3)), Some("a:1"));
        assert_eq!(identities.enter(1, "run1", at(4)), None);
    }

    #[test]
    fn a_run_that_never_counted_is_free_at_once() {
        let mut identities = two();
        // The first leads to the second's server for a moment, in which nobody asks it for anything.
        assert_eq!(identities.enter(0, "run2", at(1)), None);
        assert_eq!(identities.enter(0, "run1", at(2)), None);
        assert_eq!(identities.enter(1, "run2", at(2)), None);
        assert!(identities.count(1, "run2"));
        // A node that is its own former run again has counted before.
        assert_eq!(identities.enter(1, "run3", at(3)), None);
        assert_eq!(identities.enter(1, "run2", at(4)), None);
        assert_eq!(identities.enter(1, "run4", at(5)), None);
        assert_eq!(identities.enter(0, "run3", at(5)), None, "it never counted");
        assert_eq!(identities.enter(0, "run2", at(5)), Some("b:1"));
    }
}
