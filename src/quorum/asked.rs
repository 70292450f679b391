//! Answers on their way, which are told to the node's health when they come.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    message::{Reply, Shard, VoteReply},
    time::Time,
};

use super::member::Member;
use crate::node::Answer;

/// A node's answer on its way. It is told to the node's health, and read as the request's own type.
///
/// It is the box that the node made and a few words beside it, so that one request takes one allocation.
#[must_use = "it is sent when it is looked at"]
pub(crate) struct Asked<T, R = Reply> {
    pub(super) answer: Answer<R>,
    pub(super) read: fn(R) -> Result<T, Failure>,
    /// The node, its shard and the time of asking; none where that was pointless.
    pub(super) of: Option<(Arc<Member>, Shard, Time)>,
}

impl<T, R> Future for Asked<T, R> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.answer.as_mut().poll(context)).and_then(self.read);
        if let Some((member, shard, sent)) = &self.of {
            member.heard(*shard, outcome.as_ref().err(), *sent);
        }
        Poll::Ready(outcome)
    }
}

/// A node's vote on its way.
pub(crate) struct ComingVote(pub(super) Asked<VoteReply>);

impl Future for ComingVote {
    type Output = Result<Said, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(match &self.0.of {
            Some((member, _, sent)) => outcome.and_then(|vote| member.voted(*sent, vote)),
            // There is no vote without a node.
            None => outcome.map(|VoteReply { acquired, overtaken, .. }| Said::Vote { acquired, overtaken }),
        })
    }
}
