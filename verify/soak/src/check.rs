//! The checks: pure, over a finished history.
//!
//! # What is checked, and why it is sound
//!
//! A lease is believed *for certain* from `start`, a reading of the clock after its acquire had returned, to `end`.
//! That is a reading of the clock before a check that succeeded, or a deadline that the holder knew and that only a
//! loss of the key could have preceded.
//!
//! - (a) No two leases of one name are believed at one instant, unless both share it. For these see `check/sharing.rs`.
//! - (b) Fences grow in the order of acquisition. If one acquire had returned before another was begun, the order is
//!   known. If both leases were believed, it is also the order of their `start`s: each lies within its own holding, and
//!   holdings do not overlap. All sharers of a lock have the number of their phase, so what is said of a holding holds
//!   for phases.
//! - (c) The resource never accepts a smaller fence after a larger one, as far as one write was answered before the
//!   other was begun. It refuses no holder that believes in the lease afterwards, because a refused holder had a
//!   successor.
//! - (d) No holder believes in a lease after the servers have let go of it. A look at the servers finds an instant at
//!   which no majority had the token. A lease that was believed before the look and after it was believed at that
//!   instant. One server never gives back a lost key, so there the lease must not be believed at any later time.
//! - (e) No holder is told of a loss that did not happen. If its key is reported gone, or another token's, this has a
//!   cause on a server between the acquire and the report. Otherwise the report answers a release after the lease's
//!   deadline. No lease is reported expired before a deadline that its holder knew. No other loss is reported, because
//!   no lease here has a longest time, and none is left when its worker closes.
//! - (f) Everything ends. An acquire and a release end in their time. The signal of a loss comes by the deadline, or
//!   later by the time for which its process was stopped or the machine stood still. After the last fault every worker
//!   comes to rest, and another process can acquire every lock. When all have gone, no lock and no queue is left, and
//!   no key without an expiry.
//! - (g) Memory has a bound: a process at rest has not grown by more than [`GROWTH`] since its work began, whatever its
//!   servers, its links and its log did meanwhile.
//! - (h) Every process hears of a new primary within two seconds, and none goes back to the old one.
//! - (i) An observer of a lock is never told of a holder with a smaller fence than the previous one's, unless two
//!   servers may have had the lock.
//!
//! # What is forgiven
//!
//! A server may lose a key before its time: the key is deleted, the server restarts empty, its clock jumps ahead, or
//! its address resolves to another server. The last of these lasts until every process has gone over. The holder is not
//! notified at that instant, so the promise is void between the loss and the signal. The requests that confirm a lease
//! were sent before the end of the loss, for a TTL at most. So a lease that was asked for before a loss of its name on
//! a server of its own is forgiven from the loss until its own TTL later. The time is shorter if the key was deleted on
//! one server, and nothing else happened to that server, to the holder or between them. Then the lease is forgiven
//! until a third of its TTL, when the next renewal reports the loss. It is forgiven not a moment longer. A lease that
//! was granted after the loss is not forgiven. Such a lease was asked for after it, or its own key was seen after it on
//! the one server that had lost it. A quorum's node that restarts empty is covered by its restart delay, and (a) to (c)
//! forgive nothing for it. For failovers see `check/failovers.rs`.

use std::collections::{BTreeMap, HashMap};

use self::failovers::Failovers;
use crate::{
    history::{Cause, Fall, Found, History, Lease, Look, Loss, Mark, Memory, Whom, Write},
    record::{Ending, LeaseId, MILLI, Nanos, Process, Written},
};

/// How late the report of a loss may be, with nothing in its way.
const NEWS: Nanos = 100 * MILLI;
/// An event this long before a loss is not in the way of its news.
const OVER: Nanos = 5_000 * MILLI;
/// The most that a process at rest may have grown by, in KiB.
const GROWTH: u64 = 24 * 1024;

/// A check that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `a` to `i`.
    pub check: char,
    pub name: usize,
    pub at: Nanos,
    pub leases: Vec<LeaseId>,
    pub what: String,
}

/// All violations, in the order of time.
pub fn check(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let failovers = Failovers::new(history);
    failovers.news(&mut found);
    for name in 0..history.names.len() {
        let judge = Judge::new(history, &failovers, name);
        judge.one_holder(&mut found);
        judge.fences_grow(&mut found);
        judge.shares(&mut found);
        judge.resource(&mut found);
        judge.nothing_outlives_its_key(&mut found);
        judge.no_false_alarm(&mut found);
        judge.everything_ends(&mut found);
        judge.observed_fences_grow(&mut found);
    }
    found.extend(history.memories.iter().filter(|memory| memory.after > memory.before + GROWTH).map(|memory| {
        let Memory { process, at, before, after } = memory;
        let what = format!("{process} had {before} KiB when its work began, and {after} KiB at rest");
        Violation { check: 'g', name: 0, at: *at, leases: Vec::new(), what }
    }));
    found.sort_by_key(|violation| violation.at);
    found
}

/// How often two leases of one lock were believed at a time, forgiven or not.
pub fn rivals(history: &History) -> usize {
    let failovers = Failovers::new(history);
    (0..history.names.len()).map(|name| Judge::new(history, &failovers, name).rivals().count()).sum()
}

/// The judge of one name.
struct Judge<'a> {
    history: &'a History,
    failovers: &'a Failovers<'a>,
    name: usize,
    /// In the order of their starts.
    leases: Vec<&'a Lease>,
    losses: Vec<&'a Loss>,
    servers: std::ops::Range<usize>,
    /// When the last look began that saw this token and fence.
    seen: HashMap<(Process, u64), Nanos>,
    /// When the last look began that saw this sharer and fence.
    seen_sharing: HashMap<(LeaseId, u64), Nanos>,
}

impl<'a> Judge<'a> {
    fn new(history: &'a History, failovers: &'a Failovers<'a>, name: usize) -> Self {
        let mut leases: Vec<&Lease> = history.leases.iter().filter(|lease| lease.name == name).collect();
        leases.sort_by_key(|lease| lease.start);
        let servers = history.names.get(name).map(|name| name.servers.clone()).unwrap_or_default();
        let hits = |loss: &&Loss| servers.contains(&loss.server) && loss.name.is_none_or(|of| of == name);
        let losses = history.losses.iter().filter(hits).collect();
        let (mut seen, mut seen_sharing) = (HashMap::new(), HashMap::new());
        for look in history.looks.iter().filter(|look| look.name == name) {
            let is_seen = |last: &mut Nanos| *last = look.from.max(*last);
            match &*look.found {
                [Found::Token(Some(process), fence)] => is_seen(seen.entry((*process, *fence)).or_default()),
                [Found::Shared(fence, leases)] => {
                    leases.iter().for_each(|lease| is_seen(seen_sharing.entry((*lease, *fence)).or_default()));
                }
                _ => {}
            }
        }
        Self { history, failovers, name, leases, losses, servers, seen, seen_sharing }
    }

    fn nodes(&self) -> usize {
        self.servers.len()
    }

    /// Whether the loss may have taken the lease's key. A key that is there when all are gone came later. But a clock
    /// that jumps leaves some keys, and a quorum brings its own back.
    fn can_hit(&self, loss: &Loss, lease: &Lease) -> bool {
        if let Cause::Failover(failover) = loss.cause {
            return self.failovers.may_lose(failover, lease);
        }
        if loss.cause == Cause::Places && !lease.mode.is_shared() {
            return false;
        }
        let seen_after = || {
            let seen = if lease.mode.is_shared() {
                self.seen_sharing.get(&(lease.known_as, lease.fence))
            } else {
                self.seen.get(&(lease.id.process, lease.fence))
            };
            loss.cause != Cause::ClockJump && self.nodes() == 1 && seen.is_some_and(|&seen| seen >= loss.to)
        };
        lease.invoked < loss.to && !seen_after()
    }

    /// Whether the promise covers the loss: a quorum's node that restarts empty gives no vote.
    fn is_covered(&self, loss: &Loss) -> bool {
        self.nodes() > 1 && loss.cause == Cause::EmptyRestart
    }

    /// The times for which a lease is forgiven: one for each loss that could have hit it.
    fn forgiven(&self, lease: &Lease) -> impl Iterator<Item = (&'a Loss, Nanos, Nanos)> {
        let held = |loss: &&&Loss| lease.end.is_some_and(|end| loss.from <= end);
        let losses = self.losses.iter().filter(held).filter(|loss| self.can_hit(loss, lease));
        losses.map(|loss| (*loss, loss.from, self.forgiven_until(loss, lease)))
    }

    fn forgiven_until(&self, loss: &Loss, lease: &Lease) -> Nanos {
        match loss.cause {
            Cause::Failover(failover) => self.failovers.until(failover, lease),
            _ => loss.to.saturating_add(self.unaware(loss, lease)),
        }
    }

    /// How long the holder may not know of the loss: a TTL, unless the next renewal reports it with nothing in its way.
    fn unaware(&self, loss: &Loss, lease: &Lease) -> Nanos {
        let (from, to) = (loss.from.saturating_sub(OVER), loss.to + lease.ttl);
        let mut around = self.history.marks.iter().filter(|mark| mark.from <= to && from <= mark.to);
        let in_its_way = |mark: &Mark| match mark.whom {
            Whom::Process(process) => process == lease.id.process,
            Whom::Link { slot, server } => slot == lease.id.process.slot && self.servers.contains(&server),
            // The server's own mark contains the loss.
            Whom::Log(_) | Whom::Shard(_) => false,
            Whom::Server(server) => self.servers.contains(&server) && !(mark.from <= loss.from && loss.to <= mark.to),
        };
        let is_told = matches!(loss.cause, Cause::Deletion | Cause::Places);
        if self.nodes() > 1 || !is_told || around.any(in_its_way) {
            return lease.ttl;
        }
        lease.ttl.min(lease.ttl / 3 + self.history.lag + NEWS)
    }

    fn is_forgiven(&self, lease: &Lease, from: Nanos, to: Nanos) -> bool {
        self.forgiven(lease).any(|(loss, begin, end)| !self.is_covered(loss) && begin <= from && to <= end)
    }

    /// Whether another server may have granted the lock beside this one, with a larger fence: the resource refuses the
    /// smaller for good.
    fn had_a_rival(&self, lease: &Lease, at: Nanos) -> bool {
        self.losses.iter().filter(|loss| lease.end.is_some_and(|end| loss.from <= end)).any(|loss| match loss.cause {
            Cause::Move => lease.invoked < loss.to,
            Cause::Failover(failover) => self.failovers.explains(failover, lease, at, &self.leases),
            _ => false,
        })
    }

    fn violation(&self, check: char, at: Nanos, leases: &[&Lease], what: String) -> Violation {
        Violation { check, name: self.name, at, leases: leases.iter().map(|lease| lease.id).collect(), what }
    }

    /// Pairs of leases that are both believed though one of them is held alone, and from when until when.
    fn rivals(&self) -> impl Iterator<Item = (&'a Lease, &'a Lease, Nanos, Nanos)> {
        self.at_once().into_iter().filter(|(one, other, ..)| !is_shared_by(one, other))
    }

    /// Pairs of leases that are both believed, and from when until when.
    fn at_once(&self) -> Vec<(&'a Lease, &'a Lease, Nanos, Nanos)> {
        let (mut before, mut both): (Vec<(&Lease, Nanos)>, Vec<_>) = (Vec::new(), Vec::new());
        for &lease in &self.leases {
            let Some(end) = lease.end else { continue };
            before.retain(|(_, end)| *end >= lease.start);
            both.extend(before.iter().map(|&(other, other_end)| (other, lease, lease.start, end.min(other_end))));
            before.push((lease, end));
        }
        both
    }

    fn one_holder(&self, found: &mut Vec<Violation>) {
        for (other, lease, from, to) in self.rivals() {
            if !self.is_forgiven(other, from, to) && !self.is_forgiven(lease, from, to) {
                let what = format!("{} and {} are both believed, for {}", other.id, lease.id, span(from, to));
                found.push(self.violation('a', from, &[other, lease], what));
            }
        }
    }

    fn fences_grow(&self, found: &mut Vec<Violation>) {
        // For each moment, the largest fence among the leases that were returned before it.
        let mut returned: Vec<&Lease> = self.leases.clone();
        returned.sort_by_key(|lease| lease.start);
        let mut largest: BTreeMap<Nanos, &Lease> = BTreeMap::new();
        let mut so_far: Option<&Lease> = None;
        for lease in returned {
            if so_far.is_none_or(|largest| lease.fence > largest.fence) {
                so_far = Some(lease);
                largest.insert(lease.start, lease);
            }
        }
        for lease in &self.leases {
            if let Some((_, earlier)) = largest.range(..lease.invoked).next_back() {
                if falls(earlier, lease) {
                    found.push(self.falling(earlier, lease));
                }
            }
        }
        // The leases that were believed, in the order of their starts.
        let mut largest: Option<&Lease> = None;
        for lease in self.leases.iter().filter(|lease| lease.end.is_some()) {
            if self.is_forgiven(lease, lease.start, lease.start) {
                continue;
            }
            match largest {
                Some(earlier) if earlier.fence >= lease.fence => {
                    if falls(earlier, lease) && earlier.start >= lease.invoked {
                        found.push(self.falling(earlier, lease));
                    }
                }
                _ => largest = Some(lease),
            }
        }
    }

    fn falling(&self, earlier: &Lease, later: &Lease) -> Violation {
        let what = format!("{} has fence {}, and {} after it {}", earlier.id, earlier.fence, later.id, later.fence);
        self.violation('b', later.start, &[earlier, later], what)
    }

    fn observed_fences_grow(&self, found: &mut Vec<Violation>) {
        let longest = self.leases.iter().map(|lease| lease.ttl).max().unwrap_or(0);
        for fall in self.history.falls.iter().filter(|fall| fall.name == self.name) {
            let explains = |loss: &&Loss| {
                let until = loss.to.saturating_add(longest);
                let until = match loss.cause {
                    Cause::Move => until,
                    Cause::Failover(failover) => until.max(self.failovers.believed(failover, fall.process)),
                    _ => return false,
                };
                loss.from <= fall.to && fall.from <= until
            };
            if !self.losses.iter().any(explains) {
                let Fall { process, before, after, .. } = fall;
                let what = format!("an observer in {process} is told {after} after {before}");
                found.push(self.violation('i', fall.to, &[], what));
            }
        }
    }

    fn by_id(&self) -> HashMap<LeaseId, &'a Lease> {
        self.leases.iter().map(|lease| (lease.id, *lease)).collect()
    }

    fn resource(&self, found: &mut Vec<Violation>) {
        let by_id = self.by_id();
        let of_name = || self.history.writes.iter().filter(|write| write.name == self.name);
        let mut accepted: Vec<&Write> = of_name().filter(|write| write.written == Written::Accepted).collect();
        accepted.sort_by_key(|write| write.to);
        let mut largest: BTreeMap<Nanos, &Write> = BTreeMap::new();
        let mut so_far = None;
        for write in &accepted {
            if so_far.is_none_or(|fence| write.fence > fence) {
                so_far = Some(write.fence);
                largest.insert(write.to, write);
            }
        }
        for write in accepted {
            let Some((_, earlier)) = largest.range(..write.from).next_back() else { continue };
            if earlier.fence > write.fence {
                let what =
                    format!("it accepted {} from {}, and {} after it", earlier.fence, earlier.lease, write.fence);
                let leases = vec![earlier.lease, write.lease];
                found.push(Violation { check: 'c', name: self.name, at: write.to, leases, what });
            }
        }
        for write in of_name().filter(|write| write.written == Written::Refused) {
            let Some(lease) = by_id.get(&write.lease) else { continue };
            let is_forgiven = self.is_forgiven(lease, write.to, write.to) || self.had_a_rival(lease, write.to);
            if lease.end.is_some_and(|end| end > write.to) && !is_forgiven {
                let what = format!("{} is refused as a past holder, and believes in its lease after it", lease.id);
                found.push(self.violation('c', write.to, &[lease], what));
            }
        }
    }

    fn nothing_outlives_its_key(&self, found: &mut Vec<Violation>) {
        let looks = self.looks();
        for lease in &self.leases {
            let Some(end) = lease.end else { continue };
            let first = looks.partition_point(|look| look.from < lease.start);
            let during = looks.get(first..).unwrap_or_default().iter().take_while(|look| look.from < end);
            for look in during.filter(|look| !self.may_hold(lease, look)) {
                // On one server a loss excuses the look; for each node of a quorum, `may_hold` does.
                let excused = self.forgiven(lease).filter(|_| self.nodes() == 1);
                let excused = excused.filter(|(_, from, to)| *from <= look.to && look.from <= *to);
                let allowed = excused.map(|(_, _, to)| to).max().unwrap_or(look.to);
                if end > allowed {
                    let gone = if allowed > look.to { " since a loss that it was not told of" } else { "" };
                    let what =
                        format!("{} is believed for {} after its key was gone{gone}", lease.id, span(look.to, end));
                    found.push(self.violation('d', look.to, &[lease], what));
                    break;
                }
            }
        }
    }

    fn no_false_alarm(&self, found: &mut Vec<Violation>) {
        let by_id = self.by_id();
        let is_signal = |lease: &&&Lease| {
            matches!(lease.how, Ending::Deleted | Ending::Taken | Ending::Forced | Ending::FailedOver)
        };
        let signals = self.leases.iter().filter(is_signal).map(|lease| (*lease, lease.told));
        let releases = self.history.lost_releases.iter().filter_map(|lost| Some((*by_id.get(&lost.lease)?, lost.at)));
        let early = |lease: &&&Lease| {
            matches!(lease.how, Ending::Expired | Ending::NoQuorum | Ending::Stalled) && lease.told < lease.until
        };
        for lease in self.leases.iter().filter(early) {
            let what = format!("{} is told {} before its deadline", lease.id, span(lease.told, lease.until));
            found.push(self.violation('e', lease.told, &[lease], what));
        }
        for lease in self.leases.iter().filter(|lease| lease.how == Ending::OtherLoss) {
            let what = format!("{} is told of a loss that nothing here can bring about", lease.id);
            found.push(self.violation('e', lease.told, &[lease], what));
        }
        // A key may have expired by its deadline; but a signal reports that as such.
        for (lease, at) in signals.chain(releases.filter(|(lease, at)| *at < lease.until)) {
            if !self.losses.iter().any(|loss| self.can_hit(loss, lease) && loss.from <= at) {
                let what =
                    format!("{} is told that it has lost its key ({}), and nothing took it", lease.id, lease.how);
                found.push(self.violation('e', at, &[lease], what));
            }
        }
    }

    /// The looks at this name, in their order.
    fn looks(&self) -> Vec<&'a Look> {
        let mut looks: Vec<&Look> = self.history.looks.iter().filter(|look| look.name == self.name).collect();
        looks.sort_by_key(|look| look.from);
        looks
    }

    /// Whether there may have been a majority for the lease at every instant of the look.
    fn may_hold(&self, lease: &Lease, look: &Look) -> bool {
        let nodes = self.nodes();
        let has = |(at, found): (usize, &Found)| {
            let server = self.servers.start + at % nodes;
            let has = match found {
                Found::Unknown => true,
                Found::Nothing => false,
                // Over a quorum a node's floor need not be the lease's fence.
                Found::Token(of, fence) => {
                    let is_fence = nodes > 1 || *fence == lease.fence;
                    *of == Some(lease.id.process) && is_fence && !lease.mode.is_shared()
                }
                Found::Shared(fence, leases) => {
                    *fence == lease.fence && leases.contains(&lease.known_as) && lease.mode.is_shared()
                }
            };
            // A quorum's lease outlives the loss of a key on one node; the other nodes are judged all the same.
            let lost = || {
                nodes > 1
                    && self
                        .forgiven(lease)
                        .any(|(loss, from, to)| loss.server == server && from <= look.to && look.from <= to)
            };
            (has || lost()).then_some(server)
        };
        let mut having: Vec<usize> = look.found.iter().enumerate().filter_map(has).collect();
        having.sort_unstable();
        having.dedup();
        having.len() > nodes / 2
    }
}

/// Whether both share their lock.
fn is_shared_by(one: &Lease, other: &Lease) -> bool {
    one.mode.is_shared() && other.mode.is_shared()
}

/// Whether the later lease's fence should be larger than it is. Two that share a lock may be of one phase.
fn falls(earlier: &Lease, later: &Lease) -> bool {
    earlier.fence > later.fence || earlier.fence == later.fence && !is_shared_by(earlier, later)
}

/// A span of time, for people.
pub fn span(from: Nanos, to: Nanos) -> String {
    format!("{:?}", std::time::Duration::from_micros(to.saturating_sub(from) / 1_000))
}

mod ends;
pub mod failovers;
mod sharing;

#[cfg(test)]
mod tests;
