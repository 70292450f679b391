//! A name that many may read, and one may write.

use crate::{lock::Lock, options::Access};

/// A readers-writer lock: at a time, any number of readers may hold it, in any number of processes, or one writer
/// alone. It holds nothing itself: [`read`](Self::read) and [`write`](Self::write) are locks like any other, whose
/// leases are renewed and lost by their own deadlines.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let index = client.rw_lock("search:index");
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
/// - Readers and writers are admitted in turn: a reader that arrives after a waiting writer does not overtake it, so
///   readers that never pause do not keep writers out. [`fair`](Lock::fair) changes nothing.
/// - All readers at one time have the same [fence](crate::Lease::fence): larger than that of every writer before them,
///   and smaller than that of every writer after them.
/// - A plain [`lock`](crate::Client::lock) of the same name excludes readers and writers, and is excluded by them. It
///   does not queue, so readers that never pause keep it out for ever; with [`fair(true)`](Lock::fair) it is the same
///   as [`write`](Self::write).
/// - A reader cannot become a writer without a release: two readers that wanted to would wait for each other.
///
/// It works on one server, on a cluster and behind Sentinels; over a quorum the acquire ends with
/// [`Error::Unsupported`](crate::Error::Unsupported).
#[derive(Debug, Clone)]
#[must_use = "it holds nothing until one of its locks is acquired"]
pub struct RwLock {
    /// Has the options of both.
    lock: Lock,
}

impl RwLock {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock }
    }

    /// The lock of the readers: its [mode](Lock::mode) is [`Mode::Shared`](crate::Mode::Shared) without a limit.
    pub fn read(&self) -> Lock {
        self.lock.clone().with_access(Access::Read)
    }

    /// The lock of the writer: its [mode](Lock::mode) is [`Mode::Exclusive`](crate::Mode::Exclusive).
    pub fn write(&self) -> Lock {
        self.lock.clone().with_access(Access::Write)
    }

    /// The name of both locks, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lock.name()
    }
}
