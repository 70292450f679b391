//! A state on its way to the next one, and the actions of each client: the driver of [`Acquisition`].

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Leaving, News, Said, Sent},
    failure::Failure,
    fence::Fence,
    message::{Acquired, ReleaseMode, Route},
    renewal::Phase,
    time::Time,
    undo::{Next, Undoing},
};

use super::{
    Run, TTL,
    state::{Answer, Client, Errand, Message, Session, Waiting, Who},
};
use crate::{
    model::{
        client::{COMMAND_TIMEOUT, config},
        node::owned,
        state::{About, Number, Owner},
    },
    seeded::SeededBug,
};

impl Run<'_> {
    fn client(&mut self, me: usize) -> &mut Client {
        &mut self.state.clients[me]
    }

    /// Runs `act` on a session, if it still exists.
    fn with<T>(&mut self, (me, number): Owner, act: impl FnOnce(&mut Self, usize, &mut Session) -> T) -> Option<T> {
        let me = usize::from(me);
        let sessions = &mut self.client(me).sessions;
        let place = sessions.iter().position(|session| session.number == number)?;
        let mut session = sessions.remove(place);
        let done = act(self, me, &mut session);
        if session.is_on() || !session.errands.is_empty() {
            self.client(me).sessions.push(session);
        }
        Some(done)
    }

    /// Tries once to acquire the lock.
    pub(super) fn begin(&mut self, me: usize) {
        let (sent, number) = (self.now(), self.client(me).begun);
        self.client(me).begun += 1;
        let acquisition = Acquisition::new(config(TTL, 1, None), sent);
        let mut session = Session { number, acquisition, errands: Vec::new(), asked: 0, on: None };
        self.start(me, &mut session, About::Token(Ask::Acquire));
        self.client(me).sessions.push(session);
    }

    fn start(&mut self, me: usize, session: &mut Session, about: About) {
        session.asked += 1;
        let (nth, at, connection) = (session.asked, self.now(), self.setup.connection_of(me));
        session.errands.push(Errand { nth, about, at, waiting: None });
        let (owner, link) = ((u8::try_from(me).unwrap(), session.number), self.state.connections[connection].link);
        self.state.net.push(Message { owner, nth, kind: about.kind(), connection, link, answer: None });
    }

    /// A client hears an answer.
    pub(super) fn hear(&mut self, at: usize) {
        let mut message = self.state.net.remove(at);
        let Some((server, answer)) = message.answer.take() else { panic!("it is an answer") };
        self.heard(&message, message.link, answer, server);
    }

    pub(super) fn heard(&mut self, message: &Message, link: u64, answer: Answer, by: usize) {
        let (owner, nth, connection) = (message.owner, message.nth, message.connection);
        let unknown = self.with(owner, |run, me, session| {
            let Some(place) = session.errands.iter().position(|errand| errand.nth == nth) else { return Vec::new() };
            let mut errand = session.errands.remove(place);
            match answer {
                Ok(said) if run.has_to_wait(&errand, &said) => {
                    let (number, unknown) = run.enter(connection, link, Who::Client(owner, nth));
                    errand.waiting = Some(Waiting { number, until: run.patience(&errand, session), said, by });
                    session.errands.push(errand);
                    unknown
                }
                answer => {
                    run.ended(me, session, &errand, answer, by);
                    Vec::new()
                }
            }
        });
        for who in unknown.unwrap_or_default() {
            self.told(who, Err(Failure::unknown("the link ended before replicas had confirmed it")));
        }
    }

    /// Whether replicas have to confirm this answer.
    fn has_to_wait(&self, errand: &Errand, said: &Said) -> bool {
        let is_written = match errand.about {
            About::Token(Ask::Acquire) => matches!(said, Said::Vote { acquired: Acquired::Granted(_), .. }),
            About::Token(Ask::Renew) => {
                *said == Said::Owned(Ok(())) && self.setup.bug != Some(SeededBug::RenewalUnreplicated)
            }
            About::Token(_) | About::Undo(_) => false,
        };
        self.setup.wanted > 0 && is_written
    }

    /// Until when a request waits for replicas.
    fn patience(&self, errand: &Errand, session: &Session) -> Time {
        match errand.about {
            About::Token(Ask::Renew) => session.acquisition.valid_until().max(self.now()),
            _ => self.now() + (TTL / 4).min(COMMAND_TIMEOUT / 2),
        }
    }

    /// Replicas have confirmed a request, or will not.
    pub(super) fn told(&mut self, who: Who, verdict: Result<(), Failure>) {
        let Who::Client(owner, nth) = who else { return };
        let is_awaited = self.with(owner, |run, me, session| {
            let is_it = |errand: &Errand| errand.nth == nth && errand.waiting.is_some();
            let Some(place) = session.errands.iter().position(is_it) else { return false };
            let mut errand = session.errands.remove(place);
            let Some(Waiting { said, by, .. }) = errand.waiting.take() else { return false };
            run.ended(me, session, &errand, verdict.map(|()| said), by);
            true
        });
        self.state.broken.told_twice |= is_awaited != Some(true);
    }

    /// A request stops waiting for replicas.
    pub(super) fn give_up(&mut self, me: usize, number: Number) {
        let (now, connection) = (self.now(), self.setup.connection_of(me));
        let owner = (u8::try_from(me).unwrap(), number);
        self.with(owner, |run, me, session| {
            let is_over = |errand: &Errand| errand.waiting.as_ref().is_some_and(|waiting| waiting.until <= now);
            let Some(place) = session.errands.iter().position(is_over) else { return };
            let mut errand = session.errands.remove(place);
            let Some(Waiting { number, by, .. }) = errand.waiting.take() else { return };
            let seen = run.state.connections[connection].replication.give_up(number);
            run.state.broken.told_twice |= seen.is_none();
            run.client(me).had_too_few |= errand.about == About::Token(Ask::Acquire);
            run.ended(me, session, &errand, Err(Failure::unknown("too few replicas")), by);
        });
    }

    /// An errand has ended.
    fn ended(&mut self, me: usize, session: &mut Session, errand: &Errand, answer: Answer, by: usize) {
        let now = self.now();
        let ask = match errand.about {
            About::Token(ask) => ask,
            About::Undo(undoing) => return self.undone(me, session, undoing, answer),
        };
        let is_confirmed = match &answer {
            Ok(Said::Vote { acquired: Acquired::Granted(_), .. }) => true,
            Ok(Said::Owned(Ok(()))) => ask == Ask::Renew,
            _ => false,
        };
        let actions = session.acquisition.on_reply(now, Sent { node: 0, ask, at: errand.at }, answer);
        if is_confirmed {
            session.on = Some((session.on.map_or(by, |(first, _)| first), by));
        }
        self.carry_out(me, session, actions);
    }

    fn carry_out(&mut self, me: usize, session: &mut Session, actions: Actions) {
        let Actions { renew, release, release_again, undo, news, .. } = actions;
        if renew {
            self.start(me, session, About::Token(Ask::Renew));
        }
        if release {
            self.start(me, session, About::Token(Ask::Release { only_sending: true, is_last: false }));
        }
        if let Some(again) = release_again {
            self.start(me, session, About::Token(again.ask()));
        }
        if let Some(undo) = undo {
            self.undo(me, session, Undoing::new(self.now(), TTL, undo.route, !undo.is_attempt));
        }
        match news {
            Some(News::Acquired(fence)) => self.won(me, fence),
            Some(News::Phase) if matches!(session.acquisition.phase(), Some(Phase::Over { .. })) => {
                self.leave(me, session);
            }
            Some(News::Phase | News::NotAcquired(_) | News::Released(_)) | None => {}
        }
    }

    fn won(&mut self, me: usize, fence: Fence) {
        self.state.broken.fence_fell |= self.state.largest.is_some_and(|largest| fence <= largest);
        self.state.largest = self.state.largest.max(Some(fence));
        self.client(me).has_had_it = true;
    }

    /// Checks the lease that is held.
    pub(super) fn look(&mut self, me: usize, number: Number) {
        let (now, owner) = (self.now(), (u8::try_from(me).unwrap(), number));
        self.with(owner, |run, me, session| {
            let actions = session.acquisition.on_tick(now);
            run.carry_out(me, session, actions);
        });
    }

    /// Lets go of the lease, because the job is done.
    pub(super) fn let_go(&mut self, me: usize, number: Number) {
        self.with((u8::try_from(me).unwrap(), number), Self::leave);
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

    fn undo(&mut self, me: usize, session: &mut Session, mut undoing: Undoing) {
        let (_route, _limit) = undoing.ask(self.now(), COMMAND_TIMEOUT);
        self.start(me, session, About::Undo(undoing));
    }

    fn undone(&mut self, me: usize, session: &mut Session, mut undoing: Undoing, answer: Answer) {
        // The pauses between two tries are left out.
        if let Next::After(_) = undoing.answered(self.now(), &answer.map(owned)) {
            self.undo(me, session, undoing);
        }
    }
}
