//! A job that stops when its lease is taken away: halfway through, an operator deletes the key.
//!
//! ```text
//! cargo run --example abort_on_loss
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example abort_on_loss
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{
    env,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease};

const LOCK: &str = "examples:abort_on_loss";

#[tokio::main]
async fn main() -> Result<(), Error> {
    // A name after `memory://`, so that the operator below sees the same locks.
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://abort_on_loss".into());
    // The TTL also bounds how long a deletion goes unnoticed, because a renewal comes every third of it.
    let client = Client::builder().url(&url).ttl(Duration::from_secs(3)).build().await?;
    // The operator has connections of their own.
    let operator = Client::connect(&url).await?;

    let lease = client.lock(LOCK).acquire().await?;
    println!("job: acquired {:?} with fence {}", lease.name(), lease.fence());

    let mut others = tokio::task::JoinSet::new();
    others.spawn(delete_key(operator));

    // The loss comes first: if both are ready, the job must not win.
    let finished = tokio::select! {
        biased;
        lost = lease.lost() => {
            println!("job: stopped, because {lost}");
            false
        }
        () = work(&lease) => true,
    };
    let stopped = Instant::now();

    if let Some(Ok(deleted)) = others.join_next().await {
        println!("job: that was {:.1?} after the deletion", stopped.saturating_duration_since(deleted?));
    }
    match lease.release().await {
        Ok(_) => println!("job: released, finished: {finished}"),
        Err(error) => println!("job: nothing left to release: {error}"),
    }
    client.close().await;
    Ok(())
}

/// Ten steps, which the job does not finish.
async fn work(lease: &Lease) {
    for step in 1..=10 {
        println!("job: step {step}, the lease is good for another {:.2?}", lease.remaining());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Does what an operator does about a seemingly dead holder.
async fn delete_key(operator: Client) -> Result<Instant, Error> {
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    let lock = operator.lock(LOCK);
    if let Some(holder) = lock.holder().await? {
        println!("operator: it is held by {holder}; deleting it");
    }
    lock.force_release().await?;
    let deleted = Instant::now();
    operator.close().await;
    Ok(deleted)
}
