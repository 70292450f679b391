//! The seat of a node in its quorum: which server's answers count as this node's.

use std::sync::Arc;

use leasehold_protocol::{identities::Identities, node_health::Peers};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::clock::{self, Clock};

/// The nodes of one quorum, side by side.
#[derive(Debug)]
pub(crate) struct Table {
    peers: Mutex<Peers>,
    contested: Notify,
}

impl Table {
    pub(crate) fn new(peers: Peers) -> Arc<Self> {
        Arc::new(Self { peers: Mutex::new(peers), contested: Notify::new() })
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }

    /// Reports that two nodes have shown one server. Either may be the one that leads to the wrong place.
    pub(crate) fn contest(&self) {
        self.contested.notify_waiters();
    }
}

/// A node's seat. One run of a server has at most one, whatever address a connection was made to.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    at: usize,
    table: Arc<Table>,
    clock: Arc<dyn Clock>,
}

impl Seat {
    pub(crate) fn new(at: usize, table: Arc<Table>, clock: Arc<dyn Clock>) -> Self {
        Self { at, table, clock }
    }

    /// Whether an answer of this run of a server counts. Fails with the address of the node whose seat that run has.
    pub(crate) fn check(&self, run_id: &str) -> Result<(), String> {
        // So it is at nearly every answer, for which no clock is read.
        if self.table.peers().identities.count(self.at, run_id) {
            return Ok(());
        }
        self.enter(run_id, |identities| {
            identities.count(self.at, run_id);
        })
    }

    /// Notes the run that a connection leads to, before any answer of it counts.
    pub(crate) fn show(&self, run_id: &str) {
        let _checked_at_each_answer = self.enter(run_id, |_| {});
    }

    fn enter(&self, run_id: &str, and: impl FnOnce(&mut Identities)) -> Result<(), String> {
        let now = clock::now(&*self.clock);
        let mut peers = self.table.peers();
        let Some(other) = peers.identities.enter(self.at, run_id, now).map(Into::into) else {
            and(&mut peers.identities);
            return Ok(());
        };
        // Wakes others.
        drop(peers);
        self.table.contest();
        Err(other)
    }

    /// Completes when two nodes of the quorum have shown one server.
    pub(crate) async fn contested(&self) {
        self.table.contested.notified().await;
    }
}
