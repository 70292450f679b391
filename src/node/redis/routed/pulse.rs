//! The requests under way with one primary: whether it answers, and for which key to ask another server about it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{cross_check::CrossCheck, key::Key, time::Time};
use parking_lot::Mutex;

/// After this silence, a primary with a request under way may no longer be one.
pub(super) const SILENCE: Duration = Duration::from_millis(250);

/// The activity of one primary.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    under_way: AtomicUsize,
    /// The last answer, or the first request after nothing was under way.
    heard: AtomicU64,
    counted: AtomicU64,
    /// The key for which another server is asked about this one.
    key: Mutex<Option<Key>>,
    check: Mutex<CrossCheck>,
}

/// A request under way.
pub(super) struct UnderWay(Arc<Pulse>);

impl Pulse {
    pub(super) fn begin(self: &Arc<Self>, now: Time) -> UnderWay {
        if self.under_way.fetch_add(1, Ordering::AcqRel) == 0 {
            self.heard.store(now.as_nanos(), Ordering::Release);
        }
        UnderWay(self.clone())
    }

    /// Notes that an answer arrived.
    pub(super) fn heard(&self, now: Time) {
        self.heard.store(now.as_nanos(), Ordering::Release);
    }

    /// Notes that an answer about this key counts.
    pub(super) fn counted(&self, key: &Key, now: Time) {
        let before = Time::from_nanos(self.counted.swap(now.as_nanos(), Ordering::AcqRel));
        // Usually there is a key already, and any is good enough.
        if before == Time::ZERO {
            self.key.lock().get_or_insert_with(|| key.clone());
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire) > 0
    }

    pub(super) fn is_silent(&self, now: Time) -> bool {
        self.is_under_way() && now.since(Time::from_nanos(self.heard.load(Ordering::Acquire))) >= SILENCE
    }

    /// When another server is to be asked about this one.
    pub(super) fn check_due(&self, is_needed: bool) -> Time {
        match &*self.key.lock() {
            Some(_) => self.check.lock().due(Time::from_nanos(self.counted.load(Ordering::Acquire)), is_needed),
            None => Time::NEVER,
        }
    }

    /// Forgets the key, which another primary has by now.
    pub(super) fn forget(&self) {
        let mut key = self.key.lock();
        *key = None;
        self.counted.store(0, Ordering::Release);
    }

    /// Notes that it is asked now, for this key.
    pub(super) fn check(&self, now: Time) -> Option<Key> {
        self.check.lock().ask(now);
        self.key.lock().clone()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}
