//! Time limits shared by many tests.

use std::time::Duration;

/// Anything that takes longer hangs. Not the bound of a promise.
pub const HANGS: Duration = Duration::from_secs(10);
/// How late a signal may be after its cause, not counting the machine's lag.
pub const SIGNAL: Duration = Duration::from_millis(50);
