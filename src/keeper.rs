//! Where watchdogs live: a thread of their own, so that a job that blocks its runtime keeps its lease.
//!
//! Everything that runs on after its caller has gone (renewals, undoing, the release of a dropped lease) is spawned
//! here, and nothing anywhere else.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    time::Duration,
};

use tokio::runtime::{Builder, Handle};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// What keeps leases alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keeper {
    /// A thread of its own, with its own runtime and connection. Renewals go out while the program's own threads
    /// compute or block.
    #[default]
    Thread,
    /// Tasks on the runtime that builds the [`Leases`](crate::Leases). Saves a thread and a connection, and gives up
    /// what the thread is for: a job that blocks the runtime for a TTL loses its lease (and finds out from
    /// [`check`](crate::Lease::check), not from [`lost`](crate::Lease::lost), which cannot run either); a lease that
    /// is dropped when the runtime has ended is not released but expires, and so do all leases when it ends; calls from
    /// another runtime wait for this one to be polled, and fail once it has ended. Outside of any runtime it is
    /// [`Thread`](Self::Thread) after all.
    CurrentRuntime,
}

/// The running keeper.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    runtime: Handle,
    own_thread: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Ends the keeper when it is dropped: first whatever it spawned for others, then itself.
#[derive(Debug)]
pub(crate) struct Stop(CancellationToken);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Host {
    /// Starts the keeper that the program asked for. Outside a runtime there is only the thread.
    pub(crate) fn start(keeper: Keeper) -> io::Result<(Self, Stop)> {
        let host = match (keeper, Handle::try_current()) {
            (Keeper::CurrentRuntime, Ok(runtime)) => Self::on(runtime, false),
            _ => Self::thread()?,
        };
        let stop = Stop(host.stop.clone());
        Ok((host, stop))
    }

    fn on(runtime: Handle, own_thread: bool) -> Self {
        Self { runtime, own_thread, tasks: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Nobody waits for the thread's end: a process may exit at any time.
    fn thread() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let host = Self::on(runtime.handle().clone(), true);
        let kept = host.clone();
        std::thread::Builder::new().name("leasehold-keeper".into()).spawn(move || {
            runtime.block_on(async {
                kept.stop.cancelled().await;
                kept.finished().await;
            });
        })?;
        Ok(host)
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs to its end whoever asked for it, at the latest when the keeper ends; so it must be bounded.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Runs until the keeper is stopped.
    pub(crate) fn spawn_until_stopped<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        let stop = self.stop.clone();
        self.runtime.spawn(async move {
            let _stopped = stop.run_until_cancelled(task).await;
        });
    }

    /// Counts as a bounded task for as long as it lives.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Completes when every bounded task has ended.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A future whose timers are the keeper's: it can be polled by any executor, and by another one later.
    pub(crate) fn keep_time<F: Future + Unpin>(&self, mut future: F) -> impl Future<Output = F::Output> + use<F> {
        let runtime = self.runtime.clone();
        poll_fn(move |context| {
            let _keeper = runtime.enter();
            Pin::new(&mut future).poll(context)
        })
    }

    /// A timer that works from any executor: it belongs to the keeper's runtime, whoever polls it. Without a thread of
    /// its own the keeper may have ended before the caller, whose own runtime then serves.
    pub(crate) fn sleep(&self, span: Duration) -> tokio::time::Sleep {
        let here = if self.own_thread { None } else { Handle::try_current().ok() };
        let _context = here.as_ref().unwrap_or(&self.runtime).enter();
        tokio::time::sleep(span)
    }
}
