//! How a cluster, or a primary behind Sentinels, is run: for people who look at a deployment.

use std::time::Duration;

use fred::types::Value;
use futures_util::future::join_all;
use leasehold_protocol::slot::SLOTS;

use super::Cluster;
use crate::{
    deployment::{ClusterFacts, Deployment, SentinelFacts},
    node::redis::server::Connections,
};

impl Cluster {
    /// As far as its servers tell within this time each.
    pub(super) async fn facts(&self, limit: Duration) -> Deployment {
        let Some(sentinels) = &self.sentinels else { return Deployment::Cluster(self.facts_of_cluster(limit).await) };
        let all = sentinels.from(0);
        let named = all.iter().map(|one| async move {
            let named = tokio::time::timeout(limit, self.primary_by(one)).await.ok().flatten();
            (one.target.to_string(), named.map(|place| place.to_string()))
        });
        let (names, refusals) = tokio::join!(join_all(named), join_all(all.iter().map(|one| self.no_quorum_by(one))));
        let no_quorum = refusals.into_iter().flatten().next();
        Deployment::Sentinel(SentinelFacts { service: sentinels.service().into(), names, no_quorum })
    }

    async fn facts_of_cluster(&self, limit: Duration) -> ClusterFacts {
        let (primaries, slots) = {
            let topology = self.topology.read();
            let slots = (0..SLOTS).filter(|slot| topology.owner(*slot).is_some()).count();
            (topology.servers(), slots)
        };
        let servers: Vec<_> = primaries.iter().filter_map(|shard| self.server(*shard).ok()).collect();
        let told = join_all(servers.iter().map(|(server, _)| facts_of(server, limit))).await;
        let mut facts = ClusterFacts {
            primaries: primaries.len(),
            slots: u16::try_from(slots).unwrap_or(SLOTS),
            ..ClusterFacts::default()
        };
        for (nodes, coverage, timeout) in told {
            facts.moving.extend(nodes.iter().flat_map(|nodes| moving(nodes)));
            facts.requires_all_slots = facts.requires_all_slots.max(coverage.map(|coverage| coverage == "yes"));
            let timeout = timeout.and_then(|timeout| timeout.parse().ok()).map(Duration::from_millis);
            facts.node_timeout = facts.node_timeout.max(timeout);
        }
        facts.moving.sort_unstable();
        facts.moving.dedup();
        facts
    }
}

/// Its view of the cluster, and two of its settings.
async fn facts_of(server: &Connections, limit: Duration) -> (Option<String>, Option<String>, Option<String>) {
    let keeper = &server.keeper;
    let nodes = keeper.command("CLUSTER", vec!["NODES".into()], limit);
    let coverage = keeper.setting("cluster-require-full-coverage", limit);
    let (nodes, coverage, timeout) = tokio::join!(nodes, coverage, keeper.setting("cluster-node-timeout", limit));
    (nodes.ok().as_ref().and_then(Value::as_string), coverage, timeout)
}

/// The slots that this server gives away, or gets: `[93->-id]`, `[93-<-id]` in the line about itself.
fn moving(nodes: &str) -> Vec<u16> {
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let slot = |word: &str| word.strip_prefix('[')?.split('-').next()?.parse().ok();
    own.split(' ').filter_map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_on_their_way_are_read() {
        let nodes = "aaa h:1@2 master - 0 0 1 connected 0-99 [7->-bbb]\n\
                     bbb h:2@3 myself,master - 0 0 2 connected 100-199 [8-<-aaa] [9->-aaa] [x->-aaa]\n";
        assert_eq!(moving(nodes), [8, 9]);
        assert!(moving("").is_empty());
    }
}
