//! A service that is asked to stop: it takes no new work, finishes or saves the old, releases every lock, and ends.
//!
//! Three traps. `leases.close()` is "now": a job that still runs is not protected any more. `tracker.wait()` alone never
//! ends while a task waits for a lock: `shutdown` ends that wait. And `lost()` with `LossReason::Closing` is a request,
//! not a loss: the lease is held and renewed until its job releases it, so there is time to save.
//!
//! The limit must be shorter than the time until your supervisor kills the process (Kubernetes: 30 s).
//!
//! ```text
//! cargo run --example graceful_shutdown
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example graceful_shutdown
//! ```

use std::{env, future::pending, time::Duration};

use leasehold::{Error, Leases, LossReason, Lost};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const LIMIT: Duration = Duration::from_secs(1);

/// Starts jobs as they come, until it is stopped.
async fn dispatch(
    leases: Leases,
    mut jobs: UnboundedReceiver<Job>,
    begun: UnboundedSender<Job>,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(job) = jobs.recv() => drop(tracker.spawn(do_job(leases.clone(), job, begun.clone()))),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    /// Takes less time than there is.
    Short,
    /// Has no end: it saves what it has when it is asked to stop.
    Endless,
    /// Hears nothing.
    Deaf,
    /// Wants the lock of the endless one.
    Waiting,
}

async fn do_job(leases: Leases, job: Job, begun: UnboundedSender<Job>) {
    let name = if job == Job::Waiting { Job::Endless } else { job };
    let lock = leases.lock(format!("examples:graceful_shutdown:{name:?}"));
    let outcome = lock.run(async |lease| {
        let _begun = begun.send(job);
        match job {
            Job::Short => sleep(LIMIT / 3).await,
            Job::Endless => {
                lease.cancellation_token().cancelled().await;
                println!("Endless: asked to stop; saves while the lock is still held: {}", lease.is_held());
                sleep(LIMIT / 5).await;
                assert!(lease.is_held());
            }
            Job::Deaf => pending().await,
            Job::Waiting => unreachable!("the lock is never free before the shutdown"),
        }
    });
    let outcome = outcome.await;
    println!("{job:?}: {outcome:?}");
    match job {
        Job::Short | Job::Endless => assert_eq!(outcome, Ok(())),
        Job::Deaf => {
            let lost = outcome.as_ref().err().and_then(Error::lost);
            assert_eq!(lost.map(Lost::reason), Some(LossReason::Closed));
        }
        Job::Waiting => assert_eq!(outcome, Err(Error::Closed)),
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let leases = Leases::connect(url).await?;
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let (jobs, queue) = unbounded_channel();
    let (tell, mut begun) = unbounded_channel();
    tracker.spawn(dispatch(leases.clone(), queue, tell, stop.clone(), tracker.clone()));

    let wanted = [Job::Endless, Job::Short, Job::Deaf];
    for job in wanted {
        let _sent = jobs.send(job);
    }
    tokio::select! {
        () = terminated() => {}
        // Nobody has to press ^C here: the example stops itself when all jobs have begun.
        () = async { for _ in wanted { begun.recv().await; } } => {}
    }
    let _sent = jobs.send(Job::Waiting);
    sleep(LIMIT / 10).await;

    println!("stopping within {LIMIT:?}");
    stop.cancel();
    tracker.close();
    let cut_short = leases.shutdown(LIMIT).await;
    // The locks are released. What the tasks do after that is awaited too.
    tracker.wait().await;
    println!("{cut_short} job was cut short");
    assert_eq!(cut_short, 1);
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
