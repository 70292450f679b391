//! `leasehold run --stall-after`: a command that makes no progress is stopped before another can hold the lock.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use support::{Lag, Server, eventually};

use crate::scene::{HANGS, NAME, directory, end_of_writers, ended, ends_with, is_held, run, said, tool};

const STALL: [&str; 5] = ["-v", "--ttl", "1500ms", "--stall-after", "1s"];
/// Several times in half of that span.
const STEP: Duration = Duration::from_millis(50);

/// The socket to which a command reports, which it has written to this file.
fn socket_in(file: &Path) -> PathBuf {
    let words = || fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'));
    eventually(HANGS, "the command has begun", || words().is_some());
    let words = words().unwrap();
    let (socket, micros) = words.trim().split_once(' ').unwrap();
    assert_eq!(micros, "500000", "services report twice in that time");
    socket.into()
}

#[test]
fn a_command_that_reports_as_services_do_goes_on_and_one_that_stops_reporting_is_stopped() {
    let server = Server::start();
    let (_directory, file) = directory();
    let script = format!("echo $NOTIFY_SOCKET $WATCHDOG_USEC >{}; sleep 60", file.display());
    let mut runner = run(&server, &STALL, &script).env("WATCHDOG_PID", "1").spawn().unwrap();
    let (path, socket, began) = (socket_in(&file), UnixDatagram::unbound().unwrap(), Instant::now());
    while began.elapsed() < Duration::from_secs(4) {
        thread::sleep(STEP);
        socket.send_to(b"STATUS=row 7\nWATCHDOG=1", &path).unwrap();
    }
    assert!(runner.try_wait().unwrap().is_none(), "it makes progress");
    let stopped = Instant::now();
    // This is no progress.
    while runner.try_wait().unwrap().is_none() && stopped.elapsed() < HANGS {
        thread::sleep(STEP);
        let _gone = socket.send_to(b"STATUS=WATCHDOG=1", &path);
    }
    let output = runner.wait_with_output().unwrap();
    ends_with(
        &output,
        75,
        &["at risk: the command made no progress for 500ms", "made no progress for 1s; the command is stopped"],
    );
    assert!(!path.parent().unwrap().exists(), "nothing is left of the socket");
}

#[test]
fn a_file_that_changes_is_progress_and_needs_no_socket() {
    let server = Server::start();
    let (_directory, file) = directory();
    let options = [&STALL[..], &["--progress-file", file.to_str().unwrap()]].concat();
    // It need not be there before.
    let script =
        format!("for row in $(seq 40); do echo $row >{}; sleep 0.1; done; echo $NOTIFY_SOCKET", file.display());
    let output = run(&server, &options, &script).env_remove("NOTIFY_SOCKET").output().unwrap();
    ends_with(&output, 0, &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "\n", "{}", said(&output));
    let output = run(&server, &options, "sleep 60").output().unwrap();
    ends_with(&output, 75, &["made no progress for 1s"]);
}

#[test]
fn a_command_that_hangs_is_gone_before_the_next_holder_begins() {
    let (server, lag) = (Server::start(), Lag::start());
    let (_directory, pipe) = directory();
    let gone = end_of_writers(&pipe);
    let script = format!("exec >{}; while :; do sleep 0.1; done", pipe.display());
    let began = Instant::now();
    let runner = run(&server, &STALL, &script).spawn().unwrap();
    eventually(HANGS, "it has the lock", || is_held(&server));
    let next = tool(&server, &["run", NAME, "--", "true"]).output().unwrap();
    let (gone, at) = (gone.recv_timeout(HANGS).expect("it is stopped"), Instant::now());
    ends_with(&next, 0, &[]);
    assert!(gone < at, "the command ended {:?} after the next holder", gone - at);
    let due = Duration::from_secs(1) + Duration::from_millis(1_500 + 250);
    assert!(at - began < due + Duration::from_millis(500) + lag.worst(), "{:?}", at - began);
    assert_eq!(ended(runner).0.status.code(), Some(75));
}

/// Half of the span has passed then, but the whole of it has not.
#[test]
fn an_outage_is_not_blamed_on_the_command() {
    let server = Server::start();
    let options = ["--ttl", "2s", "--grace", "700ms", "--stall-after", "8s"];
    let runner = run(&server, &options, "sleep 60").spawn().unwrap();
    eventually(HANGS, "it has the lock", || is_held(&server));
    // Longer than half of the span: the command reports nothing.
    thread::sleep(Duration::from_millis(4_200));
    server.stop();
    let output = ended(runner).0;
    server.cont();
    ends_with(&output, 75, &["no renewal was confirmed"]);
    assert!(!said(&output).contains("made no progress"), "{}", said(&output));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let server = Server::start();
    for (options, says) in [
        (&["--stall-after", "1s"][..], &["--stall-after 1s", "a third of --ttl 30s", "shorter --ttl"][..]),
        (&["--stall-after", "0s"], &["--stall-after 0s", "a third of --ttl"]),
        (&["--stall-after", "2m", "--max-hold", "1m"], &["--stall-after 2m", "--max-hold 1m"]),
        (&["--progress-file", "/tmp/x"], &["--stall-after"]),
    ] {
        let output = run(&server, options, "true").output().unwrap();
        ends_with(&output, 64, says);
    }
    let output = run(&server, &STALL, "true").env("TMPDIR", "/nowhere").output().unwrap();
    ends_with(&output, 74, &["no socket for --stall-after", "TMPDIR", "--progress-file"]);
    assert!(!is_held(&server));
    let output = run(&server, &STALL, "true").env("NOTIFY_SOCKET", "/run/parent").output().unwrap();
    ends_with(&output, 0, &["that of our own parent gets no message from it"]);
}
