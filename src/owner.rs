//! The owners of acquires.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, ThreadId},
};

use tokio::task;

/// The owner of an acquire. It matters only to [re-entrancy](crate::Lock::reentrant), and to the warning of an acquire
/// that waits for its own owner.
///
/// ```
/// # use leasehold::{Client, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = Client::in_memory();
/// let (import, lock) = (Owner::unique(), client.lock("ledger").reentrant(true));
/// let first = lock.clone().owner(import.clone()).acquire().await?;
/// let again = lock.clone().owner(import).acquire().await?; // the same owner, in whatever task
/// assert_eq!(first.fence(), again.fence());
/// assert!(lock.owner(Owner::unique()).try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
///
/// Ownership is known within one [`Client`](crate::Client) and its clones only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner(OwnerKind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum OwnerKind {
    Task,
    Identity(u64),
    Anonymous,
}

impl Owner {
    /// The Tokio task that first polls the acquire, or outside a task the thread that does. The default.
    ///
    /// It stays the owner when the lease is moved to another task. All branches of `join!`, `select!` and
    /// `buffer_unordered` are **one** task. So is a dispatcher that acquires leases and hands them to workers. With
    /// `reentrant(true)` they are all admitted together.
    #[must_use]
    pub fn task() -> Self {
        Self(OwnerKind::Task)
    }

    /// A fresh identity, shared by the clones of the value: for one logical owner that spans tasks.
    #[must_use]
    pub fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(OwnerKind::Identity(LAST.fetch_add(1, Ordering::Relaxed)))
    }

    /// No particular owner: never re-enters, and waits even for itself without a warning.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(OwnerKind::Anonymous)
    }

    /// The identity of this owner in the current task or thread; `None` for the anonymous.
    pub(crate) fn resolve(&self) -> Option<OwnerId> {
        match self.0 {
            OwnerKind::Task => {
                Some(task::try_id().map_or_else(|| OwnerId::Thread(thread::current().id()), OwnerId::Task))
            }
            OwnerKind::Identity(id) => Some(OwnerId::Identity(id)),
            OwnerKind::Anonymous => None,
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
