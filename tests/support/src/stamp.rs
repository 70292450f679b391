//! When a future was woken. The future is responsible for that; when its thread runs afterwards depends on the machine.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How a future completed.
#[derive(Debug)]
pub struct Stamped<T> {
    /// The future's output.
    pub output: T,
    /// When its waker was last called.
    pub woken: Instant,
    /// When the output was ready.
    pub returned: Instant,
}

/// A waker that records when it was called; the thread may run much later.
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

/// Awaits a future on a thread of its own.
///
/// The caller limits the wait for the result, because only the test knows when the future may complete.
pub fn stamped<F>(future: F) -> oneshot::Receiver<Stamped<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (result, stamped) = oneshot::channel();
    let runtime = Handle::current();
    thread::spawn(move || {
        let _entered = runtime.enter();
        let mut future = pin!(future);
        let stamp = Arc::new(Stamp { woken: Mutex::new(Instant::now()), sleeper: thread::current() });
        let waker = stamp.clone().into();
        let output = loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => break output,
                Poll::Pending => thread::park(),
            }
        };
        let woken = *stamp.woken.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed test no longer waits for the result.
        result.send(Stamped { output, woken, returned: Instant::now() }).ok();
    });
    stamped
}
