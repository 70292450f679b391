//! The parts of one moment of a run. Two moments that are equal here have the same future.

use leasehold_protocol::{
    acquisition::{Acquisition, Said},
    cross_check::CrossCheck,
    failure::Failure,
    fence::Fence,
    message::Shard,
    stepwise::{Single, SingleReply, Stepwise},
    time::{Micros, Time},
    trip::Trip,
};

use super::{Handover, Scene, Server, Setup, atlas};
use crate::model::state::{About, Kind, Number, Owner, Real, nanos};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) struct State<H> {
    pub(super) now: Real,
    pub(super) handover: H,
    pub(super) servers: [Server; 2],
    pub(super) clients: Vec<Client>,
    /// The messages on their way, in an order that does not depend on how it came about.
    pub(super) net: Vec<Message>,
    /// Late views: the client, and the view.
    pub(super) views: Vec<(u8, usize)>,
    /// How many messages may still be late, and how many views.
    pub(super) late: (u8, u8),
    /// The largest fence of any lease so far, and of the leases that were firm when they were won.
    pub(super) largest: [Option<Fence>; 2],
    /// Rules that were broken on the way.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Broken {
    pub(super) counts_the_replaced: bool,
    pub(super) believes_too_long: bool,
    pub(super) denied_and_held: bool,
    pub(super) wrong_reason: bool,
    pub(super) fence_fell: bool,
    pub(super) fence_is_stale: bool,
    pub(super) release_did_not: bool,
}

/// The outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum Ground {
    /// It may still be lost.
    Fresh,
    /// It is kept.
    Kept,
    /// It is not where the slot is now.
    Lost,
}

/// The effect of an event at the servers on what they have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Effect {
    Nothing,
    /// All fresh writes are kept.
    Kept,
    /// All fresh writes are lost.
    Lost,
    /// The lock of this owner is lost.
    LostOf(Owner),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) sessions: Vec<Session>,
    /// How many attempts it has begun.
    pub(super) begun: Number,
    pub(super) topology: atlas::Number,
    /// Whether it has known the second server as the slot's owner.
    pub(super) has_heard: bool,
    pub(super) check: CrossCheck,
    /// When the first answer counted since the last question.
    pub(super) counted: Time,
    /// When it first counted an answer of a replaced primary while others knew better.
    pub(super) deceived: Option<Time>,
    /// Whether the answer to one of its questions is late.
    pub(super) is_unlucky: bool,
    pub(super) has_had_it: bool,
    /// Whether it was told that a failover has lost its lease.
    pub(super) is_told: bool,
}

/// One token, from its drawing until no answer about it is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) number: Number,
    pub(super) acquisition: Acquisition,
    pub(super) errands: Vec<Errand>,
    pub(super) asked: u8,
    /// The largest fence of any lease when it began.
    pub(super) after: Option<Fence>,
    /// Until when its belief rests on what is kept, and on what may still be lost.
    pub(super) firm_until: Time,
    pub(super) fresh_until: Time,
    /// The server that granted it, and the one that confirmed it last.
    pub(super) on: Option<(usize, usize)>,
}

/// A request of a client, which goes from server to server, and perhaps in steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Errand {
    pub(super) nth: u8,
    /// How many messages were sent for it.
    pub(super) leg: u8,
    pub(super) about: About,
    pub(super) at: Time,
    /// When the wait for its answer ends.
    pub(super) until: Time,
    pub(super) trip: Trip,
    pub(super) steps: Option<Stepwise>,
    pub(super) part: Part,
    /// The fence that was issued too early.
    pub(super) early: Option<Fence>,
}

/// The part of an errand that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) enum Part {
    Whole,
    Single(Single),
}

/// A server's answer to a part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Told {
    Said(Said),
    Single(SingleReply),
}

pub(super) type Answer = Result<Told, Failure>;

/// A message on its way between a client and a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) owner: Owner,
    pub(super) nth: u8,
    pub(super) leg: u8,
    pub(super) server: usize,
    /// The number that the client has for the slot's owner.
    pub(super) shard: Shard,
    pub(super) is_asking: bool,
    pub(super) kind: Kind,
    pub(super) part: Part,
    pub(super) content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Content {
    /// It arrives before any time passes unless it is late.
    Request { is_late: bool },
    /// A late reply, and the outcome of the write.
    Reply(Answer, Ground),
}

impl Message {
    pub(super) fn is_urgent(&self) -> bool {
        self.content == Content::Request { is_late: false }
    }

    pub(super) fn is_reply(&self) -> bool {
        matches!(self.content, Content::Reply(..))
    }
}

impl Session {
    /// Whether the client holds the lock with it, or is about to hold it or to let go.
    pub(super) fn is_on(&self) -> bool {
        !self.acquisition.is_over()
    }
}

impl<H: Handover> State<H> {
    /// Normalises the state, so that two states that differ only in the order of what came about are equal.
    pub(super) fn tidy(&mut self) {
        self.net.sort_by_key(|message| (message.owner, message.nth, message.leg, message.is_reply()));
        self.views.sort_unstable();
        let is_for_the_second = |message: &Message| message.server == 1;
        if self.clients.iter().all(|client| client.has_heard)
            && self.net.iter().all(is_for_the_second)
            && self.views.is_empty()
        {
            self.handover.settle(&mut self.servers);
        }
        for client in &mut self.clients {
            client.sessions.sort_by_key(|session| session.number);
            for session in &mut client.sessions {
                session.errands.sort_by_key(|errand| errand.nth);
            }
        }
    }

    /// The times on the servers' clocks.
    pub(super) fn times(&self, setup: &Setup<H>) -> [Micros; 2] {
        [0, 1].map(|server| setup.servers[server].shows(self.now).as_nanos() / 1_000)
    }

    pub(super) fn scene<'a>(&'a self, setup: &'a Setup<H>) -> Scene<'a> {
        Scene { servers: &self.servers, times: self.times(setup), key: &setup.key }
    }

    /// When a client asks others who the primary is.
    pub(super) fn check_due(&self, me: usize) -> Time {
        let client = &self.clients[me];
        if client.counted == Time::ZERO || !H::IS_FAILOVER {
            return Time::NEVER;
        }
        client.check.due(client.counted, !client.sessions.is_empty())
    }

    /// The next moment after this one at which anything is due, if anything still is.
    pub(super) fn next_moment(&self, setup: &Setup<H>) -> Option<Real> {
        let mut moments = Vec::new();
        for (me, client) in self.clients.iter().enumerate() {
            for session in &client.sessions {
                moments.extend(session.errands.iter().map(|errand| errand.until));
                moments.extend(session.acquisition.next_tick());
            }
            moments.extend([self.check_due(me)].into_iter().filter(|due| *due < Time::NEVER));
        }
        let due = moments.into_iter().map(|moment| setup.clients.when(moment));
        let expiries = self.servers.iter().enumerate().filter_map(|(server, there)| {
            let (_, until) = there.key?;
            Some(setup.servers[server].when(Time::from_nanos(until * 1_000)))
        });
        let step = (self.now / nanos(setup.grid) + 1) * nanos(setup.grid);
        let step = [step].into_iter().filter(|_| !self.is_closing(setup));
        due.chain(expiries).chain(step).filter(|&moment| moment > self.now).min()
    }

    /// Whether the world is closing: no fault happens any more, no client begins, and each lets go.
    pub(super) fn is_closing(&self, setup: &Setup<H>) -> bool {
        self.now >= nanos(setup.closes)
    }

    /// How many clients believe without an excuse.
    pub(super) fn believers(&self, setup: &Setup<H>) -> usize {
        let now = setup.clients.shows(self.now);
        let believes = |session: &&Session| {
            now < session.acquisition.valid_until() && now < session.firm_until.max(session.fresh_until)
        };
        self.clients.iter().flat_map(|client| &client.sessions).filter(believes).count()
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = (Owner, &Session)> {
        (0_u8..)
            .zip(&self.clients)
            .flat_map(|(at, client)| client.sessions.iter().map(move |session| ((at, session.number), session)))
    }

    fn holders(&self) -> impl Iterator<Item = (Owner, &Session)> {
        self.sessions().filter(|(_, session)| session.acquisition.is_held())
    }

    /// Whether a server has the key of a lease with another fence.
    pub(super) fn shows_another_fence(&self, setup: &Setup<H>) -> bool {
        let now = setup.clients.shows(self.now);
        self.holders().filter(|(_, session)| now < session.acquisition.valid_until()).any(|(owner, session)| {
            let shows = |server: &Server| server.key.is_some_and(|(there, _)| there == owner);
            self.servers.iter().any(|server| shows(server) && server.shown != session.acquisition.fence())
        })
    }

    /// Whether a server has a key that is not needed any more, though it could have been taken off.
    pub(super) fn leaves_a_key(&self) -> bool {
        self.servers.iter().enumerate().any(|(at, server)| {
            let Some(((client, number), _)) = server.key else { return false };
            let mut sessions = self.clients[usize::from(client)].sessions.iter();
            self.handover.serves(at) && !server.is_belated && sessions.all(|session| session.number != number)
        })
    }

    pub(super) fn lives_on(&self) -> bool {
        self.holders().any(|(_, session)| session.on == Some((0, 1)))
    }

    pub(super) fn is_in_steps(&self) -> bool {
        let sessions = self.clients.iter().flat_map(|client| &client.sessions);
        sessions
            .flat_map(|session| &session.errands)
            .any(|errand| matches!(errand.part, Part::Single(Single::Confirm(_))))
    }
}
