//! The events that a program can subscribe to: their names are stable, and no event contains the token.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use leasehold::{Client, Credentials, Lock, Owner};
use support::{Cluster, EventLog, HANGS, Replicated, Server, alone, eventually_async, two_workers, within};
use tracing::Level;

async fn expect(log: EventLog, start: &str, field: &str) {
    let of_its_kind = || log.lines().into_iter().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    let is_there = || of_its_kind().iter().any(|line| line.contains(field));
    let told = tokio::time::timeout(HANGS, eventually_async(HANGS * 2, "a line", is_there)).await;
    assert!(told.is_ok(), "no {start:?} with {field:?}, but\n{}", of_its_kind().join("\n"));
}

/// Whether a try by another owner finds the lock busy.
async fn other_try(lock: &Lock) -> bool {
    lock.clone().owner(Owner::anonymous()).try_acquire().await.unwrap().is_none()
}

/// A provider that fails for each new connection, and later succeeds again.
async fn credentials_are_told_once(log: EventLog) {
    static FAILS: AtomicBool = AtomicBool::new(false);
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let server = Server::builder().arg("--requirepass", "sesame").start();
    let place = leasehold::Server::at("127.0.0.1", server.port()).credentials(async || {
        let fails = FAILS.load(Ordering::SeqCst);
        ASKED.fetch_add(1, Ordering::SeqCst);
        if fails { Err("the vault is sealed") } else { Ok(Credentials::of_default_user("sesame")) }
    });
    let leases = Client::builder().server(place).build().await.unwrap();
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut wire = server.wire();
    wire.must(&["AUTH", "sesame"]);
    let mut end_all = || drop(wire.must(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]));
    FAILS.store(true, Ordering::SeqCst);
    // The provider's answer is reused for a second.
    let mut until = async |questions: usize| {
        let until = ASKED.load(Ordering::SeqCst) + questions;
        while ASKED.load(Ordering::SeqCst) < until {
            end_all();
            while lease.renew().await.is_err() {}
        }
    };
    within(HANGS, "three failures", until(3)).await;
    expect(log, "WARN credentials", "their provider has failed: the vault is sealed").await;
    FAILS.store(false, Ordering::SeqCst);
    within(HANGS, "two answers", until(2)).await;
    expect(log, "INFO credentials", "there are credentials again").await;
    let told = |start: &str| log.lines().iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((told("WARN credentials"), told("INFO credentials")), (1, 1));
    assert!(!log.lines().join("\n").contains("sesame"));
}

/// A cluster has many servers: an event names the server that was asked.
async fn of_a_cluster(log: EventLog) {
    let cluster = Cluster::start(2, 0);
    let leases = Client::builder().url(cluster.url()).ttl(Duration::from_secs(4)).build().await.unwrap();
    let name = cluster.name_at(1, "job");
    let lease = leases.lock(&name).acquire().await.unwrap();
    lease.renew().await.unwrap();
    let [_, primary, ..] = cluster.servers() else { panic!("there are three") };
    let node = format!("node=\"127.0.0.1:{}\"", primary.port());
    expect(log, "DEBUG renew", &format!("lock=\"{name}\" label=\"{}\" {node}", lease.label())).await;
    primary.stop();
    expect(log, "WARN at_risk", &format!("{node} left=")).await;
    within(HANGS, "the loss", lease.lost()).await;
    primary.cont();
    primary.wire().must(&["ACL", "SETUSER", "default", "-pexpire"]);
    let lease = leases.lock(&name).acquire().await.unwrap();
    expect(log, "DEBUG renew", &format!("lock=\"{name}\" {node} failure=")).await;
    primary.kill();
    expect(log, "DEBUG connection", &node).await;
    drop(lease);
}

/// One line, however many writes too few replicas have, and whichever server's lease is at risk.
async fn too_few_replicas_are_told_once(log: EventLog) {
    let servers = Replicated::start(1);
    let [replica] = servers.replicas() else { panic!("there is one") };
    let url = servers.primary().url();
    let leases = Client::builder().url(&url).min_replicas(1).ttl(Duration::from_secs(4)).build().await.unwrap();
    replica.stop();
    for name in ["one", "two"] {
        leases.lock(name).try_acquire().await.unwrap_err();
    }
    let node = format!("node=\"127.0.0.1:{}\"", servers.primary().port());
    expect(log, "WARN replicas", &format!("{node} seen=0 wanted=1 count=")).await;
    replica.cont();
    let lease = leases.lock("one").acquire().await.unwrap();
    expect(log, "INFO replicas", &node).await;
    let told = |start: &str| log.lines().iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((told("WARN replicas"), told("INFO replicas")), (1, 1));
    drop(lease);
}

/// The keeper has a thread of its own, so the subscriber must be the process's: one test covers the whole sequence.
#[test]
fn events_have_stable_names_and_never_show_the_token() {
    alone(|| {
        two_workers().block_on(async {
            let log = EventLog::start();
            let server = Server::start();
            // Long enough that a busy machine neither puts it at risk nor ends it.
            let leases =
                Client::builder().url(server.url()).label("one").ttl(Duration::from_secs(4)).build().await.unwrap();
            let lock = leases.lock("job");

            let lease = lock.acquire().await.unwrap();
            let token = lock.holder().await.unwrap().unwrap().token().unwrap().to_owned();
            expect(log, "span acquire", "lock=\"job\"").await;
            expect(log, "DEBUG acquired", "label=\"one\"").await;
            expect(log, "DEBUG acquired", "message=acquired").await;
            expect(log, "DEBUG renew", "lock=\"job\" label=\"one\"").await;
            expect(log, "DEBUG renew", "message=renewed").await;

            let other = lock.clone().owner(Owner::anonymous());
            let waiter = tokio::spawn(other.acquire());
            expect(log, "INFO wait", "holder=\"one\"").await;
            let lines = log.lines();
            let wait = lines.iter().find(|line| line.starts_with("INFO wait")).unwrap();
            let remaining = wait.split_once("remaining=").and_then(|(_, rest)| rest.split_once(" s")).unwrap().0;
            assert!(remaining.len() <= 4 && wait.contains(&format!("lives {remaining} s more")), "{wait}");
            waiter.abort();
            let _cancelled = waiter.await;
            assert!(other_try(&lock).await);
            expect(log, "DEBUG busy", "lock=\"job\" holder=\"one\" remaining=").await;
            expect(log, "DEBUG busy", "not acquired: it is held by one").await;
            tokio::select! {
                acquired = lock.clone().acquire() => panic!("{acquired:?}"),
                () = expect(log, "WARN wait", "this task itself acquired it") => {}
            }

            let data = Client::builder().url(server.url()).prefix("app:").build().await.unwrap();
            server.wire().must(&["RPUSH", "app:user:17", "value"]);
            server.wire().set("app:user:18", "value");
            for _ in 0..3 {
                assert!(data.lock("user:17").try_run(async |_| Ok::<_, leasehold::Error>(())).await.unwrap().is_none());
            }
            expect(log, "WARN misplaced", "lock=\"user:17\" key=\"app:user:17\" kind=\"list\" count=1").await;
            tokio::select! {
                acquired = data.lock("user:18").acquire() => panic!("{acquired:?}"),
                () = expect(log, "WARN misplaced", "the key \"app:user:18\" holds a string without a TTL") => {}
            }
            let misplaced = log.lines().into_iter().filter(|line| line.starts_with("WARN misplaced"));
            assert_eq!(misplaced.count(), 2, "each is logged once a minute");

            server.stop();
            expect(log, "WARN at_risk", "lock=\"job\"").await;
            // No failure is known, because the server is silent.
            let node = format!("node=\"127.0.0.1:{}\" left=", server.port());
            expect(log, "WARN at_risk", &node).await;
            server.cont();
            expect(log, "INFO recovered", "lock=\"job\"").await;

            assert_eq!(lease.release().await, Ok(leasehold::Released::Confirmed));
            expect(log, "DEBUG release", "lock=\"job\" label=\"one\"").await;
            expect(log, "DEBUG release", "message=released").await;

            let lease = lock.acquire().await.unwrap();
            let second = lock.holder().await.unwrap().unwrap().token().unwrap().to_owned();
            server.wire().del("job");
            within(HANGS, "the loss", lease.lost()).await;
            expect(log, "WARN lost", "reason=Deleted").await;

            credentials_are_told_once(log).await;

            let lease = lock.acquire().await.unwrap();
            server.kill();
            // Its connection may break while a renewal is under way.
            expect(log, "WARN at_risk", &format!("to redis at 127.0.0.1:{}", server.port())).await;
            let cause = format!("cause=\"there is no connection to redis at 127.0.0.1:{}", server.port());
            within(HANGS, "the loss", lease.lost()).await;
            expect(log, "WARN lost", &cause).await;

            expect(log, "DEBUG connection", &format!("node=\"127.0.0.1:{}\"", server.port())).await;
            of_a_cluster(log).await;
            too_few_replicas_are_told_once(log).await;

            let lines = log.lines().join("\n");
            for token in [token, second] {
                let secret = token.trim_start_matches("lh1:").split('@').next().unwrap();
                assert!(!lines.contains(secret), "a token in the log:\n{lines}");
            }
            assert!(!lines.contains(Level::ERROR.as_str()), "none of these is an error:\n{lines}");
        });
    });
}
