//! The health of one link to a server, judged by its answers and its silences: pure.
//! [`node_health`](crate::node_health) judges the server.
//!
//! # Invariants
//!
//! 1. A link is given up once requests have gone unanswered for its patience since its last answer. Overlapping waits
//!    count once.
//! 2. Its patience is no shorter than its handshake was, because each answer may take as long, until a request is
//!    answered within the least patience.
//! 3. A link that is younger than its patience is not doubted, because no silence on it can be noticed yet. Nor is one
//!    whose server has just reported that replicas are missing: that server is late with the requests that wait for
//!    them, but answers.

use std::time::Duration;

use crate::time::Time;

/// A `WAIT` that finds too few replicas is followed by a rest as long, and then by a `WAIT` that is at most four times
/// as long.
const TIMES_TO_THE_NEXT: u32 = 5;

/// One link's health.
#[derive(Debug)]
pub struct LinkHealth {
    made: Time,
    patience: Duration,
    /// The patience once a request was answered within it.
    least: Duration,
    /// The time without an answer since the last one, and the moment up to which it was counted.
    waited: Duration,
    counted: Time,
    /// Until when the server's report on its replicas shows that it answers.
    alive_until: Time,
}

impl LinkHealth {
    /// The health of a link whose handshake lasted from `began` to `made`. Its patience is at least `least`.
    pub fn new(began: Time, made: Time, least: Duration) -> Self {
        let patience = made.since(began).max(least);
        Self { made, patience, least, waited: Duration::ZERO, counted: Time::ZERO, alive_until: Time::ZERO }
    }

    /// How long an answer may take.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Notes that a request was answered.
    pub fn answered(&mut self) {
        self.waited = Duration::ZERO;
    }

    /// Notes that a request was answered after it `took` this long. Returns whether the patience is the least one now.
    pub fn answered_in(&mut self, took: Duration) -> bool {
        self.answered();
        if took <= self.least {
            self.patience = self.least;
        }
        self.patience == self.least
    }

    /// Notes that a request timed out after `waited`. Returns whether the link is to be given up.
    pub fn timed_out(&mut self, waited: Duration, now: Time) -> bool {
        self.waited = self.waited.saturating_add(waited.min(now.since(self.counted)));
        self.counted = self.counted.max(now);
        self.waited >= self.patience
    }

    /// Notes that its server reports missing replicas, after a `WAIT` of `waited`.
    pub fn replicas_missing(&mut self, waited: Duration, now: Time) {
        self.alive_until = now + waited * TIMES_TO_THE_NEXT + self.patience;
    }

    /// Whether the link is not doubted yet (invariant 3).
    pub fn is_beyond_doubt(&self, now: Time) -> bool {
        now.since(self.made) < self.patience || now < self.alive_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + ms(millis)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A link that was made at 1000 ms, with a patience of 100 ms.
    fn link() -> LinkHealth {
        LinkHealth::new(at(990), at(1_000), ms(100))
    }

    #[test]
    fn it_is_as_patient_as_its_handshake_was_slow() {
        assert_eq!(link().patience(), ms(100));
        let mut slow = LinkHealth::new(at(500), at(1_000), ms(100));
        assert_eq!(slow.patience(), ms(500));
        assert!(!slow.timed_out(ms(499), at(2_000)) && slow.timed_out(ms(1), at(2_001)));
    }

    #[test]
    fn a_quick_answer_ends_the_patience_of_a_slow_handshake() {
        let mut slow = LinkHealth::new(at(500), at(1_000), ms(100));
        slow.answered();
        assert!(!slow.answered_in(ms(101)) && slow.patience() == ms(500), "the link is slow");
        assert!(slow.answered_in(ms(100)) && slow.patience() == ms(100));
        assert!(slow.timed_out(ms(100), at(2_000)));
    }

    #[test]
    fn it_is_given_up_after_its_patience_without_an_answer() {
        let mut link = link();
        assert!(!link.timed_out(ms(60), at(1_200)));
        assert!(!link.timed_out(ms(39), at(1_300)));
        assert!(link.timed_out(ms(1), at(1_400)));
        assert!(link.timed_out(ms(0), at(1_400)), "it stays so until an answer");
    }

    #[test]
    fn an_answer_forgives_what_was_waited_before_it() {
        let mut link = link();
        assert!(!link.timed_out(ms(99), at(1_200)));
        link.answered();
        assert!(!link.timed_out(ms(99), at(1_300)));
        assert!(link.timed_out(ms(99), at(1_400)));
    }

    #[test]
    fn waits_that_overlap_count_once() {
        let mut link = link();
        assert!(!link.timed_out(ms(60), at(1_200)));
        for _ in 0..10 {
            assert!(!link.timed_out(ms(60), at(1_220)), "20 ms are new");
        }
        assert!(!link.timed_out(ms(60), at(1_210)), "told late");
        assert!(!link.timed_out(ms(60), at(1_239)));
        assert!(link.timed_out(ms(60), at(1_240)));
    }

    #[test]
    fn a_young_link_is_beyond_doubt() {
        let link = link();
        assert!(link.is_beyond_doubt(at(1_000)) && link.is_beyond_doubt(at(1_099)));
        assert!(!link.is_beyond_doubt(at(1_100)));
    }

    #[test]
    fn a_server_that_says_that_replicas_are_missing_is_beyond_doubt_until_it_would_say_so_again() {
        let mut link = link();
        link.replicas_missing(ms(50), at(2_000));
        assert!(link.is_beyond_doubt(at(2_349)));
        assert!(!link.is_beyond_doubt(at(2_350)));
        assert!(link.timed_out(ms(100), at(2_100)), "its own silence still counts");
    }
}
