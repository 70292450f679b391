//! Releasing a hold on every node (rule 8).

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    key::Key,
    loss::LossReason,
    message::{Owned, ReleaseMode, Request, Route},
    release_tally::{End, ReleaseAnswer, ReleaseTally},
    tally::Nodes,
    time::Time,
    votes::NodeAnswer,
};

use super::Client;
use crate::{
    error::ReleaseError,
    node::Answer,
    quorum::{FanOut, Member, Undo},
    watchdog::Hold,
};

impl Client {
    /// Releases a hold that its last lease has left. Dropped half way, it goes on in the background.
    pub(crate) async fn release(
        self: &Arc<Self>,
        hold: &Hold,
        parting: ReleaseMode,
        valid_until: Time,
    ) -> Result<(), ReleaseError> {
        // `close` must not take the connection away from under it.
        let _under_way = self.host.token();
        let mut background = Dropped { client: self, hold, parting: Some(parting.clone()) };
        let limit = self.options.command_timeout / 2;
        // On the connection that our own waiter of this name has watched, the server keeps the news from us: the alert
        // below is enough.
        let route = if self.lines.has(&hold.key) { Route::Keeper } else { self.quorum.route() };
        hold.parts(route);
        let part = |(at, member): (usize, &Arc<Member>)| (at, self.part(member.clone(), hold, &parting, route, limit));
        let mut answers: FanOut<ReleaseAnswer> = self.quorum.members().map(part).collect();
        let mut tally = ReleaseTally::new(self.quorum.len(), valid_until);
        let mut unconfirmed = Nodes::NONE;
        let end = loop {
            let (at, said) = answers.next().await;
            if said.is_err() && hold.may_be_on(at) {
                unconfirmed.insert(at);
            }
            if let Some(end) = tally.answer(self.now(), at, said) {
                break end;
            }
        };
        background.parting = None;
        self.watchdog.part(unconfirmed, Route::Keeper, &hold.key, &hold.token, hold.ttl, &parting);
        for (at, answer) in answers.take() {
            let may_be_there = hold.may_be_on(at);
            let (watchdog, ttl, parting) = (self.watchdog.clone(), hold.ttl, parting.clone());
            let (key, token) = (hold.key.clone(), hold.token.clone());
            self.late_replies.hear(async move {
                if answer.await.is_err() && may_be_there {
                    watchdog.part([at].into_iter().collect(), Route::Keeper, &key, &token, ttl, &parting);
                }
            });
        }
        let (lock, label) = (hold.key.name(), hold.token.label());
        if let End::Unknown(said) = end {
            let failure =
                self.quorum.failure(&said, |did| if did.is_ok() { NodeAnswer::Granted } else { NodeAnswer::NotOurs });
            tracing::warn!(name: "release", target: "leasehold", lock, label, %failure, "not confirmed");
            // It may be free all the same; and what was deleted on our own connection is not told.
            self.parted(&hold.key, &parting);
            return Err(ReleaseError::Unknown(failure.into()));
        }
        tracing::debug!(name: "release", target: "leasehold", lock, label, was_ours = matches!(end, End::Released));
        self.parted(&hold.key, &parting);
        match end {
            End::Lost(reason) => {
                let now = self.now();
                let since = if reason == LossReason::Expired { valid_until } else { now };
                Err(ReleaseError::Lost(hold.lost(now, since, reason)))
            }
            End::Released | End::Unknown(_) => Ok(()),
        }
    }

    /// Parts with a key on one node: asks on this route, and once more on the keeper's if that brings no answer.
    fn part(
        &self,
        member: Arc<Member>,
        hold: &Hold,
        parting: &ReleaseMode,
        route: Route,
        limit: Duration,
    ) -> Answer<ReleaseAnswer> {
        let (claim, parting, host) = (hold.claim(), parting.clone(), self.host.clone());
        // A node that has been silent is not asked, and may be about to answer again. Where there is nothing to be had from it,
        // that is not worth a wait.
        let may_be_there = hold.may_be_on(member.at());
        Box::pin(async move {
            let release = || Request::Release { claim: claim.clone(), mode: parting.clone() };
            let send = |route| member.ask::<Owned>(route, release(), limit);
            let first = send(route).await;
            let only_sending = !matches!(&first, Err(failure) if failure.may_have_happened());
            let owned = match first {
                // It has come nowhere, or the connection broke, or is silent; only if the node is, it is not worth asking.
                Err(failure) if !failure.is_refusal() => {
                    let again = async {
                        if may_be_there || !only_sending {
                            member.speaks().await;
                        }
                        send(Route::Keeper).await
                    };
                    tokio::select! {
                        biased;
                        again = again => again,
                        () = host.sleep(limit) => Err(failure),
                    }
                }
                definite => definite,
            }?;
            Ok(ReleaseAnswer { owned, only_sending })
        })
    }

    fn parted(&self, key: &Key, parting: &ReleaseMode) {
        self.freed(key);
        if matches!(parting, ReleaseMode::Retain(..)) {
            // Nobody is called to a key that stays, and what happens on our own connection is not told.
            self.calls.changed(key.lock(), self.now());
        }
    }

    /// Releases a hold without anybody waiting for it.
    pub(crate) fn release_in_background(self: &Arc<Self>, hold: &Hold, parting: ReleaseMode) {
        let route = Route::Keeper;
        hold.parts(route);
        let claim = hold.claim();
        let keeps = matches!(parting, ReleaseMode::Retain(..));
        let undo = Undo { route, claim, parting, is_first: false, is_attempt: false };
        for (at, _) in self.quorum.members().filter(|(at, _)| hold.may_be_on(*at)) {
            let (client, undo) = (self.clone(), undo.clone());
            self.host.spawn(async move {
                let key = undo.claim.key.clone();
                client.watchdog.undoing(at, undo).await;
                if keeps {
                    client.calls.changed(key.lock(), client.now());
                }
            });
        }
    }
}

/// A release under way: dropping it carries on in the background.
struct Dropped<'a> {
    client: &'a Arc<Client>,
    hold: &'a Hold,
    /// `None` once it is done.
    parting: Option<ReleaseMode>,
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if let Some(parting) = self.parting.take() {
            self.client.release_in_background(self.hold, parting);
        }
    }
}
