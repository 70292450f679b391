//! The handles under many schedules. [shuttle](https://docs.rs/shuttle) runs the shipped code of caller, keeper and
//! wait queue, and decides at each step which thread continues. `scripts/shuttle` starts it; no user's build contains
//! it, because it needs both `--cfg leasehold_shuttle` and a test.
//!
//! # What is explored
//!
//! Everything from `Lock::acquire` to `Lease::drop` is the shipped code, with the memory node behind a [wire](wire) of
//! two routes. Threads switch at every access to a type of `crate::sync`. The mutexes and atomics are shuttle's.
//! `Notify`, `Semaphore` and `OnceLock` are tokio's and std's own: each operation is a single step with a switch before
//! it. Requests, answers, calls to fair waiters and everything that the keeper runs are tasks of their own, so they
//! come in every order that the routes allow. Each race is run under a random scheduler, and under one that finds bugs
//! of few preemptions with a known probability (PCT, depth 3).
//!
//! Time is the test's: it stands still, or moves to the next timer when the test says so. While it stands still, a
//! waiter that only a timer would help is a deadlock, and so a failure.
//!
//! # What is not explored
//!
//! - Orderings weaker than `SeqCst`: shuttle treats each atomic as the strongest. Loom would not, but fred does not
//!   build under its cfg, and none of our atomics publishes other data.
//! - The insides of tokio, and of types that are not of `crate::sync`. `quorum::Member`, the task tracker, cancellation
//!   tokens and `watch` channels act in one step, without a switch of their own.
//! - The instant between the watchdog's last check of a hold and the sending of its renewal: nothing switches there. A
//!   release that begins in it is followed by a renewal, which finds nothing to extend, because it checks the token.
//! - Redis: the tasks of connections. The fault suite covers the faults of the network, `verify/` several nodes.
//! - Every schedule: `scripts/shuttle` says how many are drawn. A failure prints its schedule, and the random scheduler
//!   its seed, from which `SHUTTLE_RANDOM_SEED` starts. `select!` without `biased`, and the order of hash tables, are
//!   not under shuttle's control, so now and then a schedule does not repeat.

use std::env;

use shuttle::{
    Config, MaxSteps, Runner,
    rand::{RngCore as _, thread_rng},
    scheduler::{PctScheduler, RandomScheduler},
};

use crate::sync::shuttle::{step, time};

mod closing;
mod holding;
mod signals;
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

/// Yields up to `steps` times, because a thread with little to do would otherwise finish too early.
fn linger(steps: u32) {
    for _ in 0..thread_rng().next_u32() % steps {
        step();
    }
}
