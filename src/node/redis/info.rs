//! Reads what a server's `INFO` says. A user who may not read it sees an empty text, and that is no fault of the
//! server.

use std::str::FromStr;

use leasehold_protocol::message::ServerIdentity;

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
        role: field(info, "role").map(Into::into),
        replicas: number(info, "connected_slaves"),
        ..Capabilities::default()
    }
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
        assert_eq!(tracked_keys("# Stats\r\ntracking_total_keys:17\r\ntracking_total_items:19\r\n"), Some(17));
        assert_eq!(tracked_keys("# Stats\r\n"), None);
    }

    proptest! {
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
