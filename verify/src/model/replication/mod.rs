//! Leases that replicas have to confirm, searched: a primary, one or two replicas that lag, one of which takes over,
//! and clients that believe once enough of them have a grant. The shipped code decides: [`Replication`] says which
//! answers a `WAIT` confirms, `Acquisition` what follows, and [`Store`] what each server does.
//!
//! # How a run goes
//!
//! 1. A client has one connection, or both share one. A message arrives, is answered and is heard at the moment at
//!    which it was sent, but anything else may happen between.
//! 2. A `WAIT` arrives when it is sent. Its server then counts the replicas that have all that was written on its
//!    link before. It answers once they are enough, or later; at the end of the time of the `WAIT` at the latest.
//! 3. A link may break, at any moment, and a new one is there at once. A request without an answer is unknown then,
//!    or is sent again on the new link. An answer may still be heard.
//! 4. A replica gets all the writes of the server that it follows, at any moment, or never. Getting them and
//!    acknowledging them are one step.
//! 5. A replica takes over, at any moment. The old primary dies then, or it keeps answering clients that have not heard
//!    of the takeover. It may come back as a replica. The other replicas follow the new primary at once, or, where they
//!    *linger*, later.
//! 6. Others write on a connection too. Their keys do not matter, but their writes count, and wait for replicas.
//! 7. Time passes to the next moment at which something is due, and to every multiple of the grid.
//! 8. At the close no fault happens any more and every client lets go, so that every run ends.
//!
//! # The promise that is checked
//!
//! Rule 12: with enough replicas there is one holder at a time, over a failover too, and fences grow without regard
//! to the servers' clocks. One of two is enough if the foremost takes over, and the old primary has none on its side.
//! All of them are enough whichever takes over.

use std::time::Duration;

use leasehold_protocol::{acquisition::Acquisition, key::Key, message::Claim, replication::Replication, store::Store};

use self::{
    action::Action,
    state::{Broken, Client, Connection, Driver, Server, State},
};
use super::{
    TTL,
    frame::{self, Model},
    search::Rule,
    state::{Clock, Owner, Real},
    tokens::Tokens,
};
use crate::seeded::SeededBug;

mod action;
mod client;
mod path;
mod run;
mod state;
mod tests;

type Run<'a> = frame::Run<'a, Setup>;

const CLIENTS: usize = 2;

/// The most attempts of a client.
const ATTEMPTS: u64 = 4;

// The names of the rules and of the good things that tests refer to.
const ONE_HOLDER: &str = "one holder at a time";
const FENCES_GROW: &str = "fences grow from lease to lease";
const LIVES_ON: &str = "a lease lives on at a replica that has taken over";

/// Which replica may take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heir {
    /// One that has as much as any other.
    Foremost,
    Any,
}

/// How long the old primary, and those that follow it, continue after a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Old {
    Dies,
    GoesOn,
    /// It continues, and the other replica may follow it for a while.
    Lingers,
}

/// A world to search.
#[derive(Debug, Clone)]
struct Setup {
    name: &'static str,
    /// How many replicas have to confirm.
    wanted: u8,
    heir: Heir,
    old: Old,
    /// The clients' clocks, which agree.
    clients: Clock,
    /// The servers' clocks, the primary's first.
    servers: Vec<Clock>,
    /// How many attempts each client makes at most.
    attempts: [u8; CLIENTS],
    /// Whether both clients are on one connection.
    is_shared: bool,
    /// The most links that break.
    breaks: u8,
    /// The most writes by others.
    others: u8,
    grid: Duration,
    /// When the world closes: from then on every client lets go, and what is left runs out.
    closes: Duration,
    /// A bug of the driver.
    bug: Option<SeededBug>,
    key: Key,
    tokens: Tokens,
}

/// The primary's clock, which gains on the clients' as much as it may, and so do the clocks of its replicas.
const CLOCK: Clock = Clock { offset: 1_000_000_100_000_000_000, rate: 1_010 };

impl Setup {
    /// A world where `wanted` of `replicas` replicas have to confirm.
    fn new(name: &'static str, wanted: u8, replicas: usize, heir: Heir, old: Old) -> Self {
        let mut servers = vec![CLOCK; replicas + 1];
        if let Some(last) = servers.last_mut() {
            // It is ahead by less than the drift allows for.
            last.offset += 1_000_000;
        }
        Self {
            name,
            wanted,
            heir,
            old,
            clients: Clock { offset: 5_000_000_000, rate: 1_000 },
            servers,
            attempts: [1; CLIENTS],
            is_shared: false,
            breaks: 0,
            others: 0,
            grid: TTL / 2,
            closes: TTL * 5 / 4,
            bug: None,
            key: Key::new("", "job").unwrap(),
            tokens: Tokens::new(CLIENTS as u64, ATTEMPTS),
        }
    }

    fn with(self, bug: SeededBug) -> Self {
        Self { name: bug.name(), bug: Some(bug), ..self }
    }

    fn attempts(self, first: u8, second: u8) -> Self {
        Self { attempts: [first, second], ..self }
    }

    fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    fn breaks(self, breaks: u8) -> Self {
        Self { breaks, ..self }
    }

    fn others(self, others: u8) -> Self {
        Self { others, ..self }
    }

    /// Sets the clocks of the replicas a second behind.
    fn behind(mut self) -> Self {
        for clock in self.servers.iter_mut().skip(1) {
            clock.offset = CLOCK.offset - 1_000_000_000;
        }
        self
    }

    /// Closes the world after this many milliseconds.
    fn for_millis(self, millis: u64) -> Self {
        Self { closes: Duration::from_millis(millis), ..self }
    }

    fn connection_of(&self, me: usize) -> usize {
        if self.is_shared { 0 } else { me }
    }

    fn claim(&self, owner: Owner) -> Claim {
        self.tokens.claim(&self.key, owner)
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn name(&self) -> &'static str {
        self.name
    }

    fn bounds(&self) -> String {
        let [first, second] = self.attempts;
        format!("{first} + {second} | {} ms", self.closes.as_millis())
    }

    fn first(&self) -> State {
        let server = |at: usize| Server {
            store: Store::default(),
            is_up: true,
            follows: (at > 0).then_some(0),
            has: 0,
            written: 0,
        };
        let connection = Connection {
            link: 1,
            leads: 0,
            written: 0,
            replication: Replication::new(self.wanted),
            driver: Driver::Off,
            others: Vec::new(),
        };
        State {
            now: 0,
            primary: 0,
            servers: (0..self.servers.len()).map(server).collect(),
            connections: vec![connection; if self.is_shared { 1 } else { CLIENTS }],
            clients: vec![Client::default(); CLIENTS],
            net: Vec::new(),
            breaks: self.breaks,
            others: self.others,
            largest: None,
            broken: Broken::default(),
        }
    }

    fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        action::possible(self, state, actions);
    }

    fn take(run: &mut Run<'_>, action: Action) -> Option<()> {
        action.take(run)
    }

    fn rules() -> Vec<Rule<Self>> {
        let (always, sometimes) = (Rule::<Self>::always, Rule::<Self>::sometimes);
        vec![
            always(ONE_HOLDER, |setup, state| setup.believers(state).len() <= 1),
            always(FENCES_GROW, |_, state| !state.broken.fence_fell),
            always("nobody is told twice", |_, state| !state.broken.told_twice),
            sometimes("both have had it", |_, state| state.clients.iter().all(|client| client.has_had_it)),
            sometimes(LIVES_ON, |_, state| state.lives_on()),
            sometimes("a grant is taken back, for too few have it", |_, state| {
                state.clients.iter().any(|client| client.had_too_few)
            }),
        ]
    }

    fn is_expected(&self, good: &str) -> bool {
        // A renewal comes after a third of the TTL.
        good != LIVES_ON || self.closes > TTL / 2
    }

    fn is_over(&self, state: &State) -> bool {
        state.is_closing(self)
            && (0..state.servers.len()).all(|server| state.key_at(self, server).is_none())
            && state.connections.iter().all(|connection| connection.driver == Driver::Off)
            && state.clients.iter().all(|client| client.sessions.is_empty())
    }

    fn now(state: &State) -> Real {
        state.now
    }

    fn clock(&self) -> Clock {
        self.clients
    }

    fn leases(state: &State) -> impl Iterator<Item = (Owner, &Acquisition)> {
        (0_u8..).zip(&state.clients).flat_map(|(me, client)| {
            client.sessions.iter().map(move |session| ((me, session.number), &session.acquisition))
        })
    }

    fn keys(&self, state: &State) -> Vec<Option<Owner>> {
        (0..state.servers.len()).map(|server| Some(state.key_at(self, server)?.0)).collect()
    }

    fn tell(state: &State, action: &Action) -> String {
        state.tell(*action)
    }
}
