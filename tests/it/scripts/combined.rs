//! The script of a batch, at the wire: its answer for each lock, and the keys that it leaves alone (safety, rule 5).

use support::{
    Server, Value, Wire,
    scripts::{ACQUIRE, COMBINED, RELEASE},
};

use super::{MEMORY, TTL, fence_in, token};

fn fence_key(name: &str) -> String {
    format!("{{{name}}}:lh:fence")
}

fn queue_key(name: &str) -> String {
    format!("{{{name}}}:lh:queue")
}

/// The command of a batch: releases of these names and values, and acquires of these names by these labels.
fn asked(releases: &[(&str, &str)], acquires: &[(&str, &str)], memory: &str) -> Vec<String> {
    let keys = 2 * (releases.len() + acquires.len());
    let mut all = vec!["EVAL".to_owned(), COMBINED.to_owned(), keys.to_string()];
    all.extend(releases.iter().map(|(name, _)| (*name).to_owned()));
    all.extend(acquires.iter().map(|(name, _)| fence_key(name)));
    all.extend(releases.iter().map(|(name, _)| queue_key(name)));
    all.extend(acquires.iter().map(|(name, _)| (*name).to_owned()));
    all.extend([releases.len().to_string(), memory.to_owned(), String::new()]);
    all.extend(releases.iter().map(|(_, value)| (*value).to_owned()));
    all.extend(acquires.iter().map(|(_, label)| token(label)));
    all.extend(acquires.iter().map(|_| TTL.to_owned()));
    all
}

fn batch(wire: &mut Wire, releases: &[(&str, &str)], acquires: &[(&str, &str)]) -> Vec<Value> {
    run(wire, &asked(releases, acquires, MEMORY)).array().to_vec()
}

fn run(wire: &mut Wire, command: &[String]) -> Value {
    wire.cmd(&command.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The batch as votes, with these proposals, this restart delay, and the uptime that the caller knows.
fn votes(
    releases: &[(&str, &str)],
    acquires: &[(&str, &str)],
    proposals: &[&str],
    delay: &str,
    witness: &[&str],
) -> Vec<String> {
    let mut all = asked(releases, acquires, MEMORY);
    delay.clone_into(&mut all[3 + 2 * (releases.len() + acquires.len()) + 2]);
    all.extend(proposals.iter().chain(witness).map(|&text| text.to_owned()));
    all
}

/// Acquires a lock alone, and returns its value.
fn take(wire: &mut Wire, name: &str, label: &str) -> String {
    let reply = wire.must(&["EVAL", ACQUIRE, "2", name, &fence_key(name), &token(label), TTL, MEMORY]);
    assert_eq!(reply.array()[0].int(), 1, "{reply:?}");
    wire.get(name).unwrap()
}

/// A connection of a user with all rights except those denied by these rules.
fn worker(server: &Server, rules: &[&str]) -> Wire {
    let mut wire = server.wire();
    let all = ["ACL", "SETUSER", "worker", "reset", "on", ">secret", "allkeys", "allcommands", "allchannels"];
    wire.must(&[&all, rules].concat());
    wire.must(&["AUTH", "worker", "secret"]);
    wire
}

/// All the server's keys and values, without expiries.
fn all(wire: &mut Wire) -> Vec<(String, Value)> {
    let names = wire.keys("*");
    names.into_iter().map(|name| (name.clone(), wire.must(&["DUMP", &name]))).collect()
}

#[test]
fn what_is_free_is_granted_with_the_servers_time_as_its_fence_and_floor() {
    let server = Server::start();
    let mut wire = server.wire();
    let reply = batch(&mut wire, &[], &[("a", "one"), ("b", "two")]);
    let fence = reply[0].text();
    assert_eq!((reply.len(), reply[1].int(), reply[2].int()), (3, 1, 1), "{reply:?}");
    for (name, label) in [("a", "one"), ("b", "two")] {
        let value = wire.get(name).unwrap();
        assert_eq!(value, format!("{}:{fence}@{label}", &token(label)[..40]));
        assert_eq!(wire.get(&fence_key(name)), Some(fence.clone()));
        assert!((29_000..=30_000).contains(&wire.pttl(name)));
        let floor = wire.pttl(&fence_key(name));
        assert!((86_390_000..=86_400_000).contains(&floor), "{floor}");
    }
}

#[test]
fn a_replay_is_told_to_ask_alone_and_changes_nothing() {
    let server = Server::start();
    let mut wire = server.wire();
    let held = take(&mut wire, "held", "mine");
    let command = asked(&[("held", &held)], &[("free", "one")], MEMORY);
    let first = run(&mut wire, &command);
    assert_eq!((first.array()[1].int(), first.array()[2].int()), (1, 1), "{first:?}");
    let before = all(&mut wire);
    let again = run(&mut wire, &command);
    assert_eq!((again.array()[1].int(), again.array()[2].int()), (-2, -2), "{again:?}");
    assert_eq!(all(&mut wire), before);
    // A lone request is answered with what has happened.
    let lone = wire.must(&["EVAL", ACQUIRE, "2", "free", &fence_key("free"), &token("one"), TTL, MEMORY]);
    assert_eq!(lone.array()[1].text(), first.array()[0].text(), "the same fence");
    let keys = ["held", &fence_key("held"), &queue_key("held"), "{held}:lh:wait"];
    let lone = wire.must(&[&["EVAL", RELEASE, "4"][..], &keys, &[&held]].concat());
    assert_eq!(lone.int(), 0);
}

#[test]
fn what_somebody_holds_is_told_with_who_and_for_how_long() {
    let server = Server::start();
    let mut wire = server.wire();
    let value = take(&mut wire, "held", "theirs");
    let before = all(&mut wire);
    let reply = batch(&mut wire, &[], &[("held", "mine")]);
    let [code, pttl, holder] = reply[1].array() else { panic!("{reply:?}") };
    assert_eq!((code.int(), holder.text()), (0, value));
    assert!((29_000..=30_000).contains(&pttl.int()));
    assert_eq!(all(&mut wire), before, "not even a fence");
}

#[test]
fn a_name_goes_from_one_to_the_next_in_one_batch() {
    let server = Server::start();
    let mut wire = server.wire();
    let before = take(&mut wire, "job", "one");
    let reply = batch(&mut wire, &[("job", &before)], &[("job", "two"), ("job", "three")]);
    assert_eq!((reply[1].int(), reply[2].int(), reply[3].array()[0].int()), (1, 1, 0), "{reply:?}");
    let after = wire.get("job").unwrap();
    assert_eq!(reply[3].array()[2].text(), after);
    assert!(after.ends_with("@two") && fence_in(&after) > fence_in(&before), "{before} {after}");
}

#[test]
fn a_release_that_is_not_simple_asks_alone_and_nothing_is_changed() {
    let server = Server::start();
    let mut wire = server.wire();
    let values = ["gone", "taken", "odd", "queued", "strange queue"].map(|name| (name, take(&mut wire, name, "mine")));
    wire.del("gone");
    wire.set("taken", "somebody's");
    wire.del("odd");
    wire.must(&["HSET", "odd", "field", "value"]);
    wire.must(&["ZADD", &queue_key("queued"), "1", "waiter"]);
    wire.set(&queue_key("strange queue"), "text");
    let plain = take(&mut wire, "plain", "mine");
    let before = all(&mut wire);
    let mut releases: Vec<_> = values.iter().map(|(name, value)| (*name, &**value)).collect();
    // A token is not a value: its release goes alone.
    let bare = token("mine");
    releases.push(("plain", &bare));
    let reply = batch(&mut wire, &releases, &[]);
    assert_eq!(reply[0].text(), "");
    assert_eq!(reply[1..].iter().map(Value::int).collect::<Vec<_>>(), [-2; 6]);
    assert_eq!(all(&mut wire), before);
    releases.push(("plain", &plain));
    let reply = batch(&mut wire, &releases, &[]);
    assert_eq!(reply[1..].iter().map(Value::int).collect::<Vec<_>>(), [-2, -2, -2, -2, -2, -2, 1]);
    assert!(!wire.exists("plain"));
}

#[test]
fn an_acquire_whose_floor_is_not_simple_asks_alone_and_nothing_is_changed() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.set(&fence_key("ahead"), "9999999999999999");
    wire.set(&fence_key("behind"), "7");
    wire.set(&fence_key("words"), "no fence");
    wire.set(&fence_key("float"), "169999999999999.5");
    wire.must(&["HSET", &fence_key("odd"), "field", "value"]);
    let before = all(&mut wire);
    let acquires = ["ahead", "behind", "words", "float", "odd"].map(|name| (name, "mine"));
    let reply = batch(&mut wire, &[], &acquires);
    assert_eq!(reply[1..].iter().map(Value::int).collect::<Vec<_>>(), [-2; 5]);
    assert_eq!(all(&mut wire), before);
    // The rest of the batch: a lock with a floor is served, one without asks alone beside a key of another type.
    wire.set(&fence_key("simple"), "1600000000000000");
    let mut acquires = acquires.to_vec();
    acquires.extend([("simple", "mine"), ("new", "mine")]);
    let reply = batch(&mut wire, &[], &acquires);
    assert_eq!(reply[1..].iter().map(Value::int).collect::<Vec<_>>(), [-2, -2, -2, -2, -2, 1, -2]);
    assert!(wire.exists("simple") && !wire.exists("new"));
}

#[test]
fn a_lock_key_of_another_type_asks_alone_and_is_left() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["HSET", "odd", "field", "value"]);
    let before = all(&mut wire);
    let reply = batch(&mut wire, &[], &[("odd", "mine"), ("free", "mine")]);
    assert_eq!((reply[1].int(), reply[2].int()), (-2, 1));
    let after = all(&mut wire);
    assert!(before.iter().all(|key| after.contains(key)), "{after:?}");
    assert!(!wire.exists(&fence_key("odd")));
}

#[test]
fn fences_without_a_memory_leave_no_floor_that_the_clock_has_passed() {
    let server = Server::start();
    let mut wire = server.wire();
    let command = asked(&[], &[("a", "one"), ("b", "two")], "0");
    let reply = run(&mut wire, &command);
    assert_eq!((reply.array()[1].int(), reply.array()[2].int()), (1, 1));
    for name in ["a", "b"] {
        assert!(wire.pttl(&fence_key(name)) <= 2, "{name}");
    }
    let first = fence_in(&wire.get("a").unwrap());
    assert!(wire.del("a"));
    let again = run(&mut wire, &asked(&[], &[("a", "three")], "0"));
    let code = &again.array()[1];
    assert!(code.int() == -2 || fence_in(&wire.get("a").unwrap()) > first);
}

/// Each line that can be refused comes before the first write, or catches its error.
#[test]
fn a_batch_that_fails_as_a_whole_has_changed_nothing() {
    let server = Server::start();
    let mut wire = server.wire();
    let mine = take(&mut wire, "mine", "me");
    let before = all(&mut wire);
    let other_keys = ["resetkeys", "~mine", "~{mine}:lh:*", "~free", "~{free}:lh:*"];
    for missing in [&["-mget"][..], &["-exists"], &["-time"], &other_keys] {
        let acquires = [("free", "me"), ("other", "me")];
        let reply = run(&mut worker(&server, missing), &asked(&[("mine", &mine)], &acquires, MEMORY));
        assert!(reply.error().is_some(), "{missing:?}: {reply:?}");
        assert_eq!(all(&mut wire), before, "{missing:?}");
    }
}

/// Without the right to one of its writes, the batch reports what was not done.
#[test]
fn a_batch_whose_writes_are_refused_asks_alone_and_leaves_nothing_half_done() {
    let server = Server::start();
    let mut wire = server.wire();
    let mine = take(&mut wire, "mine", "me");
    let before = all(&mut wire);
    for (missing, expected) in [("-del", [-2, 1]), ("-set", [1, -2])] {
        let reply = run(&mut worker(&server, &[missing]), &asked(&[("mine", &mine)], &[("free", "me")], MEMORY));
        assert_eq!([reply.array()[1].int(), reply.array()[2].int()], expected, "{missing}: {reply:?}");
        assert_eq!((wire.exists("mine"), wire.exists("free")), (expected[0] == -2, expected[1] == 1));
        wire.must(&["DEL", "free", &fence_key("free")]);
        assert_eq!(all(&mut wire).len(), if expected[0] == -2 { before.len() } else { before.len() - 1 });
    }
}

/// A floor may be refused for any reason: here because of its expiry.
#[test]
fn an_acquire_whose_floor_is_refused_asks_alone_and_leaves_no_lock() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.set(&fence_key("known"), "1600000000000000");
    let before = all(&mut wire);
    let reply = run(&mut wire, &asked(&[], &[("free", "me"), ("known", "me")], "-1"));
    assert_eq!((reply.array()[1].int(), reply.array()[2].int()), (-2, -2), "{reply:?}");
    assert_eq!(all(&mut wire), before);
}

#[test]
fn a_full_server_takes_releases_and_no_acquires() {
    let server = Server::start();
    let mut wire = server.wire();
    let (one, two) = (take(&mut wire, "one", "me"), take(&mut wire, "two", "me"));
    wire.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let before = all(&mut wire);
    let reply = batch(&mut wire, &[], &[("free", "me"), ("other", "me")]);
    assert_eq!((reply[1].int(), reply[2].int()), (-2, -2));
    assert_eq!(all(&mut wire), before);
    let reply = batch(&mut wire, &[("one", &one), ("two", &two)], &[]);
    assert_eq!((reply[1].int(), reply[2].int()), (1, 1));
    assert!(!wire.exists("one") && !wire.exists("two"));
}

#[test]
fn the_largest_batch_is_served() {
    let server = Server::start();
    let mut wire = server.wire();
    let held: Vec<_> = (0..64).map(|n| format!("held:{n}")).map(|name| (take(&mut wire, &name, "me"), name)).collect();
    let free: Vec<_> = (0..64).map(|n| format!("free:{n}")).collect();
    let releases: Vec<_> = held.iter().map(|(value, name)| (&**name, &**value)).collect();
    let acquires: Vec<_> = free.iter().map(|name| (&**name, "me")).collect();
    let reply = batch(&mut wire, &releases, &acquires);
    assert_eq!(reply[1..].iter().map(Value::int).collect::<Vec<_>>(), [1; 128]);
    assert_eq!((wire.keys("held:*").len(), wire.keys("free:*").len()), (0, 64));
}

/// A proposal is issued if it is large enough, and each vote carries the server's time and run.
#[test]
fn a_batch_of_votes_issues_what_is_proposed_and_says_who_it_is() {
    let server = Server::start();
    let mut wire = server.wire();
    let mine = take(&mut wire, "mine", "me");
    let acquires = [("one", "me"), ("two", "me"), ("three", "me"), ("mine", "another")];
    let (large, small) = ("4000000000000000", "1600000000000000");
    let command = votes(&[("mine", &mine)], &acquires, &[large, small, "", large], "0", &[]);
    let reply = run(&mut wire, &command);
    let [time, released, one, two, three, again, run_id] = reply.array() else { panic!("{reply:?}") };
    assert_eq!((released.int(), two.int(), three.int()), (1, 1, 1), "{reply:?}");
    for granted in [one, again] {
        assert_eq!((granted.array()[0].int(), granted.array()[1].text()), (1, large.to_owned()), "{reply:?}");
    }
    assert_eq!(run_id.text(), run_id_of(&mut wire));
    for (name, fence) in [("one", large), ("two", &time.text()), ("three", &time.text()), ("mine", large)] {
        assert_eq!(wire.get(&fence_key(name)).as_deref(), Some(fence), "{name}");
        assert!(wire.get(name).is_some_and(|value| value.contains(&format!(":{fence}@"))), "{name}");
    }
    // A later vote with the same proposal is left to the lone script, which issues a larger fence.
    let before = all(&mut wire);
    let later = run(&mut wire, &votes(&[], &[("one", "another")], &[large], "0", &[]));
    assert_eq!(later.array()[1].int(), -2, "its floor is not below: {later:?}");
    assert_eq!(all(&mut wire), before);
}

/// A server that may have forgotten a lease releases, but gives no vote unless the caller knows a longer uptime.
#[test]
fn a_batch_of_votes_waits_for_the_restart_delay() {
    let server = Server::start();
    let mut wire = server.wire();
    let (mine, run_id) = (take(&mut wire, "mine", "me"), run_id_of(&mut wire));
    let reply = run(&mut wire, &votes(&[("mine", &mine)], &[("one", "me"), ("two", "me")], &["", ""], "3600", &[]));
    let [_, released, one, two, by] = reply.array() else { panic!("{reply:?}") };
    for missing in [one, two] {
        assert_eq!(missing.array()[0].int(), 2, "{reply:?}");
        assert!((3500..=3600).contains(&missing.array()[1].int()), "{reply:?}");
    }
    assert_eq!((released.int(), by.text()), (1, run_id.clone()));
    assert_eq!(wire.keys("*"), [fence_key("mine")], "nothing but its floor is there");
    for (run_id, up, is_granted) in [(&*run_id, "3600", true), (&run_id, "3599", false), ("another", "3600", false)] {
        let reply = run_votes(&mut wire, &votes(&[], &[("job", "me")], &[""], "3600", &[run_id, up]));
        assert_eq!(reply, is_granted, "{run_id} {up}");
        wire.del("job");
    }
    let mut denied = worker(&server, &["-info"]);
    let before = all(&mut wire);
    let reply = run(&mut denied, &votes(&[], &[("job", "me")], &[""], "3600", &[]));
    assert!(reply.error().is_some_and(|error| error.contains("INFO")), "{reply:?}");
    assert_eq!(all(&mut wire), before);
    assert!(run_votes(&mut denied, &votes(&[], &[("job", "me")], &[""], "0", &[])), "nothing depends on it");
}

/// Whether the only acquire is granted.
fn run_votes(wire: &mut Wire, command: &[String]) -> bool {
    let reply = run(wire, command);
    matches!(&reply.array()[1], Value::Int(1))
}

fn run_id_of(wire: &mut Wire) -> String {
    let info = wire.must(&["INFO", "server"]).text();
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().to_owned()
}
