//! What a server can do for us, as far as it tells.

use std::fmt;

/// What a server can do for waiters and holders, and some facts about it that matter to locks.
///
/// ```
/// # use leasehold::{Leases, Push};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = Leases::in_memory();
/// let server = leases.capabilities().await?;
/// if let Push::Refused(reason) = server.push() {
///     eprintln!("waiters poll: {reason}");
/// }
/// println!("{server}"); // a line for each fact
/// # Ok(()) }
/// ```
///
/// Everything that the server keeps to itself, because the user lacks a right or a proxy stands between, is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    pub(crate) server: Option<String>,
    pub(crate) push: Push,
    pub(crate) calls: bool,
    pub(crate) watched_keys: Option<usize>,
    pub(crate) eviction: Option<String>,
    pub(crate) floors: Option<u8>,
    pub(crate) append_only: Option<bool>,
    pub(crate) append_fsync: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) replicas: Option<usize>,
}

/// Whether the server tells of changes by itself (client-side caching, `CLIENT TRACKING`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Push {
    /// Waiters are woken and losses told within a round trip.
    On,
    /// It does not, for this reason: waiters poll, and a loss is told by the next renewal.
    Refused(String),
    /// It has not answered yet, and is asked again when somebody waits.
    #[default]
    Unknown,
}

impl Capabilities {
    /// What it calls itself, with its version: `redis 7.0.15`, `valkey 9.1.2`, `memory`.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Whether it tells of changes by itself.
    #[must_use]
    pub fn push(&self) -> &Push {
        &self.push
    }

    /// Whether it can call [fair](crate::Lock::fair) waiters when it is their turn. If not, they poll.
    #[must_use]
    pub fn calls_waiters(&self) -> bool {
        self.calls
    }

    /// How many leases and waited-for names of this `Leases` it will watch: half of its `tracking-table-max-keys`, or
    /// none while that table is full; and a waited-for name counts twice, four times for fair waiters. `None` if there is no bound.
    #[must_use]
    pub fn watched_keys(&self) -> Option<usize> {
        self.watched_keys
    }

    /// Its `maxmemory-policy`. Anything but `noeviction` may take a lock away: `volatile-ttl` and the random ones do, when memory
    /// is full. The page [`deployments`](crate::deployments) says which.
    #[must_use]
    pub fn eviction(&self) -> Option<&str> {
        self.eviction.as_deref()
    }

    /// How much of its memory the floors of fences take, in percent, by a sample of a thousand keys. A shorter
    /// [`fence_memory`](crate::Builder::fence_memory) makes it less.
    #[must_use]
    pub fn floors_percent(&self) -> Option<u8> {
        self.floors
    }

    /// Whether it keeps an append-only file, without which a restart forgets the locks.
    #[must_use]
    pub fn append_only(&self) -> Option<bool> {
        self.append_only
    }

    /// When it has its append-only file written to the disk: `always` before it answers, `everysec` or `no` after it.
    #[must_use]
    pub fn append_fsync(&self) -> Option<&str> {
        self.append_fsync.as_deref()
    }

    /// `master` or `slave`, in its own words.
    #[must_use]
    pub fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }

    /// How many replicas are connected to it.
    #[must_use]
    pub fn replicas(&self) -> Option<usize> {
        self.replicas
    }

    /// Reads what `INFO` says. The floors take so many bytes, as far as that is known.
    pub(crate) fn read(info: &str, floors: Option<u64>) -> Self {
        let field = |name: &str| {
            let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim_end().to_owned());
            info.lines().find_map(value).filter(|value| !value.is_empty())
        };
        let valkey = field("valkey_version").map(|version| format!("valkey {version}"));
        Self {
            server: valkey.or_else(|| field("redis_version").map(|version| format!("redis {version}"))),
            eviction: field("maxmemory_policy"),
            floors: floors.zip(field("used_memory").and_then(|bytes| bytes.parse().ok())).map(percent),
            append_only: field("aof_enabled").map(|enabled| enabled == "1"),
            role: field("role"),
            replicas: field("connected_slaves").and_then(|number| number.parse().ok()),
            ..Self::default()
        }
    }
}

fn percent((part, whole): (u64, u64)) -> u8 {
    u8::try_from(part.saturating_mul(100) / whole.max(1)).unwrap_or(100).min(100)
}

/// A line for each fact.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |fact: Option<&str>| fact.unwrap_or("not told").to_owned();
        writeln!(f, "server: {}", told(self.server()))?;
        writeln!(f, "push: {}", self.push)?;
        writeln!(f, "fair waiters: {}", if self.calls { "called" } else { "poll" })?;
        match self.watched_keys {
            Some(keys) => writeln!(f, "watched keys: at most {keys}")?,
            None => writeln!(f, "watched keys: no bound")?,
        }
        writeln!(f, "eviction: {}", told(self.eviction()))?;
        writeln!(f, "floors of fences: {}", told(self.floors.map(|share| format!("{share} % of memory")).as_deref()))?;
        writeln!(f, "append-only file: {}", told(self.append_only.map(|on| if on { "yes" } else { "no" })))?;
        writeln!(f, "appendfsync: {}", told(self.append_fsync()))?;
        writeln!(f, "role: {}", told(self.role()))?;
        write!(f, "replicas: {}", told(self.replicas.map(|number| number.to_string()).as_deref()))
    }
}

impl fmt::Display for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Refused(reason) => write!(f, "refused ({reason})"),
            Self::Unknown => f.write_str("not answered yet"),
        }
    }
}

/// A field for each question that can be asked, `null` for what was not told.
#[cfg(feature = "serde")]
impl serde::Serialize for Capabilities {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut capabilities = serializer.serialize_struct("Capabilities", 10)?;
        capabilities.serialize_field("server", &self.server)?;
        capabilities.serialize_field("push", &self.push)?;
        capabilities.serialize_field("calls_waiters", &self.calls)?;
        capabilities.serialize_field("watched_keys", &self.watched_keys)?;
        capabilities.serialize_field("eviction", &self.eviction)?;
        capabilities.serialize_field("floors_percent", &self.floors)?;
        capabilities.serialize_field("append_only", &self.append_only)?;
        capabilities.serialize_field("append_fsync", &self.append_fsync)?;
        capabilities.serialize_field("role", &self.role)?;
        capabilities.serialize_field("replicas", &self.replicas)?;
        capabilities.end()
    }
}

/// `"on"` or `"unknown"`, or `{"refused":"…"}` with the reason.
#[cfg(feature = "serde")]
impl serde::Serialize for Push {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::On => serializer.serialize_unit_variant("Push", 0, "on"),
            Self::Refused(reason) => serializer.serialize_newtype_variant("Push", 1, "refused", reason),
            Self::Unknown => serializer.serialize_unit_variant("Push", 2, "unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_info_says_is_read_and_what_it_keeps_is_not_made_up() {
        let info = "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
                    connected_slaves:2\r\n";
        let read = Capabilities::read(info, None);
        assert_eq!((read.server(), read.eviction()), (Some("redis 7.0.15"), Some("noeviction")));
        assert_eq!((read.append_only(), read.role(), read.replicas()), (Some(false), Some("master"), Some(2)));
        assert_eq!(
            Capabilities::read("redis_version:7.2.4\nvalkey_version:9.1.2\n", None).server(),
            Some("valkey 9.1.2")
        );
        assert_eq!(Capabilities::read("", Some(1)), Capabilities::default());
        for (used, share) in [("200", Some(50)), ("1", Some(100)), ("0", Some(100)), ("x", None)] {
            assert_eq!(Capabilities::read(&format!("used_memory:{used}\n"), Some(100)).floors_percent(), share);
        }
        assert!(Capabilities::default().to_string().contains("server: not told"));
    }

    proptest! {
        #[test]
        fn no_answer_about_a_server_is_too_odd_to_be_told(
            info in "((role|aof_enabled|redis_version|valkey_version|maxmemory_policy|connected_slaves)?:?(-?[0-9]{0,25}|.{0,9})\r?\n)*",
        ) {
            let facts = Capabilities::read(&info, None);
            prop_assert!(facts.to_string().lines().count() >= 8);
            prop_assert!(facts.role().is_none_or(|role| !role.is_empty() && info.contains(role)));
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_what_can_be_asked() {
        let info =
            "redis_version:7.0.15\nmaxmemory_policy:noeviction\naof_enabled:1\nrole:master\nconnected_slaves:2\n";
        let told = Capabilities { push: Push::Refused("no right".into()), ..Capabilities::read(info, None) };
        let expected = r#"{"server":"redis 7.0.15","push":{"refused":"no right"},"calls_waiters":false,"#.to_owned()
            + r#""watched_keys":null,"eviction":"noeviction","floors_percent":null,"append_only":true,"#
            + r#""append_fsync":null,"role":"master","replicas":2}"#;
        assert_eq!(serde_json::to_string(&told).unwrap(), expected);
        for (push, expected) in [(Push::On, r#""on""#), (Push::Unknown, r#""unknown""#)] {
            assert_eq!(serde_json::to_string(&push).unwrap(), expected);
        }
    }
}
