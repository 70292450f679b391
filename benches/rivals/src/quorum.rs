//! A lock on five servers of this machine, compared with rslock's Redlock, and with the minimum of every quorum: two
//! rounds to the third fastest of them.

use std::{
    error::Error,
    time::{Duration, Instant},
};

use fred::clients::Client as Fred;
use leasehold::{Client, NodeState};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Contestant, Result, Server,
    contestant::{confirmed, leases_over},
    machine, median,
    page::Section,
    percentile,
    rates::{Load, beside},
    stats, usage,
};

const PLACE: &str = "five servers and the client on the same 2 cores";
const NODES: usize = 5;
const ROUNDS: usize = 9;
/// Cycles of one contestant in one round.
const CYCLES: usize = 200;
const COUNTED: u32 = 500;
/// A cycle is one request to each of five nodes for the acquire, and one for the release.
const PLAIN_REQUESTS: f64 = 10.0;
/// The longest that a contestant may take while a silent server keeps it waiting.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("quorum");
    let servers: Vec<Server> = (0..NODES).map(|_| Server::start()).collect::<Result<_>>()?;
    rates(&mut section, &servers)?;
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        lone(&mut section, &servers).await?;
        rounds(&mut section, &servers).await?;
        silent(&mut section, &servers).await
    })?;
    section.write()
}

fn rates(section: &mut Section, servers: &[Server]) -> Result<()> {
    let ids: Vec<u32> = servers.iter().map(Server::id).collect();
    let loads = [1, 16, 256]
        .map(|tasks| Load::new(Builder::new_multi_thread(), tasks, Contestant::quorum(servers))?.measure(&ids));
    let loads: Vec<_> = loads.into_iter().collect::<Result<_>>()?;
    let pings = loads.first().map_or(0, |all| all.len() - 1);
    let titles = ["cycles per second: ratio to the last", "1 task", "16 tasks", "256 tasks"];
    section.table("Acquire and release over five servers", PLACE, &titles, &beside(pings, &loads));
    Ok(())
}

/// Microseconds of some acquires, releases, and of both together.
#[derive(Default, Clone)]
struct Times {
    acquires: Vec<f64>,
    releases: Vec<f64>,
    both: Vec<f64>,
}

impl Times {
    /// The times of a lone caller, which is a task, as in a program.
    async fn of(contestant: &Contestant, cycles: usize) -> Result<Self> {
        let contestant = contestant.clone();
        let mut caller = JoinSet::new();
        caller.spawn(async move {
            let mut times = Self::default();
            for _ in 0..cycles {
                let started = Instant::now();
                let guard = contestant.acquire("lone").await?;
                let acquired = Instant::now();
                contestant.release(guard).await?;
                let both = started.elapsed();
                let acquire = acquired.saturating_duration_since(started);
                times.acquires.push(micros(acquire));
                times.releases.push(micros(both.saturating_sub(acquire)));
                times.both.push(micros(both));
            }
            Ok(times)
        });
        caller.join_next().await.ok_or("nobody calls")??
    }

    fn add(&mut self, other: Self) {
        self.acquires.extend(other.acquires);
        self.releases.extend(other.releases);
        self.both.extend(other.both);
    }
}

async fn lone(section: &mut Section, servers: &[Server]) -> Result<()> {
    let contestants = Contestant::quorum(servers).await?;
    let mut times = vec![Times::default(); contestants.len()];
    let mut medians = vec![Vec::with_capacity(ROUNDS); contestants.len()];
    // The first round warms up.
    for round in 0..=ROUNDS {
        for turn in 0..contestants.len() {
            let at = (round + turn) % contestants.len();
            let these = Times::of(&contestants[at], CYCLES).await?;
            if round > 0 {
                medians[at].push(median(these.both.iter().copied()));
                times[at].add(these);
            }
        }
    }
    let mut rows = Vec::new();
    let pings = &medians[contestants.len() - 1];
    for (at, contestant) in contestants.iter().enumerate() {
        let Times { acquires, releases, both } = &times[at];
        let cells = [(acquires, 0.5), (releases, 0.5), (both, 0.5), (both, 0.99)];
        let cells = cells.map(|(times, share)| format!("{:.0}", percentile(times.iter().copied(), share)));
        let ratio = median(medians[at].iter().zip(pings).map(|(ours, pings)| ours / pings));
        rows.push([contestant.name().to_owned()].into_iter().chain(cells).chain([format!("{ratio:.2}")]).collect());
    }
    let titles = ["microseconds", "acquire: median", "release", "both", "99 %", "to two rounds of `PING`"];
    section.table("The lone caller over five servers", PLACE, &titles, &rows);
    Ok(())
}

/// Measures how often an acquire takes one round instead of two.
///
/// Each request of the library to a server is one script, so its `EVALSHA`s are its requests. A cycle over five nodes
/// has ten: one to each node for the acquire, and one for the release. In one round all nodes draw the number that was
/// proposed. Otherwise the nodes that drew less are raised to the largest, by one more request to each. So a lone
/// caller's requests beyond ten are the second round. (No lease here is old enough to be renewed.) Releases of several
/// callers are batched, so above one caller the count says nothing about rounds.
async fn rounds(section: &mut Section, servers: &[Server]) -> Result<()> {
    let mut clients = Vec::with_capacity(servers.len());
    for server in servers {
        clients.push(server.client().await?);
    }
    let mut rows = Vec::new();
    let leases = leases_over(servers).await?;
    for _ in 0..CYCLES {
        confirmed(&leases.lock("counted").acquire().await?.release().await?)?;
    }
    let mut in_one_round = 0;
    let mut before = settled(&clients).await?;
    for _ in 0..COUNTED {
        confirmed(&leases.lock("counted").acquire().await?.release().await?)?;
        let after = settled(&clients).await?;
        if (after - before) <= PLAIN_REQUESTS {
            in_one_round += 1;
        }
        before = after;
    }
    let share = f64::from(in_one_round) / f64::from(COUNTED) * 100.0;
    rows.push(vec!["a lone caller's acquires that took one round".to_owned(), format!("{share:.1} %")]);
    let used = || {
        Ok::<_, Box<dyn Error + Send + Sync>>((usage::cpu()?, servers.iter().map(Server::cpu).sum::<Result<f64>>()?))
    };
    for tasks in [1, 16, 256] {
        let (before, cpu) = (settled(&clients).await?, used()?);
        let cycles = f64::from(busy(&leases, tasks).await?);
        let after = used()?;
        let requests = (settled(&clients).await? - before) / cycles;
        let mut say = |what: &str, value: String| rows.push(vec![format!("{what}, {tasks} at once"), value]);
        say(&format!("requests of a cycle ({PLAIN_REQUESTS} without a second round)"), format!("{requests:.2}"));
        let micros = |seconds: f64| format!("{:.0} µs", seconds / cycles * 1e6);
        say("processor time of a cycle: this process", micros(after.0 - cpu.0));
        say("processor time of a cycle: the five servers together", micros(after.1 - cpu.1));
    }
    leases.close().await;
    section.table("One round or two, and what it takes", PLACE, &["what", "value"], &rows);
    Ok(())
}

/// Runs cycles without a pause, each task with a lock of its own; returns how many there were.
async fn busy(leases: &Client, tasks: usize) -> Result<u32> {
    let mut running = JoinSet::new();
    let started = Instant::now();
    for task in 0..tasks {
        let lock = leases.lock(format!("counted:{task}"));
        running.spawn(async move {
            let mut cycles = 0_u32;
            while started.elapsed() < Duration::from_secs(1) {
                confirmed(&lock.acquire().await?.release().await?)?;
                cycles += 1;
            }
            Ok::<_, crate::Error>(cycles)
        });
    }
    let mut cycles = 0;
    while let Some(task) = running.join_next().await {
        cycles += task??;
    }
    Ok(cycles)
}

/// The `EVALSHA`s of all servers, once requests that are not awaited have arrived too.
async fn settled(clients: &[Fred]) -> Result<f64> {
    let mut last = u64::MAX;
    loop {
        sleep(Duration::from_millis(1)).await;
        let mut calls = 0;
        for client in clients {
            calls += stats::calls_of(client, "evalsha").await?;
        }
        if calls == last {
            return Ok(f64::from(u32::try_from(calls)?));
        }
        last = calls;
    }
}

/// One of the servers stops answering, but keeps its connections.
async fn silent(section: &mut Section, servers: &[Server]) -> Result<()> {
    let frozen = servers.first().ok_or("no servers")?;
    let mut contestants = Contestant::quorum(servers).await?;
    contestants.truncate(2);
    let [ours @ Contestant::Leasehold(leases), rslock] = &*contestants else { return Err("not the first two".into()) };
    let _warm_up = Times::of(ours, CYCLES).await?;
    let (mut before, mut after) = (Times::default(), Times::default());
    let mut changes = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let all = Times::of(ours, CYCLES).await?;
        frozen.freeze()?;
        let less_one = Times::of(ours, CYCLES).await;
        frozen.thaw()?;
        let less_one = less_one?;
        changes.push(median(less_one.both.iter().copied()) / median(all.both.iter().copied()));
        before.add(all);
        after.add(less_one);
        while leases.nodes().iter().any(|node| *node.state() != NodeState::Up) {
            sleep(Duration::from_millis(10)).await;
        }
    }
    let mut rows = Vec::new();
    let mut say = |what: &str, times: &Times, change: String| {
        let shares = [0.5, 0.99, 1.0].map(|share| format!("{:.0}", percentile(times.both.iter().copied(), share)));
        rows.push([what.to_owned()].into_iter().chain(shares).chain([change]).collect::<Vec<_>>());
    };
    say("leasehold, all five answer", &before, "1.00".into());
    say("leasehold, one of them stopped", &after, format!("{:.2}", median(changes)));

    let _warm_up = Times::of(rslock, CYCLES).await?;
    let all = Times::of(rslock, CYCLES).await?;
    frozen.freeze()?;
    let less_one = timeout(PATIENCE, Times::of(rslock, 3)).await;
    frozen.thaw()?;
    say("rslock, all five answer", &all, "1.00".into());
    match less_one {
        Ok(Ok(times)) => {
            let change = median(times.both.iter().copied()) / median(all.both.iter().copied());
            say("rslock, one of them stopped (three cycles)", &times, format!("{change:.2}"));
        }
        Ok(Err(error)) => say("rslock, one of them stopped", &Times::default(), error.to_string()),
        Err(_) => say("rslock, one of them stopped", &Times::default(), "three cycles take over 10 s".into()),
    }
    let titles = ["microseconds, acquire and release", "median", "99 %", "most", "median to before"];
    section.table("One of five servers stopped", PLACE, &titles, &rows);
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
