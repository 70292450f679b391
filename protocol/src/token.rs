//! The value that proves ownership.

use std::{borrow::Borrow, fmt, sync::Arc};

use uuid::Uuid;

/// Tells our values from other libraries' on the same key; the digit is the format's version.
const MARK: &str = "lh1:";

/// The unguessable value that a lock key holds while we own it: `lh1:<uuid>@<label>`.
///
/// Neither `Debug` nor anything else prints it: whoever
/// knows it can release the lock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The token of this UUID, which has to be a random one that nobody can guess.
    pub fn new(uuid: Uuid, label: &str) -> Self {
        Self(format!("{MARK}{}@{label}", uuid.as_hyphenated()).into())
    }

    /// A new token, never seen before.
    #[cfg(test)]
    pub(crate) fn draw(label: &str) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static DRAWN: AtomicU64 = AtomicU64::new(1);
        Self::new(Uuid::from_u64_pair(0, DRAWN.fetch_add(1, Ordering::Relaxed)), label)
    }

    /// Reads a key's value; `None` for what another library wrote.
    pub fn parse(value: &str) -> Option<Self> {
        let (uuid, _label) = value.strip_prefix(MARK)?.split_once('@')?;
        Uuid::try_parse(uuid).ok()?;
        Some(Self(value.into()))
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The readable part, which names the holder.
    pub fn label(&self) -> &str {
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_table_of_tokens_is_asked_with_what_the_server_says() {
        let token = Token::draw("host:7");
        let table = std::collections::HashMap::from([(token.clone(), 1)]);
        assert_eq!((table.get(token.as_str()), table.get("")), (Some(&1), None));
    }
}
