//! Randomness from a seed: the same numbers in the same order, on every machine.

use std::time::Duration;

/// `SplitMix64`.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A sequence of its own for each seed and place.
    pub fn new(seed: u64, place: &[u64]) -> Self {
        let mut chance = Self(seed);
        for &step in place {
            chance.0 = chance.next() ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        chance
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.next() % many == 0
    }

    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(count.max(1)).unwrap_or(1)).unwrap_or(0)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
