//! How much longer the key of a lock lives than its lease may be believed: pure (rule 14).
//!
//! # Invariants
//!
//! 1. From each acquire and renewal on, the key lives for the TTL plus the delay, and in any case until the interval
//!    ends. The interval begins when the acquire is sent. So the key may live longer than the lease is believed, and
//!    never shorter.
//! 2. No deadline depends on it.

use std::time::Duration;

/// By how much a lock's key outlives its lease. It is in milliseconds, because a process may have a million leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Outliving {
    lock_delay: u32,
    once_per: u32,
}

impl Outliving {
    /// No extra time: the key lives for the TTL.
    pub const NOTHING: Self = Self { lock_delay: 0, once_per: 0 };

    /// After a holder dies or is lost, the key lives on for `lock_delay`. After each acquire it lives at least until
    /// `once_per` has passed. Part of a millisecond counts as a whole one. Zero means none.
    pub fn new(lock_delay: Duration, once_per: Duration) -> Self {
        Self { lock_delay: millis(lock_delay), once_per: millis(once_per) }
    }

    /// These times without the interval.
    #[must_use]
    pub fn brief(self) -> Self {
        Self { once_per: 0, ..self }
    }

    /// By how much the key outlives a holder that dies.
    pub fn lock_delay(self) -> Duration {
        span(self.lock_delay)
    }

    /// How long the key has to live from now on, where `elapsed` has passed since the acquire was sent.
    pub fn life(self, ttl: Duration, elapsed: Duration) -> Duration {
        (ttl + span(self.lock_delay)).max(self.interval_left(elapsed))
    }

    /// The rest, after `elapsed`, of the interval in which the lock is acquired once.
    pub fn interval_left(self, elapsed: Duration) -> Duration {
        // Most locks have no interval, and the arithmetic costs more than this branch.
        if self.once_per == 0 { Duration::ZERO } else { span(self.once_per).saturating_sub(elapsed) }
    }

    /// Whether a loss after `elapsed` leaves the key to expire.
    pub fn outlives_a_loss(self, elapsed: Duration) -> bool {
        self.lock_delay > 0 || !self.interval_left(elapsed).is_zero()
    }
}

fn span(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

fn millis(span: Duration) -> u32 {
    // It is mostly zero, and a division of 128 bits costs more than all the rest.
    if span.is_zero() { 0 } else { u32::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_key_that_outlives_nothing_lives_for_the_ttl() {
        for elapsed in [Duration::ZERO, secs(1), secs(100_000)] {
            assert_eq!(Outliving::NOTHING.life(TTL, elapsed), TTL);
            assert!(!Outliving::NOTHING.outlives_a_loss(elapsed));
        }
        assert_eq!(Outliving::default(), Outliving::new(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn a_delay_comes_on_top_of_each_ttl() {
        let delayed = Outliving::new(secs(5), Duration::ZERO);
        for elapsed in [Duration::ZERO, secs(1), secs(100_000)] {
            assert_eq!(delayed.life(TTL, elapsed), secs(35));
            assert!(delayed.outlives_a_loss(elapsed) && delayed.interval_left(elapsed).is_zero());
        }
    }

    #[test]
    fn an_interval_counts_from_the_acquire_and_never_shortens_a_life() {
        let hourly = Outliving::new(Duration::ZERO, secs(3_600));
        let lives = [0, 1_000, 3_570, 3_599, 3_600, 100_000].map(|elapsed| hourly.life(TTL, secs(elapsed)));
        assert_eq!(lives, [3_600, 2_600, 30, 30, 30, 30].map(secs));
        assert_eq!([0, 3_599, 3_600].map(|elapsed| hourly.outlives_a_loss(secs(elapsed))), [true, true, false]);
        assert_eq!(Outliving::new(secs(60), secs(80)).life(TTL, secs(1)), secs(90), "the longer of both");
    }

    #[test]
    fn part_of_a_millisecond_is_a_whole_one_and_too_much_is_the_most() {
        let little = Outliving::new(Duration::from_nanos(1), Duration::from_micros(1_001));
        assert_eq!(little.life(TTL, Duration::ZERO), TTL + Duration::from_millis(1));
        assert_eq!(little.interval_left(Duration::ZERO), Duration::from_millis(2));
        assert!(Outliving::new(Duration::MAX, Duration::ZERO).life(TTL, Duration::ZERO) > secs(24 * 3_600));
    }
}
