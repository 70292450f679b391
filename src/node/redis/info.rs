//! Reads what a server's `INFO` says. A user who may not read it sees an empty text, and that is no fault of the
//! server.

use std::{str::FromStr, time::Duration};

use leasehold_protocol::{message::ServerIdentity, topology::Place};

use crate::capabilities::Capabilities;

/// The value of a field, unless it is empty.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim());
    info.lines().find_map(value).filter(|value| !value.is_empty())
}

fn number<N: FromStr>(info: &str, name: &str) -> Option<N> {
    field(info, name)?.parse().ok()
}

pub(super) fn identity(info: &str) -> ServerIdentity {
    let mode = field(info, "redis_mode").or_else(|| field(info, "server_mode"));
    ServerIdentity {
        time: number(info, "server_time_usec"),
        run_id: field(info, "run_id").map(Into::into),
        is_alone: mode.is_none_or(|mode| mode == "standalone"),
    }
}

/// The first number of the version. Valkey tells that of the Redis that it stands for.
pub(super) fn major_version(info: &str) -> Option<u32> {
    field(info, "redis_version")?.split('.').next()?.parse().ok()
}

/// How many keys the server tracks for all its clients.
pub(super) fn tracked_keys(stats: &str) -> Option<usize> {
    number(stats, "tracking_total_keys")
}

/// Of these, those that `INFO` tells. The floors take so many bytes, as far as that is known.
pub(super) fn capabilities(info: &str, floors: Option<u64>) -> Capabilities {
    let valkey = field(info, "valkey_version").map(|version| format!("valkey {version}"));
    Capabilities {
        server: valkey.or_else(|| Some(format!("redis {}", field(info, "redis_version")?))),
        eviction: field(info, "maxmemory_policy").map(Into::into),
        floors: floors.zip(number(info, "used_memory")).map(percent),
        append_only: field(info, "aof_enabled").map(|enabled| enabled == "1"),
        saved: saved(info),
        role: field(info, "role").map(Into::into),
        replicas: number(info, "connected_slaves"),
        ..Capabilities::default()
    }
}

/// Whether the last snapshot and the last write to the append-only file succeeded, as far as it says.
fn saved(info: &str) -> Option<bool> {
    let told = ["rdb_last_bgsave_status", "aof_last_write_status"].map(|name| field(info, name));
    told.into_iter().flatten().map(|status| status == "ok").min()
}

/// A replica, as its primary tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Following {
    /// As the primary names it.
    pub(super) address: String,
    /// The same, if it can be read.
    pub(super) place: Option<Place>,
    /// Whether it has copied all, and follows.
    pub(super) is_online: bool,
    /// How many bytes it has acknowledged, of all that its primary has ever written, and how many it has not.
    pub(super) acknowledged: Option<u64>,
    pub(super) behind: Option<u64>,
    /// How long ago it has acknowledged anything.
    pub(super) lag: Option<Duration>,
}

/// The replicas of a primary: `slave0:ip=10.0.0.2,port=6379,state=online,offset=1234,lag=1`.
pub(super) fn following(info: &str) -> Vec<Following> {
    let written: Option<u64> = number(info, "master_repl_offset");
    let read = |line: &str| {
        let (name, fields) = line.strip_prefix("slave")?.split_once(':')?;
        let _number: usize = name.parse().ok()?;
        let field = |name: &str| {
            let mut fields = fields.trim().split(',').filter_map(|field| field.split_once('='));
            fields.find_map(|(known, value)| (known == name).then_some(value))
        };
        let (host, port) = (field("ip")?, field("port")?);
        let place = Place::read(&format!("{host}:{port}"), "");
        let acknowledged = field("offset").and_then(|offset| offset.parse::<u64>().ok());
        Some(Following {
            address: place.as_ref().map_or_else(|| format!("{host}:{port}"), ToString::to_string),
            place,
            is_online: field("state") == Some("online"),
            acknowledged,
            behind: written.zip(acknowledged).map(|(written, acknowledged)| written.saturating_sub(acknowledged)),
            lag: field("lag").and_then(|lag| lag.parse().ok()).map(Duration::from_secs),
        })
    };
    info.lines().filter_map(read).collect()
}

fn percent((part, whole): (u64, u64)) -> u8 {
    u8::try_from(part.saturating_mul(100) / whole.max(1)).unwrap_or(100).min(100)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_info_says_is_read_and_what_it_keeps_is_not_made_up() {
        let info = "# Server\r\nredis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:0\r\nrole:master\r\n\
                    connected_slaves:2\r\n";
        let read = capabilities(info, None);
        assert_eq!((read.server(), read.eviction()), (Some("redis 7.0.15"), Some("noeviction")));
        assert_eq!((read.append_only(), read.role(), read.replicas()), (Some(false), Some("master"), Some(2)));
        let valkey = capabilities("redis_version:7.2.4\nvalkey_version:9.1.2\n", None);
        assert_eq!(valkey.server(), Some("valkey 9.1.2"));
        assert_eq!(capabilities("", Some(1)), Capabilities::default());
        for (used, share) in [("200", Some(50)), ("1", Some(100)), ("0", Some(100)), ("x", None)] {
            assert_eq!(capabilities(&format!("used_memory:{used}\n"), Some(100)).floors_percent(), share);
        }
        for (rdb, aof, expected) in [("ok", "ok", true), ("err", "ok", false), ("ok", "err", false)] {
            let info = format!("rdb_last_bgsave_status:{rdb}\r\naof_last_write_status:{aof}\r\n");
            assert_eq!(capabilities(&info, None).saved(), Some(expected), "{info}");
        }
        assert_eq!(tracked_keys("# Stats\r\ntracking_total_keys:17\r\ntracking_total_items:19\r\n"), Some(17));
        assert_eq!(tracked_keys("# Stats\r\n"), None);
    }

    #[test]
    fn replicas_are_read_as_their_primary_tells() {
        let info = "role:master\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=90,lag=1\r\n\
                    slave1:ip=::1,port=6380,state=wait_bgsave,offset=0,lag=0\r\nslave_repl_offset:1\r\nslave2:ip=x\r\n\
                    slave3:ip=odd,port=0,state=online\r\nmaster_repl_offset:100\r\n";
        let one = |address: &str, place, is_online, behind: Option<u64>, lag: Option<u64>| Following {
            address: address.into(),
            place: Place::read(place, ""),
            is_online,
            acknowledged: behind.map(|behind| 100 - behind),
            behind,
            lag: lag.map(Duration::from_secs),
        };
        let expected = [
            one("10.0.0.2:6379", "10.0.0.2:6379", true, Some(10), Some(1)),
            one("[::1]:6380", "::1:6380", false, Some(100), Some(0)),
            one("odd:0", "", true, None, None),
        ];
        assert_eq!(following(info), expected);
        assert_eq!(following(""), []);
    }

    proptest! {
        #[test]
        fn no_replica_is_too_odd_to_be_told(
            info in "((slave[0-9]{0,3}|master_repl_offset)?:?((ip|port|state|offset|lag)?=?[0-9a-z:.]{0,22},?){0,5}\r?\n)*",
        ) {
            prop_assert!(following(&info).len() <= info.lines().count());
        }

        #[test]
        fn no_answer_about_a_server_is_too_odd_to_be_told(
            info in "((role|aof_enabled|redis_version|valkey_version|maxmemory_policy|connected_slaves)?:?(-?[0-9]{0,25}|.{0,9})\r?\n)*",
        ) {
            let facts = capabilities(&info, None);
            prop_assert!(facts.to_string().lines().count() >= 8);
            prop_assert!(facts.role().is_none_or(|role| !role.is_empty() && info.contains(role)));
        }
    }
}
