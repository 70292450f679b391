//! Locks that many hold at a time: readers beside readers, and permits.

use std::time::Duration;

use leasehold::{Lease, Lock};
use support::{HANGS, within};

use crate::fair::line::PROMPT;

mod downgrading;
mod faults;
mod holding;
mod looking;

async fn acquired(lock: &Lock) -> Lease {
    within(HANGS, "the lock", lock.acquire()).await.unwrap()
}

/// Checks that this took no longer than a hand-off, plus the machine's lag. A hand-off has three steps in a row: the
/// request that changes the lock, its notification, and the next waiter's request.
#[track_caller]
fn assert_prompt(after: Duration, late: Duration) {
    assert!(after < PROMPT + late, "{after:?}, of which {late:?} may be the machine's");
}
