//! The time of one execution, which the test moves.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::step;

/// The timers of an execution, which runs on one thread of the system, whatever the number of its own.
#[derive(Default)]
struct Timers {
    now: Duration,
    last: u64,
    waiting: BTreeMap<(Duration, u64), Waker>,
}

thread_local! {
    static TIMERS: RefCell<Timers> = RefCell::default();
}

/// Begins an execution, an hour after the machine was started.
pub(crate) fn begin() {
    TIMERS.set(Timers { now: Duration::from_secs(3_600), ..Timers::default() });
}

pub(crate) fn now() -> Duration {
    TIMERS.with_borrow(|timers| timers.now)
}

/// Moves to the moment of the next timer, if there is any, and fires it.
pub(crate) fn pass() {
    step();
    let next = TIMERS.with_borrow(|timers| timers.waiting.keys().next().map(|(at, _)| *at));
    // A sleep without an end is not a time to move to.
    if let Some(next) = next.filter(|at| *at < Duration::MAX) {
        pass_to(next);
    }
}

/// Moves the time by `span`; every timer before that fires at once, because they are late.
pub(crate) fn pass_by(span: Duration) {
    step();
    pass_to(now() + span);
}

fn pass_to(moment: Duration) {
    let due = TIMERS.with_borrow_mut(|timers| {
        timers.now = timers.now.max(moment);
        let later = timers.waiting.split_off(&(timers.now + Duration::from_nanos(1), 0));
        std::mem::replace(&mut timers.waiting, later)
    });
    due.into_values().for_each(Waker::wake);
}

/// A timer.
#[derive(Debug)]
pub(crate) struct Sleep {
    until: Duration,
    id: u64,
}

pub(crate) fn sleep(span: Duration) -> Sleep {
    TIMERS.with_borrow_mut(|timers| {
        timers.last += 1;
        Sleep { until: timers.now.saturating_add(span), id: timers.last }
    })
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        TIMERS.with_borrow_mut(|timers| {
            if timers.now >= self.until {
                return Poll::Ready(());
            }
            timers.waiting.insert((self.until, self.id), context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // The last ones go with the thread.
        let _gone = TIMERS.try_with(|timers| timers.borrow_mut().waiting.remove(&(self.until, self.id)));
    }
}
