//! The reports of a service's Sentinels: whether the primary that one of them names is taken.
//!
//! # Invariants
//!
//! 1. A larger epoch than ours is taken. (The driver first asks that server whether it is a primary.) If only one
//!    Sentinel knows that server, our primary is asked too. If equally many name ours, it stays while it says that it
//!    is a primary. If more name ours, it stays until it says that it is a replica.
//! 2. An epoch that is not larger mostly comes from a Sentinel that is behind: for a moment after each failover most of
//!    them are. Or an operator has made all of them begin anew, with epochs from zero. So it is taken once more than
//!    half have reported it for `BEGUN_ANEW`, and none has reported ours, or something newer, meanwhile. Half is that
//!    of the most there ever were, because a new Sentinel knows of no other.
//! 3. A Sentinel's report counts for `LATELY`, and once, however many addresses and names it uses.
//! 4. One Sentinel alone decides nothing against two others and the primary, whatever it reports.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use crate::{place::Place, time::Time};

/// Sentinels tell each other of a failover every two seconds.
const BEGUN_ANEW: Duration = Duration::from_secs(10);

/// How long a Sentinel's report counts.
const LATELY: Duration = Duration::from_secs(3);

/// A Sentinel's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The Sentinel's own name, or its address if it does not report one.
    pub name: Box<str>,
    /// The primary that it names.
    pub primary: Place,
    /// The epoch of the service in which it is named.
    pub epoch: u64,
    /// The replicas that it knows.
    pub replicas: Vec<Place>,
    /// How many Sentinels it reports.
    pub sentinels: usize,
}

/// The reports of all Sentinels.
#[derive(Debug, Default)]
pub struct Reports {
    /// The reports, by the address that was asked.
    said: BTreeMap<Box<str>, (Time, Report)>,
    /// The majority's report against ours, and since when.
    against: Option<(Place, u64, Time)>,
    /// The most Sentinels that there ever were.
    most: usize,
}

/// The consequence of a Sentinel's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The primary that it names is taken.
    Taken,
    /// It is taken, and epochs count from there.
    BegunAnew,
    /// The report is out of date.
    Stale,
    /// A majority reports it: it may be taken in a moment, or at once if our primary says that it is a replica.
    Perhaps,
    /// Only one Sentinel knows that server, and another contradicts: it is taken unless our primary says that it is a
    /// primary.
    Contested,
    /// Only one Sentinel knows that server, and more contradict: it is taken if our primary says that it is a replica.
    Outvoted,
}

impl Verdict {
    /// Whether our primary's own answer decides.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Perhaps | Self::Contested | Self::Outvoted)
    }
}

impl Report {
    fn knows(&self, place: &Place) -> bool {
        self.primary == *place || self.replicas.contains(place)
    }
}

impl Reports {
    /// The Sentinel at this address has sent this report. `ours` is the primary that we know, and its epoch.
    pub fn heard(&mut self, now: Time, at: &str, report: Report, ours: Option<(&Place, u64)>) -> Verdict {
        let Report { name, primary, epoch, .. } = report.clone();
        self.note(now, at, report);
        let Some((place, own)) = ours else {
            let is_outvoted = self.votes(|other| other.primary == primary) * 2 < self.votes(|_| true);
            let is_lone = is_outvoted && !self.is_backed(&primary, &name);
            return if is_lone { Verdict::Outvoted } else { Verdict::Taken };
        };
        let is_ours = primary == *place;
        if is_ours && epoch == own {
            // This Sentinel may be the only one with its epoch.
            self.against.take_if(|(of, ..)| of != place);
            return Verdict::Taken;
        }
        if epoch > own {
            let votes = self.votes(|other| other.primary == primary && other.epoch > own);
            let against = self.votes(|other| other.primary == *place && other.epoch <= own);
            if votes <= against && (is_ours || !self.is_backed(&primary, &name)) {
                return if votes == against { Verdict::Contested } else { Verdict::Outvoted };
            }
            self.against = None;
            return Verdict::Taken;
        }
        // Going back to a replaced server would be worse than staying. A server that only one Sentinel knows is not
        // kept.
        let is_held_to = !is_ours
            && self.all().any(|report| {
                let says_ours = report.epoch > own || report.epoch == own && report.primary == *place;
                says_ours && self.is_backed(&report.primary, &report.name)
            });
        if is_held_to {
            self.against = None;
        }
        // A third report, by a minority, holds up neither side.
        if is_held_to || self.votes(|other| other.primary == primary && other.epoch == epoch) * 2 <= self.most {
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

    /// Sorts the first reports of some Sentinels. The one with the most votes comes first; among equals, the one whose
    /// server others know too, then the one with the larger epoch.
    pub fn sort<T>(&mut self, now: Time, mut words: Vec<T>, read: impl Fn(&T) -> (&str, &Report)) -> Vec<T> {
        for (at, report) in words.iter().map(&read) {
            self.note(now, at, report.clone());
        }
        words.sort_by_key(|word| {
            let (_, Report { name, primary, epoch, .. }) = read(word);
            let votes = self.votes(|other| other.primary == *primary && other.epoch == *epoch);
            Reverse((votes, self.is_backed(primary, name), *epoch))
        });
        words
    }

    fn note(&mut self, now: Time, at: &str, report: Report) {
        self.said.insert(at.into(), (now, report));
        self.said.retain(|_, (at, _)| now.since(*at) < LATELY);
        // A Sentinel that counts more of them than all others do is not believed.
        let mut counts: Vec<usize> = self.all().map(|report| report.sentinels).collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        let agreed = counts.get(1).or(counts.first()).copied().unwrap_or_default();
        self.most = self.most.max(agreed).max(self.votes(|_| true));
    }

    fn all(&self) -> impl Iterator<Item = &Report> {
        self.said.values().map(|(_, report)| report)
    }

    /// How many Sentinels report this.
    fn votes(&self, says: impl Fn(&Report) -> bool) -> usize {
        let mut names: Vec<&str> = self.all().filter(|report| says(report)).map(|report| &*report.name).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Whether a Sentinel other than `name` knows the server, or there is no other Sentinel.
    fn is_backed(&self, place: &Place, name: &str) -> bool {
        let mut others = self.all().filter(|other| *other.name != *name).peekable();
        others.peek().is_none() || others.any(|other| other.knows(place))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(port: u16) -> Place {
        Place { host: "h".into(), port }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_secs(60) + Duration::from_millis(millis)
    }

    fn report(name: &str, port: u16, epoch: u64) -> Report {
        let replicas = [1, 2, 3].into_iter().filter(|other| *other != port).map(place).collect();
        Report { name: name.into(), primary: place(port), epoch, replicas, sentinels: 3 }
    }

    /// Three Sentinels, and the port and the epoch that we know. All know the servers 1 to 3.
    struct Scene(Reports, (u16, u64));

    impl Scene {
        fn hears(&mut self, millis: u64, sentinel: &str, port: u16, epoch: u64) -> Verdict {
            let (ours, own) = self.1;
            let verdict = self.0.heard(at(millis), sentinel, report(sentinel, port, epoch), Some((&place(ours), own)));
            if matches!(verdict, Verdict::Taken | Verdict::BegunAnew) {
                self.1 = (port, epoch);
            }
            verdict
        }
    }

    #[test]
    fn the_first_word_is_taken_and_every_larger_epoch() {
        assert_eq!(Reports::default().heard(at(0), "a", report("a", 1, 0), None), Verdict::Taken);
        let mut scene = Scene(Reports::default(), (1, 3));
        assert_eq!(scene.hears(0, "a", 1, 3), Verdict::Taken);
        assert_eq!(scene.hears(1, "a", 2, 4), Verdict::Taken);
    }

    /// Only the Sentinel that led the failover knows of it. The others report the old epoch until they hear of it,
    /// which may take as long as they are cut off from each other.
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

    /// In each case no Sentinel reports ours any more.
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

    /// The third Sentinel knows the same server by another name, or is cut off from the others.
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
            let report = Report { sentinels: 1, ..report("c", 1, 0) };
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

    /// The lone Sentinel names a server that no other knows, or ours in an epoch that no other has heard of.
    #[test]
    fn one_alone_with_a_larger_epoch_is_not_taken_while_ours_is_the_primary() {
        for (port, epoch) in [(9, 4), (9, 1 << 60), (1, 1 << 60)] {
            let mut scene = Scene(Reports::default(), (1, 3));
            assert_eq!(scene.hears(0, "a", 1, 3), Verdict::Taken);
            assert_eq!(scene.hears(1, "b", port, epoch), Verdict::Contested, "one against one");
            assert_eq!(scene.hears(2, "c", 1, 3), Verdict::Taken);
            assert_eq!(scene.hears(3, "b", port, epoch), Verdict::Outvoted);
            assert_eq!(scene.hears(4, "a", port, epoch), Verdict::Taken, "another has heard of it");
        }
    }

    /// A program that has taken such an epoch follows the others after a while.
    #[test]
    fn an_epoch_that_one_alone_goes_on_saying_is_corrected_by_most() {
        let mut scene = Scene(Reports::default(), (2, 1 << 60));
        let mut corrected = false;
        for step in 0..120 {
            let now = step * 100;
            let _ours = scene.hears(now, "c", 2, 1 << 60);
            for sentinel in ["a", "b"] {
                corrected |= scene.hears(now, sentinel, 2, 4) == Verdict::BegunAnew;
            }
        }
        assert!(corrected && scene.1 == (2, 4));
    }

    #[test]
    fn a_sentinel_counts_once_whatever_it_calls_itself_and_wherever_it_is_asked() {
        let ours = place(1);
        let hears =
            |all: &mut Reports, at_ms, address: &str, report| all.heard(at(at_ms), address, report, Some((&ours, 3)));
        let mut all = Reports::default();
        for (step, name) in ["x", "y", "z", "x", "y", "z"].into_iter().enumerate() {
            let step = u64::try_from(step).unwrap();
            assert_eq!(hears(&mut all, step, "a", report("a", 1, 3)), Verdict::Taken);
            assert_ne!(hears(&mut all, step, "liar", report(name, 9, 4)), Verdict::Taken, "new names");
        }
        let mut all = Reports::default();
        let _ours = hears(&mut all, 0, "a", report("a", 1, 3));
        for address in ["one", "two", "three"] {
            assert_eq!(hears(&mut all, 1, address, report("x", 9, 4)), Verdict::Contested, "new addresses");
        }
    }

    #[test]
    fn the_first_words_are_sorted_by_votes_then_by_what_others_know_then_by_epoch() {
        let first = |words: &[(&'static str, u16, u64)]| {
            let words = words.iter().map(|(name, port, epoch)| (*name, report(name, *port, *epoch))).collect();
            Reports::default().sort(at(0), words, |(name, report): &(&str, Report)| (*name, report))[0].0
        };
        assert_eq!(first(&[("a", 9, 7), ("b", 1, 0), ("c", 1, 0)]), "b", "most say it");
        assert_eq!(first(&[("a", 9, 7), ("b", 1, 0)]), "b", "nobody else knows the other");
        assert_eq!(first(&[("a", 1, 3), ("b", 2, 4)]), "b", "it is newer");
    }

    /// The role that a server reports.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Role {
        Primary,
        Replica,
        Gone,
    }

    /// A world of three Sentinels, one of which lies. Servers tell the truth: 1 to 3 are ours, 9 is a primary of its
    /// own, and there is no server at 8.
    struct World {
        all: Reports,
        roles: Vec<(u16, Role)>,
        ours: Option<(Place, u64)>,
    }

    impl World {
        fn role(&self, of: &Place) -> Role {
            self.roles.iter().find(|(port, _)| *port == of.port).map_or(Role::Gone, |(_, role)| *role)
        }

        /// Acts on a report as the driver does.
        fn hears(&mut self, now: u64, word: &Report) {
            let ours = self.ours.clone();
            let ours = ours.as_ref().map(|(place, epoch)| (place, *epoch));
            let verdict = self.all.heard(at(now), &word.name, word.clone(), ours);
            let is_taken = match (verdict, ours.filter(|(place, _)| **place != word.primary)) {
                (Verdict::Taken | Verdict::BegunAnew, _) => true,
                (Verdict::Contested, Some((place, _))) => self.role(place) != Role::Primary,
                (Verdict::Perhaps | Verdict::Outvoted, Some((place, _))) => self.role(place) == Role::Replica,
                _ => false,
            };
            let is_there = ours.is_some_and(|(place, _)| *place == word.primary);
            if is_taken && (is_there || self.role(&word.primary) == Role::Primary) {
                self.ours = Some((word.primary.clone(), word.epoch));
            }
        }
    }

    fn a_lie() -> impl Strategy<Value = Report> {
        let epoch = prop_oneof![0..8_u64, Just(1 << 60)];
        let port = || prop::sample::select(vec![1_u16, 2, 3, 8, 9]);
        (port(), epoch, prop::collection::vec(port(), 0..4), 0..9_usize).prop_map(
            |(port, epoch, replicas, sentinels)| {
                let replicas = replicas.into_iter().map(place).collect();
                Report { name: "liar".into(), primary: place(port), epoch, replicas, sentinels }
            },
        )
    }

    proptest! {
        /// A program starts, then the primary fails over. The program has the right primary from its start, and while
        /// that lives; and the next one a moment after the others know of it.
        #[test]
        fn one_of_three_that_lies_at_will_decides_nothing(
            lies in prop::collection::vec(a_lie(), 100..400),
            epoch in 0..5_u64,
            repeats in any::<bool>(),
            turn in 0..3_usize,
        ) {
            let roles = vec![(1, Role::Primary), (2, Role::Replica), (3, Role::Replica), (9, Role::Primary)];
            let mut world = World { all: Reports::default(), roles, ours: None };
            let lie = |step: usize| if repeats { &lies[0] } else { &lies[step] };
            let mut first = vec![report("a", 1, epoch), report("b", 1, epoch)];
            first.insert(turn, lie(0).clone());
            let first = world.all.sort(at(0), first, |report| (&report.name, report));
            for word in &first {
                world.hears(0, word);
            }
            let over = lies.len() / 2;
            for step in 1..lies.len() {
                let now = u64::try_from(step).unwrap() * 300;
                let (mut told, mut next) = ((1, epoch), false);
                if step == over {
                    world.roles[0].1 = Role::Gone;
                    world.roles[1].1 = Role::Primary;
                } else if step == over + 50 {
                    world.roles[0].1 = Role::Replica;
                }
                if step >= over {
                    (told, next) = ((2, epoch + 1), step > over);
                }
                let mut words = vec![report("a", told.0, told.1), report("b", told.0, told.1)];
                words.insert(turn, lie(step).clone());
                for word in &words {
                    if step < over {
                        prop_assert_eq!(world.ours.as_ref().map(|(place, _)| place.port), Some(1), "after {} ms", now);
                    } else if next {
                        prop_assert_eq!(world.ours.as_ref().map(|(place, _)| place.port), Some(2), "after {} ms", now);
                    }
                    world.hears(now, word);
                }
            }
        }
    }
}
