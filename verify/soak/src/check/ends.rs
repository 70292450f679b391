//! Everything ends (f): calls in their time, and keys after them.

use super::{Judge, Violation, span};
use crate::{
    history::Whom,
    record::{MILLI, Nanos},
};

/// How late a call may be on a machine that does not lag.
const SLACK: Nanos = 500 * MILLI;
/// How long after the last knock a fair lock may know of waiters, such as one that was killed at its turn, or one that
/// went over to another server.
const MARKS: Nanos = 30_000 * MILLI;

impl Judge<'_> {
    pub fn everything_ends(&self, found: &mut Vec<Violation>) {
        let violation = |at, what| Violation { check: 'f', name: self.name, at, leases: Vec::new(), what };
        let stopped = |process, from, to| {
            let whom = Whom::Process(process);
            let marks = self.history.marks.iter().filter(move |mark| mark.whom == whom);
            let during = marks.filter(|mark| mark.from <= to && from <= mark.to);
            during.map(|mark| mark.to - mark.from).sum::<Nanos>()
        };
        for call in self.history.calls.iter().filter(|call| call.name == self.name) {
            let allowed = call.within + stopped(call.process, call.from, call.to) + self.history.lag + SLACK;
            if call.to - call.from > allowed {
                let (took, within) = (span(call.from, call.to), span(0, call.within));
                let what = format!("the {} of {} took {took} of {within}", call.call, call.process);
                found.push(violation(call.to, what));
            }
        }
        for remnant in self.history.remnants.iter().filter(|remnant| remnant.name == self.name) {
            let may_last = match remnant.key.rsplit_once(":lh:").or(remnant.key.rsplit_once(":lht:")) {
                Some((_, "fence")) => Nanos::MAX,
                Some((_, "wait")) => MARKS,
                // No waiter came back to leave the queue.
                Some((_, "queue")) if remnant.is_left => MARKS,
                _ => 0,
            };
            if remnant.lasts.is_none_or(|lasts| lasts > may_last) {
                let lasts = remnant.lasts.map_or("ever".into(), |lasts| span(0, lasts));
                let what = format!("{} is left on server {} for {lasts}", remnant.key, remnant.server);
                found.push(violation(remnant.at, what));
            }
        }
    }
}
