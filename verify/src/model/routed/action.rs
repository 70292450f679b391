//! The actions that are possible in a state.

use super::{
    Handover, Run, Setup,
    atlas::News,
    state::{Content, Session, State},
};
use crate::model::{action::Notice, state::Number};

/// One action. Messages are identified by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Action<E> {
    /// Time passes, until something is due.
    Pass,
    Begin(usize),
    LetGo(usize, Number),
    /// A lease is due for a check by the clock.
    Look(usize, Number),
    /// The wait for an answer times out.
    Expire(usize, Number),
    /// A message arrives, and its answer is heard at once.
    Arrive(usize),
    /// A client asks others for the owner of the slot, because an answer has counted.
    Ask(usize),
    /// A client asks others for another reason.
    Doubt(usize),
    /// A client hears a view that is late.
    Hear(usize),
    Befall(E),
    /// A request arrives, and the reply is late.
    ReplyIsLate(usize, Notice),
    RequestIsLate(usize, Notice),
    /// The answer of the others is late.
    ViewIsLate(usize),
}

/// Collects the actions that are possible now.
pub(super) fn possible<H: Handover>(setup: &Setup<H>, state: &State<H>, actions: &mut Vec<Action<H::Event>>) {
    let is_closing = state.is_closing(setup);
    let mut is_urgent = false;
    for (at, message) in state.net.iter().enumerate() {
        is_urgent |= message.is_urgent();
        if message.is_urgent() && !state.is_first(at) {
            continue;
        }
        actions.push(Action::Arrive(at));
        if is_closing || message.is_reply() || state.late.0 == 0 {
            continue;
        }
        for notice in [Notice::Nothing, Notice::Reset] {
            actions.push(Action::ReplyIsLate(at, notice));
            if message.is_urgent() {
                actions.push(Action::RequestIsLate(at, notice));
            }
        }
    }
    actions.extend((0..state.views.len()).map(Action::Hear));
    let now = setup.clients.shows(state.now);
    for (me, client) in state.clients.iter().enumerate() {
        if state.check_due(me) <= now {
            is_urgent = true;
            actions.push(Action::Ask(me));
            if state.late.1 > 0 && !is_closing {
                actions.push(Action::ViewIsLate(me));
            }
        } else if setup.atlas.after(client.topology, &News::View(state.handover.view())).topology != client.topology {
            actions.push(Action::Doubt(me));
        }
        for session in &client.sessions {
            let number = session.number;
            if session.errands.iter().any(|errand| errand.until <= now) {
                is_urgent = true;
                actions.push(Action::Expire(me, number));
            }
            if session.acquisition.is_held() {
                if session.acquisition.next_tick().is_some_and(|look| look <= now) {
                    is_urgent = true;
                    actions.push(Action::Look(me, number));
                }
                is_urgent |= is_closing;
                if !state.is_sending(me) {
                    actions.push(Action::LetGo(me, number));
                }
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
        let mut events = Vec::new();
        state.handover.possible(&state.scene(setup), &mut events);
        actions.extend(events.into_iter().map(Action::Befall));
    }
    if !is_urgent && (!is_closing || state.next_moment(setup).is_some()) {
        actions.push(Action::Pass);
    }
}

impl<H: Handover> State<H> {
    /// Whether a request is the first of those that its client has just sent.
    fn is_first(&self, at: usize) -> bool {
        let mut others = self.net.iter().take(at).filter(|other| other.is_urgent());
        !self.net.get(at).is_some_and(|message| others.any(|other| other.owner.0 == message.owner.0))
    }

    fn is_sending(&self, me: usize) -> bool {
        self.net.iter().any(|message| message.is_urgent() && usize::from(message.owner.0) == me)
    }
}

impl<E> Action<E> {
    /// Performs the action.
    pub(super) fn take<H: Handover<Event = E>>(self, run: &mut Run<'_, H>) -> Option<()> {
        match self {
            Self::Pass => run.pass()?,
            Self::Begin(me) => run.begin(me),
            Self::LetGo(me, number) => run.let_go(me, number),
            Self::Look(me, number) => run.look(me, number),
            Self::Expire(me, number) => run.expire(me, number),
            Self::Arrive(at) => run.deliver(at, false),
            Self::Ask(me) => run.ask_others(me, false),
            Self::Doubt(me) => {
                let view = run.state.handover.view();
                run.see(me, view);
            }
            Self::Hear(at) => {
                let (me, view) = run.state.views.remove(at);
                run.see(usize::from(me), view);
            }
            Self::Befall(event) => run.befall(event),
            Self::ReplyIsLate(at, notice) => {
                run.state.late.0 -= 1;
                let message = run.state.net[at].clone();
                run.deliver(at, true);
                if notice == Notice::Reset {
                    run.break_off(&message);
                }
            }
            Self::RequestIsLate(at, notice) => {
                run.state.late.0 -= 1;
                run.state.net[at].content = Content::Request { is_late: true };
                if notice == Notice::Reset {
                    let message = run.state.net[at].clone();
                    run.break_off(&message);
                }
            }
            Self::ViewIsLate(me) => {
                run.state.late.1 -= 1;
                run.ask_others(me, true);
            }
        }
        run.state.tidy();
        Some(())
    }
}
