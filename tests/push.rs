//! What the server tells by itself: waiters are woken, and losses told, without anybody polling.

// Helpers of tests may fail like tests, and read clocks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod support;

use std::time::{Duration, Instant};

use leasehold::{Leases, LossReason};
use support::{Lag, Server, eventually, within};
use tokio::sync::mpsc;

const SOON: Duration = Duration::from_secs(10);
/// What the fault table allows a signal that is pushed.
const PUSHED: Duration = Duration::from_millis(50);

async fn program(server: &Server) -> Leases {
    Leases::connect(server.url()).await.unwrap()
}

/// How many keys the server tracks for anybody.
fn tracked(server: &Server) -> usize {
    server.wire().info_field("stats", "tracking_total_keys").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_another_process_is_pushed() {
    let server = Server::start();
    let (one, two) = (program(&server).await, program(&server).await);
    let lag = Lag::start();
    for round in 0..20 {
        let lease = one.lock("job").acquire().await.unwrap();
        let waiter = tokio::spawn(two.lock("job").acquire());
        eventually(SOON, "the waiter to be registered", || tracked(&server) > 0);
        let released = Instant::now();
        lease.release().await.unwrap();
        let next = within(SOON, "the waiter", waiter).await.unwrap().unwrap();
        let took = released.elapsed();
        println!("{took:?}");
        assert!(took <= PUSHED + lag.worst(), "round {round}: {took:?}");
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_told_by_push() {
    let server = Server::start();
    let leases = program(&server).await;
    let lag = Lag::start();
    let mut wire = server.wire();
    for _ in 0..20 {
        let lease = leases.lock("job").acquire().await.unwrap();
        eventually(SOON, "the key to be watched", || tracked(&server) > 0);
        let deleted = Instant::now();
        wire.del("job");
        let lost = within(SOON, "the loss", lease.lost()).await;
        let took = deleted.elapsed();
        println!("{took:?}");
        assert_eq!(lost.reason(), LossReason::Deleted);
        assert!(took <= PUSHED + lag.worst(), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_is_told() {
    let server = Server::start();
    let (tell, mut told) = mpsc::unbounded_channel();
    let (one, two) = (program(&server).await, program(&server).await);
    let lag = Lag::start();
    let lease = one.lock("job").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("job").on_wait(move |_| tell.send(()).unwrap()).acquire());
    within(SOON, "the waiter to wait", told.recv()).await;
    eventually(SOON, "the key to be watched", || tracked(&server) > 0);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let flushed = Instant::now();
    server.wire().must(&["FLUSHALL"]);
    within(SOON, "the loss", lease.lost()).await;
    println!("{:?}", flushed.elapsed());
    let _next = within(SOON, "the waiter", waiter).await.unwrap().unwrap();
    let took = flushed.elapsed();
    println!("{took:?}");
    assert!(took <= PUSHED + lag.worst(), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_every_connection_is_survived() {
    let server = Server::start();
    let (one, two) = (program(&server).await, program(&server).await);
    let mut wire = server.wire();
    let lease = one.lock("job").acquire().await.unwrap();
    let waiter = tokio::spawn(two.lock("job").acquire());
    for _ in 0..20 {
        eventually(SOON, "the waiter to be registered", || tracked(&server) > 0);
        wire.must(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let released = Instant::now();
    lease.release().await.unwrap();
    let _next = within(SOON, "the waiter", waiter).await.unwrap().unwrap();
    println!("{:?}", released.elapsed());
}
