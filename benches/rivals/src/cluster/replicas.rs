//! The cost of a lock that a replica has confirmed, and of a missing replica.

use std::time::{Duration, Instant};

use leasehold::{Client, Lease};
use support::{Lag, Replicated};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::{interval, sleep},
};

use super::millis;
use crate::{
    Contestant, Result,
    contestant::{confirmed, leases_at, leases_that_replicas_have},
    page::Section,
    percentile,
    rates::{Load, Turns, beside},
    server::client_at,
    stats,
    table::thousands,
};

const PLACE: &str = "a primary, its replica and the client on the same 2 cores";
/// The tasks whose acquires wait for the replica, beside calls that do not.
const TASKS: usize = 16;
const HELD: usize = 1_000;
/// Short, so that there is something to count.
const TTL: Duration = Duration::from_secs(3);
/// How long the replica answers, then how long it does not; and how long renewals are counted.
const WINDOW: Duration = Duration::from_secs(15);
/// The pause between two calls. An idle server checks its clock every 100 ms, so each call comes at another part of
/// these 100 ms.
const PAUSE: Duration = Duration::from_millis(131);

pub fn main(section: &mut Section) -> Result<()> {
    let servers = Replicated::start(1);
    let ids: Vec<u32> = [servers.primary()].into_iter().chain(servers.replicas()).map(support::Server::pid).collect();
    let loads = [1, 16, 256].map(|tasks| {
        Load::new(Builder::new_multi_thread(), tasks, Contestant::replicated(&servers, tasks))?.measure(&ids)
    });
    let loads: Vec<_> = loads.into_iter().collect::<Result<_>>()?;
    let titles = ["cycles per second: ratio to the first", "1 task", "16 tasks", "256 tasks"];
    section.table("Locks that a replica has", PLACE, &titles, &beside(0, &loads));

    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let mut rows = loads.last().map(|all| shared(all)).unwrap_or_default();
    rows.extend(runtime.block_on(missing(&servers))?);
    rows.push(renewals(&runtime, &servers)?);
    let titles = ["with `min_replicas(1)`", "measured", "beside", "the one to the other", "wanted"];
    section.table("What a replica's word costs", PLACE, &titles, &rows);
    Ok(())
}

/// One `WAIT` for many locks, compared with none, and with one for each.
fn shared(all: &[Turns]) -> Vec<Vec<String>> {
    let rate = |turns: &Turns| turns.rate().show(thousands);
    let [none, ours, each, ..] = all else { return Vec::new() };
    let row = |title: &str, other: &Turns, wanted: &str| {
        vec![title.to_owned(), rate(ours), rate(other), format!("{:.2}", ours.ratio(other)), wanted.to_owned()]
    };
    vec![
        row("cycles per second of 256 tasks, beside no replicas wanted", none, "at least 0.65"),
        row("the same, beside a `WAIT` by hand for each lock", each, "at least 4"),
    ]
}

/// Milliseconds of the calls that wait for no replica, and the worst lag of the control meanwhile.
#[derive(Default)]
struct Calls {
    holder: Vec<f64>,
    busy: Vec<f64>,
    late: Duration,
}

/// A replica stops answering. Measures calls that do not need it, beside acquires that wait for it until they time out.
async fn missing(servers: &Replicated) -> Result<Vec<Vec<String>>> {
    let url = servers.primary().url();
    let (other, leases) = (leases_at(&url, TTL, false).await?, leases_that_replicas_have(url, crate::TTL, 1).await?);
    let _held = other.lock("busy").acquire().await?;
    let busy = leases.lock("busy");
    let calls = async || {
        let (lag, began, mut calls) = (Lag::start(), Instant::now(), Calls::default());
        // The calls follow the clock: a pause after each answer would stay in step with its delays.
        let mut due = interval(PAUSE);
        while began.elapsed() < WINDOW {
            due.tick().await;
            let began = Instant::now();
            busy.holder().await?.ok_or("nobody holds it")?;
            calls.holder.push(millis(began.elapsed()));
            due.tick().await;
            let began = Instant::now();
            if busy.try_acquire().await?.is_some() {
                return Err("it was not held".into());
            }
            calls.busy.push(millis(began.elapsed()));
        }
        calls.late = lag.worst();
        Ok::<_, crate::Error>(calls)
    };
    let _acquires = acquires(&leases);
    let there = calls().await?;
    let replica = &servers.replicas()[0];
    replica.stop();
    let gone = calls().await;
    replica.cont();
    let gone = gone?;
    let row = |title: &str, [gone_ms, there_ms]: [&Vec<f64>; 2]| {
        let shares = |times: &Vec<f64>| [0.5, 1.0].map(|share| percentile(times.iter().copied(), share));
        let ([median, most], [median_there, most_there]) = (shares(gone_ms), shares(there_ms));
        vec![
            format!("ms of {title} beside acquires that a stopped replica keeps waiting: median, most (the control)"),
            format!("{median:.1}, {most:.1} ({:.1})", millis(gone.late)),
            format!("{median_there:.1}, {most_there:.1} ({:.1})", millis(there.late)),
            format!("{:+.1}, {:+.1}", median - median_there, most - most_there),
            "at most 50 later".to_owned(),
        ]
    };
    Ok(vec![
        row("`holder()`", [&gone.holder, &there.holder]),
        row("`try_acquire()` of a busy lock", [&gone.busy, &there.busy]),
    ])
}

/// Each lock is tried once, on the connection of the calls beside it, because an acquire that waits uses another one.
fn acquires(leases: &Client) -> JoinSet<Result<()>> {
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let lock = leases.lock(format!("job-{task}"));
        running.spawn(async move {
            loop {
                if let Ok(Some(lease)) = lock.try_acquire().await {
                    confirmed(&lease.release().await?)?;
                }
            }
        });
    }
    running
}

/// Figures per second: all commands at the primary except the replica's own, scripts, and `WAIT`s.
#[derive(Clone, Copy)]
struct Commands {
    all: f64,
    scripts: f64,
    waits: f64,
}

fn renewals(runtime: &Runtime, servers: &Replicated) -> Result<Vec<String>> {
    let none = runtime.block_on(held(servers, 0))?;
    let ours = runtime.block_on(held(servers, 1))?;
    let shown = |Commands { all, scripts, waits }| format!("{all:.1}: {scripts:.1} scripts, {waits:.1} `WAIT`s");
    Ok(vec![
        "commands a second of 1,000 held leases of 3 s, beside no replicas wanted".to_owned(),
        shown(ours),
        shown(none),
        format!("{:.2} `WAIT`s for each batch of renewals", ours.waits / ours.scripts),
        "at most 1".to_owned(),
    ])
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn held(servers: &Replicated, replicas: u8) -> Result<Commands> {
    let leases = leases_that_replicas_have(servers.primary().url(), TTL, replicas).await?;
    let mut held = Vec::with_capacity(HELD);
    for job in 0..HELD {
        held.push(leases.lock(format!("held-{job}")).acquire().await?);
    }
    let client = client_at(servers.primary().port()).await?;
    sleep(TTL).await;
    let count = async || {
        let of = async |command| stats::calls_of(&client, command).await;
        let all = stats::calls(&client).await? - of("replconf").await?;
        Ok::<_, crate::Error>([all, of("evalsha").await?, of("wait").await?])
    };
    let (before, began) = (count().await?, Instant::now());
    sleep(WINDOW).await;
    let (after, seconds) = (count().await?, began.elapsed().as_secs_f64());
    if !held.iter().all(Lease::is_held) {
        return Err("a held lease was lost".into());
    }
    drop(held);
    leases.close().await;
    let [all, scripts, waits] = [0, 1, 2].map(|at| (after[at] - before[at]) as f64 / seconds);
    Ok(Commands { all, scripts, waits })
}
