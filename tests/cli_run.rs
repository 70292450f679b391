//! `leasehold run`, as a user has it: the built program against real servers.

// The library's doors for time, threads and tasks are not those of its tests.
#![allow(clippy::disallowed_methods)]
// A helper that cannot do its work has to stop the test and say why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod cli_scene;
mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use cli_scene::{HANGS, NAME, directory, ends_with, is_held, is_there, run, said, send, started, tool};
use rustix::{io::ioctl_fionread, process::Signal};
use support::{Action, Lag, Match, Proxy, Server, eventually, scripts::ACQUIRE};

#[test]
fn a_command_has_its_input_output_arguments_and_exit_code() {
    let server = Server::start();
    let mut command =
        run(&server, &["--label", "me"], "read line; echo $line $LEASEHOLD_NAME $LEASEHOLD_LABEL; exit 7");
    let mut runner = command.stdin(Stdio::piped()).spawn().unwrap();
    runner.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = runner.wait_with_output().unwrap();
    ends_with(&output, 7, &[]);
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), said(&output).as_str()), ("hello job me\n", ""));
    assert!(!is_held(&server));
    // The fence, and never the token, is in the environment.
    let printed = run(&server, &[], "env").output().unwrap();
    let environment = String::from_utf8_lossy(&printed.stdout).into_owned();
    let fence = environment.lines().find_map(|line| line.strip_prefix("LEASEHOLD_FENCE="));
    assert!(fence.is_some_and(|fence| fence.parse::<u64>().is_ok()), "{environment}");
    let by_signal = run(&server, &[], "kill -USR1 $$").output().unwrap();
    ends_with(&by_signal, 128 + Signal::USR1.as_raw(), &[]);
}

#[test]
fn a_command_that_cannot_run_leaves_no_lock() {
    let server = Server::start();
    for (command, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        let output = tool(&server, &["run", NAME, "--", command]).output().unwrap();
        ends_with(&output, code, &[command]);
        assert!(!is_held(&server));
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_sent() {
    let server = Server::start();
    for (options, words) in [
        (&["run", "", "--", "true"][..], &["name is empty"][..]),
        (&["run", "--ttl", "soon", NAME, "--", "true"], &["\"soon\"", "500ms"]),
        (&["run", "--ttl", "50ms", NAME, "--", "true"], &["--ttl"]),
        (&["run", "--ttl", "10s", "--grace", "5s", NAME, "--", "true"], &["--grace", "--ttl"]),
        (
            &["run", "--quorum", "redis://a,redis://b,redis://c", "--keep-for", "50s", NAME, "--", "true"],
            &["--keep-for", "31s"],
        ),
        (&["run", "--signal", "LOUD", NAME, "--", "true"], &["\"LOUD\"", "TERM"]),
        (&["run", "--url", "http://x", NAME, "--", "true"], &["redis://"]),
        (&["run", NAME], &["COMMAND"]),
        (&["run", "-n", "-w", "1", NAME, "--", "true"], &["--wait"]),
    ] {
        let output = tool(&server, options).output().unwrap();
        ends_with(&output, 64, words);
    }
    assert_eq!(server.wire().keys("*"), Vec::<String>::new());
    let nobody =
        tool(&server, &["run", "--url", "redis://127.0.0.1:1", "--connect-timeout", "300ms", NAME, "--", "true"]);
    ends_with(&{ nobody }.output().unwrap(), 69, &["cannot reach redis at 127.0.0.1:1"]);
}

#[test]
fn a_lock_that_is_held_is_a_conflict() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let mut holder = run(&server, &[], &format!("echo > {}; sleep 30", sign.display())).spawn().unwrap();
    started(&server, &sign);
    ends_with(&run(&server, &["-n"], "true").output().unwrap(), 1, &["is held"]);
    ends_with(&run(&server, &["-n", "-E", "9"], "true").output().unwrap(), 9, &["is held"]);
    let (lag, asked) = (Lag::start(), Instant::now());
    ends_with(&run(&server, &["-w", "300ms"], "true").output().unwrap(), 1, &["waited"]);
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(2) + lag.worst(), "{took:?}");
    send(&holder, Signal::TERM);
    assert_eq!(holder.wait().unwrap().code(), Some(143));
    assert!(!is_held(&server));
}

#[test]
fn a_lost_lock_ends_the_command() {
    let server = Server::start();
    let (_directory, sign) = directory();
    // Whoever is asked ends by itself.
    let script =
        format!("trap 'echo asked >> {0}; exit 0' TERM; echo > {0}; while :; do sleep 0.05; done", sign.display());
    let runner = run(&server, &["--ttl", "3s"], &script).spawn().unwrap();
    started(&server, &sign);
    server.wire().del(NAME);
    let output = runner.wait_with_output().unwrap();
    ends_with(&output, 75, &["its key is gone from the server", "the command is stopped"]);
    assert_eq!(fs::read_to_string(&sign).unwrap(), "\nasked\n");
}

/// The moments at which a command was there, the last one of them.
fn last_sign_of_life(sign: &Path) -> SystemTime {
    let text = fs::read_to_string(sign).unwrap();
    let nanos: u64 = text.lines().next_back().and_then(|line| line.trim().parse().ok()).expect("a time");
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

#[test]
fn a_command_that_hears_nothing_is_gone_before_its_lease() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("trap '' TERM; while :; do date +%s%N >> {}; sleep 0.01; done", sign.display());
    let runner = run(&server, &["--ttl", "2s", "--grace", "500ms"], &script).spawn().unwrap();
    started(&server, &sign);
    // Nothing that is asked for from here on is confirmed: the lease ends a TTL from now at the latest.
    server.stop();
    let deadline = SystemTime::now() + TTL;
    let output = runner.wait_with_output().unwrap();
    let last = last_sign_of_life(&sign);
    server.cont();
    assert!(last < deadline, "it was there {:?} after its lease", last.duration_since(deadline));
    ends_with(&output, 75, &["about to be lost"]);
}

#[test]
fn a_command_is_stopped_before_it_was_held_for_too_long() {
    const MOST: Duration = Duration::from_secs(2);
    let server = Server::start();
    let (lag, started) = (Lag::start(), Instant::now());
    let output = run(&server, &["--ttl", "2s", "--max-hold", "2s"], "sleep 60").output().unwrap();
    let took = started.elapsed();
    ends_with(&output, 75, &["--max-hold"]);
    assert!(took < MOST + lag.worst(), "{took:?}");
}

#[test]
fn nobody_has_to_listen() {
    let server = Server::start();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    for line in [
        format!("{leasehold} completions bash | true; {leasehold} man | head -n 1 >/dev/null"),
        format!("{leasehold} run -v {NAME} -- sh -c 'exit 5' 2>&1 >/dev/null | true"),
        format!("{leasehold} run -v {NAME} -- sh -c 'exit 5' >&- 2>&-; test $? = 5"),
    ] {
        let output = Command::new("sh").args(["-c", &line]).env("REDIS_URL", server.url()).output().unwrap();
        ends_with(&output, 0, &[]);
        assert!(!said(&output).contains("panicked"), "{}", said(&output));
    }
    eventually(HANGS, "it is free", || !is_held(&server));
}

#[test]
fn who_is_killed_takes_the_command_along() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo $$ > {}; sleep 60 & wait", sign.display());
    let mut runner = run(&server, &["--ttl", "2s"], &script).spawn().unwrap();
    started(&server, &sign);
    runner.kill().unwrap();
    runner.wait().unwrap();
    eventually(HANGS, "the command is gone", || !is_there(&sign));
}

#[test]
fn signals_are_the_commands() {
    let server = Server::start();
    for (signal, name) in [(Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1"), (Signal::QUIT, "QUIT")] {
        let (_directory, sign) = directory();
        let script = format!("trap 'exit 33' {name}; echo > {}; while :; do sleep 0.05; done", sign.display());
        let runner = run(&server, &[], &script).spawn().unwrap();
        started(&server, &sign);
        send(&runner, signal);
        ends_with(&runner.wait_with_output().unwrap(), 33, &[]);
        assert!(!is_held(&server));
    }
}

#[test]
fn who_waits_leaves_at_a_signal() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let mut holder = run(&server, &[], &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    let mut waiter = run(&server, &["--fair", "-v"], "true").spawn().unwrap();
    let mut told = String::new();
    BufReader::new(waiter.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("is held by"), "{told}");
    let queue = format!("{{{NAME}}}:lh:queue");
    assert!(server.wire().exists(&queue), "it waits");
    send(&waiter, Signal::TERM);
    assert_eq!(waiter.wait().unwrap().code(), Some(143));
    assert!(!server.wire().exists(&queue), "it has left the queue");
    send(&holder, Signal::TERM);
    holder.wait().unwrap();
}

#[test]
fn what_a_command_leaves_behind_ends_before_the_lock_is_free() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!(
        "sh -c 'trap \"\" TERM; echo $$ > {}; sleep 60; sleep 60' & while [ ! -s {0} ]; do sleep 0.01; done",
        sign.display()
    );
    let script = script.replace("{0}", &sign.display().to_string());
    let output = run(&server, &["--grace", "300ms"], &script).output().unwrap();
    ends_with(&output, 0, &[]);
    assert!(!is_there(&sign), "it is still there");
    assert!(!is_held(&server));
}

#[test]
fn a_quick_command_keeps_its_lock_for_as_long_as_it_is_told() {
    let server = Server::start();
    ends_with(&run(&server, &["--keep-for", "2s"], "true").output().unwrap(), 0, &[]);
    let kept = server.wire().pttl(NAME);
    assert!((1..=2_000).contains(&kept), "{kept} ms");
    ends_with(&run(&server, &["-n"], "true").output().unwrap(), 1, &["is held"]);
    eventually(HANGS, "it is free", || !is_held(&server));
}

#[test]
fn of_fifty_crons_one_runs() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo ran >> {}", sign.display());
    let runners: Vec<Child> =
        (0..50).map(|_| run(&server, &["-n", "--keep-for", "30s"], &script).spawn().unwrap()).collect();
    let codes: Vec<_> = runners.into_iter().map(|mut runner| runner.wait().unwrap().code().unwrap()).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| [0, 1].contains(code)), "{codes:?}");
    assert_eq!(fs::read_to_string(&sign).unwrap(), "ran\n");
}

#[test]
fn who_was_stopped_past_its_lease_kills_first() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.05; done", sign.display());
    let runner = run(&server, &["--ttl", "1s"], &script).spawn().unwrap();
    started(&server, &sign);
    send(&runner, Signal::STOP);
    eventually(HANGS, "the lease is over", || !is_held(&server));
    let (lag, continued) = (Lag::start(), Instant::now());
    send(&runner, Signal::CONT);
    let output = runner.wait_with_output().unwrap();
    let took = continued.elapsed();
    ends_with(&output, 75, &["the command is stopped"]);
    assert!(took < Duration::from_millis(500) + lag.worst(), "{took:?}");
    assert!(!is_there(&sign));
}

/// A command in the background of its terminal would be stopped when it reads.
#[test]
fn the_terminal_is_the_commands_while_it_runs() {
    let server = Server::start();
    let runner = env!("CARGO_BIN_EXE_leasehold");
    let line = format!(
        "{runner} run {NAME} -- sh -c 'read line; echo the line was $line'; {runner} show {NAME}; read rest; echo then $rest"
    );
    // It gives what it runs a terminal.
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("REDIS_URL", server.url()).env("SHELL", "/bin/sh");
    let mut terminal = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script is there");
    let mut input = terminal.stdin.take().unwrap();
    input.write_all(b"hello\n").unwrap();
    eventually(HANGS, "the command has run", || {
        server.wire().exists(&format!("{{{NAME}}}:lh:fence")) && !is_held(&server)
    });
    // We have it back, and so does whoever has started us.
    input.write_all(b"again\n").unwrap();
    let output = terminal.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the line was hello") && said.contains("is free") && said.contains("then again"), "{said}");
}

/// A pipe that is full stops whoever writes to it.
#[test]
fn a_command_is_stopped_though_nobody_reads_what_is_said() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("trap '' TERM; echo $$ > {}; while :; do echo a line of many >&2; done", sign.display());
    let mut runner = run(&server, &["--ttl", "2s", "--grace", "300ms", "-v"], &script).spawn().unwrap();
    started(&server, &sign);
    let stderr = runner.stderr.take().unwrap();
    // It holds all that a pipe can, and its writer waits.
    eventually(HANGS, "the pipe is full", || ioctl_fionread(&stderr).is_ok_and(|bytes| bytes >= 60_000));
    server.wire().del(NAME);
    let mut code = None;
    eventually(HANGS, "the runner ends", || {
        code = runner.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.and_then(|status| status.code()), Some(75));
    assert!(!is_there(&sign));
    drop(stderr);
}

#[test]
fn a_runner_has_two_connections_and_a_third_while_it_waits() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let holder = run(&server, &[], &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    let waiter = run(&server, &["--fair"], "true").spawn().unwrap();
    let (mut wire, queue) = (server.wire(), format!("{{{NAME}}}:lh:queue"));
    eventually(HANGS, "it waits", || wire.exists(&queue));
    // But for this one.
    let mut connections = || wire.must(&["CLIENT", "LIST"]).text().lines().count() - 1;
    let (mut most, until) = (0, Instant::now() + Duration::from_secs(1));
    while Instant::now() < until {
        most = connections().max(most);
    }
    assert!((2..=5).contains(&most), "{most}");
    send(&waiter, Signal::TERM);
    assert_eq!(waiter.wait_with_output().unwrap().status.code(), Some(143));
    eventually(HANGS, "the holder is alone", || connections() <= 2);
    assert!(connections() >= 1);
    send(&holder, Signal::TERM);
    assert_eq!(holder.wait_with_output().unwrap().status.code(), Some(143));
    eventually(HANGS, "nobody is there", || connections() == 0);
}

#[test]
fn no_command_is_started_with_a_lease_that_is_nearly_over() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (_directory, sign) = directory();
    // A lease counts from the sending, however long the answer takes.
    let held = proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let script = format!("echo > {}", sign.display());
    let runner = run(&server, &["--ttl", "1s", "--url", &proxy.url()], &script).spawn().unwrap();
    eventually(HANGS, "it is acquired", || held.hits() == 1);
    eventually(HANGS, "it is nearly over", || server.wire().pttl(NAME) < 300);
    held.release();
    ends_with(&runner.wait_with_output().unwrap(), 75, &["nearly over", "was not started"]);
    assert!(!sign.exists());
    assert!(!is_held(&server));
}

#[test]
fn a_server_that_goes_away_ends_a_wait_with_its_limit_and_no_other() {
    let server = Server::start();
    server.wire().set(NAME, "somebody else's");
    let waits = |options: &[&str]| {
        let mut runner = run(&server, &[options, &["-v"]].concat(), "true").spawn().unwrap();
        let mut told = String::new();
        BufReader::new(runner.stderr.as_mut().unwrap()).read_line(&mut told).unwrap();
        assert!(told.contains("is held by"), "{told}");
        runner
    };
    let (patient, limited) = (waits(&[]), waits(&["-w", "1s"]));
    server.kill();
    ends_with(&limited.wait_with_output().unwrap(), 69, &[]);
    // It comes back, and has forgotten who held the lock.
    server.restart();
    ends_with(&patient.wait_with_output().unwrap(), 0, &[]);
}

#[test]
fn a_server_that_goes_away_before_the_release_takes_nothing_from_the_command() {
    let server = Server::start();
    let (directory, sign) = directory();
    let go = directory.path().join("go");
    let script = format!("echo > {}; while [ ! -e {} ]; do sleep 0.02; done; exit 7", sign.display(), go.display());
    let runner = run(&server, &[], &script).spawn().unwrap();
    started(&server, &sign);
    server.kill();
    let (lag, asked) = (Lag::start(), Instant::now());
    fs::write(&go, "").unwrap();
    ends_with(&runner.wait_with_output().unwrap(), 7, &["leasehold:"]);
    // An answer is waited for, and then the connections' end.
    let (took, most) = (asked.elapsed(), Duration::from_secs(3));
    assert!(took < most + lag.worst(), "{took:?}");
}

/// What is served there, once it is.
fn measured(address: &str) -> String {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let mut answer = String::new();
    eventually(HANGS, "it is served", || {
        answer = ask().unwrap_or_default();
        answer.contains("leasehold_renewal_remaining_ratio")
    });
    answer
}

#[test]
fn what_is_measured_is_served_while_the_command_runs() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = ["--ttl", "1s", "--metrics-addr", &address];
    // A port that is taken keeps no job from running.
    ends_with(&run(&server, &options, "exit 7").output().unwrap(), 7, &["--metrics-addr", &address]);
    drop(taken);
    let runner = run(&server, &options, &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    // Not before the first renewal.
    let served = measured(&address);
    for line in [
        "leasehold_held 1",
        "leasehold_waiting 0",
        "leasehold_at_risk 0",
        "leasehold_acquires_total{outcome=\"acquired\"} 1",
        "leasehold_renewal_remaining_ratio{quantile=\"0\"} 0.",
        "leasehold_renewal_seconds{quantile=\"0.99\"}",
        "leasehold_wait_seconds_count 1",
    ] {
        assert!(served.contains(line), "{line:?} is not in {served}");
    }
    send(&runner, Signal::TERM);
    ends_with(&runner.wait_with_output().unwrap(), 143, &[]);
}

#[test]
fn a_page_and_completions_are_printed() {
    let server = Server::start();
    for (args, word) in
        [(&["man"][..], ".TH leasehold"), (&["completions", "bash"], "_leasehold"), (&["run", "--help"], "Examples:")]
    {
        let output = tool(&server, args).output().unwrap();
        ends_with(&output, 0, &[]);
        assert!(String::from_utf8_lossy(&output.stdout).contains(word), "{args:?}");
    }
    let nothing = tool(&server, &[]).output().unwrap();
    ends_with(&nothing, 64, &["Usage"]);
}
