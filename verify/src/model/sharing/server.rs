//! The server, what is between it and the clients, and time.

use std::time::Duration;

use leasehold_protocol::{
    failure::Failure,
    message::{Claim, Downgraded, Owned, Poll, Polled, ReleaseMode, Reply, Request, only},
    queue_position::WINDOW,
    store::{Notified, Process, Store},
    time::micros,
};

use super::{
    GRANT, Run, Setup, TTL,
    rules::Seen,
    state::{Asked, Bent, Client, Content, Message, Said, Server, State},
};
use crate::{
    model::{
        action::Notice,
        state::{Owner, Real, nanos},
    },
    seeded::SeededBug,
};

/// The names of the clients' processes.
const PROCESSES: [&str; 4] = ["0", "1", "2", "3"];

impl State {
    /// The next moment after this one at which anything is due, if anything still is.
    pub(super) fn next_moment(&self, setup: &Setup) -> Option<Real> {
        let mut moments = Vec::new();
        for (me, session) in self.sessions() {
            if self.clients[me].is_paused {
                moments.push(session.believes_until());
                continue;
            }
            moments.extend(session.requests.iter().map(|request| request.until));
            moments.extend(session.polls_at());
            moments.extend(session.looks_at());
        }
        let due = moments.into_iter().map(|moment| setup.clients.when(moment));
        let Seen { key, places, line, .. } = &self.server.seen;
        let ends = places.iter().map(|(_, until)| *until).chain(key.map(|(_, until)| until));
        let expiries = ends.map(|until| self.when(setup, until));
        let delay = nanos(setup.restart_delay).div_ceil(1_000_000_000) * 1_000_000;
        let recovery = self.server.started.map(|started| self.when(setup, started + delay));
        let step = (self.now / nanos(setup.grid) + 1) * nanos(setup.grid);
        let whole = recovery.into_iter().chain([step]).filter(|_| !self.is_closing(setup));
        let next = due.chain(expiries).chain(whole).filter(|&moment| moment > self.now).min();
        // A waiter that died in the line is forgotten with the line.
        next.or_else(|| (!line.is_empty()).then(|| self.now + 2 * nanos(WINDOW)))
    }
}

impl Run<'_> {
    /// Time passes to the next moment at which something is due.
    pub(super) fn pass(&mut self) -> Option<()> {
        self.state.now = self.state.next_moment(self.setup)?;
        if self.state.is_closing(self.setup) {
            self.state.net.clear();
        }
        self.look();
        Some(())
    }

    fn look(&mut self) {
        self.state.server.seen = self.state.look(self.setup);
        self.state.broken.beside_too_many |= self.state.is_crowded(self.setup);
    }

    /// Whether the server, which may have forgotten the holders, does not grant the lock yet.
    pub(super) fn recovers(&self) -> bool {
        let up = self.state.server.started.map(|started| self.state.server_time(self.setup) - started);
        up.is_some_and(|up| up / 1_000_000 < self.setup.restart_delay.as_secs())
    }

    /// The server is started again. It calculates its uptime from whole seconds, and so by up to one second too long.
    pub(super) fn restart(&mut self, forgets: bool) {
        let now = self.state.server_time(self.setup) / 1_000_000 * 1_000_000;
        let server = &mut self.state.server;
        if forgets {
            server.store = Store::started(now);
            server.bent = Bent::default();
        } else {
            server.store.restarted(now);
        }
        server.started = Some(now);
        self.look();
    }

    /// The server's clock is set.
    pub(super) fn step(&mut self) {
        self.state.server.stepped += self.setup.step * 1_000;
        self.look();
    }

    /// Gives a client the notice of a message of its own that does not arrive in time.
    pub(super) fn notice(&mut self, owner: Owner, nth: u8, notice: Notice) {
        if notice == Notice::Reset {
            self.hear(owner, nth, Err(Failure::unknown("the connection was reset")));
        }
    }

    /// A client forgets everything, and cannot be reached.
    pub(super) fn die(&mut self, me: usize) {
        let client = &mut self.state.clients[me];
        *client = Client { is_dead: true, is_paused: false, sessions: Vec::new(), ..client.clone() };
        let is_its = |message: &Message| usize::from(message.owner.0) == me;
        self.state.net.retain(|message| !is_its(message) || matches!(message.content, Content::Request(_)));
    }

    /// A client stands still. When it continues, it receives the messages that were on their way.
    pub(super) fn pause(&mut self, me: usize) {
        self.state.clients[me].is_paused = true;
        for message in &mut self.state.net {
            let is_call = matches!(message.content, Content::Call(_));
            message.is_late |= is_call && usize::from(message.owner.0) == me;
        }
    }

    /// A message reaches its destination. The answer to a request is heard at once, unless it `is_late`.
    pub(super) fn deliver(&mut self, at: usize, is_late: bool) {
        let Message { owner, nth, content, .. } = self.state.net.remove(at);
        let client = &self.state.clients[usize::from(owner.0)];
        let (is_dead, is_paused) = (client.is_dead, client.is_paused);
        let said = match content {
            Content::Call(within) => return self.called(owner, within),
            Content::Reply(said) => said,
            Content::Request(asked) => self.execute(owner, nth, &asked),
        };
        if is_late || is_paused {
            if !is_dead {
                self.state.net.push(Message { owner, nth, is_late: true, content: Content::Reply(said) });
            }
            return;
        }
        self.hear(owner, nth, Ok(said));
    }

    /// The server executes a request.
    fn execute(&mut self, owner: Owner, nth: u8, asked: &Asked) -> Said {
        let before = self.state.server.seen.clone();
        let said = match self.bend(owner, asked, &before) {
            Some(said) => said,
            None => self.ask(owner, asked),
        };
        let said = match (said, before.fence()) {
            (Said::Downgraded(Downgraded::Shared(_)), Some(fence))
                if self.setup.bug == Some(SeededBug::DowngradeKeepsFence) =>
            {
                Said::Downgraded(Downgraded::Shared(fence))
            }
            (said, _) => said,
        };
        self.look();
        self.bend_phase(owner, asked, &before);
        self.compare(&before, owner, asked, &said);
        self.note(owner, nth, asked, &before);
        said
    }

    fn ask(&mut self, owner: Owner, asked: &Asked) -> Said {
        match *asked {
            Asked::Poll { limit, ticket } => {
                let is_unchecked = self.setup.bug == Some(SeededBug::LimitUnchecked);
                let limit = if is_unchecked && limit > 0 { u32::MAX } else { limit };
                let poll = Poll {
                    claim: self.setup.claim(owner, limit),
                    ticket,
                    grant: GRANT,
                    window: WINDOW,
                    enter: true,
                    restart_delay: self.setup.restart_delay,
                };
                match self.apply(owner, &Request::Poll(poll)) {
                    Polled::Granted(fence) => Said::Granted(fence),
                    Polled::Waits { holder, recovers_for, ticket, ahead, .. } => {
                        Said::Waits { holder, recovers_for, ticket, ahead }
                    }
                }
            }
            Asked::Renew { limit, fence } => {
                let claim = Claim { fence, ..self.setup.claim(owner, limit) };
                let renewed: Vec<Result<Owned, Failure>> = self.apply(owner, &Request::Renew([claim].into()));
                Said::Owned(only(renewed).unwrap())
            }
            Asked::Part { limit } => self.release(owner, limit, ReleaseMode::Delete),
            Asked::Leave { limit } => self.release(owner, limit, ReleaseMode::leave()),
            Asked::Downgrade(from) => {
                let from = self.setup.tokens.of((owner.0, from)).clone();
                let claim = self.setup.claim(owner, u32::MAX);
                let downgraded: Downgraded =
                    self.apply(owner, &Request::Downgrade { claim, from, restart_delay: Duration::ZERO });
                Said::Downgraded(downgraded)
            }
        }
    }

    fn release(&mut self, owner: Owner, limit: u32, mode: ReleaseMode) -> Said {
        Said::Owned(self.apply(owner, &Request::Release { claim: self.setup.claim(owner, limit), mode }))
    }

    /// Asks the store, and sends the notifications that reach a client.
    fn apply<T: TryFrom<Reply, Error = Failure>>(&mut self, owner: Owner, request: &Request) -> T {
        let now = self.state.server_time(self.setup);
        let State { server, clients, net, .. } = &mut self.state;
        let process = Process { name: PROCESSES[usize::from(owner.0)], hears: self.setup.hears };
        let reached = |channel: &str| {
            let at = PROCESSES.iter().position(|name| *name == channel);
            at.and_then(|at| clients.get(at)).is_some_and(|client| !client.is_dead)
        };
        let applied = server.store.apply(now, request, process, &reached);
        for notified in applied.notified {
            let (token, within) = match notified {
                Notified::Granted { token, .. } => (token, None),
                Notified::Next { token, within, .. } => (token, Some(within)),
            };
            let owner = self.setup.tokens.owner(&token).unwrap();
            let is_late = clients[usize::from(owner.0)].is_paused;
            net.push(Message { owner, nth: 0, is_late, content: Content::Call(within) });
        }
        applied.reply.and_then(T::try_from).unwrap()
    }

    /// Notes belated tokens, and tokens that were given back.
    fn note(&mut self, owner: Owner, nth: u8, asked: &Asked, before: &Seen) {
        let sessions = &self.state.clients[usize::from(owner.0)].sessions;
        let session = sessions.iter().find(|session| session.number == owner.1);
        let is_awaited = session.is_some_and(|session| session.requests.iter().any(|request| request.nth == nth));
        let server = &mut self.state.server;
        let is_there = |seen: &Seen| seen.tokens().any(|other| other == owner);
        let comes = is_there(&server.seen) && !is_there(before);
        if comes && (!is_awaited || server.released.contains(&owner)) && !server.belated.contains(&owner) {
            server.belated.push(owner);
        }
        // A clock that is set back shows again what had expired.
        if self.state.left.steps == 0 {
            let seen = &server.seen;
            server.belated.retain(|one| seen.tokens().any(|other| other == *one));
        }
        if matches!(asked, Asked::Part { .. } | Asked::Leave { .. }) && !server.released.contains(&owner) {
            server.released.push(owner);
        }
    }

    /// The answer of a server with a bug, if that is different.
    fn bend(&mut self, owner: Owner, asked: &Asked, seen: &Seen) -> Option<Said> {
        let now = self.state.server_time(self.setup);
        let bent = &mut self.state.server.bent;
        if bent.ends.is_some_and(|ends| ends <= now) {
            self.state.server.store.delete(&self.setup.key);
            bent.ends = None;
        }
        let (fence, until) = (seen.fence().filter(|_| seen.is_shared())?, now + micros(TTL));
        let place = bent.places.iter().position(|(one, until)| *one == owner && *until >= now);
        let bug = self.setup.bug?;
        match (asked, place) {
            (Asked::Poll { .. }, Some(place)) => {
                bent.places[place].1 = until;
                Some(Said::Granted(fence))
            }
            (Asked::Renew { fence: own, .. }, Some(place)) if *own == Some(fence) => {
                bent.places[place].1 = until;
                Some(Said::Owned(Ok(())))
            }
            (Asked::Part { .. } | Asked::Leave { .. }, Some(place)) => {
                bent.places.remove(place);
                Some(Said::Owned(Ok(())))
            }
            (Asked::Poll { limit: 1.., .. }, None)
                if bug == SeededBug::NewcomerOvertakes && !seen.has(owner) && !seen.line.is_empty() =>
            {
                bent.places.push((owner, until));
                Some(Said::Granted(fence))
            }
            (Asked::Renew { limit: 1.., .. }, None) if bug == SeededBug::RenewalBringsBack && !seen.has(owner) => {
                bent.places.push((owner, until));
                Some(Said::Owned(Ok(())))
            }
            _ => None,
        }
    }

    /// The answer of a server with a bug where a phase begins or ends, if that is different.
    fn bend_phase(&mut self, owner: Owner, asked: &Asked, before: &Seen) {
        let (bug, now) = (self.setup.bug, self.state.server_time(self.setup));
        let Server { seen, bent, .. } = &mut self.state.server;
        let begins = seen.is_shared() && seen.fence() != before.fence();
        if matches!(asked, Asked::Part { .. } | Asked::Leave { .. }) {
            bent.earlier.retain(|(one, _)| *one != owner);
        }
        match bug {
            Some(SeededBug::PhaseKeepsPlaces) if begins => {
                bent.places = std::mem::take(&mut bent.earlier);
                bent.places.retain(|(owner, _)| !seen.has(*owner));
            }
            Some(SeededBug::PhaseKeepsPlaces) => {}
            Some(SeededBug::KeyEndsEarly) if begins => bent.ends = Some(now + micros(TTL)),
            _ if begins || !seen.is_shared() => *bent = Bent::default(),
            _ => {}
        }
        self.look();
        let Server { seen, bent, .. } = &mut self.state.server;
        if bug == Some(SeededBug::PhaseKeepsPlaces) && seen.is_shared() {
            bent.earlier.clone_from(&seen.places);
        }
    }
}
