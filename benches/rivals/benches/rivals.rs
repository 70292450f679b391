//! The contestants side by side on one server.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold_bench::{
    Contestant, Result, Server, percentile,
    rates::{self, Load},
    table::{head, row},
};
use tokio::{runtime::Builder, task::JoinSet, time::sleep};

const HAND_OFFS: usize = 40;

fn main() -> Result<()> {
    let server = Server::start()?;
    cycles(&server)?;
    Builder::new_multi_thread().enable_all().build()?.block_on(hand_offs(&server))
}

fn cycles(server: &Server) -> Result<()> {
    let load = |title, runtime, tasks| Load::new(title, runtime, tasks, Contestant::all(server));
    rates::table(
        "Acquire and release",
        &[
            load("1 task, `current_thread`", Builder::new_current_thread(), 1)?,
            load("1 task", Builder::new_multi_thread(), 1)?,
            load("16 tasks", Builder::new_multi_thread(), 16)?,
            load("256 tasks", Builder::new_multi_thread(), 256)?,
            load("2,000 tasks", Builder::new_multi_thread(), 2_000)?,
        ],
    )
}

async fn hand_offs(server: &Server) -> Result<()> {
    let url = &*server.url();
    let local = Contestant::leasehold(url).await?;
    let pairs = [
        ("leasehold", Contestant::leasehold(url).await?, Contestant::leasehold(url).await?),
        ("leasehold, both in one process", local.clone(), local),
        ("rslock", Contestant::rslock(url), Contestant::rslock(url)),
        ("rlock", Contestant::rlock(url).await?, Contestant::rlock(url).await?),
    ];
    let mut short = vec![Vec::new(); pairs.len()];
    for turn in 0..HAND_OFFS {
        let held = Duration::from_millis(50 + 37 * turn as u64 % 100);
        for (at, (_, from, to)) in pairs.iter().enumerate() {
            short[at].push(hand_off(from.clone(), to.clone(), format!("short:{at}"), held).await?);
        }
    }
    println!("\n### From a release to the next holder\n");
    println!("{}", head(&["milliseconds", "held 0.1 s: median", "90 %", "held 3 s: median", "90 %"]));
    for (at, (name, from, to)) in pairs.iter().enumerate() {
        // A long wait needs no quiet machine but patience: all at once.
        let long = all((0..HAND_OFFS).map(|turn| {
            let (from, to) = (from.clone(), to.clone());
            async move {
                sleep(Duration::from_millis(25 * turn as u64)).await;
                hand_off(from, to, format!("long:{at}:{turn}"), Duration::from_secs(3)).await
            }
        }))
        .await?;
        let cells = [&short[at], &long].map(|times| [0.5, 0.9].map(|share| percentile(times.iter().copied(), share)));
        let cells = cells.into_iter().flatten().map(|time| format!("{time:.1}"));
        println!("{}", row([(*name).to_owned()].into_iter().chain(cells)));
    }
    Ok(())
}

/// Milliseconds from the start of the release to the moment when the waiter has the lock.
async fn hand_off(from: Contestant, to: Contestant, name: String, held: Duration) -> Result<f64> {
    let guard = from.acquire(&name).await?;
    let mut waiter = JoinSet::new();
    waiter.spawn(async move {
        let guard = to.acquire(&name).await?;
        let got = Instant::now();
        to.release(guard).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(got)
    });
    sleep(held).await;
    let released = Instant::now();
    from.release(guard).await?;
    let got = waiter.join_next().await.ok_or("nobody waits")???;
    Ok(got.saturating_duration_since(released).as_secs_f64() * 1e3)
}

async fn all<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = Result<T>> + Send + 'static>,
) -> Result<Vec<T>> {
    let mut running: JoinSet<Result<T>> = futures.collect();
    let mut values = Vec::new();
    while let Some(value) = running.join_next().await {
        values.push(value??);
    }
    Ok(values)
}
