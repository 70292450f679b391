//! Times that many tests share.

use std::time::Duration;

/// What takes longer hangs. No bound of any promise.
pub const HANGS: Duration = Duration::from_secs(10);
/// What a signal may lag behind its cause, besides what the machine lags.
pub const SIGNAL: Duration = Duration::from_millis(50);
