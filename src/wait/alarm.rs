//! The time by which a waiter acts, and how it is woken before.

use std::pin::pin;

use leasehold_protocol::time::Time;

use crate::sync::{
    Notify,
    atomic::{AtomicU64, Ordering},
};

/// The alarm of one waiter, or of a line in which one waiter has the turn.
#[derive(Debug)]
pub(super) struct Alarm {
    /// Nanoseconds on our clock.
    due: AtomicU64,
    notify: Notify,
}

impl Alarm {
    /// An alarm with nothing due.
    pub(super) fn new() -> Self {
        Self { due: AtomicU64::new(Time::NEVER.as_nanos()), notify: Notify::new() }
    }

    /// Makes the waiter due at `at`, unless it is due before, and wakes it at once.
    pub(super) fn ring(&self, at: Time) {
        self.due.fetch_min(at.as_nanos(), Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// Sets the due time, whatever it was before.
    pub(super) fn set(&self, at: Time) {
        self.due.store(at.as_nanos(), Ordering::Release);
    }

    pub(super) fn due(&self) -> Time {
        Time::from_nanos(self.due.load(Ordering::Acquire))
    }

    /// Completes when it has rung. One ring is kept until then.
    pub(super) async fn heard(&self) {
        self.notify.notified().await;
    }

    /// Discards all rings so far.
    pub(super) fn quiet(&self) {
        let _rung_before = pin!(self.notify.notified()).enable();
    }
}
