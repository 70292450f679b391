//! The parts of one moment of a run. Two moments that are equal here have the same future.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Acquisition, Ask, Said},
    fence::Fence,
    store::Store,
    tally::Nodes,
    time::{Micros, Time},
    undo::Undoing,
};

/// Real time in nanoseconds, which no part of the model can read.
pub(super) type Real = u64;

/// The number of an acquisition of one client, and so of its token.
pub(super) type Number = u8;

/// The owner of a token: a client, and the number of its acquisition.
pub(super) type Owner = (u8, Number);

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// One machine's clock: what it showed at first, and how many thousandths of a second it counts in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Clock {
    pub(super) offset: u64,
    pub(super) rate: u32,
}

impl Clock {
    pub(super) fn shows(self, real: Real) -> Time {
        let ran = u128::from(real) * u128::from(self.rate) / 1_000;
        Time::from_nanos(self.offset.saturating_add(u64::try_from(ran).unwrap_or(u64::MAX)))
    }

    /// The first real moment at which it shows this, or more.
    pub(super) fn when(self, shows: Time) -> Real {
        let ran = u128::from(shows.as_nanos().saturating_sub(self.offset));
        Real::try_from((ran * 1_000).div_ceil(u128::from(self.rate))).unwrap_or(Real::MAX)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Real,
    pub(super) clients: Vec<Client>,
    pub(super) servers: Vec<Server>,
    /// The messages on their way, in an order that does not depend on how it came about.
    pub(super) net: Vec<Message>,
    /// The faults that may still happen.
    pub(super) left: Faults,
    /// The largest fence of any lease so far.
    pub(super) largest: Option<Fence>,
    /// The lease that was handed over last. Its ticket may be used by any client, at any time.
    pub(super) ticket: Option<Owner>,
    /// How often progress was reported.
    pub(super) reported: u8,
    /// Whether a lease was lost because its work had stalled.
    pub(super) has_stalled: bool,
    /// Rules that were broken on the way.
    pub(super) broken: Broken,
}

/// The most faults of each kind in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// Requests and replies that are late, by any time, or lost: then they are late for ever.
    pub(super) late: u8,
    /// Requests that arrive twice, the second time at any time.
    pub(super) doubled: u8,
    /// Clients that die.
    pub(super) deaths: u8,
    /// Clients that stand still, for any time.
    pub(super) pauses: u8,
    /// Clients that are cut off from a majority of the nodes for good: nothing arrives any more.
    pub(super) cuts: u8,
    /// Nodes that are restarted, and have forgotten everything.
    pub(super) amnesias: u8,
    /// Nodes that are restarted with everything they had.
    pub(super) restarts: u8,
    /// Steps of nodes' clocks.
    pub(super) steps: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Broken {
    /// A lease's fence is not larger than that of every lease before it.
    pub(super) fence_fell: bool,
    /// A lease's fence is not larger than that of a lease that was won before its attempt began.
    pub(super) fence_is_stale: bool,
    /// A confirmed release has left the key on a majority.
    pub(super) release_did_not: bool,
    /// An attempt has failed although nothing stood in its way.
    pub(super) denied_for_nothing: bool,
    /// A lease was lost without a fault.
    pub(super) lost_for_nothing: bool,
    /// A lease that had expired was believed in again.
    pub(super) is_revived: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) store: Store,
    /// By how many nanoseconds its clock was stepped.
    pub(super) stepped: i64,
    /// When it was started, by its own clock, if that was during the run.
    pub(super) started: Option<Micros>,
    /// The owner of the key, and when it expires by the node's own clock.
    pub(super) key: Option<(Owner, Micros)>,
    /// The fence in its value, as a look shows it.
    pub(super) shown: Option<Fence>,
    /// The key came after its client had stopped waiting for the request that put it there, or after the request that
    /// would have taken it away.
    pub(super) is_belated: bool,
    /// The tokens that were released here.
    pub(super) released: Vec<Owner>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) sessions: Vec<Session>,
    /// How many attempts it has begun.
    pub(super) begun: Number,
    /// The first attempt of its present process.
    pub(super) born: Number,
    pub(super) is_paused: bool,
    /// The nodes that it is cut off from.
    pub(super) cut: Nodes,
    /// Until when each node is known to give no vote.
    pub(super) recovers_until: Vec<Time>,
}

/// One token, from its drawing until no answer about it is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) number: Number,
    pub(super) acquisition: Acquisition,
    /// The requests without an answer.
    pub(super) requests: Vec<Request>,
    /// How many requests of each kind went to each node.
    pub(super) sendings: Vec<[u8; KINDS]>,
    /// The lease that it adopts.
    pub(super) heir_of: Option<Owner>,
    /// The largest fence of any lease when it began.
    pub(super) after: Option<Fence>,
    /// Whether nothing has stood in its way so far.
    pub(super) is_clear: bool,
    /// When its work made progress last: it was acquired then, or progress was reported.
    pub(super) progressed: Time,
    /// Whether that was after it had stalled.
    pub(super) has_resumed: bool,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) node: usize,
    pub(super) about: About,
    pub(super) nth: u8,
    pub(super) at: Time,
    /// When the wait for the answer ends.
    pub(super) until: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum About {
    Token(Ask),
    Undo(Undoing),
}

pub(super) const KINDS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Acquire,
    Raise,
    Renew,
    Repair,
    Release,
    Undo,
}

impl About {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Token(Ask::Acquire) => Kind::Acquire,
            Self::Token(Ask::Raise) => Kind::Raise,
            Self::Token(Ask::Renew) => Kind::Renew,
            Self::Token(Ask::Repair) => Kind::Repair,
            Self::Token(Ask::Release { .. }) => Kind::Release,
            Self::Undo(_) => Kind::Undo,
        }
    }
}

/// A message on its way between a client and a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) owner: Owner,
    pub(super) node: usize,
    pub(super) kind: Kind,
    pub(super) nth: u8,
    pub(super) content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Content {
    /// A request. A raise and a repair have a fence, and an adoption has the token that it follows. A renewal that only
    /// checks has what was left of its lease. It arrives before any time passes unless it is late.
    Request { fence: Option<Fence>, heir_of: Option<Owner>, checks: Option<Duration>, is_late: bool },
    /// A reply that is late.
    Reply(Said),
}

impl Message {
    /// Whether this is the request, or the answer to it.
    pub(super) fn answers(&self, request: &Request) -> bool {
        (request.node, request.about.kind(), request.nth) == (self.node, self.kind, self.nth)
    }

    pub(super) fn is_urgent(&self) -> bool {
        matches!(self.content, Content::Request { is_late: false, .. })
    }

    pub(super) fn rank(&self) -> (Owner, usize, Kind, u8, u8) {
        let content = match &self.content {
            Content::Request { is_late: false, .. } => 0,
            Content::Request { is_late: true, .. } => 1,
            Content::Reply(_) => 2,
        };
        (self.owner, self.node, self.kind, self.nth, content)
    }
}

impl State {
    /// Normalises the state, so that two states that differ only in the order of what came about are equal.
    pub(super) fn tidy(&mut self) {
        self.net.sort_by_key(Message::rank);
        for client in &mut self.clients {
            client.sessions.sort_by_key(|session| session.number);
            for session in &mut client.sessions {
                session.requests.sort_by_key(|request| (request.node, request.about.kind(), request.nth));
            }
        }
        for server in &mut self.servers {
            server.released.sort_unstable();
        }
    }
}

impl Session {
    /// Whether the client holds the lock with it, or is about to hold it or to let go.
    pub(super) fn is_on(&self) -> bool {
        !self.acquisition.is_over()
    }
}
