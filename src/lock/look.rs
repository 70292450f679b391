//! A look at who has a lock or waits for it, and the way to take it from them.

use leasehold_protocol::{
    forced::ForcedRelease,
    holder::Holder,
    message::{Request, Waiters},
};

use super::Lock;
use crate::{
    error::Error,
    foreign::{Relay, relayed},
    options::check_reason,
    waiter::Waiter,
};

/// The most waiters that [`Lock::waiters`] returns.
const MOST_WAITERS: usize = 10_000;

impl Lock {
    /// The current holder of the lock, ourselves included; `None` if there is none. Over a quorum: the one with its key
    /// on a majority of the nodes, or that may have it there, as far as they answer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// # let lock = leases.lock("reports:nightly");
    /// # let _held = lock.acquire().await?;
    /// if let Some(holder) = lock.holder().await? {
    ///     println!("held by {holder}");
    ///     # assert!(holder.is_ours());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The server cannot be reached or says no, or the name is not valid.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let asking = client.quorum.holder(&key, client.options.command_timeout);
        let holder = relayed!(Relay::of_answers(), asking).map_err(Error::of)?;
        Ok(holder.map(|holder| client.watchdog.recognize(&key, holder)))
    }

    /// The waiters in the [fair](Self::fair) queue of the lock, the first in line first; at most ten thousand of them.
    /// Only their own process knows of waiters that did not ask for fairness.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder), and if the queue's key holds something else.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let (member, limit) = (client.sole()?, client.options.command_timeout);
        let asking = member.ask(client.quorum.route(), Request::Waiters { key, most: MOST_WAITERS }, limit);
        let waiters: Waiters = relayed!(Relay::of_answers(), asking).map_err(Error::of)?;
        Ok(waiters.into_iter().map(|(token, waited)| Waiter { token, waited }).collect())
    }

    /// Deletes the lock's key **whoever holds it**, on every node, and says whether there was one. Its holder finds out
    /// by its next renewal at the latest; until then two may believe that they hold the lock. For operators, after a
    /// holder that will certainly not come back.
    ///
    /// If it does come back, it hears [`LossReason::Forced`](crate::LossReason::Forced), with the [label](Self::label) of this
    /// lock. The server keeps that for as long as the key would have lived, under `{name}:lh:forced`, and of the last
    /// holder only. Without a right to that key, the holder hears `Deleted` or `Taken`.
    ///
    /// # Errors
    ///
    /// The server, or a majority, cannot be reached; or the key is not a string, so not a lock, and is left alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not have deleted the key.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.take_by_force(None).await
    }

    /// The same, and its holder [hears](crate::Lost::forced) why, as do its log and whoever runs it.
    ///
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release), and [`Error::Config`] for a reason that is empty, has control characters,
    /// or more than 256 bytes.
    ///
    /// # Cancel safety
    ///
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_because(&self, reason: &str) -> Result<bool, Error> {
        check_reason(reason)?;
        self.take_by_force(Some(reason)).await
    }

    async fn take_by_force(&self, reason: Option<&str>) -> Result<bool, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let by = ForcedRelease::new(self.scope.label_in_use(), reason);
        let releasing = client.quorum.force_release(key.clone(), by, client.options.command_timeout);
        let released = relayed!(Relay::of_answers(), releasing).map_err(Error::of)?;
        client.freed(&key);
        Ok(released)
    }
}
