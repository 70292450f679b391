//! The measurements of each node, by its address. Two `Leases` on one server share its series.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ::metrics::{Label, counter, gauge};
use leasehold_protocol::failure::Redirection;
use parking_lot::Mutex;

use super::series::Group;
use crate::{foreign, sync::catching_panics};

pub(super) const NODE_UP: &str = "leasehold_node_up";
pub(super) const CLOCK_OFFSET: &str = "leasehold_node_clock_offset_seconds";
pub(super) const NOTIFICATIONS_ACTIVE: &str = "leasehold_notifications_active";
pub(super) const RECONNECTS: &str = "leasehold_reconnects_total";
pub(super) const MOVES: &str = "leasehold_node_moves_total";
pub(super) const FAILOVERS: &str = "leasehold_failovers_total";
pub(super) const REDIRECTIONS: &str = "leasehold_redirections_total";
pub(super) const UNREPLICATED: &str = "leasehold_unreplicated_total";
pub(super) const REPLICATION: &str = "leasehold_replication_seconds";
pub(super) const UNDOS: &str = "leasehold_undos_unconfirmed_total";

/// The kinds of redirections.
const KINDS: [&str; 4] = ["moved", "ask", "tryagain", "down"];

/// A value that nobody knows yet, and that is not told.
const UNKNOWN: i64 = i64::MIN;

/// Every node that this process has known; as many as it has had addresses.
static NODES: Mutex<Vec<Arc<NodeSeries>>> = Mutex::new(Vec::new());

/// Whether one of them has news.
static HAVE_NEWS: AtomicBool = AtomicBool::new(false);

/// Undos that were given up, and not told yet.
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
    /// Since they were told.
    reconnects: AtomicU64,
    moves: AtomicU64,
    /// Others say where its servers are.
    is_routed: AtomicBool,
    failovers: AtomicU64,
    redirections: [AtomicU64; KINDS.len()],
    /// Replicas have to confirm what is written there.
    is_replicated: AtomicBool,
    unreplicated: AtomicU64,
}

#[derive(Debug)]
struct Value {
    now: AtomicI64,
    told: AtomicI64,
}

impl NodeMetrics {
    /// Of the node at this address, which must not contain a password.
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

    /// The same of servers that others name.
    pub(crate) fn of_routed(address: &str) -> Self {
        let of = Self::of(address);
        of.0.is_routed.store(true, Ordering::Release);
        have_news();
        of
    }

    /// The same of a server whose replicas have to confirm what is written there.
    pub(crate) fn of_replicated(address: &str) -> Self {
        let of = Self::of(address);
        of.0.is_replicated.store(true, Ordering::Release);
        have_news();
        of
    }

    /// Replicas have confirmed what was written, so long after its answer.
    #[allow(clippy::unused_self, reason = "without the label: a histogram is one for all nodes")]
    pub(crate) fn note_replicated(&self, took: Duration) {
        Group::default().record(REPLICATION, took.as_secs_f64());
    }

    /// Too few replicas have confirmed something in time.
    pub(crate) fn note_unreplicated(&self) {
        self.0.unreplicated.fetch_add(1, Ordering::AcqRel);
        have_news();
    }

    /// A replica has taken over from a primary.
    pub(crate) fn note_failover(&self) {
        self.0.failovers.fetch_add(1, Ordering::AcqRel);
        have_news();
    }

    /// A server has sent a request elsewhere, or back.
    pub(crate) fn note_redirection(&self, redirection: &Redirection) {
        let kind = match redirection {
            Redirection::Moved { .. } => 0,
            Redirection::Moving { to: Some(_) } => 1,
            Redirection::Moving { to: None } => 2,
            Redirection::Down => 3,
        };
        if let Some(count) = self.0.redirections.get(kind) {
            count.fetch_add(1, Ordering::AcqRel);
            have_news();
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
        self.0.is_up.set(i64::from(is_up))
    }

    /// A connection to it was lost, and there is another.
    pub(crate) fn note_reconnect(&self) {
        self.0.reconnects.fetch_add(1, Ordering::AcqRel);
        have_news();
        self.note_up(true);
    }

    /// Its address leads to another server.
    pub(crate) fn note_move(&self) {
        self.0.moves.fetch_add(1, Ordering::AcqRel);
        have_news();
    }

    pub(crate) fn note_notifications(&self, is_active: bool) {
        if self.0.notifies.set(i64::from(is_active)) {
            have_news();
        }
    }

    /// Whether anybody wants to know the offset of a node's clock.
    pub(crate) const WANT_CLOCKS: bool = true;

    /// By how much its clock is ahead of ours.
    pub(crate) fn note_clock_offset(&self, micros: i64) {
        if self.0.clock_offset_micros.set(micros) {
            have_news();
        }
    }
}

/// A node that no `Leases` uses counts as up. Otherwise one that failed its last request would stay down for ever.
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

impl NodeSeries {
    fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            users: AtomicUsize::new(0),
            is_up: Value::new(),
            notifies: Value::new(),
            clock_offset_micros: Value::new(),
            reconnects: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            is_routed: AtomicBool::new(false),
            failovers: AtomicU64::new(0),
            redirections: [const { AtomicU64::new(0) }; KINDS.len()],
            is_replicated: AtomicBool::new(false),
            unreplicated: AtomicU64::new(0),
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
        // From nought on, so that the first is an increase.
        let [reconnects, moves] = [&self.reconnects, &self.moves].map(|count| count.swap(0, Ordering::AcqRel));
        if is_known {
            counter!(RECONNECTS, labels()).increment(reconnects);
            counter!(MOVES, labels()).increment(moves);
        }
        if self.is_replicated.load(Ordering::Acquire) {
            counter!(UNREPLICATED, labels()).increment(self.unreplicated.swap(0, Ordering::AcqRel));
        }
        if self.is_routed.load(Ordering::Acquire) {
            counter!(FAILOVERS, labels()).increment(self.failovers.swap(0, Ordering::AcqRel));
            for (kind, count) in KINDS.iter().zip(&self.redirections) {
                let labels: Vec<Label> = labels().into_iter().chain([Label::from_static_parts("kind", kind)]).collect();
                counter!(REDIRECTIONS, labels).increment(count.swap(0, Ordering::AcqRel));
            }
        }
    }
}

/// Tells what has changed; on the thread for events only. Runs foreign code.
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
