//! The entry point of the blocking API.

use std::time::Duration;

use leasehold_protocol::node_status::NodeStatus;

use super::{Builder, Election, Guarded, Lock, MultiLock, RwLock, Scope, wait};
use crate::{capabilities::Capabilities, deployment::ReplicaFacts, error::Error};

wrapper! {
    /// As [`leasehold::Leases`](crate::Leases), into which it converts and from which it comes. Cheap to clone: make
    /// one per process.
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::blocking::Leases;
    ///
    /// let leases = Leases::builder().url("memory://").label("worker-1").build()?;
    /// let lease = leases.lock("reports:nightly").acquire()?;
    /// assert!(leases.lock("reports:nightly").try_acquire()?.is_none());
    /// lease.release()?;
    /// leases.close()?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    Leases
}

impl Leases {
    /// Connects with the defaults of [`builder`](Self::builder): [`Leases::connect`](crate::Leases::connect).
    pub fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// Connects at the first use, without a wait: [`Leases::connect_lazy`](crate::Leases::connect_lazy).
    pub fn connect_lazy(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build_lazy()
    }

    /// Without a server, for tests and first tries: [`Leases::in_memory`](crate::Leases::in_memory).
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread.
    #[must_use]
    pub fn in_memory() -> Self {
        Self(crate::Leases::in_memory())
    }

    /// Everything that can be set.
    pub fn builder() -> Builder {
        Builder(crate::Leases::builder())
    }

    getters! {
        Leases:
        nodes -> Vec<NodeStatus>;
    }

    /// The lock of this name. Nothing is sent yet.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// The name that many may read and one may write: [`Leases::rw_lock`](crate::Leases::rw_lock).
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.0.rw_lock(name))
    }

    /// The name that so many may hold at a time: [`Leases::semaphore`](crate::Leases::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        Lock(self.0.semaphore(name, permits))
    }

    /// The election of this name, which is the lock of this name. Nothing is sent yet.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// These locks, acquired together: all of them or none. Nothing is sent yet.
    pub fn multi_lock(&self, locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock(self.0.multi_lock(locks.into_iter().map(Into::into)))
    }

    /// A value that refuses writers from the past, by their fence.
    #[must_use]
    pub fn guarded(&self, key: impl AsRef<str>) -> Guarded {
        Guarded(self.0.guarded(key))
    }

    /// A view with a further prefix and another label, for a tenant or a request.
    pub fn scope(&self) -> Scope {
        Scope(self.0.scope())
    }

    /// See [`Leases::list`](crate::Leases::list).
    pub fn list(&self, pattern: impl AsRef<str>) -> Result<Vec<Lock>, Error> {
        self.scope().list(pattern)
    }

    /// See [`Leases::list_reachable`](crate::Leases::list_reachable).
    pub fn list_reachable(&self, pattern: impl AsRef<str>) -> Result<(Vec<Lock>, Option<Error>), Error> {
        self.scope().list_reachable(pattern)
    }

    /// See [`Leases::capabilities`](crate::Leases::capabilities).
    pub fn capabilities(&self) -> Result<Capabilities, Error> {
        wait(self.0.capabilities())?
    }

    /// See [`Leases::capabilities_of_each`](crate::Leases::capabilities_of_each).
    #[allow(clippy::type_complexity, reason = "of the async one the `async` hides it")]
    pub fn capabilities_of_each(&self) -> Result<Vec<(NodeStatus, Result<Capabilities, Error>)>, Error> {
        wait(self.0.capabilities_of_each())?
    }

    /// See [`Leases::replicas`](crate::Leases::replicas).
    pub fn replicas(&self) -> Result<Vec<ReplicaFacts>, Error> {
        wait(self.0.replicas())?
    }

    /// See [`Leases::health`](crate::Leases::health).
    pub fn health(&self) -> Result<(), Error> {
        wait(self.0.health())?
    }

    /// Waits for everybody who has a lease, for at most `limit`, and then closes this and its clones:
    /// [`Leases::shutdown`](crate::Leases::shutdown). Waits for locks, on other threads, end at once.
    ///
    /// # Errors
    ///
    /// Only [`Error::Config`], on a runtime's thread: nothing was done.
    pub fn shutdown(&self, limit: Duration) -> Result<usize, Error> {
        wait(self.0.shutdown(limit))
    }

    /// Ends everything now that came from this and its clones: [`Leases::close`](crate::Leases::close). Waits for
    /// locks, on other threads, end at once.
    ///
    /// # Errors
    ///
    /// Only [`Error::Config`], on a runtime's thread: nothing was done.
    pub fn close(&self) -> Result<(), Error> {
        wait(self.0.close())
    }
}
