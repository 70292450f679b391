//! Wakers that panic. The panic ends only the waker's own call, on whichever thread that is.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    ptr,
    sync::{Arc, OnceLock},
    task::{Context, Poll, RawWakerVTable, Wake, Waker},
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

/// The vtable that the wakers of all of Tokio's tasks share, once it is known.
static OF_TASKS: OnceLock<&'static RawWakerVTable> = OnceLock::new();

/// Learns to recognize the wakers of Tokio's tasks. It must be spawned as a task itself.
pub(crate) async fn learn_wakers_of_tasks() {
    poll_fn(|context| {
        OF_TASKS.get_or_init(|| context.waker().vtable());
        Poll::Ready(())
    })
    .await;
}

/// Whether this is the waker of one of Tokio's tasks, which does not panic.
///
/// A task's ID does not show that. `spawn_blocking` sets one too, and a combinator inside a task has its own wakers.
fn is_of_a_task(waker: &Waker) -> bool {
    OF_TASKS.get().is_some_and(|of_tasks| ptr::eq(*of_tasks, waker.vtable()))
}

/// The relay of one public future. It catches the panics of the waker that the future is polled with, unless that is a
/// waker of one of Tokio's tasks.
#[derive(Default)]
pub(crate) struct Relay(Option<Arc<Caught>>);

impl Relay {
    pub(crate) fn poll<F: Future>(&mut self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        // Schedules are explored without foreign executors.
        if is_of_a_task(context.waker()) || cfg!(all(test, leasehold_shuttle)) {
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
        pin::pin,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::*;
    use crate::{
        clock::{Clock, SystemClock},
        keeper::Host,
    };

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
    #[allow(clippy::disallowed_methods, reason = "tasks of the test")]
    async fn the_waker_of_a_task_is_passed_on_as_it_is() {
        let (host, _stop) = Host::start(&(Arc::new(SystemClock) as Arc<dyn Clock>)).unwrap();
        host.runtime().spawn(async {}).await.expect("the keeper runs, and has learned them");
        let look = async {
            let own = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
            polled_with(&mut Relay::default(), &own).will_wake(&own)
        };
        assert!(tokio::spawn(look).await.unwrap());
    }

    /// Panics unless a foreign waker is caught here, where Tokio says that a task runs.
    fn catches() {
        assert!(tokio::task::try_id().is_some(), "the premise");
        let (waker, heard) = Panics::armed();
        let mut relay = Relay::default();
        polled_with(&mut relay, &waker).wake();
        drop((waker, relay));
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["woken", "dropped"]);
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "tasks of the test")]
    async fn a_foreign_waker_in_a_task_is_caught() {
        tokio::spawn(learn_wakers_of_tasks()).await.unwrap();
        tokio::spawn(async { catches() }).await.unwrap();
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "tasks of the test")]
    async fn a_foreign_waker_in_a_blocking_task_is_caught() {
        tokio::spawn(learn_wakers_of_tasks()).await.unwrap();
        tokio::task::spawn_blocking(catches).await.unwrap();
    }
}
