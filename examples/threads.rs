//! Threads without async: `block_on` waits for any call.
//!
//! The trap: nothing can stop a thread from outside. `run` reports only at its end that the lease was lost, and until
//! then the work has continued beside another holder's. So the work calls `check()` before each step, and a step is
//! well below the TTL. A thread that waits for a lock cannot be stopped either: give it a limit. (In an async program
//! move a lease into `spawn_blocking`, and wait for it there.)
//!
//! ```text
//! cargo run --example threads
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example threads
//! ```

use std::{
    env,
    panic::resume_unwind,
    sync::mpsc::{Sender, channel},
    thread::{self, sleep},
    time::Duration,
};

use leasehold::{Client, Error, LeaseHandle, LossReason, Lost, block_on};

const STEP: Duration = Duration::from_millis(5);

/// Compresses something, in this many steps.
fn compress(lease: &LeaseHandle, steps: u32) -> Result<u32, Error> {
    for _ in 0..steps {
        lease.check()?;
        sleep(STEP);
    }
    Ok(steps)
}

/// Compresses forever; reports when it has begun.
fn compress_all(lease: &LeaseHandle, begun: &Sender<()>) -> Result<u32, Error> {
    loop {
        compress(lease, 1)?;
        // For `main` below.
        let _heard = begun.send(());
    }
}

fn main() -> Result<(), Error> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = block_on(Client::connect(url))??;
    let lock = client.lock("examples:threads");

    // Four threads take turns.
    let steps: Result<u32, Error> = thread::scope(|scope| {
        let turn = || block_on(lock.run(async |lease| compress(&lease, 5)))?;
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(turn)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).sum()
    });
    println!("{} steps, of one thread at a time", steps?);

    // Another holder has the lock, so a thread gives up after a while.
    let lease = block_on(lock.acquire())??;
    let waited = block_on(lock.acquire_within(Duration::from_millis(50)))?;
    println!("gave up: {waited:?}");
    assert!(matches!(waited, Err(Error::TimedOut { .. })));

    // The lease is lost while a thread works: it stops before its next step.
    lease.on_lost(|lost| println!("told at once, on a thread of the library: {lost}"));
    let (begun, steps) = channel();
    let job = thread::scope(|scope| {
        let worker = scope.spawn(move || block_on(lease.run(async |lease| compress_all(&lease, &begun)))?);
        let _begun = steps.recv();
        block_on(lock.force_release_because("somebody needs it"))??;
        worker.join().unwrap_or_else(|panic| resume_unwind(panic))
    });
    println!("stopped: {job:?}");
    assert_eq!(job.as_ref().err().and_then(Error::lost).map(Lost::reason), Some(LossReason::Forced));
    block_on(client.close())
}
