//! An acquire while its slot is being moved, in steps that need one key each. A server answers `TRYAGAIN` to a step of
//! two keys then, because one of them may have moved already.
//!
//! First the free lock is taken, without a fence. Then the fence is issued, on the server that has the floor. Then the
//! lock gets it, if it is still the token's.
//!
//! # Invariants
//!
//! 1. The lease is what the third step confirms, and counts from before the first (rule 1). The caller undoes any other
//!    outcome.
//! 2. Fences grow: an earlier holder's floor was stored while it held the lock, so before the first step, and is read
//!    by the second. A later holder takes the lock after the third.
//! 3. Each step may be sent twice. Only the second step leaves another trace then: a larger floor.

use crate::{
    failure::Failure,
    fence::{self, Fence},
    holder::Holder,
    message::{Acquired, Claim, Owned},
};

/// A request that needs one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Single {
    /// Take the lock if it is free, without a fence: [`SingleReply::Taken`] or [`SingleReply::Busy`]. A replay replies
    /// the same.
    Take(Claim),
    /// Issue the next fence of the lock: [`SingleReply::Issued`].
    Issue(Claim),
    /// Give the lock its fence and its full life, if it is the token's: [`SingleReply::Owned`].
    Confirm(Claim),
    /// Delete the lock if it is the token's, even if there are waiters: [`SingleReply::Owned`].
    Release(Claim),
    /// Make the lock's key outlive its sharer, if it is the key of the claim's phase: [`SingleReply::Owned`].
    ExtendPhase(Claim),
    /// Extend a share that has not expired, once its phase is confirmed: [`SingleReply::Owned`].
    ExtendShare(Claim),
    /// Give up a share, even if there are waiters: [`SingleReply::Owned`].
    Part(Claim),
}

/// The answer to a [`Single`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SingleReply {
    /// The token has the lock.
    Taken,
    /// Another token has the lock.
    Busy(Holder),
    /// The issued fence.
    Issued(Fence),
    /// Whether the lock or the share was the token's.
    Owned(Owned),
}

/// The next step, or the outcome.
#[derive(Debug)]
pub enum Next {
    /// Send this request.
    Ask(Single),
    /// The acquire has ended.
    Over(Result<Acquired, Failure>),
}

/// One acquire.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stepwise {
    /// The step that was asked for last.
    asked: Single,
}

impl Stepwise {
    /// An acquire of this lock.
    pub fn new(claim: Claim) -> Self {
        Self { asked: Single::Take(claim) }
    }

    /// The first step.
    pub fn first(&self) -> Single {
        self.asked.clone()
    }

    /// Takes the answer to the last step.
    pub fn heard(&mut self, answer: Result<SingleReply, Failure>) -> Next {
        let next = match (&self.asked, answer) {
            (Single::Take(_), Err(failure)) => return Next::Over(Err(failure)),
            // The lock may have been taken before.
            (_, Err(failure)) => return Next::Over(Err(failure.halfway())),
            (Single::Take(claim), Ok(SingleReply::Taken)) => Single::Issue(claim.clone()),
            (Single::Take(_), Ok(SingleReply::Busy(holder))) => {
                return Next::Over(Ok(Acquired::Busy { holder, tracked: false }));
            }
            (Single::Issue(claim), Ok(SingleReply::Issued(fence))) if fence > fence::ZERO => {
                Single::Confirm(Claim { fence: Some(fence), ..claim.clone() })
            }
            (Single::Confirm(Claim { fence: Some(fence), .. }), Ok(SingleReply::Owned(Ok(())))) => {
                return Next::Over(Ok(Acquired::Granted(*fence)));
            }
            (Single::Confirm(_), Ok(SingleReply::Owned(Err(_)))) => {
                let text = "the lock was somebody else's again before it had its fence";
                return Next::Over(Err(Failure::unknown(text)));
            }
            _ => return Next::Over(Err(Failure::unknown("this is the answer to another request"))),
        };
        self.asked = next.clone();
        Next::Ask(next)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{key::Key, message::Denial, mode::Mode, token::Token};

    fn begun() -> Stepwise {
        Stepwise::new(Claim {
            key: Key::of_lock("job"),
            token: Token::random("host:7"),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(1),
            life: Duration::from_secs(1),
            fence: None,
            fence_memory: Duration::ZERO,
        })
    }

    fn fence(number: u64) -> Fence {
        number.try_into().unwrap()
    }

    #[test]
    fn the_lock_is_granted_with_the_fence_of_the_second_step_once_the_third_has_confirmed_it() {
        let mut steps = begun();
        assert!(matches!(steps.first(), Single::Take(_)));
        let Next::Ask(Single::Issue(_)) = steps.heard(Ok(SingleReply::Taken)) else { panic!("the fence comes next") };
        let Next::Ask(Single::Confirm(claim)) = steps.heard(Ok(SingleReply::Issued(fence(7)))) else {
            panic!("the lock gets it")
        };
        assert_eq!(claim.fence, Some(fence(7)));
        let Next::Over(Ok(Acquired::Granted(granted))) = steps.heard(Ok(SingleReply::Owned(Ok(())))) else {
            panic!("it is granted")
        };
        assert_eq!(granted, fence(7));
    }

    #[test]
    fn a_lock_that_is_held_stays_so() {
        let Next::Over(Ok(Acquired::Busy { tracked: false, .. })) =
            begun().heard(Ok(SingleReply::Busy(Holder::default())))
        else {
            panic!("it is busy")
        };
    }

    #[test]
    fn a_failure_after_the_first_step_may_leave_a_key() {
        let refused = || Err(Failure::refused("no"));
        let Next::Over(Err(failure)) = begun().heard(refused()) else { panic!("it has failed") };
        assert!(!failure.may_have_happened());
        let mut steps = begun();
        let _issue = steps.heard(Ok(SingleReply::Taken));
        let Next::Over(Err(failure)) = steps.heard(refused()) else { panic!("it has failed") };
        assert!(failure.may_have_happened() && failure.is_refusal());
    }

    #[test]
    fn who_lost_the_lock_between_two_steps_has_no_lease() {
        for denial in [Denial::Gone, Denial::Taken] {
            let mut steps = begun();
            let _issue = steps.heard(Ok(SingleReply::Taken));
            let _confirm = steps.heard(Ok(SingleReply::Issued(fence(7))));
            let Next::Over(Err(failure)) = steps.heard(Ok(SingleReply::Owned(Err(denial)))) else {
                panic!("it is nobody's")
            };
            assert!(failure.may_have_happened());
        }
    }

    #[test]
    fn an_answer_of_another_kind_is_none() {
        for odd in [SingleReply::Issued(fence(7)), SingleReply::Owned(Ok(()))] {
            let Next::Over(Err(failure)) = begun().heard(Ok(odd)) else { panic!("it was not asked") };
            assert!(failure.may_have_happened());
        }
        let mut steps = begun();
        let _issue = steps.heard(Ok(SingleReply::Taken));
        let Next::Over(Err(_)) = steps.heard(Ok(SingleReply::Issued(fence::ZERO))) else { panic!("no fence is zero") };
    }
}
