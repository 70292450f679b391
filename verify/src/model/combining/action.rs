//! The actions that are possible in a state, and how they are described.

use std::fmt;

use leasehold_protocol::{combiner::Want, message::AcquireRequest, time::Time};

use super::{
    LIMIT, Setup,
    state::{Ask, Hearer, Message, Number, Outcome, Payload, Place, Stage, State, Step, Ticket},
};
use crate::model::frame::TIME_PASSES;

/// One action. Messages are identified by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Time passes, until something is due.
    Pass,
    Begin(Number),
    LetGo(Number),
    /// The other nodes have given a caller its lock, without this one's vote, and it releases.
    Decide(Number),
    /// A caller drops its future, or its lease.
    Drop(Number),
    /// A caller reads its answer.
    Look(Ticket),
    /// The server executes a message.
    Execute(usize),
    /// The server executes a batch, but answers this acquire with "alone".
    ExecuteOddly(usize, Number),
    /// The server has forgotten the script.
    Forget(usize),
    /// The server refuses the whole call.
    Refuse(usize),
    /// An answer is heard.
    Hear(usize),
    /// The wait for an answer times out.
    Expire(usize),
    /// A flusher takes the waiting requests, and sends or packs them.
    Take(usize),
    /// A flusher sends what it has packed.
    Send(usize),
    /// A flusher finds that the connection takes nothing.
    Full(usize),
    /// A flusher is done with a batch.
    GoOn(usize),
    Sweep,
    /// A flusher's wait for a link times out.
    GiveUp(usize),
    /// A message that waited for a link is sent.
    Hand(usize),
    /// There is a link again.
    Up,
    /// The connection is cut, after this many more requests were executed.
    Cut(usize),
    /// Its runtime ends, after this many more requests were executed.
    End(usize),
}

/// Collects the actions that are possible now.
pub(super) fn possible(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    if state.broken.is_some() {
        return;
    }
    let is_closing = state.now >= setup.closes;
    if state.is_down && is_closing {
        actions.push(Action::Up);
        return;
    }
    let (flights, mut urgent) = (flights(state), urgent(state));
    if setup.is_stalled && !is_closing {
        actions.extend(flights);
    } else {
        urgent.extend(flights);
    }
    actions.extend(&urgent);
    for (at, message) in state.wire.iter().enumerate() {
        let is_expired = message.until <= state.now && message.hearer.is_some();
        if state.is_next(at) {
            actions.push(Action::Execute(at));
        } else if message.outcome.is_some() && !urgent.contains(&Action::Hear(at)) {
            actions.push(Action::Hear(at));
        }
        if is_expired && !actions.contains(&Action::Expire(at)) {
            actions.push(Action::Expire(at));
        }
    }
    for (number, session) in (0..).zip(&state.sessions) {
        match session.stage {
            Stage::Held => actions.push(Action::LetGo(number)),
            Stage::Acquiring if setup.votes && !is_closing => actions.push(Action::Decide(number)),
            Stage::Idle if !is_closing && may_begin(setup, state, number) => actions.push(Action::Begin(number)),
            Stage::Idle | Stage::Acquiring | Stage::Releasing | Stage::Over => {}
        }
    }
    if is_closing {
        // At the close no fault happens, and the order of the other actions does not matter.
        actions.truncate(1);
    } else {
        faults(state, actions);
        // A notification makes the sweeper run early.
        if state.sweeps.is_some() && !urgent.contains(&Action::Sweep) {
            actions.push(Action::Sweep);
        }
    }
    if urgent.is_empty() && (!is_closing || actions.is_empty()) && state.next_moment().is_some() {
        actions.push(Action::Pass);
    }
}

/// Callers of one lock are alike, so letting the first one begin first leaves nothing out.
fn may_begin(setup: &Setup, state: &State, number: Number) -> bool {
    let before = state.sessions.iter().zip(&setup.wanted).take(usize::from(number));
    before
        .rev()
        .find(|(_, wanted)| **wanted == setup.wanted[usize::from(number)])
        .is_none_or(|(session, _)| session.stage != Stage::Idle)
}

/// The next actions of the tasks that carry batches.
fn flights(state: &State) -> Vec<Action> {
    let mut flights = Vec::new();
    for (at, flusher) in state.flushers.iter().enumerate() {
        match flusher.as_ref().map(|flusher| flusher.step) {
            Some(Step::Ready | Step::Again) if !state.is_down => flights.push(Action::Take(at)),
            Some(Step::Ready | Step::Again)
                if flusher.as_ref().is_some_and(|flusher| flusher.began + LIMIT <= state.now) =>
            {
                flights.push(Action::GiveUp(at));
            }
            Some(Step::Packed) => flights.push(Action::Send(at)),
            Some(Step::Landed) => flights.push(Action::GoOn(at)),
            Some(Step::Ready | Step::Again | Step::Sent) | None => {}
        }
    }
    for (at, message) in state.wire.iter().enumerate() {
        if matches!(message.hearer, Some(Hearer::Flusher(_))) && message.until <= state.now {
            flights.push(Action::Expire(at));
        }
    }
    flights
}

/// The actions that happen before any time passes.
fn urgent(state: &State) -> Vec<Action> {
    let mut urgent = Vec::new();
    if state.sweeps.is_some_and(|at| at <= state.now) {
        urgent.push(Action::Sweep);
    }
    let told = |ask: &&Ask| matches!(ask.place, Place::Told(_));
    urgent.extend(
        state.sessions.iter().flat_map(|session| &session.asks).filter(told).map(|ask| Action::Look(ask.ticket)),
    );
    for (at, message) in state.wire.iter().enumerate() {
        if message.is_unsent && !state.is_down {
            urgent.push(Action::Hand(at));
        }
    }
    urgent
}

fn faults(state: &State, actions: &mut Vec<Action>) {
    let left = &state.left;
    if left.drops > 0 {
        let may_drop = |stage| matches!(stage, Stage::Acquiring | Stage::Held | Stage::Releasing);
        let dropped = (0..).zip(&state.sessions).filter(|(_, session)| may_drop(session.stage));
        actions.extend(dropped.map(|(number, _)| Action::Drop(number)));
    }
    for (at, message) in state.wire.iter().enumerate().filter(|(at, _)| state.is_next(*at)) {
        let Payload::Batch(wants) = &message.what else { continue };
        if left.forgotten > 0 {
            actions.push(Action::Forget(at));
        }
        if left.refused > 0 {
            actions.push(Action::Refuse(at));
        }
        if left.odd > 0 {
            let acquires = |want: &&Want| matches!(want, Want::Acquire(_));
            let count = wants.iter().filter(acquires).count();
            actions.extend((0..count).map(|nth| Action::ExecuteOddly(at, Number::try_from(nth).unwrap())));
        }
    }
    if left.full > 0 {
        let is_ready = |(_, flusher): &(usize, &Option<super::state::Flusher>)| {
            flusher.as_ref().is_some_and(|flusher| flusher.step == Step::Ready)
        };
        actions.extend(state.flushers.iter().enumerate().filter(is_ready).map(|(at, _)| Action::Full(at)));
    }
    let is_under_way = |message: &&Message| !message.is_keepers && !message.is_unsent && message.outcome.is_none();
    let unexecuted = state.wire.iter().filter(is_under_way).count();
    if state.is_down {
        actions.push(Action::Up);
    }
    if left.cuts > 0 && !state.is_down {
        actions.extend((0..=unexecuted).map(Action::Cut));
    }
    if left.ends > 0 {
        actions.extend((0..=unexecuted).map(Action::End));
    }
}

impl State {
    /// The next moment at which anything is due.
    pub(super) fn next_moment(&self) -> Option<Time> {
        let heard = self.wire.iter().filter(|message| message.hearer.is_some());
        let waits =
            |flusher: &&super::state::Flusher| self.is_down && matches!(flusher.step, Step::Ready | Step::Again);
        let flushers = self.flushers.iter().flatten().filter(waits).map(|flusher| flusher.began + LIMIT);
        heard.map(|message| message.until).chain(self.sweeps).chain(flushers).filter(|&moment| moment > self.now).min()
    }

    fn told_of(&self, at: usize) -> String {
        let Some(Message { what, outcome, .. }) = self.wire.get(at) else { return String::new() };
        let what = match what {
            Payload::Acquire(claim) => format!("the lone acquire of {}", claim.token.label()),
            Payload::Release(claim) => format!("the lone release of {}", claim.token.label()),
            Payload::Batch(wants) => {
                let each = |want: &Want| match want {
                    Want::Acquire(AcquireRequest { claim, .. }) => format!("acquire of {}", claim.token.label()),
                    Want::Release(claim) => format!("release of {}", claim.token.label()),
                };
                format!("the batch [{}]", wants.iter().map(each).collect::<Vec<_>>().join(", "))
            }
        };
        match outcome {
            Some(Outcome::Failed(failure)) => format!("{what} ({failure})"),
            Some(outcome) => format!("{what} ({outcome:?})"),
            None => what,
        }
    }

    /// Describes an action, for people.
    pub(super) fn tell(&self, action: Action) -> String {
        match action {
            Action::Hear(at) => format!("the answer to {} is heard", self.told_of(at)),
            Action::Execute(at) => format!("{} is executed", self.told_of(at)),
            Action::ExecuteOddly(at, nth) => {
                format!("{} is executed, acquire {nth} is answered with \"alone\"", self.told_of(at))
            }
            Action::Hand(at) => format!("{} is sent", self.told_of(at)),
            Action::Forget(at) => format!("{} finds no script", self.told_of(at)),
            Action::Refuse(at) => format!("{} is refused", self.told_of(at)),
            Action::Expire(at) => format!("{} is waited for no longer", self.told_of(at)),
            action => action.to_string(),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str(TIME_PASSES),
            Self::Begin(number) => write!(f, "caller {number} wants its lock"),
            Self::LetGo(number) => write!(f, "caller {number} releases"),
            Self::Decide(number) => write!(f, "caller {number} has it from the other nodes, and releases"),
            Self::Drop(number) => write!(f, "caller {number} gives up"),
            Self::Look((number, nth)) => write!(f, "caller {number} reads what it was told about its request {nth}"),
            Self::Take(flusher) => write!(f, "flusher {flusher} takes what waits"),
            Self::Send(flusher) => write!(f, "flusher {flusher} sends it"),
            Self::Full(flusher) => write!(f, "flusher {flusher} finds that the connection takes nothing"),
            Self::GoOn(flusher) => write!(f, "flusher {flusher} looks whether more waits"),
            Self::GiveUp(flusher) => write!(f, "flusher {flusher} waits for a link no longer"),
            Self::Up => f.write_str("there is a link again"),
            Self::Sweep => f.write_str("the sweeper looks"),
            Self::Cut(more) => write!(f, "the connection is cut, {more} more were executed"),
            Self::End(more) => write!(f, "the runtime of the connection ends, {more} more were executed"),
            other => write!(f, "{other:?}"),
        }
    }
}
