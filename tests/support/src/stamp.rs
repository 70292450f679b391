//! When a future was woken: what it answers for, while its thread's turn is the machine's affair.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_blocking};

/// How a future completed.
#[derive(Debug)]
pub struct Stamped<T> {
    /// What it gave.
    pub output: T,
    /// When it was last told to wake its thread.
    pub woken: Instant,
    /// When it had given its output.
    pub returned: Instant,
}

/// Notes when it was told to wake its thread, which may run a good deal later.
struct Stamp {
    woken: Mutex<Instant>,
    sleeper: Thread,
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.sleeper.unpark();
    }
}

/// Awaits a future on a thread of its own; panics there with `what` after `limit`.
pub fn stamped<F>(limit: Duration, what: &'static str, future: F) -> JoinHandle<Stamped<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    spawn_blocking(move || {
        let mut future = pin!(future);
        let stamp = Arc::new(Stamp { woken: Mutex::new(Instant::now()), sleeper: thread::current() });
        let waker = stamp.clone().into();
        let started = Instant::now();
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                let woken = *stamp.woken.lock().unwrap_or_else(PoisonError::into_inner);
                return Stamped { output, woken, returned: Instant::now() };
            }
            let left = limit.saturating_sub(started.elapsed());
            assert!(!left.is_zero(), "not within {limit:?}: {what}");
            thread::park_timeout(left);
        }
    })
}
