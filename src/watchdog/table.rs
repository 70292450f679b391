//! Every hold of one `Client`, and when each is checked.

use std::{
    borrow::Borrow,
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    hash::{Hash, Hasher},
    iter,
    mem::take,
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    hash::{HashMap, HashSet},
    key::Key,
    time::Time,
};

use crate::held::{Hold, NOT_HERE, SCHEDULED};

/// The longest time between two checks while anything is held (rule 3: timers do not count suspend).
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long checks continue after the last lease: a program that takes locks one after the other must not pay for
/// waking the keeper each time.
const LINGER: Duration = Duration::from_secs(2);

/// The number of out-of-date entries whose cost is negligible.
const MANY_GONE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Table {
    /// The newest hold of each key. Of an exclusive lock, only this one can be valid; of a shared one, all may be. Each
    /// entry is one pointer.
    newest: HashSet<ByKey>,
    /// The holds before them that still have a lease. `older_ones` is their number.
    older: HashMap<Key, Older>,
    older_ones: usize,
    /// Acquired since the last check. Most short leases leave from here and never reach `due`.
    fresh: Vec<Arc<Hold>>,
    /// The holds by the time of their next check. An entry whose time is not its hold's is out of date, and skipped.
    due: BinaryHeap<Reverse<Due<Arc<Hold>>>>,
    /// Renewals under way, with the time to check the holds still unanswered by then. Most are answered before that and
    /// enter `due` at that point, so each renewal is one entry there, and not two.
    under_way: BinaryHeap<Reverse<Due<HoldBatch>>>,
    /// The number of holds in `under_way`.
    renewing: usize,
    /// The holds of out-of-date entries, kept until the table is unlocked.
    gone: Gone,
    /// When the next check is planned.
    planned: Time,
    empty_since: Option<Time>,
}

/// The holds of a key before the newest.
#[derive(Debug, Default)]
struct Older {
    /// By their addresses.
    holds: HashMap<usize, Arc<Hold>>,
    /// No TTL of theirs is longer. The hold with this TTL may have left.
    longest: Duration,
}

/// A hold, found by its key.
#[derive(Debug)]
struct ByKey(Arc<Hold>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.claim.key.lock()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.claim.key == other.0.claim.key
    }
}

impl Eq for ByKey {}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.claim.key.lock().hash(state);
    }
}

#[derive(Debug)]
struct Due<T> {
    at: Time,
    what: T,
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Due<T> {}

/// Holds that are renewed together.
pub(super) type HoldBatch = Arc<Vec<Arc<Hold>>>;

/// The entries that the table has removed, to be dropped when it is unlocked.
pub(super) type Gone = (Vec<Arc<Hold>>, Vec<HoldBatch>);

impl Table {
    /// Adds a hold. Returns a hold of its key from before it, the newest if that is still here, and whether the next check
    /// is planned too late for it.
    pub(super) fn insert(&mut self, hold: &Arc<Hold>) -> (Option<Arc<Hold>>, bool) {
        let first = hold.next_tick();
        let newest = self.newest.replace(ByKey(hold.clone())).map(|ByKey(newest)| newest);
        let older = || self.older.get(hold.claim.key.lock())?.holds.values().next().cloned();
        let before = newest.clone().or_else(older);
        if let Some(before) = &newest {
            let older = self.older.entry(before.claim.key.clone()).or_default();
            older.holds.insert(address(before), before.clone());
            older.longest = older.longest.max(before.claim.ttl);
            self.older_ones += 1;
        }
        hold.noted.set_fresh(self.fresh.len());
        self.fresh.push(hold.clone());
        self.empty_since = None;
        (before, first.is_some_and(|first| first < self.planned))
    }

    /// Removes a hold, and returns it so that it is not dropped while the table is locked.
    #[must_use]
    pub(super) fn remove(&mut self, hold: &Arc<Hold>) -> [Option<Arc<Hold>>; 2] {
        let kept = match self.newest.take(hold.claim.key.lock()) {
            Some(ByKey(newest)) if Arc::ptr_eq(&newest, hold) => Some(newest),
            another => {
                self.newest.extend(another);
                self.remove_older(hold)
            }
        };
        let fresh = self.remove_fresh(hold);
        hold.noted.set_look(Time::NEVER);
        hold.noted.set_place(NOT_HERE);
        [kept, fresh]
    }

    fn remove_older(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let older = self.older.get_mut(hold.claim.key.lock())?;
        let removed = older.holds.remove(&address(hold))?;
        if older.holds.is_empty() {
            self.older.remove(hold.claim.key.lock());
        }
        self.older_ones -= 1;
        Some(removed)
    }

    /// The newest hold of a lock, if it is exclusive.
    pub(super) fn exclusive(&self, key: &str) -> Option<Arc<Hold>> {
        self.newest.get(key).filter(|ByKey(hold)| !hold.claim.mode.is_shared()).map(|ByKey(hold)| hold.clone())
    }

    /// Every hold of one key, the newest first.
    pub(super) fn holds_of(&self, key: &str) -> impl Iterator<Item = &Arc<Hold>> {
        let older = self.older.get(key).into_iter().flat_map(|older| older.holds.values());
        self.newest.get(key).map(|ByKey(hold)| hold).into_iter().chain(older)
    }

    /// No hold of one key has a longer TTL. This reads none of the older holds, of which there may be many.
    pub(super) fn longest_ttl(&self, key: &str) -> Duration {
        let newest = self.newest.get(key).map(|ByKey(hold)| hold.claim.ttl);
        newest.max(self.older.get(key).map(|older| older.longest)).unwrap_or_default()
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.newest.iter().map(|ByKey(hold)| hold).chain(self.older.values().flat_map(|older| older.holds.values()))
    }

    pub(super) fn len(&self) -> usize {
        self.newest.len() + self.older_ones
    }

    fn remove_fresh(&mut self, hold: &Arc<Hold>) -> Option<Arc<Hold>> {
        let at = hold.noted.fresh().filter(|at| self.fresh.get(*at).is_some_and(|fresh| Arc::ptr_eq(fresh, hold)))?;
        let removed = self.fresh.swap_remove(at);
        if let Some(moved) = self.fresh.get(at) {
            moved.noted.set_fresh(at);
        }
        Some(removed)
    }

    /// Takes at most `most` of the holds that are due; each has to be scheduled again.
    pub(super) fn due(&mut self, now: Time, most: usize) -> Vec<Arc<Hold>> {
        self.schedule_fresh();
        self.schedule_unanswered(now);
        let due = iter::from_fn(|| if self.first_scheduled() <= now { self.next() } else { None });
        due.take(most).collect()
    }

    /// Takes the hold that is due first, if there is one; it has to be scheduled again.
    pub(super) fn next(&mut self) -> Option<Arc<Hold>> {
        while let Some(Reverse(Due { at, what: hold })) = self.due.pop() {
            if hold.noted.look() == at {
                hold.noted.set_look(Time::NEVER);
                return Some(hold);
            }
            self.gone.0.push(hold);
        }
        None
    }

    /// Plans the next check.
    pub(super) fn plan(&mut self, now: Time) -> (Time, Gone) {
        // Holds that were acquired during the last check are not in `due` yet.
        self.schedule_fresh();
        if self.len() == 0 {
            let since = *self.empty_since.get_or_insert(now);
            self.planned = if now.since(since) < LINGER { now + LOOK_EVERY } else { Time::NEVER };
        } else {
            self.empty_since = None;
            self.planned = self.first_due().min(now + LOOK_EVERY);
        }
        self.forget_the_gone();
        (self.planned, take(&mut self.gone))
    }

    /// Schedules a hold no later than it asks for. Returns whether the next check is planned too late for that.
    pub(super) fn schedule(&mut self, hold: &Arc<Hold>) -> bool {
        self.schedule_by(hold);
        self.first_due() < self.planned
    }

    /// Notes a batch that is being renewed. Each hold is scheduled when answered, or when the first of them is due.
    pub(super) fn renewing(&mut self, batch: &HoldBatch) {
        let at = batch.iter().filter_map(|hold| hold.next_tick()).min();
        if let Some(at) = at {
            self.renewing += batch.len();
            self.under_way.push(Reverse(Due { at, what: batch.clone() }));
        }
    }

    fn schedule_unanswered(&mut self, now: Time) {
        while first(&self.under_way) <= now {
            let Some(Reverse(Due { what: batch, .. })) = self.under_way.pop() else { break };
            self.renewing -= batch.len();
            for hold in &*batch {
                self.schedule_by(hold);
            }
            self.gone.1.push(batch);
        }
    }

    fn schedule_fresh(&mut self) {
        for hold in take(&mut self.fresh) {
            hold.noted.set_place(SCHEDULED);
            self.schedule_by(&hold);
        }
    }

    fn schedule_by(&mut self, hold: &Arc<Hold>) {
        let Some(at) = hold.next_tick().filter(|_| hold.noted.is_here()) else { return };
        if at < hold.noted.look() {
            hold.noted.set_look(at);
            self.due.push(Reverse(Due { at, what: hold.clone() }));
        }
    }

    /// Removes the entries of ended holds, once they are many. Otherwise they would stay until they are due.
    fn forget_the_gone(&mut self) {
        // The entry of a hinted renewal may stay for a third of a TTL, and its holds may have ended long before that.
        if self.renewing > 2 * self.len() + MANY_GONE || self.len() == 0 {
            self.schedule_unanswered(Time::NEVER);
        }
        if self.due.len() > 2 * self.len() + MANY_GONE || self.len() == 0 {
            let is_due = |Reverse(due): &Reverse<Due<Arc<Hold>>>| due.what.noted.look() == due.at;
            let (due, gone): (Vec<_>, Vec<_>) = take(&mut self.due).into_iter().partition(is_due);
            self.due = due.into();
            self.gone.0.extend(gone.into_iter().map(|Reverse(due)| due.what));
        }
    }

    fn first_due(&self) -> Time {
        self.first_scheduled().min(first(&self.under_way))
    }

    fn first_scheduled(&self) -> Time {
        first(&self.due)
    }
}

fn address(hold: &Arc<Hold>) -> usize {
    Arc::as_ptr(hold).addr()
}

fn first<T>(heap: &BinaryHeap<Reverse<Due<T>>>) -> Time {
    heap.peek().map_or(Time::NEVER, |Reverse(due)| due.at)
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::sync::Weak;

    use leasehold_protocol::{
        acquisition::{Acquisition, Config},
        fence,
        jitter::Jitter,
        message::{Claim, Route},
        outliving::Outliving,
        renewal::LeaseConfig,
    };

    use leasehold_protocol::mode::Mode;

    use super::*;
    use crate::{metrics::Group, random};

    const TTL: Duration = Duration::from_secs(3_600);

    fn held(name: &str) -> Arc<Hold> {
        held_for(name, TTL)
    }

    fn held_for(name: &str, ttl: Duration) -> Arc<Hold> {
        let lease = LeaseConfig { ttl, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
        let config = Config {
            lease,
            outliving: Outliving::NOTHING,
            nodes: 1,
            route: Route::Home,
            renew_first_after: None,
            jitter: Jitter::from_seed(1),
        };
        let Some(acquisition) = Acquisition::granted(config, Time::ZERO, Time::ZERO, fence::ZERO) else {
            panic!("it is granted in time")
        };
        let (key, token) = (Key::of_lock(name), random::token("host:7"));
        let claim =
            Claim { key, token, mode: Mode::Exclusive, ttl, life: ttl, fence: None, fence_memory: fence::MEMORY };
        Hold::new(claim, fence::ZERO, None, acquisition, Group::default()).0
    }

    #[test]
    fn a_renewal_under_way_keeps_no_hold_for_long_that_has_gone() {
        let (mut table, now) = (Table::default(), Time::ZERO + Duration::from_millis(300));
        let stays = held("stays");
        let _first = table.insert(&stays);
        table.renewing(&Arc::new(vec![stays.clone()]));
        let renewed_and_gone = |number| {
            let hold = held(&format!("short {number}"));
            let _first = table.insert(&hold);
            drop(table.plan(now));
            // Its next check is a third of an hour away.
            table.renewing(&Arc::new(vec![hold.clone()]));
            drop(table.remove(&hold));
            drop(table.plan(now));
            Arc::downgrade(&hold)
        };
        let gone: Vec<Weak<Hold>> = (0..1_000).map(renewed_and_gone).collect();
        let kept = gone.iter().filter(|hold| hold.strong_count() > 0).count();
        assert!(kept <= MANY_GONE + 2, "{kept} of 1,000");
        assert_eq!(table.first_due(), stays.next_tick().unwrap(), "who is here is looked at as before");
    }

    #[test]
    fn a_key_has_its_newest_hold_and_those_before_it_that_somebody_still_has() {
        let mut table = Table::default();
        let [first, second, third] = [held("job"), held("job"), held("job")];
        let other = held("other");
        for hold in [&first, &second, &third, &other] {
            let _before = table.insert(hold);
        }
        let addresses = |holds: &[&Arc<Hold>]| holds.iter().copied().map(address).collect::<Vec<_>>();
        let holds = |table: &Table| {
            let mut holds: Vec<_> = table.holds_of("job").map(address).collect();
            // The older holds are in no particular order.
            holds.get_mut(1..).unwrap_or_default().sort_unstable();
            holds
        };
        let mut older = [&first, &second];
        older.sort_unstable_by_key(|hold| address(hold));
        assert_eq!(holds(&table), addresses(&[&third, older[0], older[1]]));
        assert_eq!((table.len(), table.holds().count()), (4, 4));
        drop(table.remove(&first));
        drop(table.remove(&first));
        assert_eq!(holds(&table), addresses(&[&third, &second]));
        drop(table.remove(&third));
        assert!(table.exclusive("job").is_none(), "what was before it is lost");
        assert_eq!(holds(&table), addresses(&[&second]));
        let (before, _) = table.insert(&third);
        assert!(before.is_some_and(|before| Arc::ptr_eq(&before, &second)), "it has to hear of this");
        drop(table.remove(&third));
        drop(table.remove(&second));
        drop(table.remove(&other));
        assert!(holds(&table).is_empty() && table.older.is_empty() && table.len() == 0);
    }

    #[test]
    fn no_hold_of_a_key_has_a_longer_ttl_than_the_longest() {
        let mut table = Table::default();
        assert_eq!(table.longest_ttl("job"), Duration::ZERO);
        let [short, long, shorter] = [2, 3, 1].map(|times| held_for("job", TTL * times));
        let longest = |table: &mut Table, hold| {
            drop(table.insert(hold));
            table.longest_ttl("job")
        };
        assert_eq!(longest(&mut table, &short), TTL * 2);
        assert_eq!(longest(&mut table, &long), TTL * 3, "the newest");
        assert_eq!(longest(&mut table, &shorter), TTL * 3, "one before it");
        drop(table.remove(&shorter));
        assert_eq!(table.longest_ttl("job"), TTL * 3);
        drop(table.remove(&long));
        drop(table.remove(&short));
        assert_eq!(longest(&mut table, &shorter), TTL, "nobody else is there");
        assert_eq!(table.longest_ttl("other"), Duration::ZERO);
    }
}
