//! `leasehold observe`, as a user sees it.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;
use support::{Server, TempDir, eventually};

use crate::scene::{HANGS, NAME, ends_with, send, tool};

/// A running `leasehold observe`, and its output.
struct Observing {
    tool: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Observing {
    fn start(server: &Server, options: &[&str]) -> Self {
        let args = [&["observe"], options, &[NAME]].concat();
        let mut tool = tool(server, &args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(tool.stdout.take().unwrap()).lines();
        Self { tool, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it goes on").unwrap()
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        let _ended = self.tool.kill();
        let _ended = self.tool.wait();
    }
}

/// A runner that leads until it is terminated.
fn leader(server: &Server, label: &str) -> Child {
    let runner = tool(server, &["run", "--ttl", "2s", "--label", label, NAME, "--", "sleep", "60"]).spawn().unwrap();
    eventually(HANGS, "it is held", || server.wire().exists(NAME));
    runner
}

fn resigns(mut leader: Child) {
    send(&leader, Signal::TERM);
    assert_eq!(leader.wait().unwrap().code(), Some(143));
}

#[test]
fn each_change_is_a_line() {
    let server = Server::start();
    let (mut observing, mut objects) = (Observing::start(&server, &[]), Observing::start(&server, &["--json"]));
    assert_eq!(observing.line(), "vacant");
    let vacant: Value = serde_json::from_str(&objects.line()).unwrap();
    assert_eq!((&vacant["name"], &vacant["state"], &vacant["holder"]), (&NAME.into(), &"vacant".into(), &Value::Null));
    let leader = leader(&server, "10.0.0.7:8080");
    let led = observing.line();
    let fence = led.strip_prefix("led 10.0.0.7:8080 fence ").unwrap_or_else(|| panic!("{led:?}"));
    let object: Value = serde_json::from_str(&objects.line()).unwrap();
    assert_eq!((&object["state"], &object["holder"]["label"]), (&"led".into(), &"10.0.0.7:8080".into()));
    assert_eq!(object["holder"]["fence"].as_u64().map(|fence| fence.to_string()).as_deref(), Some(fence));
    assert!(object["holder"]["remaining_seconds"].as_f64().is_some_and(|left| left > 0.1), "{object}");
    resigns(leader);
    assert_eq!(observing.line(), "vacant");
}

#[test]
fn a_server_that_says_nothing_is_told_as_unknown_and_a_command_that_runs_is_waited_for() {
    let server = Server::start();
    let directory = TempDir::new("observe");
    let (said, gate) = (directory.path().join("said"), directory.path().join("gate"));
    // The first command runs until the gate is there; of the states meanwhile only the newest counts.
    let command = format!(
        "echo \"$LEASEHOLD_STATE $LEASEHOLD_LEADER ${{LEASEHOLD_FENCE:+term}}\" >> {}; until [ -e {} ]; do sleep 0.05; \
         done; [ \"$LEASEHOLD_STATE\" != led ]",
        said.display(),
        gate.display()
    );
    let mut observing = Observing::start(&server, &["--exec", &command]);
    assert_eq!(observing.line(), "vacant");
    let heard = || std::fs::read_to_string(&said).unwrap_or_default();
    eventually(HANGS, "the first command", || heard() == "vacant  \n");
    for label in ["one", "two"] {
        let leader = leader(&server, label);
        assert!(observing.line().starts_with(&format!("led {label} fence ")));
        if label == "one" {
            resigns(leader);
            assert_eq!(observing.line(), "vacant");
            continue;
        }
        std::fs::write(&gate, "").unwrap();
        eventually(HANGS, "the next command", || heard() == "vacant  \nled two term\n");
        send(&leader, Signal::KILL);
        drop(leader.wait_with_output().unwrap());
    }
    server.stop();
    assert_eq!(observing.line(), "unknown");
    eventually(HANGS, "the last command", || heard().ends_with("unknown  \n"));
    server.cont();
}

/// The label may have been written by another program.
#[test]
fn a_label_that_no_environment_can_have_ends_nothing() {
    let server = Server::start();
    let directory = TempDir::new("observe");
    let said = directory.path().join("said");
    let command = format!("printf '%s\\n' \"$LEASEHOLD_LEADER\" >> {}", said.display());
    let mut observing = Observing::start(&server, &["--exec", &command]);
    assert_eq!(observing.line(), "vacant");
    let value = "lh1:00000000-0000-4000-8000-000000000000:7@a\0b";
    server.wire().must(&["SET", NAME, value, "PX", "60000"]);
    assert!(observing.line().starts_with("led a\\u{0}b fence 7"));
    let heard = || std::fs::read_to_string(&said).unwrap_or_default();
    eventually(HANGS, "the command", || heard() == "\na\u{fffd}b\n");
}

#[test]
fn once_answers_by_its_exit_code() {
    let server = Server::start();
    let once = || tool(&server, &["observe", "--once", NAME]).output().unwrap();
    let (vacant, leader) = (once(), leader(&server, "one"));
    ends_with(&vacant, 1, &[]);
    assert_eq!(vacant.stdout, b"vacant\n");
    let led = once();
    ends_with(&led, 0, &[]);
    assert!(led.stdout.starts_with(b"led one fence "), "{led:?}");
    resigns(leader);
    server.wire().must(&["RPUSH", NAME, "no lock"]);
    let unknown = once();
    ends_with(&unknown, 2, &[]);
    assert_eq!(unknown.stdout, b"unknown\n");
    ends_with(&tool(&server, &["observe", "--once", "--exec", "true", NAME]).output().unwrap(), 64, &["--exec"]);
    ends_with(&tool(&server, &["observe", ""]).output().unwrap(), 64, &["name"]);
}

/// For example, to a user that may not read locks.
#[test]
fn a_refusal_is_told_once_and_ends_a_single_look() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "default", "-getrange"]);
    let once = tool(&server, &["observe", "--once", NAME]).output().unwrap();
    ends_with(&once, 69, &["GETRANGE", "rights"]);
    assert_eq!(once.stdout, b"unknown\n");
    let mut observing = Observing::start(&server, &[]);
    assert_eq!(observing.line(), "unknown");
    let mut errors = BufReader::new(observing.tool.stderr.take().unwrap()).lines();
    let why = errors.next().expect("it says why").unwrap();
    assert!(why.starts_with("leasehold: who holds it is not known: ") && why.contains("GETRANGE"), "{why}");
    let before = server.wire().calls("evalsha");
    eventually(HANGS, "it looks again", || server.wire().calls("evalsha") > before + 3);
    server.wire().must(&["ACL", "SETUSER", "default", "+getrange"]);
    assert_eq!(observing.line(), "vacant");
    observing.tool.kill().unwrap();
    let more: Vec<_> = errors.map(Result::unwrap).collect();
    assert!(more.is_empty(), "{more:?}");
}

/// It ends when its reader has gone, without waiting for a change to notice that.
#[test]
fn it_ends_with_its_reader() {
    let server = Server::start();
    let mut observing = Observing::start(&server, &[]);
    assert_eq!(observing.line(), "vacant");
    let Observing { tool, lines } = &mut observing;
    // The other end of the pipe.
    drop(std::mem::replace(lines, BufReader::new(null()).lines()));
    eventually(HANGS, "it ends", || tool.try_wait().unwrap().is_some());
    assert_eq!(tool.wait().unwrap().code(), Some(0));
}

/// Its command matters more than its output.
#[test]
fn with_a_command_it_outlives_its_reader() {
    let server = Server::start();
    let directory = TempDir::new("observe");
    let said = directory.path().join("said");
    let command = format!("echo \"$LEASEHOLD_STATE\" >> {}", said.display());
    let mut observing = Observing::start(&server, &["--exec", &command]);
    assert_eq!(observing.line(), "vacant");
    drop(std::mem::replace(&mut observing.lines, BufReader::new(null()).lines()));
    let leader = leader(&server, "one");
    eventually(HANGS, "the command", || std::fs::read_to_string(&said).is_ok_and(|said| said == "vacant\nled\n"));
    resigns(leader);
}

/// A file has no reader that could go away.
#[test]
fn it_goes_on_without_a_pipe() {
    let server = Server::start();
    let directory = TempDir::new("observe");
    let file = directory.path().join("lines");
    let output = std::fs::File::create(&file).unwrap();
    let mut tool = tool(&server, &["observe", NAME]).stdout(output).spawn().unwrap();
    let lines = || std::fs::read_to_string(&file).unwrap();
    eventually(HANGS, "the first line", || lines() == "vacant\n");
    let leader = leader(&server, "one");
    eventually(HANGS, "the next line", || lines().lines().count() == 2);
    assert_eq!(tool.try_wait().unwrap(), None);
    tool.kill().unwrap();
    tool.wait().unwrap();
    resigns(leader);
}

fn null() -> ChildStdout {
    let mut child = std::process::Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    child.wait().unwrap();
    output
}
