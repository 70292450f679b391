//! All that is around the clients: time, the servers, the links, and the driver of [`Replication`] on each connection.
//!
//! [`Replication`]: leasehold_protocol::replication::Replication

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    message::Acquired,
    replication::{Next, Registration, slice_of},
};

use super::{
    Old, Run, TTL,
    action::Break,
    state::{Driver, Message, Wait, Who},
};
use crate::{
    model::{node, state::Kind},
    seeded::SeededBug,
};

impl Run<'_> {
    /// Time passes to the next moment at which something is due.
    pub(super) fn pass(&mut self) -> Option<()> {
        self.state.now = self.state.next_moment(self.setup)?;
        for at in 0..self.state.servers.len() {
            let now = self.state.time_at(self.setup, at);
            // An expired key is forgotten.
            let _holder = self.state.servers[at].store.holder(now, &self.setup.key);
        }
        Some(())
    }

    /// A request arrives at the server of its link, and is answered.
    pub(super) fn arrive(&mut self, at: usize) {
        let Message { owner, kind, connection, .. } = self.state.net[at];
        let leads = self.state.connections[connection].leads;
        let now = self.state.time_at(self.setup, leads);
        let was_ours = self.state.key_at(self.setup, leads).is_some_and(|(there, _)| there == owner);
        let server = &mut self.state.servers[leads];
        if !server.serves() {
            let failure = Failure::unavailable("it is a replica");
            self.state.net[at].answer = Some((leads, Err(failure)));
            return;
        }
        let said = node::execute(&mut server.store, now, self.setup.claim(owner), kind);
        let is_replayed = kind == Kind::Acquire && was_ours;
        let is_written = !(is_replayed && self.setup.bug == Some(SeededBug::ReplayWritesNothing));
        if is_written && counts(&said) {
            self.note_write(connection);
        }
        self.state.net[at].answer = Some((leads, Ok(said)));
    }

    fn note_write(&mut self, connection: usize) {
        let connection = &mut self.state.connections[connection];
        let server = &mut self.state.servers[connection.leads];
        server.written += 1;
        connection.written = server.written;
    }

    /// Others have written something.
    pub(super) fn other(&mut self, at: usize) {
        if !self.state.servers[self.state.connections[at].leads].serves() {
            return;
        }
        self.state.others -= 1;
        self.note_write(at);
        if self.setup.wanted > 0 {
            let until = self.now() + TTL / 4;
            let (number, unknown) = self.enter(at, self.state.connections[at].link, Who::Other);
            self.state.connections[at].others.push((number, until));
            for who in unknown {
                self.told(who, Err(Failure::unknown("the link has ended")));
            }
        }
    }

    /// Others stop waiting for replicas.
    pub(super) fn give_up_other(&mut self, at: usize) {
        let connection = &mut self.state.connections[at];
        let (number, _) = connection.others.remove(0);
        let _told_or_not = connection.replication.give_up(number);
    }

    /// Enters an answer on this link that replicas have to confirm, and returns its number.
    pub(super) fn enter(&mut self, at: usize, link: u64, who: Who) -> (u64, Vec<Who>) {
        let now = self.now();
        let connection = &mut self.state.connections[at];
        let Registration { number, begins, unknown } = connection.replication.enter(link, slice_of(TTL), who);
        if begins {
            connection.driver = Driver::Due(now);
        }
        (number, unknown)
    }

    /// The driver takes its next step.
    pub(super) fn drive(&mut self, at: usize) {
        let now = self.now();
        let connection = &mut self.state.connections[at];
        connection.driver = match connection.replication.next(now) {
            Next::Over => Driver::Off,
            Next::Rest(pause) => Driver::Due(now + pause),
            Next::Wait { link, slice } => {
                let is_there = link == connection.link || self.setup.bug == Some(SeededBug::WaitOnAnotherLink);
                let wait = Wait { server: connection.leads, of: connection.written, until: now + slice, counted: None };
                connection.driver = Driver::Waits(wait);
                if !is_there {
                    self.counted(at, Err(Failure::unknown("the link has ended")));
                }
                return;
            }
        };
    }

    /// The server answers a `WAIT`.
    pub(super) fn count(&mut self, at: usize) {
        let Driver::Waits(wait) = self.state.connections[at].driver else { panic!("a WAIT is under way") };
        let counted = Some(self.state.count(wait.server, wait.of));
        self.state.connections[at].driver = Driver::Waits(Wait { counted, ..wait });
    }

    /// The answer to a `WAIT` is heard.
    pub(super) fn hear_count(&mut self, at: usize) {
        let Driver::Waits(Wait { counted: Some(count), .. }) = self.state.connections[at].driver else {
            panic!("it has answered")
        };
        self.counted(at, Ok(count));
    }

    fn counted(&mut self, at: usize, count: Result<u32, Failure>) {
        let now = self.now();
        let replication = &mut self.state.connections[at].replication;
        let mut told = replication.counted(now, count.clone());
        if count.is_ok() && self.setup.bug == Some(SeededBug::WaitConfirmsLater) && !told.is_empty() {
            if let Next::Wait { .. } = replication.next(now) {
                told.extend(replication.counted(now, count));
            }
        }
        self.state.connections[at].driver = Driver::Due(now);
        for (who, verdict) in told {
            self.told(who, verdict);
        }
    }

    /// A replica gets all that its server has.
    pub(super) fn replicate(&mut self, at: usize) {
        let Some(leader) = self.state.servers[at].follows else { return };
        let leader = &self.state.servers[leader];
        let (store, written) = (leader.store.clone(), leader.written);
        let replica = &mut self.state.servers[at];
        (replica.store, replica.has) = (store, written);
    }

    /// A replica takes over from the first primary.
    pub(super) fn promote(&mut self, at: usize, how: Break) {
        let (old, setup) = (self.state.primary, self.setup);
        self.state.primary = at;
        let new = &mut self.state.servers[at];
        (new.follows, new.written, new.has) = (None, new.has, 0);
        if setup.old == Old::Dies {
            self.state.servers[old].is_up = false;
            self.end_links(old, how);
        }
        if setup.old != Old::Lingers {
            for other in 0..self.state.servers.len() {
                if self.state.servers[other].follows == Some(old) {
                    self.follow(other);
                }
            }
        }
    }

    /// A server follows the newest primary, of which it has nothing yet.
    pub(super) fn follow(&mut self, at: usize) {
        let primary = self.state.primary;
        let server = &mut self.state.servers[at];
        (server.is_up, server.follows, server.has, server.written) = (true, Some(primary), 0, 0);
    }

    /// The old primary becomes a replica, and ends its links.
    pub(super) fn step_down(&mut self, at: usize, how: Break) {
        self.follow(at);
        self.end_links(at, how);
    }

    fn end_links(&mut self, server: usize, how: Break) {
        for at in 0..self.state.connections.len() {
            if self.state.connections[at].leads == server {
                self.end_link(at, how);
            }
        }
    }

    /// A link breaks, or its client hears of a newer primary.
    pub(super) fn relink(&mut self, at: usize, how: Break) {
        if self.state.connections[at].leads == self.state.primary {
            self.state.breaks -= 1;
        }
        self.end_link(at, how);
    }

    /// A connection has a new link to the newest primary.
    fn end_link(&mut self, at: usize, Break { is_heard, is_repeated }: Break) {
        let primary = self.state.primary;
        let connection = &mut self.state.connections[at];
        connection.link += 1;
        (connection.leads, connection.written) = (primary, 0);
        let link = connection.link;
        let wait = if let Driver::Waits(wait) = connection.driver { Some(wait) } else { None };
        if wait.is_some_and(|wait| wait.counted.is_none() || !is_heard) {
            self.counted(at, Err(Failure::unknown("the link has ended")));
        }
        let is_old = |message: &Message| message.connection == at && message.link < link;
        let ends = |message: &Message| is_old(message) && (message.answer.is_none() || !is_heard);
        let (ended, going): (Vec<_>, Vec<_>) = self.state.net.drain(..).partition(ends);
        self.state.net = going;
        for message in ended {
            if is_repeated {
                self.state.net.push(Message { link, answer: None, ..message });
            } else {
                self.heard(&message, message.link, Err(Failure::unknown("the link has ended")), primary);
            }
        }
    }
}

/// Whether an answer says that something was granted, extended or taken off.
fn counts(said: &Said) -> bool {
    matches!(said, Said::Vote { acquired: Acquired::Granted(_), .. } | Said::Owned(Ok(())))
}
