//! A name that many may read, and one may write.

use crate::{lock::Lock, options::Access};

/// A name that many may read at a time, in any number of processes, and one may write, beside nobody. It holds nothing:
/// [`read`](Self::read) and [`write`](Self::write) are locks like any other, whose leases are renewed and lost by their own
/// deadline.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let index = leases.rw_lock("search:index");
/// let (one, other) = (index.read().acquire().await?, index.read().acquire().await?);
/// assert!(index.write().try_acquire().await?.is_none(), "it is read");
/// one.release().await?;
/// other.release().await?;
/// let writing = index.write().acquire().await?;
/// println!("written with fence {}", writing.fence());
/// writing.release().await?;
/// # Ok(()) }
/// ```
///
/// - Everybody comes in its turn: a reader that comes behind a writer that waits does not overtake it, so readers that never
///   pause do not keep writers out. [`fair`](Lock::fair) changes nothing.
/// - All who read at one time have the same [fence](crate::Lease::fence): larger than that of every writer before them, and
///   smaller than that of every one after.
/// - A plain [`lock`](crate::Leases::lock) of the same name shuts out readers and writers, and is shut out by them. It stands in
///   no queue, so readers that never pause keep it out for ever; with [`fair(true)`](Lock::fair) it is the same as
///   [`write`](Self::write).
/// - There is no way from reading to writing without a release: two that wanted it would wait for each other.
///
/// It works on one server, on a cluster and behind Sentinels; over a quorum the acquire ends with
/// [`Error::Unsupported`](crate::Error::Unsupported).
#[derive(Debug, Clone)]
#[must_use = "it holds nothing until one of its locks is acquired"]
pub struct RwLock {
    /// With the options of both.
    lock: Lock,
}

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// The lock of those who read: its [mode](Lock::mode) is [`Mode::Shared`](crate::Mode::Shared) without a limit.
    pub fn read(&self) -> Lock {
        self.lock.clone().with_access(Access::Read)
    }

    /// The lock of whoever writes: its [mode](Lock::mode) is [`Mode::Exclusive`](crate::Mode::Exclusive).
    pub fn write(&self) -> Lock {
        self.lock.clone().with_access(Access::Write)
    }

    /// The name of both, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }
}
