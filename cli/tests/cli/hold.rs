//! `leasehold hold`: a lock for a script.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::Signal;

use support::{Server, eventually};

use crate::scene::{HANGS, LEASEHOLD, NAME, directory, ended, ends_with, is_held, said, send, tool};

/// A holder with its input open, and its first line.
fn hold(server: &Server, options: &[&str]) -> (Child, String) {
    let mut command = tool(server, &["hold", NAME]);
    let mut holder = command.args(options).stdin(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (holder, line)
}

/// The output of a holder that ends by itself, while its input is open.
fn refused(mut command: Command) -> Output {
    let mut holder = command.stdin(Stdio::piped()).spawn().unwrap();
    let _open = holder.stdin.take();
    holder.wait_with_output().unwrap()
}

/// Closes the holder's input, and returns its output.
fn closed(mut holder: Child) -> Output {
    drop(holder.stdin.take());
    holder.wait_with_output().unwrap()
}

#[test]
fn a_lock_is_held_until_the_input_is_closed_or_a_signal_comes() {
    let server = Server::start();
    let (holder, line) = hold(&server, &["--label", "script"]);
    let fence = server.wire().get(&format!("{{{NAME}}}:lh:fence")).unwrap();
    assert_eq!(line, format!("held {fence}\n"));
    assert!(is_held(&server));
    ends_with(&refused(tool(&server, &["hold", "-n", NAME])), 1, &[]);
    ends_with(&refused(tool(&server, &["hold", "-n", "-E", "0", NAME])), 0, &[]);
    let output = closed(holder);
    ends_with(&output, 0, &[]);
    assert_eq!(said(&output), "");
    assert!(!is_held(&server));
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (mut holder, _) = hold(&server, &[]);
        let _open = holder.stdin.take();
        send(&holder, signal);
        ends_with(&holder.wait_with_output().unwrap(), code, &[]);
        assert!(!is_held(&server));
    }
    let (holder, _) = hold(&server, &["--keep-for", "30s"]);
    ends_with(&closed(holder), 0, &[]);
    assert!(is_held(&server), "it is kept");
}

#[test]
fn several_locks_are_held_all_or_none() {
    let server = Server::start();
    let both = ["hold", "-n", "-l", "orders", "--lock", "users"];
    let mut holder = tool(&server, &both).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(holder.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let told = [lines.next().unwrap(), lines.next().unwrap()];
    let fence = |name: &str| server.wire().get(&format!("{{{name}}}:lh:fence")).unwrap();
    assert_eq!(told, ["orders", "users"].map(|name| format!("held {} {name}", fence(name))));
    ends_with(&refused(tool(&server, &both)), 1, &[]);
    ends_with(&refused(tool(&server, &["hold", "-n", "users"])), 1, &[]);
    ends_with(&closed(holder), 0, &[]);
    let (one, line) = {
        let mut one = tool(&server, &["hold", "-l", "users"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(one.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        (one, line)
    };
    assert_eq!(line, format!("held {}\n", fence("users")));
    // A holder of one of them keeps both away.
    ends_with(&refused(tool(&server, &both)), 1, &[]);
    assert!(!server.wire().exists("orders"));
    ends_with(&closed(one), 0, &[]);
    for (wrong, why) in
        [(&["hold"][..], "<NAME>"), (&["hold", "-l", "a", "b"], "there is no NAME"), (&["run", "true"], "COMMAND")]
    {
        ends_with(&tool(&server, wrong).output().unwrap(), 64, &[why]);
    }
    ends_with(&tool(&server, &["hold", "-l", "a\nb"]).output().unwrap(), 64, &["line break"]);
}

/// For example, output to a script that waits for something else first.
#[test]
fn an_output_that_nobody_reads_stops_no_renewal() {
    const CAPACITY: usize = 64 * 1024;
    let server = Server::start();
    let (_unread, mut full) = io::pipe().unwrap();
    full.write_all(&vec![b'.'; CAPACITY]).unwrap();
    let mut command = tool(&server, &["hold", "--ttl", "4s", NAME]);
    let holder = command.stdin(Stdio::piped()).stdout(full).spawn().unwrap();
    eventually(HANGS, "it is acquired", || is_held(&server));
    let renewals = || server.wire().calls("pexpire");
    let before = renewals();
    eventually(HANGS, "it is renewed for more than a TTL", || renewals() >= before + 5);
    assert!(is_held(&server));
    ends_with(&closed(holder), 0, &[]);
    assert!(!is_held(&server));
}

/// The exit code differs from that of a conflict: with `-E 0` a conflict would look like success.
#[test]
fn a_wait_ends_when_the_input_is_closed() {
    let server = Server::start();
    let (holder, _) = hold(&server, &[]);
    let mut waiter = tool(&server, &["hold", "-v", "-E", "0", NAME]).stdin(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(waiter.stderr.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("is held by"), "{told}");
    let output = closed(waiter);
    ends_with(&output, 74, &["standard input was closed before \"job\" was acquired"]);
    assert!(output.stdout.is_empty(), "{output:?}");
    ends_with(&closed(holder), 0, &[]);
    // The input's end is noticed while a server does not answer, too.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for input in [Stdio::piped(), Stdio::null()] {
        let mut waiter = tool(&server, &["hold", "--connect-timeout", "20s", "-E", "0", NAME]);
        waiter.env("LEASEHOLD_URL", format!("redis://{}", silent.local_addr().unwrap()));
        let output = closed(waiter.stdin(input).spawn().unwrap());
        ends_with(&output, 74, &["standard input was closed before \"job\" was acquired"]);
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn a_lost_lock_ends_hold() {
    let server = Server::start();
    let (mut holder, _) = hold(&server, &[]);
    let _open = holder.stdin.take();
    server.wire().del(NAME);
    ends_with(&ended(holder).0, 75, &["\"job\"", "its key is gone from the server"]);
    let (mut holder, _) = hold(&server, &["--ttl", "1s", "--max-hold", "1s"]);
    let _open = holder.stdin.take();
    ends_with(&ended(holder).0, 75, &["\"job\""]);
    eventually(HANGS, "it is free", || !is_held(&server));
}

/// The script that the help shows.
#[test]
fn a_script_of_bash_holds_a_lock() {
    let help = Command::new(LEASEHOLD).args(["hold", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, script) = help.split_once("# In a script of bash:\n").unwrap();
    let server = Server::start();
    let (directory, sign) = directory();
    let path = directory.path();
    let step = |name: &str, script: &str| {
        fs::write(path.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(path.join(name)).status().unwrap().success());
    };
    let run = |after: &str| {
        let script = script
            .replace("exec leasehold", &format!("exec {LEASEHOLD}"))
            .replace("\n  read ", "\n  export lock; read ");
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("{script}{after}")]).current_dir(path);
        bash.env("LEASEHOLD_URL", server.url()).env("LEASEHOLD_CONFIG", "/dev/null").output().unwrap()
    };
    let show = format!("{LEASEHOLD} show nightly >> {}", sign.display());
    step("step-one", &show);
    step("step-two", &show);
    let output = run("echo code $? fence $fence");
    ends_with(&output, 0, &[]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let fence = server.wire().get("{nightly}:lh:fence").unwrap();
    assert_eq!(printed, format!("code 0 fence {fence}\n"), "{}", said(&output));
    assert_eq!(fs::read_to_string(&sign).unwrap().matches("is held by").count(), 2);
    assert!(!server.wire().exists("nightly"));
    // The lock is taken away while the first step runs, so the second step does not run.
    let _unused = fs::remove_file(&sign);
    let until_it_has_ended = "while [ -e /proc/$lock ]; do sleep 0.01; done";
    step("step-one", &format!("{LEASEHOLD} release --force --yes nightly; {until_it_has_ended}"));
    let output = run("echo code $?");
    let script_saw = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(script_saw.contains("code 75") && !sign.exists(), "{script_saw} {}", said(&output));
}
