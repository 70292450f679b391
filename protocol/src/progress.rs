//! Whether the work under a lease makes progress: pure.
//!
//! # Invariants
//!
//! 1. Work is slow once half of the span has passed without progress, and has stalled once all of it has.
//! 2. The latest report counts; a report from before it changes nothing.
//! 3. Work has all of its span after a time in which its process stood still. If it stands still again before the next
//!    report, that time does not count, and no more: or standstills in a row would keep the lock of work that hangs. The
//!    lease's deadline does not depend on this.

use std::time::Duration;

use crate::time::Time;

/// A process whose event comes later than this part of the span stood still.
const LATE: u32 = 8;

/// The pace of the work, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pace {
    /// It makes progress.
    #[default]
    Good,
    /// There was no progress for half of the span.
    Slow,
    /// There was none for all of it: the lease is not renewed.
    Stalled,
}

/// The progress of the work under one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Progress {
    span: Duration,
    last: Time,
    /// Whether the process stood still since then.
    stood: bool,
    /// The last event: the process ran at this time.
    ran: Time,
    /// The pace at the last look.
    pace: Pace,
    /// The first and the last renewal that only checked the key of stalled work.
    checks: (Time, Time),
}

impl Progress {
    /// Watches progress from the acquire on.
    pub fn new(span: Duration, acquired: Time) -> Self {
        Self { span, last: acquired, stood: false, ran: acquired, pace: Pace::Good, checks: (Time::NEVER, Time::ZERO) }
    }

    /// The span without progress after which the work has stalled.
    pub fn span(&self) -> Duration {
        self.span
    }

    /// Notes progress that was reported at this time. Returns whether it is the latest.
    pub fn report(&mut self, at: Time) -> bool {
        let is_latest = at > self.last;
        self.last = self.last.max(at);
        self.stood &= !is_latest;
        is_latest
    }

    /// An event comes at `now`, where one was due at `due`: a process that stood still in between begins anew. A late
    /// answer may make a renewal due in the past: only the time since the event before this one counts.
    pub fn stood_still(&mut self, due: Time, now: Time) {
        let late = now.since(due.max(self.ran));
        self.ran = now;
        if late > self.span / LATE {
            self.last = if self.stood { now.min(self.last + late) } else { now };
            self.stood = true;
        }
    }

    /// The pace of the work at this time.
    pub fn pace_at(&self, now: Time) -> Pace {
        match now.since(self.last) {
            idle if idle >= self.span => Pace::Stalled,
            idle if idle >= self.span / 2 => Pace::Slow,
            _ => Pace::Good,
        }
    }

    /// The pace at the last [look](Self::look).
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Looks at the pace.
    pub fn look(&mut self, now: Time) {
        self.pace = self.pace_at(now);
    }

    /// When to look next if there is no progress; never, if the work has stalled.
    pub fn next_look(&self) -> Time {
        match self.pace {
            Pace::Good => self.last + self.span / 2,
            Pace::Slow => self.last + self.span,
            Pace::Stalled => Time::NEVER,
        }
    }

    /// Notes that a renewal which is ordered now only checks the key.
    pub fn checks(&mut self, now: Time) {
        self.checks = (self.checks.0.min(now), now);
    }

    /// Whether a renewal that was ordered at this time only checks the key. Of two stalls, all in between count as
    /// checks, so an answer that comes late is not believed.
    pub fn is_check(&self, sent: Time) -> bool {
        (self.checks.0..=self.checks.1).contains(&sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn work_is_slow_after_half_of_the_span_and_has_stalled_after_all_of_it() {
        let progress = Progress::new(millis(100), at(10));
        assert_eq!(
            [10, 59, 60, 109].map(|now| progress.pace_at(at(now))),
            [Pace::Good, Pace::Good, Pace::Slow, Pace::Slow]
        );
        assert_eq!([110, 100_000].map(|now| progress.pace_at(at(now))), [Pace::Stalled; 2]);
        let mut looks = progress;
        let next = [10, 60, 110].map(|now| {
            looks.look(at(now));
            looks.next_look()
        });
        assert_eq!(next, [at(60), at(110), Time::NEVER]);
    }

    #[test]
    fn the_latest_report_counts() {
        let mut progress = Progress::new(millis(100), at(0));
        assert!(progress.report(at(500)) && !progress.report(at(400)));
        assert_eq!((progress.pace_at(at(549)), progress.pace_at(at(550))), (Pace::Good, Pace::Slow));
    }

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        let mut progress = Progress::new(millis(100), at(0));
        progress.stood_still(at(50), at(62));
        assert_eq!(progress.pace_at(at(62)), Pace::Slow, "a timer may be as late");
        progress.stood_still(at(50), at(1_000));
        assert_eq!([1_049, 1_050, 1_100].map(|now| progress.pace_at(at(now))), [Pace::Good, Pace::Slow, Pace::Stalled]);
        progress.stood_still(at(1_050), at(2_000));
        assert_eq!([2_000, 2_049, 2_050].map(|now| progress.pace_at(at(now))), [Pace::Slow, Pace::Slow, Pace::Stalled]);
        progress.report(at(2_060));
        progress.stood_still(at(2_110), at(3_000));
        assert_eq!([3_049, 3_050].map(|now| progress.pace_at(at(now))), [Pace::Good, Pace::Slow]);
    }
}
