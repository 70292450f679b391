//! Whether a lock is held alone or shared, and the value in the key of a shared lock.

use std::{fmt, num::NonZeroU32};

use uuid::Uuid;

use crate::{fence::Fence, token::Token};

/// How a lock is held, or wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Held alone.
    #[default]
    Exclusive,
    /// Shared with others.
    Shared {
        /// How many permits there are: the lock is granted if, with its own, no more than this are taken by then.
        /// `None`: there is no limit.
        limit: Option<NonZeroU32>,
        /// How many permits it takes.
        permits: NonZeroU32,
    },
}

impl Mode {
    /// Whether the lock is shared.
    pub fn is_shared(self) -> bool {
        self != Self::Exclusive
    }
}

/// The limit as scripts take it: admitted while others take fewer permits than this. Zero is exclusive.
pub fn limit(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared { limit: None, .. } => u32::MAX,
        Mode::Shared { limit: Some(limit), permits } => limit.get().saturating_sub(permits.get() - 1).max(1),
    }
}

/// How many permits are taken in this mode.
pub fn permits(mode: Mode) -> NonZeroU32 {
    match mode {
        Mode::Exclusive => NonZeroU32::MIN,
        Mode::Shared { permits, .. } => permits,
    }
}

/// The mode that has this [`limit`], and takes this many permits.
pub fn of_limit(limit: u32, permits: NonZeroU32) -> Mode {
    match NonZeroU32::new(limit) {
        None => Mode::Exclusive,
        Some(NonZeroU32::MAX) => Mode::Shared { limit: None, permits },
        Some(limit) => Mode::Shared { limit: limit.checked_add(permits.get() - 1), permits },
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("alone"),
            Self::Shared { limit: None, .. } => f.write_str("to read"),
            Self::Shared { limit: Some(limit), permits: NonZeroU32::MIN } => write!(f, "one of {limit} permits"),
            Self::Shared { limit: Some(limit), permits } => write!(f, "{permits} of {limit} permits"),
        }
    }
}

/// The token in the key of a shared lock. No acquisition has the nil UUID, so none takes this value for its own.
pub fn token_of_a_phase() -> Token {
    Token::new(Uuid::nil(), "shared")
}

/// The fence of the phase in a value; `None` for the value of a lock that is held alone, and for another library's.
pub fn phase_of(value: &str) -> Option<Fence> {
    let (token, fence) = Token::read_value(value)?;
    token.is_of_a_phase().then_some(fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_number_in_each_mode() {
        let permits = |taken| NonZeroU32::new(taken).unwrap();
        let shared = |limit, taken| Mode::Shared { limit: NonZeroU32::new(limit), permits: permits(taken) };
        for (mode, taken, number, says) in [
            (Mode::Exclusive, 1, 0, "alone"),
            (shared(0, 1), 1, u32::MAX, "to read"),
            (shared(4, 1), 1, 4, "one of 4 permits"),
            (shared(4, 3), 3, 2, "3 of 4 permits"),
            (shared(4, 4), 4, 1, "4 of 4 permits"),
        ] {
            assert_eq!((limit(mode), mode.is_shared(), &*mode.to_string()), (number, number > 0, says));
            assert_eq!(of_limit(number, permits(taken)), mode);
        }
        assert_eq!(Mode::default(), Mode::Exclusive);
    }

    #[test]
    fn the_value_of_a_phase_is_no_acquisitions() {
        let fence = Fence::try_from(1_795_243_932_883_512_u64).unwrap();
        let value = token_of_a_phase().value(fence);
        assert_eq!(value, "lh1:00000000-0000-0000-0000-000000000000:1795243932883512@shared");
        assert_eq!(phase_of(&value), Some(fence));
        for other in [&*Token::random("shared").value(fence), "lh1:00000000-0000-0000-0000-000000000000:x@shared", ""] {
            assert_eq!(phase_of(other), None, "{other}");
        }
    }
}
