//! Reads what servers report about themselves. A fact that the user may not read is missing, which is no fault of the
//! server.

use std::{str::FromStr, time::Duration};

use leasehold::doctor::{Info, ReplicaSaid, ServerSaid, Surveyed};

/// The kind of deployment, which says what may continue a server's locks if it dies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Deployment {
    /// It knows of no other server: it is the only one, or one of a quorum.
    #[default]
    Alone,
    /// It is a part of a cluster.
    Cluster,
    /// Sentinels watch it.
    Sentinel,
}

/// The facts about a server that matter to locks; `None` for a fact that it does not report.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    /// Its name for itself, with its version: `redis 7.0.15`, `valkey 9.1.2`.
    pub(super) server: Option<String>,
    pub(super) deployment: Deployment,
    /// Whether it sends notifications of changes, or why it does not.
    pub(super) notifications: Option<Result<(), &'a str>>,
    pub(super) notifies_waiters: bool,
    /// Its `maxmemory-policy`.
    pub(super) eviction: Option<&'a str>,
    /// How much of its memory the floors of fences take.
    pub(super) floors_percent: Option<u8>,
    pub(super) append_only: Option<bool>,
    pub(super) append_fsync: Option<&'a str>,
    /// Whether it refuses every write while its last snapshot has failed.
    pub(super) stops_unsaved: Option<bool>,
    /// Whether it could write its last snapshot, and its append-only file.
    pub(super) saved: Option<bool>,
    /// `master` or `slave`.
    pub(super) role: Option<&'a str>,
    /// How many replicas are connected to it.
    pub(super) replicas: Option<usize>,
    pub(super) min_replicas_to_write: Option<usize>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(said: &'a ServerSaid, is_in_cluster: bool) -> Self {
        let info = &*said.info.text;
        let setting = |name: &str| said.settings.get(name).map(String::as_str);
        let valkey = field(info, "valkey_version").map(|version| format!("valkey {version}"));
        let [save, stops] = ["save", "stop-writes-on-bgsave-error"].map(setting);
        Self {
            server: valkey.or_else(|| Some(format!("redis {}", field(info, "redis_version")?))),
            deployment: match &said.sentinels {
                Some(_) => Deployment::Sentinel,
                None if is_in_cluster => Deployment::Cluster,
                None => Deployment::Alone,
            },
            notifications: said.notifications.as_ref().map(|on| on.as_ref().map_err(String::as_str).copied()),
            notifies_waiters: said.notifies_waiters,
            eviction: field(info, "maxmemory_policy"),
            floors_percent: said.floors.zip(number(info, "used_memory")).map(percent),
            append_only: field(info, "aof_enabled").map(|enabled| enabled == "1"),
            append_fsync: setting("appendfsync"),
            stops_unsaved: save.zip(stops).map(|(save, stops)| !save.is_empty() && stops == "yes"),
            saved: saved(info),
            role: field(info, "role"),
            replicas: number(info, "connected_slaves"),
            min_replicas_to_write: setting("min-replicas-to-write").and_then(|least| least.parse().ok()),
        }
    }
}

/// The state and the settings of a cluster, as far as its primaries report them.
#[derive(Debug, Default)]
pub(super) struct ClusterFacts {
    /// How many primaries have slots.
    pub(super) primaries: usize,
    /// How many slots have a primary.
    pub(super) slots: u16,
    /// The slots that are being moved key by key.
    pub(super) moving: Vec<u16>,
    /// Whether one slot without a primary stops the whole cluster.
    pub(super) requires_all_slots: Option<bool>,
    /// How long a primary may give no sign of life before it is taken for dead.
    pub(super) node_timeout: Option<Duration>,
    /// A slot that is moved keeps the times of those who share its locks, which are of the clock of the primary before.
    pub(super) clocks: Option<ClocksDiffer>,
}

/// By how much the clocks of some servers differ at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClocksDiffer {
    pub(super) clocks: usize,
    pub(super) micros: u64,
}

impl ClusterFacts {
    pub(super) fn of(servers: &[Surveyed]) -> Self {
        let slots: u16 = servers.iter().filter_map(|(node, _)| node.slots()).sum();
        let mut facts = Self { primaries: servers.len(), slots, ..Self::default() };
        for said in servers.iter().filter_map(|(_, said)| said.as_ref().ok()) {
            let setting = |name: &str| said.settings.get(name).map(String::as_str);
            facts.moving.extend(said.cluster_nodes.iter().flat_map(|nodes| moving(nodes)));
            let coverage = setting("cluster-require-full-coverage").map(|coverage| coverage == "yes");
            facts.requires_all_slots = facts.requires_all_slots.max(coverage);
            let timeout = setting("cluster-node-timeout").and_then(|timeout| timeout.parse().ok());
            facts.node_timeout = facts.node_timeout.max(timeout.map(Duration::from_millis));
        }
        let said = servers.iter().filter_map(|(_, said)| Some(&said.as_ref().ok()?.info));
        facts.clocks = clocks_differ(said);
        facts.moving.sort_unstable();
        facts.moving.dedup();
        facts
    }
}

/// A replica, as its primary and the replica itself report it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaFacts<'a> {
    /// Its address, as its primary names it.
    pub(super) address: &'a str,
    /// Whether it has copied all that its primary had, and follows.
    pub(super) is_online: bool,
    /// How many bytes that its primary has written it has not acknowledged.
    pub(super) behind_bytes: Option<u64>,
    /// How long ago it last acknowledged anything: usually a second, or less.
    pub(super) acknowledged_ago: Option<Duration>,
    /// Its own `maxmemory-policy`, which counts once it takes over.
    pub(super) eviction: Option<&'a str>,
    /// By how much its clock is ahead of its primary's. Its own clock decides when locks on it end, and how fences
    /// grow.
    pub(super) clock_ahead_micros: Option<i64>,
    /// Why these two could not be read.
    pub(super) unreachable: Option<&'a str>,
}

impl<'a> ReplicaFacts<'a> {
    /// The facts of each replica of a server.
    pub(super) fn of_each(said: &'a ServerSaid) -> Vec<Self> {
        said.replicas.iter().map(|replica| Self::of(replica, &said.info)).collect()
    }

    fn of(said: &'a ReplicaSaid, primary: &Info) -> Self {
        let told = |name: &str| {
            let mut fields = said.told.split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(known, value)| (known == name).then_some(value))
        };
        let written: Option<u64> = number(&primary.text, "master_repl_offset");
        let acknowledged: Option<u64> = told("offset").and_then(|offset| offset.parse().ok());
        let asked = said.info.as_ref();
        Self {
            address: &said.address,
            is_online: told("state") == Some("online"),
            behind_bytes: written.zip(acknowledged).map(|(written, acknowledged)| written.saturating_sub(acknowledged)),
            acknowledged_ago: told("lag").and_then(|lag| lag.parse().ok()).map(Duration::from_secs),
            eviction: asked.ok().and_then(|info| field(&info.text, "maxmemory_policy")),
            clock_ahead_micros: asked.ok().and_then(|info| clock_ahead(info, primary)),
            unreachable: asked.err().map(String::as_str),
        }
    }
}

/// The value of a field, unless it is empty.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim());
    info.lines().find_map(value).filter(|value| !value.is_empty())
}

fn number<N: FromStr>(info: &str, name: &str) -> Option<N> {
    field(info, name)?.parse().ok()
}

/// Whether the last snapshot and the last write to the append-only file succeeded, as far as the server reports it.
fn saved(info: &str) -> Option<bool> {
    let told = ["rdb_last_bgsave_status", "aof_last_write_status"].map(|name| field(info, name));
    told.into_iter().flatten().map(|status| status == "ok").min()
}

fn percent((part, whole): (u64, u64)) -> u8 {
    u8::try_from(part.saturating_mul(100) / whole.max(1)).unwrap_or(100).min(100)
}

/// By how many microseconds the clock of `one` is ahead of the clock of `other`.
fn clock_ahead(one: &Info, other: &Info) -> Option<i64> {
    let ahead_of_ours = |said: &Info| {
        let time = number::<u64>(&said.text, "server_time_usec").filter(|time| *time > 0)?;
        Some(i128::from(time) - i128::try_from(said.at.as_micros()).ok()?)
    };
    i64::try_from(ahead_of_ours(one)? - ahead_of_ours(other)?).ok()
}

/// Compares the clocks of the servers that report them; `None` if fewer than two do.
fn clocks_differ<'a>(said: impl Iterator<Item = &'a Info>) -> Option<ClocksDiffer> {
    let mut told = said.filter(|info| clock_ahead(info, info).is_some());
    let first = told.next()?;
    let ahead: Vec<i64> = told.filter_map(|info| clock_ahead(info, first)).collect();
    let (most, least) = (ahead.iter().max()?, ahead.iter().min()?);
    Some(ClocksDiffer { clocks: ahead.len() + 1, micros: (*most).max(0).abs_diff((*least).min(0)) })
}

/// The slots that this server gives away or receives: `[93->-id]`, `[93-<-id]` in the line about itself.
fn moving(nodes: &str) -> Vec<u16> {
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    let slot = |word: &str| word.strip_prefix('[')?.split('-').next()?.parse().ok();
    own.split(' ').filter_map(slot).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn saying(text: &str) -> ServerSaid {
        ServerSaid { info: Info { text: text.into(), at: Duration::ZERO }, ..ServerSaid::default() }
    }

    #[test]
    fn what_info_says_is_read_and_what_it_keeps_is_not_made_up() {
        let told = saying(
            "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
             connected_slaves:2\r\n",
        );
        let expected = Facts {
            server: Some("redis 7.0.15".into()),
            eviction: Some("noeviction"),
            append_only: Some(false),
            role: Some("master"),
            replicas: Some(2),
            ..Facts::default()
        };
        assert_eq!(Facts::of(&told, false), expected);
        let valkey = saying("redis_version:7.2.4\nvalkey_version:9.1.2\n");
        assert_eq!(Facts::of(&valkey, false).server.as_deref(), Some("valkey 9.1.2"));
        let silent = ServerSaid { floors: Some(1), ..saying("") };
        assert_eq!(Facts::of(&silent, false), Facts::default());
        for (used, share) in [("200", Some(50)), ("1", Some(100)), ("0", Some(100)), ("x", None)] {
            let told = ServerSaid { floors: Some(100), ..saying(&format!("used_memory:{used}\n")) };
            assert_eq!(Facts::of(&told, false).floors_percent, share);
        }
        for (rdb, aof, expected) in [("ok", "ok", true), ("err", "ok", false), ("ok", "err", false)] {
            let info = format!("rdb_last_bgsave_status:{rdb}\r\naof_last_write_status:{aof}\r\n");
            assert_eq!(Facts::of(&saying(&info), false).saved, Some(expected), "{info}");
        }
    }

    #[test]
    fn settings_and_notifications_are_read() {
        let with = |settings: &[(&'static str, &str)]| ServerSaid {
            settings: settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            ..ServerSaid::default()
        };
        let told = with(&[("appendfsync", "always"), ("min-replicas-to-write", "1")]);
        let facts = Facts::of(&told, false);
        assert_eq!((facts.append_fsync, facts.min_replicas_to_write), (Some("always"), Some(1)));
        for (save, stops, expected) in [("3600 1", "yes", true), ("3600 1", "no", false), ("", "yes", false)] {
            let told = with(&[("save", save), ("stop-writes-on-bgsave-error", stops)]);
            assert_eq!(Facts::of(&told, false).stops_unsaved, Some(expected), "{save} {stops}");
        }
        assert_eq!(Facts::of(&with(&[("save", "3600 1")]), false).stops_unsaved, None);
        let refused = ServerSaid { notifications: Some(Err("no right".into())), ..ServerSaid::default() };
        assert_eq!(Facts::of(&refused, false).notifications, Some(Err("no right")));
    }

    #[test]
    fn replicas_are_read_as_their_primary_and_they_tell() {
        let info = |text: &str, millis| Info { text: text.into(), at: Duration::from_millis(millis) };
        let primary = info("server_time_usec:5000000\r\nmaster_repl_offset:100\r\n", 10);
        let of = |told: &str, said: Result<Info, String>| ReplicaSaid {
            address: "r:1".into(),
            told: told.into(),
            info: said,
        };
        let online = of(
            "ip=10.0.0.2,port=6379,state=online,offset=90,lag=1",
            Ok(info("server_time_usec:5012000\r\nmaxmemory_policy:noeviction\r\n", 20)),
        );
        let expected = ReplicaFacts {
            address: "r:1",
            is_online: true,
            behind_bytes: Some(10),
            acknowledged_ago: Some(Duration::from_secs(1)),
            eviction: Some("noeviction"),
            clock_ahead_micros: Some(2_000),
            unreachable: None,
        };
        assert_eq!(ReplicaFacts::of(&online, &primary), expected);
        let copying = of("ip=::1,port=6380,state=wait_bgsave,offset=0,lag=0", Err("no answer".into()));
        let expected = ReplicaFacts {
            address: "r:1",
            behind_bytes: Some(100),
            acknowledged_ago: Some(Duration::ZERO),
            unreachable: Some("no answer"),
            ..ReplicaFacts::default()
        };
        assert_eq!(ReplicaFacts::of(&copying, &primary), expected);
        let odd = of("ip=odd,port=0,state=online", Ok(Info::default()));
        let expected = ReplicaFacts { address: "r:1", is_online: true, ..ReplicaFacts::default() };
        assert_eq!(ReplicaFacts::of(&odd, &primary), expected);
    }

    #[test]
    fn clocks_are_compared_with_each_other() {
        let told = |micros: u64| Info { text: format!("server_time_usec:{micros}\r\n"), at: Duration::from_secs(1) };
        let differ = |times: &[u64]| clocks_differ(times.iter().map(|time| told(*time)).collect::<Vec<_>>().iter());
        let apart = |clocks, micros| Some(ClocksDiffer { clocks, micros });
        assert_eq!((differ(&[]), differ(&[10])), (None, None));
        assert_eq!((differ(&[10, 30]), differ(&[30, 10])), (apart(2, 20), apart(2, 20)));
        assert_eq!((differ(&[20, 30, 5]), differ(&[5, 7, 30])), (apart(3, 25), apart(3, 25)));
        let silent = [Info::default(), told(10), told(30), Info::default()];
        assert_eq!(clocks_differ(silent.iter()), apart(2, 20), "two are known");
    }

    #[test]
    fn slots_on_their_way_are_read() {
        let nodes = "aaa h:1@2 master - 0 0 1 connected 0-99 [7->-bbb]\n\
                     bbb h:2@3 myself,master - 0 0 2 connected 100-199 [8-<-aaa] [9->-aaa] [x->-aaa]\n";
        assert_eq!(moving(nodes), [8, 9]);
        assert!(moving("").is_empty());
    }

    proptest! {
        #[test]
        fn no_answer_about_a_server_is_too_odd_to_be_read(
            info in "((role|aof_enabled|redis_version|valkey_version|maxmemory_policy|connected_slaves)?:?(-?[0-9]{0,25}|.{0,9})\r?\n)*",
        ) {
            let said = saying(&info);
            let facts = Facts::of(&said, false);
            prop_assert!(facts.role.is_none_or(|role| !role.is_empty() && info.contains(role)));
        }

        #[test]
        fn no_replica_is_too_odd_to_be_read(
            told in "((ip|port|state|offset|lag)?=?[0-9a-z:.]{0,22},?){0,5}",
            info in "((server_time_usec|master_repl_offset)?:?-?[0-9]{0,25}\r?\n)*",
        ) {
            let said = ReplicaSaid { address: String::new(), told, info: Ok(saying(&info).info) };
            let facts = ReplicaFacts::of(&said, &saying(&info).info);
            prop_assert!(facts.clock_ahead_micros.is_none_or(|micros| micros == 0));
        }
    }
}
