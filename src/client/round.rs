//! One attempt to acquire, from its first send to its verdict: the driver of the pure [`Attempt`].

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    attempt::{Attempt, Step, Verdict, late},
    failure::Failure,
    fence::Fence,
    holder::Holder,
    message::{AcquireRequest, Acquired, Claim, Denial, Owned, ReleaseMode, Request, Route},
    renewal::Answer as Renewed,
    tally::{Nodes, WakeCondition},
    time::Time,
    votes::NodeAnswer,
};

use super::{Client, Wanted};
use crate::{
    node::Answer,
    quorum::{FanOut, Undo},
    random,
    status::Signal,
    watchdog::Hold,
};

/// How one attempt went.
pub(crate) enum Outcome {
    Won(Arc<Hold>, Arc<Signal>),
    Busy {
        holder: Holder,
        needs: WakeCondition,
        tracked: bool,
    },
    /// Nobody got a majority.
    Split {
        holder: Holder,
        /// How long the nodes took that answered.
        answered: Duration,
        /// And the whole round.
        took: Duration,
    },
    Failed(Failure),
}

impl Client {
    /// One attempt: one token, one sending to each node (rule 1). Dropped, or of unknown outcome, it is undone (rule 6).
    pub(crate) async fn attempt(self: &Arc<Self>, wanted: &Wanted, route: Route, limit: Duration) -> Outcome {
        let Wanted { key, ttl, .. } = wanted;
        let (token, sent) = (random::token(&self.options.label), self.now());
        let claim = Claim { key: key.clone(), token, ttl: *ttl };
        let request = AcquireRequest { claim, voting: self.quorum.voting(sent) };
        let limit = self.quorum.limit(limit, *ttl);
        let mut round = Round {
            client: self,
            attempt: Attempt::new(sent, *ttl, self.quorum.len()),
            votes: self.quorum.vote(route, &request, limit),
            raises: FanOut::none(),
            route,
            request,
            until: sent + limit,
            answered: sent,
        };
        let verdict = round.run().await;
        self.quorum.compare_clocks(self.now(), self.options.ttl);
        match verdict {
            Verdict::Won { fence, tally } => {
                let (hold, signal) = self.hold(wanted, round.request.claim.token.clone(), sent, fence, tally);
                for (node, vote) in round.votes.take() {
                    self.late_replies.hear(self.clone().late_vote(hold.clone(), node, route, sent, vote));
                }
                for (_, raise) in round.raises.take() {
                    // One more that keeps the floor, as there; it may not have been sent yet.
                    self.late_replies.hear(async move {
                        let _raised = raise.await;
                    });
                }
                Outcome::Won(hold, signal)
            }
            Verdict::Busy { holder, needs, tracked } => Outcome::Busy { holder, needs, tracked },
            Verdict::Split { holder } => {
                let (answered, took) = (round.answered.since(sent), self.now().since(sent));
                Outcome::Split { holder, answered, took }
            }
            Verdict::Failed(said) => Outcome::Failed(self.why(&said)),
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

    /// A node's vote that comes after a majority has granted: it counts for the lease, if that lives.
    async fn late_vote(
        self: Arc<Self>,
        hold: Arc<Hold>,
        node: usize,
        route: Route,
        sent: Time,
        vote: Answer<Acquired>,
    ) {
        let vote = vote.await;
        if hold.is_over() {
            // A release on the same route comes later than what it releases; not than what was overtaken, or may come still.
            let overtaken = vote.is_err() || self.quorum.member(node).is_some_and(|node| node.overtaken_since(sent));
            if late(&vote) && (overtaken || hold.parted() != Some(route)) {
                self.watchdog.undo([node].into_iter().collect(), route, &hold.key, &hold.token, hold.ttl);
            }
            return;
        }
        match vote {
            Ok(Acquired::Granted(issued)) => {
                self.watchdog.answered(&hold, node, sent, Renewed::Confirmed);
                if let Some(member) = self.quorum.member(node).filter(|_| issued < hold.fence) {
                    let limit = self.options.command_timeout;
                    // One more that keeps the floor; a majority does already.
                    let raise = Request::Raise { claim: hold.claim(), fence: hold.fence };
                    let _raised = member.ask::<Owned>(route, raise, limit).await;
                }
            }
            Ok(Acquired::Busy { .. }) => {
                self.watchdog.answered(&hold, node, sent, Renewed::Denied(Denial::Taken));
            }
            Ok(Acquired::Recovering(_)) => self.watchdog.answered(&hold, node, sent, Renewed::Denied(Denial::Gone)),
            // The next renewal finds out.
            Err(_) => {}
        }
    }
}

/// An attempt under way. Dropped without a win, it waits in the background for the answers that are still to come, for
/// fred would send a queued request even when nobody waits for it any more, and undoes what was granted.
struct Round<'a> {
    client: &'a Arc<Client>,
    attempt: Attempt,
    votes: FanOut<Acquired>,
    raises: FanOut<Owned>,
    route: Route,
    request: AcquireRequest,
    /// For both phases.
    until: Time,
    /// When the last vote came that is an answer.
    answered: Time,
}

impl Round<'_> {
    async fn run(&mut self) -> Verdict {
        loop {
            let step = tokio::select! {
                biased;
                (node, raised) = self.raises.next() => self.attempt.raised(self.client.now(), node, raised),
                (node, vote) = self.votes.next() => {
                    let now = self.client.now();
                    if vote.is_ok() {
                        self.answered = now;
                    }
                    self.attempt.answer(now, node, vote)
                }
            };
            match step {
                Step::Wait => {}
                Step::Raise { fence, on } => self.raise(fence, on),
                Step::Over(verdict) => return verdict,
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

    fn undo(&self) -> Undo {
        let (route, claim) = (self.route, self.request.claim.clone());
        Undo { route, claim, parting: ReleaseMode::Delete, is_first: true, is_attempt: true }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let client = self.client;
        for at in self.attempt.must_undo().iter() {
            client.host.spawn(client.watchdog.undoing(at, self.undo()));
        }
        for (at, vote) in self.votes.take() {
            let undoing = client.watchdog.undoing(at, self.undo());
            client.host.spawn(async move {
                if late(&vote.await) {
                    undoing.await;
                }
            });
        }
    }
}
