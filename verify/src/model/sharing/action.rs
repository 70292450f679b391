//! The actions that are possible in a state.

use leasehold_protocol::time::Time;

use super::{
    Run, Setup,
    state::{Content, Message, Session, Stage, State},
};
use crate::model::{
    action::{Memory, Notice},
    state::Number,
};

/// One action. Messages are identified by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Time passes, until something is due.
    Pass,
    Begin(usize),
    /// A waiter gives up.
    Cancel(usize, Number),
    /// It is time for a waiter to poll.
    Poll(usize, Number),
    /// It is time to check a lease.
    Look(usize, Number),
    LetGo(usize, Number),
    /// The holder that has the lock alone continues as a reader.
    Downgrade(usize, Number),
    /// The wait for an answer times out.
    Expire(usize, Number),
    /// A message arrives, and its answer is heard at once.
    Arrive(usize),
    /// A request arrives, and the reply is late.
    ReplyIsLate(usize, Notice),
    /// A request or a notification is late.
    IsLate(usize, Notice),
    /// A request arrives, and will arrive again.
    ArriveTwice(usize),
    Die(usize),
    Pause(usize),
    Resume(usize),
    Restart(Memory),
    Step,
}

/// Collects the actions that are possible now.
pub(super) fn possible(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    let (now, is_closing) = (setup.clients.shows(state.now), state.is_closing(setup));
    if let Some(message) = state.net.first().filter(|message| message.is_fresh()) {
        sending(state, message, is_closing, actions);
        return;
    }
    let mut is_urgent = false;
    for (at, message) in state.net.iter().enumerate() {
        let is_call = matches!(message.content, Content::Call(_));
        if state.clients[usize::from(message.owner.0)].is_paused && !matches!(message.content, Content::Request(_)) {
            continue;
        }
        is_urgent |= !message.is_late;
        actions.push(Action::Arrive(at));
        if is_call && !message.is_late && state.left.late > 0 && !is_closing {
            actions.push(Action::IsLate(at, Notice::Nothing));
        }
    }
    for (me, client) in state.clients.iter().enumerate() {
        if client.is_paused {
            is_urgent |= is_closing;
            actions.push(Action::Resume(me));
            continue;
        }
        for session in &client.sessions {
            is_urgent |= at_work(setup, state, (me, session), now, actions);
        }
        let is_idle = client.sessions.iter().all(|session| !session.is_on());
        let may_begin = !client.is_dead && is_idle && client.begun < setup.parts[me].attempts;
        if may_begin && !is_closing && state.comes_before_its_like(setup, me) {
            actions.push(Action::Begin(me));
        }
    }
    // At the close no fault happens, and the order of the other actions does not matter.
    if is_closing {
        actions.truncate(1);
    } else {
        faults(state, actions);
    }
    if !is_urgent && (!is_closing || state.next_moment(setup).is_some()) {
        actions.push(Action::Pass);
    }
}

/// Collects what may happen to a message that was just sent, or to its sender.
fn sending(state: &State, message: &Message, is_closing: bool, actions: &mut Vec<Action>) {
    let (left, me) = (&state.left, usize::from(message.owner.0));
    actions.push(Action::Arrive(0));
    if is_closing {
        return;
    }
    if left.late > 0 {
        for notice in [Notice::Nothing, Notice::Reset] {
            actions.extend([Action::ReplyIsLate(0, notice), Action::IsLate(0, notice)]);
        }
    }
    if left.doubled > 0 {
        actions.push(Action::ArriveTwice(0));
    }
    if left.deaths > 0 {
        actions.push(Action::Die(me));
    }
    if left.pauses > 0 {
        actions.push(Action::Pause(me));
    }
}

/// Collects what a client may do about one token, and returns whether some of it is due.
fn at_work(setup: &Setup, state: &State, of: (usize, &Session), now: Time, actions: &mut Vec<Action>) -> bool {
    let ((me, session), is_closing) = (of, state.is_closing(setup));
    let (number, before) = (session.number, actions.len());
    if session.requests.iter().any(|request| request.until <= now) {
        actions.push(Action::Expire(me, number));
    }
    if session.polls_at().is_some_and(|poll| poll <= now) {
        actions.push(Action::Poll(me, number));
    }
    if session.looks_at().is_some_and(|look| look <= now) {
        actions.push(Action::Look(me, number));
    }
    let mut is_due = actions.len() > before;
    if session.lease().is_some() {
        is_due |= is_closing;
        actions.push(Action::LetGo(me, number));
        if setup.parts[me].downgrades && !session.is_shared() && !is_closing {
            actions.push(Action::Downgrade(me, number));
        }
    }
    if state.cancels > 0 && matches!(session.stage, Stage::Waits { .. }) && !is_closing {
        actions.push(Action::Cancel(me, number));
    }
    is_due
}

fn faults(state: &State, actions: &mut Vec<Action>) {
    let left = &state.left;
    for (me, client) in state.clients.iter().enumerate() {
        if left.deaths > 0 && !client.sessions.is_empty() {
            actions.push(Action::Die(me));
        }
        if left.pauses > 0 && !client.is_paused && !client.sessions.is_empty() {
            actions.push(Action::Pause(me));
        }
    }
    if left.amnesias > 0 {
        actions.push(Action::Restart(Memory::Lost));
    }
    if left.restarts > 0 {
        actions.push(Action::Restart(Memory::Kept));
    }
    if left.steps > 0 {
        actions.push(Action::Step);
    }
}

impl State {
    /// Clients that want the same are alike, so letting them begin for the first time in their order leaves nothing
    /// out.
    fn comes_before_its_like(&self, setup: &Setup, me: usize) -> bool {
        let part = setup.parts[me];
        let is_like = |other: &usize| setup.parts[*other] == part && self.clients[*other].begun == 0;
        !(0..me).any(|other| is_like(&other))
    }
}

impl Action {
    /// Performs the action.
    pub(super) fn take(self, run: &mut Run<'_>) -> Option<()> {
        let left = &mut run.state.left;
        match self {
            Self::Pass => run.pass()?,
            Self::Begin(me) => run.begin(me),
            Self::Cancel(me, number) => run.cancel(me, number),
            Self::Poll(me, number) => run.poll(me, number),
            Self::Look(me, number) => run.look_at(me, number),
            Self::LetGo(me, number) => run.let_go(me, number),
            Self::Downgrade(me, number) => run.downgrade(me, number),
            Self::Expire(me, number) => run.expire(me, number),
            Self::Arrive(at) => run.deliver(at, false),
            Self::ReplyIsLate(at, notice) => {
                left.late -= 1;
                let Message { owner, nth, .. } = run.state.net[at];
                run.deliver(at, true);
                run.notice(owner, nth, notice);
            }
            Self::IsLate(at, notice) => {
                left.late -= 1;
                run.state.net[at].is_late = true;
                let Message { owner, nth, .. } = run.state.net[at];
                run.notice(owner, nth, notice);
            }
            Self::ArriveTwice(at) => {
                left.doubled -= 1;
                let copy = Message { is_late: true, ..run.state.net[at].clone() };
                run.state.net.push(copy);
                run.deliver(at, false);
            }
            Self::Die(me) => {
                left.deaths -= 1;
                run.die(me);
            }
            Self::Pause(me) => {
                left.pauses -= 1;
                run.pause(me);
            }
            Self::Resume(me) => run.state.clients[me].is_paused = false,
            Self::Restart(Memory::Kept) => {
                left.restarts -= 1;
                run.restart(false);
            }
            Self::Restart(Memory::Lost) => {
                left.amnesias -= 1;
                run.restart(true);
            }
            Self::Step => {
                left.steps -= 1;
                run.step();
            }
        }
        run.state.tidy();
        Some(())
    }
}
