//! Clients of two servers, one of which has the slot of their lock: the parts that the searches of a
//! [failover](super::failover) and of a [slot that is moved](super::migrating) share. The shipped code decides.
//! [`Topology`] says whose answers count, [`Trip`] where a request goes, and [`Stepwise`] which steps an acquire has
//! while keys are in two places. [`CrossCheck`] says when others are asked, `Acquisition` what follows, and [`Store`]
//! what each server does.
//!
//! # What a run is
//!
//! 1. A message arrives at the moment at which it was sent, those of one client in their order. Or it is *late*, and
//!    then it arrives at any later moment, or never. If the connection of a late message is reset, its outcome is known
//!    to be unknown at once. So is the outcome of one to a server that is left. Lateness is a fault, and faults are
//!    counted.
//! 2. Events at the servers happen at any moment, between any two messages.
//! 3. Time passes to the next moment at which something is due, and to every multiple of the grid.
//! 4. At the close no fault happens any more and every client lets go, so that every run ends.
//!
//! The pauses between two sendings of one request are left out, and so is the spread of renewals after a change.
//!
//! # Which promise is checked
//!
//! A lease rests on what a server has written. A failover may *lose* a write that was not replicated, and an operator
//! who gives up the move of a slot loses the keys that were moved. Then the lock may have a second holder, and no rule
//! prevents that. So each confirmation that a client counts is *firm* or *lost*. One holder at a time means: of the
//! clients that believe, at most one has a belief that is not lost. A confirmation of a replaced primary that a client
//! counts although it has heard of the new one is no excuse: it counts as firm (rule 11).
//!
//! [`Topology`]: leasehold_protocol::topology::Topology
//! [`Trip`]: leasehold_protocol::trip::Trip
//! [`Stepwise`]: leasehold_protocol::stepwise::Stepwise
//! [`CrossCheck`]: leasehold_protocol::cross_check::CrossCheck
//! [`Store`]: leasehold_protocol::store::Store

use std::{fmt, hash::Hash, time::Duration};

use leasehold_protocol::{
    acquisition::Acquisition,
    failure::Redirection,
    key::Key,
    message::Claim,
    slot,
    stepwise::Single,
    time::Micros,
    topology::{Place, View},
};

pub(super) use self::{
    action::Action,
    server::Server,
    state::{Effect, Ground, Part, State},
};
use self::{
    atlas::Atlas,
    state::{Broken, Client},
};
use super::{
    TTL,
    frame::{self, Model},
    search::Rule,
    state::{Clock, Kind, Owner, Real},
    tokens::Tokens,
};
use crate::seeded::SeededBug;

mod action;
mod atlas;
mod client;
mod errand;
mod path;
mod run;
mod server;
mod state;

type Run<'a, H> = frame::Run<'a, Setup<H>>;

const CLIENTS: usize = 2;

/// The most attempts of a client.
const ATTEMPTS: u64 = 4;

/// How the slot changes hands: what differs between the searches.
pub(super) trait Handover: Copy + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// One event at the servers.
    type Event: Copy + fmt::Debug + fmt::Display + PartialEq + Send + Sync + 'static;

    /// Whether a replica may take over. Otherwise the slot is moved, with its keys.
    const IS_FAILOVER: bool;

    /// The views that others may have of the slot, the oldest first.
    fn views(slot: u16) -> Vec<View>;

    /// Collects the events that may happen at the servers now.
    fn possible(&self, at: &Scene<'_>, events: &mut Vec<Self::Event>);

    /// Performs an event.
    fn take(&mut self, event: Self::Event, at: Scene<'_>, servers: &mut [Server; 2]) -> Effect;

    /// Where a server redirects a request, if it does not execute it.
    fn elsewhere(&self, at: &Scene<'_>, request: &Asked<'_>) -> Option<Redirection>;

    /// The view that others have now.
    fn view(&self) -> usize;

    /// The outcome of a server's writes from now on.
    fn ground(&self, server: usize) -> Ground;

    /// Called once the first server is not asked any more, so that its content does not matter.
    fn settle(&mut self, _servers: &mut [Server; 2]) {}

    /// Whether the floors of fences may be forgotten.
    fn has_forgotten(&self) -> bool {
        false
    }

    /// Whether a server has the slot, so that its keys keep others out.
    fn serves(&self, server: usize) -> bool;

    /// Whether something good must be possible with it, where both clients make attempts, or one.
    fn is_expected(&self, good: &str, are_both: bool) -> bool;
}

/// The servers' contents, and the times on their clocks.
pub(super) struct Scene<'a> {
    pub(super) servers: &'a [Server; 2],
    /// The times on their clocks.
    pub(super) times: [Micros; 2],
    pub(super) key: &'a Key,
}

/// A request at a server.
pub(super) struct Asked<'a> {
    pub(super) server: usize,
    /// Whether it says that the slot's owner has redirected it.
    pub(super) is_asking: bool,
    pub(super) kind: Kind,
    pub(super) part: &'a Part,
}

impl Asked<'_> {
    /// Whether it needs the lock's key, and whether that of its floor.
    pub(super) fn needs(&self) -> (bool, bool) {
        match (self.part, self.kind) {
            (Part::Single(Single::Issue(_)), _) => (false, true),
            (Part::Single(_), _) | (Part::Whole, Kind::Renew) => (true, false),
            (Part::Whole, _) => (true, true),
        }
    }

    /// Whether it needs the key of a queue too, to which it passes the lock on.
    pub(super) fn needs_a_queue(&self) -> bool {
        *self.part == Part::Whole && matches!(self.kind, Kind::Release | Kind::Undo)
    }
}

// The names of the rules and of the good things that tests refer to.
pub(super) const ONE_HOLDER: &str = "one holder at a time, but for one who is not told yet that a write was lost";
pub(super) const AUTHORITY: &str = "who has heard of the new primary counts no answer of the old one";
pub(super) const BRIEFLY: &str = "a replaced primary is believed for a second at most, once others know";
pub(super) const NEWER_IS_LARGER: &str = "who begins later has a larger fence";
pub(super) const FENCES_GROW: &str = "fences grow from lease to lease";
pub(super) const SHOWN: &str = "who looks sees the lease's fence";
pub(super) const BOTH_HAVE_IT: &str = "both have had it";
pub(super) const BOTH_BELIEVE: &str = "both believe, one by a lost write";
pub(super) const LIVES_ON: &str = "a lease lives on at the other server";
pub(super) const IS_TOLD: &str = "a lease is lost by a failover, and told so";
pub(super) const IN_STEPS: &str = "a lock is acquired in steps";

/// A world to search.
#[derive(Debug, Clone)]
pub(super) struct Setup<H> {
    pub(super) name: &'static str,
    /// The slot's state at the beginning.
    pub(super) handover: H,
    /// The clients' clocks, which agree.
    pub(super) clients: Clock,
    pub(super) servers: [Clock; 2],
    /// How many attempts each client makes at most.
    pub(super) attempts: [u8; CLIENTS],
    pub(super) grid: Duration,
    /// The most requests and replies that are late, by any time, and the most views.
    pub(super) late: (u8, u8),
    /// When the world closes: from then on every client lets go, and what is left runs out.
    pub(super) closes: Duration,
    /// The bug of the clients, if any.
    pub(super) bug: Option<SeededBug>,
    slot: u16,
    key: Key,
    tokens: Tokens,
    atlas: Atlas,
}

impl<H: Handover> Setup<H> {
    pub(super) fn new(name: &'static str, handover: H, servers: [Clock; 2]) -> Self {
        let key = Key::new("", "job").unwrap();
        let slot = slot::of(key.lock());
        Self {
            name,
            handover,
            clients: Clock { offset: 5_000_000_000, rate: 1_000 },
            servers,
            attempts: [1; CLIENTS],
            grid: TTL / 2,
            late: (0, 0),
            closes: TTL * 5 / 4,
            bug: None,
            slot,
            key,
            tokens: Tokens::new(CLIENTS as u64, ATTEMPTS),
            atlas: Atlas::of(H::views(slot)),
        }
    }

    pub(super) fn with(self, bug: SeededBug) -> Self {
        Self { name: bug.name(), bug: Some(bug), ..self }
    }

    pub(super) fn attempts(self, first: u8, second: u8) -> Self {
        Self { attempts: [first, second], ..self }
    }

    /// Lets this many requests and replies be late, and this many views.
    pub(super) fn late(self, messages: u8, views: u8) -> Self {
        Self { late: (messages, views), ..self }
    }

    /// Closes the world after this many milliseconds.
    pub(super) fn for_millis(self, millis: u64) -> Self {
        Self { closes: Duration::from_millis(millis), ..self }
    }

    fn claim(&self, owner: Owner) -> Claim {
        self.tokens.claim(&self.key, owner)
    }
}

/// The place of a server.
pub(super) fn place_of(server: usize) -> Place {
    Place { host: "h".into(), port: if server == 0 { 1 } else { 2 } }
}

/// The server at a place.
pub(super) fn server_at(place: &Place) -> usize {
    usize::from(place.port != 1)
}

impl<H: Handover> Model for Setup<H> {
    type State = State<H>;
    type Action = Action<H::Event>;

    fn name(&self) -> &'static str {
        self.name
    }

    fn bounds(&self) -> String {
        let [first, second] = self.attempts;
        format!("{first} + {second} | {} ms", self.closes.as_millis())
    }

    fn first(&self) -> State<H> {
        State {
            now: 0,
            handover: self.handover,
            servers: [Server::default(), Server::default()],
            clients: vec![Client::default(); CLIENTS],
            net: Vec::new(),
            views: Vec::new(),
            late: self.late,
            largest: [None; 2],
            broken: Broken::default(),
        }
    }

    fn possible(&self, state: &State<H>, actions: &mut Vec<Self::Action>) {
        action::possible(self, state, actions);
    }

    fn take(run: &mut Run<'_, H>, action: Self::Action) -> Option<()> {
        action.take(run)
    }

    fn rules() -> Vec<Rule<Self>> {
        let (always, sometimes) = (Rule::<Self>::always, Rule::<Self>::sometimes);
        vec![
            always(ONE_HOLDER, |setup, state| state.believers(setup) <= 1),
            always(AUTHORITY, |_, state| !state.broken.counts_the_replaced),
            always(BRIEFLY, |_, state| !state.broken.believes_too_long),
            always("who is told stops", |_, state| !state.broken.denied_and_held),
            always("what a failover loses is told as that", |_, state| !state.broken.wrong_reason),
            always(FENCES_GROW, |_, state| !state.broken.fence_fell),
            always(NEWER_IS_LARGER, |_, state| !state.broken.fence_is_stale),
            always(SHOWN, |setup, state| !state.shows_another_fence(setup)),
            always("what is confirmed as released is free", |_, state| !state.broken.release_did_not),
            always("what nobody uses is taken off", |_, state| H::IS_FAILOVER || !state.leaves_a_key()),
            sometimes(BOTH_HAVE_IT, |_, state| state.clients.iter().all(|client| client.has_had_it)),
            sometimes(BOTH_BELIEVE, |setup, state| setup.believers(state).len() == 2 && state.believers(setup) == 1),
            sometimes(LIVES_ON, |_, state| state.lives_on()),
            sometimes(IS_TOLD, |_, state| state.clients.iter().any(|client| client.is_told)),
            sometimes(IN_STEPS, |_, state| state.is_in_steps()),
        ]
    }

    fn is_expected(&self, good: &str) -> bool {
        self.handover.is_expected(good, self.attempts[1] > 0)
    }

    fn is_over(&self, state: &State<H>) -> bool {
        state.is_closing(self)
            && state.servers.iter().all(|server| server.key.is_none())
            && state.clients.iter().all(|client| client.sessions.is_empty())
    }

    fn now(state: &State<H>) -> Real {
        state.now
    }

    fn clock(&self) -> Clock {
        self.clients
    }

    fn leases(state: &State<H>) -> impl Iterator<Item = (Owner, &Acquisition)> {
        state.sessions().map(|(owner, session)| (owner, &session.acquisition))
    }

    fn keys(&self, state: &State<H>) -> Vec<Option<Owner>> {
        state.servers.iter().map(|server| Some(server.key?.0)).collect()
    }

    fn tell(state: &State<H>, action: &Self::Action) -> String {
        state.tell(action)
    }
}
