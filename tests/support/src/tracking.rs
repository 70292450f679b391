//! Client-side caching as the server sees it: which connections are notified of changes, through which connection, and
//! of how many keys.

use std::time::Duration;

use super::wait::eventually_async;
use super::wire::Wire;

/// Long enough to reconnect and enable tracking first.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection whose reads are tracked, and the one that is notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracker {
    /// The id of the connection that reads.
    pub reads: String,
    /// The id of the notified connection.
    pub told: String,
}

impl Wire {
    /// The tracked connections whose receivers are still connected.
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

    /// The number of subscribers of a channel.
    #[track_caller]
    pub fn receivers(&mut self) -> usize {
        self.must(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().lines().count()
    }

    /// The number of keys with pending notifications. A script that reads a lock and its fence counts as two.
    #[track_caller]
    pub fn tracked_keys(&mut self) -> usize {
        self.stat("tracking_total_keys")
    }

    /// Like [`Wire::tracked_keys`], but a key counts once for each connection to be notified.
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
        // This is an error if the connection has ended by itself.
        self.cmd(&["CLIENT", "KILL", "ID", id]);
    }
}

/// Flushes servers until they track nothing. There must be no holder or waiter.
pub async fn start_anew<'a>(wires: impl IntoIterator<Item = &'a mut Wire>) {
    let mut wires: Vec<_> = wires.into_iter().collect();
    // A background undo may read a key once more.
    let forgotten = || {
        wires.iter_mut().all(|wire| {
            wire.must(&["FLUSHALL"]);
            wire.tracked_keys() == 0
        })
    };
    eventually_async(PATIENCE, "nothing is tracked", forgotten).await;
}

/// Waits until `servers` servers track what a waiter has checked, the lock and its fence; a holder's renewals read only
/// the lock. The servers must have tracked nothing before.
pub async fn waiter_is_tracked<'a>(wires: impl IntoIterator<Item = &'a mut Wire>, servers: usize) {
    let mut wires: Vec<_> = wires.into_iter().collect();
    let mut tracking = || wires.iter_mut().map(|wire| wire.tracked_keys()).filter(|keys| *keys >= 2).count();
    eventually_async(PATIENCE, "the waiter's check is tracked", || tracking() >= servers).await;
}
