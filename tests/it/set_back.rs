//! A restart delay with servers whose wall clock was set back: their uptime claims a recent start, but long-running
//! clients know better. Rows F5, F29 and F40 of the fault table.

use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Error, Lease, NodeState};
use support::{ClockShim, Lag, Nodes, Server, eventually_async, within};

use crate::common::Confirmed as _;
use crate::fair::line::{HEARTBEAT, all_can_be_called, had, place};

const TTL: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const PROMPT: Duration = Duration::from_millis(50);
const HANGS: Duration = Duration::from_secs(15);

fn builder(label: &str) -> Builder {
    Client::builder().ttl(TTL).restart_delay(DELAY).label(label)
}

/// A new server with a clock of its own.
fn newborn() -> (Server, ClockShim) {
    let clock = ClockShim::new();
    (Server::builder().clock(&clock).start(), clock)
}

/// One try: a lease, or the text of the refusal.
async fn tries(leases: &Client, fair: bool) -> Result<Lease, String> {
    match leases.lock("job").fair(fair).try_acquire().await {
        Ok(lease) => Ok(lease.expect("it is free")),
        Err(Error::Unavailable(error)) => Err(error.to_string()),
        Err(other) => panic!("{other}"),
    }
}

/// The seconds that a refusal names until each server votes.
fn seconds_left(refusal: &str) -> Vec<u64> {
    let seconds = |rest: &str| rest.split(' ').next().unwrap().parse().unwrap();
    refusal.split("votes in ").skip(1).map(seconds).collect()
}

/// Tries until it has the lock. Also returns the seconds left for the slowest server, without repetition.
async fn tries_on(leases: &Client, fair: bool) -> (Lease, Vec<u64>) {
    let (began, mut told) = (Instant::now(), Vec::new());
    loop {
        match tries(leases, fair).await {
            Ok(lease) => return (lease, told),
            // The connection to a killed server may not have been noticed to be dead yet.
            Err(refusal) => told.extend(seconds_left(&refusal).into_iter().max()),
        }
        told.dedup();
        assert!(began.elapsed() < HANGS, "{told:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Knows the servers for the length of the delay, from the first answer on.
async fn knows_them_for_the_delay(leases: &Client) {
    within(HANGS, "the servers vote", leases.lock("job").acquire()).await.unwrap().release().await.unwrap().confirmed();
    // Only the passage of time matters here.
    tokio::time::sleep(DELAY + Duration::from_millis(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_client_older_than_the_delay_acquires_after_the_clock_was_set_back() {
    let (server, clock) = newborn();
    let old = builder("old").url(server.url()).build().await.unwrap();
    knows_them_for_the_delay(&old).await;
    clock.back(HOUR);
    let uptime: i64 = server.wire().info_field("server", "uptime_in_seconds").unwrap().parse().unwrap();
    assert!(uptime < 0, "the server no longer knows that it has been up: {uptime}");

    let lease = tries(&old, false).await.expect("it knows that the server is old enough");
    lease.release().await.unwrap().confirmed();
    tries(&old, true).await.expect("a fair lock too").release().await.unwrap().confirmed();
    assert_eq!(*old.nodes()[0].state(), NodeState::Up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_new_client_acquires_after_the_delay_when_the_clock_was_set_back() {
    for fair in [false, true] {
        let ((server, clock), lag) = (newborn(), Lag::start());
        clock.back(HOUR);
        let new = builder("new").url(server.url()).build().await.unwrap();
        let before = Instant::now();
        let refusal = tries(&new, fair).await.expect_err("it may have forgotten");
        let met = Instant::now();
        assert_eq!(seconds_left(&refusal), [2], "{refusal}");
        let state = new.nodes().remove(0).state().clone();
        assert!(matches!(state, NodeState::Recovering { remaining } if remaining <= DELAY), "{state:?}");
        let (lease, told) = tries_on(&new, fair).await;
        assert!(before.elapsed() >= DELAY, "{:?}", before.elapsed());
        assert!(told == [2, 1] || lag.worst() > SECOND / 2, "the time left counts down: {told:?}");
        let took = met.elapsed();
        println!("fair {fair}: {took:?}");
        assert!(took <= DELAY + PROMPT + lag.worst(), "{took:?}");
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_fair_waiters_come_in_their_order_after_the_clock_was_set_back() {
    let ((server, clock), lag) = (newborn(), Lag::start());
    clock.back(HOUR);
    let one = builder("one").url(server.url()).build().await.unwrap();
    let two = builder("two").url(server.url()).build().await.unwrap();
    let mut wire = server.wire();
    wire.set("job", "somebody's");
    let mut waiters = Vec::new();
    for leases in [&one, &two, &one, &two] {
        waiters.push(place(&leases.lock("job")).await);
    }
    all_can_be_called(&mut wire, "job", 4).await;
    wire.del("job");
    let freed = Instant::now();
    let mut waiters = waiters.into_iter();
    let (mut lease, at) = had(waiters.next().unwrap()).await;
    let took = at.saturating_duration_since(freed);
    println!("the first after {took:?}");
    assert!(took >= DELAY && took <= DELAY + PROMPT + lag.worst(), "{took:?}");
    // A release passes on what its program knows of the uptime, as polls do. The second program may not have asked
    // before.
    for (n, waiter) in waiters.enumerate() {
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        let (next, at) = had(waiter).await;
        let took = at.saturating_duration_since(released);
        println!("passed on after {took:?}");
        let limit = if n == 0 { Duration::ZERO } else { HEARTBEAT };
        assert!(took <= limit + PROMPT + lag.of(2), "{n}: {took:?}");
        lease = next;
    }
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_over_a_quorum_the_clocks_of_all_nodes_are_set_back() {
    let (nodes, lag) = (Nodes::start(3), Lag::start());
    let old = builder("old").quorum(nodes.urls()).build().await.unwrap();
    knows_them_for_the_delay(&old).await;
    let held = old.lock("held").acquire().await.unwrap();
    (0..3).for_each(|at| nodes.clock(at).back(HOUR));

    tries(&old, false).await.expect("it knows that the nodes are old enough").release().await.unwrap().confirmed();
    assert!(nodes[0].wire().del("held"));
    eventually_async(HANGS, "the lost key is brought back", || nodes.with_key("held") == [0, 1, 2]).await;
    held.release().await.unwrap().confirmed();

    let met = Instant::now();
    let new = builder("new").quorum(nodes.urls()).build().await.unwrap();
    let refusal = tries(&new, false).await.expect_err("they may have forgotten");
    let left = seconds_left(&refusal);
    assert!(left.len() >= 2 && left.iter().all(|left| (1..=2).contains(left)), "{refusal}");
    let (lease, told) = tries_on(&new, false).await;
    let took = met.elapsed();
    println!("{took:?}, {told:?}");
    assert!(told.is_sorted_by(|one, next| one >= next), "the time left counts down: {told:?}");
    assert!(took >= DELAY && took <= DELAY + SECOND + PROMPT + lag.worst(), "{took:?}");
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_an_old_witness_gives_no_vote_to_a_server_that_really_restarted() {
    an_old_witness_gives_nothing(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_an_old_witness_gives_no_fair_waiter_a_lock_of_a_server_that_really_restarted() {
    an_old_witness_gives_nothing(true).await;
}

async fn an_old_witness_gives_nothing(fair: bool) {
    let (server, clock) = newborn();
    let holder = builder("holder").url(server.url()).build().await.unwrap();
    let old = builder("old").url(server.url()).build().await.unwrap();
    // First with the clock unchanged, then with the clock set back.
    for back in [Duration::ZERO, HOUR] {
        clock.back(back);
        knows_them_for_the_delay(&old).await;
        tries(&old, fair).await.expect("known for long enough").release().await.unwrap().confirmed();
        let forgotten = within(HANGS, "the lease", holder.lock("job").acquire()).await.unwrap();
        server.kill();
        let killed = Instant::now();
        server.restart();
        let (lease, told) = tries_on(&old, fair).await;
        let waited = killed.elapsed();
        assert!(!forgotten.is_held(), "two holders after {waited:?}");
        // Uptime is counted in whole seconds, so it may be up to one second too high.
        assert!(waited + SECOND >= DELAY && waited >= TTL, "{waited:?}");
        assert!(!told.is_empty(), "it was never refused");
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_an_old_witness_gives_no_majority_of_nodes_that_really_restarted() {
    let nodes = Nodes::start(3);
    let holder = builder("holder").quorum(nodes.urls()).build().await.unwrap();
    let old = builder("old").quorum(nodes.urls()).build().await.unwrap();
    knows_them_for_the_delay(&old).await;
    (0..3).for_each(|at| nodes.clock(at).back(HOUR));
    let forgotten = within(HANGS, "the lease", holder.lock("job").acquire()).await.unwrap();
    let killed = Instant::now();
    for node in nodes.iter().take(2) {
        node.kill();
        node.restart();
    }
    let (lease, told) = tries_on_for_a_majority(&old).await;
    let waited = killed.elapsed();
    assert!(!forgotten.is_held(), "two holders after {waited:?}");
    assert!(waited + SECOND >= DELAY && waited >= TTL, "{waited:?}");
    assert!(!told.is_empty(), "no node has refused it");
    lease.release().await.unwrap().confirmed();
}

/// Like `tries_on`, but the third node may still know who holds the lock.
async fn tries_on_for_a_majority(leases: &Client) -> (Lease, Vec<u64>) {
    let (began, mut told) = (Instant::now(), Vec::new());
    loop {
        match leases.lock("job").try_acquire().await {
            Ok(Some(lease)) => return (lease, told),
            Ok(None) => {}
            Err(error) => told.extend(seconds_left(&error.to_string())),
        }
        assert!(began.elapsed() < HANGS, "{told:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
