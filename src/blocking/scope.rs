//! A part of a program, or a tenant of it, in the blocking API.

use super::{Election, Guarded, Lock, MultiLock, RwLock, wait};
use crate::error::Error;

wrapper! {
    /// As [`leasehold::Scope`](crate::Scope).
    #[derive(Clone)]
    #[must_use = "it is there for its locks"]
    Scope
}

impl Scope {
    setters! {
        Scope:
        prefix(impl AsRef<str>);
        label(impl Into<String>);
        #[cfg(feature = "metrics")] metrics_group(impl AsRef<str>);
    }

    /// The lock of this name.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock(self.0.lock(name))
    }

    /// The name that many may read and one may write.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.0.rw_lock(name))
    }

    /// The name that so many may hold at a time.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        Lock(self.0.semaphore(name, permits))
    }

    /// The election of this name.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// These locks, acquired together: all of them or none. Nothing is sent yet.
    pub fn multi_lock(&self, locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock(self.0.multi_lock(locks.into_iter().map(Into::into)))
    }

    /// A value that refuses writers from the past.
    #[must_use]
    pub fn guarded(&self, key: impl AsRef<str>) -> Guarded {
        Guarded(self.0.guarded(key))
    }

    /// See [`Scope::list`](crate::Scope::list).
    pub fn list(&self, pattern: impl AsRef<str>) -> Result<Vec<Lock>, Error> {
        Ok(wait(self.0.list(pattern))??.into_iter().map(Lock).collect())
    }

    /// See [`Scope::list_reachable`](crate::Scope::list_reachable).
    pub fn list_reachable(&self, pattern: impl AsRef<str>) -> Result<(Vec<Lock>, Option<Error>), Error> {
        let (locks, missing) = wait(self.0.list_reachable(pattern))??;
        Ok((locks.into_iter().map(Lock).collect(), missing))
    }
}
