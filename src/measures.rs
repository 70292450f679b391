//! What is measured, with the crate feature `metrics`: see the page `docs/metrics.md`. Without it nothing is.

#[cfg(feature = "metrics")]
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::{error::AcquireError, lost::LossReason};

const ACQUIRES: &str = "leasehold_acquires_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWAL: &str = "leasehold_renewal_seconds";
const REMAINING: &str = "leasehold_renewal_remaining_ratio";
const LOSSES: &str = "leasehold_losses_total";
const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const AT_RISK: &str = "leasehold_at_risk";

#[cfg(feature = "metrics")]
const OUTCOMES: [&str; 7] = ["acquired", "timed_out", "already_held", "unavailable", "refused", "closed", "abandoned"];

/// Tells an exporter what each of them is.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
        use LossReason::{Deleted, Expired, MaxHold, NoQuorum, Taken};

        // What is counted for the first time would look like what was always so: from nought on, it is an increase.
        for outcome in OUTCOMES {
            ::metrics::counter!(ACQUIRES, "outcome" => outcome).increment(0);
        }
        for reason in [Expired, NoQuorum, Taken, Deleted, MaxHold].into_iter().filter_map(loss) {
            ::metrics::counter!(LOSSES, "reason" => reason).increment(0);
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
    }
}

fn count(name: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    ::metrics::counter!(name, label => value).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, label, value);
}

fn change(name: &'static str, by: f64) {
    #[cfg(feature = "metrics")]
    ::metrics::gauge!(name).increment(by);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, by);
}

fn record(name: &'static str, value: f64) {
    #[cfg(feature = "metrics")]
    ::metrics::histogram!(name).record(value);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, value);
}

/// An acquire under way; abandoned unless it is said how it ended.
#[derive(Debug)]
pub(crate) struct Acquiring {
    outcome: &'static str,
}

impl Acquiring {
    pub(crate) fn begins() -> Self {
        change(WAITING, 1.0);
        Self { outcome: "abandoned" }
    }

    pub(crate) fn ended<T>(mut self, outcome: &Result<T, AcquireError>, waited: Duration) {
        if outcome.is_ok() {
            record(WAIT, waited.as_secs_f64());
        }
        self.outcome = match outcome {
            Ok(_) => "acquired",
            Err(AcquireError::TimedOut { .. }) => "timed_out",
            Err(AcquireError::AlreadyHeld { .. }) => "already_held",
            Err(AcquireError::Closed) => "closed",
            Err(AcquireError::Unavailable(_)) => "unavailable",
            Err(AcquireError::Refused(_)) => "refused",
        };
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        count(ACQUIRES, "outcome", self.outcome);
        change(WAITING, -1.0);
    }
}

/// A lock that is held, for as long as it counts as such. Without the feature it is nothing.
#[derive(Debug)]
pub(crate) struct Holding {
    #[cfg(feature = "metrics")]
    stage: AtomicU8,
}

/// The stages of a [`Holding`].
const SAFE: u8 = 0;
const DOUBTFUL: u8 = 1;
const OVER: u8 = 2;

impl Holding {
    pub(crate) fn begins() -> Self {
        change(HELD, 1.0);
        // An exporter knows what was told once.
        change(AT_RISK, 0.0);
        Self {
            #[cfg(feature = "metrics")]
            stage: AtomicU8::new(SAFE),
        }
    }

    pub(crate) fn is_at_risk(&self, at_risk: bool) {
        let (from, to, by) = if at_risk { (SAFE, DOUBTFUL, 1.0) } else { (DOUBTFUL, SAFE, -1.0) };
        if self.moves(from, to) {
            change(AT_RISK, by);
        }
    }

    pub(crate) fn ended(&self, reason: LossReason, held_for: Duration) {
        self.ends(|| {
            record(HOLD, held_for.as_secs_f64());
            if let Some(reason) = loss(reason) {
                count(LOSSES, "reason", reason);
            }
        });
    }

    /// Tells of the end, if it is the first.
    fn ends(&self, tell: impl FnOnce()) {
        let before = self.becomes_over();
        if before != OVER {
            tell();
            change(HELD, -1.0);
        }
        if before == DOUBTFUL {
            change(AT_RISK, -1.0);
        }
    }
}

#[cfg(feature = "metrics")]
impl Holding {
    fn moves(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// What it was before.
    fn becomes_over(&self) -> u8 {
        self.stage.swap(OVER, Ordering::AcqRel)
    }
}

#[cfg(not(feature = "metrics"))]
#[allow(clippy::unused_self, reason = "as above")]
impl Holding {
    fn moves(&self, _: u8, _: u8) -> bool {
        false
    }

    fn becomes_over(&self) -> u8 {
        OVER
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.ends(|| {});
    }
}

/// A renewal was confirmed: how long that took, and what was left by then of a TTL.
pub(crate) fn renewed(took: Duration, left: Duration, ttl: Duration) {
    record(RENEWAL, took.as_secs_f64());
    record(REMAINING, left.as_secs_f64() / ttl.as_secs_f64());
}

fn loss(reason: LossReason) -> Option<&'static str> {
    match reason {
        LossReason::Expired => Some("expired"),
        LossReason::NoQuorum => Some("no_quorum"),
        LossReason::Taken => Some("taken"),
        LossReason::Deleted => Some("deleted"),
        LossReason::MaxHold => Some("max_hold"),
        LossReason::Released | LossReason::Closed => None,
    }
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
