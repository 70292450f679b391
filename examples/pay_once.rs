//! Work that can fail, and a retry that pays once.
//!
//! `run` returns the work's own result. The error is any type that is `From<leasehold::Error>`, so one `?` serves the
//! lock and the work.
//!
//! Two traps. A retry around acquire *and* work pays twice if an error comes after the payment, so retry the acquire
//! alone. And a release without an answer is not a failure of the work: `run` is `Ok`, and the key expires by itself.
//!
//! ```text
//! cargo run --example pay_once
//! ```

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use leasehold::{Client, Error, Lease, LeaseHandle, testing};
use tokio::time::sleep;

/// The errors of this program.
#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error(transparent)]
    Lock(#[from] Error),
    #[error("the bank declined it")]
    Declined,
}

/// Stands for the bank.
#[derive(Debug, Default)]
struct Bank {
    limit: u32,
    paid: AtomicU32,
}

/// Pays an invoice at most once, however often the lock has to be requested.
async fn pay(client: &Client, bank: &Bank, amount: u32) -> Result<u32, PayError> {
    let lease = acquire_with_retries(client).await?;
    // From here on nothing is retried.
    lease.run(|lease| transfer(bank, amount, lease)).await
}

/// Tries again while no work has been done.
async fn acquire_with_retries(client: &Client) -> Result<Lease, Error> {
    let lock = client.lock("examples:pay_once:invoice:17");
    for pause in [50, 100, 200].map(Duration::from_millis) {
        match lock.acquire_within(Duration::from_secs(1)).await {
            Err(error) if error.is_transient() => println!("not acquired, once more: {error}"),
            outcome => return outcome,
        }
        sleep(pause).await;
    }
    lock.acquire_within(Duration::from_secs(1)).await
}

/// The work. Its `?` takes errors of the lock, and it may return errors of its own.
async fn transfer(bank: &Bank, amount: u32, lease: LeaseHandle) -> Result<u32, PayError> {
    lease.check()?;
    if amount > bank.limit {
        return Err(PayError::Declined);
    }
    sleep(Duration::from_millis(50)).await;
    let paid = bank.paid.fetch_add(1, Relaxed) + 1;
    println!("paid {amount}, fence {}", lease.fence());
    Ok(paid)
}

#[tokio::main]
async fn main() -> Result<(), PayError> {
    let client = Client::builder().url("memory://").command_timeout(Duration::from_millis(200)).build().await?;
    let bank = Bank { limit: 100, ..Bank::default() };

    // The work's own error is returned, and the lock is free again.
    let outcome = pay(&client, &bank, 1_000).await;
    println!("{outcome:?}");
    assert!(matches!(outcome, Err(PayError::Declined)));

    // The server falls silent after the payment, so the release is not confirmed.
    let lease = acquire_with_retries(&client).await?;
    let mut silence = None;
    let outcome: Result<u32, PayError> = lease
        .run(async |lease| {
            let paid = transfer(&bank, 40, lease).await?;
            silence = Some(testing::silence(&client)?);
            Ok(paid)
        })
        .await;
    println!("{outcome:?}, though the release is not confirmed");
    assert!(matches!(outcome, Ok(1)));

    // The server answers again, and the release has gone through.
    drop(silence);
    assert_eq!(pay(&client, &bank, 40).await?, 2);
    client.close().await;
    Ok(())
}
