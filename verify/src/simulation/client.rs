//! One client: it tries, holds, lets go, and tries again. It is the driver of [`Acquisition`] in the simulation: it
//! sends what is ordered, and passes the answers back.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Config, Said, Sent as SentRequest},
    attempt::Verdict,
    backoff::Backoff,
    check::Check,
    failure::Failure,
    fence::{self, Fence},
    fence_proposal::FenceProposal,
    message::{AcquireRequest, Acquired, ReleaseMode, Repaired, Reply, Request, Route, VoteReply, Voting, only},
    renewal::LeaseConfig,
    tally::Nodes,
    time::Time,
    token::Token,
};
use uuid::Uuid;

use super::{
    chance::{Real, Skewed, nanos},
    event::{About, Alarm, Sent},
    session::{OnNode, Session},
    world::{Event, World},
};
use crate::seeded::SeededBug;

/// A lease that acts on a timer of its own early, as the library has it do.
const RENEW_FIRST_AFTER: Duration = Duration::from_millis(250);

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
    /// The number of this client's process.
    life: u32,
}

impl Client {
    pub(super) fn new(me: usize, world: &mut World) -> Self {
        let nodes = world.nodes();
        Self {
            me,
            clock: world.faults.clock(&mut world.dice),
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
                if session.acquisition.is_attempting() {
                    let actions = session.acquisition.abandon(ReleaseMode::Delete);
                    client.carry_out(world, session, actions);
                    client.try_again(world, session, &Check::NotYet);
                }
            }),
            Alarm::Tick(id, at) => self.with(world, id, |client, world, session| client.tick(world, session, at)),
            Alarm::Hint(id) => self.with(world, id, Self::hint),
            Alarm::LetGo(id) => self.with(world, id, Self::let_go),
            Alarm::UndoAgain(id, node, undoing, mode) => self.with(world, id, |client, world, session| {
                session.nodes[node].open -= 1;
                client.undo_on(world, session, node, (undoing, mode));
            }),
        }
    }

    /// A request is answered, or the wait for its answer has timed out.
    pub(super) fn hear(&mut self, world: &mut World, request: u64, said: Result<Reply, Failure>, executed: Real) {
        let Some(sent) = self.sent.remove(&request) else { return };
        self.with(world, sent.session, |client, world, session| {
            if sent.about.counts() {
                let on = &mut session.nodes[sent.node];
                (on.open, on.heard) = (on.open - 1, on.heard.max(executed));
            }
            match sent.about.clone() {
                About::Token(ask) => client.heard(world, session, &sent, ask, said),
                About::Undo(undoing, mode) => client.undone(world, session, (sent.node, undoing, mode), said),
            }
        });
    }

    /// Runs `act` on a session, if it still exists, with the bookkeeping around it.
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

    /// Tries once to acquire the lock.
    fn attempt(&mut self, world: &mut World) {
        if world.is_closing() {
            return;
        }
        let now = self.now(world);
        self.tokens += 1;
        let id = self.tokens;
        let token = format!("lh1:{}@client-{}.{id}", Uuid::from_u64_pair(self.me as u64, id), self.me);
        let ttl = if world.dice.percent(50) { world.ttl } else { world.dice.between(world.ttl / 2, world.ttl) };
        let max_hold = world.dice.percent(10).then(|| ttl * 3 / 2);
        let lease = LeaseConfig { ttl, max_hold, patience: world.command_timeout, stall_after: None };
        let outliving = world.outliving();
        let (nodes, jitter) = (world.nodes(), world.dice.jitter());
        let config =
            Config { lease, outliving, nodes, route: Route::Home, renew_first_after: Some(RENEW_FIRST_AFTER), jitter };
        let mut session = Session {
            id,
            token: Token::parse(&token).unwrap(),
            ttl,
            sent: world.now,
            resent: None,
            acquisition: Acquisition::new(config, now),
            held: None,
            nodes: vec![OnNode::default(); nodes],
        };
        let limit = session.limit(world);
        for node in 0..world.nodes() {
            let acquire = Request::Acquire(self.acquire(world, &session));
            self.ask(world, &mut session, (node, acquire, About::Token(Ask::Acquire)), limit);
        }
        if world.dice.percent(3) {
            let early = world.dice.between(Duration::ZERO, limit);
            self.wake(world, now + early, Alarm::GiveUp(id));
        }
        if world.bug == Some(SeededBug::DeadlineFromRetry) {
            self.wake(world, now + limit / 2, Alarm::Resend(id));
        }
        self.sessions.insert(id, session);
    }

    fn acquire(&self, world: &World, session: &Session) -> AcquireRequest {
        let restart_delay =
            if world.bug == Some(SeededBug::AmnesiacVotes) { Duration::ZERO } else { world.restart_delay };
        let proposal = match (world.nodes(), world.bug) {
            (1, _) | (_, Some(SeededBug::NoSecondPhase)) => None,
            _ if !world.faults.proposes => None,
            _ => self.fence_proposal.at(session.acquisition.sent()),
        };
        let voting = Some(Voting { restart_delay, proposal });
        AcquireRequest { claim: session.claim(world, self.now(world)), voting, heir_of: None }
    }

    /// Part of a seeded bug: asks silent nodes again.
    fn resend(&mut self, world: &mut World, session: &mut Session) {
        if !session.acquisition.is_attempting() {
            return;
        }
        session.resent = Some(self.now(world));
        let silent: Vec<_> = (0..world.nodes()).filter(|&node| session.nodes[node].open > 0).collect();
        for node in silent {
            let acquire = Request::Acquire(self.acquire(world, session));
            self.ask(world, session, (node, acquire, About::Token(Ask::Acquire)), session.limit(world));
        }
    }

    /// A request about a token is answered.
    fn heard(&mut self, world: &mut World, session: &mut Session, sent: &Sent, ask: Ask, said: Result<Reply, Failure>) {
        let (now, node, mut at) = (self.now(world), sent.node, sent.at);
        let said = said.and_then(|reply| self.read(world, node, now, reply));
        world.history.counts.renewed += usize::from(ask == Ask::Renew && matches!(said, Ok(Said::Owned(Ok(())))));
        let is_late_grant = ask == Ask::Acquire && session.acquisition.is_over() && session.held.is_none();
        match world.bug {
            Some(SeededBug::LateGrantStays) if is_late_grant => return,
            Some(SeededBug::DeadlineFromReply) => at = now,
            _ => {}
        }
        let actions = session.acquisition.on_reply(now, SentRequest { node, ask, at }, said);
        self.carry_out(world, session, actions);
    }

    /// The part of an answer about the token. The part about the node is noted.
    fn read(&mut self, world: &mut World, node: usize, now: Time, reply: Reply) -> Result<Said, Failure> {
        let counts = &mut world.history.counts;
        match reply {
            Reply::Vote(VoteReply { acquired, identity, .. }) => {
                if let Some(time) = identity.and_then(|identity| identity.time) {
                    self.fence_proposal.note_time(time, now);
                }
                self.recovers_until[node] = match &acquired {
                    Acquired::Recovering(left) => now + *left,
                    Acquired::Granted(_) | Acquired::Busy { .. } | Acquired::Gone => Time::ZERO,
                };
                counts.recovering += usize::from(matches!(acquired, Acquired::Recovering(_)));
                // On this network any message may overtake any other.
                Ok(Said::Vote { acquired, overtaken: true })
            }
            Reply::Repaired(repaired) => {
                counts.repaired += usize::from(repaired == Repaired::Done);
                if let Repaired::Recovering(left) = repaired {
                    counts.recovering += 1;
                    self.recovers_until[node] = now + left;
                }
                Ok(Said::Repaired(repaired))
            }
            Reply::Owned(owned) => Ok(Said::Owned(owned)),
            renewed => only(renewed.try_into()?).map(Said::Owned),
        }
    }

    pub(super) fn carry_out(&mut self, world: &mut World, session: &mut Session, actions: Actions) {
        let Actions { raise, renew, repair, release, release_again, undo, news, .. } = actions;
        let now = self.now(world);
        let remaining = session.acquisition.valid_until().since(now);
        let claim = session.claim(world, now);
        if let Some((fence, on)) = raise {
            world.history.counts.raised += 1;
            self.raise(world, session, fence, on);
        }
        let (fence, restart_delay) = (session.acquisition.fence().unwrap_or(fence::ZERO), world.repair_delay());
        for node in repair.iter().filter(|_| !remaining.is_zero()) {
            if now >= self.recovers_until[node] {
                let repair = Request::Repair { claim: claim.clone(), fence, restart_delay };
                let limit = remaining.min(world.command_timeout);
                self.ask(world, session, (node, repair, About::Token(Ask::Repair)), limit);
            }
        }
        for node in Nodes::all(if renew { world.nodes() } else { 0 }).iter() {
            let renew = Request::Renew([claim.clone()].into());
            self.ask(world, session, (node, renew, About::Token(Ask::Renew)), remaining);
        }
        let first = Ask::Release { only_sending: true, is_last: false };
        for node in Nodes::all(if release { world.nodes() } else { 0 }).iter() {
            self.release(world, session, node, first);
        }
        if let Some(again) = release_again {
            self.release(world, session, again.node, again.ask());
        }
        if let Some(undo) = undo {
            world.history.counts.undone += usize::from(undo.is_attempt);
            self.undo(world, session, &undo);
        }
        if let Some(news) = news {
            self.told(world, session, news);
        }
    }

    fn raise(&mut self, world: &mut World, session: &mut Session, fence: Fence, on: Nodes) {
        for node in on.iter() {
            if world.bug == Some(SeededBug::NoSecondPhase) {
                let sent = SentRequest { node, ask: Ask::Raise, at: self.now(world) };
                let actions = session.acquisition.on_reply(sent.at, sent, Ok(Said::Owned(Ok(()))));
                self.carry_out(world, session, actions);
            } else {
                let raise = Request::Raise { claim: session.claim(world, self.now(world)), fence };
                self.ask(world, session, (node, raise, About::Token(Ask::Raise)), session.limit(world));
            }
        }
    }

    /// An attempt has not led to a lease.
    pub(super) fn failed(&mut self, world: &mut World, session: &Session, verdict: Verdict) {
        let check = match verdict {
            Verdict::Busy { holder, needs, tracked } => {
                let tracked = tracked && world.dice.percent(50);
                Check::Held { holder, tracked, needs }
            }
            Verdict::Split { holder } => {
                let took = self.now(world).since(session.acquisition.sent());
                Check::Split { holder, answered: took, took }
            }
            Verdict::Gone | Verdict::Failed(_) => Check::Failed(Failure::unavailable("too few votes")),
        };
        self.try_again(world, session, &check);
    }

    fn try_again(&mut self, world: &mut World, session: &Session, seen: &Check) {
        let mut pause = self.backoff.after(seen);
        if matches!(seen, Check::Held { tracked: true, .. }) && world.dice.percent(70) || world.faults.is_sly {
            // A notification wakes the client.
            pause = pause.min(world.dice.between(Duration::ZERO, session.ttl / 4));
        }
        self.try_after(world, pause);
    }
}
