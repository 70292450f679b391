//! Locks, atomics and time for `scripts/shuttle` (`crate::shuttle_tests`). Each access is a step, after which another
//! thread may run.

use std::sync::{Arc, PoisonError};

use shuttle::{
    rand::{RngCore as _, thread_rng},
    sync as shuttles,
};
use tokio::sync::{
    AcquireError, TryAcquireError,
    futures::{Notified, OwnedNotified},
};

pub(crate) use shuttle::sync::atomic;

pub(crate) mod time;

/// A step, at which another thread may run.
pub(crate) fn step() {
    let anything = atomic::AtomicBool::new(false);
    let _seen = anything.load(atomic::Ordering::SeqCst);
}

/// A uuid as random as the schedule, so that it repeats with it.
pub(crate) fn random_uuid() -> uuid::Uuid {
    let mut random = thread_rng();
    uuid::Uuid::from_u64_pair(random.next_u64(), random.next_u64())
}

/// Like `parking_lot::Mutex`, which has no poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttles::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttles::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> shuttles::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>);

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> Self {
        Self(std::sync::OnceLock::new())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        step();
        self.0.get()
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        step();
        self.0.get_or_init(init)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Notify(Arc<tokio::sync::Notify>);

impl Notify {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn notified_owned(self: Arc<Self>) -> OwnedNotified {
        step();
        self.0.clone().notified_owned()
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        step();
        self.0.notified()
    }

    pub(crate) fn notify_one(&self) {
        step();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        step();
        self.0.notify_waiters();
    }
}

#[derive(Debug)]
pub(crate) struct Semaphore(tokio::sync::Semaphore);

impl Semaphore {
    pub(crate) fn new(permits: usize) -> Self {
        Self(tokio::sync::Semaphore::new(permits))
    }

    pub(crate) fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        step();
        self.0.try_acquire().map(|permit| SemaphorePermit(Some(permit)))
    }

    pub(crate) async fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        step();
        self.0.acquire().await.map(|permit| SemaphorePermit(Some(permit)))
    }
}

/// A permit that yields before it is given back.
#[derive(Debug)]
pub(crate) struct SemaphorePermit<'a>(Option<tokio::sync::SemaphorePermit<'a>>);

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        step();
        self.0 = None;
    }
}
