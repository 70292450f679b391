//! Moments and spans. Nothing here reads a clock: every step is given the time.

use std::{fmt, ops::Add, time::Duration};

/// A moment on the clock of the driver, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// When the driver's clock began.
    pub const ZERO: Self = Self(0);
    /// After every other moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this long after [`ZERO`](Self::ZERO).
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time since [`ZERO`](Self::ZERO).
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it is in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:?}", Duration::from_nanos(self.0))
    }
}

/// A server's time: microseconds since 1970 on its own clock.
pub type Micros = u64;

/// A span in the unit of [`Micros`], capped if it is too long.
pub fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(Time::NEVER + Duration::from_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO + Duration::MAX, Time::NEVER);
        assert_eq!(Time::ZERO.since(Time::NEVER), Duration::ZERO);
    }

    #[test]
    fn a_span_that_is_too_long_is_long() {
        assert!(micros(Duration::MAX) > 1_000 * micros(Duration::from_secs(24 * 3_600)));
    }
}
