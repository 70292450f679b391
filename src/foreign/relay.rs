//! The relay between a foreign waker and the keeper.
//!
//! A public future is polled with the caller's waker if that is trusted: one of a tokio task, or of tokio's `block_on`.
//! These only put something in a queue and unpark a thread. For any other waker the future is polled with a relay, which
//! calls and drops the foreign waker where that may be done.

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

/// Awaits a future of the library on behalf of a caller whose executor may be a foreign one.
macro_rules! relayed {
    ($relay:expr, $future:expr) => {{
        let (mut future, mut relay) = (::std::pin::pin!($future), $relay);
        ::std::future::poll_fn(move |context| relay.poll(future.as_mut(), context)).await
    }};
}
pub(crate) use relayed;

/// The wakers of tokio's that are trusted: of tasks and of both kinds of `block_on`.
static TRUSTED: OnceLock<[&'static RawWakerVTable; 3]> = OnceLock::new();

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
        let _learnt_already = TRUSTED.set([task, blocking, on_handle]);
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
    link: Option<Arc<Link>>,
    wakes_here: bool,
}

/// The side that the library may wake and drop wherever it likes.
struct Link {
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
        let link = self.link.get_or_insert_with(|| Arc::new(Link { foreign: Mutex::new(None), wakes_here }));
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

impl Link {
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

impl Wake for Link {
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

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(waker) = self.foreign.get_mut().take() {
            let job = Job::Forget(waker);
            if on_keeper() { hand_over(job) } else { job.run() }
        }
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::mpsc::{Receiver, Sender, channel},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::foreign::as_keeper;

    const HANGS: Duration = Duration::from_secs(20);

    /// Says on which thread it was woken and dropped.
    struct Spy(Sender<String>);

    impl Spy {
        fn sent() -> (Waker, Receiver<String>) {
            let (said, heard) = channel();
            (Waker::from(Arc::new(Self(said))), heard)
        }

        fn say(&self, what: &str) {
            let _heard = self.0.send(format!("{what} on {}", thread::current().name().unwrap_or("?")));
        }
    }

    impl Wake for Spy {
        fn wake(self: Arc<Self>) {
            self.say("woken");
        }
    }

    impl Drop for Spy {
        fn drop(&mut self) {
            self.say("dropped");
        }
    }

    /// Stores the waker that it is polled with.
    fn steals(stolen: &mut Option<Waker>) -> impl Future<Output = ()> {
        poll_fn(move |context| {
            *stolen = Some(context.waker().clone());
            Poll::Pending
        })
    }

    fn stolen(relay: &mut Relay, waker: &Waker) -> Waker {
        let mut stolen = None;
        assert!(relay.poll(pin!(steals(&mut stolen)), &mut Context::from_waker(waker)).is_pending());
        stolen.unwrap_or_else(|| Waker::noop().clone())
    }

    #[test]
    fn wakers_of_tokio_are_trusted_and_no_others() {
        learn().unwrap();
        let trusts = || poll_fn(|context| Poll::Ready(is_trusted(context.waker())));
        let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        for runtime in [current, multi] {
            assert!(runtime.block_on(trusts()), "block_on");
            assert!(runtime.handle().block_on(trusts()), "block_on of a handle");
            assert!(runtime.block_on(runtime.spawn(trusts())).unwrap(), "a task");
            let local = tokio::task::LocalSet::new();
            assert!(local.block_on(&runtime, trusts()), "of a local set");
        }
        assert!(!is_trusted(Waker::noop()) && !is_trusted(&Spy::sent().0));
    }

    #[test]
    fn a_trusted_waker_is_passed_on_as_it_is() {
        learn().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut relay = Relay::of_answers();
            let own = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
            assert!(stolen(&mut relay, &own).will_wake(&own) && relay.link.is_none());
        });
    }

    #[tokio::test]
    async fn the_keeper_neither_calls_nor_drops_a_foreign_waker() {
        crate::foreign::start_without_numbers();
        let (waker, heard) = Spy::sent();
        let mut relay = Relay::of_answers();
        let link = stolen(&mut relay, &waker);
        as_keeper(async { link.wake() }).await;
        assert_eq!(heard.recv_timeout(HANGS).unwrap(), "woken on leasehold-wakes");

        // Polled, then forgotten by everybody but the keeper.
        let link = stolen(&mut relay, &waker);
        let kept = relay.link.take().unwrap();
        drop((relay, link, waker));
        as_keeper(async { drop(kept) }).await;
        assert_eq!(heard.recv_timeout(HANGS).unwrap(), "dropped on leasehold-wakes");
    }

    #[tokio::test]
    async fn a_wake_up_comes_once_for_a_poll_and_not_after_the_end() {
        crate::foreign::start_without_numbers();
        let (waker, heard) = Spy::sent();
        let here = format!("woken on {}", thread::current().name().unwrap());
        let mut relay = Relay::of_answers();
        let link = stolen(&mut relay, &waker);
        link.wake_by_ref();
        link.wake_by_ref();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [&*here], "on a thread of the program directly");
        let again = stolen(&mut relay, &waker);
        assert!(again.will_wake(&link));
        link.wake_by_ref();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [&*here]);
        let last = stolen(&mut relay, &waker);
        drop(relay);
        last.wake();
        assert_eq!(heard.try_iter().count(), 0);

        let mut relay = Relay::of_signals();
        stolen(&mut relay, &waker).wake();
        assert_eq!(heard.recv_timeout(HANGS).unwrap(), "woken on leasehold-wakes", "a signal never runs it here");
    }
}
