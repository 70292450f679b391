//! What the renewals of an idle process cost the server.

use std::time::{Duration, Instant};

use support::{HANGS, Server, Wire, eventually_async};

use crate::common::program_with;

const TTL: Duration = Duration::from_millis(1_500);
const LEASES: u32 = 50;
/// One of eight of them comes early, by up to a tenth.
const ROUNDS: usize = 10;
/// A machine that stalls parts what travels together, and never joins it: the least of some windows is the library's own.
const WINDOWS: usize = 4;
/// For each lease in a third of its TTL: its own renewal, and its share of what carries fifty of them.
const COMMANDS: f64 = 1.1;

/// How many commands the server has run, also in scripts, but for our questions.
fn commands(wire: &mut Wire) -> u32 {
    let stats = wire.must(&["INFO", "commandstats"]).text();
    let ours = stats.lines().filter(|line| !line.starts_with("cmdstat_info:"));
    let calls = ours.filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u32>().ok());
    calls.sum()
}

/// Waits for so many batches, and half of a third more: the middle between two of them.
async fn batches(wire: &mut Wire, count: usize) {
    let before = wire.calls("evalsha");
    for nth in 1..=count {
        eventually_async(HANGS, "a renewal", || wire.calls("evalsha") >= before + nth).await;
    }
    tokio::time::sleep(TTL / 6).await;
}

#[tokio::test]
async fn renewals_of_leases_that_were_taken_one_after_the_other_travel_together() {
    let server = Server::start();
    let (leases, mut wire) = (program_with(server.url(), TTL).await, server.wire());
    let mut held = Vec::new();
    for job in 0..LEASES {
        held.push(leases.lock(format!("job {job}")).acquire().await.unwrap());
    }
    // The first two tell of the keys from there on, and bring together what the machine has parted.
    batches(&mut wire, 5).await;
    let mut least = f64::INFINITY;
    for _ in 0..WINDOWS {
        let (begin, before) = (Instant::now(), commands(&mut wire));
        batches(&mut wire, ROUNDS).await;
        let thirds = begin.elapsed().div_duration_f64(TTL / 3);
        least = least.min(f64::from(commands(&mut wire) - before) / f64::from(LEASES) / thirds);
    }
    assert!(least <= COMMANDS, "{least} commands for each lease in a third of its TTL");
    assert!(held.iter().all(leasehold::Lease::is_held));
}
