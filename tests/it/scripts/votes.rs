//! The scripts of a vote, at the wire: what a server grants, raises, repairs and answers (safety, sections 3 to 5).

use std::time::Duration;

use support::{
    ClockShim, Server, Value, Wire,
    scripts::{ACQUIRE, KEEP, POLL, RAISE, RELEASE, RENEW, REPAIR},
};

use super::{FENCE, LOCK, MEMORY, TTL, fence_in, owner, token};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn vote(wire: &mut Wire, label: &str, delay: &str, proposal: &str) -> Value {
    wire.cmd(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token(label), TTL, MEMORY, delay, proposal])
}

fn raise(wire: &mut Wire, label: &str, fence: i64) -> Value {
    wire.cmd(&["EVAL", RAISE, "2", LOCK, FENCE, &token(label), &fence.to_string(), MEMORY])
}

fn repair(wire: &mut Wire, label: &str, fence: i64, delay: &str) -> Value {
    wire.cmd(&["EVAL", REPAIR, "2", LOCK, FENCE, &token(label), TTL, &fence.to_string(), MEMORY, delay])
}

fn release(wire: &mut Wire, known: &str) -> i64 {
    wire.cmd(&["EVAL", RELEASE, "4", LOCK, FENCE, "{job}:lh:queue", "{job}:lh:wait", known]).int()
}

fn renew(wire: &mut Wire, known: &str) -> i64 {
    let renewed = wire.cmd(&["EVAL", RENEW, "1", LOCK, known, "60000"]);
    renewed.array()[0].int()
}

/// The fence that an observer of the lock sees.
fn shown(wire: &mut Wire) -> i64 {
    wire.get(LOCK).and_then(|value| fence_in(&value)).unwrap()
}

/// The server's clock in microseconds.
fn time(wire: &mut Wire) -> i64 {
    let time = wire.cmd(&["TIME"]);
    let part = |at: usize| time.array()[at].text().parse::<i64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

fn fence(value: &Value) -> i64 {
    value.text().parse().unwrap_or_else(|_| value.int())
}

fn stored(wire: &mut Wire) -> i64 {
    wire.get(FENCE).unwrap().parse().unwrap()
}

#[test]
fn a_vote_names_its_time_and_server() {
    let server = Server::start();
    let mut wire = server.wire();
    let run_id = wire.try_info_field("server", "run_id").unwrap().unwrap();
    let before = time(&mut wire);
    let granted = vote(&mut wire, "one", "0", "");
    let [code, drawn, at, id] = granted.array() else { panic!("{granted:?}") };
    assert_eq!((code.int(), id.text()), (1, run_id.clone()));
    assert!(fence(at) >= before && fence(at) <= time(&mut wire) && fence(drawn) == fence(at), "{granted:?}");
    let busy = vote(&mut wire, "two", "0", "");
    let [code, pttl, value, _, id] = busy.array() else { panic!("{busy:?}") };
    let first = format!("{}:{}@one", &token("one")[..40], fence(drawn));
    assert_eq!((code.int(), value.text(), id.text()), (0, first, run_id));
    assert!((1..=30_000).contains(&pttl.int()), "{busy:?}");
    let alone = wire.cmd(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token("one"), TTL, MEMORY]);
    assert_eq!(alone.array().len(), 2, "the identity was not asked for");
}

#[test]
fn a_replayed_acquire_is_granted_again_with_its_fence_and_never_shortens() {
    let server = Server::start();
    let mut wire = server.wire();
    let mut acquire = |ttl: &str| {
        let reply = wire.cmd(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token("one"), ttl, MEMORY]);
        assert_eq!(reply.array()[0].int(), 1, "{reply:?}");
        (fence(&reply.array()[1]), wire.pttl(LOCK))
    };
    let (first, _) = acquire("60000");
    let (shorter, left) = acquire("1000");
    assert!(shorter == first && left > 30_000, "{left} ms");
    let (longer, left) = acquire("90000");
    assert!(longer == first && left > 60_000, "{left} ms");
}

/// The answer to a replay must be as good as the first answer, for callers that count replicas too.
#[test]
fn a_replay_is_a_write() {
    let server = Server::start();
    let mut wire = server.wire();
    let writes = |wire: &mut Wire| -> u64 {
        wire.info_field("persistence", "rdb_changes_since_last_save").unwrap().parse().unwrap()
    };
    let queue = ["{job}:lh:queue", "{job}:lh:wait"];
    let one = token("one");
    let poll = vec![
        "EVAL",
        POLL,
        "5",
        LOCK,
        FENCE,
        queue[0],
        queue[1],
        "{job}:lh:holders",
        &one,
        TTL,
        "0",
        "1000",
        "1000",
        "~c",
        "1",
        "0",
        MEMORY,
        "0",
    ];
    let stays = token("what stays");
    for (what, script) in [
        ("acquire", vec!["EVAL", ACQUIRE, "2", LOCK, FENCE, &one, "1000", MEMORY]),
        ("poll", poll),
        ("keep", vec!["EVAL", KEEP, "1", LOCK, &one, "20000", &stays]),
    ] {
        let first = wire.cmd(&script);
        assert!(first.error().is_none(), "{what}: {first:?}");
        let (before, left) = (writes(&mut wire), wire.pttl(LOCK));
        assert_eq!(wire.cmd(&script), first, "{what}");
        assert!(writes(&mut wire) > before, "{what} wrote nothing");
        let lives = wire.pttl(LOCK);
        assert!(lives <= left.max(30_000) && lives > left - 5_000, "{what}: {lives} of {left} ms");
    }
    // Another program removed the key's expiry: a replay does not delete the key for that.
    wire.must(&["PERSIST", LOCK]);
    assert_eq!(wire.cmd(&["EVAL", KEEP, "1", LOCK, &one, "20000", &stays]).int(), 1);
    assert!(wire.exists(LOCK));
}

#[test]
fn a_proposal_is_issued_wherever_it_is_large_enough() {
    let server = Server::start();
    let mut wire = server.wire();
    let proposal = time(&mut wire) + 60_000_000;
    let granted = vote(&mut wire, "one", "0", &proposal.to_string());
    assert_eq!(fence(&granted.array()[1]), proposal);
    let lives = wire.pttl(FENCE);
    assert!((DAY_MS + 50_000..=DAY_MS + 60_000).contains(&lives), "a day from its own time, not from now: {lives}");
    let replay = vote(&mut wire, "one", "0", &(proposal + 5).to_string());
    assert_eq!(fence(&replay.array()[1]), proposal, "a replay draws nothing");
    wire.del(LOCK);
    let next = vote(&mut wire, "two", "0", &proposal.to_string());
    assert_eq!(fence(&next.array()[1]), proposal + 1, "another holder has had it");
    wire.del(LOCK);
    wire.del(FENCE);
    let now = time(&mut wire);
    let late = vote(&mut wire, "three", "0", "1000000000000000");
    assert!(fence(&late.array()[1]) >= now, "a proposal from the past is ignored");
}

#[test]
fn a_newly_started_server_gives_no_vote_and_repairs_nothing() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let mut wire = server.wire();
    for answer in [vote(&mut wire, "one", "31", ""), repair(&mut wire, "one", 7, "31")] {
        assert_eq!(answer.array()[0].int(), 2, "{answer:?}");
        assert!((1..=31).contains(&answer.array()[1].int()), "{answer:?}");
    }
    assert!(!wire.exists(LOCK) && !wire.exists(FENCE), "and leaves nothing");
    clock.forward(Duration::from_secs(32));
    let granted = vote(&mut wire, "one", "31", "");
    assert_eq!(granted.array()[0].int(), 1, "{granted:?}");
    assert_eq!(vote(&mut wire, "one", "7200", "").array()[0].int(), 2, "not even to its holder");
}

#[test]
fn an_uptime_witness_counts_for_its_own_run_only() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let mut wire = server.wire();
    clock.back(Duration::from_secs(3_600));
    let run_id = wire.try_info_field("server", "run_id").unwrap().unwrap();
    let another = "0".repeat(40);
    for script in [ACQUIRE, REPAIR] {
        let mut ask = |run: &str, known: &str| {
            let rest = if script == ACQUIRE { [MEMORY, "31", ""] } else { ["7", MEMORY, "31"] };
            let token = token("one");
            let asked = [&["EVAL", script, "2", LOCK, FENCE, &token, TTL][..], &rest, &[run, known]];
            wire.cmd(&asked.concat())
        };
        for (run, known, left) in [(&*another, "99999", 31), (&*run_id, "", 31), (&*run_id, "30", 1)] {
            let answer = ask(run, known);
            assert_eq!((answer.array()[0].int(), answer.array()[1].int()), (2, left), "{known}: {answer:?}");
            assert!(answer.array().iter().any(|part| *part == Value::Bulk(run_id.clone().into())), "{answer:?}");
        }
        assert_eq!(ask(&run_id, "31").array()[0].int(), 1);
    }
}

#[test]
fn a_raise_changes_the_floor_of_its_own_lock_only_and_never_lowers_it() {
    let server = Server::start();
    let mut wire = server.wire();
    assert_eq!(raise(&mut wire, "one", 5).int(), 0, "no lock");
    assert!(!wire.exists(FENCE));
    let drawn = fence(&vote(&mut wire, "one", "0", "").array()[1]);
    for _replayed in 0..2 {
        assert_eq!(raise(&mut wire, "one", drawn + 100).int(), 1);
        assert_eq!(stored(&mut wire), drawn + 100);
    }
    assert_eq!(raise(&mut wire, "one", drawn).int(), 1);
    assert_eq!(stored(&mut wire), drawn + 100);
    let hour = 60 * 60 * 1_000_000;
    assert_eq!(raise(&mut wire, "one", drawn + hour).int(), 1);
    let lives = wire.pttl(FENCE);
    assert!(lives > DAY_MS + 3_500_000 && lives <= DAY_MS + 3_600_000, "a day from its own time: {lives}");
    assert_eq!(raise(&mut wire, "two", drawn + 2 * hour).int(), -1, "somebody else's");
    wire.del(LOCK);
    wire.must(&["HSET", LOCK, "a", "b"]);
    assert_eq!(raise(&mut wire, "one", drawn + 2 * hour).int(), -1, "no lock at all");
    assert_eq!(stored(&mut wire), drawn + hour);
}

#[test]
fn a_fence_of_few_digits_is_raised_and_repaired_too() {
    let server = Server::start();
    let mut wire = server.wire();
    vote(&mut wire, "one", "0", "");
    wire.del(FENCE);
    assert_eq!((raise(&mut wire, "one", 7).int(), stored(&mut wire)), (1, 7));
    wire.del(FENCE);
    assert_eq!((repair(&mut wire, "one", 7, "0").array(), stored(&mut wire)), (&[Value::Int(1)][..], 7));
}

#[test]
fn a_repair_restores_a_lost_key_and_its_floor_and_overwrites_nothing() {
    let server = Server::start();
    let mut wire = server.wire();
    let wanted = time(&mut wire) + 1_000_000;
    for _replayed in 0..2 {
        assert_eq!(repair(&mut wire, "one", wanted, "0").array(), [Value::Int(1)]);
        assert_eq!((owner(&mut wire), stored(&mut wire)), (Some("one".into()), wanted));
        assert!((1..=30_000).contains(&wire.pttl(LOCK)));
    }
    assert_eq!(repair(&mut wire, "two", wanted + 1, "0").array(), [Value::Int(-1)]);
    assert_eq!((owner(&mut wire), stored(&mut wire)), (Some("one".into()), wanted));
    wire.del(LOCK);
    wire.must(&["HSET", LOCK, "a", "b"]);
    assert_eq!(repair(&mut wire, "one", wanted + 1, "0").array(), [Value::Int(-1)]);
}

#[test]
fn a_key_is_retained_once_and_for_its_owner_only() {
    let server = Server::start();
    let mut wire = server.wire();
    let keep = |wire: &mut Wire, label: &str, millis: &str| {
        let reply = wire.cmd(&["EVAL", KEEP, "1", LOCK, &token(label), millis, &token("what stays")]);
        (reply.int(), wire.get(LOCK), wire.pttl(LOCK) > 50_000)
    };
    assert_eq!(keep(&mut wire, "one", "60000"), (0, None, false), "no lock");
    let drawn = fence(&vote(&mut wire, "one", "0", "").array()[1]);
    let value = |label: &str| Some(format!("{}:{drawn}@{label}", &token(label)[..40]));
    assert_eq!(keep(&mut wire, "two", "60000"), (-1, value("one"), false), "somebody else's");
    assert_eq!(keep(&mut wire, "one", "60000"), (1, value("what stays"), true), "its fence stays");
    assert_eq!(keep(&mut wire, "one", "1000"), (1, value("what stays"), true), "a replay finds what stays");
    assert_eq!(release(&mut wire, &token("one")), -1, "it is not this token's any more");
    wire.del(LOCK);
    wire.must(&["HSET", LOCK, "a", "b"]);
    let kept = wire.cmd(&["EVAL", KEEP, "1", LOCK, &token("one"), "60000", &token("what stays")]);
    assert_eq!(kept.int(), -1, "no lock at all");
}

#[test]
fn a_value_is_its_tokens_whatever_fence_and_label_it_has() {
    let server = Server::start();
    let mut wire = server.wire();
    let identity = token("one")[..40].to_owned();
    let known = [token("one"), format!("{identity}:7@one"), format!("{identity}:8@two")];
    // A renewal that names a fence belongs to the grant with that fence.
    for (known, renewed) in known.iter().zip([1, 1, -4]) {
        wire.set(LOCK, &format!("{identity}:7@one"));
        assert_eq!((renew(&mut wire, known), wire.pttl(LOCK) > 50_000), (renewed, renewed == 1), "{known}");
        assert_eq!((release(&mut wire, known), wire.exists(LOCK)), (1, false), "{known}");
    }
    // Labels that look like a value, like an identity, and like a fence.
    for value in [format!("{}:7@{}:7@one", &token("two")[..40], identity), format!("{identity}0:7@one")[1..].into()] {
        wire.set(LOCK, &value);
        for known in &known {
            assert_eq!((renew(&mut wire, known), release(&mut wire, known)), (-1, -1), "{known} and {value}");
        }
    }
}

#[test]
fn a_raise_and_a_repair_show_the_fence_to_whoever_looks() {
    let server = Server::start();
    let mut wire = server.wire();
    let drawn = fence(&vote(&mut wire, "one", "0", "").array()[1]);
    assert_eq!(shown(&mut wire), drawn);
    wire.must(&["PEXPIRE", LOCK, "20000"]);
    for (to, seen) in [(100, 100), (50, 100), (200, 200)] {
        assert_eq!(raise(&mut wire, "one", drawn + to).int(), 1);
        assert_eq!((shown(&mut wire), owner(&mut wire).as_deref()), (drawn + seen, Some("one")));
        assert!((1..=20_000).contains(&wire.pttl(LOCK)), "its TTL does not change");
    }
    assert_eq!(fence(&vote(&mut wire, "one", "0", "").array()[1]), drawn + 200, "a replay answers what it shows");
    for (to, seen) in [(150, 200), (300, 300)] {
        assert_eq!(repair(&mut wire, "one", drawn + to, "0").array(), [Value::Int(1)]);
        assert_eq!(shown(&mut wire), drawn + seen);
    }
    wire.del(LOCK);
    assert_eq!(repair(&mut wire, "one", drawn + 400, "0").array(), [Value::Int(1)]);
    assert_eq!(shown(&mut wire), drawn + 400);
}

#[test]
fn a_fence_key_that_holds_no_fence_stops_everything_before_the_first_write() {
    let server = Server::start();
    let mut wire = server.wire();
    for wrong in ["text", "nan"] {
        wire.set(FENCE, wrong);
        for answer in [vote(&mut wire, "one", "0", ""), repair(&mut wire, "one", 7, "0")] {
            assert!(answer.error().is_some_and(|error| error.contains("holds no fence")), "{wrong}: {answer:?}");
        }
        assert!(!wire.exists(LOCK), "{wrong}");
        wire.set(LOCK, &token("one"));
        let answer = raise(&mut wire, "one", 7);
        assert!(answer.error().is_some_and(|error| error.contains("holds no fence")), "{wrong}: {answer:?}");
        wire.del(LOCK);
    }
}

#[test]
fn without_the_right_to_info_there_is_a_vote_only_where_no_uptime_is_asked_for() {
    let server = Server::start();
    server.wire().must(&["ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", "-info"]);
    let mut wire = server.wire();
    wire.must(&["AUTH", "worker", "secret"]);
    let refused = vote(&mut wire, "one", "31", "");
    assert!(refused.error().is_some(), "{refused:?}");
    assert!(!wire.exists(LOCK));
    let granted = vote(&mut wire, "one", "0", "");
    assert_eq!((granted.array()[0].int(), granted.array()[3].is_nil()), (1, true), "{granted:?}");
}
