//! Faults of the key itself: deleted, overwritten, retyped, renamed, misconfigured; and calls from runtimes other than
//! the connection's own. Each test is named after its row of the fault table.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, Lease, Lock, LossReason, Lost, Owner, Status};
use support::{
    Action, HANGS, Lag, Match, Proxy, SIGNAL, Server, Wire, eventually_async, on_no_runtime, one_thread,
    scripts::{RELEASE, RENEW},
    seen, within,
};

use crate::common::{Confirmed as _, NAME, OTHER_TYPES, are_watched, ending, in_vain, program_with, replace};

/// Long enough that a renewal is never missed on a busy machine, and a third of it short enough to wait for.
const TTL: Duration = Duration::from_millis(1_200);
/// The default `command_timeout`, which bounds every foreground call.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// After this, an unanswered round of renewals is no longer awaited, and the next is sent beside it.
const ROUND: Duration = TTL.checked_div(6).unwrap();

/// Panics unless the current change was found by the first renewal of `name` since the fault. Judged by what the proxy
/// saw and not by the clock, so a slow machine cannot fail it.
#[track_caller]
fn assert_by_the_next_renewal(proxy: &Proxy, name: &str, fault: Instant) {
    let now = Instant::now();
    let (round, name) = (Match::script(RENEW), name.as_bytes());
    let seen = proxy.seen();
    let of_this = seen.iter().filter(|seen| round.matches(&seen.args) && seen.args.iter().any(|arg| arg == name));
    let since: Vec<Instant> = of_this.map(|seen| seen.at).filter(|at| *at > fault).collect();
    // No renewal since: one that was already under way found it.
    let Some(first) = since.first() else { return };
    // Another is sent for each unanswered round; half a round allows for a late proxy.
    let unanswered = now.duration_since(*first).div_duration_f64(ROUND / 2);
    let (count, took) = (since.len(), now.duration_since(*first));
    assert!(f64::from(u32::try_from(count).unwrap()) <= 1.0 + unanswered, "{count} renewals in {took:?}");
}

const TOLD: &str = "signal after the fault";

#[track_caller]
fn assert_pushed(what: &str, took: Duration, lag: &Lag) {
    seen::took(what, took, SIGNAL, lag);
    // A notification, a check, and a renewal.
    let limit = SIGNAL + lag.of(3);
    assert!(took <= limit, "{took:?} after the fault, not within {limit:?}");
}

/// Panics unless the loss was found by the first renewal since the fault, and is reported the same everywhere.
#[track_caller]
fn assert_signalled(lost: &Lost, lease: &Lease, proxy: &Proxy, fault: Instant, reason: LossReason) {
    assert_eq!(lost.reason(), reason, "by the deadline it would be Expired");
    assert_by_the_next_renewal(proxy, lease.name(), fault);
    assert_eq!(lease.check(), Err(lost.clone().into()));
    assert!(matches!(lease.status(), Status::Lost(told) if told == *lost));
}

async fn signal(lease: &Lease) -> Lost {
    within(HANGS, "the signal of a loss", lease.lost()).await
}

async fn release_reports(lease: Lease, reason: LossReason) {
    match within(HANGS, "release", lease.release()).await {
        Err(Error::Lost(lost)) => assert_eq!(lost.reason(), reason),
        other => panic!("the release of a lease that is {reason:?} returned {other:?}"),
    }
}

#[tokio::test]
async fn f13_key_deleted_by_hand() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (program_with(proxy.url(), TTL).await, server.wire(), Lag::start());
    for delete in ["DEL", "UNLINK", "GETDEL"] {
        let lease = leases.lock("job").acquire().await.unwrap();
        are_watched(&mut wire, [&lease]).await;
        let fault = Instant::now();
        wire.must(&[delete, "job"]);
        let lost = signal(&lease).await;
        assert_pushed(TOLD, fault.elapsed(), &lag);
        assert_signalled(&lost, &lease, &proxy, fault, LossReason::Deleted);
        release_reports(lease, LossReason::Deleted).await;
    }
    // Closing waits for background work, which must not create the key again.
    leases.close().await;
    assert_eq!(wire.keys("*"), ["{job}:lh:fence"]);
}

#[tokio::test]
async fn f64_taken_by_force_is_no_deletion_and_its_word_goes_with_the_key() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    let operator = program_with(server.url(), TTL).await;
    let taken = async |name: &str| {
        let lease = leases.lock(name).acquire().await.unwrap();
        assert!(operator.lock(name).label("ops").force_release_because("stuck").await.unwrap());
        let lost = signal(&lease).await;
        assert_eq!(lost.reason(), LossReason::Forced, "{name}");
        let forced = lost.forced().unwrap();
        assert_eq!((forced.label(), forced.reason()), ("ops", Some("stuck")));
    };
    // The key that reports the force is beside the lock, in its slot.
    for (name, word) in [("job", "{job}:lh:forced"), ("{a}b", "{a}b:lht:forced"), ("{}x{y}", "{{}x{y}}:lh:forced")] {
        taken(name).await;
        let left = wire.pttl(word);
        assert!(left > 0 && u128::try_from(left).unwrap() <= TTL.as_millis(), "{name}: {left}");
    }
    // It does not apply to the next holder, nor to a value written by others.
    taken("next").await;
    let lease = leases.lock("next").acquire().await.unwrap();
    wire.del("next");
    assert_eq!(signal(&lease).await.reason(), LossReason::Deleted);
    drop(lease);
    for strange in [&["SET", "{odd}:lh:forced", "x"][..], &["LPUSH", "{odd}:lh:forced", "x"]] {
        let lease = leases.lock("odd").acquire().await.unwrap();
        wire.del("{odd}:lh:forced");
        wire.must(strange);
        wire.must(&["SET", "odd", "somebody's", "PX", "60000"]);
        assert_eq!(signal(&lease).await.reason(), LossReason::Taken);
        // Another library's lock has no holder of ours to notify.
        assert!(operator.lock("odd").force_release().await.unwrap());
        wire.del("{odd}:lh:forced");
    }
    assert!(operator.lock("odd").force_release().await.is_ok_and(|was_held| !was_held));
    assert!(!wire.exists("{odd}:lh:forced"));
    eventually_async(HANGS, "all words are gone", || wire.keys("*forced").is_empty()).await;
}

/// An operator or a holder with rights to the lock only.
#[tokio::test]
async fn f64_taken_by_force_without_a_right_to_the_word_for_it() {
    let server = Server::start();
    let mut wire = server.wire();
    let keys = ["~job", "~{job}:lh:fence", "~{job}:lh:queue", "~{job}:lh:wait", "~{job}:lh:holders"];
    wire.must(&[&["ACL", "SETUSER", "narrow", "on", ">secret", "&*", "+@all"][..], &keys].concat());
    let url = format!("redis://narrow:secret@127.0.0.1:{}", server.port());
    let (narrow, wide) = (program_with(&url, TTL).await, program_with(server.url(), TTL).await);
    for (holder, operator) in [(&narrow, &wide), (&wide, &narrow)] {
        let lease = holder.lock("job").acquire().await.unwrap();
        assert!(operator.lock("job").force_release_because("stuck").await.unwrap());
        let lost = signal(&lease).await;
        assert_eq!((lost.reason(), lost.forced()), (LossReason::Deleted, None));
        wire.del("{job}:lh:forced");
    }
}

#[tokio::test]
async fn f13_key_deleted_by_hand_is_reported_by_a_renewal_or_release_before_the_watchdog_knows() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());

    let lease = leases.lock("renewed").acquire().await.unwrap();
    wire.del("renewed");
    match lease.renew().await {
        Err(Error::Lost(lost)) => assert_eq!(lost.reason(), LossReason::Deleted),
        other => panic!("a renewal of a deleted key returned {other:?}"),
    }
    assert_eq!(ending(lease.check()).reason(), LossReason::Deleted);
    assert!(!wire.exists("renewed"), "a renewal never creates");

    let lease = leases.lock("released").acquire().await.unwrap();
    wire.del("released");
    release_reports(lease, LossReason::Deleted).await;
}

#[tokio::test]
async fn f14_key_overwritten_with_another_token() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (program_with(proxy.url(), TTL).await, server.wire(), Lag::start());
    // When the lease ends, its remains are released in the background. The new server needs that script's text.
    let released = proxy.on(Match::command("EVAL").and(Match::script(RELEASE)), 1, Action::HoldReply);
    let lease = leases.lock("job").acquire().await.unwrap();

    are_watched(&mut wire, [&lease]).await;
    let fault = Instant::now();
    wire.must(&["SET", "job", "somebody-else", "PX", "60000"]);
    let lost = signal(&lease).await;
    assert_pushed(TOLD, fault.elapsed(), &lag);
    assert_signalled(&lost, &lease, &proxy, fault, LossReason::Taken);
    release_reports(lease, LossReason::Taken).await;
    within(HANGS, "the server has executed the release", released.hit()).await;
    assert_eq!(wire.get("job").as_deref(), Some("somebody-else"));
    released.release();
    leases.close().await;
    assert_eq!(wire.get("job").as_deref(), Some("somebody-else"));
    assert!(wire.pttl("job") > 30_000, "the other's TTL is none of our business");
}

#[tokio::test]
async fn f14_key_overwritten_without_a_ttl() {
    let server = Server::start();
    let (leases, mut wire, lag) = (program_with(server.url(), TTL).await, server.wire(), Lag::start());
    let lease = leases.lock("job").acquire().await.unwrap();
    are_watched(&mut wire, [&lease]).await;
    let fault = Instant::now();
    wire.set("job", "somebody-else");
    let lost = signal(&lease).await;
    assert_pushed(TOLD, fault.elapsed(), &lag);
    assert_eq!(lost.reason(), LossReason::Taken);
    release_reports(lease, LossReason::Taken).await;
    assert_eq!((wire.get("job").as_deref(), wire.pttl("job")), (Some("somebody-else"), -1));
}

#[tokio::test]
async fn f14_key_overwritten_with_another_token_is_left_alone_by_release_and_drop() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());

    let lease = leases.lock("released").acquire().await.unwrap();
    wire.set("released", "somebody-else");
    release_reports(lease, LossReason::Taken).await;
    assert_eq!(wire.get("released").as_deref(), Some("somebody-else"));

    let lease = leases.lock("renewed").acquire().await.unwrap();
    wire.set("renewed", "somebody-else");
    assert!(matches!(lease.renew().await, Err(Error::Lost(lost)) if lost.reason() == LossReason::Taken));

    let lease = leases.lock("dropped").acquire().await.unwrap();
    wire.set("dropped", "somebody-else");
    drop(lease);
    leases.close().await;
    assert_eq!(wire.get("renewed").as_deref(), Some("somebody-else"));
    assert_eq!(wire.get("dropped").as_deref(), Some("somebody-else"));
    assert_eq!(wire.pttl("dropped"), -1, "no TTL was given to the other's key");
}

#[tokio::test]
async fn f15_flushall_and_flushdb() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (mut wire, lag) = (server.wire(), Lag::start());
    for flush in ["FLUSHALL", "FLUSHDB"] {
        let leases = program_with(proxy.url(), TTL).await;
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(leases.lock(name).acquire().await.unwrap());
        }
        let fence = held.last().unwrap().fence();

        are_watched(&mut wire, &held).await;
        let fault = Instant::now();
        wire.must(&[flush]);
        for lease in &held {
            let lost = signal(lease).await;
            assert_pushed(TOLD, fault.elapsed(), &lag);
            assert_signalled(&lost, lease, &proxy, fault, LossReason::Deleted);
        }
        for lease in held {
            release_reports(lease, LossReason::Deleted).await;
        }
        // The fence's floor was flushed too; the server's clock continues it.
        let next = leases.lock("c").acquire().await.unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap().confirmed();
        leases.close().await;
        assert_eq!(wire.keys("*"), ["{c}:lh:fence"], "after {flush}");
    }
}

#[tokio::test]
async fn f16_ttl_changed_by_hand_is_corrected_at_once() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (program_with(proxy.url(), TTL).await, server.wire(), Lag::start());
    let lease = leases.lock("job").acquire().await.unwrap();
    let full = i64::try_from(TTL.as_millis()).unwrap();

    // Shortened to a TTL that still outlives the next renewal.
    let shorter = full * 2 / 3;
    let by_hand: [(&[&str], std::ops::RangeInclusive<i64>); 3] = [
        (&["PERSIST", "job"], 1..=full),
        (&["PEXPIRE", "job", "3600000"], 1..=full),
        (&["PEXPIRE", "job", &shorter.to_string()], shorter + 1..=full),
    ];
    for (change, right) in by_hand {
        are_watched(&mut wire, [&lease]).await;
        let fault = Instant::now();
        assert_eq!(wire.must(change).int(), 1);
        eventually_async(HANGS, "a renewal puts the TTL right", || right.contains(&wire.pttl("job"))).await;
        assert_pushed("TTL put right", fault.elapsed(), &lag);
        assert_by_the_next_renewal(&proxy, "job", fault);
        lease.check().unwrap();
    }
    lease.release().await.unwrap().confirmed();
}

/// The contents and the TTL of a key of any type, to show that it was not touched.
fn dump(wire: &mut Wire, key: &str) -> (String, i64) {
    let dump = wire.must(&["DUMP", key]);
    assert!(!dump.is_nil(), "{key} is gone");
    (format!("{dump:?}"), wire.pttl(key))
}

#[tokio::test]
async fn f17_key_replaced_by_another_type_is_taken() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (program_with(proxy.url(), TTL).await, server.wire(), Lag::start());
    for make in OTHER_TYPES {
        let lease = leases.lock("job").acquire().await.unwrap();
        are_watched(&mut wire, [&lease]).await;
        let fault = Instant::now();
        replace(&mut wire, make, NAME);
        let before = dump(&mut wire, "job");
        let lost = signal(&lease).await;
        assert_pushed(TOLD, fault.elapsed(), &lag);
        assert_signalled(&lost, &lease, &proxy, fault, LossReason::Taken);
        release_reports(lease, LossReason::Taken).await;
        assert_eq!(dump(&mut wire, "job"), before, "{make:?}");
        wire.del("job");
    }
}

#[tokio::test]
async fn f17_release_of_a_lease_whose_key_became_another_type() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    for make in OTHER_TYPES {
        for renewed_first in [false, true] {
            let lease = leases.lock("job").acquire().await.unwrap();
            replace(&mut wire, make, NAME);
            let before = dump(&mut wire, "job");
            if renewed_first {
                match lease.renew().await {
                    Err(Error::Lost(lost)) => assert_eq!(lost.reason(), LossReason::Taken),
                    other => panic!("a renewal after {make:?} returned {other:?}"),
                }
            }
            release_reports(lease, LossReason::Taken).await;
            assert_eq!(dump(&mut wire, "job"), before, "{make:?}");
            wire.del("job");
        }
    }
}

#[tokio::test]
async fn f17_acquire_of_a_key_of_another_type_waits_as_for_any_holder() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    let kinds = ["hash", "list", "set", "sorted set", "stream"];
    for (make, kind) in OTHER_TYPES.into_iter().zip(kinds) {
        replace(&mut wire, make, NAME);
        let before = dump(&mut wire, "job");
        let lock = leases.lock("job");

        assert!(lock.try_acquire().await.unwrap().is_none());
        match in_vain(&lock, Duration::from_millis(30)).await {
            Error::TimedOut { holder, .. } => {
                assert_eq!((holder.label(), holder.token(), holder.fence()), (None, None, None));
                assert_eq!(holder.remaining(), None, "the key has no TTL");
                assert_eq!(holder.not_a_lock(), Some(kind));
            }
            other => panic!("a key made by {make:?} gave {other:?}"),
        }
        let holder = lock.holder().await.unwrap().expect("any key is a holder");
        assert_eq!((holder.label(), holder.token(), holder.remaining()), (None, None, None));
        assert_eq!(holder.not_a_lock(), Some(kind));
        assert_eq!(dump(&mut wire, "job"), before);

        let waits = Arc::new(AtomicBool::new(false));
        let tell = waits.clone();
        let waiting = tokio::spawn(lock.on_wait(move |_| tell.store(true, Ordering::SeqCst)).acquire());
        eventually_async(HANGS, "acquire waits", || waits.load(Ordering::SeqCst)).await;
        assert!(!waiting.is_finished());
        // Whether pushed or not; `push.rs` tests the bound.
        wire.del("job");
        let lease = within(HANGS, "the freed lock", waiting).await.unwrap().unwrap();
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn f17_force_release_refuses_a_key_of_another_type() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    let lock = leases.lock("job");
    for make in OTHER_TYPES {
        replace(&mut wire, make, NAME);
        let before = dump(&mut wire, "job");
        let error = lock.force_release().await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        assert!(error.to_string().contains("wrong kind of value"), "{error}");
        assert_eq!(dump(&mut wire, "job"), before);
        wire.del("job");
    }
    // It works on a string.
    wire.set("job", "somebody-else");
    assert!(lock.force_release().await.unwrap());
    assert!(!lock.force_release().await.unwrap());
}

#[tokio::test]
async fn f18_script_flush_during_use_is_invisible() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (program_with(proxy.url(), TTL).await, server.wire(), Lag::start());
    let flush = |wire: &mut Wire| assert!(wire.must(&["SCRIPT", "FLUSH"]).is_ok());
    let lock = leases.lock("job");

    // Every step finds an empty script cache.
    for _ in 0..5 {
        flush(&mut wire);
        let lease = within(HANGS, "acquire", lock.acquire()).await.unwrap();
        flush(&mut wire);
        lease.renew().await.unwrap();
        flush(&mut wire);
        assert!(lock.holder().await.unwrap().is_some());
        flush(&mut wire);
        lease.release().await.unwrap().confirmed();
        flush(&mut wire);
        assert!(!lock.force_release().await.unwrap());
    }

    // The watchdog's renewals, on the other connection, find an empty cache too.
    let lease = lock.acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let renewed_by_text = Match::command("EVAL").and(Match::script(RENEW));
    for _ in 0..3 {
        let before = proxy.count(renewed_by_text.clone());
        let what = "a renewal is sent again with its text";
        // Repeatedly, because a text still in flight reloads the script after a flush.
        let flushed = || {
            flush(&mut wire);
            proxy.count(renewed_by_text.clone()) > before
        };
        eventually_async(HANGS, what, flushed).await;
        lease.check().unwrap();
    }

    // Then flush at arbitrary moments.
    let stop = Arc::new(AtomicBool::new(false));
    let flusher = thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::SeqCst) {
                assert!(wire.must(&["SCRIPT", "FLUSH"]).is_ok());
                thread::yield_now();
            }
        }
    });
    for _ in 0..100 {
        let other = leases.lock("other").acquire().await.unwrap();
        other.renew().await.unwrap();
        other.release().await.unwrap().confirmed();
        lease.renew().await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    flusher.join().expect("every flush went through");

    // A renewal is only suspect once it takes half of the pause before the next.
    let calm = lag.worst() < TTL / 12;
    let change = tokio::time::timeout(Duration::ZERO, changes.next()).await;
    assert!(change.is_err() || !calm, "the status changed to {change:?}");
    lease.release().await.unwrap().confirmed();
}

/// The second send has only the rest of the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_script_flush_costs_no_more_than_the_limit() {
    const LIMIT: Duration = Duration::from_millis(500);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program_with(proxy.url(), TTL).await;
    let lock = leases.lock("job");
    lock.acquire().await.unwrap().release().await.unwrap().confirmed();
    // An answer takes 400 ms, and 800 ms if the text is sent too.
    proxy.delay(Duration::from_millis(200));
    server.wire().must(&["SCRIPT", "FLUSH"]);
    let (lag, asked) = (Lag::start(), Instant::now());
    let outcome = within(HANGS, "it ends", lock.acquire_within(LIMIT)).await;
    let took = asked.elapsed();
    seen::took("acquire_within", took, LIMIT + Duration::from_millis(20), &lag);
    assert!(matches!(outcome, Err(Error::Unavailable(_) | Error::TimedOut { .. })), "{outcome:?}");
    assert!(took <= LIMIT + Duration::from_millis(20) + lag.worst(), "{took:?}");
    // The request that was sent is undone.
    proxy.delay(Duration::ZERO);
    let lease = within(HANGS, "it is free", lock.acquire()).await.unwrap();
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f46_invalid_names_are_refused_before_any_io() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program_with(proxy.url(), TTL).await;
    let too_long = "x".repeat(1_025);
    for (name, says) in [
        ("", "empty"),
        (&*too_long, "1024"),
        ("{job}:lh:fence", "ends like"),
        ("{job}:lh:queue", "ends like"),
        ("{job}:lht:fence", "ends like"),
        ("a{job}b:lht:wait", "ends like"),
    ] {
        proxy.forget();
        for error in every_refusal(&leases.lock(name)).await {
            assert!(matches!(error, Error::Config(_)), "{name:?}: {error}");
            assert!(error.to_string().contains(says), "{name:?}: {error}");
        }
        assert_eq!(proxy.commands(), 0, "{name:?}: {:?}", proxy.seen());
    }
    // A prefix does not make a name valid.
    let prefixed = Client::builder().url(proxy.url()).prefix("{job}:lh:").build().await.unwrap();
    proxy.forget();
    assert!(matches!(prefixed.lock("fence").acquire().await, Err(Error::Config(_))));
    assert_eq!(proxy.commands(), 0);
}

/// The errors of every call on a lock with an invalid name.
async fn every_refusal(lock: &Lock) -> Vec<Error> {
    let mut refusals = every_refused_acquire(lock).await;
    refusals.push(lock.holder().await.expect_err("a holder of nothing"));
    refusals.push(lock.force_release().await.expect_err("nothing to release"));
    refusals
}

/// The errors of every way to acquire an invalid lock.
async fn every_refused_acquire(lock: &Lock) -> Vec<Error> {
    let attempts = [
        within(HANGS, "acquire", lock.acquire()).await,
        within(HANGS, "acquire_within", lock.acquire_within(HANGS)).await,
        within(HANGS, "one check", lock.acquire_within(Duration::ZERO)).await,
        within(HANGS, "try_acquire", lock.try_acquire()).await.map(|lease| lease.expect("it is free")),
        within(HANGS, "run", lock.run(|_| async { panic!("the work ran without a lock") })).await,
    ];
    let refusal = |attempt| match attempt {
        Err(error @ (Error::Refused(_) | Error::Config(_))) => error,
        other => panic!("an impossible lock gave {other:?}"),
    };
    attempts.into_iter().map(refusal).collect()
}

#[tokio::test]
async fn f46_unusual_names_work_on_exactly_that_key() {
    let server = Server::start();
    let mut wire = server.wire();
    let longest = "k".repeat(1_024);
    for prefix in ["", "app:", "{tenant}:"] {
        let leases = Client::builder().url(server.url()).ttl(TTL).prefix(prefix).build().await.unwrap();
        for name in [
            "nul\0inside",
            "\0",
            "line\nbreak\r\n",
            " ",
            "{",
            "}",
            "{}",
            "}{",
            "a{b",
            "{tag}",
            "x{tag}y",
            "{}{tag}",
            "*",
            "[a-z]?\\",
            "\"quoted\" 'twice'",
            "замок",
            "🔒",
            "e\u{301}",
            ":lh:fence",
            "job:lh:fence",
            "{job}:lh:",
            "lh1:",
            &longest,
        ] {
            let key = format!("{prefix}{name}");
            let fence = match (prefix, name) {
                ("{tenant}:", _) | (_, "{tag}" | "x{tag}y" | "{job}:lh:") => format!("{key}:lht:fence"),
                _ => format!("{{{key}}}:lh:fence"),
            };
            let lock = leases.lock(name);
            let lease = within(HANGS, "acquire", lock.acquire()).await.unwrap();
            assert_eq!((lease.name(), lock.name()), (name, name));
            let mut both = [key.clone(), fence.clone()];
            both.sort();
            assert_eq!(wire.keys("*"), both, "{name:?}");
            let holder = lock.holder().await.unwrap().unwrap();
            assert!(wire.get(&key).unwrap().starts_with(holder.token().unwrap()));
            assert_eq!(wire.get(&fence).unwrap(), lease.fence().to_string());

            lease.renew().await.unwrap();
            lease.release().await.unwrap().confirmed();
            assert_eq!(wire.keys("*"), [fence], "{name:?}");
            wire.must(&["FLUSHALL"]);
        }
    }
}

#[tokio::test]
async fn f46_names_that_look_alike_are_different_locks() {
    let server = Server::start();
    let leases = program_with(server.url(), TTL).await;
    let mut held = Vec::new();
    for name in ["a", "{a}", "{{a}}", "A", "a ", "a\0", "a:lh:fence", "é", "e\u{301}"] {
        let lease = leases.lock(name).try_acquire().await.unwrap();
        held.push(lease.unwrap_or_else(|| panic!("{name:?} is another's key")));
    }
    for lease in held {
        lease.check().unwrap();
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn f46_another_librarys_key_excludes_and_is_excluded() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    let lock = leases.lock("shared");
    // A token of raw bytes, as written by some libraries.
    let take = "return redis.call('SET', KEYS[1], string.char(0, 255, 254) .. ARGV[1], 'NX', 'PX', 60000)";
    for take in [
        vec!["SET", "shared", "b1946ac92492d2347c6235b4d2611184", "NX", "PX", "60000"],
        vec!["EVAL", take, "1", "shared", "raw"],
        vec!["SET", "shared", ""],
    ] {
        assert!(wire.must(&take).is_ok());
        assert!(lock.try_acquire().await.unwrap().is_none(), "{take:?}");
        let holder = lock.holder().await.unwrap().unwrap();
        assert_eq!((holder.label(), holder.token(), holder.fence()), (None, None, None));
        assert_eq!(holder.remaining().is_some(), take.len() > 3, "{take:?}");
        assert!(wire.del("shared"));

        let lease = lock.try_acquire().await.unwrap().unwrap();
        assert!(wire.must(&["SET", "shared", "theirs", "NX", "PX", "60000"]).is_nil());
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn f47_settings_out_of_bounds_fail_in_build_naming_field_and_bound() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (day, hour) = (Duration::from_secs(24 * 60 * 60), Duration::from_secs(60 * 60));
    let ms = Duration::from_millis;
    let set = |change: fn(Builder, Duration) -> Builder, value| change(Client::builder().url(proxy.url()), value);
    let ttl: fn(Builder, Duration) -> Builder = Builder::ttl;
    let max_hold: fn(Builder, Duration) -> Builder = |builder, value| builder.ttl(TTL).max_hold(value);
    let connect: fn(Builder, Duration) -> Builder = Builder::connect_timeout;
    let command: fn(Builder, Duration) -> Builder = Builder::command_timeout;
    let named = || Client::builder().url(proxy.url());
    for (builder, field, bound) in [
        (set(ttl, Duration::ZERO), "ttl ", "from 100 ms"),
        (set(ttl, ms(99)), "ttl ", "from 100 ms"),
        (set(ttl, day + ms(1)), "ttl ", "to 24 h"),
        (set(ttl, Duration::MAX), "ttl ", "to 24 h"),
        (set(max_hold, Duration::ZERO), "max_hold ", "1.2s"),
        (set(max_hold, TTL.checked_sub(ms(1)).unwrap()), "max_hold ", "1.2s"),
        (set(connect, Duration::ZERO), "connect_timeout ", "from 1 ms"),
        (set(connect, hour + ms(1)), "connect_timeout ", "to 60 min"),
        (set(command, Duration::ZERO), "command_timeout ", "from 1 ms"),
        (set(command, hour + ms(1)), "command_timeout ", "to 60 min"),
        (named().label(""), "label ", "1 to 128 bytes"),
        (named().label("x".repeat(129)), "label ", "1 to 128 bytes"),
        (named().label("line\nbreak"), "label ", "control characters"),
        (named().prefix("x".repeat(257)), "prefix ", "256"),
        (Client::builder(), "url ", "redis://"),
    ] {
        let shown = format!("{builder:?}");
        let error = within(HANGS, "build", builder.build()).await.expect_err(&shown);
        let text = error.to_string();
        assert!(matches!(error, Error::Config(_)), "{text}");
        assert!(text.starts_with(field) && text.contains(bound), "{field:?} {bound:?}: {text}");
    }
    assert_eq!((proxy.commands(), proxy.connections()), (0, 0), "it was connected to before all was checked");

    // The bounds themselves are valid.
    let least = named().ttl(ms(100)).max_hold(ms(100)).label("x").prefix("");
    let most = named().ttl(day).max_hold(day).label("x".repeat(128)).prefix("x".repeat(256));
    for builder in [least, most.connect_timeout(hour).command_timeout(hour)] {
        builder.build().await.unwrap();
    }
}

#[tokio::test]
async fn f47_options_out_of_bounds_are_refused_on_lock_before_any_io() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program_with(proxy.url(), TTL).await;
    let ms = Duration::from_millis;
    let (day, under_ttl) = (Duration::from_secs(24 * 60 * 60), TTL.checked_sub(ms(1)).unwrap());
    proxy.forget();
    let lock = || leases.lock("job");
    for (lock, field, bound) in [
        (lock().ttl(Duration::ZERO), "ttl ", "from 100 ms"),
        (lock().ttl(ms(99)), "ttl ", "from 100 ms"),
        (lock().ttl(day + ms(1)), "ttl ", "to 24 h"),
        (lock().ttl(Duration::MAX), "ttl ", "to 24 h"),
        (lock().max_hold(under_ttl), "max_hold ", "1.2s"),
        (lock().max_hold(ms(500)).ttl(ms(501)), "max_hold ", "501ms"),
    ] {
        for error in every_refused_acquire(&lock).await {
            let text = error.to_string();
            assert!(matches!(error, Error::Config(_)), "{text}");
            assert!(text.starts_with(field) && text.contains(bound), "{field:?} {bound:?}: {text}");
        }
    }
    assert_eq!(proxy.commands(), 0, "{:?}", proxy.seen());

    let bounds = [lock().ttl(ms(100)).max_hold(ms(100)), lock().ttl(day).max_hold(day), lock().max_hold(None)];
    for lock in bounds {
        lock.acquire().await.unwrap().release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn f47_a_ttl_of_100_ms_is_held_without_a_hot_loop() {
    /// About six TTLs.
    const HELD: u32 = 20;
    /// Half of a third of the TTL: after this, an unanswered round is repeated. The others are a third apart.
    const LEAST_PAUSE: Duration = Duration::from_millis(16);

    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program_with(proxy.url(), TTL).await;
    let lock = leases.lock("job").ttl(Duration::from_millis(100));
    let round = Match::command("EVALSHA").and(Match::script(RENEW));
    let (start, mut held) = (Instant::now(), 0);
    // A machine that stalls for 60 ms rightly loses such a lease, but one in each run must survive.
    while start.elapsed() < Duration::from_secs(2) || held == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "no lease of 100 ms has lived for six times that");
        proxy.forget();
        let sent = Instant::now();
        let lease = lock.acquire().await.unwrap();
        let renewals = || u32::try_from(proxy.count(round.clone())).unwrap();
        let renewed = eventually_async(HANGS, "the lease is renewed", || renewals() > HELD);
        let lost = tokio::select! {
            () = renewed => lease.check().err().and_then(|error| error.lost().cloned()),
            lost = lease.lost() => Some(lost),
        };
        let (count, took) = (renewals(), sent.elapsed());
        assert!(LEAST_PAUSE * count <= took + LEAST_PAUSE * 3, "{count} renewals in {took:?}");
        match lost {
            None => held += 1,
            Some(lost) => assert_eq!(lost.reason(), LossReason::Expired),
        }
        // Whether it still exists depends on the machine too.
        let _released = lease.release().await;
    }
}

fn multi_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Uses a clone in every way, each step within its documented time.
async fn use_everything(leases: Client, busy: &str, name: &str) {
    let lag = Lag::start();
    let step = async |what: &str, start: Instant| {
        let (took, bound) = (start.elapsed(), COMMAND_TIMEOUT + lag.worst());
        seen::took("a call from elsewhere", took, COMMAND_TIMEOUT, &lag);
        assert!(took < bound, "{what} took {took:?}, as if it had waited for another runtime");
    };
    let lock = leases.lock(name);

    let start = Instant::now();
    let lease = lock.acquire().await.unwrap();
    step("acquire", start).await;
    let start = Instant::now();
    lease.renew().await.unwrap();
    step("renew", start).await;
    let start = Instant::now();
    assert!(lock.holder().await.unwrap().is_some());
    step("holder", start).await;

    let start = Instant::now();
    // Outside a task the owner is the thread, which may be the one that holds this lock.
    let busy = leases.lock(busy).owner(Owner::anonymous());
    assert!(busy.try_acquire().await.unwrap().is_none());
    // Enough for an answer to its first check, without which the holder is unknown.
    let limit = COMMAND_TIMEOUT / 2;
    let waited = busy.acquire_within(limit).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    step("waiting", start + limit).await;

    let start = Instant::now();
    lease.release().await.unwrap().confirmed();
    step("release", start).await;
    let start = Instant::now();
    assert!(lock.run(async |lease| Ok::<_, Error>(lease.is_held())).await.unwrap());
    step("run", start).await;
    let start = Instant::now();
    drop(lock.acquire().await.unwrap());
    // The release is under way, and wakes the waiters of this process.
    lock.acquire().await.unwrap().release().await.unwrap().confirmed();
    step("a drop and the next acquire", start).await;
    let start = Instant::now();
    assert!(!lock.force_release().await.unwrap());
    step("force_release", start).await;
}

/// Uses clones of `leases` from other runtimes and from none.
fn use_from_everywhere(leases: &Client, busy: &str) {
    for (at, runtime) in [one_thread(), multi_thread()].into_iter().enumerate() {
        let name = format!("on runtime {at}");
        let leases = leases.clone();
        runtime.block_on(within(HANGS, "use from another runtime", async move {
            use_everything(leases.clone(), busy, &name).await;
            let spawned = tokio::spawn(async move { leases.lock("spawned").acquire().await.unwrap().release().await });
            spawned.await.unwrap().unwrap().confirmed();
        }));
    }
    on_no_runtime("use without a runtime", use_everything(leases.clone(), busy, "on no runtime"));
}

/// Panics unless the lease is renewed, without any other status, for well over a TTL from now.
fn assert_outlives_its_ttl(lease: &Lease, wire: &mut Wire) {
    let start = Instant::now();
    while start.elapsed() < TTL * 3 / 2 {
        lease.check().expect("the keeper renews it");
        assert!(wire.exists("job"));
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn f48_the_runtime_that_built_it_ended() {
    let server = Server::start();
    let mut wire = server.wire();
    for runtime in [one_thread(), multi_thread()] {
        let (leases, lease) = runtime.block_on(async {
            let leases = program_with(server.url(), TTL).await;
            let lease = leases.lock("job").acquire().await.unwrap();
            (leases, lease)
        });
        drop(runtime);

        assert_outlives_its_ttl(&lease, &mut wire);
        use_from_everywhere(&leases, "job");
        on_no_runtime("release", lease.release()).unwrap().confirmed();
        assert!(!wire.exists("job"));
        close_is_bounded(&leases);
    }
}

#[test]
fn f48_the_runtime_that_built_it_is_not_polled() {
    let server = Server::start();
    let mut wire = server.wire();
    let runtime = one_thread();
    let (leases, lease) = runtime.block_on(async {
        let leases = program_with(server.url(), TTL).await;
        let lease = leases.lock("job").acquire().await.unwrap();
        (leases, lease)
    });

    // From here on the runtime still exists, but is not polled.
    assert_outlives_its_ttl(&lease, &mut wire);
    use_from_everywhere(&leases, "job");
    on_no_runtime("release", lease.release()).unwrap().confirmed();
    assert!(!wire.exists("job"));
    close_is_bounded(&leases);
    drop(runtime);
}

#[test]
fn f48_built_and_used_without_any_runtime() {
    let server = Server::start();
    let leases = on_no_runtime("build", program_with(server.url(), TTL));
    let lease = on_no_runtime("acquire", leases.lock("job").acquire()).unwrap();
    assert_outlives_its_ttl(&lease, &mut server.wire());
    use_from_everywhere(&leases, "job");

    // The signal arrives without a runtime too.
    server.wire().del("job");
    assert_eq!(on_no_runtime("the signal", lease.lost()).reason(), LossReason::Deleted);
    close_is_bounded(&leases);
}

#[test]
fn f48_a_lease_of_an_ended_runtime_is_released_when_dropped() {
    let server = Server::start();
    let mut wire = server.wire();
    let runtime = one_thread();
    let (leases, lease) = runtime.block_on(async {
        // The TTL is so long that the key can only end by a release.
        let leases = Client::builder().url(server.url()).ttl(Duration::from_secs(3_600)).build().await.unwrap();
        let lease = leases.lock("job").acquire().await.unwrap();
        (leases, lease)
    });
    drop(runtime);
    drop(lease);
    support::eventually(HANGS, "the dropped lease is released", || !wire.exists("job"));
    close_is_bounded(&leases);
}

/// Panics unless closing ends within a command time-out.
#[track_caller]
fn close_is_bounded(leases: &Client) {
    let (lag, start) = (Lag::start(), Instant::now());
    on_no_runtime("close", leases.close());
    let (took, bound) = (start.elapsed(), COMMAND_TIMEOUT + Duration::from_millis(50));
    seen::took("close", took, bound, &lag);
    assert!(took <= bound + lag.worst(), "closing took {took:?}");
    let acquired = on_no_runtime("acquire after close", leases.lock("job").acquire());
    assert!(matches!(acquired, Err(Error::Closed)), "{acquired:?}");
}
