//! Tests that change process-wide state: the subscriber, logger, metrics recorder or panic hook.

use std::process::Stdio;

use super::{child::name_of, spawner};

/// Set in a process that runs a single test.
const ALONE: &str = "LEASEHOLD_TEST_ALONE";
/// Set by a runner that gives each test a process of its own.
const NEXTEST: (&str, &str) = ("NEXTEST_EXECUTION_MODE", "process-per-test");

/// Runs the body of the calling test in a process of its own: the test program again, for this test only.
///
/// The body has to be a closure in the test function itself, which is how the test's name is known.
///
/// # Panics
///
/// If the test fails there. The message contains its output.
#[track_caller]
pub fn alone<F: FnOnce()>(body: F) {
    if std::env::var_os(ALONE).is_some() || std::env::var(NEXTEST.0).is_ok_and(|mode| mode == NEXTEST.1) {
        return body();
    }
    let test = name_of::<F>();
    let program = std::env::current_exe().expect("the test program knows where it is");
    let mut command = spawner::mortal(&program);
    command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    // On a busy machine a backtrace's lines take a second to look up, which blocks the panicking thread.
    command.env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawner::spawn(command).expect("the test program starts again");
    let output = child.wait_with_output().expect("the test program ends");
    let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let has_run = said.contains("1 passed");
    assert!(output.status.success() && has_run, "{test}: {}\n{said}\n{complained}", output.status);
    println!("{said}");
}
