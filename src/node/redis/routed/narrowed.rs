//! The notifications of one primary, for those who wait for them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{message::Shard, slot::Keys};

use super::Cluster;
use crate::node::NodeListener;

/// Passes notifications on. A gap in those of a primary is one of its own slots only.
#[derive(Debug)]
pub(super) struct Narrowed {
    cluster: Weak<Cluster>,
    shard: Shard,
}

impl Narrowed {
    pub(super) fn new(cluster: Weak<Cluster>, shard: Shard) -> Self {
        Self { cluster, shard }
    }

    fn listener(&self) -> Option<Arc<dyn NodeListener>> {
        self.cluster.upgrade()?.listener()
    }
}

impl NodeListener for Narrowed {
    fn changed(&self, key: &str) {
        if let Some(listener) = self.listener() {
            listener.changed(key);
        }
    }

    fn holds(&self, key: &str) -> bool {
        self.listener().is_some_and(|listener| listener.holds(key))
    }

    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool {
        self.listener().is_some_and(|listener| listener.is_as_left(key, value, left))
    }

    fn missed(&self, keys: &Keys) {
        let Some(listener) = self.listener() else { return };
        let own = || self.cluster.upgrade().map(|cluster| Keys::Of(cluster.topology.read().slots(self.shard)));
        match keys {
            Keys::All => own().iter().for_each(|own| listener.missed(own)),
            some @ Keys::Of(_) => listener.missed(some),
        }
    }

    fn is_needed(&self) -> bool {
        self.listener().is_some_and(|listener| listener.is_needed())
    }

    fn granted(&self, key: &str, token: &str) {
        if let Some(listener) = self.listener() {
            listener.granted(key, token);
        }
    }

    fn next(&self, token: &str, within: Duration) {
        if let Some(listener) = self.listener() {
            listener.next(token, within);
        }
    }

    fn has_waiters(&self) -> bool {
        self.listener().is_some_and(|listener| listener.has_waiters())
    }

    fn has_waiter(&self, token: &str) -> bool {
        self.listener().is_some_and(|listener| listener.has_waiter(token))
    }
}
