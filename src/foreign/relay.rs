//! The relay between a foreign waker and the keeper.
//!
//! A public future is polled with the caller's waker if that is trusted: one of a tokio task, of tokio's `block_on`, or
//! of our own parker. These only put something in a queue and unpark a thread. For any other waker the future is polled
//! with a relay, which calls and drops the foreign waker where that may be done.

use std::{
    future::Future,
    io,
    pin::Pin,
    ptr,
    sync::{Arc, OnceLock},
    task::{Context, Poll, RawWakerVTable, Wake, Waker},
};

use parking_lot::Mutex;

use super::{Job, hand_over, on_keeper};
use crate::sync::parker;

/// Awaits a future of the library on behalf of a caller whose executor may be a foreign one.
macro_rules! relayed {
    ($relay:expr, $future:expr) => {{
        let (mut future, mut relay) = (::std::pin::pin!($future), $relay);
        ::std::future::poll_fn(move |context| relay.poll(future.as_mut(), context)).await
    }};
}
pub(crate) use relayed;

/// The wakers that are trusted: of tokio's tasks, of both kinds of `block_on`, and of a parked thread.
static TRUSTED: OnceLock<[&'static RawWakerVTable; 4]> = OnceLock::new();

/// Learns tokio's wakers from a runtime that is thrown away. Not to be called inside of a runtime.
pub(super) fn learn() -> io::Result<()> {
    async fn look() -> &'static RawWakerVTable {
        std::future::poll_fn(|context| Poll::Ready(context.waker().vtable())).await
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let blocking = runtime.block_on(look());
    let task = runtime.block_on(async { runtime.spawn(look()).await });
    let on_handle = runtime.handle().block_on(look());
    if let Ok(task) = task {
        let _learnt_already = TRUSTED.set([task, blocking, on_handle, parker::waker().vtable()]);
    }
    Ok(())
}

fn is_trusted(waker: &Waker) -> bool {
    // Schedules are explored without foreign executors, and with wakers that no other thread may call.
    if cfg!(all(test, leasehold_shuttle)) {
        return true;
    }
    let (Some(trusted), vtable) = (TRUSTED.get(), waker.vtable()) else { return false };
    // A compiler may keep copies of a table; what calls the same functions is as good.
    trusted.iter().any(|known| ptr::eq(*known, vtable)) || trusted.contains(&vtable)
}

/// The caller's side: one for each public future.
pub(crate) struct Relay {
    /// Only if the future was polled with a foreign waker.
    link: Option<Arc<WakerLink>>,
    wakes_here: bool,
}

/// The side that the library may wake and drop wherever it likes.
struct WakerLink {
    /// Gone once it was woken, until the next poll.
    foreign: Mutex<Option<Waker>>,
    wakes_here: bool,
}

impl Relay {
    /// For futures that wait for an answer or a turn: they are mostly woken by threads of the program.
    pub(crate) fn of_answers() -> Self {
        Self { link: None, wakes_here: true }
    }

    /// For futures that wait for the end of a lease (invariant 4 of `crate::foreign`).
    pub(crate) fn of_signals() -> Self {
        Self { link: None, wakes_here: false }
    }

    pub(crate) fn poll<F: Future>(&mut self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        if is_trusted(context.waker()) {
            self.detach();
            return future.poll(context);
        }
        let wakes_here = self.wakes_here;
        let link = self.link.get_or_insert_with(|| Arc::new(WakerLink { foreign: Mutex::new(None), wakes_here }));
        // Before the poll: a wake-up during it leads to another poll.
        link.attach(context.waker());
        let relay = Waker::from(link.clone());
        future.poll(&mut Context::from_waker(&relay))
    }

    /// Nobody is to be woken any more. The waker is dropped by the caller's own thread.
    fn detach(&mut self) {
        if let Some(link) = self.link.take() {
            let waker = link.foreign.lock().take();
            drop(waker);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.detach();
    }
}

impl WakerLink {
    /// Clones and drops foreign wakers, on the caller's thread and without the lock.
    fn attach(&self, waker: &Waker) {
        if self.foreign.lock().as_ref().is_some_and(|known| known.will_wake(waker)) {
            return;
        }
        let fresh = waker.clone();
        let before = self.foreign.lock().replace(fresh);
        drop(before);
    }
}

impl Wake for WakerLink {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.foreign.lock().take();
        // A caller that was woken since its last poll polls again.
        let Some(waker) = waker else { return };
        let job = Job::Wake(waker);
        if self.wakes_here && !on_keeper() { job.run() } else { hand_over(job) }
    }
}

impl Drop for WakerLink {
    fn drop(&mut self) {
        if let Some(waker) = self.foreign.get_mut().take() {
            let job = Job::Forget(waker);
            if on_keeper() { hand_over(job) } else { job.run() }
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests;
