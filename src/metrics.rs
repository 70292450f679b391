//! The measurements of the crate feature `metrics`: see the page `docs/metrics.md`. Without it there are none.

use std::time::Duration;

use leasehold_protocol::{
    failure::Redirection,
    loss::{self, LossReason},
    mode::Mode,
};

use crate::error::Error;

#[cfg(feature = "metrics")]
mod describe;
#[cfg(feature = "metrics")]
mod least;
#[cfg(feature = "metrics")]
mod nodes;
#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod series;

#[cfg(not(feature = "metrics"))]
use self::off::StageCell;
#[cfg(not(feature = "metrics"))]
pub(crate) use self::off::{Group, NodeMetrics, Telling, describe, have_news, undo_is_unconfirmed};
#[cfg(feature = "metrics")]
use self::series::StageCell;
#[cfg(feature = "metrics")]
pub(crate) use self::{
    describe::describe,
    nodes::{NodeMetrics, have_news, undo_is_unconfirmed},
    series::{Group, Telling},
};

const ACQUIRES: &str = "leasehold_acquires_total";
const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWALS: &str = "leasehold_renewals_total";
const RENEWAL: &str = "leasehold_renewal_seconds";
const REMAINING: &str = "leasehold_renewal_remaining_ratio";
const LOSSES: &str = "leasehold_losses_total";
const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const AT_RISK: &str = "leasehold_at_risk";
const REPLICATION: &str = "leasehold_replication_seconds";

/// A renewal is late if less than this is left of the TTL when it is confirmed. A good one leaves some two thirds.
const LATE: f64 = 0.4;

/// The counters of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NodeCount {
    #[cfg(feature = "metrics")]
    Reconnect,
    /// Its address resolves to another server.
    Move,
    /// Too few replicas have confirmed something in time.
    Unreplicated,
    /// A replica has taken over from a primary.
    Failover,
    // A server has redirected a request, or sent it back.
    Moved,
    Ask,
    TryAgain,
    Down,
}

/// Notes how long after its answer a write was confirmed by replicas. All nodes share one histogram.
pub(crate) fn note_replicated(took: Duration) {
    Group::default().record(REPLICATION, took.as_secs_f64());
}

impl From<&Redirection> for NodeCount {
    fn from(redirection: &Redirection) -> Self {
        match redirection {
            Redirection::Moved { .. } => Self::Moved,
            Redirection::Moving { to: Some(_) } => Self::Ask,
            Redirection::Moving { to: None } => Self::TryAgain,
            Redirection::Down => Self::Down,
        }
    }
}

/// An acquire under way; abandoned unless its end is noted.
#[derive(Debug)]
pub(crate) struct Acquiring {
    group: Group,
    outcome: &'static str,
}

impl Acquiring {
    pub(crate) fn begins(group: Group, mode: Mode) -> Self {
        let group = group.of(mode);
        group.change(WAITING, 1);
        Self { group, outcome: "abandoned" }
    }

    /// Notes the outcome. For one try (`is_try`), which does not wait, a held lock is not a failure.
    pub(crate) fn ended<T>(mut self, outcome: &Result<T, Error>, is_try: bool, waited: Duration) {
        if outcome.is_ok() {
            self.group.record(WAIT, waited.as_secs_f64());
        }
        self.outcome = match outcome {
            Ok(_) => "acquired",
            Err(Error::TimedOut { holder, .. }) if holder.not_a_lock().is_some() => "misplaced",
            Err(Error::TimedOut { .. }) if is_try => "busy",
            // A ticket that came too late.
            Err(Error::Lost(_)) => "busy",
            Err(Error::TimedOut { .. }) => "timed_out",
            Err(Error::Closed) => "closed",
            Err(Error::Unavailable(_)) => "unavailable",
            Err(_) => "refused",
        };
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.group.count(ACQUIRES, self.outcome);
        self.group.change(WAITING, -1);
    }
}

/// A lock that is held, for as long as it counts as such.
#[derive(Debug)]
pub(crate) struct Holding {
    group: Group,
    stage: StageCell,
}

/// The stages of a [`Holding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum LeaseStage {
    Safe,
    AtRisk,
    Over,
}

/// A change from one stage of a [`Holding`] to the next. It is reported later, and in any order with others, because
/// gauges are changed by additions.
#[derive(Debug, Clone, Copy)]
#[must_use = "it is told to nobody yet"]
pub(crate) struct StageChange {
    group: Group,
    from: LeaseStage,
    to: LeaseStage,
}

impl StageChange {
    /// Reports a change to held or at risk.
    pub(crate) fn tell(self) {
        let Self { group, from, to } = self;
        if from == to {
            return;
        }
        for (stage, by) in [(from, -1), (to, 1)] {
            if stage == LeaseStage::AtRisk {
                group.change(AT_RISK, by);
            }
        }
        if (from, to) == (LeaseStage::Safe, LeaseStage::AtRisk) {
            group.count(RENEWALS, "failed");
        }
        if to == LeaseStage::Over {
            group.change(HELD, -1);
        }
    }

    /// Reports the end.
    pub(crate) fn tell_end(self, reason: LossReason, held_for: Duration) {
        if self.from != LeaseStage::Over {
            self.group.record(HOLD, held_for.as_secs_f64());
            if let Some(label) = loss::label(reason) {
                self.group.count(LOSSES, label);
            }
            if matches!(reason, LossReason::Expired | LossReason::NoQuorum) {
                self.group.note_remaining(Duration::ZERO, Duration::MAX);
            }
        }
        self.tell();
    }
}

impl Holding {
    pub(crate) fn group(&self) -> Group {
        self.group
    }

    pub(crate) fn begins(group: Group, mode: Mode) -> Self {
        let group = group.of(mode);
        group.change(HELD, 1);
        Self { group, stage: StageCell::new() }
    }

    /// Notes that it is held, or at risk. Called in the order of events.
    pub(crate) fn is_held(&self, at_risk: bool) -> StageChange {
        self.turns(if at_risk { LeaseStage::AtRisk } else { LeaseStage::Safe })
    }

    pub(crate) fn is_over(&self) -> StageChange {
        self.turns(LeaseStage::Over)
    }

    fn turns(&self, to: LeaseStage) -> StageChange {
        StageChange { group: self.group, from: self.stage.turn(to), to }
    }

    /// Notes what is left of the TTL when a renewal is sent.
    pub(crate) fn is_renewed(&self, left: Duration, ttl: Duration) {
        self.group.note_remaining(left, ttl);
    }

    /// Notes a confirmed renewal: how long it took, and what was left of a TTL by then.
    pub(crate) fn was_renewed(&self, took: Duration, left: Duration, ttl: Duration) {
        let ratio = left.div_duration_f64(ttl);
        self.group.record(RENEWAL, took.as_secs_f64());
        self.group.record(REMAINING, ratio);
        self.group.count(RENEWALS, if ratio < LATE { "late" } else { "ok" });
        self.group.note_remaining(left, ttl);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.is_over().tell();
    }
}
