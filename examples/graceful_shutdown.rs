//! A service that is asked to stop: it takes no new work, finishes or saves the old, releases every lock, and ends.
//!
//! Three traps. `client.close()` is "now": a job that still runs is not protected any more. `tracker.wait()` alone
//! never ends while a task waits for a lock: `shutdown` ends that wait. And `lost()` with `LossReason::Closing` is a
//! request, not a loss: the lease is held and renewed until its job releases it, so there is time to save.
//!
//! The limit must be shorter than the time until your supervisor kills the process (Kubernetes: 30 s).
//!
//! ```text
//! cargo run --example graceful_shutdown
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example graceful_shutdown
//! ```

use std::{env, future::pending, time::Duration};

use leasehold::{Client, Error, LeaseHandle, LossReason};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    /// Takes less time than the limit.
    Short,
    /// Has no end, but saves its progress when it is asked to stop.
    Endless,
    /// Ignores the request to stop.
    Deaf,
    /// Waits for the lock of the endless job.
    Waiting,
}

/// The report of a job: `None` when it begins, then its outcome. `Ok(true)` means that the lock was held to the end.
type Told = (Job, Option<Result<bool, Error>>);

/// Starts jobs as they come, until it is stopped.
async fn dispatch(
    client: Client,
    mut jobs: UnboundedReceiver<Job>,
    tell: UnboundedSender<Told>,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(job) = jobs.recv() => drop(tracker.spawn(do_job(client.clone(), job, tell.clone()))),
        }
    }
}

async fn do_job(client: Client, job: Job, tell: UnboundedSender<Told>) {
    let name = if job == Job::Waiting { Job::Endless } else { job };
    let work = async |lease: LeaseHandle| {
        let _told = tell.send((job, None));
        match job {
            Job::Deaf => pending().await,
            Job::Endless => {
                lease.cancellation_token().cancelled().await;
                println!("Endless: asked to stop, and saves");
                sleep(LIMIT / 5).await;
            }
            Job::Short | Job::Waiting => sleep(LIMIT / 3).await,
        }
        Ok(lease.is_held())
    };
    let ended = client.lock(format!("examples:graceful_shutdown:{name:?}")).run(work).await;
    println!("{job:?}: {ended:?}");
    let _told = tell.send((job, Some(ended)));
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = Client::connect(url).await?;
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let (jobs, queue) = unbounded_channel();
    let (tell, mut told) = unbounded_channel();
    tracker.spawn(dispatch(client.clone(), queue, tell, stop.clone(), tracker.clone()));

    let wanted = [Job::Endless, Job::Short, Job::Deaf];
    for job in wanted {
        let _sent = jobs.send(job);
    }
    tokio::select! {
        () = terminated() => {}
        // Nobody has to press ^C here: the example stops itself when all jobs have begun.
        () = async {
            let mut begun = 0;
            while begun < wanted.len() {
                begun += usize::from(matches!(told.recv().await, Some((_, None))));
            }
        } => {}
    }
    let _sent = jobs.send(Job::Waiting);
    sleep(LIMIT / 10).await;

    println!("stopping within {LIMIT:?}");
    stop.cancel();
    tracker.close();
    let cut_short = client.shutdown(LIMIT).await;
    // The locks are released. This also waits for the rest of each task.
    tracker.wait().await;
    println!("{cut_short} job was cut short");

    assert_eq!(cut_short, 1);
    while let Some((job, ended)) = told.recv().await {
        match (job, ended) {
            (Job::Short | Job::Endless, Some(Ok(true))) | (Job::Waiting, Some(Err(Error::Closed))) => {}
            (Job::Deaf, Some(Err(Error::Lost(lost)))) => assert_eq!(lost.reason(), LossReason::Closed),
            unexpected => panic!("{unexpected:?}"),
        }
    }
    Ok(())
}

/// Completes when this process is asked to end: ^C, or what a supervisor sends.
async fn terminated() {
    #[cfg(unix)]
    if let Ok(mut terminated) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ctrl_c = tokio::signal::ctrl_c() => {}
            _terminated = terminated.recv() => {}
        }
        return;
    }
    let _ctrl_c = tokio::signal::ctrl_c().await;
}
