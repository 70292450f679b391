//! Which keys a server can track for us, so that it notifies us when they change: pure.

/// How many keys a server tracks if it does not report that.
const USUAL_TABLE: usize = 1_000_000;

/// How many keys we may have a server track: half of its table, or none if the table is nearly full. The table takes
/// `table` keys (0 for any number, `None` if the server does not report it), and has `tracked` for all clients.
///
/// A server with a full table evicts a key for each new one. It does not notify the connection whose command caused
/// that, because `NOLOOP` holds for evictions too.
pub const fn capacity(table: Option<usize>, tracked: usize) -> usize {
    let table = match table {
        Some(0) => return usize::MAX,
        Some(table) => table,
        None => USUAL_TABLE,
    };
    if table.saturating_sub(tracked) > table / 16 { table / 2 } else { 0 }
}

/// The keys to track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Client.
    pub held: usize,
    /// Names that are waited for.
    pub awaited: usize,
    /// Names with fair waiters.
    pub queued: usize,
    /// Names that are observed.
    pub observed: usize,
}

impl Demand {
    /// Whether all of these keys fit into this capacity. Either all are tracked, or none: a full table would evict
    /// keys. Each eviction would be a hint, and each hint a renewal.
    pub fn fits(self, capacity: usize) -> bool {
        // A waiter's check reads the lock and its fence, a fair waiter's the queue as well.
        self.held + 2 * self.awaited + 4 * self.queued + self.observed <= capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_has_no_capacity() {
        for (table, tracked, expected) in [
            (Some(1_000), 0, 500),
            (Some(1_000), 400, 500),
            (Some(1_000), 937, 500),
            (Some(1_000), 938, 0),
            (Some(1_000), 1_200, 0),
            (Some(1), 0, 0),
            (Some(0), 5_000_000, usize::MAX),
            (None, 0, 500_000),
            (None, 950_000, 0),
        ] {
            assert_eq!(capacity(table, tracked), expected, "{table:?} {tracked}");
        }
    }

    #[test]
    fn every_key_that_a_check_reads_needs_a_place() {
        let demand = Demand { held: 10, awaited: 20, queued: 5, observed: 3 };
        assert!(demand.fits(73) && !demand.fits(72));
        let nothing = Demand { held: 0, awaited: 0, queued: 0, observed: 0 };
        assert!(!Demand { held: 1, ..nothing }.fits(0) && nothing.fits(0));
    }
}
