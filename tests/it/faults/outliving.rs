//! Keys that outlive their lease: row F78 of the fault table. That of a quorum is in `quorum/outliving.rs`.
//!
//! A lower bound counts from before the acquire was requested, an upper one from after it was granted. So only upper
//! bounds allow for the machine's lag.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::{Duration, Instant},
};

use leasehold::{
    Client, Lock, LossReason,
    testing::{Clock as _, ManualClock},
};
use support::{
    Action, Child, ClockShim, HANGS, Lag, Match, Part, Proxy, Server, Wire, eventually_async, one_thread,
    scripts::ACQUIRE, seen, two_workers, within,
};

use crate::common::{COMMAND, Confirmed as _, ending};

const TTL: Duration = Duration::from_millis(600);
const DELAY: Duration = Duration::from_millis(900);
const INTERVAL: Duration = Duration::from_millis(2_500);
/// The time a waiter takes to notice that a key has ended.
const HAND_OFF: Duration = Duration::from_millis(50);
const HOUR: Duration = Duration::from_secs(60 * 60);
/// A server counts in whole milliseconds.
const MILLI: Duration = Duration::from_millis(1);

async fn program(url: String) -> Client {
    Client::builder().url(url).ttl(TTL).command_timeout(COMMAND).build().await.unwrap()
}

fn delayed(leases: &Client) -> Lock {
    leases.lock("delayed").lock_delay(DELAY)
}

fn hourly(leases: &Client) -> Lock {
    leases.lock("hourly").once_per(INTERVAL)
}

fn left(wire: &mut Wire, key: &str) -> Duration {
    Duration::from_millis(wire.pttl(key).try_into().unwrap_or_else(|_| panic!("{key} is gone")))
}

/// When a key ends, by the server's clock: a lower bound from one moment and an upper bound from another.
fn ends(wire: &mut Wire, key: &str) -> [(Instant, Duration); 2] {
    let before = Instant::now();
    let left = left(wire, key);
    [(before, left), (Instant::now(), left + MILLI)]
}

/// Acquires both locks, and holds them until asked to check them.
fn holds(part: &Part) {
    one_thread().block_on(async {
        let leases = program(part.url.clone()).await;
        let held = [delayed(&leases).acquire().await.unwrap(), hourly(&leases).acquire().await.unwrap()];
        part.say("held");
        part.hear();
        for lease in held {
            assert_eq!(ending(lease.check()).reason(), LossReason::Expired, "{lease:?}");
            drop(lease);
        }
        // Closing waits for all work that drops leave.
        leases.close().await;
        part.say("dropped");
    });
}

/// Asserts that another holder gets the lock no earlier than `least` after `from`, and no later than `most` after `to`.
async fn follows(
    lock: Lock,
    lag: &Lag,
    what: &str,
    (from, least): (Instant, Duration),
    (to, most): (Instant, Duration),
) {
    let lease = within(HANGS, what, lock.acquire()).await.unwrap();
    let now = Instant::now();
    assert!(now - from + MILLI >= least, "{what}: {:?} after, not {least:?} or later", now - from);
    seen::took(what, now.saturating_duration_since(to), most + HAND_OFF, lag);
    assert!(now <= to + most + HAND_OFF + lag.worst(), "{what}: {:?} after, not within {most:?}", now - to);
    lease.release().await.unwrap().confirmed();
}

#[test]
fn f78_a_holder_is_killed() {
    if let Some(part) = Part::mine() {
        return holds(&part);
    }
    let (server, began) = (Server::start(), Instant::now());
    let mut holder = Child::start(f78_a_holder_is_killed, "hold", &server.url());
    holder.says("held");
    let held = Instant::now();
    two_workers().block_on(async {
        let (leases, lag, mut wire) = (program(server.url()).await, Lag::start(), server.wire());
        // By then it has renewed at least once.
        tokio::time::sleep(TTL).await;
        holder.kill();
        let [(looked, left), there] = ends(&mut wire, "delayed");
        assert!(self::left(&mut wire, "hourly") + began.elapsed() + MILLI >= INTERVAL, "no renewal has shortened it");
        // How much of the TTL is left depends on the machine.
        assert!(left >= DELAY && left <= TTL + DELAY, "{left:?}");
        let [delayed, hourly] = [delayed(&leases), hourly(&leases)];
        let ((), ()) = tokio::join!(
            follows(delayed, &lag, "lock_delay: next holder after a kill", (looked, left), there),
            follows(hourly, &lag, "once_per: next holder after the interval", (began, INTERVAL), (held, INTERVAL)),
        );
    });
}

#[test]
fn f78_a_holder_wakes_late_and_deletes_nothing() {
    if let Some(part) = Part::mine() {
        return holds(&part);
    }
    let (server, began) = (Server::start(), Instant::now());
    let mut holder = Child::start(f78_a_holder_wakes_late_and_deletes_nothing, "hold", &server.url());
    holder.says("held");
    two_workers().block_on(async {
        let (leases, lag, mut wire) = (program(server.url()).await, Lag::start(), server.wire());
        holder.stop();
        // It is past its deadline, but its keys still exist.
        eventually_async(HANGS, "its TTL is over", || left(&mut wire, "delayed") < DELAY).await;
        holder.tell("look");
        holder.cont();
        holder.says("dropped");
        // A renewal begun before the stop may be sent after it, and the key then lives for that much longer.
        let ([from, to], [_, there]) = (ends(&mut wire, "delayed"), ends(&mut wire, "hourly"));
        let [delayed, hourly] = [delayed(&leases), hourly(&leases)];
        let ((), ()) = tokio::join!(
            follows(delayed, &lag, "lock_delay: next holder after a stop", from, to),
            follows(hourly, &lag, "once_per: next holder after the interval", (began, INTERVAL), there),
        );
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_holder_is_cut_off_and_its_undo_comes_through_again() {
    let (server, lag) = (Server::start(), Lag::start());
    let proxy = Proxy::to(&server);
    let (leases, other, mut wire) = (program(proxy.url()).await, program(server.url()).await, server.wire());
    // Leaves time for a wrong deletion.
    let (delay, interval) = (DELAY * 4, INTERVAL * 2);
    let (delayed, hourly) = (leases.lock("delayed").lock_delay(delay), leases.lock("hourly").once_per(interval));
    let began = Instant::now();
    let held = [delayed.acquire().await.unwrap(), hourly.acquire().await.unwrap()];
    let acquired = Instant::now();
    proxy.black_hole(true);
    let cut = Instant::now();
    for lease in &held {
        assert_eq!(within(HANGS, "the signal", lease.lost()).await.reason(), LossReason::Expired);
    }
    assert!(cut.elapsed() <= TTL + lag.worst(), "the deadline is that of the TTL: {:?}", cut.elapsed());
    drop(held);
    proxy.black_hole(false);
    leases.lock("another").acquire().await.unwrap().release().await.unwrap().confirmed();
    leases.close().await;
    assert!(wire.exists("hourly"), "deleted {:?} after the cut", cut.elapsed());
    let [from, to] = ends(&mut wire, "delayed");
    let ((), ()) = tokio::join!(
        follows(other.lock("delayed"), &lag, "lock_delay: next holder after a cut", from, to),
        follows(
            other.lock("hourly"),
            &lag,
            "once_per: next holder after the interval",
            (began, interval),
            (acquired, interval)
        ),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_release_frees_at_once_under_a_delay_and_after_the_interval_under_once_per() {
    let (server, lag) = (Server::start(), Lag::start());
    let (leases, other, mut wire) = (program(server.url()).await, program(server.url()).await, server.wire());
    delayed(&leases).acquire().await.unwrap().release().await.unwrap().confirmed();
    assert!(!wire.exists("delayed"), "released");
    drop(delayed(&leases).acquire().await.unwrap());
    eventually_async(TTL / 2, "the dropped lock is free", || !wire.exists("delayed")).await;
    for how in ["release", "drop", "close"] {
        let (leases, lock) = (program(server.url()).await, hourly(&other));
        let began = Instant::now();
        let lease = hourly(&leases).acquire().await.unwrap();
        let acquired = Instant::now();
        match how {
            "release" => lease.release().await.unwrap().confirmed(),
            "drop" => drop(lease),
            _ => within(HANGS, "the close", leases.close()).await,
        }
        follows(lock, &lag, "once_per: next holder after the interval", (began, INTERVAL), (acquired, INTERVAL)).await;
        // The follower's interval has to end too, before the next round.
        wire.del("hourly");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_an_acquire_that_is_given_up_leaves_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire) = (program(proxy.url()).await, server.wire());
    let lock = leases.lock("job").lock_delay(HOUR).once_per(HOUR);
    // The next acquire is granted, but its reply is lost.
    lock.acquire().await.unwrap().release().await.unwrap().confirmed();
    wire.del("job");
    proxy.on(Match::script(ACQUIRE), 1, Action::SwallowReply);
    let refused = lock.try_acquire().await;
    assert!(refused.is_err(), "{refused:?}");
    eventually_async(HANGS, "the attempt is undone", || !wire.exists("job")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_release_goes_on_for_as_long_as_its_key_may_live() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire) = (program(proxy.url()).await, server.wire());
    let lease = leases.lock("job").lock_delay(HOUR).acquire().await.unwrap();
    lease.renew().await.unwrap();
    proxy.black_hole(true);
    lease.check().expect("it is ours to the end");
    drop(lease);
    // An outage much longer than the TTL.
    tokio::time::sleep(TTL * 4).await;
    assert!(wire.exists("job"));
    proxy.black_hole(false);
    eventually_async(HANGS, "the dropped lock is free", || !wire.exists("job")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_the_servers_clock_steps() {
    let (clock, lag) = (ClockShim::new(), Lag::start());
    let server = Server::builder().clock(&clock).start();
    let (leases, other, mut wire) = (program(server.url()).await, program(server.url()).await, server.wire());
    let began = Instant::now();
    hourly(&leases).acquire().await.unwrap().release().await.unwrap().confirmed();
    let acquired = Instant::now();
    clock.back(HOUR);
    assert!(hourly(&other).try_acquire().await.unwrap().is_none());
    assert!(left(&mut wire, "hourly") + lag.worst() > HOUR, "it counts by the server's clock");
    clock.forward(HOUR);
    follows(hourly(&other), &lag, "once_per: next holder after the interval", (began, INTERVAL), (acquired, INTERVAL))
        .await;
    // No other clock corrects one that was set forward.
    clock.forward_past(HOUR, &mut server.wire(), "hourly");
    drop(hourly(&other).try_acquire().await.unwrap().expect("it has ended early"));
}

/// A waker that takes two seconds to wake.
struct Slow(ManualClock);

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        self.0.advance(Duration::from_secs(2));
    }
}

/// Uses a clock that only a slow waker advances.
#[tokio::test]
async fn f78_an_interval_is_no_longer_for_what_a_release_wakes_up() {
    for drops in [false, true] {
        let clock = ManualClock::new();
        let leases = Client::builder().url("memory://").clock(clock.clone()).build().await.unwrap();
        let lock = leases.lock("hourly").ttl(Duration::from_secs(5)).once_per(Duration::from_secs(10));
        let (began, lease) = (clock.now(), lock.acquire().await.unwrap());
        let token = lease.cancellation_token();
        let (mut cancelled, slow) = (pin!(token.cancelled()), Waker::from(Arc::new(Slow(clock.clone()))));
        assert!(cancelled.as_mut().poll(&mut Context::from_waker(&slow)).is_pending());
        if drops {
            drop(lease);
        } else {
            lease.release().await.unwrap().confirmed();
        }
        let kept = lock.holder().await.unwrap().expect("it is kept").remaining().expect("for a time");
        assert_eq!(clock.now(), began + Duration::from_secs(2));
        assert_eq!(kept, Duration::from_secs(8), "drops: {drops}");
    }
}
