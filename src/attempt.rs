//! One attempt to acquire, as a pure machine: one token, one first send, one verdict.
//!
//! # Invariants
//!
//! 1. Validity counts from before the first send, never from a reply (rule 1). A grant that arrives when that is used
//!    up is no win.
//! 2. An unknown outcome is not a no: a node that may hold our token is undone unless the attempt was won (rule 6).

use std::time::Duration;

use crate::{
    clock::Time,
    fence::Fence,
    holder::Holder,
    node::{Acquired, Failure},
    quorum::tally::Tally,
    watchdog::drift,
};

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The lease is ours; the watchdog goes on from the tally.
    Won { fence: Fence, tally: Tally },
    /// Somebody holds it.
    Busy { holder: Holder, watched: bool },
    /// The node could not tell, or said no.
    Failed(Failure),
}

/// One attempt under way.
#[derive(Debug)]
pub(crate) struct Attempt {
    sent: Time,
    deadline: Time,
    must_undo: bool,
}

impl Attempt {
    /// `sent` is the time before the first request is handed to the transport.
    pub(crate) fn new(sent: Time, ttl: Duration) -> Self {
        Self { sent, deadline: sent + ttl.saturating_sub(drift(ttl)), must_undo: false }
    }

    /// The node has answered, or will not.
    pub(crate) fn decide(&mut self, now: Time, answer: Result<Acquired, Failure>) -> Verdict {
        match answer {
            Ok(Acquired::Granted(fence)) if now < self.deadline => {
                let mut tally = Tally::new(1);
                tally.confirm(0, self.sent);
                Verdict::Won { fence, tally }
            }
            Ok(Acquired::Granted(_)) => {
                self.must_undo = true;
                Verdict::Failed(Failure::unavailable("the grant arrived after the lease that it was for had run out"))
            }
            Ok(Acquired::Busy { holder, watched }) => Verdict::Busy { holder, watched },
            Err(failure) => {
                self.must_undo = failure.may_have_happened();
                Verdict::Failed(failure)
            }
        }
    }

    /// Whether the node may hold a token that nobody will use.
    pub(crate) fn must_undo(&self) -> bool {
        self.must_undo
    }

    /// The same, after an answer that came when the attempt had been given up: then a grant is for nobody either.
    pub(crate) fn given_up(answer: &Result<Acquired, Failure>) -> bool {
        match answer {
            Ok(Acquired::Granted(_)) => true,
            Ok(Acquired::Busy { .. }) => false,
            Err(failure) => failure.may_have_happened(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(1);

    fn fence() -> Fence {
        Fence::try_from(7_u64).unwrap()
    }

    fn busy() -> Acquired {
        Acquired::Busy { holder: Holder::default(), watched: false }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_grant_in_time_wins_from_the_send() {
        let mut attempt = Attempt::new(at(100), TTL);
        let verdict = attempt.decide(at(1_087), Ok(Acquired::Granted(fence())));
        assert!(matches!(&verdict, Verdict::Won { fence: f, tally } if *f == fence() && tally.confirmed() == at(100)));
        assert!(!attempt.must_undo());
    }

    #[test]
    fn a_grant_at_the_deadline_is_undone() {
        // 1 s less 1 % and 2 ms.
        let mut attempt = Attempt::new(at(100), TTL);
        assert!(matches!(attempt.decide(at(1_088), Ok(Acquired::Granted(fence()))), Verdict::Failed(_)));
        assert!(attempt.must_undo());
    }

    #[test]
    fn busy_and_a_definite_no_leave_nothing_to_undo() {
        for answer in [Ok(busy()), Err(Failure::refused("NOPERM"))] {
            let mut attempt = Attempt::new(at(0), TTL);
            let _ = attempt.decide(at(1), answer);
            assert!(!attempt.must_undo());
        }
    }

    #[test]
    fn silence_is_undone() {
        let mut attempt = Attempt::new(at(0), TTL);
        let verdict = attempt.decide(at(1), Err(Failure::unknown("no answer")));
        assert!(matches!(verdict, Verdict::Failed(_)) && attempt.must_undo());
    }

    #[test]
    fn when_it_was_given_up_a_grant_is_undone_too() {
        assert!(Attempt::given_up(&Ok(Acquired::Granted(fence()))));
        assert!(Attempt::given_up(&Err(Failure::unknown("no answer"))));
        assert!(!Attempt::given_up(&Ok(busy())));
        assert!(!Attempt::given_up(&Err(Failure::refused("NOPERM"))));
    }
}
