//! Cycles of contestants side by side: every round gives each of them a short turn, in changing order, so that other
//! load on the machine affects all of them. Ratios are taken within a round.

use std::time::{Duration, Instant};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::{Contestant, Result, Spread, median, table::thousands, usage};

const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(250);

/// Some tasks on one runtime, each with a lock of its own.
#[derive(Debug)]
pub struct Load {
    runtime: Runtime,
    contestants: Vec<Contestant>,
    tasks: usize,
}

/// One turn: cycles per second, and microseconds of processor time of a cycle.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub rate: f64,
    pub client: f64,
    pub server: f64,
}

/// The turns of one contestant, one for each round.
#[derive(Debug)]
pub struct Turns {
    pub contestant: Contestant,
    pub turns: Vec<Turn>,
}

impl Turns {
    pub fn rate(&self) -> Spread {
        Spread::of(self.turns.iter().map(|turn| turn.rate))
    }

    pub fn client(&self) -> Spread {
        Spread::of(self.turns.iter().map(|turn| turn.client))
    }

    pub fn server(&self) -> Spread {
        Spread::of(self.turns.iter().map(|turn| turn.server))
    }

    /// The processor time of a cycle, on both sides.
    pub fn both(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.client + turn.server))
    }

    /// The median, over the rounds, of the ratio of this contestant's rate to another's.
    pub fn ratio(&self, other: &Self) -> f64 {
        self.ratio_of(other, |turn| turn.rate)
    }

    /// Like [`ratio`](Self::ratio), for the server's processor time of a cycle.
    pub fn server_ratio(&self, other: &Self) -> f64 {
        self.ratio_of(other, |turn| turn.server)
    }

    fn ratio_of(&self, other: &Self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(self.turns.iter().zip(&other.turns).map(|(mine, other)| of(mine) / of(other)))
    }
}

impl Load {
    /// Connects the contestants on the load's own runtime.
    pub fn new(
        mut runtime: Builder,
        tasks: usize,
        contestants: impl Future<Output = Result<Vec<Contestant>>>,
    ) -> Result<Self> {
        let runtime = runtime.enable_all().build()?;
        let contestants = runtime.block_on(contestants)?;
        Ok(Self { runtime, contestants, tasks })
    }

    /// Measures all rounds, including the processor time of these servers' processes.
    pub fn measure(self, servers: &[u32]) -> Result<Vec<Turns>> {
        let count = self.contestants.len();
        let mut turns: Vec<Vec<Turn>> = vec![Vec::with_capacity(ROUNDS); count];
        // The first round warms up: connections, scripts, allocations.
        for round in 0..=ROUNDS {
            for turn in 0..count {
                let at = (round + turn) % count;
                let turn = self.turn(&self.contestants[at], servers, round)?;
                if round > 0 {
                    turns[at].push(turn);
                }
            }
        }
        let all = self.contestants.iter().cloned().zip(turns);
        Ok(all.map(|(contestant, turns)| Turns { contestant, turns }).collect())
    }

    fn turn(&self, contestant: &Contestant, servers: &[u32], round: usize) -> Result<Turn> {
        let used = || {
            Ok::<_, crate::Error>((usage::cpu()?, servers.iter().map(|id| usage::cpu_of(*id)).sum::<Result<f64>>()?))
        };
        let (before, started) = (used()?, Instant::now());
        let cycles = f64::from(self.runtime.block_on(cycles(contestant, self.tasks, round))?);
        let (seconds, after) = (started.elapsed().as_secs_f64(), used()?);
        let micros = |seconds: f64| seconds / cycles * 1e6;
        Ok(Turn { rate: cycles / seconds, client: micros(after.0 - before.0), server: micros(after.1 - before.1) })
    }
}

/// Rows of cycles per second, a column for each load, each with its ratio to that of the contestant `one`.
pub fn beside(one: usize, loads: &[Vec<Turns>]) -> Vec<Vec<String>> {
    let names = loads.first().into_iter().flatten().map(|turns| turns.contestant.name());
    let row = |(at, name): (usize, &str)| {
        let cell = |all: &Vec<Turns>| format!("{}: {:.2}", all[at].rate().show(thousands), all[at].ratio(&all[one]));
        [name.to_owned()].into_iter().chain(loads.iter().map(cell)).collect()
    };
    names.enumerate().map(row).collect()
}

/// Runs one turn. A task that meets an error reports it and stops for this turn; its lock may stay, so the next round
/// has other names.
async fn cycles(contestant: &Contestant, tasks: usize, round: usize) -> Result<u32> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let contestant = contestant.clone();
        running.spawn(async move {
            let name = format!("{}-{round}-{task}", contestant.name());
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
    Ok(cycles)
}
