//! The actions that are possible in a state, and how they are described.

use leasehold_protocol::tally::Nodes;

use super::{
    Run, Setup,
    state::{Client, Content, Kind, Message, Number, Owner, Session, State},
};

/// One action. Those that need no fault come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Time passes, until something is due.
    Pass,
    Begin(usize),
    LetGo(usize, Number),
    /// A lease becomes a ticket, which may be adopted.
    HandOver(usize, Number),
    Adopt(usize, Owner),
    /// A lease is due for a check by the clock.
    Check(usize, Number),
    /// The work under a lease reports progress.
    Progress(usize, Number),
    /// The wait for an answer times out.
    Expire(usize, Number),
    /// A message arrives, and its answer is heard at once.
    Arrive(Place),
    /// A request arrives, and the reply is late.
    ReplyIsLate(Place, Notice),
    RequestIsLate(Place, Notice),
    /// A request arrives, and will arrive again.
    ArriveTwice(Place),
    Die(usize),
    Pause(usize),
    Resume(usize),
    /// A client is cut off from these nodes.
    Cut(usize, Nodes),
    Restart(usize, Memory),
    Step(usize),
}

/// A message, by its place on the net; the other fields are for descriptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) owner: Owner,
    pub(super) node: usize,
    pub(super) kind: Kind,
    pub(super) is_reply: bool,
}

/// The notice that a client gets of a message that does not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    Nothing,
    /// The connection is reset.
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Kept,
    Lost,
}

/// Collects the actions that are possible now.
pub(super) fn possible(setup: &Setup, state: &State, actions: &mut Vec<Action>) {
    let is_closing = state.is_closing(setup);
    let mut is_urgent = false;
    for (at, message) in state.net.iter().enumerate() {
        is_urgent |= message.is_urgent();
        let place = || Place::of(at, message);
        if message.is_urgent() && !state.is_first(at) {
            continue;
        }
        actions.push(Action::Arrive(place()));
        if is_closing || matches!(message.content, Content::Reply(_)) {
            continue;
        }
        if state.left.late > 0 {
            for notice in [Notice::Nothing, Notice::Reset] {
                actions.push(Action::ReplyIsLate(place(), notice));
                if message.is_urgent() {
                    actions.push(Action::RequestIsLate(place(), notice));
                }
            }
        }
        if state.left.doubled > 0 && message.is_urgent() {
            actions.push(Action::ArriveTwice(place()));
        }
    }
    let now = setup.clients.shows(state.now);
    for (me, client) in state.clients.iter().enumerate() {
        if client.is_paused {
            is_urgent |= is_closing;
            actions.push(Action::Resume(me));
            continue;
        }
        for session in &client.sessions {
            let number = session.number;
            if session.requests.iter().any(|request| request.until <= now) {
                is_urgent = true;
                actions.push(Action::Expire(me, number));
            }
            if session.acquisition.is_held() {
                if session.acquisition.next_tick().is_some_and(|look| look <= now) {
                    is_urgent = true;
                    actions.push(Action::Check(me, number));
                }
                is_urgent |= is_closing;
                if setup.stalls_after.is_some() && state.reported < setup.reports && !is_closing {
                    actions.push(Action::Progress(me, number));
                }
                if !state.is_sending(me) {
                    actions.push(Action::LetGo(me, number));
                    if setup.hands_over && state.ticket.is_none() {
                        actions.push(Action::HandOver(me, number));
                    }
                }
            }
        }
        // The clients are alike, so letting the first one begin first leaves nothing out.
        let may_be_first = me == 0 || state.clients.iter().any(|client| client.begun > 0);
        if !is_closing && client.is_idle() && client.begun < setup.attempts[me] && may_be_first {
            actions.push(Action::Begin(me));
            actions.extend(state.ticket.map(|ticket| Action::Adopt(me, ticket)));
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

fn faults(state: &State, actions: &mut Vec<Action>) {
    let left = &state.left;
    for (me, client) in state.clients.iter().enumerate() {
        if left.deaths > 0 && !client.sessions.is_empty() {
            actions.push(Action::Die(me));
        }
        if left.pauses > 0 && !client.is_paused && !client.sessions.is_empty() {
            actions.push(Action::Pause(me));
        }
        if left.cuts > 0 && client.cut.is_empty() && client.sessions.iter().any(Session::is_on) {
            let nodes = state.servers.len();
            let majority = |spared: usize| (0..nodes).filter(|&node| nodes == 1 || node != spared).collect();
            actions.extend((0..nodes).map(|spared| Action::Cut(me, majority(spared))));
        }
    }
    for node in 0..state.servers.len() {
        if left.amnesias > 0 {
            actions.push(Action::Restart(node, Memory::Lost));
        }
        if left.restarts > 0 {
            actions.push(Action::Restart(node, Memory::Kept));
        }
        if left.steps > 0 {
            actions.push(Action::Step(node));
        }
    }
}

impl State {
    /// Whether a request is the first of those that its client has just sent.
    fn is_first(&self, at: usize) -> bool {
        let client = |message: &Message| message.owner.0;
        let others = self.net.iter().take(at).filter(|other| other.is_urgent());
        !self.net.get(at).is_some_and(|message| others.map(client).any(|other| other == client(message)))
    }

    fn is_sending(&self, me: usize) -> bool {
        self.net.iter().any(|message| message.is_urgent() && usize::from(message.owner.0) == me)
    }
}

impl Place {
    fn of(at: usize, message: &Message) -> Self {
        let is_reply = matches!(message.content, Content::Reply(_));
        Self { at, owner: message.owner, node: message.node, kind: message.kind, is_reply }
    }
}

impl Action {
    /// Performs the action.
    pub(super) fn take(self, run: &mut Run<'_>) -> Option<()> {
        match self {
            Self::Pass => run.pass()?,
            Self::Begin(me) => run.begin(me, None),
            Self::HandOver(me, number) => run.hand_over(me, number),
            Self::Adopt(me, ticket) => run.begin(me, Some(ticket)),
            Self::LetGo(me, number) => run.let_go(me, number),
            Self::Check(me, number) => run.look(me, number),
            Self::Progress(me, number) => run.progress(me, number),
            Self::Expire(me, number) => run.expire(me, number),
            Self::Arrive(place) => run.deliver(place.at, false),
            fault => {
                run.disturb();
                fault.go_wrong(run);
            }
        }
        run.state.tidy();
        Some(())
    }

    fn go_wrong(self, run: &mut Run<'_>) {
        let left = &mut run.state.left;
        match self {
            Self::ReplyIsLate(place, notice) => {
                left.late -= 1;
                let message = run.state.net[place.at].clone();
                run.deliver(place.at, true);
                if notice == Notice::Reset {
                    run.break_off(&message);
                }
            }
            Self::RequestIsLate(place, notice) => {
                left.late -= 1;
                run.state.net[place.at].be_late();
                if notice == Notice::Reset {
                    let message = run.state.net[place.at].clone();
                    run.break_off(&message);
                }
            }
            Self::ArriveTwice(place) => {
                left.doubled -= 1;
                let mut copy = run.state.net[place.at].clone();
                copy.be_late();
                run.state.net.push(copy);
                run.deliver(place.at, false);
            }
            Self::Die(me) => {
                left.deaths -= 1;
                let client = &run.state.clients[me];
                run.state.clients[me] = Client::new(run.state.servers.len(), client.begun);
                run.state.net.retain(|message| {
                    usize::from(message.owner.0) != me || !matches!(message.content, Content::Reply(_))
                });
            }
            Self::Pause(me) => {
                left.pauses -= 1;
                run.state.clients[me].is_paused = true;
            }
            Self::Resume(me) => run.state.clients[me].is_paused = false,
            Self::Cut(me, nodes) => {
                left.cuts -= 1;
                run.state.clients[me].cut = nodes;
                let is_cut = |message: &Message| {
                    usize::from(message.owner.0) == me && nodes.iter().any(|node| node == message.node)
                };
                run.state.net.retain(|message| !is_cut(message));
            }
            Self::Restart(node, memory) => {
                match memory {
                    Memory::Kept => left.restarts -= 1,
                    Memory::Lost => left.amnesias -= 1,
                }
                run.restart(node, memory == Memory::Lost);
            }
            Self::Step(node) => {
                left.steps -= 1;
                run.step(node);
            }
            _ => {}
        }
    }
}

impl Message {
    fn be_late(&mut self) {
        if let Content::Request { is_late, .. } = &mut self.content {
            *is_late = true;
        }
    }
}
