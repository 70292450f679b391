//! The series of one group of locks. Without a group they have no label `lock`.
//!
//! # Invariants
//!
//! 1. A recorder is foreign code (`crate::foreign`). On the keeper's thread changes of counters and gauges are added up
//!    here, and values for histograms are queued; the thread for events reports both. Other threads report at once.
//! 2. There are at most [`MOST_GROUPS`] named groups in a process, whatever names a program makes up. Further names
//!    count as [`OTHERS`], so neither this table nor an exporter's grows without bound.
//! 3. A gauge that is *set* is reported by the thread for events only, so an older value never follows a newer one.

use std::{
    array::from_fn,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use ::metrics::{Label, counter, gauge, histogram};
use leasehold_protocol::mode::Mode;

use super::{ACQUIRES, AT_RISK, HELD, LOSSES, LeaseStage, RENEWALS, WAITING, least::Least, nodes};
use crate::{
    clock::SystemClock,
    foreign::{self, Numbers},
    sync::catching_panics,
};

pub(super) const LEAST: &str = "leasehold_least_remaining_ratio";

/// The most groups with a name of their own.
const MOST_GROUPS: usize = 100;

/// The name of all further groups.
const OTHERS: &str = "other";

/// How long a least ratio is reported: it is the least of this window and of the one before.
const WINDOW: Duration = Duration::from_secs(60);

/// The series of locks without a group, then those of each group, then that of all further groups.
static GROUPS: [OnceLock<Series>; MOST_GROUPS + 2] = [const { OnceLock::new() }; MOST_GROUPS + 2];

/// Whether all that is set has to be reported once more, because there may be another recorder.
static TELL_ALL: AtomicBool = AtomicBool::new(false);

/// The label for whether a lock is shared, and its values.
const MODE: &str = "mode";
const EXCLUSIVE: Option<&str> = Some("exclusive");
const SHARED: Option<&str> = Some("shared");

/// A counter: its name, its label, the label's value, and its mode, if it is reported by mode.
type Counter = (&'static str, &'static str, &'static str, Option<&'static str>);

const COUNTERS: [Counter; 28] = [
    (ACQUIRES, "outcome", "acquired", EXCLUSIVE),
    (ACQUIRES, "outcome", "busy", EXCLUSIVE),
    (ACQUIRES, "outcome", "timed_out", EXCLUSIVE),
    (ACQUIRES, "outcome", "misplaced", EXCLUSIVE),
    (ACQUIRES, "outcome", "unavailable", EXCLUSIVE),
    (ACQUIRES, "outcome", "refused", EXCLUSIVE),
    (ACQUIRES, "outcome", "closed", EXCLUSIVE),
    (ACQUIRES, "outcome", "abandoned", EXCLUSIVE),
    (ACQUIRES, "outcome", "acquired", SHARED),
    (ACQUIRES, "outcome", "busy", SHARED),
    (ACQUIRES, "outcome", "timed_out", SHARED),
    (ACQUIRES, "outcome", "misplaced", SHARED),
    (ACQUIRES, "outcome", "unavailable", SHARED),
    (ACQUIRES, "outcome", "refused", SHARED),
    (ACQUIRES, "outcome", "closed", SHARED),
    (ACQUIRES, "outcome", "abandoned", SHARED),
    (RENEWALS, "outcome", "ok", None),
    (RENEWALS, "outcome", "late", None),
    (RENEWALS, "outcome", "failed", None),
    (LOSSES, "reason", "expired", None),
    (LOSSES, "reason", "no_quorum", None),
    (LOSSES, "reason", "taken", None),
    (LOSSES, "reason", "deleted", None),
    (LOSSES, "reason", "failed_over", None),
    (LOSSES, "reason", "forced", None),
    (LOSSES, "reason", "max_hold", None),
    (LOSSES, "reason", "stalled", None),
    (LOSSES, "reason", "keeper_ended", None),
];

/// A gauge: its name, and its mode, if it is reported by mode.
type Gauge = (&'static str, Option<&'static str>);

const GAUGES: [Gauge; 4] = [(HELD, EXCLUSIVE), (HELD, SHARED), (WAITING, None), (AT_RISK, None)];

/// The series that a lock is counted in, and whether it is shared: one byte, so that a lease is no larger for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Group(u8);

/// The bit of a [`Group`] that marks shared locks.
const IS_SHARED: u8 = 1 << 7;
const _: () = assert!(MOST_GROUPS + 2 <= IS_SHARED as usize, "a group's number leaves that bit free");

/// The stage of a lock that is held.
#[derive(Debug)]
pub(super) struct StageCell(AtomicU8);

impl StageCell {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(LeaseStage::Safe as u8))
    }

    /// Sets the stage, and returns the one before.
    pub(super) fn turn(&self, to: LeaseStage) -> LeaseStage {
        match self.0.swap(to as u8, Ordering::AcqRel) {
            0 => LeaseStage::Safe,
            1 => LeaseStage::AtRisk,
            _ => LeaseStage::Over,
        }
    }
}

/// The series of one group.
#[derive(Debug)]
struct Series {
    /// The value of the label `lock`.
    group: Option<String>,
    /// The counts of the keeper that are not reported yet.
    counts: [AtomicU64; COUNTERS.len()],
    gauges: [AtomicI32; GAUGES.len()],
    least: Least,
}

impl Group {
    /// The group of this name; the locks without a group if it is empty.
    pub(crate) fn named(name: &str) -> Self {
        if name.is_empty() {
            return Self::default();
        }
        let last = GROUPS.len() - 1;
        for (index, slot) in GROUPS.iter().enumerate().skip(1) {
            let (name, mut is_new) = (if index == last { OTHERS } else { name }, false);
            let series = slot.get_or_init(|| {
                is_new = true;
                Series::new(Some(name.to_owned()))
            });
            if is_new {
                let _told = catching_panics(|| series.tell_zeros());
                tell_all();
            }
            if series.group.as_deref() == Some(name) {
                return Self(u8::try_from(index).unwrap_or_default());
            }
        }
        Self::default()
    }

    /// This group, for locks of this mode.
    pub(super) fn of(self, mode: Mode) -> Self {
        Self(self.number() | if mode.is_shared() { IS_SHARED } else { 0 })
    }

    fn number(self) -> u8 {
        self.0 & !IS_SHARED
    }

    fn series(self) -> Option<&'static Series> {
        let slot = GROUPS.get(usize::from(self.number()))?;
        if self.number() == 0 { Some(slot.get_or_init(|| Series::new(None))) } else { slot.get() }
    }

    /// The mode that a metric of this name is reported with.
    fn mode(self, name: &'static str) -> Option<&'static str> {
        let mode = if self.0 & IS_SHARED == 0 { EXCLUSIVE } else { SHARED };
        mode.filter(|_| name == ACQUIRES || name == HELD)
    }

    pub(super) fn count(self, name: &'static str, value: &'static str) {
        if let Some(series) = self.series() {
            series.count(name, value, self.mode(name));
        }
    }

    pub(super) fn change(self, name: &'static str, by: i32) {
        if let Some(series) = self.series() {
            series.change((name, self.mode(name)), by);
        }
    }

    pub(super) fn record(self, name: &'static str, value: f64) {
        if foreign::on_keeper() {
            foreign::sample(self.number(), name, value);
        } else {
            self.tell_sample(name, value);
        }
    }

    /// Notes what a lease has left of its TTL.
    pub(super) fn note_remaining(self, left: Duration, ttl: Duration) {
        if self.series().is_some_and(|series| series.least.note(left.div_duration_f64(ttl))) {
            foreign::deltas_are_due();
        }
    }

    /// Runs foreign code.
    fn tell_sample(self, name: &'static str, value: f64) {
        if let Some(series) = self.series() {
            let _told = catching_panics(|| histogram!(name, series.labels([])).record(value));
        }
    }
}

impl Series {
    fn new(group: Option<String>) -> Self {
        let (counts, gauges) = (from_fn(|_| AtomicU64::new(0)), from_fn(|_| AtomicI32::new(0)));
        Self { group, counts, gauges, least: Least::default() }
    }

    /// The labels that have a value: an empty label would be another series for some exporters.
    fn labels<const N: usize>(&self, own: [(&'static str, Option<&'static str>); N]) -> Vec<Label> {
        let own = own.into_iter().filter_map(|(label, value)| Some(Label::from_static_parts(label, value?)));
        let group = self.group.as_ref().map(|group| Label::new("lock", group.clone()));
        own.chain(group).collect()
    }

    fn count(&self, name: &'static str, value: &'static str, mode: Option<&'static str>) {
        let is_it = |counter: &Counter| (counter.0, counter.2, counter.3) == (name, value, mode);
        if !foreign::on_keeper() {
            let Some(counter) = COUNTERS.iter().find(|counter| is_it(counter)) else { return };
            let _told = catching_panics(|| self.tell_count(counter, 1));
        } else if let Some(at) = COUNTERS.iter().position(is_it) {
            if let Some(count) = self.counts.get(at) {
                count.fetch_add(1, Ordering::AcqRel);
            }
            foreign::deltas_are_due();
        }
    }

    fn change(&self, gauge: Gauge, by: i32) {
        if !foreign::on_keeper() {
            let _told = catching_panics(|| self.tell_change(gauge, by));
        } else if let Some(at) = GAUGES.iter().position(|one| *one == gauge) {
            if let Some(gauge) = self.gauges.get(at) {
                gauge.fetch_add(by, Ordering::AcqRel);
            }
            foreign::deltas_are_due();
        }
    }

    /// Runs foreign code, like all functions that follow.
    fn tell_count(&self, &(name, label, value, mode): &Counter, by: u64) {
        counter!(name, self.labels([(label, Some(value)), (MODE, mode)])).increment(by);
    }

    fn tell_change(&self, (name, mode): Gauge, by: i32) {
        gauge!(name, self.labels([(MODE, mode)])).increment(by);
    }

    /// Reports a zero of each. So the first count is an increase, and does not look as if it had always been there.
    fn tell_zeros(&self) {
        for counter in &COUNTERS {
            self.tell_count(counter, 0);
        }
        for gauge in GAUGES {
            self.tell_change(gauge, 0);
        }
    }

    fn tell_deltas(&self) {
        for (counter, count) in COUNTERS.iter().zip(&self.counts) {
            let by = count.swap(0, Ordering::AcqRel);
            if by != 0 {
                let _told = catching_panics(|| self.tell_count(counter, by));
            }
        }
        for (gauge, change) in GAUGES.iter().zip(&self.gauges) {
            let by = change.swap(0, Ordering::AcqRel);
            if by != 0 {
                let _told = catching_panics(|| self.tell_change(*gauge, by));
            }
        }
    }
}

fn groups() -> impl Iterator<Item = &'static Series> {
    GROUPS.iter().filter_map(OnceLock::get)
}

/// Reports everything, because there may be a recorder that knows nothing yet. Runs foreign code.
pub(super) fn begin() {
    let _without_group = Group::default().series();
    groups().for_each(Series::tell_zeros);
    tell_all();
}

fn tell_all() {
    TELL_ALL.store(true, Ordering::Release);
    foreign::deltas_are_due();
}

/// The numbers that the thread for events reports, and when it wakes by itself.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    window_ends: Option<Duration>,
}

impl Numbers for Telling {
    fn next_in(&self) -> Option<Duration> {
        self.window_ends.map(|end| end.saturating_sub(SystemClock.now()))
    }

    fn tell(&mut self) {
        let all = TELL_ALL.swap(false, Ordering::AcqRel);
        groups().for_each(Series::tell_deltas);
        self.tell_least(SystemClock.now(), all);
        nodes::tell(all);
    }

    fn sample(&self, group: u8, name: &'static str, value: f64) {
        Group(group).tell_sample(name, value);
    }
}

impl Telling {
    fn tell_least(&mut self, now: Duration, all: bool) {
        if self.window_ends.is_some_and(|end| now >= end) {
            self.window_ends = None;
            groups().for_each(|series| series.least.begin_window());
        }
        for series in groups() {
            if let Some(least) = series.least.news(all) {
                let _told = catching_panics(|| gauge!(LEAST, series.labels([])).set(least));
            }
            if series.least.wanes() {
                self.window_ends.get_or_insert(now + WINDOW);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_group_and_names_without_end_are_one_too() {
        assert_eq!((Group::named(""), Group::named("nightly")), (Group::default(), Group::named("nightly")));
        assert_ne!(Group::named("nightly"), Group::named("hourly"));
        let group = |name| Group::named(name).series().and_then(|series| series.group.as_deref());
        assert_eq!((group("nightly"), group("")), (Some("nightly"), None));
        for number in 0..=MOST_GROUPS {
            Group::named(&number.to_string());
        }
        assert_eq!((group("one more"), group("another")), (Some(OTHERS), Some(OTHERS)));
        assert_eq!(group("nightly"), Some("nightly"), "what had its name keeps it");
    }

    #[test]
    fn a_least_ratio_is_told_for_one_window_and_all_of_the_next() {
        let (mut telling, group) = (Telling::default(), Group::named("waning"));
        let series = group.series().unwrap();
        group.note_remaining(Duration::from_secs(1), Duration::from_secs(2));
        for (at, wanes) in [(0, true), (59, true), (60, true), (119, true), (120, false)] {
            telling.tell_least(Duration::from_secs(at), false);
            assert_eq!(series.least.wanes(), wanes, "after {at} s");
        }
    }
}
