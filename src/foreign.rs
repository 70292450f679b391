//! Foreign code: code of the program, which may block for minutes or panic at any call.
//!
//! `tracing` subscribers (and loggers behind `tracing-log`), `metrics` recorders, and
//! [providers](crate::Server::credentials) of credentials are foreign. The wakers of the program's executors may panic.
//! They do not block: [`Waker::wake`](std::task::Waker::wake) is called by whichever thread has an answer.
//!
//! # Invariants
//!
//! 1. Code that may block never runs on the keeper's thread. That thread renews every lease of the process, and reports
//!    its loss.
//! 2. An event of the keeper goes through a bounded queue to one thread, in order. When the queue is full, the event is
//!    dropped and counted, and the count is reported later. A change of a counter or gauge, and a record in a span, is
//!    never dropped.
//! 3. A panic of foreign code ends at the call.
//! 4. On other threads the library calls foreign code directly, so that spans and subscribers of a caller's thread
//!    work. Before the call it has changed its own state, started every task that must run, and released every lock. A
//!    waker is called in this way on the keeper's thread too.
//!
//! The program's own [`Clock`](crate::clock::Clock) is not foreign: every thread reads it. One callee is out of reach:
//! a logger of the `log` crate that is not a bridge to `tracing`. It receives each request at level TRACE on the thread
//! that makes it, and a warning if the link ended then; all else on the transport's thread, which may block.

use std::cell::{Cell, RefCell};

use tracing::{
    Dispatch,
    dispatcher::{self, DefaultGuard},
};

use crate::sync::catching_panics;

mod events;
mod relay;
mod span;
mod teller;
mod worker;

#[cfg(feature = "metrics")]
pub(crate) use self::teller::{deltas_are_due, sample};
pub(crate) use self::{
    events::Event,
    relay::{Relay, relayed},
    span::LeaseSpan,
    teller::{Numbers, queue, start, tell, tell_debug, tell_debug_in, tell_in},
    worker::Worker,
};

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
    static MUTED: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
}

/// Whether this is the keeper's thread.
pub(crate) fn on_keeper() -> bool {
    // A thread that is ending runs no keeper.
    IS_KEEPER.try_with(Cell::get).unwrap_or_default()
}

/// Marks this thread as the keeper's from here on.
pub(crate) fn this_thread_is_the_keepers() {
    IS_KEEPER.set(true);
    mute();
}

/// Keeps events that other crates emit on the keeper's thread from the program's subscriber (invariant 1).
///
/// Does nothing before there is a subscriber: setting a thread's own, even one that does nothing, ends the forwarding
/// of all events of the program to the `log` crate. So the keeper calls this whenever it wakes up.
pub(crate) fn mute() {
    if on_keeper() && dispatcher::has_been_set() {
        MUTED.with_borrow_mut(|muted| {
            muted.get_or_insert_with(|| dispatcher::set_default(&Dispatch::none()));
        });
    }
}

/// Runs a step of foreign code: on the thread for events if this is the keeper's, otherwise here.
pub(crate) fn off_the_keeper(step: impl FnOnce() + Send + 'static) {
    if on_keeper() {
        teller::step(Box::new(step));
    } else {
        let _taken = catching_panics(step);
    }
}

/// For tests of what runs on the thread for events.
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
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn a_step_of_the_keeper_is_taken_on_another_thread_and_others_where_they_are() {
        start_without_numbers();
        let (said, heard) = mpsc::channel();
        let name = move || said.send(thread::current().name().map(ToOwned::to_owned)).unwrap();
        let step = name.clone();
        let keeper = thread::Builder::new().spawn(|| {
            this_thread_is_the_keepers();
            off_the_keeper(|| panic!("a step that panics, as it is meant to"));
            off_the_keeper(step);
        });
        assert_eq!(heard.recv().unwrap().as_deref(), Some("leasehold-events"));
        keeper.unwrap().join().unwrap();
        off_the_keeper(name);
        assert_eq!(heard.recv().unwrap().as_deref(), thread::current().name());
    }
}
