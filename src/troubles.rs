//! Failures that many callers meet at the same time, logged once for all of them: see `leasehold_protocol::troubles`.

use leasehold_protocol::{failure::Failure, time::Time, troubles};

use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// The troubles of all who share this.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    troubles: Mutex<troubles::TroubleLog>,
    /// Whether an end would be told, so that those who get answers need not ask for the lock.
    are_told: AtomicBool,
}

impl Troubles {
    /// A failure was met. If it is to be told: how often its cause was met since the last time.
    pub(crate) fn meet(&self, now: Time, failure: &Failure) -> Option<u64> {
        self.meet_causes(now, troubles::causes(failure))
    }

    /// A failure was met, which has these causes: like [`meet`](Self::meet).
    pub(crate) fn meet_causes(&self, now: Time, causes: impl IntoIterator<Item = String>) -> Option<u64> {
        let mut troubles = self.troubles.lock();
        let told = troubles.meet(now, causes);
        self.are_told.store(troubles.are_told(), Ordering::Relaxed);
        told
    }

    /// An answer has come. If that is to be told: how often a cause was met that was not told then.
    pub(crate) fn end(&self) -> Option<u64> {
        if !self.are_told.load(Ordering::Relaxed) {
            return None;
        }
        let mut troubles = self.troubles.lock();
        self.are_told.store(false, Ordering::Relaxed);
        troubles.end()
    }
}
