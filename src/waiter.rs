//! The waiters for a lock.

use std::{fmt, time::Duration};

use leasehold_protocol::{mode::Mode, token::Token};

/// A waiter in the fair queue of a lock.
#[derive(Clone, PartialEq, Eq)]
pub struct Waiter {
    pub(crate) token: Token,
    pub(crate) waited: Duration,
    pub(crate) mode: Mode,
}

impl Waiter {
    /// The readable name that the waiter gave itself, like that of a [`Holder`](crate::Holder).
    #[must_use]
    pub fn label(&self) -> &str {
        self.token.label()
    }

    /// How long it has waited, by the server's clock.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How it wants the lock: alone, or shared. Also [`Mode::Exclusive`] if the server has lost the mode, until the
    /// waiter's next poll.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter")
            .field("label", &self.label())
            .field("waited", &self.waited)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// `label`, `waited_seconds`, `mode` (`"exclusive"` or `"shared"`), and `limit` and `permits`, each `null` without a
/// limit; never the token.
#[cfg(feature = "serde")]
impl serde::Serialize for Waiter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut waiter = serializer.serialize_struct("Waiter", 5)?;
        waiter.serialize_field("label", self.label())?;
        waiter.serialize_field("waited_seconds", &self.waited.as_secs_f64())?;
        let (mode, limit, permits) = match self.mode {
            Mode::Shared { limit, permits } => ("shared", limit, limit.and(Some(permits))),
            _ => ("exclusive", None, None),
        };
        waiter.serialize_field("mode", mode)?;
        waiter.serialize_field("limit", &limit)?;
        waiter.serialize_field("permits", &permits)?;
        waiter.end()
    }
}

#[cfg(all(test, feature = "serde", not(leasehold_shuttle)))]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn serde_writes_everything_but_the_token() {
        for (limit, permits, says) in [
            (0, 1, r#""mode":"exclusive","limit":null,"permits":null"#),
            (4, 1, r#""mode":"shared","limit":4,"permits":1"#),
            (2, 3, r#""mode":"shared","limit":4,"permits":3"#),
            (u32::MAX, 1, r#""mode":"shared","limit":null,"permits":null"#),
        ] {
            let mode = leasehold_protocol::mode::of_limit(limit, std::num::NonZeroU32::new(permits).unwrap());
            let waiter = Waiter { token: random::token("host:7"), waited: Duration::from_millis(1_500), mode };
            let expected = format!(r#"{{"label":"host:7","waited_seconds":1.5,{says}}}"#);
            assert_eq!(serde_json::to_string(&waiter).unwrap(), expected);
        }
    }
}
