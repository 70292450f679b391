//! A failover, searched: a primary and its replica, which lags and takes over, while the old primary keeps answering.
//! Everything else is in [`routed`](super::routed).
//!
//! # What happens to the servers
//!
//! 1. *Replicate*: the replica gets all the primary's writes. It may do so after each write, or never.
//! 2. *Promote*: the replica takes over, in a larger epoch. Every write that it has not received by then is lost.
//! 3. *The old one answers*, as if nothing had happened, until it *hears* that it is a replica. Then it redirects every
//!    client to the new one.
//! 4. *Word gets round*: from then on others name the new primary to clients that ask them. Before that they name the
//!    old one. A client asks them when [`CrossCheck`] says so, and at any other moment because of a doubt. Their
//!    answers may be late, and so arrive after newer ones.
//!
//! # Which promise is checked
//!
//! Rule 11, as it stands. It does not prevent a lock from being granted twice when a failover loses a write. So two
//! clients may believe at one moment: one because of a lost write, until it is notified, and another because of the new
//! primary.
//!
//! - At most one client has a belief that rests on a write that was not lost. A lost write that a client counts after
//!   it has heard of the new primary is treated as one that was not lost.
//! - After a client has heard of the new primary, it counts no answer of the old one, whatever views it hears later. It
//!   asks about its leases at the new one. A holder whose lease is reported lost stops, and gets the reason.
//! - Once others know, answers of the old primary count for at most [`AFTER`] from the first one.
//! - A client that begins after a lease was won, and is not deceived, has a larger fence, even than a lease of a lost
//!   write. For that, the new primary's clock must not be behind.
//!
//! [`CrossCheck`]: leasehold_protocol::cross_check::CrossCheck
//! [`AFTER`]: leasehold_protocol::cross_check::AFTER

use std::fmt;

use leasehold_protocol::{
    failure::Redirection,
    slot::{self, SLOTS},
    topology::{Primary, Replica, View},
};

use super::routed::{Asked, BOTH_BELIEVE, BOTH_HAVE_IT, Effect, Ground, Handover, IN_STEPS, Scene, Server, place_of};

mod tests;

/// The progress of a failover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Failover {
    is_promoted: bool,
    /// Whether others name the new primary.
    is_out: bool,
    /// Whether the old one knows that it is a replica.
    has_stepped_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Replicate,
    Promote,
    GetRound,
    StepDown,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replicate => "the replica gets all",
            Self::Promote => "the replica takes over",
            Self::GetRound => "others hear that it has taken over",
            Self::StepDown => "the old primary hears that it is a replica",
        })
    }
}

impl Handover for Failover {
    type Event = Event;

    const IS_FAILOVER: bool = true;

    fn views(_slot: u16) -> Vec<View> {
        let id = |server: usize| server.to_string().into_boxed_str();
        let view = |epoch: u64, server: usize, other: usize| {
            let replica = Replica { id: id(other), place: place_of(other), is_failing: false };
            let (place, slots) = (Some(place_of(server)), vec![0..=SLOTS - 1]);
            let primary = Primary { id: id(server), place, epoch, slots, replicas: vec![replica] };
            View { by: None, primaries: vec![primary], known: [id(0), id(1)].into(), begins_anew: None }
        };
        vec![view(1, 0, 1), view(2, 1, 0)]
    }

    fn possible(&self, at: &Scene<'_>, events: &mut Vec<Event>) {
        if self.is_promoted {
            events.extend((!self.is_out).then_some(Event::GetRound));
            events.extend((!self.has_stepped_down).then_some(Event::StepDown));
        } else {
            events.extend((at.servers[0] != at.servers[1]).then_some(Event::Replicate));
            events.push(Event::Promote);
        }
    }

    fn take(&mut self, event: Event, _: Scene<'_>, servers: &mut [Server; 2]) -> Effect {
        match event {
            Event::Replicate => {
                servers[1] = servers[0].clone();
                Effect::Kept
            }
            Event::Promote => {
                self.is_promoted = true;
                Effect::Lost
            }
            Event::GetRound => {
                self.is_out = true;
                Effect::Nothing
            }
            Event::StepDown => {
                self.has_stepped_down = true;
                // It copies the new primary, and the copy is not read.
                servers[0] = Server::default();
                Effect::Nothing
            }
        }
    }

    fn elsewhere(&self, at: &Scene<'_>, request: &Asked<'_>) -> Option<Redirection> {
        let has_it = if request.server == 0 { !self.has_stepped_down } else { self.is_promoted };
        let slot = slot::of(at.key.lock());
        (!has_it).then(|| Redirection::Moved { slot, to: Some(place_of(1 - request.server)) })
    }

    fn view(&self) -> usize {
        usize::from(self.is_out)
    }

    fn ground(&self, server: usize) -> Ground {
        match (self.is_promoted, server) {
            (false, _) => Ground::Fresh,
            (true, 0) => Ground::Lost,
            (true, _) => Ground::Kept,
        }
    }

    fn settle(&mut self, servers: &mut [Server; 2]) {
        (self.is_out, self.has_stepped_down) = (true, true);
        servers[0] = Server::default();
    }

    fn serves(&self, server: usize) -> bool {
        (server == 1) == self.is_promoted
    }

    fn is_expected(&self, good: &str, are_both: bool) -> bool {
        match good {
            IN_STEPS => false,
            BOTH_BELIEVE | BOTH_HAVE_IT => are_both,
            _ => true,
        }
    }
}
