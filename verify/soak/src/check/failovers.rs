//! The excuses by a failover, and whether every process heard of it.
//!
//! Replication is asynchronous: a replica that takes over may lack what its primary has confirmed last, and a primary
//! that stood still meanwhile keeps answering. Both end for a process when it knows of the new primary (rule 11), which
//! it reports; and for all processes when the old one is dead.
//!
//! So a lease may be lost by a failover if its acquire had returned by then: its answer had to come before, from the
//! old primary. The requests that confirm it were sent before too, so it ends a TTL later at the most. It ends soon
//! after its process knows, unless that process is stopped, because a check at the new primary reports the loss. A
//! lease that came later is forgiven nothing, nor is any lease where a primary hands over in peace.

use std::collections::HashMap;

use super::{Violation, span};
use crate::{
    history::{Failover, History, Lease, Named, Whom},
    record::{Ending, MILLI, Nanos, Process},
};

/// Limits on a machine that does not lag: from an answer until its acquire has returned, and from hearing of a new
/// primary until a process has checked its leases there.
const ANSWERED: Nanos = 100 * MILLI;
const LOOKED: Nanos = 600 * MILLI;

/// How soon a process that asks for locks all the time knows of a new primary that others know.
const NEWS: Nanos = 2_000 * MILLI;

/// All failovers of a history.
pub struct Failovers<'a> {
    history: &'a History,
    named: HashMap<Process, Vec<&'a Named>>,
    /// When processes were killed.
    killed: HashMap<Process, Nanos>,
}

impl<'a> Failovers<'a> {
    pub fn new(history: &'a History) -> Self {
        let mut named: HashMap<Process, Vec<&Named>> = HashMap::new();
        for one in &history.named {
            named.entry(one.process).or_default().push(one);
        }
        for of_one in named.values_mut() {
            of_one.sort_by_key(|one| one.at);
        }
        let killed = history.marks.iter().filter_map(|mark| match mark.whom {
            Whom::Process(process) if mark.text.starts_with("worker killed") => Some((process, mark.from)),
            _ => None,
        });
        Self { history, named, killed: killed.collect() }
    }

    fn at(&self, failover: usize) -> Option<&'a Failover> {
        self.history.failovers.get(failover)
    }

    /// When a process had the new primary in place of the old one, if it ever did.
    fn known(&self, failover: &Failover, process: Process) -> Option<Nanos> {
        let named = self.named.get(&process)?;
        let knows = |named: &Named| named.ports.contains(&failover.new) && !named.ports.contains(&failover.old);
        let (before, later) = named.split_at(named.partition_point(|named| named.at < failover.promoted.0));
        let has_missed = before.last().is_some_and(|named| knows(named));
        // The process has not heard of the failover before this one, and may do so now.
        let is_between = |named: &&Named| named.ports.contains(&failover.old) && !self.is_again(failover, named.at);
        let from = match later.iter().position(is_between) {
            None if has_missed => return Some(failover.promoted.0),
            Some(between) if has_missed => between,
            _ => 0,
        };
        later.iter().skip(from).find(|named| knows(named)).map(|named| named.at)
    }

    /// From when on no answer of the old primary counts for a process.
    fn silent(&self, failover: &Failover, process: Process) -> Nanos {
        failover.dead.or_else(|| self.known(failover, process)).unwrap_or(Nanos::MAX)
    }

    /// Until when a process may have received answers of the old primary, which grants on if it keeps running.
    pub fn believed(&self, failover: usize, process: Process) -> Nanos {
        let silent = self.at(failover).map_or(0, |failover| self.silent(failover, process));
        silent.saturating_add(ANSWERED + self.history.lag)
    }

    /// For how long the process was stopped around this time.
    fn stopped(&self, process: Process, from: Nanos, to: Nanos) -> Nanos {
        let marks = self.history.marks.iter().filter(|mark| mark.whom == Whom::Process(process));
        marks.filter(|mark| mark.from <= to && from <= mark.to).map(|mark| mark.to - mark.from).sum()
    }

    /// Whether the new primary may lack the lease: the old one has granted it.
    pub fn may_lose(&self, failover: usize, lease: &Lease) -> bool {
        let Some(failover) = self.at(failover) else { return false };
        let (process, silent) = (lease.id.process, self.silent(failover, lease.id.process));
        let late = ANSWERED + self.history.lag + self.stopped(process, silent, lease.start);
        lease.invoked < silent && lease.start <= silent.saturating_add(late)
    }

    /// Until when a lease that the new primary lacks may be believed.
    pub fn until(&self, failover: usize, lease: &Lease) -> Nanos {
        let Some(failover) = self.at(failover) else { return 0 };
        let process = lease.id.process;
        let deadline = self.silent(failover, process).saturating_add(lease.ttl);
        let told = self.known(failover, process).map(|known| known + LOOKED + self.history.lag);
        match told.filter(|told| self.stopped(process, failover.promoted.0, *told) == 0) {
            // It is not known when a killed process would have noticed.
            Some(told) if lease.how != Ending::Killed => told.min(deadline),
            _ => deadline,
        }
    }

    /// Whether the resource may refuse a holder because of a larger fence, which the old primary granted later while it
    /// kept running.
    pub fn explains(&self, failover: usize, refused: &Lease, at: Nanos, leases: &[&Lease]) -> bool {
        let goes_on = self.at(failover).is_some_and(|failover| failover.dead.is_none());
        let of_old =
            |lease: &&&Lease| lease.fence > refused.fence && lease.invoked <= at && self.may_lose(failover, lease);
        goes_on && leases.iter().any(|lease| of_old(&lease))
    }

    /// Checks that every process hears of a new primary, and that none goes back to the old one (h).
    pub fn news(&self, found: &mut Vec<Violation>) {
        let end = self.history.looks.iter().map(|look| look.to).max().unwrap_or(0);
        for (&process, named) in &self.named {
            let began = named.first().map_or(Nanos::MAX, |first| first.at);
            let ended = self.killed.get(&process).copied().unwrap_or(end);
            for failover in self.history.failovers.iter().filter(|failover| began < failover.promoted.0) {
                let known = self.known(failover, process);
                let by = failover.named + NEWS + self.history.lag;
                let by = by + self.stopped(process, failover.promoted.0, by);
                if by < ended && known.is_none_or(|known| known > by) && !self.is_replaced(failover, by) {
                    let when = known.map_or("never".into(), |known| format!("{} later", span(failover.named, known)));
                    let what =
                        format!("{process} heard {when} that {} is the primary after {}", failover.new, failover.old);
                    found.push(violation(by, what));
                }
                let back = |named: &&&Named| {
                    known.is_some_and(|known| named.at > known) && named.ports.contains(&failover.old)
                };
                if let Some(back) = named.iter().find(back).filter(|back| !self.is_again(failover, back.at)) {
                    let since = span(failover.promoted.1, back.at);
                    let before: Vec<_> = named.iter().filter(|one| one.at < back.at).rev().take(2).collect();
                    let next = named.iter().find(|one| one.at > back.at);
                    let what = format!(
                        "{process} went back to {} from {} of shard {}, {since} after that took over: {back:?}, before it \
                         {before:?}, after it {next:?}",
                        failover.old, failover.new, failover.shard
                    );
                    found.push(violation(back.at, what));
                }
            }
        }
    }

    /// How long it took until the last process that was not stopped knew of a new primary that could be known.
    pub fn slowest_news(&self) -> Option<Nanos> {
        let all = self.history.failovers.iter().flat_map(|failover| {
            let known = self.named.keys().filter_map(|&process| Some((process, self.known(failover, process)?)));
            let began =
                |process| self.named.get(&process).and_then(|named| named.first()).map_or(Nanos::MAX, |first| first.at);
            known
                .filter(move |&(process, known)| {
                    began(process) < failover.promoted.0 && self.stopped(process, failover.promoted.0, known) == 0
                })
                .map(|(_, known)| known.saturating_sub(failover.named))
        });
        all.max()
    }

    /// Whether another server has taken over from the new primary by then.
    fn is_replaced(&self, failover: &Failover, by: Nanos) -> bool {
        let later = self.history.failovers.iter().filter(|other| other.promoted.0 > failover.promoted.0);
        later.into_iter().any(|other| other.old == failover.new && other.promoted.0 <= by)
    }

    /// Whether the old primary has taken over again by then.
    fn is_again(&self, failover: &Failover, by: Nanos) -> bool {
        let later = self.history.failovers.iter().filter(|other| other.promoted.1 > failover.promoted.0);
        later.into_iter().any(|other| other.new == failover.old && other.promoted.0 <= by)
    }
}

fn violation(at: Nanos, what: String) -> Violation {
    Violation { check: 'h', name: 0, at, leases: Vec::new(), what }
}
