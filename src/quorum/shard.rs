//! The knowledge about one shard of a node, and the limits of its traffic. A shard fails by itself, and holds up no
//! other.
//!
//! # Invariants
//!
//! 1. A shard without trouble costs one load before it is asked, and one store and one load when it has answered: no
//!    lock. While there is trouble, every answer goes to the health.

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
    /// [`NodeHealth::is_troubled`], for those who do not have its lock.
    is_troubled: AtomicBool,
    health: Mutex<NodeHealth>,
    back: Notify,
    is_gone: AtomicBool,
    /// Whether it has answered as it should, the last time that its health was told.
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

    /// It has answered. Whether its health has to hear of that.
    pub(super) fn answered(&self, now: Time) -> bool {
        self.last_answer.store(now.as_nanos(), Ordering::Release);
        self.is_troubled.load(Ordering::Acquire)
    }

    /// It has failed to answer. Said before the health catches up with the answers so far, so that it hears of every
    /// one after those.
    pub(super) fn note_trouble(&self) {
        self.is_troubled.store(true, Ordering::Release);
    }

    /// The health as it stands, for a look.
    pub(super) fn health(&self) -> MutexGuard<'_, NodeHealth> {
        self.health.lock()
    }

    /// The health, which knows of every answer by now.
    pub(super) fn health_by_now(&self) -> MutexGuard<'_, NodeHealth> {
        let mut health = self.health.lock();
        health.note_answer(Time::from_nanos(self.last_answer.load(Ordering::Acquire)));
        health
    }

    /// Tells the health of an event. `note_up` is told whether it is well, in the order of the events.
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

    /// Whether it is well; nothing of one that has gone.
    pub(super) fn is_up(&self) -> Option<bool> {
        (!self.is_gone.load(Ordering::Acquire)).then(|| self.is_up.load(Ordering::Acquire))
    }

    /// It answers after a failure: all who wait for that go on.
    pub(super) fn wake(&self) {
        self.back.notify_waiters();
    }

    /// The shard is no more, and will answer nobody: all who wait for that look for another.
    pub(super) fn has_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.wake();
    }

    /// Completes when it has answered after a failure, or has gone.
    pub(super) async fn back(&self) {
        // Made before the look, it hears of an end after it.
        let back = self.back.notified();
        if !self.is_gone.load(Ordering::Acquire) {
            back.await;
        }
    }

    fn is_silent(&self) -> bool {
        self.is_troubled.load(Ordering::Acquire) && self.health.lock().is_silent()
    }

    /// Completes when it is not silent, or not any more.
    pub(super) async fn speaks(&self) {
        loop {
            // Made before the look, it hears of every return after it.
            let back = self.back.notified();
            if !self.is_silent() {
                return;
            }
            back.await;
        }
    }
}
