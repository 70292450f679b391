//! Fencing at the resource, where the resource is a value in Redis.

use std::{fmt, sync::Arc};

use leasehold_protocol::{
    fence::Fence,
    key::Key,
    message::{Guarding, Request},
};

use crate::{error::Error, foreign::relayed, scope::Scope};

/// A value in Redis that refuses writers from the past.
///
/// It is a hash with the fields `value` and `fence`, written by one compare-and-set script: a write whose fence is
/// older than the newest seen changes nothing and says so. So a job that was paused past its lease cannot overwrite
/// its successor's result, however late it wakes up. The same holder may write as often as it likes. The key has no
/// TTL: forgetting the fence would let the past in again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let report = leases.guarded("reports:latest");
/// let lease = leases.lock("reports:nightly").acquire().await?;
/// report.set(b"42 rows", lease.fence()).await?;
/// assert_eq!(report.get().await?, Some((b"42 rows".to_vec(), lease.fence())));
/// # lease.release().await?; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Guarded {
    scope: Scope,
    name: Arc<str>,
}

impl Guarded {
    pub(crate) fn new(scope: Scope, key: &str) -> Self {
        Self { scope, name: key.into() }
    }

    /// The name, without the prefix. The key in Redis is the builder's prefix and this name; the rules for lock names
    /// hold here too.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn key(&self) -> Result<Key, Error> {
        let key = self.scope.key(&self.name)?;
        self.scope.client.ready().await?;
        Ok(key)
    }

    /// Writes the value, unless a later holder has written before.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if the fence is older than the newest seen: this job is from the past, and nothing was written.
    /// Otherwise the server cannot be reached or says no.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not have written. Writing again with the same fence is harmless.
    pub async fn set(&self, value: impl AsRef<[u8]>, fence: Fence) -> Result<(), Error> {
        let key = self.key().await?;
        let client = &self.scope.client;
        let (member, limit) = (client.sole()?, client.options.command_timeout);
        let request = Request::GuardedSet { key: key.clone(), value: value.as_ref().into(), fence };
        match relayed!(member.ask(client.quorum.route(), request, limit)) {
            Ok(Guarding::Written) => Ok(()),
            Ok(Guarding::Stale { seen }) => Err(Error::Stale { key: key.lock().to_owned(), fence, seen }),
            Err(failure) => Err(Error::of(failure)),
        }
    }

    /// The value and the fence that it was written with; `None` if nothing was.
    ///
    /// # Errors
    ///
    /// The server cannot be reached or says no.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn get(&self) -> Result<Option<(Vec<u8>, Fence)>, Error> {
        let key = self.key().await?;
        let client = &self.scope.client;
        let (member, limit) = (client.sole()?, client.options.command_timeout);
        let asking = member.ask(client.quorum.route(), Request::GuardedGet(key), limit);
        relayed!(asking).map_err(Error::of)
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("name", &self.name).finish_non_exhaustive()
    }
}
