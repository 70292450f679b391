//! The result of one check of a lock.

use std::time::Duration;

use crate::{failure::Failure, holder::Holder, tally::WakeCondition};

/// The result of the last check.
#[derive(Debug, Clone)]
pub enum Check {
    /// There was no check yet.
    NotYet,
    /// The lock is held.
    Held {
        /// The holder.
        holder: Holder,
        /// Whether we shall be notified when that changes.
        tracked: bool,
        /// The nodes on which it has to change, and how many of them.
        needs: WakeCondition,
    },
    /// Several callers tried at once, and none got a majority of the nodes.
    Split {
        /// The holder on the most nodes.
        holder: Holder,
        /// How long the nodes that answered took.
        answered: Duration,
        /// How long the whole round took: some nodes may not have answered.
        took: Duration,
    },
    /// The check failed, so nothing is known.
    Failed(Failure),
}

impl Check {
    /// The changes that make another check worthwhile, if this check shows them. After a split vote no change does,
    /// because each rival pauses, so that one comes first.
    pub fn needs(&self) -> Option<WakeCondition> {
        match self {
            Self::Held { needs, .. } => Some(*needs),
            Self::Split { .. } => Some(WakeCondition::NEVER),
            Self::NotYet | Self::Failed(_) => None,
        }
    }

    /// Whether both found the same holder, which may have renewed, or both a split vote.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held { holder: one, .. }, Self::Held { holder: other, .. }) => one.is_same(other),
            (Self::Split { .. }, Self::Split { .. }) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;

    fn held_by(token: &Token) -> Check {
        let holder = Holder::of(Some(token.clone()), None, None);
        Check::Held { holder, tracked: false, needs: WakeCondition::ANY }
    }

    fn split() -> Check {
        Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO }
    }

    fn failed() -> Check {
        Check::Failed(Failure::unknown("no answer"))
    }

    #[test]
    fn a_holder_says_what_has_to_change_and_a_split_vote_waits_for_no_change() {
        let (any, never) = (WakeCondition::ANY, WakeCondition::NEVER);
        assert_ne!(any, never);
        assert_eq!(held_by(&Token::random("a")).needs(), Some(any));
        assert_eq!(split().needs(), Some(never));
        assert_eq!((Check::NotYet.needs(), failed().needs()), (None, None));
    }

    #[test]
    fn two_checks_are_alike_if_they_found_the_same_holder_or_both_a_split() {
        let (one, other) = (Token::random("a"), Token::random("a"));
        assert!(held_by(&one).is_like(&held_by(&one)));
        assert!(!held_by(&one).is_like(&held_by(&other)));
        assert!(split().is_like(&split()));
        assert!(!split().is_like(&held_by(&one)));
        assert!(!failed().is_like(&failed()), "nobody knows what is there");
    }
}
