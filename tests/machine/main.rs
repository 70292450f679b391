//! Tests that need all processors, or take them from others. They run one at a time.

// Helpers of tests may panic and read clocks, like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::disallowed_methods)]

use std::sync::{Mutex, MutexGuard, PoisonError};

mod starved;

/// Waits for the other tests of this program.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
