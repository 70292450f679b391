//! One attempt to acquire, from its first send to its lease or its verdict: the driver of an [`Acquisition`] that is
//! not held yet.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Config, News, Said, Sent, Undo},
    attempt::Verdict,
    check::Check,
    failure::Failure,
    fence::Fence,
    message::{AcquireRequest, Acquired, Claim, Owned, ReleaseMode, Request, Route},
    queue_position::LEAVES_FOR,
    renewal::LeaseConfig,
    tally::Nodes,
    time::Time,
    token::Token,
    votes::NodeAnswer,
};
use tokio_util::sync::CancellationToken;

use super::Acquire;
use crate::{
    engine::Engine,
    error::Error,
    held::Hold,
    lease::Lease,
    options::LockOptions,
    quorum::{ComingVote, FanOut, PendingReply, Quorum, UndoTask, Unreported},
    random,
    status::Signal,
    watchdog::FollowUp,
};

/// The age at which a lease is first renewed, if that is before a third of its TTL: from then on the node notifies of
/// changes of the key.
const TRACK_AFTER: Duration = Duration::from_millis(250);

/// The result of one check: a lease, or the lock as it stands. The outer error ends the acquire.
pub(super) type Checked = Result<Result<Lease, Check>, Error>;

/// The tokens one of which has the lock that is adopted.
pub(super) struct Predecessors {
    pub(super) tokens: Arc<Vec<Token>>,
    /// Cancelled when the adoption has ended.
    pub(super) over: CancellationToken,
}

impl Acquire {
    /// Makes one attempt and concludes it: one token, sent once to each node (rule 1). It is undone if it is dropped,
    /// or if its outcome is unknown (rule 6).
    pub(super) async fn try_once(&self, route: Route) -> Checked {
        let engine = &self.engine;
        // `close` waits for what is under way, and for its undoing.
        let _under_way = engine.host.token();
        self.may_begin()?;
        let limit = self.limit(engine.now());
        let mut round = self.round(route, limit, None);
        let verdict = self.unless_ended(pin!(round.run())).await?;
        self.conclude(match verdict {
            Ok((fence, acquisition)) => Ok(round.won(fence, acquisition)),
            Err(Verdict::Busy { holder, needs, tracked }) => Err(Check::Held { holder, tracked, needs }),
            Err(Verdict::Split { holder }) => {
                let (answered, took) = (round.answered.since(round.sent), engine.now().since(round.sent));
                Err(Check::Split { holder, answered, took })
            }
            // This is not an adoption.
            Err(Verdict::Gone) => Err(Check::NotYet),
            Err(Verdict::Failed(said)) => {
                let failure = why(&engine.quorum, &said);
                let before = self.last_failure();
                self.note_failed(round.request.claim.token.clone(), failure.clone());
                Err(Check::Failed(self.telling(limit, failure, before)))
            }
        })
    }

    /// Returns an error once the acquire must end. `close` waits only for what was under way before it was called, and
    /// may have finished waiting. The caller must count as under way.
    pub(super) fn may_begin(&self) -> Result<(), Error> {
        if self.engine.ended.is_cancelled() { Err(self.engine.end()) } else { Ok(()) }
    }

    /// The outcome of a step that [may begin](Self::may_begin); an error if the acquire must end before it has one.
    ///
    /// The step is borrowed, because a future that is moved to where it is awaited takes its space twice.
    pub(super) async fn unless_ended<F: Future>(&self, step: Pin<&mut F>) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            outcome = step => Ok(outcome),
            () = self.engine.ended.cancelled() => Err(self.engine.end()),
        }
    }

    /// Concludes an attempt, and makes the lease if it was won.
    pub(super) fn conclude(&self, outcome: Result<(Arc<Hold>, Signal), Check>) -> Checked {
        // From here on the hold has an owner, whatever panics or is dropped.
        let outcome = outcome.map(|won| self.own(won));
        if !matches!(outcome, Err(Check::Failed(_))) {
            self.tell_answer();
        }
        match outcome {
            Ok(owned) => owned.map(Ok),
            Err(Check::Failed(failure)) => {
                self.may_begin()?;
                if failure.is_refusal() { Err(Error::of(failure)) } else { Ok(Err(Check::Failed(failure))) }
            }
            Err(look) => Ok(Err(look)),
        }
    }

    /// The lease of a hold that was won, unless the acquire must end.
    pub(super) fn own(&self, (hold, signal): (Arc<Hold>, Signal)) -> Result<Lease, Error> {
        let lease = Lease::new(self.engine.clone(), hold, signal, self.owner_slot.clone(), self.wanted.grace);
        // Either `close` has seen this hold, or this call sees that `close` was called. The same is true of the end of
        // the keeper's runtime.
        self.may_begin()?;
        Ok(lease)
    }

    /// Sends an attempt to every node; in an adoption, to take the place of one of `heir_of`.
    pub(super) fn round(&self, route: Route, time: Duration, heir_of: Option<&Predecessors>) -> Round<'_> {
        let engine = &self.engine;
        let (claim, sent) = (self.claim(self.token()), engine.now());
        let (tokens, undo_after) = heir_of.map(|of| (of.tokens.clone(), of.over.clone())).unzip();
        let request = AcquireRequest { claim, voting: engine.quorum.voting(sent), heir_of: tokens };
        let limit = engine.quorum.limit(time, self.wanted.options.ttl);
        Round {
            acquire: self,
            acquisition: Some(Acquisition::new(self.config(route), sent)),
            votes: engine.quorum.vote(sent, route, &request, limit),
            raises: FanOut::none(),
            route,
            request,
            undo_after,
            sent,
            until: sent + limit,
            answered: sent,
        }
    }

    /// The settings of an acquisition on this route.
    pub(super) fn config(&self, route: Route) -> Config {
        let (engine, LockOptions { ttl, max_hold, stall_after, .. }) = (&self.engine, self.wanted.options);
        Config {
            lease: LeaseConfig { ttl, max_hold, patience: engine.options.command_timeout, stall_after },
            outliving: self.outliving(),
            nodes: engine.quorum.len(),
            route,
            renew_first_after: (engine.quorum.tracking_capacity() > 0).then_some(TRACK_AFTER),
            jitter: random::common_jitter(),
        }
    }

    /// The hold of a token that the one server granted, in answer to a request sent at `sent`; an error if too late.
    pub(super) fn granted(
        &self,
        token: &Token,
        route: Route,
        sent: Time,
        fence: Fence,
    ) -> Result<(Arc<Hold>, Signal), Failure> {
        let acquisition = Acquisition::granted(self.config(route), sent, self.engine.now(), fence);
        let too_late = || Failure::unavailable("the grant was confirmed after its lease had run out");
        Ok(self.hold(self.claim(token.clone()), fence, acquisition.ok_or_else(too_late)?))
    }

    /// Takes a token off the one server in this way, once its last request is answered.
    pub(super) fn leave_after<T: Send + 'static>(
        &self,
        token: &Token,
        way: (Route, ReleaseMode),
        answer: Option<PendingReply<T>>,
    ) {
        let claim = self.claim(token.clone());
        let claim = Claim { life: LEAVES_FOR.max(claim.life), ..claim };
        self.engine.watchdog.leave_line(claim, way, answer);
    }

    /// Holds an acquisition that was won. From now on the watchdog guards it.
    pub(super) fn hold(&self, mut claim: Claim, fence: Fence, acquisition: Acquisition) -> (Arc<Hold>, Signal) {
        if self.wanted.is_on_trial {
            claim.life = self.outliving().life(claim.ttl, Duration::ZERO);
        }
        let (hold, signal) = Hold::new(claim, fence, self.owner, acquisition, self.wanted.options.metrics_group);
        if self.wanted.is_on_trial {
            hold.try_out();
        }
        self.engine.watchdog.guard(&hold);
        (hold, signal)
    }
}

/// Why too few nodes granted it.
pub(super) fn why(quorum: &Quorum, said: &[Result<Acquired, Failure>]) -> Failure {
    let granted = said.iter().filter(|said| matches!(said, Ok(Acquired::Granted(_)))).count();
    match (said, quorum.member(0)) {
        _ if granted >= quorum.majority() => {
            Failure::unavailable("the grant arrived after the lease that it was for had run out")
        }
        ([Ok(Acquired::Recovering(left))], Some(only)) => Failure::recovering(only.address(), *left),
        _ => quorum.failure(said, |acquired| match acquired {
            Acquired::Granted(_) => NodeAnswer::Granted,
            Acquired::Busy { holder, .. } => NodeAnswer::HeldBy(holder.clone()),
            Acquired::Recovering(left) => NodeAnswer::Recovering { remaining: *left },
            Acquired::Gone => NodeAnswer::NotOurs,
        }),
    }
}

/// Handles a node's vote that arrives after a majority has granted.
async fn late_vote(
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    node: usize,
    route: Route,
    sent: Time,
    vote: Unreported<ComingVote>,
) {
    let said = vote.await;
    let Some(member) = engine.quorum.member(node) else { return };
    let sent = Sent { node, ask: Ask::Acquire, at: sent };
    let FollowUp { raise, undo } = engine.watchdog.on_reply(&hold, sent, said);
    if let Some(order) = undo {
        // Boxed, because it is large and rare.
        Box::pin(engine.watchdog.undoing(node, UndoTask::new(order, hold.claim_at(engine.now())))).await;
    }
    if let Some((fence, _)) = raise {
        let raise = Request::Raise { claim: hold.claim.clone(), fence };
        let _raised = member.ask::<Owned>(route, raise, engine.options.command_timeout).await;
    }
}

/// An attempt under way. If it is dropped without a win, it awaits the pending answers in the background, and undoes
/// every grant. A request in a queue is sent even if no caller waits for it any more.
pub(super) struct Round<'a> {
    acquire: &'a Acquire,
    /// `None` once it is won.
    acquisition: Option<Acquisition>,
    votes: FanOut<ComingVote>,
    raises: FanOut<PendingReply<Owned>>,
    route: Route,
    pub(super) request: AcquireRequest,
    /// If set, nothing is undone before this: an adoption continues from what an attempt has left.
    undo_after: Option<CancellationToken>,
    sent: Time,
    /// The limit of both phases.
    until: Time,
    /// When the last vote that is an answer arrived.
    answered: Time,
}

impl Round<'_> {
    /// Runs it to its end.
    pub(super) async fn run(&mut self) -> Result<(Fence, Acquisition), Verdict> {
        let engine = &self.acquire.engine;
        let verdict = loop {
            let (node, ask, said) = tokio::select! {
                biased;
                (node, raised) = self.raises.next() => (node, Ask::Raise, raised.map(Said::Owned)),
                (node, vote) = self.votes.next() => (node, Ask::Acquire, vote),
            };
            let (now, at) = (engine.now(), self.sent);
            if matches!(said, Ok(Said::Vote { .. })) {
                self.answered = now;
            }
            let Some(acquisition) = &mut self.acquisition else { continue };
            let Actions { raise, undo, news, .. } = acquisition.on_reply(now, Sent { node, ask, at }, said);
            if let Some((fence, on)) = raise {
                self.raise(fence, on);
            }
            if let Some(undo) = undo {
                self.undo(undo);
            }
            match (news, &mut self.acquisition) {
                (Some(News::Acquired(fence)), acquisition) => {
                    if let Some(acquisition) = acquisition.take() {
                        break Ok((fence, acquisition));
                    }
                }
                (Some(News::NotAcquired(verdict)), _) => break Err(verdict),
                (Some(News::Phase | News::Released(_)) | None, _) => {}
            }
        };
        engine.quorum.compare_clocks(self.answered, engine.options.lock.ttl);
        verdict
    }

    /// Sends an undo; that of an adoption once it has ended.
    fn undo(&self, undo: Undo) {
        let (engine, undo) = (&self.acquire.engine, self.keeping(undo));
        match &self.undo_after {
            None => engine.watchdog.undo(&undo, &self.request.claim),
            Some(over) => {
                let (engine, over, claim) = (engine.clone(), over.clone(), self.request.claim.clone());
                engine.clone().host.spawn(async move {
                    over.cancelled().await;
                    engine.watchdog.undo(&undo, &claim);
                });
            }
        }
    }

    /// This undo; that of an adoption leaves the rest of the interval.
    fn keeping(&self, undo: Undo) -> Undo {
        if self.undo_after.is_none() {
            return undo;
        }
        Undo { mode: self.acquire.leaves(&self.request.claim.token, Duration::ZERO), ..undo }
    }

    /// Begins the second phase (rule 10).
    fn raise(&mut self, fence: Fence, on: Nodes) {
        let Self { acquire: Acquire { engine, .. }, route, until, request: AcquireRequest { claim, .. }, .. } = self;
        let limit = until.since(engine.now()).max(Duration::from_millis(1));
        for at in on.iter() {
            if let Some(member) = engine.quorum.member(at) {
                let answer = member.ask(*route, Request::Raise { claim: claim.clone(), fence }, limit);
                self.raises.push(at, answer);
            }
        }
    }

    /// Makes the hold, which the watchdog guards from now on.
    pub(super) fn won(mut self, fence: Fence, acquisition: Acquisition) -> (Arc<Hold>, Signal) {
        let Self { acquire, route, sent, .. } = self;
        let engine = &acquire.engine;
        let (hold, signal) = acquire.hold(self.request.claim.clone(), fence, acquisition);
        for (node, vote) in self.votes.take() {
            engine.quorum.set_aside(node, &hold.claim.token);
            let to_come = engine.watchdog.own_releases.vote_to_come(&hold.claim.key, &hold.claim.token, node);
            let heard = late_vote(engine.clone(), hold.clone(), node, route, sent, vote);
            engine.late_replies.hear(async move {
                heard.await;
                drop(to_come);
            });
        }
        for (_, raise) in self.raises.take() {
            // One more node that keeps the floor, as in `late_vote`. The request may not have been sent yet.
            engine.late_replies.hear(raise.map(drop));
        }
        (hold, signal)
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let Some(mut acquisition) = self.acquisition.take() else { return };
        let (engine, sent) = (&self.acquire.engine, self.sent);
        let claim = &self.request.claim;
        let mut coming = Vec::new();
        for (node, vote) in self.votes.take() {
            // A vote that was not requested needs no undo, and must not wait for one: there may be no memory left for
            // it.
            if engine.quorum.member(node).is_some_and(|member| member.withdraw(&claim.token)) {
                let vote = Sent { node, ask: Ask::Acquire, at: sent };
                let failed = Err(Failure::unsent("nobody waits for it any more"));
                // If this was the last vote that could have made a majority, the others are undone here.
                if let Some(undo) = acquisition.on_reply(sent, vote, failed).undo {
                    self.undo(undo);
                }
            } else {
                coming.push((node, vote));
            }
        }
        if let Some(undo) = acquisition.abandon(ReleaseMode::Delete).undo {
            self.undo(undo);
        }
        for (node, vote) in coming {
            let undo = UndoTask::new(self.keeping(acquisition.undo_of_vote(node)), claim.clone());
            // Created before it is known to be needed, because it takes its share of the memory for undos now.
            let undoing = engine.watchdog.undoing(node, undo);
            let (mut acquisition, after) = (acquisition.clone(), self.undo_after.clone());
            engine.host.spawn(async move {
                let said = vote.await;
                let vote = Sent { node, ask: Ask::Acquire, at: sent };
                if acquisition.on_reply(sent, vote, said).undo.is_some() {
                    if let Some(over) = after {
                        over.cancelled().await;
                    }
                    undoing.await;
                }
            });
        }
    }
}
