//! Which requests have their keys tracked by the nodes.

use std::sync::Arc;

use leasehold_protocol::{message::Route, tracking::Demand};

use crate::{
    foreign::{self, Event},
    quorum::Quorum,
    sync::atomic::{AtomicBool, Ordering},
    wait::Lines,
};

/// Shares the nodes' tracking capacity among renewals and waiters.
#[derive(Debug)]
pub(super) struct Tracking {
    quorum: Arc<Quorum>,
    lines: Arc<Lines>,
    queues: Arc<Lines>,
    observed: Arc<Lines>,
    /// Whether demand exceeds the nodes' capacity, which is then reported once.
    is_crowded: AtomicBool,
}

impl Tracking {
    pub(super) fn new(quorum: Arc<Quorum>, lines: Arc<Lines>, queues: Arc<Lines>, observed: Arc<Lines>) -> Self {
        Self { quorum, lines, queues, observed, is_crowded: AtomicBool::new(false) }
    }

    /// The route of a request whose key should be tracked, while `held` leases are held.
    pub(super) fn route(&self, held: usize) -> Route {
        let (awaited, queued, observed) = (self.lines.len(), self.queues.len(), self.observed.len());
        let capacity = self.quorum.tracking_capacity();
        if (Demand { held, awaited, queued, observed }).fits(capacity) {
            self.is_crowded.store(false, Ordering::Relaxed);
            return Route::Tracked;
        }
        if capacity > 0 && !self.is_crowded.swap(true, Ordering::Relaxed) {
            foreign::tell(Event::Crowded { held, awaited, queued, observed, capacity });
        }
        Route::Keeper
    }
}
