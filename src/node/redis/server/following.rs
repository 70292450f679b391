//! The replicas of a server, as it and they tell: for people who look at a deployment.

use std::{sync::Arc, time::Duration};

use fred::error::Error as FredError;
use futures_util::future::join_all;
use leasehold_protocol::{failure::Failure, time::Time, topology::Place};

use super::Connections;
use crate::{
    deployment::ReplicaFacts,
    node::redis::{
        info::{self, Following},
        transport::{Address, Endpoint, Target, Wanted, question, words},
    },
};

/// A server's `INFO`, and our time in the middle of the question.
struct Said {
    info: String,
    at: Time,
}

impl Connections {
    /// Each replica of this server. It is connected to for one question.
    pub(in crate::node::redis) async fn replica_facts(
        &self,
        limit: Duration,
        reach: impl Fn(&Place) -> Endpoint,
    ) -> Result<Vec<ReplicaFacts>, Failure> {
        let began = self.keeper.now();
        let info = self.keeper.info(limit).await?;
        let primary = Said { info, at: middle(began, self.keeper.now()) };
        let each = info::following(&primary.info).into_iter().map(|told| {
            let endpoint = told.place.as_ref().map(&reach);
            self.facts_of(told, endpoint, &primary, limit)
        });
        Ok(join_all(each).await)
    }

    /// Where a replica of this server is reached.
    pub(in crate::node::redis) fn beside(&self, place: &Place) -> Endpoint {
        let endpoint = self.keeper.endpoint();
        let tls = endpoint.target.address.has_tls();
        let address = Address::Tcp { host: place.host.to_string(), port: place.port, tls };
        endpoint.another(Target { address, ..endpoint.target.clone() }, Wanted::Named)
    }

    async fn facts_of(
        &self,
        told: Following,
        endpoint: Option<Endpoint>,
        primary: &Said,
        limit: Duration,
    ) -> ReplicaFacts {
        let facts = ReplicaFacts {
            address: told.address,
            is_online: told.is_online,
            behind_bytes: told.behind,
            acknowledged_ago: told.lag,
            ..ReplicaFacts::default()
        };
        let Some(endpoint) = endpoint else {
            return ReplicaFacts { unreachable: Some("its primary names no address for it".into()), ..facts };
        };
        match self.ask_replica(&endpoint, limit).await {
            Ok(said) => ReplicaFacts {
                eviction: info::capabilities(&said.info, None).eviction,
                clock_ahead_micros: ahead(&said, primary),
                ..facts
            },
            Err(error) => ReplicaFacts { unreachable: Some(words(&error).to_owned()), ..facts },
        }
    }

    async fn ask_replica(&self, endpoint: &Endpoint, limit: Duration) -> Result<Said, FredError> {
        question::ask(self.host.clone(), endpoint, &Arc::default(), async |link| {
            let began = endpoint.now();
            let info = link.command("INFO", Vec::new(), limit).await?;
            Ok(Said { info: info.as_string().unwrap_or_default(), at: middle(began, endpoint.now()) })
        })
        .await
    }
}

fn middle(began: Time, ended: Time) -> Time {
    began + ended.since(began) / 2
}

/// By how much the clock of the first is ahead of the other's.
fn ahead(one: &Said, other: &Said) -> Option<i64> {
    let time = |said: &Said| i128::from(info::identity(&said.info).time.unwrap_or_default());
    let ours = |said: &Said| i128::from(said.at.as_nanos() / 1_000);
    let both_tell = [one, other].iter().all(|said| time(said) > 0);
    let ahead = (time(one) - time(other)) - (ours(one) - ours(other));
    both_tell.then(|| i64::try_from(ahead).ok())?
}
