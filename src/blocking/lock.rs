//! A named lock, in the blocking API.

use std::time::Duration;

use leasehold_protocol::{holder::Holder, mode::Mode, ticket::Ticket};

use super::{Lease, LeaseHandle, wait};
use crate::{error::Error, owner::Owner, waiter::Waiter};

wrapper! {
    /// As [`leasehold::Lock`](crate::Lock). It has no [`grace`](crate::Lock::grace): nothing drops the work here, which
    /// may take what [`remaining`](LeaseHandle::remaining) says to tidy up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::blocking::Leases::in_memory();
    /// let nightly = leases.lock("reports:nightly").ttl(Duration::from_secs(5));
    /// let lease = nightly.acquire_within(Duration::from_secs(2))?;
    /// lease.release()?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    #[doc(alias = "mutex")]
    #[must_use = "a lock holds nothing until it is acquired"]
    Lock
}

impl Lock {
    setters! {
        Lock:
        ttl(Duration);
        max_hold(impl Into<Option<Duration>>);
        reentrant(bool);
        fair(bool);
        fence_memory(Duration);
        keep_for(Duration);
        once_per(Duration);
        lock_delay(Duration);
        label(impl Into<String>);
        owner(Owner);
        on_wait(impl Fn(&Holder) + Send + Sync + 'static);
        #[cfg(feature = "metrics")] metrics_group(impl AsRef<str>);
    }

    getters! {
        Lock:
        name -> &str;
        mode -> Mode;
    }

    /// Acquires the lock, waiting for as long as it takes: [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// Only the lock, an error or a [`close`](super::Leases::close) on another thread ends the wait. Bound it with
    /// [`acquire_within`](Self::acquire_within).
    pub fn acquire(&self) -> Result<Lease, Error> {
        wait(self.0.acquire())?.map(Lease)
    }

    /// Acquires the lock, waiting for at most `limit`: [`Lock::acquire_within`](crate::Lock::acquire_within).
    pub fn acquire_within(&self, limit: Duration) -> Result<Lease, Error> {
        wait(self.0.acquire_within(limit))?.map(Lease)
    }

    /// Acquires the lock if it is free; `None` if somebody holds it: [`Lock::try_acquire`](crate::Lock::try_acquire).
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> Result<Option<Lease>, Error> {
        Ok(wait(self.0.try_acquire())??.map(Lease))
    }

    /// Goes on with the lock of the lease that the ticket was made from: [`Lock::adopt`](crate::Lock::adopt).
    pub fn adopt(&self, ticket: Ticket) -> Result<Lease, Error> {
        wait(self.0.adopt(ticket))?.map(Lease)
    }

    /// Acquires the lock, runs `work` under it on this thread, and releases it.
    ///
    /// **It cannot stop the work.** The lease is checked before and after: if it was lost meanwhile, the end is
    /// [`Error::Lost`], though the work gave `Ok`. Long work asks [`check`](LeaseHandle::check) between two steps. A
    /// panic of the work releases the lock too.
    ///
    /// ```
    /// # use leasehold::{Error, blocking::Leases};
    /// # fn main() -> Result<(), Error> {
    /// let lock = Leases::in_memory().lock("reports:nightly");
    /// let rows = lock.run(|lease| {
    ///     let mut rows = 0;
    ///     for part in [10, 20, 12] {
    ///         lease.check()?;
    ///         rows += part;
    ///     }
    ///     Ok::<_, Error>(rows)
    /// })?;
    /// # assert_eq!(rows, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// With a loss the value of the work is gone: after [`Error::Lost`] nobody shall take it for that of a holder. If
    /// you need it all the same, such as the number of a payment that was made, take the three steps yourself:
    ///
    /// ```
    /// # use leasehold::{Error, blocking::{Lease, Leases}};
    /// # fn pay(_: &Lease) -> u32 { 7 }
    /// # fn main() -> Result<(), Error> {
    /// # let lock = Leases::in_memory().lock("invoice:17");
    /// let lease = lock.acquire()?;
    /// let payment = pay(&lease);
    /// if let Err(lost) = lease.release() {
    ///     eprintln!("payment {payment} was made, and another holder may have made one too: {lost}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::run`](crate::Lock::run); all of them are an `E`.
    pub fn run<T, E: From<Error>>(&self, work: impl FnOnce(LeaseHandle) -> Result<T, E>) -> Result<T, E> {
        wait(self.0.run(async |lease| work(LeaseHandle(lease))))?
    }

    /// As [`run`](Self::run), but waits for at most `limit` for the lock.
    pub fn run_within<T, E: From<Error>>(
        &self,
        limit: Duration,
        work: impl FnOnce(LeaseHandle) -> Result<T, E>,
    ) -> Result<T, E> {
        wait(self.0.run_within(limit, async |lease| work(LeaseHandle(lease))))?
    }

    /// As [`run`](Self::run), but skips the work if the lock is held: `None`.
    pub fn try_run<T, E: From<Error>>(&self, work: impl FnOnce(LeaseHandle) -> Result<T, E>) -> Result<Option<T>, E> {
        wait(self.0.try_run(async |lease| work(LeaseHandle(lease))))?
    }

    /// See [`Lock::holder`](crate::Lock::holder).
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        wait(self.0.holder())?
    }

    /// See [`Lock::holders`](crate::Lock::holders).
    pub fn holders(&self) -> Result<Vec<Holder>, Error> {
        wait(self.0.holders())?
    }

    /// See [`Lock::waiters`](crate::Lock::waiters).
    pub fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        wait(self.0.waiters())?
    }

    /// Deletes the lock's key **whoever holds it**: [`Lock::force_release`](crate::Lock::force_release).
    pub fn force_release(&self) -> Result<bool, Error> {
        wait(self.0.force_release())?
    }

    /// The same, and its holder hears why: [`Lock::force_release_because`](crate::Lock::force_release_because).
    pub fn force_release_because(&self, reason: &str) -> Result<bool, Error> {
        wait(self.0.force_release_because(reason))?
    }
}
