//! The life of the keeper's runtime, which may end before its callers: then no timer is polled any more.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::sync::catching_panics;

/// Whether the keeper's runtime still runs. Tokio's timers panic when they are polled in a runtime that has shut down.
///
/// # Invariant
///
/// No timer is polled after its runtime. The end waits for the polls that are under way, and turns later ones away. A
/// thread of the keeper's [retires](Self::retire) before its runtime goes. A program's runtime drops its tasks before it
/// shuts the timers down, and one of them is the [`EndGuard`].
#[derive(Debug, Default)]
pub(super) struct Life {
    has_ended: AtomicBool,
    polls: RwLock<()>,
    pub(super) over: CancellationToken,
}

impl Life {
    /// No timer is polled from here on: the runtime is about to end.
    pub(super) fn retire(&self) {
        self.has_ended.store(true, Ordering::Release);
        drop(self.polls.write());
    }

    /// The runtime ends although the keeper is needed.
    pub(super) fn end(&self) {
        self.retire();
        // Wakes foreign tasks.
        let _told = catching_panics(|| self.over.cancel());
    }

    /// The runtime is in another process. Nobody polls in this one, whatever the lock says.
    pub(super) fn is_elsewhere(&self) {
        self.has_ended.store(true, Ordering::Release);
        let _told = catching_panics(|| self.over.cancel());
    }

    /// Takes this step unless the runtime has ended. Steps may nest.
    pub(super) fn step<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let _under_way = self.polls.read_recursive();
        if self.has_ended.load(Ordering::Acquire) { None } else { Some(step()) }
    }
}

/// Ends the life of the runtime that drops it.
pub(super) struct EndGuard(pub(super) Option<Arc<Life>>);

impl EndGuard {
    /// The keeper has ended before its runtime.
    pub(super) fn stand_down(mut self) {
        self.0 = None;
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(life) = self.0.take() {
            life.end();
        }
    }
}

/// Gives a future the keeper's timers, so that any executor can poll it, and another one later.
pub(crate) struct TimeKeeper {
    pub(super) runtime: Handle,
    pub(super) may_end: Option<(Arc<Life>, Pin<Box<WaitForCancellationFutureOwned>>)>,
}

impl TimeKeeper {
    /// Runs this future, which stays where it is: a request is too large to be moved. When the keeper's runtime ends it
    /// completes with what `ended` gives.
    pub(crate) async fn keep<F: Future>(mut self, mut future: Pin<&mut F>, ended: fn() -> F::Output) -> F::Output {
        poll_fn(|context| {
            let mut poll = |context: &mut Context<'_>| {
                let _keeper = self.runtime.enter();
                future.as_mut().poll(context)
            };
            let Some((life, over)) = &mut self.may_end else { return poll(context) };
            match life.step(|| poll(context)) {
                Some(Poll::Pending) => over.as_mut().poll(context).map(|()| ended()),
                Some(ready) => ready,
                None => Poll::Ready(ended()),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn the_end_waits_for_the_polls_that_are_under_way() {
        let life = Arc::<Life>::default();
        let ending = life.step(|| {
            let ending = {
                let life = life.clone();
                thread::Builder::new().spawn(move || life.end()).unwrap()
            };
            while !life.has_ended.load(Ordering::Acquire) {
                thread::yield_now();
            }
            // A poll in the middle of the end, and one inside of it.
            thread::sleep(Duration::from_millis(50));
            assert!(!life.over.is_cancelled() && !ending.is_finished());
            assert_eq!(life.step(|| ()), None);
            ending
        });
        ending.unwrap().join().unwrap();
        assert!(life.over.is_cancelled());
    }
}
