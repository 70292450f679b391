//! The capabilities of a server, as far as it reports them.

use std::fmt;

use crate::deployment::Deployment;

/// The capabilities of a server for waiters and holders, and facts about it that matter to locks.
///
/// ```
/// # use leasehold::{Leases, Notifications};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = Leases::in_memory();
/// let server = leases.capabilities().await?;
/// if let Notifications::Refused(reason) = server.notifications() {
///     eprintln!("waiters poll: {reason}");
/// }
/// println!("{server}"); // a line for each fact
/// # Ok(()) }
/// ```
///
/// A fact that the server does not report is `None`: the user may lack a right, or a proxy may stand between. The
/// feature `serde` writes a field for each fact, `null` for `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Capabilities {
    pub(crate) server: Option<String>,
    pub(crate) notifications: Notifications,
    pub(crate) notifies_waiters: bool,
    pub(crate) tracked_keys: Option<usize>,
    pub(crate) eviction: Option<String>,
    #[cfg_attr(feature = "serde", serde(rename = "floors_percent"))]
    pub(crate) floors: Option<u8>,
    pub(crate) append_only: Option<bool>,
    pub(crate) append_fsync: Option<String>,
    pub(crate) stops_unsaved: Option<bool>,
    pub(crate) saved: Option<bool>,
    pub(crate) role: Option<String>,
    pub(crate) replicas: Option<usize>,
    pub(crate) min_replicas_to_write: Option<usize>,
    pub(crate) deployment: Deployment,
}

/// Whether the server notifies of changes by itself (client-side caching, `CLIENT TRACKING`). With the feature `serde`
/// it is written as `"on"` or `"unknown"`, or as `{"refused":"…"}` with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Notifications {
    /// Waiters wake, and holders hear of a loss, within a round trip.
    On,
    /// The server does not notify, for this reason: waiters poll, and a holder hears of a loss by the next renewal.
    Refused(String),
    /// The server has not answered yet. `Leases` asks again when somebody waits.
    #[default]
    Unknown,
}

impl Capabilities {
    /// The server's name for itself, with its version: `redis 7.0.15`, `valkey 9.1.2`, `memory`.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Whether the server notifies of changes by itself.
    #[must_use]
    pub fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    /// Whether the server can notify [fair](crate::Lock::fair) waiters when it is their turn. If not, they poll.
    #[must_use]
    pub fn notifies_waiters(&self) -> bool {
        self.notifies_waiters
    }

    /// The most leases and awaited names of this `Leases` that the server tracks; `None` if there is no bound.
    ///
    /// That is half of its `tracking-table-max-keys`, or zero while that table is nearly full. An awaited name counts
    /// twice, and four times for fair waiters.
    #[must_use]
    pub fn tracked_keys(&self) -> Option<usize> {
        self.tracked_keys
    }

    /// Its `maxmemory-policy`. Anything but `noeviction` may take a lock away: `volatile-ttl` and the random ones do,
    /// when memory is full. The page [`deployments`](crate::docs::deployments) says which.
    #[must_use]
    pub fn eviction(&self) -> Option<&str> {
        self.eviction.as_deref()
    }

    /// How much of its memory the floors of fences take, in percent, by a sample of a thousand keys: of the locks under the
    /// builder's [prefix](crate::Builder::prefix). A shorter [`fence_memory`](crate::Builder::fence_memory) makes it less.
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

    /// Whether it refuses every write while its last snapshot has failed, so that a full disk ends all leases: it takes
    /// snapshots (`save`), and its `stop-writes-on-bgsave-error` is `yes`. Locks need no snapshots.
    #[must_use]
    pub fn stops_unsaved(&self) -> Option<bool> {
        self.stops_unsaved
    }

    /// Whether it could write its last snapshot, and its append-only file.
    #[must_use]
    pub fn saved(&self) -> Option<bool> {
        self.saved
    }

    /// `master` or `slave`, in its own words.
    #[must_use]
    pub fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }

    /// How many replicas are connected to it; of several servers, to the one that has the fewest.
    #[must_use]
    pub fn replicas(&self) -> Option<usize> {
        self.replicas
    }

    /// Its `min-replicas-to-write`: with fewer replicas it refuses to write. Not zero, it has a primary that was cut off from
    /// its replicas stop after its `min-replicas-max-lag`, 10 s if nothing else is set.
    #[must_use]
    pub fn min_replicas_to_write(&self) -> Option<usize> {
        self.min_replicas_to_write
    }

    /// The servers together: a cluster, a primary that Sentinels watch, or servers that know nothing of each other.
    #[must_use]
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// The capabilities of both together.
    pub(crate) fn common_with(self, other: Self) -> Self {
        fn same<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.filter(|one| other.is_some_and(|other| other == *one))
        }
        Self {
            server: same(self.server, other.server),
            // One server that notifies is enough to wake a waiter.
            notifications: if self.notifications == Notifications::On {
                self.notifications
            } else {
                other.notifications
            },
            notifies_waiters: self.notifies_waiters && other.notifies_waiters,
            tracked_keys: self.tracked_keys.into_iter().chain(other.tracked_keys).min(),
            eviction: same(self.eviction, other.eviction),
            floors: self.floors.max(other.floors),
            append_only: same(self.append_only, other.append_only),
            append_fsync: same(self.append_fsync, other.append_fsync),
            // One server that stops, or could not save, is told of.
            stops_unsaved: self.stops_unsaved.max(other.stops_unsaved),
            saved: self.saved.into_iter().chain(other.saved).min(),
            role: same(self.role, other.role),
            replicas: self.replicas.zip(other.replicas).map(|(one, other)| one.min(other)),
            min_replicas_to_write: same(self.min_replicas_to_write, other.min_replicas_to_write),
            deployment: self.deployment,
        }
    }
}

/// A line for each fact.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |fact: Option<&str>| fact.unwrap_or("not told").to_owned();
        writeln!(f, "server: {}", told(self.server()))?;
        writeln!(f, "notifications: {}", self.notifications)?;
        writeln!(f, "fair waiters: {}", if self.notifies_waiters { "notified" } else { "poll" })?;
        match self.tracked_keys {
            Some(keys) => writeln!(f, "tracked keys: at most {keys}")?,
            None => writeln!(f, "tracked keys: no bound")?,
        }
        writeln!(f, "eviction: {}", told(self.eviction()))?;
        writeln!(f, "floors of fences: {}", told(self.floors.map(|share| format!("{share} % of memory")).as_deref()))?;
        let answer = |fact: Option<bool>| told(fact.map(|yes| if yes { "yes" } else { "no" }));
        writeln!(f, "append-only file: {}", answer(self.append_only))?;
        writeln!(f, "appendfsync: {}", told(self.append_fsync()))?;
        writeln!(f, "refuses writes after a failed snapshot: {}", answer(self.stops_unsaved))?;
        writeln!(f, "last save succeeded: {}", answer(self.saved))?;
        writeln!(f, "role: {}", told(self.role()))?;
        let number = |number: Option<usize>| told(number.map(|number| number.to_string()).as_deref());
        writeln!(f, "replicas: {}", number(self.replicas))?;
        writeln!(f, "min-replicas-to-write: {}", number(self.min_replicas_to_write))?;
        write!(f, "deployment: {}", self.deployment)
    }
}

impl fmt::Display for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Refused(reason) => write!(f, "refused ({reason})"),
            Self::Unknown => f.write_str("not answered yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_told_is_said_so() {
        assert!(Capabilities::default().to_string().contains("server: not told"));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_what_can_be_asked() {
        let told = Capabilities {
            server: Some("redis 7.0.15".into()),
            notifications: Notifications::Refused("no right".into()),
            eviction: Some("noeviction".into()),
            append_only: Some(true),
            role: Some("master".into()),
            replicas: Some(2),
            ..Capabilities::default()
        };
        let expected = r#"{"server":"redis 7.0.15","notifications":{"refused":"no right"},"notifies_waiters":false,"#
            .to_owned()
            + r#""tracked_keys":null,"eviction":"noeviction","floors_percent":null,"append_only":true,"#
            + r#""append_fsync":null,"stops_unsaved":null,"saved":null,"role":"master","replicas":2,"min_replicas_to_write":null,"deployment":"servers"}"#;
        assert_eq!(serde_json::to_string(&told).unwrap(), expected);
        for (notifications, expected) in [(Notifications::On, r#""on""#), (Notifications::Unknown, r#""unknown""#)] {
            assert_eq!(serde_json::to_string(&notifications).unwrap(), expected);
        }
    }
}
