//! Judges servers by what they report about themselves.

use std::time::Duration;

use leasehold::{
    Error, NodeStatus,
    doctor::{SentinelsSaid, Surveyed},
};

use super::{
    Section, advice_for,
    facts::{ClocksDiffer, ClusterFacts, Deployment, Facts},
    finding::{Finding, note, ok, problem},
    judge_clocks,
};

/// The oldest server that has what the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// The percentage of memory taken by floors of fences that is worth a note.
const MUCH: u8 = 50;

/// How a server keeps locks together with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Alone,
    OfQuorum,
    /// Replicas may take over from it: a part of a cluster, or watched by Sentinels. It has no `--restart-delay`.
    Replaceable,
}

/// Judges a server by itself. A wait after each restart makes up for locks that it may have forgotten.
pub(super) fn judge(server: &Facts<'_>, is_quorum: bool, waits_after_restart: bool) -> Vec<Finding> {
    let kind = match server.deployment {
        Deployment::Cluster | Deployment::Sentinel => Kind::Replaceable,
        Deployment::Alone if is_quorum => Kind::OfQuorum,
        Deployment::Alone => Kind::Alone,
    };
    let mut findings = vec![
        version(server.server.as_deref()),
        match server.eviction {
            None => note("eviction", "it does not tell its maxmemory-policy", "see to it that it is noeviction"),
            Some(policy) => eviction(policy, is_quorum),
        },
        persistence(server.append_only, server.append_fsync, kind, waits_after_restart),
    ];
    findings.extend(saving(server));
    if let Some(share @ MUCH..) = server.floors_percent {
        findings.push(note(
            "floors",
            format!("about {share} % of its memory are floors of fences, one for each name of the last 24 hours"),
            "run --fence-memory 1h, or less: leasehold run --help",
        ));
    }
    findings.push(match server.notifications {
        Some(Ok(())) => ok("notifications", "the server notifies of changes: waiters and holders hear of them at once"),
        Some(Err(reason)) => note(
            "notifications",
            format!(
                "the server does not notify of changes ({reason}): waiters poll, and holders hear by the next renewal"
            ),
            "allow our user client and subscribe",
        ),
        None => note("notifications", "the server has not said in time whether it notifies of changes", ""),
    });
    if !server.notifies_waiters {
        findings.push(note(
            "notifications",
            "the server cannot notify fair waiters: they poll",
            "allow our user subscribe, and all channels",
        ));
    }
    findings
}

/// Judges the servers together, if they know of each other.
pub(super) fn judge_together(servers: &[Surveyed]) -> Option<Section> {
    let (node, said) = servers.iter().find_map(|(node, said)| Some((node, said.as_ref().ok()?)))?;
    let (place, findings) = match &said.sentinels {
        Some(sentinels) => ("the Sentinels", judge_sentinels(sentinels)),
        None if node.slots().is_some() => ("the cluster", judge_cluster(&ClusterFacts::of(servers))),
        None => return None,
    };
    Some(Section { place: place.into(), findings })
}

/// A primary of a cluster that does not answer, while others do.
pub(super) fn judge_absence(node: &NodeStatus, error: &Error) -> Option<Finding> {
    let slots = node.slots()?;
    let what = format!("the locks in its {slots} slots cannot be acquired: {error}");
    let advice = if !error.is_transient() {
        "see to its user and password: they must be the same on every server"
    } else if node.replicas().is_some_and(|replicas| replicas > 0) {
        "a replica may be about to take over: ask again in some seconds, then start it"
    } else {
        "start it: it has no replica that could take over"
    };
    Some(problem("server", what, advice_for(&error.to_string()).unwrap_or(advice)))
}

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

/// A failover takes the node time-out, and some seconds for the election. After one this long, a lease of the usual TTL
/// of 30 s has been renewed once more, at a third of it.
const SLOW_FAILOVER: Duration = Duration::from_secs(15);

fn judge_cluster(cluster: &ClusterFacts) -> Vec<Finding> {
    let ClusterFacts { primaries, slots, moving, requires_all_slots, node_timeout, clocks } = cluster;
    let mut findings = vec![if *slots == SLOTS {
        ok("cluster", format!("{primaries} primaries have all slots"))
    } else {
        let without = SLOTS - slots;
        problem(
            "cluster",
            format!("{without} slots have no primary: their locks cannot be acquired"),
            "give them to one: redis-cli --cluster fix",
        )
    }];
    findings.extend(clocks.map(|ClocksDiffer { clocks, micros }| judge_clocks(clocks, micros)));
    if *requires_all_slots == Some(true) {
        findings.push(note(
            "coverage",
            "one slot without a primary stops all the others (cluster-require-full-coverage yes)",
            "CONFIG SET cluster-require-full-coverage no on each server, then CONFIG REWRITE",
        ));
    }
    if let Some([slot, ..]) = moving.first_chunk::<1>() {
        findings.push(note(
            "moving",
            format!("{} slots are being moved, such as {slot}: fair locks there wait", moving.len()),
            "finish that, or redis-cli --cluster fix; a move that is given up forgets the keys that have gone",
        ));
    }
    if let Some(timeout) = node_timeout.filter(|timeout| *timeout >= SLOW_FAILOVER) {
        findings.push(note(
            "failover",
            format!("a dead primary is noticed after {timeout:?} (cluster-node-timeout): leases of the usual TTL may not last"),
            "a longer TTL, or a shorter cluster-node-timeout on each server",
        ));
    }
    findings
}

fn judge_sentinels(SentinelsSaid { service, names, no_quorum }: &SentinelsSaid) -> Vec<Finding> {
    let silent: Vec<&str> = names.iter().filter(|(_, named)| named.is_none()).map(|(at, _)| &**at).collect();
    let mut named: Vec<&str> = names.iter().filter_map(|(_, named)| named.as_deref()).collect();
    named.sort_unstable();
    named.dedup();
    let mut findings = Vec::new();
    if named.len() > 1 {
        findings.push(problem(
            "sentinels",
            format!("they name different primaries of {service:?}: {}", named.join(", ")),
            "ask again in some seconds; then see to the one that is behind: SENTINEL RESET",
        ));
    }
    if !silent.is_empty() {
        findings.push(note(
            "sentinels",
            format!("{} of {} do not answer: {}", silent.len(), names.len(), silent.join(", ")),
            "start them: a failover needs more than half of them",
        ));
    }
    if let Some(why) = no_quorum {
        findings.push(problem(
            "sentinels",
            format!("they could not have a replica take over: {why}"),
            "start the others, or lower the quorum of the service: SENTINEL CKQUORUM",
        ));
    }
    if findings.is_empty() {
        findings.push(ok("sentinels", format!("{} Sentinels name one primary of {service:?}", names.len())));
    }
    findings
}

pub(super) const NO_EVICTION: &str = "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE";

/// Judges what the server does with locks when its memory is full.
fn eviction(policy: &str, is_quorum: bool) -> Finding {
    match policy {
        "noeviction" => ok("eviction", "maxmemory-policy noeviction"),
        "allkeys-lru" | "volatile-lru" | "allkeys-lfu" | "volatile-lfu" if !is_quorum => note(
            "eviction",
            format!("maxmemory-policy {policy}: floors of fences go first, and a lock that is held may go too"),
            NO_EVICTION,
        ),
        _ => problem(
            "eviction",
            format!("maxmemory-policy {policy}: when memory is full it evicts locks that are held"),
            NO_EVICTION,
        ),
    }
}

/// Judges what a crash may make the server forget.
fn persistence(
    append_only: Option<bool>,
    append_fsync: Option<&str>,
    kind: Kind,
    waits_after_restart: bool,
) -> Finding {
    match (append_only, append_fsync) {
        (None, _) if kind == Kind::Replaceable => note(
            "persistence",
            "it does not tell whether it keeps an append-only file",
            "without one a restart forgets its locks: where that matters, let the resource check the fence",
        ),
        (None, _) => note(
            "persistence",
            "it does not tell whether it keeps an append-only file",
            "a server that forgets its locks in a restart needs --restart-delay 31s, a second more than the longest TTL",
        ),
        (Some(true), Some("always")) => {
            ok("persistence", "every write is on disk before it is answered (appendfsync always)")
        }
        (Some(true), _) if waits_after_restart => ok("persistence", "append-only file, and a delay after each restart"),
        (Some(false), _) if waits_after_restart => {
            ok("persistence", "no append-only file, but a delay after each restart")
        }
        (Some(_), _) if kind == Kind::OfQuorum => problem(
            "persistence",
            "a crash may forget locks, and --restart-delay 0 has it vote at once",
            "CONFIG SET appendonly yes and CONFIG SET appendfsync always, then CONFIG REWRITE (a restart with the settings \
             alone starts empty); or leave --restart-delay out",
        ),
        (Some(true), fsync) => note(
            "persistence",
            format!("appendfsync {}: a crash may forget the locks of the last moment", fsync.unwrap_or("not told")),
            if kind == Kind::Replaceable {
                "CONFIG SET appendfsync always, then CONFIG REWRITE, makes up for that; or let the resource check the fence"
            } else {
                "CONFIG SET appendfsync always, then CONFIG REWRITE, makes up for that; or --restart-delay 31s in every \
                 program: a second more than the longest TTL"
            },
        ),
        // This is a server's default, and enough for a lock that only saves work.
        (Some(false), _) => note(
            "persistence",
            "no append-only file: a restart forgets who holds what",
            if kind == Kind::Replaceable {
                "CONFIG SET appendonly yes, then CONFIG REWRITE (a restart with the setting alone starts empty). A replica \
                 helps only if it takes over before the restart: where that matters, let the resource check the fence"
            } else {
                "CONFIG SET appendonly yes, then CONFIG REWRITE (a restart with the setting alone starts empty); or \
                 --restart-delay 31s in every program: a second more than the longest TTL"
            },
        ),
    }
}

/// Judges what a full disk does. Most servers that cannot save refuse all writes (MISCONF), and so every lease ends.
fn saving(server: &Facts<'_>) -> Option<Finding> {
    if server.saved == Some(false) {
        return Some(problem(
            "saving",
            "its last snapshot, or the last write to its append-only file, has failed",
            "see to the server's disk, and to its log",
        ));
    }
    server.stops_unsaved?.then(|| {
        note(
            "saving",
            "a full disk stops all locks: it refuses writes after a snapshot that failed (stop-writes-on-bgsave-error yes)",
            "locks need no snapshots: CONFIG SET save '', then CONFIG REWRITE; or set stop-writes-on-bgsave-error no",
        )
    })
}

fn version(server: Option<&str>) -> Finding {
    let Some(server) = server else {
        return note("version", "it does not tell its version", "it must be Redis 6.2 or later");
    };
    let mut numbers = server.rsplit(' ').next().unwrap_or_default().split('.').map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => {
            problem("version", format!("{server} is too old"), "use Redis 6.2 or later, or Valkey")
        }
        _ => ok("version", server),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::doctor::finding::Level;

    proptest! {
        #[test]
        fn any_text_is_a_version(text in "(redis |valkey )?[0-9.]{0,30}|.*") {
            let _level = version(Some(&text)).level;
        }
    }

    fn level(finding: &Finding) -> Level {
        finding.level
    }

    #[test]
    fn an_old_server_is_a_problem_and_an_unknown_one_is_not() {
        for (server, expected) in [
            (Some("redis 6.0.16"), Level::Problem),
            (Some("redis 5.0.7"), Level::Problem),
            (Some("redis 6.2.0"), Level::Ok),
            (Some("redis 7.0.15"), Level::Ok),
            (Some("valkey 9.1.2"), Level::Ok),
            (Some("another"), Level::Ok),
            (None, Level::Note),
        ] {
            assert_eq!(level(&version(server)), expected, "{server:?}");
        }
    }

    #[test]
    fn what_tells_nothing_is_no_problem() {
        let findings = judge(&Facts::default(), false, false);
        assert!(findings.len() >= 5 && findings.iter().all(|finding| finding.level == Level::Note), "{findings:?}");
    }

    #[test]
    fn a_delay_after_restarts_makes_up_for_what_a_crash_forgets() {
        use Level::{Note, Ok, Problem};
        let levels = |append_only, fsync| {
            [(Kind::Alone, false), (Kind::Alone, true), (Kind::OfQuorum, false), (Kind::OfQuorum, true)]
                .map(|(kind, waits)| level(&persistence(append_only, fsync, kind, waits)))
        };
        assert_eq!(levels(Some(false), Some("everysec")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(false), Some("always")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), Some("everysec")), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), None), [Note, Ok, Problem, Ok]);
        assert_eq!(levels(Some(true), Some("always")), [Ok; 4]);
        assert_eq!(levels(None, None), [Note; 4]);
    }

    /// A URL of a cluster or of Sentinels refuses a restart delay.
    #[test]
    fn nobody_is_told_to_delay_restarts_where_replicas_take_over() {
        for (append_only, fsync) in [(None, None), (Some(false), None), (Some(true), Some("everysec"))] {
            for (kind, is_told) in [(Kind::Alone, true), (Kind::Replaceable, false)] {
                let Finding { level, advice, .. } = persistence(append_only, fsync, kind, false);
                assert_eq!((level, advice.contains("--restart-delay")), (Level::Note, is_told), "{advice}");
            }
        }
    }
}
