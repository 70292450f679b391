//! The protocol, searched: every order in which two clients, one or three nodes and a bounded number of faults can take
//! turns, by [stateright]. The shipped code decides: the machines of [`leasehold_protocol`], and its [`Store`] as each
//! node. Only the code that carries messages and sets timers is written again. `docs/evidence/model.md` has the bounds
//! and the figures.
//!
//! # What a run is
//!
//! 1. A message arrives at the moment at which it was sent: those of one client in the order of the nodes, those of two
//!    clients in any order. Or it is *late*, and then it arrives at any later moment, before or after anything, or
//!    never. If the connection of a late message is reset, its outcome is known to be unknown at once. Lateness is a
//!    fault, and faults are counted.
//! 2. Timers are on time, unless their client stands still, which is a fault. Then its clock runs on, but the client
//!    hears and does nothing until it continues, at any later moment.
//! 3. Time passes to the next moment at which something is due, and to every multiple of the grid. Due are a timer, a
//!    time limit, a deadline, the expiry of a key, and the end of a restart delay. A decision that compares times is
//!    the same in between. There are two exceptions: the end of the tries to undo, and a clock that was set back and
//!    passes a node's floor of fences again. They are met where a moment falls anyway.
//! 4. At the close no fault happens any more and every client lets go, so that every run ends. A property that must
//!    hold eventually is therefore a rule about ends, because `eventually` of stateright could miss it where two paths
//!    meet.
//!
//! # What is checked
//!
//! In every state: no two clients believe at the same instant. Fences grow in the order of the leases and, whatever the
//! clocks do, from every lease to every attempt that began after it. A client that asks the nodes sees the lease's
//! fence. A lock whose release is confirmed is free, an unused key is taken off, and a client that asks for a free lock
//! gets it. Nothing is lost without a fault, an expired lease stays expired, and at the end of every run no key is
//! left. And what should be possible is possible.
//!
//! The combiner, which decides which requests to one node are batched, is searched by itself in [`combining`]. So are a
//! [failover], a slot that is [moved](migrating) from server to server, leases that [replicas](replication) confirm,
//! and locks that are [shared](sharing). Each of them has its rules; what they share is [their frame](frame).
//!
//! Outside of the assumptions the search must find a broken rule, which shows that it would notice one.

use std::time::Duration;

use leasehold_protocol::{
    acquisition::Acquisition,
    fence::Fence,
    holder::Holder,
    key::Key,
    plurality::Plurality,
    store::Store,
    tally::{drift, majority},
    time::Micros,
};

use self::{
    action::Action,
    frame::Model,
    search::Rule,
    state::{Clock, Faults, Owner, Real, Server, State},
    tokens::Tokens,
};
use crate::seeded::SeededBug;

mod action;
mod client;
mod combining;
mod failover;
mod frame;
mod migrating;
mod node;
mod path;
mod replication;
mod routed;
mod search;
mod sharing;
mod state;
mod tests;
mod tokens;
mod world;
mod worlds;

type Run<'a> = frame::Run<'a, Setup>;

const CLIENTS: usize = 2;

/// The TTL of every lease.
const TTL: Duration = Duration::from_secs(1);

// The names of properties that tests refer to.
const ONE_HOLDER: &str = "one holder at a time";
const NOT_RENEWED: &str = "what has stalled is not renewed";
const FENCES_GROW: &str = "fences grow from lease to lease";
const LATER_IS_LARGER: &str = "who begins later has a larger fence";
const NOTHING_STAYS: &str = "what nobody uses is taken off";
const SHOWN: &str = "who looks sees the lease's fence";
const OUTLIVES: &str = "a lease outlives its TTL";
const BROUGHT_BACK: &str = "a key is brought back";
const ADOPTED: &str = "a lease that was handed over is adopted";
const STALLS: &str = "work that stalls loses the lease";
const RESUMES: &str = "progress after a stall renews";
const INHERITED: &str = "the second has it though the first died";

/// A world to search: its clients and nodes, and the faults that may happen.
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
    /// The step of a node's clock, in microseconds.
    step: i64,
    /// When the world closes: from then on every client lets go, and what is left runs out.
    closes: Duration,
    restart_delay: Duration,
    /// Whether the last node was started a second ago, and knows nothing.
    is_one_new: bool,
    /// When a lease is renewed for the first time, if not after a third of its TTL.
    tracks_after: Option<Duration>,
    /// Whether a lease may be handed over, once.
    hands_over: bool,
    /// For how long a lease is renewed without progress of its work, if that matters.
    stalls_after: Option<Duration>,
    /// How many reports of progress there are at most, at any moment.
    reports: u8,
    /// How far ahead of the highest clock a fence is that clients propose, if they do.
    proposes: Option<Duration>,
    /// The seeded bug of the clients, if any.
    bug: Option<SeededBug>,
    key: Key,
    tokens: Tokens,
}

impl Setup {
    /// The TTL that a client calculates with.
    fn client_ttl(&self) -> Duration {
        match self.bug {
            Some(SeededBug::NoDrift) => TTL + drift(TTL) + Duration::from_micros(200),
            _ => TTL,
        }
    }

    /// How long a client believes in a lease after it has asked for it.
    fn belief(&self) -> Duration {
        self.client_ttl().saturating_sub(drift(self.client_ttl()))
    }

    /// The owner whose token a release deletes.
    fn released_as(&self, owner: Owner, there: Option<Owner>) -> Owner {
        if self.bug == Some(SeededBug::ReleaseUnchecked) { there.unwrap_or(owner) } else { owner }
    }

    /// The fence that a node returns for a replayed acquire.
    fn replayed(&self, fence: Fence) -> Fence {
        if self.bug != Some(SeededBug::ReplayDrawsAnew) {
            return fence;
        }
        Fence::try_from(u64::from(fence) + 1).unwrap_or(fence)
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

    const SERVER: &'static str = "node";

    fn name(&self) -> &'static str {
        self.name
    }

    fn bounds(&self) -> String {
        let [first, second] = self.attempts;
        format!("{first} + {second} | {} ms", self.closes.as_millis())
    }

    fn first(&self) -> State {
        let server = |started: Option<Micros>| Server {
            store: started.map_or_else(Store::default, Store::started),
            stepped: 0,
            started,
            key: None,
            shown: None,
            is_belated: false,
            released: Vec::new(),
        };
        let mut servers = vec![server(None); self.nodes.len()];
        if let (Some(last), Some(clock), true) = (servers.last_mut(), self.nodes.last(), self.is_one_new) {
            *last = server(Some(clock.shows(0).as_nanos() / 1_000 - 1_000_000));
        }
        State {
            now: 0,
            clients: vec![state::Client::new(self.nodes.len(), 0); CLIENTS],
            servers,
            net: Vec::new(),
            left: self.faults,
            largest: None,
            ticket: None,
            reported: 0,
            has_stalled: false,
            broken: state::Broken::default(),
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
            always(LATER_IS_LARGER, |_, state| !state.broken.fence_is_stale),
            always(SHOWN, |setup, state| !state.shows_another_fence(setup)),
            always("what is confirmed as released is free", |_, state| !state.broken.release_did_not),
            always(NOTHING_STAYS, |_, state| !state.leaves_a_key()),
            always("who asks for a free lock gets it", |_, state| !state.broken.denied_for_nothing),
            always("without a fault nothing is lost", |_, state| !state.broken.lost_for_nothing),
            always("what is over stays over", |_, state| !state.broken.is_revived),
            always(NOT_RENEWED, |setup, state| !state.is_renewed_without_progress(setup)),
            sometimes("the second has it before the first one's time is up", |setup, state| {
                state.is_handed_over(setup)
            }),
            sometimes(INHERITED, |_, state| state.is_inherited()),
            sometimes(OUTLIVES, |setup, state| state.is_renewed(setup)),
            sometimes(BROUGHT_BACK, |_, state| state.is_brought_back()),
            sometimes(ADOPTED, |_, state| state.holders().any(|(_, session)| session.heir_of.is_some())),
            sometimes(STALLS, |_, state| state.has_stalled),
            sometimes(RESUMES, |setup, state| state.resumes(setup)),
        ]
    }

    fn is_expected(&self, good: &str) -> bool {
        match good {
            INHERITED => self.faults.deaths > 0,
            OUTLIVES => self.closes > TTL,
            BROUGHT_BACK => self.is_one_new,
            ADOPTED => self.hands_over,
            STALLS => self.stalls_after.is_some() && self.closes > TTL * 4 / 3,
            RESUMES => self.stalls_after.is_some() && self.reports > 0,
            _ => true,
        }
    }

    fn is_over(&self, state: &State) -> bool {
        state.is_closing(self)
            && state.servers.iter().all(|server| server.key.is_none())
            && state.clients.iter().all(|client| client.sessions.is_empty())
    }

    fn now(state: &State) -> Real {
        state.now
    }

    fn clock(&self) -> Clock {
        self.clients
    }

    fn leases(state: &State) -> impl Iterator<Item = (Owner, &Acquisition)> {
        state.sessions().map(|(owner, session)| (owner, &session.acquisition))
    }

    fn keys(&self, state: &State) -> Vec<Option<Owner>> {
        state.servers.iter().map(|server| Some(server.key?.0)).collect()
    }

    fn tell(_: &State, action: &Action) -> String {
        action.to_string()
    }
}

impl State {
    /// Whether a client that asks all nodes is certain of a fence that is not the lease's.
    fn shows_another_fence(&self, setup: &Setup) -> bool {
        let shown =
            |server: &Server| Some(Holder::of(Some(setup.tokens.of(server.key?.0).clone()), None, server.shown));
        self.holders().any(|(owner, session)| {
            let token = setup.tokens.of(owner);
            let held: Vec<Holder> = self.servers.iter().filter_map(shown).collect();
            Plurality::largest(&held, majority(self.servers.len())).is_some_and(|Plurality { holder, .. }| {
                let fence = holder.fence().filter(|_| holder.whole_token() == Some(token));
                fence.is_some() && fence != session.acquisition.fence()
            })
        })
    }

    /// Whether a node has a key that is not needed any more, though it could have been taken off.
    fn leaves_a_key(&self) -> bool {
        self.servers.iter().enumerate().any(|(node, server)| {
            let Some(((key_of, number), _)) = server.key else { return false };
            let client = &self.clients[usize::from(key_of)];
            let is_left = self.ticket == Some((key_of, number));
            let is_cared_for = is_left || client.sessions.iter().any(|session| session.number == number);
            let is_out_of_reach = client.born > number || client.cut.iter().any(|cut| cut == node);
            !is_cared_for && !server.is_belated && !is_out_of_reach
        })
    }

    fn sessions(&self) -> impl Iterator<Item = (Owner, &state::Session)> {
        (0_u8..)
            .zip(&self.clients)
            .flat_map(|(me, client)| client.sessions.iter().map(move |session| ((me, session.number), session)))
    }

    fn holders(&self) -> impl Iterator<Item = (Owner, &state::Session)> {
        self.sessions().filter(|(_, session)| session.acquisition.is_held())
    }

    /// Whether the second client has a lease whose attempt began after another lease was won.
    fn has_followed(&self) -> bool {
        self.holders().any(|((client, _), session)| client == 1 && session.after.is_some())
    }

    fn is_handed_over(&self, setup: &Setup) -> bool {
        setup.clients.shows(self.now) < setup.clients.shows(0) + TTL && self.has_followed()
    }

    fn is_inherited(&self) -> bool {
        self.clients[0].born > 0 && self.has_followed()
    }

    fn is_brought_back(&self) -> bool {
        self.holders().any(|(owner, session)| {
            let has = |server: &Server| server.key.is_some_and(|(there, _)| there == owner);
            let is_repaired = |(server, sendings): (&Server, &[u8; state::KINDS])| {
                has(server) && sendings[state::Kind::Repair as usize] > 0
            };
            self.servers.iter().zip(&session.sendings).any(is_repaired)
        })
    }

    /// Whether a lease lives for longer than a renewal can have given it before its work stalled. A client that stood
    /// still counts the span anew.
    fn is_renewed_without_progress(&self, setup: &Setup) -> bool {
        let Some(span) = setup.stalls_after.filter(|_| setup.faults.pauses == 0) else { return false };
        self.holders()
            .any(|(_, session)| session.acquisition.valid_until() > session.progressed + span + setup.belief())
    }

    fn resumes(&self, setup: &Setup) -> bool {
        self.holders().any(|(_, session)| {
            session.has_resumed && session.acquisition.valid_until() == session.progressed + setup.belief()
        })
    }

    fn is_renewed(&self, setup: &Setup) -> bool {
        let now = setup.clients.shows(self.now);
        self.holders().any(|(_, session)| {
            let acquisition = &session.acquisition;
            now >= acquisition.sent() + TTL && now < acquisition.valid_until()
        })
    }
}
