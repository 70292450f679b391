//! The status and the signals of one lease, and the stream of its changes.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    panic::{RefUnwindSafe, UnwindSafe},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use leasehold_protocol::loss::LossReason;
use tokio_util::sync::CancellationToken;

use crate::{
    foreign::relayed,
    lost::Lost,
    sync::{Mutex, Notify, OnceLock, catching_panics},
};

/// The state of a lease. A request to its holder to stop ([`Closing`](crate::LossReason::Closing)) does not change it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Status {
    /// Valid, and the last renewal was confirmed.
    Held,
    /// Still valid, but a renewal failed, or its work reports no [progress](crate::Lock::stall_after): start nothing new.
    /// The lease recovers, or is lost at its deadline.
    AtRisk,
    /// Lost. Final.
    Lost(Lost),
    /// Released or dropped by its holder. Final.
    Released,
}

/// Something that contains a [`Board`].
pub(crate) trait HasBoard: Send + Sync + RefUnwindSafe {
    fn board(&self) -> &Board;
}

/// A handle on the [`Board`] of one [`Lease`](crate::Lease).
#[derive(Clone)]
pub(crate) enum Signal {
    /// The board of the lease that a hold was won for, which is part of the hold.
    First(Arc<dyn HasBoard>),
    /// The board of a lease beside it.
    More(Arc<Board>),
}

impl Deref for Signal {
    type Target = Board;

    fn deref(&self) -> &Board {
        match self {
            Self::First(hold) => hold.board(),
            Self::More(board) => board,
        }
    }
}

/// The signals of one lease: its status, the waiters for a change, and its cancellation.
///
/// Kept small: ten thousand leases have ten thousand of them.
pub(crate) struct Board {
    state: Mutex<BoardState>,
    changed: Notify,
    cancel: OnceLock<CancellationToken>,
}

struct BoardState {
    status: Status,
    /// The answer of `lost()`. Set with the final status, for a release too; or earlier, when the holder is asked to
    /// stop.
    lost: Option<Lost>,
    version: u64,
}

// As for `Engine`.
impl RefUnwindSafe for Board {}

impl BoardState {
    fn end(&self) -> Option<&Lost> {
        self.lost.as_ref().filter(|lost| lost.is_over())
    }
}

impl Board {
    pub(crate) fn new() -> Self {
        Self::beside(None)
    }

    /// The board of one more lease on an acquisition. If a shutdown has asked the other lease to stop, it asks this one
    /// too. A request to stop under a grace concerns one lease only, and is not copied.
    pub(crate) fn beside(other: Option<&Self>) -> Self {
        let asked = other.and_then(|other| other.state.lock().lost.clone());
        let lost = asked.filter(|lost| lost.reason() == LossReason::Closing);
        let state = BoardState { status: Status::Held, lost, version: 0 };
        Self { state: Mutex::new(state), changed: Notify::new(), cancel: OnceLock::new() }
    }

    /// Notes that the lease is held, or at risk. Ignored once it has ended. Wakes no waiter: see [`wake`](Self::wake).
    pub(crate) fn note(&self, status: Status) {
        let mut state = self.state.lock();
        if state.end().is_none() && state.status != status {
            state.status = status;
            state.version += 1;
        }
    }

    /// Notes that the lease has ended. The first end counts. Wakes no waiter: see [`wake`](Self::wake).
    pub(crate) fn note_end(&self, lost: &Lost) {
        let mut state = self.state.lock();
        if state.end().is_none() {
            let released = lost.reason() == LossReason::Released;
            state.status = if released { Status::Released } else { Status::Lost(lost.clone()) };
            state.lost = Some(lost.clone());
            state.version += 1;
        }
    }

    /// Notes that the holder is asked to stop, while the lease continues. A shutdown overrides a deadline that is near,
    /// because the next lease beside this one learns of the shutdown from here. Wakes no waiter: see
    /// [`wake`](Self::wake).
    pub(crate) fn note_stop(&self, why: &Lost) {
        let mut state = self.state.lock();
        if state.lost.is_none() || state.end().is_none() && why.reason() == LossReason::Closing {
            state.lost = Some(why.clone());
        }
    }

    /// Wakes every waiter after a change. Runs foreign code.
    pub(crate) fn wake(&self) {
        let _woken = catching_panics(|| self.changed.notify_waiters());
    }

    pub(crate) fn status(&self) -> Status {
        self.state.lock().status.clone()
    }

    pub(crate) fn ended(&self) -> Option<Lost> {
        self.state.lock().end().cloned()
    }

    async fn until(&self, what: impl Fn(&BoardState) -> Option<Lost>) -> Lost {
        loop {
            // Created before the check, so that it catches every change after it.
            let changed = self.changed.notified();
            if let Some(lost) = what(&self.state.lock()) {
                return lost;
            }
            changed.await;
        }
    }

    pub(crate) fn cancellation_token(&self) -> CancellationToken {
        let parent = self.cancel.get_or_init(CancellationToken::new);
        // An end just before the token was set has found no token to cancel.
        if self.state.lock().lost.is_some() {
            parent.cancel();
        }
        parent.child_token()
    }
}

impl Signal {
    /// Asks the holder to stop, while the lease continues.
    pub(crate) fn ask_to_stop(&self, why: &Lost) {
        self.note_stop(why);
        self.wake();
        self.cancel();
    }

    /// Cancels the token after the end, or when the holder is asked to stop. Runs foreign code, whose panic is caught
    /// here.
    pub(crate) fn cancel(&self) {
        let Some(cancel) = self.cancel.get() else { return };
        if self.state.lock().lost.is_none() {
            return;
        }
        let _cancelled = catching_panics(|| cancel.cancel());
    }

    /// Notes that the lease has ended, wakes its waiters and cancels its token.
    pub(crate) fn end(&self, lost: &Lost) {
        self.note_end(lost);
        self.wake();
        self.cancel();
    }

    /// Completes when the lease ends, or its holder is asked to stop.
    pub(crate) async fn lost(self) -> Lost {
        self.until(|state| state.lost.clone()).await
    }

    /// Completes when the lease ends.
    pub(crate) async fn over(self) -> Lost {
        self.until(|state| state.end().cloned()).await
    }

    /// Completes with the change after the version `seen`; with `None` if that was the last one.
    async fn changed(self, seen: u64) -> Option<Change> {
        loop {
            // As above.
            let changed = self.changed.notified();
            {
                let state = self.state.lock();
                if state.version != seen {
                    return Some((state.status.clone(), state.version));
                }
                if state.end().is_some() {
                    return None;
                }
            }
            changed.await;
        }
    }
}

/// The changes of one lease's [`Status`]. You get the newest only: changes between two calls are skipped.
///
/// ```
/// # use leasehold::{Client, Status};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = Client::in_memory();
/// let lease = client.lock("reports:nightly").acquire().await?;
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
/// It is a [`Stream`], which ends with the final status.
#[must_use = "call `next` to hear of changes"]
pub struct StatusChanges {
    signal: Signal,
    seen: u64,
    /// The wait for the next change, from its first poll on.
    waiting: Option<Pin<Box<dyn Future<Output = Option<Change>> + Send + Sync>>>,
}

// A wait that a panic cut off starts again, and has missed no change.
impl UnwindSafe for StatusChanges {}
impl RefUnwindSafe for StatusChanges {}

/// A status and its version.
type Change = (Status, u64);

impl StatusChanges {
    pub(crate) fn new(signal: Signal) -> Self {
        let seen = signal.state.lock().version;
        Self { signal, seen, waiting: None }
    }

    /// Waits for the next change. `None` after the final status was returned.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses no change.
    pub async fn next(&mut self) -> Option<Status> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for StatusChanges {
    type Item = Status;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Status>> {
        let Self { signal, seen, waiting } = &mut *self;
        let waiting_for = || {
            let changed = signal.clone().changed(*seen);
            Box::pin(async move { relayed!(changed) }) as Pin<Box<_>>
        };
        // Taken out while it is polled: after a panic of a waker the next call starts again.
        let mut wait = waiting.take().unwrap_or_else(waiting_for);
        let Poll::Ready(change) = wait.as_mut().poll(context) else {
            *waiting = Some(wait);
            return Poll::Pending;
        };
        Poll::Ready(change.map(|(status, version)| {
            *seen = version;
            status
        }))
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
        sync::mpsc,
        task::{Wake, Waker},
        time::{Duration, UNIX_EPOCH},
    };

    use super::*;
    use leasehold_protocol::fence;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, as it is meant to");
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_from_being_cancelled() {
        let signal = Signal::More(Arc::new(Board::new()));
        let (token, mut lost) = (signal.cancellation_token(), pin!(signal.clone().lost()));
        assert!(lost.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
        ended(&signal);
        assert!(token.is_cancelled());
    }
    fn ended(signal: &Signal) {
        signal.end(&Lost::new("job", fence::ZERO, LossReason::Deleted.into(), UNIX_EPOCH, Duration::ZERO));
    }

    struct Woken(mpsc::Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            let _nobody_listens = self.0.send(());
        }
    }

    /// Polled as a trait object, as by a combinator that we do not know.
    #[test]
    fn a_stream_of_changes_has_the_newest_and_ends_with_the_last() {
        let signal = Signal::More(Arc::new(Board::new()));
        let mut changes: Pin<Box<dyn Stream<Item = Status> + Send + Sync>> =
            Box::pin(StatusChanges::new(signal.clone()));
        let mut poll = || changes.as_mut().poll_next(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Pending);
        signal.note(Status::AtRisk);
        assert_eq!(poll(), Poll::Pending, "nobody was woken yet");
        signal.wake();
        assert_eq!(poll(), Poll::Ready(Some(Status::AtRisk)));
        assert_eq!(poll(), Poll::Pending);
        signal.note(Status::Held);
        signal.note(Status::AtRisk);
        ended(&signal);
        assert!(matches!(poll(), Poll::Ready(Some(Status::Lost(_)))));
        assert_eq!(poll(), Poll::Ready(None));
        assert_eq!(poll(), Poll::Ready(None));
    }

    #[test]
    fn a_dropped_wait_for_a_change_loses_none_and_the_next_one_is_woken() {
        let signal = Signal::More(Arc::new(Board::new()));
        let mut changes = StatusChanges::new(signal.clone());
        assert!(pin!(changes.next()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (tell, woken) = mpsc::channel();
        let waker = Waker::from(Arc::new(Woken(tell)));
        {
            let mut next = pin!(changes.next());
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        signal.note(Status::AtRisk);
        signal.wake();
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
        let next = pin!(changes.next()).poll(&mut Context::from_waker(&waker));
        assert_eq!(next, Poll::Ready(Some(Status::AtRisk)));
    }
}
