//! The library's code around a request, written again.

use std::mem::take;

use leasehold_protocol::{
    combiner::{Entry, Want},
    failure::Failure,
    fence::Fence,
    message::Request,
};

use super::{
    LIMIT, OWN_ERROR, RELEASED_ONCE, Run,
    run::unsent,
    state::{Ask, Hearer, Message, Number, Outcome, Payload, Place, Said, Stage, Step, Ticket, What},
};
use crate::seeded::SeededBug;

impl Run<'_> {
    /// Sends a request to the node, on the connection of its caller's runtime.
    pub(super) fn request(&mut self, number: Number, what: What) {
        let (now, fence) = (self.state.now, self.state.session(number).fence);
        let ticket = self.ticket(number);
        let ask = |place| Ask { ticket, what, entered: now, place };
        let request = self.setup.request(number, what, fence);
        let want = match (Want::of(&request), &request) {
            (None, Request::Release { claim, .. }) if self.setup.has(SeededBug::UndosTravel) => {
                Some(Want::Release(claim.clone()))
            }
            (want, _) => {
                let is_of_vote = self.setup.votes && !self.setup.has(SeededBug::OnlyUndosWithdraw);
                if Want::undone_by(&request, is_of_vote).is_some() {
                    self.withdraw(number);
                }
                want
            }
        };
        let Some(want) = want else {
            self.state.session(number).asks.push(ask(Place::Flies { is_counted: false }));
            self.send_alone(ticket, false);
            return;
        };
        match self.state.combiner.enter(now, LIMIT, || (want, ticket)) {
            Entry::Alone => {
                self.state.moved = now;
                if self.setup.votes {
                    self.state.combiner.may_set_aside(self.setup.tokens[usize::from(number)].clone());
                }
                self.state.session(number).asks.push(ask(Place::Flies { is_counted: true }));
                self.send_alone(ticket, false);
            }
            Entry::Queued(at) => {
                self.state.session(number).asks.push(ask(Place::Waits));
                let planned = self.state.sweeps;
                let earlier = planned.map_or(at, |planned| planned.min(at));
                let is_woken = !self.setup.has(SeededBug::SweeperNotWoken);
                self.state.sweeps = Some(if is_woken { earlier } else { planned.unwrap_or(at) });
            }
            Entry::Full => {
                self.state.session(number).asks.push(ask(Place::Told(Err(unsent()))));
            }
        }
    }

    /// The other nodes have given the caller its lock (`Round::won`), and it releases the lock.
    pub(super) fn decided(&mut self, number: Number) {
        let session = self.state.session(number);
        (session.stage, session.is_late) = (Stage::Releasing, true);
        session.fence = Some(Fence::try_from(1_u64).unwrap());
        self.end_of_lone_flight(number);
        self.request(number, What::Release);
    }

    fn ticket(&mut self, number: Number) -> Ticket {
        let session = self.state.session(number);
        session.asked += 1;
        (number, session.asked)
    }

    /// Withdraws an acquire that is being taken back.
    fn withdraw(&mut self, number: Number) {
        let session = self.state.session(number);
        let waits = |ask: &&Ask| ask.what == What::Acquire && ask.place == Place::Waits;
        if let Some(ticket) = session.asks.iter().find(waits).map(|ask| ask.ticket) {
            let is_in_the_air = self.state.flushers.iter().flatten().any(|flusher| flusher.carries(ticket));
            self.state.session(number).is_taken_back |= !is_in_the_air;
        }
        if self.setup.has(SeededBug::NothingWithdrawn) {
            return;
        }
        let withdrawn = self.state.combiner.withdraw(&self.setup.tokens[usize::from(number)]);
        self.tell_all(withdrawn, &Err(unsent()));
    }

    /// The caller stops waiting, so its requests are taken back (`Drop` of `Round`, and of `Dropped`).
    pub(super) fn give_up(&mut self, number: Number) {
        let session = self.state.session(number);
        let stage = std::mem::replace(&mut session.stage, Stage::Over);
        match stage {
            // A task waits for the vote that is still to come.
            Stage::Acquiring => session.is_dropped = true,
            Stage::Releasing => {
                // The wait for a late vote continues to its end.
                let is_vote = |ask: &Ask| ask.what == What::Acquire;
                let (votes, asks) = take(&mut session.asks).into_iter().partition(is_vote);
                session.asks = votes;
                let asks: Vec<Ask> = asks;
                for ask in asks {
                    self.drop_future(&ask);
                }
                if self.state.session(number).is_late {
                    // Requests that wait for their turn are not sent, and the undo uses the keeper's connection.
                    self.may_be_unsent(number);
                    return self.undo_again(number);
                }
            }
            Stage::Idle | Stage::Held | Stage::Over => {}
        }
        self.request(number, What::Undo);
    }

    fn drop_future(&mut self, ask: &Ask) {
        let mine = Some(Hearer::Ask(ask.ticket));
        if let Some(at) = self.state.wire.iter().position(|message| message.hearer == mine) {
            self.state.wire[at].hearer = None;
            if self.state.wire[at].outcome.is_some() || self.state.wire[at].is_unsent {
                self.state.wire.remove(at);
            }
        }
        if ask.place == (Place::Flies { is_counted: true }) && !self.setup.has(SeededBug::DroppedFlightStays) {
            self.end_of_lone_flight(ask.ticket.0);
        }
    }

    /// A caller reads its answer.
    pub(super) fn look(&mut self, ticket: Ticket) {
        let alone = Place::Flies { is_counted: false };
        let Some(ask) = self.state.ask(ticket) else { return };
        let Place::Told(told) = std::mem::replace(&mut ask.place, alone) else { return };
        match told {
            Ok(Some(said)) => self.answered(ticket, Ok(said)),
            Ok(None) if self.setup.has(SeededBug::AloneIsTheEnd) => self.answered(ticket, Err(unsent())),
            Ok(None) => {
                self.state.session(ticket.0).is_overtaken = true;
                self.send_alone(ticket, false);
            }
            Err(failure) => self.answered(ticket, Err(failure)),
        }
    }

    /// Takes the answer to a request.
    fn answered(&mut self, ticket: Ticket, answer: Result<Said, Failure>) {
        let session = self.state.session(ticket.0);
        let Some(at) = session.asks.iter().position(|ask| ask.ticket == ticket) else { return };
        let what = session.asks.remove(at).what;
        let may_have_happened = answer.as_ref().is_err_and(Failure::may_have_happened);
        let is_refused = answer.as_ref().is_err_and(Failure::is_refusal);
        match (what, answer) {
            (What::Acquire, Ok(Said::Granted { fence, .. })) if !session.is_dropped && !session.is_late => {
                session.fence = Some(fence);
                session.stage = Stage::Held;
            }
            // The release has taken back the vote if it came after it, and not otherwise.
            (What::Acquire, answer) if session.is_late => {
                let is_left = match answer {
                    Ok(Said::Granted { overtaken, .. }) => overtaken || session.is_overtaken,
                    Ok(_) => false,
                    Err(_) => may_have_happened,
                };
                if is_left && !self.setup.has(SeededBug::LateVoteStays) {
                    self.request(ticket.0, What::Undo);
                }
            }
            (What::Acquire, answer) => {
                session.stage = Stage::Over;
                if may_have_happened || matches!(answer, Ok(Said::Granted { .. })) {
                    self.request(ticket.0, What::Undo);
                }
            }
            (What::Release, Ok(said)) => {
                session.stage = Stage::Over;
                if said != Said::Released && !session.is_late {
                    self.state.broke(RELEASED_ONCE);
                }
            }
            (What::Release, Err(_)) => {
                session.stage = Stage::Over;
                self.may_be_unsent(ticket.0);
                self.undo_again(ticket.0);
            }
            (What::Undo, Ok(_)) => {}
            (What::Undo, Err(_)) => self.undo_again(ticket.0),
        }
        // The server refuses no request that comes alone.
        if is_refused {
            self.state.broke(OWN_ERROR);
        }
    }

    /// The release no longer shows that a late vote arrived before it.
    fn may_be_unsent(&mut self, number: Number) {
        self.state.session(number).is_overtaken |= !self.setup.has(SeededBug::ReleaseTakenForSent);
    }

    /// The second request uses the keeper's connection, where requests are not combined.
    fn undo_again(&mut self, number: Number) {
        let ticket = self.ticket(number);
        let (entered, place) = (self.state.now, Place::Flies { is_counted: false });
        self.state.session(number).asks.push(Ask { ticket, what: What::Undo, entered, place });
        self.withdraw(number);
        self.send_alone(ticket, true);
    }

    fn send_alone(&mut self, ticket: Ticket, is_keepers: bool) {
        let fence = self.state.session(ticket.0).fence;
        let claim = self.setup.claim(ticket.0, fence);
        let Some(what) = self.state.ask(ticket).map(|ask| ask.what) else { return };
        let what = if what == What::Acquire { Payload::Acquire(claim) } else { Payload::Release(claim) };
        let outcome = (self.state.has_ended && !is_keepers).then(|| Outcome::Failed(unsent()));
        let is_unsent = self.state.is_down && !is_keepers && outcome.is_none();
        let (hearer, until) = (Some(Hearer::Ask(ticket)), self.state.now + LIMIT);
        self.state.wire.push(Message { what, hearer, is_keepers, is_unsent, until, outcome });
    }

    pub(super) fn hear(&mut self, hearer: Hearer, outcome: Outcome) {
        match hearer {
            Hearer::Ask(ticket) => {
                let place = self.state.ask(ticket).map(|ask| ask.place.clone());
                if place == Some(Place::Flies { is_counted: true }) {
                    self.end_of_lone_flight(ticket.0);
                }
                match outcome {
                    Outcome::One(said) => self.answered(ticket, Ok(said)),
                    Outcome::Failed(failure) => self.answered(ticket, Err(failure)),
                    Outcome::Batch(_) | Outcome::Forgotten => {}
                }
            }
            Hearer::Flusher(at) if outcome == Outcome::Forgotten => {
                let flusher = self.flusher(at);
                (flusher.step, flusher.overtaken) = (Step::Again, true);
            }
            Hearer::Flusher(at) => self.landed(at, outcome),
        }
    }
}
