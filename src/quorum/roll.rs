//! What the nodes of a quorum say of themselves, side by side: which run of which server each is, and what time it is
//! there.

use leasehold_protocol::{fence::Fence, fence_proposal::FenceProposal, time::Time};
use parking_lot::Mutex;

/// The roll of one quorum.
#[derive(Debug)]
pub(super) struct Roll {
    nodes: usize,
    present: Mutex<Vec<Present>>,
    proposal: Mutex<FenceProposal>,
}

/// A node that has said who it is.
#[derive(Debug)]
struct Present {
    at: usize,
    address: Box<str>,
    run_id: Box<str>,
}

impl Roll {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, present: Mutex::default(), proposal: Mutex::default() }
    }

    /// Whether there is but one node.
    pub(super) fn is_one(&self) -> bool {
        self.nodes == 1
    }

    /// A node says which run of a server it is; the address of another node that has said the same before.
    pub(super) fn enter(&self, at: usize, address: &str, run_id: &str) -> Option<Box<str>> {
        let mut present = self.present.lock();
        if let Some(other) = present.iter().find(|other| other.at != at && &*other.run_id == run_id) {
            let other = other.address.clone();
            present.retain(|present| present.at != at);
            return Some(other);
        }
        match present.iter_mut().find(|present| present.at == at) {
            Some(known) if &*known.run_id == run_id => {}
            Some(known) => known.run_id = run_id.into(),
            None => present.push(Present { at, address: address.into(), run_id: run_id.into() }),
        }
        None
    }

    /// Whether this is what the node last said it is.
    pub(super) fn is_known(&self, at: usize, run_id: &str) -> bool {
        self.present.lock().iter().any(|present| present.at == at && &*present.run_id == run_id)
    }

    /// See [`FenceProposal::note_time`].
    pub(super) fn note_time(&self, time: u64, sent: Time) {
        self.proposal.lock().note_time(time, sent);
    }

    /// See [`FenceProposal::at`].
    pub(super) fn proposal(&self, now: Time) -> Option<Fence> {
        self.proposal.lock().at(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_has_one_place() {
        let roll = Roll::new(3);
        assert_eq!(roll.enter(0, "a:1", "run1"), None);
        assert_eq!(roll.enter(1, "b:1", "run0"), None);
        assert_eq!(roll.enter(1, "b:1", "run1").as_deref(), Some("a:1"));
        assert!(roll.is_known(0, "run1") && !roll.is_known(1, "run0"), "the second is none any more");
        assert_eq!(roll.enter(0, "a:1", "run1"), None, "the first keeps its vote");
        assert_eq!(roll.enter(0, "a:1", "run2"), None, "restarted");
        assert!(roll.is_known(0, "run2") && !roll.is_known(0, "run1") && !roll.is_known(1, "run2"));
        assert_eq!(roll.enter(1, "b:1", "run1"), None, "now nobody else is that one");
    }

    #[test]
    fn one_node_is_alone() {
        assert!(Roll::new(1).is_one() && !Roll::new(3).is_one());
    }
}
