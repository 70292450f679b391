//! One attempt to acquire, from its first send to its verdict: the driver of an [`Acquisition`] that nobody holds yet.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, News, Said, Sent},
    attempt::Verdict,
    check::Check,
    failure::Failure,
    fence::Fence,
    message::{AcquireRequest, Acquired, Owned, ReleaseMode, Request, Route},
    tally::Nodes,
    time::Time,
    votes::NodeAnswer,
};

use super::{Client, Wanted};
use crate::{
    quorum::{Asked, ComingVote, FanOut, Undo, Untold},
    random,
    status::Signal,
    watchdog::{Hold, Left},
};

/// A lease that was won, and the signal of its first holder.
pub(crate) type Won = (Arc<Hold>, Signal);

impl Client {
    /// One attempt: one token, one sending to each node (rule 1). Dropped, or of unknown outcome, it is undone (rule 6). The
    /// error is what it has seen instead of a lease.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        wanted: &Wanted,
        route: Route,
        limit: Duration,
    ) -> Result<Won, Check> {
        let (claim, sent) = (wanted.claim(random::token(&self.options.label)), self.now());
        let request = AcquireRequest { claim, voting: self.quorum.voting(sent) };
        let limit = self.quorum.limit(limit, wanted.options.ttl);
        let mut round = Round {
            client: self,
            acquisition: Some(Acquisition::new(self.config(wanted, route), sent)),
            votes: self.quorum.vote(sent, route, &request, limit),
            raises: FanOut::none(),
            route,
            request,
            sent,
            until: sent + limit,
            answered: sent,
        };
        let verdict = round.run().await;
        self.quorum.compare_clocks(round.answered, self.options.lock.ttl);
        match verdict {
            Ok((fence, acquisition)) => Ok(round.won(wanted, fence, acquisition)),
            Err(Verdict::Busy { holder, needs, tracked }) => Err(Check::Held { holder, tracked, needs }),
            Err(Verdict::Split { holder }) => {
                let (answered, took) = (round.answered.since(sent), self.now().since(sent));
                Err(Check::Split { holder, answered, took })
            }
            Err(Verdict::Failed(said)) => Err(Check::Failed(self.why(&said))),
        }
    }

    fn why(&self, said: &[Result<Acquired, Failure>]) -> Failure {
        let granted = said.iter().filter(|said| matches!(said, Ok(Acquired::Granted(_)))).count();
        match (said, self.quorum.member(0)) {
            _ if granted >= self.quorum.majority() => {
                Failure::unavailable("the grant arrived after the lease that it was for had run out")
            }
            ([Ok(Acquired::Recovering(left))], Some(only)) => Failure::recovering(only.address(), *left),
            _ => self.quorum.failure(said, |acquired| match acquired {
                Acquired::Granted(_) => NodeAnswer::Granted,
                Acquired::Busy { holder, .. } => NodeAnswer::HeldBy(holder.clone()),
                Acquired::Recovering(left) => NodeAnswer::Recovering { remaining: *left },
            }),
        }
    }

    /// A node's vote that comes after a majority has granted.
    async fn late_vote(
        self: Arc<Self>,
        hold: Arc<Hold>,
        node: usize,
        route: Route,
        sent: Time,
        vote: Untold<ComingVote>,
    ) {
        let vote = vote.await;
        let Some(member) = self.quorum.member(node) else { return };
        let overtaken = member.overtaken_since(sent);
        let said = vote.map(|acquired| Said::Vote { acquired, overtaken });
        let sent = Sent { node, ask: Ask::Acquire, at: sent };
        let Left { raise, undo } = self.watchdog.on_reply(&hold, sent, said);
        if let Some(undo) = undo {
            self.watchdog.undoing(node, Undo::new(&undo, hold.claim())).await;
        }
        if let Some((fence, _)) = raise {
            let limit = self.options.command_timeout;
            let raise = Request::Raise { claim: hold.claim(), fence };
            let _raised = member.ask::<Owned>(route, raise, limit).await;
        }
    }
}

/// An attempt under way. Dropped without a win, it waits in the background for the answers that are still to come, and
/// undoes every grant. fred would send a queued request even when nobody waits for it any more.
struct Round<'a> {
    client: &'a Arc<Client>,
    /// `None` once it is won.
    acquisition: Option<Acquisition>,
    votes: FanOut<ComingVote>,
    raises: FanOut<Asked<Owned>>,
    route: Route,
    request: AcquireRequest,
    sent: Time,
    /// For both phases.
    until: Time,
    /// When the last vote came that is an answer.
    answered: Time,
}

impl Round<'_> {
    async fn run(&mut self) -> Result<(Fence, Acquisition), Verdict> {
        loop {
            let (node, ask, said) = tokio::select! {
                biased;
                (node, raised) = self.raises.next() => (node, Ask::Raise, raised.map(Said::Owned)),
                (node, vote) = self.votes.next() => {
                    (node, Ask::Acquire, vote.map(|acquired| Said::Vote { acquired, overtaken: false }))
                }
            };
            let (now, at) = (self.client.now(), self.sent);
            if matches!(said, Ok(Said::Vote { .. })) {
                self.answered = now;
            }
            let Some(acquisition) = &mut self.acquisition else { continue };
            let Actions { raise, undo, news, .. } = acquisition.on_reply(now, Sent { node, ask, at }, said);
            if let Some((fence, on)) = raise {
                self.raise(fence, on);
            }
            if let Some(undo) = undo {
                self.client.watchdog.undo(&undo, &self.request.claim);
            }
            match (news, &mut self.acquisition) {
                (Some(News::Acquired(fence)), acquisition) => {
                    if let Some(acquisition) = acquisition.take() {
                        return Ok((fence, acquisition));
                    }
                }
                (Some(News::NotAcquired(verdict)), _) => return Err(verdict),
                (Some(News::Phase | News::Released(_)) | None, _) => {}
            }
        }
    }

    /// The second phase (rule 10).
    fn raise(&mut self, fence: Fence, on: Nodes) {
        let Self { route, until, request: AcquireRequest { claim, .. }, .. } = self;
        let limit = until.since(self.client.now()).max(Duration::from_millis(1));
        for at in on.iter() {
            if let Some(member) = self.client.quorum.member(at) {
                let answer = member.ask(*route, Request::Raise { claim: claim.clone(), fence }, limit);
                self.raises.push(at, answer);
            }
        }
    }

    /// From now on the watchdog looks after it.
    fn won(mut self, wanted: &Wanted, fence: Fence, acquisition: Acquisition) -> Won {
        let Self { client, route, sent, .. } = self;
        let (hold, signal) = client.hold(wanted, self.request.claim.token.clone(), fence, acquisition);
        for (node, vote) in self.votes.take() {
            let to_come = client.own_releases.vote_to_come(&hold.key, &hold.token, node);
            let heard = client.clone().late_vote(hold.clone(), node, route, sent, vote);
            client.late_replies.hear(async move {
                heard.await;
                drop(to_come);
            });
        }
        for (_, raise) in self.raises.take() {
            // One more that keeps the floor, as there; it may not have been sent yet.
            client.late_replies.hear(async move {
                let _raised = raise.await;
            });
        }
        (hold, signal)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let Some(mut acquisition) = self.acquisition.take() else { return };
        let (client, sent) = (self.client, self.sent);
        let claim = &self.request.claim;
        let mut coming = Vec::new();
        for (node, vote) in self.votes.take() {
            // A vote that was not asked for needs no undo, and must not wait for one: there may be no memory left for
            // it.
            if client.quorum.member(node).is_some_and(|member| member.withdraw(&claim.token)) {
                let vote = Sent { node, ask: Ask::Acquire, at: sent };
                let _failed = acquisition.on_reply(sent, vote, Err(Failure::unsent("nobody waits for it any more")));
            } else {
                coming.push((node, vote));
            }
        }
        if let Some(undo) = acquisition.abandon(ReleaseMode::Delete).undo {
            client.watchdog.undo(&undo, claim);
        }
        for (node, vote) in coming {
            let undo = Undo::new(&acquisition.undo_of_vote(node), claim.clone());
            // Made before it is known to be needed: it takes its share of the memory for undos now.
            let undoing = client.watchdog.undoing(node, undo);
            let mut acquisition = acquisition.clone();
            client.host.spawn(async move {
                let said = vote.await.map(|acquired| Said::Vote { acquired, overtaken: true });
                let vote = Sent { node, ask: Ask::Acquire, at: sent };
                if acquisition.on_reply(sent, vote, said).undo.is_some() {
                    undoing.await;
                }
            });
        }
    }
}
