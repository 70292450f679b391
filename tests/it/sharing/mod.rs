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

/// Checks that this came at once, but for so much by which the machine may be late. A hand-off takes three steps, one after
/// the other: the request that changes the lock, its notification, and the next one's request.
#[track_caller]
fn assert_prompt(after: Duration, late: Duration) {
    assert!(after < PROMPT + late, "{after:?}, of which {late:?} may be the machine's");
}
