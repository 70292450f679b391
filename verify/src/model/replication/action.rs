//! The actions that are possible in a state.

use super::{
    Heir, Run, Setup,
    state::{Driver, Session, State},
};
use crate::model::state::Number;

/// One action. Messages are identified by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Time passes, until something is due.
    Pass,
    Begin(usize),
    LetGo(usize, Number),
    /// A lease is due for a check by the clock.
    Look(usize, Number),
    /// The wait for replicas times out.
    GiveUp(usize, Number),
    /// A request arrives and is answered.
    Arrive(usize),
    /// An answer is heard.
    Hear(usize),
    /// The driver of a connection takes its next step.
    Drive(usize),
    /// The server answers its `WAIT`.
    Count(usize),
    /// The count is heard.
    HearCount(usize),
    /// Others have written something on a connection, and have heard the answer.
    Other(usize),
    /// Their wait for replicas times out.
    GiveUpOther(usize),
    Replicate(usize),
    /// This replica takes over.
    Promote(usize, Break),
    /// The old primary hears of the takeover, or is up again, and becomes a replica.
    StepDown(usize, Break),
    /// A replica hears of the takeover.
    Follow(usize),
    /// A connection has another link.
    Relink(usize, Break),
}

/// How a link with requests under way breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Break {
    /// Its answers are still heard.
    pub(super) is_heard: bool,
    /// Requests without an answer are sent again, so their outcome is not unknown.
    pub(super) is_repeated: bool,
}

const BREAKS: [Break; 4] = [
    Break { is_heard: false, is_repeated: false },
    Break { is_heard: false, is_repeated: true },
    Break { is_heard: true, is_repeated: false },
    Break { is_heard: true, is_repeated: true },
];

/// Collects the actions that are possible now.
pub(super) fn possible(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    let (now, is_closing) = (setup.clients.shows(state.now), state.is_closing(setup));
    let mut is_urgent = !state.net.is_empty();
    for (at, message) in state.net.iter().enumerate() {
        if message.answer.is_some() {
            actions.push(Action::Hear(at));
        } else if state.is_first(at) {
            actions.push(Action::Arrive(at));
        }
    }
    for (at, connection) in state.connections.iter().enumerate() {
        match connection.driver {
            Driver::Due(due) if due <= now => {
                is_urgent = true;
                actions.push(Action::Drive(at));
            }
            Driver::Waits(wait) if wait.counted.is_some() => {
                is_urgent = true;
                actions.push(Action::HearCount(at));
            }
            Driver::Waits(wait) => {
                let is_over = wait.until <= now;
                is_urgent |= is_over;
                if is_over || state.count(wait.server, wait.of) >= u32::from(setup.wanted) {
                    actions.push(Action::Count(at));
                }
            }
            Driver::Due(_) | Driver::Off => {}
        }
        if connection.others.iter().any(|(_, until)| *until <= now) {
            is_urgent = true;
            actions.push(Action::GiveUpOther(at));
        }
    }
    for (me, client) in state.clients.iter().enumerate() {
        for session in &client.sessions {
            let number = session.number;
            let waiting = session.errands.iter().filter_map(|errand| errand.waiting.as_ref());
            if waiting.into_iter().any(|waiting| waiting.until <= now) {
                is_urgent = true;
                actions.push(Action::GiveUp(me, number));
            }
            if session.acquisition.is_held() {
                if session.acquisition.next_tick().is_some_and(|look| look <= now) {
                    is_urgent = true;
                    actions.push(Action::Look(me, number));
                }
                is_urgent |= is_closing;
                actions.push(Action::LetGo(me, number));
            }
        }
        // The clients are alike, so letting the first one begin first leaves nothing out.
        let may_be_first = me == 0 || state.clients.iter().any(|client| client.begun > 0);
        let is_idle = client.sessions.iter().all(|session: &Session| !session.is_on());
        if !is_closing && is_idle && client.begun < setup.attempts[me] && may_be_first {
            actions.push(Action::Begin(me));
        }
    }
    // At the close no fault happens, and the order of the other actions does not matter.
    if is_closing {
        actions.truncate(1);
    } else {
        befalling(setup, state, actions);
    }
    if !is_urgent && (!is_closing || state.next_moment(setup).is_some()) {
        actions.push(Action::Pass);
    }
}

/// Collects what may happen to the servers and the links.
fn befalling(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    let foremost =
        || state.servers.iter().filter(|server| server.follows == Some(state.primary)).map(|it| it.has).max();
    for (at, server) in state.servers.iter().enumerate() {
        match server.follows {
            Some(of) => {
                let leader = &state.servers[of];
                if leader.is_up && (server.has != leader.written || server.store != leader.store) {
                    actions.push(Action::Replicate(at));
                }
                let may_lead = setup.heir == Heir::Any || Some(server.has) == foremost();
                if state.primary == 0 && of == 0 && may_lead {
                    actions.extend(state.breaks_of(0).map(|how| Action::Promote(at, how)));
                } else if of != state.primary {
                    actions.push(Action::Follow(at));
                }
            }
            None if at != state.primary => {
                actions.extend(state.breaks_of(at).map(|how| Action::StepDown(at, how)));
            }
            None => {}
        }
    }
    for (at, connection) in state.connections.iter().enumerate() {
        if state.breaks > 0 || connection.leads != state.primary {
            actions.extend(state.breaks_of(connection.leads).map(|how| Action::Relink(at, how)));
        }
        if state.others > 0 {
            actions.push(Action::Other(at));
        }
    }
}

impl State {
    /// Whether a request is the first of those that its client has just sent.
    fn is_first(&self, at: usize) -> bool {
        let mut others = self.net.iter().take(at).filter(|other| other.answer.is_none());
        !others.any(|other| other.owner.0 == self.net[at].owner.0)
    }

    /// The ways in which the links to a server may break, as far as they make a difference.
    fn breaks_of(&self, server: usize) -> impl Iterator<Item = Break> {
        let leads = |connection: usize| self.connections[connection].leads == server;
        let mut messages = self.net.iter().filter(|message| leads(message.connection));
        let (mut has_answers, mut has_requests) = (false, false);
        for message in &mut messages {
            has_answers |= message.answer.is_some();
            has_requests |= message.answer.is_none();
        }
        has_answers |= self.connections.iter().any(|connection| {
            connection.leads == server && matches!(connection.driver, Driver::Waits(wait) if wait.counted.is_some())
        });
        // A request whose answer is not heard is sent again too.
        let may_repeat = has_answers || has_requests;
        BREAKS.into_iter().filter(move |how| (has_answers || !how.is_heard) && (may_repeat || !how.is_repeated))
    }
}

impl Action {
    /// Performs the action.
    pub(super) fn take(self, run: &mut Run<'_>) -> Option<()> {
        match self {
            Self::Pass => run.pass()?,
            Self::Begin(me) => run.begin(me),
            Self::LetGo(me, number) => run.let_go(me, number),
            Self::Look(me, number) => run.look(me, number),
            Self::GiveUp(me, number) => run.give_up(me, number),
            Self::Arrive(at) => run.arrive(at),
            Self::Hear(at) => run.hear(at),
            Self::Drive(at) => run.drive(at),
            Self::Count(at) => run.count(at),
            Self::HearCount(at) => run.hear_count(at),
            Self::Other(at) => run.other(at),
            Self::GiveUpOther(at) => run.give_up_other(at),
            Self::Replicate(at) => run.replicate(at),
            Self::Promote(at, how) => run.promote(at, how),
            Self::StepDown(at, how) => run.step_down(at, how),
            Self::Follow(at) => run.follow(at),
            Self::Relink(at, how) => run.relink(at, how),
        }
        run.state.tidy();
        Some(())
    }
}
