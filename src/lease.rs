//! A held lock: the lease, its handles, and the work under it.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{fence::Fence, loss, message::Route, mode::Mode};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

pub use self::handle::LeaseHandle;
use self::handle::view;
pub(crate) use self::on_lost::on_lost;
use crate::{
    engine::Engine,
    error::{Error, keeper_ended},
    foreign::{LeaseSpan, relayed},
    held::{AfterLast, Hold},
    lost::Lost,
    options::check_keep,
    reentry::OwnerSlot,
    released::Released,
    status::{Signal, Status, StatusChanges},
};

mod handle;
mod on_lost;

/// A held lock: from the acquire until [`release`](Self::release), loss or drop.
///
/// The *keeper*, a thread of the library, renews the lease for as long as it lives. Rely on it only while
/// [`check`](Self::check) is `Ok`, and stop when [`lost`](Self::lost) completes: from then on another holder may have
/// the lock. If two writers would do harm, pass [`fence`](Self::fence) to whatever the lock protects.
///
/// Dropping it releases the lock in the background and never blocks, inside a runtime, outside one or during a panic;
/// [`release`](Self::release) also reports whether it worked. A process that exits right after a drop may leave the key
/// for one TTL.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let lease = client.lock("reports:nightly").acquire().await?;
/// let report = std::future::ready("42 rows"); // the work
/// tokio::select! {
///     biased;
///     lost = lease.lost() => return Err(lost.into()), // stop: somebody else may hold the lock
///     rows = report => println!("{rows}, written with fence {}", lease.fence()),
/// }
/// lease.release().await?;
/// # Ok(()) }
/// ```
///
/// `let _ = lock.acquire().await?` drops it at once and holds nothing. Give it a name, and let rustc's lint
/// `let_underscore_drop`, which is off by default, find the mistake:
///
/// ```
/// #![deny(let_underscore_drop)]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let lock = client.lock("reports:nightly");
/// let _lease = lock.acquire().await?; // held to the end of its scope
/// assert!(lock.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    view: LeaseHandle,
    /// Our place in the table of owners, shared with the other leases of a re-entrant owner.
    owner_slot: Option<Arc<OwnerSlot>>,
    /// The time its work has to tidy up before a loss: in ms, because a process may have a million leases.
    grace: u32,
    /// Whether a release has ended in this process.
    has_let_go: bool,
}

impl Lease {
    pub(crate) fn new(
        engine: Arc<Engine>,
        hold: Arc<Hold>,
        signal: Signal,
        owner_slot: Option<Arc<OwnerSlot>>,
        grace: Duration,
    ) -> Self {
        // Rounded up to milliseconds.
        let grace = u32::try_from(grace.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        Self { view: LeaseHandle::new(engine, hold, signal), owner_slot, grace, has_let_go: false }
    }

    /// Assigns the lease's events to this span from now on.
    pub(crate) fn belongs_to(&self, span: LeaseSpan) {
        self.view.hold.belongs_to(span);
    }

    /// Lets its owner share the lease from now on, by acquiring the lock again.
    pub(crate) fn takes_its_owner_slot(&self) {
        if let Some(owner_slot) = &self.owner_slot {
            owner_slot.hold(&self.view.hold);
        }
    }

    /// The owner slot: the place of the lease's owner at this lock.
    pub(crate) fn owner_slot(&self) -> Option<Arc<OwnerSlot>> {
        self.owner_slot.clone()
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace.into())
    }

    fn view(&self) -> &LeaseHandle {
        &self.view
    }

    /// This lease as a handle, for code that does not release it: a function that takes `&LeaseHandle` serves both.
    #[must_use]
    pub fn as_handle(&self) -> &LeaseHandle {
        &self.view
    }

    /// A handle on this lease that can be moved to another task or thread.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.view.clone()
    }

    /// Releases the lock, if this is the last lease of its acquisition. [`lost`](Self::lost) completes with
    /// [`Released`](crate::LossReason::Released) as soon as this begins.
    ///
    /// `Ok` means that the lease was ours to the end. [`Released`] says whether the server confirmed the release in
    /// time. If it did not, the work has not failed: the release continues in the background, and the key expires
    /// within its TTL. So after the work, `lease.release().await?` fails for one reason only. See [the
    /// guide](crate::docs::guide#when-a-release-is-not-confirmed).
    ///
    /// It takes at most one command time-out. Over a quorum a majority decides, and the other nodes follow in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease had already ended. What the job did after [`Lost::since`] was not protected. After
    /// [`MaxHold`](crate::LossReason::MaxHold) the release is still `Ok`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the lease: the release continues in the background. Nothing is left in Redis for
    /// longer than one TTL.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<Released, Error> {
        relayed!(self.let_go(Duration::ZERO))
    }

    /// Like [`release`](Self::release), but the key stays for `keep`, so that no one acquires the lock before that.
    /// `keep` is 1 ms to 31 days, over a quorum at most 1 s less than its
    /// [`restart_delay`](crate::Builder::restart_delay). Others see `label (released)` as its holder meanwhile. For a
    /// time that counts from the acquire, use [`Lock::keep_for`](crate::Lock::keep_for).
    ///
    /// If a [re-entrant](crate::Lock::reentrant) owner has several leases, the last to be released decides: an earlier
    /// one ends, and keeps nothing. An [unconfirmed](Released::Unconfirmed) release may have kept nothing: the key may
    /// then expire after the rest of its TTL.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`Error::Config`] if the key cannot be kept for that long: the lease is dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release). The key is left in Redis for `keep`.
    pub async fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        self.may_keep(keep)?;
        relayed!(self.let_go(keep))
    }

    /// Checks that its key may be kept for `keep`.
    pub(crate) fn may_keep(&self, keep: Duration) -> Result<(), Error> {
        check_keep("release_keeping", keep, Duration::from_millis(1), self.view.engine.quorum.longest_keep())
    }

    /// Releases the lease; the key stays for at least `keep` from now on.
    pub(crate) async fn let_go(mut self, keep: Duration) -> Result<Released, Error> {
        let LeaseHandle { engine, hold, .. } = &self.view;
        if engine.host.is_forked() {
            return Ok(Released::unconfirmed(&keeper_ended(), !keep.is_zero()));
        }
        // `close` must not take the connection away before the release.
        let _under_way = engine.host.token();
        let leaving = self.view.leave(engine.now());
        // The clock is read again: leaving may have run foreign code, which takes its time.
        let mode = hold.release_mode(engine.now(), keep);
        let released = match leaving {
            AfterLast::Nothing(outcome) => outcome.map(|()| Released::Confirmed).map_err(Error::Lost),
            AfterLast::Release { valid_until } => engine.release(hold, mode, valid_until).await,
            AfterLast::Forgiven => match engine.release(hold, mode, engine.now()).await {
                Err(Error::Lost(_)) => Ok(Released::Confirmed),
                outcome => outcome,
            },
        };
        self.has_let_go = true;
        released
    }

    /// Keeps the key for at least this long from now on, no matter when the lease is released.
    pub(crate) fn keep_for(&self, keep: Duration) {
        let LeaseHandle { engine, hold, .. } = &self.view;
        if !keep.is_zero() {
            hold.keep_for(engine.now(), keep);
        }
    }

    /// Makes the key of a lease on trial live for the interval of its lock.
    pub(crate) async fn lengthen(&self, limit: Duration) -> Result<(), Error> {
        let LeaseHandle { engine, hold, .. } = &self.view;
        if !hold.is_short(engine.now()) {
            return Ok(());
        }
        engine.watchdog.lengthen(hold, limit).await.map_err(Error::of)
    }

    /// Puts it on trial once more, if no work under it has begun.
    pub(crate) fn try_out_again(&self) {
        self.view.hold.try_out_again();
    }

    /// Ends the trial of the lease, because the work under it begins.
    pub(crate) fn begin(&self, keep: Duration) {
        self.view.hold.begin();
        self.view.progress();
        self.keep_for(keep);
    }

    /// Completes when the work under the lease must have stopped, after its grace.
    pub(crate) fn stop(&self) -> impl Future<Output = Lost> + use<> {
        self.handle().out_of_grace(self.grace())
    }

    /// Runs `work` for as long as the lease holds: stops polling it, and drops it, the moment the lease is lost. Then
    /// releases the lock. With a [`grace`](crate::Lock::grace) it asks the work to stop first. The work runs in the span
    /// `lease`, with the lock's name and its fence.
    ///
    /// The work may fail. Its error `E` is any type that implements `From<leasehold::Error>`, such as your program's
    /// own, and is the error of this call too: one `?` serves both. Work that cannot fail ends with
    /// `Ok::<_, Error>(…)`.
    ///
    /// ```
    /// # use leasehold::{Client, Error, LeaseHandle};
    /// #[derive(Debug)]
    /// enum ImportError {
    ///     Lock(Error),
    ///     BadRow(String),
    /// }
    ///
    /// impl From<Error> for ImportError {
    ///     fn from(error: Error) -> Self {
    ///         Self::Lock(error)
    ///     }
    /// }
    ///
    /// async fn import(lease: LeaseHandle) -> Result<u32, ImportError> {
    ///     lease.check()?; // a leasehold::Error
    ///     "42".parse().map_err(|_| ImportError::BadRow("42".into())) // an error of its own
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), ImportError> {
    /// # let client = Client::in_memory();
    /// let lease = client.lock("import").acquire().await?;
    /// let rows = lease.run(import).await?;
    /// # assert_eq!(rows, 42); Ok(()) }
    /// ```
    ///
    /// During a [`shutdown`](crate::Client::shutdown) it continues: the work is notified through
    /// [`lost`](LeaseHandle::lost) or its [`cancellation_token`](LeaseHandle::cancellation_token).
    ///
    /// This is the primitive behind [`Lock::run`](crate::Lock::run). Work that blocks its thread cannot be stopped from
    /// outside; let it call [`check`](LeaseHandle::check) now and then.
    ///
    /// # Errors
    ///
    /// - The error of the work. The lock is released in that case too.
    /// - [`Error::Lost`], as an `E`: the work was not started, was stopped, or ended with `Ok` after the lease had
    ///   ended.
    ///
    /// A release that is not confirmed is not an error: the work was protected to its end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and then the lease, which is released in the background.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let stop = self.stop();
        self.run_until(work, async move { relayed!(stop) }).await
    }

    async fn run_until<F, Fut, T, E>(self, work: F, stop: impl Future<Output = Lost>) -> Result<T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.check()?;
        let output = {
            let span = self.view.hold.span().map_or_else(Span::none, |span| span.span());
            let job = span.in_scope(|| work(self.handle()));
            let (stop, job) = (pin!(stop), pin!(job.instrument(span)));
            tokio::select! {
                biased;
                lost = stop => return Err(Error::Lost(lost).into()),
                output = job => output,
            }
        };
        let released = self.release().await;
        // The error of the work says more than a loss that the release finds.
        let done = output?;
        released?;
        Ok(done)
    }
}

impl AsRef<LeaseHandle> for Lease {
    fn as_ref(&self) -> &LeaseHandle {
        self.as_handle()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let LeaseHandle { engine, hold, .. } = &self.view;
        // The lease is the parent's, and a lock may have been taken by a thread that is not in this process.
        if !self.has_let_go && engine.host.is_forked() {
            return;
        }
        // `close` must not take the connection away before the release.
        let _under_way = engine.host.token();
        // Its loss may be noted, but not signalled yet.
        let has_span = hold.has_span();
        let ended = if has_span { self.view.board().ended() } else { None };
        let leaving = self.view.leave(engine.now());
        // In a `release` this runs after the answer: without the hold, a late notification of its grant would pass the
        // lock on.
        let is_last = hold.holds() == 0;
        if is_last {
            engine.watchdog.forget(hold);
        }
        match leaving {
            AfterLast::Nothing(_) => {}
            AfterLast::Release { .. } | AfterLast::Forgiven => {
                engine.release_in_background(hold, hold.release_mode(engine.now(), Duration::ZERO));
            }
        }
        // Last, because it runs foreign code.
        if has_span && is_last {
            end_span(hold, ended.as_ref());
        }
    }
}

#[cold]
fn end_span(hold: &Hold, ended: Option<&Lost>) {
    if let Some(span) = hold.end_span() {
        span.ends(ended.and_then(|lost| loss::label(lost.reason())).unwrap_or("dropped"));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.show("Lease", f)
    }
}

view!(Lease);

impl LeaseHandle {
    /// Makes another lease on the same acquisition: re-entrancy by value, for a function or a task that needs the lock
    /// for itself. It has the same fence, TTL and deadline. The key is released with the last of the leases, in
    /// whichever order they end.
    ///
    /// Nothing is sent, and no [`Owner`](crate::Owner) is involved. It does not let a
    /// [re-entrant](crate::Lock::reentrant) owner acquire again: only the leases that the owner acquired do.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.lock("reports:nightly").acquire().await?;
    /// let theirs = lease.handle().share()?;
    /// let worker = tokio::spawn(async move { theirs.release().await });
    /// lease.release().await?; // the lock is free once the worker has released it too
    /// worker.await??;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The lease of this handle has ended.
    pub fn share(&self) -> Result<Lease, Error> {
        self.check()?;
        let Self { engine, hold, .. } = self;
        let (signal, reaction) = hold.share(engine.now());
        engine.watchdog.execute(hold, reaction);
        Ok(Lease::new(engine.clone(), hold.clone(), signal?, None, Duration::ZERO))
    }
}
