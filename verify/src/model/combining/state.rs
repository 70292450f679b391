//! The state of the world at one moment.

use leasehold_protocol::{
    combiner::{Batch, Combiner, Want},
    failure::Failure,
    fence::Fence,
    message::Claim,
    store::Store,
    time::Time,
};

/// A caller, and its token.
pub(super) type Number = u8;

/// A request: its caller, and its number among that caller's requests. The combiner identifies callers by it.
pub(super) type Ticket = (Number, u8);

#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct State {
    pub(super) now: Time,
    pub(super) combiner: Combiner<Ticket>,
    /// When the sweeper runs next, while there is one.
    pub(super) sweeps: Option<Time>,
    /// When the last flight began or landed.
    pub(super) moved: Time,
    pub(super) sessions: Vec<Session>,
    pub(super) flushers: Vec<Option<Flusher>>,
    /// The messages whose answers are not heard yet, in the order of their sending.
    pub(super) wire: Vec<Message>,
    pub(super) store: Store,
    /// There is no link, and the next one comes at any moment.
    pub(super) is_down: bool,
    /// The runtime of the connection has ended.
    pub(super) has_ended: bool,
    pub(super) left: Faults,
    /// The first rule that was broken.
    pub(super) broken: Option<&'static str>,
}

/// The most faults of each kind in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// Callers that drop their future, or their lease.
    pub(super) drops: u8,
    /// Connections that are cut; the next one comes at any moment.
    pub(super) cuts: u8,
    /// The runtime of the connection ends.
    pub(super) ends: u8,
    /// Servers that have forgotten the script.
    pub(super) forgotten: u8,
    /// Whole calls that are refused.
    pub(super) refused: u8,
    /// Acquires that are executed, and answered with "alone".
    pub(super) odd: u8,
    /// Times when the connection takes nothing.
    pub(super) full: u8,
}

/// A caller, from its acquire until no answer about its token is awaited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) stage: Stage,
    /// The fence, once it was granted to a caller that waited for it.
    pub(super) fence: Option<Fence>,
    /// Only a task that undoes a grant still waits for its acquire.
    pub(super) is_dropped: bool,
    /// The other nodes have decided without its vote.
    pub(super) is_late: bool,
    pub(super) asks: Vec<Ask>,
    pub(super) asked: u8,
    /// A later request may arrive before its acquire.
    pub(super) is_overtaken: bool,
    /// The acquire was taken back while it waited.
    pub(super) is_taken_back: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    #[default]
    Idle,
    Acquiring,
    Held,
    Releasing,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum What {
    Acquire,
    Release,
    /// A release without a waiting caller: it is sent until it is answered.
    Undo,
}

/// A request whose answer is awaited.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub(super) ticket: Ticket,
    pub(super) what: What,
    pub(super) entered: Time,
    pub(super) place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// It is queued, and waits for its answer.
    Waits,
    /// Its caller has not read the answer yet.
    Told(Told),
    /// It is on its way alone, perhaps as a flight that the combiner counts.
    Flies { is_counted: bool },
}

/// The answer to a caller: its reply, or that it has to ask alone.
pub(super) type Told = Result<Option<Said>, Failure>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Said {
    Granted {
        fence: Fence,
        overtaken: bool,
    },
    Busy,
    Released,
    /// There is nothing to release.
    Denied,
}

/// A task that carries batches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Flusher {
    pub(super) step: Step,
    pub(super) batch: Option<Batch>,
    /// The callers of the batch, and whether each has had its answer since.
    pub(super) aboard: Vec<(Ticket, bool)>,
    pub(super) overtaken: bool,
    /// When it was about to take the waiting requests.
    pub(super) began: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// It is about to take the waiting requests.
    Ready,
    /// It has taken them, and is about to send them.
    Packed,
    Sent,
    /// The server does not know the script: it is about to send it again.
    Again,
    /// Its batch has landed.
    Landed,
}

impl Flusher {
    pub(super) fn carries(&self, ticket: Ticket) -> bool {
        self.aboard.iter().any(|(aboard, _)| *aboard == ticket)
    }
}

/// A message on its way to the server, or back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) what: Payload,
    /// The waiter for the answer, if there is one.
    pub(super) hearer: Option<Hearer>,
    /// Whether it is on the keeper's connection.
    pub(super) is_keepers: bool,
    /// Whether it waits for a link.
    pub(super) is_unsent: bool,
    /// When the wait for its answer ends.
    pub(super) until: Time,
    /// The outcome, once it is executed.
    pub(super) outcome: Option<Outcome>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Payload {
    Acquire(Claim),
    Release(Claim),
    Batch(Vec<Want>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hearer {
    Ask(Ticket),
    Flusher(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Outcome {
    One(Said),
    /// The reply to each want; `None` for one that has to ask alone.
    Batch(Vec<Option<Said>>),
    /// The server does not know the script.
    Forgotten,
    Failed(Failure),
}

impl State {
    /// Normalises the state, so that two states that differ only in moments that are not read any more are equal.
    pub(super) fn tidy(&mut self) {
        let mut waits = false;
        for ask in self.sessions.iter_mut().flat_map(|session| &mut session.asks) {
            let is_waiting = ask.place == Place::Waits;
            waits |= is_waiting;
            ask.entered = if is_waiting { ask.entered } else { Time::ZERO };
        }
        self.moved = if waits { self.moved } else { Time::ZERO };
        for message in self.wire.iter_mut().filter(|message| message.hearer.is_none()) {
            message.until = Time::ZERO;
        }
        for flusher in self.flushers.iter_mut().flatten() {
            if !matches!(flusher.step, Step::Ready | Step::Again) {
                flusher.began = Time::ZERO;
            }
        }
    }

    pub(super) fn broke(&mut self, rule: &'static str) {
        self.broken.get_or_insert(rule);
    }

    pub(super) fn session(&mut self, number: Number) -> &mut Session {
        &mut self.sessions[usize::from(number)]
    }

    pub(super) fn ask(&mut self, ticket: Ticket) -> Option<&mut Ask> {
        self.session(ticket.0).asks.iter_mut().find(|ask| ask.ticket == ticket)
    }

    /// Whether a message is the next one that its connection's server executes.
    pub(super) fn is_next(&self, at: usize) -> bool {
        let message = &self.wire[at];
        let is_sent = |other: &Message| other.outcome.is_none() && !other.is_unsent;
        let is_before = |other: &Message| other.is_keepers == message.is_keepers && is_sent(other);
        is_sent(message) && !self.wire[..at].iter().any(is_before)
    }
}
