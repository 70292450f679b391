//! Waits for a call on a thread of the program.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
};

use tokio::{runtime::Handle, task::coop};

use crate::{error::Error, sync::parker};

const ENDS: &str = "leasehold::block_on waits, and this thread is ending: what a wait needs of it is gone";

const REFUSED: &str = "leasehold::block_on waits, and this thread runs a Tokio runtime: await the call instead";

/// Waits for a call on this thread, and returns its answer: for programs without async, for threads that compute, and inside
/// `spawn_blocking`.
///
/// ```
/// use leasehold::{Client, Error, block_on};
///
/// # fn compress(_part: u32) {}
/// fn main() -> Result<(), Error> {
///     let client = Client::in_memory(); // or `block_on(Client::connect("redis://127.0.0.1:6379"))??`
///     let lock = client.lock("reports:nightly");
///     block_on(lock.run(async |lease| {
///         for part in 0..100 {
///             lease.check()?; // the next part only while the lease holds
///             compress(part);
///         }
///         Ok::<_, Error>(())
///     }))?
/// }
/// ```
///
/// The thread polls the call, and is parked in between. The keeper has all timers, so no runtime is needed. Waits
/// may nest.
///
/// # What a thread cannot do
///
/// - **Nothing stops its work from outside.** The work must check for a loss itself:
///   [`Lease::check`](crate::Lease::check) between two steps, [`Lease::on_lost`](crate::Lease::on_lost), or a
///   [token](crate::Lease::cancellation_token). A [`run`](crate::Lock::run) whose work does not await reports only at
///   its end that the lease was lost, and a [`grace`](crate::Lock::grace) does not help it.
/// - **A wait ends only by itself**, since a thread cannot be dropped as a future can. Bound the wait for a lock with
///   [`acquire_within`](crate::Lock::acquire_within). [`close`](crate::Client::close) and
///   [`shutdown`](crate::Client::shutdown) on another thread end all waits for locks with [`Error::Closed`].
/// - **Dropping a lease never waits**, not even in a panic. The lease is released in the background. A program that
///   exits right after that may leave the key for a TTL: [`release`](crate::Lease::release) waits, and so does `close`.
///
/// The default [`Owner`](crate::Owner) of an acquire is the thread.
///
/// # Errors
///
/// [`Error::Misuse`] if this thread must not wait: the call is dropped unpolled, so nothing was sent. A call's own
/// errors are in its answer.
///
/// - *It runs the tasks of a Tokio runtime*: they would be blocked, perhaps including the one that the call waits for.
///   This applies in every `async` block, including those in Tokio's `block_on`. It does not apply inside
///   `spawn_blocking` and `block_in_place`, or on a thread that has only [entered](tokio::runtime::Handle::enter) a
///   runtime. Inside [`unconstrained`](tokio::task::unconstrained) the two cannot be told apart, and a call waits.
///   Executors other than Tokio are not detected either.
/// - *It is ending*: in a destructor of a `thread_local!` there may be nothing left to wait with.
pub fn block_on<F: Future>(call: F) -> Result<F::Output, Error> {
    if is_ending() {
        Err(Error::misuse(ENDS))
    } else if runs_a_runtime() {
        Err(Error::misuse(REFUSED))
    } else {
        Ok(parker::wait(call))
    }
}

/// Whether this runs in a destructor of thread-local values, after that of Tokio's own. Any poll would panic.
fn is_ending() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Whether this thread is polling tasks of a Tokio runtime, which a wait would block.
///
/// Tokio has no call for that. But it gives each poll of a task, and of the future in `block_on`, a limited budget; the
/// code in `spawn_blocking` and `block_in_place` has none. So this spends the budget, and restores it.
fn runs_a_runtime() -> bool {
    /// More than any budget. Tokio keeps it in a byte.
    const MORE: usize = 300;
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    // The whole budget is restored when this is dropped.
    let Poll::Ready(_budget) = coop::poll_proceed(&mut context) else { return true };
    (0..MORE).any(|_| match coop::poll_proceed(&mut context) {
        Poll::Ready(step) => {
            step.made_progress();
            false
        }
        Poll::Pending => true,
    })
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests {
    use std::future::poll_fn;

    use tokio::{
        runtime::Builder,
        task::{LocalSet, block_in_place, spawn_blocking, unconstrained},
    };

    use super::*;

    /// Spends the budget of this task until this much is left.
    fn spend_all_but(left: usize) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in left..128 {
            if let Poll::Ready(step) = coop::poll_proceed(&mut context) {
                step.made_progress();
            }
        }
    }

    fn budget() -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(_all) = coop::poll_proceed(&mut context) else { return 0 };
        let more = (0..).take_while(|_| match coop::poll_proceed(&mut context) {
            Poll::Ready(step) => {
                step.made_progress();
                true
            }
            Poll::Pending => false,
        });
        1 + more.count()
    }

    #[test]
    fn a_thread_that_polls_tasks_is_told_from_one_that_may_wait() {
        assert!(!runs_a_runtime(), "a thread of the program");
        let current = Builder::new_current_thread().build().unwrap();
        let multi = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        for runtime in [&current, &multi] {
            let looks = || async { runs_a_runtime() };
            assert!(runtime.block_on(looks()), "block_on");
            assert!(runtime.handle().block_on(looks()), "block_on of a handle");
            assert!(runtime.block_on(runtime.spawn(looks())).unwrap(), "a task");
            assert!(LocalSet::new().block_on(runtime, looks()), "a local set");
            let beside = runtime.block_on(async { spawn_blocking(runs_a_runtime).await });
            assert!(!beside.unwrap(), "spawn_blocking");
            let nested = || spawn_blocking(|| Handle::current().block_on(async { runs_a_runtime() }));
            assert!(runtime.block_on(async { nested().await.unwrap() }), "block_on inside spawn_blocking");
            assert!(!runtime.block_on(unconstrained(looks())), "nobody can tell");
            let _entered = runtime.enter();
            assert!(!runs_a_runtime(), "a thread that has entered a runtime");
        }
        let in_place = multi.spawn(async { (runs_a_runtime(), block_in_place(runs_a_runtime), runs_a_runtime()) });
        assert_eq!(multi.block_on(in_place).unwrap(), (true, false, true));
    }

    #[test]
    fn a_task_keeps_its_budget_whatever_is_left_of_it() {
        let runtime = Builder::new_current_thread().build().unwrap();
        for left in [0, 1, 2, 127, 128] {
            runtime.block_on(poll_fn(|_| {
                spend_all_but(left);
                assert!(runs_a_runtime(), "{left}");
                assert_eq!(budget(), left);
                Poll::Ready(())
            }));
        }
    }
}
