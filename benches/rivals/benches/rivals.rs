//! The contestants side by side on one server: every round gives each of them a short turn, in changing order, so that
//! whatever else the machine does meets all of them. Ratios are taken within a round.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold_bench::{
    Contestant, Result, Server, median, percentile,
    table::{head, row, thousands},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time::sleep,
};

const ROUNDS: usize = 9;
const TURN: Duration = Duration::from_millis(300);
const HAND_OFFS: usize = 40;

fn main() -> Result<()> {
    let server = Server::start()?;
    cycles(&server)?;
    Builder::new_multi_thread().enable_all().build()?.block_on(hand_offs(&server))
}

/// Some tasks on one runtime, each with a lock of its own.
struct Load {
    title: &'static str,
    runtime: Runtime,
    contestants: Vec<Contestant>,
    tasks: usize,
}

fn cycles(server: &Server) -> Result<()> {
    let load = |title, mut builder: Builder, tasks| {
        let runtime = builder.enable_all().build()?;
        let contestants = runtime.block_on(Contestant::all(server))?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Load { title, runtime, contestants, tasks })
    };
    let loads = [
        load("1 task, `current_thread`", Builder::new_current_thread(), 1)?,
        load("1 task", Builder::new_multi_thread(), 1)?,
        load("16 tasks", Builder::new_multi_thread(), 16)?,
        load("256 tasks", Builder::new_multi_thread(), 256)?,
        load("2,000 tasks", Builder::new_multi_thread(), 2_000)?,
    ];
    let titles: Vec<&str> = ["cycles per second"].into_iter().chain(loads.iter().map(|load| load.title)).collect();
    println!("\n### Acquire and release\n\n{}", head(&titles));

    let measured: Vec<Vec<Vec<f64>>> = loads.iter().map(measure).collect::<Result<_>>()?;
    for (at, contestant) in loads[0].contestants.iter().enumerate() {
        let cells = measured.iter().map(|rates| {
            let baseline = &rates[rates.len() - 1];
            let ratios = rates[at].iter().zip(baseline).map(|(ours, plain)| ours / plain);
            format!("{} ({:.2})", thousands(median(rates[at].iter().copied())), median(ratios))
        });
        println!("{}", row([contestant.name().to_owned()].into_iter().chain(cells)));
    }
    Ok(())
}

/// The rates of each contestant, one for each round.
fn measure(load: &Load) -> Result<Vec<Vec<f64>>> {
    let count = load.contestants.len();
    let mut rates = vec![Vec::with_capacity(ROUNDS); count];
    // The first round warms up: connections, scripts, allocations.
    for round in 0..=ROUNDS {
        for turn in 0..count {
            let at = (round + turn) % count;
            let rate = load.runtime.block_on(turn_of(&load.contestants[at], load.tasks, round))?;
            if round > 0 {
                rates[at].push(rate);
            }
        }
    }
    Ok(rates)
}

/// A task that meets an error says so and stops for this turn; its lock may stay, so the next round has other names.
async fn turn_of(contestant: &Contestant, tasks: usize, round: usize) -> Result<f64> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let contestant = contestant.clone();
        running.spawn(async move {
            let name = format!("{}:{round}:{task}", contestant.name());
            let mut cycles = 0_u32;
            while started.elapsed() < TURN {
                if let Err(error) = contestant.cycle(&name).await {
                    return (cycles, Some(error.to_string()));
                }
                cycles += 1;
            }
            (cycles, None)
        });
    }
    let mut cycles = 0;
    let mut errors = Vec::new();
    while let Some(task) = running.join_next().await {
        let (done, error) = task?;
        cycles += done;
        errors.extend(error);
    }
    if let Some(first) = errors.first() {
        eprintln!("{}, {tasks} tasks, round {round}: {} errors, such as: {first}", contestant.name(), errors.len());
    }
    Ok(f64::from(cycles) / started.elapsed().as_secs_f64())
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
