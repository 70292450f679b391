//! Limits how many undos one node may have, and how many of them ask at a time.
//!
//! # Invariants
//!
//! 1. The undos of attempts weigh at most [`FULL`] together on each node. The undos of leases have no limit of their
//!    own, because there are no more of them than leases were held.
//! 2. The first try to release a lease does not wait for any second try, nor for any attempt. So the release of a
//!    living lease is not queued behind those of dead ones.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::troubles::Troubles;

/// The most tries that are under way at a time on one shard: thousands at once would time out behind each other.
const AT_ONCE: usize = 256;

/// The most that the undos of attempts may weigh together on one node, in bytes.
const FULL: usize = 16 * 1024 * 1024;

/// The memory for the undos of one node.
#[derive(Debug, Default)]
pub(super) struct Undos {
    weight: AtomicUsize,
    is_full: AtomicBool,
    /// Why some undos were left.
    pub(super) left: Troubles,
}

/// Whether there is memory for one more.
pub(super) enum Fits {
    Yes,
    No { is_news: bool },
}

impl Undos {
    /// Takes memory for an undo of an attempt (invariant 1).
    pub(super) fn enter(&self, weight: usize) -> Fits {
        let fits = self.weight.fetch_add(weight, Ordering::Relaxed) + weight <= FULL;
        let was_full = self.is_full.swap(!fits, Ordering::Relaxed);
        if fits {
            return Fits::Yes;
        }
        self.leave(weight);
        Fits::No { is_news: !was_full }
    }

    /// Gives the memory back.
    pub(super) fn leave(&self, weight: usize) {
        self.weight.fetch_sub(weight, Ordering::Relaxed);
    }
}

/// The turns in which the undos of one shard ask.
#[derive(Debug)]
pub(super) struct UndoTurns {
    leases: Semaphore,
    leases_again: Semaphore,
    attempts: Semaphore,
}

impl Default for UndoTurns {
    fn default() -> Self {
        let [leases, leases_again, attempts] = [(); 3].map(|()| Semaphore::new(AT_ONCE));
        Self { leases, leases_again, attempts }
    }
}

impl UndoTurns {
    /// Awaits the next turn (invariant 2).
    pub(super) async fn take(&self, is_attempt: bool, is_first: bool) -> Option<SemaphorePermit<'_>> {
        let turns = match (is_attempt, is_first) {
            (true, _) => &self.attempts,
            (false, true) => &self.leases,
            (false, false) => &self.leases_again,
        };
        turns.acquire().await.ok()
    }
}
