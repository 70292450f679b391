//! A held lock: the lease, its handles, and the work under it.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{fence::Fence, loss::LossReason, message::Route};
use tokio_util::sync::CancellationToken;

use crate::{
    client::Client,
    error::Error,
    foreign::{Relay, relayed},
    lost::Lost,
    options::{check_grace, check_keep},
    reentry::OwnerSlot,
    released::Released,
    status::{Board, HasBoard, Signal, Status, StatusChanges},
    watchdog::{Hold, Leaving},
};

/// A held lock: from the acquire until [`release`](Self::release), loss or drop.
///
/// The *keeper*, a thread of the library, extends it for as long as it lives. Believe in it only while
/// [`check`](Self::check) says so, and stop when [`lost`](Self::lost) completes: from then on somebody else may hold
/// the lock. Where two writers would do harm, hand [`fence`](Self::fence) to whatever the lock protects.
///
/// Dropping it releases the lock in the background and never blocks, inside a runtime, outside one or during a panic;
/// [`release`](Self::release) tells whether that worked. A process that exits right after a drop may leave the key for
/// one TTL.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let lease = leases.lock("reports:nightly").acquire().await?;
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
/// # let leases = leasehold::Leases::in_memory();
/// let lock = leases.lock("reports:nightly");
/// let _lease = lock.acquire().await?; // held to the end of its scope
/// assert!(lock.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[must_use = "a lease that is dropped is released"]
pub struct Lease {
    view: LeaseHandle,
    /// Our place in the table of owners, shared with the other leases of a re-entrant owner.
    owner_slot: Option<Arc<OwnerSlot>>,
    /// The time of its work to tidy up before a loss: in ms, for a process may have a million leases.
    grace: u32,
}

/// A view of a [`Lease`] that can be cloned and handed around: all of it but the release.
///
/// It does not keep the lock held: when the lease has gone, it says so.
#[derive(Clone)]
pub struct LeaseHandle {
    client: Arc<Client>,
    hold: Arc<Hold>,
    /// Its own signals, unless it has the hold's.
    board: Option<Arc<Board>>,
}

impl Lease {
    pub(crate) fn new(
        client: Arc<Client>,
        hold: Arc<Hold>,
        signal: Signal,
        owner_slot: Option<Arc<OwnerSlot>>,
    ) -> Self {
        let board = if let Signal::More(board) = signal { Some(board) } else { None };
        Self { view: LeaseHandle { client, hold, board }, owner_slot, grace: 0 }
    }

    /// Takes its place in the table of owners.
    pub(crate) fn sit(&mut self, owner_slot: Option<Arc<OwnerSlot>>) {
        if let Some(owner_slot) = &owner_slot {
            owner_slot.hold(&self.view.hold);
        }
        self.owner_slot = owner_slot;
    }

    fn view(&self) -> &LeaseHandle {
        &self.view
    }

    /// This lease for code that does not release it: a function that takes `&LeaseHandle` serves both.
    #[must_use]
    pub fn as_handle(&self) -> &LeaseHandle {
        &self.view
    }

    /// A handle on this lease that can be moved elsewhere.
    #[must_use]
    pub fn handle(&self) -> LeaseHandle {
        self.view.clone()
    }

    /// Releases the lock, if this is the last lease of its acquisition. [`lost`](Self::lost) completes with
    /// [`LossReason::Released`] as soon as this begins.
    ///
    /// `Ok` says that the lease was ours to the end. [`Released`] says whether the server has confirmed the release in
    /// time. If it has not, that is no failure of the work: the release goes on in the background, and the key expires
    /// within its TTL. So `lease.release().await?` after the work fails for one reason only. See
    /// [the guide](crate::docs::guide#when-a-release-is-not-confirmed).
    ///
    /// It takes at most one command time-out. Over a quorum a majority decides, and the others are seen to in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lease ended before. What the job did after [`Lost::since`] was not protected. After
    /// [`LossReason::MaxHold`] the release is `Ok` all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the lease: the release goes on in the background. Nothing is left in Redis for longer
    /// than one TTL.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<Released, Error> {
        relayed!(Relay::of_answers(), self.part(Duration::ZERO))
    }

    /// As [`release`](Self::release), but the key stays for `keep`, so that nobody acquires the lock before that: 1 ms to 24
    /// hours, over a quorum at most its [`restart_delay`](crate::Builder::restart_delay). Others see `label (released)` as
    /// its holder meanwhile. For a time that counts from the acquire there is [`Lock::keep_for`](crate::Lock::keep_for).
    ///
    /// Of several leases of a [re-entrant](crate::Lock::reentrant) owner the last to be released decides: an earlier
    /// one ends, and keeps nothing. An [unconfirmed](Released::Unconfirmed) release may have kept nothing: the key may
    /// then go after the rest of its TTL.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`Error::Config`] if it cannot be kept for so long: the lease is dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release). The key is left in Redis for `keep`.
    pub async fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        check_keep("release_keeping", keep, Duration::from_millis(1), self.view.client.quorum.longest_keep())?;
        relayed!(Relay::of_answers(), self.part(keep))
    }

    /// Releases the lease; the key stays for at least `keep` from now on.
    async fn part(self, keep: Duration) -> Result<Released, Error> {
        let LeaseHandle { client, hold, .. } = &self.view;
        // `close` must not take the connection away between the two.
        let _under_way = client.host.token();
        let leaving = self.view.leave();
        let parting = hold.release_mode(client.now(), keep);
        match leaving {
            Leaving::Nothing(outcome) => outcome.map(|()| Released::Confirmed).map_err(Error::Lost),
            Leaving::Release { valid_until } => client.release(hold, parting, valid_until).await,
            Leaving::Forgiven => match client.release(hold, parting, client.now()).await {
                Err(Error::Lost(_)) => Ok(Released::Confirmed),
                outcome => outcome,
            },
        }
    }

    /// Keeps the key for at least this long from now on, whenever the lease is released; gives its work this grace.
    pub(crate) fn set_up(&mut self, keep: Duration, grace: Duration) -> Result<(), Error> {
        check_grace(grace, self.view.hold.ttl)?;
        if !keep.is_zero() {
            let LeaseHandle { client, hold, .. } = &self.view;
            hold.keep_for(client.now(), keep);
        }
        // Part of a millisecond counts as a whole one.
        self.grace = u32::try_from(grace.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Runs `work` for as long as the lease holds: stops polling it, and drops it, the moment the lease is lost. Then
    /// releases the lock. With a [`grace`](crate::Lock::grace) it asks the work to stop first.
    ///
    /// The work may fail. Its error `E` is any type that is `From<leasehold::Error>`, such as your program's own, and is
    /// the error of this call too: one `?` serves both. Work that cannot fail ends with `Ok::<_, Error>(…)`.
    ///
    /// ```
    /// # use leasehold::{Error, LeaseHandle, Leases};
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
    /// # let leases = Leases::in_memory();
    /// let lease = leases.lock("import").acquire().await?;
    /// let rows = lease.run(import).await?;
    /// # assert_eq!(rows, 42); Ok(()) }
    /// ```
    ///
    /// During a [`shutdown`](crate::Leases::shutdown) it goes on: the work hears of that from
    /// [`lost`](LeaseHandle::lost) or its [`cancellation_token`](LeaseHandle::cancellation_token).
    ///
    /// The primitive behind [`Lock::run`](crate::Lock::run). Work that blocks its thread cannot be stopped from
    /// outside; let it ask [`check`](LeaseHandle::check) now and then.
    ///
    /// # Errors
    ///
    /// - The error of the work. The lock is released then too.
    /// - [`Error::Lost`], as an `E`: the work was not started, was stopped, or ended with `Ok` when the lease was gone
    ///   already.
    ///
    /// A release that is not confirmed is no error: the work was protected to its end.
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
        let (stop, grace) = (self.handle(), Duration::from_millis(self.grace.into()));
        self.run_until(work, async move { relayed!(Relay::of_signals(), stop.out_of_grace(grace)) }).await
    }

    async fn run_until<F, Fut, T, E>(self, work: F, stop: impl Future<Output = Lost>) -> Result<T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.check()?;
        let output = {
            let (stop, job) = (pin!(stop), pin!(work(self.handle())));
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
        let LeaseHandle { client, hold, .. } = &self.view;
        // `close` must not take the connection away before the release.
        let _under_way = client.host.token();
        let leaving = self.view.leave();
        // In a `release` this comes after the answer: without the hold, a late notification of its grant would pass the
        // lock on.
        if hold.holds() == 0 {
            client.watchdog.forget(hold);
        }
        match leaving {
            Leaving::Nothing(_) => {}
            Leaving::Release { .. } | Leaving::Forgiven => {
                client.release_in_background(hold, hold.release_mode(client.now(), Duration::ZERO));
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.show("Lease", f)
    }
}

impl LeaseHandle {
    fn board(&self) -> &Board {
        self.board.as_deref().unwrap_or_else(|| self.hold.board())
    }

    /// The signal for users that may outlive this handle.
    fn signal(&self) -> Signal {
        self.board.clone().map_or_else(|| Signal::First(self.hold.clone()), Signal::More)
    }

    /// One more lease on the same acquisition: re-entrancy by value, for a function or a task that needs the lock for itself.
    /// It has the same fence, TTL and deadline. The key goes with the last of them, in whichever order they go.
    ///
    /// Nothing is sent, and no [`Owner`](crate::Owner) is asked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lease = leases.lock("reports:nightly").acquire().await?;
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
        let Self { client, hold, .. } = self;
        let (signal, reaction) = hold.share(client.now());
        client.watchdog.execute(hold, reaction);
        Ok(Lease::new(client.clone(), hold.clone(), signal?, None))
    }

    fn view(&self) -> &Self {
        self
    }

    /// Lets go of one lease; once.
    fn leave(&self) -> Leaving {
        let now = self.client.now();
        let (leaving, reaction) = self.hold.leave(now, &self.signal());
        self.client.watchdog.execute(&self.hold, reaction);
        leaving
    }

    /// Asks for a stop when nothing but the grace is left of the lease. Completes when that is over, and the lease too.
    async fn out_of_grace(self, grace: Duration) -> Lost {
        let (Self { client, hold, .. }, signal) = (&self, self.signal());
        if grace.is_zero() {
            return signal.over().await;
        }
        loop {
            let left = self.remaining().saturating_sub(grace);
            if left.is_zero() {
                break;
            }
            tokio::select! {
                biased;
                _lost = signal.clone().over() => break,
                () = client.host.sleep(left) => {}
            }
        }
        let now = client.now();
        signal.ask_to_stop(&hold.lost(now, now, LossReason::Expiring));
        client.host.sleep(grace).await;
        signal.clone().over().await
    }

    fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("name", &self.name())
            .field("label", &self.label())
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .field("status", &self.board().status())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show("LeaseHandle", f)
    }
}

/// The methods that a lease and its handles share.
macro_rules! view {
    ($type:ident) => {
        impl $type {
            /// Completes when the lease ends, with the reason: by its own deadline, whatever the network, the program's
            /// log or its metrics exporter does.
            ///
            /// It completes before, while the lease is still held, when its holder is asked to stop: with
            /// [`Closing`](crate::LossReason::Closing) by a [`shutdown`](crate::Leases::shutdown), with
            /// [`Expiring`](crate::LossReason::Expiring) under a [grace](crate::Lock::grace). From then on
            /// [`check`](Self::check) and [`status_changes`](Self::status_changes) tell of the end.
            ///
            /// The future owns what it needs: move it, pin it, spawn it. A timer of the keeper's completes it at the
            /// deadline ([rule 2](crate::docs::safety#rule-2)). It completes earlier when the server says that the key is
            /// gone or taken, and with [`LossReason::Released`] when the release of this
            /// lease begins.
            ///
            /// # Cancel safety
            ///
            /// Dropping it loses nothing.
            pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
                let signal = self.view().signal();
                async move { relayed!(Relay::of_signals(), signal.lost()) }
            }

            /// Whether the lease holds right now. It reads the clock, so it is right even when the process was stopped
            /// and no timer has run yet.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// # let leases = leasehold::Leases::in_memory();
            /// # let lease = leases.lock("import").acquire().await?;
            /// for row in 0..3 {
            ///     lease.check()?; // before each step that only the holder may do
            ///     println!("row {row}");
            /// }
            /// # Ok(()) }
            /// ```
            ///
            /// # Errors
            ///
            /// How the lease ended.
            pub fn check(&self) -> Result<(), Error> {
                let (view, now) = (self.view(), self.view().client.now());
                let LeaseHandle { client, hold, .. } = view;
                if hold.remaining(now).is_zero() {
                    let _under_way = client.host.token();
                    let reaction = hold.expire_if_due(now);
                    client.watchdog.execute(hold, reaction);
                    // The thread that ended it may not have come to our signal yet.
                    if let Some(lost) = hold.end() {
                        view.signal().end(&lost);
                    }
                }
                match view.board().ended() {
                    None => Ok(()),
                    Some(lost) => Err(lost.into()),
                }
            }

            /// Whether [`check`](Self::check) is `Ok`.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.check().is_ok()
            }

            /// How long the lease is certain to last if nothing is heard from the server again; zero once it has
            /// ended. A healthy one stays above two thirds of its TTL, less the drift.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                let (LeaseHandle { client, hold, .. }, board) = (self.view(), self.view().board());
                if board.ended().is_some() { Duration::ZERO } else { hold.remaining(client.now()) }
            }

            /// Where the lease stands.
            #[must_use]
            pub fn status(&self) -> Status {
                // The clock may know more than the signals do.
                let _judged = self.check();
                self.view().board().status()
            }

            /// The changes of the status from here on.
            pub fn status_changes(&self) -> StatusChanges {
                StatusChanges::new(self.view().signal())
            }

            /// A token that is cancelled when [`lost`](Self::lost) completes: the lease is lost or released, or its holder is
            /// asked to stop. For work that knows such tokens already. Each call makes a child, so that cancelling it
            /// cancels nobody else's.
            #[must_use]
            pub fn cancellation_token(&self) -> CancellationToken {
                self.view().board().cancellation_token()
            }

            /// The fencing token: hand it to whatever the lock protects.
            #[must_use]
            pub fn fence(&self) -> Fence {
                self.view().hold.fence
            }

            /// The lock's name, without the prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.view().hold.key.name()
            }

            /// The label under which others see this holder.
            #[must_use]
            pub fn label(&self) -> &str {
                self.view().hold.token.label()
            }

            /// How many leases of a re-entrant owner share this acquisition.
            #[must_use]
            pub fn hold_count(&self) -> usize {
                self.view().hold.holds()
            }

            /// Extends the lease now, instead of waiting for the keeper: before a step that needs a full TTL.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`] if the lease has ended; [`Error::Unknown`] if the server did not confirm in
            /// time, which leaves the lease as it was, at risk.
            ///
            /// # Cancel safety
            ///
            /// Dropping it may or may not have extended the key; the lease is believed as before. Nothing is left
            /// behind.
            #[doc(alias = "extend")]
            pub async fn renew(&self) -> Result<(), Error> {
                self.check()?;
                let LeaseHandle { client, hold, .. } = self.view();
                let sent = client.now();
                let limit = hold.remaining(sent).min(client.options.command_timeout);
                let renewing = client.watchdog.renew_now(hold, Route::Tracked, limit);
                let renewed = relayed!(Relay::of_answers(), renewing);
                self.check()?;
                renewed.map_err(|failure| Error::unknown_renewal(&failure))
            }
        }
    };
}

view!(Lease);
view!(LeaseHandle);
