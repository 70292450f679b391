//! Which requests have their keys tracked by the nodes.

use std::sync::Arc;

use leasehold_protocol::message::Route;

use crate::{
    foreign::{self, Event},
    quorum::Quorum,
    sync::atomic::{AtomicBool, Ordering},
    wait::Lines,
};

/// Shares the nodes' tracking capacity among renewals and waiters.
///
/// Either all keys fit in, or none is tracked. A full table would evict keys: each eviction would be a hint, and each
/// hint a renewal. Or nobody would be notified: a server does not report what a connection's own command evicts.
#[derive(Debug)]
pub(super) struct Tracking {
    quorum: Arc<Quorum>,
    lines: Arc<Lines>,
    queues: Arc<Lines>,
    /// There is more than the nodes track, and that was told.
    is_crowded: AtomicBool,
}

impl Tracking {
    pub(super) fn new(quorum: Arc<Quorum>, lines: Arc<Lines>, queues: Arc<Lines>) -> Self {
        Self { quorum, lines, queues, is_crowded: AtomicBool::new(false) }
    }

    /// The route of a request whose key is to be tracked, where so many leases are held.
    pub(super) fn route(&self, held: usize) -> Route {
        // A waiter's check reads the lock and its fence, a fair waiter's the queue as well.
        let (awaited, queued, room) = (self.lines.len(), self.queues.len(), self.quorum.tracking_capacity());
        if held + 2 * awaited + 4 * queued <= room {
            self.is_crowded.store(false, Ordering::Relaxed);
            return Route::Tracked;
        }
        if room > 0 && !self.is_crowded.swap(true, Ordering::Relaxed) {
            foreign::tell(Event::Crowded { held, awaited, queued, room });
        }
        Route::Keeper
    }
}
