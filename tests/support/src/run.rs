//! Where futures run: on runtimes, in tasks that record the time, and without a runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::bounds::HANGS;

/// A runtime with two threads of its own, besides the one that calls `block_on`.
pub fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A runtime on the thread that calls `block_on`.
pub fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A task with a future's output and when it was ready.
pub fn timed<F: Future<Output: Send> + Send + 'static>(future: F) -> JoinHandle<(F::Output, Instant)> {
    tokio::spawn(async move { (future.await, Instant::now()) })
}

/// Runs a future on this thread without a runtime; panics with `what` if it hangs.
#[track_caller]
pub fn on_no_runtime<F: Future>(what: &str, future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (mut future, start) = (pin!(future), Instant::now());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = HANGS.saturating_sub(start.elapsed());
        assert!(!left.is_zero(), "not within {HANGS:?} and without a runtime: {what}");
        thread::park_timeout(left);
    }
}

/// When a future is dropped after its last poll.
#[derive(Debug, Clone, Copy)]
pub enum Dropped {
    /// Right after its last poll.
    AtOnce,
    /// When it would be polled again: its event has happened, but it does not know yet.
    WhenWoken,
}

/// Polls a future a limited number of times; `None` if it was not ready by then.
#[derive(Debug)]
pub struct Polls<F> {
    future: Pin<Box<F>>,
    left: usize,
    dropped: Dropped,
}

impl<F: Future> Polls<F> {
    /// `future`, which is polled `polls` times at most.
    pub fn of(future: F, polls: usize, dropped: Dropped) -> Self {
        Self { future: Box::pin(future), left: polls, dropped }
    }
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 && matches!(self.dropped, Dropped::AtOnce) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
