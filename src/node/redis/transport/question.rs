//! A connection that is made for one question.

use std::sync::Arc;

use super::{
    connection::no_answer,
    endpoint::{Endpoint, Limits},
    introduction::Role,
    left_out::LeftOut,
    link::Link,
    opening::{Opening, Side},
};
use crate::{keeper::Host, node::redis::wire::Error as WireError};

/// Connects, asks, and ends the connection again.
pub(crate) async fn ask<T>(
    host: Host,
    endpoint: &Endpoint,
    left_out: &Arc<LeftOut>,
    question: impl AsyncFnOnce(&Link) -> Result<T, WireError>,
) -> Result<T, WireError> {
    let Limits { connect, command, .. } = endpoint.limits;
    let mut opening = Opening::new(Role::Question, Side::Keeper(host), endpoint.clone(), left_out.clone());
    let (link, ending) = tokio::time::timeout(connect, opening.next()).await.map_err(|_| no_answer())??;
    let answer = question(&link).await;
    link.quit(command).await;
    link.end();
    ending.settle().await;
    answer
}
