//! Who is asking: what makes two acquires one owner's, and what such an owner finds.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
};

use leasehold_protocol::{key::Key, time::Time};
use tokio::task;

use crate::{sync::Mutex, watchdog::Hold};

/// Who acquires, for [re-entrancy](crate::Lock::reentrant) and for the answer
/// [`AlreadyHeld`](crate::AcquireError::AlreadyHeld) instead of a deadlock with oneself.
///
/// Ownership is known within one [`Leases`](crate::Leases) and its clones only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Task,
    Identity(u64),
    Anonymous,
}

impl Owner {
    /// The Tokio task that first polls the acquire, or outside a task the thread that does. The default.
    ///
    /// It stays the owner when the lease is moved elsewhere. All branches of `join!`, `select!` and
    /// `buffer_unordered` are **one** task, and a dispatcher that acquires leases and hands them to workers is one task
    /// too: with `reentrant(true)` they are all let in together.
    #[must_use]
    pub fn task() -> Self {
        Self(Kind::Task)
    }

    /// A fresh identity, shared by the clones of the value: for one logical owner that spans tasks.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "each call makes somebody else")]
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(Kind::Identity(LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// Nobody in particular: never re-enters, never is told `AlreadyHeld`, and waits even for itself.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(Kind::Anonymous)
    }

    /// Who that is, here and now; `None` for the anonymous.
    pub(crate) fn resolve(&self) -> Option<OwnerId> {
        match self.0 {
            Kind::Task => Some(task::try_id().map_or_else(|| OwnerId::Thread(thread::current().id()), OwnerId::Task)),
            Kind::Identity(id) => Some(OwnerId::Identity(id)),
            Kind::Anonymous => None,
        }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Self::task()
    }
}

/// A resolved owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OwnerId {
    Task(task::Id),
    Thread(ThreadId),
    Identity(u64),
}

/// Which owner holds, or is acquiring, which lock.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    table: Mutex<HashMap<(OwnerId, Key), Entry>>,
}

#[derive(Debug)]
struct Entry {
    owner_slot: Weak<OwnerSlot>,
    /// What was won; an acquire still under way has nothing yet.
    hold: Option<Weak<Hold>>,
    reentrant: bool,
}

/// One owner's place at one lock, from the start of its acquire until the last of its leases has gone.
#[derive(Debug)]
pub(crate) struct OwnerSlot {
    owners: Arc<Owners>,
    at: (OwnerId, Key),
}

/// What an owner finds that wants a lock.
pub(crate) enum Claim {
    /// Nothing of its own is in the way.
    Free(Arc<OwnerSlot>),
    /// It holds the lock, and both times it was asked to be re-entrant.
    Held(Arc<Hold>, Arc<OwnerSlot>),
    /// It would wait for itself.
    Refused { pending: bool },
}

impl Owners {
    pub(crate) fn claim(self: &Arc<Self>, owner: OwnerId, key: &Key, reentrant: bool, now: Time) -> Claim {
        let at = (owner, key.clone());
        // Declared before the guard, so dropped after it: a seat's last reference locks the table.
        let owner_slot;
        let mut table = self.table.lock();
        if let Some(entry) = table.get(&at) {
            owner_slot = entry.owner_slot.upgrade();
            // Lost, expired or being released: a new acquisition.
            let live = |hold: &Arc<Hold>| !hold.remaining(now).is_zero();
            match (&owner_slot, &entry.hold) {
                // The seat is being given up on another thread.
                (None, _) => {}
                (Some(_), None) => return Claim::Refused { pending: true },
                (Some(owner_slot), Some(hold)) => match hold.upgrade().filter(live) {
                    None => {}
                    Some(hold) if reentrant && entry.reentrant => return Claim::Held(hold, owner_slot.clone()),
                    Some(_) => return Claim::Refused { pending: false },
                },
            }
        }
        let owner_slot = Arc::new(OwnerSlot { owners: self.clone(), at: at.clone() });
        table.insert(at, Entry { owner_slot: Arc::downgrade(&owner_slot), hold: None, reentrant });
        Claim::Free(owner_slot)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }
}

impl Entry {
    /// Or of another seat, which has taken the place of a dying one.
    fn is_of(&self, owner_slot: &OwnerSlot) -> bool {
        std::ptr::eq(self.owner_slot.as_ptr(), owner_slot)
    }
}

impl OwnerSlot {
    /// The acquire was won.
    pub(crate) fn hold(&self, hold: &Arc<Hold>) {
        let mut table = self.owners.table.lock();
        if let Some(entry) = table.get_mut(&self.at).filter(|entry| entry.is_of(self)) {
            entry.hold = Some(Arc::downgrade(hold));
        }
    }
}

impl Drop for OwnerSlot {
    fn drop(&mut self) {
        let mut table = self.owners.table.lock();
        if table.get(&self.at).is_some_and(|entry| entry.is_of(self)) {
            table.remove(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_seat_that_dies_elsewhere_during_a_claim_does_not_lock_the_table_twice() {
        let (owners, key) = (Arc::<Owners>::default(), Key::new("", "job").unwrap());
        let id = OwnerId::Identity(1);
        let (done, all_done) = std::sync::mpsc::channel();
        for _ in 0..3 {
            let (owners, key, done) = (owners.clone(), key.clone(), done.clone());
            std::thread::Builder::new()
                .spawn(move || {
                    for _ in 0..100_000 {
                        drop(owners.claim(id, &key, false, Time::ZERO));
                    }
                    done.send(()).unwrap();
                })
                .unwrap();
        }
        for _ in 0..3 {
            all_done.recv_timeout(Duration::from_secs(60)).expect("no thread is stuck in the table");
        }
        assert!(owners.is_empty());
    }
}
