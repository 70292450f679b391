//! docs later
use std::time::Duration;

use stateright::{Model, Property};
use uuid::Uuid;

use self::{
    action::Action,
    state::{Clock, Faults, Owner, Server, Stage, State},
    world::Run,
};
use crate::{
    fence::Fence,
    key::Key,
    node::memory::store::Store,
    quorum::tally::drift,
    token::Token,
};

mod action;
mod client;
mod path;
mod state;
mod tests;
mod world;
mod worlds;

const CLIENTS: usize = 2;

/// The TTL of every lease.
const TTL: Duration = Duration::from_secs(1);

// The names of properties that tests speak of.
const ONE_HOLDER: &str = "one holder at a time";
const FENCES_GROW: &str = "fences grow from lease to lease";
const LATER_IS_LARGER: &str = "who begins later has a larger fence";
const NOTHING_STAYS: &str = "what nobody uses is taken off";
const OUTLIVES: &str = "a lease outlives its TTL";
const INHERITED: &str = "the second has it though the first died";

/// What the drivers of the machines, or the clients' settings, do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// A lease is believed until its TTL is over, with nothing off for drift.
    NoDrift,
    /// A majority that drew different fences is a win with the largest of them.
    NoSecondPhase,
    /// A lease is counted from the answers.
    DeadlineFromReply,
    /// A grant that comes after the attempt has failed is left where it is.
    LateGrantStays,
    /// A node has its key brought back as soon as it is up.
    HealUnchecked,
    /// A release takes whatever is there.
    ReleaseUnchecked,
}

/// A world to search: who is there, and what may go wrong.
#[derive(Debug, Clone)]
struct Setup {
    name: &'static str,
    /// The clients' clocks, which agree.
    clients: Clock,
    nodes: Vec<Clock>,
    /// How many attempts each client makes at most.
    attempts: [u8; CLIENTS],
    /// Time passes in steps of this, and to every moment between them at which something is due.
    grid: Duration,
    faults: Faults,
    /// By how many microseconds a node's clock is stepped when it is.
    step: i64,
    /// Until when things happen; afterwards everybody lets go and what is left runs out.
    closes: Duration,
    restart_delay: Duration,
    /// When a lease is renewed for the first time, if not after a third of its TTL.
    watches_after: Option<Duration>,
    /// Whether clients propose a fence, as far ahead of the highest clock.
    proposes: Option<Duration>,
    flaw: Flaw,
    key: Key,
    tokens: Vec<Vec<Token>>,
}

impl Setup {
    fn token(&self, (client, number): Owner) -> &Token {
        &self.tokens[usize::from(client)][usize::from(number)]
    }

    fn owner(&self, token: &Token) -> Option<Owner> {
        (0_u8..).zip(&self.tokens).find_map(|(client, tokens)| {
            let number = tokens.iter().position(|other| other == token)?;
            Some((client, u8::try_from(number).ok()?))
        })
    }

    /// The TTL that a client reckons with.
    fn client_ttl(&self) -> Duration {
        match self.flaw {
            Flaw::NoDrift => TTL + drift(TTL) + Duration::from_micros(200),
            _ => TTL,
        }
    }

    /// For how long a lease is believed in after it was asked for.
    fn belief(&self) -> Duration {
        self.client_ttl() - drift(self.client_ttl())
    }

    /// The restart delay that a heal asks for.
    fn heal_delay(&self) -> Duration {
        if self.flaw == Flaw::HealUnchecked { Duration::ZERO } else { self.restart_delay }
    }

    /// Whose token a release deletes.
    fn released_as(&self, owner: Owner, there: Option<Owner>) -> Owner {
        if self.flaw == Flaw::ReleaseUnchecked { there.unwrap_or(owner) } else { owner }
    }

    fn proposal(&self, state: &State) -> Option<Fence> {
        let ahead = u64::try_from(self.proposes?.as_micros()).ok()?;
        let highest = (0..self.nodes.len()).map(|node| state.time_at(self, node)).max()?;
        Fence::try_from(highest + ahead).ok()
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let server = || Server {
            store: Store::default(),
            stepped: 0,
            started: None,
            key: None,
            is_belated: false,
            released: Vec::new(),
        };
        vec![State {
            now: 0,
            clients: vec![state::Client::new(self.nodes.len(), 0); CLIENTS],
            servers: self.nodes.iter().map(|_| server()).collect(),
            net: Vec::new(),
            left: self.faults,
            largest: None,
            broken: state::Broken::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        action::possible(self, state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut run = Run { setup: self, state: state.clone() };
        action.take(&mut run)?;
        run.state.tidy();
        Some(run.state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |setup, state: &State| state.believers(setup) <= 1),
            Property::always(FENCES_GROW, |_, state: &State| !state.broken.fence_fell),
            Property::always(LATER_IS_LARGER, |_, state: &State| !state.broken.fence_is_stale),
            Property::always("what is confirmed as released is free", |_, state: &State| !state.broken.release_did_not),
            Property::always(NOTHING_STAYS, |_, state: &State| !state.leaves_a_key()),
            Property::always("who asks for a free lock gets it", |_, state: &State| !state.broken.denied_for_nothing),
            Property::always("without a fault nothing is lost", |_, state: &State| !state.broken.lost_for_nothing),
            Property::always("what is over stays over", |_, state: &State| !state.broken.is_revived),
            Property::always("in the end nothing is left", |setup, state: &State| !state.is_stuck(setup)),
            Property::sometimes("the second has it before the first one's time is up", State::is_handed_over),
            Property::sometimes(INHERITED, State::is_inherited),
            Property::sometimes(OUTLIVES, |setup, state: &State| state.is_renewed(setup)),
            Property::sometimes("the end", |setup, state: &State| state.is_end(setup)),
        ]
    }
}

impl State {
    fn believers(&self, setup: &Setup) -> usize {
        let now = setup.clients.shows(self.now);
        let sessions = self.clients.iter().flat_map(|client| &client.sessions);
        sessions.filter(|session| matches!(&session.stage, Stage::Held(core) if now < core.believed_until())).count()
    }

    /// A node has a key that nobody cares about any more, and did not come too late to be taken off.
    fn leaves_a_key(&self) -> bool {
        self.servers.iter().any(|server| {
            let Some(((client, number), _)) = server.key else { return false };
            let client = &self.clients[usize::from(client)];
            let is_cared_for = client.sessions.iter().any(|session| session.number == number);
            !is_cared_for && !server.is_belated && client.born <= number
        })
    }

    fn is_end(&self, setup: &Setup) -> bool {
        let mut actions = Vec::new();
        setup.actions(self, &mut actions);
        actions.is_empty()
    }

    /// Nothing happens any more, and not everything is over.
    fn is_stuck(&self, setup: &Setup) -> bool {
        self.is_end(setup)
            && !(self.is_closing(setup)
                && self.servers.iter().all(|server| server.key.is_none())
                && self.clients.iter().all(|client| client.sessions.is_empty()))
    }

    fn holders(&self) -> impl Iterator<Item = (usize, &state::Session)> {
        self.clients.iter().enumerate().flat_map(|(at, client)| client.sessions.iter().map(move |session| (at, session)))
            .filter(|(_, session)| matches!(session.stage, Stage::Held(_)))
    }

    fn is_handed_over(setup: &Setup, state: &State) -> bool {
        let early = setup.clients.shows(0) + TTL;
        let now = setup.clients.shows(state.now);
        state.holders().any(|(client, session)| client == 1 && session.after.is_some() && now < early)
    }

    fn is_inherited(_: &Setup, state: &State) -> bool {
        state.clients[0].born > 0 && state.holders().any(|(client, session)| client == 1 && session.after.is_some())
    }

    fn is_renewed(&self, setup: &Setup) -> bool {
        let now = setup.clients.shows(self.now);
        self.holders().any(|(_, session)| match &session.stage {
            Stage::Held(core) => now >= session.sent + TTL && now < core.believed_until(),
            _ => false,
        })
    }
}
