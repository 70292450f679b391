//! Failures that many callers meet at the same time, logged once for all of them: see `leasehold_protocol::troubles`.

use leasehold_protocol::{failure::Failure, time::Time, troubles};

use crate::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// The troubles of all callers that share this.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    troubles: Mutex<troubles::TroubleLog>,
    /// Whether an end would be reported. If not, a caller that receives an answer need not lock `troubles`.
    are_told: AtomicBool,
}

impl Troubles {
    /// Notes a failure. If it is to be reported, returns how often its cause was met since the last report.
    pub(crate) fn meet(&self, now: Time, failure: &Failure) -> Option<u64> {
        self.meet_causes(now, troubles::causes(failure))
    }

    /// Like [`meet`](Self::meet), for a failure with these causes.
    pub(crate) fn meet_causes(&self, now: Time, causes: impl IntoIterator<Item = String>) -> Option<u64> {
        let mut troubles = self.troubles.lock();
        let told = troubles.meet(now, causes);
        self.are_told.store(troubles.are_told(), Ordering::Relaxed);
        told
    }

    /// Notes an answer. If that is to be reported, returns how often a cause was met without a report.
    pub(crate) fn end(&self) -> Option<u64> {
        if !self.are_told.load(Ordering::Relaxed) {
            return None;
        }
        let mut troubles = self.troubles.lock();
        self.are_told.store(false, Ordering::Relaxed);
        troubles.end()
    }
}
