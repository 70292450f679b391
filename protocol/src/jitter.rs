//! Randomness that need not be unpredictable, and that a test can repeat.

use std::time::Duration;

use crate::time::Time;

/// The generator's odd constant: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random spans: splitmix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Jitter(u64);

impl Jitter {
    /// The stream of this seed, the same every time.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// One of many streams of the same seed, by its number.
    pub fn stream(seed: u64, number: u64) -> Self {
        // Mixed once, so that two consecutive streams are not the same stream one step apart.
        Self(mix(seed.wrapping_add(STEP.wrapping_mul(number))))
    }

    /// The stream of a moment: the same seed gives the same spans there.
    #[must_use]
    pub fn at(&self, moment: Time) -> Self {
        Self::stream(self.0, moment.as_nanos())
    }

    /// A span from zero to just below `bound`.
    pub fn below(&mut self, bound: Duration) -> Duration {
        let share = u128::from(self.next() >> 32);
        Duration::from_nanos(u64::try_from((bound.as_nanos() * share) >> 32).unwrap_or(u64::MAX))
    }

    /// Whether this draw is the one in `many`.
    pub fn is_one_of(&mut self, many: u64) -> bool {
        self.next() % many.max(1) == 0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_uses_the_whole_range() {
        let mut jitter = Jitter::from_seed(7);
        let issues: Vec<_> = (0..1_000).map(|_| jitter.below(Duration::from_secs(1)).as_millis()).collect();
        let below = |limit: u128| issues.iter().filter(|&&draw| draw < limit).count();
        assert!((50..=150).contains(&below(100)), "a tenth falls into the first tenth, give or take: {}", below(100));
        assert!((400..=600).contains(&below(500)), "{}", below(500));
    }

    #[test]
    fn one_of_eight_is_one_of_eight() {
        let mut jitter = Jitter::from_seed(7);
        let ones = (0..8_000).filter(|_| jitter.is_one_of(8)).count();
        assert!((900..=1_100).contains(&ones), "{ones}");
    }

    #[test]
    fn a_moment_has_one_stream_for_each_seed() {
        let span = |seed, nanos| Jitter::from_seed(seed).at(Time::from_nanos(nanos)).below(Duration::from_secs(1));
        assert_eq!(span(7, 5), span(7, 5));
        let others = [span(7, 5), span(7, 6), span(8, 5), span(8, 6)];
        assert!((1..4).all(|at| !others[..at].contains(&others[at])), "{others:?}");
    }

    #[test]
    fn the_stream_is_splitmix64() {
        // The first outputs of the published generator for the seed 0.
        let outputs = [1, 2, 3].map(|step: u64| mix(STEP.wrapping_mul(step)));
        assert_eq!(outputs, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
