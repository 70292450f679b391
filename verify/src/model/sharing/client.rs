//! One client: it waits in the line, holds the lock, continues as a reader, and gives back what it has.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Leaving, News, Said as LeaseSaid, Sent},
    backoff::Backoff,
    check::Check,
    failure::Failure,
    fence::Fence,
    jitter::Jitter,
    message::{Downgraded, Owned, ReleaseMode, Route},
    queue_position::{LEAVES_FOR, QueuePosition},
    renewal::Phase,
    tally::WakeCondition,
    time::Time,
    undo::{Next, Undoing},
};

use super::{
    GRANT, Run, TTL,
    state::{About, Answer, Asked, Client, Content, Leave, Message, Request, Said, Session, Stage},
};
use crate::model::{
    client::{COMMAND_TIMEOUT, config},
    state::{Number, Owner},
};

impl Run<'_> {
    fn client(&mut self, me: usize) -> &mut Client {
        &mut self.state.clients[me]
    }

    /// Runs `act` on a session, if it still exists.
    fn with(&mut self, me: usize, number: Number, act: impl FnOnce(&mut Self, usize, &mut Session)) {
        let sessions = &mut self.client(me).sessions;
        let Some(place) = sessions.iter().position(|session| session.number == number) else { return };
        let mut session = sessions.remove(place);
        act(self, me, &mut session);
        self.keep(me, session);
    }

    fn keep(&mut self, me: usize, session: Session) {
        if session.is_on() || !session.requests.is_empty() {
            self.client(me).sessions.push(session);
        }
    }

    /// Takes a session, or makes a new one that only gives its token back.
    fn take_or(&mut self, me: usize, number: Number, limit: u32) -> Session {
        let sessions = &mut self.client(me).sessions;
        let place = sessions.iter().position(|session| session.number == number);
        let over = Session { number, limit, stage: Stage::Over, ticket: None, from: None, requests: Vec::new() };
        place.map_or(over, |place| sessions.remove(place))
    }

    fn draw(&mut self, me: usize) -> Number {
        let client = self.client(me);
        client.drawn += 1;
        client.drawn - 1
    }

    fn send(&mut self, me: usize, session: &mut Session, about: About, asked: Asked, limit: Duration) {
        let (at, owner) = (self.now(), (u8::try_from(me).unwrap(), session.number));
        let is_used = |nth: &u8| {
            session.requests.iter().any(|request| request.nth == *nth)
                || self.state.net.iter().any(|message| (message.owner, message.nth) == (owner, *nth))
        };
        let nth = (0..u8::MAX).find(|nth| !is_used(nth)).unwrap();
        session.requests.push(Request { about, nth, at, until: at + limit });
        self.state.net.push(Message { owner, nth, is_late: false, content: Content::Request(asked) });
    }

    /// Enters the line.
    pub(super) fn begin(&mut self, me: usize) {
        let (number, limit) = (self.draw(me), self.setup.parts[me].limit);
        self.client(me).begun += 1;
        let stage = Stage::Waits { next: Time::NEVER, due: Time::NEVER };
        let mut session = Session { number, limit, stage, ticket: None, from: None, requests: Vec::new() };
        self.polls(me, &mut session);
        self.keep(me, session);
    }

    /// It is time for a waiter to poll.
    pub(super) fn poll(&mut self, me: usize, number: Number) {
        self.with(me, number, Self::polls);
    }

    fn polls(&mut self, me: usize, session: &mut Session) {
        if let Stage::Waits { next, due } = &mut session.stage {
            // That deals with all earlier notifications.
            (*next, *due) = (Time::NEVER, Time::NEVER);
            let asked = Asked::Poll { limit: session.limit, ticket: session.ticket };
            self.send(me, session, About::Poll, asked, COMMAND_TIMEOUT);
        }
    }

    /// The server calls a waiter: it has granted the lock, or tells the waiter to poll after `within`.
    pub(super) fn called(&mut self, (me, number): Owner, within: Option<Duration>) {
        let (now, me) = (self.now(), usize::from(me));
        self.with(me, number, |run, me, session| {
            if let Stage::Waits { due, .. } = &mut session.stage {
                *due = (*due).min(now + within.unwrap_or_default());
                if *due <= now && !session.is_polling() {
                    run.polls(me, session);
                }
            }
        });
        // A grant to a waiter that is gone must not hold up the others.
        let session = self.client(me).sessions.iter().find(|session| session.number == number);
        if within.is_none() && session.is_none_or(Session::is_gone) {
            let limit = self.setup.parts[me].limit;
            let mut gone = self.take_or(me, number, limit);
            self.undo(me, &mut gone, Undoing::new(now, COMMAND_TIMEOUT, Route::Keeper, true), Leave::Line);
            self.keep(me, gone);
        }
    }

    /// A waiter gives up.
    pub(super) fn cancel(&mut self, me: usize, number: Number) {
        self.state.cancels -= 1;
        self.with(me, number, |run, me, session| {
            session.stage = Stage::Leaves;
            if !session.is_polling() {
                run.leaves_line(me, session);
            }
        });
    }

    fn leaves_line(&mut self, me: usize, session: &mut Session) {
        session.stage = Stage::Over;
        let undoing = Undoing::new(self.now(), LEAVES_FOR.max(TTL), Route::Keeper, true);
        self.undo(me, session, undoing, Leave::Line);
    }

    /// A request is answered, or will not be.
    pub(super) fn hear(&mut self, (me, number): Owner, nth: u8, answer: Answer) {
        self.with(usize::from(me), number, |run, me, session| {
            let is_it = |request: &Request| request.nth == nth;
            if let Some(place) = session.requests.iter().position(is_it) {
                let request = session.requests.remove(place);
                run.heard(me, session, &request, answer);
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

    fn heard(&mut self, me: usize, session: &mut Session, request: &Request, answer: Answer) {
        let (now, Request { about, at, .. }) = (self.now(), *request);
        match about {
            About::Poll => self.polled(me, session, at, answer),
            About::Downgrade => self.downgraded(me, session, answer),
            About::Undo(undoing, leave) => self.undone(me, session, undoing, leave, answer),
            About::Lease(ask) => {
                let said = answer.map(|said| LeaseSaid::Owned(owned(said)));
                self.lease(me, session, |acquisition| acquisition.on_reply(now, Sent { node: 0, ask, at }, said));
            }
        }
    }

    fn polled(&mut self, me: usize, session: &mut Session, sent: Time, answer: Answer) {
        let now = self.now();
        if session.stage == Stage::Leaves {
            return self.leaves_line(me, session);
        }
        let Stage::Waits { due, .. } = session.stage else { return };
        let answer = answer.map(|said| match said {
            Said::Granted(fence) => (said, self.granted(sent, fence)),
            other => (other, None),
        });
        let has_no_place = QueuePosition { ticket: session.ticket, ..QueuePosition::default() };
        let (position, look) = match answer {
            Ok((Said::Granted(fence), Some(acquisition))) => return self.won(session, acquisition, fence),
            Ok((Said::Granted(_), None)) => {
                let failure = Failure::unavailable("the grant was confirmed after its lease had run out");
                (has_no_place, Check::Failed(failure))
            }
            Ok((Said::Waits { holder, recovers_for, ticket, ahead }, _)) => {
                session.ticket = ticket;
                let look = match recovers_for {
                    Some(left) => Check::Failed(Failure::recovering("h:1", left)),
                    None => Check::Held { tracked: !holder.is_shared(), holder, needs: WakeCondition::ANY },
                };
                (QueuePosition { ticket, ahead, notified: self.setup.hears, recovers_for }, look)
            }
            Ok((other, _)) => panic!("a poll is answered with {other:?}"),
            Err(failure) => (has_no_place, Check::Failed(failure)),
        };
        // The only waiter of its process leads.
        let pause = position.next_poll(&look, true, GRANT, &mut Backoff::new(Jitter::from_seed(0)));
        session.stage = Stage::Waits { next: pause.map_or(Time::NEVER, |pause| now + pause), due };
    }

    fn granted(&self, sent: Time, fence: Fence) -> Option<Acquisition> {
        Acquisition::granted(config(self.setup.client_ttl(), 1, None), sent, self.now(), fence)
    }

    fn won(&mut self, session: &mut Session, acquisition: Acquisition, fence: Fence) {
        let (largest, is_share) = (&mut self.state.largest, session.is_shared());
        let is_smaller =
            |(before, was_share): (Fence, bool)| fence < before || fence == before && !(is_share && was_share);
        self.state.broken.fence_fell |= largest.is_some_and(is_smaller);
        *largest = (*largest).max(Some((fence, is_share)));
        session.stage = Stage::Has(acquisition.into());
    }

    /// Passes an event to a lease.
    fn lease(&mut self, me: usize, session: &mut Session, event: impl FnOnce(&mut Acquisition) -> Actions) {
        let now = self.now();
        let Stage::Has(acquisition) = &mut session.stage else { return };
        let was_over = now >= acquisition.valid_until();
        let actions = event(acquisition);
        self.state.broken.is_revived |= was_over && now < acquisition.valid_until();
        self.carry_out(me, session, actions);
    }

    fn carry_out(&mut self, me: usize, session: &mut Session, actions: Actions) {
        let Actions { renew, release, release_again, undo, news, .. } = actions;
        let (now, limit) = (self.now(), session.limit);
        let Stage::Has(acquisition) = &session.stage else { return };
        let (fence, left) = (acquisition.fence(), acquisition.valid_until().since(now));
        let phase = acquisition.phase();
        if renew {
            let ask = Ask::Renew;
            self.send(me, session, About::Lease(ask), Asked::Renew { limit, fence }, left);
        }
        if release {
            let ask = Ask::Release { only_sending: true, is_last: false };
            self.send(me, session, About::Lease(ask), Asked::Part { limit }, COMMAND_TIMEOUT / 2);
        }
        if let Some(again) = release_again {
            self.send(me, session, About::Lease(again.ask()), Asked::Part { limit }, COMMAND_TIMEOUT / 2);
        }
        if let Some(undo) = undo {
            self.undo(me, session, Undoing::new(now, TTL, undo.route, !undo.is_attempt), Leave::Lock);
        }
        if matches!(news, Some(News::Phase)) && matches!(phase, Some(Phase::Over { .. })) {
            self.state.broken.lost_for_nothing |= self.state.left == self.setup.faults;
            self.leave(me, session);
        }
    }

    /// Checks the lease that is held, or the one whose place another one is to take.
    pub(super) fn look_at(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| match session.stage {
            Stage::Follows { .. } => run.follows_nobody(me, session),
            _ => run.lease(me, session, |acquisition| acquisition.on_tick(now)),
        });
    }

    /// Lets go of the lease, because the job is done.
    pub(super) fn let_go(&mut self, me: usize, number: Number) {
        self.with(me, number, Self::leave);
    }

    fn leave(&mut self, me: usize, session: &mut Session) {
        let now = self.now();
        let Stage::Has(acquisition) = &mut session.stage else { return };
        let (leaving, actions) = acquisition.let_go(now);
        self.carry_out(me, session, actions);
        if let (Leaving::Release { .. }, Stage::Has(acquisition)) = (leaving, &mut session.stage) {
            let actions = acquisition.release(Route::Home, ReleaseMode::Delete);
            self.carry_out(me, session, actions);
        }
    }

    /// The holder that has the lock alone continues as a reader.
    pub(super) fn downgrade(&mut self, me: usize, number: Number) {
        self.with(me, number, |run, me, session| {
            let Stage::Has(acquisition) = &mut session.stage else { return };
            let until = acquisition.valid_until();
            // Its own belief ends here, and it does not take the key away any more.
            if acquisition.hand_over() {
                let stage = Stage::Follows { sent: run.now(), until };
                let (drawn, from) = (run.draw(me), Some(number));
                let requests = Vec::new();
                let mut next = Session { number: drawn, limit: u32::MAX, stage, ticket: None, from, requests };
                run.send(me, &mut next, About::Downgrade, Asked::Downgrade(number), COMMAND_TIMEOUT);
                run.keep(me, next);
            }
        });
    }

    fn downgraded(&mut self, me: usize, session: &mut Session, answer: Answer) {
        let (Stage::Follows { sent, until }, Some(from)) = (&session.stage, session.from) else { return };
        let (sent, until) = (*sent, *until);
        match answer {
            Ok(Said::Downgraded(Downgraded::Shared(fence))) => match self.granted(sent, fence) {
                Some(acquisition) => self.won(session, acquisition, fence),
                None => self.follows_nobody(me, session),
            },
            Ok(Said::Downgraded(_)) => {
                self.state.broken.lost_for_nothing |= self.state.left == self.setup.faults;
                self.follows_nobody(me, session);
            }
            Ok(other) => panic!("a downgrade is answered with {other:?}"),
            Err(_) if self.now() < until => {
                self.send(me, session, About::Downgrade, Asked::Downgrade(from), COMMAND_TIMEOUT);
            }
            Err(_) => self.follows_nobody(me, session),
        }
    }

    /// The lease is lost: neither of the two tokens is used any more.
    fn follows_nobody(&mut self, me: usize, session: &mut Session) {
        let (now, from) = (self.now(), session.from);
        session.stage = Stage::Over;
        self.undo(me, session, Undoing::new(now, TTL, Route::Keeper, true), Leave::Line);
        let Some(number) = from else { return };
        let mut old = self.take_or(me, number, 0);
        self.undo(me, &mut old, Undoing::new(now, TTL, Route::Keeper, true), Leave::Lock);
        self.keep(me, old);
    }

    fn undo(&mut self, me: usize, session: &mut Session, mut undoing: Undoing, leave: Leave) {
        let (_route, wait) = undoing.ask(self.now(), COMMAND_TIMEOUT);
        let limit = session.limit;
        let asked = match leave {
            Leave::Line => Asked::Leave { limit },
            Leave::Lock => Asked::Part { limit },
        };
        self.send(me, session, About::Undo(undoing, leave), asked, wait);
    }

    fn undone(&mut self, me: usize, session: &mut Session, mut undoing: Undoing, leave: Leave, answer: Answer) {
        // The pauses between two tries are left out.
        if let Next::After(_) = undoing.answered(self.now(), &answer.map(owned)) {
            self.undo(me, session, undoing, leave);
        }
    }
}

fn owned(said: Said) -> Owned {
    match said {
        Said::Owned(owned) => owned,
        other => panic!("what gives a token back is answered with {other:?}"),
    }
}
