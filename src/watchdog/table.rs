//! Every hold of one `Leases`, and when to look at which.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    mem::take,
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{key::Key, time::Time};

use super::hold::Hold;

/// The longest that nobody looks while anything is held (rule 3: timers do not count suspend).
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long it is looked on after the last lease: a program that takes locks one after the other must not pay for waking
/// the keeper each time.
const LINGER: Duration = Duration::from_secs(2);

/// So many entries that are out of date cost nothing worth speaking of.
const MANY_GONE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Table {
    holds: HashMap<Id, Kept>,
    /// The newest hold of each key: the only one that can be a good one.
    newest: HashMap<Key, Id>,
    /// Acquired since the last look. Most short leases leave from here and never reach `due`.
    fresh: Vec<Id>,
    /// When to look at which hold next. An entry that is not its hold's `look` is out of date, and skipped.
    due: BinaryHeap<Reverse<(Time, Id)>>,
    /// When the next look is planned.
    planned: Time,
    empty_since: Option<Time>,
}

/// A hold's address, which is its own for as long as the table keeps it.
type Id = usize;

fn id(hold: &Arc<Hold>) -> Id {
    Arc::as_ptr(hold).addr()
}

#[derive(Debug)]
struct Kept {
    hold: Arc<Hold>,
    look: Time,
}

impl Table {
    /// One more. The one before it of its key, and whether the next look is planned too late for it.
    pub(super) fn insert(&mut self, hold: &Arc<Hold>) -> (Option<Arc<Hold>>, bool) {
        let first = hold.next_tick();
        self.holds.insert(id(hold), Kept { hold: hold.clone(), look: Time::NEVER });
        let before = self.newest.insert(hold.key.clone(), id(hold));
        let before = before.and_then(|id| Some(self.holds.get(&id)?.hold.clone()));
        self.fresh.push(id(hold));
        self.empty_since = None;
        (before, first.is_some_and(|first| first < self.planned))
    }

    /// One less. It is not dropped while the table is locked.
    #[must_use]
    pub(super) fn remove(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let kept = self.holds.remove(&id(hold));
        if self.newest.get(&hold.key) == Some(&id(hold)) {
            self.newest.remove(&hold.key);
        }
        kept.map(|kept| kept.hold)
    }

    pub(super) fn newest(&self, key: &str) -> Option<Arc<Hold>> {
        let kept = self.holds.get(self.newest.get(key)?)?;
        Some(kept.hold.clone())
    }

    pub(super) fn holds(&self) -> impl ExactSizeIterator<Item = &Arc<Hold>> {
        self.holds.values().map(|kept| &kept.hold)
    }

    /// The holds whose time has come.
    pub(super) fn due(&mut self, now: Time) -> Vec<Arc<Hold>> {
        self.schedule_fresh();
        let mut due = Vec::new();
        while self.first_due() <= now {
            due.extend(self.next());
        }
        due
    }

    /// The hold that is due before all others, if any is: it has to be scheduled again.
    pub(super) fn next(&mut self) -> Option<Arc<Hold>> {
        while let Some(Reverse((at, id))) = self.due.pop() {
            if let Some(kept) = self.holds.get_mut(&id).filter(|kept| kept.look == at) {
                kept.look = Time::NEVER;
                return Some(kept.hold.clone());
            }
        }
        None
    }

    /// Plans the next look.
    pub(super) fn plan(&mut self, now: Time) -> Time {
        // What was acquired during the last look is not in `due` yet.
        self.schedule_fresh();
        if self.holds.is_empty() {
            let since = *self.empty_since.get_or_insert(now);
            self.planned = if now.since(since) < LINGER { now + LOOK_EVERY } else { Time::NEVER };
            self.due.clear();
        } else {
            self.empty_since = None;
            self.forget_the_gone();
            self.planned = self.first_due().min(now + LOOK_EVERY);
        }
        self.planned
    }

    /// Looks at a hold no later than it asks for. Whether the next look is planned too late for that.
    pub(super) fn schedule(&mut self, hold: &Arc<Hold>) -> bool {
        self.schedule_by(id(hold));
        self.first_due() < self.planned
    }

    fn schedule_fresh(&mut self) {
        for id in take(&mut self.fresh) {
            self.schedule_by(id);
        }
    }

    fn schedule_by(&mut self, id: Id) {
        let Some(kept) = self.holds.get_mut(&id) else { return };
        let Some(next) = kept.hold.next_tick() else { return };
        if next < kept.look {
            kept.look = next;
            self.due.push(Reverse((next, id)));
        }
    }

    /// Entries of holds that have ended would stay until their time comes.
    fn forget_the_gone(&mut self) {
        if self.due.len() > 2 * self.holds.len() + MANY_GONE {
            let due = self.holds.iter().filter(|(_, kept)| kept.look != Time::NEVER);
            self.due = due.map(|(id, kept)| Reverse((kept.look, *id))).collect();
        }
    }

    fn first_due(&self) -> Time {
        self.due.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }
}
