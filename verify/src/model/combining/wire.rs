//! The messages between the driver and the server.

use std::mem::take;

use leasehold_protocol::combiner::Want;

use super::{
    RELEASES_FIRST, Run,
    action::Action,
    run::{unknown, unsent},
    server,
    state::{Ask, Hearer, Number, Outcome, Payload, Place, What},
};

impl Run<'_> {
    pub(super) fn execute(&mut self, at: usize, odd: Option<Number>) {
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

    pub(super) fn conclude(&mut self, at: usize, outcome: Outcome) {
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
        // It does not matter when an undo hears that it is done, unless a flight ends with it.
        let is_undo = |ask: &Ask| ask.what == What::Undo && ask.place == (Place::Flies { is_counted: false });
        if undo.and_then(|ticket| self.state.ask(ticket)).is_some_and(|ask| is_undo(ask)) {
            self.take(Action::Hear(at));
        }
    }

    /// The link ends, after `more` more requests were executed. The outcome of a request that was not heard yet is
    /// unknown.
    pub(super) fn cut(&mut self, more: usize) {
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

    pub(super) fn end(&mut self, more: usize) {
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
