//! Whether an address still resolves to the server of our connections. A name, a service or a balancer may be switched
//! to another server while the old one still answers: then each of two servers grants the lock (assumption 6).
//!
//! # Invariants
//!
//! 1. One fresh connection that reaches our server is enough to stay. After a check that has found no right server, two
//!    in a row are needed.
//! 2. Our connections move to another server only after two fresh ones in a row have reached it. So a single one that
//!    was misrouted moves no connection.
//! 3. If no two in a row reach the same server, or if they reach one that was just left, no server is the right one.

/// The most fresh connections of one check.
const MOST: u32 = 4;

/// The number of checks for which a server that was left is remembered.
const REMEMBERED: u32 = 3;

/// The checks of one address.
#[derive(Debug, Default)]
pub struct AddressCheck {
    ours: Vec<Box<str>>,
    last: Option<Box<str>>,
    asked: u32,
    /// Whether the last check has found no right server.
    is_mixed: bool,
    /// The servers that were left lately, each with the number of checks for which it is still remembered.
    left: Vec<(Box<str>, u32)>,
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The address resolves to the server of our connections.
    Same,
    /// The address resolves to this other run of a server: our connections to others are to end.
    Moved(Box<str>),
    /// The address resolves now to one server and now to another.
    Mixed,
}

impl AddressCheck {
    /// Begins a check. `ours` are the runs of servers that our connections reach, as far as that is known.
    pub fn begin(&mut self, ours: impl IntoIterator<Item = Box<str>>) {
        self.ours = ours.into_iter().collect();
        (self.last, self.asked) = (None, 0);
        for (_, looks) in &mut self.left {
            *looks -= 1;
        }
        self.left.retain(|(_, looks)| *looks > 0);
    }

    /// Notes that a fresh connection has reached this run of a server. Returns `None` if another connection is needed.
    pub fn found(&mut self, run_id: &str) -> Option<Finding> {
        let finding = self.next(run_id)?;
        self.is_mixed = finding == Finding::Mixed;
        Some(finding)
    }

    fn next(&mut self, run_id: &str) -> Option<Finding> {
        self.asked += 1;
        let is_ours = !self.ours.is_empty() && self.ours.iter().all(|ours| **ours == *run_id);
        let is_second = self.last.as_deref() == Some(run_id);
        if is_ours && (is_second || self.last.is_none() && !self.is_mixed) {
            return Some(Finding::Same);
        }
        if is_second {
            if self.left.iter().any(|(left, _)| **left == *run_id) {
                return Some(Finding::Mixed);
            }
            let leaves = self.ours.iter().filter(|ours| ***ours != *run_id);
            self.left.extend(leaves.map(|ours| (ours.clone(), REMEMBERED)));
            return Some(Finding::Moved(run_id.into()));
        }
        self.last = Some(run_id.into());
        (self.asked >= MOST).then_some(Finding::Mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(check: &mut AddressCheck, ours: &[&str], fresh: &[&str]) -> Finding {
        check.begin(ours.iter().map(|&ours| ours.into()));
        let (last, before) = fresh.split_last().unwrap();
        for run_id in before {
            assert_eq!(check.found(run_id), None, "{fresh:?}");
        }
        check.found(last).expect("it needs no more")
    }

    fn moved(to: &str) -> Finding {
        Finding::Moved(to.into())
    }

    #[test]
    fn invariant_1_one_fresh_connection_to_our_server_is_enough() {
        assert_eq!(look(&mut AddressCheck::default(), &["a", "a"], &["a"]), Finding::Same);
    }

    #[test]
    fn invariant_2_two_in_a_row_move_us_and_one_moves_nobody() {
        assert_eq!(look(&mut AddressCheck::default(), &["a", "a"], &["b", "b"]), moved("b"));
        assert_eq!(look(&mut AddressCheck::default(), &["a", "a"], &["b", "a", "a"]), Finding::Same);
        assert_eq!(look(&mut AddressCheck::default(), &["a", "a"], &["b", "a", "b", "b"]), moved("b"));
        // One of our connections reaches another server.
        assert_eq!(look(&mut AddressCheck::default(), &["a", "b"], &["a", "a"]), moved("a"));
    }

    #[test]
    fn connections_that_lead_nobody_knows_where_go_over_too() {
        assert_eq!(look(&mut AddressCheck::default(), &[], &["a", "a"]), moved("a"));
        assert_eq!(look(&mut AddressCheck::default(), &[], &["a", "b", "a", "b"]), Finding::Mixed);
    }

    #[test]
    fn invariant_3_no_server_is_right_where_each_connection_leads_to_another() {
        assert_eq!(look(&mut AddressCheck::default(), &["a", "a"], &["b", "a", "b", "a"]), Finding::Mixed);
        assert_eq!(look(&mut AddressCheck::default(), &["a", "b"], &["a", "b", "a", "b"]), Finding::Mixed);
        assert_eq!(look(&mut AddressCheck::default(), &["a"], &["b", "c", "d", "e"]), Finding::Mixed);
        let mut check = AddressCheck::default();
        assert_eq!(look(&mut check, &["a"], &["b", "b"]), moved("b"));
        assert_eq!(look(&mut check, &["b"], &["b"]), Finding::Same);
        assert_eq!(look(&mut check, &["b"], &["a", "a"]), Finding::Mixed, "it has just been left");
        assert_eq!(look(&mut check, &["b"], &["b", "a", "b", "a"]), Finding::Mixed, "one is not enough now");
        assert_eq!(look(&mut check, &["b"], &["b", "b"]), Finding::Same);
        assert_eq!(look(&mut check, &["b"], &["b"]), Finding::Same);
    }

    #[test]
    fn a_server_that_was_left_long_ago_may_be_the_one_again() {
        let mut check = AddressCheck::default();
        assert_eq!(look(&mut check, &["a"], &["b", "b"]), moved("b"));
        for _ in 1..REMEMBERED {
            assert_eq!(look(&mut check, &["b"], &["b"]), Finding::Same);
        }
        assert_eq!(look(&mut check, &["b"], &["a", "a"]), moved("a"));
    }
}
