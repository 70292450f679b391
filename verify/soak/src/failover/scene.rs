//! A cluster, or a primary behind Sentinels, and its workers.

use std::{
    ops::Deref,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use support::{Cluster, SERVICE, Sentinels, Server, Wire};

use super::ledger::Ledger;
use crate::{
    crew::{Crew, Scenery, Worker},
    record::Process,
    setup::{LONE, Stage},
};

/// How many primaries a cluster has.
const PRIMARIES: usize = 3;

/// How soon a replica has taken over, and the former primary is its replica.
const SETTLED: Duration = Duration::from_secs(40);
/// How often to check for that state.
const POLL: Duration = Duration::from_millis(5);

/// The servers that keep the locks.
pub enum Set {
    Cluster(Cluster),
    Sentinel(Box<Sentinels>),
}

/// Everything that takes part in a round.
pub struct Scene {
    crew: Crew,
    pub set: Set,
    /// Held during a change to a shard that the shard has to recover from.
    shards: Vec<Mutex<()>>,
    /// Held while a replica is being elected, which needs the other primaries.
    election: Mutex<()>,
    ledger: Mutex<Ledger>,
}

impl Deref for Scene {
    type Target = Crew;

    fn deref(&self) -> &Crew {
        &self.crew
    }
}

impl Scenery for Scene {
    fn worker(&self, process: Process) -> Worker {
        self.hire(process, vec![self.set.url()], "-".into())
    }
}

impl Set {
    fn new(stage: Stage) -> Self {
        if stage == Stage::Cluster {
            return Self::Cluster(Cluster::start(PRIMARIES, stage.replicas().into()));
        }
        let all = Sentinels::start();
        for sentinel in all.sentinels() {
            // Sentinels wait for twice as long between two attempts.
            sentinel.wire().must(&["SENTINEL", "SET", SERVICE, "failover-timeout", "2500"]);
            // Longer than a busy machine takes a core away.
            sentinel.wire().must(&["SENTINEL", "SET", SERVICE, "down-after-milliseconds", "1000"]);
        }
        Self::Sentinel(Box::new(all))
    }

    pub fn servers(&self) -> &[Server] {
        match self {
            Self::Cluster(cluster) => cluster.servers(),
            Self::Sentinel(all) => all.servers(),
        }
    }

    /// The servers of a shard, by their numbers, beginning with the one that was made its primary.
    pub fn members(&self, shard: usize) -> Vec<usize> {
        match self {
            Self::Cluster(_) => vec![shard, shard + PRIMARIES],
            Self::Sentinel(all) => (0..all.servers().len()).collect(),
        }
    }

    pub fn shards(&self) -> usize {
        match self {
            Self::Cluster(_) => PRIMARIES,
            Self::Sentinel(_) => 1,
        }
    }

    /// The URL that resolves to all of them.
    pub fn url(&self) -> String {
        match self {
            Self::Cluster(cluster) => cluster.url_of(cluster.servers()),
            Self::Sentinel(all) => all.url(),
        }
    }

    /// The first shard of a lock.
    fn home_of(&self, name: &str) -> usize {
        match self {
            Self::Cluster(cluster) => cluster.home_of(name),
            Self::Sentinel(_) => 0,
        }
    }
}

impl Scene {
    pub fn new(stage: Stage, min_replicas: u8, seed: u64) -> Self {
        let (set, names) = (Set::new(stage), stage.names());
        let homes: Vec<usize> = names.iter().map(|name| set.home_of(&name.text)).collect();
        let ledger = Mutex::new(Ledger::new((0..set.shards()).collect(), &homes));
        let shards = (0..set.shards()).map(|_| Mutex::new(())).collect();
        let crew = Crew::new(stage, names, seed, u64::MAX).with_min_replicas(min_replicas);
        Self { crew, set, shards, election: Mutex::new(()), ledger }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn server(&self, at: usize) -> &Server {
        &self.set.servers()[at]
    }

    pub fn ports(&self) -> Vec<u16> {
        self.set.servers().iter().map(Server::port).collect()
    }

    /// Reserves these shards while the guards are held. They are locked in order.
    pub fn alone_with(&self, shards: &[usize]) -> Vec<MutexGuard<'_, ()>> {
        let mut shards = shards.to_vec();
        shards.sort_unstable();
        shards.iter().map(|&shard| self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)).collect()
    }

    /// Keeps all other primaries available for an election while the guard is held.
    pub fn election(&self) -> MutexGuard<'_, ()> {
        self.election.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The primary of a shard, and its replicas.
    pub fn roles(&self, shard: usize) -> (usize, Vec<usize>) {
        let primary = self.ledger().primary(shard);
        (primary, self.set.members(shard).into_iter().filter(|member| *member != primary).collect())
    }

    /// Waits until a server other than this one is the primary of the shard; returns whether one is.
    pub fn await_another(&self, shard: usize, than: usize, within: Duration) -> bool {
        let holds = || self.ledger().primary(shard) != than && self.is_named(shard);
        waited(within, holds)
    }

    /// Whether Sentinels, if there are any, know the primary.
    fn is_named(&self, shard: usize) -> bool {
        let ledger = self.ledger();
        let last = ledger.promotions.iter().rfind(|promotion| promotion.shard == shard);
        let is_named = |since, server| ledger.named.iter().any(|(named, at)| *named == server && *at >= since);
        matches!(self.set, Set::Cluster(_)) || last.is_none_or(|last| is_named(last.from, last.server))
    }

    /// Waits until the shard is whole: each of its servers but one replicates that one, and all others know it.
    pub fn await_whole(&self, shard: usize) {
        assert!(waited(SETTLED, || self.is_whole(shard)), "shard {shard} is whole again:\n{}", self.picture());
    }

    fn is_whole(&self, shard: usize) -> bool {
        let (primary, replicas) = self.roles(shard);
        let port = self.server(primary).port().to_string();
        let replicates = |replica: &usize| {
            let field = |field| info(self.server(*replica), "replication", field);
            field("master_link_status").as_deref() == Some("up") && field("master_port") == Some(port.clone())
        };
        let is_primary = info(self.server(primary), "replication", "role").as_deref() == Some("master");
        is_primary && replicas.iter().all(replicates) && self.is_known(primary) && self.is_confirmed(shard, 1)
    }

    /// Whether enough replicas of a shard for its workers have acknowledged this much. A replica that has just begun to
    /// follow takes a second until its first acknowledgement.
    pub fn is_confirmed(&self, shard: usize, written: u64) -> bool {
        let primary = self.server(self.roles(shard).0);
        let has_it = |at: &u8| {
            let replica = info(primary, "replication", &format!("slave{at}"))?;
            let offset = replica.split(',').find_map(|part| part.strip_prefix("offset="))?.parse::<u64>().ok()?;
            Some(replica.contains("state=online") && offset >= written)
        };
        let replicas = (0..self.stage.replicas()).filter(|at| has_it(at) == Some(true));
        self.min_replicas == 0 || replicas.count() >= usize::from(self.min_replicas)
    }

    /// Whether all servers of a cluster see this one as a primary, and none as dead; or the Sentinels can fail over.
    fn is_known(&self, primary: usize) -> bool {
        match &self.set {
            Set::Cluster(cluster) => {
                let port = format!(":{}@", self.server(primary).port());
                cluster.servers().iter().all(|server| {
                    let nodes = text(server, &["CLUSTER", "NODES"]);
                    let mut line = nodes.lines().filter(|line| line.contains(&port));
                    line.any(|line| line.contains("master") && !line.contains("fail"))
                })
            }
            Set::Sentinel(all) => {
                let can = |sentinel: &&Server| text(sentinel, &["SENTINEL", "CKQUORUM", SERVICE]).starts_with("OK");
                let port = self.server(primary).port();
                all.sentinels().iter().filter(can).count() >= 2
                    && (0..3).all(|at| named_by(all, at, PATIENCE).is_none_or(|named| named == port))
            }
        }
    }

    /// The view that every server has of every other, to find out why a wait timed out.
    pub fn picture(&self) -> String {
        let say = |server: &Server| {
            let nodes =
                if matches!(self.set, Set::Cluster(_)) { text(server, &["CLUSTER", "NODES"]) } else { String::new() };
            format!("{}:\n{nodes}\n{}\n", server.port(), text(server, &["INFO", "replication"]))
        };
        let mut all: String = self.set.servers().iter().map(say).collect();
        if let Set::Sentinel(sentinels) = &self.set {
            let say = |sentinel: &Server| format!("Sentinel {}:\n{}\n", sentinel.port(), sentinel.log());
            all.extend(sentinels.sentinels().iter().map(say));
        }
        all
    }
}

/// Waits until this holds; returns whether it does.
pub fn waited(within: Duration, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}

/// How long a question here may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The port of the server that a Sentinel names, if it answers.
pub fn named_by(all: &Sentinels, sentinel: usize, patience: Duration) -> Option<u16> {
    let mut wire = wire(&all.sentinels()[sentinel])?;
    wire.set_patience(patience).ok()?;
    let answer = wire.try_cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()?;
    match answer {
        support::Value::Array(parts) => parts.last()?.text().parse().ok(),
        _ => None,
    }
}

fn wire(server: &Server) -> Option<Wire> {
    let mut wire = Wire::try_to_port(server.port()).ok()?;
    wire.set_patience(PATIENCE).ok()?;
    Some(wire)
}

fn info(server: &Server, section: &str, field: &str) -> Option<String> {
    wire(server)?.try_info_field(section, field).ok()?
}

fn text(server: &Server, words: &[&str]) -> String {
    let answer = wire(server).and_then(|mut wire| wire.try_cmd(words).ok());
    answer
        .filter(|answer| answer.error().is_none() && !answer.is_nil())
        .map_or_else(String::new, |answer| answer.text())
}

/// The number of the server of a routed lock.
pub const SERVER: usize = LONE;
