//! Moves a slot with the locks that are in it, as an operator's tool does: key by key, while it is used.

use std::time::{Duration, Instant};

use support::{Cluster, Server, Value, Wire};

use super::scene::{Scene, waited};
use crate::record::now;

/// How soon all servers have heard of the slot's new owner.
const AGREED: Duration = Duration::from_secs(20);
/// The most rounds in which keys are moved: the locks of a slot have few keys.
const ROUNDS: usize = 1_000;

/// Moves the slot of this lock from one shard to the other, and keeps it on its way for this long.
pub fn move_slot(scene: &Scene, cluster: &Cluster, name: usize, (from, to): (usize, usize), takes: Duration) {
    let kinds = scene.stage.kinds();
    let (source, target) = (scene.roles(from).0, scene.roles(to).0);
    let ids = [source, target].map(|at| cluster.id(at));
    let [mut at_source, mut at_target] = [source, target].map(|at| scene.server(at).wire());
    let mut slot_of = |name| at_source.must(&["CLUSTER", "KEYSLOT", name]).int();
    let slot = slot_of(kinds[name].name);
    let names: Vec<usize> = (0..kinds.len()).filter(|&at| slot_of(kinds[at].name) == slot).collect();
    let slot = slot.to_string();
    scene.ledger().begin_to_move(&names, to, now());
    insist(&mut at_target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
    insist(&mut at_source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    // Some keys are here and some there for a while.
    let port = scene.server(target).port();
    move_one(&mut at_source, &slot, port);
    std::thread::sleep(takes);
    for _ in 0..ROUNDS {
        if !move_one(&mut at_source, &slot, port) {
            break;
        }
    }
    for wire in [&mut at_target, &mut at_source] {
        insist(wire, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
    }
    let agree = || cluster.servers().iter().all(|server| has_heard(server, &slot, &ids[1]));
    assert!(waited(AGREED, agree), "all hear that slot {slot} is at {}", ids[1]);
    // The replicas that had confirmed the keys were others.
    let written = at_target.info_field("replication", "master_repl_offset").and_then(|offset| offset.parse().ok());
    let written = written.expect("a server reports its offset");
    assert!(waited(AGREED, || scene.is_confirmed(to, written)), "what was moved to shard {to} is replicated");
    scene.ledger().have_moved(&names, from, now());
}

/// Moves one key; returns whether there was one.
fn move_one(source: &mut Wire, slot: &str, port: u16) -> bool {
    let keys = source.must(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
    let Some(key) = keys.array().first().map(Value::text) else { return false };
    insist(source, &["MIGRATE", "127.0.0.1", &port.to_string(), &key, "0", "5000"]);
    true
}

/// Retries as an operator does, because a server may report for a moment that its cluster is down.
fn insist(wire: &mut Wire, command: &[&str]) {
    let (start, mut refused) = (Instant::now(), None);
    while start.elapsed() < AGREED {
        match wire.cmd(command).error() {
            None => return,
            Some(why) => refused = Some(why.to_owned()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{command:?} is refused: {}", refused.unwrap_or_default());
}

/// Whether a server that answers regards this one as the owner. A server that does not answer hears of it later.
fn has_heard(server: &Server, slot: &str, id: &str) -> bool {
    let Some(answer) = asked(server) else { return true };
    let slot: i64 = slot.parse().unwrap_or(0);
    answer.array().iter().any(|entry| match entry {
        Value::Array(parts) if (parts[0].int()..=parts[1].int()).contains(&slot) => parts[2].array()[2].text() == id,
        _ => false,
    })
}

fn asked(server: &Server) -> Option<Value> {
    let mut wire = Wire::try_to_port(server.port()).ok()?;
    wire.set_patience(Duration::from_millis(300)).ok()?;
    wire.try_cmd(&["CLUSTER", "SLOTS"]).ok().filter(|answer| answer.error().is_none())
}
