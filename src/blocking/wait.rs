//! Waiting for the async API on a thread of the program.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{runtime::Handle, task::coop};

use crate::{error::Error, keeper::Host, sync::parker};

const ENDS: &str = "leasehold::blocking waits, and this thread is ending: what a wait needs of it is gone";

const REFUSED: &str = "leasehold::blocking waits, and this thread runs a Tokio runtime: use leasehold::Leases";

/// Waits for a call. Where that must not be it is dropped, unpolled, so nothing was sent.
pub(super) fn wait<F: Future>(call: F) -> Result<F::Output, Error> {
    if is_ending() {
        Err(Error::config(ENDS))
    } else if runs_a_runtime() {
        Err(Error::config(REFUSED))
    } else {
        Ok(parker::wait(call))
    }
}

/// The same for at most this long: `None` if the call has not ended by then.
pub(super) fn wait_within<F: Future>(host: &Host, limit: Duration, call: F) -> Result<Option<F::Output>, Error> {
    wait(async {
        let over = async {
            if !limit.is_zero() {
                host.sleep(limit).await;
            }
        };
        tokio::select! {
            biased;
            done = call => Some(done),
            () = over => None,
        }
    })
}

/// Whether this is a destructor of the thread's own values, after that of Tokio's. Any poll would panic.
fn is_ending() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Whether this thread is polling tasks of a Tokio runtime, which would stand still.
///
/// Tokio does not tell. But it gives each poll of a task, and of what `block_on` runs, a budget, which comes to an end;
/// the code in `spawn_blocking` and `block_in_place` has none. So this spends the budget, and puts it back.
fn runs_a_runtime() -> bool {
    /// More than any budget. Tokio keeps it in a byte.
    const MORE: usize = 300;
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    // All of it is put back when this is dropped.
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

    /// Spends the budget of this task but for so much.
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
