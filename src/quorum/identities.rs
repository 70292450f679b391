//! What the nodes of a quorum say of themselves, side by side: which run of which server each is, and what time it is
//! there.

use std::time::Duration;

use parking_lot::Mutex;

use crate::{clock::Time, fence::Fence};

/// By how much a proposed fence is ahead of the highest clock that was seen: for links and servers that are slower than
/// the last time, and far less than any restart delay.
const AHEAD: Duration = Duration::from_millis(50);

/// For so long a seen time says what time it is now.
const FRESH: Duration = Duration::from_secs(10);

/// The roll of one quorum.
#[derive(Debug)]
pub(super) struct Roll {
    nodes: usize,
    present: Mutex<Vec<Present>>,
    /// The highest time seen in a reply, in microseconds, and when its request was sent.
    seen: Mutex<Option<(u64, Time)>>,
}

/// A node that has said who it is.
#[derive(Debug)]
struct Present {
    at: usize,
    address: Box<str>,
    run_id: Box<str>,
}

impl Roll {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, present: Mutex::default(), seen: Mutex::default() }
    }

    /// Whether there is but one node.
    pub(super) fn is_one(&self) -> bool {
        self.nodes == 1
    }

    /// A node says which run of a server it is; the address of another node that has said the same before.
    pub(super) fn enter(&self, at: usize, address: &str, run_id: &str) -> Option<Box<str>> {
        let mut present = self.present.lock();
        if let Some(other) = present.iter().find(|other| other.at != at && &*other.run_id == run_id) {
            let other = other.address.clone();
            present.retain(|present| present.at != at);
            return Some(other);
        }
        match present.iter_mut().find(|present| present.at == at) {
            Some(known) if &*known.run_id == run_id => {}
            Some(known) => known.run_id = run_id.into(),
            None => present.push(Present { at, address: address.into(), run_id: run_id.into() }),
        }
        None
    }

    /// Whether this is what the node last said it is.
    pub(super) fn is_known(&self, at: usize, run_id: &str) -> bool {
        self.present.lock().iter().any(|present| present.at == at && &*present.run_id == run_id)
    }

    /// What time the reply to a request showed, in microseconds, and when that was sent. Counted from there, and not from
    /// the reply, a proposal is ahead by what requests take as well, however far the nodes are away.
    pub(super) fn note_time(&self, time: u64, sent: Time) {
        let mut seen = self.seen.lock();
        if seen.is_none_or(|seen| time >= elapsed(seen, sent) || sent.since(seen.1) > FRESH) {
            *seen = Some((time, sent));
        }
    }

    /// A fence that is probably larger than what any node would draw now, and so drawn by all of them alike. It comes
    /// from the nodes' own clocks only, and never from a fence, which would ratchet.
    pub(super) fn proposal(&self, now: Time) -> Option<Fence> {
        let seen = (*self.seen.lock()).filter(|seen| now.since(seen.1) <= FRESH)?;
        let ahead = u64::try_from(AHEAD.as_micros()).unwrap_or_default();
        Fence::try_from(elapsed(seen, now).saturating_add(ahead)).ok()
    }
}

/// What the clock that showed this would show now.
fn elapsed((time, at): (u64, Time), now: Time) -> u64 {
    time.saturating_add(u64::try_from(now.since(at).as_micros()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn proposal(roll: &Roll, millis: u64) -> Option<u64> {
        roll.proposal(at(millis)).map(u64::from)
    }

    #[test]
    fn one_server_has_one_place() {
        let roll = Roll::new(3);
        assert_eq!(roll.enter(0, "a:1", "run1"), None);
        assert_eq!(roll.enter(1, "b:1", "run0"), None);
        assert_eq!(roll.enter(1, "b:1", "run1").as_deref(), Some("a:1"));
        assert!(roll.is_known(0, "run1") && !roll.is_known(1, "run0"), "the second is none any more");
        assert_eq!(roll.enter(0, "a:1", "run1"), None, "the first keeps its vote");
        assert_eq!(roll.enter(0, "a:1", "run2"), None, "restarted");
        assert!(roll.is_known(0, "run2") && !roll.is_known(0, "run1") && !roll.is_known(1, "run2"));
        assert_eq!(roll.enter(1, "b:1", "run1"), None, "now nobody else is that one");
    }

    #[test]
    fn one_node_is_alone() {
        assert!(Roll::new(1).is_one() && !Roll::new(3).is_one());
    }

    #[test]
    fn a_proposal_is_ahead_of_the_highest_clock_as_it_stands_now() {
        let roll = Roll::new(3);
        assert_eq!(proposal(&roll, 0), None);
        roll.note_time(5_000_000, at(1_000));
        roll.note_time(4_000_000, at(1_001));
        assert_eq!(proposal(&roll, 1_200), Some(5_250_000));
        roll.note_time(5_300_000, at(1_200));
        assert_eq!(proposal(&roll, 1_200), Some(5_350_000));
    }

    #[test]
    fn an_old_time_is_none() {
        let roll = Roll::new(3);
        roll.note_time(9_000_000, at(0));
        roll.note_time(5_000_000, at(10_000));
        assert_eq!(proposal(&roll, 10_000), Some(19_050_000), "ten seconds are not old");
        assert_eq!(proposal(&roll, 10_001), None);
        roll.note_time(5_000_000, at(10_001));
        assert_eq!(proposal(&roll, 10_001), Some(5_050_000), "a node whose clock was ahead has gone");
    }
}
