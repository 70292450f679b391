//! The outcome of a release on all nodes together (rule 8): pure.

use crate::{
    failure::Failure,
    loss::{Loss, LossReason},
    message::{Denial, Owned},
    tally::{PerNode, majority},
    time::Time,
};

/// One node's last word on a release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReleaseAnswer {
    /// Whether the key was ours.
    pub owned: Owned,
    /// Whether no earlier sending went unanswered that may have released it.
    pub only_sending: bool,
}

/// The verdict of one node: it released the lease, or why it had nothing of ours.
pub type NodeVerdict = Result<(), Loss>;

impl ReleaseAnswer {
    fn verdict(&self, now: Time, valid_until: Time, if_gone: LossReason) -> NodeVerdict {
        match &self.owned {
            Ok(()) => Ok(()),
            // The lease had ended by then: its key had expired, whoever has it now.
            Err(_) if now >= valid_until => Err(LossReason::Expired.into()),
            // Our own release never leaves this answer.
            Err(denial @ Denial::Forced(_)) => Err(denial.into()),
            // Our own replay: the sending before it released the lease while that was valid.
            Err(_) if !self.only_sending => Ok(()),
            Err(Denial::Gone) => Err(if_gone.into()),
            Err(denial) => Err(denial.into()),
        }
    }
}

/// How a release ended.
#[derive(Debug)]
pub enum ReleaseEnd {
    /// A majority released it.
    Released,
    /// A majority did not have it, for this reason.
    Lost(Loss),
    /// No majority either way: the answers of all nodes.
    Unknown(Vec<Result<NodeVerdict, Failure>>),
}

/// A release under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReleaseTally {
    valid_until: Time,
    if_gone: LossReason,
    said: PerNode<Option<Result<NodeVerdict, Failure>>>,
    released: usize,
    denied: Vec<Loss>,
}

impl ReleaseTally {
    /// The tally for a lease that was valid until this moment. `if_gone` is the reason of its loss if its key has gone.
    pub fn new(nodes: usize, valid_until: Time, if_gone: LossReason) -> Self {
        Self { valid_until, if_gone, said: PerNode::new(nodes, None), released: 0, denied: Vec::new() }
    }

    /// Takes a node's last word. Returns the end, once it is certain.
    pub fn answer(&mut self, now: Time, node: usize, said: Result<ReleaseAnswer, Failure>) -> Option<ReleaseEnd> {
        let said = said.map(|answer| answer.verdict(now, self.valid_until, self.if_gone));
        match &said {
            Ok(Ok(())) => self.released += 1,
            Ok(Err(loss)) => self.denied.push(loss.clone()),
            Err(_) => {}
        }
        if let Some(place) = self.said.get_mut(node) {
            *place = Some(said);
        }
        let majority = majority(self.said.len());
        if self.released >= majority {
            return Some(ReleaseEnd::Released);
        }
        if self.denied.len() >= majority {
            // A forced release says most, another holder's key more than a missing one, and each more than an expiry.
            let any = |reason: LossReason| self.denied.iter().find(|loss| loss.reason == reason).cloned();
            let said = [LossReason::Forced, LossReason::Taken, self.if_gone].into_iter().find_map(any);
            return Some(ReleaseEnd::Lost(said.unwrap_or_else(|| LossReason::Expired.into())));
        }
        let said: Option<Vec<_>> = self.said.iter().cloned().collect();
        said.map(ReleaseEnd::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::forced;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[allow(clippy::unnecessary_wraps, reason = "it stands beside answers that are none")]
    fn said(owned: Owned, only_sending: bool) -> Result<ReleaseAnswer, Failure> {
        Ok(ReleaseAnswer { owned, only_sending })
    }

    const DONE: Owned = Ok(());
    const GONE: Owned = Err(Denial::Gone);
    const TAKEN: Owned = Err(Denial::Taken);

    fn one(now: Time, answer: Result<ReleaseAnswer, Failure>) -> Option<ReleaseEnd> {
        ReleaseTally::new(1, at(100), LossReason::Deleted).answer(now, 0, answer)
    }

    #[test]
    fn a_key_that_a_failover_has_lost_was_not_deleted() {
        let end = ReleaseTally::new(1, at(100), LossReason::FailedOver).answer(at(1), 0, said(GONE, true));
        assert!(matches!(end, Some(ReleaseEnd::Lost(Loss { reason: LossReason::FailedOver, .. }))));
    }

    #[test]
    fn one_node_says_what_happened() {
        assert!(matches!(one(at(1), said(DONE, true)), Some(ReleaseEnd::Released)));
        assert!(matches!(
            one(at(1), said(GONE, true)),
            Some(ReleaseEnd::Lost(Loss { reason: LossReason::Deleted, .. }))
        ));
        assert!(matches!(
            one(at(1), said(TAKEN, true)),
            Some(ReleaseEnd::Lost(Loss { reason: LossReason::Taken, .. }))
        ));
        assert!(matches!(one(at(1), Err(Failure::unknown("no answer"))), Some(ReleaseEnd::Unknown(_))));
    }

    #[test]
    fn a_replay_did_it_itself_unless_the_lease_was_over_by_then() {
        assert!(matches!(one(at(99), said(GONE, false)), Some(ReleaseEnd::Released)));
        assert!(matches!(
            one(at(100), said(TAKEN, false)),
            Some(ReleaseEnd::Lost(Loss { reason: LossReason::Expired, .. }))
        ));
    }

    #[test]
    fn a_replay_that_finds_a_forced_release_did_not_do_it() {
        let forced = || said(Err(Denial::Forced(Arc::new(forced::by("ops", None)))), false);
        let told = |end| matches!(end, Some(ReleaseEnd::Lost(Loss { reason, forced: Some(_) })) if reason == LossReason::Forced);
        assert!(told(one(at(99), forced())) && !told(one(at(100), forced())));
    }

    #[test]
    fn a_denial_says_nothing_of_a_lease_that_was_over_by_then() {
        for denial in [GONE, TAKEN] {
            assert!(matches!(
                one(at(100), said(denial, true)),
                Some(ReleaseEnd::Lost(Loss { reason: LossReason::Expired, .. }))
            ));
        }
    }

    #[test]
    fn a_majority_decides_and_the_rest_is_of_no_interest() {
        let mut tally = ReleaseTally::new(3, at(100), LossReason::Deleted);
        assert!(tally.answer(at(1), 2, said(DONE, true)).is_none());
        assert!(tally.answer(at(1), 0, said(GONE, true)).is_none());
        assert!(matches!(tally.answer(at(1), 1, said(DONE, true)), Some(ReleaseEnd::Released)));

        let mut tally = ReleaseTally::new(3, at(100), LossReason::Deleted);
        assert!(tally.answer(at(1), 2, said(GONE, true)).is_none());
        assert!(matches!(
            tally.answer(at(1), 1, said(TAKEN, true)),
            Some(ReleaseEnd::Lost(Loss { reason: LossReason::Taken, .. }))
        ));
    }

    #[test]
    fn without_a_majority_either_way_it_is_unknown() {
        let mut tally = ReleaseTally::new(3, at(100), LossReason::Deleted);
        assert!(tally.answer(at(1), 2, said(DONE, true)).is_none());
        assert!(tally.answer(at(1), 1, Err(Failure::unknown("no answer"))).is_none());
        let end = tally.answer(at(1), 0, said(GONE, true));
        assert!(matches!(&end, Some(ReleaseEnd::Unknown(said)) if said.len() == 3), "{end:?}");
    }
}
