//! The releases of dropped leases that are under way: an acquire of the same lock comes after them.
//!
//! # Invariants
//!
//! 1. An acquire goes ahead when a majority of the nodes have none under way, whichever lease it is of: a node that has
//!    released the last lease may still have the one before it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use leasehold_protocol::{key::Key, tally::Nodes};

use crate::sync::{Mutex, Notify};

/// Which releases of which lock are under way.
#[derive(Debug, Default)]
pub(crate) struct OwnReleases {
    /// Of all locks: an acquire mostly finds none, and takes no lock for that.
    all: AtomicUsize,
    /// The node of each.
    of: Mutex<HashMap<Key, Vec<usize>>>,
    over: Notify,
}

/// One release under way on one node, until it is dropped.
#[derive(Debug)]
pub(super) struct OwnRelease {
    releases: Arc<OwnReleases>,
    key: Key,
    node: usize,
}

impl OwnReleases {
    pub(super) fn begin(self: &Arc<Self>, key: &Key, node: usize) -> OwnRelease {
        self.of.lock().entry(key.clone()).or_default().push(node);
        self.all.fetch_add(1, Ordering::AcqRel);
        OwnRelease { releases: self.clone(), key: key.clone(), node }
    }

    /// Completes when releases of this lock are under way on so few nodes, or fewer.
    pub(crate) async fn over(&self, key: &Key, few: usize) {
        while self.is_any() {
            // Made before the look, it hears of every end after it.
            let over = self.over.notified();
            if self.nodes(key).iter().count() <= few {
                return;
            }
            over.await;
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.all.load(Ordering::Acquire) > 0
    }

    fn nodes(&self, key: &Key) -> Nodes {
        let mut nodes = Nodes::NONE;
        self.of.lock().get(key).into_iter().flatten().for_each(|&node| nodes.insert(node));
        nodes
    }
}

impl Drop for OwnRelease {
    fn drop(&mut self) {
        let mut of = self.releases.of.lock();
        if let Some(nodes) = of.get_mut(&self.key) {
            if let Some(at) = nodes.iter().position(|&node| node == self.node) {
                nodes.swap_remove(at);
            }
            if nodes.is_empty() {
                of.remove(&self.key);
            }
        }
        drop(of);
        self.releases.all.fetch_sub(1, Ordering::AcqRel);
        self.releases.over.notify_waiters();
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    /// Of a quorum of three.
    fn is_over(releases: &OwnReleases, key: &Key) -> bool {
        pin!(releases.over(key, 1)).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn it_is_over_when_a_majority_has_released() {
        let (releases, [key, other]) = (Arc::<OwnReleases>::default(), ["job", "other"].map(Key::of_lock));
        let [one, two, three] = [0, 1, 2].map(|node| releases.begin(&key, node));
        drop(one);
        assert!(!is_over(&releases, &key) && is_over(&releases, &other));
        drop(three);
        assert!(is_over(&releases, &key) && releases.is_any());
        drop(two);
        assert!(is_over(&releases, &key) && !releases.is_any() && releases.of.lock().is_empty());
    }

    #[test]
    fn a_majority_that_released_one_lease_is_not_enough_while_nodes_have_others() {
        let (releases, key) = (Arc::<OwnReleases>::default(), Key::of_lock("job"));
        let before = releases.begin(&key, 1);
        let [one, two, three] = [0, 1, 2].map(|node| releases.begin(&key, node));
        drop((one, two));
        // The second node still has the lease before, and the third the last one.
        let mut over = pin!(releases.over(&key, 1));
        assert!(over.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(before);
        assert!(over.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(three);
        assert!(!releases.is_any());
    }
}
