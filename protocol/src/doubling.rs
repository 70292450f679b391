//! Pauses between the tries of something that fails: pure.

use std::time::Duration;

/// Pauses that double.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Doubling(Duration);

impl Doubling {
    /// Pauses that begin with this one.
    pub const fn from(first: Duration) -> Self {
        Self(first)
    }

    /// The next pause. The one after it is twice as long; none is longer than `longest`.
    pub fn next(&mut self, longest: Duration) -> Duration {
        let pause = self.0.min(longest);
        self.0 = (pause * 2).min(longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(doubling: &mut Doubling, longest: u64) -> [u128; 5] {
        [(); 5].map(|()| doubling.next(Duration::from_millis(longest)).as_millis())
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        assert_eq!(pauses(&mut Doubling::from(Duration::from_millis(10)), 50), [10, 20, 40, 50, 50]);
        assert_eq!(pauses(&mut Doubling::from(Duration::from_millis(10)), 5), [5; 5]);
    }

    #[test]
    fn the_longest_pause_may_change() {
        let mut doubling = Doubling::from(Duration::from_millis(10));
        assert_eq!(pauses(&mut doubling, 1_000), [10, 20, 40, 80, 160]);
        assert_eq!(pauses(&mut doubling, 50), [50; 5]);
        assert_eq!(pauses(&mut doubling, 300), [50, 100, 200, 300, 300]);
    }
}
