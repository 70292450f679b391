//! The combiner, searched: every order in which a few callers of one node, its flights and its sweeper can take turns,
//! while replies are slow or lost, callers give up, the connection is cut and its runtime ends. The shipped code
//! decides: [`Combiner`]. Its [driver], its [callers](caller) and the [server] with its scripts are written again.
//!
//! # What a run is
//!
//! 1. Each caller goes through one cycle of one token, at any moments: acquire, hold, release. It may drop its future
//!    at any point, which is a fault, and faults are counted. Its request to [`Combiner`] is then taken back as the
//!    library does it: by a request behind it, and by another one if a grant comes all the same.
//! 2. Requests are executed in the order of their sending on one connection. An answer is heard at any later moment, or
//!    when its time is over: this covers a task that is not polled, a distant server, and a lost reply.
//! 3. Time passes to the next moment at which something is due. The sweeper is on time, and so are the tasks that carry
//!    batches, unless their runtime stands still.
//! 4. If a node votes, the others may decide without its answer. Its caller then stops waiting for that answer, and may
//!    release before it comes. What a late vote has left there is taken back unless the release came after it.
//! 5. At the close no fault happens any more and every caller lets go, so that every run ends.

use std::time::Duration;

use leasehold_protocol::{
    combiner::{BatchLimits, Combiner},
    fence::{self, Fence},
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Claim, ReleaseMode, Request, Voting},
    mode::Mode,
    store::Store,
    time::Time,
    token::Token,
};

use self::{
    action::Action,
    state::{Faults, Number, Place, Session, Stage, State, What},
};
use super::{
    frame::{self, Model},
    search::Rule,
    state::{Owner, Real},
};
use crate::seeded::SeededBug;

mod action;
mod caller;
mod driver;
mod run;
mod script;
mod server;
mod state;
mod tests;
mod wire;

type Run<'a> = frame::Run<'a, Setup>;

/// How long no flight may begin or land before a waiting request gets a flight of its own. It is the grain of time,
/// too.
const PACE: Duration = Duration::from_millis(1);

/// How long a caller waits for its turn and its answer, and a flight for its answer.
const LIMIT: Duration = Duration::from_millis(2);

const VOTING: Voting = Voting { restart_delay: Duration::ZERO, proposal: None };

/// Longer than any run.
const TTL: Duration = Duration::from_secs(10);

// The rules, by the combiner's invariants that they belong to.
const HOLDER_HAS_IT: &str = "who believes in a lock has it, with its fence";
const PACED: &str = "1: where nothing moves, nothing waits for longer than the pace";
const NOT_AFTER_ITS_ANSWER: &str = "2: what has its answer is not sent";
const TOLD_ONCE: &str = "2: nobody is told twice";
const WAITS_FOR_A_LINK: &str = "2: who waits for a link does so for all of its time";
const OWN_ERROR: &str = "3: an error of the whole is told to nobody";
const RELEASED_ONCE: &str = "3: a release finds what is held";
const NOTHING_STAYS: &str = "4: in the end no key is left";
const NEVER_WITH_ITS_ACQUIRE: &str = "5: a token's release and its acquire are not in one batch";
const TAKEN_BACK: &str = "5: an acquire that was taken back while it waited is not sent";
const RELEASES_FIRST: &str = "5: a batch releases before it acquires";
const ALL_IS_OVER: &str = "6: in the end nothing waits or flies";
const IN_TIME: &str = "7: everybody has an answer in time";
const ALL_OVERTAKEN: &str = "8: a batch that was overtaken was for each of its requests";
const BATCH_IS_SMALL: &str = "8: a batch has no more requests than it may";

/// The rules that are noted when they are broken.
const NOTED: [&str; 10] = [
    NOT_AFTER_ITS_ANSWER,
    TOLD_ONCE,
    WAITS_FOR_A_LINK,
    OWN_ERROR,
    RELEASED_ONCE,
    NEVER_WITH_ITS_ACQUIRE,
    TAKEN_BACK,
    RELEASES_FIRST,
    ALL_OVERTAKEN,
    BATCH_IS_SMALL,
];

/// A world to search.
#[derive(Debug, Clone)]
struct Setup {
    name: &'static str,
    /// The most flights at a time.
    flights: usize,
    /// The most requests of a batch.
    batch: usize,
    /// The lock that each caller wants.
    wanted: Vec<usize>,
    faults: Faults,
    /// Whether it is a node of several, which vote.
    votes: bool,
    /// Whether other threads may do something between the making of a batch and its sending.
    is_torn: bool,
    /// Whether the runtime of the connection may stand still, with the tasks that carry batches.
    is_stalled: bool,
    /// Until when callers begin and faults happen.
    closes: Time,
    bug: Option<SeededBug>,
    keys: Vec<Key>,
    tokens: Vec<Token>,
}

impl Setup {
    fn has(&self, bug: SeededBug) -> bool {
        self.bug == Some(bug)
    }

    fn limits(&self) -> BatchLimits {
        let batch = self.batch + usize::from(self.has(SeededBug::BatchTooLarge));
        BatchLimits { flights: self.flights, crowd: 1, pace: PACE, batch, weight: 1_000_000 }
    }

    fn claim(&self, session: Number, fence: Option<Fence>) -> Claim {
        let key = self.keys[self.wanted[usize::from(session)]].clone();
        let token = self.tokens[usize::from(session)].clone();
        Claim { key, token, mode: Mode::Exclusive, ttl: TTL, life: TTL, fence, fence_memory: fence::MEMORY }
    }

    fn session(&self, token: &Token) -> Number {
        let at = self.tokens.iter().position(|other| other == token).unwrap();
        Number::try_from(at).unwrap()
    }

    fn request(&self, session: Number, what: What, fence: Option<Fence>) -> Request {
        let claim = self.claim(session, fence);
        match what {
            What::Acquire => {
                Request::Acquire(AcquireRequest { claim, voting: self.votes.then_some(VOTING), heir_of: None })
            }
            What::Release | What::Undo => Request::Release { claim, mode: ReleaseMode::Delete },
        }
    }
}

impl Model for Setup {
    type State = State;
    type Action = Action;

    const IN_THE_END: &'static str = ALL_IS_OVER;

    fn name(&self) -> &'static str {
        self.name
    }

    fn bounds(&self) -> String {
        format!("{} | {} | {} ms", self.wanted.len(), self.flights, self.closes.since(Time::ZERO).as_millis())
    }

    fn first(&self) -> State {
        State {
            now: Time::ZERO,
            combiner: Combiner::new(self.limits()),
            sweeps: None,
            moved: Time::ZERO,
            sessions: vec![Session::default(); self.wanted.len()],
            flushers: Vec::new(),
            wire: Vec::new(),
            store: Store::default(),
            is_down: false,
            has_ended: false,
            left: self.faults,
            broken: None,
        }
    }

    fn possible(&self, state: &State, actions: &mut Vec<Action>) {
        action::possible(self, state, actions);
    }

    fn take(run: &mut Run<'_>, action: Action) -> Option<()> {
        run.take(action);
        run.state.tidy();
        Some(())
    }

    fn rules() -> Vec<Rule<Self>> {
        let (always, sometimes) = (Rule::<Self>::always, Rule::<Self>::sometimes);
        macro_rules! noted {
            ($($at:literal)*) => {
                vec![$(always(NOTED[$at], |_, state| state.broken != Some(NOTED[$at]))),*]
            };
        }
        let mut rules = noted!(0 1 2 3 4 5 6 7 8 9);
        rules.extend([
            always(HOLDER_HAS_IT, |setup, state| state.holders_have_it(setup)),
            always(PACED, |setup, state| setup.is_stalled || !state.waits_too_long(PACE)),
            always(IN_TIME, |_, state| !state.is_unanswered(LIMIT)),
            always(NOTHING_STAYS, |setup, state| !setup.is_end(state) || !state.leaves_a_key(setup)),
            sometimes("all have had it", |_, state| state.sessions.iter().all(|session| session.fence.is_some())),
        ]);
        rules
    }

    fn is_end(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        if state.wire.is_empty() {
            self.possible(state, &mut actions);
        }
        state.wire.is_empty() && actions.is_empty() && state.broken.is_none()
    }

    fn is_over(&self, state: &State) -> bool {
        let is_over = |session: &Session| session.asks.is_empty() && matches!(session.stage, Stage::Idle | Stage::Over);
        state.combiner.is_idle() && state.flushers.is_empty() && state.sessions.iter().all(is_over)
    }

    fn now(state: &State) -> Real {
        state.now.as_nanos()
    }

    fn believers(&self, state: &State) -> Vec<Owner> {
        let holders = (0..).zip(&state.sessions).filter(|(_, session)| session.stage == Stage::Held);
        holders.map(|(number, _)| (number, 0)).collect()
    }

    fn tell(state: &State, action: &Action) -> String {
        state.tell(*action)
    }
}

impl State {
    fn holder(&self, setup: &Setup, key: &Key) -> Option<(Number, Fence)> {
        let holder: Holder = self.store.clone().holder(server::NOW, key)?;
        Some((setup.session(holder.whole_token()?), holder.fence()?))
    }

    fn holders_have_it(&self, setup: &Setup) -> bool {
        (0..).zip(&self.sessions).all(|(number, session)| {
            let key = &setup.keys[setup.wanted[usize::from(number)]];
            session.stage != Stage::Held || self.holder(setup, key) == session.fence.map(|fence| (number, fence))
        })
    }

    /// Whether a request waits although no flight has begun or landed for longer than `pace`.
    fn waits_too_long(&self, pace: Duration) -> bool {
        self.sessions.iter().flat_map(|session| &session.asks).any(|ask| {
            let is_in_the_air = self.flushers.iter().flatten().any(|flusher| flusher.carries(ask.ticket));
            !self.is_down
                && ask.place == Place::Waits
                && !is_in_the_air
                && self.now > ask.entered.max(self.moved) + pace
        })
    }

    fn is_unanswered(&self, limit: Duration) -> bool {
        let mut asks = self.sessions.iter().flat_map(|session| &session.asks);
        asks.any(|ask| ask.place == Place::Waits && self.now > ask.entered + limit)
    }

    fn leaves_a_key(&self, setup: &Setup) -> bool {
        setup.keys.iter().any(|key| self.holder(setup, key).is_some())
    }
}
