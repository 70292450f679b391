// What is measured, with the crate feature `metrics`: see the page `docs/metrics.md`. Without it nothing is.
//
// A recorder is foreign code (`crate::foreign`). On the keeper's thread changes of counters and gauges are added up here,
// and values for histograms are queued; the thread for events tells both.

#[cfg(feature = "metrics")]
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_protocol::loss::{self, LossReason};

#[cfg(feature = "metrics")]
use self::deltas::{COUNTS, GAUGES};
#[cfg(feature = "metrics")]
use crate::{foreign, sync::catching_panics};

use crate::error::Error;

const ACQUIRES: &str = "leasehold_acquires_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWAL: &str = "leasehold_renewal_seconds";
const REMAINING: &str = "leasehold_renewal_remaining_ratio";
const LOSSES: &str = "leasehold_losses_total";
const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const AT_RISK: &str = "leasehold_at_risk";

/// Tells an exporter what each of them is.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        let _described = catching_panics(|| {
            // What is counted for the first time would look like what was always so: from nought on, it is an increase.
            for count in &COUNTS {
                count.tell(0);
            }
            describe_counter!(ACQUIRES, Unit::Count, "Acquires that have ended, by outcome.");
            describe_histogram!(WAIT, Unit::Seconds, "From the call of an acquire to its lease.");
            describe_histogram!(HOLD, Unit::Seconds, "From the acquire of a lock to its end.");
            describe_histogram!(RENEWAL, Unit::Seconds, "From a renewal's sending to its confirmation.");
            describe_histogram!(REMAINING, "What was left of the TTL when a renewal was confirmed: 0 is a loss.");
            describe_counter!(LOSSES, Unit::Count, "Leases that ended otherwise than by a release, by reason.");
            describe_gauge!(HELD, Unit::Count, "Locks that are held.");
            describe_gauge!(WAITING, Unit::Count, "Acquires under way.");
            describe_gauge!(AT_RISK, Unit::Count, "Locks that are held, and whose last renewal is not confirmed.");
        });
    }
}

fn count(name: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    if !foreign::on_keeper() {
        let _told = catching_panics(|| ::metrics::counter!(name, label => value).increment(1));
    } else if let Some(count) = COUNTS.iter().find(|count| count.name == name && count.value == value) {
        count.more.fetch_add(1, Ordering::AcqRel);
        foreign::deltas_are_due();
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (name, label, value);
}

fn change(name: &'static str, by: i32) {
    #[cfg(feature = "metrics")]
    if !foreign::on_keeper() {
        let _told = catching_panics(|| ::metrics::gauge!(name).increment(by));
    } else if let Some(gauge) = GAUGES.iter().find(|gauge| gauge.name == name) {
        gauge.more.fetch_add(by, Ordering::AcqRel);
        foreign::deltas_are_due();
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (name, by);
}

fn record(name: &'static str, value: f64) {
    #[cfg(feature = "metrics")]
    if foreign::on_keeper() {
        foreign::sample(name, value);
    } else {
        tell_sample(name, value);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = (name, value);
}

/// Runs foreign code.
#[cfg(feature = "metrics")]
pub(crate) fn tell_sample(name: &'static str, value: f64) {
    let _told = catching_panics(|| ::metrics::histogram!(name).record(value));
}

/// Tells what counters and gauges have changed by on the keeper. Runs foreign code.
#[cfg(feature = "metrics")]
pub(crate) fn tell_deltas() {
    for gauge in &GAUGES {
        let by = gauge.more.swap(0, Ordering::AcqRel);
        if by != 0 {
            let _told = catching_panics(|| ::metrics::gauge!(gauge.name).increment(by));
        }
    }
    for count in &COUNTS {
        let by = count.more.swap(0, Ordering::AcqRel);
        if by != 0 {
            let _told = catching_panics(|| count.tell(by));
        }
    }
}

/// What the keeper has not told yet.
#[cfg(feature = "metrics")]
mod deltas {
    use std::sync::atomic::{AtomicI32, AtomicU64};

    use super::{ACQUIRES, AT_RISK, HELD, LOSSES, WAITING};

    pub(super) struct Gauge {
        pub(super) name: &'static str,
        pub(super) more: AtomicI32,
    }

    pub(super) struct Count {
        pub(super) name: &'static str,
        label: &'static str,
        pub(super) value: &'static str,
        pub(super) more: AtomicU64,
    }

    impl Gauge {
        const fn new(name: &'static str) -> Self {
            Self { name, more: AtomicI32::new(0) }
        }
    }

    impl Count {
        const fn acquires(outcome: &'static str) -> Self {
            Self { name: ACQUIRES, label: "outcome", value: outcome, more: AtomicU64::new(0) }
        }

        const fn losses(reason: &'static str) -> Self {
            Self { name: LOSSES, label: "reason", value: reason, more: AtomicU64::new(0) }
        }

        /// Runs foreign code.
        pub(super) fn tell(&self, more: u64) {
            ::metrics::counter!(self.name, self.label => self.value).increment(more);
        }
    }

    pub(super) static GAUGES: [Gauge; 3] = [Gauge::new(HELD), Gauge::new(WAITING), Gauge::new(AT_RISK)];

    pub(super) static COUNTS: [Count; 12] = [
        Count::acquires("acquired"),
        Count::acquires("timed_out"),
        Count::acquires("unavailable"),
        Count::acquires("refused"),
        Count::acquires("closed"),
        Count::acquires("abandoned"),
        Count::losses("expired"),
        Count::losses("no_quorum"),
        Count::losses("taken"),
        Count::losses("deleted"),
        Count::losses("max_hold"),
        Count::losses("keeper_ended"),
    ];
}

/// An acquire under way; abandoned unless it is said how it ended.
#[derive(Debug)]
pub(crate) struct Acquiring {
    outcome: &'static str,
}

impl Acquiring {
    pub(crate) fn begins() -> Self {
        change(WAITING, 1);
        Self { outcome: "abandoned" }
    }

    pub(crate) fn ended<T>(mut self, outcome: &Result<T, Error>, waited: Duration) {
        if outcome.is_ok() {
            record(WAIT, waited.as_secs_f64());
        }
        self.outcome = match outcome {
            Ok(_) => "acquired",
            Err(Error::TimedOut { .. }) => "timed_out",
            Err(Error::Closed) => "closed",
            Err(Error::Unavailable(_)) => "unavailable",
            Err(_) => "refused",
        };
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        count(ACQUIRES, "outcome", self.outcome);
        change(WAITING, -1);
    }
}

/// A lock that is held, for as long as it counts as such. Without the feature it is nothing.
#[derive(Debug)]
pub(crate) struct Holding {
    #[cfg(feature = "metrics")]
    stage: std::sync::atomic::AtomicU8,
}

/// The stages of a [`Holding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    Safe,
    AtRisk,
    Over,
}

/// From one stage of a [`Holding`] to the next: told later, and then in any order with others, since gauges are added to.
#[derive(Debug, Clone, Copy)]
#[must_use = "it is told to nobody yet"]
pub(crate) struct Turn {
    from: Stage,
    to: Stage,
}

impl Turn {
    /// Held or at risk.
    pub(crate) fn tell(self) {
        for (stage, by) in [(self.from, -1), (self.to, 1)] {
            if stage == Stage::AtRisk && self.from != self.to {
                change(AT_RISK, by);
            }
        }
        if self.from != Stage::Over && self.to == Stage::Over {
            change(HELD, -1);
        }
    }

    /// Over.
    pub(crate) fn tell_end(self, reason: LossReason, held_for: Duration) {
        if self.from != Stage::Over {
            record(HOLD, held_for.as_secs_f64());
            if let Some(reason) = loss::label(reason) {
                count(LOSSES, "reason", reason);
            }
        }
        self.tell();
    }
}

impl Holding {
    pub(crate) fn begins() -> Self {
        change(HELD, 1);
        // An exporter knows what was told once.
        change(AT_RISK, 0);
        Self {
            #[cfg(feature = "metrics")]
            stage: (Stage::Safe as u8).into(),
        }
    }

    /// Called in the order of what happened.
    pub(crate) fn is_held(&self, at_risk: bool) -> Turn {
        self.turns(if at_risk { Stage::AtRisk } else { Stage::Safe })
    }

    pub(crate) fn is_over(&self) -> Turn {
        self.turns(Stage::Over)
    }

    #[cfg_attr(not(feature = "metrics"), allow(clippy::unused_self, reason = "without the feature it is nothing"))]
    fn turns(&self, to: Stage) -> Turn {
        #[cfg(feature = "metrics")]
        let from = match self.stage.swap(to as u8, std::sync::atomic::Ordering::AcqRel) {
            0 => Stage::Safe,
            1 => Stage::AtRisk,
            _ => Stage::Over,
        };
        #[cfg(not(feature = "metrics"))]
        let from = to;
        Turn { from, to }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.is_over().tell();
    }
}

/// A renewal was confirmed: how long that took, and what was left by then of a TTL.
pub(crate) fn renewed(took: Duration, left: Duration, ttl: Duration) {
    record(RENEWAL, took.as_secs_f64());
    record(REMAINING, left.as_secs_f64() / ttl.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [&str; 9] = [ACQUIRES, WAIT, HOLD, RENEWAL, REMAINING, LOSSES, HELD, WAITING, AT_RISK];

    /// Every word that looks like one of ours, without what an exporter adds to it.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("leasehold_"));
        ours.map(|word| ["_sum", "_count", "_bucket"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word))
            .collect()
    }

    #[test]
    fn pages_dashboard_and_alerts_know_what_is_measured_and_nothing_else() {
        let all: BTreeSet<&str> = ALL.into();
        let dashboard = include_str!("../docs/metrics/dashboard.json");
        assert_eq!(named(include_str!("../docs/metrics.md")), all);
        assert_eq!(named(dashboard), all);
        let alerts = named(include_str!("../docs/metrics/alerts.yml"));
        assert!(alerts.len() >= 4 && alerts.is_subset(&all), "{alerts:?}");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() >= 6));
    }
}
