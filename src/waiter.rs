//! The waiters for a lock.

use std::{fmt, time::Duration};

use leasehold_protocol::token::Token;

/// A waiter in the fair queue of a lock.
#[derive(Clone, PartialEq, Eq)]
pub struct Waiter {
    pub(crate) token: Token,
    pub(crate) waited: Duration,
}

impl Waiter {
    /// The readable name that the waiter gave itself, as of a [`Holder`](crate::Holder).
    #[must_use]
    pub fn label(&self) -> &str {
        self.token.label()
    }

    /// How long it has waited, by the server's clock.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").field("label", &self.label()).field("waited", &self.waited).finish_non_exhaustive()
    }
}

/// `label` and `waited_seconds`; never the token.
#[cfg(feature = "serde")]
impl serde::Serialize for Waiter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut waiter = serializer.serialize_struct("Waiter", 2)?;
        waiter.serialize_field("label", self.label())?;
        waiter.serialize_field("waited_seconds", &self.waited.as_secs_f64())?;
        waiter.end()
    }
}

#[cfg(all(test, feature = "serde", not(leasehold_shuttle)))]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn serde_writes_everything_but_the_token() {
        let waiter = Waiter { token: random::token("host:7"), waited: Duration::from_millis(1_500) };
        assert_eq!(serde_json::to_string(&waiter).unwrap(), r#"{"label":"host:7","waited_seconds":1.5}"#);
    }
}
