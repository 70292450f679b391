//! The arithmetic of majorities: pure, and the same for one node as for many.

use crate::clock::Time;

/// A node's definite "not yours".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denial {
    /// The key is gone.
    Gone,
    /// The key holds something else.
    Taken,
}

/// What each node last said about one token.
#[derive(Debug)]
pub(crate) struct Tally {
    seats: Box<[Seat]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    /// When the newest request that this node confirmed was sent.
    sent: Time,
    denial: Option<Denial>,
}

impl Tally {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { seats: vec![Seat::default(); nodes].into() }
    }

    pub(crate) fn majority(&self) -> usize {
        self.seats.len() / 2 + 1
    }

    /// `node` did what a request asked that was sent at `sent`. An old confirmation takes nothing back.
    pub(crate) fn confirm(&mut self, node: usize, sent: Time) {
        if let Some(seat) = self.seats.get_mut(node) {
            if sent >= seat.sent {
                *seat = Seat { sent, denial: None };
            }
        }
    }

    /// `node` answered "not yours". Whatever it confirmed before, and to whichever request this is the answer: nodes
    /// execute requests in another order than they were sent, and none gives back what it has lost.
    pub(crate) fn deny(&mut self, node: usize, denial: Denial) {
        if let Some(seat) = self.seats.get_mut(node) {
            seat.denial = Some(denial);
        }
    }

    /// The majority-th largest of the confirmed sends: what a deadline counts from (rule 1). Zero without a majority.
    pub(crate) fn confirmed(&self) -> Time {
        let backed = |sent: Time| self.seats.iter().filter(|seat| seat.sent >= sent).count() >= self.majority();
        self.seats.iter().map(|seat| seat.sent).filter(|&sent| backed(sent)).max().unwrap_or(Time::ZERO)
    }

    /// What a majority denied, if one did. Somebody else's key says more than a missing one.
    pub(crate) fn denied(&self) -> Option<Denial> {
        let denials = || self.seats.iter().filter_map(|seat| seat.denial);
        if denials().count() < self.majority() {
            return None;
        }
        if denials().any(|denial| denial == Denial::Taken) { Some(Denial::Taken) } else { Some(Denial::Gone) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn one_node_is_its_own_majority() {
        let mut tally = Tally::new(1);
        assert_eq!(tally.confirmed(), Time::ZERO);
        tally.confirm(0, at(5));
        assert_eq!((tally.confirmed(), tally.denied()), (at(5), None));
        tally.deny(0, Denial::Gone);
        assert_eq!(tally.denied(), Some(Denial::Gone));
    }

    #[test]
    fn two_of_three_decide() {
        let mut tally = Tally::new(3);
        tally.confirm(0, at(9));
        assert_eq!(tally.confirmed(), Time::ZERO);
        tally.confirm(1, at(7));
        assert_eq!(tally.confirmed(), at(7));
        tally.deny(0, Denial::Gone);
        assert_eq!(tally.denied(), None);
        tally.deny(2, Denial::Taken);
        assert_eq!(tally.denied(), Some(Denial::Taken));
    }

    #[test]
    fn an_older_confirmation_takes_nothing_back() {
        let mut tally = Tally::new(1);
        tally.confirm(0, at(9));
        tally.deny(0, Denial::Gone);
        tally.confirm(0, at(3));
        assert_eq!((tally.confirmed(), tally.denied()), (at(9), Some(Denial::Gone)));
    }

    #[test]
    fn a_node_that_is_not_there_has_no_vote() {
        let mut tally = Tally::new(1);
        tally.confirm(1, at(9));
        tally.deny(1, Denial::Taken);
        assert_eq!((tally.confirmed(), tally.denied()), (Time::ZERO, None));
    }

    proptest! {
        #[test]
        fn the_deadline_counts_from_the_majority_th_largest(
            nodes in 1_usize..=9,
            answers in prop::collection::vec((0_usize..9, 1_u64..100), 0..40),
        ) {
            let mut tally = Tally::new(nodes);
            let mut sends = vec![0; nodes];
            for (node, sent) in answers {
                tally.confirm(node, at(sent));
                if let Some(newest) = sends.get_mut(node) {
                    *newest = sent.max(*newest);
                }
            }
            sends.sort_unstable_by(|a, b| b.cmp(a));
            prop_assert_eq!(tally.confirmed(), at(sends[nodes / 2]));
        }
    }
}
