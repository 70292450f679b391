//! What each action does.

use leasehold_protocol::failure::Failure;

use super::{
    Run,
    action::Action,
    state::{Flusher, Hearer, Message, Outcome, Payload, Stage, Step, What},
};

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
            Action::Decide(number) => self.decided(number),
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
                if let (Payload::Acquire(_), Some(Hearer::Ask(ticket))) = (&message.what, message.hearer) {
                    self.state.session(ticket.0).is_overtaken = true;
                }
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

    pub(super) fn flusher(&mut self, at: usize) -> &mut Flusher {
        self.state.flushers[at].as_mut().unwrap()
    }

    fn forget_flushers(&mut self) {
        while self.state.flushers.last().is_some_and(Option::is_none) {
            self.state.flushers.pop();
        }
    }
}

pub(super) fn unsent() -> Failure {
    Failure::unsent("not sent")
}

pub(super) fn unknown() -> Failure {
    Failure::unknown("no answer")
}
