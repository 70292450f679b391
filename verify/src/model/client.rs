//! One client: the driver of [`Acquisition`] in the model. It sends what is ordered, and passes the answers back.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Config, Leaving, News, Said, Sent},
    failure::Failure,
    fence::Fence,
    jitter::Jitter,
    loss::LossReason,
    message::{ReleaseMode, Route},
    outliving::Outliving,
    release_tally::ReleaseEnd,
    renewal::{LeaseConfig, Phase},
    tally::Nodes,
    time::Time,
    undo::{Next, Undoing},
};

use super::{
    Run, TTL,
    node::owned,
    state::{About, Client, Content, KINDS, Kind, Message, Number, Owner, Request, Session},
    world::recovery,
};
use crate::seeded::SeededBug;

/// How long a client waits for a node's answer. A vote of a quorum waits for half a TTL at most, which is the same
/// here.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// The configuration of an attempt.
pub(super) fn config(ttl: Duration, nodes: usize, renew_first_after: Option<Duration>) -> Config {
    let lease = LeaseConfig { ttl, max_hold: None, patience: COMMAND_TIMEOUT, stall_after: None };
    let (outliving, route, jitter) = (Outliving::NOTHING, Route::Home, Jitter::from_seed(0));
    Config { lease, outliving, nodes, route, renew_first_after, jitter }
}

impl Client {
    pub(super) fn new(nodes: usize, begun: Number) -> Self {
        let recovers_until = vec![Time::ZERO; nodes];
        Self { sessions: Vec::new(), begun, born: begun, is_paused: false, cut: Nodes::NONE, recovers_until }
    }

    /// Whether it may try to get the lock now.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_paused && self.sessions.iter().all(|session| !session.is_on())
    }
}

impl Run<'_> {
    fn client(&mut self, me: usize) -> &mut Client {
        &mut self.state.clients[me]
    }

    fn nodes(&self) -> usize {
        self.state.servers.len()
    }

    /// Runs `act` on a session, if it still exists.
    fn with(&mut self, me: usize, number: Number, act: impl FnOnce(&mut Self, usize, &mut Session)) {
        let sessions = &mut self.client(me).sessions;
        let Some(place) = sessions.iter().position(|session| session.number == number) else { return };
        let mut session = sessions.remove(place);
        act(self, me, &mut session);
        if session.is_on() || !session.requests.is_empty() {
            self.client(me).sessions.push(session);
        }
    }

    fn send(
        &mut self,
        me: usize,
        session: &mut Session,
        (node, about): (usize, About),
        fence: Option<Fence>,
        limit: Duration,
    ) {
        let (at, kind) = (self.now(), about.kind());
        let nth = &mut session.sendings[node][kind as usize];
        *nth += 1;
        let nth = *nth;
        session.requests.push(Request { node, about, nth, at, until: at + limit });
        let owner = (u8::try_from(me).unwrap_or_default(), session.number);
        if !self.client(me).cut.contains(node) {
            let is_check = kind == Kind::Renew && session.acquisition.is_check(at);
            let checks = is_check.then(|| session.acquisition.valid_until().since(at));
            let content = Content::Request { fence, heir_of: session.heir_of, checks, is_late: false };
            self.state.net.push(Message { owner, node, kind, nth, content });
        }
    }

    /// Tries once to acquire the lock; `heir_of` is the giver of a lock that was handed over.
    pub(super) fn begin(&mut self, me: usize, heir_of: Option<Owner>) {
        let is_clear = self.is_clear() && heir_of.is_none();
        self.disturb();
        let (sent, nodes) = (self.now(), self.nodes());
        let number = self.client(me).begun;
        self.client(me).begun += 1;
        let mut config = config(self.setup.client_ttl(), nodes, self.setup.tracks_after);
        config.lease.stall_after = self.setup.stalls_after;
        let mut session = Session {
            number,
            acquisition: Acquisition::new(config, sent),
            requests: Vec::new(),
            sendings: vec![[0; KINDS]; nodes],
            heir_of,
            after: self.state.largest,
            is_clear,
            progressed: sent,
            has_resumed: false,
        };
        let proposal = self.setup.proposal(&self.state);
        for node in 0..nodes {
            self.send(me, &mut session, (node, About::Token(Ask::Acquire)), proposal, COMMAND_TIMEOUT);
        }
        self.client(me).sessions.push(session);
    }

    /// Takes the answer to a request.
    pub(super) fn hear(&mut self, message: &Message, said: Result<Said, Failure>) {
        let (me, number) = message.owner;
        self.with(usize::from(me), number, |run, me, session| {
            if let Some(place) = session.requests.iter().position(|request| message.answers(request)) {
                let request = session.requests.remove(place);
                run.heard(me, session, &request, said);
            }
        });
    }

    /// Times out a request whose answer has not come in time.
    pub(super) fn expire(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            let is_over = |request: &Request| request.until <= now;
            if let Some(place) = session.requests.iter().position(is_over) {
                let request = session.requests.remove(place);
                run.heard(me, session, &request, Err(Failure::unknown("no answer")));
            }
        });
    }

    fn heard(&mut self, me: usize, session: &mut Session, request: &Request, said: Result<Said, Failure>) {
        let (now, Request { node, about, mut at, .. }) = (self.now(), *request);
        let ask = match about {
            About::Token(ask) => ask,
            About::Undo(undoing) => return self.undone(me, session, (node, undoing), said),
        };
        if let Some(until) = recovery(now, &said) {
            self.client(me).recovers_until[node] = until;
        }
        let bug = self.setup.bug;
        if bug == Some(SeededBug::DeadlineFromReply) {
            at = now;
        }
        let is_late_grant = ask == Ask::Acquire && !session.is_on() && session.acquisition.fence().is_none();
        if is_late_grant && bug == Some(SeededBug::LateGrantStays) {
            return;
        }
        let actions = self.watched(session, |acquisition| acquisition.on_reply(now, Sent { node, ask, at }, said));
        self.carry_out(me, session, actions);
    }

    /// Passes an event to an acquisition, and checks that a lease that has expired stays expired.
    fn watched(&mut self, session: &mut Session, event: impl FnOnce(&mut Acquisition) -> Actions) -> Actions {
        let (now, acquisition) = (self.now(), &mut session.acquisition);
        let was_over = acquisition.fence().is_some() && now >= acquisition.valid_until();
        let actions = event(acquisition);
        self.state.broken.is_revived |= was_over && now < acquisition.valid_until();
        actions
    }

    fn carry_out(&mut self, me: usize, session: &mut Session, actions: Actions) {
        let Actions { raise, renew, repair, release, release_again, undo, news, .. } = actions;
        let (now, fence) = (self.now(), session.acquisition.fence());
        let remaining = session.acquisition.valid_until().since(now);
        if let Some((fence, on)) = raise {
            self.raise(me, session, fence, on);
        }
        for node in repair.iter().filter(|_| !remaining.is_zero()) {
            if now >= self.client(me).recovers_until[node] {
                let limit = remaining.min(COMMAND_TIMEOUT);
                self.send(me, session, (node, About::Token(Ask::Repair)), fence, limit);
            }
        }
        for node in 0..if renew { self.nodes() } else { 0 } {
            self.send(me, session, (node, About::Token(Ask::Renew)), None, remaining);
        }
        for node in 0..if release { self.nodes() } else { 0 } {
            let ask = Ask::Release { only_sending: true, is_last: false };
            self.send(me, session, (node, About::Token(ask)), None, COMMAND_TIMEOUT / 2);
        }
        if let Some(again) = release_again {
            self.send(me, session, (again.node, About::Token(again.ask())), None, COMMAND_TIMEOUT / 2);
        }
        if let Some(undo) = undo {
            for node in undo.nodes.iter() {
                self.undo(me, session, node, Undoing::new(now, TTL, undo.route, !undo.is_attempt));
            }
        }
        if let Some(news) = news {
            self.told(me, session, &news);
        }
    }

    fn raise(&mut self, me: usize, session: &mut Session, fence: Fence, on: Nodes) {
        let now = self.now();
        for node in on.iter() {
            if self.setup.bug == Some(SeededBug::NoSecondPhase) {
                let sent = Sent { node, ask: Ask::Raise, at: now };
                let actions = session.acquisition.on_reply(now, sent, Ok(Said::Owned(Ok(()))));
                self.carry_out(me, session, actions);
            } else {
                self.send(me, session, (node, About::Token(Ask::Raise)), Some(fence), COMMAND_TIMEOUT);
            }
        }
    }

    fn told(&mut self, me: usize, session: &mut Session, news: &News) {
        let owner = (u8::try_from(me).unwrap_or_default(), session.number);
        match news {
            News::Acquired(fence) => self.won(session, *fence),
            News::NotAcquired(_) => {
                self.state.broken.denied_for_nothing |= session.is_clear;
                session.is_clear = false;
            }
            News::Phase => {
                if let Some(Phase::Over { reason, .. }) = session.acquisition.phase() {
                    let has_stalled = reason == LossReason::Stalled;
                    self.state.has_stalled |= has_stalled;
                    self.state.broken.lost_for_nothing |= !has_stalled && self.state.left == self.setup.faults;
                    self.leave(me, session);
                }
            }
            News::Released(ReleaseEnd::Released) => {
                self.state.broken.release_did_not |= self.keys_of(owner) > self.nodes() / 2;
            }
            News::Released(ReleaseEnd::Lost(_) | ReleaseEnd::Unknown(_)) => {}
        }
    }

    fn won(&mut self, session: &mut Session, fence: Fence) {
        let now = self.now();
        session.is_clear = false;
        session.progressed = now;
        if self.setup.bug == Some(SeededBug::DeadlineFromReply) {
            for node in 0..self.nodes() {
                let renewed = Sent { node, ask: Ask::Renew, at: now };
                let _held = session.acquisition.on_reply(now, renewed, Ok(Said::Owned(Ok(()))));
            }
        }
        let (largest, broken) = (&mut self.state.largest, &mut self.state.broken);
        broken.fence_fell |= largest.is_some_and(|largest| fence <= largest);
        broken.fence_is_stale |= session.after.is_some_and(|after| fence <= after);
        *largest = (*largest).max(Some(fence));
    }

    /// Checks the lease that is held.
    pub(super) fn look(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            if run.setup.bug == Some(SeededBug::TimerReports) {
                session.acquisition.progressed(now);
            }
            let actions = run.watched(session, |acquisition| acquisition.on_tick(now));
            run.carry_out(me, session, actions);
        });
    }

    /// Reports progress, as a lease does it: the machine hears it, and is asked at once if it has waited for that.
    pub(super) fn progress(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.state.reported += 1;
        self.with(me, number, |run, me, session| {
            let has_stalled = |span| now.since(session.progressed) >= span;
            session.has_resumed = run.setup.stalls_after.is_some_and(has_stalled);
            session.progressed = now;
            let is_awaited = session.acquisition.awaits_progress();
            session.acquisition.progressed(now);
            if is_awaited {
                let actions = run.watched(session, |acquisition| acquisition.on_tick(now));
                run.carry_out(me, session, actions);
            }
        });
    }

    /// Releases the lease, because the job is done.
    pub(super) fn let_go(&mut self, me: usize, number: Number) {
        self.with(me, number, Self::leave);
    }

    /// Turns the lease into a ticket, after which it needs no more work.
    pub(super) fn hand_over(&mut self, me: usize, number: Number) {
        let owner = (u8::try_from(me).unwrap_or_default(), number);
        self.with(me, number, |run, _, session| {
            let keeps_on = run.setup.bug == Some(SeededBug::GiverBelieves);
            if keeps_on || session.acquisition.hand_over() {
                run.state.ticket = Some(owner);
            }
        });
    }

    fn leave(&mut self, me: usize, session: &mut Session) {
        let now = self.now();
        let (leaving, actions) = session.acquisition.let_go(now);
        self.carry_out(me, session, actions);
        if let Leaving::Release { .. } = leaving {
            let actions = session.acquisition.release(Route::Home, ReleaseMode::Delete);
            self.carry_out(me, session, actions);
        }
    }

    fn undo(&mut self, me: usize, session: &mut Session, node: usize, mut undoing: Undoing) {
        let (_route, limit) = undoing.ask(self.now(), COMMAND_TIMEOUT);
        self.send(me, session, (node, About::Undo(undoing)), None, limit);
    }

    fn undone(
        &mut self,
        me: usize,
        session: &mut Session,
        (node, mut undoing): (usize, Undoing),
        said: Result<Said, Failure>,
    ) {
        // The pauses between two tries are left out.
        if let Next::After(_) = undoing.answered(self.now(), &said.map(owned)) {
            self.undo(me, session, node, undoing);
        }
    }
}
