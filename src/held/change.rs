//! A change of a lease's phase, and its report to all whom it concerns.

use std::time::Duration;

use leasehold_protocol::loss::{self, LossReason};

use crate::{
    foreign::{self, Event, LeaseSpan},
    metrics::StageChange,
    status::Signal,
};

/// A new phase that is noted already. Reporting it runs foreign code, so that comes last, with no mutex held.
#[must_use = "nobody has been told"]
pub(crate) struct PhaseChange {
    pub(super) leases: Vec<Signal>,
    pub(super) stage: StageChange,
    pub(super) end: Option<(LossReason, Duration)>,
    pub(super) event: Event,
    pub(super) span: Option<LeaseSpan>,
}

impl PhaseChange {
    /// Adds the cause, and the place, if servers are the reason.
    pub(crate) fn because(&mut self, trouble: impl FnOnce() -> Option<String>, place: impl FnOnce() -> Option<String>) {
        match &mut self.event {
            Event::AtRisk { cause: cause @ None, node, .. } => (*cause, *node) = (trouble(), place()),
            Event::Lost { lost, cause, .. } if matches!(lost.reason(), LossReason::Expired | LossReason::NoQuorum) => {
                *cause = trouble();
            }
            _ => {}
        }
    }

    pub(crate) fn tell(self) {
        // Every lease is woken before any is cancelled: a caller's thread cancels by itself, and may have to wait
        // there.
        for lease in &self.leases {
            lease.wake();
        }
        for lease in &self.leases {
            lease.cancel();
        }
        match self.end {
            Some((reason, held_for)) => {
                self.stage.tell_end(reason, held_for);
                if let (Some(span), Some(lost)) = (&self.span, loss::label(reason)) {
                    span.ends(lost);
                }
            }
            None => self.stage.tell(),
        }
        foreign::tell_in(self.span, self.event);
    }
}
