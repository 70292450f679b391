//! The script of an adoption, at the wire (rule 13).

use std::collections::BTreeMap;

use support::{
    Server, Value, Wire,
    scripts::{ACQUIRE, KEEP, RELEASE, RENEW, SUCCEED},
};

use super::{FENCE, LOCK, MEMORY, TTL, fence_in, owner, token};

const QUEUE: [&str; 2] = ["{job}:lh:queue", "{job}:lh:wait"];

fn acquire(wire: &mut Wire, label: &str) -> Value {
    wire.cmd(&["EVAL", ACQUIRE, "2", LOCK, FENCE, &token(label), TTL, MEMORY])
}

fn adopt(wire: &mut Wire, label: &str, ttl: &str, from: &[&str]) -> Value {
    adopt_with(wire, label, (ttl, MEMORY, ""), from)
}

fn adopt_with(wire: &mut Wire, label: &str, (ttl, memory, proposal): (&str, &str, &str), from: &[&str]) -> Value {
    let token = token(label);
    let count = from.len().to_string();
    let mut command = vec!["EVAL", SUCCEED, "2", LOCK, FENCE, &token, ttl, memory, proposal, "0", &count];
    let from: Vec<String> = from.iter().map(|label| super::token(label)[..40].to_owned()).collect();
    command.extend(from.iter().map(String::as_str));
    wire.cmd(&command)
}

fn release(wire: &mut Wire, label: &str) -> i64 {
    wire.cmd(&["EVAL", RELEASE, "4", LOCK, FENCE, QUEUE[0], QUEUE[1], &token(label)]).int()
}

fn renew(wire: &mut Wire, label: &str) -> i64 {
    wire.cmd(&["EVAL", RENEW, "1", LOCK, &token(label), "60000"]).array()[0].int()
}

/// The fence of a grant.
fn granted(value: &Value) -> i64 {
    let [code, fence] = value.array() else { panic!("{value:?}") };
    assert_eq!(code.int(), 1, "{value:?}");
    fence.text().parse().unwrap()
}

fn code(value: &Value) -> i64 {
    value.array().first().unwrap_or_else(|| panic!("{value:?}")).int()
}

#[test]
fn an_heir_takes_the_place_of_the_giver_with_a_larger_fence_and_what_comes_late_changes_nothing() {
    let server = Server::start();
    let mut wire = server.wire();
    let before = granted(&acquire(&mut wire, "giver"));
    let after = granted(&adopt(&mut wire, "heir", "1000", &["x", "giver"]));
    assert!(after > before);
    assert_eq!((owner(&mut wire).as_deref(), wire.get(FENCE)), (Some("heir"), Some(after.to_string())));
    assert_eq!(fence_in(&wire.get(LOCK).unwrap()), Some(after), "an observer sees it");
    let left = wire.pttl(LOCK);
    assert!(left > 29_000, "the key lives for no less than before: {left}");
    for _ in 0..2 {
        assert_eq!(granted(&adopt(&mut wire, "heir", "40000", &["giver"])), after, "a replay");
        assert!(wire.pttl(LOCK) > 39_000);
        assert_eq!((renew(&mut wire, "giver"), release(&mut wire, "giver")), (-1, -1), "the giver comes late");
        assert_eq!(code(&adopt(&mut wire, "other", TTL, &["giver"])), 0, "so does another heir");
    }
    assert_eq!(release(&mut wire, "heir"), 1);
    assert_eq!(code(&adopt(&mut wire, "heir", TTL, &["giver"])), 3, "a replay after the release");
    assert_eq!((wire.exists(LOCK), wire.get(FENCE)), (false, Some(after.to_string())), "it creates nothing");
}

/// It may have come back with a lock from before another heir had it.
#[test]
fn a_server_that_was_started_lately_hands_nothing_over() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = granted(&acquire(&mut wire, "giver"));
    let run_id = wire.info_field("server", "run_id").unwrap();
    let giver = token("giver");
    let mut adopt = |witness: &[&str]| {
        let heir = token("heir");
        let command = ["EVAL", SUCCEED, "2", LOCK, FENCE, &heir, TTL, MEMORY, "", "3600", "1", &giver[..40]];
        wire.cmd(&[&command[..], witness].concat())
    };
    for witness in [&[][..], &[&run_id, "3500"], &["another", "3600"]] {
        assert_eq!(code(&adopt(witness)), 2, "{witness:?}");
    }
    let after = granted(&adopt(&[&run_id, "3600"]));
    assert!(after > fence);
    assert_eq!(granted(&adopt(&[])), after, "a replay");
    assert_eq!(owner(&mut wire).as_deref(), Some("heir"));
}

/// As renewals and releases work there.
#[test]
fn a_server_without_memory_lets_a_lock_be_handed_over_and_kept() {
    let server = Server::start();
    let mut wire = server.wire();
    granted(&acquire(&mut wire, "giver"));
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(acquire(&mut wire, "other").error().is_some_and(|error| error.contains("OOM")));
    granted(&adopt(&mut wire, "heir", "1000", &["giver"]));
    assert_eq!(wire.cmd(&["EVAL", KEEP, "1", LOCK, &token("heir"), "90000", &token("kept")]), Value::Int(1));
    assert_eq!(owner(&mut wire).as_deref(), Some("kept"));
    assert!(wire.pttl(LOCK) > 60_000, "it stays");
}

#[test]
fn the_givers_own_fence_is_a_floor_where_the_other_is_forgotten() {
    let server = Server::start();
    let mut wire = server.wire();
    // A fence from tomorrow: the clock stepped back since, or the floor was another server's.
    let tomorrow = 5_000_000_000_000_000_i64;
    let (identity, label) = (&token("giver")[..40], "@giver");
    for (memory, floor) in [(MEMORY, None), ("0", None), (MEMORY, Some(tomorrow - 7)), (MEMORY, Some(tomorrow + 7))] {
        wire.must(&["SET", LOCK, &format!("{identity}:{tomorrow}{label}"), "PX", TTL]);
        wire.del(FENCE);
        if let Some(floor) = floor {
            wire.set(FENCE, &floor.to_string());
        }
        let fence = granted(&adopt_with(&mut wire, "heir", (TTL, memory, ""), &["giver"]));
        let expected = tomorrow.max(floor.unwrap_or_default()) + 1;
        assert_eq!((fence, wire.get(FENCE)), (expected, Some(expected.to_string())), "{memory}, {floor:?}");
    }
    let proposed = (tomorrow + 1_000).to_string();
    let adopted = adopt_with(&mut wire, "next", (TTL, MEMORY, &proposed), &["heir"]);
    assert_eq!(granted(&adopted), tomorrow + 1_000, "a quorum's proposal is issued if it is large enough");
    let adopted = adopt_with(&mut wire, "last", (TTL, MEMORY, &proposed), &["next"]);
    assert_eq!(granted(&adopted), tomorrow + 1_001, "and only then");
}

#[test]
fn what_is_no_lock_of_the_givers_is_left_as_it_is() {
    let server = Server::start();
    let mut wire = server.wire();
    let large = "x".repeat(100_000);
    for value in ["mine", &large, &token("other")] {
        wire.must(&["SET", LOCK, value, "PX", TTL]);
        let found = adopt(&mut wire, "heir", TTL, &["giver"]);
        let [busy, pttl, shown] = found.array() else { panic!("{found:?}") };
        assert_eq!((busy.int(), &*shown.text()), (0, &value[..value.len().min(256)]));
        assert!(pttl.int() > 0);
        assert_eq!((wire.get(LOCK).as_deref(), wire.exists(FENCE)), (Some(value), false));
    }
    wire.del(LOCK);
    wire.must(&["RPUSH", LOCK, "x"]);
    let found = adopt(&mut wire, "heir", TTL, &["giver"]);
    assert_eq!(found.array()[2].array()[1].text(), "list", "{found:?}");
    wire.del(LOCK);
    wire.must(&["SET", LOCK, ""]);
    assert_eq!(code(&adopt(&mut wire, "heir", TTL, &["giver"])), 0, "an empty value is another program's");
}

#[test]
fn what_can_be_refused_is_refused_before_the_first_write() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = granted(&acquire(&mut wire, "giver"));
    wire.set(FENCE, "text");
    let refused = adopt(&mut wire, "heir", TTL, &["giver"]);
    assert!(refused.error().is_some_and(|error| error.contains("holds no fence")), "{refused:?}");
    assert_eq!((owner(&mut wire).as_deref(), wire.get(FENCE).as_deref()), (Some("giver"), Some("text")));
    wire.set(FENCE, &fence.to_string());
    assert!(granted(&adopt(&mut wire, "heir", TTL, &["giver"])) > fence);
}

/// In every order of requests, the lock changes hands only by an acquire of a free lock, or from the holder that an
/// adoption names. Each fence is larger than all before it.
#[test]
fn random_histories_of_heirs_have_one_holder_and_growing_fences() {
    const LABELS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let server = Server::start();
    let mut wire = server.wire();
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let (mut holder, mut last, mut adopted) = (None::<&str>, 0, 0);
    let mut fences: BTreeMap<&str, i64> = BTreeMap::new();
    for step in 0..4_000 {
        let who = LABELS[next(LABELS.len())];
        let mut gets = |answer: &Value, holder: &mut Option<&'static str>| {
            let fence = granted(answer);
            if *holder == Some(who) {
                assert_eq!(Some(&fence), fences.get(who), "{step}: a replay");
            } else {
                assert!(fence > last, "{step}: {fence} after {last}");
                (*holder, last) = (Some(who), fence);
                fences.insert(who, fence);
            }
        };
        match next(8) {
            0 | 1 => {
                let answer = acquire(&mut wire, who);
                if holder.is_none_or(|holder| holder == who) {
                    gets(&answer, &mut holder);
                } else {
                    assert_eq!(code(&answer), 0, "{step}");
                }
            }
            2..5 => {
                let from: Vec<&str> = (0..=next(2)).map(|_| LABELS[next(LABELS.len())]).collect();
                let memory = ["0", "1", MEMORY][next(3)];
                let answer = adopt_with(&mut wire, who, (TTL, memory, ""), &from);
                match holder {
                    None => assert_eq!(code(&answer), 3, "{step}"),
                    Some(holder_) if holder_ == who || from.contains(&holder_) => {
                        adopted += usize::from(holder_ != who);
                        gets(&answer, &mut holder);
                    }
                    Some(_) => assert_eq!(code(&answer), 0, "{step}"),
                }
            }
            5 => {
                let released = release(&mut wire, who);
                assert_eq!(released, if holder == Some(who) { 1 } else { -i64::from(holder.is_some()) }, "{step}");
                holder = holder.filter(|holder| *holder != who);
            }
            6 => {
                let renewed = renew(&mut wire, who);
                assert_eq!(renewed, if holder == Some(who) { 1 } else { -i64::from(holder.is_some()) }, "{step}");
            }
            // The floor is forgotten while the lock is held.
            _ => drop(holder.is_some().then(|| wire.del(FENCE))),
        }
        assert_eq!(owner(&mut wire).as_deref(), holder, "{step}");
    }
    assert!(adopted > 200, "{adopted}");
}
