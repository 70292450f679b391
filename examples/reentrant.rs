//! Functions that take the same lock and call each other: one task may enter again, another waits.
//!
//! ```text
//! cargo run --example reentrant
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example reentrant
//! ```

use std::{env, time::Duration};

use leasehold::{Client, Error, Lock};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = Client::connect(url).await?;
    let lock = client.lock("examples:reentrant");

    println!("with `reentrant(true)`, two tasks at once:");
    let mut tasks = JoinSet::new();
    for task in ["red", "blue"] {
        tasks.spawn(import(lock.clone().reentrant(true), task));
    }
    // A task ends in an error only if it panicked or was cancelled.
    for outcome in tasks.join_all().await {
        outcome?;
    }

    println!("without it, the task waits for itself, as for anybody else:");
    let lease = lock.acquire().await?;
    match lock.acquire_within(Duration::from_millis(200)).await {
        Err(busy @ Error::TimedOut { .. }) => println!("  {busy}"),
        Err(error) => return Err(error),
        Ok(_second) => println!("  let in?"),
    }
    lease.release().await?;
    client.close().await;
    Ok(())
}

/// Needs the lock for all of its rows, because no other task may come between two of them.
async fn import(lock: Lock, task: &'static str) -> Result<(), Error> {
    let lease = lock.acquire().await?;
    println!("  {task}: import   holds {}, fence {}", lease.hold_count(), lease.fence());
    for row in 1..=3 {
        add(&lock, task, row).await?;
    }
    println!("  {task}: imported holds {}", lease.hold_count());
    // The last release deletes the key.
    lease.release().await?;
    Ok(())
}

/// Needs the lock for its one row, whoever calls it.
async fn add(lock: &Lock, task: &str, row: u32) -> Result<(), Error> {
    let lease = lock.acquire().await?;
    println!("  {task}:   row {row}  holds {}, fence {}", lease.hold_count(), lease.fence());
    tokio::time::sleep(Duration::from_millis(100)).await;
    lease.release().await?;
    Ok(())
}
