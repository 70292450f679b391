//! Looks at the servers directly, for as long as a round lasts: which are primaries, and which keys they have.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use support::{Sentinels, Value, Wire};

use super::{
    ledger::{Promotion, Seen},
    scene::{Scene, named_by},
};
use crate::{
    history::Look,
    record::{MILLI, Nanos, now},
    watch::found,
};

const LOOK_EVERY: Duration = Duration::from_millis(8);
/// A stopped server must not delay the looks at the others.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long such a server is left alone.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks at the servers of one shard until `over`.
pub fn run(scene: &Scene, shard: usize, over: &AtomicBool) {
    let first = scene.ledger().primary(shard);
    let eye = |server| Eye {
        shard,
        server,
        wire: None,
        closed_until: Instant::now(),
        replica_at: 0,
        is_primary: server == first,
    };
    let mut eyes: Vec<Eye> = scene.set.members(shard).into_iter().map(eye).collect();
    while !over.load(Ordering::SeqCst) {
        for eye in &mut eyes {
            eye.look(scene);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Asks which server the Sentinels name, until `over`.
pub fn hear(scene: &Scene, all: &Sentinels, over: &AtomicBool) {
    let ports = scene.ports();
    let mut last = vec![None; all.sentinels().len()];
    let mut unnamed: Vec<Nanos> = vec![0; ports.len()];
    while !over.load(Ordering::SeqCst) {
        let from = now();
        for (server, unnamed) in unnamed.iter_mut().enumerate() {
            if !last.contains(&Some(server)) {
                *unnamed = from;
            }
        }
        for (sentinel, last) in last.iter_mut().enumerate() {
            let named =
                named_by(all, sentinel, PATIENCE).and_then(|port| ports.iter().position(|other| *other == port));
            if let Some(server) = named.filter(|_| named != *last) {
                *last = named;
                scene.ledger().named.push((server, now()));
            }
        }
        name_again(scene, &last, &unnamed);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Two failovers may follow each other so closely that the second one promotes a server that is still a primary. No
/// role changes then, and the server is the primary from the moment at which it is named. Other changes of roles are
/// known within this time.
const SEEN: Nanos = 500 * MILLI;

fn name_again(scene: &Scene, last: &[Option<usize>], unnamed: &[Nanos]) {
    let mut ledger = scene.ledger();
    let Some(&Some(server)) = last.first().filter(|first| last.iter().all(|other| other == *first)) else { return };
    let Some(&(_, named)) = ledger.named.iter().rfind(|(of, at)| *of == server && *at > unnamed[server]) else {
        return;
    };
    let newest = ledger.promotions.iter().map(|promotion| promotion.to).max().unwrap_or(0);
    if ledger.primary(0) != server && named > newest && now() > named + SEEN {
        ledger.promotions.push(Promotion { shard: 0, server, from: unnamed[server], to: named });
    }
}

/// A connection to a server; made again when it breaks.
struct Eye {
    shard: usize,
    server: usize,
    wire: Option<Wire>,
    closed_until: Instant,
    /// The moment before the last look at which it reported being a replica.
    replica_at: Nanos,
    is_primary: bool,
}

impl Eye {
    fn look(&mut self, scene: &Scene) {
        if Instant::now() < self.closed_until {
            return;
        }
        if self.try_look(scene).is_none() {
            self.wire = None;
            self.closed_until = Instant::now() + PAUSE;
        }
    }

    fn try_look(&mut self, scene: &Scene) -> Option<()> {
        if self.wire.is_none() {
            let mut wire = Wire::try_to_port(scene.server(self.server).port()).ok()?;
            wire.set_patience(PATIENCE).ok()?;
            self.wire = Some(wire);
        }
        let names = if self.is_primary { scene.ledger().names_in(self.shard) } else { Vec::new() };
        let wire = self.wire.as_mut()?;
        let from = now();
        wire.send(&["ROLE"]).ok()?;
        for &name in &names {
            let lock = scene.stage.kinds()[name].name;
            wire.send(&["GET", lock]).ok()?;
            wire.send(&["GET", &fence_of(lock)]).ok()?;
        }
        wire.send(&["ROLE"]).ok()?;
        let before = is_primary(&wire.reply().ok()?)?;
        let mut pairs = Vec::new();
        for _ in &names {
            pairs.push([wire.reply().ok()?, wire.reply().ok()?]);
        }
        let after = is_primary(&wire.reply().ok()?)?;
        let to = now();
        let mut ledger = scene.ledger();
        if before && after {
            let looks = names.iter().zip(&pairs).filter(|(_, pair)| pair.iter().all(|value| value.error().is_none()));
            let seen = looks.map(|(&name, pair)| Seen {
                shard: self.shard,
                server: self.server,
                look: Look { name, from, to, found: [found(pair)].into() },
            });
            ledger.seen.extend(seen);
        }
        if after && !self.is_primary {
            let (shard, server, since) = (self.shard, self.server, self.replica_at);
            ledger.promotions.push(Promotion { shard, server, from: since, to });
        }
        self.is_primary = after;
        if !after {
            self.replica_at = from;
        }
        Some(())
    }
}

fn fence_of(lock: &str) -> String {
    if lock.contains('{') { format!("{lock}:lht:fence") } else { format!("{{{lock}}}:lh:fence") }
}

fn is_primary(role: &Value) -> Option<bool> {
    match role {
        Value::Array(parts) => Some(parts.first()?.text() == "master"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::ROUTED_KINDS;

    #[test]
    fn fences_are_beside_their_locks() {
        assert_eq!(fence_of("a"), "{a}:lh:fence");
        assert_eq!(fence_of("{a}-1"), "{a}-1:lht:fence");
        assert!(ROUTED_KINDS.iter().any(|kind| kind.name.contains('{')));
    }
}
