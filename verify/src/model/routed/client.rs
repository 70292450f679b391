//! A state on its way to the next one, and the actions of each client: the driver of [`Acquisition`].

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    acquisition::{Acquisition, Actions, Ask, Leaving, News as Event, Said, Sent},
    cross_check::{self, CrossCheck},
    failure::Failure,
    fence::Fence,
    loss::LossReason,
    message::{Acquired, ReleaseMode, Route},
    release_tally::ReleaseEnd,
    renewal::Phase,
    tally::deadline,
    time::Time,
    topology::Topology,
    undo::{Next, Undoing},
};

use super::{
    Handover, Run, TTL,
    atlas::News,
    state::{Client, Errand, Ground, Session},
};
use crate::{
    model::{
        client::{COMMAND_TIMEOUT, config},
        node::owned,
        state::{About, Number},
    },
    seeded::SeededBug,
};

impl<H: Handover> Run<'_, H> {
    pub(super) fn client(&mut self, me: usize) -> &mut Client {
        &mut self.state.clients[me]
    }

    pub(super) fn topology(&self, me: usize) -> Arc<Topology> {
        self.setup.atlas.get(self.state.clients[me].topology)
    }

    /// Runs `act` on a session, if it still exists.
    pub(super) fn with(&mut self, me: usize, number: Number, act: impl FnOnce(&mut Self, usize, &mut Session)) {
        let sessions = &mut self.client(me).sessions;
        let Some(place) = sessions.iter().position(|session| session.number == number) else { return };
        let mut session = sessions.remove(place);
        act(self, me, &mut session);
        if session.is_on() || !session.errands.is_empty() {
            self.client(me).sessions.push(session);
        }
    }

    /// A client learns something about the slot, and asks about its leases.
    pub(super) fn learn(&mut self, me: usize, session: Option<&mut Session>, news: &News) {
        let (now, topology) = (self.now(), self.state.clients[me].topology);
        let after = self.setup.atlas.after(topology, news);
        let client = self.client(me);
        client.topology = after.topology;
        for session in client.sessions.iter_mut().chain(session) {
            if after.is_taken_over {
                session.acquisition.note_takeover(now);
            }
            if after.has_changed {
                session.acquisition.hint(now);
            }
        }
        let topology = self.topology(me);
        let is_second =
            topology.owner(self.setup.slot).and_then(|owner| topology.place(owner)) == Some(&super::place_of(1));
        let client = self.client(me);
        if is_second && !client.has_heard {
            // The other servers have nothing newer.
            (client.has_heard, client.check, client.counted, client.deceived) =
                (true, CrossCheck::default(), Time::ZERO, None);
        }
    }

    /// A client hears a view.
    pub(super) fn see(&mut self, me: usize, view: usize) {
        let goes_back = self.setup.bug == Some(SeededBug::TopologyGoesBack);
        self.learn(me, None, &if goes_back { News::Anew(view) } else { News::View(view) });
    }

    /// A client asks others who the primary is, because an answer has counted.
    pub(super) fn ask_others(&mut self, me: usize, is_late: bool) {
        let (now, view) = (self.now(), self.state.handover.view());
        self.client(me).check.ask(now);
        if is_late {
            (self.client(me).is_unlucky, self.client(me).deceived) = (true, None);
            self.state.views.push((u8::try_from(me).unwrap(), view));
        } else {
            self.see(me, view);
        }
    }

    /// Notes that an answer counts.
    pub(super) fn count(&mut self, me: usize, ground: Ground) {
        let (now, is_known) = (self.now(), self.state.handover.view() > 0);
        let client = &mut self.state.clients[me];
        let is_first = client.check.due(client.counted, false) == Time::NEVER;
        if is_first && !client.has_heard && self.setup.bug != Some(SeededBug::NotCrossChecked) {
            client.counted = now;
        }
        if ground != Ground::Lost || !H::IS_FAILOVER {
            return;
        }
        self.state.broken.counts_the_replaced |= client.has_heard;
        if is_known && !client.has_heard && !client.is_unlucky {
            let first = *client.deceived.get_or_insert(now);
            self.state.broken.believes_too_long |= now > first + cross_check::AFTER;
        }
    }

    /// Tries once to acquire the lock.
    pub(super) fn begin(&mut self, me: usize) {
        let (sent, number) = (self.now(), self.client(me).begun);
        self.client(me).begun += 1;
        let mut session = Session {
            number,
            acquisition: Acquisition::new(config(TTL, 1, None), sent),
            errands: Vec::new(),
            asked: 0,
            after: self.state.largest[0],
            firm_until: Time::ZERO,
            fresh_until: Time::ZERO,
            on: None,
        };
        self.start(me, &mut session, About::Token(Ask::Acquire), COMMAND_TIMEOUT);
        self.client(me).sessions.push(session);
    }

    /// Times out a request whose answer has not come in time.
    pub(super) fn expire(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            if let Some(place) = session.errands.iter().position(|errand| errand.until <= now) {
                let errand = session.errands.remove(place);
                run.concluded(me, session, errand, Err(Failure::unknown("no answer")), Ground::Kept, 0);
            }
        });
    }

    /// An errand has its answer.
    pub(super) fn ended(
        &mut self,
        me: usize,
        session: &mut Session,
        errand: &Errand,
        said: Result<Said, Failure>,
        by: (Ground, usize),
    ) {
        let (now, at) = (self.now(), errand.at);
        let ask = match errand.about {
            About::Token(ask) => ask,
            About::Undo(undoing) => return self.undone(me, session, undoing, said),
        };
        let is_granted = matches!(said, Ok(Said::Vote { acquired: Acquired::Granted(_), .. }));
        let is_renewed = ask == Ask::Renew && said == Ok(Said::Owned(Ok(())));
        let is_denied = ask == Ask::Renew && matches!(said, Ok(Said::Owned(Err(_))));
        let actions = session.acquisition.on_reply(now, Sent { node: 0, ask, at }, said);
        if (is_granted || is_renewed) && session.acquisition.is_held() {
            let (until, (ground, server)) = (deadline(at, TTL), by);
            let has_heard = self.state.clients[me].has_heard && H::IS_FAILOVER;
            match ground {
                Ground::Fresh => session.fresh_until = session.fresh_until.max(until),
                Ground::Lost if !has_heard => {}
                Ground::Kept | Ground::Lost => session.firm_until = session.firm_until.max(until),
            }
            session.on = Some((session.on.map_or(server, |(first, _)| first), server));
        }
        self.state.broken.denied_and_held |= is_denied && session.acquisition.is_held();
        self.carry_out(me, session, actions, by);
    }

    fn carry_out(&mut self, me: usize, session: &mut Session, actions: Actions, by: (Ground, usize)) {
        let Actions { renew, release, release_again, undo, news, .. } = actions;
        let now = self.now();
        if renew {
            let remaining = session.acquisition.valid_until().since(now);
            self.start(me, session, About::Token(Ask::Renew), remaining);
        }
        if release {
            let ask = Ask::Release { only_sending: true, is_last: false };
            self.start(me, session, About::Token(ask), COMMAND_TIMEOUT / 2);
        }
        if let Some(again) = release_again {
            self.start(me, session, About::Token(again.ask()), COMMAND_TIMEOUT / 2);
        }
        if let Some(undo) = undo {
            self.undo(me, session, Undoing::new(now, TTL, undo.route, !undo.is_attempt));
        }
        if let Some(news) = news {
            self.told(me, session, &news, by);
        }
    }

    fn told(&mut self, me: usize, session: &mut Session, news: &Event, by: (Ground, usize)) {
        match news {
            Event::Acquired(fence) => self.won(me, session, *fence, by.0),
            Event::Phase => {
                if let Some(Phase::Over { reason, .. }) = session.acquisition.phase() {
                    self.state.broken.wrong_reason |= H::IS_FAILOVER && reason == LossReason::Deleted;
                    self.client(me).is_told |= reason == LossReason::FailedOver;
                    self.leave(me, session);
                }
            }
            Event::Released(ReleaseEnd::Released) => {
                let owner = (u8::try_from(me).unwrap(), session.number);
                let is_there = |(at, server): (usize, &super::Server)| {
                    let has = server.key.is_some_and(|(there, _)| there == owner) && !server.is_belated;
                    has && self.state.handover.serves(at)
                };
                self.state.broken.release_did_not |=
                    by.0 != Ground::Lost && self.state.servers.iter().enumerate().any(is_there);
            }
            Event::NotAcquired(_) | Event::Released(ReleaseEnd::Lost(_) | ReleaseEnd::Unknown(_)) => {}
        }
    }

    fn won(&mut self, me: usize, session: &Session, fence: Fence, ground: Ground) {
        let (largest, broken) = (&mut self.state.largest, &mut self.state.broken);
        if ground != Ground::Lost && !self.state.handover.has_forgotten() {
            broken.fence_fell |= largest[1].is_some_and(|largest| fence <= largest);
            broken.fence_is_stale |= session.after.is_some_and(|after| fence <= after);
            largest[1] = largest[1].max(Some(fence));
        }
        largest[0] = largest[0].max(Some(fence));
        self.client(me).has_had_it = true;
    }

    /// Checks the lease that is held.
    pub(super) fn look(&mut self, me: usize, number: Number) {
        let now = self.now();
        self.with(me, number, |run, me, session| {
            let actions = session.acquisition.on_tick(now);
            run.carry_out(me, session, actions, (Ground::Kept, 0));
        });
    }

    /// Lets go of the lease, because the job is done.
    pub(super) fn let_go(&mut self, me: usize, number: Number) {
        self.with(me, number, Self::leave);
    }

    fn leave(&mut self, me: usize, session: &mut Session) {
        let now = self.now();
        let (leaving, actions) = session.acquisition.let_go(now);
        self.carry_out(me, session, actions, (Ground::Kept, 0));
        if let Leaving::Release { .. } = leaving {
            let actions = session.acquisition.release(Route::Home, ReleaseMode::Delete);
            self.carry_out(me, session, actions, (Ground::Kept, 0));
        }
    }

    fn undo(&mut self, me: usize, session: &mut Session, mut undoing: Undoing) {
        let (_route, limit): (Route, Duration) = undoing.ask(self.now(), COMMAND_TIMEOUT);
        self.start(me, session, About::Undo(undoing), limit);
    }

    fn undone(&mut self, me: usize, session: &mut Session, mut undoing: Undoing, said: Result<Said, Failure>) {
        // The pauses between two tries are left out.
        if let Next::After(_) = undoing.answered(self.now(), &said.map(owned)) {
            self.undo(me, session, undoing);
        }
    }
}
