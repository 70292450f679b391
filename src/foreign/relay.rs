//! Wakers that panic. The panic ends only the waker's own call, on whichever thread that is.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use crate::sync::catching_panics;

/// Awaits a future of the library on behalf of a caller whose executor may be a foreign one.
macro_rules! relayed {
    ($future:expr) => {{
        let (mut future, mut relay) = (::std::pin::pin!($future), $crate::foreign::Relay::default());
        ::std::future::poll_fn(move |context| relay.poll(future.as_mut(), context)).await
    }};
}
pub(crate) use relayed;

/// The relay of one public future. It has a waker only if the future is polled outside of Tokio's tasks, whose wakers
/// do not panic.
#[derive(Default)]
pub(crate) struct Relay(Option<Arc<Caught>>);

impl Relay {
    pub(crate) fn poll<F: Future>(&mut self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Schedules are explored without foreign executors.
        if tokio::task::try_id().is_some() || cfg!(all(test, leasehold_shuttle)) {
            return future.poll(context);
        }
        let known = self.0.take().filter(|known| known.is(context.waker()));
        let caught = known.unwrap_or_else(|| Arc::new(Caught(Some(context.waker().clone()))));
        let waker = Waker::from(caught.clone());
        self.0 = Some(caught);
        future.poll(&mut Context::from_waker(&waker))
    }
}

/// A foreign waker, present until this is dropped.
struct Caught(Option<Waker>);

impl Caught {
    fn is(&self, waker: &Waker) -> bool {
        self.0.as_ref().is_some_and(|known| known.will_wake(waker))
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
        let waker = self.0.take();
        let _dropped = catching_panics(|| drop(waker));
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

    #[tokio::test]
    async fn the_waker_of_a_task_is_passed_on_as_it_is() {
        let look = async {
            let own = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
            polled_with(&mut Relay::default(), &own).will_wake(&own)
        };
        #[allow(clippy::disallowed_methods, reason = "a task of the test")]
        let told = tokio::spawn(look).await;
        assert!(told.unwrap());
    }
}
