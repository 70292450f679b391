//! What threads share is built from these, so that `scripts/shuttle` can put in others that switch threads at every
//! step (`crate::shuttle_tests`).

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::Mutex,
    std::sync::{OnceLock, atomic},
    tokio::sync::{Notify, Semaphore, SemaphorePermit},
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use crate::shuttle_tests::{Mutex, Notify, OnceLock, Semaphore, SemaphorePermit, atomic};

/// Takes a step that may run foreign code: wakers and subscribers. What one of them panics with was told by the hook of
/// panics, and is no reason to leave the next step out.
pub(crate) fn catching_panics<T>(step: impl FnOnce() -> T) -> Option<T> {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let payload = match catch_unwind(AssertUnwindSafe(step)) {
        Ok(done) => return Some(done),
        Err(payload) => payload,
    };
    // It is foreign too, and may panic when it is dropped. What that panics with is not tried again.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    None
}
