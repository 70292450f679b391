//! Clocks that disagree, and dice that fall the same way every time.

use std::time::Duration;

use leasehold_protocol::{jitter::Jitter, time::Time};

/// The simulation's own time, in nanoseconds, which no part of it can read.
pub(super) type Real = u64;

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// One machine's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skewed {
    /// The time that it showed when the simulation began.
    pub(super) offset: u64,
    /// By how many millionths it runs faster than real time.
    pub(super) gains: i64,
}

const MILLION: i128 = 1_000_000;

impl Skewed {
    fn rate(self) -> i128 {
        MILLION + i128::from(self.gains)
    }

    pub(super) fn shows(self, real: Real) -> Time {
        let ran = i128::from(real) * self.rate() / MILLION;
        Time::from_nanos(self.offset.saturating_add(u64::try_from(ran).unwrap_or(u64::MAX)))
    }

    /// The first real moment at which it shows this, or more.
    pub(super) fn when(self, shows: Time) -> Real {
        if shows == Time::NEVER {
            return Real::MAX;
        }
        let ran = i128::from(shows.as_nanos().saturating_sub(self.offset));
        let real = (ran * MILLION + self.rate() - 1) / self.rate();
        Real::try_from(real).unwrap_or(Real::MAX)
    }
}

/// All chance in a run, from one seed.
#[derive(Debug)]
pub(super) struct Dice(Jitter);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Jitter::from_seed(seed))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        nanos(self.0.below(Duration::from_nanos(bound)))
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + self.0.below(most.saturating_sub(least))
    }

    /// A span that is mostly short, and now and then as long as `most`.
    pub(super) fn short(&mut self, most: Duration) -> Duration {
        let bound = most / (1 << self.below(6));
        self.0.below(bound)
    }

    /// Whether something happens that has this probability in percent.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn signed(&mut self, most: u64) -> i64 {
        i64::try_from(self.below(2 * most + 1)).unwrap_or_default() - i64::try_from(most).unwrap_or_default()
    }

    pub(super) fn jitter(&mut self) -> Jitter {
        Jitter::from_seed(self.below(1 << 32))
    }
}

#[test]
fn a_skewed_clock_and_back() {
    for gains in [-10_000, -4_900, 0, 1, 4_900] {
        let clock = Skewed { offset: 7_000_000_001, gains };
        for real in [0, 1, 999_999, 123_456_789_012] {
            let first = clock.when(clock.shows(real));
            assert!(first <= real && clock.shows(first) == clock.shows(real), "{gains}: {real}");
            assert!(first == 0 || clock.shows(first - 1) < clock.shows(real), "{gains}: {real}");
        }
    }
}
