//! Reads a cluster as one of its servers sees it. The answer to `CLUSTER SLOTS` contains the places to connect to. The
//! answer to `CLUSTER NODES` contains the epochs, and also the replicas that have nothing to replicate yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use leasehold_protocol::{
    place::Place,
    topology::{Primary, Replica, View},
};

use crate::node::redis::wire::Value;

/// The view of a server on this host; `None` if its answers are not a view, or do not belong together.
pub(super) fn view(slots: &Value, nodes: &Value, host: &str) -> Option<View> {
    let Value::Array(entries) = slots else { return None };
    let nodes = nodes.as_str()?;
    let out_of_reach: BTreeSet<&str> =
        nodes.lines().filter(|line| flags(line).any(is_out_of_reach)).filter_map(id).collect();
    let mut primaries: BTreeMap<&str, Primary> = nodes.lines().filter_map(|line| primary(line, host)).collect();
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    for entry in entries {
        let Listed { slots, id, place, replicas } = entry_of(entry, host)?;
        places.extend(replicas);
        if let Some(primary) = primaries.get_mut(&*id) {
            primary.place = place;
            primary.slots.push(slots);
        } else if !out_of_reach.contains(&*id) {
            // It was not a primary a moment ago: one answer is from before a failover, the other from after it. The
            // slots would seem to have no owner.
            return None;
        }
    }
    for (of, mut replica) in nodes.lines().filter_map(|line| replica(line, host)) {
        if let Some(primary) = primaries.get_mut(of) {
            // The place to connect to may be a name.
            replica.place = places.remove(&*replica.id).unwrap_or(replica.place);
            primary.replicas.push(replica);
        }
    }
    let known = nodes.lines().filter_map(id).map(Into::into).collect();
    let by = nodes.lines().find(|line| flags(line).any(|flag| flag == "myself")).and_then(id).map(Into::into);
    Some(View { by, primaries: primaries.into_values().collect(), known, begins_anew: None })
}

/// An entry of `CLUSTER SLOTS`.
struct Listed {
    slots: RangeInclusive<u16>,
    id: String,
    place: Option<Place>,
    replicas: Vec<(String, Place)>,
}

fn entry_of(entry: &Value, host: &str) -> Option<Listed> {
    let Value::Array(parts) = entry else { return None };
    let [first, last, primary, replicas @ ..] = &**parts else { return None };
    let number = |value: &Value| u16::try_from(value.as_i64()?).ok();
    let (id, place) = server(primary, host)?;
    let known = |replica| server(replica, host).and_then(|(id, place)| Some((id, place?)));
    let replicas = replicas.iter().filter_map(known).collect();
    Some(Listed { slots: number(first)?..=number(last)?, id, place, replicas })
}

/// A server's id, and where it is. Without a host of its own it is on the host of the server that was asked.
fn server(value: &Value, host: &str) -> Option<(String, Option<Place>)> {
    let Value::Array(parts) = value else { return None };
    let [its_host, port, id, ..] = &**parts else { return None };
    let its_host = its_host.as_string().unwrap_or_default();
    let place = Place::read(&format!("{its_host}:{}", port.as_i64()?), host);
    Some((id.as_string()?, place))
}

fn id(line: &str) -> Option<&str> {
    line.split_once(' ').map(|(id, _)| id)
}

fn flags(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').nth(2).unwrap_or_default().split(',')
}

fn is_out_of_reach(flag: &str) -> bool {
    matches!(flag, "handshake" | "noaddr")
}

/// The first words of a line of `CLUSTER NODES`, if it is about a server of this kind that can be reached.
fn words_of<'a>(line: &'a str, kind: &str) -> Option<[&'a str; 7]> {
    let mut words = line.split(' ');
    let words = [(); 7].map(|()| words.next().unwrap_or_default());
    let is_of_kind = flags(line).any(|flag| flag == kind);
    (is_of_kind && !flags(line).any(is_out_of_reach)).then_some(words)
}

/// A line about a replica, and the name of its primary.
fn replica<'a>(line: &'a str, host: &str) -> Option<(&'a str, Replica)> {
    let [id, address, flags, of, ..] = words_of(line, "slave").or_else(|| words_of(line, "replica"))?;
    let is_failing = flags.split(',').any(|flag| matches!(flag, "fail" | "fail?"));
    Some((of, Replica { id: id.into(), place: Place::read(address.split('@').next()?, host)?, is_failing }))
}

/// A line about a primary.
fn primary<'a>(line: &'a str, host: &str) -> Option<(&'a str, Primary)> {
    let [id, address, _flags, _of, _ping, _pong, epoch] =
        words_of(line, "master").or_else(|| words_of(line, "primary"))?;
    let place = Place::read(address.split('@').next()?, host);
    let primary = Primary { id: id.into(), place, epoch: epoch.parse().ok()?, slots: Vec::new(), replicas: Vec::new() };
    Some((id, primary))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(parts.into_iter().collect())
    }

    fn server(host: Option<&str>, port: i64, id: &str) -> Value {
        array([host.map_or(Value::Null, Value::from), port.into(), id.into(), array([])])
    }

    const NODES: &str = "\
        aaa 127.0.0.1:7001@17001,one myself,master - 0 0 3 connected 0-99 101\n\
        bbb 127.0.0.1:7002@17002 master - 0 1426238316232 2 connected 100\n\
        ccc 127.0.0.1:7003@17003 slave aaa 0 1426238316232 3 connected\n\
        ddd 127.0.0.1:7004@17004 master,fail - 0 0 1 disconnected\n\
        eee :0@0 master,noaddr - 0 0 9 disconnected\n";

    #[test]
    fn both_answers_are_joined_by_the_servers_ids() {
        let slots = array([
            array([0.into(), 99.into(), server(Some("127.0.0.1"), 7001, "aaa"), server(Some(""), 7003, "ccc")]),
            array([101.into(), 101.into(), server(Some("127.0.0.1"), 7001, "aaa"), server(Some("?"), 7003, "ccc")]),
            array([100.into(), 100.into(), server(None, 7002, "bbb")]),
        ]);
        let View { by, primaries, known, .. } = view(&slots, &NODES.into(), "asked").unwrap();
        assert_eq!(by.as_deref(), Some("aaa"));
        let of = |id: &str| primaries.iter().find(|primary| &*primary.id == id).unwrap();
        let place = |host: &str, port| Some(Place { host: host.into(), port });
        assert_eq!((of("aaa").epoch, &*of("aaa").slots), (3, &[0..=99, 101..=101][..]));
        assert_eq!((&of("aaa").place, &of("bbb").place), (&place("127.0.0.1", 7001), &place("asked", 7002)));
        assert_eq!((of("ddd").epoch, of("ddd").slots.len(), &of("ddd").place), (1, 0, &place("127.0.0.1", 7004)));
        assert_eq!(primaries.len(), 3);
        let stranger = array([array([0.into(), 99.into(), server(Some("h"), 7009, "zzz")])]);
        assert_eq!(view(&stranger, &NODES.into(), "asked"), None, "it was no primary when it was asked");
        let lost = array([array([0.into(), 99.into(), server(None, 0, "eee")])]);
        assert!(view(&lost, &NODES.into(), "asked").unwrap().primaries.iter().all(|primary| primary.slots.is_empty()));
        assert_eq!(known.into_iter().collect::<Vec<_>>().concat(), "aaabbbcccdddeee");
        let first =
            array([array([0.into(), 99.into(), server(Some("h"), 7001, "aaa"), server(Some(""), 7003, "ccc")])]);
        let View { primaries, .. } = view(&first, &NODES.into(), "asked").unwrap();
        let of_a = primaries.iter().find(|primary| &*primary.id == "aaa").unwrap();
        let at = |host: &str| {
            [Replica { id: "ccc".into(), place: Place { host: host.into(), port: 7003 }, is_failing: false }]
        };
        assert_eq!(of_a.replicas, at("asked"));
        // The replica replicates nothing yet.
        let View { primaries, .. } = view(&array([]), &NODES.into(), "asked").unwrap();
        let of_a = primaries.iter().find(|primary| &*primary.id == "aaa").unwrap();
        assert_eq!(of_a.replicas, at("127.0.0.1"));
        // A primary that this server takes for dead still has its slots.
        let doubted = NODES.replace("myself,master", "master,fail?");
        let View { primaries, .. } = view(&slots, &doubted.as_str().into(), "asked").unwrap();
        assert!(primaries.iter().any(|primary| &*primary.id == "aaa" && primary.slots.len() == 2));
        let dead = NODES.replace("slave aaa", "slave,fail aaa");
        let View { primaries, .. } = view(&array([]), &dead.as_str().into(), "asked").unwrap();
        assert!(primaries.iter().flat_map(|primary| &primary.replicas).all(|replica| replica.is_failing));
    }

    #[test]
    fn other_answers_are_no_view() {
        for slots in [Value::Null, "OK".into(), array([1.into()]), array([array([0.into(), 5.into()])])] {
            assert!(view(&slots, &NODES.into(), "asked").is_none(), "{slots:?}");
        }
        assert!(view(&array([]), &Value::Null, "asked").is_none());
        assert_eq!(view(&array([]), &"".into(), "asked"), Some(View::default()));
    }
}
