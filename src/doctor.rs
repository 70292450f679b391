//! The requests of `leasehold doctor` and `leasehold acl`. For that tool and the tests only: they are not part of the
//! API, and any version may change them.

use std::sync::Arc;

use leasehold_protocol::node_status::NodeStatus;

pub use crate::survey::{Info, ReplicaSaid, RightsQuestion, SentinelsSaid, ServerSaid};
use crate::{client::Client, error::Error, foreign::relayed, survey::Inquiry};

/// A server with its report on itself, or why it does not answer.
pub type Surveyed = (NodeStatus, Result<ServerSaid, Error>);

/// Surveys each server: the only one, those of a quorum, or the primaries of a cluster, in the order of
/// [`Client::nodes`]. This turns notifications on, and waits for them within a command time-out.
///
/// # Errors
///
/// There is no connection yet and none can be made, or this `Client` was closed. If one of several servers is
/// unreachable, that is not an error.
pub async fn survey(client: &Client) -> Result<Vec<Surveyed>, Error> {
    ask(client, None).await
}

/// Surveys each server, and asks it about the rights of a user: `ACL DRYRUN`, which Redis has since 7.0.
///
/// # Errors
///
/// As for [`survey`].
pub async fn survey_rights(client: &Client, question: RightsQuestion) -> Result<Vec<Surveyed>, Error> {
    ask(client, Some(question.into())).await
}

async fn ask(client: &Client, rights: Option<Arc<RightsQuestion>>) -> Result<Vec<Surveyed>, Error> {
    let engine = &client.scope.engine;
    engine.ready().await?;
    let inquiry = Inquiry { limit: engine.options.command_timeout, rights };
    let said = relayed!(engine.quorum.survey(&inquiry));
    Ok(said.into_iter().map(|(node, said)| (node, said.map_err(Error::of))).collect())
}
