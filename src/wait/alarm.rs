//! By when a waiter acts, and how it is woken before.

use std::pin::pin;

use leasehold_protocol::time::Time;

use crate::sync::{
    Notify,
    atomic::{AtomicU64, Ordering},
};

/// One waiter, or a line of them of which one has the turn.
#[derive(Debug)]
pub(super) struct Alarm {
    /// Nanoseconds on our clock.
    due: AtomicU64,
    notify: Notify,
}

impl Alarm {
    /// Nothing is due.
    pub(super) fn new() -> Self {
        Self { due: AtomicU64::new(Time::NEVER.as_nanos()), notify: Notify::new() }
    }

    /// Something is due at this moment, and the waiter looks at once.
    pub(super) fn ring(&self, at: Time) {
        self.due.fetch_min(at.as_nanos(), Ordering::AcqRel);
        self.notify.notify_one();
    }

    /// This is due from now on, whatever was before.
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

    /// All rings so far are dealt with.
    pub(super) fn quiet(&self) {
        let _rung_before = pin!(self.notify.notified()).enable();
    }
}
