//! A name that many may read, and one may write, in the blocking API.

use super::Lock;

wrapper! {
    /// As [`leasehold::RwLock`](crate::RwLock).
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::blocking::Leases::in_memory();
    /// let index = leases.rw_lock("search:index");
    /// let (one, other) = (index.read().acquire()?, index.read().acquire()?);
    /// assert!(index.write().try_acquire()?.is_none(), "it is read");
    /// one.release()?;
    /// other.release()?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    #[must_use = "it holds nothing until one of its locks is acquired"]
    RwLock
}

impl RwLock {
    getters! {
        RwLock:
        name -> &str;
    }

    /// The lock of those who read: [`RwLock::read`](crate::RwLock::read).
    pub fn read(&self) -> Lock {
        Lock(self.0.read())
    }

    /// The lock of whoever writes: [`RwLock::write`](crate::RwLock::write).
    pub fn write(&self) -> Lock {
        Lock(self.0.write())
    }
}
