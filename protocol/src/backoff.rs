//! The pauses of a waiter between two checks.

use std::time::Duration;

use crate::{check::Check, jitter::Jitter};

/// Exponential backoff with full jitter (Brooker, *Exponential Backoff And Jitter*, 2015): a pause between nothing and
/// a bound that doubles from 10 ms to 1 s.
#[derive(Debug)]
pub struct Backoff {
    bound: Duration,
    /// The number of split votes in a row.
    splits: u32,
    jitter: Jitter,
}

const FIRST: Duration = Duration::from_millis(10);
/// The widest spread of pauses after failures or split votes.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause. Without it, full jitter would now and then make a hot loop.
const SHORTEST: Duration = Duration::from_millis(1);

/// From this many split votes on, the spread of pauses does not grow.
const MOST_SPLITS: u32 = 7;

/// The pause between checks of a key that is tracked, but has no TTL.
const SLOW_CHECK: Duration = Duration::from_secs(5);
/// The spread of waiters in many processes when a key expires without a renewal.
const EXPIRY_SPREAD: Duration = Duration::from_millis(4);

impl Backoff {
    /// A backoff whose next pause is the first one.
    pub fn new(jitter: Jitter) -> Self {
        Self { bound: FIRST, splits: 0, jitter }
    }

    /// The pause after this check. If the key is tracked, the waiter is notified of changes, and has to check only when
    /// the key expires.
    pub fn after(&mut self, look: &Check) -> Duration {
        if !matches!(look, Check::Split { .. }) {
            self.splits = 0;
        }
        match look {
            Check::Held { holder, tracked: true, .. } => {
                self.bound = FIRST;
                self.after_expiry(holder.remaining())
            }
            Check::Held { holder, tracked: false, .. } => self.next(holder.remaining()),
            // The next round does not ask a node that was silent in this one. If a split vote came before, this round
            // has asked a silent node all the same, so its whole time counts.
            Check::Split { answered, .. } if self.splits == 0 => self.after_split(*answered),
            Check::Split { took, .. } => self.after_split(*took),
            Check::NotYet | Check::Failed(_) => self.next(None),
        }
    }

    /// A pause longer than a round takes, so that every rival has undone its grants. It is spread over more and more
    /// such rounds, so that one rival comes first.
    fn after_split(&mut self, took: Duration) -> Duration {
        self.splits = (self.splits + 1).min(MOST_SPLITS);
        let spread = (took.max(SHORTEST) * (1 << self.splits)).min(LONGEST_PAUSE);
        took + SHORTEST + self.jitter.below(spread)
    }

    /// The pause until a key has certainly expired.
    pub fn after_expiry(&mut self, remaining: Option<Duration>) -> Duration {
        // Redis rounds a PTTL down, so the key is gone a millisecond later.
        remaining.map_or(SLOW_CHECK, |remaining| remaining + SHORTEST) + self.jitter.below(EXPIRY_SPREAD)
    }

    /// Resets the backoff, because all is well again: the next pause is a first one.
    pub fn starts_over(&mut self) {
        self.bound = FIRST;
    }

    /// The next pause; never past the moment when the holder's key expires.
    pub fn next(&mut self, holder_expires_in: Option<Duration>) -> Duration {
        let pause = self.jitter.below(self.bound).max(SHORTEST);
        self.bound = (self.bound * 2).min(LONGEST_PAUSE);
        holder_expires_in.map_or(pause, |expires_in| pause.min(expires_in + SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{failure::Failure, holder::Holder, tally::WakeCondition};
    use proptest::prelude::*;

    const ROUND: Duration = Duration::from_millis(3);

    fn held(remaining: Option<Duration>, tracked: bool) -> Check {
        Check::Held { holder: Holder { remaining, ..Holder::default() }, tracked, needs: WakeCondition::ANY }
    }

    fn split(took: Duration) -> Check {
        Check::Split { holder: Holder::default(), answered: took, took }
    }

    /// The shortest and the longest pause that many waiters make after these checks.
    fn spread(looks: &[Check]) -> (Duration, Duration) {
        let pauses: Vec<_> = (0..400)
            .filter_map(|seed| {
                let mut backoff = Backoff::new(Jitter::from_seed(seed));
                looks.iter().map(|look| backoff.after(look)).last()
            })
            .collect();
        (*pauses.iter().min().unwrap(), *pauses.iter().max().unwrap())
    }

    /// Asserts that pauses are spread from `from` to just before `to`.
    fn assert_spread(looks: &[Check], from: Duration, to: Duration) {
        let ((shortest, longest), tenth) = (spread(looks), to.saturating_sub(from) / 10);
        assert!((from..from + tenth).contains(&shortest), "{shortest:?} of {from:?} to {to:?}");
        assert!((to.saturating_sub(tenth)..to).contains(&longest), "{longest:?} of {from:?} to {to:?}");
    }

    #[test]
    fn who_is_told_of_changes_is_there_when_the_key_expires() {
        let remaining = Duration::from_millis(500);
        assert_spread(&[held(Some(remaining), true)], remaining + SHORTEST, remaining + SHORTEST + EXPIRY_SPREAD);
        assert_spread(&[held(None, true)], SLOW_CHECK, SLOW_CHECK + EXPIRY_SPREAD);
    }

    #[test]
    fn who_is_not_told_looks_less_and_less_often() {
        for (looks, bound) in [(1, 10), (2, 20), (3, 40), (7, 640), (8, 1_000), (20, 1_000)] {
            let bound = Duration::from_millis(bound);
            for look in [held(None, false), Check::Failed(Failure::unknown("no answer")), Check::NotYet] {
                assert_spread(&vec![look; looks], SHORTEST, bound);
            }
        }
        let soon = held(Some(Duration::from_millis(2)), false);
        assert_eq!(spread(&vec![soon; 9]).1, Duration::from_millis(2) + SHORTEST, "the key expires before that");
    }

    #[test]
    fn who_was_told_in_between_begins_anew() {
        let mut looks = vec![Check::NotYet; 9];
        looks.extend([held(None, true), Check::NotYet]);
        assert_spread(&looks, SHORTEST, FIRST);
    }

    #[test]
    fn who_starts_over_pauses_as_at_first() {
        let pauses = (0..400).map(|seed| {
            let mut backoff = Backoff::new(Jitter::from_seed(seed));
            for _ in 0..8 {
                let _longer = backoff.next(None);
            }
            backoff.starts_over();
            backoff.next(None)
        });
        assert!(pauses.max().is_some_and(|longest| longest < FIRST));
    }

    #[test]
    fn after_split_votes_the_pauses_spread_over_more_and_more_rounds() {
        let after = ROUND + SHORTEST;
        for (splits, rounds) in [(1, 2), (2, 4), (3, 8), (7, 128), (8, 128), (50, 128)] {
            assert_spread(&vec![split(ROUND); splits], after, after + ROUND * rounds);
        }
        assert_spread(&[split(Duration::ZERO)], SHORTEST, SHORTEST + SHORTEST * 2);
        let slow = Duration::from_millis(700);
        assert_spread(&[split(slow)], slow + SHORTEST, slow + SHORTEST + LONGEST_PAUSE);
    }

    #[test]
    fn a_silent_node_is_waited_for_only_if_it_was_silent_before() {
        let slow = Duration::from_millis(300);
        let look = || Check::Split { holder: Holder::default(), answered: ROUND, took: slow };
        assert_spread(&[look()], ROUND + SHORTEST, ROUND + SHORTEST + ROUND * 2);
        assert_spread(&[look(), look()], slow + SHORTEST, slow + SHORTEST + LONGEST_PAUSE);
    }

    #[test]
    fn another_look_ends_a_row_of_split_votes() {
        let mut looks = vec![split(ROUND); 5];
        looks.extend([held(None, true), split(ROUND)]);
        assert_spread(&looks, ROUND + SHORTEST, ROUND + SHORTEST + ROUND * 2);
    }

    proptest! {
        #[test]
        fn a_pause_is_within_its_bound_and_before_the_holders_expiry(seed: u64, expires_ms in 0_u64..5_000) {
            let expires = Duration::from_millis(expires_ms);
            let mut backoff = Backoff::new(Jitter::from_seed(seed));
            let mut bound = FIRST;
            for _ in 0..12 {
                let pause = backoff.next(Some(expires));
                prop_assert!(pause >= SHORTEST && pause <= bound.min(expires + SHORTEST), "{pause:?}");
                bound = (bound * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
