//! The locks, their servers, and how workers use them: shared by the parent and its workers.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use leasehold::Mode;

use crate::{
    history::Name,
    record::{Nanos, Unreadable},
};

/// The servers that keep the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A server on its own, and the nodes of a quorum.
    Servers,
    /// Three primaries, each with a replica.
    Cluster,
    /// A primary with two replicas, and three Sentinels.
    Sentinel,
    /// A lone server, and names that several may hold at a time.
    Shared,
}

/// The index of the lone server. The nodes of the quorum follow it.
pub const LONE: usize = 0;
pub const NODES: usize = 3;
pub const SERVERS: usize = 1 + NODES;

/// How often workers resolve the lone server's address, and how long an undisturbed move takes until the last of them
/// has gone over. That takes two resolutions, each with a new connection, and the news in every task.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
pub const GONE_OVER: Duration = Duration::from_secs(3);

/// The workers' user on the lone server; its password changes.
pub const USER: &str = "worker";

/// Longer than the longest TTL by the second that a server's uptime may be wrong by.
pub const RESTART_DELAY: Duration = Duration::from_secs(2);
pub const TTLS: [Duration; 3] = [Duration::from_millis(300), Duration::from_millis(500), Duration::from_secs(1)];
pub const COMMAND_TIMEOUT: Duration = Duration::from_millis(400);
/// How long after its limit a call is given up. The checks judge it.
pub const GIVEN_UP: Duration = Duration::from_secs(5);

pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

/// How a task treats its locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Mostly held for no time at all.
    Quick,
    /// Mostly held for a while, at times for several TTLs.
    Slow,
}

/// The modes in which a name is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Alone,
    /// Many read, one writes.
    ReadWrite,
    /// This many permits, of which a lease takes one of these numbers.
    Permits(u32, &'static [u32]),
    /// To read, to write, one of several numbers of permits, and alone without a place in the line.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub quorum: bool,
    pub fair: bool,
    pub access: Access,
    pub pace: Pace,
    /// How many tasks of each process work on it.
    pub tasks: usize,
}

const fn kind(name: &'static str, quorum: bool, fair: bool, pace: Pace, tasks: usize) -> Kind {
    Kind { name, quorum, fair, access: Access::Alone, pace, tasks }
}

const fn shared(name: &'static str, access: Access, pace: Pace, tasks: usize) -> Kind {
    Kind { name, quorum: false, fair: true, access, pace, tasks }
}

/// Every lock. With three processes each of them is contended, and the quick ones hardly ever rest.
pub const KINDS: [Kind; 18] = [
    kind("plain-1", false, false, Pace::Quick, 1),
    kind("plain-2", false, false, Pace::Quick, 1),
    kind("plain-3", false, false, Pace::Quick, 1),
    kind("crowded", false, false, Pace::Quick, 2),
    // Many tasks of one process, so that most of their requests are batched.
    kind("together-1", false, false, Pace::Quick, 2),
    kind("together-2", false, false, Pace::Quick, 2),
    kind("together-3", false, false, Pace::Quick, 2),
    kind("together-4", false, false, Pace::Quick, 2),
    kind("together-5", false, false, Pace::Quick, 2),
    kind("fair-1", false, true, Pace::Quick, 1),
    kind("fair-2", false, true, Pace::Slow, 1),
    kind("slow-1", false, false, Pace::Slow, 1),
    kind("slow-2", false, false, Pace::Slow, 1),
    kind("slow-3", false, false, Pace::Slow, 1),
    kind("quorum-1", true, false, Pace::Quick, 1),
    kind("quorum-2", true, false, Pace::Quick, 1),
    kind("quorum-slow-1", true, false, Pace::Slow, 1),
    kind("quorum-slow-2", true, false, Pace::Slow, 1),
];

/// The locks of a cluster, whose slots are spread over its primaries, and of a primary behind Sentinels.
pub const ROUTED_KINDS: [Kind; 28] = [
    // The slots of the first primary.
    kind("plain-4", false, false, Pace::Quick, 1),
    kind("plain-8", false, false, Pace::Quick, 1),
    kind("slow-4", false, false, Pace::Slow, 1),
    kind("fair-3", false, true, Pace::Quick, 1),
    // The locks of one slot.
    kind("{two}-1", false, false, Pace::Quick, 1),
    kind("{two}-2", false, false, Pace::Slow, 1),
    kind("slow-8", false, false, Pace::Slow, 1),
    kind("slow-12", false, false, Pace::Slow, 1),
    kind("{two}-3", false, false, Pace::Slow, 1),
    // The slots of the second primary.
    kind("plain-1", false, false, Pace::Quick, 1),
    kind("plain-5", false, false, Pace::Quick, 1),
    kind("slow-1", false, false, Pace::Slow, 1),
    kind("slow-5", false, false, Pace::Slow, 1),
    kind("fair-2", false, true, Pace::Slow, 1),
    kind("{one}-1", false, false, Pace::Quick, 1),
    kind("{one}-2", false, false, Pace::Slow, 1),
    kind("slow-9", false, false, Pace::Slow, 1),
    kind("slow-10", false, false, Pace::Slow, 1),
    kind("{one}-3", false, false, Pace::Slow, 1),
    // The slots of the third primary.
    kind("plain-2", false, false, Pace::Quick, 1),
    kind("plain-3", false, false, Pace::Quick, 1),
    kind("slow-2", false, false, Pace::Slow, 1),
    kind("slow-3", false, false, Pace::Slow, 1),
    kind("fair-1", false, true, Pace::Quick, 1),
    kind("crowded-1", false, false, Pace::Quick, 2),
    kind("slow-6", false, false, Pace::Slow, 1),
    kind("slow-7", false, false, Pace::Slow, 1),
    kind("fair-4", false, true, Pace::Slow, 1),
];

/// The numbers of permits that are asked for on a name of all modes.
pub const PERMITS: [u32; 3] = [2, 3, 5];

/// The names that several may hold at a time.
pub const SHARED_KINDS: [Kind; 5] = [
    shared("rw-quick", Access::ReadWrite, Pace::Quick, 4),
    shared("rw-slow", Access::ReadWrite, Pace::Slow, 3),
    shared("permits-2", Access::Permits(2, &[1]), Pace::Quick, 2),
    shared("permits-5", Access::Permits(5, &[1, 2, 3]), Pace::Slow, 3),
    shared("any", Access::Any, Pace::Quick, 3),
];

impl Access {
    /// All modes in which it is held.
    pub fn modes(self) -> Vec<Mode> {
        let shared = |limit: Option<u32>, permits: u32| Mode::Shared {
            limit: limit.and_then(NonZeroU32::new),
            permits: NonZeroU32::new(permits).unwrap_or(NonZeroU32::MIN),
        };
        let (alone, read) = (Mode::Exclusive, shared(None, 1));
        match self {
            Self::Alone => vec![alone],
            Self::ReadWrite => vec![alone, read],
            Self::Permits(of, takes) => takes.iter().map(|permits| shared(Some(of), *permits)).collect(),
            Self::Any => [alone, read].into_iter().chain(PERMITS.map(|of| shared(Some(of), 1))).collect(),
        }
    }
}

impl Stage {
    const ALL: [Self; 4] = [Self::Servers, Self::Cluster, Self::Sentinel, Self::Shared];

    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Servers => &KINDS,
            Self::Shared => &SHARED_KINDS,
            Self::Cluster | Self::Sentinel => &ROUTED_KINDS,
        }
    }

    /// Whether servers take over from each other.
    pub fn is_routed(self) -> bool {
        matches!(self, Self::Cluster | Self::Sentinel)
    }

    /// The number of stand-alone servers: the lone one, and behind it the nodes of a quorum.
    pub fn servers(self) -> usize {
        if self == Self::Servers { SERVERS } else { 1 }
    }

    /// Its locks, and the servers that have them. A cluster counts as one server of a lock.
    pub fn names(self) -> Vec<Name> {
        let servers = |kind: &Kind| if kind.quorum { LONE + 1..SERVERS } else { LONE..LONE + 1 };
        let name = |kind: &Kind| Name { text: kind.name.into(), servers: servers(kind), modes: kind.access.modes() };
        self.kinds().iter().map(name).collect()
    }

    /// How many replicas each primary has.
    pub fn replicas(self) -> u8 {
        match self {
            Self::Servers | Self::Shared => 0,
            Self::Cluster => 1,
            Self::Sentinel => 2,
        }
    }

    /// The TTLs, long enough to outlive a failover, where there is one.
    pub fn ttls(self, pace: Pace) -> [Duration; 3] {
        match (self, pace) {
            (Self::Servers | Self::Shared, _) => TTLS,
            (_, Pace::Quick) => [500, 1_000, 3_000].map(Duration::from_millis),
            (_, Pace::Slow) => [1_000, 3_000, 5_000].map(Duration::from_millis),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Servers => "servers",
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
            Self::Shared => "shared",
        })
    }
}

impl FromStr for Stage {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        Self::ALL.into_iter().find(|stage| stage.to_string() == text).ok_or(Unreadable)
    }
}
