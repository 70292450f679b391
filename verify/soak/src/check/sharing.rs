//! Sharers of a lock (rules 15 to 17 of `docs/safety.md`).
//!
//! # What is checked, and why it is sound
//!
//! - (a) Of the sharers that are believed at one instant, those with a limit of N or less take no more than N permits.
//!   The last of these that was admitted found all others there. And no sharer is admitted if the others and it take
//!   more permits than its own limit. The others that count were admitted before it asked, and are believed when it has
//!   the lock.
//! - (b) Sharers that are believed at one instant have one fence, that of their phase. A phase that a look has found to
//!   be over does not continue: no lease that was asked for after that look has its fence. And no lease has a fence
//!   between that of a writer and that with which the writer continued as a reader, because there was no moment between
//!   the two.
//!
//! Sharers are forgiven as any lease is, each by itself. A deletion of the sharers of a lock is a loss for them, but
//! not for a holder that has it alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use leasehold_protocol::mode::{self, Mode};

use super::{Judge, Violation, is_shared_by, span};
use crate::{
    history::{Found, Lease, Look},
    record::Nanos,
};

impl<'a> Judge<'a> {
    pub fn shares(&self, found: &mut Vec<Violation>) {
        if !self.leases.iter().any(|lease| lease.mode.is_shared()) {
            return;
        }
        self.limits(found);
        self.one_phase(found);
        self.phases_end(found);
        self.nobody_in_between(found);
    }

    fn limits(&self, found: &mut Vec<Violation>) {
        let mut believed: Vec<(&Lease, Nanos)> = Vec::new();
        for &lease in self.leases.iter().filter(|lease| lease.mode.is_shared()) {
            let (Some(end), at) = (lease.end, lease.start) else { continue };
            believed.retain(|(_, end)| *end >= at);
            let earlier = believed.iter().map(|(other, _)| *other).filter(|other| other.start < lease.invoked);
            let is_full = |there: &[&Lease]| taken(there) + permits(lease) > limit(lease);
            let earlier = self.too_many(earlier.collect(), at, is_full);
            believed.push((lease, end));
            let all = believed.iter().map(|(other, _)| *other).collect();
            let all = self.too_many(all, at, exceeds);
            if let Some(mut there) = earlier {
                let what = format!("{} comes in {} beside {}", lease.id, lease.mode, taken(&there));
                there.push(lease);
                found.push(self.violation('a', at, &there, what));
            } else if let Some(there) = all {
                let what = format!("{} share it at once", there.len());
                found.push(self.violation('a', at, &there, what));
            }
        }
    }

    /// These leases, if they are too many even without those that may have lost their places.
    fn too_many(
        &self,
        of: Vec<&'a Lease>,
        at: Nanos,
        is_full: impl Fn(&[&'a Lease]) -> bool,
    ) -> Option<Vec<&'a Lease>> {
        if !is_full(&of) {
            return None;
        }
        let there: Vec<&Lease> = of.into_iter().filter(|lease| !self.is_forgiven(lease, at, at)).collect();
        is_full(&there).then_some(there)
    }

    fn one_phase(&self, found: &mut Vec<Violation>) {
        for (one, other, from, to) in self.at_once() {
            let differ = one.fence != other.fence && is_shared_by(one, other);
            if differ && !self.is_forgiven(one, from, to) && !self.is_forgiven(other, from, to) {
                let numbers = format!("{} and {}", one.fence, other.fence);
                let what = format!("{} and {} share it with {numbers}, for {}", one.id, other.id, span(from, to));
                found.push(self.violation('b', from, &[one, other], what));
            }
        }
    }

    fn phases_end(&self, found: &mut Vec<Violation>) {
        let looks = self.looks();
        // In the order of their starts.
        let mut phases: BTreeMap<u64, Vec<&Lease>> = BTreeMap::new();
        for lease in self.leases.iter().filter(|lease| lease.mode.is_shared()) {
            phases.entry(lease.fence).or_default().push(lease);
        }
        for (fence, leases) in phases {
            let Some(first) = leases.first() else { continue };
            let is_over = |look: &&&Look| match &*look.found {
                [Found::Nothing | Found::Token(..)] => true,
                [Found::Shared(of, _)] => *of != fence,
                _ => false,
            };
            let after = looks.partition_point(|look| look.from < first.start);
            let Some(over) = looks.get(after..).and_then(|looks| looks.iter().find(is_over)) else { continue };
            for lease in leases.iter().filter(|lease| lease.invoked > over.to) {
                let what = format!(
                    "{} shares a phase that was over {} before it asked",
                    lease.id,
                    span(over.to, lease.invoked)
                );
                found.push(self.violation('b', lease.start, &[first, lease], what));
            }
        }
    }

    fn nobody_in_between(&self, found: &mut Vec<Violation>) {
        let by_id = self.by_id();
        let fences: BTreeSet<(u64, Nanos, usize)> =
            self.leases.iter().enumerate().map(|(at, lease)| (lease.fence, lease.start, at)).collect();
        for reader in self.leases.iter().filter(|lease| lease.known_as != lease.id) {
            let Some(writer) = by_id.get(&reader.known_as) else { continue };
            let is_lost = self.losses.iter().any(|loss| self.can_hit(loss, writer) && loss.from <= reader.start);
            let after = Bound::Excluded((writer.fence, Nanos::MAX, usize::MAX));
            let between = fences.range((after, Bound::Excluded((reader.fence.max(writer.fence + 1), 0, 0)))).next();
            if let Some(other) = between.and_then(|(.., at)| self.leases.get(*at)).filter(|_| !is_lost) {
                let what = format!("{} had it between {} and {}", other.id, writer.id, reader.id);
                found.push(self.violation('b', reader.start, &[writer, other, reader], what));
            }
        }
    }
}

/// Whether the leases with a limit of N or less take more than N permits, for the limit of any of them.
fn exceeds(there: &[&Lease]) -> bool {
    let with = |most: u64| there.iter().filter(|lease| limit(lease) <= most).map(|lease| permits(lease)).sum::<u64>();
    there.iter().any(|lease| with(limit(lease)) > limit(lease))
}

/// The permits that all of them take.
fn taken(there: &[&Lease]) -> u64 {
    there.iter().map(|lease| permits(lease)).sum()
}

fn permits(lease: &Lease) -> u64 {
    mode::permits(lease.mode).get().into()
}

/// How many permits there are, by this lease.
fn limit(lease: &Lease) -> u64 {
    match lease.mode {
        Mode::Shared { limit: Some(limit), .. } => limit.get().into(),
        _ => u64::MAX,
    }
}
