//! Locks that many hold at a time: readers beside readers, and permits.

use std::time::Duration;

use leasehold::{Lease, Lock};
use support::{HANGS, Lag, within};

use crate::fair::line::PROMPT;

mod downgrading;
mod faults;
mod holding;
mod looking;

async fn acquired(lock: &Lock) -> Lease {
    within(HANGS, "the lock", lock.acquire()).await.unwrap()
}

/// What comes after this time comes at once, on a machine that lags: the request that changes the lock, the notification of
/// it, and the request of whoever waits, one after the other.
#[track_caller]
fn assert_prompt(after: Duration, lag: &Lag) {
    assert!(after < PROMPT + lag.of(3), "{after:?}; the machine lagged {:?}", lag.worst());
}
