//! Work that blocks its thread, such as compression or a library without async: `spawn_blocking` and `check()`.
//!
//! The trap: nothing can stop a thread from outside. `lock.run(|_| spawn_blocking(…))` that is dropped, or whose lease
//! is lost, *releases the lock while the thread goes on*. Move the lease into the thread instead. It asks `check()`
//! before each step, and releases the lock itself when it is done. Keep a step well below the TTL.
//!
//! ```text
//! cargo run --example blocking
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example blocking
//! ```

use std::{
    env,
    error::Error,
    sync::mpsc::{Receiver, Sender, channel},
    thread::sleep,
    time::Duration,
};

use leasehold::{Lease, Leases, LossReason, Lost};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, spawn_blocking},
};

const STEP: Duration = Duration::from_millis(20);

/// Compresses something for as many steps. The thread owns the lease, whoever waits for it or not.
fn compress(lease: Lease, steps: u32, begun: Sender<()>) -> JoinHandle<Result<u32, leasehold::Error>> {
    let runtime = Handle::current();
    spawn_blocking(move || {
        for _ in 0..steps {
            lease.check()?;
            sleep(STEP);
            // For `main` below, which may be gone.
            let _main = begun.send(());
        }
        // Not `drop(lease)`: so the caller hears whether the lock was ours to the end.
        runtime.block_on(lease.release())?;
        Ok(steps)
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let leases = Leases::connect(url).await?;
    let lock = leases.lock("examples:blocking");

    let (begun, _) = channel();
    let steps = compress(lock.acquire().await?, 10, begun).await??;
    println!("done after {steps} steps, and released");
    assert_eq!(lock.holder().await?, None);

    // Its caller gives up. The thread goes on, and so does its lease.
    let (begun, steps) = channel();
    drop(compress(lock.acquire().await?, 10, begun));
    let steps = wait_for_step(steps).await?;
    assert!(lock.try_acquire().await?.is_none(), "the lock is held for as long as the thread works");
    // The thread has ended when its sender is gone. `acquire` waits for its release.
    let rest = spawn_blocking(move || steps.iter().count()).await?;
    println!("nobody waited for the other {rest} steps, which were protected all the same");
    let lease = lock.acquire().await?;

    // The lease is lost: the thread stops before its next step.
    let (begun, steps) = channel();
    let job = compress(lease, 10_000, begun);
    let _steps = wait_for_step(steps).await?;
    lock.force_release().await?;
    let outcome = job.await?;
    println!("stopped: {outcome:?}");
    let lost = outcome.as_ref().err().and_then(leasehold::Error::lost);
    assert_eq!(lost.map(Lost::reason), Some(LossReason::Forced));
    leases.close().await;
    Ok(())
}

/// Waits until the thread has done a step.
async fn wait_for_step(steps: Receiver<()>) -> Result<Receiver<()>, Box<dyn Error>> {
    Ok(spawn_blocking(move || steps.recv().map(|()| steps)).await??)
}
