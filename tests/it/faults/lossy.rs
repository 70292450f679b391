//! A slow link, and a link that loses replies, for many TTLs: rows F11 and F12 of the fault table. Those of a quorum
//! are in `quorum/network.rs`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, Released, Status};
use support::{
    Action, HANGS, Lag, Match, Proxy, RuleHandle, Server, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RELEASE, RENEW},
    seen, within,
};

use crate::common::{Confirmed as _, assert_was_ours};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_link_that_is_slow_each_way() {
    const TTL: Duration = Duration::from_secs(1);
    /// The spare time of a renewal: it is due after a third of the TTL, and its round trip takes 0.4 s.
    const SPARE: Duration = Duration::from_millis(1_000 - 12 - 334 - 400);
    // The row's own number, if figures are wanted.
    let ttls = if seen::is_wanted() { 100 } else { 10 };
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(TTL).command_timeout(TTL).build().await.unwrap();
    let started = Instant::now();
    // The keeper, the proxy, the server and the proxy again may each be as late as the control; then the machine was
    // too slow, not the link.
    let is_too_slow = |lag: &Lag| 4 * lag.worst() >= SPARE && !seen::is_wanted();
    let (lease, lag, began) = loop {
        proxy.delay(Duration::ZERO);
        let (lag, lease) = (Lag::start(), leases.lock("job").acquire().await.unwrap());
        proxy.delay(Duration::from_millis(200));
        let began = Instant::now();
        let Ok(lost) = tokio::time::timeout(TTL * ttls, lease.lost()).await else { break (lease, lag, began) };
        assert!(is_too_slow(&lag), "{lost:?}; the machine lagged {:?}", lag.worst());
        assert!(
            started.elapsed() < 3 * TTL * ttls,
            "no lease of a second has lived on; the machine lagged {:?}",
            lag.worst()
        );
    };
    lease.check().expect("it was renewed all the time");
    seen::at_least("TTLs held", (began.elapsed().as_millis() / TTL.as_millis()) as usize, ttls as usize);
    // All other calls work over the same link.
    let other = within(HANGS, "a free lock", leases.lock("other").acquire()).await.unwrap();
    other.release().await.expect("it was ours").confirmed();
    match lease.release().await {
        Err(Error::Lost(_)) if is_too_slow(&lag) => {}
        outcome => outcome.expect("it was ours to the end").confirmed(),
    }
    assert_eq!(server.wire().keys("job"), Vec::<String>::new());
}

/// A round trip is shorter than an answer may take, but a handshake needs several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_link_that_is_slow_from_the_first_and_breaks() {
    const ANSWER: Duration = Duration::from_millis(400);
    const EACH_WAY: Duration = Duration::from_millis(90);
    // A release has half of an answer's time, which exceeds the round trip by this much.
    const SPARE: Duration = Duration::from_millis(20);
    let (server, lag) = (Server::start(), Arc::new(Lag::start()));
    let proxy = Proxy::to(&server);
    proxy.delay(EACH_WAY);
    let build = Client::builder().url(proxy.url()).command_timeout(ANSWER).build();
    let leases = within(HANGS, "it connects", build).await.expect("every answer is in time");
    let lease = within(HANGS, "a free lock", leases.lock("job").acquire()).await.expect("every answer is in time");
    for turn in 0..3 {
        proxy.cut();
        // Some are sent before the link is back, so they meet every moment of its return.
        let others = (0..8).map(|n| {
            let (lock, lag) = (leases.lock(format!("other-{turn}-{n}")), lag.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100) * n).await;
                match lock.acquire().await?.release().await {
                    Ok(Released::Unconfirmed(_)) if lag.worst() >= SPARE => {}
                    outcome => outcome.expect("every answer is in time").confirmed(),
                }
                Ok::<_, leasehold::Error>(())
            })
        });
        for other in others.collect::<Vec<_>>() {
            within(HANGS, "it comes back", other).await.unwrap().expect("it waits for the server");
        }
    }
    // One for requests, one for the keeper, one for notifications; each was made anew once for each cut.
    let connections = 1 + proxy.seen().iter().map(|seen| seen.connection).max().unwrap_or(0);
    seen::at_most("connections", usize::try_from(connections).unwrap(), 12);
    assert!(connections <= 12, "{connections} connections were made");
    lease.release().await.expect("it was ours all the time").confirmed();
}

const COMMAND: Duration = Duration::from_millis(100);
/// The default ratio to `COMMAND`. A reply is never lost alone: its connection stays silent until the library has
/// replaced it, after a few command time-outs.
const TTL: Duration = COMMAND.saturating_mul(30);

/// A server with cached scripts, so each request is one command.
fn server() -> Server {
    let server = Server::start();
    let mut wire = server.wire();
    for script in [ACQUIRE, RENEW, RELEASE] {
        wire.must(&["SCRIPT", "LOAD", script]);
    }
    server
}

async fn program(proxy: &Proxy) -> Client {
    Client::builder().url(proxy.url()).ttl(TTL).command_timeout(COMMAND).build().await.unwrap()
}

/// Loses replies of renewals at random, but leaves one of three: never more than two within two thirds of a TTL.
fn lose_renewals(proxy: &Proxy, many: u64) -> RuleHandle {
    let (last, random) = (Mutex::new([None::<Instant>; 2]), Match::one_in(many, 0));
    let spare = Match::with(move |args| {
        let mut last = last.lock().expect("it is not poisoned");
        let lost = random.matches(args) && last[0].is_none_or(|at| at.elapsed() > TTL * 2 / 3);
        if lost {
            *last = [last[1], Some(Instant::now())];
        }
        lost
    });
    proxy.on_each(Match::script(RENEW).and(spare), Action::SwallowReply)
}

/// Asserts that the lease was held, and then releases it. Without an answer in its short time the release is unknown,
/// and continues in the background; more than half of the TTL is left.
async fn is_released(lease: Lease, server: &Server, lag: &Lag) {
    let (name, mut wire) = (lease.name().to_owned(), server.wire());
    let released = lease.release().await;
    assert_was_ours(&released);
    eventually_but_for(lag, TTL / 2, "the key is gone", || !wire.exists(&name)).await;
}

/// Asserts that the lease was held to the end, and is well once no more replies are lost.
async fn was_held(lease: Lease, server: &Server, rule: &RuleHandle, lag: &Lag) {
    assert_eq!(lease.check(), Ok(()), "{} replies were lost; the machine lagged {:?}", rule.hits(), lag.worst());
    rule.disarm();
    eventually_async(HANGS, "it is well", || lease.status() == Status::Held).await;
    is_released(lease, server, lag).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_two_renewals_of_three_are_lost() {
    let (server, lag) = (server(), Lag::start());
    let proxy = Proxy::to(&server);
    let leases = program(&proxy).await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut lost = tokio::spawn(lease.lost());
    let newest = || proxy.seen().iter().map(|seen| seen.connection).max();
    for _ in 0..2 {
        for _ in 0..2 {
            let before = newest();
            let swallowed = proxy.on(Match::script(RENEW), 1, Action::SwallowReply);
            within(HANGS, "a renewal is sent", swallowed.hit()).await;
            eventually_async(HANGS, "a new connection is made", || newest() > before).await;
        }
        // The third renewal, after which the next one is a third of the TTL away.
        let is_fresh = || lease.remaining() > TTL * 4 / 5 || lost.is_finished();
        eventually_async(HANGS, "a renewal is confirmed", is_fresh).await;
        assert!(!lost.is_finished(), "{:?}; the machine lagged {:?}", (&mut lost).await, lag.worst());
    }
    assert_eq!(lease.check(), Ok(()));
    eventually_async(HANGS, "it is well", || lease.status() == Status::Held).await;
    is_released(lease, &server, &lag).await;
}

/// Four programs take turns, and a fifth holds another lock all the time, while replies are lost.
async fn turns_are_taken_while_one_reply_is_lost_in(many: u64, turns: usize) {
    let (server, lag) = (server(), Lag::start());
    let proxies: Vec<Proxy> = (0..5).map(|_| Proxy::to(&server)).collect();
    let holder = program(&proxies[0]).await;
    let spared = lose_renewals(&proxies[0], many);
    let lease = holder.lock("held").acquire().await.unwrap();
    let (inside, last, until) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Instant::now() + 2 * TTL);
    let (mut programs, mut rules) = (Vec::new(), Vec::new());
    for (proxy, seed) in proxies[1..].iter().zip(1..) {
        let (leases, inside, last) = (program(proxy).await, inside.clone(), last.clone());
        let lost = Match::command("EVALSHA").and(Match::one_in(many, seed));
        rules.push(proxy.on_each(lost, Action::SwallowReply));
        programs.push(tokio::spawn(async move {
            for _ in 0..turns {
                let lease = leases.lock("job").acquire().await.expect("silence ends no acquire");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                let fence = u64::from(lease.fence());
                assert!(last.fetch_max(fence, Ordering::SeqCst) < fence, "the fence has fallen");
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                // An unanswered release is unknown, and continues in the background.
                let released = lease.release().await;
                assert_was_ours(&released);
            }
        }));
    }
    for program in programs {
        within(HANGS * 6, "its turns", program).await.expect("one at a time");
    }
    tokio::time::sleep_until(until.into()).await;
    let lost: usize = rules.iter().map(RuleHandle::hits).sum();
    seen::at_least("replies lost", lost + spared.hits(), 1);
    assert!(lost > 0, "the rules had something to do");
    was_held(lease, &server, &spared, &lag).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_one_reply_in_a_hundred_is_lost() {
    turns_are_taken_while_one_reply_is_lost_in(100, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_one_reply_in_ten_is_lost() {
    turns_are_taken_while_one_reply_is_lost_in(10, 10).await;
}
