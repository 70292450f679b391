//! Passes the notifications of one primary on to the node's listener.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{place::Shard, slot::Keys};

use super::Cluster;
use crate::node::NodeListener;

/// Passes notifications on. A gap in a primary's notifications concerns its own slots only.
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

/// Defines calls that are passed on. Without a listener, nothing is needed, held or awaited.
macro_rules! passed_on {
    ($($call:ident($($what:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        $(
            fn $call(&self, $($what: $kind),*) $(-> $answer)? {
                self.listener().map_or_else(Default::default, |listener| listener.$call($($what),*))
            }
        )*
    };
}

impl NodeListener for Narrowed {
    passed_on! {
        changed(key: &str);
        holds(key: &str) -> bool;
        is_as_left(key: &str, value: &str, left: Duration) -> bool;
        is_needed() -> bool;
        granted(key: &str, token: &str);
        next(token: &str, within: Duration);
        has_waiters() -> bool;
        has_waiter(token: &str) -> bool;
    }

    fn missed(&self, keys: &Keys) {
        let Some(listener) = self.listener() else { return };
        let own = || self.cluster.upgrade().map(|cluster| Keys::Of(cluster.topology.read().slots(self.shard)));
        match keys {
            Keys::All => own().iter().for_each(|own| listener.missed(own)),
            some @ Keys::Of(_) => listener.missed(some),
        }
    }
}
