//! A thread that waits for a future, without a runtime.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// A thread that is parked until its future is woken.
struct Parked {
    thread: Thread,
    /// Others may park and unpark the thread too, from within the future. Only this counts.
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Parked {
    fn here() -> Arc<Self> {
        Arc::new(Self { thread: thread::current(), woken: AtomicBool::new(false) })
    }
}

/// Polls a future on this thread until it is done. Waits may nest.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let (mut future, parked) = (pin!(future), Parked::here());
    let waker = Waker::from(parked.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while !parked.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_future_that_parks_the_thread_itself_takes_no_wake_up_away() {
        let mut polls = 0;
        wait(poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            // As a channel that the future waits for does.
            thread::park();
            if polls < 3 { Poll::Pending } else { Poll::Ready(()) }
        }));
        assert_eq!(wait(async { wait(async { 7 }) }), 7);
    }

    #[test]
    fn whatever_unparks_the_thread_is_no_wake_up() {
        let (mut polls, woken) = (0, Arc::new(AtomicBool::new(false)));
        wait(poll_fn(|context| {
            polls += 1;
            if polls > 1 {
                assert!(woken.load(Ordering::SeqCst), "nobody has woken it");
                return Poll::Ready(());
            }
            let (waker, waiting, woken) = (context.waker().clone(), thread::current(), woken.clone());
            thread::Builder::new()
                .spawn(move || {
                    for _ in 0..100 {
                        waiting.unpark();
                        thread::yield_now();
                    }
                    woken.store(true, Ordering::SeqCst);
                    waker.wake();
                })
                .unwrap();
            Poll::Pending
        }));
    }
}
