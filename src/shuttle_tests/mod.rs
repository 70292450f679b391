//! The handles under every schedule that we can think of: the shipped code of caller, keeper and wait queue, run by
//! [shuttle](https://docs.rs/shuttle), which decides at each step which thread goes on. `scripts/shuttle` runs it; no
//! build of a user ever has it, for it takes both `--cfg leasehold_shuttle` and a test.
//!
//! # What is explored
//!
//! Everything from `Lock::acquire` to `Lease::drop` is the shipped code, with the memory node behind a [wire](wire) of
//! two routes. Threads switch at every access to what is built from `crate::sync`: the mutexes and atomics are
//! shuttle's; `Notify`, `Semaphore` and `OnceLock` are tokio's and std's own, each operation a single step with a switch
//! before it. Requests, answers, calls to fair waiters and everything that the keeper runs are tasks of their own, so
//! they come in every order that the routes allow. Each race is run under a random scheduler, and under one that finds bugs
//! of few preemptions with a known probability (PCT, depth 3).
//!
//! Time is the test's: it stands still, or moves to the next timer when the test says so. While it stands still, a
//! waiter that only a timer would help is a deadlock, and so a failure.
//!
//! # What is not
//!
//! - Orderings weaker than `SeqCst`: shuttle takes each atomic for the strongest. Loom would not, but fred does not build
//!   under its cfg, and none of our atomics publishes other data.
//! - The insides of tokio, and of what is not shared between caller, keeper and queue: `quorum::Member`, the task
//!   tracker, cancellation tokens and `watch` channels act in one step, without a switch of their own.
//! - The instant between the watchdog's last look at a hold and the handing over of its renewal: nothing switches there.
//!   A release that begins in it is followed by a renewal, which finds nothing to extend, for it is token-checked.
//! - Redis: fred's tasks and connections. The faults of the network are for the fault suite, several nodes for
//!   `verify/`.
//! - Every schedule: so many are drawn as `scripts/shuttle` says. A failure prints its schedule, and the random
//!   scheduler its seed, from which `SHUTTLE_RANDOM_SEED` starts. `select!` without `biased`, and the order of hash
//!   tables, are not shuttle's, so now and then a schedule does not repeat.

use std::{
    env,
    sync::{Arc, PoisonError},
};

use shuttle::{
    Config, MaxSteps, Runner,
    rand::{RngCore as _, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
    sync as shuttles,
};
use tokio::sync::{
    AcquireError, TryAcquireError,
    futures::{Notified, OwnedNotified},
};

pub(crate) use shuttle::sync::atomic;

mod closing;
mod holding;
mod signals;
pub(crate) mod time;
mod waiting;
mod wire;

/// Runs a race under as many schedules as `LEASEHOLD_SCHEDULES` says, of either kind.
fn explore(race: fn()) {
    let schedules = env::var("LEASEHOLD_SCHEDULES").ok().and_then(|number| number.parse().ok()).unwrap_or(200);
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    config.max_steps = MaxSteps::FailAfter(100_000);
    config.silence_warnings = true;
    let race = move || {
        time::begin();
        race();
    };
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(race);
    Runner::new(PctScheduler::new(3, schedules), config).run(race);
}

/// Another thread may go on here.
fn step() {
    let anything = atomic::AtomicBool::new(false);
    let _seen = anything.load(atomic::Ordering::SeqCst);
}

/// Lets the others go ahead by up to so many steps: a thread that has little to do would else be done too early.
fn linger(steps: u32) {
    for _ in 0..thread_rng().next_u32() % steps {
        step();
    }
}

/// As random as the schedule, so that it repeats with it.
pub(crate) fn random_uuid() -> uuid::Uuid {
    let mut random = thread_rng();
    uuid::Uuid::from_u64_pair(random.next_u64(), random.next_u64())
}

/// As `parking_lot::Mutex`, which knows no poison.
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

    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take()
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

/// Gives way before it is given back.
#[derive(Debug)]
pub(crate) struct SemaphorePermit<'a>(Option<tokio::sync::SemaphorePermit<'a>>);

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        step();
        self.0 = None;
    }
}
