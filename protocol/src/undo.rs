//! Taking a token back from one node: how often the node is asked, on which route, and when that ends (rule 6).
//!
//! An undo is asked for until the node has answered, or until the key there has expired by itself. A request that the
//! node executes after that yields no lease, and its key expires within one life.

use std::time::Duration;

use crate::{
    doubling::Doubling,
    failure::Failure,
    message::{Owned, Route},
    time::Time,
};

/// The pause after the first request that got no answer; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The undo of one token on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Undoing {
    until: Time,
    pauses: Doubling,
    /// The route of the undone request. On the same route, the undo arrives after it.
    first: Route,
    /// The route of the next request.
    route: Route,
    is_first: bool,
    /// Whether an earlier request may have undone it.
    may_be_replay: bool,
}

/// The next step after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Ask again after this pause, or once the node answers any request.
    After(Duration),
    /// The undo has ended.
    Over(UndoOutcome),
}

/// How an undo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UndoOutcome {
    /// The node has answered.
    Undone {
        /// Whether anything may have changed.
        has_changed: bool,
    },
    /// The node refuses: the key there is left to expire.
    Refused,
    /// The time has passed without an answer of the node.
    Unanswered,
}

impl UndoOutcome {
    /// Whether anything may have changed on the node.
    pub fn has_changed(self) -> bool {
        !matches!(self, Self::Undone { has_changed: false })
    }
}

impl Undoing {
    /// The undo of a key that may live for `at_most`, and whose request was sent on `route`. `was_asked` says whether
    /// it was asked for before.
    pub fn new(now: Time, at_most: Duration, route: Route, was_asked: bool) -> Self {
        let (until, pauses) = (now + at_most, Doubling::from(FIRST_PAUSE));
        Self { until, pauses, first: route, route, is_first: true, may_be_replay: was_asked }
    }

    /// When the undo gives up.
    pub fn until(&self) -> Time {
        self.until
    }

    /// Whether the next request is the first.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// The next request: its route, and how long its answer is waited for.
    pub fn ask(&mut self, now: Time, command_timeout: Duration) -> (Route, Duration) {
        let route = self.route;
        // The first route may have died with its runtime, so the keeper's takes turns with it. A tracked request is not
        // removed from the queue when it times out, so one undo behind it is enough.
        let is_keepers = route == Route::Keeper && !self.is_first;
        self.route = if is_keepers && self.first != Route::Tracked { self.first } else { Route::Keeper };
        self.is_first = false;
        (route, command_timeout.min(self.until.since(now).max(FIRST_PAUSE)))
    }

    /// Takes the node's answer to a request, or why there is none.
    pub fn answered(&mut self, now: Time, answer: &Result<Owned, Failure>) -> Next {
        match answer {
            Ok(found) => Next::Over(UndoOutcome::Undone { has_changed: found.is_ok() || self.may_be_replay }),
            Err(failure) if failure.is_refusal() => Next::Over(UndoOutcome::Refused),
            Err(_) if now >= self.until => Next::Over(UndoOutcome::Unanswered),
            Err(failure) => {
                self.may_be_replay |= failure.may_have_happened();
                Next::After(self.pauses.next(LONGEST_PAUSE).min(self.until.since(now)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Denial;

    const TIMEOUT: Duration = Duration::from_millis(200);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn undoing(route: Route) -> Undoing {
        Undoing::new(at(0), Duration::from_secs(1), route, false)
    }

    fn unsent() -> Result<Owned, Failure> {
        Err(Failure::unsent("no connection"))
    }

    fn has_changed(undoing: &mut Undoing, answer: Owned) -> bool {
        let Next::Over(UndoOutcome::Undone { has_changed }) = undoing.answered(at(1), &Ok(answer)) else { panic!() };
        has_changed
    }

    #[test]
    fn the_keepers_route_takes_turns_with_the_first() {
        for (first, expected) in [
            (Route::Home, [Route::Home, Route::Keeper, Route::Home, Route::Keeper]),
            (Route::Keeper, [Route::Keeper; 4]),
            (Route::Tracked, [Route::Tracked, Route::Keeper, Route::Keeper, Route::Keeper]),
        ] {
            let mut undoing = undoing(first);
            assert!(undoing.is_first());
            assert_eq!([(); 4].map(|()| undoing.ask(at(0), TIMEOUT).0), expected);
            assert!(!undoing.is_first());
        }
    }

    #[test]
    fn a_request_is_waited_for_a_command_timeout_and_hardly_beyond_the_end() {
        let mut undoing = undoing(Route::Home);
        assert_eq!(undoing.until(), at(1_000));
        let waits = [0, 800, 900, 985, 2_000].map(|now| undoing.ask(at(now), TIMEOUT).1.as_millis());
        assert_eq!(waits, [200, 200, 100, 20, 20]);
    }

    #[test]
    fn pauses_double_and_end_with_the_time() {
        let mut undoing = undoing(Route::Home);
        let pauses = [0, 0, 0, 950].map(|now| undoing.answered(at(now), &unsent()));
        assert_eq!(pauses, [20, 40, 80, 50].map(|millis| Next::After(Duration::from_millis(millis))));
        assert_eq!(undoing.answered(at(1_000), &unsent()), Next::Over(UndoOutcome::Unanswered));
        let refused = Err(Failure::refused("NOPERM"));
        assert_eq!(undoing.answered(at(0), &refused), Next::Over(UndoOutcome::Refused));
    }

    #[test]
    fn only_an_answer_says_that_nothing_has_changed() {
        let undone = |has_changed| UndoOutcome::Undone { has_changed };
        let outcomes = [undone(true), undone(false), UndoOutcome::Refused, UndoOutcome::Unanswered];
        assert_eq!(outcomes.map(UndoOutcome::has_changed), [true, false, true, true]);
    }

    #[test]
    fn what_was_not_there_has_changed_only_if_a_request_before_may_have_done_it() {
        assert!(has_changed(&mut undoing(Route::Home), Ok(())));
        let gone = || Err(Denial::Gone);
        assert!(!has_changed(&mut undoing(Route::Home), gone()));
        let mut asked_before = Undoing::new(at(0), TIMEOUT, Route::Home, true);
        assert!(has_changed(&mut asked_before, gone()));
        let mut retried = undoing(Route::Home);
        let _again = retried.answered(at(0), &unsent());
        assert!(!has_changed(&mut retried, gone()));
        let _again = retried.answered(at(0), &Err(Failure::unknown("no answer")));
        assert!(has_changed(&mut retried, gone()));
    }
}
