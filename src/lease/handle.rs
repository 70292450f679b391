//! The view of a lease: the calls that a [`Lease`](super::Lease) and its handles share.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_core::Stream;
use futures_util::StreamExt as _;
use leasehold_protocol::{fence::Fence, loss::LossReason, message::Route, mode::Mode, time::Time};
use tokio_util::sync::CancellationToken;

use super::on_lost;
use crate::{
    engine::Engine,
    error::Error,
    foreign::relayed,
    held::{AfterLast, Hold},
    lost::Lost,
    status::{Board, HasBoard, Signal, Status, StatusChanges},
};

/// A view of a [`Lease`](super::Lease) that can be cloned and passed around: everything but the release.
///
/// It does not keep the lock held: when the lease has ended, it reports that.
#[derive(Clone)]
pub struct LeaseHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) hold: Arc<Hold>,
    /// The lease's own signals, unless it uses the hold's.
    board: Option<Arc<Board>>,
}

impl LeaseHandle {
    pub(super) fn new(engine: Arc<Engine>, hold: Arc<Hold>, signal: Signal) -> Self {
        let board = if let Signal::More(board) = signal { Some(board) } else { None };
        Self { engine, hold, board }
    }

    pub(super) fn board(&self) -> &Board {
        self.board.as_deref().unwrap_or_else(|| self.hold.board())
    }

    /// The signal for users that may outlive this handle.
    pub(crate) fn signal(&self) -> Signal {
        self.board.clone().map_or_else(|| Signal::First(self.hold.clone()), Signal::More)
    }

    /// The stream itself, with a report of [progress](Self::progress) for each of its items: work that takes one item
    /// after the other makes progress as long as it asks for the next.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use futures_util::{StreamExt, stream};
    /// # async fn copy(_: u32) -> Result<(), leasehold::Error> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("import").stall_after(Duration::from_secs(60));
    /// lock.run(async |lease| {
    ///     let mut rows = lease.follow(stream::iter(0..1_000));
    ///     while let Some(row) = rows.next().await {
    ///         copy(row).await?;
    ///     }
    ///     Ok::<_, leasehold::Error>(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn follow<S: Stream>(&self, stream: S) -> impl Stream<Item = S::Item> + use<S> {
        let handle = self.clone();
        stream.inspect(move |_| handle.progress())
    }

    /// Completes as [`lost`](Self::lost) does, as a part of a future that is relayed.
    pub(crate) fn lost_here(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
        self.signal().lost()
    }

    /// Runs this beside the keeper's own tasks.
    pub(crate) fn spawn_beside(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.engine.host.spawn_beside(task);
    }

    fn view(&self) -> &Self {
        self
    }

    /// Gives up one lease; only the first call counts.
    pub(super) fn leave(&self, now: Time) -> AfterLast {
        let (leaving, reaction) = self.hold.leave(now, &self.signal());
        self.engine.watchdog.execute(&self.hold, reaction);
        leaving
    }

    /// Asks the holder to stop when only the grace is left of the lease. Completes when the grace is over and the lease
    /// has ended.
    pub(super) async fn out_of_grace(self, grace: Duration) -> Lost {
        let (Self { engine, hold, .. }, signal) = (&self, self.signal());
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
                () = engine.host.sleep(left) => {}
            }
        }
        let now = engine.now();
        signal.ask_to_stop(&hold.lost(now, now, LossReason::Expiring));
        engine.host.sleep(grace).await;
        signal.clone().over().await
    }

    pub(super) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
            /// Completes when the lease ends, with the reason: by the lease's deadline, whatever the network, the
            /// program's log or its metrics exporter does.
            ///
            /// It completes earlier, while the lease is still held, when its holder is asked to stop: with
            /// [`Closing`](crate::LossReason::Closing) by a [`shutdown`](crate::Client::shutdown), with
            /// [`Expiring`](crate::LossReason::Expiring) under a [grace](crate::Lock::grace). From then on
            /// [`check`](Self::check) and [`status_changes`](Self::status_changes) report the end.
            ///
            /// The future owns what it needs: move it, pin it, spawn it. A timer of the keeper completes it at the
            /// deadline ([rule 2](crate::docs::safety#rule-2)). It completes earlier when the server reports that the
            /// key is gone or taken, and with [`Released`](crate::LossReason::Released) when the release of this lease
            /// begins.
            ///
            /// # Cancel safety
            ///
            /// Dropping it loses nothing.
            pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
                let signal = self.view().signal();
                async move { relayed!(signal.lost()) }
            }

            /// Calls `tell` once when the lease is lost, or its holder is asked to stop ([`Lost::is_over`] tells
            /// which); never when it is released, dropped or handed over. If the loss came before this call, `tell` is
            /// still called.
            ///
            /// It is for work that cannot await, such as work on a thread. `tell` runs on a thread of its own, where it
            /// may block: no other lease waits for it. It should still be quick, because another holder may already
            /// have the lock. A panic in it is caught.
            ///
            /// ```
            /// # use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
            /// # fn main() -> Result<(), leasehold::Error> {
            /// # let client = leasehold::Client::in_memory();
            /// let lease = leasehold::block_on(client.lock("reports:nightly").acquire())??;
            /// let stop = Arc::new(AtomicBool::new(false));
            /// let stops = stop.clone();
            /// lease.on_lost(move |lost| {
            ///     eprintln!("{lost}");
            ///     stops.store(true, Ordering::Relaxed); // or kill the child process that does the work
            /// });
            /// # assert!(!stop.load(Ordering::Relaxed)); Ok(()) }
            /// ```
            pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
                on_lost(self.lost(), tell);
            }

            /// Whether the lease is held alone or shared.
            #[must_use]
            pub fn mode(&self) -> Mode {
                self.view().hold.claim.mode
            }

            /// Checks that the lease holds right now. It reads the clock, so it is right even when the process was
            /// stopped and no timer has run yet.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
            /// # let client = leasehold::Client::in_memory();
            /// # let lease = client.lock("import").acquire().await?;
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
                let (view, now) = (self.view(), self.view().engine.now());
                let LeaseHandle { engine, hold, .. } = view;
                engine.check_process()?;
                if hold.remaining(now).is_zero() {
                    let _under_way = engine.host.token();
                    let reaction = hold.expire_if_due(now);
                    engine.watchdog.execute(hold, reaction);
                    // The thread that ended it may not have reached our signal yet.
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

            /// How long the lease is certain to last if the server never answers again; zero once it has ended. For a
            /// healthy lease it stays above two thirds of the TTL, less the drift.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                let (LeaseHandle { engine, hold, .. }, board) = (self.view(), self.view().board());
                if board.ended().is_some() { Duration::ZERO } else { hold.remaining(engine.now()) }
            }

            /// The status of the lease.
            #[must_use]
            pub fn status(&self) -> Status {
                // The clock may be ahead of the signals.
                let _judged = self.check();
                self.view().board().status()
            }

            /// The changes of the status from now on.
            pub fn status_changes(&self) -> StatusChanges {
                StatusChanges::new(self.view().signal())
            }

            /// A token that is cancelled when [`lost`](Self::lost) completes: the lease is lost or released, or its
            /// holder is asked to stop. For work that already uses such tokens. Each call makes a child, so cancelling
            /// it cancels no other. If a waker that waits for one panics, waiters for others of this lease may not be
            /// woken.
            #[must_use]
            pub fn cancellation_token(&self) -> CancellationToken {
                self.view().board().cancellation_token()
            }

            /// The fencing token: pass it to whatever the lock protects.
            #[must_use]
            pub fn fence(&self) -> Fence {
                self.view().hold.fence
            }

            /// The lock's name, without the prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.view().hold.claim.key.name()
            }

            /// The label under which others see this holder.
            #[must_use]
            pub fn label(&self) -> &str {
                self.view().hold.claim.token.label()
            }

            /// How many leases have this acquisition: of a re-entrant owner, or made by [`share`](crate::LeaseHandle::share).
            #[must_use]
            pub fn hold_count(&self) -> usize {
                self.view().hold.holds()
            }

            /// Reports that the work makes progress, for a lease with [`stall_after`](crate::Lock::stall_after). It
            /// costs a look at the clock, so call it for each step: a row copied, a batch done. Never call it from a
            /// timer, which goes on while the work hangs.
            ///
            /// Any thread may call it, and any of the leases that share a hold.
            pub fn progress(&self) {
                let LeaseHandle { engine, hold, .. } = self.view();
                engine.watchdog.progress(hold);
            }

            /// Extends the lease now, instead of waiting for the keeper: before a step that needs a full TTL. It counts
            /// as [progress](Self::progress).
            ///
            /// # Errors
            ///
            /// [`Error::Lost`] if the lease has ended; [`Error::Unconfirmed`] if the server did not confirm in
            /// time, which leaves the lease as it was, at risk.
            ///
            /// # Cancel safety
            ///
            /// If it is dropped, the key may or may not have been extended; the lease's deadline is as before. Nothing
            /// is left behind.
            #[doc(alias = "extend")]
            pub async fn renew(&self) -> Result<(), Error> {
                self.check()?;
                self.progress();
                let LeaseHandle { engine, hold, .. } = self.view();
                let sent = engine.now();
                let limit = hold.remaining(sent).min(engine.options.command_timeout);
                let renewing = engine.watchdog.renew_now(hold, Route::Tracked, limit);
                let renewed = relayed!(renewing);
                self.check()?;
                renewed.map_err(|failure| Error::unconfirmed_renewal(&failure))
            }
        }
    };
}

pub(super) use view;

view!(LeaseHandle);
