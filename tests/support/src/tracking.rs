//! Client-side caching as the server sees it: who is told of changes, by which
//! connection, and of how many keys.

use super::wire::Wire;

/// A connection whose reads are tracked, and the one that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracker {
    /// The id of the connection that reads.
    pub reads: String,
    /// The id of the one that is told.
    pub told: String,
}

impl Wire {
    /// The connections that are tracked, and whose receivers are still there.
    #[track_caller]
    pub fn trackers(&mut self) -> Vec<Tracker> {
        let list = self.must(&["CLIENT", "LIST"]).text();
        let field = |line: &str, name: &str| {
            line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default().to_owned()
        };
        let living: Vec<String> = list.lines().map(|line| field(line, "id")).collect();
        let tracked = list.lines().filter(|line| field(line, "flags").contains('t'));
        let trackers = tracked.map(|line| Tracker { reads: field(line, "id"), told: field(line, "redir") });
        trackers.filter(|tracker| living.contains(&tracker.told)).collect()
    }

    /// How many connections have subscribed to a channel.
    #[track_caller]
    pub fn receivers(&mut self) -> usize {
        self.must(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().lines().count()
    }

    /// How many keys somebody will be told about. A script that reads a lock and its fence counts as two.
    #[track_caller]
    pub fn tracked_keys(&mut self) -> usize {
        self.stat("tracking_total_keys")
    }

    /// As [`Wire::tracked_keys`], where a key counts once for each connection that will be told.
    #[track_caller]
    pub fn tracked_items(&mut self) -> usize {
        self.stat("tracking_total_items")
    }

    fn stat(&mut self, field: &str) -> usize {
        let value = self.info_field("stats", field).unwrap_or_else(|| panic!("the server tells no {field}"));
        value.parse().expect("a number")
    }

    /// Ends a connection.
    #[track_caller]
    pub fn kill_client(&mut self, id: &str) {
        // An error: it has ended by itself.
        self.cmd(&["CLIENT", "KILL", "ID", id]);
    }
}
