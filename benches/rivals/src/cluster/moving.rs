//! Slots that move to another primary while locks are held and taken in them.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use support::{Cluster, Lag};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

use super::{PLACE, PRIMARIES, millis};
use crate::{
    Result,
    contestant::{confirmed, leases_at},
    page::Section,
    percentile,
};

const SLOTS: usize = 300;
const HELD: usize = 200;
const TASKS: usize = 32;
const TTL: Duration = Duration::from_secs(3);

pub async fn main(section: &mut Section) -> Result<()> {
    let cluster = Cluster::start_unshimmed(PRIMARIES, 0);
    let leases = leases_at(cluster.url(), TTL, false).await?;
    let names = cluster.names_in(&(0..SLOTS), "job", HELD + TASKS);
    let (held, taken) = names.split_at(HELD);
    let mut holds = Vec::with_capacity(HELD);
    for name in held {
        holds.push(leases.lock(name.as_str()).acquire().await?);
    }
    let (stop, stopped) = watch::channel(false);
    let mut running = JoinSet::new();
    for name in taken {
        let (lock, stopped) = (leases.lock(name.as_str()), stopped.clone());
        running.spawn(async move {
            let mut times = Vec::new();
            while !*stopped.borrow() {
                let began = Instant::now();
                let lease = lock.acquire().await?;
                times.push(millis(began.elapsed()));
                confirmed(&lease.release().await?)?;
            }
            Ok::<_, crate::Error>(times)
        });
    }
    sleep(TTL).await;

    let (lag, began) = (Lag::start(), Instant::now());
    let mut moving = spawn_blocking(reshard(&cluster));
    let mut least = TTL;
    let output = loop {
        tokio::select! {
            output = &mut moving => break output??,
            () = sleep(Duration::from_millis(2)) => {}
        }
        least = holds.iter().map(leasehold::Lease::remaining).fold(least, Duration::min);
    };
    let took = began.elapsed();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stdout).into_owned().into());
    }
    stop.send_replace(true);
    let mut times = Vec::new();
    while let Some(of_one) = running.join_next().await {
        times.extend(of_one??);
    }
    let lost = holds.iter().filter(|lease| !lease.is_held()).count();
    let late = (TTL * 2 / 3).saturating_sub(least);
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let rows = [
        row("the move of 300 slots by `redis-cli`", format!("{:.1} s", took.as_secs_f64())),
        row("latest confirmation of a renewal after it was due", format!("{:.1} ms", millis(late))),
        row("acquire, 99.9 %", format!("{:.1} ms", percentile(times.iter().copied(), 0.999))),
        row("acquire, slowest", format!("{:.1} ms", percentile(times.iter().copied(), 1.0))),
        row("leases lost", lost.to_string()),
        row("the control's worst delay", format!("{:.1} ms", millis(lag.worst()))),
    ];
    let title = format!("Slots that move, with {HELD} leases of 3 s and {TASKS} busy tasks in them");
    section.table(&title, PLACE, &["what", "value"], &rows);
    Ok(())
}

/// Runs the operator's own tool to move the first slots to the second primary.
fn reshard(cluster: &Cluster) -> impl FnOnce() -> Result<std::process::Output> + Send + use<> {
    let address = format!("127.0.0.1:{}", cluster.primaries()[0].port());
    let (from, to, slots) = (cluster.id(0), cluster.id(1), SLOTS.to_string());
    move || {
        let mut tool = Command::new("redis-cli");
        tool.args(["--cluster", "reshard", &address, "--cluster-from", &from, "--cluster-to", &to]);
        tool.args(["--cluster-slots", &slots, "--cluster-yes"]);
        Ok(tool.stdin(Stdio::null()).output()?)
    }
}
