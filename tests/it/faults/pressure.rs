//! A server that is out of memory, full of clients, or evicts keys: rows F21, F23 and F24 of the fault table.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease, LossReason, NodeAnswer, Owner, Status};
use support::{Cluster, Lag, Match, Proxy, SIGNAL, Server, Wire, eventually_async, scripts::RENEW, seen, within};

use crate::common::{COMMAND, Calm, Confirmed as _, LONG, MEDIUM, NAME, are_watched};
use crate::fair::line::{all_can_be_called, had, nothing_is_left, place, tokens};
use crate::quorum::scene::{HANGS, Node, Scene, Share};

const TTL: Duration = Duration::from_millis(1_200);
/// The longest pause between two checks of a waiter.
const LOOK: Duration = Duration::from_secs(1);

async fn connect(url: String) -> Client {
    Client::builder().url(url).ttl(TTL).command_timeout(COMMAND).build().await.unwrap()
}

/// The error of an acquire that was refused for now; panics unless it has all of these words.
#[track_caller]
fn unavailable<T: std::fmt::Debug>(outcome: Result<T, Error>, words: &[&str]) -> Error {
    let Err(error @ Error::Unavailable(_)) = outcome else { panic!("no call can be served, but got {outcome:?}") };
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    assert!(matches!(error, Error::Unavailable(_)) && error.is_transient());
    error
}

/// The words that name the server's reason, and the remedy.
const OUT_OF_MEMORY: [&str; 2] = ["OOM", "maxmemory is reached"];

/// From now on the server refuses every write that needs memory.
fn fill(server: &Server) {
    server.wire().must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.wire().must(&["CONFIG", "SET", "maxmemory", "1"]);
}

fn relieve(server: &Server) {
    server.wire().must(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn renewals(proxy: &Proxy) -> usize {
    proxy.count(Match::script(RENEW))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_memory_is_used_up() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (connect(proxy.url()).await, server.wire(), Lag::start());
    let (held, dropped) =
        (leases.lock("held").acquire().await.unwrap(), leases.lock("dropped").acquire().await.unwrap());
    let calm = Calm::of(&held);
    fill(&server);
    for name in ["free", "held"] {
        unavailable(leases.lock(name).owner(Owner::anonymous()).try_acquire().await, &OUT_OF_MEMORY);
    }
    // Its last check may be too short for an answer.
    unavailable(leases.lock("free").acquire_within(COMMAND).await, &[]);
    let waiter = tokio::spawn(leases.lock("free").acquire());

    // This also holds when the scripts have to be sent again.
    wire.must(&["SCRIPT", "FLUSH"]);
    let before = renewals(&proxy);
    // Longer than a lease lasts without renewals.
    tokio::time::sleep(2 * TTL).await;
    calm.lasted(&lag);
    held.renew().await.expect("a renewal needs no memory");
    seen::at_least("renewals confirmed in 2 TTL without memory", renewals(&proxy) - before, 4);
    assert!(!waiter.is_finished(), "it waits for the memory");
    held.release().await.expect("a release needs no memory").confirmed();
    drop(dropped);
    eventually_async(HANGS, "what was dropped is released", || !wire.exists("dropped")).await;
    assert!(!wire.exists("held") && !wire.exists("free"));

    relieve(&server);
    let relieved = Instant::now();
    let lease = within(HANGS, "the waiter has it", waiter).await.unwrap().unwrap();
    let took = relieved.elapsed();
    seen::took("waiter served after memory came back", took, LOOK + SIGNAL, &lag);
    assert!(took <= LOOK + SIGNAL + lag.worst(), "{took:?}");
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_memory_is_used_up_while_a_fair_queue_waits() {
    let server = Server::start();
    let (holder, ours, theirs) =
        (connect(server.url()).await, connect(server.url()).await, connect(server.url()).await);
    let (mut wire, lag) = (server.wire(), Lag::start());
    let lease = holder.lock("job").fair(true).acquire().await.unwrap();
    let waiters = [place(&ours.lock("job")).await, place(&theirs.lock("job")).await];
    all_can_be_called(&mut wire, "job", 2).await;
    let (calm, line) = (Calm::of(&lease), tokens(&mut wire, "job"));
    fill(&server);
    let fair = |name: &str| theirs.lock(name).fair(true).owner(Owner::anonymous());
    unavailable(fair("free").try_acquire().await, &OUT_OF_MEMORY);
    for name in ["free", "job"] {
        unavailable(fair(name).acquire_within(COMMAND).await, &[]);
    }
    // Checking needs no memory, and the lock is held.
    assert!(matches!(fair("job").try_acquire().await, Ok(None)));
    assert_eq!(tokens(&mut wire, "job"), line, "a refused caller leaves nothing");
    tokio::time::sleep(TTL).await;
    calm.lasted(&lag);

    // A release needs no memory to grant the lock to the next waiter.
    let (mut lease, mut fence) = (lease, 0);
    for waiter in waiters {
        assert!(u64::from(lease.fence()) > fence);
        fence = lease.fence().into();
        let released = Instant::now();
        lease.release().await.expect("a release needs no memory").confirmed();
        let (next, at) = had(waiter).await;
        let took = at.saturating_duration_since(released);
        seen::took("next of the queue after a release", took, SIGNAL, &lag);
        assert!(took <= SIGNAL + lag.of(2), "{took:?}");
        next.renew().await.expect("a renewal needs no memory");
        lease = next;
    }
    lease.release().await.unwrap().confirmed();
    nothing_is_left(&mut wire).await;
    relieve(&server);
    theirs.lock("job").fair(true).acquire().await.unwrap().release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f21_memory_of_quorum_nodes_is_used_up() {
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        let calm = Calm::of(&lease);
        scene.faulty(share).iter().for_each(|node| fill(&node.server));
        let outcome = scene.leases.lock("other").ttl(MEDIUM).try_acquire().await;
        match share {
            Share::Minority => outcome.unwrap().expect("it is free").release().await.expect("it was ours").confirmed(),
            Share::Majority => {
                let error = unavailable(outcome, &["OOM", "1 of 3 nodes agreed"]);
                let votes = error.votes().expect("it says what each node said");
                let refused = |answer: &NodeAnswer| answer.to_string().contains("maxmemory is reached");
                assert_eq!(votes.nodes().iter().filter(|vote| refused(vote.answer())).count(), 2, "{votes}");
            }
        }
        // Longer than a lease lasts without renewals.
        tokio::time::sleep(MEDIUM * 3 / 2).await;
        calm.lasted(&scene.lag);
        lease.release().await.expect("a release needs no memory").confirmed();
        for name in [NAME, "other"] {
            scene.is_taken_away_within(MEDIUM / 2, name).await;
        }
        scene.faulty(share).iter().for_each(|Node { server, .. }| relieve(server));
        scene.acquire(MEDIUM).await.release().await.expect("it was ours").confirmed();
    }
}

/// Refuses new clients: as many are connected as are allowed.
fn close_the_door(wire: &mut Wire) {
    let clients = wire.must(&["CLIENT", "LIST"]).text().lines().count();
    wire.must(&["CONFIG", "SET", "maxclients", &clients.to_string()]);
}

const FULL: [&str; 1] = ["max number of clients reached"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_no_more_clients_are_let_in() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire, lag) = (connect(proxy.url()).await, server.wire(), Lag::start());
    let lease = leases.lock("held").acquire().await.unwrap();
    // By then the connections made at the first use are open.
    eventually_async(HANGS, "the key is watched", || wire.tracked_keys() > 0).await;
    let calm = Calm::of(&lease);
    close_the_door(&mut wire);

    let started = Instant::now();
    let newcomer = Client::builder().url(server.url()).connect_timeout(COMMAND).build();
    let error = within(HANGS, "the build ends", newcomer).await.expect_err("it is full");
    let took = started.elapsed();
    assert!(matches!(error, Error::Unavailable(_)) && error.is_transient(), "{error}");
    let words = [FULL[0], "raise its maxclients"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    assert!(!error.to_string().contains("url"), "{error}");
    let bound = COMMAND + SIGNAL;
    seen::took("a newcomer is told", took, bound, &lag);
    assert!(took <= bound + lag.worst(), "{took:?}");

    // Connected clients continue.
    let waiter = tokio::spawn(leases.lock("held").owner(Owner::anonymous()).acquire());
    let before = renewals(&proxy);
    tokio::time::sleep(2 * TTL).await;
    seen::at_least("renewals confirmed in 2 TTL while full", renewals(&proxy) - before, 4);
    calm.lasted(&lag);
    let other = leases.lock("other").acquire().await.expect("no connection is needed for it");
    other.release().await.unwrap().confirmed();
    let released = Instant::now();
    lease.release().await.unwrap().confirmed();
    within(HANGS, "the waiter has it", waiter).await.unwrap().unwrap().release().await.unwrap().confirmed();
    let took = released.elapsed();
    seen::took("waiter served after a release while full", took, LOOK + SIGNAL, &lag);
    assert!(took <= LOOK + SIGNAL + lag.worst(), "{took:?}");
}

/// There the reply has other words, and no caller is refused for good either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_a_server_of_a_cluster_that_is_full_is_waited_for() {
    let cluster = Cluster::start(1, 0);
    let mut wire = cluster.servers()[0].wire();
    let builder = || Client::builder().url(cluster.url()).ttl(LONG).command_timeout(COMMAND).connect_timeout(COMMAND);
    let leases = builder().build().await.unwrap();
    leases.lock("warm").acquire().await.unwrap().release().await.unwrap().confirmed();
    let before = wire.must(&["CONFIG", "GET", "maxclients"]).array()[1].text();
    wire.must(&["CONFIG", "SET", "maxclients", "1"]);
    wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    // At first the connection that has just ended may be the reason.
    let tried = within(HANGS, "a try", async {
        loop {
            let error = leases.lock("job").try_acquire().await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            if error.to_string().contains("max number of clients") {
                return error;
            }
        }
    })
    .await;
    let built = within(HANGS, "a newcomer", builder().build()).await.unwrap_err();
    for error in [tried, built] {
        assert!(
            matches!(error, Error::Unavailable(_)) && error.to_string().contains("raise its maxclients"),
            "{error}"
        );
    }
    let waiter = tokio::spawn(leases.lock("job").acquire());
    tokio::time::sleep(2 * COMMAND).await;
    assert!(!waiter.is_finished());
    wire.must(&["CONFIG", "SET", "maxclients", &before]);
    within(HANGS, "there is room again", waiter).await.unwrap().unwrap().release().await.unwrap().confirmed();
}

/// A program works with the one connection that it has, and does not wait for another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_programs_do_not_shut_each_other_out() {
    let server = Server::start();
    let mut wire = server.wire();
    wire.must(&["CONFIG", "SET", "maxclients", "2"]);
    let (lag, leases) = (Lag::start(), connect(server.url()).await);
    let lease = leases.lock("held").acquire().await.unwrap();
    let calm = Calm::of(&lease);
    tokio::time::sleep(2 * TTL).await;
    calm.lasted(&lag);
    lease.release().await.unwrap().confirmed();
    leases.close().await;
    wire.must(&["CONFIG", "SET", "maxclients", "11"]);
    let program = |number: usize| {
        let url = server.url();
        tokio::spawn(async move {
            let leases = Client::connect(url).await?;
            leases.lock(format!("of:{number}")).acquire().await?.release().await?.confirmed();
            leases.close().await;
            Ok::<_, Error>(())
        })
    };
    for program in (0..40).map(program).collect::<Vec<_>>() {
        within(HANGS, "a program", program).await.unwrap().expect("there is a place for it after another one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f23_a_connection_that_ends_is_not_let_in_again_for_a_while() {
    /// Half of it passes until the lease is at risk and a connection was refused, and half a second more until the next
    /// try.
    const LASTS: Duration = Duration::from_secs(3);
    let server = Server::start();
    let (leases, mut wire, lag) = (connect(server.url()).await, server.wire(), Lag::start());
    let lease = leases.lock("held").ttl(LASTS).acquire().await.unwrap();
    let mut changes = lease.status_changes();
    eventually_async(HANGS, "the key is watched", || wire.tracked_keys() > 0).await;
    wire.must(&["CONFIG", "SET", "maxclients", "1"]);
    for kind in ["normal", "pubsub"] {
        wire.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    assert_eq!(within(HANGS, "a missing renewal", changes.next()).await, Some(Status::AtRisk));
    lease.check().expect("at risk is not lost");
    unavailable(leases.lock("free").try_acquire().await, &FULL);
    wire.must(&["CONFIG", "SET", "maxclients", "10000"]);
    let open = Instant::now();
    assert_eq!(within(HANGS, "a renewal gets through", changes.next()).await, Some(Status::Held));
    // A connection is tried at least twice a second.
    let (took, limit) = (open.elapsed(), Duration::from_millis(500) + COMMAND + SIGNAL);
    seen::took("held again after the door was open", took, limit, &lag);
    assert!(took <= limit + lag.worst(), "{took:?}");
    lease.release().await.unwrap().confirmed();
}

/// All policies except `noeviction`. Locks and fences have a TTL, so the volatile ones evict them too.
const POLICIES: [&str; 7] =
    ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"];

/// Makes the server evict all its keys. Returns when that began.
fn evict(wire: &mut Wire, policy: &str) -> Instant {
    wire.must(&["CONFIG", "RESETSTAT"]);
    wire.must(&["CONFIG", "SET", "maxmemory-policy", policy]);
    let began = Instant::now();
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    began
}

/// The row's requirement for an evicted lease, once the loss was reported.
async fn the_next_one_is_later(leases: &Client, wire: &mut Wire, lease: Lease) {
    let evicted = wire.info_field("stats", "evicted_keys").unwrap();
    assert_ne!(evicted, "0", "nothing was evicted");
    wire.must(&["CONFIG", "SET", "maxmemory", "0"]);
    let fence = lease.fence();
    let released = lease.release().await;
    let lost = released.expect_err("it was lost");
    assert!(matches!(&lost, leasehold::Error::Lost(lost) if lost.reason() == LossReason::Deleted), "{lost:?}");
    // The fence's floor was evicted too.
    let next = leases.lock("job").ttl(LONG).acquire().await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f24_the_key_is_evicted() {
    let server = Server::start();
    let (leases, mut wire, lag) = (connect(server.url()).await, server.wire(), Lag::start());
    for policy in POLICIES {
        let lease = leases.lock("job").ttl(LONG).acquire().await.unwrap();
        are_watched(&mut wire, [&lease]).await;
        let began = evict(&mut wire, policy);
        let lost = within(HANGS, "the signal of a loss", lease.lost()).await;
        let took = began.elapsed();
        assert_eq!(lost.reason(), LossReason::Deleted, "{policy}");
        assert_eq!(lease.check(), Err(lost.clone().into()));
        seen::took("signal after the eviction", took, SIGNAL, &lag);
        assert!(took <= SIGNAL + lag.of(3), "{policy}: {took:?}");
        the_next_one_is_later(&leases, &mut wire, lease).await;
    }
}

#[tokio::test]
async fn f24_the_key_is_evicted_without_notifications() {
    let server = Server::start();
    let (mut wire, lag) = (server.wire(), Lag::start());
    let leases = connect(server.url_without_push(server.port())).await;
    for policy in POLICIES {
        let lease = leases.lock("job").acquire().await.unwrap();
        let began = evict(&mut wire, policy);
        let lost = within(HANGS, "the signal of a loss", lease.lost()).await;
        let took = began.elapsed();
        assert_eq!(lost.reason(), LossReason::Deleted, "{policy}: by the deadline it would be Expired");
        seen::took("signal after the eviction, without push", took, TTL / 3 + SIGNAL, &lag);
        let late = lag.worst();
        assert!(took <= TTL / 3 + SIGNAL + late, "{policy}: {took:?}; the machine lagged {late:?}");
        the_next_one_is_later(&leases, &mut wire, lease).await;
    }
}
