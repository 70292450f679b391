//! The keeper as tasks of shuttle's, in place of `src/keeper.rs`.

use std::{future::Future, io, pin::Pin, sync::Arc, time::Duration};

use leasehold_protocol::time::Time;
use tokio::runtime::Handle;
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    clock::Clock,
    sync::shuttle::time::{Sleep, sleep},
};

#[derive(Debug, Clone)]
pub(crate) struct Host {
    tasks: TaskTracker,
    stop: CancellationToken,
    over: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Stop(CancellationToken);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Host {
    #[allow(clippy::unnecessary_wraps, reason = "as the real one")]
    pub(crate) fn start(_: &Arc<dyn Clock>) -> io::Result<(Self, Stop)> {
        let host = Self { tasks: TaskTracker::new(), stop: CancellationToken::new(), over: CancellationToken::new() };
        let stop = Stop(host.stop.clone());
        Ok((host, stop))
    }

    pub(crate) fn here(clock: &Arc<dyn Clock>) -> (Self, Stop) {
        Self::start(clock).expect("it always starts")
    }

    pub(crate) fn runtime(&self) -> &Handle {
        unimplemented!("only a connection over the network needs a runtime")
    }

    #[allow(clippy::unused_async, reason = "as the real one")]
    pub(crate) async fn transport(&self) -> io::Result<Handle> {
        unimplemented!("only a connection over the network needs a runtime")
    }

    #[allow(clippy::unused_self, reason = "as the real one")]
    pub(crate) fn is_forked(&self) -> bool {
        false
    }

    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        drop(shuttle::future::spawn(self.tasks.track_future(task)));
    }

    pub(crate) fn spawn_beside<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        drop(shuttle::future::spawn(task));
    }

    pub(crate) fn spawn_until_stopped<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        let stop = self.stop.clone();
        drop(shuttle::future::spawn(async move {
            let _stopped = stop.run_until_cancelled(task).await;
        }));
    }

    pub(crate) fn spawn_until_stopped_on<F: Future<Output = ()> + Send + 'static>(&self, _: &Handle, _: F) {
        unimplemented!("only a connection over the network needs a runtime")
    }

    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    pub(crate) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(crate) fn time_keeper(&self) -> TimeKeeper {
        TimeKeeper
    }

    pub(crate) fn sleep(&self, span: Duration) -> Sleep {
        sleep(span)
    }

    pub(crate) fn sleep_until(&self, now: Time, moment: Time) -> Sleep {
        sleep(moment.since(now))
    }
}

pub(crate) struct TimeKeeper;

impl TimeKeeper {
    pub(crate) async fn keep<F: Future>(self, future: Pin<&mut F>) -> F::Output {
        future.await
    }
}
