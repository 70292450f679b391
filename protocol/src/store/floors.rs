//! The floors of locks: each must be exceeded by the lock's next fence, and is kept for a while.

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use super::hash_sorted;
use crate::{
    fence::Fence,
    hash::HashMap,
    key::Key,
    time::{Micros, micros},
};

/// The floor of each lock, and until when it is kept.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Floors(HashMap<Key, (Fence, Micros)>);

impl Floors {
    pub(super) fn get(&mut self, now: Micros, key: &Key) -> Option<Fence> {
        let &(fence, until) = self.0.get(key)?;
        if until <= now {
            self.0.remove(key);
            return None;
        }
        Some(fence)
    }

    /// Raises a floor that is lower than this fence.
    pub(super) fn raise(&mut self, now: Micros, key: &Key, fence: Fence, memory: Duration) {
        if self.get(now, key).is_none_or(|floor| floor < fence) {
            self.keep(now, key, fence, memory);
        }
    }

    /// Keeps a floor for its memory after the fence's own time or after now, whichever is later, and in any case until
    /// the clock has passed it.
    pub(super) fn keep(&mut self, now: Micros, key: &Key, fence: Fence, memory: Duration) {
        let until = u64::from(fence).max(now) + micros(memory).max(1);
        self.0.insert(key.clone(), (fence, until));
    }

    /// Removes a floor that moves to another server. Returns it, and for how long it is kept.
    pub(super) fn take(&mut self, now: Micros, key: &Key) -> Option<(Fence, Micros)> {
        self.get(now, key)?;
        self.0.remove(key).map(|(fence, until)| (fence, until.saturating_sub(now)))
    }

    /// Stores a floor that comes from another server, and is kept until then.
    pub(super) fn put(&mut self, key: &Key, fence: Fence, until: Micros) {
        self.0.insert(key.clone(), (fence, until));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) fn has(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// Forgets expired floors.
    pub(super) fn sweep(&mut self, now: Micros) {
        self.0.retain(|_, &mut (_, until)| until > now);
    }
}

impl Hash for Floors {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_sorted(&self.0, state);
    }
}
