//! One value for each shard of a node.

use std::{collections::HashMap, mem, ops::Deref, sync::Arc};

use leasehold_protocol::message::Shard;

use crate::sync::Mutex;

/// One value for each shard. The first exists from the start: a node that is not a cluster has no other, and pays for
/// none. The others are made at their first use.
#[derive(Debug)]
pub(crate) struct PerShard<T> {
    first: T,
    others: Mutex<HashMap<Shard, Arc<T>>>,
}

/// The value of one shard.
#[derive(Debug)]
pub(crate) enum Of<'a, T> {
    First(&'a T),
    Other(Arc<T>),
}

impl<T> PerShard<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { first, others: Mutex::default() }
    }

    /// The value of the first shard.
    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    #[inline]
    pub(crate) fn of(&self, shard: Shard, make: impl FnOnce() -> T) -> Of<'_, T> {
        if shard == Shard::FIRST { Of::First(&self.first) } else { self.other(shard, make) }
    }

    #[cold]
    fn other(&self, shard: Shard, make: impl FnOnce() -> T) -> Of<'_, T> {
        let known = self.others.lock().get(&shard).cloned();
        // Made while nothing is locked.
        let make = || {
            let made = Arc::new(make());
            self.others.lock().entry(shard).or_insert(made).clone()
        };
        Of::Other(known.unwrap_or_else(make))
    }

    /// The values of the other shards that were asked for so far.
    pub(crate) fn others(&self) -> Vec<Arc<T>> {
        self.others.lock().values().cloned().collect()
    }

    /// Removes the values of shards that no longer exist, and returns them.
    pub(crate) fn retain(&self, there: &[Shard]) -> Vec<Arc<T>> {
        let mut others = self.others.lock();
        let (stay, gone) = mem::take(&mut *others).into_iter().partition(|(shard, _)| there.contains(shard));
        *others = stay;
        let gone: HashMap<Shard, Arc<T>> = gone;
        gone.into_values().collect()
    }
}

impl<T> Deref for Of<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::First(one) => one,
            Self::Other(one) => one,
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_shard_has_its_own_which_stays_while_the_shard_does() {
        let all = PerShard::new(0);
        let of = |shard, new| *all.of(Shard(shard), || new);
        assert_eq!((of(0, 9), of(1, 1), of(2, 2), of(1, 9), of(2, 9)), (0, 1, 2, 1, 2));
        let gone: Vec<i32> = all.retain(&[Shard(2), Shard(3)]).iter().map(|gone| **gone).collect();
        assert_eq!(gone, [1]);
        assert_eq!((*all.first(), of(0, 9), of(1, 7), of(2, 9)), (0, 0, 7, 2));
    }
}
