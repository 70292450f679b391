//! What is around the clients: time, the servers, and what is between them.

use leasehold_protocol::{failure::Failure, time::Time};

use super::{
    Asked, Handover, Run,
    state::{Answer, Content, Effect, Errand, Ground, Message},
};

impl<H: Handover> Run<'_, H> {
    /// Time passes to the next moment at which something is due.
    pub(super) fn pass(&mut self) -> Option<()> {
        self.state.now = self.state.next_moment(self.setup)?;
        if self.state.is_closing(self.setup) {
            self.state.net.clear();
            self.state.views.clear();
        }
        self.look_at_servers();
        Some(())
    }

    fn look_at_servers(&mut self) {
        let times = self.state.times(self.setup);
        for (server, now) in self.state.servers.iter_mut().zip(times) {
            server.look(self.setup, now);
        }
    }

    /// An event happens at the servers.
    pub(super) fn befall(&mut self, event: H::Event) {
        let (mut servers, mut handover) = (self.state.servers.clone(), self.state.handover);
        let effect = handover.take(event, self.state.scene(self.setup), &mut servers);
        (self.state.servers, self.state.handover) = (servers, handover);
        self.look_at_servers();
        let sessions = (0_u8..)
            .zip(&mut self.state.clients)
            .flat_map(|(me, client)| client.sessions.iter_mut().map(move |session| ((me, session.number), session)));
        for (owner, session) in sessions {
            match effect {
                Effect::Kept => session.firm_until = session.firm_until.max(session.fresh_until),
                Effect::LostOf(of) if of != owner => continue,
                Effect::Lost | Effect::LostOf(_) => {}
                Effect::Nothing => continue,
            }
            session.fresh_until = Time::ZERO;
        }
        for message in &mut self.state.net {
            if let Content::Reply(_, ground @ Ground::Fresh) = &mut message.content {
                *ground = match effect {
                    Effect::Kept => Ground::Kept,
                    Effect::Lost => Ground::Lost,
                    Effect::LostOf(owner) if owner == message.owner => Ground::Lost,
                    Effect::LostOf(_) | Effect::Nothing => Ground::Fresh,
                };
            }
        }
    }

    /// A message reaches its destination. The answer to a request is heard at once, unless it `is_late`.
    pub(super) fn deliver(&mut self, at: usize, is_late: bool) {
        let message = self.state.net.remove(at);
        let (answer, ground) = match &message.content {
            Content::Reply(answer, ground) => (answer.clone(), *ground),
            Content::Request { .. } => self.execute(&message),
        };
        if is_late {
            self.state.net.push(Message { content: Content::Reply(answer, ground), ..message });
        } else {
            self.hear(&message, answer, ground);
        }
    }

    /// A server executes a request, or redirects it.
    fn execute(&mut self, message: &Message) -> (Answer, Ground) {
        let Message { owner, server, is_asking, kind, .. } = *message;
        let (scene, handover) = (self.state.scene(self.setup), self.state.handover);
        let now = scene.times[server];
        let asked = Asked { server, is_asking, kind, part: &message.part };
        if let Some(redirection) = handover.elsewhere(&scene, &asked) {
            return (Err(Failure::unavailable("elsewhere").redirected(Some(redirection))), Ground::Kept);
        }
        let is_it = |errand: &Errand| (errand.nth, errand.leg) == (message.nth, message.leg);
        let mut sessions = self.state.clients[usize::from(owner.0)].sessions.iter();
        let is_awaited = sessions.any(|session| session.number == owner.1 && session.errands.iter().any(is_it));
        let claim = self.setup.claim(owner);
        let there = &mut self.state.servers[server];
        let was_there = there.key.is_some_and(|(there, _)| there == owner);
        let told = there.execute(now, claim, kind, &message.part);
        there.look(self.setup, now);
        if !was_there && there.key.is_some_and(|(there, _)| there == owner) {
            there.is_belated = !is_awaited;
        }
        (Ok(told), handover.ground(server))
    }

    /// The connection breaks under a request, whose outcome is unknown.
    pub(super) fn break_off(&mut self, message: &Message) {
        self.hear(message, Err(Failure::unknown("the connection was reset")), Ground::Kept);
    }
}
