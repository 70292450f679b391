//! The life of the keeper's runtime, which ends before its last callers do. After that no timer is polled.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::RwLock;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::sync::catching_panics;

/// Whether the keeper's runtime still runs. Tokio's timers panic when they are polled in a runtime that has shut down.
///
/// # Invariant
///
/// No timer is polled after its runtime has ended. The keeper's thread [retires](Self::retire) before its runtime ends:
/// it waits for the polls that are under way, and later ones are refused.
#[derive(Debug, Default)]
pub(super) struct Life {
    has_ended: AtomicBool,
    polls: RwLock<()>,
    pub(super) over: CancellationToken,
}

impl Life {
    /// Stops all polls of timers from here on, because the runtime is about to end.
    pub(super) fn retire(&self) {
        self.has_ended.store(true, Ordering::Release);
        drop(self.polls.write());
    }

    /// Ends every wait for the runtime, which has failed.
    pub(super) fn fail(&self) {
        self.retire();
        let _told = catching_panics(|| self.over.cancel());
    }

    /// Notes that the runtime is in another process. In this one no poll is under way, whatever the lock says.
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

/// Gives a future the keeper's timers, so that any executor can poll it, and another one later.
pub(crate) struct TimeKeeper(pub(super) Handle);

impl TimeKeeper {
    /// Runs this future without moving it, because a request is too large to be moved.
    pub(crate) async fn keep<F: Future>(self, mut future: Pin<&mut F>) -> F::Output {
        poll_fn(|context| {
            let _keeper = self.0.enter();
            future.as_mut().poll(context)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;

    #[test]
    fn the_end_waits_for_the_polls_that_are_under_way() {
        let life = Arc::<Life>::default();
        let ending = life.step(|| {
            let ending = {
                let life = life.clone();
                thread::Builder::new().spawn(move || life.retire()).unwrap()
            };
            while !life.has_ended.load(Ordering::Acquire) {
                thread::yield_now();
            }
            // A poll in the middle of the end, and one inside of it.
            thread::sleep(Duration::from_millis(50));
            assert!(!ending.is_finished());
            assert_eq!(life.step(|| ()), None);
            ending
        });
        ending.unwrap().join().unwrap();
    }
}
