//! Several locks at once under faults (F77), their cost, and what is refused.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold::{Client, Error, Lock, LossReason, MultiLease, MultiLock, Released};
use support::{
    Action, Cluster, Dropped, HANGS, Lag, Match, Polls, Proxy, Server, Wire, eventually_async, on_no_runtime,
    one_thread,
    scripts::{ACQUIRE, RENEW},
    seen, two_workers, within,
};
use tokio::{
    sync::{
        Notify,
        mpsc::{self, UnboundedReceiver},
        oneshot,
    },
    task::JoinHandle,
};

use crate::common::{COMMAND, Confirmed as _, LONG, MEDIUM, SHORT, ending, program_with};

/// How late an effect may be after its cause, not counting the machine's lag.
const PROMPT: Duration = Duration::from_millis(50);

/// Longer than any test here.
const INTERVAL: Duration = Duration::from_secs(60 * 60);

fn several(leases: &Client, names: &[&str]) -> MultiLock {
    leases.multi_lock(names.iter().map(|name| leases.lock(name)))
}

/// The lock keys on the server: none of them may stay.
fn lock_keys(wire: &mut Wire) -> Vec<String> {
    let mut keys = wire.keys("*");
    keys.retain(|key| !key.contains(":lh:"));
    keys.sort();
    keys
}

async fn keys_are(server: &Server, expected: &[&str]) {
    let mut wire = server.wire();
    eventually_async(HANGS, &format!("only {expected:?} are there"), || lock_keys(&mut wire) == expected).await;
}

/// A waiter for several locks, and a channel that reports when it waits for one of them.
fn waiting(leases: &Client, names: &[&str]) -> (JoinHandle<Result<MultiLease, Error>>, UnboundedReceiver<()>) {
    let (tell, told) = mpsc::unbounded_channel();
    let lock = |name: &&str| {
        let tell = tell.clone();
        leases.lock(name).on_wait(move |_| tell.send(()).unwrap_or_default())
    };
    (tokio::spawn(leases.multi_lock(names.iter().map(lock)).acquire()), told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f77_nobody_waits_in_a_circle() {
    const ROUNDS: usize = 400;
    let server = Server::start();
    let inside = Arc::new([0; 4].map(AtomicUsize::new));
    let (mut tasks, (tell, mut told)) = (Vec::new(), mpsc::unbounded_channel());
    for names in ["ab", "ba", "dcba", "ca", "bd", "cdb"] {
        let leases = program_with(server.url(), LONG).await;
        let (inside, tell) = (inside.clone(), tell.clone());
        tasks.push(tokio::spawn(async move {
            let multi = leases.multi_lock(names.chars().map(|name| leases.lock(name.to_string())));
            for _ in 0..ROUNDS {
                let held = multi.acquire().await.unwrap();
                let ours = || names.bytes().map(|name| &inside[usize::from(name - b'a')]);
                assert!(ours().all(|lock| lock.fetch_add(1, Ordering::SeqCst) == 0), "two inside");
                tokio::task::yield_now().await;
                ours().for_each(|lock| lock.store(0, Ordering::SeqCst));
                held.release().await.unwrap().confirmed();
                tell.send(()).unwrap();
            }
        }));
    }
    drop(tell);
    let count = ROUNDS * tasks.len();
    // However slow the machine is: a deadlock would block all of them.
    while within(HANGS, "another round", told.recv()).await.is_some() {}
    for task in tasks {
        within(HANGS, "every task", task).await.unwrap();
    }
    seen::counted("rounds of multi-locks in opposite orders", count);
    keys_are(&server, &[]).await;
}

/// Drops an acquire after its first poll, then one after its second and so on, until one is ready before that. If
/// `held`, its middle lock is held, and released as soon as it is waited for. Returns the names used, and the number of
/// polls until it was ready.
async fn drop_after_each_poll(ours: &Client, theirs: &Client, held: bool, dropped: Dropped) -> (Vec<String>, usize) {
    const MOST_POLLS: usize = 300;
    let mut all = Vec::new();
    for polls in 1..=MOST_POLLS {
        let names: Vec<String> = "abc".chars().map(|name| format!("{name} {dropped:?} {held} {polls}")).collect();
        all.extend(names.iter().cloned());
        let (told, mut holder) = (Arc::new(Notify::new()), None);
        if held {
            let (lease, told) = (theirs.lock(&names[1]).acquire().await.unwrap(), told.clone());
            holder = Some(tokio::spawn(async move {
                told.notified().await;
                lease.release().await.unwrap().confirmed();
            }));
        }
        let tell = told.clone();
        let on_wait = move |lock: Lock| {
            let tell = tell.clone();
            // An interval does not count for a lease that is given back.
            lock.once_per(LONG).on_wait(move |_| tell.notify_one())
        };
        let multi = ours.multi_lock(names.iter().map(|name| on_wait(ours.lock(name))));
        let outcome = within(HANGS, "an acquire", Polls::of(Box::pin(multi.acquire()), polls, dropped)).await;
        told.notify_one();
        if let Some(holder) = holder {
            holder.await.unwrap();
        }
        if let Some(held) = outcome {
            drop(held.unwrap());
            for name in &names {
                theirs.lock(name).force_release().await.unwrap();
            }
            return (all, polls);
        }
    }
    panic!("not ready after {MOST_POLLS} polls");
}

#[test]
fn f77_acquires_dropped_after_any_poll_leave_nothing() {
    /// A command time-out never reached on a healthy server.
    const UNDO: Duration = Duration::from_secs(4);
    let server = Server::start();
    for runtime in [one_thread(), two_workers()] {
        // With one thread a reply never arrives during a poll.
        let fewest = if runtime.metrics().num_workers() == 1 { 2 } else { 1 };
        runtime.block_on(async {
            let ours = Client::builder().url(server.url()).ttl(LONG).command_timeout(UNDO).build().await.unwrap();
            let theirs = program_with(server.url(), LONG).await;
            let mut names = Vec::new();
            for dropped in [Dropped::AtOnce, Dropped::WhenWoken] {
                for held in [false, true] {
                    let (used, polls) = drop_after_each_poll(&ours, &theirs, held, dropped).await;
                    assert!(polls >= fewest, "nothing was dropped in the middle");
                    names.extend(used);
                }
            }
            seen::counted("multi-locks dropped at some poll", names.len() / 3);
            // The same owner asks again: once the undo is done, the dropped attempts do not block it.
            for name in &names {
                let again = ours.lock(name).acquire_within(HANGS).await;
                again.unwrap_or_else(|error| panic!("{name}: {error}")).release().await.unwrap().confirmed();
            }
            let start = Instant::now();
            ours.close().await;
            assert!(start.elapsed() < UNDO / 2, "close found something to wait for");
        });
        assert_eq!(lock_keys(&mut server.wire()), [""; 0]);
    }
}

#[tokio::test]
async fn f77_a_lost_one_is_told_and_the_others_are_renewed_until_the_release() {
    let server = Server::start();
    let leases = program_with(server.url(), SHORT).await;
    let lag = Lag::start();
    let held = several(&leases, &["a", "b", "c"]).acquire().await.unwrap();
    // From then on the server notifies of changes to it.
    tokio::time::sleep(SHORT).await;
    server.wire().del("b");
    let deleted = Instant::now();
    let lost = within(HANGS, "the loss", held.lost()).await;
    assert!(deleted.elapsed() <= PROMPT + lag.worst(), "{:?}", deleted.elapsed());
    assert_eq!((lost.name(), lost.reason()), ("b", LossReason::Deleted));
    assert!(held.cancellation_token().is_cancelled(), "one that is made later");
    tokio::time::sleep(SHORT * 2).await;
    assert!(held.leases().iter().filter(|lease| lease.is_held()).map(leasehold::Lease::name).eq(["a", "c"]));
    assert_eq!(lock_keys(&mut server.wire()), ["a", "c"]);
    assert_eq!(ending(held.release().await), lost);
    keys_are(&server, &[]).await;
}

#[tokio::test]
async fn f77_a_servers_error_for_one_lets_go_of_all() {
    let server = Server::start();
    let rights = ["ACL", "SETUSER", "worker", "on", ">secret", "+@all", "&*"];
    server.wire().must(&[&rights[..], &["~a", "~b", "~{a}:*", "~{b}:*"]].concat());
    let leases = program_with(format!("redis://worker:secret@127.0.0.1:{}", server.port()), LONG).await;
    for call in 0..3 {
        let multi = several(&leases, &["a", "b", "c"]);
        let refused = match call {
            0 => multi.acquire().await.map(drop),
            1 => multi.acquire_within(LONG).await.map(drop),
            _ => multi.try_acquire().await.map(drop),
        };
        assert!(matches!(&refused, Err(Error::Refused(text)) if text.to_string().contains("NOPERM")), "{refused:?}");
        keys_are(&server, &[]).await;
    }
    // The same refusal in the middle of a wait.
    let theirs = program_with(server.url(), LONG).await.lock("b").acquire().await.unwrap();
    let (waiter, mut told) = waiting(&leases, &["b", "a"]);
    within(HANGS, "it waits", told.recv()).await.unwrap();
    server.wire().must(&["ACL", "SETUSER", "worker", "resetkeys", "~a", "~{a}:*"]);
    drop(theirs);
    let refused = within(HANGS, "its end", waiter).await.unwrap().map(drop);
    assert!(matches!(&refused, Err(Error::Refused(_))), "{refused:?}");
    keys_are(&server, &[]).await;
}

/// A waiter that has lost a lock it kept waits for that lock again, and may not hold any later lock meanwhile.
#[tokio::test]
async fn f77_one_that_is_lost_during_the_wait_is_waited_for_again() {
    let server = Server::start();
    let (ours, theirs) = (program_with(server.url(), SHORT).await, program_with(server.url(), LONG).await);
    let second = theirs.lock("b").acquire().await.unwrap();
    let (waiter, mut told) = waiting(&ours, &["c", "b", "a"]);
    within(HANGS, "it waits", told.recv()).await.unwrap();
    keys_are(&server, &["a", "b"]).await;
    assert!(theirs.lock("a").force_release().await.unwrap());
    let first = within(HANGS, "what it has lost", theirs.lock("a").acquire()).await.unwrap();
    // The lease is too young for notifications, and ends by its deadline.
    tokio::time::sleep(SHORT).await;
    second.release().await.unwrap().confirmed();
    keys_are(&server, &["a"]).await;
    // The waiter has found the second lock free, and has released it.
    let second = within(HANGS, "the second", theirs.lock("b").acquire()).await.unwrap();
    assert!(!waiter.is_finished());
    second.release().await.unwrap().confirmed();
    first.release().await.unwrap().confirmed();
    let held = within(HANGS, "all of them", waiter).await.unwrap().unwrap();
    held.check().unwrap();
    assert_eq!(lock_keys(&mut server.wire()), ["a", "b", "c"]);
}

#[tokio::test]
async fn f77_the_limit_bounds_all_waits_together() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let ours = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(HANGS).build().await.unwrap();
    let theirs = program_with(server.url(), LONG).await;
    let limit = Duration::from_millis(300);
    let lag = Lag::start();
    // The first is released after two thirds of the limit.
    let (first, second) = (theirs.lock("a").acquire().await.unwrap(), theirs.lock("b").acquire().await.unwrap());
    let began = Instant::now();
    let waiter = tokio::spawn(several(&ours, &["a", "b"]).acquire_within(limit));
    tokio::time::sleep(limit * 2 / 3).await;
    first.release().await.unwrap().confirmed();
    let refused = within(HANGS, "its end", waiter).await.unwrap().unwrap_err();
    let took = began.elapsed();
    let Error::TimedOut { name, waited, .. } = refused else { panic!("{refused}") };
    assert!(name == "b" && waited + lag.worst() >= limit, "{name}: {waited:?}");
    assert!(took <= limit + PROMPT + lag.worst(), "{took:?}");
    second.release().await.unwrap().confirmed();
    keys_are(&server, &[]).await;
    // A server that does not answer.
    proxy.freeze(true);
    let began = Instant::now();
    let refused = within(HANGS, "its end", several(&ours, &["a", "b"]).acquire_within(limit)).await.unwrap_err();
    let took = began.elapsed();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    assert!(took <= limit + PROMPT + lag.worst(), "{took:?}");
    proxy.freeze(false);
    keys_are(&server, &[]).await;
}

#[tokio::test]
async fn f77_an_outage_is_waited_through() {
    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
    let multi = several(&leases, &["a", "b"]);
    drop(multi.acquire().await.unwrap());
    server.stop();
    let refused = multi.try_acquire().await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    let waiter = tokio::spawn(multi.acquire());
    // Long enough for a try to have failed.
    tokio::time::sleep(COMMAND * 2).await;
    assert!(!waiter.is_finished());
    server.cont();
    within(HANGS, "all of them", waiter).await.unwrap().unwrap().release().await.unwrap().confirmed();
    keys_are(&server, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f77_a_shard_that_stands_still_holds_up_no_other() {
    let cluster = Cluster::start(3, 0);
    let ours = Client::builder().url(cluster.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
    let theirs = program_with(cluster.url(), LONG).await;
    // The silent one is first in the order.
    let (silent, other) = (cluster.name_at(0, "a"), cluster.name_at(1, "b"));
    assert!(silent < other);
    drop(several(&ours, &[&silent, &other]).acquire().await.unwrap());
    cluster.primaries()[0].stop();
    let waiter = tokio::spawn(several(&ours, &[&silent, &other]).acquire());
    tokio::time::sleep(COMMAND * 3).await;
    let free = within(HANGS, "what comes behind", theirs.lock(&other).acquire()).await.unwrap();
    free.release().await.unwrap().confirmed();
    assert!(!waiter.is_finished());
    cluster.primaries()[0].cont();
    drop(within(HANGS, "all of them", waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn on_wait_is_told_of_what_is_waited_for() {
    let leases = Client::in_memory();
    let _held = ["b", "c"].map(|name| leases.lock(name)).map(|lock| on_no_runtime("a lock", lock.acquire()).unwrap());
    let (tell, mut told) = mpsc::unbounded_channel();
    let lock = |name: &'static str| {
        let tell = tell.clone();
        leases.lock(name).on_wait(move |_| tell.send(name).unwrap())
    };
    let multi = leases.multi_lock(["c", "b", "a"].map(lock));
    assert!(multi.acquire_within(Duration::from_millis(50)).await.is_err());
    assert_eq!((told.try_recv(), told.try_recv().is_err()), (Ok("b"), true), "it waits only for this one");
    assert!(multi.try_acquire().await.unwrap().is_none());
    assert_eq!((told.try_recv(), told.try_recv()), (Ok("b"), Ok("c")), "a try reports all");
}

#[tokio::test]
async fn free_locks_take_one_round_trip() {
    const NAMES: usize = 100;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(LONG).build().await.unwrap();
    let multi = leases.multi_lock((0..NAMES).map(|name| leases.lock(format!("job:{name}"))));
    // The scripts are cached by now.
    multi.acquire().await.unwrap().release().await.unwrap().confirmed();
    let each_way = Duration::from_millis(100);
    proxy.delay(each_way);
    let (lag, began) = (Lag::start(), Instant::now());
    let held = multi.acquire().await.unwrap();
    let took = began.elapsed();
    assert!(took < each_way * 4 + lag.worst(), "{took:?}");
    let began = Instant::now();
    held.release().await.unwrap().confirmed();
    let took = began.elapsed();
    assert!(took < each_way * 4 + lag.worst(), "{took:?}");
}

#[tokio::test]
async fn what_is_released_while_the_server_is_away_is_told_by_name() {
    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(MEDIUM).command_timeout(COMMAND).build().await.unwrap();
    let held = several(&leases, &["b", "a"]).acquire().await.unwrap();
    let lost = several(&leases, &["d", "c"]).acquire().await.unwrap();
    assert!(leases.lock("c").force_release().await.unwrap());
    assert_eq!(within(HANGS, "the loss", lost.lost()).await.name(), "c");
    server.stop();
    let (held, lost) = tokio::join!(held.release(), lost.release());
    let Released::Unconfirmed(why) = held.unwrap() else { panic!("it is confirmed") };
    let why = why.to_string();
    assert!(["\"a\"", "\"b\"", ": the release is not confirmed"].iter().all(|part| why.contains(part)), "{why}");
    assert_eq!(ending(lost).name(), "c", "it says more than that the other's release is not confirmed");
    server.cont();
    keys_are(&server, &[]).await;
}

#[tokio::test]
async fn an_end_of_all_leaves_nothing_of_what_was_kept() {
    let server = Server::start();
    let (ours, theirs) = (program_with(server.url(), LONG).await, program_with(server.url(), LONG).await);
    let _second = theirs.lock("b").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let first = ours.lock("a").once_per(LONG).keep_for(LONG);
    let second = ours.lock("b").on_wait(move |_| tell.send(()).unwrap());
    let waiter = tokio::spawn(ours.multi_lock([first, second]).acquire());
    within(HANGS, "it waits", told.recv()).await.unwrap();
    keys_are(&server, &["a", "b"]).await;
    ours.close().await;
    assert!(matches!(within(HANGS, "its end", waiter).await.unwrap(), Err(Error::Closed)));
    keys_are(&server, &["b"]).await;
}

/// An owner that joins works under the lease, so the lease's interval counts and its key is retained.
#[tokio::test]
async fn work_of_the_same_owner_meanwhile_counts() {
    let server = Server::start();
    let (ours, theirs) = (program_with(server.url(), LONG).await, program_with(server.url(), LONG).await);
    let owner = leasehold::Owner::unique();
    let first = ours.lock("a").reentrant(true).owner(owner).once_per(LONG);
    let second = theirs.lock("b").acquire().await.unwrap();
    let waiter = tokio::spawn(ours.multi_lock([first.clone(), ours.lock("b")]).acquire());
    keys_are(&server, &["a", "b"]).await;
    first.acquire().await.unwrap().release().await.unwrap().confirmed();
    waiter.abort();
    second.release().await.unwrap().confirmed();
    eventually_async(HANGS, "it is retained", || {
        server.wire().get("a").is_some_and(|value| value.ends_with("(released)"))
    })
    .await;
}

/// A waiter that dies leaves its keys for one TTL, because no work was done: an interval counts once all locks are
/// held.
#[tokio::test]
async fn an_interval_counts_once_all_are_held() {
    let server = Server::start();
    let (ours, theirs) = (program_with(server.url(), MEDIUM).await, program_with(server.url(), LONG).await);
    let second = theirs.lock("b").acquire().await.unwrap();
    let locks = [ours.lock("a").once_per(INTERVAL), ours.lock("b")];
    let waiter = tokio::spawn(ours.multi_lock(locks).acquire());
    keys_are(&server, &["a", "b"]).await;
    let (mut wire, mut before) = (server.wire(), i64::MAX);
    eventually_async(HANGS, "a renewal", || {
        let left = wire.pttl("a");
        assert!(left <= i64::try_from(MEDIUM.as_millis()).unwrap(), "{left} ms");
        left > std::mem::replace(&mut before, left)
    })
    .await;
    second.release().await.unwrap().confirmed();
    let held = within(HANGS, "all of them", waiter).await.unwrap().unwrap();
    let left = Duration::from_millis(wire.pttl("a").unsigned_abs());
    assert!(left + HANGS > INTERVAL, "{left:?}");
    held.release().await.unwrap().confirmed();
    assert!(wire.token("a").is_some_and(|value| value.ends_with("(released)")) && !wire.exists("b"));
}

/// The work must not begin before the interval is confirmed.
#[tokio::test]
async fn an_interval_that_no_answer_confirms_is_asked_for_again_or_refuses_a_try() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let ours = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(COMMAND).build().await.unwrap();
    let both = ours.multi_lock([ours.lock("a").once_per(INTERVAL), ours.lock("b")]);
    let dropped = proxy.on(Match::script(RENEW), 1, Action::DropRequest);
    let freeze = async {
        dropped.hit().await;
        proxy.freeze(true);
    };
    let (refused, ()) = within(HANGS, "an answer", async { tokio::join!(both.try_acquire(), freeze) }).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    proxy.freeze(false);
    keys_are(&server, &[]).await;
    let dropped = proxy.on(Match::script(RENEW), 1, Action::DropRequest);
    let held = within(HANGS, "all of them", both.acquire()).await.unwrap();
    assert_eq!(dropped.hits(), 1);
    let left = Duration::from_millis(server.wire().pttl("a").unsigned_abs());
    assert!(left + HANGS > INTERVAL, "{left:?}");
    held.release().await.unwrap().confirmed();
}

/// An owner that enters begins to work at once: by then the interval has to count.
#[tokio::test]
async fn an_owner_that_enters_a_lock_on_trial_has_its_whole_interval() {
    let server = Server::start();
    let (ours, theirs) = (program_with(server.url(), LONG).await, program_with(server.url(), LONG).await);
    let second = theirs.lock("b").acquire().await.unwrap();
    let first = ours.lock("a").reentrant(true).owner(leasehold::Owner::unique()).once_per(INTERVAL);
    let waiter = tokio::spawn(ours.multi_lock([first.clone(), ours.lock("b")]).acquire());
    keys_are(&server, &["a", "b"]).await;
    let entered = within(HANGS, "the lock", first.acquire()).await.unwrap();
    let left = Duration::from_millis(server.wire().pttl("a").unsigned_abs());
    assert!(left + HANGS > INTERVAL, "{left:?}");
    entered.release().await.unwrap().confirmed();
    second.release().await.unwrap().confirmed();
    let held = within(HANGS, "all of them", waiter).await.unwrap().unwrap();
    assert!(Duration::from_millis(server.wire().pttl("a").unsigned_abs()) + HANGS > INTERVAL);
    held.release().await.unwrap().confirmed();
}

/// Another program takes one of the locks in the moment in which all are held, and the others are confirmed.
#[tokio::test]
async fn a_lock_that_is_lost_before_the_intervals_count_is_waited_for_again() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (ours, theirs) = (program_with(proxy.url(), MEDIUM).await, program_with(server.url(), LONG).await);
    let both = ours.multi_lock([ours.lock("a").once_per(INTERVAL), ours.lock("b").once_per(INTERVAL)]);
    for waits in [false, true] {
        let held_back = proxy.on(Match::script(RENEW), 1, Action::Hold);
        let acquiring =
            tokio::spawn(if waits { both.acquire_within(HANGS) } else { both.acquire_within(Duration::ZERO) });
        within(HANGS, "all are held", held_back.hit()).await;
        assert!(theirs.lock("b").force_release().await.unwrap());
        let taken = theirs.lock("b").acquire().await.unwrap();
        held_back.release();
        let (mut wire, most) = (server.wire(), i64::try_from(MEDIUM.as_millis()).unwrap());
        if waits {
            eventually_async(HANGS, "no interval counts", || (1..=most).contains(&wire.pttl("a"))).await;
            taken.release().await.unwrap().confirmed();
            let held = within(HANGS, "all of them", acquiring).await.unwrap().unwrap();
            assert!(Duration::from_millis(wire.pttl("a").unsigned_abs()) + HANGS > INTERVAL);
            drop(held);
            continue;
        }
        let refused = within(HANGS, "an answer", acquiring).await.unwrap();
        assert!(matches!(&refused, Err(Error::TimedOut { name, .. }) if &**name == "b"), "{refused:?}");
        keys_are(&server, &["b"]).await;
        taken.release().await.unwrap().confirmed();
    }
}

/// Another program holds one permit of two for longer than a try looks back; all holders of shares have its fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_tries_that_meet_beside_an_older_share_one_wins() {
    const AGE: Duration = Duration::from_millis(1_100);
    let server = Server::start();
    let other = program_with(server.url(), LONG).await;
    let held = other.semaphore("b", 2).acquire().await.unwrap();
    tokio::time::sleep(AGE).await;
    let mut programs = Vec::new();
    for _ in 0..4 {
        programs.push(program_with(server.url(), LONG).await);
    }
    one_of_each_round_wins(&programs, |ours| [ours.lock("a"), ours.semaphore("b", 2)]).await;
    held.check().unwrap();
}

/// The server's clock was once an hour ahead, so the fences of the first lock are not times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_tries_that_meet_though_the_first_fence_is_ahead_one_wins() {
    let server = Server::start();
    let ahead = (SystemTime::now() + Duration::from_secs(3_600)).duration_since(UNIX_EPOCH).unwrap().as_micros();
    server.wire().must(&["SET", "{a}:lh:fence", &ahead.to_string(), "EX", "86400"]);
    let mut programs = Vec::new();
    for _ in 0..4 {
        programs.push(program_with(server.url(), LONG).await);
    }
    one_of_each_round_wins(&programs, |ours| ["a", "b"].map(|name| ours.lock(name))).await;
    let first = programs[0].lock("a").acquire().await.unwrap();
    assert!(u128::from(u64::from(first.fence())) > ahead);
}

/// The try meets a recent holder, gets the lock, and then no answer to its second try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_has_waited_for_another_ends_within_a_command_time_out() {
    const LIMIT: Duration = Duration::from_millis(800);
    const WAITED: Duration = Duration::from_millis(300);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let theirs = program_with(server.url(), LONG).await;
    let ours = Client::builder().url(proxy.url()).ttl(LONG).command_timeout(LIMIT).build().await.unwrap();
    let second = theirs.lock("second").acquire().await.unwrap();
    let (lag, began) = (Lag::start(), Instant::now());
    let multi = ours.multi_lock(["first", "second", "third"].map(|name| ours.lock(name)));
    let trying = tokio::spawn(multi.try_acquire());
    tokio::time::sleep_until((began + WAITED).into()).await;
    // By then the first try, and the release of its locks, are done.
    let again = proxy.on(Match::script(ACQUIRE).and(Match::containing("third")), 1, Action::SwallowReply);
    second.release().await.unwrap().confirmed();
    let outcome = within(HANGS, "its end", trying).await.unwrap();
    let took = began.elapsed();
    assert!(again.hits() == 1 && matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    assert!(took <= LIMIT + PROMPT + lag.of(2), "{took:?}, the machine lagged {:?}", lag.worst());
}

async fn one_of_each_round_wins(programs: &[Client], locks: impl Fn(&Client) -> [Lock; 2]) {
    for round in 0..40 {
        let tries = programs.iter().map(|ours| {
            let both = ours.multi_lock(locks(ours));
            tokio::spawn(async move { both.try_acquire().await })
        });
        let mut won = Vec::new();
        for tried in tries.collect::<Vec<_>>() {
            won.extend(within(HANGS, "a try", tried).await.unwrap().unwrap());
        }
        assert_eq!(won.len(), 1, "round {round}");
        for lease in won {
            drop(lease.release().await);
        }
    }
}

#[tokio::test]
async fn work_has_the_grace_of_the_lock_that_is_lost() {
    let leases = Client::in_memory();
    let locks = || [leases.lock("a").grace(LONG / 3), leases.lock("b")].map(|lock| lock.ttl(LONG));
    for (lost, tidies) in [("a", true), ("b", false)] {
        let (started, running) = oneshot::channel();
        let run = tokio::spawn(leases.multi_lock(locks()).run(async move |held| {
            started.send(()).unwrap();
            let lost = held.lost().await;
            assert_eq!(lost.name(), "a");
            Err::<(), Error>(Error::Closed)
        }));
        within(HANGS, "the work", running).await.unwrap();
        leases.lock(lost).force_release().await.unwrap();
        let outcome = within(HANGS, "its end", run).await.unwrap().unwrap_err();
        assert_eq!(matches!(outcome, Error::Closed), tidies, "{outcome}");
    }
}

#[tokio::test]
async fn what_does_not_fit_together_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let (leases, others) = (program_with(server.url(), LONG).await, Client::in_memory());
    let names = |count: usize| (0..count).map(|name| leases.lock(format!("job:{name}")));
    let account = || leases.lock("account:7");
    let scoped = leases.prefix("account:").lock("7");
    let bounds = "a multi-lock has 1 to 1,000 locks of different names: ";
    let cases: [(MultiLock, String); 8] = [
        (leases.multi_lock([]), format!("{bounds}there is none")),
        (leases.multi_lock(names(1_001)), format!("{bounds}there are more")),
        (leases.multi_lock(std::iter::repeat_with(account)), format!("{bounds}there are more")),
        (leases.multi_lock([account(), account()]), format!("{bounds}\"account:7\" is there twice")),
        (leases.multi_lock([account(), scoped]), format!("{bounds}\"7\" is there twice")),
        (
            leases.multi_lock([account(), others.lock("job")]),
            "all locks of a multi-lock are of one Client: \"job\" is of another".into(),
        ),
        (
            leases.multi_lock([account(), leases.lock("")]),
            "the name is empty: name the resource that is to be protected".into(),
        ),
        (
            leases.multi_lock([account(), leases.lock("job").ttl(Duration::from_millis(1))]),
            "ttl is 1ms: it must be from 100 ms to 24 h".into(),
        ),
    ];
    server.wire().must(&["CONFIG", "RESETSTAT"]);
    for (multi, says) in &cases {
        let calls: [Pin<Box<dyn Future<Output = Error>>>; 3] = [
            Box::pin(async { multi.acquire().await.unwrap_err() }),
            Box::pin(async { multi.acquire_within(LONG).await.unwrap_err() }),
            Box::pin(async { multi.try_acquire().await.unwrap_err() }),
        ];
        for refused in calls {
            let refused = refused.await;
            assert_eq!(refused.to_string(), *says);
            assert_eq!(matches!(refused, Error::Misuse(_)), says.contains("of one Client"), "{refused:?}");
            assert!(matches!(refused, Error::Config(_) | Error::Misuse(_)), "{refused:?}");
        }
        let ran = multi.run(async |_| -> Result<(), Error> { panic!("it runs") }).await;
        assert!(matches!(ran, Err(Error::Config(_) | Error::Misuse(_))));
    }
    let scripts = server.wire().must(&["INFO", "commandstats"]).text();
    assert!(!scripts.contains("cmdstat_eval"), "{scripts}");
    // A thousand locks are allowed, and a name that is invalid only in a cluster is valid here.
    let most = leases.multi_lock(names(1_000)).acquire().await.unwrap();
    assert_eq!(most.leases().len(), 1_000);
    most.release().await.unwrap().confirmed();
    drop(several(&leases, &["a", "b}"]).acquire().await.unwrap());
}

#[tokio::test]
async fn a_name_that_a_cluster_cannot_have_is_refused() {
    let cluster = Cluster::start(3, 0);
    let leases = program_with(cluster.url(), LONG).await;
    let refused = several(&leases, &["a", "b}"]).acquire().await.unwrap_err();
    assert!(matches!(&refused, Error::Config(text) if text.to_string().contains("hash tag")), "{refused}");
    assert_eq!(leases.lock("a").holder().await.unwrap(), None);
}

/// The futures of a multi-lock run within one task, on any executor.
#[test]
fn several_locks_work_on_any_executor() {
    let server = Server::start();
    let runtime = two_workers();
    let leases = runtime.block_on(program_with(server.url(), LONG));
    on_no_runtime("several locks", async {
        let multi = several(&leases, &["a", "b"]);
        let held = multi.acquire().await.unwrap();
        let (token, lost) = (held.cancellation_token(), held.lost());
        held.release().await.unwrap().confirmed();
        assert_eq!(lost.await.reason(), LossReason::Released);
        token.cancelled().await;
        multi.run(async |held| held.check()).await.unwrap();
    });
}
