//! Two locks at once, without deadlock: a transfer needs both accounts.
//!
//! A multi-lock avoids three traps. Two programs that lock `a, b` and `b, a` wait for each other forever: a multi-lock
//! has one order. A limit for each lock adds up: its limit is for both. And the loss of *either* lock must stop the
//! work: it does. (The same name twice would wait for itself, so it is refused.)
//!
//! ```text
//! cargo run --example two_locks
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example two_locks
//! ```

use std::{
    env,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold::{Client, Error, LossReason, MultiLeaseHandle, MultiLock};
use tokio::{task::JoinSet, time::sleep};

const ALICE: &str = "examples:account:alice";
const BOB: &str = "examples:account:bob";

fn both(client: &Client, names: [&str; 2]) -> MultiLock {
    client.multi_lock(names.map(|name| client.lock(name)))
}

/// The errors of a transfer: its own, or those of the locks.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(transparent)]
    Lock(#[from] Error),
    #[error("the account has less than that")]
    TooPoor,
}

#[tokio::main]
async fn main() -> Result<(), TransferError> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = Client::connect(url).await?;

    // Both ways at once, ten times each. Nothing but the locks keeps these reads and writes together.
    let balances = Arc::new([AtomicI64::new(100), AtomicI64::new(100)]);
    let mut transfers = JoinSet::new();
    for transfer in 0..20 {
        let (client, balances) = (client.clone(), balances.clone());
        transfers.spawn(async move {
            let (names, by) = if transfer % 2 == 0 { ([ALICE, BOB], 7) } else { ([BOB, ALICE], -2) };
            let work = async |_: MultiLeaseHandle| {
                let [alice, bob] = &*balances;
                let (from, to) = (alice.load(Relaxed), bob.load(Relaxed));
                if from < by || to < -by {
                    return Err(TransferError::TooPoor);
                }
                sleep(Duration::from_millis(10)).await;
                alice.store(from - by, Relaxed);
                bob.store(to + by, Relaxed);
                Ok(())
            };
            both(&client, names).run_within(Duration::from_secs(30), work).await
        });
    }
    for outcome in transfers.join_all().await {
        outcome?;
    }
    let balances = balances.each_ref().map(|balance| balance.load(Relaxed));
    println!("20 transfers: {balances:?}");
    assert_eq!(balances, [50, 150]);

    // The second lock is busy: the time limit passes, and the first lock is free again.
    let busy = client.lock(BOB).acquire().await?;
    let outcome =
        both(&client, [BOB, ALICE]).run_within(Duration::from_millis(200), async |_| Ok::<_, Error>(())).await;
    println!("budget: {outcome:?}");
    assert!(matches!(outcome, Err(Error::TimedOut { ref name, .. }) if name == BOB));
    let free = client.lock(ALICE).try_acquire().await?;
    assert!(free.is_some());
    drop((busy, free));

    // An operator deletes one of the two keys: the work stops, and the other lock is released.
    for taken in [ALICE, BOB] {
        let operator = client.lock(taken);
        let work = async |_: MultiLeaseHandle| {
            assert_eq!(operator.force_release().await, Ok(true));
            pending::<Result<(), Error>>().await
        };
        let outcome = both(&client, [ALICE, BOB]).run_within(Duration::from_secs(5), work).await;
        println!("loss: {outcome:?}");
        let lost = outcome.as_ref().err().and_then(Error::lost).map(|lost| (lost.name(), lost.reason()));
        assert_eq!(lost, Some((taken, LossReason::Forced)));
        for name in [ALICE, BOB] {
            assert!(client.lock(name).try_acquire().await?.is_some(), "{name} is free");
        }
    }
    client.close().await;
    Ok(())
}
