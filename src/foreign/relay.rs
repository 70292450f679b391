//! Wakers that panic. The panic ends only the waker's own call, on whichever thread that is.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::sync::catching_panics;

/// Awaits a future of the library on behalf of a caller whose executor may be a foreign one.
macro_rules! relayed {
    ($future:expr) => {{
        let mut relay = $crate::foreign::Relay::default();
        let mut future = ::std::pin::pin!($future);
        ::std::future::poll_fn(|context| relay.poll(future.as_mut(), context)).await
    }};
}
pub(crate) use relayed;

/// The relay of one public future. It catches the panics of the waker that the future is polled with.
///
/// Wakers of Tokio's tasks are no exception: a `LocalSet` passes the wake-ups of its tasks on to the waker that it is
/// polled with itself.
#[derive(Default)]
pub(crate) struct Relay(Option<Arc<Caught>>);

impl Relay {
    pub(crate) fn poll<F: Future>(&mut self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Schedules are explored without foreign executors.
        if cfg!(all(test, leasehold_shuttle)) {
            return future.poll(context);
        }
        let caught = match &self.0 {
            Some(known) if known.is(context.waker()) => known.clone(),
            _ => self.0.insert(Caught::new(context.waker().clone())).clone(),
        };
        future.poll(&mut Context::from_waker(&Waker::from(caught)))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(mut caught) = self.0.take()
            && let Some(unused) = Arc::get_mut(&mut caught)
        {
            unused.clear();
            // At the thread's end there is no place for it.
            let _kept = SPARE.try_with(|spare| spare.set(Some(caught)));
        }
    }
}

thread_local! {
    /// One that nobody uses, so that a call does not allocate one.
    static SPARE: Cell<Option<Arc<Caught>>> = const { Cell::new(None) };
}

/// A foreign waker, present until this is dropped.
struct Caught(Option<Waker>);

impl Caught {
    fn new(waker: Waker) -> Arc<Self> {
        if let Ok(Some(mut caught)) = SPARE.try_with(Cell::take)
            && let Some(spare) = Arc::get_mut(&mut caught)
        {
            spare.0 = Some(waker);
            return caught;
        }
        Arc::new(Self(Some(waker)))
    }

    fn is(&self, waker: &Waker) -> bool {
        self.0.as_ref().is_some_and(|known| known.will_wake(waker))
    }

    fn clear(&mut self) {
        let waker = self.0.take();
        let _dropped = catching_panics(|| drop(waker));
    }
}

impl Wake for Caught {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _woken = catching_panics(|| self.0.as_ref().map(Waker::wake_by_ref));
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::*;

    /// A waker that reports when it is woken or dropped, and panics.
    struct Panics(Sender<&'static str>);

    impl Panics {
        fn armed() -> (Waker, Receiver<&'static str>) {
            let (said, heard) = channel();
            (Waker::from(Arc::new(Self(said))), heard)
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            let _heard = self.0.send("woken");
            panic!("a waker that panics, as it is meant to");
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            let _heard = self.0.send("dropped");
            assert!(std::thread::panicking(), "a drop that panics, as it is meant to");
        }
    }

    /// The waker that a future is polled with.
    fn polled_with(relay: &mut Relay, waker: &Waker) -> Waker {
        let future = pin!(poll_fn(|context| Poll::Ready(context.waker().clone())));
        let Poll::Ready(waker) = relay.poll(future, &mut Context::from_waker(waker)) else { panic!("it is ready") };
        waker
    }

    #[test]
    fn a_panic_of_a_waker_and_of_its_drop_end_there() {
        let (waker, heard) = Panics::armed();
        let mut relay = Relay::default();
        let first = polled_with(&mut relay, &waker);
        assert!(polled_with(&mut relay, &waker).will_wake(&first), "the same waker is kept");
        first.wake_by_ref();
        first.wake();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["woken", "woken"]);
        let other = polled_with(&mut relay, Waker::noop());
        assert!(!other.will_wake(&waker));
        drop((relay, other));
        let last = polled_with(&mut Relay::default(), &waker);
        drop(waker);
        drop(last);
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["dropped"]);
    }

    #[test]
    fn what_a_call_has_used_serves_the_next_one_unless_a_waker_is_left() {
        let of = |relay: &Relay| relay.0.as_ref().map(Arc::as_ptr);
        let mut first = Relay::default();
        drop(polled_with(&mut first, Waker::noop()));
        let known = of(&first);
        drop(first);
        // Memory that was given back would be used for this.
        let _other = Arc::new(Caught(None));
        let mut second = Relay::default();
        let left = polled_with(&mut second, Waker::noop());
        assert_eq!(of(&second), known);
        drop(second);
        let (waker, heard) = Panics::armed();
        let mut third = Relay::default();
        let late = polled_with(&mut third, &waker);
        assert_ne!(of(&third), known, "it may still be woken for the second");
        left.wake();
        drop((third, waker));
        assert_eq!(heard.try_iter().count(), 0, "a waker is left");
        late.wake();
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["woken", "dropped"]);
    }
}
