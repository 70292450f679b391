//! The value that proves ownership.

use std::{borrow::Borrow, fmt, sync::Arc};

use uuid::Uuid;

/// Tells our values from other libraries' on the same key; the digit is the format's version.
const MARK: &str = "lh1:";

/// The unguessable value that a lock key holds while we own it: `lh1:<uuid>@<label>`.
///
/// The UUID is a v4 from the operating system's random source. Neither `Debug` nor anything else prints it: whoever
/// knows it can release the lock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(Arc<str>);

impl Token {
    /// A new token, never seen before.
    pub(crate) fn draw(label: &str) -> Self {
        Self(format!("{MARK}{}@{label}", random_uuid().as_hyphenated()).into())
    }

    /// Reads a key's value; `None` for what another library wrote.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (uuid, _label) = value.strip_prefix(MARK)?.split_once('@')?;
        Uuid::try_parse(uuid).ok()?;
        Some(Self(value.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The readable part, which names the holder.
    pub(crate) fn label(&self) -> &str {
        self.0.split_once('@').map_or("", |(_secret, label)| label)
    }
}

/// So that a table of tokens can be asked with what a server says.
impl Borrow<str> for Token {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}…@{}", self.label())
    }
}

/// The one place where randomness that must not be guessed enters.
#[cfg(not(all(test, leasehold_shuttle)))]
#[allow(clippy::disallowed_methods)]
fn random_uuid() -> Uuid {
    Uuid::new_v4()
}

#[cfg(all(test, leasehold_shuttle))]
use crate::shuttled::random_uuid;

/// Randomness for less than a token.
pub(crate) fn random_u64() -> u64 {
    random_uuid().as_u64_pair().1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tokens_differ_and_carry_the_label() {
        let (one, two) = (Token::draw("host:7"), Token::draw("host:7"));
        assert_ne!(one, two);
        assert_eq!(one.label(), "host:7");
    }

    #[test]
    fn a_label_may_hold_the_separator() {
        assert_eq!(Token::draw("a@b").label(), "a@b");
    }

    #[test]
    fn debug_keeps_the_secret() {
        let token = Token::draw("host:7");
        let secret = token.as_str().split_once('@').unwrap().0;
        let shown = format!("{token:?}");
        assert!(!shown.contains(&secret[MARK.len()..]), "{shown}");
        assert!(shown.contains("host:7"));
    }

    #[test]
    fn other_libraries_values_are_not_tokens() {
        for foreign in ["", "1", "lh1:", "lh1:x@host", "550e8400-e29b-41d4-a716-446655440000"] {
            assert!(Token::parse(foreign).is_none(), "{foreign:?}");
        }
        let token = Token::draw("host:7");
        assert_eq!(Token::parse(token.as_str()), Some(token));
    }
}
