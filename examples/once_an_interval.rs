//! Once an hour in a fleet: every machine has the same timer, and one of them does the work.
//!
//! The trap: a lock that is released when the work is done does not help. A machine whose timer is a little late finds
//! it free, and does the work again. `keep_for` keeps the key from the acquire on.
//!
//! `keep_for` must be longer than the largest difference between the timers of the machines. It must also be a little
//! shorter than the interval, or a late tick makes the next one find the lock busy. For an hour, 55 minutes do.
//!
//! `keep_for` also keeps the key when the work fails. To let another machine try again, acquire without it, and call
//! `lease.release_keeping(…)` after success only.
//!
//! If a machine dies at work, its key stays for the TTL only, and another one does the work instead. If the work must
//! not even begin twice, like a mail to all customers, use `once_per` instead of `keep_for`: the key then outlives the
//! machine.
//!
//! ```text
//! cargo run --example once_an_interval
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example once_an_interval
//! ```
#![allow(clippy::disallowed_methods, reason = "an example may look at the clock; the library has one door for it")]

use std::{env, time::Duration};

use leasehold::{Client, Error, LeaseHandle};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Stands for an hour.
const INTERVAL: Duration = Duration::from_secs(2);
const KEEP: Duration = Duration::from_secs(1);
/// The largest difference between the timers of the machines.
const APART: Duration = Duration::from_millis(200);
const ROUNDS: u32 = 2;

#[tokio::main]
async fn main() -> Result<(), Error> {
    // A name after `memory://`, so that all machines see the same locks.
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://once_an_interval".into());
    let mut fleet = JoinSet::new();
    let mut start = Instant::now();
    for machine in ["one", "two", "three"] {
        let client = Client::builder().url(&url).label(machine).build().await?;
        fleet.spawn(machine_loop(client, start));
        start += APART;
    }
    let mut runs = Vec::new();
    for machine in fleet.join_all().await {
        runs.extend(machine?);
    }
    runs.sort_unstable_by_key(|run: &Run| run.started);

    let ticks = 3 * ROUNDS;
    println!("{ticks} ticks, {} runs", runs.len());
    assert_eq!(runs.len(), ROUNDS as usize, "one machine a round");
    for (run, next) in runs.iter().zip(runs.iter().skip(1)) {
        // The acquires lie between these two moments, so they are even further apart than the time that the key was
        // kept.
        assert!(next.started.saturating_duration_since(run.asked) >= KEEP);
    }
    Ok(())
}

/// A machine's timer, and what it does at each tick.
async fn machine_loop(client: Client, start: Instant) -> Result<Vec<Run>, Error> {
    let lock = client.lock("examples:once_an_interval").keep_for(KEEP);
    let (mut timer, mut runs) = (interval_at(start, INTERVAL), Vec::new());
    timer.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for _ in 0..ROUNDS {
        timer.tick().await;
        let asked = Instant::now();
        // `None`: another machine does it, or has done it in this interval.
        if let Some(started) = lock.try_run(report).await? {
            runs.push(Run { asked, started });
        }
    }
    client.close().await;
    Ok(runs)
}

/// The work: much quicker than the interval.
async fn report(lease: LeaseHandle) -> Result<Instant, Error> {
    let started = Instant::now();
    println!("machine {}: writes the report, fence {}", lease.label(), lease.fence());
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(started)
}

struct Run {
    asked: Instant,
    started: Instant,
}
