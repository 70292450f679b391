//! Locks that many hold at a time: `run --shared`, `run --permits`, and how they are shown.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Output, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use support::{Action, Match, Proxy, Server, eventually, scripts::SHARERS};

use crate::scene::{HANGS, LEASEHOLD, NAME, Terminal, directory, ends_with, run, said, send, tool};

const HOLDERS: &str = "{job}:lh:holders";

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(server: &Server, args: &[&str]) -> Value {
    let output = tool(server, args).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn sharers(server: &Server) -> i64 {
    server.wire().must(&["ZCARD", HOLDERS]).int()
}

/// Starts a runner, and returns once it has a share and has written its fence to the file.
fn sharer(server: &Server, options: &[&str], fence: &Path) -> Child {
    let script = format!("echo $LEASEHOLD_FENCE > {0}.new; mv {0}.new {0}; exec sleep 60", fence.display());
    let runner = run(server, options, &script).spawn().unwrap();
    eventually(HANGS, "it shares the lock", || fence.exists());
    runner
}

fn sent_away(sharers: impl IntoIterator<Item = Child>) {
    for mut sharer in sharers {
        send(&sharer, Signal::TERM);
        assert_eq!(sharer.wait().unwrap().code(), Some(143));
    }
}

#[test]
fn as_many_commands_run_as_there_are_permits() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let files = ["one", "two", "three"].map(|file| sign.with_extension(file));
    let permit = |file| sharer(&server, &["--permits", "2"], file);
    let [first, second] = [permit(&files[0]), permit(&files[1])];
    let fences = [&files[0], &files[1]].map(|file| fs::read_to_string(file).unwrap());
    assert!(fences[0].trim().parse::<u64>().is_ok() && fences[0] == fences[1], "{fences:?}");
    let silent = run(&server, &["-n", "--permits", "2"], "true").output().unwrap();
    ends_with(&silent, 1, &[]);
    assert_eq!(said(&silent), "");
    let told = ["is held by 2 sharers (fence ", "the first of them for "];
    ends_with(&run(&server, &["-nv", "--permits", "2"], "true").output().unwrap(), 1, &told);
    // A third is admitted when one of them ends, and so is one that asks for three permits at once.
    ends_with(&run(&server, &["-n", "--permits", "3"], "true").output().unwrap(), 0, &[]);
    sent_away([first]);
    let third = permit(&files[2]);
    assert_eq!(sharers(&server), 2);
    sent_away([second, third]);
    assert!(!server.wire().exists(NAME) && !server.wire().exists(HOLDERS));
}

#[test]
fn a_command_takes_several_permits_at_once() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let heavy = sharer(&server, &["--permits", "4", "--take", "3", "--label", "linker"], &sign);
    ends_with(&run(&server, &["-n", "--permits", "4", "--take", "2"], "true").output().unwrap(), 1, &[]);
    ends_with(&run(&server, &["-n", "--permits", "4"], "true").output().unwrap(), 0, &[]);
    let shown = printed(&tool(&server, &["show", NAME]).output().unwrap());
    assert!(shown.contains("\n  linker takes 3 permits, for "), "{shown}");
    let shown = json(&server, &["show", "--json", NAME]);
    assert_eq!(shown["shared_by"][0]["permits"], 3);
    let waiter = run(&server, &["--permits", "4", "--take", "2"], "true").spawn().unwrap();
    eventually(HANGS, "it waits", || server.wire().must(&["ZCARD", "{job}:lh:queue"]).int() == 1);
    let shown = printed(&tool(&server, &["show", NAME]).output().unwrap());
    assert!(shown.contains(" waits for it (2 of 4 permits), since "), "{shown}");
    let shown = json(&server, &["show", "--json", NAME]);
    assert_eq!((&shown["waiters"][0]["limit"], &shown["waiters"][0]["permits"]), (&4.into(), &2.into()));
    sent_away([heavy]);
    ends_with(&waiter.wait_with_output().unwrap(), 0, &[]);
    assert!(!server.wire().exists(NAME) && !server.wire().exists(HOLDERS));
}

#[test]
fn a_name_that_is_shared_is_observed_as_that() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let once = |options: &[&str]| tool(&server, &[&["observe", "--once", NAME], options].concat()).output().unwrap();
    let files = ["one", "two"].map(|file| sign.with_extension(file));
    let reader = |file| sharer(&server, &["--shared", "--label", "web-1", "--keep-for", "1h"], file);
    let readers = [reader(&files[0]), reader(&files[1])];
    let fence = fs::read_to_string(&files[0]).unwrap();
    let shared = once(&[]);
    ends_with(&shared, 0, &[]);
    let line = printed(&shared);
    assert!(line.starts_with(&format!("shared by 2 fence {}, the last for ", fence.trim())), "{line}");
    let object = json(&server, &["observe", "--once", "--json", NAME]);
    assert_eq!((&object["state"], &object["holder"]["label"]), (&"shared".into(), &Value::Null));
    let of = &object["holder"];
    assert_eq!((&of["sharers"], &of["fence"].to_string()), (&2.into(), &fence.trim().to_owned()));
    // The lock's key lives longer.
    assert!(of["remaining_seconds"].as_f64().is_some_and(|left| left <= 30.0), "{object}");
    let [first, second] = readers;
    sent_away([first]);
    assert!(printed(&once(&[])).starts_with("shared by 1 fence "), "one place is only kept");
    sent_away([second]);
    assert!(server.wire().exists(NAME), "both are");
    let kept = once(&[]);
    ends_with(&kept, 1, &[]);
    assert_eq!(printed(&kept), "vacant\n");
}

#[test]
fn a_place_that_is_kept_is_shown_as_nobody_s_to_renew() {
    let server = Server::start();
    ends_with(&run(&server, &["--shared", "--keep-for", "60s", "--label", "web"], "true").output().unwrap(), 0, &[]);
    let shown = tool(&server, &["show", NAME]).output().unwrap();
    ends_with(&shown, 0, &[]);
    let text = printed(&shown);
    let line = text.lines().find(|line| line.starts_with("  web (released) shares it, for ")).expect(&text);
    assert!(line.ends_with('s') && !line.contains("unless"), "{text}");
}

#[test]
fn readers_and_the_writer_that_waits_for_them_are_shown() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let files = ["one", "two"].map(|file| sign.with_extension(file));
    let [web_1, web_2] = ["web-1", "web-2"].map(|label| ["-s", "--label", label]);
    let readers = [sharer(&server, &web_1, &files[0]), sharer(&server, &web_2, &files[1])];
    ends_with(&run(&server, &["-nv"], "true").output().unwrap(), 1, &["is held by sharers (fence "]);
    let waits = |options: &[&str], place: i64| {
        let waiter = run(&server, options, "true").spawn().unwrap();
        eventually(HANGS, "it waits", || server.wire().must(&["ZCARD", "{job}:lh:queue"]).int() == place);
        waiter
    };
    let waiters = [
        waits(&["--fair", "--label", "writer"], 1),
        waits(&["--shared", "--label", "reader"], 2),
        waits(&["--permits", "4", "--label", "permit"], 3),
    ];
    ends_with(&run(&server, &["-n", "--shared"], "true").output().unwrap(), 1, &[]);

    let shown = tool(&server, &["show", NAME]).output().unwrap();
    ends_with(&shown, 0, &[]);
    let text = printed(&shown);
    let fence = fs::read_to_string(&files[0]).unwrap();
    let [head, since, first, second, writer, reader, permit] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}")
    };
    assert!(head.starts_with(&format!("\"job\" is held by 2 sharers (fence {}), the last of them for ", fence.trim())));
    assert!(since.starts_with("  since 20"), "{text}");
    let mut both = [first, second];
    both.sort_unstable();
    for (line, label) in both.into_iter().zip(["web-1", "web-2"]) {
        assert!(line.starts_with(&format!("  {label} shares it, for ")) && line.ends_with(" unless renewed"), "{text}");
    }
    for (line, says) in [
        (writer, "  writer waits for it (alone), since "),
        (reader, "  reader waits for it (to read), since "),
        (permit, "  permit waits for it (one of 4 permits), since "),
    ] {
        assert!(line.starts_with(says), "{text}");
    }

    let shown = json(&server, &["show", "--json", NAME]);
    let holder = &shown["holder"];
    assert_eq!((&holder["mode"], &holder["sharers"], &holder["label"]), (&"shared".into(), &2.into(), &Value::Null));
    assert_eq!(holder["fence"].to_string(), fence.trim());
    let of = |one: &Value| (one["label"].clone(), one["remaining_seconds"].as_f64().is_some_and(|left| left > 1.0));
    let mut all: Vec<_> = shown["shared_by"].as_array().unwrap().iter().map(of).collect();
    all.sort_by_key(|(label, _)| label.to_string());
    assert_eq!(all, [("web-1".into(), true), ("web-2".into(), true)]);
    let modes: Vec<_> =
        shown["waiters"].as_array().unwrap().iter().map(|waiter| (&waiter["mode"], &waiter["limit"])).collect();
    let shared = Value::from("shared");
    assert_eq!(modes, [(&"exclusive".into(), &Value::Null), (&shared, &Value::Null), (&shared, &4.into())]);

    let listed = printed(&tool(&server, &["ls"]).output().unwrap());
    assert!(listed.lines().nth(1).is_some_and(|row| row.contains("job   2 sharers  ")), "{listed}");
    let listed = json(&server, &["ls", "--json"]);
    let row = &listed[0];
    assert_eq!((&row["mode"], &row["sharers"], &row["waiters"]), (&shared, &2.into(), &3.into()), "{listed}");
    let mut top = Terminal::running(&server, &format!("{LEASEHOLD} top --interval 200ms"));
    top.shows("2 sharers");
    top.press("q");
    top.ended();

    sent_away(readers);
    for waiter in waiters {
        ends_with(&waiter.wait_with_output().unwrap(), 0, &[]);
    }
}

#[test]
fn how_a_waiter_wants_a_lock_is_told_where_some_share_it_or_want_to() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let line = |how: &[&str]| {
        let waiter = run(&server, how, "true").spawn().unwrap();
        eventually(HANGS, "it waits", || server.wire().exists("{job}:lh:queue"));
        let shown = printed(&tool(&server, &["show", NAME]).output().unwrap());
        let seen = json(&server, &["show", "--json", NAME]);
        (waiter, shown, seen)
    };
    for (holds, waits, says) in [
        ("--fair", "--shared", " waits for it (to read), since "),
        ("--fair", "--fair", " waits, since "),
        ("--shared", "--fair", " waits for it (alone), since "),
    ] {
        let file = sign.with_extension([holds, waits].concat());
        let holder = sharer(&server, &[holds], &file);
        let (waiter, shown, seen) = line(&[waits]);
        assert!(shown.contains(says), "{shown}");
        let is_shared = holds == "--shared";
        assert_eq!((seen["shared_by"].is_array(), seen["holder"]["sharers"] == 1), (is_shared, is_shared), "{seen}");
        assert_eq!(seen["holder"]["mode"], if is_shared { "shared" } else { "exclusive" });
        sent_away([holder]);
        ends_with(&waiter.wait_with_output().unwrap(), 0, &[]);
    }
}

#[test]
fn a_lock_that_is_shared_is_taken_from_all_who_share_it() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let [one, two, late] = ["one", "two", "late"].map(|file| sign.with_extension(file));
    let [first, second] = [one, two].map(|file| sharer(&server, &["--shared"], &file));
    let mut terminal = Terminal::running(&server, &format!("{LEASEHOLD} release --force {NAME}"));
    terminal.shows("is held by 2 sharers");
    terminal.shows("All of them may be at work still. Take it away? [y/N]");
    let third = sharer(&server, &["--shared"], &late);
    terminal.press("y\n");
    assert!(terminal.ended().contains("\"job\" was taken away from 3 sharers"), "as many as there are by then");
    for reader in [first, second, third] {
        ends_with(&reader.wait_with_output().unwrap(), 75, &["the command is stopped"]);
    }
    let reader = sharer(&server, &["--shared"], &sign);
    let released = json(&server, &["release", "--force", "--yes", "--json", NAME]);
    assert_eq!(released["taken_from"]["sharers"], 1, "{released}");
    ends_with(&reader.wait_with_output().unwrap(), 75, &["the command is stopped"]);
}

#[test]
fn the_first_twenty_that_share_a_lock_are_shown_unless_all_are_asked_for() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leases = leasehold::Client::builder().url(server.url()).build().await.unwrap();
        let lock = leases.semaphore(NAME, 100);
        let mut held = Vec::new();
        for _ in 0..23 {
            held.push(lock.acquire().await.unwrap());
        }
        let lines = |args: &[&str]| {
            let shown = printed(&tool(&server, args).output().unwrap());
            (shown.matches(" shares it, for ").count(), shown)
        };
        let (some, shown) = lines(&["show", NAME]);
        assert!(some == 20 && shown.ends_with("  and 3 more: --all shows them\n"), "{shown}");
        let (all, shown) = lines(&["show", "--all", NAME]);
        assert!(all == 23 && !shown.contains(" more "), "{shown}");
        assert_eq!(json(&server, &["show", "--json", NAME])["shared_by"].as_array().map(Vec::len), Some(23));
        // Written by hand: more than the library lists.
        let many: Vec<String> = (0..9_980).flat_map(|n| ["9e15".to_owned(), format!("by hand {n}")]).collect();
        let many: Vec<&str> = ["ZADD", HOLDERS].into_iter().chain(many.iter().map(String::as_str)).collect();
        server.wire().must(&many);
        let (some, shown) = lines(&["show", NAME]);
        assert!(some == 20 && shown.ends_with("  and 9983 more: --all shows them\n"), "{shown}");
        let (all, shown) = lines(&["show", "--all", NAME]);
        assert!(all == 10_000 && shown.ends_with("  and 3 more\n"), "{all}");
        leases.close().await;
    });
}

#[test]
fn what_happens_between_the_questions_of_show_is_no_share_and_no_right_that_is_missing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (_directory, sign) = directory();
    let reader = sharer(&server, &["--shared", "--label", "reader"], &sign);
    let who_shares = || Match::script(SHARERS).and(Match::with(|args| args.contains(&b"10000".to_vec())));
    let asked = proxy.on(who_shares(), 1, Action::Hold);
    let shows = tool(&server, &["show", "--url", &proxy.url(), NAME]).spawn().unwrap();
    eventually(HANGS, "it asks who shares it", || asked.hits() == 1);
    sent_away([reader]);
    let writer = sharer(&server, &["--fair", "--label", "writer"], &sign.with_extension("writer"));
    asked.release();
    let shown = shows.wait_with_output().unwrap();
    ends_with(&shown, 0, &[]);
    let text = printed(&shown);
    assert!(text.contains("is held by 1 sharer ") && !text.contains("writer"), "{text}");
    sent_away([writer]);

    let reader = sharer(&server, &["--shared"], &sign.with_extension("reader"));
    let _cut = proxy.on_each(who_shares(), Action::CutBefore);
    let shown = tool(&server, &["show", "--url", &proxy.url(), NAME]).output().unwrap();
    ends_with(&shown, 69, &[]);
    assert!(!said(&shown).contains("is not known"), "{shown:?}");
    sent_away([reader]);
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let server = &servers[0];
    let urls = servers.each_ref().map(Server::url).join(",");
    let over = ["--quorum", &urls, "--restart-delay", "0"];
    let quorum = "shared locks do not work over a quorum";
    let bounds = "must be from 1 to 1,000,000";
    for (options, says) in [
        (&["--shared", "--permits", "2"][..], "cannot be used with"),
        (&["--permits", "0"], bounds),
        (&["--permits", "1000001"], bounds),
        (&["--permits", "many"], "invalid value"),
        (&["--permits", "2", "--take", "3"], "take is 3: it must be from 1 to the number of permits, 2"),
        (&["--permits", "2", "--take", "0"], "take is 0: it must be from 1 to the number of permits, 2"),
        (&["--take", "2"], "--permits <N>"),
        (&["--shared", "--take", "2"], "cannot be used with"),
        (&[&over[..], &["--shared"]].concat(), quorum),
        (&[&over[..], &["--permits", "2"]].concat(), quorum),
    ] {
        let refused = run(server, options, "true").output().unwrap();
        ends_with(&refused, 64, &[says]);
        assert!(said(&refused).starts_with("leasehold: "), "{refused:?}");
        let mut script = tool(server, &[&["hold"], options, &[NAME]].concat()).stdin(Stdio::piped()).spawn().unwrap();
        // A closed input would be another reason to end.
        let open = script.stdin.take();
        ends_with(&script.wait_with_output().unwrap(), 64, &[says]);
        drop(open);
    }
    assert!(servers.iter().all(|server| server.wire().keys("*").is_empty()));
}

#[test]
fn a_script_shares_a_lock_too() {
    let server = Server::start();
    let mut script = tool(&server, &["hold", "--permits", "2", NAME]).stdin(Stdio::piped()).spawn().unwrap();
    eventually(HANGS, "it has a permit", || sharers(&server) == 1);
    let mut held = String::new();
    BufReader::new(script.stdout.take().unwrap()).read_line(&mut held).unwrap();
    assert!(held.starts_with("held "), "{held}");
    drop(script.stdin.take());
    assert!(script.wait().unwrap().success());
    assert!(!server.wire().exists(NAME));
}

#[test]
fn the_doctor_finds_the_rights_that_sharing_needs_and_a_user_without_them_sees_that_a_lock_is_shared() {
    let server = Server::start();
    let (_directory, sign) = directory();
    let said = |right: &str| {
        server.wire().must(&["ACL", "SETUSER", "clerk", "reset", "on", ">secret", "~*", "&*", "+@all", right]);
        let url = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
        let findings = json(&server, &["doctor", "--json", "--url", &url]);
        // Includes its place in the line, behind which the next run would find the lock busy.
        let left =
            || server.wire().keys("*leasehold:doctor*").into_iter().filter(|key| !key.ends_with(":fence")).count();
        eventually(HANGS, "what the doctor could not give back is over", || left() == 0);
        let shared = |finding: &&Value| finding["what"].as_str().is_some_and(|what| what.contains("be shared"));
        findings.as_array().unwrap().iter().find(shared).cloned().ok_or(findings)
    };
    said("+zcount").unwrap_err();
    for right in ["-zcount", "-zrangebyscore", "-zrem"] {
        let found = said(right).unwrap_or_else(|findings| panic!("{right}: {findings}"));
        let what = found["what"].as_str().unwrap();
        assert!(
            found["level"] == "note"
                && what.contains("it cannot be shared")
                && what.to_lowercase().contains(&right[1..]),
            "{found}"
        );
    }
    let reader = sharer(&server, &["--shared", "--label", "web-1"], &sign);
    drop(said("-zcount"));
    let url = format!("redis://clerk:secret@127.0.0.1:{}", server.port());
    let shown = tool(&server, &["show", "--url", &url, NAME]).output().unwrap();
    ends_with(&shown, 0, &["who shares \"job\" is not known", "give the user the rights"]);
    assert!(printed(&shown).contains("is held by sharers (fence "), "{shown:?}");
    let listed = printed(&tool(&server, &["ls", "--url", &url]).output().unwrap());
    assert!(listed.contains("sharers"), "{listed}");
    let taken = tool(&server, &["release", "--force", "--yes", "--url", &url, NAME]).output().unwrap();
    assert_eq!(printed(&taken), "\"job\" was taken away from its sharers\n", "{taken:?}");
    ends_with(&reader.wait_with_output().unwrap(), 75, &["the command is stopped"]);
}
