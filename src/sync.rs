//! The types that shared state is built from. `scripts/shuttle` replaces them with others, which switch threads at
//! every step (`crate::shuttle_tests`).

pub(crate) mod parker;
#[cfg(all(test, leasehold_shuttle))]
pub(crate) mod shuttle;

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::Mutex,
    std::sync::{OnceLock, atomic},
    tokio::sync::{Notify, Semaphore, SemaphorePermit},
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use self::shuttle::{Mutex, Notify, OnceLock, Semaphore, SemaphorePermit, atomic};

/// Runs a step that may run foreign code: wakers and subscribers. The panic hook has already reported a panic, which is
/// no reason to skip the next step.
pub(crate) fn catching_panics<T>(step: impl FnOnce() -> T) -> Option<T> {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let payload = match catch_unwind(AssertUnwindSafe(step)) {
        Ok(done) => return Some(done),
        Err(payload) => payload,
    };
    // The payload is foreign too: its drop may panic. The payload of that panic is leaked, not dropped.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    None
}
