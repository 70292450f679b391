//! Output for people: the timeline around a violation, and the totals of many rounds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    num::NonZeroU32,
    time::Duration,
};

use leasehold::Mode;
use leasehold_protocol::mode;

use crate::{
    check::{Violation, failovers::Failovers, span},
    history::{Found, History, Look, Whom},
    record::{Ending, MILLI, Nanos, Outcome, Written},
    round,
    setup::LONE,
};

/// The longest times that are shown before and after a violation, and before the leases involved.
const BEFORE: Nanos = 1_500 * MILLI;
const AFTER: Nanos = 300 * MILLI;
const LEAD: Nanos = 20 * MILLI;
/// The most lines that are shown.
const LINES: usize = 60;

/// A violation, and what happened to its name around it.
pub fn timeline(history: &History, violation: &Violation) -> String {
    let name = &history.names[violation.name];
    let involved = || history.leases.iter().filter(|lease| violation.leases.contains(&lease.id));
    let begun = involved().map(|lease| lease.start).min().unwrap_or(0).saturating_sub(LEAD);
    let (from, to) = (begun.max(violation.at.saturating_sub(BEFORE)), violation.at + AFTER);
    let within = |at: Nanos| (from..=to).contains(&at);
    let mut lines: Vec<(Nanos, String)> = Vec::new();
    // The leases involved, and their neighbours.
    let mut leases: Vec<_> = history.leases.iter().filter(|lease| lease.name == violation.name).collect();
    leases.sort_by_key(|lease| lease.start);
    let is_involved = |at: usize| leases.get(at).is_some_and(|lease| violation.leases.contains(&lease.id));
    for (at, lease) in leases.iter().enumerate() {
        if !(at.saturating_sub(1)..=at + 1).any(is_involved) {
            continue;
        }
        let involved = if is_involved(at) { "  <--" } else { "" };
        let from = if lease.known_as == lease.id { String::new() } else { format!(", as {}", lease.known_as) };
        lines.push((lease.invoked, format!("{} asks for it{from}", lease.id)));
        let ttl = span(0, lease.ttl);
        let mode = if lease.mode.is_shared() { format!(" {}", lease.mode) } else { String::new() };
        let has = format!("{} has it{mode}: fence {}, TTL {ttl}{involved}", lease.id, lease.fence);
        lines.push((lease.start, has));
        if let Some(end) = lease.end {
            lines.push((end, format!("{} believed in it until here ({}){involved}", lease.id, lease.how)));
        }
        // An accepted write is shown only after one that was not accepted.
        let mut last = Written::Accepted;
        for write in history.writes.iter().filter(|write| write.lease == lease.id) {
            if std::mem::replace(&mut last, write.written) != write.written
                || is_involved(at) && write.to >= violation.at
            {
                lines.push((write.to, format!("{} wrote with fence {}: {}", lease.id, write.fence, write.written)));
            }
        }
    }
    for mark in &history.marks {
        let hits = match mark.whom {
            Whom::Shard(_) => true,
            Whom::Server(server) => name.servers.contains(&server),
            Whom::Link { slot, server } => {
                name.servers.contains(&server) && violation.leases.iter().any(|lease| lease.process.slot == slot)
            }
            Whom::Process(process) | Whom::Log(process) => {
                violation.leases.iter().any(|lease| lease.process == process)
            }
        };
        if hits && mark.from <= to && mark.to >= from {
            lines.push((
                mark.from,
                format!("{}: {}, done after {}", whom(mark.whom), mark.text, span(mark.from, mark.to)),
            ));
        }
    }
    let mut last = None;
    for look in history.looks.iter().filter(|look| look.name == violation.name && within(look.from)) {
        if last.replace(&look.found) != Some(&look.found) {
            let found: Vec<String> = look.found.iter().take(name.servers.len()).map(describe).collect();
            lines.push((look.from, format!("the servers have {}", found.join(", "))));
        }
    }
    lines.retain(|(at, _)| *at <= to);
    lines.sort_by_key(|(at, _)| *at);
    let first = lines.partition_point(|(at, _)| *at <= violation.at).saturating_sub(LINES * 3 / 4);
    let mut text = format!("({}) {}: {}\n", violation.check, name.text, violation.what);
    for (at, line) in lines.into_iter().skip(first).take(LINES) {
        let before = at < violation.at;
        let (sign, by) = if before { ('-', violation.at - at) } else { ('+', at - violation.at) };
        let _infallible =
            writeln!(text, "  {sign}{:>9.3} ms  {line}", Duration::from_nanos(by).as_secs_f64() * 1_000.0);
    }
    text
}

fn whom(whom: Whom) -> String {
    match whom {
        Whom::Server(server) => server_name(server),
        Whom::Shard(shard) => format!("shard {shard}"),
        Whom::Process(process) => process.to_string(),
        Whom::Log(process) => format!("the log of {process}"),
        Whom::Link { slot, server } => format!("w{slot} to {}", server_name(server)),
    }
}

fn server_name(server: usize) -> String {
    if server == LONE { "the server".into() } else { format!("node {server}") }
}

fn describe(found: &Found) -> String {
    match found {
        Found::Unknown => "?".into(),
        Found::Nothing => "nothing".into(),
        Found::Token(Some(process), fence) => format!("{process} with {fence}"),
        Found::Token(None, _) => "something else".into(),
        Found::Shared(fence, leases) => {
            let leases: Vec<String> = leases.iter().map(ToString::to_string).collect();
            format!("phase {fence} of {}", if leases.is_empty() { "nobody".into() } else { leases.join(" and ") })
        }
    }
}

/// The totals of many rounds.
#[derive(Debug, Default)]
pub struct Totals {
    seeds: Vec<u64>,
    lasted: Duration,
    leases: u64,
    /// The modes in which each name is held.
    modes: BTreeSet<NameAndMode>,
    by_name: BTreeMap<String, u64>,
    by_mode: BTreeMap<NameAndMode, u64>,
    endings: BTreeMap<Ending, u64>,
    writes: BTreeMap<Written, u64>,
    outcomes: BTreeMap<Outcome, u64>,
    looks: u64,
    faults: BTreeMap<String, u64>,
    rivals: usize,
    in_peace: usize,
    took_over: usize,
    slowest_news: Nanos,
    violations: u64,
}

impl Totals {
    pub fn add(&mut self, round: &round::Outcome) {
        let history = &round.recorder.history;
        self.seeds.push(round.seed);
        self.lasted += round.lasted;
        let is_answered = |look: &&Look| look.found.iter().any(|found| *found != Found::Unknown);
        self.looks += history.looks.iter().filter(is_answered).count() as u64;
        self.rivals += round.rivals;
        let failovers = || history.failovers.iter();
        self.took_over += failovers().filter(|failover| failover.loses).count();
        self.in_peace += failovers().filter(|failover| !failover.loses).count();
        let slowest = Failovers::new(history).slowest_news().unwrap_or(0);
        self.slowest_news = self.slowest_news.max(slowest);
        self.violations += round.violations.len() as u64;
        self.leases += history.leases.len() as u64;
        for name in &history.names {
            self.modes.extend(name.modes.iter().map(|mode| named(&name.text, *mode)));
        }
        for lease in &history.leases {
            let name = &history.names[lease.name].text;
            *self.by_name.entry(name.clone()).or_default() += 1;
            *self.by_mode.entry(named(name, lease.mode)).or_default() += 1;
            *self.endings.entry(lease.how).or_default() += 1;
        }
        for write in &history.writes {
            *self.writes.entry(write.written).or_default() += 1;
        }
        for (outcome, count) in &round.recorder.outcomes {
            *self.outcomes.entry(*outcome).or_default() += count;
        }
        for mark in &history.marks {
            let kind = mark.text.split(" (").next().unwrap_or_default();
            *self.faults.entry(kind.into()).or_default() += 1;
        }
    }

    /// Whether some lock was never held in one of its modes, or the servers or the resource were never observed.
    pub fn is_hollow(&self) -> bool {
        let is_unheld = |mode: &NameAndMode| !self.by_mode.contains_key(mode);
        self.modes.iter().any(is_unheld) || self.looks == 0 || !self.writes.contains_key(&Written::Accepted)
    }

    /// Acquires that failed for another reason than absent servers and held locks.
    pub fn failed(&self) -> u64 {
        self.outcomes.get(&Outcome::Failed).copied().unwrap_or(0)
    }

    pub fn violations(&self) -> u64 {
        self.violations
    }
}

/// A name, and a mode's limit and permits: they have an order.
type NameAndMode = (String, u32, NonZeroU32);

fn named(name: &str, mode: Mode) -> NameAndMode {
    (name.to_owned(), mode::limit(mode), mode::permits(mode))
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.lasted.as_secs_f64();
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let faults: u64 = self.faults.values().sum();
        let rate = self.leases as f64 / seconds.max(0.001);
        writeln!(f, "Seeds: {}.\n", seeds.join(", "))?;
        writeln!(f, "| what | count |\n| --- | ---: |")?;
        writeln!(f, "| seconds | {seconds:.0} |")?;
        writeln!(f, "| lock cycles, each a lease from its acquire to its end | {} |", self.leases)?;
        writeln!(f, "| per second | {rate:.0} |")?;
        if self.modes.iter().any(|(_, limit, _)| *limit > 0) {
            for of in self.modes.iter().map(|(_, limit, permits)| (*limit, *permits)).collect::<BTreeSet<_>>() {
                let is_of = |(_, limit, permits): &NameAndMode| (*limit, *permits) == of;
                let count: u64 = self.by_mode.iter().filter(|(mode, _)| is_of(mode)).map(|(_, count)| count).sum();
                writeln!(f, "| held {} | {count} |", mode::of_limit(of.0, of.1))?;
            }
        }
        for (how, count) in &self.endings {
            let what = match how {
                Ending::Release | Ending::Drop | Ending::HandOver | Ending::Downgrade => "let go of by",
                Ending::Killed => "held by a process that was",
                _ => "lost, and said so:",
            };
            writeln!(f, "| {what} {how} | {count} |")?;
        }
        for (outcome, count) in &self.outcomes {
            writeln!(f, "| {outcome} | {count} |")?;
        }
        for (written, count) in &self.writes {
            writeln!(f, "| fenced writes {written} | {count} |")?;
        }
        writeln!(f, "| looks at what the servers had under a name | {} |", self.looks)?;
        writeln!(f, "| faults | {faults} |")?;
        for (kind, count) in &self.faults {
            writeln!(f, "| {kind} | {count} |")?;
        }
        if self.took_over + self.in_peace > 0 {
            writeln!(f, "| replicas that took over in peace | {} |", self.in_peace)?;
            writeln!(f, "| and otherwise | {} |", self.took_over)?;
            let slowest = self.slowest_news / MILLI;
            writeln!(
                f,
                "| milliseconds until the last process that was not stopped knew of a named one | {slowest} |"
            )?;
            writeln!(f, "| times that two believed in a lock, which only a failover forgives | {} |", self.rivals)?;
        }
        writeln!(f, "| **violations** | **{}** |", self.violations)?;
        let by_name: Vec<String> = self.by_name.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "\nLeases by name: {}.", by_name.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Mode;

    use super::*;
    use crate::{
        history::{Lease, Recorder, Write},
        record::{LeaseId, Process},
        setup::{KINDS, Stage},
    };

    fn totals(history: History) -> Totals {
        let mut totals = Totals::default();
        let mut recorder = Recorder::new(Stage::Servers.names());
        recorder.history = history;
        totals.add(&round::Outcome { seed: 1, lasted: Duration::ZERO, recorder, violations: Vec::new(), rivals: 0 });
        totals
    }

    #[test]
    fn a_round_in_which_nothing_happened_shows_nothing() {
        let id = LeaseId { process: Process { slot: 0, life: 0 }, number: 0 };
        let how = Ending::Release;
        let (known_as, mode) = (id, Mode::Exclusive);
        let (name, ttl, fence, invoked, start, end) = (0, 1, 1, 1, 2, Some(3));
        let lease = Lease { id, known_as, name, mode, ttl, fence, invoked, start, end, until: 4, how, told: 3 };
        let lease = |name| Lease { name, ..lease.clone() };
        let written = Written::Accepted;
        let look = |found| Look { name: 0, from: 1, to: 2, found: [found].into() };
        let full = History {
            names: Stage::Servers.names(),
            leases: (0..KINDS.len()).map(lease).collect(),
            writes: vec![Write { lease: id, name: 0, fence: 1, from: 1, to: 2, written }],
            looks: vec![look(Found::Nothing)],
            ..History::default()
        };
        assert!(!totals(full.clone()).is_hollow());
        let mut unheld = full.clone();
        unheld.leases.pop();
        for hollow in [
            unheld,
            History { writes: Vec::new(), ..full.clone() },
            History { looks: vec![look(Found::Unknown)], ..full },
            History { names: Stage::Servers.names(), ..History::default() },
        ] {
            assert!(totals(hollow).is_hollow());
        }
    }
}
