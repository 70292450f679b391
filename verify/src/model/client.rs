//! One client. Everything that is decided is decided by the shipped machines; this carries their orders out, as
//! `shared::round`, `shared::release`, `watchdog` and `quorum::undo` do.

use std::time::Duration;

use leasehold_protocol::{
    attempt::{Attempt, Step, Verdict, late},
    failure::Failure,
    fence::Fence,
    jitter::Jitter,
    loss::LossReason,
    message::{Acquired, Denial, Owned, Repaired},
    release_tally::{End, ReleaseAnswer, ReleaseTally},
    renewal::{Answer, Core, LeaseConfig, Orders, Phase},
    tally::{Nodes, Tally},
    time::Time,
};

use super::{
    Flaw, TTL,
    state::{About, Ask, Client, Content, KINDS, Message, Number, Reply, Session, Stage},
    world::{Run, recovery},
};
/// How long a node is waited for. A vote of a quorum waits for half a TTL at most, which is the same here.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

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

    /// Does something to a session, if it is still there.
    fn with(&mut self, me: usize, number: Number, act: impl FnOnce(&mut Self, usize, &mut Session)) {
        let sessions = &mut self.client(me).sessions;
        let Some(place) = sessions.iter().position(|session| session.number == number) else { return };
        let mut session = sessions.remove(place);
        act(self, me, &mut session);
        if session.is_on() || !session.asks.is_empty() {
            self.client(me).sessions.push(session);
        }
    }

    fn ask(
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
        session.asks.push(Ask { node, about, nth, at, until: at + limit });
        let owner = (u8::try_from(me).unwrap_or_default(), session.number);
        if !self.client(me).cut.iter().any(|cut| cut == node) {
            let content = Content::Request { fence, is_late: false };
            self.state.net.push(Message { owner, node, kind, nth, content });
        }
    }

    /// Tries once to get the lock.
    pub(super) fn begin(&mut self, me: usize) {
        let is_clear = self.is_clear();
        self.disturb();
        let (sent, nodes) = (self.now(), self.nodes());
        let number = self.client(me).begun;
        self.client(me).begun += 1;
        let mut session = Session {
            number,
            sent,
            fence: None,
            stage: Stage::Attempting(Attempt::new(sent, self.setup.client_ttl(), nodes)),
            asks: Vec::new(),
            sendings: vec![[0; KINDS]; nodes],
            after: self.state.largest,
            is_clear,
        };
        let proposal = self.setup.proposal(&self.state);
        for node in 0..nodes {
            self.ask(me, &mut session, (node, About::Acquire), proposal, COMMAND_TIMEOUT);
        }
        self.client(me).sessions.push(session);
    }

    /// A request is answered.
    pub(super) fn hear(&mut self, message: &Message, said: Result<Reply, Failure>) {
        let (me, number) = message.owner;
        self.with(usize::from(me), number, |run, me, session| {
            if let Some(place) = session.asks.iter().position(|ask| message.answers(ask)) {
                let ask = session.asks.remove(place);
                run.heard(me, session, &ask, said);
            }
        });
    }

    /// Nobody waits any longer for the answers that have not come in time.
    pub(super) fn expire(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            let is_over = |ask: &Ask| ask.until <= now;
            if let Some(place) = session.asks.iter().position(is_over) {
                let ask = session.asks.remove(place);
                run.heard(me, session, &ask, Err(Failure::unknown("no answer")));
            }
        });
    }

    fn heard(&mut self, me: usize, session: &mut Session, ask: &Ask, said: Result<Reply, Failure>) {
        match ask.about {
            About::Acquire => self.voted(me, session, ask, said.map(Reply::vote)),
            About::Raise => {
                let now = self.now();
                if let Stage::Attempting(attempt) = &mut session.stage {
                    let step = attempt.raised(now, ask.node, said.map(Reply::owned));
                    self.go_on(me, session, step);
                }
            }
            About::Renew => self.answer(me, session, (ask.node, ask.at), Answer::read(&said.map(Reply::owned))),
            About::Repair => self.repaired(me, session, ask, &said.map(Reply::repaired)),
            About::Release { is_last: false, .. } if said.is_err() => {
                let again = About::Release { only_sending: false, is_last: true };
                self.ask(me, session, (ask.node, again), None, COMMAND_TIMEOUT / 2);
            }
            About::Release { only_sending, .. } => {
                let said = said.map(|reply| ReleaseAnswer { owned: reply.owned(), only_sending });
                self.parted(me, session, ask.node, said);
            }
            // The pauses between two tries are left out.
            About::Undo(until) if said.is_err() && self.now() < until => {
                self.ask(me, session, (ask.node, About::Undo(until)), None, COMMAND_TIMEOUT);
            }
            About::Undo(_) => {}
        }
    }

    fn voted(&mut self, me: usize, session: &mut Session, ask: &Ask, vote: Result<Acquired, Failure>) {
        let now = self.now();
        if let Ok(vote) = &vote {
            self.client(me).recovers_until[ask.node] = recovery(vote).map_or(Time::ZERO, |left| now + left);
        }
        match &mut session.stage {
            Stage::Attempting(attempt) => {
                let step = attempt.answer(now, ask.node, vote);
                self.go_on(me, session, step);
            }
            Stage::Held(_) => match vote {
                Ok(Acquired::Granted(issued)) => {
                    self.answer(me, session, (ask.node, ask.at), Answer::Confirmed);
                    if session.fence.is_some_and(|fence| issued < fence) {
                        self.ask(me, session, (ask.node, About::Raise), session.fence, COMMAND_TIMEOUT);
                    }
                }
                Ok(Acquired::Busy { .. }) => {
                    self.answer(me, session, (ask.node, ask.at), Answer::Denied(Denial::Taken));
                }
                Ok(Acquired::Recovering(_)) => {
                    self.answer(me, session, (ask.node, ask.at), Answer::Denied(Denial::Gone));
                }
                Err(_) => {}
            },
            Stage::Over if self.setup.flaw == Flaw::LateGrantStays && session.fence.is_none() => {}
            Stage::Releasing { .. } | Stage::Over => {
                if late(&vote) {
                    self.undo(me, session, [ask.node].into_iter().collect());
                }
            }
        }
    }

    fn go_on(&mut self, me: usize, session: &mut Session, step: Step) {
        match step {
            Step::Wait => {}
            Step::Raise { on, .. } if self.setup.flaw == Flaw::NoSecondPhase => {
                for node in on.iter() {
                    let now = self.now();
                    let Stage::Attempting(attempt) = &mut session.stage else { return };
                    let step = attempt.raised(now, node, Ok(Ok(())));
                    self.go_on(me, session, step);
                }
            }
            Step::Raise { fence, on } => {
                for node in on.iter() {
                    self.ask(me, session, (node, About::Raise), Some(fence), COMMAND_TIMEOUT);
                }
            }
            Step::Over(Verdict::Won { fence, tally }) => self.won(session, fence, tally),
            Step::Over(Verdict::Busy { .. } | Verdict::Split { .. } | Verdict::Failed(_)) => {
                let Stage::Attempting(attempt) = std::mem::replace(&mut session.stage, Stage::Over) else { return };
                self.state.broken.denied_for_nothing |= session.is_clear;
                session.is_clear = false;
                self.undo(me, session, attempt.must_undo());
            }
        }
    }

    fn won(&mut self, session: &mut Session, fence: Fence, tally: Tally) {
        let tally = match self.setup.flaw {
            Flaw::DeadlineFromReply => counted_from(&tally, session.sent, self.now()),
            _ => tally,
        };
        let config = LeaseConfig { ttl: self.setup.client_ttl(), max_hold: None, patience: COMMAND_TIMEOUT };
        let mut core = Core::new(config, tally, Jitter::from_seed(0));
        if let Some(after) = self.setup.tracks_after {
            core.hint(session.sent + after);
        }
        session.stage = Stage::Held(core);
        session.fence = Some(fence);
        session.is_clear = false;
        let (largest, broken) = (&mut self.state.largest, &mut self.state.broken);
        broken.fence_fell |= largest.is_some_and(|largest| fence <= largest);
        broken.fence_is_stale |= session.after.is_some_and(|after| fence <= after);
        *largest = (*largest).max(Some(fence));
    }

    /// Looks at the lease that is held.
    pub(super) fn look(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            if let Stage::Held(core) = &mut session.stage {
                let was_over = now >= core.valid_until();
                let orders = core.tick(now);
                run.state.broken.is_revived |= was_over && now < core.valid_until();
                run.obey(me, session, orders);
            }
        });
    }

    fn answer(&mut self, me: usize, session: &mut Session, (node, sent): (usize, Time), answer: Answer) {
        let now = self.now();
        let Stage::Held(core) = &mut session.stage else { return };
        let sent = if self.setup.flaw == Flaw::DeadlineFromReply { now } else { sent };
        let was_over = now >= core.valid_until();
        let orders = core.answer(now, node, sent, answer);
        self.state.broken.is_revived |= was_over && now < core.valid_until();
        self.obey(me, session, orders);
    }

    fn obey(&mut self, me: usize, session: &mut Session, orders: Orders) {
        let now = self.now();
        let Stage::Held(core) = &session.stage else { return };
        let (remaining, phase) = (core.valid_until().since(now), core.phase());
        if !remaining.is_zero() {
            for node in orders.repair.iter() {
                if now >= self.client(me).recovers_until[node] {
                    self.ask(me, session, (node, About::Repair), session.fence, remaining.min(COMMAND_TIMEOUT));
                }
            }
            for node in Nodes::all(if orders.renew { self.nodes() } else { 0 }).iter() {
                self.ask(me, session, (node, About::Renew), None, remaining);
            }
        }
        if matches!(phase, Phase::Over { .. }) {
            self.state.broken.lost_for_nothing |= self.state.left == self.setup.faults;
            session.stage = Stage::Over;
        }
        if orders.undo {
            self.undo(me, session, Nodes::all(self.nodes()));
        }
    }

    fn repaired(&mut self, me: usize, session: &mut Session, ask: &Ask, repaired: &Result<Repaired, Failure>) {
        let place = (ask.node, ask.at);
        match repaired {
            _ if !matches!(session.stage, Stage::Held(_)) => {
                let may_be_there = match repaired {
                    Ok(repaired) => *repaired == Repaired::Done,
                    Err(failure) => failure.may_have_happened(),
                };
                if may_be_there {
                    self.undo(me, session, [ask.node].into_iter().collect());
                }
            }
            Ok(Repaired::Done) => self.answer(me, session, place, Answer::Confirmed),
            Ok(Repaired::Taken) => self.answer(me, session, place, Answer::Denied(Denial::Taken)),
            Ok(Repaired::Recovering(left)) => self.client(me).recovers_until[ask.node] = self.now() + *left,
            Err(_) => {}
        }
    }

    /// The job is done.
    pub(super) fn let_go(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            let Stage::Held(core) = &mut session.stage else { return };
            let orders = core.expire_if_due(now);
            if orders.news {
                return run.obey(me, session, orders);
            }
            let valid_until = core.valid_until();
            let _news_for_nobody = core.finish(now, LossReason::Released);
            let parting = ReleaseTally::new(run.nodes(), valid_until);
            session.stage = Stage::Releasing { parting, unconfirmed: Nodes::NONE };
            for node in 0..run.nodes() {
                let release = About::Release { only_sending: true, is_last: false };
                run.ask(me, session, (node, release), None, COMMAND_TIMEOUT / 2);
            }
        });
    }

    /// A node's last word on a release, or its last silence.
    fn parted(&mut self, me: usize, session: &mut Session, node: usize, said: Result<ReleaseAnswer, Failure>) {
        let (now, failed) = (self.now(), said.is_err());
        let Stage::Releasing { parting, unconfirmed } = &mut session.stage else {
            if failed {
                self.undo(me, session, [node].into_iter().collect());
            }
            return;
        };
        if failed {
            unconfirmed.insert(node);
        }
        let Some(end) = parting.answer(now, node, said) else { return };
        let unconfirmed = *unconfirmed;
        session.stage = Stage::Over;
        if matches!(end, End::Released) {
            let owner = (u8::try_from(me).unwrap_or_default(), session.number);
            self.state.broken.release_did_not |= self.keys_of(owner) > self.nodes() / 2;
        }
        self.undo(me, session, unconfirmed);
    }

    fn undo(&mut self, me: usize, session: &mut Session, nodes: Nodes) {
        let until = self.now() + TTL;
        for node in nodes.iter() {
            self.ask(me, session, (node, About::Undo(until)), None, COMMAND_TIMEOUT);
        }
    }
}

/// A flaw's: what was confirmed, with another moment to count from.
fn counted_from(tally: &Tally, sent: Time, from: Time) -> Tally {
    let mut other = Tally::new(tally.nodes());
    let silent: Vec<_> = tally.silent_since(sent).iter().collect();
    for node in (0..tally.nodes()).filter(|node| !silent.contains(node)) {
        other.confirm(node, from);
    }
    other
}

impl Reply {
    fn vote(self) -> Acquired {
        match self {
            Self::Vote(vote) => vote,
            other => panic!("an acquire is answered with {other:?}"),
        }
    }

    fn owned(self) -> Owned {
        match self {
            Self::Owned(owned) => owned,
            other => panic!("this is answered with {other:?}"),
        }
    }

    fn repaired(self) -> Repaired {
        match self {
            Self::Repaired(repaired) => repaired,
            other => panic!("a repair is answered with {other:?}"),
        }
    }
}
