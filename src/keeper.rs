//! The keeper: a thread of its own for the watchdogs, so that a job that blocks its runtime keeps its lease.
//!
//! Everything that runs on after its caller has gone (renewals, undoing, the release of a dropped lease) is spawned
//! here, and nothing anywhere else.

use std::{
    future::{Future, poll_fn},
    io,
    mem::replace,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold_protocol::time::Time;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

pub(crate) use self::life::TimeKeeper;
use self::{
    life::{EndGuard, Life},
    transport::Transport,
};

use crate::{
    clock::{self, Clock, Jumps},
    foreign,
    metrics::Telling,
};

mod life;
mod transport;

/// The thread or the runtime that keeps leases alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keeper {
    /// A thread of its own, with its own runtime, and another one for its connections. Renewals go out while the
    /// program's own threads compute or block. Subscribers, exporters and wakers are called on other threads, so one
    /// that blocks or panics delays neither a renewal nor [`lost`](crate::Lease::lost). The program has two duties:
    ///
    /// - A clock of its own, which the feature `testing` lets it have, must not block.
    /// - A logger of the `log` crate that is no bridge to `tracing` must not block at level `trace`, at which fred logs
    ///   each request on this thread. (Warnings come there only if a connection is given up at the very moment of a
    ///   request.) fred's messages about its connections come on their own thread. If that thread blocks, the keeper
    ///   makes new connections on another one.
    #[default]
    Thread,
    /// Tasks on the runtime that builds the [`Leases`](crate::Leases). Outside of any runtime it is
    /// [`Thread`](Self::Thread) after all.
    ///
    /// This saves two threads and a connection, and gives up what the threads are for:
    ///
    /// - A job that blocks the runtime for a TTL loses its lease. It finds out from [`check`](crate::Lease::check), not
    ///   from [`lost`](crate::Lease::lost), which cannot run either.
    /// - A lease that is dropped when the runtime has ended is not released but expires.
    /// - Calls from another runtime wait for this one to be polled.
    ///
    /// When the runtime ends, every lease ends with it at once
    /// ([`KeeperEnded`](crate::LossReason::KeeperEnded)), and its key expires. From then on every call to the server
    /// fails with [`Unavailable`](crate::Error::Unavailable), waiting acquires included: build a new
    /// [`Leases`](crate::Leases).
    ///
    /// The keeper's events and metrics go through a thread of their own here too, so a subscriber or an exporter that
    /// blocks stops no renewal. But a logger of the `log` crate, which fred calls there, may block the runtime's
    /// threads, and the keeper with them. So may anything else that the program runs there, such as a waker, or a
    /// subscriber in a task of its own.
    CurrentRuntime,
}

/// The running keeper.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    runtime: Handle,
    own_thread: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
    life: Arc<Life>,
    transport: Arc<Transport>,
    jumping: Option<Jumping>,
    /// The process that has the threads.
    process: u32,
}

/// A clock that tells its jumps.
#[derive(Debug, Clone)]
struct Jumping {
    clock: Arc<dyn Clock>,
    jumps: Jumps,
}

/// Completes with a jump.
type Jump = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Jumping {
    fn to(&self, moment: Time) -> Jump {
        Box::pin(self.jumps.clone().reach(self.clock.clone(), moment))
    }
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
    pub(crate) fn start(keeper: Keeper, clock: &Arc<dyn Clock>) -> io::Result<(Self, Stop)> {
        let jumping = clock.jumps().map(|jumps| Jumping { clock: clock.clone(), jumps });
        let host = match (keeper, Handle::try_current()) {
            (Keeper::CurrentRuntime, Ok(runtime)) => Self::on(runtime, false, jumping),
            _ => Self::thread(jumping)?,
        };
        let stop = Stop(host.stop.clone());
        foreign::start(Telling::default())?;
        Ok((host, stop))
    }

    fn on(runtime: Handle, own_thread: bool, jumping: Option<Jumping>) -> Self {
        let (tasks, stop, life) = (TaskTracker::new(), CancellationToken::new(), Arc::default());
        let (transport, process) = (Arc::default(), std::process::id());
        let host = Self { runtime, own_thread, tasks, stop, life, transport, jumping, process };
        host.guard_the_end();
        host
    }

    /// Marks the end of the runtime, if it ends before the keeper.
    fn guard_the_end(&self) {
        let (host, guard) = (self.clone(), EndGuard(Some(self.life.clone())));
        self.runtime.spawn(async move {
            host.stop.cancelled().await;
            host.finished().await;
            guard.stand_down();
        });
    }

    /// Nobody waits for the thread's end: a process may exit at any time.
    fn thread(jumping: Option<Jumping>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().on_thread_unpark(foreign::mute).build()?;
        let host = Self::on(runtime.handle().clone(), true, jumping);
        host.run_on_thread("leasehold-keeper", runtime)?;
        Ok(host)
    }

    /// Runs it for as long as the keeper is needed.
    fn run_on_thread(&self, name: &str, runtime: Runtime) -> io::Result<()> {
        let kept = self.clone();
        // A runtime must not be dropped inside another one, and a thread that cannot be started drops its closure here.
        let slot = Arc::new(Mutex::new(Some(runtime)));
        let handed_over = slot.clone();
        let started = std::thread::Builder::new().name(name.into()).spawn(move || {
            let runtime = handed_over.lock().take();
            let Some(runtime) = runtime else { return };
            foreign::this_thread_is_the_keepers();
            runtime.block_on(async {
                kept.stop.cancelled().await;
                kept.finished().await;
            });
            // Others may poll a timer still, on their own threads.
            kept.life.retire();
        });
        if let Err(error) = started {
            if let Some(runtime) = slot.lock().take() {
                runtime.shutdown_background();
            }
            return Err(error);
        }
        Ok(())
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Cancelled when the keeper's runtime has ended, though somebody still needs it.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.life.over
    }

    /// The keeper's runtime is dropping its tasks.
    pub(crate) fn ends(&self) {
        self.life.end();
    }

    /// Whether this process was forked from the keeper's, and so lacks its threads. If so, no call waits for them any more.
    pub(crate) fn is_forked(&self) -> bool {
        let is_forked = std::process::id() != self.process;
        if is_forked {
            self.life.is_elsewhere();
        }
        is_forked
    }

    /// Completes when nobody needs the keeper any more.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Whether nobody needs the keeper any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Runs a task to its end, even if its caller has gone; unless the keeper's runtime ends first. The keeper ends
    /// only after it, so it must be bounded.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        if self.own_thread {
            self.tasks.spawn_on(task, &self.runtime);
        } else {
            self.tasks.spawn_on(foreign::as_keeper(task), &self.runtime);
        }
    }

    /// Runs to its end, or until the keeper's runtime has ended: bounded tasks may need it, and nobody waits for it.
    pub(crate) fn spawn_beside<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        if self.own_thread {
            self.runtime.spawn(task);
        } else {
            self.runtime.spawn(foreign::as_keeper(task));
        }
    }

    /// Runs until the keeper is stopped.
    pub(crate) fn spawn_until_stopped<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.spawn_until_stopped_on(&self.runtime, task);
    }

    /// The same, on a runtime of the keeper's.
    pub(crate) fn spawn_until_stopped_on<F: Future<Output = ()> + Send + 'static>(&self, runtime: &Handle, task: F) {
        // Boxed: each of the futures around it would have room for it twice, to take it in and to poll it.
        let (stop, task) = (self.stop.clone(), Box::pin(task));
        let until_stopped = async move {
            let _stopped = stop.run_until_cancelled(task).await;
        };
        if self.own_thread {
            runtime.spawn(until_stopped);
        } else {
            runtime.spawn(foreign::as_keeper(until_stopped));
        }
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

    /// Keeps the time of one future.
    pub(crate) fn time_keeper(&self) -> TimeKeeper {
        // A thread of our own ends after its last caller.
        let may_end = (!self.own_thread || self.is_forked()).then(|| {
            let over = self.life.over.clone().cancelled_owned();
            (self.life.clone(), Box::pin(over))
        });
        TimeKeeper { runtime: self.runtime.clone(), may_end }
    }

    /// A timer that works from any executor: it belongs to the keeper's runtime, if that has a thread of its own. If
    /// not, that runtime may end before the caller, and the timer belongs to the caller's. For a caller without a
    /// runtime the timer is over when the keeper's runtime ends.
    ///
    /// It is over early if the clock jumps that far.
    pub(crate) fn sleep(&self, span: Duration) -> impl Future<Output = ()> + Send + use<> {
        let jump = self.jumping.as_ref().map(|jumping| jumping.to(clock::now(&*jumping.clock) + span));
        self.timer(span, jump)
    }

    /// The same until a moment. The caller has read the clock at `now`: a jump since then is not missed.
    pub(crate) fn sleep_until(&self, now: Time, moment: Time) -> impl Future<Output = ()> + Send + use<> {
        let jump = self.jumping.as_ref().map(|jumping| jumping.to(moment));
        self.timer(moment.since(now), jump)
    }

    fn timer(&self, span: Duration, mut jump: Option<Jump>) -> impl Future<Output = ()> + Send + use<> {
        let here = if self.own_thread { None } else { Handle::try_current().ok() };
        let timer = {
            let _context = here.as_ref().unwrap_or(&self.runtime).enter();
            tokio::time::sleep(span)
        };
        let life = self.life.clone();
        async move {
            let (mut timer, mut has_yielded) = (pin!(timer), false);
            poll_fn(|context| {
                if jump.as_mut().is_some_and(|jump| jump.as_mut().poll(context).is_ready()) {
                    return Poll::Ready(());
                }
                life.step(|| timer.as_mut().poll(context)).unwrap_or_else(|| {
                    // A loop around this, in a task of the runtime that ends, must let go of its thread to be dropped.
                    if replace(&mut has_yielded, true) {
                        return Poll::Ready(());
                    }
                    context.waker().wake_by_ref();
                    Poll::Pending
                })
            })
            .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::mpsc, thread};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// On no runtime, like most callers that outlive it.
    #[test]
    fn a_future_without_timers_ends_with_the_runtime() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (host, _stop) = {
            let _here = runtime.enter();
            let clock: Arc<dyn Clock> = Arc::new(clock::SystemClock);
            Host::start(Keeper::CurrentRuntime, &clock).unwrap()
        };
        let (tell, told) = mpsc::channel();
        let time = host.time_keeper();
        let waiting = async move { time.keep(pin!(pending::<bool>()), || true).await };
        thread::Builder::new()
            .spawn(move || {
                let other = Builder::new_current_thread().build().unwrap();
                tell.send(false).unwrap();
                tell.send(other.block_on(waiting)).unwrap();
            })
            .unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(false));
        drop(runtime);
        assert_eq!(told.recv_timeout(SOON), Ok(true));
    }
}
