//! A leader loop: acquire, lead until the lease ends, step down, stand for election again.
//!
//! Three traps. `select!` without `biased` may poll the work when the lease is lost already. Step down *before* you
//! tidy up or release: the next leader may start at that moment. And `is_leader` is a hint: it can be out of date when
//! you act on it, so a write that must not go wrong carries the fence.
//!
//! ```text
//! cargo run --example leader
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example leader
//! ```

use std::{env, time::Duration};

use leasehold::{Error, Fence, LeaseHandle, Leases};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;

const LOCK: &str = "examples:leader";

/// Leads whenever it can, until it is stopped. The rest of the program reads `is_leader`.
async fn stand_for_election(
    leases: Leases,
    is_leader: watch::Sender<bool>,
    stop: CancellationToken,
    terms: mpsc::UnboundedSender<Term>,
) -> Result<(), Error> {
    let lock = leases.lock(LOCK);
    while !stop.is_cancelled() {
        let lease = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Waits through outages of the server too. A new try would not mend the errors that are left.
            lease = lock.acquire() => lease?,
        };
        is_leader.send_replace(true);
        let ended = tokio::select! {
            biased;
            lost = lease.lost() => format!("{:?}", lost.reason()),
            () = stop.cancelled() => "stopped".to_owned(),
            () = lead(lease.handle(), &terms) => "done".to_owned(),
        };
        is_leader.send_replace(false);
        println!("{} steps down: {ended}", lease.label());
        match lease.release().await {
            // Lost before: another one may lead already. Stand again.
            Ok(_) | Err(Error::Lost(_)) => {}
            Err(error) => println!("{error}"),
        }
    }
    Ok(())
}

/// What only the leader does. It is dropped at its next `await` when the lease is lost.
async fn lead(lease: LeaseHandle, terms: &mpsc::UnboundedSender<Term>) {
    println!("{} leads, fence {}", lease.label(), lease.fence());
    let _watched = terms.send(Term { leader: lease.label().to_owned(), fence: lease.fence() });
    loop {
        sleep(Duration::from_millis(50)).await;
    }
}

struct Term {
    leader: String,
    fence: Fence,
}

struct Candidate {
    is_leader: watch::Receiver<bool>,
    stop: CancellationToken,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://leader".into());
    let (told, mut terms) = mpsc::unbounded_channel();
    let mut candidates = JoinSet::new();
    let mut start = async |name: &str| {
        let leases = Leases::builder().url(&url).label(name).ttl(Duration::from_secs(3)).build().await?;
        let (is_leader, seen) = watch::channel(false);
        let stop = CancellationToken::new();
        candidates.spawn(stand_for_election(leases, is_leader, stop.clone(), told.clone()));
        Ok::<_, Error>(Candidate { is_leader: seen, stop })
    };

    let mut red = start("red").await?;
    let first = terms.recv().await.ok_or("nobody leads")?;
    let mut blue = start("blue").await?;
    assert_eq!(first.leader, "red");
    assert!(*red.is_leader.borrow() && !*blue.is_leader.borrow());

    // An operator takes the lock away. Who leads then is open, but it is a new term with a greater fence.
    let operator = Leases::connect(&url).await?;
    operator.lock(LOCK).force_release().await?;
    let second = terms.recv().await.ok_or("nobody leads")?;
    assert!(second.fence > first.fence);

    // The leader stops: the other one takes over within a moment, not after a TTL.
    let (leader, other) = if second.leader == "red" { (&mut red, &mut blue) } else { (&mut blue, &mut red) };
    leader.stop.cancel();
    let third = terms.recv().await.ok_or("nobody leads")?;
    assert_ne!(third.leader, second.leader);
    assert!(third.fence > second.fence);
    leader.is_leader.wait_for(|leads| !leads).await?;
    other.is_leader.wait_for(|leads| *leads).await?;

    other.stop.cancel();
    for outcome in candidates.join_all().await {
        outcome?;
    }
    assert_eq!(operator.lock(LOCK).holder().await?, None, "the last leader has released");
    operator.close().await;
    println!("three terms, one leader at a time");
    Ok(())
}
