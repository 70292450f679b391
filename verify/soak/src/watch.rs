//! Looks at the servers directly, past every proxy, for as long as a round lasts, for check (d).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use support::{Value, Wire};

use crate::{
    history::{Found, Look, Name},
    record::{LeaseId, Process, now},
    scene::Scene,
    setup::Stage,
};

/// A stopped server must not delay the looks at the others.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long such a server is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads each name in one step: its value, its fence, and its sharers that have not expired.
const PLACES: &str = "
    local time, all = redis.call('TIME'), {}
    local now_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
    for i = 1, #KEYS, 3 do
      local one = {redis.call('GET', KEYS[i]), redis.call('GET', KEYS[i + 1])}
      for _, token in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i + 2], now_ms, '+inf')) do
        one[#one + 1] = token
      end
      all[#all + 1] = one
    end
    return all";
/// The beginning of the value of a lock that is shared; its phase's fence follows.
const SHARED: &str = "lh1:00000000-0000-0000-0000-000000000000:";

/// Ends the looks when it is dropped, also by a panic.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Looks at all names on these servers until `over`.
pub fn run(scene: &Scene, servers: std::ops::Range<usize>, every: Duration, over: &AtomicBool) {
    let names: Vec<(usize, Name)> = {
        let recorder = scene.recorder();
        let here = recorder.history.names.iter().cloned().enumerate();
        here.filter(|(_, name)| name.servers == servers).collect()
    };
    let of_names = |parts: &[&str]| -> Vec<String> {
        let keys =
            |text: &str| [vec![text.to_owned()], parts.iter().map(|part| format!("{{{text}}}:lh:{part}")).collect()];
        names.iter().flat_map(|(_, name)| keys(&name.text).concat()).collect()
    };
    let look = if scene.stage == Stage::Shared {
        Asked::places(&of_names(&["fence", "holders"]))
    } else {
        Asked::values(&of_names(&["fence"]))
    };
    let mut eyes: Vec<Eye> = servers.clone().map(|server| Eye::on(server, look.clone())).collect();
    let mut last: Option<Sweep> = None;
    while !over.load(Ordering::SeqCst) {
        let from = now();
        let sweep = Sweep { from, found: eyes.iter_mut().map(|eye| eye.look(scene, names.len())).collect() };
        let to = now();
        // The nodes of a quorum need not have had these contents at one instant: a key may go from one and come to
        // another meanwhile. For two equal looks in a row, that would have to happen twice.
        let earlier = last.replace(sweep).filter(|_| servers.len() > 1);
        let sweeps: Vec<&Sweep> = earlier.iter().chain(last.iter()).collect();
        if sweeps.len() == servers.len().min(2) {
            let from = sweeps.iter().map(|sweep| sweep.from).min().unwrap_or(from);
            let looks = names.iter().enumerate().map(|(at, (name, _))| {
                let found =
                    sweeps.iter().flat_map(|sweep| sweep.found.iter().map(move |found| found[at].clone())).collect();
                Look { name: *name, from, to, found }
            });
            let looks: Vec<Look> = looks.collect();
            scene.recorder().history.looks.extend(looks);
        }
        std::thread::sleep(every);
    }
}

/// A command, and how its answer is read.
#[derive(Clone)]
struct Asked {
    command: Vec<String>,
    read: fn(&[Value]) -> Vec<Found>,
}

impl Asked {
    fn values(keys: &[String]) -> Self {
        let command = std::iter::once("MGET".to_owned()).chain(keys.iter().cloned()).collect();
        Self { command, read: |values| values.chunks(2).map(found).collect() }
    }

    fn places(keys: &[String]) -> Self {
        let words = ["EVAL".to_owned(), PLACES.to_owned(), keys.len().to_string()];
        Self {
            command: words.into_iter().chain(keys.iter().cloned()).collect(),
            read: |all| all.iter().map(places).collect(),
        }
    }
}

struct Sweep {
    from: u64,
    /// The finding for each name, on each server.
    found: Vec<Vec<Found>>,
}

/// A connection to the server that an address resolves to; made again when that changes, or when it breaks.
struct Eye {
    server: usize,
    port: u16,
    asked: Asked,
    wire: Option<Wire>,
    closed_until: Instant,
}

impl Eye {
    fn on(server: usize, asked: Asked) -> Self {
        Self { server, port: 0, asked, wire: None, closed_until: Instant::now() }
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
        let command: Vec<&str> = self.asked.command.iter().map(String::as_str).collect();
        let Value::Array(values) = self.wire.as_mut()?.try_cmd(&command).ok()? else { return None };
        Some((self.asked.read)(&values))
    }
}

pub fn found(pair: &[Value]) -> Found {
    match pair {
        [Value::Nil, _] => Found::Nothing,
        [token, fence] => {
            Found::Token(process_of(&token.text()), if fence.is_nil() { 0 } else { fence.text().parse().unwrap_or(0) })
        }
        _ => Found::Unknown,
    }
}

/// The label of a value or token.
fn label(of: &str) -> Option<&str> {
    Some(of.rsplit_once('@')?.1)
}

/// A label is a process, or one of its leases.
fn process_of(value: &str) -> Option<Process> {
    label(value)?.split('#').next()?.parse().ok()
}

fn places(of_name: &Value) -> Found {
    let Value::Array(parts) = of_name else { return Found::Unknown };
    let [value, fence, tokens @ ..] = &parts[..] else { return Found::Unknown };
    let phase = if value.is_nil() { None } else { phase_of(&value.text()) };
    let Some(phase) = phase else { return found(&[value.clone(), fence.clone()]) };
    // A place that a release has left belongs to no process.
    let leases = tokens.iter().filter_map(|token| label(&token.text())?.parse::<LeaseId>().ok());
    Found::Shared(phase, leases.collect())
}

fn phase_of(value: &str) -> Option<u64> {
    value.strip_prefix(SHARED)?.split_once('@')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_tells_a_phase_with_those_who_share_it_from_a_holder() {
        let text = |text: &str| Value::Bulk(text.into());
        let look = |parts: &[Value]| places(&Value::Array(parts.into()));
        let (process, uuid) = (Process { slot: 1, life: 2 }, "lh1:01234567-89ab-cdef-0123-456789abcdef");
        let shared = text("lh1:00000000-0000-0000-0000-000000000000:12@shared");
        let member = |label: &str| text(&format!("{uuid}@{label}"));
        assert_eq!(look(&[Value::Nil, text("12")]), Found::Nothing);
        assert_eq!(look(&[Value::Nil, text("12"), member("w1.2#3")]), Found::Nothing, "of a phase that is over");
        let alone = text(&format!("{uuid}:12@w1.2#3"));
        assert_eq!(look(&[alone, text("12"), member("w1.2#4")]), Found::Token(Some(process), 12));
        assert_eq!(look(&[text("another's"), text("12")]), Found::Token(None, 12));
        let (three, four) = (LeaseId { process, number: 3 }, LeaseId { process, number: 4 });
        let both = look(&[shared.clone(), text("13"), member("w1.2#3"), member("w1.2 (released)"), member("w1.2#4")]);
        assert_eq!(both, Found::Shared(12, [three, four].into()));
        assert_eq!(look(&[shared, Value::Nil]), Found::Shared(12, [].into()));
        assert_eq!(places(&Value::Nil), Found::Unknown);
    }
}
