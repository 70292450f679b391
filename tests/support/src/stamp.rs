//! When a future was woken. It answers for that; when its thread runs afterwards is up to the machine.

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

/// Awaits a future on a thread of its own.
///
/// The caller limits the wait for the result: only the test knows when the future may complete.
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
        // A test that has failed does not wait for it.
        result.send(Stamped { output, woken, returned: Instant::now() }).ok();
    });
    stamped
}
