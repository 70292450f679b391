//! One attempt to acquire, as a pure machine: one token, one first send to each node, one verdict. One node is a quorum
//! of one.
//!
//! # Invariants
//!
//! 1. Validity counts from before the first send, never from a reply (rule 1). A majority that completes after the
//!    validity has ended is not a win.
//! 2. An unknown outcome is not a no: every node that may hold our token is undone unless the attempt was won (rule 6).
//! 3. A win is the only verdict with a fence. A majority then holds our token with a floor that is at least that fence,
//!    and a majority issued nothing larger (rule 10; deployments: how fences grow over a quorum).
//! 4. The verdict is a loss once no majority can grant any more, and it is known whether another holder has one.

use std::time::Duration;

use crate::{
    failure::Failure,
    fence::Fence,
    holder::Holder,
    message::{Acquired, Denial, Owned},
    plurality::Plurality,
    tally::{Nodes, PerNode, Tally, WakeCondition, deadline, majority},
    time::Time,
};

/// The least wait for one of several nodes, however short the TTL is.
const SHORTEST_LIMIT: Duration = Duration::from_millis(20);

/// The longest wait for one of `nodes` nodes. It is less than the TTL, so that the answers of the others are still
/// valid, and long enough for two phases over slow links. A single node gets the whole limit.
pub fn limit(nodes: usize, limit: Duration, ttl: Duration) -> Duration {
    if nodes == 1 { limit } else { limit.min((ttl / 2).max(SHORTEST_LIMIT)) }
}

/// The driver's next step after an answer.
#[derive(Debug)]
#[must_use = "an attempt goes on only if its steps are taken"]
pub enum Step {
    /// Wait for the next answer.
    Wait,
    /// Raise the floor on these nodes, then wait for more answers.
    Raise {
        /// The fence to raise the floor to, at least.
        fence: Fence,
        /// The nodes.
        on: Nodes,
    },
    /// The lease is ours. Later answers are for [`late`].
    Won {
        /// Larger than that of every earlier holder.
        fence: Fence,
        /// The grants and denials of the nodes.
        tally: Tally,
    },
    /// The lease is not ours. Later answers are for [`late`].
    Lost(Verdict),
}

/// Why an attempt was not won.
#[derive(Debug)]
pub enum Verdict {
    /// Another holder has the lock.
    Busy {
        /// The holder on a majority.
        holder: Holder,
        /// The nodes that must become free before the lock can be ours. Nodes that granted it are not among them: our
        /// own undo frees those, which shows nothing.
        needs: WakeCondition,
        /// Whether enough nodes will notify us when their key changes.
        tracked: bool,
    },
    /// No caller has a majority, because several try at once.
    Split {
        /// The holder on the most nodes.
        holder: Holder,
    },
    /// Too many nodes lack the key that was to be adopted, or have another holder's: no majority can have it.
    Gone,
    /// Too few nodes granted the lock for another reason, or a majority did so too late. Contains the nodes' answers,
    /// in order.
    Failed(Vec<Result<Acquired, Failure>>),
}

/// One attempt under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    sent: Time,
    deadline: Time,
    states: PerNode<VoteState>,
    /// The fence that floors are being raised to.
    raising_to: Option<Fence>,
    won: bool,
}

/// The state of one node, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum VoteState {
    /// It has not answered.
    Asked,
    /// It holds our token, and issued this fence.
    Granted(Fence),
    /// It holds our token with this fence, and its floor is being raised.
    Raising(Fence),
    /// It holds our token with this fence, and its floor was raised.
    Raised(Fence),
    Busy {
        holder: Holder,
        tracked: bool,
    },
    Recovering(Duration),
    Gone,
    Failed(Failure),
}

impl VoteState {
    fn issued(&self) -> Option<Fence> {
        match self {
            Self::Granted(fence) | Self::Raising(fence) | Self::Raised(fence) => Some(*fence),
            _ => None,
        }
    }

    fn may_hold(&self) -> bool {
        match self {
            Self::Asked | Self::Granted(_) | Self::Raising(_) | Self::Raised(_) => true,
            Self::Failed(failure) => failure.may_have_happened(),
            Self::Busy { .. } | Self::Recovering(_) | Self::Gone => false,
        }
    }
}

impl Attempt {
    /// `sent` is the time before the first request is handed to the transport.
    pub fn new(sent: Time, ttl: Duration, nodes: usize) -> Self {
        let deadline = deadline(sent, ttl);
        Self { sent, deadline, states: PerNode::new(nodes, VoteState::Asked), raising_to: None, won: false }
    }

    /// Handles the answer of `node` to the acquire, or the failure to get one.
    pub fn answer(&mut self, now: Time, node: usize, answer: Result<Acquired, Failure>) -> Step {
        let Some(state) = self.states.get_mut(node) else { return Step::Wait };
        *state = match answer {
            Ok(Acquired::Granted(fence)) => VoteState::Granted(fence),
            Ok(Acquired::Busy { holder, tracked }) => VoteState::Busy { holder, tracked },
            Ok(Acquired::Recovering(left)) => VoteState::Recovering(left),
            Ok(Acquired::Gone) => VoteState::Gone,
            Err(failure) => VoteState::Failed(failure),
        };
        self.decide(now)
    }

    /// Handles the answer of `node` to the raise of its floor, or the failure to get one.
    pub fn raised(&mut self, now: Time, node: usize, answer: Result<Owned, Failure>) -> Step {
        let Some(state) = self.states.get_mut(node) else { return Step::Wait };
        let Some(issued) = state.issued() else { return Step::Wait };
        *state = match answer {
            Ok(Ok(())) => VoteState::Raised(issued),
            // There is nothing to undo either.
            Ok(Err(Denial::Gone)) => {
                VoteState::Failed(Failure::unavailable("it has lost the key that it had just granted"))
            }
            Ok(Err(Denial::Taken | Denial::Forced(_))) => {
                VoteState::Failed(Failure::unavailable("somebody took the key that it had granted"))
            }
            // The token is there, whatever became of the floor.
            Err(failure) => VoteState::Failed(Failure::unknown(failure.to_string())),
        };
        self.decide(now)
    }

    fn decide(&mut self, now: Time) -> Step {
        let majority = majority(self.states.len());
        if let Some(fence) = self.fence(majority) {
            if now < self.deadline {
                self.won = true;
                return Step::Won { fence, tally: self.tally() };
            }
            return Step::Lost(self.failed());
        }
        let issued: Vec<Fence> = self.states.iter().filter_map(VoteState::issued).collect();
        if issued.len() >= majority {
            return self.raise(&issued);
        }
        let asked = self.states.iter().filter(|state| matches!(state, VoteState::Asked)).count();
        if issued.len() + asked >= majority {
            return Step::Wait;
        }
        let busy = self.states.iter().filter(|state| matches!(state, VoteState::Busy { .. })).count();
        let gone = self.states.iter().filter(|state| matches!(state, VoteState::Gone)).count();
        if gone > 0 && self.states.len() - gone - busy < majority && busy < majority {
            // The nodes still asked may report that another holder has a majority.
            if busy + asked >= majority {
                return Step::Wait;
            }
            // The nodes that have it would be a majority, but other heirs of the same ticket have some of them.
            let is_split = self.states.len() - gone >= majority;
            let split = Verdict::Split { holder: Holder::default() };
            return Step::Lost(if is_split { split } else { Verdict::Gone });
        }
        if issued.len() + busy >= majority {
            if let Some(verdict) = self.held(issued.len(), asked, majority) {
                return Step::Lost(verdict);
            }
        }
        if asked > 0 { Step::Wait } else { Step::Lost(self.failed()) }
    }

    /// The fence of a win (invariant 3): the one that a majority issued alike, or the one that a majority was raised
    /// to. In both cases a majority issued nothing larger, because a raise goes to the largest fence of the majority
    /// that had granted. Once a raise is under way it is the second, because otherwise the floors would show another
    /// fence than the holder's.
    fn fence(&self, majority: usize) -> Option<Fence> {
        let Some(fence) = self.raising_to else {
            let alike = |fence: Fence| self.states.iter().filter(|state| state.issued() == Some(fence)).count();
            return self.states.iter().filter_map(VoteState::issued).find(|&fence| alike(fence) >= majority);
        };
        let is_raised = |state: &&VoteState| match state {
            VoteState::Raised(_) => true,
            VoteState::Granted(issued) => *issued >= fence,
            _ => false,
        };
        (self.states.iter().filter(is_raised).count() >= majority).then_some(fence)
    }

    /// Raises the floors of a majority that issued different fences, to the largest of them. A node that grants later
    /// is raised too, and may stand in for one whose raise fails.
    fn raise(&mut self, issued: &[Fence]) -> Step {
        let Some(fence) = self.raising_to.or_else(|| issued.iter().copied().max()) else { return Step::Wait };
        self.raising_to = Some(fence);
        let mut on = Nodes::NONE;
        for (node, state) in self.states.iter_mut().enumerate() {
            match *state {
                VoteState::Granted(issued) if issued < fence => {
                    *state = VoteState::Raising(issued);
                    on.insert(node);
                }
                _ => {}
            }
        }
        if on.is_empty() { Step::Wait } else { Step::Raise { fence, on } }
    }

    /// The grants and denials of the nodes, as the first round of the lease's life.
    fn tally(&self) -> Tally {
        let mut tally = Tally::new(self.states.len());
        for (node, state) in self.states.iter().enumerate() {
            match state {
                VoteState::Granted(_) | VoteState::Raising(_) | VoteState::Raised(_) => tally.confirm(node, self.sent),
                VoteState::Busy { .. } => tally.deny(node, self.sent, Denial::Taken),
                VoteState::Recovering(_) | VoteState::Gone => tally.deny(node, self.sent, Denial::Gone),
                VoteState::Asked | VoteState::Failed(_) if state.may_hold() => tally.suspect(node),
                VoteState::Asked | VoteState::Failed(_) => {}
            }
        }
        tally
    }

    /// The verdict when another caller was first, or tried at the same time. `None` while the nodes still asked may
    /// decide which.
    fn held(&self, issued: usize, asked: usize, majority: usize) -> Option<Verdict> {
        let busy = |state: &VoteState| match state {
            VoteState::Busy { holder, tracked } => Some((holder.clone(), *tracked)),
            _ => None,
        };
        let (busy, tracked): (Vec<Holder>, Vec<bool>) = self.states.iter().filter_map(busy).unzip();
        let Some(Plurality { mut holder, nodes }) = Plurality::largest(&busy, majority) else {
            return Some(Verdict::Split { holder: Holder::default() });
        };
        if nodes < majority {
            return (nodes + asked < majority).then_some(Verdict::Split { holder });
        }
        // This many keys must go before a majority is free. Unless renewed, they go in the order of expiry.
        let count = majority.saturating_sub(issued).max(1);
        let needs = WakeCondition { count, of: self.states.nodes(|state| state.issued().is_none()) };
        let mut expiries: Vec<Option<Duration>> = busy.iter().map(|holder| holder.remaining).collect();
        expiries.sort_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
        holder.remaining = expiries.get(count - 1).copied().flatten();
        let tracked = tracked.iter().filter(|tracked| **tracked).count() >= count;
        Some(Verdict::Busy { holder, needs, tracked })
    }

    fn failed(&self) -> Verdict {
        let said = |state: &VoteState| match state {
            VoteState::Granted(fence) | VoteState::Raising(fence) | VoteState::Raised(fence) => {
                Ok(Acquired::Granted(*fence))
            }
            VoteState::Busy { holder, tracked } => Ok(Acquired::Busy { holder: holder.clone(), tracked: *tracked }),
            VoteState::Recovering(left) => Ok(Acquired::Recovering(*left)),
            VoteState::Gone => Ok(Acquired::Gone),
            VoteState::Failed(failure) => Err(failure.clone()),
            VoteState::Asked => Err(Failure::unknown("it has not answered yet")),
        };
        Verdict::Failed(self.states.iter().map(said).collect())
    }

    /// The nodes that may hold the unused token, and have answered or never will. The others are for [`late`].
    pub fn must_undo(&self) -> Nodes {
        self.states.nodes(|state| !self.won && !matches!(state, VoteState::Asked) && state.may_hold())
    }
}

/// Whether a node may hold an unused token, if its answer came after the attempt was given up or lost.
pub fn late(answer: &Result<Acquired, Failure>) -> bool {
    match answer {
        Ok(Acquired::Granted(_)) => true,
        Ok(Acquired::Busy { .. } | Acquired::Recovering(_) | Acquired::Gone) => false,
        Err(failure) => failure.may_have_happened(),
    }
}

#[cfg(test)]
mod tests;
