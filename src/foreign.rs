//! Foreign code: code of the program, which may block for minutes or panic at any call.
//!
//! Foreign are `tracing` subscribers (and loggers behind `tracing-log`), `metrics` recorders, the wakers of the
//! program's executors, the wakers behind a [`CancellationToken`](crate::CancellationToken), the drops of wakers, and
//! [providers](crate::Server::credentials) of credentials.
//!
//! # Invariants
//!
//! 1. Foreign code never runs on the keeper's thread. That thread renews every lease of the process, and reports its
//!    loss.
//! 2. An event of the keeper goes through a bounded queue to one thread, in order. When the queue is full the event is
//!    dropped and counted, and the count is told later. A change of a counter or gauge is never dropped.
//! 3. A foreign waker is called and dropped on a waking thread, or on a thread of the program. A waker that blocks
//!    delays nobody else by more than a few milliseconds. No wake-up is dropped.
//! 4. The end of a lease (`lost()`, `StatusChanges`) wakes foreign wakers on a waking thread only, whichever thread
//!    finds it. A thread of the program that finds it has other waiters to notify.
//! 5. A panic of foreign code ends at the call.
//! 6. On other threads the library calls foreign code directly, so that spans and subscribers of a caller's thread
//!    work. Before the call it has changed its own state, started every task that must run, and released every lock.
//!
//! A [`Clock`](crate::clock::Clock) of the program's own is not foreign: every thread asks it. Two callees are out of
//! reach:
//!
//! - A `LocalSet` that a foreign executor polls. The wakers of its tasks are tokio's, and pass the wake-up on to the
//!   executor's.
//! - A logger of the `log` crate that is no bridge to `tracing`. fred logs each request at level TRACE on the thread
//!   that makes it, and a warning if the link has ended at that moment. All else it logs on the transport's thread,
//!   which may block.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    io,
    pin::pin,
};

use parking_lot::Mutex;
use tracing::{
    Dispatch,
    dispatcher::{self, DefaultGuard},
};

use crate::sync::catching_panics;

mod events;
mod relay;
mod span;
mod teller;
mod wakes;
mod worker;

#[cfg(feature = "metrics")]
pub(crate) use self::teller::{deltas_are_due, sample};
pub(crate) use self::{
    events::{Event, queue, tell, tell_debug, tell_debug_in, tell_in},
    relay::{Relay, relayed},
    span::LeaseSpan,
    teller::Numbers,
    wakes::{Job, hand_over, on_its_own_thread},
    worker::Worker,
};

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
    static MUTED: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// Starts the threads that foreign code runs on: one set for the process, with the numbers of the first call. After a
/// failure the next call tries again.
pub(crate) fn start(numbers: impl Numbers + 'static) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = STARTED.lock();
    if !*started {
        teller::start(numbers)?;
        wakes::start()?;
        *started = true;
    }
    Ok(())
}

/// Whether this is the keeper's thread, or a task of the keeper that another thread polls.
pub(crate) fn on_keeper() -> bool {
    // A thread that is ending runs no keeper.
    IS_KEEPER.try_with(Cell::get).unwrap_or_default()
}

/// From here on this thread is the keeper's.
pub(crate) fn this_thread_is_the_keepers() {
    IS_KEEPER.set(true);
    mute();
}

/// Keeps from the program's subscriber what other crates tell it on the keeper's thread (invariant 1).
///
/// Not before there is a subscriber: to set a thread's own, even one that does nothing, ends the forwarding of all
/// events of the program to the `log` crate. So the keeper calls this whenever it wakes up.
pub(crate) fn mute() {
    if on_keeper() && dispatcher::has_been_set() {
        MUTED.with_borrow_mut(|muted| {
            muted.get_or_insert_with(|| dispatcher::set_default(&Dispatch::none()));
        });
    }
}

/// A task of the keeper for a thread that is not the keeper's own.
pub(crate) async fn as_keeper<F: Future>(task: F) -> F::Output {
    struct Marked(bool);
    impl Drop for Marked {
        fn drop(&mut self) {
            IS_KEEPER.set(self.0);
        }
    }
    let mut task = pin!(task);
    poll_fn(|context| {
        let _marked = Marked(IS_KEEPER.replace(true));
        task.as_mut().poll(context)
    })
    .await
}

/// Runs a step of foreign code: on a waking thread if this is the keeper's, otherwise here.
pub(crate) fn off_the_keeper(step: impl FnOnce() + Send + 'static) {
    if on_keeper() {
        hand_over(Job::Step(Box::new(step)));
    } else {
        let _taken = catching_panics(step);
    }
}

/// For tests of what runs there.
#[cfg(test)]
pub(crate) fn start_without_numbers() {
    struct NoNumbers;
    impl Numbers for NoNumbers {
        fn next_in(&self) -> Option<std::time::Duration> {
            None
        }

        fn tell(&mut self) {}

        fn sample(&self, _group: u8, _name: &'static str, _value: f64) {}
    }
    start(NoNumbers).unwrap();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_task_of_the_keeper_knows_it_while_it_is_polled() {
        assert!(!on_keeper());
        as_keeper(async {
            assert!(on_keeper());
            as_keeper(async { assert!(on_keeper()) }).await;
            assert!(on_keeper());
        })
        .await;
        assert!(!on_keeper());
    }

    #[tokio::test]
    async fn a_step_of_the_keeper_is_taken_on_another_thread_and_others_where_they_are() {
        start_without_numbers();
        let (said, heard) = mpsc::channel();
        let name = move || said.send(std::thread::current().name().map(ToOwned::to_owned)).unwrap();
        let step = name.clone();
        as_keeper(async { off_the_keeper(step) }).await;
        assert_eq!(heard.recv().unwrap().as_deref(), Some("leasehold-wakes"));
        off_the_keeper(name);
        assert_eq!(heard.recv().unwrap().as_deref(), std::thread::current().name());
    }
}
