//! The parts of one moment of a run. Two moments that are equal here have the same future.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::{Acquisition, Ask},
    failure::Failure,
    fence::Fence,
    holder::Holder,
    message::{Downgraded, Owned},
    store::Store,
    time::{Micros, Time},
    undo::Undoing,
};

use super::rules::{Broken, Seen};
use crate::model::state::{Faults, Number, Owner, Real};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: Real,
    pub(super) clients: Vec<Client>,
    pub(super) server: Server,
    /// The messages on their way, in an order that does not depend on how it came about.
    pub(super) net: Vec<Message>,
    /// The faults that may still happen.
    pub(super) left: Faults,
    /// How many waiters may still give up.
    pub(super) cancels: u8,
    /// The largest fence of any lease so far, and whether that is a share.
    pub(super) largest: Option<(Fence, bool)>,
    /// Rules that were broken on the way.
    pub(super) broken: Broken,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) store: Store,
    /// By how many nanoseconds its clock was stepped.
    pub(super) stepped: i64,
    /// When it was started, by its own clock, if that was during the run.
    pub(super) started: Option<Micros>,
    /// What it has now.
    pub(super) seen: Seen,
    /// The largest fence that it has issued, including those that it has forgotten.
    pub(super) issued: Option<Fence>,
    /// The tokens that were given back here.
    pub(super) released: Vec<Owner>,
    /// The tokens that came after their client had stopped waiting for the request, or after they were given back.
    pub(super) belated: Vec<Owner>,
    /// What a bug adds to it.
    pub(super) bent: Bent,
}

/// What a server with a bug has, and one that follows the rules does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Bent {
    /// Places in a shared lock, and until when.
    pub(super) places: Vec<(Owner, Micros)>,
    /// The places of the newest phase.
    pub(super) earlier: Vec<(Owner, Micros)>,
    /// When the lock's key expires.
    pub(super) ends: Option<Micros>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) sessions: Vec<Session>,
    /// How many tokens it has drawn.
    pub(super) drawn: Number,
    /// How many of them began an attempt.
    pub(super) begun: u8,
    pub(super) is_dead: bool,
    pub(super) is_paused: bool,
}

/// One token, from its drawing until no answer about it is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) number: Number,
    /// The limit of its mode: zero to have the lock alone.
    pub(super) limit: u32,
    pub(super) stage: Stage,
    /// The place in the line, if it has had one.
    pub(super) ticket: Option<u64>,
    /// The token that had the lock alone before.
    pub(super) from: Option<Number>,
    /// The requests without an answer.
    pub(super) requests: Vec<Request>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It polls at this moment, or at the one that a notification has named.
    Waits {
        next: Time,
        due: Time,
    },
    /// It has given up, and leaves the line once its last poll is answered.
    Leaves,
    /// It has the lock, or is about to let go.
    Has(Box<Acquisition>),
    /// It takes the place of the token that had the lock alone, and may believe until then in any case.
    Follows {
        sent: Time,
        until: Time,
    },
    Over,
}

/// A request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) about: About,
    pub(super) nth: u8,
    pub(super) at: Time,
    /// When the wait for the answer ends.
    pub(super) until: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum About {
    Poll,
    Downgrade,
    Lease(Ask),
    /// The undo of a waiter, which leaves the line, or of a lease.
    Undo(Undoing, Leave),
}

/// How a token is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Leave {
    /// Together with its place in the line.
    Line,
    Lock,
}

/// A message on its way between a client and the server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) owner: Owner,
    pub(super) nth: u8,
    pub(super) is_late: bool,
    pub(super) content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Content {
    /// It arrives before anything else happens, unless it is late.
    Request(Asked),
    /// A reply that is late.
    Reply(Said),
    /// The server calls a waiter: it has granted the lock, or tells the waiter to poll after this time. The call
    /// arrives before any time passes, unless it is late.
    Call(Option<Duration>),
}

/// What a server is asked about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Asked {
    Poll {
        limit: u32,
        ticket: Option<u64>,
    },
    Renew {
        limit: u32,
        fence: Option<Fence>,
    },
    Part {
        limit: u32,
    },
    Leave {
        limit: u32,
    },
    /// The token takes the place of this one.
    Downgrade(Number),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Granted(Fence),
    Waits { holder: Holder, recovers_for: Option<Duration>, ticket: Option<u64>, ahead: u32 },
    Downgraded(Downgraded),
    Owned(Owned),
}

pub(super) type Answer = Result<Said, Failure>;

impl Message {
    /// Whether nothing else happens before it arrives.
    pub(super) fn is_fresh(&self) -> bool {
        !self.is_late && matches!(self.content, Content::Request(_))
    }

    fn rank(&self) -> (Owner, u8, bool, u8) {
        let content = match self.content {
            Content::Request(_) => 0,
            Content::Reply(_) => 1,
            Content::Call(_) => 2,
        };
        (self.owner, self.nth, self.is_late, content)
    }
}

impl Session {
    /// Whether its token is used for anything, or its waiter has not left yet.
    pub(super) fn is_on(&self) -> bool {
        match &self.stage {
            Stage::Waits { .. } | Stage::Leaves | Stage::Follows { .. } => true,
            Stage::Has(acquisition) => !acquisition.is_over(),
            Stage::Over => false,
        }
    }

    /// Whether its token neither waits nor has the lock.
    pub(super) fn is_gone(&self) -> bool {
        match &self.stage {
            Stage::Waits { .. } | Stage::Follows { .. } => false,
            Stage::Has(acquisition) => !acquisition.is_held(),
            Stage::Leaves | Stage::Over => true,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.limit > 0
    }

    pub(super) fn acquisition(&self) -> Option<&Acquisition> {
        if let Stage::Has(acquisition) = &self.stage { Some(acquisition) } else { None }
    }

    /// A lease that is held.
    pub(super) fn lease(&self) -> Option<&Acquisition> {
        self.acquisition().filter(|acquisition| acquisition.is_held())
    }

    /// Until when its client may believe that it has the lock; zero if it does not have it.
    pub(super) fn believes_until(&self) -> Time {
        match &self.stage {
            Stage::Has(acquisition) => acquisition.valid_until(),
            Stage::Follows { until, .. } => *until,
            Stage::Waits { .. } | Stage::Leaves | Stage::Over => Time::ZERO,
        }
    }

    pub(super) fn is_polling(&self) -> bool {
        self.requests.iter().any(|request| request.about == About::Poll)
    }

    /// When its client checks what it has.
    pub(super) fn looks_at(&self) -> Option<Time> {
        match &self.stage {
            Stage::Follows { until, .. } => Some(*until),
            _ => self.lease()?.next_tick(),
        }
    }

    /// When a waiter polls next.
    pub(super) fn polls_at(&self) -> Option<Time> {
        match self.stage {
            Stage::Waits { next, due } if !self.is_polling() => Some(next.min(due)),
            _ => None,
        }
    }
}

impl State {
    /// Normalises the state, so that two states that differ only in the order of what came about are equal.
    pub(super) fn tidy(&mut self) {
        // Messages that arrive at once do so in the order in which they were sent.
        self.net.sort_by_key(|message| (!message.is_fresh(), (!message.is_fresh()).then(|| message.rank())));
        for client in &mut self.clients {
            client.sessions.sort_by_key(|session| session.number);
            for session in &mut client.sessions {
                session.requests.sort_by_key(|request| request.nth);
            }
        }
        self.server.released.sort_unstable();
        self.server.belated.sort_unstable();
    }
}
