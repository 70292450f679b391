//! The measurements of each node, by its address. Two clients of one server share its series.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::metrics::{Label, counter, gauge};
use parking_lot::Mutex;

use super::NodeCount;
use crate::{foreign, sync::catching_panics};

pub(super) const NODE_UP: &str = "leasehold_node_up";
pub(super) const CLOCK_OFFSET: &str = "leasehold_node_clock_offset_seconds";
pub(super) const NOTIFICATIONS_ACTIVE: &str = "leasehold_notifications_active";
pub(super) const RECONNECTS: &str = "leasehold_reconnects_total";
pub(super) const MOVES: &str = "leasehold_node_moves_total";
pub(super) const FAILOVERS: &str = "leasehold_failovers_total";
pub(super) const REDIRECTIONS: &str = "leasehold_redirections_total";
pub(super) const UNREPLICATED: &str = "leasehold_unreplicated_total";
pub(super) const UNDOS: &str = "leasehold_undos_unconfirmed_total";

/// The nodes for which a counter is reported, from zero on, so that the first count is an increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Nodes that were ever asked.
    Known,
    /// Nodes that others name.
    Routed,
    /// Nodes whose replicas have to confirm what is written there.
    Replicated,
}

/// The counters in the order of [`NodeCount`]: a name, the value of the label `kind`, and the nodes that have it.
const COUNTERS: [(&str, Option<&str>, Of); 8] = [
    (RECONNECTS, None, Of::Known),
    (MOVES, None, Of::Known),
    (UNREPLICATED, None, Of::Replicated),
    (FAILOVERS, None, Of::Routed),
    (REDIRECTIONS, Some("moved"), Of::Routed),
    (REDIRECTIONS, Some("ask"), Of::Routed),
    (REDIRECTIONS, Some("tryagain"), Of::Routed),
    (REDIRECTIONS, Some("down"), Of::Routed),
];

/// A value that is not known yet, and so is not reported.
const UNKNOWN: i64 = i64::MIN;

/// Every node that this process has known: one for each address.
static NODES: Mutex<Vec<Arc<NodeSeries>>> = Mutex::new(Vec::new());

/// Whether one of them has news.
static HAVE_NEWS: AtomicBool = AtomicBool::new(false);

/// Undos that were given up, and are not reported yet.
static UNDOS_LEFT: AtomicU64 = AtomicU64::new(0);

/// The series of one node, for one of its users.
#[derive(Debug)]
pub(crate) struct NodeMetrics(Arc<NodeSeries>);

#[derive(Debug)]
struct NodeSeries {
    address: String,
    users: AtomicUsize,
    is_up: Value,
    notifies: Value,
    clock_offset_micros: Value,
    is_routed: AtomicBool,
    is_replicated: AtomicBool,
    /// The counts since the last report.
    counts: [AtomicU64; COUNTERS.len()],
}

#[derive(Debug)]
struct Value {
    now: AtomicI64,
    told: AtomicI64,
}

impl NodeMetrics {
    /// The metrics of the node at this address, which must not contain a password.
    pub(crate) fn of(address: &str) -> Self {
        let mut nodes = NODES.lock();
        let known = nodes.iter().find(|node| node.address == address).cloned();
        let node = known.unwrap_or_else(|| {
            let node = Arc::new(NodeSeries::new(address));
            nodes.push(node.clone());
            node
        });
        node.users.fetch_add(1, Ordering::AcqRel);
        Self(node)
    }

    /// The metrics of a server that others name.
    pub(crate) fn of_routed(address: &str) -> Self {
        let of = Self::of(address);
        of.0.is_routed.store(true, Ordering::Release);
        have_news();
        of
    }

    /// The metrics of a server whose replicas have to confirm what is written there.
    pub(crate) fn of_replicated(address: &str) -> Self {
        let of = Self::of(address);
        of.0.is_replicated.store(true, Ordering::Release);
        have_news();
        of
    }

    pub(crate) fn count(&self, what: NodeCount) {
        if let Some(count) = self.0.counts.get(what as usize) {
            count.fetch_add(1, Ordering::AcqRel);
            have_news();
        }
    }

    /// Notes whether it has answered.
    pub(crate) fn note_up(&self, is_up: bool) {
        if self.set_up(is_up) {
            have_news();
        }
    }

    /// Like [`note_up`](Self::note_up), but takes no lock, for callers that hold one. Returns whether [`have_news`] has
    /// to be called.
    pub(crate) fn set_up(&self, is_up: bool) -> bool {
        self.0.is_up.set(i64::from(is_up))
    }

    /// Notes that a lost connection to it was replaced.
    pub(crate) fn note_reconnect(&self) {
        self.count(NodeCount::Reconnect);
        self.note_up(true);
    }

    pub(crate) fn note_notifications(&self, is_active: bool) {
        if self.0.notifies.set(i64::from(is_active)) {
            have_news();
        }
    }

    /// Whether the offset of a node's clock is wanted.
    pub(crate) const WANT_CLOCKS: bool = true;

    /// Notes by how much its clock is ahead of ours.
    pub(crate) fn note_clock_offset(&self, micros: i64) {
        if self.0.clock_offset_micros.set(micros) {
            have_news();
        }
    }
}

/// A node that no `Client` uses counts as up. Otherwise a node that failed its last request would stay down for ever.
impl Drop for NodeMetrics {
    fn drop(&mut self) {
        let was_last = self.0.users.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last && self.0.is_up.now.load(Ordering::Acquire) == 0 {
            self.note_up(true);
        }
    }
}

/// Counts an undo after which something may be left on a node, to expire there.
pub(crate) fn undo_is_unconfirmed() {
    UNDOS_LEFT.fetch_add(1, Ordering::AcqRel);
    have_news();
}

pub(crate) fn have_news() {
    HAVE_NEWS.store(true, Ordering::Release);
    foreign::deltas_are_due();
}

impl Value {
    fn new() -> Self {
        Self { now: AtomicI64::new(UNKNOWN), told: AtomicI64::new(UNKNOWN) }
    }

    /// Sets the value. Returns whether it has changed.
    fn set(&self, value: i64) -> bool {
        self.now.swap(value, Ordering::AcqRel) != value
    }

    fn news(&self, always: bool) -> Option<i64> {
        let now = self.now.load(Ordering::Acquire);
        let told = self.told.swap(now, Ordering::AcqRel);
        Some(now).filter(|&now| now != UNKNOWN && (always || now != told))
    }
}

impl NodeSeries {
    fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            users: AtomicUsize::new(0),
            is_up: Value::new(),
            notifies: Value::new(),
            clock_offset_micros: Value::new(),
            is_routed: AtomicBool::new(false),
            is_replicated: AtomicBool::new(false),
            counts: [const { AtomicU64::new(0) }; COUNTERS.len()],
        }
    }

    /// Runs foreign code.
    fn tell(&self, all: bool) {
        let labels = || vec![Label::new("node", self.address.clone())];
        let is_known = self.is_up.now.load(Ordering::Acquire) != UNKNOWN;
        if let Some(is_up) = self.is_up.news(all) {
            gauge!(NODE_UP, labels()).set(if is_up == 0 { 0.0 } else { 1.0 });
        }
        if let Some(is_active) = self.notifies.news(all) {
            gauge!(NOTIFICATIONS_ACTIVE, labels()).set(if is_active == 0 { 0.0 } else { 1.0 });
        }
        if let Some(micros) = self.clock_offset_micros.news(all) {
            let seconds = Duration::from_micros(micros.unsigned_abs()).as_secs_f64();
            gauge!(CLOCK_OFFSET, labels()).set(if micros < 0 { -seconds } else { seconds });
        }
        for ((name, kind, of), count) in COUNTERS.iter().zip(&self.counts) {
            let is_told = match of {
                Of::Known => is_known,
                Of::Routed => self.is_routed.load(Ordering::Acquire),
                Of::Replicated => self.is_replicated.load(Ordering::Acquire),
            };
            if is_told {
                let kind = kind.map(|kind| Label::from_static_parts("kind", kind));
                let labels: Vec<Label> = labels().into_iter().chain(kind).collect();
                counter!(*name, labels).increment(count.swap(0, Ordering::AcqRel));
            }
        }
    }
}

/// Reports what has changed; on the thread for events only. Runs foreign code.
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

#[cfg(all(test, not(leasehold_shuttle)))]
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
