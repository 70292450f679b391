//! The cost of waiting, and how fast it ends.

use std::time::{Duration, Instant};

use fred::interfaces::KeysInterface as _;
use leasehold::{Client, Lease, Owner};
use tokio::{
    runtime::Builder,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Result, Server,
    contestant::{confirmed, leases, leases_at},
    hand_off::micros,
    machine,
    page::Section,
    peer::{self, monotonic},
    percentile,
    server::client_at,
    stats, usage,
};

/// The limit of a wait for something that does not happen.
const SOON: Duration = Duration::from_secs(20);

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("waiting");
    let mut rows = Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut rows = one_release("notified", false).await?;
        rows.extend(one_release("fair", true).await?);
        rows.push(losses().await?);
        Ok::<_, crate::Error>(rows)
    })?;
    rows.extend(names()?);
    let titles = ["what", "median", "99 %", "most"];
    section.table(
        "One release among many, losses, many names",
        "server and clients on the same 2 cores",
        &titles,
        &rows,
    );
    section.write()
}

fn line(what: &str, values: &[f64], unit: &str) -> Vec<String> {
    let cells = [0.5, 0.99, 1.0].map(|share| format!("{:.1}{unit}", percentile(values.iter().copied(), share)));
    [what.to_owned()].into_iter().chain(cells).collect()
}

/// Waits until a figure of the server is at least `least`.
pub async fn until<F: Future<Output = Result<u64>>>(least: u64, mut number: impl FnMut() -> F) -> Result<()> {
    let reached = async {
        while number().await? < least {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    timeout(SOON, reached).await.map_err(|_| format!("it has not come to {least}"))?
}

/// A thousand waiters in ten programs, one of which gets the lock.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn one_release(title: &str, fair: bool) -> Result<Vec<Vec<String>>> {
    const PROGRAMS: usize = 10;
    const WAITERS: usize = 100;
    const ROUNDS: usize = 15;
    /// Covers the holder's first renewal, after which nothing happens for long.
    const QUIET: Duration = Duration::from_millis(400);

    let server = Server::start()?;
    let client = server.client().await?;
    let (won, mut winners) = unbounded_channel();
    let mut held = leases(&server).await?.lock("job").acquire().await?;
    let mut programs = Vec::new();
    let mut waiting = JoinSet::new();
    for program in 0..PROGRAMS {
        let leases = leases_at(server.url(), crate::TTL, fair).await?;
        for _ in 0..WAITERS {
            wait(&leases, program, &won, &mut waiting);
        }
        programs.push(leases);
    }
    let (mut attempts, mut all, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        sleep(QUIET).await;
        if fair {
            until((PROGRAMS * WAITERS) as u64, || async { Ok(programs[0].lock("job").waiters().await?.len() as u64) })
                .await?;
        } else {
            // The server tracks the lock and its fence, in each program.
            until(2 * PROGRAMS as u64 - 1, || stats::tracked(&client)).await?;
        }
        let before = stats::scripts(&client).await?;
        let released = Instant::now();
        confirmed(&held.release().await?)?;
        let (program, lease, at) = timeout(SOON, winners.recv()).await?.ok_or("nobody waits")?;
        let by_then = stats::scripts(&client).await?;
        sleep(Duration::from_millis(100)).await;
        let in_the_end = stats::scripts(&client).await?;
        // The release is one of these scripts.
        attempts.push((by_then - before - 1) as f64);
        all.push((in_the_end - before - 1) as f64);
        times.push(at.duration_since(released).as_secs_f64() * 1e3);
        held = lease;
        wait(&programs[program], program, &won, &mut waiting);
    }
    Ok(vec![
        line(&format!("1,000 waiters in 10 programs, {title}: attempts until there is a new holder"), &attempts, ""),
        line(&format!("{title}: attempts in all"), &all, ""),
        line(&format!("{title}: from the release to the new holder"), &times, " ms"),
    ])
}

/// Starts one more waiter, which reports when it has the lock.
fn wait(
    leases: &Client,
    program: usize,
    won: &UnboundedSender<(usize, Lease, Instant)>,
    tasks: &mut JoinSet<Result<()>>,
) {
    let (acquire, won) = (leases.lock("job").owner(Owner::anonymous()).acquire(), won.clone());
    tasks.spawn(async move {
        let lease = acquire.await?;
        Ok(won.send((program, lease, Instant::now()))?)
    });
}

/// The time from the deletion of a key until its holder knows.
async fn losses() -> Result<Vec<String>> {
    const LEASES: usize = 600;
    let server = Server::start()?;
    let (client, leases) = (server.client().await?, leases(&server).await?);
    let mut held = Vec::with_capacity(LEASES);
    for job in 0..LEASES {
        held.push(leases.lock(format!("jobs:{job}")).acquire().await?);
    }
    until(LEASES as u64, || stats::tracked(&client)).await?;
    let mut times = Vec::with_capacity(LEASES);
    for lease in held {
        let name = lease.name().to_owned();
        let noticed = tokio::spawn(async move {
            lease.lost().await;
            monotonic()
        });
        sleep(Duration::from_millis(2)).await;
        let deleted = monotonic();
        client.del::<(), _>(name).await?;
        times.push(micros(noticed.await? - deleted) / 1e3);
    }
    Ok(line("600 leases: from the deletion of the key to `lost()`", &times, " ms"))
}

/// Makes another process wait for many names, and measures it.
fn names() -> Result<Vec<Vec<String>>> {
    let server = Server::start()?;
    let rows = peer::output_of(&["names", &server.port().to_string()])?;
    let cells =
        rows.lines().map(|row| row.split('|').map(str::to_owned).chain([String::new(), String::new()]).collect());
    Ok(cells.collect())
}

pub fn serve_names(port: u16) -> Result<()> {
    Builder::new_multi_thread().enable_all().build()?.block_on(many_names(port))
}

async fn many_names(port: u16) -> Result<()> {
    const NAMES: u32 = 10_000;
    let client = client_at(port).await?;
    for name in 0..NAMES {
        client
            .set::<(), _, _>(format!("job:{name}"), "somebody", Some(fred::types::Expiration::PX(600_000)), None, false)
            .await?;
    }
    let before = stats::connections(&client).await?;
    let leases = Client::connect(format!("redis://127.0.0.1:{port}")).await?;
    // This happens once and not for each waiter: connections, scripts, the runtime's own.
    let first = tokio::spawn(leases.lock("job:0").acquire());
    until(2, || stats::tracked(&client)).await?;
    first.abort();
    let (memory, started) = (usage::memory()?, Instant::now());
    let mut waiting = JoinSet::new();
    for name in 0..NAMES {
        waiting.spawn(leases.lock(format!("job:{name}")).acquire());
    }
    until(2 * u64::from(NAMES), || stats::tracked(&client)).await?;
    let settled = started.elapsed();
    sleep(Duration::from_millis(500)).await;
    let each = (usage::memory()? - memory) / f64::from(NAMES);
    let connections = stats::connections(&client).await? - before;
    println!("10,000 names, one process: until all are tracked|{settled:.1?}");
    println!("10,000 names: connections of the process|{connections}");
    println!("10,000 names: memory of each waiter and its task|{each:.0} bytes");
    let freed = Instant::now();
    stats::flush(&client).await?;
    while let Some(lease) = waiting.join_next().await {
        lease??.check()?;
    }
    println!("10,000 names: until all have their lock after a flush|{:.1?}", freed.elapsed());
    Ok(())
}
