//! The holder of a lock, as far as its key shows.

use std::{
    fmt,
    num::NonZeroU32,
    time::{Duration, SystemTime},
};

use crate::{
    fence::{self, Fence},
    rounded::Rounded,
    token::Token,
};

/// The holder of a lock, read from its key at one moment.
///
/// Every part is optional: a key that another library wrote has neither label nor fence, and one without a TTL has no
/// remaining time.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    pub(crate) token: Option<Token>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) fence: Option<Fence>,
    pub(crate) is_ours: bool,
    pub(crate) not_a_lock: Option<&'static str>,
    /// It is one sharer of the lock.
    pub(crate) is_share: bool,
    /// The number of sharers plus one, if that was read.
    pub(crate) sharers: Option<NonZeroU32>,
    /// The remaining time is that of the share that expires first, not last.
    pub(crate) is_until_first: bool,
    /// The lock is free, but its queue is not ready to pass it on.
    pub(crate) is_nobody: bool,
}

impl Holder {
    /// The readable name that the holder gave itself, `host:pid` unless it chose another. It is not escaped: another
    /// process may have written newlines and escape sequences, which `Display` shows as `\n` and `\u{1b}`.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.token.as_ref().filter(|token| !token.is_of_a_phase()).map(Token::label)
    }

    /// How long the key still had to live when it was read, unless renewed.
    ///
    /// So it shows when the lock becomes free **if its holder has died**. A living holder renews the key at a third of
    /// its TTL, and may release it at any moment, so this says nothing about how long its work takes. Zero or `None`
    /// promises nothing either.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The fencing token of this holder, however long it has held the lock, because the key's value contains it. `None`
    /// for another library's holder, and over a quorum while too few nodes have answered for it to be certain.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// When this holder acquired the lock, by the server's clock. `None` where [`fence`](Self::fence) is `None`.
    ///
    /// It is read from the fence, because a server issues its time in microseconds. After its clock was set back, it
    /// issues the last fence plus one until the clock has caught up, so this time is then later than the acquire. Over
    /// a quorum it is the latest of several clocks.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(self.fence?.into()))
    }

    /// Whether it is a lease of the `Client` that was asked.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// The kind of the key's value, if that is not a lock but a program's data under the lock's name. It is a type
    /// other than string, such as `"list"`, or `"string without a TTL"`. A type that is unknown, or that our user may
    /// not read without the right `+type`, is `"value of another type"`.
    ///
    /// Such a key is never released, so the lock is not free before the key is deleted or expires. Give the lock
    /// another name or its `Client` a prefix, or delete the key.
    ///
    /// `None` for a lock of ours, and for a string with a TTL: that is another library's lock.
    #[must_use]
    pub fn not_a_lock(&self) -> Option<&str> {
        self.not_a_lock
    }

    /// Whether the lock is shared. This holder then stands for all sharers: it has their common [fence](Self::fence),
    /// neither label nor token, and the remaining time of the share that expires last. In a list of all sharers, it is
    /// one of them.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_share || self.is_of_all()
    }

    /// How many holders share the lock. `None` if it is held alone, if this is one of several sharers, or if it was not
    /// read.
    #[must_use]
    pub fn sharers(&self) -> Option<u32> {
        Some(self.sharers?.get() - 1)
    }

    /// How many permits this sharer takes of the lock: 1 for a reader. `None` if it is not one of the sharers.
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        Some(self.token.as_ref().filter(|_| self.is_share)?.permits().get())
    }

    /// The secret that identifies this acquisition and proves ownership: with it, anybody can release the lock. It is
    /// never printed. The key's value begins with it.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().filter(|token| !token.is_of_a_phase()).map(Token::identity)
    }
}

/// The end of the label in a key that its holder has released but keeps for a while.
pub const RELEASED: &str = " (released)";

/// Methods for the library, which are of no use to users.
#[doc(hidden)]
impl Holder {
    /// Whether it stands for all sharers of the lock.
    pub fn is_of_all(&self) -> bool {
        self.token.as_ref().is_some_and(Token::is_of_a_phase)
    }

    /// One sharer of a lock, in the phase of this fence.
    pub fn of_share(token: Option<Token>, remaining: Option<Duration>, fence: Option<Fence>) -> Self {
        Self { is_share: true, ..Self::of(token, remaining, fence) }
    }

    /// A holder with these parts.
    pub fn of(token: Option<Token>, remaining: Option<Duration>, fence: Option<Fence>) -> Self {
        Self {
            token,
            remaining,
            fence,
            is_ours: false,
            not_a_lock: None,
            is_share: false,
            sharers: None,
            is_until_first: false,
            is_nobody: false,
        }
    }

    /// No holder: the lock is free, but one call does not remove all the dead waiters from its queue.
    pub fn nobody() -> Self {
        Self { is_nobody: true, ..Self::of(None, Some(Duration::ZERO), None) }
    }

    /// A holder as a node read it: from the key's value (`None` if that is not text), and its PTTL in milliseconds (-1
    /// without a TTL).
    pub fn read(value: Option<&str>, pttl: i64) -> Self {
        let (token, fence) = value.and_then(Token::read_value).unzip();
        // Zero: the lock is being acquired in steps, and has no fence yet.
        let fence = fence.filter(|fence| *fence > fence::ZERO);
        let not_a_lock = (token.is_none() && pttl == NO_TTL).then_some("string without a TTL");
        Self { not_a_lock, ..Self::of(token, remaining(pttl), fence) }
    }

    /// The holder of a key whose value could not be read. `name` is its type as TYPE returns it, or `None` if that is
    /// not known. A string may be a lock.
    pub fn of_type(name: Option<&str>, pttl: i64) -> Self {
        let not_a_lock = match name {
            Some("string") => None,
            Some("list") => Some("list"),
            Some("set") => Some("set"),
            Some("zset") => Some("sorted set"),
            Some("hash") => Some("hash"),
            Some("stream") => Some("stream"),
            Some("ReJSON-RL") => Some("JSON document"),
            _ => Some("value of another type"),
        };
        Self { not_a_lock, ..Self::of(None, remaining(pttl), None) }
    }

    /// This holder, marked as a lease of ours.
    pub fn ours(self) -> Self {
        Self { is_ours: true, ..self }
    }

    /// This holder, which stands for this number of sharers.
    pub fn shared_by(self, sharers: u32) -> Self {
        // Plus one, so that `None` takes no room of its own.
        let read = sharers.checked_add(1).and_then(NonZeroU32::new);
        Self { sharers: read.filter(|_| self.is_of_all()), ..self }
    }

    /// This holder, whose remaining time is that of the share that expires first.
    pub fn until_the_first(self) -> Self {
        Self { is_until_first: true, ..self }
    }

    /// This holder, with another remaining time.
    pub fn lasting(self, remaining: Option<Duration>) -> Self {
        Self { remaining, ..self }
    }

    /// The whole token in the key's value, if it is one of this library's.
    pub fn whole_token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Whether it is the same acquisition, seen at another moment.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.token, self.not_a_lock, self.is_nobody) == (&other.token, other.not_a_lock, other.is_nobody)
    }
}

/// The answer of PTTL for a key without a TTL.
const NO_TTL: i64 = -1;

fn remaining(pttl: i64) -> Option<Duration> {
    u64::try_from(pttl).ok().map(Duration::from_millis)
}

/// The end of a sentence: `worker-1:4711 (fence 1795…), whose key lives 12.3 s more unless renewed`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = self.not_a_lock {
            return write!(
                f,
                "a {kind} under its key, which is no lock: give the lock another name or a prefix, or delete the key"
            );
        }
        if self.is_nobody {
            return f.write_str("nobody: its queue is being cleared of waiters that have gone");
        }
        if self.is_of_all() {
            return self.show_sharers(f);
        }
        match self.label() {
            Some(label) => label.chars().try_for_each(|char| write_visibly(f, char))?,
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
            Some(remaining) => {
                match (self.is_share, self.permits()) {
                    (false, _) => f.write_str(", whose key lives")?,
                    (true, Some(permits @ 2..)) => write!(f, ", whose {permits} permits live")?,
                    (true, _) => f.write_str(", whose share lives")?,
                }
                write!(f, " {} more unless renewed", Rounded(remaining))
            }
            None => f.write_str(", whose key has no TTL"),
        }
    }
}

impl Holder {
    /// `3 sharers (fence 1795…), the last of them for 12.3 s unless renewed`.
    fn show_sharers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sharers() {
            Some(0) => f.write_str("no sharer any more")?,
            Some(1) => f.write_str("1 sharer")?,
            Some(sharers) => write!(f, "{sharers} sharers")?,
            None => f.write_str("sharers")?,
        }
        if self.is_ours && self.sharers() != Some(0) {
            f.write_str(", one of them this program")?;
        }
        if let Some(fence) = self.fence {
            write!(f, " (fence {fence})")?;
        }
        let Some(remaining) = self.remaining else { return Ok(()) };
        let who = match (self.sharers(), self.is_until_first) {
            (Some(0), _) => return write!(f, ", though its key lives {} more", Rounded(remaining)),
            // The key outlives the sharers by a while.
            (None, _) => return write!(f, ", whose key lives {} more unless renewed", Rounded(remaining)),
            (Some(1), _) => "",
            (_, true) => "the first of them ",
            (_, false) => "the last of them ",
        };
        write!(f, ", {who}for {} unless renewed", Rounded(remaining))
    }
}

/// Escapes a character of a label. Another process wrote the label, which must not begin a line of a log, nor move
/// anything in a terminal.
fn write_visibly(f: &mut fmt::Formatter<'_>, char: char) -> fmt::Result {
    match char {
        '\'' | '"' | '\\' => fmt::Write::write_char(f, char),
        char => write!(f, "{}", char.escape_debug()),
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holder")
            .field("label", &self.label())
            .field("remaining", &self.remaining)
            .field("fence", &self.fence)
            .field("sharers", &self.sharers())
            .field("not_a_lock", &self.not_a_lock)
            .finish_non_exhaustive()
    }
}

/// `label`, `sharers`, `permits`, `since_unix_seconds`, `remaining_seconds`, `fence` and `not_a_lock`, each `null` if there is
/// none, `is_ours`, and `mode`: `"exclusive"` or `"shared"`; never the token.
#[cfg(feature = "serde")]
impl serde::Serialize for Holder {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut holder = serializer.serialize_struct("Holder", 9)?;
        let since = self.since().and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
        holder.serialize_field("label", &self.label())?;
        holder.serialize_field("mode", if self.is_shared() { "shared" } else { "exclusive" })?;
        holder.serialize_field("sharers", &self.sharers())?;
        holder.serialize_field("permits", &self.permits())?;
        holder.serialize_field("since_unix_seconds", &since.map(|since| since.as_secs_f64()))?;
        holder.serialize_field("remaining_seconds", &self.remaining.map(|remaining| remaining.as_secs_f64()))?;
        holder.serialize_field("fence", &self.fence)?;
        holder.serialize_field("is_ours", &self.is_ours)?;
        holder.serialize_field("not_a_lock", &self.not_a_lock)?;
        holder.end()
    }
}

#[cfg(test)]
mod tests;
