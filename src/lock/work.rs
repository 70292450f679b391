//! Work that runs under a lock, or under several.

use std::{future::Future, time::Duration};

use super::Lock;
use crate::{error::Error, lease::LeaseHandle};

/// The methods that a lock and a multi-lock share. Takes the type, the handle that the work receives, and the
/// documentation of each.
macro_rules! runs {
    ($lock:ident, $handle:ident; $(#[$run:meta])* run; $(#[$within:meta])* run_within; $(#[$try:meta])* try_run;) => {
        impl $lock {
            $(#[$run])*
            pub fn run<F, Fut, T, E>(&self, work: F) -> impl Future<Output = Result<T, E>> + use<F, Fut, T, E>
            where
                F: FnOnce($handle) -> Fut,
                Fut: Future<Output = Result<T, E>>,
                E: From<Error>,
            {
                let acquire = self.acquire();
                async move { acquire.await?.run(work).await }
            }

            $(#[$within])*
            pub fn run_within<F, Fut, T, E>(
                &self,
                limit: Duration,
                work: F,
            ) -> impl Future<Output = Result<T, E>> + use<F, Fut, T, E>
            where
                F: FnOnce($handle) -> Fut,
                Fut: Future<Output = Result<T, E>>,
                E: From<Error>,
            {
                let acquire = self.acquire_within(limit);
                async move { acquire.await?.run(work).await }
            }

            $(#[$try])*
            pub fn try_run<F, Fut, T, E>(
                &self,
                work: F,
            ) -> impl Future<Output = Result<Option<T>, E>> + use<F, Fut, T, E>
            where
                F: FnOnce($handle) -> Fut,
                Fut: Future<Output = Result<T, E>>,
                E: From<Error>,
            {
                let acquire = self.try_acquire();
                async move {
                    match acquire.await? {
                        Some(held) => held.run(work).await.map(Some),
                        None => Ok(None),
                    }
                }
            }
        }
    };
}
pub(crate) use runs;

runs! {
    Lock, LeaseHandle;
    /// Acquires the lock, runs `work` under it, releases it; stops and drops the work the moment the lease is lost.
    ///
    /// The work returns a `Result`, and so does this call. Its error `E` is any type that implements
    /// `From<leasehold::Error>`: [`Error`] itself, your program's own with a `#[from]`, `anyhow::Error` or `Box<dyn
    /// Error + Send + Sync>`. So one `?` serves the lock and the work.
    ///
    /// ```
    /// # use leasehold::{Client, Error};
    /// # async fn insert(_: leasehold::Fence) -> Result<u32, std::num::ParseIntError> { "42".parse() }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let lock = Client::in_memory().lock("reports:nightly");
    /// // Work that cannot fail names a type.
    /// let fence = lock.run(|lease| async move { Ok::<_, Error>(lease.fence()) }).await?;
    /// // Work that can: here its `?` and the outer one make the same box of any error.
    /// let rows = lock
    ///     .run(|lease| async move {
    ///         let rows = insert(lease.fence()).await?;
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(rows)
    ///     })
    ///     .await?;
    /// # assert!(rows == 42 && u64::from(fence) > 0); Ok(()) }
    /// ```
    ///
    /// The compiler warns of a forgotten `.await`, and of an unused result:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use leasehold::{Error, LeaseHandle, Lock};
    /// # async fn job(_: LeaseHandle) -> Result<(), Error> { Ok(()) }
    /// # async fn forgets(lock: Lock) {
    /// lock.run(job);
    /// # }
    /// ```
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use leasehold::{Error, LeaseHandle, Lock};
    /// # async fn job(_: LeaseHandle) -> Result<(), Error> { Ok(()) }
    /// # async fn forgets(lock: Lock) {
    /// lock.run(job).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Each is returned as an `E`.
    ///
    /// - As [`acquire`](Self::acquire): then the work never started, so nothing is done twice if you call again.
    /// - The error of the work. It takes precedence over a loss that only the release after it finds.
    /// - [`Error::Lost`], if the work was stopped, or ended with `Ok` after the lease had ended.
    ///
    /// A release that is not confirmed is not an error: see [the
    /// guide](crate::docs::guide#when-a-release-is-not-confirmed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then releases in the background.
    run;
    /// Like [`run`](Self::run), but waits for at most `limit` for the lock.
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    run_within;
    /// Like [`run`](Self::run), but skips the work and returns `None` if the lock is held.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("reports:nightly");
    /// let _lease = lock.acquire().await?;
    /// # async fn job(_: leasehold::LeaseHandle) -> Result<&'static str, leasehold::Error> { Ok("done") }
    /// assert_eq!(lock.try_run(job).await?, None); // it is busy: somebody else does it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    try_run;
}
