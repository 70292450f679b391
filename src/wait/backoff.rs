//! How long to leave the server alone between two looks.

use std::time::Duration;

use super::Look;
use crate::jitter::Jitter;

/// Exponential backoff with full jitter (Brooker, *Exponential Backoff And Jitter*, 2015): a pause between nothing and
/// a bound that doubles from 10 ms to 1 s.
#[derive(Debug)]
pub(crate) struct Backoff {
    bound: Duration,
    /// How often in a row nobody had a majority.
    splits: u32,
    jitter: Jitter,
}

const FIRST: Duration = Duration::from_millis(10);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// No pause is shorter, or full jitter would now and then make it a hot loop.
const SHORTEST: Duration = Duration::from_millis(1);

/// From then on the spread after split votes does not grow.
const MOST_SPLITS: u32 = 7;

/// How often a key is looked at that is watched, but has no TTL.
const SLOW_LOOK: Duration = Duration::from_secs(5);
/// Over how long those who wait in many processes spread when a key expires that nobody renewed.
const EXPIRY_SPREAD: Duration = Duration::from_millis(4);

impl Backoff {
    pub(crate) fn new(jitter: Jitter) -> Self {
        Self { bound: FIRST, splits: 0, jitter }
    }

    /// The pause after such a look. Whoever will be told of changes only has to be there when the key expires.
    pub(crate) fn after(&mut self, look: &Look) -> Duration {
        if !matches!(look, Look::Split { .. }) {
            self.splits = 0;
        }
        match look {
            Look::Held { holder, watched: true, .. } => {
                self.bound = FIRST;
                self.after_expiry(holder.remaining())
            }
            Look::Held { holder, watched: false, .. } => self.next(holder.remaining()),
            Look::Split { took, .. } => self.after_split(*took),
            Look::NotYet | Look::Failed(_) => self.next(None),
        }
    }

    /// Longer than a round takes, so that whoever else tried has undone what it was granted; and spread over more and more
    /// such rounds, so that one comes first.
    fn after_split(&mut self, took: Duration) -> Duration {
        self.splits = (self.splits + 1).min(MOST_SPLITS);
        let spread = (took.max(SHORTEST) * (1 << self.splits)).min(LONGEST_PAUSE);
        took + SHORTEST + self.jitter.below(spread)
    }

    /// Until a key expires for certain.
    pub(crate) fn after_expiry(&mut self, remaining: Option<Duration>) -> Duration {
        // Redis rounds a PTTL down, so the key is gone a millisecond later.
        remaining.map_or(SLOW_LOOK, |remaining| remaining + SHORTEST) + self.jitter.below(EXPIRY_SPREAD)
    }

    /// The next pause; never past the moment when the holder's key expires.
    pub(crate) fn next(&mut self, holder_expires_in: Option<Duration>) -> Duration {
        let pause = self.jitter.below(self.bound).max(SHORTEST);
        self.bound = (self.bound * 2).min(LONGEST_PAUSE);
        holder_expires_in.map_or(pause, |expires_in| pause.min(expires_in + SHORTEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
