//! What one holder is told about its lease, and how it hears of changes.

use std::sync::Arc;

use leasehold_protocol::loss::{self, LossReason};
use tokio_util::sync::CancellationToken;

use crate::{
    foreign::{self, Relay, relayed},
    lost::Lost,
    sync::{Mutex, Notify, OnceLock, catching_panics},
};

/// Where a lease stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Valid, and the last renewal was confirmed.
    Held,
    /// Valid still, but a renewal went wrong: start nothing new. It recovers, or it is lost at its deadline.
    AtRisk,
    /// Over. Final.
    Lost(Lost),
    /// Released or dropped by its holder. Final.
    Released,
}

/// The signals of one [`Lease`](crate::Lease): its status, whoever waits for it to change, and its cancellation.
///
/// Kept small: ten thousand leases have ten thousand of them.
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Notify,
    cancel: OnceLock<CancellationToken>,
}

struct State {
    status: Status,
    /// What `lost()` answers: set with the final status, for a release too; or before, when its holder is asked to stop.
    lost: Option<Lost>,
    version: u64,
}

impl State {
    fn end(&self) -> Option<&Lost> {
        self.lost.as_ref().filter(|lost| loss::is_final(lost.reason()))
    }
}

impl Signal {
    pub(crate) fn new() -> Arc<Self> {
        Self::beside(None)
    }

    /// For one more lease on an acquisition: a shutdown asks whoever has it to stop, as it has asked the others. What only
    /// one of them was asked for is its own affair.
    pub(crate) fn beside(other: Option<&Self>) -> Arc<Self> {
        let asked = other.and_then(|other| other.state.lock().lost.clone());
        let lost = asked.filter(|lost| lost.reason() == LossReason::Closing);
        let state = State { status: Status::Held, lost, version: 0 };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new(), cancel: OnceLock::new() })
    }

    /// The lease is held, surely or at risk. Ignored once it has ended. Wakes nobody: see [`wake`](Self::wake).
    pub(crate) fn note(&self, status: Status) {
        let mut state = self.state.lock();
        if state.end().is_none() && state.status != status {
            state.status = status;
            state.version += 1;
        }
    }

    /// The lease has ended. The first end stands. Wakes nobody: see [`wake`](Self::wake).
    pub(crate) fn note_end(&self, lost: &Lost) {
        let mut state = self.state.lock();
        if state.end().is_none() {
            let released = lost.reason() == LossReason::Released;
            state.status = if released { Status::Released } else { Status::Lost(lost.clone()) };
            state.lost = Some(lost.clone());
            state.version += 1;
        }
    }

    /// The holder is to stop, while the lease goes on. A shutdown counts for more than a deadline that is near: the next
    /// lease beside this one hears of it from here. Wakes nobody: see [`wake`](Self::wake).
    pub(crate) fn note_stop(&self, why: &Lost) {
        let mut state = self.state.lock();
        if state.lost.is_none() || state.end().is_none() && why.reason() == LossReason::Closing {
            state.lost = Some(why.clone());
        }
    }

    /// Asks the holder to stop, while the lease goes on.
    pub(crate) fn ask_to_stop(self: &Arc<Self>, why: &Lost) {
        self.note_stop(why);
        self.wake();
        self.cancel();
    }

    /// Wakes every waiter after a change. Runs no foreign code: the waiters' wakers are trusted, or relays.
    pub(crate) fn wake(&self) {
        let _woken = catching_panics(|| self.changed.notify_waiters());
    }

    /// Cancels after the end, or when the holder is to stop. Runs foreign code: not on the keeper's thread, and what it panics with ends here.
    pub(crate) fn cancel(self: &Arc<Self>) {
        if self.cancel.get().is_none() || self.state.lock().lost.is_none() {
            return;
        }
        let signal = self.clone();
        foreign::off_the_keeper(move || {
            if let Some(cancel) = signal.cancel.get() {
                cancel.cancel();
            }
        });
    }

    /// The lease has ended: notes it, wakes and cancels.
    pub(crate) fn end(self: &Arc<Self>, lost: &Lost) {
        self.note_end(lost);
        self.wake();
        self.cancel();
    }

    pub(crate) fn status(&self) -> Status {
        self.state.lock().status.clone()
    }

    pub(crate) fn ended(&self) -> Option<Lost> {
        self.state.lock().end().cloned()
    }

    /// Completes when the lease ends, or its holder is asked to stop.
    pub(crate) async fn lost(self: Arc<Self>) -> Lost {
        self.until(|state| state.lost.clone()).await
    }

    /// Completes when the lease ends.
    pub(crate) async fn over(self: Arc<Self>) -> Lost {
        self.until(|state| state.end().cloned()).await
    }

    async fn until(&self, what: impl Fn(&State) -> Option<Lost>) -> Lost {
        loop {
            // Made before the look, it hears of every change after it.
            let changed = self.changed.notified();
            if let Some(lost) = what(&self.state.lock()) {
                return lost;
            }
            changed.await;
        }
    }

    pub(crate) fn cancellation_token(&self) -> CancellationToken {
        let parent = self.cancel.get_or_init(CancellationToken::new);
        // An end that came between the look and the set has found no token to cancel.
        if self.state.lock().lost.is_some() {
            parent.cancel();
        }
        parent.child_token()
    }
}

/// To drop the token takes its lock, in which a canceller may sit.
impl Drop for Signal {
    fn drop(&mut self) {
        if let Some(cancel) = self.cancel.take().filter(|_| foreign::on_keeper()) {
            foreign::off_the_keeper(move || drop(cancel));
        }
    }
}

/// The changes of one lease's [`Status`]. You get the newest only: changes between two calls are skipped.
///
/// ```
/// # use leasehold::{Leases, Status};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = Leases::in_memory();
/// let lease = leases.lock("reports:nightly").acquire().await?;
/// let mut changes = lease.status_changes();
/// lease.release().await?;
/// while let Some(status) = changes.next().await {
///     match status {
///         Status::AtRisk => println!("start nothing new"),
///         Status::Lost(lost) => println!("stop: {lost}"),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
///
/// It ends with the final status.
#[must_use = "call `next` to hear of changes"]
pub struct StatusChanges {
    signal: Arc<Signal>,
    seen: u64,
}

impl StatusChanges {
    pub(crate) fn new(signal: Arc<Signal>) -> Self {
        let seen = signal.state.lock().version;
        Self { signal, seen }
    }

    /// Waits for the next change. `None` after the final status was returned.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses no change.
    pub async fn next(&mut self) -> Option<Status> {
        relayed!(Relay::of_signals(), self.changed())
    }

    async fn changed(&mut self) -> Option<Status> {
        loop {
            let changed = self.signal.changed.notified();
            {
                let state = self.signal.state.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Some(state.status.clone());
                }
                if state.end().is_some() {
                    return None;
                }
            }
            changed.await;
        }
    }
}

impl std::fmt::Debug for StatusChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusChanges").field("status", &self.signal.status()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Wake, Waker},
        time::{Duration, UNIX_EPOCH},
    };

    use super::*;
    use leasehold_protocol::fence::Fence;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, as it is meant to");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_cancelled() {
        let signal = Signal::new();
        let (token, mut lost) = (signal.cancellation_token(), pin!(signal.clone().lost()));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
        let fence = Fence::try_from(1_u64).unwrap();
        signal.end(&Lost::new("job", fence, LossReason::Deleted, UNIX_EPOCH, Duration::ZERO));
        assert!(token.is_cancelled());
    }
}
