//! A worker pool over many names: two processes share a list of jobs, and each does a few at a time.
//!
//! Two traps. A lock says that no other process does the job *now*, not that none has done it, so check again under the
//! lock. And the lease moves into the task of its job. (A dispatcher is one task: with `reentrant(true)` it could enter
//! again the lock of a job that it has handed out.)
//!
//! ```text
//! cargo run --example workers
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example workers
//! ```

use std::{
    collections::{HashMap, VecDeque},
    env,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold::{Client, Lease};
use tokio::{task::JoinSet, time::sleep};

const JOBS: usize = 20;
const AT_ONCE: usize = 3;
/// How long until a job that is busy in another process is tried again.
const PAUSE: Duration = Duration::from_millis(50);

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Stands for the database: which jobs are done, and which process did them.
type Done = Arc<Mutex<HashMap<String, String>>>;

/// One process: takes names from its queue, and works on at most `AT_ONCE` of them.
async fn pool(client: Client, mut queue: VecDeque<String>, done: Done) -> Result<()> {
    let mut jobs = JoinSet::new();
    while !(queue.is_empty() && jobs.is_empty()) {
        // Try each name of the queue once, because more tries would ask the same again and again.
        for _ in 0..queue.len() {
            if jobs.len() == AT_ONCE {
                break;
            }
            let Some(name) = queue.pop_front() else { break };
            match client.lock(&name).try_acquire().await? {
                Some(lease) => drop(jobs.spawn(work(lease, done.clone()))),
                None => queue.push_back(name),
            }
        }
        tokio::select! {
            Some(ended) = jobs.join_next() => ended??,
            () = sleep(PAUSE), if jobs.len() < AT_ONCE && !queue.is_empty() => {}
        }
    }
    client.close().await;
    Ok(())
}

/// One job, under its lease.
async fn work(lease: Lease, done: Done) -> Result<(), leasehold::Error> {
    lease
        .run(|lease| async move {
            // Another process may have done it between the check of the queue and the acquire.
            if done.lock().unwrap_or_else(PoisonError::into_inner).contains_key(lease.name()) {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
            println!("{:>5}: {}", lease.label(), lease.name());
            let before = done
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(lease.name().to_owned(), lease.label().to_owned());
            assert_eq!(before, None, "{} is done once", lease.name());
            Ok(())
        })
        .await
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://workers".into());
    let names: Vec<String> = (1..=JOBS).map(|job| format!("examples:workers:{job}")).collect();
    let (done, mut pools) = (Done::default(), JoinSet::new());
    for label in ["left", "right"] {
        let client = Client::builder().url(&url).label(label).build().await?;
        pools.spawn(pool(client, names.clone().into(), done.clone()));
    }
    for outcome in pools.join_all().await {
        outcome?;
    }
    let done = done.lock().unwrap_or_else(PoisonError::into_inner);
    let right = done.values().filter(|label| *label == "right").count();
    println!("{} jobs: {} by the left pool, {right} by the right one", done.len(), done.len() - right);
    assert_eq!(done.len(), JOBS);
    Ok(())
}
