//! The parts of one moment of a run. Two moments that are equal here have the same future.

use leasehold_protocol::{
    acquisition::{Acquisition, Said},
    failure::Failure,
    fence::Fence,
    replication::Replication,
    store::Store,
    time::{Micros, Time},
};

use super::Setup;
use crate::model::state::{About, Kind, Number, Owner, Real, nanos};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Real,
    /// The newest primary.
    pub(super) primary: usize,
    pub(super) servers: Vec<Server>,
    pub(super) connections: Vec<Connection>,
    pub(super) clients: Vec<Client>,
    /// The messages on their way, in an order that does not depend on how it came about.
    pub(super) net: Vec<Message>,
    /// How many links may still break.
    pub(super) breaks: u8,
    /// How often others may still write.
    pub(super) others: u8,
    /// The largest fence of any lease so far.
    pub(super) largest: Option<Fence>,
    /// Rules that were broken on the way.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Broken {
    pub(super) fence_fell: bool,
    pub(super) told_twice: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) is_up: bool,
    /// The server that it follows, if it is a replica.
    pub(super) follows: Option<usize>,
    /// How many of the writes of that server it has, as that server knows.
    pub(super) has: u8,
    /// How many writes it has done itself, or had when it took over.
    pub(super) written: u8,
}

/// A connection: its newest link, and what waits for replicas on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    pub(super) link: u64,
    /// The server that the link leads to.
    pub(super) leads: usize,
    /// The newest of the server's writes that came on this link; none at first.
    pub(super) written: u8,
    pub(super) replication: Replication<Who>,
    pub(super) driver: Driver,
    /// The numbers of other writers that wait for replicas, and until when.
    pub(super) others: Vec<(u64, Time)>,
}

/// A writer that waits for replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Who {
    Client(Owner, u8),
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Driver {
    Off,
    /// It asks for its next step at this moment.
    Due(Time),
    /// A `WAIT` is under way.
    Waits(Wait),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Wait {
    pub(super) server: usize,
    /// A replica counts if it has this write.
    pub(super) of: u8,
    pub(super) until: Time,
    /// The number of replicas: the answer is on its way.
    pub(super) counted: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) sessions: Vec<Session>,
    /// How many attempts it has begun.
    pub(super) begun: Number,
    pub(super) has_had_it: bool,
    pub(super) had_too_few: bool,
}

/// One token, from its drawing until no answer about it is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) number: Number,
    pub(super) acquisition: Acquisition,
    pub(super) errands: Vec<Errand>,
    pub(super) asked: u8,
    /// The server that granted it, and the one that confirmed it last.
    pub(super) on: Option<(usize, usize)>,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Errand {
    pub(super) nth: u8,
    pub(super) about: About,
    pub(super) at: Time,
    /// Set once it is answered, and waits for replicas.
    pub(super) waiting: Option<Waiting>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    /// Its number in the machine.
    pub(super) number: u64,
    pub(super) until: Time,
    pub(super) said: Said,
    /// The server that answered.
    pub(super) by: usize,
}

pub(super) type Answer = Result<Said, Failure>;

/// A message on its way between a client and a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) owner: Owner,
    pub(super) nth: u8,
    pub(super) kind: Kind,
    pub(super) connection: usize,
    /// The link on which it was sent, or answered.
    pub(super) link: u64,
    /// The server that answered, and its answer.
    pub(super) answer: Option<(usize, Answer)>,
}

impl Session {
    /// Whether the client holds the lock with it, or is about to hold it or to let go.
    pub(super) fn is_on(&self) -> bool {
        !self.acquisition.is_over()
    }
}

impl Server {
    /// Whether it executes requests.
    pub(super) fn serves(&self) -> bool {
        self.is_up && self.follows.is_none()
    }
}

impl State {
    /// Normalises the state, so that two states that differ only in the order of what came about are equal.
    pub(super) fn tidy(&mut self) {
        self.net.sort_by_key(|message| (message.owner, message.nth));
        for client in &mut self.clients {
            client.sessions.sort_by_key(|session| session.number);
            for session in &mut client.sessions {
                session.errands.sort_by_key(|errand| errand.nth);
            }
        }
    }

    /// The time on a server's clock.
    pub(super) fn time_at(&self, setup: &Setup, server: usize) -> Micros {
        setup.servers[server].shows(self.now).as_nanos() / 1_000
    }

    /// The owner of the key on a server, and until when by the server's own clock.
    pub(super) fn key_at(&self, setup: &Setup, server: usize) -> Option<(Owner, Micros)> {
        let now = self.time_at(setup, server);
        let holder = self.servers[server].store.clone().holder(now, &setup.key)?;
        let until = now + u64::try_from(holder.remaining()?.as_micros()).ok()?;
        Some((setup.tokens.owner(holder.whole_token()?)?, until))
    }

    /// How many replicas have this write of a server, as the server knows.
    pub(super) fn count(&self, server: usize, write: u8) -> u32 {
        let has = |replica: &&Server| replica.is_up && replica.follows == Some(server) && replica.has >= write;
        u32::try_from(self.servers.iter().filter(has).count()).unwrap()
    }

    /// The next moment after this one at which anything is due, if anything still is.
    pub(super) fn next_moment(&self, setup: &Setup) -> Option<Real> {
        let mut moments = Vec::new();
        for session in self.clients.iter().flat_map(|client| &client.sessions) {
            moments.extend(session.errands.iter().filter_map(|errand| Some(errand.waiting.as_ref()?.until)));
            moments.extend(session.acquisition.next_tick());
        }
        let others = self.connections.iter().flat_map(|connection| &connection.others);
        moments.extend(others.map(|(_, until)| *until));
        moments.extend(self.connections.iter().filter_map(|connection| match connection.driver {
            Driver::Off => None,
            Driver::Due(at) => Some(at),
            Driver::Waits(wait) => Some(wait.until),
        }));
        let due = moments.into_iter().map(|moment| setup.clients.when(moment));
        let expiries = (0..self.servers.len()).filter_map(|server| {
            let (_, until) = self.key_at(setup, server)?;
            Some(setup.servers[server].when(Time::from_nanos(until * 1_000)))
        });
        let step = (self.now / nanos(setup.grid) + 1) * nanos(setup.grid);
        let step = [step].into_iter().filter(|_| !self.is_closing(setup));
        due.chain(expiries).chain(step).filter(|&moment| moment > self.now).min()
    }

    /// Whether the world is closing: no fault happens any more, no client begins, and each lets go.
    pub(super) fn is_closing(&self, setup: &Setup) -> bool {
        self.now >= nanos(setup.closes)
    }

    pub(super) fn lives_on(&self) -> bool {
        let mut sessions = self.clients.iter().flat_map(|client| &client.sessions);
        sessions.any(|session| session.acquisition.is_held() && session.on.is_some_and(|(first, last)| first != last))
    }
}
