//! The scripts of shared locks, at the wire. `verify/` tests that they behave like the memory node.

use std::time::Duration;

use support::{
    ClockShim, Server, Value, Wire,
    scripts::{
        ACQUIRE, DOWNGRADE, EXTEND_PHASE, EXTEND_SHARE, FORCE_RELEASE, JOIN, KEEP_SHARE, LEAVE, LOOK, PART, POLL,
        QUEUE, RELEASE, RENEW_SHARES, SHARERS,
    },
};

use super::{FENCE, LOCK, MEMORY, TTL, labels, owner, token};
use crate::faults::refusals::{FOR_FAIR, FOR_PUSH, FOR_SHARES, LEAST_ACL, NO_RIGHT, TO_PASS_OVER_THE_DEAD};

const LINE: &str = "{job}:lh:queue";
const HOLDERS: &str = "{job}:lh:holders";
const WAIT: &str = "{job}:lh:wait";
const KEYS: [&str; 5] = [LOCK, FENCE, LINE, WAIT, HOLDERS];
const GRANT: &str = "5000";
const WINDOW: &str = "15000";
/// A reader's limit.
const ANY: &str = "4294967295";
const ANOTHER_TYPE: &str = "ERR the key {job}:lh:holders holds another type: delete it to go on";

fn eval(wire: &mut Wire, script: &str, args: &[&str]) -> Value {
    wire.cmd(&[&["EVAL", script, "5"][..], &KEYS, args].concat())
}

/// A poll of a process with this channel, admitted beside fewer than `limit` others; with "0", alone.
fn poll(wire: &mut Wire, label: &str, channel: &str, limit: &str) -> Value {
    let script = if limit == "0" { POLL } else { JOIN };
    eval(wire, script, &[&token(label), TTL, "0", GRANT, WINDOW, channel, "1", "0", MEMORY, limit])
}

#[track_caller]
fn comes_in(wire: &mut Wire, label: &str, limit: &str) -> String {
    match poll(wire, label, "", limit).array() {
        [Value::Int(1), fence, ..] => fence.text(),
        other => panic!("{label}: {other:?}"),
    }
}

#[track_caller]
fn waits(wire: &mut Wire, label: &str, channel: &str, limit: &str) {
    let reply = poll(wire, label, channel, limit);
    assert!(matches!(reply.array(), [Value::Int(0), ..]), "{label}: {reply:?}");
}

fn part(wire: &mut Wire, label: &str) -> Value {
    eval(wire, PART, &[&token(label)])
}

fn renew(wire: &mut Wire, label: &str) -> Value {
    wire.cmd(&["EVAL", RENEW_SHARES, "2", LOCK, HOLDERS, &token(label), TTL, ""]).array()[0].clone()
}

/// The sharers, sorted by name because some may expire in the same millisecond.
fn sharers(wire: &mut Wire) -> Vec<String> {
    let reply = wire.must(&["EVAL", SHARERS, "2", LOCK, HOLDERS, "10000"]);
    let all = reply.array().get(4..).unwrap_or_default().chunks(2);
    let mut names: Vec<_> = all.map(|pair| labels(&pair[0].text())).collect();
    names.sort();
    names
}

/// The server must count it as a write, whether or not it changes anything.
#[track_caller]
fn writes(wire: &mut Wire, what: &str, call: impl FnOnce(&mut Wire)) {
    let changes = |wire: &mut Wire| wire.info_field("persistence", "rdb_changes_since_last_save").unwrap();
    let before = changes(wire);
    call(wire);
    assert_ne!(changes(wire), before, "{what}");
}

fn listen(server: &Server, channel: &str) -> Wire {
    let mut wire = server.wire();
    wire.must(&["SUBSCRIBE", channel]);
    wire
}

#[test]
fn other_libraries_and_a_plain_acquire_find_a_shared_lock_taken() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = comes_in(&mut wire, "one", ANY);
    assert!(wire.must(&["SET", LOCK, "another's", "NX", "PX", TTL]).is_nil());
    let value = format!("lh1:00000000-0000-0000-0000-000000000000:{fence}@shared");
    let acquired = wire.must(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token("plain"), TTL, MEMORY]);
    assert!(matches!(acquired.array(), [Value::Int(0), _, found] if found.text() == value), "{acquired:?}");
    let seen = wire.must(&["EVAL", LOOK, "1", LOCK]);
    assert_eq!(seen.array()[0].array()[0].text(), value);
    assert_eq!(eval(&mut wire, RELEASE, &[&token("plain")]), Value::Int(-1));
    assert_eq!(part(&mut wire, "one"), Value::Int(1));
    wire.set(LOCK, "another's");
    waits(&mut wire, "two", "", ANY);
    for parted in [part(&mut wire, "one"), renew(&mut wire, "one")] {
        assert_eq!(parted, Value::Int(-1), "it is another's now");
    }
    assert_eq!(wire.get(LOCK).as_deref(), Some("another's"));
}

#[test]
fn those_who_share_go_on_without_memory_and_nobody_comes_in() {
    let server = Server::start();
    let mut wire = server.wire();
    for label in ["one", "two", "three"] {
        comes_in(&mut wire, label, ANY);
    }
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = poll(&mut wire, "late", "", ANY);
    assert!(refused.error().is_some_and(|error| error.contains("OOM")), "{refused:?}");
    assert_eq!(renew(&mut wire, "one"), Value::Int(1));
    comes_in(&mut wire, "two", "1");
    let stays = token("kept");
    assert_eq!(eval(&mut wire, KEEP_SHARE, &[&token("three"), "60000", &stays]), Value::Int(1));
    assert_eq!(sharers(&mut wire), ["kept", "one", "two"]);
    for label in ["one", "two", "kept"] {
        assert_eq!(part(&mut wire, label), Value::Int(1), "{label}");
    }
    assert_eq!(wire.keys("*"), [FENCE]);
    let refused = poll(&mut wire, "late", "", ANY);
    assert!(refused.error().is_some_and(|error| error.contains("OOM")), "{refused:?}");
    assert_eq!(wire.keys("*"), [FENCE]);
}

#[test]
fn a_key_of_another_type_in_the_place_of_the_sharers_is_named_and_left_alone() {
    let server = Server::start();
    let mut wire = server.wire();
    comes_in(&mut wire, "one", ANY);
    wire.del(HOLDERS);
    wire.must(&["LPUSH", HOLDERS, "data"]);
    for limit in ["0", "3", ANY] {
        assert_eq!(poll(&mut wire, "late", "", limit).error(), Some(ANOTHER_TYPE), "{limit}");
    }
    assert_eq!((renew(&mut wire, "one"), part(&mut wire, "one")), (Value::Int(0), Value::Int(0)));
    assert_eq!(eval(&mut wire, LEAVE, &["", WINDOW, "1", &token("one")]), Value::Int(0));
    let listed = |wire: &mut Wire| wire.cmd(&["EVAL", SHARERS, "2", LOCK, HOLDERS, "10"]);
    assert_eq!(listed(&mut wire).error(), Some(ANOTHER_TYPE));
    assert!(wire.exists(LOCK), "its sharers are unknown: it is not granted");
    wire.del(LOCK);
    assert_eq!(listed(&mut wire).array(), [Value::Int(0)], "it is free");
    assert_eq!(poll(&mut wire, "late", "", ANY).error(), Some(ANOTHER_TYPE), "nor is a phase begun");
    assert!(!wire.exists(LOCK));
    comes_in(&mut wire, "writer", "0");
    let downgraded = eval(&mut wire, DOWNGRADE, &[&token("reads"), TTL, &token("writer"), MEMORY, "0"]);
    assert_eq!((downgraded.error(), owner(&mut wire).as_deref()), (Some(ANOTHER_TYPE), Some("writer")));
    assert_eq!(wire.must(&["LLEN", HOLDERS]), Value::Int(1));
}

/// It may have come back with a lock from before another heir had it.
#[test]
fn a_server_that_was_started_lately_hands_nothing_over_to_be_shared() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = comes_in(&mut wire, "giver", "0");
    let run_id = wire.info_field("server", "run_id").unwrap();
    let mut adopt = |witness: &[&str]| {
        let (heir, giver) = (token("heir"), token("giver"));
        eval(&mut wire, DOWNGRADE, &[&[&*heir, TTL, &giver, MEMORY, "3600"], witness].concat())
    };
    for witness in [&[][..], &[&run_id, "3500"], &["another", "3600"]] {
        assert_eq!(adopt(witness).array()[0], Value::Int(2), "{witness:?}");
    }
    let after = adopt(&[&run_id, "3600"]);
    assert!(matches!(after.array(), [Value::Int(1), after] if after.text() > fence), "{after:?}");
    assert_eq!(adopt(&[]), after, "a replay");
}

#[test]
fn who_shares_finds_the_line_and_the_lock_of_another_type_as_who_has_it_alone_does() {
    let server = Server::start();
    let mut wire = server.wire();
    comes_in(&mut wire, "one", ANY);
    for (key, says) in [
        (LINE, "ERR the queue key {job}:lh:queue holds another type: delete it to go on"),
        (WAIT, "ERR the queue key {job}:lh:wait holds another type: delete it to go on"),
    ] {
        wire.set(key, "nonsense");
        for limit in ["0", "1", ANY] {
            // Without waiters, a sharer that fits is admitted without reading the line.
            if key == LINE || limit != ANY {
                assert_eq!(poll(&mut wire, "late", "", limit).error(), Some(says), "{limit}");
            }
        }
        assert_eq!(renew(&mut wire, "one"), Value::Int(1));
        assert_eq!(wire.get(key).as_deref(), Some("nonsense"));
        wire.del(key);
    }
    wire.set(LINE, "nonsense");
    assert_eq!(part(&mut wire, "one"), Value::Int(1));
    assert!(!wire.exists(LOCK), "a broken line fails no release");
    wire.del(LINE);
    wire.must(&["LPUSH", LOCK, "data"]);
    let reply = poll(&mut wire, "late", "", ANY);
    assert!(
        matches!(reply.array(), [Value::Int(0), Value::Int(-1), Value::Array(kind), ..] if kind[1].text() == "list")
    );
    for parted in
        [part(&mut wire, "late"), renew(&mut wire, "late"), eval(&mut wire, LEAVE, &["", WINDOW, "1", &token("late")])]
    {
        assert_eq!(parted, Value::Int(-1));
    }
    assert_eq!(wire.must(&["LLEN", LOCK]), Value::Int(1));
}

#[test]
fn the_first_step_of_a_renewal_is_for_the_phase_of_its_share_only() {
    let server = Server::start();
    let mut wire = server.wire();
    let longer = (10 * TTL.parse::<i64>().unwrap()).to_string();
    let extend = |wire: &mut Wire, fence: &str| {
        let extended = wire.must(&["EVAL", EXTEND_PHASE, "1", LOCK, fence, &longer]).int();
        (extended, wire.must(&["PTTL", LOCK]).int() > TTL.parse().unwrap())
    };
    assert_eq!(extend(&mut wire, "7"), (0, false), "nobody has it");
    let earlier = comes_in(&mut wire, "one", ANY);
    assert_eq!(extend(&mut wire, &earlier), (1, true));
    wire.del(LOCK);
    let fence = comes_in(&mut wire, "one", ANY);
    for other in [&earlier, &fence[..fence.len() - 1], ""] {
        assert_eq!(extend(&mut wire, other), (-1, false), "{other}");
    }
    wire.del(LOCK);
    let alone = comes_in(&mut wire, "writer", "0");
    assert_eq!(extend(&mut wire, &alone), (-1, false));
    wire.must(&["SET", LOCK, "another's", "PX", TTL]);
    assert_eq!(extend(&mut wire, &fence), (-1, false));
    wire.del(LOCK);
    wire.must(&["LPUSH", LOCK, "data"]);
    assert_eq!(extend(&mut wire, &fence), (-1, false));
}

/// Someone has removed the key's life: a renewal restores it, and a check leaves it.
#[test]
fn a_check_of_a_phase_leaves_a_key_without_a_life() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = comes_in(&mut wire, "one", ANY);
    let (before, value) = (wire.must(&["PERSIST", LOCK]), wire.get(LOCK));
    let extend = |wire: &mut Wire, span: &str| wire.must(&["EVAL", EXTEND_PHASE, "1", LOCK, &fence, span]);
    assert_eq!((before, extend(&mut wire, "0")), (Value::Int(1), Value::Int(1)));
    assert_eq!((wire.pttl(LOCK), wire.get(LOCK)), (-1, value));
    assert_eq!(extend(&mut wire, TTL), Value::Int(1));
    assert!(wire.pttl(LOCK) > 0);
}

/// The state after a renewal in two steps, of which the second was lost.
#[test]
fn the_places_live_on_for_who_shares_where_the_key_does_already() {
    type Call = fn(&mut Wire);
    let server = Server::start();
    let mut wire = server.wire();
    let ttl = TTL.parse::<i64>().unwrap();
    let calls: [(&str, Call); 3] = [
        ("a renewal", |wire| assert_eq!(renew(wire, "one"), Value::Int(1))),
        ("a newcomer", |wire| drop(comes_in(wire, "two", ANY))),
        ("a confirmation beside as many as its limit", |wire| drop(comes_in(wire, "one", "1"))),
    ];
    for (what, call) in calls {
        let fence = comes_in(&mut wire, "one", ANY);
        assert_eq!(wire.must(&["EVAL", EXTEND_PHASE, "1", LOCK, &fence, &(10 * ttl).to_string()]), Value::Int(1));
        let life = |wire: &mut Wire| wire.must(&["PTTL", HOLDERS]).int();
        assert!(life(&mut wire) <= ttl, "the premise");
        call(&mut wire);
        assert!(life(&mut wire) > ttl, "{what}");
        wire.must(&["DEL", LOCK, HOLDERS]);
    }
}

#[test]
fn one_that_is_nearly_over_counts_until_it_is() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    clock.gain(-1_000_000);
    let mut wire = server.wire();
    let fence = comes_in(&mut wire, "one", "1");
    clock.forward(Duration::from_millis(29_900));
    for limit in ["0", "1"] {
        waits(&mut wire, "late", "", limit);
    }
    assert_eq!(sharers(&mut wire), ["one"]);
    clock.forward(Duration::from_millis(200));
    assert!(comes_in(&mut wire, "late", "1") > fence);
    assert_eq!(sharers(&mut wire), ["late"]);
}

/// Another program overwrote the sharers' key.
#[test]
fn a_value_that_begins_as_that_of_a_phase_and_has_no_fence_is_anothers() {
    const VALUE: &str = "lh1:00000000-0000-0000-0000-000000000000:x@shared";
    let server = Server::start();
    let mut wire = server.wire();
    let fence = comes_in(&mut wire, "one", ANY);
    comes_in(&mut wire, "two", ANY);
    wire.must(&["SET", LOCK, VALUE, "PX", TTL]);
    for limit in ["0", "9", ANY] {
        waits(&mut wire, "late", "", limit);
        waits(&mut wire, "one", "", limit);
    }
    assert_eq!(eval(&mut wire, LEAVE, &["", WINDOW, "1", &token("late")]), Value::Int(-1));
    assert_eq!(eval(&mut wire, LEAVE, &["", WINDOW, "1", &token("one")]), Value::Int(-1));
    assert_eq!(eval(&mut wire, KEEP_SHARE, &[&token("two"), "60000", &token("kept")]), Value::Int(-1));
    let downgraded = eval(&mut wire, DOWNGRADE, &[&token("reads"), TTL, &token("two"), MEMORY, "0"]);
    assert_eq!(downgraded.array()[0], Value::Int(-1));
    let renewed = wire.cmd(&["EVAL", RENEW_SHARES, "2", LOCK, HOLDERS, &token("two"), TTL, &fence]);
    assert_eq!(renewed.array(), [Value::Int(0)], "it is of another phase, if of any");
    for label in ["one", "two"] {
        assert_eq!(part(&mut wire, label), Value::Int(-1), "{label}");
    }
    assert_eq!(wire.get(LOCK).as_deref(), Some(VALUE));
}

#[test]
fn those_who_share_are_listed_with_what_each_has_left() {
    let server = Server::start();
    let mut wire = server.wire();
    comes_in(&mut wire, "one", ANY);
    comes_in(&mut wire, "two", ANY);
    let odd = "x".repeat(1_000);
    wire.must(&["ZADD", HOLDERS, "1e30", "by hand", "9e15", &odd, "7", "over"]);
    let seen = wire.must(&["EVAL", SHARERS, "2", LOCK, HOLDERS, "3"]);
    let [_, Value::Int(last), _, Value::Int(4), all @ ..] = seen.array() else { panic!("{seen:?}") };
    let left: Vec<_> = all.chunks(2).map(|one| (labels(&one[0].text()), one[1].int())).collect();
    let ttl = TTL.parse::<i64>().unwrap();
    let (odd, life) = (&odd[..256], ttl - 10_000..=ttl);
    assert!(
        matches!(&*left, [(_, one), (_, two), (name, far)]
        if life.contains(one) && life.contains(two) && name == odd && *far > ttl),
        "{left:?}"
    );
    assert_eq!(*last, (1 << 53) - 1, "a number, whatever was written");
}

#[test]
fn who_waits_is_listed_with_how_it_wants_the_lock() {
    let server = Server::start();
    let mut wire = server.wire();
    comes_in(&mut wire, "holder", "0");
    for (label, limit) in [("writer", "0"), ("reader", ANY), ("permit", "4")] {
        waits(&mut wire, label, "~process", limit);
    }
    let limits = |wire: &mut Wire| -> Vec<i64> {
        let listed = wire.must(&["EVAL", QUEUE, "1", LINE, "10", WAIT]);
        listed.array()[2..].chunks(3).map(|one| one[2].int()).collect()
    };
    assert_eq!(limits(&mut wire), [0, i64::from(u32::MAX), 4]);
    wire.del(WAIT);
    assert_eq!(limits(&mut wire), [0, 0, 0], "they are in line all the same");
    wire.must(&["LPUSH", WAIT, "data"]);
    assert_eq!(limits(&mut wire), [0, 0, 0]);
}

#[test]
fn a_replay_of_what_counts_for_a_write_is_one() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    // All of it is in one millisecond, so nothing changes.
    clock.gain(-1_000_000);
    let mut wire = server.wire();
    comes_in(&mut wire, "one", ANY);
    comes_in(&mut wire, "two", ANY);
    let keeps = |wire: &mut Wire| {
        assert_eq!(eval(wire, KEEP_SHARE, &[&token("two"), "60000", &token("kept")]), Value::Int(1));
    };
    keeps(&mut wire);
    writes(&mut wire, "a confirmation", |wire| drop(comes_in(wire, "one", ANY)));
    writes(&mut wire, "one beside as many as its limit", |wire| drop(comes_in(wire, "one", "1")));
    writes(&mut wire, "a renewal", |wire| assert_eq!(renew(wire, "one"), Value::Int(1)));
    writes(&mut wire, "a keeping", keeps);
}

#[test]
fn a_renewal_answers_for_each_share_of_its_batch() {
    let server = Server::start();
    let mut wire = server.wire();
    let earlier = comes_in(&mut wire, "one", ANY);
    wire.del(LOCK);
    let fence = comes_in(&mut wire, "one", ANY);
    wire.must(&["EVAL", ACQUIRE, "2", "alone", "{alone}:lh:fence", &token("one"), TTL, MEMORY]);
    wire.set("data", "another's");
    wire.must(&["LPUSH", "list", "another's"]);
    let batch = [
        (LOCK, fence.as_str(), 1),
        (LOCK, &earlier, 0),
        ("free", "", 0),
        ("alone", "", -1),
        ("data", "", -1),
        ("list", "", -1),
        (LOCK, "", 1),
    ];
    let holders = batch.map(|(key, ..)| format!("{{{key}}}:lh:holders"));
    let (one, count) = (token("one"), (2 * batch.len()).to_string());
    let mut command = vec!["EVAL", RENEW_SHARES, &count];
    command.extend(batch.iter().map(|(key, ..)| *key));
    command.extend(holders.iter().map(String::as_str));
    command.extend(batch.iter().map(|_| one.as_str()));
    command.extend(batch.iter().map(|_| TTL));
    command.extend(batch.iter().map(|(_, fence, _)| *fence));
    assert_eq!(wire.must(&command).array(), batch.map(|(.., answer)| Value::Int(answer)));
    for refused in ["-zscore", "-zadd"] {
        server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", refused]);
        let mut worker = server.wire();
        worker.must(&["AUTH", "worker", "secret"]);
        let answers = worker.must(&command);
        let codes = answers.array().iter().map(|answer| match answer {
            Value::Array(refusal) => refusal[0].int(),
            answer => answer.int(),
        });
        assert!(codes.eq(batch.map(|(.., answer)| if answer == 1 { -2 } else { answer })), "{refused}: {answers:?}");
        server.wire().must(&["ACL", "DELUSER", "worker"]);
    }
    assert_eq!(wire.get("data").as_deref(), Some("another's"));
}

#[test]
fn a_batch_extends_each_share_of_one_lock_by_its_own_ttl() {
    let server = Server::start();
    let mut wire = server.wire();
    for label in ["one", "two"] {
        comes_in(&mut wire, label, ANY);
    }
    let [one, gone, two] = ["one", "gone", "two"].map(token);
    let batch = ["EVAL", RENEW_SHARES, "6", LOCK, LOCK, LOCK, HOLDERS, HOLDERS, HOLDERS, &one, &gone, &two];
    let replies = wire.must(&[&batch[..], &["40000", "40000", "90000", "", "", ""]].concat());
    assert_eq!(replies.array(), [1, 0, 1].map(Value::Int));
    let mut until = |token| wire.must(&["ZSCORE", HOLDERS, token]).text().parse::<u64>().unwrap();
    assert_eq!(until(&two) - until(&one), 50_000);
    for key in [LOCK, HOLDERS] {
        let left = wire.must(&["PTTL", key]).int();
        assert!(left > 90_000, "{key} outlives both: {left} ms");
    }
    assert_eq!(sharers(&mut wire), ["one", "two"]);
}

#[test]
fn who_shares_a_lock_is_told_the_first_to_go_first() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    clock.gain(-1_000_000);
    let mut wire = server.wire();
    // Valkey reads its clock once a millisecond, and may use the previous value.
    let whole = |ms: i64| if ms > 1 { (ms + 5) / 10 * 10 } else { ms };
    let seen = |wire: &mut Wire, most: &str| match wire.must(&["EVAL", SHARERS, "2", LOCK, HOLDERS, most]).array() {
        [Value::Int(0)] => (0, "free".into(), 0, vec![]),
        [Value::Int(1), left, value, count, first @ ..] => {
            let value = if let Value::Array(other) = value { other[1].text() } else { labels(&value.text()) };
            let first = first.chunks(2).map(|pair| (labels(&pair[0].text()), whole(pair[1].int()))).collect();
            (whole(left.int()), value, count.int(), first)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(seen(&mut wire, "10"), (0, "free".into(), 0, vec![]));
    let fence = comes_in(&mut wire, "one", ANY);
    clock.forward(Duration::from_secs(1));
    comes_in(&mut wire, "two", ANY);
    let value = format!("lh1:00000000-0000-0000-0000-000000000000:{fence}@shared");
    let (one, two) = (("one".to_owned(), 29_000), ("two".to_owned(), 30_000));
    assert_eq!(seen(&mut wire, "10"), (30_000, value.clone(), 2, vec![one.clone(), two]), "until the last has expired");
    assert_eq!(seen(&mut wire, "1"), (30_000, value.clone(), 2, vec![one]));
    clock.forward(Duration::from_millis(29_500));
    assert_eq!(seen(&mut wire, "10"), (500, value.clone(), 1, vec![("two".into(), 500)]), "one is over");
    let large = "x".repeat(300);
    wire.must(&["ZADD", HOLDERS, "1", "past", "9e15", &large]);
    assert_eq!(seen(&mut wire, "10").3.last().map(|(name, _)| name.len()), Some(256), "not all of what is another's");
    wire.del(LOCK);
    comes_in(&mut wire, "writer", "0");
    assert_eq!(seen(&mut wire, "10"), (30_000, "writer".into(), 0, vec![]), "they are of another phase");
    wire.del(LOCK);
    wire.must(&["LPUSH", LOCK, "another's"]);
    assert_eq!(seen(&mut wire, "10"), (-1, "list".into(), 0, vec![]));
}

#[test]
fn readers_behind_a_writer_are_let_in_thirty_two_at_a_time_and_the_next_one_goes_on() {
    const READERS: usize = 75;
    let server = Server::start();
    let (mut wire, mut ears) = (server.wire(), listen(&server, "all"));
    comes_in(&mut wire, "writer", "0");
    let names: Vec<String> = (0..READERS).map(|n| format!("reader{n}")).collect();
    for name in &names {
        waits(&mut wire, name, "all", ANY);
    }
    assert_eq!(eval(&mut wire, RELEASE, &[&token("writer")]), Value::Int(1));
    assert_eq!(sharers(&mut wire).len(), 32);
    ears.send(&["PING"]).unwrap();
    let mut told = Vec::new();
    while let [_, _, message] = ears.reply().unwrap().array() {
        told.push(labels(&message.text()));
    }
    assert_eq!(told.last().map(String::as_str), Some("next 0 reader32"));
    poll(&mut wire, "reader32", "all", ANY);
    assert_eq!(sharers(&mut wire).len(), 65, "itself, and 32 behind it");
    poll(&mut wire, "reader65", "all", ANY);
    assert_eq!(sharers(&mut wire).len(), READERS);
    assert!(!wire.exists(LINE));
    let fences: std::collections::HashSet<_> = names.iter().map(|name| comes_in(&mut wire, name, ANY)).collect();
    assert_eq!(fences.len(), 1, "one phase");
}

#[test]
fn a_first_one_that_does_not_fit_holds_up_the_others_only_while_it_is_there() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let mut wire = server.wire();
    let (killed, _stopped, _alive) = (listen(&server, "killed"), listen(&server, "stopped"), listen(&server, "alive"));
    comes_in(&mut wire, "one", ANY);
    comes_in(&mut wire, "two", ANY);
    waits(&mut wire, "first", "killed", "0");
    waits(&mut wire, "second", "stopped", "0");
    waits(&mut wire, "reader", "alive", ANY);
    drop(killed);
    support::eventually(Duration::from_secs(5), "the server sees it", || {
        wire.must(&["PUBSUB", "NUMSUB", "killed"]).array()[1].int() == 0
    });
    assert_eq!(part(&mut wire, "two"), Value::Int(1));
    assert_eq!(wire.must(&["ZCARD", LINE]), Value::Int(2), "a killed waiter is passed over at once");
    clock.forward(Duration::from_secs(14));
    waits(&mut wire, "reader", "alive", ANY);
    clock.forward(Duration::from_millis(1_500));
    comes_in(&mut wire, "one", ANY);
    comes_in(&mut wire, "reader", ANY);
    assert_eq!((sharers(&mut wire), wire.exists(LINE)), (vec!["one".into(), "reader".into()], false));
}

#[test]
fn without_the_right_to_count_listeners_a_killed_one_counts_as_there_for_its_window() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let mut wire = server.wire();
    server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "&*", "+@all", "-pubsub"]);
    let mut worker = server.wire();
    worker.must(&["AUTH", "worker", "secret"]);
    comes_in(&mut wire, "one", ANY);
    waits(&mut wire, "dead", "dead", "0");
    waits(&mut worker, "reader", "", ANY);
    clock.forward(Duration::from_millis(15_500));
    comes_in(&mut worker, "reader", ANY);
}

/// All commands that sharing needs of a server, with replies that are not refusals.
fn share_everything(server: &Server, wire: &mut Wire) -> Result<(), String> {
    let _ears = ["leasehold:a", "leasehold:b"].map(|channel| listen(server, channel));
    let try_to = |what: &str, reply: Value, expected: i64| {
        let code = match &reply {
            Value::Array(parts) => parts[0].clone(),
            one => one.clone(),
        };
        match code.error().map(ToOwned::to_owned) {
            Some(error) => Err(error),
            None if code == Value::Int(expected) => Ok(()),
            None => panic!("{what}: {reply:?}"),
        }
    };
    try_to("begin", poll(wire, "one", "", ANY), 1)?;
    try_to("join", poll(wire, "two", "", ANY), 1)?;
    try_to("renew", wire.cmd(&["EVAL", RENEW_SHARES, "2", LOCK, HOLDERS, &token("one"), TTL, ""]), 1)?;
    try_to("wait for a place", poll(wire, "late", "leasehold:b", "2"), 0)?;
    try_to("leave", eval(wire, LEAVE, &["leasehold:b", WINDOW, "1", &token("late")]), 0)?;
    try_to("wait to write", poll(wire, "writer", "leasehold:a", "0"), 0)?;
    try_to("wait to read", poll(wire, "reader", "leasehold:b", ANY), 0)?;
    try_to("look", wire.cmd(&["EVAL", SHARERS, "2", LOCK, HOLDERS, "10"]), 1)?;
    try_to("keep", eval(wire, KEEP_SHARE, &[&token("two"), "60000", &token("kept")]), 1)?;
    try_to("part", eval(wire, PART, &[&token("one")]), 1)?;
    try_to("part as the last one", eval(wire, PART, &[&token("kept")]), 1)?;
    try_to("write", poll(wire, "writer", "leasehold:a", "0"), 1)?;
    try_to("downgrade", eval(wire, DOWNGRADE, &[&token("reads"), TTL, &token("writer"), MEMORY, "0"]), 1)?;
    try_to("read", poll(wire, "reader", "leasehold:b", ANY), 1)?;
    try_to("end it", eval(wire, FORCE_RELEASE, &["{job}:lh:forced", "ops"]), 1)
}

#[test]
fn the_rights_of_fair_locks_and_two_more_are_enough_to_share_and_both_are_needed() {
    let server = Server::start();
    let mut wire = server.wire();
    let least = LEAST_ACL.replace("app:", "job");
    let mut tried = |rights: &[&str]| {
        let rights = rights.iter().flat_map(|some| some.split_whitespace());
        let user = ["ACL", "SETUSER", "worker", "reset", "on", ">secret"].into_iter().chain(rights);
        wire.must(&user.collect::<Vec<_>>());
        wire.must(&["FLUSHALL"]);
        wire.must(&["ACL", "LOG", "RESET"]);
        let mut worker = server.wire();
        worker.must(&["AUTH", "worker", "secret"]);
        let outcome = share_everything(&server, &mut worker);
        (outcome, wire.must(&["ACL", "LOG"]).array().len())
    };
    let all = [&least, FOR_PUSH, FOR_FAIR, FOR_SHARES, TO_PASS_OVER_THE_DEAD];
    assert_eq!(tried(&all), (Ok(()), 0), "and nothing else is tried");
    let (outcome, denied) = tried(&[&least, FOR_PUSH, FOR_FAIR, FOR_SHARES]);
    assert!(outcome.is_ok() && denied > 0, "a missed notification fails nothing: {outcome:?}, {denied}");
    for missing in FOR_SHARES.split_whitespace() {
        let others: Vec<_> = FOR_SHARES.split_whitespace().filter(|right| *right != missing).collect();
        let (outcome, _) = tried(&[&least, FOR_PUSH, FOR_FAIR, &others.join(" "), TO_PASS_OVER_THE_DEAD]);
        let refused = outcome.expect_err(missing);
        assert!(NO_RIGHT.iter().any(|words| refused.contains(words)), "without {missing}: {refused}");
    }
    let (outcome, _) = tried(&[&least, FOR_PUSH, FOR_FAIR]);
    outcome.expect_err("a user for fair locks");
    assert_eq!(server.wire().must(&["KEYS", "*"]).array(), [], "a user that cannot release a share gets none");
}

#[test]
fn a_user_that_may_not_add_a_sharer_is_granted_nothing() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all", "-zadd"]);
    let mut worker = server.wire();
    worker.must(&["AUTH", "worker", "secret"]);
    for script in [JOIN, POLL] {
        wire.must(&["FLUSHALL"]);
        let reply = eval(&mut worker, script, &[&token("one"), TTL, "0", GRANT, WINDOW, "", "0", "0", MEMORY, ANY]);
        assert!(reply.error().is_some_and(|error| NO_RIGHT.iter().any(|words| error.contains(words))), "{reply:?}");
    }
}

#[test]
fn a_user_that_may_not_remove_a_sharer_is_told_so_by_its_release() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["ACL", "SETUSER", "worker", "reset", "on", ">secret", "~*", "&*", "+@all", "-zrem"]);
    comes_in(&mut wire, "one", ANY);
    let mut worker = server.wire();
    worker.must(&["AUTH", "worker", "secret"]);
    let alone = worker.cmd(&["EVAL", EXTEND_SHARE, "1", HOLDERS, &token("one"), "-1"]);
    for reply in [part(&mut worker, "one"), alone] {
        assert!(reply.error().is_some_and(|error| NO_RIGHT.iter().any(|words| error.contains(words))), "{reply:?}");
    }
    assert_eq!(sharers(&mut wire), ["one"]);
}

/// The key of the lock lives on for a third of a TTL.
#[test]
fn where_all_who_shared_are_over_the_next_one_begins_a_phase_of_its_own() {
    let server = Server::start();
    let mut wire = server.wire();
    let mut fence = comes_in(&mut wire, "dead", ANY);
    for limit in ["1", "2", ANY] {
        for dead in wire.must(&["ZRANGE", HOLDERS, "0", "-1"]).array() {
            wire.must(&["ZADD", HOLDERS, "1", &dead.text()]);
        }
        let later = comes_in(&mut wire, "late", limit);
        assert!(later > fence, "{limit}: {later}, {fence}");
        assert_eq!(sharers(&mut wire), ["late"]);
        assert_eq!(comes_in(&mut wire, "beside", ANY), later);
        fence = later;
    }
}
