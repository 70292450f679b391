//! The seat of a node in its quorum: which server's answers count as this node's.

use std::sync::Arc;

use leasehold_protocol::node_health::Peers;
use parking_lot::Mutex;

use crate::clock::{self, Clock};

/// A node's seat. One run of a server has at most one, whatever address a connection was made to.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    at: usize,
    peers: Arc<Mutex<Peers>>,
    clock: Arc<dyn Clock>,
}

impl Seat {
    pub(crate) fn new(at: usize, peers: Arc<Mutex<Peers>>, clock: Arc<dyn Clock>) -> Self {
        Self { at, peers, clock }
    }

    /// Fails with the address of the node whose seat this run of a server has.
    pub(crate) fn check(&self, run_id: &str) -> Result<(), String> {
        // So it is at nearly every answer, for which no clock is read.
        if self.peers.lock().identities.is_known(self.at, run_id) {
            return Ok(());
        }
        let now = clock::now(&*self.clock);
        self.peers.lock().identities.enter(self.at, run_id, now).map_or(Ok(()), |other| Err(other.into()))
    }
}
