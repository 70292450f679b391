//! Re-entrancy: the locks that each owner holds or is acquiring.

use std::{
    panic::RefUnwindSafe,
    sync::{Arc, Weak},
};

use leasehold_protocol::{hash::HashMap, key::Key, time::Time};
use tokio_util::sync::CancellationToken;

use crate::{held::Hold, owner::OwnerId, sync::Mutex};

/// The re-entrant owners, and the locks that each holds or is acquiring.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    table: Mutex<HashMap<(OwnerId, Key), OwnerEntry>>,
}

#[derive(Debug)]
struct OwnerEntry {
    owner_slot: Weak<OwnerSlot>,
    /// The hold that was won; `None` while the acquire is still under way.
    hold: Option<Weak<Hold>>,
}

/// One owner's slot for one lock, from the start of its acquire until its last lease has let go.
#[derive(Debug)]
pub(crate) struct OwnerSlot {
    owners: Arc<Owners>,
    at: (OwnerId, Key),
    /// Cancelled when one of its acquires is won.
    won: CancellationToken,
}

// For the same reason as `Engine`.
impl RefUnwindSafe for OwnerSlot {}

/// The state of a lock for an owner that wants it.
pub(crate) enum Reentry {
    /// The owner does not hold it. Other acquires of the owner may be under way: the first win is a win for all.
    Free(Arc<OwnerSlot>),
    /// It holds the lock.
    Held(Arc<Hold>, Arc<OwnerSlot>),
}

impl Owners {
    pub(crate) fn enter(self: &Arc<Self>, owner: OwnerId, key: &Key, now: Time) -> Reentry {
        let at = (owner, key.clone());
        // Declared before the guard, so dropped after it: a slot's last reference locks the table.
        let owner_slot;
        let mut table = self.table.lock();
        if let Some(entry) = table.get(&at) {
            owner_slot = entry.owner_slot.upgrade();
            // Lost, expired or being released: a new acquisition.
            let live = |hold: &Arc<Hold>| !hold.remaining(now).is_zero();
            match (&owner_slot, &entry.hold) {
                // The slot is being given up on another thread.
                (None, _) => {}
                (Some(owner_slot), None) => return Reentry::Free(owner_slot.clone()),
                (Some(owner_slot), Some(hold)) => {
                    if let Some(hold) = hold.upgrade().filter(live) {
                        return Reentry::Held(hold, owner_slot.clone());
                    }
                }
            }
        }
        let owner_slot = Arc::new(OwnerSlot { owners: self.clone(), at: at.clone(), won: CancellationToken::new() });
        table.insert(at, OwnerEntry { owner_slot: Arc::downgrade(&owner_slot), hold: None });
        Reentry::Free(owner_slot)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }
}

impl OwnerEntry {
    /// Whether the entry belongs to this slot. If not, a newer slot has taken its place.
    fn is_of(&self, owner_slot: &OwnerSlot) -> bool {
        std::ptr::eq(self.owner_slot.as_ptr(), owner_slot)
    }
}

impl OwnerSlot {
    /// Completes when an acquire of this owner was won.
    pub(crate) async fn won(&self) {
        self.won.cancelled().await;
    }

    /// Notes the hold of an acquire that was won.
    pub(crate) fn hold(&self, hold: &Arc<Hold>) {
        let mut table = self.owners.table.lock();
        if let Some(entry) = table.get_mut(&self.at).filter(|entry| entry.is_of(self)) {
            entry.hold = Some(Arc::downgrade(hold));
        }
        drop(table);
        self.won.cancel();
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
    fn a_slot_that_is_dropped_elsewhere_during_an_entry_does_not_lock_the_table_twice() {
        let (owners, key) = (Arc::<Owners>::default(), Key::new("", "job").unwrap());
        let id = OwnerId::Identity(1);
        let (done, all_done) = std::sync::mpsc::channel();
        for _ in 0..3 {
            let (owners, key, done) = (owners.clone(), key.clone(), done.clone());
            std::thread::Builder::new()
                .spawn(move || {
                    for _ in 0..100_000 {
                        drop(owners.enter(id, &key, Time::ZERO));
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
