//! The answers of a quorum's nodes together, for people and for monitoring programs.

use std::{fmt, time::Duration};

use crate::{holder::Holder, tally::majority};

/// Each node's answer to a request that too few nodes of a quorum granted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Votes {
    pub(crate) votes: Vec<Vote>,
}

/// One node and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Vote {
    pub(crate) address: String,
    pub(crate) answer: NodeAnswer,
}

/// A node's part in a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeAnswer {
    /// It granted what was asked. (Since too few others did, that was taken back.)
    Granted,
    /// Another holder has the lock there.
    HeldBy(Holder),
    /// There was nothing of ours to release.
    NotOurs,
    /// It was started recently, or its clock was set back, and it may have forgotten a lease: it gives no vote for this
    /// time. See [`Builder::restart_delay`].
    ///
    /// [`Builder::restart_delay`]: https://docs.rs/leasehold/latest/leasehold/struct.Builder.html#method.restart_delay
    Recovering {
        /// The time until it votes.
        remaining: Duration,
    },
    /// It refused, in these words.
    Refused(String),
    /// It gave no answer, or one that means "not now".
    Unreachable(String),
}

impl Votes {
    /// How many nodes granted the request.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.count(|answer| matches!(answer, NodeAnswer::Granted))
    }

    /// How many nodes have to grant the request.
    #[must_use]
    pub fn needed(&self) -> usize {
        majority(self.votes.len())
    }

    /// Every node, in the order in which they were given to the builder.
    #[must_use]
    pub fn nodes(&self) -> &[Vote] {
        &self.votes
    }

    /// Whether trying again as before is pointless: the nodes that did not refuse cannot make a majority.
    pub(crate) fn is_refusal(&self) -> bool {
        self.count(|answer| matches!(answer, NodeAnswer::Refused(_))) > self.votes.len() - self.needed()
    }

    /// When a majority may grant it at the latest, if no holder renews and no node fails; `None` if that is not known.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let wait = |vote: &Vote| match &vote.answer {
            NodeAnswer::Granted => Some(Duration::ZERO),
            NodeAnswer::Recovering { remaining } => Some(*remaining),
            NodeAnswer::HeldBy(holder) => holder.remaining(),
            NodeAnswer::NotOurs | NodeAnswer::Refused(_) | NodeAnswer::Unreachable(_) => None,
        };
        let mut waits: Vec<_> = self.votes.iter().filter_map(wait).collect();
        waits.sort_unstable();
        waits.get(self.needed() - 1).copied().filter(|wait| !wait.is_zero())
    }

    fn count(&self, which: impl Fn(&NodeAnswer) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(&vote.answer)).count()
    }
}

impl fmt::Display for Votes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} nodes agreed, {} are needed", self.granted(), self.votes.len(), self.needed())?;
        for (at, Vote { address, answer }) in self.votes.iter().enumerate() {
            write!(f, "{} {address} {answer}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl Vote {
    /// The node's address, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The node's answer.
    #[must_use]
    pub fn answer(&self) -> &NodeAnswer {
        &self.answer
    }
}

/// The end of a sentence, after the node's address.
impl fmt::Display for NodeAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("agreed"),
            Self::HeldBy(holder) => write!(f, "says that it is held by {holder}"),
            Self::NotOurs => f.write_str("had nothing of ours"),
            Self::Recovering { remaining } => write!(
                f,
                "is recovering: it was started lately, or its clock was set back; it may have forgotten leases, and votes \
                 in {} s (restart_delay)",
                remaining.as_secs()
            ),
            Self::Refused(text) => write!(f, "refused: {text}"),
            Self::Unreachable(text) => write!(f, "did not: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(answers: &[NodeAnswer]) -> Votes {
        let vote = |(at, answer): (usize, &NodeAnswer)| Vote { address: format!("h:{at}"), answer: answer.clone() };
        Votes { votes: answers.iter().enumerate().map(vote).collect() }
    }

    fn refused() -> NodeAnswer {
        NodeAnswer::Refused("NOPERM".to_owned())
    }

    fn unreachable() -> NodeAnswer {
        NodeAnswer::Unreachable("no answer".to_owned())
    }

    #[test]
    fn the_votes_are_counted_and_each_is_told_by_its_node() {
        let answers = [
            NodeAnswer::Granted,
            NodeAnswer::HeldBy(Holder::default()),
            NodeAnswer::NotOurs,
            NodeAnswer::Recovering { remaining: Duration::from_secs(7) },
            NodeAnswer::Granted,
            refused(),
            unreachable(),
        ];
        let votes = votes(&answers);
        assert_eq!((votes.granted(), votes.needed()), (2, 4));
        assert_eq!(votes.nodes().iter().map(Vote::answer).collect::<Vec<_>>(), answers.iter().collect::<Vec<_>>());
        assert_eq!(votes.nodes().last().map(Vote::address), Some("h:6"));
        let text = votes.to_string();
        assert!(text.starts_with("2 of 7 nodes agreed, 4 are needed: h:0 agreed; h:1 says that"), "{text}");
        for part in ["; h:2 had nothing of ours", "votes in 7 s", "; h:5 refused: NOPERM", "; h:6 did not: no answer"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_majority_votes_again_when_enough_nodes_have_recovered() {
        let recovering = |seconds| NodeAnswer::Recovering { remaining: Duration::from_secs(seconds) };
        let after = |answers: &[NodeAnswer]| votes(answers).retry_after().map(|wait| wait.as_secs());
        assert_eq!(after(&[NodeAnswer::Granted, recovering(9), recovering(4)]), Some(4));
        assert_eq!(after(&[unreachable(), recovering(9), recovering(4)]), Some(9));
        assert_eq!(after(&[unreachable(), refused(), recovering(4)]), None);
        assert_eq!(after(&[NodeAnswer::Granted, NodeAnswer::Granted, refused()]), None, "nothing stands in the way");
    }

    #[test]
    fn it_is_a_refusal_when_the_others_cannot_make_a_majority() {
        let cases = [(0, 3, false), (1, 2, false), (2, 1, true), (2, 2, true), (2, 3, false), (3, 2, true)];
        for (refusals, others, is_refusal) in cases {
            let answers = [vec![refused(); refusals], vec![unreachable(); others]].concat();
            assert_eq!(votes(&answers).is_refusal(), is_refusal, "{refusals} of {}", refusals + others);
        }
    }
}
