//! Who waits for a lock.

use std::{fmt, time::Duration};

use leasehold_protocol::token::Token;

/// One who waits for a lock in its fair queue.
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
