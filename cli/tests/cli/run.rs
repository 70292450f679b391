//! `leasehold run`, as a user sees it: the built program against real servers.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    io::ioctl_fionread,
    process::{Pid, Signal, kill_process},
};

use support::{Action, Cluster, Lag, Match, Nodes, Proxy, Server, eventually, scripts::ACQUIRE};

use crate::scene::{
    HANGS, LEASEHOLD, NAME, directory, end_of_writers, ended, ends_with, is_held, is_there, run, said, send, started,
    state, state_of, tool,
};

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
    // The environment has the fence, and never the token.
    let printed = run(&server, &[], "env").output().unwrap();
    let environment = String::from_utf8_lossy(&printed.stdout).into_owned();
    let fence = environment.lines().find_map(|line| line.strip_prefix("LEASEHOLD_FENCE="));
    assert!(fence.is_some_and(|fence| fence.parse::<u64>().is_ok()), "{environment}");
    let script = "tr '\\0' '\\n' </proc/$PPID/cmdline; tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/$$/cmdline; env";
    let (_directory, sign) = directory();
    let mut runner = run(&server, &["-v"], &format!("{script}; echo > {}; read end", sign.display()));
    let runner = runner.stdin(Stdio::piped()).spawn().unwrap();
    started(&server, &sign);
    let token = server.wire().get(NAME).unwrap();
    let output = runner.wait_with_output().unwrap();
    let seen = String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output);
    assert!(seen.contains("LEASEHOLD_FENCE=") && seen.contains("LEASEHOLD_URL="), "{seen}");
    assert!(!seen.contains(&token), "{token} in {seen}");
    assert!(said(&output).contains("acquired \"job\" after"), "{seen}");
    let by_signal = run(&server, &[], "kill -USR1 $$").output().unwrap();
    ends_with(&by_signal, 128 + Signal::USR1.as_raw(), &[]);
}

/// The children of a runner: its command and the command's orphans, and its guard.
fn all_children_of(runner: &Child) -> (Vec<Pid>, Option<Pid>) {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", runner.id())).unwrap_or_default();
    let mut children: Vec<_> =
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().unwrap())).collect();
    let is_guard = |child: &Pid| {
        let words = fs::read_to_string(format!("/proc/{}/cmdline", child.as_raw_nonzero()));
        words.is_ok_and(|words| words.contains("\0__guard\0"))
    };
    let guard = children.iter().position(is_guard).map(|guard| children.remove(guard));
    (children, guard)
}

fn children_of(runner: &Child) -> Vec<Pid> {
    all_children_of(runner).0
}

/// Four for the connection, one for the lock, one to release it. The runner does not wait for an answer to its `QUIT`.
#[test]
fn a_free_lock_costs_a_runner_six_round_trips_on_one_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut command = run(&server, &[], "true");
    ends_with(&command.env("LEASEHOLD_URL", proxy.url()).output().unwrap(), 0, &[]);
    let name = |args: &Vec<Vec<u8>>| args.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap();
    let asked = || proxy.seen().iter().map(|seen| name(&seen.args)).collect::<Vec<_>>();
    // It may still be on its way when the runner has ended.
    eventually(HANGS, "the farewell is there", || asked().last().is_some_and(|last| last == "QUIT"));
    // The connection's name is sent with HELLO.
    let named = ["HELLO", "CLIENT", "CLIENT", "CLIENT"];
    assert_eq!(asked(), [&["PING", "CLIENT", "INFO"], &named[..], &["EVAL", "EVAL", "QUIT"]].concat());
}

#[test]
fn a_command_that_is_ready_waits_for_the_lock_but_not_while_somebody_else_has_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (_directory, sign) = directory();
    let script = format!("echo \"$LEASEHOLD_FENCE $LEASEHOLD_LABEL\" > {}", sign.display());
    let mut command = run(&server, &["--label", "two words"], &script);
    let acquired = proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let runner = command.env("LEASEHOLD_URL", proxy.url()).spawn().unwrap();
    eventually(HANGS, "the lock is acquired", || is_held(&server));
    eventually(HANGS, "the command is ready", || children_of(&runner).len() == 1);
    assert!(!sign.exists(), "it begins with the lock");
    // If the prepared command is killed meanwhile, it is prepared again.
    for child in children_of(&runner) {
        kill_process(child, Signal::KILL).unwrap();
    }
    eventually(HANGS, "it is dead", || {
        children_of(&runner).iter().all(|child| state(child.as_raw_nonzero().get().unsigned_abs()) == Some('Z'))
    });
    acquired.release();
    let (output, _) = ended(runner);
    ends_with(&output, 0, &[]);
    let told = fs::read_to_string(&sign).unwrap();
    let (fence, label) = told.trim_end().split_once(' ').unwrap();
    assert!(fence.parse::<u64>().is_ok() && label == "two words", "{told}");

    server.wire().must(&["SET", NAME, "somebody's", "PX", "60000"]);
    let mut runner = run(&server, &["-v"], "true").stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(runner.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting"), "{line}");
    eventually(HANGS, "nobody is ready", || all_children_of(&runner) == (Vec::new(), None));
    server.wire().del(NAME);
    assert_eq!(ends_soon(&mut runner), Some(0));
}

#[test]
fn a_command_needs_no_dashes_before_it_and_its_options_are_its_own() {
    let server = Server::start();
    let ran = |args: &[&str]| {
        let output = tool(&server, args).output().unwrap();
        ends_with(&output, 0, &[]);
        String::from_utf8(output.stdout).unwrap()
    };
    for (args, expected) in [
        (&["run", NAME, "echo", "-n", "--wait", "word"][..], "--wait word"),
        (&["run", "-n", NAME, "echo", "--", "--label", "a"], "-- --label a\n"),
        (&["run", NAME, "--", "echo", "--", "-w"], "-- -w\n"),
        (&["run", NAME, "-w", "9s", "echo", "--loud"], "--loud\n"),
    ] {
        assert_eq!(ran(args), expected, "{args:?}");
    }
}

#[test]
fn a_command_that_cannot_run_leaves_no_lock() {
    let server = Server::start();
    for (command, code) in
        [("no-such-command", 127), ("/no/such/command", 127), ("", 127), ("/etc/passwd", 126), ("/etc", 126)]
    {
        let output = tool(&server, &["run", NAME, "--", command]).output().unwrap();
        ends_with(&output, code, &[command]);
        assert!(!is_held(&server), "{command}");
    }
    // Another machine may have the command, and should get this turn.
    let output = tool(&server, &["run", "--keep-for", "50s", NAME, "--", "no-such-command"]).output().unwrap();
    ends_with(&output, 127, &[]);
    assert!(!is_held(&server));
}

/// The tool's own arguments fit, but the command's do not, because the tool adds some.
#[test]
fn a_command_whose_arguments_are_too_long_leaves_no_lock() {
    let server = Server::start();
    let ended = |length: usize| {
        let mut tool = tool(&server, &["run", NAME, "--", "true"]);
        // The system accepts no single argument that is longer.
        let full = "x".repeat(100_000);
        tool.args([&full].repeat(length / 100_000)).arg("x".repeat(length % 100_000)).output()
    };
    let is_too_long = |length: usize| match ended(length) {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::ArgumentListTooLong,
    };
    // Finds the longest arguments with which the tool itself can be started.
    let (mut fits, mut too_long) = (0, 7_000_000);
    assert!(is_too_long(too_long));
    while fits + 1 < too_long {
        let half = usize::midpoint(fits, too_long);
        *if is_too_long(half) { &mut too_long } else { &mut fits } = half;
    }
    ends_with(&ended(fits).unwrap(), 126, &["the command cannot be started", "too long"]);
    assert!(!is_held(&server));
}

#[test]
fn invalid_options_are_refused_before_anything_is_sent() {
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
        (&["run", "--keep-for", "32d", NAME, "--", "true"], &["--keep-for", "31days"]),
        (&["run", "--once-per", "0", NAME, "--", "true"], &["--once-per", "leave it out"]),
        (&["run", "--once-per", "32d", NAME, "--", "true"], &["--once-per", "31days is"]),
        (&["run", "--lock-delay", "61m", NAME, "--", "true"], &["--lock-delay 1h1m", "1h is"]),
        (&["hold", "--restart-delay", "31s", "--once-per", "31s", NAME], &["--once-per 31s", "--restart-delay, 31s"]),
        (
            &["run", "--quorum", "redis://a,redis://b,redis://c", "--lock-delay", "1s", NAME, "--", "true"],
            &["--ttl and --lock-delay together, 31s", "--restart-delay, 31s"],
        ),
        (&["run", "--label", "two\nlines", NAME, "--", "true"], &["label"]),
        (&["run", "--label", "", NAME, "--", "true"], &["label"]),
        (&["run", "--fence-memory", "25h", NAME, "--", "true"], &["--fence-memory 1day1h", "1day is"]),
        (&["run", "--signal", "LOUD", NAME, "--", "true"], &["\"LOUD\"", "TERM"]),
        (&["run", "--url", "http://x", NAME, "--", "true"], &["redis://"]),
        // A lock that no other process sees.
        (&["run", "--url", "memory://", NAME, "--", "true"], &["memory://", "one process", "redis://"]),
        (&["run", "--quorum", "memory://a,memory://b,memory://c", NAME, "--", "true"], &["--quorum", "one process"]),
        // A list is split at the commas of such urls too.
        (&["run", "--quorum", "redis-sentinel://a,b,c/m", NAME, "--", "true"], &["stand-alone servers", "to --url"]),
        (&["run", "--quorum", "redis-cluster://:sesame@a,b", NAME, "--", "true"], &["stand-alone servers", "to --url"]),
        (&["run", "--max-hold", "1s", NAME, "--", "true"], &["--max-hold 1s", "--ttl 30s", "shorter --ttl"]),
        (&["run", NAME], &["COMMAND", "Usage: leasehold run [OPTIONS] <NAME> [--] <COMMAND> [ARGS]..."]),
        (&["show"], &["Usage: leasehold show [OPTIONS] <NAME>"]),
        (&["run", "-n", "-w", "1", NAME, "--", "true"], &["--wait"]),
    ] {
        let output = tool(&server, options).output().unwrap();
        ends_with(&output, 64, words);
        assert!(!said(&output).contains("sesame"), "{output:?}");
    }
    for options in [&["run", NAME, "--", "true"][..], &["ls"], &["doctor"]] {
        let output = tool(&server, options).env("LEASEHOLD_URL", "memory://jobs").output().unwrap();
        ends_with(&output, 64, &["memory://jobs", "one process"]);
    }
    // An unknown option is not passed to the command.
    let unknown = tool(&server, &["run", "--no-such", NAME, "--", "true"]).output().unwrap();
    ends_with(&unknown, 64, &["--no-such"]);
    let unknown = tool(&server, &["run", NAME, "--no-such", "true"]).output().unwrap();
    ends_with(&unknown, 64, &["--no-such"]);
    assert_eq!(server.wire().keys("*"), Vec::<String>::new());
    let nobody =
        tool(&server, &["run", "--url", "redis://127.0.0.1:1", "--connect-timeout", "300ms", NAME, "--", "true"]);
    ends_with(
        &{ nobody }.output().unwrap(),
        69,
        &["cannot reach redis at 127.0.0.1:1", ": Connection refused. Is the server running"],
    );
}

#[test]
fn a_lock_that_is_held_is_a_conflict() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let mut holder = run(&server, &[], &format!("echo > {}; sleep 30", sign.display())).spawn().unwrap();
    started(&server, &sign);
    ends_with(&run(&server, &["-nv"], "true").output().unwrap(), 1, &["is held by "]);
    let conflict = run(&server, &["-n", "-E", "9"], "true").output().unwrap();
    ends_with(&conflict, 9, &[]);
    assert_eq!(said(&conflict), "", "cron would mail it");
    let (lag, asked) = (Lag::start(), Instant::now());
    let (output, at) = ended(run(&server, &["-w", "300ms"], "true").spawn().unwrap());
    ends_with(&output, 1, &["waited"]);
    let took = at.duration_since(asked);
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(2) + lag.worst(), "{took:?}");
    send(&holder, Signal::TERM);
    assert_eq!(holder.wait().unwrap().code(), Some(143));
    assert!(!is_held(&server));
}

#[test]
fn a_lost_lock_ends_the_command() {
    let server = Server::start();
    let (_directory, sign) = directory();
    // A process that ends by itself when it is asked to stop.
    let script =
        format!("trap 'echo asked >> {0}; exit 0' TERM; echo > {0}; while :; do sleep 0.05; done", sign.display());
    let runner = run(&server, &["--ttl", "3s"], &script).spawn().unwrap();
    started(&server, &sign);
    server.wire().del(NAME);
    let output = runner.wait_with_output().unwrap();
    ends_with(&output, 75, &["its key is gone from the server", "the command is stopped"]);
    assert_eq!(fs::read_to_string(&sign).unwrap(), "\nasked\n");
}

/// The last time that a command has written.
fn last_sign_of_life(sign: &Path) -> SystemTime {
    let text = fs::read_to_string(sign).unwrap();
    let nanos: u64 = text.lines().next_back().and_then(|line| line.trim().parse().ok()).expect("a time");
    UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// A loss is one for the metrics too, whatever its code.
#[test]
fn a_lost_lock_has_the_exit_code_that_was_asked_for() {
    let server = Server::start();
    let (_directory, file) = directory();
    let options =
        ["--ttl", "1s", "--max-hold", "1s", "--lost-exit-code", "9", "--metrics-file", file.to_str().unwrap()];
    ends_with(&run(&server, &options, "sleep 60").output().unwrap(), 9, &["--max-hold"]);
    assert!(fs::read_to_string(&file).unwrap().contains("losses{lock=\"job\"} 1"), "{file:?}");
    let wrong = run(&server, &["--lost-exit-code", "256"], "true").output().unwrap();
    ends_with(&wrong, 64, &["256 is not in 0..=255"]);
}

#[test]
fn a_command_that_ignores_signals_is_killed_before_its_lease_ends() {
    let server = Server::start();
    let (lag, (_directory, sign)) = (Lag::start(), directory());
    let script = format!("trap '' TERM; while :; do date +%s%N >> {}; sleep 0.01; done", sign.display());
    let proxy = Proxy::to(&server);
    let options = ["--ttl", "2s", "--grace", "500ms", "-v", "--url", &proxy.url()];
    let runner = run(&server, &options, &script).spawn().unwrap();
    started(&server, &sign);
    // From here on no request is confirmed. The key outlives the lease.
    proxy.freeze(true);
    let (now, left) = (SystemTime::now(), server.wire().pttl(NAME));
    let deadline = now + Duration::from_millis(left.try_into().unwrap());
    let output = runner.wait_with_output().unwrap();
    let last = last_sign_of_life(&sign);
    let ahead = deadline.duration_since(last);
    // The command is killed 250 ms before its lease ends, or later by the machine's lag, but never after the end.
    let least = Duration::from_millis(100).saturating_sub(lag.worst());
    assert!(ahead.as_ref().is_ok_and(|ahead| *ahead >= least), "{ahead:?} ahead of its lease");
    ends_with(&output, 75, &["is at risk", "about to be lost"]);
}

#[test]
fn a_verbose_runner_tells_of_a_risk_and_of_its_end() {
    let server = Server::start();
    let (directory, sign) = directory();
    let go = directory.path().join("go");
    let script = format!("echo > {}; while [ ! -e {} ]; do sleep 0.02; done", sign.display(), go.display());
    let mut runner = run(&server, &["-v", "--ttl", "10s", "--grace", "1s"], &script).spawn().unwrap();
    started(&server, &sign);
    let mut told = BufReader::new(runner.stderr.take().unwrap()).lines();
    let mut until = |words: &str| told.by_ref().map(Result::unwrap).find(|line| line.contains(words));
    server.wire().must(&["ACL", "SETUSER", "default", "-pexpire"]);
    assert!(until("\"job\" is at risk: no renewal is confirmed").is_some());
    server.wire().must(&["ACL", "SETUSER", "default", "+pexpire"]);
    assert!(until("\"job\" is safe again: a renewal is confirmed").is_some());
    fs::write(&go, "").unwrap();
    assert_eq!(runner.wait().unwrap().code(), Some(0));
}

#[test]
fn a_verbose_runner_tells_of_a_failover() {
    let cluster = Cluster::start(3, 1);
    let home = cluster.home_of(NAME);
    let (primary, replica) = (&cluster.primaries()[home], cluster.replica_of(home));
    let (directory, sign) = directory();
    let go = directory.path().join("go");
    let script = format!("echo > {}; while [ ! -e {} ]; do sleep 0.02; done", sign.display(), go.display());
    let mut runner = run(primary, &["-v", "--url", &cluster.url()], &script).spawn().unwrap();
    started(primary, &sign);
    eventually(HANGS, "the lock is replicated", || !replica.wire().keys(NAME).is_empty());
    primary.kill();
    let mut told = BufReader::new(runner.stderr.take().unwrap()).lines();
    let line = told.by_ref().map(Result::unwrap).find(|line| line.contains("has taken over from")).unwrap();
    for server in [primary, replica] {
        assert!(line.contains(&format!("127.0.0.1:{}", server.port())), "{line}");
    }
    fs::write(&go, "").unwrap();
    assert_eq!(runner.wait().unwrap().code(), Some(0));
}

#[test]
fn a_trouble_before_a_renewal_is_no_reason_for_a_later_loss() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo > {}; sleep 60", sign.display());
    let runner = run(&server, &["--ttl", "4s", "--grace", "1s"], &script).spawn().unwrap();
    started(&server, &sign);
    let mut wire = server.wire();
    wire.must(&["ACL", "SETUSER", "default", "-pexpire"]);
    eventually(HANGS, "a renewal is refused", || wire.pttl(NAME) < 2_400);
    wire.must(&["ACL", "SETUSER", "default", "+pexpire"]);
    eventually(HANGS, "one is confirmed", || wire.pttl(NAME) > 3_500);
    // The server sends all answers of one turn of its event loop before the next turn.
    wire.must(&["PING"]);
    // When the command is stopped, the next renewal has no answer, and has not timed out.
    server.stop();
    let output = runner.wait_with_output().unwrap();
    server.cont();
    ends_with(&output, 75, &["about to be lost: no renewal was confirmed"]);
    assert!(!said(&output).contains("rights"), "{}", said(&output));
}

#[test]
fn survivors_of_the_command_are_killed_when_the_lease_is_lost_meanwhile() {
    let server = Server::start();
    let (directory, pid) = directory();
    let asked = directory.path().join("asked");
    // It calls `seq` before it writes its process ID, because `seq` does not ignore the signal.
    let deaf = format!(
        "trap 'echo > {}' TERM; turns=$(seq 999); echo $$ > {}; for turn in $turns; do sleep 0.02; done",
        asked.display(),
        pid.display()
    );
    let script =
        format!("sh -c \"{}\" & while ! test -s {}; do sleep 0.02; done", deaf.replace('$', "\\$"), pid.display());
    // The loss comes within the grace, or not at all.
    let runner = run(&server, &["--ttl", "20s", "--grace", "3s"], &script).spawn().unwrap();
    eventually(HANGS, "the command has ended, and who is left is asked to", || asked.exists());
    server.wire().del(NAME);
    ends_with(&runner.wait_with_output().unwrap(), 75, &["its key is gone"]);
    assert!(!is_there(&pid));
}

/// A zombie whose parent has left the group and does not reap it is no reason to hold the lock for a grace.
#[test]
fn a_zombie_is_not_waited_for() {
    let server = Server::start();
    let (lag, began) = (Lag::start(), Instant::now());
    let script = "(sleep 0.1 & exec setsid sleep 15) >/dev/null 2>&1 & sleep 0.5";
    let (output, at) = ended(run(&server, &["--grace", "8s"], script).spawn().unwrap());
    ends_with(&output, 0, &[]);
    let took = at.duration_since(began);
    assert!(took < Duration::from_secs(4) + lag.worst(), "{took:?}");
}

#[test]
fn a_wait_limit_covers_connecting() {
    let server = Server::start();
    server.wire().must(&["SET", NAME, "another's", "PX", "60000"]);
    let proxy = Proxy::to(&server);
    proxy.freeze(true);
    let (lag, began) = (Lag::start(), Instant::now());
    let waiter = tool(&server, &["run", "--url", &proxy.url(), "-w", "4s", NAME, "--", "true"]).spawn().unwrap();
    eventually(HANGS, "it connects", || proxy.connections() > 0);
    std::thread::sleep(Duration::from_secs(2).saturating_sub(began.elapsed()));
    proxy.freeze(false);
    let (output, at) = ended(waiter);
    ends_with(&output, 1, &["waited"]);
    let took = at.duration_since(began);
    assert!(took < Duration::from_secs(5) + lag.worst(), "{took:?}");
}

/// Nodes that forgot do not vote yet, and the others remember the holder, so no other run acquires while the command
/// stops.
#[test]
fn nobody_runs_while_a_command_stops_though_a_majority_forgot() {
    let nodes = Nodes::seasoned(3);
    let urls = nodes.urls().join(",");
    let runs = |script: &str| {
        let options = ["run", "--quorum", &urls, "--ttl", "6s", "--grace", "2500ms", "--restart-delay", "7500ms", NAME];
        let mut runner = tool(&nodes[0], &options);
        runner.args(["--", "sh", "-c", script]).spawn().unwrap()
    };
    let forget = |at: usize| {
        nodes[at].kill();
        nodes[at].restart();
    };
    let (first, second) = (directory(), directory());
    let alive = first.1.display();
    let first_runner = runs(&format!("trap '' TERM; while :; do date +%s%N >> {alive}; sleep 0.02; done"));
    eventually(HANGS, "the first one runs", || first.1.exists());
    let second_runner = runs(&format!("date +%s%N > {}", second.1.display()));
    forget(0);
    // The first node votes again soon after another one forgets.
    std::thread::sleep(Duration::from_millis(6_500));
    assert!(!second.1.exists());
    forget(1);
    // The first run's key is gone from a majority, or is the second's on a node that votes again by then.
    ends_with(&first_runner.wait_with_output().unwrap(), 75, &["its key ", "the command is stopped"]);
    ends_with(&second_runner.wait_with_output().unwrap(), 0, &[]);
    let (ended, began) = (last_sign_of_life(&first.1), last_sign_of_life(&second.1));
    assert!(began > ended, "they ran together for {:?}", ended.duration_since(began));
}

/// Besides the missing renewals, the message contains the server's answer, which the user can act on.
#[test]
fn the_reason_of_a_loss_is_printed() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "allkeys", "allchannels", "+@all"]);
    let url = format!("redis://worker:secret@127.0.0.1:{}", server.port());
    let (_directory, sign) = directory();
    let script = format!("echo > {}; sleep 60", sign.display());
    let runner = run(&server, &["--url", &url, "--ttl", "2s"], &script).spawn().unwrap();
    started(&server, &sign);
    server.wire().must(&["ACL", "SETUSER", "worker", "-pexpire"]);
    ends_with(&runner.wait_with_output().unwrap(), 75, &["about to be lost", "(redis could not extend", "rights"]);
}

#[test]
fn a_command_is_stopped_before_it_was_held_for_too_long() {
    const MOST: Duration = Duration::from_secs(2);
    let (server, lag, (_directory, pipe)) = (Server::start(), Lag::start(), directory());
    let (proxy, stopped) = (Proxy::to(&server), end_of_writers(&pipe));
    let options = ["--url", &proxy.url(), "--ttl", "2s", "--max-hold", "2s"];
    let runner = run(&server, &options, &format!("exec >{}; sleep 60", pipe.display())).spawn().unwrap();
    let stopped = stopped.recv_timeout(HANGS).expect("it is stopped");
    ends_with(&runner.wait_with_output().unwrap(), 75, &["--max-hold"]);
    // The hold is measured from the acquire: the runner's start and end may take any time.
    let (acquire, seen) = (Match::script(ACQUIRE), proxy.seen());
    let asked = seen.iter().find(|seen| acquire.matches(&seen.args)).expect("it was acquired");
    let held = stopped.duration_since(asked.at);
    assert!(held < MOST + lag.worst(), "{held:?}");
}

#[test]
fn closed_standard_streams_are_accepted() {
    let server = Server::start();
    for line in [
        format!("{LEASEHOLD} completions bash | true; {LEASEHOLD} man | head -n 1 >/dev/null"),
        format!("{LEASEHOLD} run -v {NAME} -- sh -c 'exit 5' 2>&1 >/dev/null | true"),
        format!("{LEASEHOLD} run -v {NAME} -- sh -c 'exit 5' >&- 2>&-; test $? = 5"),
        format!("{LEASEHOLD} run {NAME} -- sh -c 'exec >&- 2>&- <&-; exit 5'; test $? = 5"),
        // No terminal at all, as under cron.
        format!("setsid -w {LEASEHOLD} run {NAME} -- sh -c 'exit 5'; test $? = 5"),
    ] {
        let output = Command::new("sh").args(["-c", &line]).env("LEASEHOLD_URL", server.url()).output().unwrap();
        ends_with(&output, 0, &[]);
        assert!(!said(&output).contains("panicked"), "{}", said(&output));
    }
    eventually(HANGS, "it is free", || !is_held(&server));
}

/// Unlike a closed stream, a full device is an error.
#[test]
fn a_failed_write_is_an_error() {
    let server = Server::start();
    let asked = [&["man"][..], &["completions", "bash"], &["ls", "--json"], &["show", "--json", NAME], &["doctor"]];
    for what in asked.into_iter().chain([&["--help"][..], &["--version"], &["run", "--help"]]) {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = tool(&server, what).stdout(full).output().unwrap();
        ends_with(&output, 74, &["No space left on device"]);
    }
}

#[test]
fn a_killed_runner_takes_the_command_along() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo $$ > {}; sleep 60 & wait", sign.display());
    let mut runner = run(&server, &["--ttl", "2s"], &script).spawn().unwrap();
    started(&server, &sign);
    runner.kill().unwrap();
    runner.wait().unwrap();
    eventually(HANGS, "the command is gone", || !is_there(&sign));
}

/// How a script starts its worker, which ignores requests to stop.
const STARTS: [&str; 6] = [
    "exec sh WORKER",
    "sh WORKER; :",
    "sh WORKER & wait",
    // The script ends by itself, and the worker still has its grace.
    "sh WORKER & until [ -s SIGN ]; do sleep 0.01; done",
    "setsid sh WORKER & wait",
    "(setsid sh WORKER &); sleep 60; :",
];

#[test]
fn nothing_of_a_killed_runners_job_is_there_when_the_next_one_begins() {
    let server = Server::start();
    thread::scope(|scope| {
        for (number, start) in STARTS.into_iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let (directory, sign) = directory();
                let (worker, name) = (directory.path().join("worker"), format!("job-{number}"));
                let with_paths = |script: &str| {
                    script.replace("WORKER", worker.to_str().unwrap()).replace("SIGN", sign.to_str().unwrap())
                };
                let ignores = with_paths("trap '' TERM\necho $$ > SIGN\nwhile :; do sleep 0.05; done");
                fs::write(&worker, ignores).unwrap();
                let run = |grace, script: &str| {
                    tool(server, &["run", "--ttl", "3s", "--grace", grace, &name, "sh", "-c", script])
                };
                let mut runner =
                    run("1s", &with_paths(start)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
                runner.kill().unwrap();
                runner.wait().unwrap();
                let sees = format!("grep -s '^State:.[^ZX]' /proc/$(cat {})/status; true", sign.display());
                let next = run("0s", &sees).output().unwrap();
                ends_with(&next, 0, &[]);
                assert_eq!(String::from_utf8_lossy(&next.stdout), "", "{start}");
            });
        }
    });
}

/// How a script starts a run inside its job: as its first process, as a child in its group, and outside of its group.
const INNER_STARTS: [&str; 3] = [
    "exec INNER sh -c 'sh WORKER & wait'",
    "INNER sh -c 'sh WORKER & wait'; :",
    "setsid INNER sh -c 'setsid sh WORKER & wait' & wait",
];

/// The inner run's grace is longer than the lock of the outer run allows.
#[test]
fn the_job_of_an_inner_run_ends_before_the_lock_of_a_killed_runner_is_free() {
    let server = Server::start();
    thread::scope(|scope| {
        for (number, start) in INNER_STARTS.into_iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let (directory, sign) = directory();
                let (worker, name) = (directory.path().join("worker"), format!("job-{number}"));
                fs::write(&worker, format!("trap '' TERM\necho $$ > {}\nwhile :; do sleep 0.05; done", sign.display()))
                    .unwrap();
                let inner = format!("{LEASEHOLD} run --ttl 60s --grace 18s inner-{number}");
                let script = start.replace("INNER", &inner).replace("WORKER", worker.to_str().unwrap());
                let mut runner = tool(server, &["run", "--ttl", "12s", "--grace", "500ms", &name, "sh", "-c", &script]);
                let mut runner = runner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
                runner.kill().unwrap();
                runner.wait().unwrap();
                eventually(HANGS, "the worker is killed", || !is_there(&sign));
                assert!(server.wire().exists(&name), "{start}: another holder could have the lock before that");
            });
        }
    });
}

/// As after a loss, the script's processes may clean up.
#[test]
fn the_job_of_a_killed_runner_has_its_grace() {
    let server = Server::start();
    for leaves in ["", "setsid "] {
        let (directory, sign) = directory();
        let (script, done) = (directory.path().join("worker"), directory.path().join("done"));
        let worker = format!(
            "trap 'sleep 0.3; echo > {done}; exit' USR1\necho $$ > {sign}\nwhile :; do sleep 0.05; done",
            done = done.display(),
            sign = sign.display()
        );
        fs::write(&script, worker).unwrap();
        let script = format!("{leaves}sh {} & wait", script.display());
        let mut runner = run(&server, &["--signal", "USR1", "--ttl", "10s"], &script).spawn().unwrap();
        eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
        let (_, guard) = all_children_of(&runner);
        let guard = guard.expect("a guard").as_raw_nonzero().get().unsigned_abs();
        runner.kill().unwrap();
        runner.wait().unwrap();
        eventually(HANGS, "it has tidied up", || done.exists() && !is_there(&sign));
        eventually(HANGS, "the guard has gone too", || state(guard).is_none_or(|state| state == 'Z'));
        server.wire().del(NAME);
    }
}

/// Another holder may have the lock by then, so there is no grace.
#[test]
fn the_job_of_a_runner_that_is_killed_past_its_lease_is_killed_at_once() {
    let server = Server::start();
    let (directory, sign) = directory();
    let (pipe, asked) = (directory.path().join("pipe"), directory.path().join("asked"));
    let killed = end_of_writers(&pipe);
    let worker = format!(
        "trap 'echo > {}' TERM; exec >{}; echo $$ > {}; while :; do sleep 0.05; done",
        asked.display(),
        pipe.display(),
        sign.display()
    );
    let options = ["--ttl", "2s", "--grace", "200ms"];
    let mut runner = run(&server, &options, &format!("({worker}); :")).stdout(Stdio::null()).spawn().unwrap();
    started(&server, &sign);
    send(&runner, Signal::STOP);
    eventually(HANGS, "the lease is over", || !is_held(&server));
    runner.kill().unwrap();
    runner.wait().unwrap();
    killed.recv_timeout(HANGS).expect("it is killed");
    assert!(!asked.exists());
}

/// Processes that have left its group continue, as after any job.
#[test]
fn a_job_that_has_ended_leaves_no_guard_which_would_end_anything() {
    let server = Server::start();
    let (directory, sign) = directory();
    let end = directory.path().join("end");
    let script = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 60' >&- 2>&- & until [ -e {} ]; do sleep 0.01; done",
        sign.display(),
        end.display()
    );
    let runner = run(&server, &[], &script).spawn().unwrap();
    eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
    let (_, guard) = all_children_of(&runner);
    let guard = guard.expect("a guard").as_raw_nonzero().get().unsigned_abs();
    fs::write(&end, "").unwrap();
    ends_with(&runner.wait_with_output().unwrap(), 0, &[]);
    assert_eq!(state(guard), None);
    assert!(is_there(&sign));
    let pid = fs::read_to_string(&sign).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn signals_are_the_commands() {
    let server = Server::start();
    let all = [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)];
    for (name, signal) in all.into_iter().chain([("USR1", Signal::USR1), ("USR2", Signal::USR2)]) {
        let (_directory, sign) = directory();
        let script = format!("trap 'exit 33' {name}; echo > {}; while :; do sleep 0.05; done", sign.display());
        let runner = run(&server, &[], &script).spawn().unwrap();
        started(&server, &sign);
        send(&runner, signal);
        ends_with(&runner.wait_with_output().unwrap(), 33, &[]);
        assert!(!is_held(&server));
    }
}

/// The command is stopped, and its lease is still renewed.
#[test]
fn a_command_is_stopped_and_continued() {
    let server = Server::start();
    let (_directory, sign) = directory();
    // A shell that is stopped while it starts a process may wait for that instead of stopping: this one starts none.
    let script = format!("trap 'exit 33' USR1; echo $$ > {}; while :; do :; done", sign.display());
    let runner = run(&server, &["--ttl", "2s", "--grace", "100ms"], &script).spawn().unwrap();
    started(&server, &sign);
    // The shell may have created the file, but not written it.
    eventually(HANGS, "its number is there", || state_of(&sign).is_some());
    send(&runner, Signal::TSTP);
    eventually(HANGS, "the command stands still", || state_of(&sign) == Some('T'));
    let fence = server.wire().get(&format!("{{{NAME}}}:lh:fence"));
    std::thread::sleep(Duration::from_millis(2500));
    assert!(is_held(&server), "for longer than its TTL");
    assert_eq!(server.wire().get(&format!("{{{NAME}}}:lh:fence")), fence, "by the same lease");
    send(&runner, Signal::CONT);
    eventually(HANGS, "the command goes on", || state_of(&sign) != Some('T'));
    send(&runner, Signal::USR1);
    ends_with(&runner.wait_with_output().unwrap(), 33, &[]);
}

/// For example by `nohup`.
#[test]
fn signals_ignored_at_the_start_stay_ignored() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo > {}; read end; exit 5", sign.display());
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", LEASEHOLD, "run", NAME, "--", "sh", "-c", &script]);
    let mut runner = command.env("LEASEHOLD_URL", server.url()).stdin(Stdio::piped()).spawn().unwrap();
    // `wait` closes the child's input, and the command would end by itself.
    let _input = runner.stdin.take();
    started(&server, &sign);
    send(&runner, Signal::HUP);
    send(&runner, Signal::USR2);
    // HUP is ignored, but the next signal is not.
    assert_eq!(runner.wait().unwrap().code(), Some(128 + Signal::USR2.as_raw()));
}

/// For example by a program that reads its signals from a file, and does not unblock them for its children.
#[test]
fn signals_blocked_at_the_start_stay_blocked_for_the_command_only() {
    let server = Server::start();
    for blocked in ["--block-signal=CHLD", "--block-signal"] {
        let mut command = Command::new("env");
        command.args([blocked, LEASEHOLD, "run", NAME, "--", "grep", "SigBlk", "/proc/self/status"]);
        let mut runner = command.env("LEASEHOLD_URL", server.url()).stdout(Stdio::piped()).spawn().unwrap();
        let is_blocked = |shown: &str| {
            let mask = u64::from_str_radix(shown.rsplit('\t').next().unwrap().trim(), 16).unwrap();
            mask & (1 << (Signal::CHILD.as_raw() - 1)) != 0
        };
        assert_eq!(ends_soon(&mut runner), Some(0), "{blocked}: the command's end is noticed");
        let mut shown = String::new();
        runner.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
        assert!(is_blocked(&shown), "{blocked}: the command inherits the mask: {shown}");
    }
    // The runner still passes on a signal that was blocked when it started.
    let (_directory, sign) = directory();
    let script = format!("echo > {}; exec sleep 60", sign.display());
    let mut command = Command::new("env");
    command.args(["--block-signal=TERM", LEASEHOLD, "run", "--grace", "0s", NAME, "--", "sh", "-c"]);
    let mut runner = command.arg(script).env("LEASEHOLD_URL", server.url()).spawn().unwrap();
    started(&server, &sign);
    send(&runner, Signal::TERM);
    // The command inherits the blocked signal, so the signal that is passed on stays pending there.
    let pending = || {
        let [child] = children_of(&runner)[..] else { return false };
        let status = fs::read_to_string(format!("/proc/{}/status", child.as_raw_nonzero())).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap_or("0").trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    eventually(HANGS, "the command is sent it", pending);
    runner.kill().unwrap();
    runner.wait().unwrap();
}

/// The exit code of a runner that ends soon. Kills a runner that does not.
fn ends_soon(runner: &mut Child) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < HANGS {
        if let Some(status) = runner.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    runner.kill().unwrap();
    runner.wait().unwrap();
    None
}

/// The command's group is empty then.
#[test]
fn a_command_that_leaves_its_group_has_its_signals() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!(
        "import os, time; os.setpgid(0, os.getpgid(os.getppid())); open({:?}, 'w').close(); time.sleep(60)",
        sign.display().to_string()
    );
    let mut runner = tool(&server, &["run", NAME, "--", "python3", "-c", &script]).process_group(0).spawn().unwrap();
    started(&server, &sign);
    send(&runner, Signal::TERM);
    assert_eq!(ends_soon(&mut runner), Some(143));
    assert!(!is_held(&server));
}

/// A runner that holds the lock.
fn holder(server: &Server) -> Child {
    let (_directory, sign) = directory();
    let holder = run(server, &[], &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(server, &sign);
    holder
}

/// A runner in the lock's queue.
fn waiter(server: &Server) -> Child {
    let mut command = run(server, &["--fair", "-v"], "true");
    // In a group of its own, as from a shell: the system stops a process only if another one could continue it.
    let mut waiter = command.process_group(0).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(waiter.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("is held by"), "{told}");
    assert!(server.wire().exists(QUEUE), "it waits");
    waiter
}

const QUEUE: &str = "{job}:lh:queue";

#[test]
fn a_signal_ends_a_wait() {
    let server = Server::start();
    let mut holder = holder(&server);
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        let mut waiter = waiter(&server);
        send(&waiter, signal);
        let ended = waiter.wait().unwrap();
        // A loop of a shell around the waiter ends only if the waiter died of the interrupt.
        let expected = if signal == Signal::INT { (None, Some(2)) } else { (Some(128 + signal.as_raw()), None) };
        assert_eq!((ended.code(), ended.signal()), expected);
        assert!(!server.wire().exists(QUEUE), "it has left the queue");
    }
    send(&holder, Signal::TERM);
    holder.wait().unwrap();
}

#[test]
fn a_waiting_runner_is_stopped_and_continued() {
    let server = Server::start();
    let mut holder = holder(&server);
    let mut waiter = waiter(&server);
    send(&waiter, Signal::TSTP);
    eventually(HANGS, "it stands still", || state(waiter.id()) == Some('T'));
    send(&waiter, Signal::CONT);
    eventually(HANGS, "it goes on", || state(waiter.id()) != Some('T'));
    send(&holder, Signal::TERM);
    holder.wait().unwrap();
    // Even if it has lost its queue position meanwhile.
    assert_eq!(waiter.wait().unwrap().code(), Some(0));
}

#[test]
fn survivors_of_a_command_end_before_the_lock_is_free() {
    let server = Server::start();
    let (directory, sign) = directory();
    let (asked, next) = (directory.path().join("asked"), directory.path().join("next"));
    let script = format!(
        "sh -c 'trap \"echo >> {}\" TERM; while :; do date +%s%N >> {sign}; sleep 0.01; done' & \
         while [ ! -s {sign} ]; do sleep 0.01; done",
        asked.display(),
        sign = sign.display()
    );
    let first = run(&server, &["--grace", "300ms"], &script).spawn().unwrap();
    // The command may have ended before this is checked.
    eventually(HANGS, "the command runs", || sign.exists());
    let second = run(&server, &[], &format!("date +%s%N > {}", next.display())).output().unwrap();
    ends_with(&second, 0, &[]);
    ends_with(&first.wait_with_output().unwrap(), 0, &[]);
    assert_eq!(fs::read_to_string(asked).unwrap(), "\n", "it is asked once, and killed then");
    let (last, next) = (last_sign_of_life(&sign), last_sign_of_life(&next));
    assert!(last < next, "it still ran {:?} after the next holder had the lock", last.duration_since(next));
}

/// The command's grace also applies to the others in its group, and to processes that have left the group.
#[test]
fn a_loss_ends_all_that_a_command_has_started() {
    let server = Server::start();
    for leaves in ["", "setsid "] {
        let (directory, sign) = directory();
        let (script, done) = (directory.path().join("worker"), directory.path().join("done"));
        let worker = format!(
            "trap 'sleep 0.3; echo > {done}; exit' USR1\necho $$ > {sign}\nwhile :; do sleep 0.05; done",
            done = done.display(),
            sign = sign.display()
        );
        fs::write(&script, worker).unwrap();
        let script = format!("{leaves}sh {} & wait", script.display());
        let runner = run(&server, &["--signal", "USR1"], &script).spawn().unwrap();
        eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
        server.wire().del(NAME);
        ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
        assert!(done.exists(), "{leaves:?}: it had its grace");
        assert!(!is_there(&sign), "{leaves:?}");
    }
}

/// This includes processes that have left the group, and ignore signals.
#[test]
fn after_its_grace_a_loss_kills_all_that_a_command_has_started() {
    let server = Server::start();
    for leaves in ["", "setsid "] {
        let (_directory, sign) = directory();
        let worker = format!("trap \"\" TERM; echo $$ > {}; sleep 60; sleep 60", sign.display());
        // Without the test's pipes, so that only the runner is awaited.
        let script = format!("{leaves}sh -c '{worker}' >&- 2>&- & wait");
        let runner = run(&server, &["--grace", "300ms"], &script).spawn().unwrap();
        eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
        let (lag, lost) = (Lag::start(), Instant::now());
        server.wire().del(NAME);
        let (output, at) = ended(runner);
        ends_with(&output, 75, &["the command is stopped"]);
        let took = at.duration_since(lost);
        assert!(took >= Duration::from_millis(300), "{leaves:?}: {took:?}");
        assert!(took < Duration::from_secs(3) + lag.worst(), "{leaves:?}: {took:?}");
        assert!(!is_there(&sign), "{leaves:?}");
    }
}

/// Each descendant would become the runner's child only after its parent's death, and a runner without a lease ends
/// soon.
#[test]
fn after_its_grace_a_loss_kills_a_long_line_of_descendants() {
    let server = Server::start();
    let (directory, sign) = directory();
    let script = directory.path().join("descend");
    let line = format!(
        "trap '' TERM\nif [ $1 -gt 0 ]; then sh $0 $(($1 - 1)) & wait; else echo $$ > {}; exec sleep 60; fi",
        sign.display()
    );
    fs::write(&script, line).unwrap();
    let script = format!("setsid sh {} 400 >&- 2>&- & wait", script.display());
    let runner = run(&server, &["--grace", "300ms"], &script).spawn().unwrap();
    eventually(HANGS, "it runs", || fs::read_to_string(&sign).is_ok_and(|pid| pid.ends_with('\n')));
    server.wire().del(NAME);
    ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    eventually(HANGS, "the last of the line is dead", || !is_there(&sign));
}

/// For example a filter that a script starts for its output, before it executes the runner.
#[test]
fn processes_older_than_the_command_are_left_alone() {
    let server = Server::start();
    let (directory, sign) = directory();
    let before = directory.path().join("before");
    let script = format!(
        "sleep 60 >&- 2>&- & echo $! > {}; exec {LEASEHOLD} run {NAME} -- sh -c 'echo > {}; sleep 60'",
        before.display(),
        sign.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("LEASEHOLD_URL", server.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let runner = command.spawn().unwrap();
    started(&server, &sign);
    server.wire().del(NAME);
    ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    assert!(is_there(&before));
    let pid = fs::read_to_string(&before).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Without notifications, and before the first renewal, the release is the first to notice.
#[test]
fn a_loss_that_shows_at_the_release_is_a_loss() {
    let server = Server::start();
    let (_directory, sign) = directory();
    server.wire().must(&["ACL", "SETUSER", "quiet", "on", ">secret", "~*", "&*", "+@all", "-client"]);
    let url = format!("redis://quiet:secret@127.0.0.1:{}", server.port());
    let script = format!("echo > {}; read end", sign.display());
    let mut runner = run(&server, &["--url", &url], &script).stdin(Stdio::piped()).spawn().unwrap();
    started(&server, &sign);
    server.wire().del(NAME);
    drop(runner.stdin.take());
    ends_with(&runner.wait_with_output().unwrap(), 75, &["its key is gone"]);
}

#[test]
fn a_loss_over_a_quorum_ends_the_command() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(",");
    let (_directory, sign) = directory();
    let script = format!("echo > {}; sleep 60", sign.display());
    let runner = run(&servers[0], &["--quorum", &urls, "--restart-delay", "0"], &script).spawn().unwrap();
    eventually(HANGS, "it is held", || sign.exists() && servers.iter().all(|server| server.wire().exists(NAME)));
    // Otherwise the runner would repair the first key before the second is deleted.
    send(&runner, Signal::STOP);
    eventually(HANGS, "it stands still", || state(runner.id()) == Some('T'));
    for server in &servers[..2] {
        server.wire().del(NAME);
    }
    send(&runner, Signal::CONT);
    ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    eventually(HANGS, "no key is left", || servers.iter().all(|server| !server.wire().exists(NAME)));
}

#[test]
fn without_fence_memory_a_command_leaves_no_key() {
    let server = Server::start();
    ends_with(&run(&server, &["--fence-memory", "0s"], "true").output().unwrap(), 0, &[]);
    eventually(HANGS, "nothing is left", || server.wire().keys("*").is_empty());
    ends_with(&run(&server, &["--fence-memory", "1h"], "true").output().unwrap(), 0, &[]);
    let lives = server.wire().pttl(&format!("{{{NAME}}}:lh:fence"));
    assert!((3_500_000..=3_600_000).contains(&lives), "{lives} ms");
}

#[test]
fn a_quick_command_keeps_its_lock_for_the_given_time() {
    let server = Server::start();
    ends_with(&run(&server, &["--keep-for", "2s"], "true").output().unwrap(), 0, &[]);
    let kept = server.wire().pttl(NAME);
    assert!((1..=2_000).contains(&kept), "{kept} ms");
    ends_with(&run(&server, &["-n"], "true").output().unwrap(), 1, &[]);
    eventually(HANGS, "it is free", || !is_held(&server));
}

#[test]
fn a_command_runs_once_in_an_interval_even_if_its_machine_dies() {
    let (server, long) = (Server::start(), Duration::from_secs(20));
    ends_with(&run(&server, &["--once-per", "20s"], "true").output().unwrap(), 0, &[]);
    let kept = server.wire().pttl(NAME);
    assert!((1..=20_000).contains(&kept), "{kept} ms");
    ends_with(&run(&server, &["-n"], "true").output().unwrap(), 1, &[]);
    server.wire().del(NAME);
    for (options, least) in [(["--once-per", "20s"], long / 2), (["--lock-delay", "20s"], long)] {
        let (_directory, sign) = directory();
        let options = [&options[..], &["--ttl", "1s"]].concat();
        let mut runner = run(&server, &options, &format!("echo > {}; sleep 30", sign.display())).spawn().unwrap();
        started(&server, &sign);
        runner.kill().unwrap();
        runner.wait().unwrap();
        let left = Duration::from_millis(server.wire().pttl(NAME).try_into().unwrap());
        assert!(left > least && left <= long + Duration::from_secs(1), "{options:?}: {left:?}");
        ends_with(&run(&server, &["-n"], "true").output().unwrap(), 1, &[]);
        server.wire().del(NAME);
    }
    // A command that ends frees a delayed lock at once.
    ends_with(&run(&server, &["--lock-delay", "20s"], "exit 3").output().unwrap(), 3, &[]);
    assert!(!is_held(&server));
}

/// `leasehold run` under these locks.
fn run_under(server: &Server, locks: &[&str], options: &[&str], script: &str) -> Command {
    let mut command = tool(server, &["run"]);
    command.args(locks.iter().flat_map(|name| ["--lock", name])).args(options).args(["--", "sh", "-c", script]);
    command
}

#[test]
fn a_command_under_several_locks_has_all_of_them() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("env; echo > {}; read end", sign.display());
    let mut command = run_under(&server, &["b c", "a"], &["--keep-for", "0", "--label", "me"], &script);
    // The variables of a run around this one.
    command.env("LEASEHOLD_NAME", "outer").env("LEASEHOLD_FENCE", "7").stdin(Stdio::piped());
    let mut runner = command.spawn().unwrap();
    eventually(HANGS, "the command runs", || sign.exists());
    assert!(["a", "b c"].iter().all(|name| server.wire().exists(name)));
    drop(runner.stdin.take());
    let output = runner.wait_with_output().unwrap();
    ends_with(&output, 1, &[]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!["LEASEHOLD_NAME=", "LEASEHOLD_FENCE="].iter().any(|name| printed.contains(name)), "{printed}");
    let (_, fences) = printed.split_once("LEASEHOLD_FENCES=").unwrap();
    let read = |line: &str| line.split_once(' ').map(|(fence, name)| (fence.parse::<u64>().is_ok(), name.to_owned()));
    let fences: Vec<_> = fences.lines().take(2).map(|line| read(line).unwrap()).collect();
    assert_eq!(fences, [(true, "a".to_owned()), (true, "b c".to_owned())]);
    assert!(printed.contains("LEASEHOLD_LABEL=me"), "{printed}");
    assert!(!["a", "b c"].iter().any(|name| server.wire().exists(name)));
    // A single lock is like a NAME, and a NAME has the line of fences too.
    let script = "[ \"$LEASEHOLD_FENCES\" = \"$LEASEHOLD_FENCE $LEASEHOLD_NAME\" ]";
    ends_with(&run_under(&server, &["a"], &[], script).output().unwrap(), 0, &[]);
    ends_with(&run(&server, &[], script).output().unwrap(), 0, &[]);
    // All are kept.
    ends_with(&run_under(&server, &["a", "b"], &["--keep-for", "1m"], "true").output().unwrap(), 0, &[]);
    assert!(["a", "b"].iter().all(|name| server.wire().get(name).unwrap().ends_with("(released)")));
}

#[test]
fn of_several_locks_one_that_is_held_is_a_conflict() {
    let server = Server::start();
    server.wire().must(&["SET", "b", "somebody's", "PX", "60000"]);
    let ran = |options: &[&str]| run_under(&server, &["c", "b", "a"], options, "echo runs").output().unwrap();
    let silent = ran(&["-n", "-E", "9"]);
    ends_with(&silent, 9, &[]);
    assert_eq!((said(&silent).as_str(), silent.stdout.len()), ("", 0));
    ends_with(&ran(&["-nv"]), 1, &["the lock \"b\" is held by"]);
    ends_with(&ran(&["-w", "300ms"]), 1, &["waited", "for the lock \"b\", which is held by"]);
    ends_with(&ran(&["-vw", "300ms"]), 1, &["\"b\" is held by", "waiting"]);
    assert!(!["a", "c"].iter().any(|name| server.wire().exists(name)));
}

#[test]
fn the_loss_of_one_of_several_locks_ends_the_command() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo > {}; exec sleep 60", sign.display());
    let mut command = run_under(&server, &["a", "b"], &["--ttl", "3s"], &script);
    let runner = command.spawn().unwrap();
    eventually(HANGS, "the command runs", || sign.exists());
    server.wire().del("b");
    let (output, _) = ended(runner);
    ends_with(&output, 75, &["the lease on \"b\"", "the command is stopped"]);
    assert!(!server.wire().exists("a"), "the other is released");
}

#[test]
fn several_locks_that_do_not_fit_are_refused() {
    let server = Server::start();
    let refused = |args: &[&str], says: &str| {
        let output = tool(&server, &[&["run"], args].concat()).output().unwrap();
        ends_with(&output, 64, &[says]);
    };
    let usage = "the command comes after --";
    refused(&["-l", "a", "-l", "b", "echo", "c"], usage);
    refused(&["-l", "a", "job", "--", "echo", "c"], usage);
    refused(&["-l", "a", "-l", "a", "--", "echo"], "\"a\" is there twice");
    refused(&["-l", "a", "-l", "b\nc", "--", "echo"], "line break");
    refused(&["-l", "a", "-l", "", "--", "echo"], "the name is empty");
    refused(&["-l", "a", "-l", "b", "--"], usage);
    refused(&["-l", "a", "-l", "b"], usage);
    let output = tool(&server, &["run", "-l", "a", "-l", "b", "--", "no-such-command"]).output().unwrap();
    ends_with(&output, 127, &["no-such-command"]);
    assert_eq!(server.wire().keys("*"), [""; 0]);
}

fn of_fifty_crons_one_runs(servers: &Server, options: &[&str]) {
    let (_directory, sign) = directory();
    let (options, script) =
        ([options, &["-n", "--keep-for", "30s"]].concat(), format!("echo ran >> {}", sign.display()));
    let runners: Vec<Child> = (0..50).map(|_| run(servers, &options, &script).spawn().unwrap()).collect();
    let outputs: Vec<Output> = runners.into_iter().map(|runner| runner.wait_with_output().unwrap()).collect();
    let ran = outputs.iter().filter(|output| output.status.success()).count();
    assert!(ran == 1 && outputs.iter().all(|output| [Some(0), Some(1)].contains(&output.status.code())), "{outputs:?}");
    assert_eq!(fs::read_to_string(&sign).unwrap(), "ran\n");
}

#[test]
fn of_fifty_crons_with_a_server_one_runs() {
    of_fifty_crons_one_runs(&Server::start(), &[]);
}

#[test]
fn of_fifty_crons_with_a_quorum_one_runs() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(",");
    of_fifty_crons_one_runs(&servers[0], &["--quorum", &urls, "--restart-delay", "0"]);
}

#[test]
fn a_runner_stopped_past_its_lease_kills_first() {
    let server = Server::start();
    let (directory, sign) = directory();
    let pipe = directory.path().join("pipe");
    let killed = end_of_writers(&pipe);
    let (output, pid) = (pipe.display(), sign.display());
    let script = format!("trap '' TERM; exec >{output}; echo $$ > {pid}; while :; do sleep 0.05; done");
    let runner = run(&server, &["--ttl", "1s"], &script).spawn().unwrap();
    started(&server, &sign);
    send(&runner, Signal::STOP);
    eventually(HANGS, "the lease is over", || !is_held(&server));
    let (lag, continued) = (Lag::start(), Instant::now());
    send(&runner, Signal::CONT);
    let took = killed.recv_timeout(HANGS).expect("it is killed").duration_since(continued);
    assert!(took < Duration::from_millis(500) + lag.worst(), "{took:?}");
    ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    assert!(!is_there(&sign));
}

/// A full pipe blocks every writer.
#[test]
fn a_command_is_stopped_though_nobody_reads_the_messages() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("trap '' TERM; echo $$ > {}; while :; do echo a line of many >&2; done", sign.display());
    let mut runner = run(&server, &["--ttl", "2s", "--grace", "300ms", "-v"], &script).spawn().unwrap();
    started(&server, &sign);
    let stderr = runner.stderr.take().unwrap();
    // The pipe is full, and its writer waits.
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
    // All connections except this test's own.
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
    // A lease counts from the send, however long the answer takes.
    let held = proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let script = format!("echo > {}", sign.display());
    let runner = run(&server, &["--ttl", "1s", "--url", &proxy.url()], &script).spawn().unwrap();
    eventually(HANGS, "it is acquired", || held.hits() == 1);
    eventually(HANGS, "it is nearly over", || (1..490).contains(&server.wire().pttl(NAME)));
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
    let (patient, limited) = (waits(&[]), waits(&["-w", "4s"]));
    server.kill();
    ends_with(&limited.wait_with_output().unwrap(), 69, &[]);
    // The server comes back without its data, so the lock is free.
    server.restart();
    ends_with(&patient.wait_with_output().unwrap(), 0, &[]);
}

/// An error is printed, because on a server that stays full the waiter would wait forever.
#[test]
fn an_error_while_waiting_is_printed_once() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut runner = run(&server, &["-w", "20s"], "true").spawn().unwrap();
    let mut told = BufReader::new(runner.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    for words in ["leasehold: waiting for the server: redis at", "OOM", "maxmemory is reached, raise it"] {
        assert!(line.contains(words), "{words:?} is not in {line:?}");
    }
    // Later checks have the same result.
    let mut refusals = || {
        let count = wire.info_field("errorstats", "errorstat_OOM");
        count.and_then(|count| count.strip_prefix("count=")?.parse::<u64>().ok()).unwrap_or(0)
    };
    eventually(HANGS, "it looks again", || refusals() >= 3);
    wire.must(&["CONFIG", "SET", "maxmemory", "0"]);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!((runner.wait().unwrap().code(), &*rest), (Some(0), ""));
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
    let (output, at) = ended(runner);
    ends_with(&output, 7, &["leasehold:", "the release is not confirmed", "expires within its TTL"]);
    assert!(!said(&output).contains("background"), "an ended process does nothing there: {}", said(&output));
    // The runner waits for an answer, and then for the end of its connections.
    let (took, most) = (at.duration_since(asked), Duration::from_secs(3));
    assert!(took < most + lag.worst(), "{took:?}");
}

/// The page that is served at this address, once there is one.
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
fn metrics_are_served_while_the_command_runs() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let options = ["--ttl", "30s", "--metrics-addr", &address];
    // A port in use does not prevent a job from running.
    ends_with(&run(&server, &options, "exit 7").output().unwrap(), 7, &["--metrics-addr", &address]);
    drop(taken);
    let runner = run(&server, &options, &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    // The page has these values only after the first renewal.
    let served = measured(&address);
    for line in [
        "leasehold_held{mode=\"exclusive\"} 1",
        "leasehold_waiting 0",
        "leasehold_at_risk 0",
        "leasehold_acquires_total{outcome=\"acquired\",mode=\"exclusive\"} 1",
        "leasehold_renewal_remaining_ratio{quantile=\"0\"} 0.",
        "leasehold_renewal_seconds{quantile=\"0.99\"}",
        "leasehold_wait_seconds_count 1",
    ] {
        assert!(served.contains(line), "{line:?} is not in {served}");
    }
    send(&runner, Signal::TERM);
    ends_with(&runner.wait_with_output().unwrap(), 143, &[]);
}

/// Each connection takes a descriptor, which the job's end may need.
#[test]
fn scrapes_that_ask_nothing_take_few_descriptors() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let options = ["--ttl", "30s", "--metrics-addr", &address];
    let runner = run(&server, &options, &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    let _metrics = measured(&address);
    let open = || fs::read_dir(format!("/proc/{}/fd", runner.id())).unwrap().count();
    let before = open();
    let silent: Vec<_> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    eventually(HANGS, "some of them are let in", || open() > before);
    // This scrape comes after all the silent ones, and is answered although they stay open.
    let _metrics = measured(&address);
    assert!(open() <= before + 17, "{} of {} descriptors are new", open() - before, open());
    drop(silent);
    send(&runner, Signal::TERM);
    ends_with(&runner.wait_with_output().unwrap(), 143, &[]);
}

/// It cannot leave the queue, because a replica refuses writes.
#[test]
fn a_fair_wait_for_what_becomes_a_replica_ends_on_time() {
    let (server, limit) = (Server::start(), Duration::from_millis(1_500));
    let mut wire = server.wire();
    wire.must(&["SET", NAME, "somebody's", "PX", "60000"]);
    let (lag, began) = (Lag::start(), Instant::now());
    let mut runner = run(&server, &["-w", "1500ms", "--fair"], "true");
    let runner = runner.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually(HANGS, "it is in the queue", || wire.keys("*").iter().any(|key| key.ends_with(":lh:queue")));
    wire.must(&["REPLICAOF", "127.0.0.1", "1"]);
    let output = runner.wait_with_output().unwrap();
    let took = began.elapsed();
    ends_with(&output, 69, &["the url must name a primary"]);
    assert!(took >= limit && took < limit + Duration::from_millis(750) + lag.worst(), "{took:?}");
}

#[test]
fn the_end_of_a_run_is_written_to_a_file() {
    let server = Server::start();
    let (directory, sign) = directory();
    let file = directory.path().join("job.prom");
    let option = ["--metrics-file", file.to_str().unwrap()];
    let seen = |line: &str| {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.lines().any(|found| found == format!("leasehold_run_{line}")), "{line} is not in {text}");
        text
    };
    let value = |metric: &str| -> f64 {
        let text = fs::read_to_string(&file).unwrap();
        let value =
            text.lines().find_map(|line| line.strip_prefix(&format!("leasehold_run_{metric}{{lock=\"job\"}} ")));
        value.unwrap().parse().unwrap()
    };
    ends_with(&run(&server, &option, "sleep 0.3; exit 7").output().unwrap(), 7, &[]);
    seen("exit_code{lock=\"job\"} 7");
    seen("busy{lock=\"job\"} 0");
    assert!(value("duration_seconds") >= 0.3);
    let ago = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() - value("last_timestamp_seconds");
    assert!((-1.0..HANGS.as_secs_f64()).contains(&ago), "{ago}");
    // The collector can read the file, whatever the umask is.
    let mut private = Command::new("sh");
    private.env("LEASEHOLD_URL", server.url()).env("LEASEHOLD_CONFIG", "/dev/null");
    private.args(["-c", "umask 077; exec \"$@\"", "sh", LEASEHOLD, "run"]).args(option).args([NAME, "true"]);
    assert!(private.status().unwrap().success());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    // The outcomes: skipped, lost, and not begun.
    server.wire().set(NAME, "somebody else's");
    ends_with(&run(&server, &[&option[..], &["-n", "-E", "0"]].concat(), "true").output().unwrap(), 0, &[]);
    seen("busy{lock=\"job\"} 1");
    seen("exit_code{lock=\"job\"} 0");
    server.wire().del(NAME);
    let runner = run(&server, &option, &format!("echo > {}; sleep 60", sign.display())).spawn().unwrap();
    started(&server, &sign);
    server.wire().del(NAME);
    ends_with(&runner.wait_with_output().unwrap(), 75, &[]);
    seen("exit_code{lock=\"job\"} 75");
    let all = seen("losses{lock=\"job\"} 1");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cron.md")).unwrap();
    for line in all.lines().filter(|line| !line.starts_with('#')) {
        let metric = line.split('{').next().unwrap();
        assert!(page.contains(&format!("\n| `{metric}` |")), "the page does not know {metric}");
        assert!(all.contains(&format!("# TYPE {metric} gauge\n")), "{metric} has no type: {all}");
    }
    let absent = [&["run"], &option[..], &[NAME, "no-such-command"]].concat();
    ends_with(&tool(&server, &absent).output().unwrap(), 127, &[]);
    seen("exit_code{lock=\"job\"} 127");
    // No temporary file is left, and a file that cannot be written does not fail the run.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "the file and the sign");
    let nowhere = run(&server, &["--metrics-file", "/no/such/directory/job.prom"], "exit 7").output().unwrap();
    ends_with(&nowhere, 7, &["--metrics-file /no/such/directory/job.prom"]);
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
    // Internal commands are not documented or completed.
    let shells = ["bash", "elvish", "fish", "powershell", "zsh"].map(|shell| vec!["completions", shell]);
    for args in shells.into_iter().chain([vec!["man"], vec!["--help"]]) {
        let output = tool(&server, &args).output().unwrap();
        ends_with(&output, 0, &[]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.contains("doctor"), "{args:?}");
        if ["bash", "fish", "zsh"].iter().any(|shell| args.contains(shell)) {
            assert!(printed.contains("leasehold ls --quiet") || printed.contains("\"$1\" ls --quiet"), "{args:?}");
        }
        // In a manual page a dash is written with a backslash; in a completion script two underscores separate words.
        for own in ["__exec", "__guard", "__interrupted", "\\_\\_exec", "Dies of an interrupt"] {
            assert!(!printed.contains(own), "{args:?}: {own}");
        }
    }
    let nothing = tool(&server, &[]).output().unwrap();
    ends_with(&nothing, 64, &["Usage"]);
}
