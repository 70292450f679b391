//! Cycles per second of contestants side by side: every round gives each of them a short turn, in changing order, so
//! that whatever else the machine does meets all of them. Ratios are taken within a round.

use std::time::{Duration, Instant};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{
    Boxed, Contestant, Result, median,
    table::{head, row, thousands},
};

const ROUNDS: usize = 9;
const TURN: Duration = Duration::from_millis(300);

/// Some tasks on one runtime, each with a lock of its own.
#[derive(Debug)]
pub struct Load {
    title: &'static str,
    runtime: Runtime,
    contestants: Vec<Contestant>,
    tasks: usize,
}

impl Load {
    /// The contestants are connected on the load's own runtime; the last of them is what the others are compared with.
    ///
    /// # Errors
    ///
    /// A server cannot be reached.
    pub fn new(
        title: &'static str,
        mut runtime: Builder,
        tasks: usize,
        contestants: Boxed<'_, Vec<Contestant>>,
    ) -> Result<Self> {
        let runtime = runtime.enable_all().build()?;
        let contestants = runtime.block_on(contestants)?;
        Ok(Self { title, runtime, contestants, tasks })
    }
}

/// Prints a table of the median rates, with the median ratios in brackets. All loads have the same contestants.
///
/// # Errors
///
/// A task has panicked.
pub fn table(title: &str, loads: &[Load]) -> Result<()> {
    let titles: Vec<&str> = ["cycles per second"].into_iter().chain(loads.iter().map(|load| load.title)).collect();
    println!("\n### {title}\n\n{}", head(&titles));

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
