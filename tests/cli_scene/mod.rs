//! The built program, and what its tests look at.

// Each test file uses some of it.
#![allow(dead_code, unreachable_pub)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::support::{Server, TempDir, eventually};

pub const HANGS: Duration = Duration::from_secs(20);
pub const NAME: &str = "job";

/// `leasehold run` with these options, then `--` and this command of a shell.
pub fn run(server: &Server, options: &[&str], script: &str) -> Command {
    let mut command = tool(server, &["run"]);
    command.args(options).args([NAME, "--", "sh", "-c", script]);
    command
}

pub fn tool(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .env("REDIS_URL", server.url())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub fn ends_with(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

pub fn is_held(server: &Server) -> bool {
    server.wire().exists(NAME)
}

/// Waits until the lock is held and the command has said that it runs.
pub fn started(server: &Server, sign: &Path) {
    eventually(HANGS, "the command runs", || sign.exists() && is_held(server));
}

pub fn directory() -> (TempDir, PathBuf) {
    let directory = TempDir::new("cli");
    let sign = directory.path().join("sign");
    (directory, sign)
}

pub fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the runner is there");
}

pub fn is_there(pid: &Path) -> bool {
    let pid = fs::read_to_string(pid).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
    let Some(pid) = pid else { return false };
    // One that nobody has buried yet is gone.
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    test_kill_process(pid).is_ok() && !state.contains(") Z ")
}
