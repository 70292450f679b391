//! The words of the Sentinels of a service: whether the primary that one of them names is to be taken.
//!
//! # Invariants
//!
//! 1. A larger epoch than ours is taken. (The driver asks first whether that server says itself that it is a primary.)
//! 2. An epoch that is not larger is mostly that of a Sentinel which is behind the times: for a moment after each failover
//!    most of them are. Or an operator has had all of them begin anew, with epochs from zero. So it is taken once more
//!    than half have said it for `BEGUN_ANEW`, and nobody has said ours, or something newer, meanwhile. Half of those
//!    that there ever were: one that has just been made knows of no other.
//! 3. The word of a Sentinel counts for `LATELY`.

use std::{collections::BTreeMap, time::Duration};

use crate::{time::Time, topology::Place};

/// Sentinels tell each other of a failover every two seconds.
const BEGUN_ANEW: Duration = Duration::from_secs(10);

/// For so long a Sentinel's word counts.
const LATELY: Duration = Duration::from_secs(3);

/// A Sentinel's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The primary that it names.
    pub primary: Place,
    /// In this epoch of the service.
    pub epoch: u64,
    /// How many Sentinels it says there are.
    pub sentinels: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Reports {
    said: BTreeMap<Box<str>, (Time, Report)>,
    /// The word of most since then, against ours.
    against: Option<(Place, u64, Time)>,
    /// The most Sentinels that there ever were.
    most: usize,
}

/// The consequence of a Sentinel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken.
    Taken,
    /// It is taken, and epochs count from there.
    BegunAnew,
    /// It is behind the times.
    Stale,
    /// Most say it: it may be taken in a moment.
    Perhaps,
}

impl Reports {
    /// The Sentinel of this name has said this. `ours` is the primary that we know, and its epoch.
    pub fn heard(&mut self, now: Time, sentinel: &str, report: Report, ours: Option<(&Place, u64)>) -> Verdict {
        let Report { primary, epoch, sentinels } = report.clone();
        self.most = self.most.max(sentinels);
        self.said.insert(sentinel.into(), (now, report));
        self.said.retain(|_, (at, _)| now.since(*at) < LATELY);
        self.most = self.most.max(self.said.len());
        let Some((place, own)) = ours else { return Verdict::Taken };
        let is_ours = |report: &Report| report.epoch > own || report.epoch == own && report.primary == *place;
        let all = || self.said.values().map(|(_, report)| report);
        let votes = all().filter(|other| other.primary == primary && other.epoch == epoch).count();
        if epoch > own || epoch == own && primary == *place {
            self.against = None;
            return Verdict::Taken;
        }
        if all().any(is_ours) {
            self.against = None;
        }
        // A third word of a few is against nobody's.
        if all().any(is_ours) || votes * 2 <= self.most {
            return Verdict::Stale;
        }
        match &self.against {
            Some((of, at, since)) if *of == primary && *at == epoch => {
                if now.since(*since) < BEGUN_ANEW {
                    Verdict::Perhaps
                } else {
                    Verdict::BegunAnew
                }
            }
            _ => {
                self.against = Some((primary, epoch, now));
                Verdict::Perhaps
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(port: u16) -> Place {
        Place { host: "h".into(), port }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_secs(60) + Duration::from_millis(millis)
    }

    /// Three Sentinels, and what we know: this port, in this epoch.
    struct Scene(Reports, (u16, u64));

    impl Scene {
        fn hears(&mut self, millis: u64, sentinel: &str, port: u16, epoch: u64) -> Verdict {
            let report = Report { primary: place(port), epoch, sentinels: 3 };
            let (ours, own) = self.1;
            let verdict = self.0.heard(at(millis), sentinel, report, Some((&place(ours), own)));
            if matches!(verdict, Verdict::Taken | Verdict::BegunAnew) {
                self.1 = (port, epoch);
            }
            verdict
        }
    }

    #[test]
    fn the_first_word_is_taken_and_every_larger_epoch() {
        let report = Report { primary: place(1), epoch: 0, sentinels: 3 };
        assert_eq!(Reports::default().heard(at(0), "a", report, None), Verdict::Taken);
        let mut scene = Scene(Reports::default(), (1, 3));
        assert_eq!(scene.hears(0, "a", 1, 3), Verdict::Taken);
        assert_eq!(scene.hears(1, "a", 2, 4), Verdict::Taken);
    }

    /// Only the one that led the failover knows of it: the others say the old epoch until they hear of it. That may be for
    /// as long as they are cut off from each other.
    #[test]
    fn most_that_lag_behind_a_failover_take_nothing_back() {
        let mut scene = Scene(Reports::default(), (1, 3));
        assert_eq!(scene.hears(0, "a", 2, 4), Verdict::Taken);
        for step in 0..300 {
            let now = step * 100;
            assert_eq!(scene.hears(now, "b", 1, 3), Verdict::Stale, "after {now} ms");
            assert_eq!(scene.hears(now + 1, "c", 1, 3), Verdict::Stale);
            assert_eq!(scene.hears(now + 2, "a", 2, 4), Verdict::Taken);
        }
        assert_eq!(scene.1, (2, 4));
    }

    /// In each case nobody says ours any more.
    #[test]
    fn sentinels_that_begin_anew_are_followed_after_a_while() {
        for (port, epoch) in [(1, 0), (2, 0), (2, 3)] {
            let mut scene = Scene(Reports::default(), (1, 3));
            let mut taken = None;
            for step in 0..120 {
                let now = step * 100;
                for sentinel in ["a", "b", "c"] {
                    match scene.hears(now, sentinel, port, epoch) {
                        Verdict::BegunAnew => taken = taken.or(Some(now)),
                        Verdict::Stale | Verdict::Perhaps if taken.is_none() => {}
                        Verdict::Taken if taken.is_some() => {}
                        other => panic!("{other:?} after {now} ms"),
                    }
                }
            }
            assert!(taken.is_some_and(|taken| (10_000..10_500).contains(&taken)), "{port}, {epoch}: {taken:?}");
        }
    }

    /// It names the same server otherwise, or is cut off from the others.
    #[test]
    fn a_third_word_of_a_few_holds_up_nobody() {
        for (port, epoch) in [(9, 0), (1, 1)] {
            let mut scene = Scene(Reports::default(), (1, 3));
            let mut taken = false;
            for step in 0..120 {
                let now = step * 100;
                for sentinel in ["a", "b"] {
                    taken |= scene.hears(now, sentinel, 2, 0) == Verdict::BegunAnew;
                }
                let third = scene.hears(now + 1, "c", port, epoch);
                assert!(third == Verdict::Stale || taken, "{third:?}");
            }
            assert!(taken, "{port} {epoch}");
        }
    }

    #[test]
    fn a_sentinel_that_knows_no_other_is_not_more_than_half() {
        let mut scene = Scene(Reports::default(), (2, 4));
        assert_eq!(scene.hears(0, "a", 2, 4), Verdict::Taken);
        for step in 0..300 {
            let report = Report { primary: place(1), epoch: 0, sentinels: 1 };
            let verdict = scene.0.heard(at(4_000 + step * 100), "c", report, Some((&place(2), 4)));
            assert_eq!(verdict, Verdict::Stale);
        }
    }

    #[test]
    fn one_alone_is_no_majority_however_long_it_says_it_nor_do_words_of_long_ago_count() {
        let mut scene = Scene(Reports::default(), (2, 4));
        assert_eq!(scene.hears(0, "b", 1, 3), Verdict::Stale);
        for step in 0..300 {
            assert_eq!(scene.hears(4_000 + step * 100, "a", 1, 3), Verdict::Stale);
        }
    }
}
