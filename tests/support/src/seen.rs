//! A test's measurements, for the table that `scripts/faults` writes.
//!
//! Each figure is a line of JSON, appended to the file named by the environment; if unset, nothing is written. A figure
//! decides nothing: the test's assertions do that.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use super::lag::Lag;

const FILE: &str = "LEASEHOLD_FAULTS_SEEN";

/// Whether figures are collected, so that the test may take more time.
pub fn is_wanted() -> bool {
    std::env::var_os(FILE).is_some()
}

/// Records a time, and its bound on a machine that is never late. The longest is the worst.
pub fn took(what: &str, took: Duration, bound: Duration, lag: &Lag) {
    let [took, bound, late] = [took, bound, lag.worst()].map(|time| time.as_secs_f64() * 1e3);
    tell(&serde_json::json!({ "what": what, "ms": took, "bound": bound, "late": late }));
}

/// Records a number, and its upper bound. The largest is the worst.
pub fn at_most(what: &str, number: usize, bound: usize) {
    tell(&serde_json::json!({ "what": what, "number": number, "at_most": bound }));
}

/// Records a number, and its lower bound. The smallest is the worst.
pub fn at_least(what: &str, number: usize, bound: usize) {
    tell(&serde_json::json!({ "what": what, "number": number, "at_least": bound }));
}

/// Records a number without a bound.
pub fn counted(what: &str, number: usize) {
    tell(&serde_json::json!({ "what": what, "number": number }));
}

fn tell(figure: &serde_json::Value) {
    let Some(file) = std::env::var_os(FILE) else { return };
    let mut file = OpenOptions::new().append(true).create(true).open(file).expect("the file for figures opens");
    // One write, so that lines of several threads and processes do not mix.
    file.write_all(format!("{figure}\n").as_bytes()).expect("the file for figures takes a line");
}
