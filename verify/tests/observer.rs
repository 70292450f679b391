//! An observer of a lock in a world where leaders die and resign, and where looks and notifications are late or lost:
//! random, and a millisecond at a time.
// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use leasehold_protocol::{
    fence::Fence,
    holder::Holder,
    jitter::Jitter,
    observer::{Leadership, Observer},
    time::Time,
    token::Token,
};
use leasehold_verify::seeded::SeededBug;
use uuid::Uuid;

/// How long a look takes at most.
const LIMIT: u64 = 400;
const TTL: u64 = 900;
/// After this long without a change the observer knows the true state.
const QUIET: u64 = 6_000;

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// A look under way.
#[derive(Debug, Clone, Copy)]
struct Look {
    sent: u64,
    /// When the request reaches the server, and when its answer arrives, if they do.
    asked: Option<u64>,
    answered: Option<u64>,
    /// The leader's fence and the remaining life of its key, once the server was asked.
    found: Option<Option<(u64, u64)>>,
    is_tracked: bool,
}

struct World {
    chance: Jitter,
    bug: Option<SeededBug>,
    now: u64,
    /// The leader's fence, and when its key ends unless it is renewed.
    leader: Option<(u64, u64)>,
    is_dead: bool,
    last_fence: u64,
    changed: u64,
    /// Whether looks and notifications are lost at present, and since when that is so.
    is_lossy: bool,
    turned: u64,
    is_tracked: bool,
    notification: Option<u64>,
    looks: Vec<Look>,
    observer: Observer,
    /// The state that the observer reports.
    told: Leadership,
    largest_told: u64,
    /// The look of the newest answer, and the answer.
    newest: Option<(u64, Option<(u64, u64)>)>,
}

/// A rule that was broken.
#[derive(Debug, PartialEq, Eq)]
enum Broken {
    /// A leader is reported for longer than the newest look allows, or another leader than it found.
    NamedForTooLong,
    FenceFell,
    /// All is quiet, but the leader is not known.
    NeverLearnt,
}

impl World {
    fn new(seed: u64, bug: Option<SeededBug>) -> Self {
        Self {
            chance: Jitter::from_seed(!seed),
            bug,
            now: 0,
            leader: None,
            is_dead: false,
            last_fence: 0,
            changed: 0,
            is_lossy: false,
            turned: 0,
            is_tracked: false,
            notification: None,
            looks: Vec::new(),
            observer: Observer::new(Duration::from_millis(LIMIT), Jitter::from_seed(seed)),
            told: Leadership::Unknown,
            largest_told: 0,
            newest: None,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        u64::try_from(self.chance.below(Duration::from_nanos(bound)).as_nanos()).unwrap()
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// The time of arrival, within `most`, unless the message is lost.
    fn travels(&mut self, most: u64) -> Option<u64> {
        let is_lost = self.is_lossy && self.one_in(3);
        let most = if self.is_lossy { most * 10 } else { most };
        (!is_lost).then(|| self.now + self.below(most + 1))
    }

    /// The lock changes, or its leader renews it.
    fn lives(&mut self) {
        if self.leader.is_some_and(|(_, until)| until <= self.now) {
            self.changes(None);
        }
        let [comes, resigns, dies] = [150, 3_000, 4_000].map(|many| self.one_in(many));
        match self.leader {
            None if comes => {
                (self.last_fence, self.is_dead) = (self.last_fence + 1, false);
                self.changes(Some((self.last_fence, self.now + TTL)));
            }
            Some(_) if resigns => self.changes(None),
            Some(_) if dies => (self.is_dead, self.changed) = (true, self.now),
            Some((fence, until)) if !self.is_dead && until <= self.now + 2 * TTL / 3 => {
                self.leader = Some((fence, self.now + TTL));
                self.notifies();
            }
            _ => {}
        }
        if self.one_in(5_000) {
            (self.is_lossy, self.turned) = (!self.is_lossy, self.now);
        }
    }

    fn changes(&mut self, leader: Option<(u64, u64)>) {
        (self.leader, self.changed) = (leader, self.now);
        self.notifies();
    }

    fn notifies(&mut self) {
        if std::mem::take(&mut self.is_tracked) {
            self.notification = self.travels(5);
        }
    }

    /// One millisecond of the server and the observer.
    fn observes(&mut self) {
        let now = self.now;
        for look in 0..self.looks.len() {
            if self.looks[look].asked == Some(now) {
                let found = self.leader.map(|(fence, until)| (fence, until - now));
                self.is_tracked = true;
                let answered = self.travels(5).filter(|answered| *answered < self.looks[look].sent + LIMIT);
                let look = &mut self.looks[look];
                (look.found, look.answered, look.is_tracked) = (Some(found), answered, true);
            }
        }
        if self.notification == Some(now) {
            self.notification = None;
            self.observer.notified();
        }
        let unsure = self.bug != Some(SeededBug::ObserverNeverUnsure);
        if unsure && self.observer.expires(at(now)) {
            self.tell();
        }
        while let Some(place) = self.looks.iter().position(|look| look.answered == Some(now)) {
            let Look { sent, found, is_tracked, .. } = self.looks.remove(place);
            let found = found.unwrap();
            self.newest = self.newest.max(Some((sent, found)));
            let holder = |(fence, left): (u64, u64)| {
                let token = Token::new(Uuid::from_u128(fence.into()), "candidate");
                Holder::of(Some(token), Some(Duration::from_millis(left)), Fence::try_from(fence).ok())
            };
            if self.observer.found(at(sent), at(now), is_tracked, found.map(holder)) {
                self.tell();
            }
        }
        while let Some(place) = self.looks.iter().position(|look| look.sent + LIMIT <= now) {
            self.looks.remove(place);
            let is_news = self.observer.found_nothing(at(now));
            if is_news && unsure {
                self.tell();
            }
        }
        let one_by_one = self.bug != Some(SeededBug::OldLookOverrides);
        if self.observer.looks(at(now)) && (self.looks.is_empty() || !one_by_one && self.looks.len() < 3) {
            self.observer.begins();
            let asked = self.travels(5).map(|asked| asked.max(now + 1));
            self.looks.push(Look { sent: now, asked, answered: None, found: None, is_tracked: false });
        }
    }

    fn tell(&mut self) {
        self.told = self.observer.known().at(at(self.now));
    }

    fn check(&mut self) -> Result<(), Broken> {
        let told = self.told.leader().and_then(Holder::fence).map(u64::from);
        if let Some(fence) = told {
            let allows = |(sent, found): (u64, Option<(u64, u64)>)| {
                found.is_some_and(|(of, left)| of == fence && self.now < sent + left)
            };
            if !self.newest.is_some_and(allows) {
                return Err(Broken::NamedForTooLong);
            }
            if fence < self.largest_told {
                return Err(Broken::FenceFell);
            }
            self.largest_told = fence;
        }
        let is_quiet = !self.is_lossy && self.now > self.turned.max(self.changed) + QUIET;
        if is_quiet && (told != self.leader.map(|(fence, _)| fence) || self.told == Leadership::Unknown) {
            return Err(Broken::NeverLearnt);
        }
        Ok(())
    }

    fn run(mut self, millis: u64) -> Result<u64, Broken> {
        while self.now < millis {
            self.now += 1;
            self.lives();
            self.observes();
            self.check()?;
        }
        Ok(self.last_fence)
    }
}

const MINUTE: u64 = 60_000;

#[test]
fn in_every_history_an_observer_names_nobody_for_longer_than_its_newest_look_allows() {
    let mut terms = 0;
    for seed in 0..400 {
        terms += World::new(seed, None).run(MINUTE).unwrap_or_else(|broken| panic!("seed {seed}: {broken:?}"));
    }
    assert!(terms > 4_000, "{terms}");
}

fn finds(bug: SeededBug) -> Broken {
    (0..400).find_map(|seed| World::new(seed, Some(bug)).run(MINUTE).err()).expect("it is found")
}

#[test]
fn an_observer_that_is_never_unsure_names_a_leader_for_too_long() {
    assert_eq!(finds(SeededBug::ObserverNeverUnsure), Broken::NamedForTooLong);
}

#[test]
fn an_old_look_that_overrides_a_newer_one_is_found() {
    let broken = finds(SeededBug::OldLookOverrides);
    assert!(matches!(broken, Broken::NamedForTooLong | Broken::FenceFell), "{broken:?}");
}
