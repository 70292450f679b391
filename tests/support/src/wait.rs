//! Waiting with a limit and a name, so that a test that would hang fails and reports what did not happen.

use std::future::Future;
use std::time::{Duration, Instant};

use super::lag::Lag;

/// Fine enough for a test to be exact, coarse enough to leave it the processor.
const POLL: Duration = Duration::from_millis(2);

/// Blocks until `holds` is true; panics with `what` once `limit` has passed.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, holds: impl FnMut() -> bool) {
    assert!(settles(limit, holds), "not within {limit:?}: {what}");
}

/// Blocks until `holds` is true, for at most `limit`; whether it was.
#[must_use]
pub(crate) fn settles(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// Like [`eventually`], but leaves the runtime free between two checks.
pub async fn eventually_async(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Like [`eventually_async`], with `limit` extended by the lag so far.
pub async fn eventually_but_for(lag: &Lag, limit: Duration, what: &str, holds: impl FnMut() -> bool) {
    const HANGS: Duration = Duration::from_secs(20);
    let start = Instant::now();
    eventually_async(limit + HANGS, what, holds).await;
    let (took, late) = (start.elapsed(), lag.worst());
    assert!(took <= limit + late, "not within {limit:?} but {took:?}: {what}; the machine lagged {late:?}");
}

/// The output of `future`; panics with `what` if it takes longer than `limit`.
///
/// The limit is measured by tokio's clock, so a paused clock applies to it.
pub async fn within<F: Future>(limit: Duration, what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(limit, future).await else {
        panic!("not within {limit:?}: {what}");
    };
    output
}
