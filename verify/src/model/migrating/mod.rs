//! A slot that is moved key by key, searched: the lock and the floor of its fences go from one server to another, each
//! at any moment, while clients acquire in steps, renew and release. Everything else is in [`routed`](super::routed).
//!
//! # What happens to the servers
//!
//! 1. *The move begins*. From then on the source redirects requests if it has none of their keys (`ASK`), and refuses
//!    those for which it has only some keys (`TRYAGAIN`). The target does the same for requests that say that they were
//!    redirected.
//! 2. *The lock moves*, *the floor moves*: each once it is at the source. It keeps its remaining time.
//! 3. *The move ends*, once the source has no key. First the target knows that the slot is its own, then the source,
//!    which redirects every request there from then on (`MOVED`).
//! 4. *The move is given up*, a fault: the slot is the source's again, and the keys that were moved to the target are
//!    forgotten. The move is not begun again. (If it were at once, a request that had been redirected before could
//!    leave a key at the target, beside the key of a holder at the source. That key has no fence, gives no client a
//!    lease, and expires within one TTL.)
//!
//! # Which promise is checked
//!
//! - There is never more than one holder. A move that is given up may forget the lock of a lease. Then another client
//!   may have it before the first is notified, as `docs/deployments.md` says; such a lease is not counted. A key that
//!   was forgotten before a lease was granted does not excuse that lease.
//! - Fences grow from lease to lease, though the target's clock is behind; but not after a move that was given up,
//!   because that may forget the floor too.
//! - A confirmed release leaves no key, and neither does an attempt that has failed.
//! - A look at the lock shows the lease's fence.

use std::fmt;

use leasehold_protocol::{
    failure::Redirection,
    slot::{self, SLOTS},
    topology::{Primary, View},
};

use super::routed::{Asked, BOTH_BELIEVE, Effect, Ground, Handover, IS_TOLD, Scene, Server, place_of};

mod tests;

/// The progress of the move, and whether it may be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Move {
    stage: Stage,
    may_end: bool,
    may_be_given_up: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Before,
    Moving,
    /// The target knows that the slot is its own.
    TargetKnows,
    /// The source knows it too.
    Over,
    GivenUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Begin,
    MoveLock,
    MoveFloor,
    TellTarget,
    TellSource,
    GiveUp,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "the move begins",
            Self::MoveLock => "the lock moves",
            Self::MoveFloor => "the floor moves",
            Self::TellTarget => "the target has the slot",
            Self::TellSource => "the source hears that it has not",
            Self::GiveUp => "the move is given up",
        })
    }
}

/// Whether a server has the lock's key, and that of its floor.
fn keys(at: &Scene<'_>, server: usize) -> (bool, bool) {
    let (now, mut store) = (at.times[server], at.servers[server].store.clone());
    (store.has_lock(now, at.key), store.has_floor(now, at.key))
}

impl Handover for Move {
    type Event = Event;

    const IS_FAILOVER: bool = false;

    fn views(slot: u16) -> Vec<View> {
        let primary = |server: usize, epoch: u64, slots| Primary {
            id: server.to_string().into(),
            place: Some(place_of(server)),
            epoch,
            slots,
            replicas: Vec::new(),
        };
        let view = |primaries| View { by: None, primaries, known: ["0".into(), "1".into()].into(), begins_anew: None };
        let rest = [0..=slot - 1, slot + 1..=SLOTS - 1];
        vec![
            view(vec![primary(0, 1, vec![0..=SLOTS - 1]), primary(1, 0, Vec::new())]),
            view(vec![primary(0, 1, rest.into()), primary(1, 2, vec![slot..=slot])]),
        ]
    }

    fn possible(&self, at: &Scene<'_>, events: &mut Vec<Event>) {
        match self.stage {
            Stage::Before => events.push(Event::Begin),
            Stage::Moving => {
                let (has_lock, has_floor) = keys(at, 0);
                events.extend(has_lock.then_some(Event::MoveLock));
                events.extend(has_floor.then_some(Event::MoveFloor));
                let is_empty = !has_lock && !has_floor && keys(at, 1) != (false, false);
                events.extend((is_empty && self.may_end).then_some(Event::TellTarget));
                events.extend(self.may_be_given_up.then_some(Event::GiveUp));
            }
            Stage::TargetKnows => events.push(Event::TellSource),
            Stage::Over | Stage::GivenUp => {}
        }
    }

    fn take(&mut self, event: Event, at: Scene<'_>, servers: &mut [Server; 2]) -> Effect {
        let [source, target] = servers;
        let ([here, there], key) = (at.times, at.key);
        match event {
            Event::Begin => self.stage = Stage::Moving,
            Event::MoveLock => source.move_lock(here, key, target, there),
            Event::MoveFloor => source.store.move_floor(here, key, &mut target.store, there),
            Event::TellTarget => self.stage = Stage::TargetKnows,
            Event::TellSource => self.stage = Stage::Over,
            Event::GiveUp => {
                (self.stage, self.may_be_given_up) = (Stage::GivenUp, false);
                let forgotten = std::mem::take(target).key;
                return forgotten.map_or(Effect::Nothing, |(owner, _)| Effect::LostOf(owner));
            }
        }
        Effect::Nothing
    }

    fn elsewhere(&self, at: &Scene<'_>, request: &Asked<'_>) -> Option<Redirection> {
        let moved = |to| Some(Redirection::Moved { slot: slot::of(at.key.lock()), to: Some(place_of(to)) });
        let is_source = request.server == 0;
        match (is_source, self.stage) {
            (true, Stage::Before | Stage::GivenUp) | (false, Stage::TargetKnows | Stage::Over) => return None,
            (true, Stage::Over) => return moved(1),
            (false, Stage::Moving) if request.is_asking => {}
            (false, _) => return moved(0),
            (true, Stage::Moving | Stage::TargetKnows) => {}
        }
        let ((lock, floor), (needs_lock, needs_floor)) = (keys(at, request.server), request.needs());
        let is_here = [needs_lock && lock, needs_floor && floor];
        // A release also needs the key of its queue, which exists on neither server.
        let needs = usize::from(needs_lock) + usize::from(needs_floor) + usize::from(request.needs_a_queue());
        let has = is_here.into_iter().filter(|is_here| *is_here).count();
        match (is_source, needs, has) {
            (_, needs, has) if needs == has => None,
            (true, _, 0) => Some(Redirection::Moving { to: Some(place_of(1)) }),
            (false, 1, _) => None,
            _ => Some(Redirection::Moving { to: None }),
        }
    }

    fn view(&self) -> usize {
        usize::from(self.stage == Stage::Over)
    }

    fn ground(&self, _: usize) -> Ground {
        Ground::Fresh
    }

    fn has_forgotten(&self) -> bool {
        self.stage == Stage::GivenUp
    }

    fn serves(&self, server: usize) -> bool {
        match self.stage {
            Stage::Before | Stage::GivenUp => server == 0,
            Stage::Moving | Stage::TargetKnows => true,
            Stage::Over => server == 1,
        }
    }

    fn is_expected(&self, good: &str, _are_both: bool) -> bool {
        match good {
            IS_TOLD => false,
            BOTH_BELIEVE => self.may_be_given_up,
            _ => true,
        }
    }
}
