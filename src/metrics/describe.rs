//! The catalogue: each metric's name, unit and meaning.

use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use super::{
    ACQUIRES, AT_RISK, HELD, HOLD, LOSSES, REMAINING, RENEWAL, RENEWALS, REPLICATION, WAIT, WAITING,
    nodes::{
        CLOCK_OFFSET, FAILOVERS, MOVES, NODE_UP, NOTIFICATIONS_ACTIVE, RECONNECTS, REDIRECTIONS, UNDOS, UNREPLICATED,
    },
    series::{self, LEAST},
};
use crate::sync::catching_panics;

/// Describes each metric to an exporter, and reports that nothing was counted so far.
pub(crate) fn describe() {
    let _described = catching_panics(|| {
        describe_counter!(ACQUIRES, Unit::Count, "Acquires that have ended, by outcome and mode.");
        describe_histogram!(WAIT, Unit::Seconds, "From the call of an acquire to its lease.");
        describe_histogram!(HOLD, Unit::Seconds, "From the acquire of a lock to its end.");
        describe_counter!(RENEWALS, Unit::Count, "Renewals, by outcome; retries are not counted.");
        describe_histogram!(RENEWAL, Unit::Seconds, "From a renewal's sending to its confirmation.");
        describe_histogram!(REMAINING, "What was left of the TTL when a renewal was confirmed.");
        describe_gauge!(LEAST, "The least that was left of any lease's TTL in the last one or two minutes.");
        describe_counter!(LOSSES, Unit::Count, "Leases that ended otherwise than by a release, by reason.");
        describe_gauge!(HELD, Unit::Count, "Locks that are held, by mode.");
        describe_gauge!(WAITING, Unit::Count, "Acquires under way.");
        describe_gauge!(AT_RISK, Unit::Count, "Locks that are held, and whose last renewal is not confirmed.");
        describe_gauge!(NODE_UP, "Whether the node answers: 1 or 0.");
        describe_gauge!(CLOCK_OFFSET, Unit::Seconds, "By how much the node's clock is ahead of this machine's.");
        describe_gauge!(NOTIFICATIONS_ACTIVE, "Whether the node notifies of changes: 1 or 0.");
        describe_counter!(RECONNECTS, Unit::Count, "Connections to the node that replaced a lost one.");
        describe_counter!(MOVES, Unit::Count, "How often the node's address led to another server.");
        describe_counter!(FAILOVERS, Unit::Count, "Replicas that have taken over from a primary.");
        describe_counter!(REDIRECTIONS, Unit::Count, "Requests that a server of a cluster has not served, by kind.");
        describe_counter!(UNREPLICATED, Unit::Count, "Requests whose writes too few replicas confirmed in time.");
        describe_histogram!(REPLICATION, Unit::Seconds, "From a server's answer to its confirmation by replicas.");
        describe_counter!(UNDOS, Unit::Count, "Undos that no node confirmed: a key may stay for its TTL.");
        series::begin();
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL: [&str; 21] = [
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
        NOTIFICATIONS_ACTIVE,
        RECONNECTS,
        MOVES,
        FAILOVERS,
        REDIRECTIONS,
        UNREPLICATED,
        REPLICATION,
        UNDOS,
    ];

    /// Every word that looks like one of ours, without what an exporter adds to it.
    fn named(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let ours = words.filter(|word| word.starts_with("leasehold_"));
        ours.map(|word| ["_sum", "_count", "_bucket"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word))
            .collect()
    }

    const PAGE: &str = include_str!("../../docs/metrics.md");
    const ALERTS: &str = include_str!("../../docs/metrics/alerts.yml");
    const ALERTS_TEST: &str = include_str!("../../docs/metrics/alerts.test.yml");
    const DASHBOARD: &str = include_str!("../../docs/metrics/dashboard.json");

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
            let link = format!("leasehold/docs/metrics/index.html#{}\n", alert.to_lowercase());
            assert!(ALERTS.contains(&link), "{alert} does not say what to do");
            assert!(PAGE.contains(&format!("\n### `{alert}`\n")), "{alert} has no section");
            assert!(ALERTS_TEST.contains(alert), "{alert} has no test");
        }
    }
}
