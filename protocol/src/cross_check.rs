//! When another server of a cluster is asked whether a primary still is one (rule 11).
//!
//! # Invariants
//!
//! 1. An answer that counts is followed by a question within [`AFTER`], and at most one question is asked in that time.
//! 2. While a lock there is held or awaited, each question is followed by another within [`IDLE`]. Otherwise it is not.

use std::time::Duration;

use crate::time::Time;

/// How long at most a primary is believed after it was replaced, once the program can learn of that.
pub const AFTER: Duration = Duration::from_millis(900);

/// The time between questions about a primary that gets no requests itself.
pub const IDLE: Duration = Duration::from_secs(5);

/// The questions about one primary.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CrossCheck {
    asked: Time,
}

impl CrossCheck {
    /// When the next question is due. `counted` is the time of the last answer that counts.
    pub fn due(&self, counted: Time, is_needed: bool) -> Time {
        if counted > self.asked {
            return (self.asked + AFTER).max(counted);
        }
        if is_needed { self.asked + IDLE } else { Time::NEVER }
    }

    /// Notes that the question is asked now.
    pub fn ask(&mut self, now: Time) {
        self.asked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn an_answer_is_followed_by_a_question_and_many_by_one() {
        let mut check = CrossCheck::default();
        check.ask(at(10_000));
        assert_eq!(check.due(at(10_000), false), Time::NEVER);
        assert_eq!(check.due(at(10_001), false), at(10_900));
        assert_eq!(check.due(at(10_899), false), at(10_900));
        assert_eq!(check.due(at(20_000), false), at(20_000));
        check.ask(at(20_000));
        assert_eq!(check.due(at(20_000), false), Time::NEVER);
    }

    #[test]
    fn where_something_is_held_there_is_a_question_now_and_then() {
        let mut check = CrossCheck::default();
        check.ask(at(10_000));
        assert_eq!(check.due(at(9_000), true), at(15_000));
        assert_eq!(check.due(at(10_500), true), at(10_900));
    }
}
