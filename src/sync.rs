//! What threads share is built from these, so that `scripts/shuttle` can put in others that switch threads at every
//! step (`crate::shuttled`).

#[cfg(not(all(test, leasehold_shuttle)))]
pub(crate) use {
    parking_lot::Mutex,
    std::sync::{OnceLock, atomic},
    tokio::sync::{Notify, Semaphore, SemaphorePermit},
};

#[cfg(all(test, leasehold_shuttle))]
pub(crate) use crate::shuttled::{Mutex, Notify, OnceLock, Semaphore, SemaphorePermit, atomic};
