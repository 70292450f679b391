//! A fair waiter's position in a server's queue, and when it polls next.

use std::time::Duration;

use crate::{backoff::Backoff, check::Check};

/// The longest pause between two heartbeats of a process that waits.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long a waiter that cannot be notified counts as alive. The queue lives twice as long after the last poll.
pub const WINDOW: Duration = Duration::from_secs(15);

/// How long a waiter tries to leave the queue of a server that does not answer, because the polls of others keep its
/// place alive.
pub const LEAVES_FOR: Duration = Duration::from_secs(600);

/// The extra delay for each waiter ahead, so that the first one notices first that the holder's key has expired.
const STAGGER: Duration = Duration::from_millis(4);
const LONGEST_STAGGER: Duration = Duration::from_millis(40);

/// A place in the queue, as the last poll found it.
#[derive(Debug, Default)]
pub struct QueuePosition {
    /// The ticket, which restores the place after the queue was lost.
    pub ticket: Option<u64>,
    /// How many waiters are ahead.
    pub ahead: u32,
    /// Whether the server can notify us.
    pub notified: bool,
    /// For how long the server, which may have forgotten the lock's holder, grants it to no waiter.
    pub recovers_for: Option<Duration>,
}

impl QueuePosition {
    /// Whether no waiter is ahead.
    pub fn is_first(&self) -> bool {
        self.ticket.is_some() && self.ahead == 0
    }

    /// When to poll next without a notification; `None` to wait for one.
    pub fn next_poll(&self, look: &Check, leads: bool, grant: Duration, backoff: &mut Backoff) -> Option<Duration> {
        let (remaining, watched) = match (look, self.recovers_for) {
            _ if self.ticket.is_none() => return Some(backoff.after(look)),
            // Each share ends at a time of which no notification tells us.
            (Check::Held { holder, tracked, .. }, _) => (holder.remaining(), *tracked || holder.is_shared()),
            // No notification can come before that.
            (Check::Failed(_), Some(left)) => (Some(left.min(HEARTBEAT)), true),
            _ => return Some(backoff.after(look)),
        };
        let first = self.ahead == 0;
        let stagger = if first { Duration::ZERO } else { (STAGGER * self.ahead).min(LONGEST_STAGGER) };
        let expiry = backoff.after_expiry(remaining) + stagger;
        if !self.notified {
            // No notification tells us of a grant: we have to poll while it lasts.
            Some(expiry.min(if self.ahead <= 1 { grant / 3 } else { grant * 2 / 3 }))
        } else if first && !watched {
            // No notification tells us of a lock that became free other than by a release.
            Some(expiry.min(grant / 3))
        } else if leads || first {
            Some(expiry.min(HEARTBEAT))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{holder::Holder, jitter::Jitter, mode::token_of_a_phase, tally::WakeCondition};

    const GRANT: Duration = Duration::from_millis(900);

    fn held(remaining: Option<Duration>, tracked: bool) -> Check {
        Check::Held { holder: Holder::of(None, remaining, None), tracked, needs: WakeCondition::ANY }
    }

    fn next(place: &QueuePosition, look: &Check, leads: bool) -> Option<Duration> {
        place.next_poll(look, leads, GRANT, &mut Backoff::new(Jitter::from_seed(7)))
    }

    fn place(ahead: u32, notified: bool) -> QueuePosition {
        QueuePosition { ticket: Some(1), ahead, notified, recovers_for: None }
    }

    #[test]
    fn who_is_called_says_nothing_unless_it_leads() {
        let look = held(Some(Duration::from_secs(30)), true);
        assert_eq!(next(&place(3, true), &look, false), None);
        assert_eq!(next(&place(3, true), &look, true), Some(HEARTBEAT));
        assert_eq!(next(&place(0, true), &look, true), Some(HEARTBEAT));
    }

    #[test]
    fn who_has_no_place_yet_waits_as_if_there_was_no_queue() {
        let nobody = QueuePosition { notified: true, ..QueuePosition::default() };
        let remaining = Duration::from_secs(30);
        assert!(next(&nobody, &held(Some(remaining), true), true).is_some_and(|look| look > remaining));
    }

    #[test]
    fn whoever_leads_is_there_when_the_key_expires_and_the_first_before_the_others() {
        let remaining = Duration::from_millis(500);
        let look = held(Some(remaining), true);
        let first = next(&place(0, true), &look, true).unwrap();
        let third = next(&place(2, true), &look, true).unwrap();
        let last = next(&place(500, true), &look, true).unwrap();
        assert!(first > remaining && first < third && third < last, "{first:?} {third:?} {last:?}");
        assert!(last <= remaining + Duration::from_millis(50), "{last:?}");
    }

    #[test]
    fn who_cannot_be_called_is_there_while_a_grant_lasts() {
        for (ahead, leads, thirds) in [(0, true, 1), (1, false, 1), (2, false, 2), (99, true, 2)] {
            let poll = next(&place(ahead, false), &held(None, true), leads);
            assert_eq!(poll, Some(GRANT * thirds / 3), "{ahead}");
        }
    }

    #[test]
    fn the_first_is_there_when_the_key_expires_whoever_leads() {
        let look = held(Some(Duration::from_millis(500)), true);
        assert!(next(&place(0, true), &look, false).is_some_and(|poll| poll < Duration::from_millis(510)));
    }

    #[test]
    fn the_first_looks_often_when_nobody_watches_the_lock_for_it() {
        assert_eq!(next(&place(0, true), &held(None, false), true), Some(GRANT / 3));
    }

    #[test]
    fn the_first_beside_those_who_share_the_lock_looks_when_one_of_them_would_be_over() {
        for (remaining, least, most) in [(500, 500, 510), (30_000, 5_000, 5_000)] {
            let [remaining, least, most] = [remaining, least, most].map(Duration::from_millis);
            let holder = Holder::of(Some(token_of_a_phase()), Some(remaining), None);
            let look = Check::Held { holder, tracked: false, needs: WakeCondition::ANY };
            let poll = next(&place(0, true), &look, false).unwrap();
            assert!(poll >= least && poll <= most, "{poll:?}");
            assert_eq!(next(&place(2, true), &look, false), None, "the first calls it");
        }
    }

    #[test]
    fn a_server_that_recovers_is_left_alone_until_it_grants_again() {
        let left = Duration::from_secs(2);
        let look = Check::Failed(crate::failure::Failure::recovering("h:1", left));
        let recovering = |ahead, left| QueuePosition { recovers_for: Some(left), ..place(ahead, true) };
        let first = next(&recovering(0, left), &look, false).unwrap();
        let leader = next(&recovering(2, left), &look, true).unwrap();
        assert!(first > left && first < leader && leader < left + GRANT, "{first:?} {leader:?}");
        assert_eq!(next(&recovering(2, left), &look, false), None);
        assert_eq!(next(&recovering(0, Duration::MAX), &look, true), Some(HEARTBEAT));
        let held = held(Some(GRANT), true);
        assert!(next(&recovering(0, left), &held, true).is_some_and(|poll| poll < left), "somebody has it again");
    }

    #[test]
    fn who_has_no_place_yet_tries_again() {
        let failed = Check::Failed(crate::failure::Failure::unknown("no answer"));
        assert!(next(&QueuePosition::default(), &failed, false).is_some());
    }
}
