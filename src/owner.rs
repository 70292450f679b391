//! Who is asking: what makes two acquires one owner's, and what such an owner finds.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
};

use parking_lot::Mutex;
use tokio::{sync::Notify, task};

use crate::{key::Key, watchdog::Hold};

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
    last: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    /// Which seat's entry this is.
    seat_id: u64,
    seat: Weak<Seat>,
    hold: Option<Weak<Hold>>,
    reentrant: bool,
    changed: Arc<Notify>,
}

/// One owner's place at one lock, from the start of its acquire until the last of its leases has gone.
#[derive(Debug)]
pub(crate) struct Seat {
    owners: Arc<Owners>,
    at: (OwnerId, Key),
    id: u64,
}

/// What an owner finds that wants a lock.
pub(crate) enum Claim {
    /// Nothing of its own is in the way.
    Free(Arc<Seat>),
    /// It holds the lock, and both times it was asked to be re-entrant.
    Held(Arc<Hold>, Arc<Seat>),
    /// It is acquiring the lock; both are re-entrant. Completes when that has changed.
    Pending(tokio::sync::futures::OwnedNotified),
    /// It would wait for itself.
    Refused { pending: bool },
}

impl Owners {
    pub(crate) fn claim(self: &Arc<Self>, owner: OwnerId, key: &Key, reentrant: bool) -> Claim {
        let at = (owner, key.clone());
        let mut table = self.table.lock();
        if let Some(entry) = table.get(&at) {
            let may_share = reentrant && entry.reentrant;
            match (&entry.hold, entry.seat.upgrade()) {
                // The seat is being given up on another thread.
                (_, None) => {}
                (None, Some(_)) if may_share => return Claim::Pending(entry.changed.clone().notified_owned()),
                (None, Some(_)) => return Claim::Refused { pending: true },
                (Some(hold), Some(seat)) => match hold.upgrade().filter(|hold| hold.end().is_none()) {
                    // Lost, or being released: a new acquisition.
                    None => {}
                    Some(hold) if may_share => return Claim::Held(hold, seat),
                    Some(_) => return Claim::Refused { pending: false },
                },
            }
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let seat = Arc::new(Seat { owners: self.clone(), at: at.clone(), id });
        let changed = Arc::new(Notify::new());
        table.insert(at, Entry { seat_id: id, seat: Arc::downgrade(&seat), hold: None, reentrant, changed });
        Claim::Free(seat)
    }
}

impl Seat {
    /// The acquire was won.
    pub(crate) fn hold(&self, hold: &Arc<Hold>) {
        let mut table = self.owners.table.lock();
        if let Some(entry) = table.get_mut(&self.at).filter(|entry| entry.seat_id == self.id) {
            entry.hold = Some(Arc::downgrade(hold));
            entry.changed.notify_waiters();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.owners.table.lock();
        if table.get(&self.at).is_some_and(|entry| entry.seat_id == self.id) {
            if let Some(entry) = table.remove(&self.at) {
                entry.changed.notify_waiters();
            }
        }
    }
}
