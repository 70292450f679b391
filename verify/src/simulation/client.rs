//! One client: it tries, holds, lets go, and tries again. Everything that is decided is decided by the shipped machines;
//! this carries their orders out, as `shared::round` does.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    attempt::{Attempt, Step, Verdict, late},
    backoff::Backoff,
    check::Check,
    failure::Failure,
    fence_proposal::FenceProposal,
    message::{AcquireRequest, Acquired, Denial, Owned, Reply, Request, Vote, Voting},
    renewal::Answer,
    tally::Tally,
    time::Time,
    token::Token,
};
use uuid::Uuid;

use super::{
    Bug,
    chance::{Real, Skewed, nanos},
    session::{About, Alarm, OnNode, Sent, Session, Stage},
    world::{Event, World},
};

pub(super) struct Client {
    pub(super) me: usize,
    pub(super) clock: Skewed,
    pub(super) fence_proposal: FenceProposal,
    /// Until when each node is known to give no vote.
    pub(super) recovers_until: Vec<Time>,
    pub(super) backoff: Backoff,
    /// Every token that may still be on a node.
    pub(super) sessions: BTreeMap<u64, Session>,
    /// Requests without an answer.
    sent: BTreeMap<u64, Sent>,
    tokens: u64,
    /// Which process of this client it is.
    life: u32,
}

impl Client {
    pub(super) fn new(me: usize, world: &mut World) -> Self {
        let nodes = world.nodes();
        Self {
            me,
            clock: world.profile.clock(&mut world.dice),
            fence_proposal: FenceProposal::default(),
            recovers_until: vec![Time::ZERO; nodes],
            backoff: Backoff::new(world.dice.jitter()),
            sessions: BTreeMap::new(),
            sent: BTreeMap::new(),
            tokens: 0,
            life: 0,
        }
    }

    pub(super) fn now(&self, world: &World) -> Time {
        self.clock.shows(world.now)
    }

    /// Timers ring at a time by the client's own clock, and a little late.
    pub(super) fn wake(&self, world: &mut World, at: Time, alarm: Alarm) -> Real {
        let late = world.dice.between(Duration::ZERO, Duration::from_millis(1));
        let at = self.clock.when(at).saturating_add(nanos(late));
        world.at(at, Event::Rings { client: self.me, alarm });
        at
    }

    pub(super) fn try_after(&self, world: &mut World, pause: Duration) {
        let at = self.now(world) + pause;
        self.wake(world, at, Alarm::Try { life: self.life });
    }

    /// The process ends, and another one begins that knows nothing of it.
    pub(super) fn die(&mut self, world: &mut World) {
        for session in self.sessions.values_mut() {
            session.witness(self.clock, world);
        }
        world.note(|| format!("client {} dies", self.me));
        let (tokens, life, clock) = (self.tokens, self.life + 1, self.clock);
        *self = Self { clock, tokens, life, ..Self::new(self.me, world) };
        self.try_after(world, Duration::ZERO);
    }

    pub(super) fn ring(&mut self, world: &mut World, alarm: Alarm) {
        match alarm {
            Alarm::Try { life } if life == self.life => self.attempt(world),
            Alarm::Try { .. } => {}
            Alarm::Limit(request) => self.hear(world, request, Err(Failure::unknown("no answer")), 0),
            Alarm::Resend(id) => self.with(world, id, Self::resend),
            Alarm::GiveUp(id) => self.with(world, id, |client, world, session| {
                if matches!(session.stage, Stage::Attempting(_)) {
                    client.fail(world, session, &Check::NotYet);
                }
            }),
            Alarm::Check(id, at) => self.with(world, id, |client, world, session| client.look(world, session, at)),
            Alarm::Hint(id) => self.with(world, id, Self::hint),
            Alarm::LetGo(id) => self.with(world, id, Self::let_go),
            Alarm::UndoAgain(id, node, undoing) => self.with(world, id, |client, world, session| {
                session.nodes[node].open -= 1;
                client.undo_on(world, session, node, undoing);
            }),
        }
    }

    /// A request is answered, or nobody waits for that any longer.
    pub(super) fn hear(&mut self, world: &mut World, request: u64, said: Result<Reply, Failure>, executed: Real) {
        let Some(sent) = self.sent.remove(&request) else { return };
        self.with(world, sent.session, |client, world, session| {
            if sent.about.counts() {
                let on = &mut session.nodes[sent.node];
                (on.open, on.heard) = (on.open - 1, on.heard.max(executed));
            }
            match (sent.about, said) {
                (About::Acquire, said) => client.voted(world, session, &sent, said),
                (About::Raise, said) => client.raised(world, session, &sent, said),
                (_, said) => client.heard(world, session, &sent, said),
            }
        });
    }

    /// Does something to a session, if it is still there, with everything that goes with that.
    fn with(&mut self, world: &mut World, id: u64, act: impl FnOnce(&mut Self, &mut World, &mut Session)) {
        let Some(mut session) = self.sessions.remove(&id) else { return };
        session.witness(self.clock, world);
        act(self, world, &mut session);
        self.plan(world, &mut session);
        if !session.is_settled(world) {
            self.sessions.insert(id, session);
        }
    }

    pub(super) fn ask(
        &mut self,
        world: &mut World,
        session: &mut Session,
        (node, request, about): (usize, Request, About),
        limit: Duration,
    ) {
        if about.counts() {
            session.nodes[node].open += 1;
        }
        let at = self.now(world);
        let number = world.send(self.me, node, request);
        self.sent.insert(number, Sent { session: session.id, node, at, about });
        self.wake(world, at + limit, Alarm::Limit(number));
    }

    /// Tries once to get the lock.
    fn attempt(&mut self, world: &mut World) {
        if world.is_closing() {
            return;
        }
        let now = self.now(world);
        self.tokens += 1;
        let id = self.tokens;
        let token = format!("lh1:{}@client-{}.{id}", Uuid::from_u64_pair(self.me as u64, id), self.me);
        let mut session = Session {
            id,
            token: Token::parse(&token).unwrap(),
            ttl: if world.dice.percent(50) { world.ttl } else { world.dice.between(world.ttl / 2, world.ttl) },
            sent: now,
            resent: None,
            fence: None,
            stage: Stage::Over,
            nodes: vec![OnNode::default(); world.nodes()],
        };
        session.stage = Stage::Attempting(Attempt::new(now, session.ttl, world.nodes()));
        let limit = session.limit(world);
        for node in 0..world.nodes() {
            let acquire = Request::Acquire(self.acquire(world, &session));
            self.ask(world, &mut session, (node, acquire, About::Acquire), limit);
        }
        if world.dice.percent(3) {
            let early = world.dice.between(Duration::ZERO, limit);
            self.wake(world, now + early, Alarm::GiveUp(id));
        }
        if world.bug == Bug::DeadlineFromRetry {
            self.wake(world, now + limit / 2, Alarm::Resend(id));
        }
        self.sessions.insert(id, session);
    }

    fn acquire(&self, world: &World, session: &Session) -> AcquireRequest {
        let restart_delay = if world.bug == Bug::AmnesiacVotes { Duration::ZERO } else { world.restart_delay };
        let proposal = match (world.nodes(), world.bug) {
            (1, _) | (_, Bug::NoSecondPhase) => None,
            _ if !world.profile.proposes => None,
            _ => self.fence_proposal.at(session.sent),
        };
        let voting = Some(Voting { restart_delay, proposal });
        AcquireRequest { claim: world.claim(&session.token, session.ttl), voting }
    }

    /// A bug's: whoever is silent is asked again.
    fn resend(&mut self, world: &mut World, session: &mut Session) {
        if !matches!(session.stage, Stage::Attempting(_)) {
            return;
        }
        session.resent = Some(self.now(world));
        let silent: Vec<_> = (0..world.nodes()).filter(|&node| session.nodes[node].open > 0).collect();
        for node in silent {
            let acquire = Request::Acquire(self.acquire(world, session));
            self.ask(world, session, (node, acquire, About::Acquire), session.limit(world));
        }
    }

    fn voted(&mut self, world: &mut World, session: &mut Session, sent: &Sent, said: Result<Reply, Failure>) {
        let (now, node) = (self.now(world), sent.node);
        let vote = said.and_then(Vote::try_from).map(|Vote { acquired, sign, .. }| {
            if let Some(time) = sign.and_then(|sign| sign.time) {
                self.fence_proposal.note_time(time, now);
            }
            self.recovers_until[node] = match &acquired {
                Acquired::Recovering(left) => now + *left,
                Acquired::Granted(_) | Acquired::Busy { .. } => Time::ZERO,
            };
            world.history.counts.recovering += usize::from(matches!(acquired, Acquired::Recovering(_)));
            acquired
        });
        match &mut session.stage {
            Stage::Attempting(attempt) => {
                let step = attempt.answer(now, node, vote);
                self.go_on(world, session, step);
            }
            Stage::Held(_) => self.late_vote(world, session, sent, &vote),
            Stage::Over if world.bug == Bug::LateGrantStays && session.fence.is_none() => {}
            Stage::HeldTooLong | Stage::Releasing { .. } | Stage::Over => {
                if late(&vote) {
                    self.undo(world, session, [node].into_iter().collect());
                }
            }
        }
    }

    fn late_vote(&mut self, world: &mut World, session: &mut Session, sent: &Sent, vote: &Result<Acquired, Failure>) {
        let node = sent.node;
        match vote {
            Ok(Acquired::Granted(issued)) => {
                self.answer(world, session, node, sent.at, Answer::Confirmed);
                if let Some(fence) = session.fence.filter(|fence| issued < fence) {
                    let raise = Request::Raise { claim: world.claim(&session.token, session.ttl), fence };
                    self.ask(world, session, (node, raise, About::Raise), world.command_timeout);
                }
            }
            Ok(Acquired::Busy { .. }) => {
                self.answer(world, session, node, sent.at, Answer::Denied(Denial::Taken));
            }
            Ok(Acquired::Recovering(_)) => {
                self.answer(world, session, node, sent.at, Answer::Denied(Denial::Gone));
            }
            Err(_) => {}
        }
    }

    fn raised(&mut self, world: &mut World, session: &mut Session, sent: &Sent, said: Result<Reply, Failure>) {
        let now = self.now(world);
        let Stage::Attempting(attempt) = &mut session.stage else { return };
        let step = attempt.raised(now, sent.node, said.and_then(Owned::try_from));
        self.go_on(world, session, step);
    }

    fn go_on(&mut self, world: &mut World, session: &mut Session, step: Step) {
        let now = self.now(world);
        match step {
            Step::Wait => {}
            Step::Raise { on, .. } if world.bug == Bug::NoSecondPhase => {
                for node in on.iter() {
                    let Stage::Attempting(attempt) = &mut session.stage else { return };
                    let step = attempt.raised(now, node, Ok(Ok(())));
                    self.go_on(world, session, step);
                }
            }
            Step::Raise { fence, on } => {
                world.history.counts.raised += 1;
                for node in on.iter() {
                    let raise = Request::Raise { claim: world.claim(&session.token, session.ttl), fence };
                    self.ask(world, session, (node, raise, About::Raise), session.limit(world));
                }
            }
            Step::Over(Verdict::Won { fence, tally }) => {
                let tally = match (world.bug, session.resent) {
                    (Bug::DeadlineFromReply, _) => counted_from(&tally, session.sent, now),
                    (Bug::DeadlineFromRetry, Some(resent)) => counted_from(&tally, session.sent, resent),
                    _ => tally,
                };
                self.won(world, session, fence, tally, session.sent);
            }
            Step::Over(Verdict::Busy { holder, needs, tracked }) => {
                let tracked = tracked && world.dice.percent(50);
                self.fail(world, session, &Check::Held { holder, tracked, needs });
            }
            Step::Over(Verdict::Split { holder }) => {
                let took = now.since(session.sent);
                self.fail(world, session, &Check::Split { holder, answered: took, took });
            }
            Step::Over(Verdict::Failed(_)) => {
                self.fail(world, session, &Check::Failed(Failure::unavailable("too few votes")));
            }
        }
    }

    /// It has not come to a lease: what may have happened is undone.
    fn fail(&mut self, world: &mut World, session: &mut Session, seen: &Check) {
        let Stage::Attempting(attempt) = std::mem::replace(&mut session.stage, Stage::Over) else { return };
        let nodes = attempt.must_undo();
        world.history.counts.undone += usize::from(!nodes.is_empty());
        self.undo(world, session, nodes);
        let mut pause = self.backoff.after(seen);
        if matches!(seen, Check::Held { tracked: true, .. }) && world.dice.percent(70) || world.profile.is_sly {
            // Somebody's news wake us.
            pause = pause.min(world.dice.between(Duration::ZERO, session.ttl / 4));
        }
        self.try_after(world, pause);
    }
}

/// A bug's: what was confirmed, with another moment to count from.
fn counted_from(tally: &Tally, sent: Time, from: Time) -> Tally {
    let mut other = Tally::new(tally.nodes());
    let silent: Vec<_> = tally.silent_since(sent).iter().collect();
    for node in (0..tally.nodes()).filter(|node| !silent.contains(node)) {
        other.confirm(node, from);
    }
    other
}
