//! Several locks at once: which are tried, kept, released, and waited for: pure.
//!
//! # Invariants
//!
//! 1. While a multi-lock waits for one lock, it holds none that comes later in the order. The order is that of the
//!    keys, the same in every process. So processes cannot wait for each other in a circle.
//! 2. The leases are kept here only, so whatever ends the acquire drops them.
//! 3. Of competing tries for the same locks one wins: the try that has the first lock. The others release all they
//!    have, so it waits only for that. Of competing tries for different sets one wins, too: the try that was refused
//!    the last of all these locks waits for one that releases it.
//! 4. All missing locks are tried at the same time, so one round trip is enough when they are free. A lock that was
//!    lost meanwhile is missing again.

use std::fmt;

use crate::key::Key;

/// The most locks of a multi-lock.
pub const MOST: usize = 1_000;

/// The reason why locks cannot be acquired together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// No lock was given.
    None,
    /// There are more than [`MOST`].
    TooMany,
    /// One lock is given twice, and would wait for itself.
    Twice(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a multi-lock has 1 to 1,000 locks of different names: ")?;
        match self {
            Self::None => f.write_str("there is none"),
            Self::TooMany => f.write_str("there are more"),
            Self::Twice(name) => write!(f, "{name:?} is there twice"),
        }
    }
}

/// Sorts locks into the order in which every process waits for them (invariant 1), however their keys are split into
/// prefix and name.
pub fn in_order<L>(mut locks: Vec<(Key, L)>) -> Result<Vec<L>, Unfit> {
    if locks.is_empty() {
        return Err(Unfit::None);
    }
    if locks.len() > MOST {
        return Err(Unfit::TooMany);
    }
    locks.sort_by(|(one, _), (other, _)| one.lock().cmp(other.lock()));
    let twice = locks.windows(2).find_map(|two| match two {
        [(one, _), (other, _)] if one == other => Some(other.name().to_owned()),
        _ => None,
    });
    twice.map_or_else(|| Ok(locks.into_iter().map(|(_, lock)| lock).collect()), |name| Err(Unfit::Twice(name)))
}

/// The next step. Locks are identified by their place in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Try these, all at the same time.
    Try(Vec<usize>),
    /// Wait for this one.
    Wait(usize),
    /// All locks are held.
    Done,
}

/// An acquire of several locks, with the leases that it has so far.
#[derive(Debug)]
pub struct MultiLock<L> {
    held: Vec<Option<L>>,
    /// Whether all missing locks have been tried since the last wait.
    is_tried: bool,
}

impl<L> MultiLock<L> {
    /// A multi-lock of this number of locks, none of which is held.
    pub fn new(locks: usize) -> Self {
        Self { held: (0..locks).map(|_| None).collect(), is_tried: false }
    }

    /// A try or a wait has acquired this lock.
    pub fn got(&mut self, at: usize, lease: L) {
        if let Some(held) = self.held.get_mut(at) {
            *held = Some(lease);
        }
    }

    /// Returns the next step, once all that was tried or waited for has an outcome. Drops the leases that may not be
    /// held meanwhile (invariant 1), and those that are not held any more.
    pub fn next(&mut self, is_held: impl Fn(&L) -> bool) -> Next {
        for held in &mut self.held {
            if held.as_ref().is_some_and(|lease| !is_held(lease)) {
                *held = None;
            }
        }
        let missing = || self.held.iter().enumerate().filter(|(_, held)| held.is_none()).map(|(at, _)| at);
        let Some(first) = missing().next() else { return Next::Done };
        if !self.is_tried {
            let missing = missing().collect();
            self.is_tried = true;
            return Next::Try(missing);
        }
        self.is_tried = false;
        for held in self.held.iter_mut().skip(first) {
            *held = None;
        }
        Next::Wait(first)
    }

    /// Tries the locks that are missing by now, because one was lost.
    pub fn lost(&mut self) {
        self.is_tried = false;
    }

    /// The first lease, if the first lock is held.
    pub fn first(&self) -> Option<&L> {
        self.held.first()?.as_ref()
    }

    /// The leases that are held so far.
    pub fn held(&self) -> impl Iterator<Item = &L> {
        self.held.iter().flatten()
    }

    /// The leases, in the order of their locks.
    pub fn into_held(self) -> Vec<L> {
        self.held.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

    use proptest::prelude::*;

    use super::*;

    fn keys(names: &[&str]) -> Vec<(Key, String)> {
        names.iter().map(|name| (Key::new("", name).unwrap(), (*name).to_owned())).collect()
    }

    #[test]
    fn the_order_is_that_of_the_whole_keys() {
        assert_eq!(in_order(keys(&["b", "a", "c"])).unwrap(), ["a", "b", "c"]);
        // Another program has the same keys with another prefix.
        let split = |prefix: &str, name: &str| (Key::new(prefix, name).unwrap(), format!("{prefix}|{name}"));
        let ours = in_order(vec![split("b:", "1"), split("", "a:2")]).unwrap();
        let theirs = in_order(vec![split("a:", "2"), split("b", ":1")]).unwrap();
        assert_eq!((ours, theirs), (vec!["|a:2".into(), "b:|1".into()], vec!["a:|2".into(), "b|:1".into()]));
    }

    #[test]
    fn locks_that_do_not_fit_together_are_refused_with_a_reason() {
        let many: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(in_order(keys(many.get(1..).unwrap())).unwrap().len(), MOST);
        for (names, says) in
            [(&[][..], "there is none"), (&many, "there are more"), (&["a", "b", "a"], "\"a\" is there twice")]
        {
            let text = in_order(keys(names)).unwrap_err().to_string();
            assert_eq!(text, format!("a multi-lock has 1 to 1,000 locks of different names: {says}"));
        }
        let one_key = vec![(Key::new("a:", "1").unwrap(), ()), (Key::new("", "a:1").unwrap(), ())];
        assert!(matches!(in_order(one_key), Err(Unfit::Twice(_))), "one key, however it was split");
    }

    #[test]
    fn all_free_locks_take_one_round() {
        let mut multi = MultiLock::new(3);
        assert_eq!(multi.next(|_| true), Next::Try(vec![0, 1, 2]));
        (0..3).for_each(|at| multi.got(at, at));
        assert_eq!((multi.next(|_| true), multi.into_held()), (Next::Done, vec![0, 1, 2]));
    }

    #[test]
    fn what_comes_before_the_first_that_is_busy_is_kept_and_the_rest_let_go_of() {
        let mut multi = MultiLock::new(4);
        assert_eq!(multi.next(|_| true), Next::Try(vec![0, 1, 2, 3]));
        for at in [0, 2, 3] {
            multi.got(at, at);
        }
        assert_eq!(multi.next(|_| true), Next::Wait(1));
        assert_eq!(multi.held, [Some(0), None, None, None]);
        multi.got(1, 1);
        assert_eq!(multi.next(|_| true), Next::Try(vec![2, 3]));
        multi.got(3, 3);
        assert_eq!(multi.next(|_| true), Next::Wait(2));
        multi.got(2, 2);
        assert_eq!(multi.next(|_| true), Next::Try(vec![3]));
        multi.got(3, 3);
        assert_eq!(multi.next(|_| true), Next::Done);
    }

    #[test]
    fn a_lock_that_was_lost_meanwhile_is_tried_again_and_what_follows_it_let_go_of_before_a_wait() {
        let mut multi = MultiLock::new(3);
        multi.next(|_| true);
        (0..2).for_each(|at| multi.got(at, at));
        assert_eq!(multi.next(|_| true), Next::Wait(2));
        multi.got(2, 2);
        assert_eq!(multi.next(|at| *at != 0), Next::Try(vec![0]), "which waits for nobody");
        assert_eq!(multi.next(|_| true), Next::Wait(0));
        assert_eq!(multi.held, [None; 3]);
    }

    /// The locks of a small world, and their holders. A lease that is dropped frees its lock.
    type World = Rc<RefCell<BTreeMap<usize, usize>>>;

    #[derive(Debug)]
    struct Lease(World, usize);

    impl Drop for Lease {
        fn drop(&mut self) {
            self.0.borrow_mut().remove(&self.1);
        }
    }

    fn acquire(world: &World, lock: usize, who: usize) -> Option<Lease> {
        let is_free = !world.borrow().contains_key(&lock);
        is_free.then(|| {
            world.borrow_mut().insert(lock, who);
            Lease(world.clone(), lock)
        })
    }

    /// One process, which wants these locks `rounds` times.
    struct Process {
        wants: Vec<usize>,
        rounds: usize,
        multi: MultiLock<Lease>,
        waits_for: Option<usize>,
    }

    impl Process {
        fn new(wants: Vec<usize>) -> Self {
            let multi = MultiLock::new(wants.len());
            Self { wants, rounds: 3, multi, waits_for: None }
        }

        /// Takes a step, if it can.
        fn steps(&mut self, who: usize, world: &World) -> bool {
            if let Some(at) = self.waits_for {
                let Some(lease) = acquire(world, self.wants[at], who) else { return false };
                self.multi.got(at, lease);
                self.waits_for = None;
            }
            match self.multi.next(|_| true) {
                Next::Try(missing) => {
                    for at in missing {
                        if let Some(lease) = acquire(world, self.wants[at], who) {
                            self.multi.got(at, lease);
                        }
                    }
                }
                Next::Wait(at) => {
                    let is_after = |(lock, holder): (&usize, &usize)| *holder == who && *lock >= self.wants[at];
                    assert!(!world.borrow().iter().any(is_after), "invariant 1");
                    self.waits_for = Some(at);
                }
                Next::Done => {
                    assert!(self.wants.iter().all(|lock| world.borrow().get(lock) == Some(&who)));
                    self.multi = MultiLock::new(self.wants.len());
                    self.rounds -= 1;
                }
            }
            true
        }
    }

    proptest! {
        /// All processes finish, whatever locks they want, and in whatever order they take their steps.
        #[test]
        fn nobody_waits_in_a_circle(
            wants in proptest::collection::vec(proptest::collection::btree_set(0_usize..5, 1..5), 2..5),
            turns in proptest::collection::vec(0_usize..5, 0..200),
        ) {
            let world = World::default();
            let mut all: Vec<Process> = wants.into_iter().map(|set| Process::new(set.into_iter().collect())).collect();
            for who in turns {
                if let Some(process) = all.get_mut(who).filter(|process| process.rounds > 0) {
                    process.steps(who, &world);
                }
            }
            while all.iter().any(|process| process.rounds > 0) {
                let running = all.iter_mut().enumerate().filter(|(_, process)| process.rounds > 0);
                let stepped = running.map(|(who, process)| process.steps(who, &world)).filter(|stepped| *stepped).count();
                prop_assert!(stepped > 0, "a dead-lock: {:?}", world.borrow());
            }
            drop(all);
            prop_assert!(world.borrow().is_empty(), "invariant 2");
        }
    }
}
