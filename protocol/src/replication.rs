//! Which writes of a connection count because replicas have acknowledged them (rule 12). One `WAIT` confirms all writes
//! whose answers arrived before it was sent.
//!
//! # Invariants
//!
//! 1. A `WAIT` confirms only writes whose answers arrived on its link before it was sent. A server counts the replicas
//!    that have what was written on this very link up to then.
//! 2. A write is confirmed once the wanted number of replicas has it. Until then it waits for the next `WAIT`.
//! 3. One `WAIT` is under way at a time, for [`SLICE`] at most, because nothing else is served on its link meanwhile.
//!    It is longer only where replicas are seen to acknowledge later than that. After a `WAIT` that counted too few,
//!    the link rests as long as that took, up to its time limit.
//! 4. A link that has ended, and a `WAIT` that has failed, confirm nothing.
//! 5. A caller that has given up receives no verdict.

use std::{mem, time::Duration};

use crate::{failure::Failure, time::Time};

/// The longest that one `WAIT` may last: with the server's own delay it holds up a link for no more than 50 ms.
pub const SLICE: Duration = Duration::from_millis(40);

/// The longest that one `WAIT` may last where replicas acknowledge later than that. A distant replica would never be
/// counted otherwise, because each `WAIT` asks for more than the one before.
pub const LONGEST: Duration = Duration::from_millis(400);

/// The shortest time of a `WAIT`, however short the TTL.
pub const SHORTEST: Duration = Duration::from_millis(5);

/// The time limit of a `WAIT` for a key that lives for `ttl`.
pub fn slice_of(ttl: Duration) -> Duration {
    (ttl / 20).clamp(SHORTEST, SLICE)
}

/// The writes on one connection that wait for replicas. `W` is the caller to notify.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replication<W> {
    /// The number of replicas that must have a write.
    wanted: u8,
    /// The newest link on which a write was answered.
    link: u64,
    /// The writes for which no `WAIT` was sent yet.
    heard: Vec<Entry<W>>,
    /// The writes for which a `WAIT` is under way.
    asked: Vec<Entry<W>>,
    /// When the last `WAIT` was sent.
    sent: Time,
    rests_until: Time,
    /// How many replicas the last `WAIT` has counted, if they were too few.
    too_few: u32,
    /// The least time of the next `WAIT`: it doubles while replicas are too slow for the one before, up to a bound.
    least: Duration,
    most: Duration,
    is_driven: bool,
    entries: u64,
}

/// A write that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry<W> {
    number: u64,
    who: W,
    slice: Duration,
    /// The most replicas that a `WAIT` counted for this write, or right before it.
    seen: u32,
}

/// The driver's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Send a `WAIT` with this time limit, on the link with this number.
    Wait {
        /// The number of the link.
        link: u64,
        /// Its time limit.
        slice: Duration,
    },
    /// Ask again after this pause.
    Rest(Duration),
    /// Nothing waits: the driver begins again with the next write.
    Over,
}

/// The consequences of a new write.
#[derive(Debug, PartialEq, Eq)]
pub struct Registration<W> {
    /// The number by which the caller [gives up](Replication::give_up).
    pub number: u64,
    /// Whether a driver has to begin.
    pub begins: bool,
    /// The callers whose link has ended: it is unknown which replicas have their writes.
    pub unknown: Vec<W>,
}

impl<W> Replication<W> {
    /// The writes of a connection, which this number of replicas must have.
    pub fn new(wanted: u8) -> Self {
        let (heard, asked) = (Vec::new(), Vec::new());
        Self {
            wanted,
            link: 0,
            heard,
            asked,
            sent: Time::ZERO,
            rests_until: Time::ZERO,
            too_few: 0,
            least: SHORTEST,
            most: SLICE,
            is_driven: false,
            entries: 0,
        }
    }

    /// How many replicas are wanted.
    pub fn wanted(&self) -> u8 {
        self.wanted
    }

    /// A write was answered on this link. A `WAIT` for it may take `slice`.
    pub fn enter(&mut self, link: u64, slice: Duration, who: W) -> Registration<W> {
        let number = self.entries;
        self.entries += 1;
        let mut unknown = Vec::new();
        if link > self.link {
            self.link = link;
            self.too_few = 0;
            unknown.extend(
                mem::take(&mut self.heard).into_iter().chain(mem::take(&mut self.asked)).map(|entry| entry.who),
            );
        }
        if link < self.link {
            unknown.push(who);
            return Registration { number, begins: false, unknown };
        }
        self.heard.push(Entry { number, who, slice, seen: self.too_few });
        Registration { number, begins: !mem::replace(&mut self.is_driven, true), unknown }
    }

    /// The driver asks what to do. No `WAIT` is under way.
    pub fn next(&mut self, now: Time) -> Next {
        let Some(slice) = self.heard.iter().map(|entry| entry.slice).min() else {
            self.is_driven = false;
            return Next::Over;
        };
        if now < self.rests_until {
            return Next::Rest(self.rests_until.since(now));
        }
        self.asked = mem::take(&mut self.heard);
        self.sent = now;
        let slice = slice.max(self.least);
        self.least = slice;
        Next::Wait { link: self.link, slice }
    }

    /// The `WAIT` has counted the replicas, or has failed. Returns the callers to notify, with their verdicts.
    pub fn counted(&mut self, now: Time, replicas: Result<u32, Failure>) -> Vec<(W, Result<(), Failure>)> {
        let asked = mem::take(&mut self.asked);
        match replicas {
            Ok(replicas) if replicas >= u32::from(self.wanted) => {
                self.too_few = 0;
                self.least = (now.since(self.sent) * 2).clamp(SHORTEST, self.most);
                asked.into_iter().map(|entry| (entry.who, Ok(()))).collect()
            }
            Ok(replicas) => {
                self.too_few = replicas;
                // A server may answer at once that it has too few, and a link may delay its answer.
                self.rests_until = now + now.since(self.sent).clamp(SHORTEST, self.least);
                self.least = (self.least * 2).min(self.most);
                self.heard.extend(asked.into_iter().map(|entry| Entry { seen: entry.seen.max(replicas), ..entry }));
                Vec::new()
            }
            Err(failure) => asked.into_iter().map(|entry| (entry.who, Err(failure.clone()))).collect(),
        }
    }

    /// Whether the next `WAIT` is as long as one may be. If the last one was too short, it is worth checking the
    /// replicas then.
    pub fn is_at_its_longest(&self) -> bool {
        self.least >= self.most
    }

    /// Notes whether replicas keep acknowledging although the last `WAIT` was too short for them.
    pub fn are_slow(&mut self, are_slow: bool) {
        self.most = if are_slow { (self.most * 4).min(LONGEST) } else { SLICE };
        self.least = if are_slow { self.most } else { self.least.min(self.most) };
    }

    /// The caller of this write has given up. Returns the most replicas that were counted, unless it was notified
    /// before.
    pub fn give_up(&mut self, number: u64) -> Option<u32> {
        let all = [&mut self.heard, &mut self.asked];
        let entry = all.into_iter().find_map(|entries| {
            let at = entries.iter().position(|entry| entry.number == number)?;
            Some(entries.swap_remove(at))
        })?;
        Some(entry.seen)
    }

    /// The driver has ended early. Returns the callers that still wait.
    pub fn stop(&mut self) -> Vec<W> {
        self.is_driven = false;
        mem::take(&mut self.heard).into_iter().chain(mem::take(&mut self.asked)).map(|entry| entry.who).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn enter(replication: &mut Replication<&'static str>, link: u64, who: &'static str) -> Registration<&'static str> {
        replication.enter(link, SLICE, who)
    }

    const WAIT: Next = Next::Wait { link: 1, slice: SLICE };

    #[test]
    fn a_wait_confirms_only_what_was_answered_before_it_was_sent() {
        let mut replication = Replication::new(1);
        assert!(enter(&mut replication, 1, "first").begins);
        assert_eq!(replication.next(at(0)), WAIT);
        assert!(!enter(&mut replication, 1, "second").begins, "one driver is enough");
        assert_eq!(replication.counted(at(1), Ok(1)), [("first", Ok(()))]);
        assert_eq!(replication.next(at(1)), WAIT, "for the second, at once");
        assert_eq!(replication.counted(at(2), Ok(3)), [("second", Ok(()))]);
        assert_eq!(replication.next(at(2)), Next::Over);
        assert!(enter(&mut replication, 1, "third").begins, "there is no driver");
    }

    #[test]
    fn after_a_short_wait_the_link_rests_as_long_and_then_another_one_is_for_all() {
        let mut replication = Replication::new(2);
        let first = enter(&mut replication, 1, "first").number;
        assert_eq!(replication.next(at(0)), WAIT);
        let second = enter(&mut replication, 1, "second").number;
        assert!(replication.counted(at(50), Ok(1)).is_empty());
        // The rest is as long as the `WAIT` was to last, however late its answer was.
        assert_eq!(replication.next(at(60)), Next::Rest(Duration::from_millis(30)));
        assert_eq!(replication.next(at(100)), WAIT);
        assert_eq!((replication.give_up(second), replication.give_up(second)), (Some(0), None));
        let third = enter(&mut replication, 1, "third").number;
        assert_eq!(replication.give_up(third), Some(1), "as many as there are");
        assert_eq!(replication.counted(at(101), Ok(2)), [("first", Ok(()))]);
        assert_eq!(replication.give_up(first), None, "it was told");
    }

    #[test]
    fn a_server_that_says_at_once_that_it_has_too_few_is_not_asked_all_the_time() {
        let mut replication = Replication::new(1);
        let number = enter(&mut replication, 1, "only").number;
        assert_eq!(replication.next(at(0)), WAIT);
        assert!(replication.counted(at(0), Ok(0)).is_empty());
        assert_eq!(replication.next(at(0)), Next::Rest(SHORTEST));
        assert_eq!(replication.give_up(number), Some(0));
        assert_eq!(replication.next(at(1)), Next::Over);
    }

    #[test]
    fn a_wait_lasts_longer_only_where_replicas_are_seen_to_acknowledge() {
        let mut replication = Replication::new(1);
        let _far = enter(&mut replication, 1, "far");
        let mut now = at(0);
        for (are_slow, slice) in
            [(false, 40), (true, 40), (true, 160), (true, 400), (true, 400), (false, 400), (false, 40)]
        {
            now = now + LONGEST;
            let slice = Duration::from_millis(slice);
            assert_eq!(replication.next(now), Next::Wait { link: 1, slice });
            now = now + slice;
            assert!(replication.counted(now, Ok(0)).is_empty());
            assert!(replication.is_at_its_longest());
            replication.are_slow(are_slow);
        }
        // The next one may take twice as long as a confirmation took.
        now = now + LONGEST;
        assert_eq!(replication.next(now), WAIT);
        assert_eq!(replication.counted(now + Duration::from_millis(15), Ok(1)), [("far", Ok(()))]);
        assert!(!replication.is_at_its_longest());
        let _near = replication.enter(1, SHORTEST, "near");
        assert_eq!(replication.next(now), Next::Wait { link: 1, slice: Duration::from_millis(30) });
    }

    #[test]
    fn a_link_that_has_ended_confirms_nobody() {
        let mut replication = Replication::new(1);
        let _first = enter(&mut replication, 1, "asked");
        assert_eq!(replication.next(at(0)), WAIT);
        let _second = enter(&mut replication, 1, "heard");
        assert_eq!(enter(&mut replication, 2, "new").unknown, ["heard", "asked"]);
        assert!(replication.counted(at(1), Ok(1)).is_empty(), "that was of the link before");
        assert_eq!(enter(&mut replication, 1, "late").unknown, ["late"]);
        assert_eq!(replication.next(at(1)), Next::Wait { link: 2, slice: SLICE });
        let failure = Failure::unknown("the link has ended");
        assert_eq!(replication.counted(at(2), Err(failure.clone())), [("new", Err(failure))]);
    }

    #[test]
    fn the_shortest_ttl_decides_for_how_long_the_link_is_held_up() {
        let mut replication = Replication::new(1);
        let _short = replication.enter(1, slice_of(Duration::from_millis(300)), "short");
        let _long = replication.enter(1, slice_of(Duration::from_secs(30)), "long");
        assert_eq!(replication.next(at(0)), Next::Wait { link: 1, slice: Duration::from_millis(15) });
        assert_eq!((slice_of(Duration::from_millis(50)), slice_of(Duration::from_secs(30))), (SHORTEST, SLICE));
        assert_eq!(replication.stop(), ["short", "long"]);
        assert!(enter(&mut replication, 1, "next").begins);
    }

    proptest! {
        /// In every order of events, a confirmed answer arrived on the link of the `WAIT`, before that was sent. Each
        /// caller is notified once.
        #[test]
        fn nobody_is_confirmed_by_a_wait_that_does_not_speak_for_it(events in prop::collection::vec((0_u8..6, 0_u32..3), 1..80)) {
            let mut replication = Replication::new(2);
            let (mut link, mut now, mut under_way, mut told) = (1, Time::ZERO, None, Vec::new());
            let mut entered: Vec<(u64, u64)> = Vec::new();
            for (step, (event, replicas)) in events.into_iter().enumerate() {
                let step = step as u64;
                now = now + Duration::from_millis(7);
                match event {
                    0 | 1 => {
                        let who = entered.len();
                        entered.push((link, step));
                        told.extend(replication.enter(link, SLICE, who).unknown);
                    }
                    2 if under_way.is_none() => {
                        if let Next::Wait { link, .. } = replication.next(now) {
                            under_way = Some((link, step));
                        }
                    }
                    3 | 4 => if let Some((asked_on, sent)) = under_way.take() {
                        let failure = Failure::unknown("gone");
                        let outcome = if event == 3 { Ok(replicas) } else { Err(failure) };
                        for (who, verdict) in replication.counted(now, outcome) {
                            let (heard_on, heard) = entered[who];
                            prop_assert!(verdict.is_err() || (heard_on == asked_on && heard < sent && replicas >= 2));
                            told.push(who);
                        }
                    },
                    5 => link += u64::from(replicas == 0),
                    _ => {}
                }
            }
            told.extend(replication.stop());
            told.sort_unstable();
            prop_assert_eq!(told, (0..entered.len()).collect::<Vec<_>>());
        }
    }
}
