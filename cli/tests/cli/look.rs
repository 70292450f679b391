//! `leasehold show`, `ls`, `top` and `doctor`, as a user sees them.

use std::{
    process::{Child, Command, Output},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use support::{ClockShim, Cluster, Proxy, Replicated, Sentinels, Server, eventually};

use crate::scene::{HANGS, LEASEHOLD, NAME, Terminal, directory, ends_with, run, said, send, started, state_of, tool};

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A runner that holds this lock until it is terminated.
fn holder(server: &Server, label: &str, name: &str) -> Child {
    let runner = tool(server, &["run", "--label", label, name, "--", "sleep", "60"]).spawn().unwrap();
    eventually(HANGS, "it is held", || server.wire().exists(name));
    runner
}

fn sent_away(mut holder: Child) {
    send(&holder, Signal::TERM);
    assert_eq!(holder.wait().unwrap().code(), Some(143));
}

#[test]
fn a_holder_is_shown_and_can_be_sent_away() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let script = format!("echo > {}; sleep 60", sign.display());
    let runner = run(&server, &["--label", "nightly"], &script).spawn().unwrap();
    started(&server, &sign);
    let shown = tool(&server, &["show", NAME]).output().unwrap();
    ends_with(&shown, 0, &[]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("nightly"), "{shown:?}");
    let shown = tool(&server, &["show", "--json", NAME]).output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["holder"]["label"], "nightly");
    assert!(shown["holder"]["remaining_seconds"].as_f64().is_some_and(|left| left > 1.0), "{shown}");
    ends_with(&tool(&server, &["release", NAME]).output().unwrap(), 64, &["--force"]);
    ends_with(&tool(&server, &["release", "--force", NAME]).output().unwrap(), 64, &["--yes"]);
    let released = tool(&server, &["release", "--force", "--yes", "--json", NAME]).output().unwrap();
    let released: Value = serde_json::from_slice(&released.stdout).unwrap();
    assert_eq!((&released["name"], &released["taken_from"]["label"]), (&NAME.into(), &"nightly".into()));
    ends_with(&runner.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    ends_with(&tool(&server, &["show", NAME]).output().unwrap(), 1, &[]);
}

#[test]
fn show_tells_the_fence_of_a_lease_of_25_hours_and_of_one_whose_floor_was_deleted() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let floor = format!("{{{NAME}}}:lh:fence");
    let shown = || {
        let shown = tool(&server, &["show", "--json", NAME]).output().unwrap();
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        shown["holder"]["fence"].as_u64()
    };
    runtime.block_on(async {
        let leases = leasehold::Client::builder().url(server.url()).ttl(24 * HOUR).build().await.unwrap();
        let lease = leases.lock(NAME).acquire().await.unwrap();
        let fence = u64::from(lease.fence());
        server.wire().del(&floor);
        assert_eq!(shown(), Some(fence), "its floor was deleted");
        assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed));
        let lease = leases.lock(NAME).acquire().await.unwrap();
        assert!(u64::from(lease.fence()) > fence);
        for _half in 0..2 {
            clock.forward(25 * HOUR / 2);
            lease.renew().await.unwrap();
        }
        assert!(!server.wire().exists(&floor), "the premise");
        assert_eq!(shown(), Some(lease.fence().into()), "it is held for 25 hours");
        assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed));
    });
}

#[test]
fn a_holder_is_shown_with_the_time_for_which_it_has_held_the_lock() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    // The server's clock gives the time of the acquire, and ours the time since then.
    clock.back(Duration::from_secs(2 * 3_600 + 5));
    let holder = holder(&server, "web-1", NAME);
    let listed = tool(&server, &["ls"]).output().unwrap();
    let row = printed(&listed).lines().last().unwrap().to_owned();
    assert_eq!(row.split_whitespace().nth(2), Some("2h"), "{row}");
    let shown = printed(&tool(&server, &["show", NAME]).output().unwrap());
    assert!(shown.contains("\n  since 20") && shown.contains("Z, for 2h\n"), "{shown}");
    for args in [&["ls", "--json"][..], &["show", "--json", NAME]] {
        let shown: Value = serde_json::from_slice(&tool(&server, args).output().unwrap().stdout).unwrap();
        let of = shown.get(0).unwrap_or(&shown["holder"]);
        let (since, fence) = (of["since_unix_seconds"].as_f64().unwrap(), of["fence"].as_u64().unwrap());
        assert!((since - Duration::from_micros(fence).as_secs_f64()).abs() < 0.001, "{shown}");
    }
    // Any program may write a value: this moment is outside every calendar.
    let value = server.wire().get(NAME).unwrap();
    let (_, fence) = value.split_once('@').unwrap().0.rsplit_once(':').unwrap();
    let value = value.replace(fence, &i64::MAX.to_string());
    send(&holder, Signal::KILL);
    holder.wait_with_output().unwrap();
    server.wire().must(&["SET", NAME, &value, "PX", "60000"]);
    for args in [&["ls", "--json"][..], &["ls"], &["show", "--json", NAME], &["show", NAME]] {
        let shown = tool(&server, args).output().unwrap();
        ends_with(&shown, 0, &[]);
        assert!(printed(&shown).contains(&i64::MAX.to_string()), "{shown:?}");
    }
}

/// The confirmation applies to the holder that was shown.
#[test]
fn force_release_ends_the_holder_that_was_shown_and_no_other() {
    let server = Server::start();
    let first = holder(&server, "web-1", NAME);
    let line = format!("{LEASEHOLD} release --force --reason 'its host is gone' {NAME}");
    let mut terminal = Terminal::running(&server, &line);
    terminal.shows("web-1");
    sent_away(first);
    let second = holder(&server, "web-2", NAME);
    terminal.press("y\n");
    terminal.shows("web-2");
    terminal.press("no\n");
    assert!(terminal.ended().contains("nothing was done"));
    assert!(server.wire().exists(NAME));
    let mut terminal = Terminal::running(&server, &line);
    terminal.shows("[y/N]");
    terminal.press("y\n");
    assert!(terminal.ended().contains("was taken away"));
    ends_with(&second.wait_with_output().unwrap(), 75, &["it was taken away by force, by "]);
}

/// This includes a free lock, for which the reason would go unread.
#[test]
fn an_invalid_reason_is_refused_before_a_server_is_asked() {
    let server = Server::start();
    let long = "x".repeat(257);
    for reason in ["x\ny", "", &long] {
        let release = ["release", "--force", "--yes", "--reason", reason, NAME];
        ends_with(&tool(&server, &release).output().unwrap(), 64, &["reason is ", "1 to 256 bytes"]);
        let away = tool(&server, &release).env("LEASEHOLD_URL", "redis://127.0.0.1:1").output().unwrap();
        ends_with(&away, 64, &["reason is ", "1 to 256 bytes"]);
    }
    let release = ["release", "--force", "--yes", "--reason", &long[1..], NAME];
    ends_with(&tool(&server, &release).output().unwrap(), 0, &[]);
}

#[test]
fn held_locks_are_listed() {
    let server = Server::start();
    assert_eq!(printed(&tool(&server, &["ls"]).output().unwrap()).lines().count(), 1, "the head");
    server.wire().must(&["SET", "foreign", "another library's", "PX", "60000"]);
    let holders = [holder(&server, "web-1", "report"), holder(&server, "web-2", "backup")];
    let mut waiter = tool(&server, &["run", "--fair", "report", "--", "true"]).spawn().unwrap();
    eventually(HANGS, "it waits", || server.wire().exists("{report}:lh:queue"));

    let listed = tool(&server, &["ls"]).output().unwrap();
    ends_with(&listed, 0, &[]);
    let text = printed(&listed);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let [head, backup, report] = &lines[..] else { panic!("{text}") };
    assert_eq!(*head, ["NAME", "HOLDER", "HELD", "TTL", "FENCE", "WAITING"]);
    assert_eq!((backup[0], backup[1], backup[5]), ("backup", "web-2", "0"));
    assert_eq!((report[0], report[1], report[5]), ("report", "web-1", "1"));
    assert!(!text.contains('\u{1b}'), "no colours where nobody sees them: {text:?}");

    assert_eq!(printed(&tool(&server, &["ls", "-q"]).output().unwrap()), "backup\nreport\n");
    ends_with(&tool(&server, &["ls", "-q", "--json"]).output().unwrap(), 64, &["cannot be used with"]);

    let listed = tool(&server, &["ls", "--json", "r*"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(
        (&listed[0]["name"], &listed[0]["label"], &listed[0]["waiters"]),
        (&"report".into(), &"web-1".into(), &1.into())
    );
    assert!(listed[0]["fence"].as_u64().is_some() && listed[0]["remaining_seconds"].as_f64().is_some(), "{listed}");

    // KEYS would block a server with many keys.
    let commands = server.wire().must(&["INFO", "commandstats"]).text();
    assert!(commands.contains("cmdstat_scan:") && !commands.contains("cmdstat_keys:"), "{commands}");

    // A closed standard output is not an error.
    for args in [&["ls"][..], &["ls", "--json"], &["show", "report"], &["doctor"]] {
        let mut unread = tool(&server, args).spawn().unwrap();
        drop(unread.stdout.take());
        let output = unread.wait_with_output().unwrap();
        assert!(output.status.code().is_some_and(|code| code <= 1) && said(&output).is_empty(), "{args:?} {output:?}");
    }
    // Bold on a terminal, unless NO_COLOR is set.
    let ls = format!("{LEASEHOLD} ls");
    assert!(Terminal::running(&server, &ls).ended().contains("\u{1b}[1mNAME"));
    let plain = Terminal::running(&server, &format!("export NO_COLOR=1; {ls}")).ended();
    assert!(plain.contains("NAME") && !plain.contains("\u{1b}[1m"), "{plain:?}");
    send(&waiter, Signal::TERM);
    waiter.wait().unwrap();
    holders.into_iter().for_each(sent_away);
}

#[test]
fn a_lock_that_cannot_be_read_hides_no_other() {
    let server = Server::start();
    let holders = [holder(&server, "web-1", "report"), holder(&server, "web-2", "backup")];
    // A lock is listed for every user that may read its first bytes.
    server.wire().must(&["ACL", "SETUSER", "default", "-pttl", "(+pttl ~backup)"]);
    for args in [&["ls"][..], &["ls", "--json"]] {
        let listed = tool(&server, args).output().unwrap();
        ends_with(&listed, 69, &["\"report\": ", "give the user the rights"]);
        let text = printed(&listed);
        assert!(text.contains("web-2") && !text.contains("web-1"), "{text}");
    }
    let mut top = top(&server);
    top.shows("redis at 127");
    top.press("q");
    let drawn = top.ended();
    assert!(drawn.contains("2 held") && drawn.contains("web-2"), "{drawn}");
    server.wire().must(&["ACL", "SETUSER", "default", "clearselectors", "+pttl"]);
    holders.into_iter().for_each(sent_away);
}

#[test]
fn doctor_says_when_floors_of_fences_are_most_of_the_memory() {
    let server = Server::start();
    let floors = || {
        let (_, findings) = examined(&mut tool(&server, &["doctor", "--json"]));
        findings.into_iter().find(|finding| finding["check"] == "floors")
    };
    assert_eq!(floors(), None, "of an empty server");
    let script =
        "for i = 1, 50000 do redis.call('SET', '{job:' .. i .. '}:lh:fence', '1795243932883512', 'PX', 86400000) end";
    let used = || server.wire().info_field("memory", "used_memory").unwrap().parse::<u64>().unwrap();
    let before = used();
    server.wire().must(&["EVAL", script, "0"]);
    let share = (used() - before) * 100 / used();
    let found = floors().unwrap();
    let said = found["what"].as_str().unwrap();
    let percent: u64 = said.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    assert!(share.abs_diff(percent) <= 5, "{percent} % are said, {share} % it is");
    assert!(found["advice"].as_str().is_some_and(|advice| advice.contains("--fence-memory")), "{found}");
}

#[test]
fn a_doctor_asks_for_no_key_outside_of_its_prefix() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "guest", "on", ">secret", "~jobs:*", "~{jobs:*", "+@all", "&*"]);
    // A sample includes keys of both.
    for (number, prefix) in [("10000", "other:"), ("50000", "jobs:")] {
        let floors =
            "for i = 1, ARGV[1] do redis.call('SET', '{' .. ARGV[2] .. i .. '}:lh:fence', '1795243932883512') end";
        server.wire().must(&["EVAL", floors, "0", number, prefix]);
    }
    let url = format!("redis://guest:secret@127.0.0.1:{}", server.port());
    let doctor = ["doctor", "--json", "--url", &url, "--prefix", "jobs:"];
    let (code, findings) = examined(&mut tool(&server, &doctor));
    assert_eq!((code, problems(&findings)), (Some(0), Vec::new()), "{findings:?}");
    let log = server.wire().must(&["ACL", "LOG"]);
    assert_eq!(log.array().len(), 0, "{log:?}");
    assert!(findings.iter().any(|finding| finding["check"] == "floors"), "its own are seen: {findings:?}");
}

#[test]
fn a_user_without_the_right_to_list_is_told_so() {
    let server = Server::start();
    let holder = holder(&server, "web-1", "report");
    for right in ["scan", "getrange"] {
        server.wire().must(&[
            "ACL",
            "SETUSER",
            "clerk",
            "reset",
            "on",
            ">secret",
            "~*",
            "&*",
            "+@all",
            &format!("-{right}"),
        ]);
        let url = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
        let listed = tool(&server, &["ls", "--url", &url]).output().unwrap();
        ends_with(&listed, 69, &["give the user the rights"]);
        assert_eq!(printed(&listed), "");
    }
    sent_away(holder);
}

#[test]
fn a_user_without_rights_to_the_queue_sees_the_holder() {
    let server = Server::start();
    let holder = holder(&server, "web-1", "report");
    // The rights for locks without a queue.
    server.wire().must(&["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "&*", "+@all", "-@sortedset"]);
    let url = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
    let listed = tool(&server, &["ls", "--url", &url]).output().unwrap();
    ends_with(&listed, 0, &[]);
    let text = printed(&listed);
    let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[5]), ("report", "web-1", "-"));
    let shown = tool(&server, &["show", "--url", &url, "report"]).output().unwrap();
    ends_with(&shown, 0, &["who waits for \"report\" is not known", "rights"]);
    assert!(printed(&shown).contains("is held by web-1"), "{shown:?}");
    let (_, findings) = examined(&mut tool(&server, &["doctor", "--json", "--url", &url]));
    let fair = findings.iter().find(|finding| finding["what"].as_str().is_some_and(|what| what.contains("be fair")));
    assert!(fair.is_some_and(|finding| finding["level"] == "note"), "{findings:?}");
    sent_away(holder);
}

#[test]
fn locks_of_a_quorum_are_listed_and_shown() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(",");
    let over = |args: &[&str]| {
        let mut command = tool(&servers[0], &args[..1]);
        command.args(["--quorum", &urls, "--restart-delay", "0"]).args(&args[1..]);
        command
    };
    let holder = over(&["run", "--label", "web-1", NAME, "--", "sleep", "60"]).spawn().unwrap();
    eventually(HANGS, "it is held", || servers.iter().all(|server| server.wire().exists(NAME)));
    let listed = over(&["ls", "--json"]).output().unwrap();
    ends_with(&listed, 0, &[]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["label"], &listed[0]["waiters"]),
        (&NAME.into(), &"web-1".into(), &Value::Null)
    );
    let shown = over(&["show", NAME]).output().unwrap();
    ends_with(&shown, 0, &[]);
    assert!(printed(&shown).contains("web-1"), "{shown:?}");
    sent_away(holder);
}

#[test]
fn fair_waiters_of_a_cluster_are_shown() {
    let cluster = Cluster::start(2, 0);
    let (server, url) = (&cluster.servers()[0], cluster.url());
    let on = |args: &[&str]| {
        let mut command = tool(server, &args[..1]);
        command.args(["--url", &url]).args(&args[1..]);
        command
    };
    let home = &cluster.servers()[cluster.home_of(NAME)];
    let holder = on(&["run", NAME, "--", "sleep", "60"]).spawn().unwrap();
    eventually(HANGS, "it is held", || home.wire().exists(NAME));
    let mut waiter = on(&["run", "--fair", "--label", "web-2", NAME, "--", "true"]).spawn().unwrap();
    eventually(HANGS, "it waits", || home.wire().exists(&format!("{{{NAME}}}:lh:queue")));
    let listed: Value = serde_json::from_slice(&on(&["ls", "--json"]).output().unwrap().stdout).unwrap();
    assert_eq!(listed[0]["waiters"], 1, "{listed}");
    let shown: Value = serde_json::from_slice(&on(&["show", "--json", NAME]).output().unwrap().stdout).unwrap();
    assert_eq!(shown["waiters"][0]["label"], "web-2", "{shown}");
    let mut top = Terminal::running(server, &format!("{LEASEHOLD} top --url {url}"));
    top.shows("1 held, 1 in line, at 2 of 2 nodes");
    top.press("q");
    top.ended();
    send(&waiter, Signal::TERM);
    waiter.wait().unwrap();
    sent_away(holder);
}

fn top(server: &Server) -> Terminal {
    let line = format!("trap : INT; {LEASEHOLD} top --interval 200ms; echo code $?; stty -a");
    Terminal::running(server, &line)
}

#[test]
fn top_shows_held_locks_and_leaves_the_terminal_as_it_was() {
    let server = Server::start();
    let name = format!("reports:{}", "n".repeat(100));
    let holders = [holder(&server, "web-1", &name), holder(&server, "web-2", "backup")];
    let mut top = top(&server);
    top.shows("2 held");
    top.press("q");
    let drawn = top.ended();
    holders.into_iter().for_each(sent_away);
    let frame = drawn.split("\u{1b}[H").find(|frame| frame.contains("2 held")).unwrap();
    assert!(frame.contains("web-1") && frame.contains("backup") && frame.contains("nnn…"), "{frame}");
    let (frame, _) = frame.split_once("\u{1b}[J").expect("it clears the rest");
    for line in frame.split("\r\n") {
        let plain =
            ["\u{1b}[1m", "\u{1b}[0m", "\u{1b}[2K"].iter().fold(line.to_owned(), |line, code| line.replace(code, ""));
        assert!(plain.chars().count() <= 80 && !plain.contains('\u{1b}'), "{plain:?}");
    }
    assert!(drawn.contains("code 0") && drawn.contains("\u{1b}[?25h\u{1b}[?1049l"), "{drawn}");
    let after = &drawn[drawn.find("code 0").unwrap()..];
    assert!(after.contains(" icanon") && after.contains(" echo "), "{after}");
}

#[test]
fn top_sorts_scrolls_and_explains_its_keys() {
    let server = Server::start();
    let holders = [holder(&server, "web-2", "first"), holder(&server, "web-1", "backup")];
    let mut top = top(&server);
    // The next complete screen with this text.
    let next = |top: &Terminal, text: &str, from: usize| {
        let mut whole = None;
        eventually(HANGS, text, || {
            let shown = top.shown().get(from..).unwrap_or_default().to_owned();
            let mut frames = shown.split("\u{1b}[H").filter_map(|frame| Some(frame.split_once("\u{1b}[J")?.0));
            whole = frames.find(|frame| frame.contains(text)).map(ToOwned::to_owned);
            whole.is_some()
        });
        whole.unwrap()
    };
    let is_before = |frame: &str, one: &str, other: &str| frame.find(one).unwrap() < frame.find(other).unwrap();
    assert!(is_before(&next(&top, "by name (s)", 0), "backup", "first"));
    let press = |top: &mut Terminal, key: &str, text: &str| {
        let from = top.shown().len();
        top.press(key);
        next(top, text, from)
    };
    assert!(is_before(&press(&mut top, "s", "by time held"), "first", "backup"));
    press(&mut top, "s", "by expiry");
    assert!(is_before(&press(&mut top, "s", "by holder"), "backup", "first"));
    press(&mut top, "s", "by name");
    assert!(press(&mut top, "?", "PgUp, PgDn").contains("quit"));
    press(&mut top, "?", "by name");
    top.press("q");
    assert!(top.ended().contains("code 0"));
    holders.into_iter().for_each(sent_away);
}

#[test]
fn top_goes_on_while_the_server_is_away_and_ends_at_an_interrupt() {
    let server = Server::start();
    let mut top = top(&server);
    top.shows("0 held");
    server.kill();
    top.shows("; q ends");
    server.restart();
    let before = top.shown().len();
    eventually(HANGS, "it is back", || top.shown()[before..].contains("0 held"));
    top.press("\x03");
    let drawn = top.ended();
    assert!(drawn.contains("code 0"), "{drawn}");
}

#[test]
fn top_shows_every_error() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "default", "-scan"]);
    let mut top = Terminal::running(&server, &format!("{LEASEHOLD} top --interval 0"));
    top.shows("redis at 127");
    server.wire().must(&["ACL", "SETUSER", "default", "+scan"]);
    top.shows("every 100ms");
    top.press("q");
    let drawn = top.ended();
    let whole = drawn.replace("\r\n\u{1b}[2K", "");
    assert!(
        whole.contains("give the user the rights that https://docs.rs/leasehold/latest/leasehold/docs/operations/"),
        "{drawn}"
    );
    let refused = drawn.split("\u{1b}[H").find(|frame| frame.contains("can't run")).unwrap();
    assert!(!refused.contains("\u{1b}[1m"), "that is no head: {refused}");
}

#[test]
fn top_draws_on_no_terminal_of_another_process() {
    let server = Server::start();
    let (_directory, pid) = directory();
    let top = format!("{LEASEHOLD} top & echo $! > {}; read line; fg; echo code $?", pid.display());
    let mut terminal = Terminal::running(&server, &format!("set -m; {top}"));
    // Every look is one script at least, and each look could be drawn.
    let mut wire = server.wire();
    eventually(HANGS, "it has looked twice", || wire.calls("evalsha") + wire.calls("eval") >= 4);
    assert!(!terminal.shown().contains('\u{1b}'), "{:?}", terminal.shown());
    assert_ne!(state_of(&pid), Some('T'), "it reads no key there, which would stop it");
    terminal.press("\n");
    terminal.shows("0 held");
    terminal.press("q");
    assert!(terminal.ended().contains("code 0"));
}

/// As `kill %1` of an interactive shell does: TERM, then CONT.
#[test]
fn a_stopped_top_and_a_stopped_hold_are_ended_by_a_signal() {
    let server = Server::start();
    for (command, has_begun) in [("top", "\u{1b}[?1049h"), ("hold job", "held ")] {
        let (_directory, pid) = directory();
        let line = format!(
            "set -m; sh -c 'echo $$ > {}; exec {LEASEHOLD} {command}'; echo it is stopped; read line; kill %1; kill -CONT %1; read line",
            pid.display()
        );
        let mut terminal = Terminal::running(&server, &line);
        terminal.shows(has_begun);
        terminal.press("\x1a");
        // Only then are all of its threads: one could still read the next line.
        terminal.shows("it is stopped");
        assert_eq!(state_of(&pid), Some('T'));
        terminal.press("\n");
        eventually(HANGS, "it has ended", || !matches!(state_of(&pid), Some(state) if state != 'Z'));
        assert!(!server.wire().exists("job"), "{command}");
        terminal.press("\n");
        let _drawn = terminal.ended();
    }
}

#[test]
fn top_needs_a_terminal() {
    let server = Server::start();
    ends_with(&tool(&server, &["top"]).output().unwrap(), 64, &["terminal", "leasehold ls"]);
    let dumb = Terminal::running(&server, &format!("export TERM=dumb; {LEASEHOLD} top")).ended();
    assert!(dumb.contains("leasehold ls") && !dumb.contains('\u{1b}'), "{dumb:?}");
}

fn examined(command: &mut Command) -> (Option<i32>, Vec<Value>) {
    let output = command.output().unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code(), findings.as_array().unwrap().clone())
}

fn problems(findings: &[Value]) -> Vec<String> {
    let problems = findings.iter().filter(|finding| finding["level"] == "problem");
    problems.map(|finding| format!("{} {}", finding["what"], finding["advice"])).collect()
}

#[test]
fn a_key_that_is_no_lock_is_shown_as_such_and_is_a_problem_for_the_doctor() {
    let server = Server::start();
    server.wire().must(&["RPUSH", "user:17", "value"]);
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json", "--name", "user:17"]));
    let problems = problems(&findings);
    assert_eq!((code, problems.len()), (Some(1), 1), "{findings:?}");
    for words in ["user:17", "a list, which is no lock", "another name or a --prefix"] {
        assert!(problems[0].contains(words), "{words}: {problems:?}");
    }
    let shown = tool(&server, &["show", "user:17"]).output().unwrap();
    assert!(printed(&shown).contains("a list under its key, which is no lock"), "{shown:?}");
    let shown: Value =
        serde_json::from_slice(&tool(&server, &["show", "--json", "user:17"]).output().unwrap().stdout).unwrap();
    assert_eq!(shown["holder"]["not_a_lock"], "list");
    // A command that would be skipped forever prints a message, under cron or not.
    let skipped = tool(&server, &["run", "--nonblock", "user:17", "--", "true"]).output().unwrap();
    ends_with(&skipped, 1, &["user:17", "a list under its key"]);
}

#[test]
fn a_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let server = Server::start();
    let wire = || server.wire();
    // A server with default settings is enough for a lock that only avoids duplicate work.
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json"]));
    assert_eq!((code, problems(&findings)), (Some(0), Vec::new()), "{findings:?}");
    let (code, strict) = examined(&mut tool(&server, &["doctor", "--json", "--strict"]));
    assert_eq!((code, &strict[..2]), (Some(1), &findings[..2]), "{strict:?}");
    let persistence = findings.iter().find(|finding| finding["check"] == "persistence").unwrap();
    assert_eq!(persistence["level"], "note");
    // With this setting alone, a restart would begin with no data.
    for words in ["CONFIG SET appendonly yes", "CONFIG REWRITE", "--restart-delay 31s"] {
        assert!(persistence["advice"].as_str().is_some_and(|advice| advice.contains(words)), "{words}: {findings:?}");
    }

    wire().must(&["CONFIG", "SET", "appendonly", "yes"]);
    wire().must(&["CONFIG", "SET", "appendfsync", "always"]);
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json", "--strict"]));
    assert_eq!((code, problems(&findings)), (Some(0), Vec::new()), "{findings:?}");
    assert!(
        findings.iter().any(|finding| finding["what"]
            .as_str()
            .is_some_and(|what| what.contains("acquired, renewed and released")))
    );

    for (policy, level, code) in [
        ("allkeys-lru", "note", 0),
        ("volatile-lfu", "note", 0),
        ("volatile-ttl", "problem", 1),
        ("allkeys-random", "problem", 1),
    ] {
        wire().must(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let text = tool(&server, &["doctor"]).output().unwrap();
        ends_with(&text, code, &[]);
        let said = printed(&text);
        let line = said.lines().find(|line| line.contains(&format!("maxmemory-policy {policy}"))).unwrap();
        assert!(line.trim_start().starts_with(level), "{line}");
    }
    wire().must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);

    // A user without all the rights that locks need.
    wire().must(&["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "+@all", "-pexpire"]);
    let url = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json", "--url", &url]));
    let found = problems(&findings);
    assert!(code == Some(1) && found.iter().any(|found| found.contains("cannot be renewed")), "{findings:?}");
    wire().must(&["ACL", "SETUSER", "clerk", "+@all", "-client", "&*"]);
    let (_, findings) = examined(&mut tool(&server, &["doctor", "--json", "--url", &url]));
    let push = findings.iter().find(|finding| finding["check"] == "notifications").unwrap();
    assert!(push["level"] == "note" && push["advice"].as_str().is_some_and(|what| what.contains("client")), "{push}");
    // Both the replica and its primary report the replica.
    let replica = Server::start();
    replica.wire().must(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let role = |server: &Server, check: &str| {
        let (_, findings) = examined(&mut tool(server, &["doctor", "--json"]));
        findings.into_iter().find(|finding| finding["check"] == check)
    };
    eventually(HANGS, "it has a replica", || {
        role(&server, "replicas").is_some_and(|finding| finding["level"] == "note")
            && role(&replica, "server").is_some_and(|finding| finding["level"] == "problem")
    });
    replica.wire().must(&["REPLICAOF", "NO", "ONE"]);
    // A user with rights to some keys only.
    wire().must(&["ACL", "SETUSER", "guest", "on", ">secret", "~jobs:*", "~{jobs:*", "+@all", "&*"]);
    let url = format!("redis://guest:secret@127.0.0.1:{}", server.port());
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json", "--url", &url]));
    assert!(code == Some(1) && !problems(&findings).is_empty(), "{findings:?}");
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json", "--url", &url, "--name", "jobs:x"]));
    assert_eq!((code, problems(&findings)), (Some(0), Vec::new()), "{findings:?}");
    assert_eq!(wire().keys("*doctor*").iter().filter(|key| !key.ends_with(":lh:fence")).count(), 0);
}

#[test]
fn a_doctor_warns_of_a_server_that_stops_where_it_cannot_save() {
    let server = Server::start();
    let set = |setting: &str, to: &str| server.wire().must(&["CONFIG", "SET", setting, to]);
    let saving = |url: &str| found(url, &server, "saving");
    let is_level = |(code, findings): (Option<i32>, Vec<(String, String)>), of: Option<i32>, level: &str| {
        let levels: Vec<_> = findings.iter().map(|(level, _)| level.as_str()).collect();
        assert_eq!((code, &levels[..]), (of, &[level][..]), "{findings:?}");
    };
    set("save", "3600 1");
    is_level(saving(&server.url()), Some(0), "note");
    // A server that hides its settings may be set up well.
    server.wire().must(&["ACL", "SETUSER", "clerk", "on", ">secret", "~*", "&*", "+@all", "-config", "-info"]);
    let hidden = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
    assert_eq!(saving(&hidden), (Some(0), Vec::new()));
    set("stop-writes-on-bgsave-error", "no");
    assert_eq!(saving(&server.url()), (Some(0), Vec::new()));
    // A snapshot cannot replace a directory.
    std::fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    server.wire().must(&["BGSAVE"]);
    eventually(HANGS, "the snapshot fails", || {
        server.wire().info_field("persistence", "rdb_last_bgsave_status").as_deref() == Some("err")
    });
    is_level(saving(&server.url()), Some(1), "problem");
    set("stop-writes-on-bgsave-error", "yes");
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json"]));
    assert_eq!(code, Some(69), "{findings:?}");
    assert!(problems(&findings).iter().all(|found| found.contains("see to the server's disk")), "{findings:?}");
    // Snapshots may be disabled, because locks do not need them.
    set("save", "");
    is_level(saving(&server.url()), Some(1), "problem");
}

#[test]
fn a_doctor_looks_at_every_server_of_a_quorum() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut urls = servers.each_ref().map(Server::url);
    let over = |urls: &[String]| tool(&servers[0], &["doctor", "--json", "--quorum", &urls.join(",")]);
    // Servers that have just started do not vote before their restart delay.
    let examine = |urls: &[String]| examined(over(urls).args(["--restart-delay", "0"]));
    let (code, findings) = examine(&urls);
    // Without the restart delay, forgotten locks are a problem.
    assert_eq!((code, problems(&findings).len()), (Some(1), 3), "{findings:?}");
    assert!(problems(&findings).iter().all(|found| found.contains("--restart-delay")), "{findings:?}");
    // With the restart delay, which a quorum has by default, they are not.
    let (_, usual) = examined(&mut over(&urls));
    let kept: Vec<_> = usual.iter().filter(|finding| finding["check"] == "persistence").collect();
    assert!(kept.len() == 3 && kept.iter().all(|finding| finding["level"] == "ok"), "{usual:?}");
    for server in &servers {
        let place = format!("127.0.0.1:{}", server.port());
        assert!(
            findings.iter().any(|finding| finding["place"].as_str().is_some_and(|at| at.contains(&place))),
            "{findings:?}"
        );
    }
    assert!(
        findings.iter().any(|finding| finding["what"].as_str().is_some_and(|what| what.contains("clocks of"))),
        "{findings:?}"
    );
    "redis://127.0.0.1:1".clone_into(&mut urls[2]);
    let (code, findings) = examine(&urls);
    assert_eq!(code, Some(69), "{findings:?}");
    assert!(problems(&findings).iter().any(|found| found.contains("127.0.0.1:1")), "{findings:?}");
    assert!(
        findings.iter().any(|finding| finding["what"].as_str().is_some_and(|what| what.contains("acquired"))),
        "two of three do: {findings:?}"
    );
}

/// The exit code, and the findings of one check: level and text.
fn found(url: &str, alone: &Server, check: &str) -> (Option<i32>, Vec<(String, String)>) {
    let (code, findings) = examined(&mut tool(alone, &["doctor", "--json", "--url", url]));
    let text = |of: &serde_json::Value| of.as_str().unwrap_or_default().to_owned();
    let ours = findings.iter().filter(|finding| finding["check"] == check);
    (code, ours.map(|finding| (text(&finding["level"]), text(&finding["what"]))).collect())
}

#[test]
fn ls_shows_the_locks_of_the_primaries_that_answer_and_names_the_one_that_is_missing() {
    let (cluster, alone) = (Cluster::start(3, 0), Server::start());
    let url = cluster.url();
    let names = [cluster.name_at(0, "report"), cluster.name_at(1, "report")];
    let holder =
        |name: &str| tool(&alone, &["run", "--url", &url, "--ttl", "10m", name, "--", "sleep", "60"]).spawn().unwrap();
    let holders = names.each_ref().map(|name| holder(name));
    let is_held = |at: usize| cluster.primaries()[at].wire().exists(&names[at]);
    eventually(HANGS, "both are held", || is_held(0) && is_held(1));
    let listed = tool(&alone, &["ls", "--url", &url]).output().unwrap();
    ends_with(&listed, 0, &[]);
    let text = printed(&listed);
    assert!(names.iter().all(|name| text.contains(name.as_str())), "{text}");
    assert!(text.lines().skip(1).all(|row| row.ends_with('0')), "nobody waits: {text}");
    let gone = &cluster.primaries()[0];
    gone.kill();
    for args in [&["ls"][..], &["ls", "--json"]] {
        let listed = tool(&alone, &[args, &["--url", &url]].concat()).output().unwrap();
        ends_with(&listed, 69, &["the locks of 1 of 3 primaries are missing", &format!("127.0.0.1:{}: ", gone.port())]);
        let text = printed(&listed);
        assert!(text.contains(&names[1]) && !text.contains(&names[0]), "{text}");
    }
    holders.into_iter().for_each(sent_away);
}

#[test]
fn a_doctor_looks_at_a_cluster() {
    let (cluster, alone) = (Cluster::start(3, 0), Server::start());
    let is = |found: &[(String, String)], level: &str, what: &str| {
        found.iter().any(|(of, text)| of == level && text.contains(what))
    };
    let (code, findings) = found(&cluster.url(), &alone, "cluster");
    assert!(code == Some(0) && is(&findings, "ok", "3 primaries have all slots"), "{code:?} {findings:?}");
    let (_, clocks) = found(&cluster.url(), &alone, "clocks");
    assert!(is(&clocks, "ok", "the clocks of 3 servers are within"), "{clocks:?}");
    let (_, findings) = found(&cluster.url(), &alone, "lock");
    assert!(is(&findings, "ok", "acquired, renewed and released"), "{findings:?}");
    assert!(found(&cluster.url(), &alone, "coverage").1.is_empty());
    cluster.begin_to_move(5_000, 0, 2);
    for server in cluster.servers() {
        let mut wire = server.wire();
        wire.must(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
        wire.must(&["CONFIG", "SET", "cluster-node-timeout", "20000"]);
    }
    for (check, what) in
        [("moving", "1 slots are being moved, such as 5000"), ("coverage", "stops all"), ("failover", "20s")]
    {
        let (_, findings) = found(&cluster.url(), &alone, check);
        assert!(is(&findings, "note", what), "{check}: {findings:?}");
    }
    cluster.servers()[1].wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    for server in cluster.servers() {
        server.wire().must(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    cluster.delete_slot(16_000, cluster.servers());
    let (code, findings) = found(&cluster.url(), &alone, "cluster");
    assert!(code == Some(1) && is(&findings, "problem", "1 slots have no primary"), "{code:?} {findings:?}");
}

/// The places of the findings of one check, and their texts.
fn places_of(findings: &[Value], check: &str) -> Vec<(String, String)> {
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let ours = findings.iter().filter(|finding| finding["check"] == check);
    ours.map(|finding| (text(&finding["place"]), text(&finding["what"]))).collect()
}

fn place(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

#[test]
fn a_doctor_tells_of_each_primary_of_a_cluster_by_itself() {
    let cluster = Cluster::start(3, 0);
    let primaries = cluster.servers();
    let url = cluster.url();
    primaries[1].wire().must(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let (code, findings) = examined(&mut tool(&primaries[0], &["doctor", "--json", "--url", &url]));
    let evictions = places_of(&findings, "eviction");
    for (server, policy) in primaries.iter().zip(["noeviction", "allkeys-random", "noeviction"]) {
        let is_said = |(at, what): &(String, String)| *at == place(server) && what.contains(policy);
        assert!(evictions.iter().any(is_said), "{policy}: {evictions:?}");
    }
    assert_eq!((code, problems(&findings).len()), (Some(1), 1), "{findings:?}");
    // No primary has a replica that could take over.
    let alone = places_of(&findings, "replicas");
    assert!(alone.len() == 3 && alone.iter().all(|(_, what)| what.contains("nobody can take over")), "{alone:?}");
    // Such a url refuses the option.
    assert!(findings.iter().all(|finding| !finding["advice"].to_string().contains("--restart-delay")), "{findings:?}");
    // Servers with equal findings share one line.
    let text = printed(&tool(&primaries[0], &["doctor", "--url", &url]).output().unwrap());
    let policies = text.matches("ok       maxmemory-policy noeviction").count();
    assert!(policies == 1 && primaries.iter().all(|server| text.contains(&place(server))), "{text}");
}

#[test]
fn a_dead_primary_hides_no_other_from_the_doctor() {
    let cluster = Cluster::start(3, 1);
    let (primaries, url) = (cluster.primaries(), cluster.url());
    // No replica takes over.
    for replica in &cluster.servers()[3..] {
        replica.wire().must(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    }
    primaries[1].kill();
    let (code, findings) = examined(&mut tool(&primaries[0], &["doctor", "--json", "--url", &url]));
    assert_eq!(code, Some(69), "{findings:?}");
    let versions: Vec<String> = places_of(&findings, "version").into_iter().map(|(at, _)| at).collect();
    assert_eq!(versions, [place(&primaries[0]), place(&primaries[2])], "{findings:?}");
    let dead: Vec<_> = findings.iter().filter(|finding| finding["check"] == "server").collect();
    let [dead] = &dead[..] else { panic!("{findings:?}") };
    let says = |of: &str, words: &str| dead[of].as_str().is_some_and(|said| said.contains(words));
    assert!(dead["place"] == place(&primaries[1]) && says("what", "its 5461 slots"), "{dead}");
    assert!(says("advice", "a replica may be about to take over"), "{dead}");
}

#[test]
fn a_cluster_without_slots_has_to_be_made() {
    let server = Server::builder().cluster(true).start();
    let url = format!("redis-cluster://{}", place(&server));
    let over = |args: &[&str]| {
        let mut command = tool(&server, &args[..1]);
        command.args(["--url", &url, "--connect-timeout", "1s"]).args(&args[1..]);
        command
    };
    let (code, findings) = examined(&mut over(&["doctor", "--json"]));
    let found = problems(&findings).concat();
    assert!(code == Some(69) && found.contains("make the cluster: redis-cli --cluster create"), "{found}");
    assert!(!found.contains("start it"), "{found}");
    ends_with(&over(&["run", NAME, "--", "true"]).output().unwrap(), 69, &["redis-cli --cluster create"]);
}

#[test]
fn a_doctor_looks_at_sentinels() {
    let (all, alone) = (Sentinels::start(), Server::start());
    let is = |found: &[(String, String)], level: &str, what: &str| {
        found.iter().any(|(of, text)| of == level && text.contains(what))
    };
    let (code, findings) = found(&all.url(), &alone, "sentinels");
    assert!(
        code == Some(0) && is(&findings, "ok", "3 Sentinels name one primary of \"locks\""),
        "{code:?} {findings:?}"
    );
    let replicas = || found(&all.url(), &alone, "replicas").1;
    assert!(is(&replicas(), "note", "2 replicating"), "{:?}", replicas());
    for replica in all.replicas() {
        replica.kill();
    }
    eventually(HANGS, "the primary has no replica", || is(&replicas(), "note", "nobody can take over"));
    all.sentinels()[2].kill();
    let (_, findings) = found(&all.url(), &alone, "sentinels");
    assert!(is(&findings, "note", "1 of 3 do not answer"), "{findings:?}");
    all.sentinels()[1].kill();
    eventually(HANGS, "it knows that it is alone", || {
        let (code, findings) = found(&all.url(), &alone, "sentinels");
        code == Some(1) && is(&findings, "problem", "take over: NOQUORUM")
    });
    let (code, findings) = found(&all.url().replace("/locks", "/lock"), &alone, "server");
    assert!(code == Some(69) && is(&findings, "problem", "it watches \"locks\""), "{code:?} {findings:?}");
    // The other subcommands accept such urls too.
    let run = tool(&alone, &["run", "--url", &all.url(), "job", "true"]).status().unwrap();
    assert!(run.success(), "{run:?}");
}

#[test]
fn a_doctor_looks_at_replicas() {
    let servers = Replicated::start(1);
    let (primary, replica) = (servers.primary(), &servers.replicas()[0]);
    let findings = |more: &[&str]| examined(&mut tool(primary, &[&["doctor", "--json"], more].concat()));
    let is = |findings: &[Value], level: &str, check: &str, what: &str| {
        let said = |finding: &Value| finding["what"].as_str().is_some_and(|said| said.contains(what));
        findings.iter().any(|finding| finding["check"] == check && finding["level"] == level && said(finding))
    };
    let (_, found) = findings(&[]);
    assert!(is(&found, "note", "replicas", "1 replicating: one that takes over may not have heard"), "{found:?}");
    assert!(is(&found, "ok", "replica", "all follow, at most "), "{found:?}");
    let (code, found) = findings(&["--min-replicas", "1"]);
    assert!(code == Some(0) && is(&found, "ok", "replicas", "1 replicating, 1 have to confirm"), "{found:?}");
    let (code, found) = findings(&["--min-replicas", "2"]);
    assert!(code == Some(1) && is(&found, "problem", "replicas", "2 have to confirm each lock"), "{found:?}");
    assert!(is(&found, "problem", "lock", "1 of 2 replicas confirmed"), "{found:?}");
    primary.wire().must(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let (code, found) = findings(&[]);
    assert!(code == Some(1) && is(&found, "problem", "replicas", "it writes only with 2"), "{found:?}");
    primary.wire().must(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    replica.wire().must(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (_, found) = findings(&[]);
    assert!(
        is(&found, "note", "replica", &format!("{} has maxmemory-policy allkeys-lru", place(replica))),
        "{found:?}"
    );
    replica.wire().must(&["ACL", "SETUSER", "default", "-info"]);
    let (_, found) = findings(&[]);
    assert!(is(&found, "note", "replica", "cannot be asked for its clock and its settings: NOPERM"), "{found:?}");
    replica.stop();
    eventually(HANGS, "it is behind", || {
        is(&findings(&[]).1, "note", "replica", " bytes behind, and last acknowledged ")
    });
    replica.cont();
}

/// A replica that takes over uses its own clock.
#[test]
fn a_doctor_compares_the_clocks_of_replicas() {
    let clock = ClockShim::new();
    let (primary, replica) = (Server::start(), Server::builder().clock(&clock).start());
    replica.wire().must(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    eventually(HANGS, "it follows", || {
        let told = primary.wire().info_field("replication", "slave0");
        told.is_some_and(|told| told.contains("state=online"))
    });
    let findings = || examined(&mut tool(&primary, &["doctor", "--json"]));
    let whats =
        |(_, found): (_, Vec<Value>)| found.iter().map(|finding| finding["what"].to_string()).collect::<Vec<_>>();
    assert!(whats(findings()).iter().any(|what| what.contains("their clocks within ")));
    clock.forward(Duration::from_millis(5_500));
    let (code, found) = findings();
    let said = format!("the clock of {} is 5", place(&replica));
    assert!(
        problems(&found).iter().any(|found| found.contains(&said) && found.contains("ahead of its primary's")),
        "{found:?}"
    );
    assert_eq!(code, Some(1));
}

#[test]
fn a_doctor_finds_a_link_slow_only_where_a_lease_would_be_lost_over_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.delay(Duration::from_millis(40));
    let examine = |delay: &str| {
        let over = ["doctor", "--json", "--url", &proxy.url(), "--restart-delay", delay];
        problems(&examined(&mut tool(&server, &over)).1)
    };
    let found = examine("0");
    assert!(found.iter().all(|found| !found.contains("it cannot be")), "no delay suits any TTL: {found:?}");
    // With such a delay the doctor's lease has the shortest TTL, which is too short for such a link.
    let mut found = String::new();
    eventually(HANGS, "the server has run for that long, and votes", || {
        found = examine("1100ms").concat();
        found.contains("it cannot be renewed")
    });
    assert!(found.contains("are slow or away") && !found.contains("give our user"), "{found:?}");
}

#[test]
fn a_doctor_has_one_advice_for_one_cause() {
    let cluster = Server::builder().arg("--cluster-enabled", "yes");
    // The default port of the cluster bus may exceed the valid range.
    let cluster = if Server::version().at_least(7, 0) { cluster.arg("--cluster-port", "0") } else { cluster }.start();
    let replica = Server::start();
    replica.wire().must(&["REPLICAOF", "127.0.0.1", "1"]);
    let [full, alone, closed] = [Server::start(), Server::start(), Server::start()];
    full.wire().must(&["CONFIG", "SET", "maxmemory", "1"]);
    alone.wire().must(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    closed.wire().must(&["CONFIG", "SET", "requirepass", "secret"]);
    for (server, what, advice) in [
        (&cluster, "part of a cluster", "name a stand-alone server"),
        (&Server::builder().sentinel(true).start(), "is a Sentinel", "redis-sentinel://"),
        (&replica, "is a replica", "name its primary"),
        (&full, "OOM", "raise the server's maxmemory"),
        (&alone, "NOREPLICAS", "min-replicas-to-write"),
        (&closed, "NOAUTH", "correct its URL"),
    ] {
        // Before 7.0 scripts may write, whatever the number of replicas.
        if what == "NOREPLICAS" && !Server::version().at_least(7, 0) {
            continue;
        }
        let (_, findings) = examined(&mut tool(server, &["doctor", "--json"]));
        let problems: Vec<_> = findings.iter().filter(|finding| finding["level"] == "problem").collect();
        let says =
            |problem: &Value, of: &str, words: &str| problem[of].as_str().is_some_and(|said| said.contains(words));
        let are_told = |what: &str| problems.iter().filter(|problem| says(problem, "what", what)).count();
        // The server reports its replicas, and so does its refusal.
        let replicas = usize::from(what == "NOREPLICAS");
        assert_eq!(
            (are_told(what), are_told("replicating"), problems.len()),
            (1, replicas, 1 + replicas),
            "{findings:?}"
        );
        for problem in problems {
            assert!(says(problem, "advice", advice), "{problem}");
            assert!(!says(problem, "advice", "start it") && !says(problem, "advice", "slow"), "{problem}");
        }
    }
}

#[test]
fn a_doctor_advises_no_start_of_a_server_that_refuses_us() {
    let server = Server::start();
    server.wire().must(&["CONFIG", "SET", "requirepass", "secret"]);
    let (code, findings) = examined(&mut tool(&server, &["doctor", "--json"]));
    let found = problems(&findings).concat();
    assert_eq!(code, Some(69), "{findings:?}");
    assert!(found.contains("NOAUTH") && found.contains("correct its URL") && !found.contains("start it"), "{found}");
}

#[test]
fn a_doctor_asks_an_absent_server_once_and_for_no_invalid_name() {
    let server = Server::start();
    let (limit, began) = (Duration::from_secs(2), Instant::now());
    let nobody = ["doctor", "--json", "--url", "redis://127.0.0.1:1", "--connect-timeout", "2s"];
    let (code, findings) = examined(&mut tool(&server, &nobody));
    assert!(began.elapsed() < 2 * limit, "it was waited for twice: {:?}", began.elapsed());
    assert_eq!((code, findings.len()), (Some(69), 1), "{findings:?}");
    let name = "n".repeat(1_024);
    let output = tool(&server, &["doctor", "--name", &name]).output().unwrap();
    ends_with(&output, 64, &["bytes long"]);
    assert_eq!(printed(&output), "");
}

/// A majority grants the lock without this server, so nothing else would show the fault.
#[test]
fn a_doctor_names_the_server_of_a_quorum_that_grants_nothing() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls = servers.each_ref().map(Server::url).join(",");
    let over = |delay: &[&str]| {
        let args = [&["doctor", "--json", "--quorum", &urls], delay].concat();
        examined(&mut tool(&servers[0], &args))
    };
    // By default, servers that have just started grant nothing.
    let (code, findings) = over(&[]);
    let recovering = |finding: &&Value| finding["what"].as_str().is_some_and(|what| what.contains("is recovering"));
    let (votes, locks): (Vec<_>, Vec<_>) =
        findings.iter().filter(recovering).partition(|finding| finding["check"] == "vote");
    assert_eq!((code, votes.len(), locks.len()), (Some(1), 3, 1), "{findings:?}");
    assert_eq!(locks[0]["advice"], "wait for that long");
    servers[1].wire().must(&["CONFIG", "SET", "maxmemory", "1"]);
    let (code, findings) = over(&["--restart-delay", "0"]);
    let silent: Vec<_> = findings.iter().filter(|finding| finding["check"] == "vote").collect();
    assert!(code == Some(1) && silent.len() == 1, "{code:?} {findings:?}");
    let both = ["--url", "redis://127.0.0.1:1", "--restart-delay", "0"];
    ends_with(
        &tool(&servers[0], &[&["ls", "--quorum", &urls], &both[..]].concat()).output().unwrap(),
        64,
        &["give one of them"],
    );
    let place = format!("127.0.0.1:{}", servers[1].port());
    let said = |of: &str, words: &str| silent[0][of].as_str().is_some_and(|said| said.contains(words));
    assert!(said("place", &place) && said("what", "OOM"), "{silent:?}");
}

#[test]
fn a_shell_completes_the_names_of_held_locks() {
    // Presses <TAB> behind each of the lines.
    const PRESSES: &str = r#"
        leasehold() { "$0" "$@"; }
        . <(leasehold completions bash)
        for COMP_LINE; do
            COMP_POINT=${#COMP_LINE} COMP_WORDS=($COMP_LINE)
            if [[ $COMP_LINE == *' ' ]]; then COMP_WORDS+=(''); fi
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _leasehold_with_names leasehold "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
            echo "${COMPREPLY[@]}"
        done"#;
    let server = Server::start();
    // The last ones would be code behind an open quote or in backticks, are printed in another way than they are typed,
    // or would be options.
    let names = ["db:orders", "db:users", "job", "k=1", "'é;touch here;#", "j`id`", "t\tab", "--exec=id"];
    let holders = names.map(|name| {
        let lock = format!("--lock={name}");
        let runner = tool(&server, &["run", "--label", "tester", &lock, "--", "sleep", "60"]).spawn().unwrap();
        eventually(HANGS, "it is held", || server.wire().exists(name));
        runner
    });
    let completed = |lines: &[&str]| {
        let mut bash = Command::new("bash");
        bash.args(["-c", PRESSES, LEASEHOLD]).args(lines);
        bash.env("LEASEHOLD_URL", server.url()).env("LEASEHOLD_CONFIG", "/dev/null").env("LC_ALL", "C");
        printed(&bash.output().unwrap())
    };
    let lines = [
        ("leasehold show ", "db:orders db:users job k=1"),
        ("leasehold release --force j", "job"),
        ("leasehold observe db:", "orders users"),
        ("leasehold run -l db:u", "users"),
        ("leasehold show k=", "1"),
        ("leasehold show t", ""),
    ];
    let all: String = lines.map(|(_, names)| format!("{names}\n")).concat();
    assert_eq!(completed(&lines.map(|(line, _)| line)), all);
    assert!(!completed(&["leasehold show '"]).contains("touch"));
    let others = ["leasehold show --js", "leasehold run job ", "leasehold run --ttl ", "leasehold s"];
    for line in others {
        let completed = completed(&[line]);
        assert!(!names.iter().any(|name| completed.contains(name)), "{line}: {completed}");
    }
    assert_eq!(completed(&others[..1]), "--json\n");
    holders.into_iter().for_each(sent_away);
    // An error is not shown while somebody types.
    let unreachable = Command::new("bash")
        .args(["-c", PRESSES, LEASEHOLD, "leasehold show "])
        .env("LEASEHOLD_URL", "redis://127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!((printed(&unreachable), said(&unreachable)), ("\n".into(), String::new()));
}
