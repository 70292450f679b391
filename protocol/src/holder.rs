//! Who holds a lock, as far as its key tells.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{fence::Fence, rounded::Rounded, token::Token};

/// Who holds a lock, read from its key at one moment.
///
/// Every part is optional: a key that another library wrote has neither label nor fence, and one without a TTL has no
/// remaining time.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    pub(crate) token: Option<Token>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) fence: Option<Fence>,
    pub(crate) is_ours: bool,
}

impl Holder {
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

    /// The fencing token of this holder, however long it has held the lock: it stands in the key's value. `None` for another
    /// library's holder, and over a quorum while too few nodes have answered for it to be certain.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// When this holder acquired the lock, by the server's clock. `None` where [`fence`](Self::fence) is `None`.
    ///
    /// The fence tells it: a server issues its time in microseconds. After its clock was set back it issues the last fence
    /// plus one, until the clock has caught up: the moment is then later than the acquire. Over a quorum it is the latest
    /// of several clocks.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(self.fence?.into()))
    }

    /// Whether it is a lease of the `Leases` that was asked.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// What tells this acquisition from every other, and proves ownership: whoever has it can release the lock. It is never
    /// printed. The key's value begins with it.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(Token::identity)
    }
}

/// Ends the label under a key that its holder has released and keeps for a while.
pub const RELEASED: &str = " (released)";

/// A holder of these parts. This and the functions below are no methods, because a method is there for users too.
pub fn of(token: Option<Token>, remaining: Option<Duration>, fence: Option<Fence>) -> Holder {
    Holder { token, remaining, fence, is_ours: false }
}

/// Puts together what a node read: the key's value (`None` for another type than a string), and its PTTL in milliseconds
/// (negative without a TTL).
pub fn read(value: Option<&str>, pttl: i64) -> Holder {
    let (token, fence) = value.and_then(Token::read_value).unzip();
    of(token, u64::try_from(pttl).ok().map(Duration::from_millis), fence)
}

/// The same holder, which is a lease of ours.
pub fn ours(holder: Holder) -> Holder {
    Holder { is_ours: true, ..holder }
}

/// The token under the key, if that is one of ours.
pub fn token(holder: &Holder) -> Option<&Token> {
    holder.token.as_ref()
}

/// The same holder, whose key lives for another time.
pub fn lasting(holder: Holder, remaining: Option<Duration>) -> Holder {
    Holder { remaining, ..holder }
}

/// Whether it is the same acquisition, seen at another moment.
pub fn is_same(one: &Holder, other: &Holder) -> bool {
    one.token == other.token
}

/// A sentence's end: `worker-1:4711 (fence 1795…) for another 12.3 s`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label() {
            Some(label) => f.write_str(label)?,
            None => f.write_str("another program (its key has none of our tokens)")?,
        }
        if self.is_ours {
            f.write_str(", this program")?;
        }
        if let Some(fence) = self.fence {
            write!(f, " (fence {fence})")?;
        }
        let is_kept = self.label().is_some_and(|label| label.ends_with(RELEASED));
        match self.remaining {
            Some(remaining) if is_kept => write!(f, ", which keeps it for {} more", Rounded(remaining)),
            Some(remaining) => write!(f, ", whose key lives {} more unless renewed", Rounded(remaining)),
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

/// `label`, `remaining_seconds`, `fence`, each `null` if it is not known, and `is_ours`; never the token.
#[cfg(feature = "serde")]
impl serde::Serialize for Holder {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut holder = serializer.serialize_struct("Holder", 4)?;
        holder.serialize_field("label", &self.label())?;
        holder.serialize_field("remaining_seconds", &self.remaining.map(|remaining| remaining.as_secs_f64()))?;
        holder.serialize_field("fence", &self.fence)?;
        holder.serialize_field("is_ours", &self.is_ours)?;
        holder.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence;

    #[test]
    fn a_foreign_key_has_neither_label_nor_fence() {
        let holder = read(Some("someone-else"), -1);
        assert_eq!((holder.label(), holder.fence(), holder.token()), (None, None, None));
        assert!(holder.to_string().contains("no TTL"), "{holder}");
    }

    #[test]
    fn a_fence_tells_when_its_holder_acquired() {
        let fence = Fence::try_from(1_795_301_966_972_697_u64).unwrap();
        let since = of(None, None, Some(fence)).since().unwrap();
        assert_eq!(since.duration_since(SystemTime::UNIX_EPOCH).unwrap(), Duration::from_micros(fence.into()));
        assert_eq!(read(Some("someone-else"), -1).since(), None);
        // The largest fence there is.
        assert!(of(None, None, Fence::try_from(i64::MAX).ok()).since().is_some());
    }

    #[test]
    fn neither_debug_nor_display_shows_the_token() {
        let token = Token::draw("host:7");
        let holder = read(Some(&token.value(fence::ZERO)), 1_500);
        assert_eq!(holder.token(), Some(token.identity()));
        let uuid = &token.identity()[4..];
        for (shown, remaining) in [(format!("{holder:?}"), "1.5s"), (holder.to_string(), "lives 1.5 s more")] {
            assert!(!shown.contains(uuid), "{shown}");
            assert!(shown.contains("host:7") && shown.contains(remaining), "{shown}");
        }
    }

    #[test]
    fn a_holder_of_ours_has_its_token_its_fence_and_its_time() {
        let (token, fence) = (Token::draw("host:7"), Fence::try_from(7_u64).unwrap());
        let (holder, fence) = (read(Some(&token.value(fence)), 1_500), Some(fence));
        assert_eq!((super::token(&holder), holder.fence()), (Some(&token), fence));
        assert_eq!(holder.remaining(), Some(Duration::from_millis(1_500)));
        let longer = lasting(holder.clone(), Some(Duration::from_secs(9)));
        assert_eq!(longer, of(Some(token), Some(Duration::from_secs(9)), fence));
    }

    #[test]
    fn a_key_that_is_kept_is_renewed_by_nobody() {
        let token = Token::draw(&format!("host:7{RELEASED}"));
        let kept = read(Some(&token.value(fence::ZERO)), 1_500).to_string();
        assert_eq!(kept, "host:7 (released) (fence 0), which keeps it for 1.5 s more");
    }

    #[test]
    fn the_same_acquisition_is_the_same_token_whenever_it_is_seen() {
        let (one, other) = (Token::draw("host:7"), Token::draw("host:7"));
        let at = |token: &Token, millis| read(Some(&token.value(fence::ZERO)), millis);
        assert!(is_same(&at(&one, 1_500), &at(&one, 300)));
        assert!(!is_same(&at(&one, 1_500), &at(&other, 1_500)));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_everything_but_the_token() {
        let (token, fence) = (Token::draw("host:7"), Fence::try_from(7_u64).unwrap());
        let json = |holder: &Holder| serde_json::to_string(holder).unwrap();
        let held = json(&ours(read(Some(&token.value(fence)), 1_500)));
        assert_eq!(held, r#"{"label":"host:7","remaining_seconds":1.5,"fence":7,"is_ours":true}"#);
        let foreign = json(&read(Some("someone-else"), -1));
        assert_eq!(foreign, r#"{"label":null,"remaining_seconds":null,"fence":null,"is_ours":false}"#);
    }
}
