//! Locks that many hold at a time: readers beside readers, and permits.

use leasehold::{Lease, Lock};
use support::{HANGS, within};

mod downgrading;
mod faults;
mod holding;
mod looking;

async fn acquired(lock: &Lock) -> Lease {
    within(HANGS, "the lock", lock.acquire()).await.unwrap()
}
