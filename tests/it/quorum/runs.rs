//! A vote does not ask a server for its run if only that run can have answered (F18, F40).

use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use support::{HANGS, Nodes, Server, Wire, within};

use super::scene::{builder, built};
use crate::common::{Confirmed as _, NAME};

const TTL: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(2);
/// A server's uptime is in whole seconds, and up to one second too long.
const SECOND: Duration = Duration::from_secs(1);

async fn client(nodes: &Nodes, restart_delay: Duration) -> Client {
    built(builder(nodes.urls()).restart_delay(restart_delay).ttl(TTL)).await
}

async fn cycle(leases: &Client) {
    let lease = within(HANGS, "it is free", leases.lock(NAME).acquire()).await.expect("they are there");
    lease.release().await.expect("it was ours").confirmed();
}

/// Counts the `INFO` calls of a server, in scripts and alone, except its own.
struct Asked {
    wire: Wire,
    by_this: usize,
}

impl Asked {
    fn of(server: &Server) -> Self {
        Self { wire: server.wire(), by_this: 0 }
    }

    fn times(&mut self) -> usize {
        let times = self.wire.calls("info") - self.by_this;
        // Reading the count is such a call itself.
        self.by_this += 1;
        times
    }
}

/// How often each server was asked during this cycle. One that was slower than the majority may be asked in the next.
async fn asked_by_a_cycle(leases: &Client, all: &mut [Asked]) -> Vec<usize> {
    let before: Vec<usize> = all.iter_mut().map(Asked::times).collect();
    cycle(leases).await;
    all.iter_mut().zip(before).map(|(asked, before)| asked.times() - before).collect()
}

/// Runs cycles until no server is asked any longer.
async fn until_nobody_is_asked(leases: &Client, all: &mut [Asked]) {
    let began = Instant::now();
    while asked_by_a_cycle(leases, all).await.iter().any(|&times| times > 0) {
        assert!(began.elapsed() < HANGS, "every vote asks");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_asked_for_its_run_until_it_is_known_and_again_when_it_forgets_its_scripts() {
    let nodes = Nodes::start(3);
    let leases = client(&nodes, Duration::ZERO).await;
    let mut all: Vec<Asked> = nodes.iter().map(Asked::of).collect();
    if Server::version().major < 7 {
        for _ in 0..4 {
            let asked = asked_by_a_cycle(&leases, &mut all).await;
            assert!(asked.iter().sum::<usize>() >= 2, "such a server may keep scripts over a restart: {asked:?}");
        }
        return;
    }
    until_nobody_is_asked(&leases, &mut all).await;
    let before: Vec<usize> = all.iter_mut().map(Asked::times).collect();
    for asked in &mut all {
        asked.wire.must(&["SCRIPT", "FLUSH"]);
    }
    // A server slower than the majority is asked later.
    let began = Instant::now();
    while all.iter_mut().zip(&before).any(|(asked, before)| asked.times() == *before) {
        assert!(began.elapsed() < HANGS, "it may be another run that does not know the script");
        cycle(&leases).await;
    }
    until_nobody_is_asked(&leases, &mut all).await;
}

/// A restart ends what is known, even if the program has known the earlier run for the restart delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_node_that_was_not_asked_any_more_is_asked_after_its_restart() {
    if Server::version().major < 7 {
        return;
    }
    let nodes = Nodes::seasoned(3);
    let mut all: Vec<Asked> = nodes.iter().map(Asked::of).collect();
    let met = Instant::now();
    let leases = client(&nodes, DELAY).await;
    until_nobody_is_asked(&leases, &mut all).await;
    assert!(met.elapsed() >= DELAY, "only a client that has known it for the delay need not ask");

    let lease = within(HANGS, "it is free", leases.lock(NAME).acquire()).await.expect("they are there");
    let killed = Instant::now();
    for node in nodes.iter().take(2) {
        node.kill();
        node.restart();
    }
    drop(lease);
    let (began, mut refusals) = (Instant::now(), 0);
    let successor = loop {
        match leases.lock(NAME).try_acquire().await {
            Ok(Some(lease)) => break lease,
            Ok(None) => {}
            Err(Error::Unavailable(error)) => refusals += usize::from(error.to_string().contains("votes in")),
            Err(other) => panic!("{other}"),
        }
        assert!(began.elapsed() < HANGS, "they never vote again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let waited = killed.elapsed();
    assert!(waited + SECOND >= DELAY && refusals > 0, "two nodes that forgot voted after {waited:?}");
    successor.release().await.expect("it was ours").confirmed();
}
