//! Decides when a command has to be stopped, so that it has ended before its lease does: pure.

use std::time::Duration;

use crate::duration::written;

/// The longest that a kill takes, from the signal to the last instruction. This much is kept free before the deadline.
pub(super) const MARGIN: Duration = Duration::from_millis(250);

/// The action that is due at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing, for this long at most.
    Wait(Duration),
    /// To ask the command to stop.
    Ask,
    /// To kill it.
    Kill,
}

/// The schedule of a command's end, by the time that the lease has left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    grace: Duration,
}

impl Plan {
    /// Checks that grace and kill fit into half of the TTL: between two renewals a healthy lease falls to two thirds.
    pub(super) fn new(grace: Option<Duration>, ttl: Duration) -> Result<Self, String> {
        let most = (ttl / 2).saturating_sub(MARGIN);
        if most.is_zero() {
            return Err(format!(
                "--ttl {} is too short: half of it must be longer than the {} that a kill may take",
                written(ttl),
                written(MARGIN)
            ));
        }
        let grace = grace.unwrap_or_else(|| (ttl / 3).min(Duration::from_secs(10)).min(most));
        if grace <= most {
            return Ok(Self { grace });
        }
        Err(format!(
            "--grace {} and the {} that a kill may take do not fit into half of --ttl {}: \
             make the TTL longer, or the grace shorter",
            written(grace),
            written(MARGIN),
            written(ttl)
        ))
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// The action due while the command runs, with this much left of the lease.
    pub(super) fn running(&self, remaining: Duration) -> Due {
        match remaining.checked_sub(self.grace + MARGIN) {
            Some(left) if !left.is_zero() => Due::Wait(left),
            _ if remaining <= MARGIN => Due::Kill,
            _ => Due::Ask,
        }
    }

    /// The action due after the command was asked, with this much left of the grace and until the last known deadline.
    pub(super) fn asked(grace: Duration, remaining: Duration) -> Due {
        let left = grace.min(remaining.saturating_sub(MARGIN));
        if left.is_zero() { Due::Kill } else { Due::Wait(left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_grace_fits_into_half_of_the_lease() {
        assert_eq!(Plan::new(None, 30 * S).unwrap().grace(), 10 * S);
        assert_eq!(Plan::new(None, 3 * S).unwrap().grace(), S);
        assert_eq!(Plan::new(None, S).unwrap().grace(), 250 * MS);
        assert_eq!(Plan::new(Some(14_750 * MS), 30 * S).unwrap().grace(), 14_750 * MS);
        assert_eq!(Plan::new(Some(Duration::ZERO), 30 * S).unwrap().grace(), Duration::ZERO);
        let error = Plan::new(Some(14_751 * MS), 30 * S).unwrap_err();
        assert!(error.contains("--grace") && error.contains("--ttl"), "{error}");
        for (grace, ttl) in [(None, 500 * MS), (Some(Duration::ZERO), 400 * MS), (Some(S), 50 * MS)] {
            let error = Plan::new(grace, ttl).unwrap_err();
            assert!(error.contains("--ttl") && error.contains("too short") && !error.contains("--grace"), "{error}");
        }
    }

    #[test]
    fn it_is_asked_a_grace_before_it_has_to_be_gone() {
        let plan = Plan::new(Some(4 * S), 30 * S).unwrap();
        assert_eq!(plan.running(30 * S), Due::Wait(25_750 * MS));
        assert_eq!(plan.running(4_251 * MS), Due::Wait(MS));
        assert_eq!(plan.running(4_250 * MS), Due::Ask);
        assert_eq!(plan.running(251 * MS), Due::Ask);
        assert_eq!(plan.running(250 * MS), Due::Kill, "who was stopped for long asks nobody any more");
        assert_eq!(plan.running(Duration::ZERO), Due::Kill);
    }

    #[test]
    fn the_grace_ends_before_the_deadline() {
        assert_eq!(Plan::asked(4 * S, 30 * S), Due::Wait(4 * S));
        assert_eq!(Plan::asked(4 * S, S), Due::Wait(750 * MS));
        assert_eq!(Plan::asked(Duration::ZERO, 30 * S), Due::Kill);
        assert_eq!(Plan::asked(4 * S, 250 * MS), Due::Kill);
    }
}
