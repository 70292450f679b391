//! Which run of which server each node of a quorum is: pure.
//!
//! # Invariant
//!
//! No two nodes are one run of a server. A node that reports the run of another node has no identity.

/// The nodes of one quorum, each with the run of a server that it last reported.
#[derive(Debug)]
pub struct Identities(Box<[Identity]>);

#[derive(Debug)]
struct Identity {
    address: Box<str>,
    run_id: Option<Box<str>>,
}

impl Identities {
    /// Nodes that have reported no run yet.
    pub fn new(addresses: &[String]) -> Self {
        let unknown = |address: &String| Identity { address: address.as_str().into(), run_id: None };
        Self(addresses.iter().map(unknown).collect())
    }

    /// Notes which run of a server a node reports. Returns the address of another node that is the same run.
    pub fn enter(&mut self, at: usize, run_id: &str) -> Option<&str> {
        if self.is_known(at, run_id) {
            return None;
        }
        let other = (0..self.0.len()).find(|&other| self.is_known(other, run_id));
        if let Some(node) = self.0.get_mut(at) {
            node.run_id = other.is_none().then(|| run_id.into());
        }
        Some(&self.0.get(other?)?.address)
    }

    /// Whether a node is this run of a server.
    pub fn is_known(&self, at: usize, run_id: &str) -> bool {
        self.0.get(at).is_some_and(|node| node.run_id.as_deref() == Some(run_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_of_one_server_have_one_identity() {
        let mut identities = Identities::new(&["a:1".into(), "b:1".into()]);
        assert!(!identities.is_known(0, "run1"), "it has shown nothing yet");
        assert_eq!(identities.enter(0, "run1"), None);
        assert_eq!(identities.enter(1, "run0"), None);
        assert_eq!(identities.enter(1, "run1"), Some("a:1"));
        assert!(identities.is_known(0, "run1") && !identities.is_known(1, "run0"), "the second has none any more");
        assert_eq!(identities.enter(1, "run1"), Some("a:1"), "and gets none");
        assert_eq!(identities.enter(0, "run1"), None, "the first keeps its identity");
    }

    #[test]
    fn a_restart_is_another_identity() {
        let mut identities = Identities::new(&["a:1".into(), "b:1".into()]);
        assert_eq!(identities.enter(0, "run1"), None);
        assert_eq!(identities.enter(0, "run2"), None);
        assert!(identities.is_known(0, "run2") && !identities.is_known(0, "run1") && !identities.is_known(1, "run2"));
        assert_eq!(identities.enter(1, "run1"), None, "no other node is that run any more");
    }
}
