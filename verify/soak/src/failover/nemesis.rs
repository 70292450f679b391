//! Carries the plan out, and records what it did.

use std::time::{Duration, Instant};

use support::{SERVICE, Server};

use super::{
    ledger::During,
    plan::{Fault, Lane, Step, plan},
    reshard,
    scene::{Scene, Set},
};
use crate::{
    history::Whom,
    nemesis::rest,
    record::{Nanos, now},
};

/// How soon a replica that was ordered to take over has done so, or will not.
const IN_PEACE: Duration = Duration::from_secs(8);
/// How soon another has taken over from a dead primary. It may be denied its first votes.
const ELECTED: Duration = Duration::from_secs(40);

/// Goes through a lane until the time is up. A fault that was begun is ended.
pub fn run(scene: &Scene, lane: Lane, until: Instant) {
    for Step { after, fault } in plan(scene.stage, scene.seed, lane) {
        if !rest(after, until) {
            return;
        }
        match lane {
            Lane::Shard(shard) => of_shard(scene, shard, fault),
            Lane::Slots => of_slots(scene, fault),
            Lane::Sentinels => of_sentinels(scene, fault),
        }
    }
}

fn of_shard(scene: &Scene, shard: usize, fault: Fault) {
    let needs_votes = matches!(fault, Fault::Planned | Fault::Kill { .. } | Fault::Freeze { .. });
    let _election = needs_votes.then(|| scene.election());
    let _alone = scene.alone_with(&[shard]);
    // A server may have been considered dead meanwhile.
    scene.await_whole(shard);
    let (primary, replicas) = scene.roles(shard);
    let (old, from) = (scene.server(primary), now());
    let elected = || {
        let another = scene.await_another(shard, primary, ELECTED);
        assert!(another, "no replica takes over from server {primary}:\n{}", scene.picture());
    };
    let mut happened = true;
    match fault {
        Fault::Planned => {
            let is_accepted = order(scene, replicas[0]);
            happened = scene.await_another(shard, primary, IN_PEACE);
            if happened && is_accepted && matches!(scene.set, Set::Cluster(_)) {
                in_peace(scene, replicas[0], from);
            }
        }
        Fault::Kill { cut_off, down } => {
            let cut_off = CutOff::begin(scene, old, &replicas, cut_off);
            old.kill();
            let dead = now();
            drop(cut_off);
            elected();
            std::thread::sleep(down);
            let back = now();
            old.restart();
            scene.ledger().dead.push(During { server: primary, from: dead, to: back });
            if let Set::Sentinel(_) = scene.set {
                let (now, _) = scene.roles(shard);
                old.wire().must(&["REPLICAOF", "127.0.0.1", &scene.server(now).port().to_string()]);
            }
        }
        Fault::Freeze { cut_off, after } => {
            let cut_off = CutOff::begin(scene, old, &replicas, cut_off);
            old.stop();
            drop(cut_off);
            elected();
            std::thread::sleep(after);
            old.cont();
        }
        Fault::Hiccup(by) => {
            old.stop();
            std::thread::sleep(by);
            old.cont();
        }
        Fault::Replica(at, by) => {
            let replica = scene.server(replicas[at % replicas.len()]);
            replica.stop();
            std::thread::sleep(by);
            replica.cont();
        }
        Fault::Reshard { .. } | Fault::Sentinel(..) => {}
    }
    if happened {
        scene.mark(from, Whom::Shard(shard), fault.to_string());
    }
    scene.await_whole(shard);
}

/// Orders a replica to take over. The order may be refused, if a server seems to be dead just now.
fn order(scene: &Scene, replica: usize) -> bool {
    let answer = match &scene.set {
        Set::Cluster(cluster) => cluster.servers()[replica].wire().cmd(&["CLUSTER", "FAILOVER"]),
        Set::Sentinel(all) => all.sentinels()[0].wire().cmd(&["SENTINEL", "FAILOVER", SERVICE]),
    };
    answer.error().is_none()
}

fn in_peace(scene: &Scene, server: usize, from: Nanos) {
    let during = During { server, from, to: now() };
    scene.ledger().in_peace.push(during);
}

/// Cuts the replicas off from all further writes, until it is dropped.
struct CutOff<'a>(Vec<&'a Server>);

impl<'a> CutOff<'a> {
    fn begin(scene: &'a Scene, primary: &Server, replicas: &[usize], by: Duration) -> Self {
        if by.is_zero() {
            return Self(Vec::new());
        }
        let replicas: Vec<&Server> = replicas.iter().map(|at| scene.server(*at)).collect();
        for replica in &replicas {
            replica.stop();
        }
        // Otherwise they would find the writes in their sockets when they continue.
        primary.wire().must(&["CLIENT", "KILL", "TYPE", "replica"]);
        std::thread::sleep(by);
        Self(replicas)
    }
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|replica| replica.cont());
    }
}

fn of_slots(scene: &Scene, fault: Fault) {
    let (Set::Cluster(cluster), Fault::Reshard { name, by, takes }) = (&scene.set, fault) else { return };
    let home = scene.ledger().home(name);
    let to = (home + by) % scene.set.shards();
    let _alone = scene.alone_with(&[home, to]);
    for shard in [home, to] {
        scene.await_whole(shard);
    }
    let from = now();
    reshard::move_slot(scene, cluster, name, (home, to), takes);
    scene.mark(from, Whom::Shard(home), format!("{fault} to shard {to}"));
}

fn of_sentinels(scene: &Scene, fault: Fault) {
    let (Set::Sentinel(all), Fault::Sentinel(at, by)) = (&scene.set, fault) else { return };
    let (sentinel, from) = (&all.sentinels()[at], now());
    sentinel.stop();
    std::thread::sleep(by);
    sentinel.cont();
    scene.mark(from, Whom::Shard(0), fault.to_string());
}
