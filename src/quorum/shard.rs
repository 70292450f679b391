//! The state of one shard of a node, and the limits of its traffic. A shard fails by itself, and holds up no other.
//!
//! # Invariants
//!
//! 1. A shard without trouble costs one load before it is asked, and one store and one load when it has answered: no
//!    mutex. While there is trouble, every answer is reported to the health.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold_protocol::{
    failure::Failure,
    node_health::{HealthOrders, NodeHealth},
    time::Time,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::undo_limits::UndoTurns;

/// One shard.
pub(super) struct ShardState {
    /// Nanoseconds on our clock; zero before the first.
    last_answer: AtomicU64,
    /// A copy of [`NodeHealth::is_troubled`], read without its mutex.
    is_troubled: AtomicBool,
    health: Mutex<NodeHealth>,
    back: Notify,
    is_gone: AtomicBool,
    /// Whether it was well when its health was last updated.
    is_up: AtomicBool,
    pub(super) undo_turns: UndoTurns,
}

impl ShardState {
    pub(super) fn new(health: NodeHealth) -> Self {
        Self {
            last_answer: AtomicU64::new(0),
            is_troubled: AtomicBool::new(false),
            health: Mutex::new(health),
            back: Notify::new(),
            is_gone: AtomicBool::new(false),
            is_up: AtomicBool::new(true),
            undo_turns: UndoTurns::default(),
        }
    }

    /// The node, unless asking it is pointless.
    pub(super) fn askable<'a, N>(&self, node: Option<&'a N>, needs_vote: bool) -> Result<&'a N, Failure> {
        match node {
            Some(node) if !self.is_troubled.load(Ordering::Acquire) => Ok(node),
            node => self.health.lock().askable(node, needs_vote),
        }
    }

    /// Notes an answer. Returns whether it has to be reported to the health.
    pub(super) fn answered(&self, now: Time) -> bool {
        self.last_answer.store(now.as_nanos(), Ordering::Release);
        self.is_troubled.load(Ordering::Acquire)
    }

    /// Notes a failure to answer. Called before the health catches up with the answers so far, so that every later one
    /// is reported to it.
    pub(super) fn note_trouble(&self) {
        self.is_troubled.store(true, Ordering::Release);
    }

    /// The health as it stands, to be read.
    pub(super) fn health(&self) -> MutexGuard<'_, NodeHealth> {
        self.health.lock()
    }

    /// The health, up to date with every answer so far.
    pub(super) fn health_by_now(&self) -> MutexGuard<'_, NodeHealth> {
        let mut health = self.health.lock();
        health.note_answer(Time::from_nanos(self.last_answer.load(Ordering::Acquire)));
        health
    }

    /// Feeds an event to the health. `note_up` receives whether the shard is well, in the order of the events.
    pub(super) fn update<T>(
        &self,
        now: impl FnOnce() -> Time,
        event: impl FnOnce(&mut NodeHealth, Time) -> (T, HealthOrders),
        note_up: impl FnOnce(bool),
    ) -> (T, HealthOrders) {
        let mut health = self.health_by_now();
        let outcome = event(&mut health, now());
        let is_troubled = health.is_troubled();
        self.is_troubled.store(is_troubled, Ordering::Release);
        self.is_up.store(!is_troubled, Ordering::Release);
        note_up(!is_troubled);
        outcome
    }

    /// Whether it is well; `None` for a removed shard.
    pub(super) fn is_up(&self) -> Option<bool> {
        (!self.is_gone.load(Ordering::Acquire)).then(|| self.is_up.load(Ordering::Acquire))
    }

    /// Wakes all that wait for an answer after a failure.
    pub(super) fn wake(&self) {
        self.back.notify_waiters();
    }

    /// Notes that the shard was removed and will not answer. All that wait for it look for another.
    pub(super) fn has_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.wake();
    }

    /// Completes when it has answered after a failure, or was removed.
    pub(super) async fn back(&self) {
        // Created before the check, so it is notified of a later removal.
        let back = self.back.notified();
        if !self.is_gone.load(Ordering::Acquire) {
            back.await;
        }
    }

    fn is_silent(&self) -> bool {
        self.is_troubled.load(Ordering::Acquire) && self.health.lock().is_silent()
    }

    /// Completes as soon as it is not silent.
    pub(super) async fn speaks(&self) {
        loop {
            // Created before the check, so it is notified of every later return.
            let back = self.back.notified();
            if !self.is_silent() {
                return;
            }
            back.await;
        }
    }
}
