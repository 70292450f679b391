//! The code of `src/node/redis/server/combining.rs` around the combiner, written again.

use std::{cell::RefCell, mem::take};

use leasehold_protocol::{
    combiner::{BatchVerdict, SweepOutcome, Want, after_failure},
    message::AcquireRequest,
};

use super::{
    ALL_OVERTAKEN, BATCH_IS_SMALL, LIMIT, NEVER_WITH_ITS_ACQUIRE, NOT_AFTER_ITS_ANSWER, Run, TAKEN_BACK, TOLD_ONCE,
    WAITS_FOR_A_LINK,
    run::{unknown, unsent},
    state::{Flusher, Hearer, Message, Number, Outcome, Payload, Place, Said, Step, Ticket, Told},
};
use crate::seeded::SeededBug;

impl Run<'_> {
    pub(super) fn tell_all(&mut self, tickets: impl IntoIterator<Item = Ticket>, told: &Told) {
        for ticket in tickets {
            self.tell(ticket, told.clone());
        }
    }

    pub(super) fn tell(&mut self, ticket: Ticket, told: Told) {
        for (aboard, is_answered) in self.state.flushers.iter_mut().flatten().flat_map(|flusher| &mut flusher.aboard) {
            *is_answered |= *aboard == ticket;
        }
        match self.state.ask(ticket) {
            Some(ask) if ask.place == Place::Waits => ask.place = Place::Told(told),
            Some(_) => self.state.broke(TOLD_ONCE),
            // Its future was dropped.
            None => {}
        }
    }

    /// `Drop` of `Flight`
    pub(super) fn end_of_lone_flight(&mut self, number: Number) {
        let now = self.state.now;
        if self.setup.votes && !self.state.combiner.set_aside(&self.setup.tokens[usize::from(number)]) {
            return;
        }
        self.state.moved = now;
        if self.state.combiner.goes_on(now) && !self.setup.has(SeededBug::FlightNotFollowed) {
            self.fly();
        }
    }

    fn fly(&mut self) {
        if self.state.has_ended {
            return self.crash(None);
        }
        self.state.moved = self.state.now;
        let flusher =
            Flusher { step: Step::Ready, batch: None, aboard: Vec::new(), overtaken: false, began: self.state.now };
        match self.state.flushers.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(flusher),
            None => self.state.flushers.push(Some(flusher)),
        }
    }

    /// `Drop` of `Flusher`
    pub(super) fn crash(&mut self, flusher: Option<Flusher>) {
        if self.setup.has(SeededBug::CrashUnnoticed) {
            return;
        }
        let batch = flusher.and_then(|flusher| flusher.batch);
        let (waiting, sent) = self.state.combiner.crash(batch.as_ref());
        self.tell_all(waiting, &Err(unsent()));
        self.tell_all(sent, &Err(unknown()));
    }

    /// Prepares a flusher right before it sends.
    pub(super) fn fill(&mut self, at: usize) {
        let now = self.state.now;
        let mut flusher = self.state.flushers[at].take().unwrap();
        if let Some(batch) = &mut flusher.batch {
            if !self.setup.has(SeededBug::SecondSendingOfAll) {
                self.state.combiner.keep_unanswered(batch);
                if batch.wants.len() < flusher.aboard.len() {
                    flusher.aboard.retain(|(_, is_answered)| !is_answered);
                }
            }
            let is_empty = batch.wants.is_empty();
            self.state.flushers[at] = Some(flusher);
            if is_empty {
                self.landed(at, Outcome::Failed(unsent()));
            } else {
                self.send(at);
            }
            return;
        }
        let aboard = RefCell::new(Vec::new());
        let sessions = &self.state.sessions;
        let is_open = |ticket: &Ticket| {
            let is_open = sessions[usize::from(ticket.0)].asks.iter().any(|ask| ask.ticket == *ticket);
            if is_open {
                aboard.borrow_mut().push((*ticket, false));
            }
            is_open
        };
        let (batch, late) = self.state.combiner.take(now, is_open);
        self.state.moved = now;
        // A full batch leaves requests behind.
        if let Some(at) = self.state.combiner.looks_at().filter(|_| !self.setup.has(SeededBug::LeftBehind)) {
            self.state.sweeps = Some(self.state.sweeps.map_or(at, |planned| planned.min(at)));
        }
        let step = if batch.is_some() { Step::Packed } else { Step::Landed };
        (flusher.step, flusher.aboard, flusher.batch) = (step, aboard.into_inner(), batch);
        flusher.overtaken = false;
        self.state.flushers[at] = Some(flusher);
        self.tell_all(late.into_iter().map(|(ticket, _)| ticket), &Err(unsent()));
        if step == Step::Packed && !self.setup.is_torn {
            self.send(at);
        }
    }

    pub(super) fn send(&mut self, at: usize) {
        let until = self.state.now + LIMIT;
        let is_down = self.state.is_down;
        let flusher = self.flusher(at);
        if is_down {
            // It was packed for a link that has ended.
            (flusher.step, flusher.overtaken) = (Step::Again, true);
            return;
        }
        flusher.step = Step::Sent;
        let wants = flusher.batch.as_ref().unwrap().wants.clone();
        let has_answers = flusher.aboard.iter().any(|(_, is_answered)| *is_answered);
        self.check(&wants, has_answers);
        let (what, hearer) = (Payload::Batch(wants), Some(Hearer::Flusher(at)));
        self.state.wire.push(Message { what, hearer, is_keepers: false, is_unsent: false, until, outcome: None });
    }

    /// Checks whether a batch may be sent.
    fn check(&mut self, wants: &[Want], has_answers: bool) {
        if has_answers {
            self.state.broke(NOT_AFTER_ITS_ANSWER);
        }
        if wants.len() > self.setup.batch {
            self.state.broke(BATCH_IS_SMALL);
        }
        for want in wants {
            let Want::Acquire(AcquireRequest { claim, .. }) = want else { continue };
            let releases = |want: &Want| matches!(want, Want::Release(other) if other.token == claim.token);
            if wants.iter().any(releases) {
                self.state.broke(NEVER_WITH_ITS_ACQUIRE);
            }
            if self.state.session(self.setup.session(&claim.token)).is_taken_back {
                self.state.broke(TAKEN_BACK);
            }
        }
    }

    /// A batch has landed, and its callers are notified.
    pub(super) fn landed(&mut self, at: usize, outcome: Outcome) {
        let flusher = self.flusher(at);
        flusher.step = Step::Landed;
        let (overtaken, aboard, batch) = (flusher.overtaken, take(&mut flusher.aboard), flusher.batch.take().unwrap());
        let mut callers = self.state.combiner.landed(&batch);
        if self.setup.has(SeededBug::AnsweredAgain) {
            callers = aboard.into_iter().map(|(ticket, _)| Some(ticket)).collect();
        }
        let mut replies = match outcome {
            Outcome::Batch(mut replies) => {
                if self.setup.has(SeededBug::RepliesOutOfOrder) {
                    replies.reverse();
                }
                Ok(replies.into_iter())
            }
            Outcome::Failed(failure) if self.setup.has(SeededBug::ErrorIsEverybodys) => {
                Err(BatchVerdict::Failed(failure))
            }
            Outcome::Failed(_) if self.setup.has(SeededBug::SilenceIsNobodys) => Err(BatchVerdict::Alone),
            Outcome::Failed(failure) => Err(after_failure(failure)),
            Outcome::One(_) | Outcome::Forgotten => return,
        };
        for (nth, caller) in callers.into_iter().enumerate() {
            let told = match &mut replies {
                Ok(replies) => Ok(replies.next().flatten()),
                Err(BatchVerdict::Alone) => Ok(None),
                Err(BatchVerdict::Failed(failure)) => Err(failure.clone()),
            };
            let is_said = overtaken && !(self.setup.has(SeededBug::OvertakenIsTheFirsts) && nth > 0);
            let told = told.map(|said| said.map(|said| overtaken_or_not(said, is_said)));
            if matches!(told, Ok(Some(Said::Granted { overtaken: is_said, .. })) if is_said != overtaken) {
                self.state.broke(ALL_OVERTAKEN);
            }
            self.tell_all(caller, &told);
        }
    }

    /// A flusher has found no link in time.
    pub(super) fn give_up_link(&mut self, at: usize) {
        let now = self.state.now;
        if self.flusher(at).step == Step::Again {
            return self.landed(at, Outcome::Failed(unsent()));
        }
        let has_bug = self.setup.has(SeededBug::AllTurnedAway);
        let flusher = self.flusher(at);
        flusher.step = Step::Landed;
        let began = if has_bug { now } else { flusher.began };
        let waiting = self.state.combiner.turn_away(began);
        for ticket in waiting {
            if self.state.ask(ticket).is_some_and(|ask| now < ask.entered + LIMIT) {
                self.state.broke(WAITS_FOR_A_LINK);
            }
            self.tell(ticket, Err(unsent()));
        }
    }

    pub(super) fn sweep(&mut self) {
        let SweepOutcome { unsent: late, unknown: silent, flies, next } = self.state.combiner.sweep(self.state.now);
        self.state.sweeps = next.filter(|_| !self.setup.has(SeededBug::SweeperStops));
        if flies && !self.setup.has(SeededBug::FlightNotStarted) {
            self.fly();
        }
        self.tell_all(late.into_iter().map(|(ticket, _)| ticket), &Err(unsent()));
        self.tell_all(silent.into_iter().map(|(ticket, _)| ticket), &Err(unknown()));
    }
}

fn overtaken_or_not(said: Said, overtaken: bool) -> Said {
    match said {
        Said::Granted { fence, .. } => Said::Granted { fence, overtaken },
        said => said,
    }
}
