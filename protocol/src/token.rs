//! The token that proves ownership, and the value of a lock's key.

use std::{borrow::Borrow, fmt, num::NonZeroU32, sync::Arc};

use uuid::Uuid;

use crate::{fence::Fence, text::joined};

/// Distinguishes our values from other libraries' on the same key; the digit is the format's version.
const MARK: &str = "lh1:";

/// Each value of ours has fewer bytes than this, even with the longest label that a builder takes. Scripts answer with
/// at most this many bytes of any value, so a value that fills them is another program's.
pub const TOO_LONG: usize = 256;

/// The identity in the value of a shared lock.
const OF_A_PHASE: &str = "lh1:00000000-0000-0000-0000-000000000000";

/// The length of an identity in bytes: the mark and a UUID.
const IDENTITY: usize = MARK.len() + 36;

/// One acquisition: `lh1:<uuid>@<label>`. Its first 40 bytes are its identity, which nobody can guess. The token of one
/// that takes several permits says how many, `lh1:<uuid>*<permits>@<label>`.
///
/// While it owns a lock, the lock's key has the token's [value](Self::value), `lh1:<uuid>:<fence>@<label>`. The
/// identity in a value decides who owns it. It is at a fixed place, so no label looks like another identity, or like a
/// fence.
///
/// It is never printed, by `Debug` or otherwise: anybody who knows it can release the lock.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The token of this UUID, which has to be random and unguessable.
    pub fn new(uuid: Uuid, label: &str) -> Self {
        let mut buffer = Uuid::encode_buffer();
        Self(joined(&[MARK, uuid.as_hyphenated().encode_lower(&mut buffer), "@", label]))
    }

    /// This token, of an acquisition that takes this many permits.
    #[must_use]
    pub fn taking(self, permits: NonZeroU32) -> Self {
        if permits == self.permits() {
            return self;
        }
        match permits.get() {
            1 => Self(joined(&[self.identity(), "@", self.label()])),
            several => {
                let mut digits = itoa::Buffer::new();
                Self(joined(&[self.identity(), "*", digits.format(several), "@", self.label()]))
            }
        }
    }

    /// The token of an identity, without a label: to compare with others, not to hold a lock. `None` for a text that is
    /// not an identity.
    pub(crate) fn of_identity(identity: &str) -> Option<Self> {
        let (identity, rest) = split(identity)?;
        rest.is_empty().then(|| Self(joined(&[identity, "@"])))
    }

    /// A new token, never seen before.
    #[cfg(test)]
    pub(crate) fn random(label: &str) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static DRAWN: AtomicU64 = AtomicU64::new(1);
        Self::new(Uuid::from_u64_pair(0, DRAWN.fetch_add(1, Ordering::Relaxed)), label)
    }

    /// Reads a token from a queue; `None` for a text that is not a token of ours.
    pub fn parse(text: &str) -> Option<Self> {
        let (permits, _) = split(text)?.1.split_once('@')?;
        let is_ours = permits.is_empty()
            || permits.strip_prefix('*').is_some_and(|permits| permits.parse::<NonZeroU32>().is_ok());
        (text.len() < TOO_LONG && is_ours).then(|| Self(text.into()))
    }

    /// Reads a lock's value, and the fence in it; `None` for the value of another library.
    pub fn read_value(value: &str) -> Option<(Self, Fence)> {
        if value.len() >= TOO_LONG {
            return None;
        }
        let (identity, rest) = split(value)?;
        let (fence, label) = rest.strip_prefix(':')?.split_once('@')?;
        let fence = fence.bytes().all(|digit| digit.is_ascii_digit()).then(|| fence.parse().ok())??;
        Some((Self(joined(&[identity, "@", label])), fence))
    }

    /// The value of a lock's key while this token owns it.
    pub fn value(&self, fence: Fence) -> String {
        self.value_parts(itoa::Buffer::new().format(u64::from(fence))).concat()
    }

    /// The parts of [`value`](Self::value), for a caller that puts them behind other text. The fence is in decimal
    /// digits.
    pub fn value_parts<'a>(&'a self, fence: &'a str) -> [&'a str; 4] {
        [self.identity(), ":", fence, self.after_permits()]
    }

    /// Whether a lock's value, or part of one, belongs to this acquisition.
    pub fn owns(&self, value: &str) -> bool {
        value.starts_with(self.identity())
    }

    /// The part that distinguishes this acquisition from every other.
    pub fn identity(&self) -> &str {
        self.0.get(..IDENTITY).unwrap_or(&self.0)
    }

    /// Whether it is the token of a phase, which stands for all sharers of a lock.
    pub fn is_of_a_phase(&self) -> bool {
        self.identity() == OF_A_PHASE
    }

    /// The whole token.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The readable part, which names the holder.
    pub fn label(&self) -> &str {
        self.after_permits().get(1..).unwrap_or_default()
    }

    /// How many permits the acquisition takes: one, unless it says how many.
    pub fn permits(&self) -> NonZeroU32 {
        let several = || self.0.get(IDENTITY..)?.strip_prefix('*')?.split_once('@')?.0.parse().ok();
        several().unwrap_or(NonZeroU32::MIN)
    }

    /// The label, with the separator before it.
    fn after_permits(&self) -> &str {
        let rest = self.0.get(IDENTITY..).unwrap_or_default();
        let start = if rest.starts_with('*') { rest.find('@').unwrap_or_default() } else { 0 };
        rest.get(start..).unwrap_or_default()
    }
}

/// The identity of a token or a value, and what comes after it.
fn split(text: &str) -> Option<(&str, &str)> {
    let (identity, rest) = text.split_at_checked(IDENTITY)?;
    let uuid = identity.strip_prefix(MARK)?;
    // One UUID has several spellings; an identity uses this one only.
    let is_spelt = Uuid::try_parse(uuid).ok()?.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == uuid;
    is_spelt.then_some((identity, rest))
}

/// Lets a table of tokens be searched with a text from a server.
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
        assert_eq!(Token::random("a@b").label(), "a@b");
    }

    #[test]
    fn a_value_has_the_identity_the_fence_and_the_label_at_fixed_places() {
        let fence = Fence::try_from(1_795_243_932_883_512_u64).unwrap();
        for label in ["host:7", "@", ":3@x", "lh1:00000000-0000-0000-0000-000000000000:9@y", "é"] {
            let token = Token::random(label);
            let value = token.value(fence);
            assert_eq!(value, format!("{}:1795243932883512@{label}", token.identity()));
            assert_eq!((token.identity().len(), token.label()), (40, label));
            assert_eq!(Token::read_value(&value), Some((token.clone(), fence)));
            assert!(token.owns(&value) && token.owns(token.as_str()) && !Token::random(label).owns(&value));
            assert_eq!(Token::parse(&value), None, "it is no token");
            assert_eq!(Token::read_value(token.as_str()), None, "it is no value");
        }
    }

    #[test]
    fn a_token_says_how_many_permits_it_takes_if_more_than_one() {
        let permits = |number| NonZeroU32::new(number).unwrap();
        for label in ["host:7", "*3@x", "@"] {
            let one = Token::random(label);
            let three = one.clone().taking(permits(3));
            assert_eq!(three.as_str(), format!("{}*3@{label}", one.identity()));
            assert_eq!((three.permits(), three.label(), three.identity()), (permits(3), label, one.identity()));
            assert_eq!((one.permits(), one.label()), (permits(1), label));
            assert_eq!(Token::parse(three.as_str()), Some(three.clone()));
            let fence = Fence::try_from(7_u64).unwrap();
            assert_eq!(three.value(fence), one.value(fence), "a value says nothing of it");
            assert_eq!(three.taking(permits(1)), one);
        }
        for foreign in ["*@x", "*0@x", "*-1@x", "*4294967296@x", "*3", "3@x"] {
            assert_eq!(Token::parse(&[Token::random("").identity(), foreign].concat()), None, "{foreign}");
        }
    }

    #[test]
    fn what_is_too_long_is_another_programs() {
        let shortest = Token::random("").value(Fence::try_from(i64::MAX).unwrap()).len();
        for (more, is_ours) in [(0, true), (128, true), (TOO_LONG - 1 - shortest, true), (TOO_LONG - shortest, false)] {
            let token = Token::random(&"x".repeat(more));
            let value = token.value(Fence::try_from(i64::MAX).unwrap());
            assert_eq!(Token::read_value(&value).is_some(), is_ours, "{}", value.len());
        }
    }

    #[test]
    fn a_value_with_no_fence_is_nobodys() {
        let token = Token::random("host:7");
        for fence in ["", "-1", "+1", "1.5", "x", "9223372036854775808"] {
            let value = format!("{}:{fence}@host:7", token.identity());
            assert_eq!(Token::read_value(&value), None, "{fence:?}");
        }
        assert_eq!(Token::read_value(&format!("{}:7", token.identity())), None, "no label");
    }

    #[test]
    fn debug_keeps_the_secret() {
        let token = Token::random("host:7");
        let shown = format!("{token:?}");
        assert!(!shown.contains(&token.identity()[MARK.len()..]), "{shown}");
        assert!(shown.contains("host:7"));
    }

    #[test]
    fn other_libraries_values_are_not_tokens() {
        for foreign in [
            "",
            "1",
            "lh1:",
            "lh1:x@host",
            "550e8400-e29b-41d4-a716-446655440000",
            "lh1:550e8400e29b41d4a716446655440000@four bytes more",
            "lh1:550E8400-E29B-41D4-A716-446655440000@host",
            "lh1:550e8400-e29b-41d4-a716-44665544000é@host",
        ] {
            assert!(Token::parse(foreign).is_none() && Token::read_value(foreign).is_none(), "{foreign:?}");
        }
        let token = Token::random("host:7");
        assert_eq!(Token::parse(token.as_str()), Some(token));
    }

    #[test]
    fn a_table_of_tokens_is_asked_with_what_the_server_says() {
        let token = Token::random("host:7");
        let table = std::collections::HashMap::from([(token.clone(), 1)]);
        assert_eq!((table.get(token.as_str()), table.get("")), (Some(&1), None));
    }
}
