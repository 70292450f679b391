//! A held lock, in the blocking API.

use std::time::Duration;

use leasehold_protocol::{fence::Fence, mode::Mode, ticket::Ticket};
use tokio_util::sync::CancellationToken;

use super::{on_lost, wait, wait_within};
use crate::{error::Error, lost::Lost, released::Released, status::Status};

wrapper! {
    /// A held lock, as [`leasehold::Lease`](crate::Lease): from the acquire until [`release`](Self::release), loss or
    /// drop.
    ///
    /// The keeper extends it, whatever this thread does. Dropping it releases the lock in the background and never
    /// waits, during a panic neither.
    #[must_use = "a lease that is dropped is released"]
    Lease
}

wrapper! {
    /// A view of a [`Lease`] for other threads, as [`leasehold::LeaseHandle`](crate::LeaseHandle): all of it but the
    /// release.
    #[derive(Clone)]
    LeaseHandle
}

/// The methods that a lease and its handles share.
macro_rules! view {
    ($type:ident) => {
        impl $type {
            getters! {
                LeaseHandle:
                is_held -> bool;
                remaining -> Duration;
                status -> Status;
                cancellation_token -> CancellationToken;
                fence -> Fence;
                mode -> Mode;
                name -> &str;
                label -> &str;
                hold_count -> usize;
            }

            /// Whether the lease holds right now: [`LeaseHandle::check`](crate::LeaseHandle::check). Ask it before each
            /// step that only the holder may do.
            ///
            /// # Errors
            ///
            /// How the lease ended.
            pub fn check(&self) -> Result<(), Error> {
                self.0.check()
            }

            /// Extends the lease now: [`LeaseHandle::renew`](crate::LeaseHandle::renew).
            #[doc(alias = "extend")]
            pub fn renew(&self) -> Result<(), Error> {
                wait(self.0.renew())?
            }

            /// Waits until the lease ends or its holder is asked to stop, as
            /// [`LeaseHandle::lost`](crate::LeaseHandle::lost) does, for at most `limit`; `None` if it has not by then.
            /// Zero looks, and does not wait.
            ///
            /// ```
            /// # use std::time::Duration;
            /// # fn main() -> Result<(), leasehold::Error> {
            /// # let leases = leasehold::blocking::Leases::in_memory();
            /// let lease = leases.lock("reports:nightly").acquire()?;
            /// // Between two rounds of a job: a pause, unless the lease is lost.
            /// if let Some(lost) = lease.wait_lost(Duration::from_millis(10))? {
            ///     return Err(lost.into());
            /// }
            /// # lease.release()?; Ok(()) }
            /// ```
            ///
            /// # Errors
            ///
            /// Only [`Error::Config`], on a runtime's thread.
            pub fn wait_lost(&self, limit: Duration) -> Result<Option<Lost>, Error> {
                wait_within(&self.view().client.host, limit, self.0.lost())
            }

            /// Calls `tell` once when the lease is lost, or its holder is asked to stop ([`Lost::is_over`] tells
            /// which); never when it is released, dropped or handed over. If that was before, it is called all the
            /// same.
            ///
            /// It is called on a thread of its own, where it may block: no other lease waits for it. It must not take its
            /// time nevertheless, for the lease may be another holder's already. A panic in it ends there.
            ///
            /// ```
            /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
            /// # fn main() -> Result<(), leasehold::Error> {
            /// # let leases = leasehold::blocking::Leases::in_memory();
            /// let lease = leases.lock("reports:nightly").acquire()?;
            /// let stop = Arc::new(AtomicBool::new(false));
            /// let stops = stop.clone();
            /// lease.on_lost(move |lost| {
            ///     eprintln!("{lost}");
            ///     stops.store(true, Ordering::Relaxed); // or kill the child process that does the work
            /// });
            /// # lease.release()?; assert!(!stop.load(Ordering::Relaxed)); Ok(()) }
            /// ```
            pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
                on_lost(self.0.lost(), tell);
            }
        }
    };
}

view!(Lease);
view!(LeaseHandle);

impl Lease {
    fn view(&self) -> &crate::LeaseHandle {
        self.0.as_handle()
    }

    /// A handle on this lease that can be moved to another thread.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        LeaseHandle(self.0.handle())
    }

    /// Releases the lock: [`Lease::release`](crate::Lease::release). It waits for at most one command time-out.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease ended before, so what was done since then was not protected. [`Error::Config`] on a
    /// runtime's thread: the lease is dropped, which releases it in the background.
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<Released, Error> {
        wait(self.0.release())?
    }

    /// The same, but the key stays for `keep`: [`Lease::release_keeping`](crate::Lease::release_keeping).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        wait(self.0.release_keeping(keep))?
    }

    /// Ends the lease here, and gives the ticket with which another process [adopts](super::Lock::adopt) the lock,
    /// without a wait: [`Lease::into_ticket`](crate::Lease::into_ticket).
    pub fn into_ticket(self) -> Result<Ticket, Error> {
        self.0.into_ticket()
    }

    /// A ticket for whoever takes over when this process has died: [`Lease::ticket`](crate::Lease::ticket).
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        self.0.ticket()
    }

    /// Runs `work` on this thread, then releases the lock. It cannot stop the work: see
    /// [`Lock::run`](super::Lock::run).
    ///
    /// # Errors
    ///
    /// As [`Lease::run`](crate::Lease::run).
    pub fn run<T, E: From<Error>>(self, work: impl FnOnce(LeaseHandle) -> Result<T, E>) -> Result<T, E> {
        wait(self.0.run(async |lease| work(LeaseHandle(lease))))?
    }
}

impl LeaseHandle {
    fn view(&self) -> &crate::LeaseHandle {
        &self.0
    }

    /// One more lease on the same acquisition, for a thread that needs the lock for itself:
    /// [`LeaseHandle::share`](crate::LeaseHandle::share).
    pub fn share(&self) -> Result<Lease, Error> {
        self.0.share().map(Lease)
    }
}
