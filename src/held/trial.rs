//! A hold of a multi-lock that is not complete yet: no job runs under it, so whatever ends it must leave nothing behind.
//!
//! # Invariants
//!
//! 1. On trial, the interval of the lock is not in the life of its key: a process that dies leaves the key for a TTL.
//! 2. A job begins only after a renewal has confirmed the interval, also the job of an owner that enters the hold.
//! 3. If that renewal is not confirmed, the hold is on trial as before, unless another such renewal is under way.

use leasehold_protocol::time::Time;

use super::{Hold, State};

/// How far a hold has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trial {
    /// No job runs under it. `lengthenings` renewals are under way that make the key live for the interval.
    On { lengthenings: u32 },
    /// One of them is confirmed.
    Lengthened,
    /// A job may run under it.
    Over,
}

impl Trial {
    pub(super) const ON: Self = Self::On { lengthenings: 0 };
}

/// The renewal that makes a key live for the interval of its lock. Unless it is confirmed, a drop takes that back.
pub(crate) struct Lengthening<'a>(&'a Hold);

impl Lengthening<'_> {
    pub(crate) fn confirm(self) {
        let mut state = self.0.state.lock();
        if matches!(state.trial, Trial::On { .. }) {
            state.trial = Trial::Lengthened;
        }
    }
}

impl Drop for Lengthening<'_> {
    fn drop(&mut self) {
        if let Trial::On { lengthenings } = &mut self.0.state.lock().trial {
            *lengthenings = lengthenings.saturating_sub(1);
        }
    }
}

impl Hold {
    /// Puts it on trial: no job runs under it before it [begins](Self::begin).
    pub(crate) fn try_out(&self) {
        self.state.lock().trial = Trial::ON;
    }

    /// Puts it on trial once more, because another lock of its multi-lock was lost.
    pub(crate) fn try_out_again(&self) {
        let mut state = self.state.lock();
        if state.trial == Trial::Lengthened {
            state.trial = Trial::ON;
        }
    }

    /// Lets its interval count from the next renewal on, if the hold is on trial.
    pub(crate) fn lengthen(&self) -> Lengthening<'_> {
        if let Trial::On { lengthenings } = &mut self.state.lock().trial {
            *lengthenings = lengthenings.saturating_add(1);
        }
        Lengthening(self)
    }

    /// Ends the trial: from now on a job may run under it.
    pub(crate) fn begin(&self) {
        self.state.lock().trial = Trial::Over;
    }

    /// Whether a job has to wait until a renewal has confirmed the interval.
    pub(crate) fn is_short(&self, now: Time) -> bool {
        self.is_short_in(&self.state.lock(), now)
    }

    pub(super) fn is_short_in(&self, state: &State, now: Time) -> bool {
        !self.interval_left(now).is_zero() && matches!(state.trial, Trial::On { .. })
    }
}
