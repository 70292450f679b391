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
fn wakers_of_tokio_and_of_parked_threads_are_trusted_and_no_others() {
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
    assert!(parker::wait(trusts()), "a parked thread");
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
