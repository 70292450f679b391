//! Judges the replicas of a server, which may take over from it.

use std::time::Duration;

use super::{
    CLOCKS_DIFFER, TOO_FEW, apart,
    facts::{Deployment, Facts, ReplicaFacts},
    finding::{Finding, note, ok, problem},
    judge::NO_EVICTION,
};

/// A replica that follows acknowledges every second.
const SILENT: Duration = Duration::from_secs(5);

/// A busy primary writes this much in a moment.
const MUCH_BEHIND: u64 = 1 << 20;

/// Judges the number of replicas, of which `wanted` have to confirm each lock.
pub(super) fn judge_number(server: &Facts<'_>, wanted: u8) -> Vec<Finding> {
    if server.role == Some("slave") {
        return vec![problem("replicas", "it is a replica, and takes no writes", "name its primary")];
    }
    let is_replaceable = server.deployment != Deployment::Alone;
    let start_one = match server.deployment {
        Deployment::Cluster => "redis-cli --cluster add-node NEW ANY --cluster-slave",
        Deployment::Alone | Deployment::Sentinel => "start another server, and make it a replica: REPLICAOF",
    };
    let Some(number) = server.replicas else { return Vec::new() };
    let mut findings = Vec::new();
    match server.min_replicas_to_write {
        Some(least) if number < least => findings.push(problem(
            "replicas",
            format!("{number} replicating, and it writes only with {least} (min-replicas-to-write)"),
            TOO_FEW,
        )),
        // Clients believe it until they hear of another primary.
        Some(0) if number > 0 && is_replaceable && wanted == 0 => findings.push(note(
            "cut off",
            "min-replicas-to-write 0: cut off from its replicas it goes on granting locks, beside the one that replaces it",
            "CONFIG SET min-replicas-to-write 1, then CONFIG REWRITE, stops it after 10 s; or use --min-replicas 1",
        )),
        _ => {}
    }
    match number {
        _ if number < wanted.into() => findings.push(problem(
            "replicas",
            format!("{number} replicating, and {wanted} have to confirm each lock (--min-replicas): none is acquired"),
            start_one,
        )),
        0 if is_replaceable => {
            findings.push(note("replicas", "no replica is connected: if it dies, nobody can take over", start_one));
        }
        0 => {}
        _ if wanted == 0 => findings.push(note(
            "replicas",
            format!("{number} replicating: one that takes over may not have heard of a lock"),
            "where that matters, use --min-replicas, let the resource check the fence, or use --quorum",
        )),
        _ => findings.push(ok("replicas", format!("{number} replicating, {wanted} have to confirm each lock"))),
    }
    findings
}

/// Judges each replica.
pub(super) fn judge_each(replicas: &[ReplicaFacts<'_>]) -> Vec<Finding> {
    let findings: Vec<Finding> = replicas.iter().flat_map(judge_one).collect();
    if replicas.is_empty() || !findings.is_empty() {
        return findings;
    }
    let behind = replicas.iter().filter_map(|replica| replica.behind_bytes).max().unwrap_or_default();
    let clocks = replicas.iter().filter_map(|replica| replica.clock_ahead_micros).map(i64::unsigned_abs).max();
    let clocks = clocks.map(|micros| format!(", their clocks within {} of its own", apart(micros)));
    vec![ok("replica", format!("all follow, at most {behind} bytes behind{}", clocks.unwrap_or_default()))]
}

fn judge_one(replica: &ReplicaFacts<'_>) -> Vec<Finding> {
    let ReplicaFacts { address, is_online, behind_bytes, acknowledged_ago, eviction, .. } = replica;
    let mut findings = Vec::new();
    if !is_online {
        findings.push(note(
            "replica",
            format!("{address} does not follow yet: it copies what there is"),
            "ask again; if it goes on, see to the logs of both: INFO replication",
        ));
    } else if acknowledged_ago.is_some_and(|ago| ago >= SILENT)
        || behind_bytes.is_some_and(|bytes| bytes >= MUCH_BEHIND)
    {
        let bytes = behind_bytes.map_or_else(|| "some".to_owned(), |bytes| bytes.to_string());
        let ago = acknowledged_ago.map_or_else(String::new, |ago| format!(", and last acknowledged {ago:?} ago"));
        findings.push(note(
            "replica",
            format!("{address} is {bytes} bytes behind{ago}: if it takes over, what it lacks then is lost"),
            "see to it, and to the network between the two; or use --min-replicas",
        ));
    }
    if let Some(policy) = eviction.filter(|policy| *policy != "noeviction") {
        findings.push(note(
            "replica",
            format!("{address} has maxmemory-policy {policy}: once it has taken over, it may evict locks"),
            NO_EVICTION,
        ));
    }
    if let Some(micros) = replica.clock_ahead_micros.filter(|micros| micros.unsigned_abs() > CLOCKS_DIFFER) {
        let which = if micros > 0 { "ahead of" } else { "behind" };
        findings.push(problem(
            "replica",
            format!(
                "the clock of {address} is {} {which} its primary's, more than leases allow for",
                apart(micros.unsigned_abs())
            ),
            "have them synchronised (NTP)",
        ));
    }
    if let Some(why) = replica.unreachable {
        findings.push(note(
            "replica",
            format!("{address} cannot be asked for its clock and its settings: {why}"),
            "see whether it is reached from here under this address: --map",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level::{self, Note, Ok, Problem};

    fn levels(change: impl FnOnce(&mut ReplicaFacts<'_>)) -> Vec<Level> {
        let mut facts = ReplicaFacts {
            address: "10.0.0.2:6379",
            is_online: true,
            behind_bytes: Some(14),
            acknowledged_ago: Some(Duration::from_secs(1)),
            eviction: Some("noeviction"),
            clock_ahead_micros: Some(-2_000),
            unreachable: None,
        };
        change(&mut facts);
        judge_each(&[facts]).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_replica_that_would_lose_locks_is_told() {
        assert_eq!(levels(|_| {}), [Ok]);
        assert_eq!(levels(|facts| facts.is_online = false), [Note]);
        assert_eq!(levels(|facts| facts.behind_bytes = Some(MUCH_BEHIND)), [Note]);
        assert_eq!(levels(|facts| facts.acknowledged_ago = Some(SILENT)), [Note]);
        assert_eq!(levels(|facts| facts.eviction = Some("allkeys-lru")), [Note]);
        assert_eq!(levels(|facts| facts.unreachable = Some("no answer")), [Note]);
        for micros in [302_001, -302_001] {
            assert_eq!(levels(|facts| facts.clock_ahead_micros = Some(micros)), [Problem]);
        }
        let told = judge_each(&[ReplicaFacts::default()]);
        assert_eq!(told.len(), 1, "it copies: {told:?}");
        assert!(judge_each(&[]).is_empty());
    }
}
