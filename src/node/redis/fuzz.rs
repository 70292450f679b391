//! Fuzz tests of what a server, a proxy or a configuration file may send us, random or nearly right. No reader panics,
//! and its result stays within bounds, also in the code that uses it.
//!
//! Every run of the tests includes a short one. A longer one takes one core some fifteen minutes:
//!
//! ```text
//! PROPTEST_CASES=100000 cargo test --lib --features tls-rustls,serde fuzz
//! ```

use std::{collections::HashMap, sync::Arc, time::Duration};

use leasehold_protocol::{
    attempt::Attempt,
    backoff::Backoff,
    check::Check,
    failure::Failure,
    fence::Fence,
    forced,
    holder::Holder,
    jitter::Jitter,
    message::{Acquired, Denial, Downgraded, Looked, Polled, Repaired, Sharers},
    queue_position::QueuePosition,
    tally::WakeCondition,
    time::Time,
    token::Token,
};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    info::identity,
    reply::{
        downgraded, flag, holding, looked, page, polled, released, renewed, repaired, sharers, succession, vote,
        waiters,
    },
    transport::{RequiredKind, Seeds, classify, config, is_refusal, not_extended},
    wire::{Error as WireError, ErrorKind as WireKind, Map, Value},
};

const TOKEN: &str = "lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@host:7";
const VALUE: &str = "lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab:1795243932883512@host:7";

/// Numbers at which arithmetic goes wrong, and those that mean something to a script.
fn number() -> impl Strategy<Value = i64> {
    const EDGES: [i64; 14] =
        [i64::MIN, i64::MIN + 1, i32::MIN as i64, -3, -2, -1, 0, 1, 2, 3, 64, 1 << 32, 1 << 53, i64::MAX];
    prop_oneof![prop::sample::select(&EDGES[..]), any::<i64>()]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        number().prop_map(|number| number.to_string()),
        Just(u64::MAX.to_string()),
        Just("170141183460469231731687303715884105728".to_owned()),
        Just(TOKEN.to_owned()),
        Just(VALUE.to_owned()),
        "lh1:.{0,40}",
        "(@user_script:|: |ERR |NOPERM |-|ERR Error running script| script: ){0,5}.{0,10}",
        ".{0,20}",
    ]
}

pub(super) fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => number().prop_map(Value::from),
        3 => text().prop_map(Value::from),
        1 => text().prop_map(|text| Value::Bytes(text.into_bytes().into())),
        1 => any::<Vec<u8>>().prop_map(|bytes| Value::Bytes(bytes.into())),
        1 => any::<f64>().prop_map(Value::Double),
        1 => any::<bool>().prop_map(Value::Boolean),
        1 => Just(Value::Null),
        1 => Just(Value::Queued),
    ]
}

pub(super) fn anything() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 24, 8, |inner| {
        prop_oneof![
            4 => vec(inner.clone(), 0..9).prop_map(Value::Array),
            1 => (text(), inner).prop_map(|entry| {
                Value::Map(Map::try_from(HashMap::from([entry])).expect("a text is a key"))
            }),
        ]
    })
}

/// The scripts' replies, one of each kind.
fn right() -> impl Strategy<Value = Value> {
    let held = || [5_i64.into(), VALUE.into()];
    let array = |parts: Vec<Value>| Value::Array(parts);
    let signed = |parts: Vec<Value>| [parts, vec![1_795_243_932_883_512_i64.into(), "run".into()]].concat();
    let granted = vec![1_i64.into(), 7_i64.into()];
    let busy = [vec![0_i64.into()], held().to_vec()].concat();
    let recovering = vec![2_i64.into(), 30_i64.into()];
    let told = [recovering.clone(), vec!["run".into(), 9_i64.into(), 3_i64.into(), 1_i64.into()]].concat();
    let waits = [busy.clone(), vec![9_i64.into(), 3_i64.into(), 1_i64.into(), 2_i64.into()]].concat();
    let waiter = |token: &str, limit: i64| vec![token.into(), 8_000_i64.into(), limit.into()];
    let failed = array(vec![Value::from(-2_i64), "OOM command not allowed".into()]);
    prop::sample::select(vec![
        array(granted.clone()),
        array(signed(granted)),
        array(signed(recovering.clone())),
        array([recovering, vec!["run".into()]].concat()),
        array(told),
        array(signed(busy.clone())),
        array(busy),
        array(waits),
        array([vec![9_000_i64.into(), 2_i64.into()], waiter(TOKEN, 0), waiter("another", 4)].concat()),
        array([vec![1_i64.into()], held().to_vec(), vec![2_i64.into(), TOKEN.into(), 900_i64.into()]].concat()),
        array(vec![1_i64.into(), 0_i64.into(), Value::from(-1_i64), failed]),
        array([vec![1_i64.into()], held().to_vec()].concat()),
        array(vec!["0".into(), "job".into(), "another".into()]),
        1_i64.into(),
    ])
}

#[derive(Debug, Clone)]
enum Change {
    Replace(Value),
    Insert(Value),
    Remove,
    Repeat,
    Wrap,
    Swap(Index),
}

fn change() -> impl Strategy<Value = (Index, Change)> {
    let change = prop_oneof![
        6 => anything().prop_map(Change::Replace),
        1 => anything().prop_map(Change::Insert),
        1 => Just(Change::Remove),
        1 => Just(Change::Repeat),
        1 => Just(Change::Wrap),
        1 => any::<Index>().prop_map(Change::Swap),
    ];
    (any::<Index>(), change)
}

fn changed(reply: Value, (at, change): (Index, Change)) -> Value {
    let Value::Array(mut parts) = reply else { return Value::Array(vec![reply]) };
    if parts.is_empty() {
        return Value::Array(parts);
    }
    let at = at.index(parts.len());
    match change {
        Change::Replace(value) => parts[at] = value,
        Change::Insert(value) => parts.insert(at, value),
        Change::Remove => drop(parts.remove(at)),
        Change::Repeat => parts.insert(at, parts[at].clone()),
        Change::Wrap => parts[at] = Value::Array(vec![parts[at].clone()]),
        Change::Swap(other) => {
            let other = other.index(parts.len());
            parts.swap(at, other);
        }
    }
    Value::Array(parts)
}

/// A right reply with a few changes.
fn nearly_right() -> impl Strategy<Value = Value> {
    (right(), vec(change(), 0..4)).prop_map(|(reply, changes)| changes.into_iter().fold(reply, changed))
}

/// Gives a reply to every reader, and the result to the code that computes with it.
fn read_everywhere(reply: &Value) {
    for votes in [false, true] {
        if let Some(read) = vote(reply, true, votes) {
            assert_eq!(read.identity.is_some(), votes, "{reply:?}");
            reckon_with(&read.acquired);
        }
    }
    if let Some(read) = succession(reply, true) {
        reckon_with(&read.acquired);
    }
    if let Some(Repaired::Recovering(left)) = repaired(reply) {
        reckon_with(&Acquired::Recovering(left));
    }
    match polled(reply, true, true) {
        Some(Polled::Waits { holder, recovers_for, ticket, ahead, notified, .. }) => {
            let position = QueuePosition { ticket, ahead, notified, recovers_for };
            let look = recovers_for.map_or(seen(holder), |left| Check::Failed(Failure::recovering("h:1", left)));
            for leads in [false, true] {
                let mut backoff = Backoff::new(Jitter::from_seed(1));
                let _knock_at = Time::NEVER
                    + position.next_poll(&look, leads, Duration::from_secs(1), &mut backoff).unwrap_or_default();
            }
        }
        Some(Polled::Granted(fence)) => reckon_with(&Acquired::Granted(fence)),
        None => {}
    }
    if let Some(waiters) = waiters(reply) {
        assert!(waiters.len() <= parts(reply) / 2, "{reply:?}");
    }
    if let Some((_cursor, locks)) = page(reply) {
        assert!(locks.len() < parts(reply), "{reply:?}");
    }
    if let Some(verdicts) = renewed(reply, RequiredKind::Alone) {
        assert_eq!(verdicts.len(), parts(reply), "{reply:?}");
    }
    if let Some(Looked { holder: Some(holder), .. }) = holding(reply, true) {
        reckon_with(&Acquired::Busy { holder, tracked: true });
    }
    assert!(looked(reply).len() <= parts(reply).max(1), "{reply:?}");
    if let Some(Some(Sharers { holder, first })) = sharers(reply) {
        assert!(first.len() <= parts(reply) / 2, "{reply:?}");
        first.into_iter().chain([holder]).for_each(|holder| reckon_with(&Acquired::Busy { holder, tracked: true }));
    }
    if let Some(Downgraded::Shared(fence)) = downgraded(reply) {
        reckon_with(&Acquired::Granted(fence));
    }
    let _verdicts = (released(reply), flag(reply));
}

fn parts(reply: &Value) -> usize {
    if let Value::Array(parts) = reply { parts.len() } else { 1 }
}

fn seen(holder: Holder) -> Check {
    Check::Held { holder, tracked: true, needs: WakeCondition::ANY }
}

fn reckon_with(acquired: &Acquired) {
    match acquired {
        Acquired::Granted(fence) => assert!(i64::from(*fence) >= 0, "{fence}"),
        Acquired::Busy { holder, .. } => {
            let shown = format!("{holder} {holder:?}");
            if let Some(token) = holder.whole_token() {
                let secret = token.identity();
                assert!(token.label().contains(secret) || !shown.contains(secret), "{shown}");
            }
            let mut backoff = Backoff::new(Jitter::from_seed(1));
            let pause = backoff.after(&seen(holder.clone()));
            assert!(pause >= holder.remaining().unwrap_or_default(), "the key is there until then: {pause:?}");
        }
        Acquired::Recovering(left) => {
            assert!(Time::NEVER + *left == Time::NEVER);
            assert!(!Failure::recovering("h:1", *left).may_have_happened());
        }
        Acquired::Gone => {}
    }
    for nodes in [1, 3] {
        let mut attempt = Attempt::new(Time::ZERO, Duration::from_secs(1), nodes);
        for node in 0..nodes {
            let _step = attempt.answer(Time::ZERO, node, Ok(acquired.clone()));
        }
    }
}

proptest! {
    #[test]
    fn no_reply_makes_a_reader_panic(reply in anything()) {
        read_everywhere(&reply);
    }

    #[test]
    fn no_reply_that_is_nearly_right_makes_a_reader_panic(reply in nearly_right()) {
        read_everywhere(&reply);
    }

    #[test]
    fn what_a_script_says_is_what_is_read(issued in 1_i64.., pttl in number(), ticket in 1_i64.., ahead: u32, secs: u32) {
        let granted = |reply: &Value, votes| match vote(reply, false, votes).map(|read| read.acquired) {
            Some(Acquired::Granted(fence)) => Some(i64::from(fence)),
            _ => None,
        };
        let array = Value::Array;
        prop_assert_eq!(granted(&array(vec![1.into(), issued.into()]), false), Some(issued));
        prop_assert_eq!(granted(&array(vec![1.into(), issued.into(), ticket.into(), "run".into()]), true), Some(issued));
        prop_assert_eq!(granted(&array(vec![1.into(), (-1 - issued).into()]), false), None, "no fence is negative");

        let remaining = u64::try_from(pttl).ok().map(Duration::from_millis);
        let (token, fence) = (Token::parse(TOKEN).unwrap(), Fence::try_from(issued).unwrap());
        let value = token.value(fence);
        let held = Holder::of(Some(token), remaining, Some(fence));
        let found = |code: i64| vec![code.into(), pttl.into(), value.clone().into()];
        let looked = Looked { holder: Some(held.clone()), tracked: true };
        prop_assert_eq!(holding(&array(found(1)), true), Some(looked));
        match vote(&array(found(0)), true, false).map(|read| read.acquired) {
            Some(Acquired::Busy { holder, tracked: true }) => prop_assert_eq!(holder, held.clone()),
            other => prop_assert!(false, "{:?}", other),
        }
        let waits = [found(0), vec![ticket.into(), i64::from(ahead).into(), 0.into(), 0.into()]].concat();
        match polled(&array(waits), true, false) {
            Some(Polled::Waits {
                holder,
                recovers_for: None,
                ticket: read,
                ahead: before,
                entered: false,
                tracked: true,
                notified: false,
            }) => {
                let free = held.remaining().or((pttl == -2).then_some(Duration::ZERO));
                prop_assert_eq!(holder, held.lasting(free));
                prop_assert_eq!((read, before), (u64::try_from(ticket).ok(), ahead));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let recovers =
            [2.into(), i64::from(secs).into(), Value::Null, ticket.into(), i64::from(ahead).into(), 1.into()];
        match polled(&array(recovers.into()), false, true) {
            Some(Polled::Waits { recovers_for, ticket: read, ahead: before, entered: true, .. }) => {
                prop_assert_eq!(recovers_for, Some(Duration::from_secs(secs.into())));
                prop_assert_eq!((read, before), (u64::try_from(ticket).ok(), ahead));
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let left = Repaired::Recovering(Duration::from_secs(secs.into()));
        prop_assert_eq!(repaired(&array(vec![2.into(), i64::from(secs).into(), "run".into()])), Some(left));
        let failed = array(vec![Value::from(-2_i64), "OOM no".into()]);
        let forced = array(vec![Value::from(-3_i64), "ops\nstuck".into()]);
        let verdicts =
            renewed(&array(vec![1.into(), failed, 0.into(), Value::from(-4_i64), Value::from(-1_i64), forced]), RequiredKind::Alone)
                .unwrap_or_default();
        let owned: Vec<_> = verdicts.into_iter().map(Result::ok).collect();
        let forced = Denial::Forced(Arc::new(forced::by("ops", Some("stuck"))));
        let denials = [Denial::Gone, Denial::Gone, Denial::Taken, forced].map(|denial| Some(Err(denial)));
        prop_assert_eq!(owned, [&[Some(Ok(())), None][..], &denials].concat());
    }

    #[test]
    fn no_info_makes_a_reader_panic(
        info in "((server_time_usec|run_id|redis_mode|server_mode|role)?:?(-?[0-9]{0,25}|standalone|.{0,9})\r?\n)*",
    ) {
        let identity = identity(&info);
        prop_assert!(identity.run_id.is_none_or(|run_id| !run_id.contains('\n')));
    }

    #[test]
    fn no_error_makes_its_sorting_panic(details in text(), kind in 0_usize..3) {
        let kinds = [WireKind::Timeout, WireKind::Mistake, WireKind::Other];
        let error = WireError::new(kinds[kind], details.clone());
        let failure = classify(("h:1", RequiredKind::Alone), &error, Duration::MAX);
        // Only a server's reply makes it certain that nothing was executed.
        let starts_like_a_reply = details.bytes().take(3).filter(u8::is_ascii_uppercase).count() == 3;
        prop_assert!(failure.may_have_happened() || starts_like_a_reply, "{details:?}: {failure}");
        prop_assert!(not_extended(&details, RequiredKind::Alone).may_have_happened());
        let _verdict = is_refusal(&error);
    }
}

/// A text that we never write ourselves.
const SECRET: &str = "sesame";

/// A password with the characters that a careless user leaves bare in a URL.
fn password() -> impl Strategy<Value = String> {
    let around = || "([:/?#@&=%+ \\[\\]a1]|%40|%2F|db=){0,6}";
    (around(), around()).prop_map(|(before, after)| format!("{before}{SECRET}{after}"))
}

proptest! {
    #[test]
    fn no_url_makes_the_reader_panic(text in "(rediss?|valkeys?|unix|redis-cluster|memory)?:?/{0,3}(.{0,12}|[a@:/?#&=%0-9\\[\\]]{0,20})") {
        if let Ok(seeds) = Seeds::parse(&text) {
            for target in seeds.targets().into_iter().chain([seeds.target]) {
                prop_assert_eq!(format!("{target:?}"), target.to_string());
                prop_assert!(config(&target).is_ok(), "{text:?}");
            }
        }
    }

    #[test]
    fn no_password_is_ever_shown(
        scheme in "(rediss?|valkey|redis-cluster|http)",
        user in "[a-z@/?]{0,3}",
        password in password(),
        rest in "(localhost|\\[::1\\]|1\\.2\\.3\\.4|)(:[0-9]{0,6})?(/[0-9]{0,4}x?)?(\\?(db|x)=?)?(#x)?",
    ) {
        let unix = |order: bool| {
            let (one, two) = (format!("password={password}"), format!("user={user}"));
            if order { format!("unix:///run/redis.sock?{one}&{two}") } else { format!("unix:///run/redis.sock?{two}&{one}") }
        };
        let tcp_like = format!("unix://worker:{password}@/run/redis.sock");
        for url in [format!("{scheme}://{user}:{password}@{rest}"), tcp_like, unix(true), unix(false)] {
            let shown = match Seeds::parse(&url) {
                Ok(seeds) => format!("{seeds} {seeds:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            prop_assert!(!shown.contains(SECRET), "{url}: {shown}");
        }
    }

    #[test]
    fn a_url_written_right_is_read_right(user in "[a-z]{0,4}", password in ".{0,12}", port: u16, database: u8) {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let (host, secret) = (format!("redis.example:{port}"), encode(&password));
        for url in [
            format!("redis://{user}:{secret}@{host}/{database}"),
            format!("unix:///{host}?db={database}&user={user}&password={secret}"),
        ] {
            let seeds = Seeds::parse(&url).map_err(|error| TestCaseError::fail(format!("{url}: {error}")))?;
            let target = seeds.target;
            prop_assert_eq!(target.user.as_deref().unwrap_or_default(), &user);
            prop_assert_eq!(target.password.as_deref().unwrap_or_default(), &password);
            prop_assert_eq!(target.database, Some(database));
            prop_assert!(target.to_string().ends_with(&host), "{}", target);
        }
    }
}
