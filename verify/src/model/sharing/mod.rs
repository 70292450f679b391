//! Locks that many hold at a time, searched: readers and a writer, permits, and a writer that continues as a reader.
//! All of them wait in the server's queue. The shipped code decides: `QueuePosition` says when each polls,
//! `Acquisition` what follows from a grant, `Undoing` how a token is taken back, and [`Store`] what the server does.
//!
//! # How a run goes
//!
//! 1. A request arrives when it is sent, and its answer is heard at once. Or one of them is *late*: it comes at any
//!    later moment, or never. A request may also come a second time. These are faults, and faults are counted.
//! 2. A notification to a waiter arrives before any time passes, but others may act before it. It may be late too.
//! 3. Timers are on time, unless their client stands still. A client may also die: then it cannot be reached. The
//!    server may be restarted, with what it had or without, and its clock may be set.
//! 4. A waiter may give up, and a holder lets go at any moment. A holder that has the lock alone may continue as a
//!    reader, with another token. It sends that token until it has an answer, for as long as it may believe in its
//!    earlier lease.
//! 5. Time passes to the next moment at which something is due, and to every multiple of the grid.
//! 6. At the close no fault happens any more, no client begins, and each holder lets go. Waiters keep waiting. So every
//!    run ends, and by then every client has had the lock.
//!
//! # What is checked
//!
//! [`rules`] compares the server before and after each request: rules 15, 16 and 17. The clients' beliefs are checked
//! in every state. A holder that has the lock alone is beside no other, no more holders than the limits allow have it,
//! and all sharers have one fence.

use std::{num::NonZeroU32, time::Duration};

use leasehold_protocol::{
    key::Key,
    message::Claim,
    mode,
    store::Store,
    tally::drift,
    time::{Micros, Time},
};

use self::{
    action::Action,
    rules::{Broken, Seen},
    state::{Bent, Client, Server, Session, State},
};
use super::{
    TTL,
    frame::{self, Model},
    search::Rule,
    state::{Clock, Faults, Owner, Real, nanos},
    tokens::Tokens,
};
use crate::seeded::SeededBug;

mod action;
mod client;
mod path;
mod rules;
mod server;
mod state;
mod tests;

type Run<'a> = frame::Run<'a, Setup>;

/// The most tokens of a client.
const TOKENS: u64 = 6;

/// How long a lock waits for the confirmation of a grant.
const GRANT: Duration = Duration::from_millis(300);

/// How soon a waiter notices that another's time is over: a server clock's gain in a TTL, and a few milliseconds.
const A_MOMENT: Duration = Duration::from_millis(20);

// The names of the rules and of the good things that tests refer to.
const AS_MANY_AS_MAY: &str = "one alone, or as many as the limits allow";
const ONE_FENCE: &str = "all who share at one time have one fence";
const FENCES_GROW: &str = "fences grow from holder to phase to holder";
const NO_EARLIER: &str = "rule 15: a phase begins without those of an earlier one";
const KEY_OUTLIVES: &str = "rule 15: the key outlives all who share";
const NONE_BACK: &str = "rule 15: a renewal brings none back";
const WITHIN_LIMIT: &str = "rule 16: nobody is let in beside as many as its limit";
const NOT_PASSED: &str = "rule 16: nobody passes one who waits and is there";
const LARGER: &str = "rule 17: a holder and a phase have a larger fence than all before";
const LET_IN: &str = "who fits is let in";
const SOON: &str = "who fits by the time of others comes in soon";
const NOT_FOR_LONG: &str = "nobody waits for long";
const NOTHING_STAYS: &str = "what nobody uses is taken off";
const NOT_LOST: &str = "without a fault nothing is lost";
const SHARED: &str = "two share it";
const LINED_UP: &str = "one has it that has waited for it";
const OUTLIVED: &str = "a lease outlives its TTL";
const GOES_ON: &str = "one that had it alone shares it with another";
const INHERITED: &str = "one has it though another died";

/// A client: what it wants, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// The limit of its mode: zero to have the lock alone.
    limit: u32,
    /// How many permits it takes.
    permits: u32,
    attempts: u8,
    /// Whether it may continue as a reader.
    downgrades: bool,
}

/// A world to search.
#[derive(Debug, Clone)]
struct Setup {
    name: &'static str,
    /// The clients' clocks, which agree.
    clients: Clock,
    server: Clock,
    parts: Vec<Part>,
    grid: Duration,
    faults: Faults,
    /// The most waiters that give up.
    cancels: u8,
    /// The step of the server's clock, in microseconds.
    step: i64,
    /// When the world closes: from then on every holder lets go, and what is left runs out.
    closes: Duration,
    restart_delay: Duration,
    /// Whether notifications reach waiters. If not, they poll while a grant lasts.
    hears: bool,
    bug: Option<SeededBug>,
    key: Key,
    tokens: Tokens,
}

impl Setup {
    /// A world without faults. The server's clock gains on the clients' as much as it may.
    fn new(name: &'static str, parts: &[Part]) -> Self {
        Self {
            name,
            clients: Clock { offset: 5_000_000_000, rate: 1_000 },
            server: Clock { offset: 1_000_000_000_100_000_000, rate: 1_010 },
            parts: parts.into(),
            grid: TTL / 2,
            faults: Faults::default(),
            cancels: 0,
            step: -300_000,
            closes: TTL * 5 / 4,
            restart_delay: Duration::ZERO,
            hears: true,
            bug: None,
            key: Key::new("", "job").unwrap(),
            tokens: Tokens::new(parts.len() as u64, TOKENS),
        }
    }

    fn with(self, bug: SeededBug) -> Self {
        Self { name: bug.name(), bug: Some(bug), ..self }
    }

    fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    fn cancels(self, cancels: u8) -> Self {
        Self { cancels, ..self }
    }

    /// Closes the world after this many milliseconds.
    fn for_millis(self, millis: u64) -> Self {
        Self { closes: Duration::from_millis(millis), ..self }
    }

    /// Has a recently started server grant nothing: for the longest TTL, rounded up to seconds, and one second more.
    fn delayed(self) -> Self {
        Self { restart_delay: TTL * 2, ..self }
    }

    /// The TTL that a client calculates with.
    fn client_ttl(&self) -> Duration {
        match self.bug {
            Some(SeededBug::NoDrift) => TTL + drift(TTL) + Duration::from_micros(200),
            _ => TTL,
        }
    }

    fn claim(&self, owner: Owner, limit: u32) -> Claim {
        let claim = self.tokens.claim(&self.key, owner);
        let permits = NonZeroU32::new(self.permits(owner)).unwrap();
        Claim { mode: mode::of_limit(limit, permits), token: claim.token.taking(permits), ..claim }
    }

    fn permits(&self, (me, _): Owner) -> u32 {
        self.parts[usize::from(me)].permits
    }

    /// How long a client may wait once no fault happens any more and each holder lets go. This adds up several waits:
    /// for holders that can only expire, by a clock that was set back; for a server that forgot; and for a grant that
    /// was not heard.
    fn patience(&self) -> Duration {
        let set_back = Duration::from_micros(self.step.min(0).unsigned_abs()) * u32::from(self.faults.steps);
        TTL + set_back + self.restart_delay + GRANT * u32::from(self.faults.late) + TTL / 10
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    fn name(&self) -> &'static str {
        self.name
    }

    fn bounds(&self) -> String {
        let attempts: Vec<_> = self.parts.iter().map(|part| part.attempts.to_string()).collect();
        format!("{} | {} ms", attempts.join(" + "), self.closes.as_millis())
    }

    fn first(&self) -> State {
        let server = Server {
            store: Store::default(),
            stepped: 0,
            started: None,
            seen: Seen::default(),
            issued: None,
            released: Vec::new(),
            belated: Vec::new(),
            bent: Bent::default(),
        };
        State {
            now: 0,
            clients: vec![Client::default(); self.parts.len()],
            server,
            net: Vec::new(),
            left: self.faults,
            cancels: self.cancels,
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
            always(AS_MANY_AS_MAY, |setup, state| !state.are_too_many(setup)),
            always(ONE_FENCE, |setup, state| !state.share_with_two_fences(setup)),
            always(FENCES_GROW, |_, state| !state.broken.fence_fell),
            always(NO_EARLIER, |_, state| !state.broken.has_earlier),
            always(KEY_OUTLIVES, |_, state| !state.broken.is_outlived),
            always(NONE_BACK, |_, state| !state.broken.is_brought_back),
            always(WITHIN_LIMIT, |_, state| !state.broken.beside_too_many),
            always(NOT_PASSED, |_, state| !state.broken.passed),
            always(LARGER, |_, state| !state.broken.issued_smaller),
            always(LET_IN, |_, state| !state.broken.left_waiting),
            always(SOON, |setup, state| !state.leaves_one_waiting(setup)),
            always(NOT_LOST, |_, state| !state.broken.lost_for_nothing),
            always("what is over stays over", |_, state| !state.broken.is_revived),
            always(NOTHING_STAYS, |_, state| !state.leaves_a_token()),
            always(NOT_FOR_LONG, |setup, state| !state.waits_for_long(setup)),
            sometimes(SHARED, |setup, state| state.believers(setup).count() > 1),
            sometimes(LINED_UP, |_, state| state.leases().any(|(_, session)| session.ticket.is_some())),
            sometimes(OUTLIVED, |setup, state| state.is_renewed(setup)),
            sometimes(GOES_ON, |setup, state| {
                let goes_on = |session: &Session| session.from.is_some() && session.lease().is_some();
                state.believers(setup).any(goes_on) && state.believers(setup).count() > 1
            }),
            sometimes(INHERITED, |_, state| {
                state.clients.iter().any(|client| client.is_dead) && state.leases().next().is_some()
            }),
        ]
    }

    fn is_expected(&self, good: &str) -> bool {
        match good {
            OUTLIVED => self.closes > TTL,
            GOES_ON => self.parts.iter().any(|part| part.downgrades),
            INHERITED => self.faults.deaths > 0,
            LINED_UP => self.parts.iter().any(|part| part.limit < u32::MAX),
            SHARED => self.parts.iter().filter(|part| part.limit > 1).count() > 1,
            _ => true,
        }
    }

    fn is_over(&self, state: &State) -> bool {
        state.is_closing(self) && state.server.seen.is_empty() && state.sessions().next().is_none()
    }

    fn now(state: &State) -> Real {
        state.now
    }

    fn clock(&self) -> Clock {
        self.clients
    }

    fn believers(&self, state: &State) -> Vec<Owner> {
        let believers = state.sessions().filter(|(_, session)| state.believes(self, session));
        believers.map(|(me, session)| (u8::try_from(me).unwrap(), session.number)).collect()
    }

    fn tell(state: &State, action: &Action) -> String {
        state.tell(*action)
    }

    fn news(&self, before: &State, after: &State) -> Vec<String> {
        path::news(self, before, after)
    }
}

impl State {
    fn sessions(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.clients.iter().enumerate().flat_map(|(me, client)| client.sessions.iter().map(move |one| (me, one)))
    }

    fn leases(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.sessions().filter(|(_, session)| session.lease().is_some())
    }

    /// Whether its client may believe now that it has the lock.
    fn believes(&self, setup: &Setup, session: &Session) -> bool {
        setup.clients.shows(self.now) < session.believes_until()
    }

    fn believers(&self, setup: &Setup) -> impl Iterator<Item = &Session> {
        self.sessions().map(|(_, session)| session).filter(|session| self.believes(setup, session))
    }

    fn are_too_many(&self, setup: &Setup) -> bool {
        let believers = || self.sessions().filter(|(_, session)| self.believes(setup, session));
        let is_one_alone = self.believers(setup).any(|session| !session.is_shared());
        // Without its own permits, all others that one found are fewer than its limit.
        let taken: u32 = believers().map(|(me, _)| setup.parts[me].permits).sum();
        let has_room = |(me, session): (usize, &Session)| taken - setup.parts[me].permits < session.limit;
        believers().count() > 1 && (is_one_alone || !believers().any(has_room))
    }

    fn share_with_two_fences(&self, setup: &Setup) -> bool {
        let shares = self.believers(setup).filter(|session| session.is_shared());
        let mut fences = shares.filter_map(|session| session.acquisition()?.fence());
        let first = fences.next();
        fences.any(|other| Some(other) != first)
    }

    /// Whether the server has a token that is not needed any more, though it could have been taken off.
    fn leaves_a_token(&self) -> bool {
        self.server.seen.tokens().any(|(me, number)| {
            let client = &self.clients[usize::from(me)];
            let is_of = |session: &Session| session.number == number || session.from == Some(number);
            let is_cared_for = client.sessions.iter().any(is_of);
            !is_cared_for && !client.is_dead && !self.server.belated.contains(&(me, number))
        })
    }

    /// Whether the first waiter for a share fits, because another's time is over, and yet does not poll soon. A waiter
    /// behind a first one that has died may take longer. So may one that wants the lock alone: it polls when the last
    /// holder expires that was there when it asked, though that one may have let go since.
    fn leaves_one_waiting(&self, setup: &Setup) -> bool {
        let Faults { late, pauses, amnesias, restarts, .. } = self.left;
        let all = setup.faults;
        let is_quiet = (late, pauses, amnesias, restarts) == (all.late, all.pauses, all.amnesias, all.restarts);
        let is_first = |one: &Owner| self.server.seen.line.first().is_some_and(|(first, _)| first == one);
        let Some((me, number)) = self.who_fits(setup).filter(|one| is_quiet && is_first(one)) else { return false };
        let has_mail = self.net.iter().any(|message| message.owner == (me, number));
        let client = &self.clients[usize::from(me)];
        let Some(session) = client.sessions.iter().find(|session| session.number == number) else { return false };
        let soon = setup.clients.shows(self.now) + if setup.hears { A_MOMENT } else { GRANT / 3 };
        !has_mail && session.is_shared() && session.polls_at().is_some_and(|poll| poll > soon)
    }

    fn waits_for_long(&self, setup: &Setup) -> bool {
        let is_late = self.now > nanos(setup.closes + setup.patience());
        is_late && self.sessions().any(|(_, session)| session.polls_at().is_some() || session.is_polling())
    }

    fn is_renewed(&self, setup: &Setup) -> bool {
        let now = setup.clients.shows(self.now);
        self.believers(setup)
            .any(|session| session.acquisition().is_some_and(|acquisition| now >= acquisition.sent() + TTL))
    }

    /// Whether the world is closing: no fault happens any more, no client begins, and each holder lets go.
    fn is_closing(&self, setup: &Setup) -> bool {
        self.now >= nanos(setup.closes)
    }

    fn clock(&self, setup: &Setup) -> Clock {
        let offset = setup.server.offset.saturating_add_signed(self.server.stepped);
        Clock { offset, ..setup.server }
    }

    /// The time on the server's clock.
    fn server_time(&self, setup: &Setup) -> Micros {
        self.clock(setup).shows(self.now).as_nanos() / 1_000
    }

    /// The real moment at which the server's clock shows this.
    fn when(&self, setup: &Setup, shows: Micros) -> u64 {
        self.clock(setup).when(Time::from_nanos(shows * 1_000))
    }
}
