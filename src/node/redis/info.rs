//! Reads a server's `INFO`. A user without the right to it gets an empty text, which is no fault of the server.

use std::str::FromStr;

use leasehold_protocol::{message::ServerIdentity, place::Place};

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

/// The first number of the version. Valkey reports the version of Redis that it is compatible with.
pub(super) fn major_version(info: &str) -> Option<u32> {
    field(info, "redis_version")?.split('.').next()?.parse().ok()
}

/// The id of the server's replication history: another one once it has been a replica, or is one.
pub(super) fn history(info: &str) -> Option<&str> {
    field(info, "master_replid")
}

/// The number of keys that the server tracks for all its clients.
pub(super) fn tracked_keys(stats: &str) -> Option<usize> {
    number(stats, "tracking_total_keys")
}

/// A replica, as its primary reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Following {
    /// The address, as the primary names it.
    pub(super) address: String,
    /// Where `address` is, if it can be parsed.
    pub(super) place: Option<Place>,
    /// How many bytes it has acknowledged, of all that its primary has ever written.
    pub(super) acknowledged: Option<u64>,
    /// All its fields.
    pub(super) fields: String,
}

/// The replicas of a primary: `slave0:ip=10.0.0.2,port=6379,state=online,offset=1234,lag=1`.
pub(super) fn following(info: &str) -> Vec<Following> {
    let read = |line: &str| {
        let (name, fields) = line.strip_prefix("slave")?.split_once(':')?;
        let _number: usize = name.parse().ok()?;
        let fields = fields.trim();
        let field = |name: &str| {
            let mut pairs = fields.split(',').filter_map(|field| field.split_once('='));
            pairs.find_map(|(known, value)| (known == name).then_some(value))
        };
        let (host, port) = (field("ip")?, field("port")?);
        let place = Place::read(&format!("{host}:{port}"), "");
        Some(Following {
            address: place.as_ref().map_or_else(|| format!("{host}:{port}"), ToString::to_string),
            place,
            acknowledged: field("offset").and_then(|offset| offset.parse().ok()),
            fields: fields.to_owned(),
        })
    };
    info.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_number_of_tracked_keys_is_read() {
        assert_eq!(tracked_keys("# Stats\r\ntracking_total_keys:17\r\ntracking_total_items:19\r\n"), Some(17));
        assert_eq!(tracked_keys("# Stats\r\n"), None);
    }

    #[test]
    fn replicas_are_read_as_their_primary_tells() {
        let info = "role:master\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=90,lag=1\r\n\
                    slave1:ip=::1,port=6380,state=wait_bgsave,offset=0,lag=0\r\nslave_repl_offset:1\r\nslave2:ip=x\r\n\
                    slave3:ip=odd,port=0,state=online\r\nmaster_repl_offset:100\r\n";
        let one = |address: &str, place, acknowledged, fields: &str| Following {
            address: address.into(),
            place: Place::read(place, ""),
            acknowledged,
            fields: fields.into(),
        };
        let expected = [
            one("10.0.0.2:6379", "10.0.0.2:6379", Some(90), "ip=10.0.0.2,port=6379,state=online,offset=90,lag=1"),
            one("[::1]:6380", "::1:6380", Some(0), "ip=::1,port=6380,state=wait_bgsave,offset=0,lag=0"),
            one("odd:0", "", None, "ip=odd,port=0,state=online"),
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
    }
}
