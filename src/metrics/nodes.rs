//! What is measured of each node, by its address. Two `Leases` on one server share its series.

#[cfg(feature = "metrics")]
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

#[cfg(feature = "metrics")]
use ::metrics::{Label, counter, gauge};
#[cfg(feature = "metrics")]
use parking_lot::Mutex;

#[cfg(feature = "metrics")]
use super::{CLOCK_OFFSET, NODE_UP, PUSH_ACTIVE, RECONNECTS, UNDOS};
#[cfg(feature = "metrics")]
use crate::{foreign, sync::catching_panics};

/// A value that nobody knows yet, and that is not told.
#[cfg(feature = "metrics")]
const UNKNOWN: i64 = i64::MIN;

/// Every node that this process has known; as many as it has had addresses.
#[cfg(feature = "metrics")]
static NODES: Mutex<Vec<Arc<Node>>> = Mutex::new(Vec::new());

/// Whether one of them has news.
#[cfg(feature = "metrics")]
static HAVE_NEWS: AtomicBool = AtomicBool::new(false);

/// Undos that were given up, and not told yet.
#[cfg(feature = "metrics")]
static UNDOS_LEFT: AtomicU64 = AtomicU64::new(0);

/// The series of one node, for one of its users. Without the feature it is nothing.
#[derive(Debug)]
pub(crate) struct NodeMetrics(#[cfg(feature = "metrics")] Arc<Node>);

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct Node {
    address: String,
    users: AtomicUsize,
    is_up: Value,
    is_push_active: Value,
    clock_offset_micros: Value,
    /// Since they were told.
    reconnects: AtomicU64,
}

#[cfg(feature = "metrics")]
#[derive(Debug)]
struct Value {
    now: AtomicI64,
    told: AtomicI64,
}

#[cfg_attr(not(feature = "metrics"), allow(clippy::unused_self, reason = "without the feature it is nothing"))]
impl NodeMetrics {
    /// Of the node at this address, which must not contain a password.
    pub(crate) fn of(address: &str) -> Self {
        #[cfg(feature = "metrics")]
        {
            let mut nodes = NODES.lock();
            let known = nodes.iter().find(|node| node.address == address).cloned();
            let node = known.unwrap_or_else(|| {
                let node = Arc::new(Node::new(address));
                nodes.push(node.clone());
                node
            });
            node.users.fetch_add(1, Ordering::AcqRel);
            Self(node)
        }
        #[cfg(not(feature = "metrics"))]
        {
            let _ = address;
            Self()
        }
    }

    /// It has answered, or it has not.
    pub(crate) fn note_up(&self, is_up: bool) {
        if self.set_up(is_up) {
            have_news();
        }
    }

    /// The same without a lock, and so for callers that keep one. Whether [`have_news`] has to be called.
    pub(crate) fn set_up(&self, is_up: bool) -> bool {
        #[cfg(feature = "metrics")]
        return self.0.is_up.set(i64::from(is_up));
        #[cfg(not(feature = "metrics"))]
        {
            let _ = is_up;
            false
        }
    }

    /// A connection to it was lost, and there is another.
    pub(crate) fn note_reconnect(&self) {
        #[cfg(feature = "metrics")]
        {
            self.0.reconnects.fetch_add(1, Ordering::AcqRel);
            have_news();
        }
        self.note_up(true);
    }

    pub(crate) fn note_push(&self, is_active: bool) {
        #[cfg(feature = "metrics")]
        if self.0.is_push_active.set(i64::from(is_active)) {
            have_news();
        }
        #[cfg(not(feature = "metrics"))]
        let _ = is_active;
    }

    /// By how much its clock is ahead of ours.
    #[cfg(feature = "metrics")]
    pub(crate) fn note_clock_offset(&self, micros: i64) {
        if self.0.clock_offset_micros.set(micros) {
            have_news();
        }
    }
}

/// A node that no `Leases` uses counts as up. Otherwise one that failed its last request would stay down for ever.
#[cfg(feature = "metrics")]
impl Drop for NodeMetrics {
    fn drop(&mut self) {
        let was_last = self.0.users.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last && self.0.is_up.now.load(Ordering::Acquire) == 0 {
            self.note_up(true);
        }
    }
}

/// Something may be left on a node, to expire there.
pub(crate) fn undo_is_unconfirmed() {
    #[cfg(feature = "metrics")]
    {
        UNDOS_LEFT.fetch_add(1, Ordering::AcqRel);
        have_news();
    }
}

pub(crate) fn have_news() {
    #[cfg(feature = "metrics")]
    {
        HAVE_NEWS.store(true, Ordering::Release);
        foreign::deltas_are_due();
    }
}

#[cfg(feature = "metrics")]
impl Value {
    fn new() -> Self {
        Self { now: AtomicI64::new(UNKNOWN), told: AtomicI64::new(UNKNOWN) }
    }

    /// Whether it is another one.
    fn set(&self, value: i64) -> bool {
        self.now.swap(value, Ordering::AcqRel) != value
    }

    fn news(&self, always: bool) -> Option<i64> {
        let now = self.now.load(Ordering::Acquire);
        let told = self.told.swap(now, Ordering::AcqRel);
        Some(now).filter(|&now| now != UNKNOWN && (always || now != told))
    }
}

#[cfg(feature = "metrics")]
impl Node {
    fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            users: AtomicUsize::new(0),
            is_up: Value::new(),
            is_push_active: Value::new(),
            clock_offset_micros: Value::new(),
            reconnects: AtomicU64::new(0),
        }
    }

    /// Runs foreign code.
    fn tell(&self, all: bool) {
        let labels = || vec![Label::new("node", self.address.clone())];
        let is_known = self.is_up.now.load(Ordering::Acquire) != UNKNOWN;
        if let Some(is_up) = self.is_up.news(all) {
            gauge!(NODE_UP, labels()).set(if is_up == 0 { 0.0 } else { 1.0 });
        }
        if let Some(is_active) = self.is_push_active.news(all) {
            gauge!(PUSH_ACTIVE, labels()).set(if is_active == 0 { 0.0 } else { 1.0 });
        }
        if let Some(micros) = self.clock_offset_micros.news(all) {
            let seconds = Duration::from_micros(micros.unsigned_abs()).as_secs_f64();
            gauge!(CLOCK_OFFSET, labels()).set(if micros < 0 { -seconds } else { seconds });
        }
        // From nought on, so that the first is an increase.
        let reconnects = self.reconnects.swap(0, Ordering::AcqRel);
        if is_known {
            counter!(RECONNECTS, labels()).increment(reconnects);
        }
    }
}

/// Tells what has changed; on the thread for events only. Runs foreign code.
#[cfg(feature = "metrics")]
pub(super) fn tell(all: bool) {
    if !HAVE_NEWS.swap(false, Ordering::AcqRel) && !all {
        return;
    }
    let undos = UNDOS_LEFT.swap(0, Ordering::AcqRel);
    let _told = catching_panics(|| counter!(UNDOS).increment(undos));
    let nodes = NODES.lock().clone();
    for node in nodes {
        let _told = catching_panics(|| node.tell(all));
    }
}

#[cfg(all(test, feature = "metrics", not(leasehold_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_up_once_its_last_user_has_gone_whoever_reads_its_series_meanwhile() {
        let [one, other] = [(); 2].map(|()| NodeMetrics::of("nodes-tests:1"));
        one.note_up(false);
        let read = NODES.lock().clone();
        let node = one.0.clone();
        drop(one);
        assert_eq!(node.is_up.now.load(Ordering::Acquire), 0, "somebody uses it");
        drop(other);
        assert_eq!(node.is_up.now.load(Ordering::Acquire), 1);
        drop(read);
    }
}
