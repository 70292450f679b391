//! Several locks that are held together.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, pending},
    panic::RefUnwindSafe,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, future::join_all, stream::FuturesUnordered};
use leasehold_protocol::fence::Fence;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Details, Error},
    foreign::relayed,
    lease::{Lease, LeaseHandle, on_lost},
    lost::Lost,
    released::Released,
    sync::{OnceLock, catching_panics},
};

/// Several locks that are held together: from the acquire until [`release`](Self::release) or drop.
///
/// It contains a [`Lease`] for each lock, in the order of their keys, and does nothing for them itself: the keeper
/// renews each by its own TTL. When one is lost, [`lost`](Self::lost) and [`check`](Self::check) report which. The
/// others stay held until this is released or dropped, so the work has time to stop.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let held = client.multi_lock([client.lock("account:7"), client.lock("account:9")]).acquire().await?;
/// client.lock("account:7").force_release().await?; // an operator takes it away
/// assert_eq!(held.lost().await.name(), "account:7");
/// assert!(held.leases()[1].is_held());
/// # Ok(()) }
/// ```
#[must_use = "leases that are dropped are released"]
pub struct MultiLease {
    view: MultiLeaseHandle,
    leases: Vec<Lease>,
}

/// A view of a [`MultiLease`] that can be cloned and passed around: everything but the release.
#[derive(Clone)]
pub struct MultiLeaseHandle(Arc<Handles>);

struct Handles {
    leases: Box<[LeaseHandle]>,
    cancel: OnceLock<CancellationToken>,
}

// As for `Engine`.
impl RefUnwindSafe for Handles {}

impl MultiLease {
    pub(super) fn of(leases: Vec<Lease>) -> Self {
        let handles = leases.iter().map(Lease::handle).collect();
        Self { view: MultiLeaseHandle(Arc::new(Handles { leases: handles, cancel: OnceLock::new() })), leases }
    }

    fn view(&self) -> &MultiLeaseHandle {
        &self.view
    }

    /// A handle on these leases that can be moved to another task or thread.
    #[must_use]
    pub fn handle(&self) -> MultiLeaseHandle {
        self.view.clone()
    }

    /// The lease of each lock, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// Returns the leases, to release each by itself.
    #[must_use = "leases that are dropped are released"]
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Releases all locks at the same time, whatever the outcome of each. Like [`Lease::release`] of each.
    ///
    /// `Ok` means that all leases were ours to the end. It is [`Unconfirmed`](Released::Unconfirmed) if one release is,
    /// and the text says which and why. To get the outcome of each, use [`into_leases`](Self::into_leases).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the lease that ended first, if any had already ended: what the job did after its
    /// [`Lost::since`] was not protected. The others are still released.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::release`].
    pub async fn release(self) -> Result<Released, Error> {
        self.let_go(Duration::ZERO).await
    }

    /// Like [`release`](Self::release), but each key stays for `keep`: see [`Lease::release_keeping`].
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`Error::Config`] if the keys cannot be kept for that long: all leases are
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::release_keeping`].
    pub async fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        self.leases.iter().try_for_each(|lease| lease.may_keep(keep))?;
        self.let_go(keep).await
    }

    async fn let_go(self, keep: Duration) -> Result<Released, Error> {
        // In reverse: others wait for the first before the last, so they find the last free then.
        let releasing = self.leases.into_iter().rev().map(|lease| async move {
            let name = lease.name().to_owned();
            (name, lease.let_go(keep).await)
        });
        together(relayed!(join_all(releasing)))
    }

    /// Runs `work` for as long as all leases hold: stops polling it, and drops it, the moment one is lost. Then
    /// releases all. The first lost lease whose [`grace`](crate::Lock::grace) is over ends the work.
    ///
    /// Otherwise like [`Lease::run`], but the work does not get its own span.
    ///
    /// # Errors
    ///
    /// - The error of the work. The locks are released then too.
    /// - [`Error::Lost`], as an `E`: the work was not started, was stopped, or ended with `Ok` after one of the leases
    ///   had ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and then the leases, which are released in the background.
    pub async fn run<F, Fut, T, E>(self, work: F) -> Result<T, E>
    where
        F: FnOnce(MultiLeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.check()?;
        let output = {
            let stop = first(self.leases.iter().map(Lease::stop).collect());
            let (stop, job) = (pin!(async { relayed!(stop) }), pin!(work(self.handle())));
            tokio::select! {
                biased;
                lost = stop => return Err(Error::Lost(lost).into()),
                output = job => output,
            }
        };
        let released = self.release().await;
        // As in `Lease::run`.
        let done = output?;
        released?;
        Ok(done)
    }
}

/// For code that works under one lock or several.
impl From<Lease> for MultiLease {
    fn from(lease: Lease) -> Self {
        Self::of(vec![lease])
    }
}

impl MultiLeaseHandle {
    fn view(&self) -> &Self {
        self
    }

    /// The handle of each lease, in the order of their locks' keys.
    #[must_use]
    pub fn leases(&self) -> &[LeaseHandle] {
        &self.0.leases
    }

    /// Cancels the token when the first of the leases ends, or asks its holder to stop.
    fn cancel_at_the_end(&self, token: CancellationToken) {
        let cancels = Cancels(token);
        let lost = first(self.leases().iter().map(LeaseHandle::lost_here).collect());
        let Some(lease) = self.leases().first() else { return };
        lease.spawn_beside(async move {
            lost.await;
            drop(cancels);
        });
    }
}

/// Cancels its token when it is dropped: also with the keeper's runtime, whose end is the end of every lease.
struct Cancels(CancellationToken);

impl Drop for Cancels {
    fn drop(&mut self) {
        let _cancelled = catching_panics(|| self.0.cancel());
    }
}

/// The methods that the leases and their handles share.
macro_rules! view {
    ($type:ident) => {
        impl $type {
            /// Completes when the first of the leases ends, and reports which and why; or when its holder is asked to
            /// stop. Like [`Lease::lost`].
            ///
            /// # Cancel safety
            ///
            /// Dropping it loses nothing.
            pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
                let lost = first(self.view().leases().iter().map(LeaseHandle::lost_here).collect());
                async move { relayed!(lost) }
            }

            /// Calls `tell` once, with the first lease that is lost. Like [`Lease::on_lost`].
            pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
                on_lost(self.lost(), tell);
            }

            /// Checks that all leases hold right now. It reads the clock, like [`Lease::check`].
            ///
            /// # Errors
            ///
            /// How one of them ended.
            pub fn check(&self) -> Result<(), Error> {
                self.view().leases().iter().try_for_each(LeaseHandle::check)
            }

            /// Whether [`check`](Self::check) is `Ok`.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.check().is_ok()
            }

            /// Reports that the work makes progress, to every lease: see [`Lease::progress`].
            pub fn progress(&self) {
                self.view().leases().iter().for_each(LeaseHandle::progress);
            }

            /// How long all leases are certain to last: the shortest of their [`remaining`](Lease::remaining) times.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.view().leases().iter().map(LeaseHandle::remaining).min().unwrap_or_default()
            }

            /// The fencing token of the lock of this name, without the prefix; `None` if no lock here has the name. If
            /// several have it, under different [prefixes](crate::Client::prefix), it is the token of one of them:
            /// search [`leases`](Self::leases) then.
            #[must_use]
            pub fn fence(&self, name: impl AsRef<str>) -> Option<Fence> {
                let named = |lease: &&LeaseHandle| lease.name() == name.as_ref();
                self.view().leases().iter().find(named).map(LeaseHandle::fence)
            }

            /// A token that is cancelled when [`lost`](Self::lost) completes. Each call makes a child, so cancelling it
            /// cancels no other.
            #[must_use]
            pub fn cancellation_token(&self) -> CancellationToken {
                let view = self.view();
                let mut is_new = false;
                let parent = view.0.cancel.get_or_init(|| {
                    is_new = true;
                    CancellationToken::new()
                });
                if is_new {
                    view.cancel_at_the_end(parent.clone());
                }
                // If the end has already arrived, there is nothing to wait for.
                if self.lost().now_or_never().is_some() {
                    parent.cancel();
                }
                parent.child_token()
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.view().leases()).finish()
            }
        }
    };
}

view!(MultiLease);
view!(MultiLeaseHandle);

/// Completes with the first end of several leases.
async fn first<F: Future<Output = Lost>>(mut ends: FuturesUnordered<F>) -> Lost {
    match ends.next().await {
        Some(lost) => lost,
        None => pending().await,
    }
}

/// The combined outcome of several releases.
fn together(released: Vec<(String, Result<Released, Error>)>) -> Result<Released, Error> {
    let mut lost = Vec::new();
    // Usually all have the same reason.
    let mut unconfirmed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, outcome) in released.into_iter().rev() {
        match outcome {
            Ok(Released::Confirmed) => {}
            Ok(Released::Unconfirmed(why)) => unconfirmed.entry(why.to_string()).or_default().push(format!("{name:?}")),
            Err(Error::Lost(end)) => lost.push(end),
            Err(error) => return Err(error),
        }
    }
    if let Some(first) = lost.into_iter().min_by_key(Lost::since) {
        return Err(Error::Lost(first));
    }
    if unconfirmed.is_empty() {
        return Ok(Released::Confirmed);
    }
    let reasons = unconfirmed.into_iter().map(|(why, names)| format!("{}: {why}", names.join(", ")));
    Ok(Released::Unconfirmed(Details::new(reasons.collect::<Vec<_>>().join("; "))))
}
