//! A named lock, and the calls that acquire it.

mod look;
mod options;
mod work;

pub(crate) use self::work::runs;

use std::{
    fmt,
    future::Future,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{key::Key, mode::Mode};
use tracing::Instrument as _;

use crate::{
    acquire::{Acquire, AcquireSpec, OnWait, Patience},
    error::Error,
    foreign::relayed,
    lease::Lease,
    metrics::Acquiring,
    options::{Access, check_grace, check_keep, check_once_per},
    owner::Owner,
    scope::Scope,
};

/// A named lock with its options. It holds nothing yet: [`acquire`](Self::acquire) returns a [`Lease`].
///
/// The setters consume and return it, and never fail: a bad value makes every acquire
/// end with [`Error::Config`] before anything is sent. Cheap to clone and to keep.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let nightly = client.lock("reports:nightly").ttl(Duration::from_secs(5));
/// let lease = nightly.acquire().await?;
/// lease.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias = "mutex")]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    /// Contains the lock's own options and label.
    pub(crate) scope: Scope,
    name: Arc<str>,
    reentrant: bool,
    keep_for: Duration,
    pub(crate) once_per: Option<Duration>,
    grace: Duration,
    owner: Owner,
    on_wait: Option<OnWait>,
}

// A panic of `on_wait` unwinds through one acquire, which is undone.
impl UnwindSafe for Lock {}
impl RefUnwindSafe for Lock {}

impl Lock {
    pub(crate) fn new(scope: Scope, name: &str) -> Self {
        let (name, owner) = (name.into(), Owner::task());
        let (keep_for, grace) = (Duration::ZERO, Duration::ZERO);
        Self { scope, name, reentrant: false, keep_for, once_per: None, grace, owner, on_wait: None }
    }

    /// This lock with this access.
    pub(crate) fn with_access(mut self, access: Access) -> Self {
        self.scope.options.access = access;
        self
    }

    /// The lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its leases are held alone or shared.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.scope.options.mode()
    }

    /// Acquires the lock, waiting for as long as it takes: for other holders, and through outages of the server.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.lock("reports:nightly").acquire().await?;
    /// println!("ours, with fence {}", lease.fence());
    /// lease.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Only errors that waiting cannot cure: [`Error::Config`] (a bad name or option), [`Error::Unsupported`] (a shared
    /// or fair lock over a quorum), [`Error::Misuse`] (after a fork), [`Error::Refused`] (a wrong password, a missing
    /// right), [`Error::Closed`]. A lock that is held is not an error, whoever holds it, even this task. Neither is an
    /// outage: the acquire continues when the server is back, so it needs no retry around it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its place. A lock that it may have acquired is released in the background, and
    /// nothing is left in Redis after that. If the server is unreachable, a request that was already sent may be
    /// executed when the server is back: its key then lives for at most one TTL. A request that was not sent by then is
    /// never sent. If the server stays unreachable for ten minutes, a place in the queue of a fair lock may stay for as
    /// long as others wait in that queue.
    pub fn acquire(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Unlimited)
    }

    /// Acquires the lock, waiting for at most `limit`, exact to 20 ms, and to 35 ms while the server is silent. Zero
    /// means one try. If hundreds of waits in a process end at the same moment, some of their last checks may take
    /// longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// # let _held = client.lock("reports:nightly").acquire().await?;
    /// match client.lock("reports:nightly").acquire_within(Duration::from_millis(20)).await {
    ///     Ok(lease) => println!("{:?}", lease.release().await?),
    ///     Err(error @ leasehold::Error::TimedOut { .. }) => println!("{error}; try again in {:?}", error.retry_after()),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Error::TimedOut`] with the holder if the lock was held at the last check that
    /// had time for an answer; [`Error::Unavailable`] if that check got none.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Within(limit))
    }

    /// Acquires the lock if it is free; returns `None` if it is held. Never waits longer than the command time-out.
    ///
    /// To learn who holds it, as for a `Retry-After`, call [`acquire_within`](Self::acquire_within) with zero: it is
    /// one try too, and its error contains the holder.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// match client.lock("reports:nightly").try_acquire().await? {
    ///     Some(lease) => println!("{:?}", lease.release().await?),
    ///     None => println!("somebody else is at it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Unavailable`] if the server gives no answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let lock = self.clone();
        async move {
            // Created here, because a future that is moved before it is awaited takes its memory twice.
            match lock.acquire_or_wait(Patience::None).await {
                Err(Error::TimedOut { .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        }
    }

    pub(crate) fn key(&self) -> Result<Key, Error> {
        self.scope.key(&self.name)
    }

    async fn acquire_or_wait(self, patience: Patience) -> Result<Lease, Error> {
        relayed!(self.acquire_here(patience, false))
    }

    /// Acquires the lock, as a part of a future that is relayed. On trial, no work runs under the lease yet: until
    /// [`begin`](Self::begin) it is given back without a trace.
    pub(crate) async fn acquire_here(self, patience: Patience, is_on_trial: bool) -> Result<Lease, Error> {
        let span = tracing::debug_span!(target: "leasehold", "acquire", lock = &*self.name);
        let (engine, began) = (self.scope.engine.clone(), self.scope.engine.now());
        let acquiring = Acquiring::begins(self.scope.options.metrics_group, self.mode());
        let acquire = |wanted| Acquire::new(engine.clone(), AcquireSpec { is_on_trial, ..wanted }, patience);
        // Borrowed, because a value that is moved on takes its memory twice.
        let outcome = match &mut self.wanted().map(acquire) {
            Ok(acquire) => acquire.run().instrument(span).await,
            Err(refused) => Err(refused.clone()),
        };
        acquiring.ended(&outcome, patience.is_one_try(), engine.now().since(began));
        outcome
    }

    /// Ends the trial of a lease, because the work under it begins.
    pub(crate) fn begin(&self, lease: &Lease) {
        lease.begin(self.keep_for);
    }

    /// This lock without its `on_wait`, so the program is not notified of the holder.
    pub(crate) fn quiet(&self) -> Self {
        Self { on_wait: None, ..self.clone() }
    }

    /// Checks everything that can be refused without a request.
    pub(crate) fn wanted(self) -> Result<AcquireSpec, Error> {
        let Scope { engine, options, .. } = &self.scope;
        engine.check_acquires()?;
        options.check(!engine.quorum.is_one(), engine.quorum.restart_delay())?;
        check_keep("keep_for", self.keep_for, Duration::ZERO, engine.quorum.longest_keep())?;
        check_once_per(self.once_per, engine.quorum.restart_delay())?;
        check_grace(self.grace, options.ttl)?;
        engine.quorum.note_ttl(options.ttl);
        let key = self.key()?;
        let Self { scope, owner, reentrant, keep_for, once_per, grace, on_wait, .. } = self;
        let (options, names) = (scope.options, scope.into_names());
        let is_on_trial = false;
        Ok(AcquireSpec { key, names, options, owner, reentrant, keep_for, once_per, grace, on_wait, is_on_trial })
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("options", &self.scope.options)
            .field("reentrant", &self.reentrant)
            .field("keep_for", &self.keep_for)
            .field("once_per", &self.once_per)
            .field("grace", &self.grace)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
