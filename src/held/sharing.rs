//! The leases that share an acquisition: they join it, are asked to stop, and let go.

use std::sync::Arc;

use leasehold_protocol::{
    acquisition::{self, Actions},
    loss::LossReason,
    renewal::Phase,
    time::Time,
};

use super::{Hold, Reaction, State, Trial};
use crate::{
    error::Error,
    lost::Lost,
    status::{Board, Signal, Status},
    sync::atomic::Ordering,
};

/// The result for an owner that acquires again.
pub(crate) enum SharedEntry {
    /// Another lease on the same acquisition.
    Shared(Signal),
    /// At risk, or on trial with an interval: shared only after a renewal has succeeded.
    AtRisk,
    /// It has ended, or is being released.
    Over,
}

/// The lease that continues a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heir {
    /// The holder of the ticket, perhaps in another program.
    Another,
    /// The same holder, which shares the lock from then on.
    Itself,
}

/// The work that is left when a lease lets go.
pub(crate) enum AfterLast {
    /// Other leases hold on, or nothing is left to release. The lease had been lost if there is a `Lost`.
    Nothing(Result<(), Lost>),
    /// The key has to be released, and it matters whether it still existed: the lease was believed until the time
    /// given.
    Release { valid_until: Time },
    /// The key has to be released, and any answer of the server is fine (after `MaxHold`).
    Forgiven,
}

impl Hold {
    /// The boards of every lease that has not let go, in the order in which they joined.
    pub(super) fn boards<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Board> {
        state.has_first.then_some(&self.first).into_iter().chain(state.more.iter().map(|board| &**board))
    }

    /// The signals of these boards, as owned handles.
    pub(super) fn signals(self: &Arc<Self>, state: &State) -> Vec<Signal> {
        let first = state.has_first.then(|| Signal::First(self.clone()));
        first.into_iter().chain(state.more.iter().cloned().map(Signal::More)).collect()
    }

    /// Adds a lease, whose holder may begin to work at once.
    fn join(&self, state: &mut State) -> Signal {
        state.trial = Trial::Over;
        let board = Arc::new(Board::beside(self.boards(state).next()));
        state.more.push(board.clone());
        Signal::More(board)
    }

    /// Asks every holder to stop, while the lease continues. Returns the signals to wake and cancel for that.
    pub(crate) fn note_stop(self: &Arc<Self>, now: Time, reason: LossReason) -> Vec<Signal> {
        let why = self.lost(now, now, reason);
        let state = self.state.lock();
        // Noted under the mutex, so that a lease which joins later learns of it from these.
        for lease in self.boards(&state) {
            lease.note_stop(&why);
        }
        self.signals(&state)
    }

    /// Shares the hold with its owner, which acquires again.
    pub(crate) fn enter(self: &Arc<Self>, now: Time) -> (SharedEntry, Reaction) {
        let reaction = self.expire_if_due(now);
        let mut state = self.state.lock();
        let entry = match state.acquisition.phase() {
            // Invariant 2 of a trial.
            Some(Phase::Held) if self.is_short_in(&state, now) => SharedEntry::AtRisk,
            Some(Phase::Held) => SharedEntry::Shared(self.join(&mut state)),
            Some(Phase::AtRisk) => SharedEntry::AtRisk,
            Some(Phase::Over { .. }) | None => SharedEntry::Over,
        };
        (entry, reaction)
    }

    /// Adds a lease, for a caller that already has one; an error once the hold has ended.
    pub(crate) fn share(self: &Arc<Self>, now: Time) -> (Result<Signal, Lost>, Reaction) {
        let reaction = self.expire_if_due(now);
        let mut state = self.state.lock();
        let signal = match state.acquisition.phase() {
            Some(phase @ (Phase::Held | Phase::AtRisk)) => {
                let signal = self.join(&mut state);
                if phase == Phase::AtRisk {
                    signal.note(Status::AtRisk);
                }
                Ok(signal)
            }
            Some(Phase::Over { .. }) | None => {
                Err(state.end.clone().unwrap_or_else(|| self.lost(now, now, LossReason::Released)))
            }
        };
        (signal, reaction)
    }

    /// Leaves the hold of its only lease to an heir. From here on no holder believes in it, no renewal is sent, and the
    /// key stays (rule 13).
    pub(crate) fn hand_over(self: &Arc<Self>, now: Time, signal: &Signal, to: Heir) -> (Result<(), Error>, Reaction) {
        let reaction = self.expire_if_due(now);
        let over = self.lost(now, now, LossReason::HandedOver);
        let mut state = self.state.lock();
        if let Err(refused) = self.may_be_handed_over(now, &mut state, to) {
            return (Err(refused), reaction);
        }
        state.end = Some(over.clone());
        state.has_first = false;
        state.more.clear();
        self.valid_until.store(0, Ordering::Release);
        let stage = self.measured.is_over();
        drop(state);
        signal.end(&over);
        stage.tell_end(LossReason::HandedOver, now.since(self.acquired));
        (Ok(()), reaction)
    }

    fn may_be_handed_over(&self, now: Time, state: &mut State, to: Heir) -> Result<(), Error> {
        let others = state.holds().saturating_sub(1);
        if others > 0 && state.end.is_none() {
            let leases = if others == 1 { "1 other lease shares" } else { &format!("{others} other leases share") };
            return Err(Error::misuse(format!("{leases} this hold: release the others first")));
        }
        if to == Heir::Another && state.end.is_none() {
            self.may_leave_here(now)?;
        }
        if state.acquisition.hand_over() {
            return Ok(());
        }
        Err(Error::Lost(state.end.clone().unwrap_or_else(|| self.lost(now, now, LossReason::Released))))
    }

    fn may_leave_here(&self, now: Time) -> Result<(), Error> {
        if self.claim.mode.is_shared() {
            return Err(Error::misuse(
                "a lease that is shared is not handed over: release it, and have the other process acquire one of its own",
            ));
        }
        if !self.kept_for(now).is_zero() {
            return Err(Error::misuse(
                "a lease with a keep_for is not handed over, for the key is to stay after its release: release it",
            ));
        }
        Ok(())
    }

    /// Lets one lease go; a second call has no effect. From here on no renewal is sent if it was the last (rule 8).
    pub(crate) fn leave(self: &Arc<Self>, now: Time, signal: &Signal) -> (AfterLast, Reaction) {
        // Each released lease is also dropped.
        if !self.state.lock().has(signal) {
            return (AfterLast::Nothing(Ok(())), Reaction::default());
        }
        let mut reaction = self.expire_if_due(now);
        let released = self.lost(now, now, LossReason::Released);
        let mut state = self.state.lock();
        match signal {
            Signal::First(_) => state.has_first = false,
            Signal::More(board) => state.more.retain(|lease| !Arc::ptr_eq(lease, board)),
        }
        let lost = state.end.clone().filter(|end| end.reason() != LossReason::MaxHold);
        let mut leaving = AfterLast::Nothing(lost.map_or(Ok(()), Err));
        let mut stage = None;
        if state.holds() == 0 {
            let valid_until = state.acquisition.valid_until();
            let (left, Actions { undo, .. }) = state.acquisition.let_go(now);
            reaction.actions.undo = reaction.actions.undo.or(undo);
            self.valid_until.store(0, Ordering::Release);
            match left {
                acquisition::Leaving::Nothing => {}
                acquisition::Leaving::Release { is_forgiven: true } => leaving = AfterLast::Forgiven,
                acquisition::Leaving::Release { is_forgiven: false } => {
                    state.end = Some(released.clone());
                    stage = Some(self.measured.is_over());
                    leaving = AfterLast::Release { valid_until };
                }
            }
        }
        drop(state);
        signal.end(&released);
        if let Some(stage) = stage {
            stage.tell_end(LossReason::Released, now.since(self.acquired));
        }
        (leaving, reaction)
    }
}
