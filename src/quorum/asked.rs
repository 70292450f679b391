//! Requests to a member, and their pending answers, which are reported to the node's health when they arrive.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    task::{self, Context, Poll},
    time::Duration,
};

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    message::{Reply, Request, Route, Shard, VoteReply},
    time::Time,
};

use super::member::Member;
use crate::{
    node::{Answer, Node},
    survey::{Inquiry, ServerSaid},
};

/// A node's pending answer. It is reported to the node's health, and read as the request's own type.
///
/// It is the box that the node made, with a few words beside it, so one request takes one allocation.
#[must_use = "it is sent when it is looked at"]
pub(crate) struct PendingReply<T, R = Reply> {
    answer: Answer<R>,
    read: fn(R) -> Result<T, Failure>,
    /// The node, its shard and the time of the request; `None` if asking was pointless.
    of: Option<(Arc<Member>, Shard, Time)>,
}

impl Member {
    /// Sends it a request, unless that is pointless.
    pub(crate) fn ask<T>(self: &Arc<Self>, route: Route, request: Request, limit: Duration) -> PendingReply<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        self.ask_at(self.now(), route, request, limit)
    }

    /// Like [`ask`](Self::ask), for a caller that has just read the clock.
    pub(crate) fn ask_at<T>(
        self: &Arc<Self>,
        now: Time,
        route: Route,
        request: Request,
        limit: Duration,
    ) -> PendingReply<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        let shard = self.asked(&request);
        self.send(now, shard, true, T::try_from, |node| node.send(route, request, limit))
    }

    /// Asks it to take something back, which matters even if the node has no vote.
    pub(crate) fn ask_without_vote<T>(
        self: &Arc<Self>,
        route: Route,
        request: Request,
        limit: Duration,
    ) -> PendingReply<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        let shard = self.asked(&request);
        self.send(self.now(), shard, false, T::try_from, |node| node.send(route, request, limit))
    }

    /// The shard that a request is sent to.
    fn asked(&self, request: &Request) -> Shard {
        self.sharded().map_or(Shard::FIRST, |node| request.shard(|key| node.shard(key)))
    }

    pub(super) fn survey(self: &Arc<Self>, shard: Shard, inquiry: &Inquiry) -> PendingReply<ServerSaid, ServerSaid> {
        self.send(self.now(), shard, true, Ok, |node| node.survey(shard, inquiry.clone()))
    }

    fn send<T, R>(
        self: &Arc<Self>,
        now: Time,
        shard: Shard,
        needs_vote: bool,
        read: fn(R) -> Result<T, Failure>,
        ask: impl FnOnce(&dyn Node) -> Answer<R>,
    ) -> PendingReply<T, R>
    where
        R: Send + 'static,
    {
        let askable = || self.state(shard).askable(self.node(), needs_vote);
        let node = askable().or_else(|failure| {
            // A connection may have shown its own server since.
            if needs_vote && self.compare(shard).is_ok() { askable() } else { Err(failure) }
        });
        match node {
            Ok(node) => PendingReply { answer: ask(&**node), read, of: Some((self.clone(), shard, now)) },
            Err(failure) => PendingReply { answer: Box::pin(ready(Err(failure))), read, of: None },
        }
    }
}

impl<T, R> Future for PendingReply<T, R> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = task::ready!(self.answer.as_mut().poll(context)).and_then(self.read);
        if let Some((member, shard, sent)) = &self.of {
            member.heard(*shard, outcome.as_ref().err(), *sent);
        }
        Poll::Ready(outcome)
    }
}

/// A node's pending vote.
pub(crate) struct ComingVote(pub(super) PendingReply<VoteReply>);

impl Future for ComingVote {
    type Output = Result<Said, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = task::ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(match &self.0.of {
            Some((member, _, sent)) => outcome.and_then(|vote| member.voted(*sent, vote)),
            // There is no vote without a node.
            None => outcome.map(|VoteReply { acquired, overtaken, .. }| Said::Vote { acquired, overtaken }),
        })
    }
}
