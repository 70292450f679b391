//! Several locks as one, in the blocking API.

use std::time::Duration;

use leasehold_protocol::fence::Fence;
use tokio_util::sync::CancellationToken;

use super::{Lease, LeaseHandle, on_lost, wait, wait_within};
use crate::{error::Error, lost::Lost, released::Released};

wrapper! {
    /// Several locks as one, all of them or none: as [`leasehold::MultiLock`](crate::MultiLock).
    ///
    /// ```
    /// # use leasehold::{Error, blocking::Leases};
    /// # fn main() -> Result<(), Error> {
    /// # let leases = Leases::in_memory();
    /// let both = leases.multi_lock([leases.lock("account:9"), leases.lock("account:7")]);
    /// both.run(|held| {
    ///     held.check()?;
    ///     Ok::<_, Error>(held.fence("account:7"))
    /// })?;
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    #[must_use = "a multi-lock holds nothing until it is acquired"]
    MultiLock
}

impl MultiLock {
    /// Acquires all of them, waiting for as long as it takes: [`MultiLock::acquire`](crate::MultiLock::acquire).
    pub fn acquire(&self) -> Result<MultiLease, Error> {
        wait(self.0.acquire())?.map(MultiLease)
    }

    /// The same for at most `limit`: [`MultiLock::acquire_within`](crate::MultiLock::acquire_within).
    pub fn acquire_within(&self, limit: Duration) -> Result<MultiLease, Error> {
        wait(self.0.acquire_within(limit))?.map(MultiLease)
    }

    /// Acquires all of them if all are free: [`MultiLock::try_acquire`](crate::MultiLock::try_acquire).
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> Result<Option<MultiLease>, Error> {
        Ok(wait(self.0.try_acquire())??.map(MultiLease))
    }

    /// Acquires all of them, runs `work` on this thread, and releases them. It cannot stop the work: see
    /// [`Lock::run`](super::Lock::run).
    pub fn run<T, E: From<Error>>(&self, work: impl FnOnce(MultiLeaseHandle) -> Result<T, E>) -> Result<T, E> {
        wait(self.0.run(async |held| work(MultiLeaseHandle(held))))?
    }

    /// As [`run`](Self::run), but waits for at most `limit` for the locks.
    pub fn run_within<T, E: From<Error>>(
        &self,
        limit: Duration,
        work: impl FnOnce(MultiLeaseHandle) -> Result<T, E>,
    ) -> Result<T, E> {
        wait(self.0.run_within(limit, async |held| work(MultiLeaseHandle(held))))?
    }

    /// As [`run`](Self::run), but skips the work if one of the locks is held: `None`.
    pub fn try_run<T, E: From<Error>>(
        &self,
        work: impl FnOnce(MultiLeaseHandle) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        wait(self.0.try_run(async |held| work(MultiLeaseHandle(held))))?
    }
}

wrapper! {
    /// Several locks that are held together, as [`leasehold::MultiLease`](crate::MultiLease). Dropping it releases them
    /// in the background.
    #[must_use = "leases that are dropped are released"]
    MultiLease
}

wrapper! {
    /// A view of a [`MultiLease`] for other threads.
    #[derive(Clone)]
    MultiLeaseHandle
}

/// The methods that the leases and their handles share.
macro_rules! view {
    ($type:ident) => {
        impl $type {
            getters! {
                MultiLeaseHandle:
                is_held -> bool;
                remaining -> Duration;
                cancellation_token -> CancellationToken;
            }

            /// Whether all of them hold right now.
            ///
            /// # Errors
            ///
            /// How the first that did not hold has ended.
            pub fn check(&self) -> Result<(), Error> {
                self.0.check()
            }

            /// The fencing token of the lock of this name; `None` if it is none of these.
            #[must_use]
            pub fn fence(&self, name: impl AsRef<str>) -> Option<Fence> {
                self.0.fence(name)
            }

            /// A handle on the lease of each lock, in the order of their keys.
            #[must_use]
            pub fn leases(&self) -> Vec<LeaseHandle> {
                self.view().leases().iter().cloned().map(LeaseHandle).collect()
            }

            /// Waits until the first of them ends: [`Lease::wait_lost`].
            ///
            /// # Errors
            ///
            /// Only [`Error::Config`], on a runtime's thread.
            pub fn wait_lost(&self, limit: Duration) -> Result<Option<Lost>, Error> {
                let view = self.view();
                let Some(lease) = view.leases().first() else { return Ok(None) };
                wait_within(&lease.client.host, limit, self.0.lost())
            }

            /// Calls `tell` once, with the first of them that is lost: [`Lease::on_lost`].
            pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
                on_lost(self.0.lost(), tell);
            }
        }
    };
}

view!(MultiLease);
view!(MultiLeaseHandle);

impl MultiLeaseHandle {
    fn view(&self) -> &crate::MultiLeaseHandle {
        &self.0
    }
}

impl MultiLease {
    fn view(&self) -> crate::MultiLeaseHandle {
        self.0.handle()
    }

    /// A handle on these leases that can be moved to another thread.
    #[must_use]
    pub fn handle(&self) -> MultiLeaseHandle {
        MultiLeaseHandle(self.0.handle())
    }

    /// The leases, to release each by itself.
    #[must_use = "leases that are dropped are released"]
    pub fn into_leases(self) -> Vec<Lease> {
        self.0.into_leases().into_iter().map(Lease).collect()
    }

    /// Releases all of them: [`MultiLease::release`](crate::MultiLease::release).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the one that ended first. [`Error::Config`] on a runtime's thread: all are dropped.
    pub fn release(self) -> Result<Released, Error> {
        wait(self.0.release())?
    }

    /// The same, but each key stays for `keep`: [`MultiLease::release_keeping`](crate::MultiLease::release_keeping).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        wait(self.0.release_keeping(keep))?
    }

    /// Runs `work` on this thread, then releases them. It cannot stop the work: see [`Lock::run`](super::Lock::run).
    ///
    /// # Errors
    ///
    /// As [`MultiLease::run`](crate::MultiLease::run).
    pub fn run<T, E: From<Error>>(self, work: impl FnOnce(MultiLeaseHandle) -> Result<T, E>) -> Result<T, E> {
        wait(self.0.run(async |held| work(MultiLeaseHandle(held))))?
    }
}
