//! Asks a primary about its cluster, or Sentinels about theirs, for people who inspect a deployment.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_protocol::{failure::Failure, place::Shard};

use super::Cluster;
use crate::{
    node::redis::server::Connections,
    survey::{Inquiry, SentinelsSaid, ServerSaid},
};

impl Cluster {
    /// Surveys a primary.
    pub(super) async fn survey(&self, shard: Shard, inquiry: &Inquiry) -> Result<ServerSaid, Failure> {
        let ((server, _), limit) = (self.server(shard)?, inquiry.limit);
        let said = server.survey(inquiry, |place| self.endpoint(place)).await;
        let said = said.map_err(|failure| self.unsent(failure, &server, shard, None, None))?;
        let (cluster_nodes, sentinels) = tokio::join!(self.nodes_by(&server, limit), self.said_by_all(limit));
        Ok(ServerSaid { cluster_nodes, sentinels, ..said })
    }

    /// The cluster as this server sees it.
    async fn nodes_by(&self, server: &Connections, limit: Duration) -> Option<String> {
        if self.sentinels.is_some() {
            return None;
        }
        server.keeper.command("CLUSTER", vec!["NODES".into()], limit).await.ok()?.as_string()
    }

    /// The reports of the Sentinels, if they name the primary.
    async fn said_by_all(&self, limit: Duration) -> Option<SentinelsSaid> {
        let sentinels = self.sentinels.as_ref()?;
        let all = sentinels.from(&self.seeds, 0);
        let named = all.iter().map(|one| async move {
            let named = tokio::time::timeout(limit, self.primary_by(one)).await.ok().flatten();
            (one.target.to_string(), named.map(|place| place.to_string()))
        });
        let (names, refusals) = tokio::join!(join_all(named), join_all(all.iter().map(|one| self.no_quorum_by(one))));
        let no_quorum = refusals.into_iter().flatten().next();
        Some(SentinelsSaid { service: sentinels.service.clone(), names, no_quorum })
    }
}
