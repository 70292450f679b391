//! The calls that report who holds a lock or waits for it, and those that take it away.

use std::sync::Arc;

use leasehold_protocol::{
    failure::Failure,
    forced,
    holder::Holder,
    key::Key,
    message::{Request, Sharers, Waiters},
};

use super::Lock;
use crate::{error::Error, foreign::relayed, options::check_reason, waiter::Waiter};

/// The most waiters that [`Lock::waiters`] returns, and the most sharers of [`Lock::holders`].
const MOST: usize = 10_000;

impl Lock {
    /// The current holder of the lock, which may be this process; `None` if there is none. Over a quorum: the holder
    /// whose key is on a majority of the nodes, or may be, as far as they answer. All sharers of the lock are reported
    /// as one [holder](Holder::is_shared): [`holders`](Self::holders) lists them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// # let lock = client.lock("reports:nightly");
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
    /// The server cannot be reached or refuses the request, or the name is not valid.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let engine = &self.scope.engine;
        engine.ready().await?;
        let key = self.key()?;
        let asking = engine.quorum.look(&key, engine.quorum.route(), engine.options.command_timeout);
        let seen = relayed!(asking).map_err(Error::of)?;
        let holder = match seen.holder {
            // If the number of sharers cannot be read, such as without a right to their key, the first answer counts.
            Some(all) if all.is_shared() => match self.ask_for_sharers(&key, 0).await {
                Ok(sharers) => sharers.map(|sharers| sharers.holder),
                Err(_) => Some(all),
            },
            holder => holder,
        };
        Ok(holder.map(|holder| engine.watchdog.recognize(&key, holder)))
    }

    async fn ask_for_sharers(&self, key: &Key, most: usize) -> Result<Option<Sharers>, Failure> {
        let engine = &self.scope.engine;
        let (member, limit) = (engine.quorum.sole()?, engine.options.command_timeout);
        relayed!(member.ask(engine.quorum.route(), Request::Sharers { key: key.clone(), most }, limit))
    }

    /// All holders of the lock at one moment: all its sharers, or its one holder; empty if it is free. The share that
    /// ends first, unless it is renewed, comes first. At most ten thousand are returned: [`Holder::sharers`] of
    /// [`holder`](Self::holder) has their total number.
    ///
    /// Each has its own label and remaining time, and all have the same [fence](Holder::fence). A share that
    /// [`keep_for`](Self::keep_for) keeps is included. A quorum has no shares: the list contains only what
    /// [`holder`](Self::holder) returns.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let gpu = client.semaphore("gpu:inference", 4);
    /// let _permits = (gpu.acquire().await?, gpu.acquire().await?);
    /// for holder in gpu.holders().await? {
    ///     println!("{holder}");
    /// }
    /// # assert_eq!(gpu.holders().await?.len(), 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder), and if the key of the shares, `{name}:lh:holders`, holds something else.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        let engine = &self.scope.engine;
        engine.ready().await?;
        if !engine.quorum.is_one() {
            return Ok(self.holder().await?.into_iter().collect());
        }
        let key = self.key()?;
        let holders = match self.ask_for_sharers(&key, MOST).await.map_err(Error::of)? {
            None => Vec::new(),
            Some(Sharers { holder, first }) if holder.is_shared() => first,
            Some(Sharers { holder, .. }) => vec![holder],
        };
        Ok(engine.watchdog.recognize_each(&key, holders))
    }

    /// The waiters in the [fair](Self::fair) queue of the lock, first in line first; at most ten thousand. Waiters that
    /// did not ask for fairness are known only to their own process.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder), and if the queue's key holds something else.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        let engine = &self.scope.engine;
        engine.ready().await?;
        let key = self.key()?;
        let (member, limit) = (engine.sole()?, engine.options.command_timeout);
        let asking = member.ask(engine.quorum.route(), Request::Waiters { key, most: MOST }, limit);
        let waiters: Waiters = relayed!(asking).map_err(Error::of)?;
        Ok(waiters.into_iter().map(|(token, waited, mode)| Waiter { token, waited, mode }).collect())
    }

    /// Deletes the lock's key **whoever holds it**, on every node, and returns whether there was one. The holder learns
    /// of it by its next renewal at the latest. Until then two may believe that they hold the lock; and longer if a
    /// server [comes back with older data](crate::docs::deployments#persistence). A holder of the
    /// same [`Client`](crate::Client) knows when this returns. For operators, if a holder will certainly not come back.
    ///
    /// If it does come back, its lease ends with [`LossReason::Forced`](crate::LossReason::Forced) and the
    /// [label](Self::label) of this lock. The server keeps that record for as long as the key would have lived, under
    /// `{name}:lh:forced`, and only for the last holder. Without a right to that key, the reason is `Deleted` or
    /// `Taken`.
    ///
    /// # Errors
    ///
    /// The server, or a majority, cannot be reached; or the key is not a string: then it is not a lock, and is left
    /// alone.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the key may or may not have been deleted.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.take_by_force(None).await
    }

    /// Like [`force_release`](Self::force_release), with a reason, which is [reported](crate::Lost::forced) to the
    /// holder, in its log, and to whoever runs it.
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
        let engine = &self.scope.engine;
        engine.ready().await?;
        let key = self.key()?;
        let by = Arc::new(forced::by(self.scope.label_in_use(), reason));
        // Read before the request: an acquire from now on may be granted after it.
        let (sent, held) = (engine.now(), engine.watchdog.holds_of(key.lock()));
        let releasing = engine.quorum.force_release(key.clone(), by.clone(), engine.options.command_timeout);
        let nodes = relayed!(releasing).map_err(Error::of)?;
        engine.watchdog.taken(&held, nodes, sent, &by);
        engine.freed(&key);
        Ok(!nodes.is_empty())
    }
}
