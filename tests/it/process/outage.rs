//! How many log lines an outage causes: each cause once, then at most once a minute with its count, and its end once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leasehold::{Builder, Client};
use support::{EventLog, HANGS, Server, alone, eventually_async, two_workers};
use tokio::task::JoinSet;

/// A cause is not logged a second time within this outage.
const SHORT: Duration = Duration::from_secs(15);

/// Each cause is logged again within this outage, a minute later.
const LONG: Duration = Duration::from_secs(61);

/// The number of waiters: `OF_ONE_NAME` for one name, the others each for a name of its own.
const WAITERS: usize = 500;
const OF_ONE_NAME: usize = 240;

/// After this, an attempt of unknown outcome is left to expire, which is logged too.
const TTL: Duration = Duration::from_secs(20);

/// One kind of outage.
struct Outage {
    kind: &'static str,
    /// One server, or a quorum with a majority away.
    servers: Vec<Server>,
    /// How many servers are away: the last ones.
    away: usize,
    begin: fn(&Server),
    end: fn(&Server),
    /// The most causes: the servers' errors and their silence, and both again for undos.
    causes: usize,
}

impl Outage {
    fn of_one(kind: &'static str, causes: usize, begin: fn(&Server), end: fn(&Server)) -> Self {
        let server = Server::builder().arg("--loading-process-events-interval-bytes", "1024").start();
        Self { kind, servers: vec![server], away: 1, begin, end, causes }
    }

    fn builder(&self) -> Builder {
        let builder = Client::builder().ttl(TTL).label(self.kind);
        match &*self.servers {
            [only] => builder.url(only.url()),
            several => builder.quorum(several.iter().map(Server::url)).restart_delay(Duration::ZERO),
        }
    }

    fn away(&self) -> impl Iterator<Item = &Server> {
        self.servers.iter().rev().take(self.away)
    }

    /// Runs waiters for as long as the outage lasts, and counts the lines of each cause: one at its begin, and one a
    /// minute later.
    async fn lasts(self, span: Duration, log: EventLog) {
        let (kind, most) = (self.kind, if span < LONG { 1 } else { 2 });
        let leases = self.builder().build().await.unwrap();
        tokio::task::block_in_place(|| self.away().for_each(self.begin));
        let mut waiters = JoinSet::new();
        for at in 0..WAITERS {
            let name = if at < OF_ONE_NAME { format!("{kind}-all") } else { format!("{kind}-{at}") };
            let waiter = leases.lock(name).acquire();
            // A dropped lease is released in the background.
            waiters.spawn(async move { drop(waiter.await.unwrap()) });
        }
        tokio::time::sleep(span).await;
        tokio::task::block_in_place(|| self.away().for_each(self.end));
        // No waiter gave up.
        while let Some(done) = waiters.join_next().await {
            done.unwrap();
        }
        let own: Vec<String> = log.lines().into_iter().filter(|line| self.is_about(line)).collect();
        let mut causes = BTreeMap::<String, usize>::new();
        for line in own.iter().filter(|line| line.starts_with("WARN") || line.starts_with("ERROR")) {
            *causes.entry(cause(line)).or_default() += 1;
        }
        let lines: usize = causes.values().sum();
        println!("{kind}: {lines} lines: {causes:#?}");
        assert!(lines > 0, "{kind}: nothing is logged");
        assert!(causes.values().all(|&lines| lines <= most), "{kind}: {causes:#?}");
        assert!(lines <= most * self.causes, "{kind}: {causes:#?}");
        let is_told = |line: &String| line.starts_with("INFO wait") && line.contains(kind) && line.contains("again");
        eventually_async(HANGS, "the end is told", || log.lines().iter().any(is_told)).await;
        let ends = log.lines().iter().filter(|line| is_told(line)).count();
        assert!(ends <= most, "{kind}: its end is logged {ends} times");
        leases.close().await;
    }

    fn is_about(&self, line: &str) -> bool {
        let port = |server: &Server| line.contains(&format!(":{}", server.port()));
        line.contains(&format!("\"{}-", self.kind))
            || line.contains(&format!("label=\"{}\"", self.kind))
            || self.servers.iter().any(port)
    }
}

/// The line without what varies from waiter to waiter: names, counts and durations.
fn cause(line: &str) -> String {
    let known: BTreeSet<_> = ["lock=", "label=", "count="].into();
    let words = line.split(' ').filter(|word| !known.iter().any(|field| word.starts_with(field)));
    words
        .filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()) || word.contains(':'))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn an_outage_under_many_waiters_is_told_in_a_few_lines() {
    alone(|| two_workers().block_on(outages_last(SHORT)));
}

#[test]
#[ignore = "scripts/nightly matrix"]
fn an_outage_of_a_minute_under_many_waiters_is_told_in_a_few_lines() {
    alone(|| two_workers().block_on(outages_last(LONG)));
}

async fn outages_last(span: Duration) {
    let log = EventLog::start();
    let outages = [
        Outage::of_one("stopped", 2, Server::stop, Server::cont),
        Outage::of_one("killed", 2, Server::kill, Server::restart),
        Outage::of_one(
            "replica",
            3,
            |server| drop(server.wire().must(&["REPLICAOF", "127.0.0.1", "1"])),
            |server| drop(server.wire().must(&["REPLICAOF", "NO", "ONE"])),
        ),
        Outage::of_one(
            "full",
            3,
            |server| drop(server.wire().must(&["CONFIG", "SET", "maxmemory", "1"])),
            |server| drop(server.wire().must(&["CONFIG", "SET", "maxmemory", "0"])),
        ),
        Outage::of_one("loading", 3, loads, |server| {
            drop(patient(server).must(&["CONFIG", "SET", "key-load-delay", "0"]));
        }),
        Outage {
            kind: "frozen",
            servers: (0..3).map(|_| Server::start()).collect(),
            away: 2,
            begin: Server::stop,
            end: Server::cont,
            // A machine under load makes the other servers silent too, and each is logged separately.
            causes: 3 * 3,
        },
    ];
    let mut all = JoinSet::new();
    for outage in outages {
        all.spawn(outage.lasts(span, log));
    }
    let mut failed = Vec::new();
    while let Some(done) = all.join_next().await {
        failed.extend(done.err());
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// A connection that waits for a busy server.
fn patient(server: &Server) -> support::Wire {
    let mut wire = server.wire();
    wire.set_patience(HANGS).unwrap();
    wire
}

/// Makes the server load its data again, for longer than the outage.
fn loads(server: &Server) {
    let mut wire = patient(server);
    wire.must(&["DEBUG", "POPULATE", "200000", "filler", "100"]);
    wire.must(&["CONFIG", "SET", "key-load-delay", "400"]);
    wire.send(&["DEBUG", "RELOAD"]).unwrap();
    // The server continues after this connection ends, but may not have begun.
    let mut probe = patient(server);
    support::eventually(HANGS, "the server loads", || {
        probe.cmd(&["GET", "filler"]).error().is_some_and(|text| text.starts_with("LOADING"))
    });
}
