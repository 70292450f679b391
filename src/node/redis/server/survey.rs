//! The reports of a server and its replicas about themselves, for people who inspect a deployment.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold_protocol::{failure::Failure, place::Place, time::Time};

use super::Connections;
use crate::{
    node::redis::{
        info::{self, Following},
        transport::{Address, Connection, Endpoint, RequiredKind, Target, question},
        wire::{Error as WireError, words},
    },
    survey::{Info, Inquiry, ReplicaSaid, RightsQuestion, ServerSaid},
};

/// The settings that matter to locks.
const SETTINGS: [&str; 6] = [
    "appendfsync",
    "cluster-node-timeout",
    "cluster-require-full-coverage",
    "min-replicas-to-write",
    "save",
    "stop-writes-on-bgsave-error",
];

impl Connections {
    /// Surveys the server. Each replica gets one question, on a connection to where `reach` says.
    pub(in crate::node::redis) async fn survey(
        &self,
        inquiry: &Inquiry,
        reach: impl Fn(&Place) -> Endpoint,
    ) -> Result<ServerSaid, Failure> {
        let (keeper, limit) = (&self.keeper, inquiry.limit);
        // The time for a connection would count as a difference of clocks.
        keeper.linked(limit).await?;
        let began = keeper.now();
        let info = between(began, keeper.info(limit).await?, keeper.now());
        // A server that does not report the rest can still be a good one.
        let settings = SETTINGS.map(|name| async move { Some((name, keeper.setting(name, limit).await?)) });
        let replicas = info::following(&info.text).into_iter().map(|told| {
            let endpoint = told.place.as_ref().map(&reach);
            self.ask_replica(told, endpoint, limit)
        });
        let (settings, floors, (notifications, notifies_waiters, tracked_keys), replicas) = tokio::join!(
            join_all(settings),
            Self::floors(keeper, limit),
            self.subscription.settled(self.host.sleep(limit)),
            join_all(replicas),
        );
        let refusals = match &inquiry.rights {
            Some(question) => Some(refusals(keeper, question, limit).await),
            None => None,
        };
        Ok(ServerSaid {
            info,
            settings: settings.into_iter().flatten().collect(),
            floors,
            notifications,
            notifies_waiters,
            tracked_keys,
            cluster_nodes: None,
            sentinels: None,
            replicas,
            refusals,
        })
    }

    /// The endpoint of a replica of this server.
    pub(in crate::node::redis) fn beside(&self, place: &Place) -> Endpoint {
        let endpoint = &self.keeper.endpoint;
        let tls = endpoint.target.address.has_tls();
        let address = Address::Tcp { host: place.host.to_string(), port: place.port, tls };
        endpoint.another(Target { address, ..endpoint.target.clone() }, RequiredKind::Named)
    }

    async fn ask_replica(&self, told: Following, endpoint: Option<Endpoint>, limit: Duration) -> ReplicaSaid {
        let info = match endpoint {
            Some(endpoint) => self.info_at(&endpoint, limit).await.map_err(|error| words(&error).to_owned()),
            None => Err("its primary names no address for it".to_owned()),
        };
        ReplicaSaid { address: told.address, told: told.fields, info }
    }

    async fn info_at(&self, endpoint: &Endpoint, limit: Duration) -> Result<Info, WireError> {
        question::ask(self.host.clone(), endpoint, &Arc::default(), async |link| {
            let began = endpoint.now();
            let info = link.command("INFO", Vec::new(), limit).await?;
            Ok(between(began, info.as_string().unwrap_or_default(), endpoint.now()))
        })
        .await
    }
}

/// Why the server would refuse each of these calls, or why it does not tell.
async fn refusals(
    keeper: &Connection,
    question: &RightsQuestion,
    limit: Duration,
) -> Result<Vec<Option<String>>, String> {
    let said = question.calls.iter().map(|call| async {
        let asked = ["DRYRUN", &question.user].into_iter().chain(call.iter().map(String::as_str));
        match keeper.command("ACL", asked.map(Into::into).collect(), limit).await {
            Ok(said) => Ok(said.as_string().filter(|said| said != "OK")),
            Err(error) => Err(words(&error).to_owned()),
        }
    });
    join_all(said).await.into_iter().collect()
}

/// An `INFO` from between these two times.
fn between(began: Time, text: String, ended: Time) -> Info {
    let middle = began + ended.since(began) / 2;
    Info { text, at: Duration::from_nanos(middle.as_nanos()) }
}
