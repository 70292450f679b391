//! The keeper: a thread of its own for the watchdogs, so that a job that blocks its runtime keeps its lease.
//!
//! Everything that outlives its caller (renewals, undos, the release of a dropped lease) is spawned here, and nowhere
//! else.

use std::{
    future::{Future, poll_fn},
    io,
    mem::replace,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
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
use self::{life::Life, transport::Transport};
use crate::{
    clock::{self, Clock, Jumps},
    foreign,
    metrics::Telling,
    sync::catching_panics,
};

mod life;
mod transport;

/// The running keeper.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    runtime: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
    life: Arc<Life>,
    transport: Arc<Transport>,
    jumping: Option<Jumping>,
    /// The process that has the threads.
    process: u32,
}

/// A clock that reports its jumps.
#[derive(Debug, Clone)]
struct Jumping {
    clock: Arc<dyn Clock>,
    jumps: Jumps,
}

/// A future that completes at a jump.
type Jump = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Jumping {
    fn to(&self, moment: Time) -> Jump {
        Box::pin(self.jumps.clone().reach(self.clock.clone(), moment))
    }
}

/// Ends the keeper when it is dropped: first the tasks that it runs for others, then itself.
#[derive(Debug)]
pub(crate) struct Stop(CancellationToken);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Host {
    /// Starts the keeper. The end of its thread is not awaited: a process may exit at any time.
    ///
    /// In a process that was forked from one with a keeper, the error is of the kind `Unsupported`. Threads that were
    /// parked at the fork are still listed in the global table of all locks, and a thread of the child would wait for
    /// them.
    pub(crate) fn start(clock: &Arc<dyn Clock>) -> io::Result<(Self, Stop)> {
        static FIRST: AtomicU32 = AtomicU32::new(0);
        let this = std::process::id();
        if FIRST.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed).is_err_and(|first| first != this) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let runtime = Builder::new_current_thread().enable_all().on_thread_unpark(foreign::mute).build()?;
        let host = Self::on(runtime.handle().clone(), clock);
        host.run_on_thread("leasehold-keeper", runtime, |host| host.life.fail())?;
        let stop = Stop(host.stop.clone());
        foreign::start(Telling::default())?;
        Ok((host, stop))
    }

    fn on(runtime: Handle, clock: &Arc<dyn Clock>) -> Self {
        Self {
            runtime,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            life: Arc::default(),
            transport: Arc::default(),
            jumping: clock.jumps().map(|jumps| Jumping { clock: clock.clone(), jumps }),
            process: std::process::id(),
        }
    }

    /// A keeper on the current runtime, for a test of what it runs.
    #[cfg(test)]
    pub(crate) fn here(clock: &Arc<dyn Clock>) -> (Self, Stop) {
        let host = Self::on(Handle::current(), clock);
        let stop = Stop(host.stop.clone());
        (host, stop)
    }

    /// Runs this runtime for as long as the keeper is needed. If a panic ends it earlier, `failed` is called.
    ///
    /// The runtime cannot continue after that. Tokio catches the panics of tasks, so this one came from a waker that the
    /// runtime's driver called. It takes the driver with it, and the wakers that were due after that one are never
    /// called.
    fn run_on_thread(
        &self,
        name: &str,
        runtime: Runtime,
        failed: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<()> {
        let kept = self.clone();
        // A runtime must not be dropped inside another one, and a thread that cannot be started drops its closure here.
        let slot = Arc::new(Mutex::new(Some(runtime)));
        let handed_over = slot.clone();
        let started = std::thread::Builder::new().name(name.into()).spawn(move || {
            let runtime = handed_over.lock().take();
            let Some(runtime) = runtime else { return };
            foreign::this_thread_is_the_keepers();
            let finished = async {
                kept.stop.cancelled().await;
                kept.finished().await;
            };
            match catching_panics(|| runtime.block_on(finished)) {
                // Other threads may still poll a timer.
                Some(()) => kept.life.retire(),
                None => failed(&kept),
            }
            let _ended = catching_panics(|| drop(runtime));
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

    /// Cancelled when the keeper has failed, or when a call finds that it is in another process.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.life.over
    }

    /// Whether this process was forked from the keeper's, and so lacks its threads. Each call asks before it waits for
    /// them, and not more often than it must, because that is a system call.
    pub(crate) fn is_forked(&self) -> bool {
        let is_forked = std::process::id() != self.process;
        if is_forked {
            self.life.is_elsewhere();
        }
        is_forked
    }

    /// Completes when the keeper is not needed any more.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Runs a task to its end, even if its caller has gone. The keeper ends only after it, so it must be bounded.
    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Runs a task to its end, or until the keeper's runtime ends. Bounded tasks may need it, but it is not waited for.
    pub(crate) fn spawn_beside<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.runtime.spawn(task);
    }

    /// Runs a task until the keeper is stopped.
    pub(crate) fn spawn_until_stopped<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        self.spawn_until_stopped_on(&self.runtime, task);
    }

    /// Runs a task until the keeper is stopped, on a runtime of the keeper's.
    pub(crate) fn spawn_until_stopped_on<F: Future<Output = ()> + Send + 'static>(&self, runtime: &Handle, task: F) {
        // Boxed, because each future around it would contain it twice: to take it in and to poll it.
        let (stop, task) = (self.stop.clone(), Box::pin(task));
        runtime.spawn(async move {
            let _stopped = stop.run_until_cancelled(task).await;
        });
    }

    /// A token that counts as a bounded task for as long as it lives.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Completes when every bounded task has ended.
    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Gives one future the keeper's timers.
    pub(crate) fn time_keeper(&self) -> TimeKeeper {
        // The thread outlives its last caller.
        TimeKeeper(self.runtime.clone())
    }

    /// A timer that works from any executor: it belongs to the keeper's runtime.
    ///
    /// It completes early if the clock jumps that far.
    pub(crate) fn sleep(&self, span: Duration) -> impl Future<Output = ()> + Send + use<> {
        let jump = self.jumping.as_ref().map(|jumping| jumping.to(clock::now(&*jumping.clock) + span));
        self.timer(span, jump)
    }

    /// A timer like [`sleep`](Self::sleep), until a moment. The caller has read the clock at `now`: a jump since then
    /// is not missed.
    pub(crate) fn sleep_until(&self, now: Time, moment: Time) -> impl Future<Output = ()> + Send + use<> {
        let jump = self.jumping.as_ref().map(|jumping| jumping.to(moment));
        self.timer(moment.since(now), jump)
    }

    fn timer(&self, span: Duration, mut jump: Option<Jump>) -> impl Future<Output = ()> + Send + use<> {
        let timer = {
            let _context = self.runtime.enter();
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
                    // A loop around this must yield its thread.
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
    use std::{
        future::pending,
        task::{Context, Wake, Waker},
    };

    use super::*;
    use crate::{Client, LossReason, clock::SystemClock};

    const HANGS: Duration = Duration::from_secs(20);

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics, as it is meant to");
        }
    }

    /// Lets a waker panic in the driver of this runtime, and returns when the runtime has ended.
    async fn fail(runtime: &Handle) {
        let standing = runtime.spawn(pending::<()>());
        let mut timer = {
            let _context = runtime.enter();
            Box::pin(tokio::time::sleep(Duration::from_millis(100)))
        };
        let waker = Waker::from(Arc::new(Panics));
        assert!(timer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let ended = tokio::time::timeout(HANGS, standing).await.expect("the runtime ends");
        assert!(ended.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_failed_keeper_ends_every_lease_and_every_call_at_once() {
        let client = Client::in_memory();
        let (one, two) = (client.lock("one").acquire().await.unwrap(), client.lock("two").acquire().await.unwrap());
        let engine = client.scope.engine.clone();
        let waiting = client.lock("one").acquire();
        let (waited, ()) = tokio::join!(tokio::time::timeout(HANGS, waiting), fail(engine.host.runtime()));
        let mut errors = vec![waited.expect("the wait ends").unwrap_err()];
        for lease in [&one, &two] {
            let lost = tokio::time::timeout(HANGS, lease.lost()).await.expect("it is reported");
            assert_eq!(lost.reason(), LossReason::KeeperEnded);
            assert!(!lease.is_held());
        }
        errors.push(client.lock("other").acquire().await.unwrap_err());
        errors.push(client.lock("one").holder().await.unwrap_err());
        for error in errors {
            assert!(error.to_string().contains("make a new Client"), "{error}");
        }
        tokio::time::timeout(HANGS, client.close()).await.expect("a close ends");
    }

    #[tokio::test]
    async fn a_lease_granted_as_the_keeper_fails_ends_too() {
        let client = Client::in_memory();
        let lease = client.lock("one").acquire().await.unwrap();
        let engine = client.scope.engine.clone();
        engine.host.life.over.cancel();
        let granted = engine.watchdog.holds();
        engine.watchdog.guard(&granted[0]);
        let lost = tokio::time::timeout(HANGS, lease.lost()).await.expect("it is reported");
        assert_eq!(lost.reason(), LossReason::KeeperEnded);
    }

    #[tokio::test]
    async fn a_failed_thread_of_the_transport_is_replaced() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (host, _stop) = Host::start(&clock).unwrap();
        let first = host.transport().await.unwrap();
        fail(&first).await;
        let next = host.transport().await.unwrap();
        assert_ne!(next.id(), first.id());
        assert_eq!(host.transport.len(), 1);
        next.spawn(async {}).await.unwrap();
        assert!(!host.over().is_cancelled());
    }
}
