//! Which of a process's fair waiters a server's notification is for: pure.
//!
//! # Invariants
//!
//! 1. A change of a lock is for the waiter that has it tracked: the first of the queue. The second may have it tracked
//!    too, and keeps waiting.
//! 2. While no waiter is known to have it tracked, a change is for the waiters whose poll is under way. One of them may
//!    have it tracked, and its answer may arrive after the notification.
//! 3. A waiter that has left is in none of the tables.

use crate::{
    hash::{HashMap, HashSet},
    key::Key,
    token::Token,
};

/// The fair waiters of a process, by the token that a notification names. `W` is the means to wake one.
#[derive(Debug)]
pub struct Addressees<W> {
    waiters: HashMap<Token, (Key, W)>,
    trackers: HashMap<Key, Token>,
    /// The waiters whose poll is not answered yet. One lock may have many, so this is not a list.
    polling: HashMap<Key, HashSet<Token>>,
}

impl<W> Default for Addressees<W> {
    fn default() -> Self {
        Self { waiters: HashMap::default(), trackers: HashMap::default(), polling: HashMap::default() }
    }
}

impl<W> Addressees<W> {
    /// Adds a waiter of this lock.
    pub fn enters(&mut self, key: &Key, token: &Token, waiter: W) {
        self.waiters.insert(token.clone(), (key.clone(), waiter));
    }

    /// Removes a waiter.
    pub fn leaves(&mut self, token: &Token) {
        self.answered(token, false);
        self.waiters.remove(token);
    }

    /// Notes that the waiter's poll is under way.
    pub fn polls(&mut self, token: &Token) {
        let Some((key, _)) = self.waiters.get(token) else { return };
        self.polling.entry(key.clone()).or_default().insert(token.clone());
    }

    /// Notes that the waiter's poll was answered, and whether it has the lock tracked.
    pub fn answered(&mut self, token: &Token, tracked: bool) {
        let Some((key, _)) = self.waiters.get(token) else { return };
        if let Some(polling) = self.polling.get_mut(key) {
            polling.remove(token);
            if polling.is_empty() {
                self.polling.remove(key);
            }
        }
        if tracked {
            self.trackers.insert(key.clone(), token.clone());
        } else if self.trackers.get(key) == Some(token) {
            self.trackers.remove(key);
        }
    }

    /// Whether there is no waiter.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The waiter with this token.
    pub fn get(&self, token: &str) -> Option<&W> {
        self.waiters.get(token).map(|(_, waiter)| waiter)
    }

    /// The waiters that a change of this lock is for (invariants 1 and 2).
    pub fn of_a_change(&self, key: &str) -> impl Iterator<Item = &W> {
        let tracker = self.trackers.get(key);
        let polling = self.polling.get(key).into_iter().flatten().filter(move |_| tracker.is_none());
        tracker.into_iter().chain(polling).filter_map(|token| self.get(token.as_str()))
    }

    /// Every waiter, with its lock.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &W)> {
        self.waiters.values().map(|(key, waiter)| (key, waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waiters of one lock, each known by a letter.
    fn scene() -> (Addressees<char>, Key, [Token; 3]) {
        let (mut addressees, key) = (Addressees::default(), Key::of_lock("job"));
        let tokens = ['a', 'b', 'c'].map(|letter| {
            let token = Token::random(&letter.to_string());
            addressees.enters(&key, &token, letter);
            token
        });
        (addressees, key, tokens)
    }

    fn told(addressees: &Addressees<char>) -> String {
        // The waiters whose poll is under way are in no order.
        let mut told: Vec<_> = addressees.of_a_change("job").collect();
        told.sort_unstable();
        told.into_iter().collect()
    }

    #[test]
    fn a_change_is_for_the_tracker_or_for_those_that_may_be_it() {
        let (mut addressees, _key, [a, b, c]) = scene();
        assert_eq!(told(&addressees), "", "nobody has it tracked");
        addressees.polls(&b);
        addressees.polls(&c);
        assert_eq!(told(&addressees), "bc", "the change may be heard before the answer");
        addressees.answered(&b, true);
        assert_eq!(told(&addressees), "b");
        addressees.polls(&b);
        assert_eq!(told(&addressees), "b", "it has had it tracked before");
        addressees.answered(&b, false);
        assert_eq!(told(&addressees), "c");
        addressees.answered(&c, false);
        assert_eq!(told(&addressees), "");
        addressees.answered(&a, true);
        addressees.answered(&c, false);
        assert_eq!(told(&addressees), "a", "only the tracker itself ends that");
        assert_eq!(addressees.of_a_change("another").count(), 0);
    }

    #[test]
    fn a_waiter_that_leaves_is_in_no_table() {
        let (mut addressees, key, [a, b, c]) = scene();
        let mut all: Vec<_> = addressees.all().collect();
        all.sort_unstable_by_key(|(_, letter)| **letter);
        assert_eq!(all, [(&key, &'a'), (&key, &'b'), (&key, &'c')]);
        assert!(!addressees.is_empty());
        addressees.answered(&a, true);
        addressees.polls(&a);
        addressees.polls(&b);
        assert_eq!(addressees.get(a.as_str()), Some(&'a'));
        addressees.leaves(&a);
        assert_eq!((addressees.get(a.as_str()), told(&addressees)), (None, "b".into()));
        for token in [&b, &c, &a] {
            addressees.leaves(token);
            // Too late.
            addressees.polls(token);
            addressees.answered(token, true);
        }
        assert!(addressees.is_empty() && addressees.trackers.is_empty() && addressees.polling.is_empty());
    }

    #[test]
    fn a_poll_that_is_repeated_is_one_poll() {
        let (mut addressees, _key, [a, ..]) = scene();
        addressees.polls(&a);
        addressees.polls(&a);
        assert_eq!(told(&addressees), "a");
        addressees.answered(&a, false);
        assert_eq!(told(&addressees), "");
    }
}
