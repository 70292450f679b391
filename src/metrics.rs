// What is measured, with the crate feature `metrics`: see the page `docs/metrics.md`. Without it nothing is.

use std::time::Duration;

use leasehold_protocol::loss::{self, LossReason};

use crate::error::Error;
#[cfg(feature = "metrics")]
use crate::sync::catching_panics;

#[cfg(feature = "metrics")]
mod least;
mod nodes;
mod series;

#[cfg(feature = "metrics")]
pub(crate) use self::series::Telling;
pub(crate) use self::{
    nodes::{NodeMetrics, have_news, undo_is_unconfirmed},
    series::Group,
};

const ACQUIRES: &str = "leasehold_acquires_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWALS: &str = "leasehold_renewals_total";
const RENEWAL: &str = "leasehold_renewal_seconds";
const REMAINING: &str = "leasehold_renewal_remaining_ratio";
#[cfg(feature = "metrics")]
const LEAST: &str = "leasehold_least_remaining_ratio";
const LOSSES: &str = "leasehold_losses_total";
const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const AT_RISK: &str = "leasehold_at_risk";
#[cfg(feature = "metrics")]
const NODE_UP: &str = "leasehold_node_up";
#[cfg(feature = "metrics")]
const CLOCK_OFFSET: &str = "leasehold_node_clock_offset_seconds";
#[cfg(feature = "metrics")]
const PUSH_ACTIVE: &str = "leasehold_push_active";
#[cfg(feature = "metrics")]
const RECONNECTS: &str = "leasehold_reconnects_total";
#[cfg(feature = "metrics")]
const UNDOS: &str = "leasehold_undos_unconfirmed_total";

/// A renewal is late if less than this is left of the TTL when it is confirmed. A good one leaves some two thirds.
const LATE: f64 = 0.4;

/// Tells an exporter what each of them is, and that nothing was counted so far.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        let _described = catching_panics(|| {
            describe_counter!(ACQUIRES, Unit::Count, "Acquires that have ended, by outcome.");
            describe_histogram!(WAIT, Unit::Seconds, "From the call of an acquire to its lease.");
            describe_histogram!(HOLD, Unit::Seconds, "From the acquire of a lock to its end.");
            describe_counter!(RENEWALS, Unit::Count, "Renewals, by outcome; retries are not counted.");
            describe_histogram!(RENEWAL, Unit::Seconds, "From a renewal's sending to its confirmation.");
            describe_histogram!(REMAINING, "What was left of the TTL when a renewal was confirmed.");
            describe_gauge!(LEAST, "The least that was left of any lease's TTL in the last one or two minutes.");
            describe_counter!(LOSSES, Unit::Count, "Leases that ended otherwise than by a release, by reason.");
            describe_gauge!(HELD, Unit::Count, "Locks that are held.");
            describe_gauge!(WAITING, Unit::Count, "Acquires under way.");
            describe_gauge!(AT_RISK, Unit::Count, "Locks that are held, and whose last renewal is not confirmed.");
            describe_gauge!(NODE_UP, "Whether the node answers: 1 or 0.");
            describe_gauge!(CLOCK_OFFSET, Unit::Seconds, "By how much the node's clock is ahead of this machine's.");
            describe_gauge!(PUSH_ACTIVE, "Whether the node notifies of changes: 1 or 0.");
            describe_counter!(RECONNECTS, Unit::Count, "Connections to the node that replaced a lost one.");
            describe_counter!(UNDOS, Unit::Count, "Undos that no node confirmed: a key may stay for its TTL.");
            series::begin();
        });
    }
}

/// An acquire under way; abandoned unless it is said how it ended.
#[derive(Debug)]
pub(crate) struct Acquiring {
    group: Group,
    outcome: &'static str,
}

impl Acquiring {
    pub(crate) fn begins(group: Group) -> Self {
        group.change(WAITING, 1);
        Self { group, outcome: "abandoned" }
    }

    /// Whether it was one try, which does not wait: that a lock is held is no failure then.
    pub(crate) fn ended<T>(mut self, outcome: &Result<T, Error>, is_try: bool, waited: Duration) {
        if outcome.is_ok() {
            self.group.record(WAIT, waited.as_secs_f64());
        }
        self.outcome = match outcome {
            Ok(_) => "acquired",
            Err(Error::TimedOut { holder, .. }) if holder.not_a_lock().is_some() => "misplaced",
            Err(Error::TimedOut { .. }) if is_try => "busy",
            Err(Error::TimedOut { .. }) => "timed_out",
            Err(Error::Closed) => "closed",
            Err(Error::Unavailable(_)) => "unavailable",
            Err(_) => "refused",
        };
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.group.count(ACQUIRES, self.outcome);
        self.group.change(WAITING, -1);
    }
}

/// A lock that is held, for as long as it counts as such. Without the feature it is nothing.
#[derive(Debug)]
pub(crate) struct Holding {
    group: Group,
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
    group: Group,
    from: Stage,
    to: Stage,
}

impl Turn {
    /// Held or at risk.
    pub(crate) fn tell(self) {
        let Self { group, from, to } = self;
        if from == to {
            return;
        }
        for (stage, by) in [(from, -1), (to, 1)] {
            if stage == Stage::AtRisk {
                group.change(AT_RISK, by);
            }
        }
        if (from, to) == (Stage::Safe, Stage::AtRisk) {
            group.count(RENEWALS, "failed");
        }
        if to == Stage::Over {
            group.change(HELD, -1);
        }
    }

    /// Over.
    pub(crate) fn tell_end(self, reason: LossReason, held_for: Duration) {
        if self.from != Stage::Over {
            self.group.record(HOLD, held_for.as_secs_f64());
            if let Some(label) = loss::label(reason) {
                self.group.count(LOSSES, label);
            }
            if matches!(reason, LossReason::Expired | LossReason::NoQuorum) {
                self.group.note_remaining(Duration::ZERO, Duration::MAX);
            }
        }
        self.tell();
    }
}

impl Holding {
    pub(crate) fn begins(group: Group) -> Self {
        group.change(HELD, 1);
        Self {
            group,
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
        Turn { group: self.group, from, to }
    }

    /// A renewal is sent when this is left of the TTL.
    pub(crate) fn is_renewed(&self, left: Duration, ttl: Duration) {
        self.group.note_remaining(left, ttl);
    }

    /// A renewal was confirmed: how long that took, and what was left by then of a TTL.
    pub(crate) fn was_renewed(&self, took: Duration, left: Duration, ttl: Duration) {
        let ratio = left.div_duration_f64(ttl);
        self.group.record(RENEWAL, took.as_secs_f64());
        self.group.record(REMAINING, ratio);
        self.group.count(RENEWALS, if ratio < LATE { "late" } else { "ok" });
        self.group.note_remaining(left, ttl);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.is_over().tell();
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [&str; 16] = [
        ACQUIRES,
        WAIT,
        HOLD,
        RENEWALS,
        RENEWAL,
        REMAINING,
        LEAST,
        LOSSES,
        HELD,
        WAITING,
        AT_RISK,
        NODE_UP,
        CLOCK_OFFSET,
        PUSH_ACTIVE,
        RECONNECTS,
        UNDOS,
    ];

    /// Every word that looks like one of ours, without what an exporter adds to it.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("leasehold_"));
        ours.map(|word| ["_sum", "_count", "_bucket"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word))
            .collect()
    }

    const PAGE: &str = include_str!("../docs/metrics.md");
    const ALERTS: &str = include_str!("../docs/metrics/alerts.yml");
    const ALERTS_TEST: &str = include_str!("../docs/metrics/alerts.test.yml");
    const DASHBOARD: &str = include_str!("../docs/metrics/dashboard.json");

    #[test]
    fn pages_dashboard_and_alerts_know_what_is_measured_and_nothing_else() {
        let all: BTreeSet<&str> = ALL.into();
        assert_eq!(named(PAGE), all);
        assert_eq!(named(DASHBOARD), all);
        let alerts = named(ALERTS);
        assert!(alerts.len() >= 7 && alerts.is_subset(&all), "{alerts:?}");
        assert_eq!(named(ALERTS_TEST), alerts);
        let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
        assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() >= 12));
    }

    /// With buckets there are no quantiles, and a panel of them would be empty.
    #[test]
    fn dashboard_and_alerts_do_with_buckets_and_without() {
        for text in [DASHBOARD, ALERTS] {
            assert!(!text.contains("quantile="), "a quantile is read");
        }
    }

    #[test]
    fn every_alert_has_a_test_and_a_section_of_the_page() {
        let alerts: Vec<_> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() >= 10, "{alerts:?}");
        for alert in alerts {
            let link = format!("leasehold/metrics/index.html#{}\n", alert.to_lowercase());
            assert!(ALERTS.contains(&link), "{alert} does not say what to do");
            assert!(PAGE.contains(&format!("\n### `{alert}`\n")), "{alert} has no section");
            assert!(ALERTS_TEST.contains(alert), "{alert} has no test");
        }
    }
}
