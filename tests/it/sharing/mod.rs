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

/// What comes after this time comes at once, on a machine that lags.
#[track_caller]
fn assert_prompt(after: Duration, lag: &Lag) {
    assert!(after < PROMPT + lag.worst(), "{after:?}, of which {:?} are the machine's", lag.worst());
}
