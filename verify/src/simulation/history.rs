//! The events of a run, on the one clock that is right, and whether they were allowed.

use leasehold_protocol::fence::Fence;

use super::chance::Real;
/// A rule that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    /// Two clients believed in the same lock at the same moment.
    TwoHolders { at: Real },
    /// A later holder had a fence that was not larger.
    FenceFell { at: Real },
    /// A look is certain of a fence that is not the lease's.
    AnotherFence { at: Real },
    /// A client won before the key of the previous lease could end (rule 14).
    TooSoon { at: Real },
    /// A key stays on a node though it will not be used, and no client has asked the node to remove it since.
    Abandoned { at: Real },
    /// A key was left when no request had been sent for longer than a TTL.
    Immortal { at: Real },
}

/// How much happened, so that a test can tell that it tested something.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) acquired: usize,
    /// Attempts that needed the second phase.
    pub(super) raised: usize,
    /// Attempts that left something to be undone.
    pub(super) undone: usize,
    pub(super) renewed: usize,
    pub(super) repaired: usize,
    pub(super) lost: usize,
    /// Votes and repairs that a node refused because it was started lately.
    pub(super) recovering: usize,
    /// Releases that a majority confirmed.
    pub(super) released: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.acquired += other.acquired;
        self.raised += other.raised;
        self.undone += other.undone;
        self.renewed += other.renewed;
        self.repaired += other.repaired;
        self.lost += other.lost;
        self.recovering += other.recovering;
        self.released += other.released;
    }
}

/// One span of real time, without a gap, for which a client believed in its lease: up to but not including the end.
#[derive(Debug, Clone, Copy)]
struct Belief {
    lease: usize,
    from: Real,
    until: Real,
}

/// A lease that was returned to its client.
#[derive(Debug, Clone, Copy)]
struct Won {
    at: Real,
    fence: Fence,
    /// Before this, no other client wins in any case.
    until: Real,
    /// For this long after its belief has ended, no other client wins, unless the lease was let go of.
    delay: Real,
    is_let_go: bool,
}

#[derive(Debug, Default)]
pub(super) struct History {
    leases: Vec<Won>,
    beliefs: Vec<Belief>,
    seen: Vec<Violation>,
    pub(super) counts: Counts,
}

impl History {
    /// Notes that a client has got a lease, and returns the lease's number.
    pub(super) fn acquired(&mut self, at: Real, fence: Fence) -> usize {
        self.counts.acquired += 1;
        self.leases.push(Won { at, fence, until: 0, delay: 0, is_let_go: false });
        self.leases.len() - 1
    }

    /// Notes that a lease's key outlives it: until this moment, and by this delay.
    pub(super) fn outlives(&mut self, lease: usize, until: Real, delay: Real) {
        if let Some(lease) = self.leases.get_mut(lease) {
            (lease.until, lease.delay) = (until, delay);
        }
    }

    /// Notes that the holder has released the lease, or let go of it in time.
    pub(super) fn let_go(&mut self, lease: usize) {
        if let Some(lease) = self.leases.get_mut(lease) {
            lease.is_let_go = true;
        }
    }

    /// Notes that a client did not doubt its lease between these moments.
    pub(super) fn believed(&mut self, lease: usize, from: Real, until: Real) {
        if from >= until {
            return;
        }
        match self.beliefs.iter_mut().rev().find(|belief| belief.lease == lease) {
            Some(belief) if belief.until == from => belief.until = until,
            _ => self.beliefs.push(Belief { lease, from, until }),
        }
    }

    pub(super) fn saw(&mut self, violation: Violation) {
        self.seen.push(violation);
    }

    /// All violations, in the order of time. Beliefs are whole spans, so nothing is missed between two events.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut violations = self.seen.clone();
        // The fence of a lease may have been used even if no client believed in that lease for any time.
        for pair in self.leases.windows(2) {
            if let [earlier, later] = pair {
                if later.fence <= earlier.fence {
                    violations.push(Violation::FenceFell { at: later.at });
                }
            }
        }
        violations.extend(self.too_soon());
        let mut beliefs = self.beliefs.clone();
        beliefs.sort_by_key(|belief| belief.from);
        let mut latest: Option<Belief> = None;
        for belief in beliefs {
            match latest {
                Some(other) if belief.from < other.until && belief.lease != other.lease => {
                    violations.push(Violation::TwoHolders { at: belief.from });
                }
                _ => {}
            }
            if latest.is_none_or(|other| belief.until > other.until) {
                latest = Some(belief);
            }
        }
        violations.sort_by_key(Violation::at);
        violations
    }

    fn too_soon(&self) -> impl Iterator<Item = Violation> {
        let mut free_from = vec![0; self.leases.len()];
        for belief in &self.beliefs {
            let Some((lease, free)) = self.leases.get(belief.lease).zip(free_from.get_mut(belief.lease)) else {
                continue;
            };
            if lease.delay > 0 && !lease.is_let_go {
                *free = belief.until + lease.delay;
            }
        }
        let mut all = 0;
        self.leases.iter().zip(free_from).filter_map(move |(lease, free)| {
            let is_too_soon = lease.at < all;
            all = all.max(lease.until).max(free);
            is_too_soon.then_some(Violation::TooSoon { at: lease.at })
        })
    }
}

impl Violation {
    pub(super) fn at(&self) -> Real {
        match *self {
            Self::TwoHolders { at }
            | Self::FenceFell { at }
            | Self::AnotherFence { at }
            | Self::TooSoon { at }
            | Self::Abandoned { at }
            | Self::Immortal { at } => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(number: u64) -> Fence {
        Fence::try_from(number).unwrap()
    }

    #[test]
    fn a_win_before_the_end_of_an_interval_or_a_delay_is_too_soon() {
        let won = |at, until, delay, lets_go| {
            let mut history = History::default();
            let lease = history.acquired(10, fence(1));
            history.outlives(lease, until, delay);
            history.believed(lease, 10, 20);
            if lets_go {
                history.let_go(lease);
            }
            history.acquired(at, fence(2));
            history.violations()
        };
        for lets_go in [false, true] {
            assert_eq!(won(39, 40, 0, lets_go), [Violation::TooSoon { at: 39 }]);
            assert_eq!(won(40, 40, 0, lets_go), []);
        }
        assert_eq!(won(24, 0, 5, false), [Violation::TooSoon { at: 24 }]);
        assert_eq!((won(25, 0, 5, false), won(24, 0, 5, true)), (vec![], vec![]));
    }

    #[test]
    fn beliefs_may_touch_but_not_overlap() {
        for (until, violations) in [(20, vec![]), (21, vec![Violation::TwoHolders { at: 20 }])] {
            let mut history = History::default();
            let (one, two) = (history.acquired(10, fence(1)), history.acquired(20, fence(2)));
            history.believed(one, 10, 15);
            history.believed(one, 15, until);
            history.believed(two, 20, 30);
            assert_eq!(history.violations(), violations);
        }
    }

    #[test]
    fn a_short_belief_within_a_long_one_is_seen_and_so_is_what_follows() {
        let mut history = History::default();
        let leases: Vec<_> = (1..=3).map(|n| history.acquired(n, fence(n))).collect();
        history.believed(leases[0], 0, 100);
        history.believed(leases[1], 10, 11);
        history.believed(leases[2], 50, 60);
        assert_eq!(history.violations(), [Violation::TwoHolders { at: 10 }, Violation::TwoHolders { at: 50 }]);
    }

    #[test]
    fn fences_grow_in_the_order_of_acquisition() {
        let mut history = History::default();
        for (at, number) in [(1, 5), (2, 6), (3, 6)] {
            history.acquired(at, fence(number));
        }
        assert_eq!(history.violations(), [Violation::FenceFell { at: 3 }]);
    }
}
