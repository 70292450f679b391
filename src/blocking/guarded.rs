//! Fencing at a value in Redis, in the blocking API.

use leasehold_protocol::fence::Fence;

use super::wait;
use crate::error::Error;

wrapper! {
    /// As [`leasehold::Guarded`](crate::Guarded).
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::blocking::Leases::in_memory();
    /// let report = leases.guarded("reports:latest");
    /// let lease = leases.lock("reports:nightly").acquire()?;
    /// report.set(b"42 rows", lease.fence())?;
    /// assert_eq!(report.get()?, Some((b"42 rows".to_vec(), lease.fence())));
    /// # lease.release()?; Ok(()) }
    /// ```
    #[derive(Clone)]
    Guarded
}

impl Guarded {
    getters! {
        Guarded:
        name -> &str;
    }

    /// Writes the value, unless a later holder has written before: [`Guarded::set`](crate::Guarded::set).
    pub fn set(&self, value: impl AsRef<[u8]>, fence: Fence) -> Result<(), Error> {
        wait(self.0.set(value, fence))?
    }

    /// The value and the fence that it was written with: [`Guarded::get`](crate::Guarded::get).
    pub fn get(&self) -> Result<Option<(Vec<u8>, Fence)>, Error> {
        wait(self.0.get())?
    }
}
