//! The cost of an idle process's renewals to the server.

use std::time::{Duration, Instant};

use leasehold::{Client, Lease};
use support::{HANGS, Lag, Server, Wire, eventually_async};

use crate::common::Confirmed as _;

const TTL: Duration = Duration::from_millis(1_500);
const LEASES: u32 = 50;
/// The number of batches in a window. One in eight of them is early, by up to a tenth.
const ROUNDS: usize = 10;
/// The number of windows measured and summed, because in one window more batches than expected may be early.
const WINDOWS: usize = 6;
/// A machine with more lag than this may split a batch. Such a window is discarded, and the leases are acquired anew.
const STALL: Duration = Duration::from_millis(100);
/// The number of windows that may be discarded.
const DISTURBED: usize = 8;
/// The commands for each lease in a third of its TTL: its own renewal, and its share of the batch of fifty. If the
/// server notifies a connection of its own changes, two more read the new state.
fn most_commands() -> f64 {
    if Server::echoes_own_changes() { 3.2 } else { 1.1 }
}

/// The number of commands the server has run, including those in scripts, but not this test's own queries.
fn commands(wire: &mut Wire) -> u32 {
    let stats = wire.must(&["INFO", "commandstats"]).text();
    let ours = stats.lines().filter(|line| !line.starts_with("cmdstat_info:"));
    let calls = ours.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u32>().ok());
    calls.sum()
}

/// A client that never re-checks its address.
async fn program(url: String) -> Client {
    let builder = Client::builder().url(url).ttl(TTL).check_address_every(Duration::ZERO);
    builder.build().await.unwrap()
}

/// Waits for `count` batches and another half interval, to end midway between two batches.
async fn batches(wire: &mut Wire, count: usize) {
    let before = wire.calls("evalsha");
    for nth in 1..=count {
        eventually_async(HANGS, "a renewal", || wire.calls("evalsha") >= before + nth).await;
    }
    tokio::time::sleep(TTL / 6).await;
}

/// Leases acquired one after the other, whose renewals have converged.
async fn hold(leases: &Client, wire: &mut Wire) -> Vec<Lease> {
    let mut held = Vec::new();
    for job in 0..LEASES {
        held.push(leases.lock(format!("job {job}")).acquire().await.unwrap());
    }
    // The first two batches start the tracking of the keys, and reunite renewals that the machine has split.
    batches(wire, 5).await;
    held
}

/// Renewals due at different times converge within a few rounds; by chance alone it would take a hundred.
#[tokio::test]
async fn renewals_of_leases_that_were_taken_apart_come_to_travel_together() {
    let server = Server::start();
    let (leases, mut wire) = (program(server.url()).await, server.wire());
    let mut held = Vec::new();
    for job in 0..LEASES {
        held.push(leases.lock(format!("job {job}")).acquire().await.unwrap());
        tokio::time::sleep(TTL / 3 / LEASES).await;
    }
    let mut costs = Vec::new();
    while costs.last().is_none_or(|cost| *cost > most_commands()) {
        assert!(costs.len() < 2 * WINDOWS, "commands for each lease in a third of its TTL: {costs:?}");
        let (begin, before) = (Instant::now(), commands(&mut wire));
        batches(&mut wire, ROUNDS).await;
        let thirds = begin.elapsed().div_duration_f64(TTL / 3);
        costs.push(f64::from(commands(&mut wire) - before) / f64::from(LEASES) / thirds);
    }
    assert!(held.iter().all(Lease::is_held));
}

#[tokio::test]
async fn renewals_of_leases_that_were_taken_one_after_the_other_travel_together() {
    let server = Server::start();
    let (leases, mut wire) = (program(server.url()).await, server.wire());
    let mut held = hold(&leases, &mut wire).await;
    let (mut windows, mut disturbed, mut run, mut thirds) = (0, 0, 0, 0.0);
    while windows < WINDOWS {
        let lag = Lag::start();
        let (begin, before) = (Instant::now(), commands(&mut wire));
        batches(&mut wire, ROUNDS).await;
        let (took, now) = (begin.elapsed(), commands(&mut wire));
        assert!(held.iter().all(Lease::is_held));
        if lag.worst() <= STALL {
            windows += 1;
            run += now - before;
            thirds += took.div_duration_f64(TTL / 3);
        } else {
            disturbed += 1;
            assert!(disturbed <= DISTURBED, "the machine lagged {:?} once more", lag.worst());
            for lease in held {
                lease.release().await.unwrap().confirmed();
            }
            held = hold(&leases, &mut wire).await;
        }
    }
    let each = f64::from(run) / f64::from(LEASES) / thirds;
    assert!(each <= most_commands(), "{each} commands for each lease in a third of its TTL");
}
