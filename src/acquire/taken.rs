//! The requests of one token to the one server, which may grant it without our receiving the answer.

use std::sync::Arc;

use leasehold_protocol::{
    failure::Failure,
    fence::Fence,
    message::{Claim, ReleaseMode, Reply, Request, Route},
    time::Time,
    token::Token,
};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Acquire;
use crate::{
    error::Error,
    held::Hold,
    quorum::{Member, PendingReply},
    status::Signal,
};

/// One token from the first request to the lease. If it is dropped without a lease, it is taken off in the background,
/// once the last request is answered.
pub(super) struct Taken<'a, T: Send + 'static> {
    pub(super) acquire: &'a Acquire,
    pub(super) member: &'a Arc<Member>,
    pub(super) token: Token,
    /// The route of the last request.
    pub(super) route: Route,
    /// How it is taken off.
    mode: ReleaseMode,
    answer: Option<PendingReply<T>>,
    pub(super) may_be_there: bool,
    /// `close` waits for what is under way, and for its undoing.
    _under_way: TaskTrackerToken,
}

impl<'a, T> Taken<'a, T>
where
    T: TryFrom<Reply, Error = Failure> + Send + 'static,
{
    pub(super) fn new(acquire: &'a Acquire, token: Token, mode: ReleaseMode) -> Result<Self, Error> {
        let engine = &acquire.engine;
        let (member, under_way) = (engine.sole()?, engine.host.token());
        let route = Route::Keeper;
        Ok(Self { acquire, member, token, route, mode, answer: None, may_be_there: false, _under_way: under_way })
    }

    pub(super) fn claim(&self) -> Claim {
        self.acquire.claim(self.token.clone())
    }

    /// Asks once. From here on the server may have the token.
    pub(super) async fn ask(&mut self, sent: Time, route: Route, request: Request) -> Result<T, Failure> {
        self.route = route;
        self.may_be_there = true;
        let answer = self.member.ask_at(sent, route, request, self.acquire.limit(sent));
        let answered = self.answer.insert(answer).await;
        self.answer = None;
        answered
    }

    /// Makes the hold that the server has granted, in answer to a request sent at `sent` (rule 1).
    pub(super) fn granted(&mut self, sent: Time, fence: Fence) -> Result<(Arc<Hold>, Signal), Failure> {
        let won = self.acquire.granted(&self.token, self.route, sent, fence)?;
        self.may_be_there = false;
        Ok(won)
    }
}

impl<T: Send + 'static> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        if self.may_be_there {
            let way = (self.route, self.mode.clone());
            self.acquire.leave_after(&self.token, way, self.answer.take());
        }
    }
}
