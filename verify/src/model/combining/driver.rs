//! What `src/node/redis/combining.rs` does around the combiner, and what the library does around a request: written again.

use std::{cell::RefCell, mem::take};

use leasehold_protocol::{
    combiner::{Entry, Swept, Verdict, Want, after_failure},
    failure::Failure,
    message::Request,
};

use super::{
    ALL_OVERTAKEN, BATCH, BATCH_IS_SMALL, LIMIT, NEVER_WITH_ITS_ACQUIRE, NOT_AFTER_ITS_ANSWER, OWN_ERROR,
    RELEASED_ONCE, RELEASES_FIRST, Setup, TAKEN_BACK, TOLD_ONCE, WAITS_FOR_A_LINK,
    action::Action,
    server,
    state::{
        Ask, Flusher, Hearer, Message, Number, Outcome, Payload, Place, Said, Stage, State, Step, Ticket, Told, What,
    },
};
use crate::seeded::SeededBug;

/// A state on its way to the next one.
pub(super) struct Run<'a> {
    pub(super) setup: &'a Setup,
    pub(super) state: State,
}

impl Run<'_> {
    pub(super) fn take(&mut self, action: Action) {
        match action {
            Action::Pass => self.state.now = self.state.next_moment().unwrap_or(self.state.now),
            Action::Begin(number) => {
                self.state.session(number).stage = Stage::Acquiring;
                self.request(number, What::Acquire);
            }
            Action::LetGo(number) => {
                self.state.session(number).stage = Stage::Releasing;
                self.request(number, What::Release);
            }
            Action::Drop(number) => {
                self.state.left.drops -= 1;
                self.give_up(number);
            }
            Action::Look(ticket) => self.look(ticket),
            Action::Execute(at) => self.execute(at, None),
            Action::ExecuteOddly(at, nth) => {
                self.state.left.odd -= 1;
                self.execute(at, Some(nth));
            }
            Action::Forget(at) => {
                self.state.left.forgotten -= 1;
                self.conclude(at, Outcome::Forgotten);
            }
            Action::Refuse(at) => {
                self.state.left.refused -= 1;
                self.conclude(at, Outcome::Failed(Failure::refused("refused")));
            }
            Action::Hear(at) => {
                let Message { hearer, outcome, .. } = self.state.wire.remove(at);
                if let (Some(hearer), Some(outcome)) = (hearer, outcome) {
                    self.hear(hearer, outcome);
                }
            }
            Action::Expire(at) => {
                let message = &mut self.state.wire[at];
                let hearer = message.hearer.take();
                let failure = if message.is_unsent { unsent() } else { unknown() };
                if message.outcome.is_some() || message.is_unsent {
                    self.state.wire.remove(at);
                }
                if let Some(hearer) = hearer {
                    self.hear(hearer, Outcome::Failed(failure));
                }
            }
            Action::Take(at) => self.fill(at),
            Action::Send(at) => self.send(at),
            Action::Full(at) => {
                self.state.left.full -= 1;
                let waiting = self.state.combiner.turn_away(self.state.now);
                self.flusher(at).step = Step::Landed;
                self.tell_all(waiting, &Err(unsent()));
            }
            Action::GoOn(at) => {
                let now = self.state.now;
                self.state.moved = now;
                if self.state.combiner.goes_on(now) {
                    let flusher = self.flusher(at);
                    (flusher.step, flusher.began) = (Step::Ready, now);
                } else {
                    self.state.flushers[at] = None;
                    self.forget_flushers();
                }
            }
            Action::GiveUp(at) => self.give_up_link(at),
            Action::Hand(at) => {
                let message = self.state.wire.remove(at);
                self.state.wire.push(Message { is_unsent: false, ..message });
            }
            Action::Up => (self.state.is_down, self.state.moved) = (false, self.state.now),
            Action::Sweep => self.sweep(),
            Action::Cut(more) => {
                self.state.left.cuts -= 1;
                self.cut(more);
            }
            Action::End(more) => {
                self.state.left.ends -= 1;
                self.end(more);
            }
        }
    }

    fn flusher(&mut self, at: usize) -> &mut Flusher {
        self.state.flushers[at].as_mut().unwrap()
    }

    fn forget_flushers(&mut self) {
        while self.state.flushers.last().is_some_and(Option::is_none) {
            self.state.flushers.pop();
        }
    }
}

/// What the library does around a request.
impl Run<'_> {
    /// Something is asked of the node, on the connection of its caller's runtime.
    fn request(&mut self, number: Number, what: What) {
        let (now, fence) = (self.state.now, self.state.session(number).fence);
        let ticket = self.ticket(number);
        let ask = |place| Ask { ticket, what, entered: now, place };
        let request = self.setup.request(number, what, fence);
        let want = match (Want::of(&request), &request) {
            (None, Request::Release { claim, .. }) if self.setup.has(SeededBug::UndosTravel) => {
                Some(Want::Release(claim.clone()))
            }
            (want, _) => {
                if Want::undone_by(&request).is_some() {
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

    fn ticket(&mut self, number: Number) -> Ticket {
        let session = self.state.session(number);
        session.asked += 1;
        (number, session.asked)
    }

    /// An acquire is being taken back.
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

    /// Nobody waits any more: what was asked for is taken back (`Drop` of `Round`, and of `Dropped`).
    fn give_up(&mut self, number: Number) {
        let session = self.state.session(number);
        let stage = std::mem::replace(&mut session.stage, Stage::Over);
        match stage {
            // A task waits for the vote that is still to come.
            Stage::Acquiring => session.is_dropped = true,
            Stage::Releasing => {
                let asks = take(&mut session.asks);
                for ask in asks {
                    self.drop_future(&ask);
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
            self.end_of_lone_flight();
        }
    }

    /// A caller reads what it was told.
    fn look(&mut self, ticket: Ticket) {
        let alone = Place::Flies { is_counted: false };
        let Some(ask) = self.state.ask(ticket) else { return };
        let Place::Told(told) = std::mem::replace(&mut ask.place, alone) else { return };
        match told {
            Ok(Some(said)) => self.answered(ticket, Ok(said)),
            Ok(None) if self.setup.has(SeededBug::AloneIsTheEnd) => self.answered(ticket, Err(unsent())),
            Ok(None) => self.send_alone(ticket, false),
            Err(failure) => self.answered(ticket, Err(failure)),
        }
    }

    /// A request has its answer.
    fn answered(&mut self, ticket: Ticket, answer: Result<Said, Failure>) {
        let session = self.state.session(ticket.0);
        let Some(at) = session.asks.iter().position(|ask| ask.ticket == ticket) else { return };
        let what = session.asks.remove(at).what;
        let may_have_happened = answer.as_ref().is_err_and(Failure::may_have_happened);
        let is_refused = answer.as_ref().is_err_and(Failure::is_refusal);
        match (what, answer) {
            (What::Acquire, Ok(Said::Granted { fence, .. })) if !session.is_dropped => {
                session.fence = Some(fence);
                session.stage = Stage::Held;
            }
            (What::Acquire, answer) => {
                session.stage = Stage::Over;
                if may_have_happened || matches!(answer, Ok(Said::Granted { .. })) {
                    self.request(ticket.0, What::Undo);
                }
            }
            (What::Release, Ok(said)) => {
                session.stage = Stage::Over;
                if said != Said::Released {
                    self.state.broke(RELEASED_ONCE);
                }
            }
            (What::Release, Err(_)) => {
                session.stage = Stage::Over;
                self.undo_again(ticket.0);
            }
            (What::Undo, Ok(_)) => {}
            (What::Undo, Err(_)) => self.undo_again(ticket.0),
        }
        // The server refuses nothing that comes alone.
        if is_refused {
            self.state.broke(OWN_ERROR);
        }
    }

    /// The second request goes on the keeper's connection, where nothing is combined.
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

    fn hear(&mut self, hearer: Hearer, outcome: Outcome) {
        match hearer {
            Hearer::Ask(ticket) => {
                let place = self.state.ask(ticket).map(|ask| ask.place.clone());
                if place == Some(Place::Flies { is_counted: true }) {
                    self.end_of_lone_flight();
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

/// What `combining.rs` does.
impl Run<'_> {
    fn tell_all(&mut self, tickets: impl IntoIterator<Item = Ticket>, told: &Told) {
        for ticket in tickets {
            self.tell(ticket, told.clone());
        }
    }

    fn tell(&mut self, ticket: Ticket, told: Told) {
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
    fn end_of_lone_flight(&mut self) {
        let now = self.state.now;
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
    fn crash(&mut self, flusher: Option<Flusher>) {
        if self.setup.has(SeededBug::CrashUnnoticed) {
            return;
        }
        let batch = flusher.and_then(|flusher| flusher.batch);
        let (waiting, sent) = self.state.combiner.crash(batch.as_ref());
        self.tell_all(waiting, &Err(unsent()));
        self.tell_all(sent, &Err(unknown()));
    }

    /// Right before a sending.
    fn fill(&mut self, at: usize) {
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
        let step = if batch.is_some() { Step::Packed } else { Step::Landed };
        (flusher.step, flusher.aboard, flusher.batch) = (step, aboard.into_inner(), batch);
        flusher.overtaken = false;
        self.state.flushers[at] = Some(flusher);
        self.tell_all(late.into_iter().map(|(ticket, _)| ticket), &Err(unsent()));
        if step == Step::Packed && !self.setup.is_torn {
            self.send(at);
        }
    }

    fn send(&mut self, at: usize) {
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

    /// Whether a batch may be sent.
    fn check(&mut self, wants: &[Want], has_answers: bool) {
        if has_answers {
            self.state.broke(NOT_AFTER_ITS_ANSWER);
        }
        if wants.len() > BATCH {
            self.state.broke(BATCH_IS_SMALL);
        }
        for want in wants {
            let Want::Acquire(claim) = want else { continue };
            let releases = |want: &Want| matches!(want, Want::Release(other) if other.token == claim.token);
            if wants.iter().any(releases) {
                self.state.broke(NEVER_WITH_ITS_ACQUIRE);
            }
            if self.state.session(self.setup.session(&claim.token)).is_taken_back {
                self.state.broke(TAKEN_BACK);
            }
        }
    }

    /// A batch has come down.
    fn landed(&mut self, at: usize, outcome: Outcome) {
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
            Outcome::Failed(failure) if self.setup.has(SeededBug::ErrorIsEverybodys) => Err(Verdict::Failed(failure)),
            Outcome::Failed(_) if self.setup.has(SeededBug::SilenceIsNobodys) => Err(Verdict::Alone),
            Outcome::Failed(failure) => Err(after_failure(failure)),
            Outcome::One(_) | Outcome::Forgotten => return,
        };
        for (nth, caller) in callers.into_iter().enumerate() {
            let told = match &mut replies {
                Ok(replies) => Ok(replies.next().flatten()),
                Err(Verdict::Alone) => Ok(None),
                Err(Verdict::Failed(failure)) => Err(failure.clone()),
            };
            let is_said = overtaken && !(self.setup.has(SeededBug::OvertakenIsTheFirsts) && nth > 0);
            let told = told.map(|said| said.map(|said| overtaken_or_not(said, is_said)));
            if matches!(told, Ok(Some(Said::Granted { overtaken: is_said, .. })) if is_said != overtaken) {
                self.state.broke(ALL_OVERTAKEN);
            }
            self.tell_all(caller, &told);
        }
    }

    /// There was no link in time.
    fn give_up_link(&mut self, at: usize) {
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

    fn sweep(&mut self) {
        let Swept { unsent: late, unknown: silent, flies, next } = self.state.combiner.sweep(self.state.now);
        self.state.sweeps = next.filter(|_| !self.setup.has(SeededBug::SweeperStops));
        if flies && !self.setup.has(SeededBug::FlightNotStarted) {
            self.fly();
        }
        self.tell_all(late.into_iter().map(|(ticket, _)| ticket), &Err(unsent()));
        self.tell_all(silent.into_iter().map(|(ticket, _)| ticket), &Err(unknown()));
    }
}

/// What is between the driver and the server.
impl Run<'_> {
    fn execute(&mut self, at: usize, odd: Option<Number>) {
        let (setup, store) = (self.setup, &mut self.state.store);
        let outcome = match &self.state.wire[at].what {
            Payload::Acquire(claim) => Outcome::One(server::acquire(setup, store, claim)),
            Payload::Release(claim) => Outcome::One(server::release(store, claim)),
            Payload::Batch(wants) => {
                let acquires = wants.iter().filter(|want| matches!(want, Want::Acquire(_)));
                let nth = odd.and_then(|odd| acquires.map(|want| setup.session(&want.claim().token)).nth(odd.into()));
                let combined = server::combined(setup, store, wants, nth);
                if combined.was_in_its_own_way {
                    self.state.broke(RELEASES_FIRST);
                }
                Outcome::Batch(combined.said)
            }
        };
        self.conclude(at, outcome);
    }

    fn conclude(&mut self, at: usize, outcome: Outcome) {
        let message = &mut self.state.wire[at];
        let undo = match message.hearer {
            Some(Hearer::Ask(ticket)) => Some(ticket),
            Some(Hearer::Flusher(_)) => None,
            None => {
                self.state.wire.remove(at);
                return;
            }
        };
        message.outcome = Some(outcome);
        // When an undo hears that it is done is of no interest, unless a flight ends with it.
        let is_undo = |ask: &Ask| ask.what == What::Undo && ask.place == (Place::Flies { is_counted: false });
        if undo.and_then(|ticket| self.state.ask(ticket)).is_some_and(|ask| is_undo(ask)) {
            self.take(Action::Hear(at));
        }
    }

    /// The link ends. So many more requests were executed; of what was not heard yet nothing is known.
    fn cut(&mut self, more: usize) {
        for _ in 0..more {
            let next = (0..self.state.wire.len()).find(|&at| !self.state.wire[at].is_keepers && self.state.is_next(at));
            if let Some(at) = next {
                self.execute(at, None);
            }
        }
        self.state.is_down = true;
        self.state.wire.retain(|message| message.is_keepers || message.hearer.is_some());
        for message in self.state.wire.iter_mut().filter(|message| !message.is_keepers && !message.is_unsent) {
            message.outcome = Some(Outcome::Failed(unknown()));
        }
    }

    fn end(&mut self, more: usize) {
        self.cut(more);
        (self.state.is_down, self.state.has_ended) = (false, true);
        for message in self.state.wire.iter_mut().filter(|message| message.is_unsent) {
            (message.is_unsent, message.outcome) = (false, Some(Outcome::Failed(unsent())));
        }
        self.state.wire.retain(|message| !matches!(message.hearer, Some(Hearer::Flusher(_))));
        for flusher in take(&mut self.state.flushers).into_iter().flatten() {
            self.crash(Some(flusher));
        }
    }
}

fn overtaken_or_not(said: Said, overtaken: bool) -> Said {
    match said {
        Said::Granted { fence, .. } => Said::Granted { fence, overtaken },
        said => said,
    }
}

fn unsent() -> Failure {
    Failure::unsent("not sent")
}

fn unknown() -> Failure {
    Failure::unknown("no answer")
}
