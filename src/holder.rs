//! Who holds a lock, as far as its key tells.

use std::{fmt, time::Duration};

use crate::{fence::Fence, token::Token};

/// Who holds a lock, read from its key at one moment.
///
/// Every part is optional: a key that another library wrote has neither label nor fence, one that has been held for 24
/// hours has no [fence](Self::fence), and one without a TTL has no remaining time.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Holder {
    pub(crate) token: Option<Token>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) fence: Option<Fence>,
}

impl Holder {
    /// Puts together what a node read: the key's value (`None` for another type than a string), its PTTL in
    /// milliseconds (negative without a TTL), and the fence key.
    pub(crate) fn read(value: Option<&str>, pttl: i64, fence: Option<Fence>) -> Self {
        let token = value.and_then(Token::parse);
        // The stored fence is the newest ever drawn: the holder's, if the holder is one of ours.
        let fence = token.as_ref().and(fence);
        Self { token, remaining: u64::try_from(pttl).ok().map(Duration::from_millis), fence }
    }

    /// Whether it is the same acquisition, seen at another moment.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.token == other.token
    }

    /// The readable name that the holder gave itself, `host:pid` unless it chose another.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.token.as_ref().map(Token::label)
    }

    /// How long the key still lived when it was read, if nobody renews it.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The fencing token of this holder; `None` once it has held the lock for 24 hours, for the server keeps a fence no
    /// longer than that ([`Lease::fence`](crate::Lease::fence) always has it). Over a quorum `None` too while too few nodes
    /// have answered for it to be certain.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// The whole token, which proves ownership: whoever has it can release the lock. It is never printed.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(Token::as_str)
    }
}

/// A sentence's end: `worker-1:4711 (fence 1795…) for another 12.3 s`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label() {
            Some(label) => f.write_str(label)?,
            None => f.write_str("another program (its key has none of our tokens)")?,
        }
        if let Some(fence) = self.fence {
            write!(f, " (fence {fence})")?;
        }
        match self.remaining {
            Some(remaining) => write!(f, ", whose key lives {remaining:?} more unless renewed"),
            None => f.write_str(", whose key has no TTL"),
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("label", &self.label())
            .field("remaining", &self.remaining)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// One who waits for a lock in its fair queue.
#[derive(Clone, PartialEq, Eq)]
pub struct Waiting {
    pub(crate) token: Token,
    pub(crate) waited: Duration,
}

impl Waiting {
    /// The readable name that the waiter gave itself, as of a [`Holder`].
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

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("label", &self.label()).field("waited", &self.waited).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_key_has_no_label_and_lends_nobody_our_fence() {
        let fence = Fence::try_from(7_u64).ok();
        let holder = Holder::read(Some("someone-else"), -1, fence);
        assert_eq!((holder.label(), holder.fence(), holder.token()), (None, None, None));
        assert!(holder.to_string().contains("no TTL"), "{holder}");
    }

    #[test]
    fn neither_debug_nor_display_shows_the_token() {
        let token = Token::draw("host:7");
        let holder = Holder::read(Some(token.as_str()), 1_500, Fence::try_from(7_u64).ok());
        assert_eq!(holder.token(), Some(token.as_str()));
        let uuid = &token.as_str()[4..40];
        for shown in [format!("{holder:?}"), holder.to_string()] {
            assert!(!shown.contains(uuid), "{shown}");
            assert!(shown.contains("host:7") && shown.contains("1.5s"), "{shown}");
        }
    }
}
