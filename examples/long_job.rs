//! The typical job: it takes an unknown time, and no other process may do it meanwhile.
//!
//! ```text
//! cargo run --example long_job
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example long_job    # in two terminals: the second waits
//! ```

use std::{
    env,
    error::Error,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use leasehold::{Client, LeaseHandle};

/// Much shorter than the job, because it is how long the others wait if this process dies.
const TTL: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    println!("a job under a lock, on {}", if url.starts_with("memory:") { "a server in memory" } else { "REDIS_URL" });
    let client = Client::builder().url(url).ttl(TTL).build().await?;
    let lock = client.lock("examples:long_job").on_wait(|holder| println!("waiting for {holder}"));

    // `run` drops the job the moment the lease is lost, and dropping `run` drops the job and releases.
    let outcome = tokio::select! {
        outcome = lock.run(job) => Some(outcome),
        _ctrl_c = tokio::signal::ctrl_c() => None,
    };
    // This waits for the release: a process that just exits may leave the key for a TTL.
    client.close().await;

    match outcome {
        Some(outcome) => println!("done after {} steps, released", outcome?),
        None => println!("interrupted, released"),
    }
    Ok(())
}

/// Four to eight seconds of work in small steps.
async fn job(lease: LeaseHandle) -> Result<u64, leasehold::Error> {
    println!("acquired as {}, fence {}, for {TTL:?} at a time", lease.label(), lease.fence());
    let steps = 80 + RandomState::new().hash_one("length") % 81;
    let mut before = lease.remaining();
    for step in 1..=steps {
        tokio::time::sleep(Duration::from_millis(50)).await;

        let remaining = lease.remaining();
        if remaining > before {
            println!("{:>3} %  renewed, good for another {remaining:.2?}", step * 100 / steps);
        }
        before = remaining;
    }
    Ok(steps)
}
