//! Looks at the servers, past every proxy, as long as a round lasts: what check (d) goes by.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use support::{Value, Wire};

use crate::{
    history::{Found, Look, Name},
    record::now,
    scene::Scene,
};

/// A server that is stopped must not keep the looks at the others.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long such a server is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Ends the looks when it goes, also by a panic.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Looks at all names on these servers until it is over.
pub fn run(scene: &Scene, servers: std::ops::Range<usize>, every: Duration, over: &AtomicBool) {
    let names: Vec<(usize, Name)> = {
        let recorder = scene.recorder();
        let here = recorder.history.names.iter().cloned().enumerate();
        here.filter(|(_, name)| name.servers == servers).collect()
    };
    let keys: Vec<String> =
        names.iter().flat_map(|(_, name)| [name.text.clone(), format!("{{{}}}:lh:fence", name.text)]).collect();
    let mut eyes: Vec<Eye> = servers.clone().map(|server| Eye::on(server, &keys)).collect();
    let mut last: Option<Sweep> = None;
    while !over.load(Ordering::SeqCst) {
        let from = now();
        let sweep = Sweep { from, found: eyes.iter_mut().map(|eye| eye.look(scene, names.len())).collect() };
        let to = now();
        // What a quorum's nodes have, they need not have at one instant: a key may go on one and come on another
        // meanwhile. Seen twice, it would have to do so twice.
        let earlier = last.replace(sweep).filter(|_| servers.len() > 1);
        let sweeps: Vec<&Sweep> = earlier.iter().chain(last.iter()).collect();
        if sweeps.len() == servers.len().min(2) {
            let from = sweeps.iter().map(|sweep| sweep.from).min().unwrap_or(from);
            let looks = names.iter().enumerate().map(|(at, (name, _))| {
                let found = sweeps.iter().flat_map(|sweep| sweep.found.iter().map(move |found| found[at])).collect();
                Look { name: *name, from, to, found }
            });
            let looks: Vec<Look> = looks.collect();
            scene.recorder().history.looks.extend(looks);
        }
        std::thread::sleep(every);
    }
}

struct Sweep {
    from: u64,
    /// For each server, each name.
    found: Vec<Vec<Found>>,
}

/// A connection to whatever an address leads to; made again when that changes, or it breaks.
struct Eye {
    server: usize,
    port: u16,
    command: Vec<String>,
    wire: Option<Wire>,
    closed_until: Instant,
}

impl Eye {
    fn on(server: usize, keys: &[String]) -> Self {
        let command = std::iter::once("MGET".to_owned()).chain(keys.iter().cloned()).collect();
        Self { server, port: 0, command, wire: None, closed_until: Instant::now() }
    }

    fn look(&mut self, scene: &Scene, names: usize) -> Vec<Found> {
        let port = scene.server(self.server).port();
        if std::mem::replace(&mut self.port, port) != port {
            self.wire = None;
        }
        if Instant::now() < self.closed_until {
            return vec![Found::Unknown; names];
        }
        self.try_look().unwrap_or_else(|| {
            self.wire = None;
            self.closed_until = Instant::now() + PAUSE;
            vec![Found::Unknown; names]
        })
    }

    fn try_look(&mut self) -> Option<Vec<Found>> {
        if self.wire.is_none() {
            let mut wire = Wire::try_to_port(self.port).ok()?;
            wire.set_patience(PATIENCE).ok()?;
            self.wire = Some(wire);
        }
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let Value::Array(values) = self.wire.as_mut()?.try_cmd(&command).ok()? else { return None };
        Some(values.chunks(2).map(found).collect())
    }
}

pub fn found(pair: &[Value]) -> Found {
    match pair {
        [Value::Nil, _] => Found::Nothing,
        [token, fence] => {
            let label = token.text().rsplit_once('@').and_then(|(_, label)| label.parse().ok());
            Found::Token(label, if fence.is_nil() { 0 } else { fence.text().parse().unwrap_or(0) })
        }
        _ => Found::Unknown,
    }
}
