//! Releasing a hold on every node (rule 8).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use leasehold_protocol::{
    acquisition::{Ask, News, ReleaseAgain, Said, Sent},
    failure::Failure,
    key::Key,
    loss::{self, Loss, LossReason},
    message::{Owned, ReleaseMode, Request, Route},
    release_tally::ReleaseEnd,
    time::Time,
    votes::NodeAnswer,
};

use super::Engine;
use crate::{
    error::Error,
    held::Hold,
    quorum::{FanOut, MayFail, Member, PendingReply, UndoTask, Unreported},
    released::Released,
    sync::catching_panics,
};

/// The pending answer to a release.
enum ComingRelease {
    First(PendingReply<Owned>),
    Again(Ask, Pin<Box<dyn Future<Output = Result<Owned, Failure>> + Send>>),
}

/// Completes with the request and its answer.
impl Future for ComingRelease {
    type Output = (Ask, Result<Owned, Failure>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::First(answer) => Pin::new(answer).poll(context).map(|said| (FIRST, said)),
            Self::Again(ask, answer) => answer.as_mut().poll(context).map(|said| (*ask, said)),
        }
    }
}

impl MayFail for (Ask, Result<Owned, Failure>) {
    fn has_failed(&self) -> bool {
        self.1.is_err()
    }
}

/// The first request.
const FIRST: Ask = Ask::Release { only_sending: true, is_last: false };

impl Engine {
    /// Releases a hold whose last lease has let go. If it is dropped half way, it continues in the background.
    pub(crate) async fn release(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        mode: ReleaseMode,
        valid_until: Time,
    ) -> Result<Released, Error> {
        // `close` must not take the connection away from under it.
        let _under_way = self.host.token();
        let mut background = ReleaseGuard { engine: self, hold, mode: Some(mode.clone()) };
        let end = self.release_everywhere(hold, &mode).await;
        background.mode = None;
        let (lock, label) = (hold.claim.key.name(), hold.claim.token.label());
        if let ReleaseEnd::Unknown(said) = end {
            let failure =
                self.quorum.failure(&said, |did| if did.is_ok() { NodeAnswer::Granted } else { NodeAnswer::NotOurs });
            // Each caller receives its own failure.
            if let Some(count) = self.unconfirmed.meet(self.now(), &failure) {
                tracing::warn!(
                    name: "release", target: "leasehold", lock, label, %failure, count,
                    "the release is not confirmed: the key runs out by itself"
                );
            } else {
                tracing::debug!(
                    name: "release", target: "leasehold", lock, label, %failure,
                    "the release is not confirmed: the key runs out by itself"
                );
            }
            if let Some(span) = hold.span() {
                span.ends("unconfirmed");
            }
            // The lock may be free all the same, and the server does not notify us of a delete on our own connection.
            self.released(&hold.claim.key, &mode);
            let is_kept = matches!(mode, ReleaseMode::Retain(..)) || !hold.outlives_nothing();
            return Ok(Released::unconfirmed(&failure, is_kept));
        }
        if let Some(count) = self.unconfirmed.end() {
            tracing::info!(name: "release", target: "leasehold", lock, label, count, "releases are confirmed again");
        }
        let was_ours = matches!(end, ReleaseEnd::Released);
        let text = if was_ours { "released" } else { "not released: the lease had ended before" };
        tracing::debug!(name: "release", target: "leasehold", lock, label, was_ours, "{text}");
        if let Some(span) = hold.span() {
            span.ends(match &end {
                ReleaseEnd::Lost(Loss { reason, .. }) => loss::label(*reason).unwrap_or("lost"),
                ReleaseEnd::Released | ReleaseEnd::Unknown(_) => "released",
            });
        }
        self.released(&hold.claim.key, &mode);
        match end {
            ReleaseEnd::Lost(loss) => {
                let now = self.now();
                let since = if loss.reason == LossReason::Expired { valid_until } else { now };
                Err(Error::Lost(hold.lost(now, since, loss)))
            }
            ReleaseEnd::Released | ReleaseEnd::Unknown(_) => Ok(Released::Confirmed),
        }
    }

    async fn release_everywhere(self: &Arc<Self>, hold: &Arc<Hold>, mode: &ReleaseMode) -> ReleaseEnd {
        // The server does not notify us of changes on the connection on which our own waiter tracks this name. The
        // notification after the release is enough.
        let route = if self.lines.has(&hold.claim.key) { Route::Keeper } else { self.quorum.route() };
        hold.release(route, mode.clone());
        let (now, limit) = (self.now(), self.release_limit());
        let ask = |(node, member): (usize, &Arc<Member>)| {
            let release = Request::Release { claim: hold.claim.clone(), mode: mode.clone() };
            (node, ComingRelease::First(member.ask_at(now, route, release, limit)))
        };
        let mut answers: FanOut<ComingRelease> = self.quorum.members().map(ask).collect();
        loop {
            let (node, answer) = answers.next().await;
            let (again, news) = self.heard_release(hold, node, answer);
            if let Some(again) = again {
                answers.push(node, self.ask_again(hold, mode, again));
            }
            if let Some(News::Released(end)) = news {
                for (node, answer) in answers.take() {
                    self.quorum.set_aside(node, &hold.claim.token);
                    let late = self.clone().late_release(hold.clone(), mode.clone(), node, answer);
                    self.late_replies.hear(late);
                }
                return end;
            }
        }
    }

    /// Handles a node's answer that arrives when the outcome is already certain.
    async fn late_release(
        self: Arc<Self>,
        hold: Arc<Hold>,
        mode: ReleaseMode,
        node: usize,
        answer: Unreported<ComingRelease>,
    ) {
        let mut said = answer.await;
        while let (Some(again), _) = self.heard_release(&hold, node, said) {
            said = self.ask_again(&hold, &mode, again).await;
        }
    }

    /// Feeds a node's answer to the hold. Returns whether to ask again, and the news.
    fn heard_release(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        node: usize,
        (ask, said): (Ask, Result<Owned, Failure>),
    ) -> (Option<ReleaseAgain>, Option<News>) {
        let now = self.now();
        let mut reaction = hold.on_reply(now, Sent { node, ask, at: now }, said.map(Said::Owned));
        let left = (reaction.actions.release_again.take(), reaction.actions.news.take());
        self.watchdog.execute(hold, reaction);
        left
    }

    /// Sends the second request, because the first has arrived nowhere, or its connection broke, or is silent. Only a
    /// silent node is not worth asking.
    fn ask_again(&self, hold: &Arc<Hold>, mode: &ReleaseMode, again: ReleaseAgain) -> ComingRelease {
        let (limit, host, ask) = (self.release_limit(), self.host.clone(), again.ask());
        let release = Request::Release { claim: hold.claim.clone(), mode: mode.clone() };
        let member = self.quorum.member(again.node).cloned();
        let shard = self.quorum.shard_of(&hold.claim.key);
        let answer = Box::pin(async move {
            let second = async {
                let Some(member) = member else { return Err(again.failure.clone()) };
                if again.waits {
                    member.speaks(shard).await;
                }
                member.ask(Route::Keeper, release, limit).await
            };
            tokio::select! {
                biased;
                said = second => said,
                () = host.sleep(limit) => Err(again.failure.clone()),
            }
        });
        ComingRelease::Again(ask, answer)
    }

    fn release_limit(&self) -> Duration {
        self.options.command_timeout / 2
    }

    fn released(&self, key: &Key, mode: &ReleaseMode) {
        self.freed(key);
        self.notify_of_retained(key, mode);
    }

    /// Notifies fair waiters of a key that stays. No server does that, nor for changes on our own connection.
    fn notify_of_retained(&self, key: &Key, mode: &ReleaseMode) {
        if matches!(mode, ReleaseMode::Retain(..)) {
            self.fair_waiters.changed(key.lock(), self.now());
        }
    }

    /// Releases a hold in the background. No caller waits for that, but the next acquire of the lock here does.
    pub(crate) fn release_in_background(self: &Arc<Self>, hold: &Arc<Hold>, mode: ReleaseMode) {
        let Some(undo) = hold.abandon(mode) else { return };
        if self.watchdog.own_releases.begin_with_votes(&hold.claim.key, &hold.claim.token) {
            self.late_replies.hear_now();
        }
        let undoing =
            |node| (node, self.watchdog.undoing(node, UndoTask::new(undo.clone(), hold.claim_at(self.now()))));
        // All of them are under way before the first has ended.
        for (node, undoing) in undo.nodes.iter().map(undoing).collect::<Vec<_>>() {
            // The client keeps the connections until this is done.
            let (engine, hold, mode) = (self.clone(), hold.clone(), undo.mode.clone());
            let mut releasing = Box::pin(async move {
                undoing.await;
                engine.observed.notify(hold.claim.key.lock(), engine.now());
                engine.notify_of_retained(&hold.claim.key, &mode);
            });
            // A node in memory answers at once, so the lock is free before the next line of the program runs.
            let at_once = self.quorum.member(node).is_some_and(|member| member.answers_at_once());
            let mut poll = || releasing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            // One that panicked must not be polled again.
            let is_over = at_once && catching_panics(&mut poll).unwrap_or(true);
            if !is_over {
                self.host.spawn(releasing);
            }
        }
    }
}

/// A release under way; if it is dropped, it continues in the background.
struct ReleaseGuard<'a> {
    engine: &'a Arc<Engine>,
    hold: &'a Arc<Hold>,
    /// `None` once it is done.
    mode: Option<ReleaseMode>,
}

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        if let Some(mode) = self.mode.take() {
            self.engine.release_in_background(self.hold, mode);
        }
    }
}
