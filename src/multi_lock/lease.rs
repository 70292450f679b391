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
/// It has a [`Lease`] for each lock, in the order of their keys, and does nothing for them itself: the keeper renews each
/// by its own TTL. When one is lost, [`lost`](Self::lost) and [`check`](Self::check) say which. The others stay held until this
/// is released or dropped, so the work has time to stop.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let held = leases.multi_lock([leases.lock("account:7"), leases.lock("account:9")]).acquire().await?;
/// leases.lock("account:7").force_release().await?; // an operator takes it away
/// assert_eq!(held.lost().await.name(), "account:7");
/// assert!(held.leases()[1].is_held());
/// # Ok(()) }
/// ```
#[must_use = "leases that are dropped are released"]
pub struct MultiLease {
    view: MultiLeaseHandle,
    leases: Vec<Lease>,
}

/// A view of a [`MultiLease`] that can be cloned and handed around: all of it but the release.
#[derive(Clone)]
pub struct MultiLeaseHandle(Arc<Handles>);

struct Handles {
    leases: Box<[LeaseHandle]>,
    cancel: OnceLock<CancellationToken>,
}

// As for `Client`.
impl RefUnwindSafe for Handles {}

impl MultiLease {
    pub(super) fn of(leases: Vec<Lease>) -> Self {
        let handles = leases.iter().map(Lease::handle).collect();
        Self { view: MultiLeaseHandle(Arc::new(Handles { leases: handles, cancel: OnceLock::new() })), leases }
    }

    fn view(&self) -> &MultiLeaseHandle {
        &self.view
    }

    /// A handle on these leases that can be moved elsewhere.
    #[must_use]
    pub fn handle(&self) -> MultiLeaseHandle {
        self.view.clone()
    }

    /// The lease of each lock, in the order of their keys.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The leases, to release each by itself.
    #[must_use = "leases that are dropped are released"]
    pub fn into_leases(self) -> Vec<Lease> {
        self.leases
    }

    /// Releases all of them at the same time, whatever becomes of one. As [`Lease::release`] of each.
    ///
    /// `Ok` says that all were ours to the end. They are [`Unconfirmed`](Released::Unconfirmed) if one is, and the text says
    /// which and why. To get the outcome of each, take [`into_leases`](Self::into_leases).
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the lease that ended first, if any had ended before: what the job did after its [`Lost::since`]
    /// was not protected. The others are released all the same.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::release`].
    pub async fn release(self) -> Result<Released, Error> {
        self.let_go(Duration::ZERO).await
    }

    /// As [`release`](Self::release), but each key stays for `keep`: see [`Lease::release_keeping`].
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). [`Error::Config`] if they cannot be kept for so long: all are dropped.
    ///
    /// # Cancel safety
    ///
    /// As [`Lease::release_keeping`].
    pub async fn release_keeping(self, keep: Duration) -> Result<Released, Error> {
        self.leases.iter().try_for_each(|lease| lease.may_keep(keep))?;
        self.let_go(keep).await
    }

    async fn let_go(self, keep: Duration) -> Result<Released, Error> {
        // Others wait for the first before the last: they find the last free then.
        let releasing = self.leases.into_iter().rev().map(|lease| async move {
            let name = lease.name().to_owned();
            (name, lease.let_go(keep).await)
        });
        together(relayed!(join_all(releasing)))
    }

    /// Runs `work` for as long as all of the leases hold: stops polling it, and drops it, the moment one is lost. Then
    /// releases all. The lease that is lost first decides with its [`grace`](crate::Lock::grace).
    ///
    /// As [`Lease::run`] otherwise, but the work runs in no span of its own.
    ///
    /// # Errors
    ///
    /// - The error of the work. The locks are released then too.
    /// - [`Error::Lost`], as an `E`: the work was not started, was stopped, or ended with `Ok` when one of the leases was gone
    ///   already.
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

    /// Cancels the token when the first of the leases ends, or asks for a stop.
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

/// Cancels its token when it is dropped: also with the keeper's runtime, which ends every lease.
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
            /// Completes when the first of the leases ends, and says which and why; or when its holder is asked to stop. As
            /// [`Lease::lost`].
            ///
            /// # Cancel safety
            ///
            /// Dropping it loses nothing.
            pub fn lost(&self) -> impl Future<Output = Lost> + Send + Sync + use<> {
                let lost = first(self.view().leases().iter().map(LeaseHandle::lost_here).collect());
                async move { relayed!(lost) }
            }

            /// Calls `tell` once, with the first of them that is lost. As [`Lease::on_lost`].
            pub fn on_lost(&self, tell: impl FnOnce(Lost) + Send + 'static) {
                on_lost(self.lost(), tell);
            }

            /// Whether all of the leases hold right now. It reads the clock, as [`Lease::check`].
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

            /// How long all of the leases are certain to last: the least of their [`remaining`](Lease::remaining) times.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.view().leases().iter().map(LeaseHandle::remaining).min().unwrap_or_default()
            }

            /// The fencing token of the lock of this name, without the prefix; `None` if it is none of these. Of several such
            /// locks, under different [prefixes](crate::Leases::prefix), it is one: look through [`leases`](Self::leases) then.
            #[must_use]
            pub fn fence(&self, name: impl AsRef<str>) -> Option<Fence> {
                let named = |lease: &&LeaseHandle| lease.name() == name.as_ref();
                self.view().leases().iter().find(named).map(LeaseHandle::fence)
            }

            /// A token that is cancelled when [`lost`](Self::lost) completes. Each call makes a child, so that cancelling it
            /// cancels nobody else's.
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
                // Nobody has to wait for an end that is there by now.
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

/// The first end of several leases.
async fn first<F: Future<Output = Lost>>(mut ends: FuturesUnordered<F>) -> Lost {
    match ends.next().await {
        Some(lost) => lost,
        None => pending().await,
    }
}

/// The outcome of several releases together.
fn together(released: Vec<(String, Result<Released, Error>)>) -> Result<Released, Error> {
    let mut lost = Vec::new();
    // Mostly all have the same reason.
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
