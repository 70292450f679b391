//! The cost of a primary's failure for its own locks, and for those of the other primaries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fred::types::config::ServerConfig;
use support::{Cluster, Lag, SERVICE, Sentinels, Server};
use tokio::{
    sync::watch,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

use super::{PLACE, PRIMARIES, each, millis};
use crate::{
    Contestant, Result, Spread, TTL,
    contestant::leases_at,
    page::Section,
    percentile, plain,
    server::{client_at, client_of},
};

/// The number of tasks for each primary.
const TASKS: usize = 16;
/// More names than are taken in one measurement: a lock that was not released in a failure stays until its TTL has
/// passed.
const NAMES: usize = 2_000;
/// How long the servers are healthy, and then how long they are not.
const WINDOW: Duration = Duration::from_secs(3);
/// The most that a contestant may take to find the new primary.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many failures are measured if each needs servers of its own.
const SETS: usize = 3;

/// A cycle: when it began, how long it took, and whether it was completed.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    began: Instant,
    took: Duration,
    is_done: bool,
}

/// Tasks that run cycles until they are stopped.
struct Load {
    running: JoinSet<Vec<Cycle>>,
    stop: watch::Sender<bool>,
}

impl Load {
    /// Starts `tasks` tasks, which share these names: each name is taken once before the first is taken again.
    fn start(contestant: &Contestant, tasks: usize, names: Vec<String>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (next, names) = (Arc::new(AtomicUsize::new(0)), Arc::new(names));
        let mut running = JoinSet::new();
        for _ in 0..tasks {
            let (contestant, stopped, next, names) = (contestant.clone(), stopped.clone(), next.clone(), names.clone());
            running.spawn(async move {
                let mut cycles = Vec::new();
                while !*stopped.borrow() {
                    let name = &names[next.fetch_add(1, Ordering::Relaxed) % names.len()];
                    let began = Instant::now();
                    let is_done = contestant.cycle(name).await.is_ok();
                    cycles.push(Cycle { began, took: began.elapsed(), is_done });
                    if !is_done {
                        sleep(Duration::from_millis(1)).await;
                    }
                }
                cycles
            });
        }
        Self { running, stop }
    }

    /// All cycles of the tasks, once the last has ended.
    async fn stop(mut self) -> Result<Vec<Cycle>> {
        self.stop.send_replace(true);
        let mut cycles = Vec::new();
        while let Some(of_one) = timeout(PATIENCE, self.running.join_next()).await? {
            cycles.extend(of_one?);
        }
        Ok(cycles)
    }
}

/// The cycles that began in this window of time.
fn within(cycles: &[Cycle], from: Instant, until: Instant) -> impl Iterator<Item = &Cycle> {
    cycles.iter().filter(move |cycle| (from..until).contains(&cycle.began))
}

/// One of three primaries stops answering, and no replica takes its place. Measures the effect on the others' locks.
pub async fn frozen(section: &mut Section) -> Result<()> {
    let rows = each(0, async |contestant, cluster| {
        let names = |primary| cluster.names_in(&cluster.slots_of(primary), "job", NAMES);
        let lost = Load::start(contestant, TASKS, names(0));
        let mut others = names(1);
        others.extend(names(2));
        let others = Load::start(contestant, TASKS * (PRIMARIES - 1), others);
        sleep(WINDOW / 3).await;

        let (began, lag) = (Instant::now(), Lag::start());
        sleep(WINDOW).await;
        let (at, late_before) = (Instant::now(), lag.worst());
        cluster.primaries()[0].stop();
        let lag = Lag::start();
        sleep(WINDOW).await;
        let (until, late) = (Instant::now(), lag.worst());
        cluster.primaries()[0].cont();
        drop(lost);
        let cycles = others.stop().await?;

        let shown = |from, until, late| {
            let times: Vec<f64> = within(&cycles, from, until).map(|cycle| millis(cycle.took)).collect();
            let shares = [0.5, 0.999, 1.0].map(|share| format!("{:.1}", percentile(times.iter().copied(), share)));
            format!("{} ({:.1})", shares.join(", "), millis(late))
        };
        let failed = within(&cycles, at, until).filter(|cycle| !cycle.is_done).count();
        Ok(vec![shown(began, at, late_before), shown(at, until, late), failed.to_string()])
    })
    .await?;
    let titles = [
        "ms: median, 99.9 %, most (the control)",
        "before",
        "while one of three primaries is frozen",
        "of these failed",
    ];
    section.table("The locks of healthy primaries", PLACE, &titles, &rows);
    section.say(&format!(
        "{TASKS} tasks on each primary; the cycles are those on the other two. The control sleeps, sends a request \
         through four threads and gets it back: the figure is its worst delay in the same three seconds."
    ));
    Ok(())
}

/// How a primary fails.
type Fault = fn(&Server);

/// Measures from the promotion of the replica until the first cycle there.
pub async fn promoted(section: &mut Section) -> Result<()> {
    let rows = each(1, async |contestant, cluster| back(contestant, cluster, Server::kill).await).await?;
    let frozen = each(1, async |contestant, cluster| back(contestant, cluster, Server::stop).await).await?;
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .zip(frozen)
        .map(|(row, frozen)| row.into_iter().chain(frozen.into_iter().skip(1)).collect())
        .collect();
    let titles = ["ms from the promotion to the first cycle there", "primary killed", "primary frozen"];
    section.table("A failover of a cluster", "six servers and the client on the same 2 cores", &titles, &rows);
    Ok(())
}

async fn back(contestant: &Contestant, cluster: &Cluster, fault: Fault) -> Result<Vec<String>> {
    // The names are read from a server that fails later.
    let names_of = |primary| cluster.names_in(&cluster.slots_of(primary), "job", NAMES);
    let names: Vec<Vec<String>> = (0..PRIMARIES).map(names_of).collect();
    let mut times = Vec::new();
    for (primary, names) in names.into_iter().enumerate() {
        let (first, replica) = (First::after(contestant, names), cluster.replica_of(primary));
        sleep(WINDOW / 10).await;
        fault(&cluster.primaries()[primary]);
        let mut wire = replica.wire();
        let promoted =
            moment_of(move || wire.cmd(&["ROLE"]).array().first().is_some_and(|role| role.text() == "master"));
        times.push(first.since(promoted.await?).await);
    }
    Ok(vec![shown(&times)])
}

/// The moment when a condition becomes true.
async fn moment_of(mut is_so: impl FnMut() -> bool + Send + 'static) -> Result<Instant> {
    let looking = spawn_blocking(move || {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if is_so() {
                return Ok(Instant::now());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err("nobody has taken the primary's place".into())
    });
    looking.await?
}

/// A task that runs cycles forever, and reports when it has completed one.
struct First {
    done: watch::Receiver<Option<Instant>>,
    _running: JoinSet<()>,
}

impl First {
    fn after(contestant: &Contestant, names: Vec<String>) -> Self {
        let (says, done) = watch::channel(None);
        let (contestant, mut running) = (contestant.clone(), JoinSet::new());
        running.spawn(async move {
            for name in names.iter().cycle() {
                if contestant.cycle(name).await.is_ok() {
                    says.send_replace(Some(Instant::now()));
                } else {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
        Self { done, _running: running }
    }

    /// How long after this moment the first cycle was completed; `None` if that took too long.
    async fn since(mut self, moment: Instant) -> Option<Duration> {
        let is_after = |done: &Option<Instant>| done.is_some_and(|done| done > moment);
        let done = timeout(PATIENCE, self.done.wait_for(is_after)).await.ok()?.ok()?;
        done.map(|done| done - moment)
    }
}

/// `12 (10..15)`, or that it took too long.
fn shown(times: &[Option<Duration>]) -> String {
    let in_time: Vec<f64> = times.iter().flatten().copied().map(millis).collect();
    let (late, limit) = (times.len() - in_time.len(), PATIENCE.as_secs());
    let spread = Spread::of(in_time).show(|time| format!("{time:.0}"));
    match late {
        0 => spread,
        late if late == times.len() => format!("none within {limit} s"),
        late => format!("{spread}; {late} not within {limit} s"),
    }
}

/// A primary hands over to its replica by order. Measures the slowest cycle.
pub async fn planned(section: &mut Section) -> Result<()> {
    let rows = each(1, async |contestant, cluster| {
        let (mut slowest, mut failed) = (Vec::new(), 0);
        for primary in 0..PRIMARIES {
            let names = cluster.names_in(&cluster.slots_of(primary), "job", NAMES);
            let load = Load::start(contestant, TASKS, names);
            sleep(WINDOW / 3).await;
            let replica = cluster.replica_of(primary);
            let (at, mut wire) = (Instant::now(), replica.wire());
            wire.must(&["CLUSTER", "FAILOVER"]);
            let is_primary = move || wire.cmd(&["ROLE"]).array().first().is_some_and(|role| role.text() == "master");
            moment_of(is_primary).await?;
            sleep(WINDOW / 3).await;
            let cycles = load.stop().await?;
            // The cycles under way count too.
            let under_way = || cycles.iter().filter(|cycle| cycle.began + cycle.took > at);
            slowest.push(under_way().map(|cycle| millis(cycle.took)).fold(0.0, f64::max));
            failed += under_way().filter(|cycle| !cycle.is_done).count();
        }
        Ok(vec![Spread::of(slowest).show(|time| format!("{time:.0}")), failed.to_string()])
    })
    .await?;
    let titles = ["16 tasks on that primary", "slowest cycle, ms", "cycles that failed, of three failovers"];
    section.table("A planned failover of a cluster", "six servers and the client on the same 2 cores", &titles, &rows);
    Ok(())
}

/// Measures from the moment at which the first Sentinel names another primary until the first cycle there.
pub async fn named(section: &mut Section) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..SETS {
        for (at, times) in times.iter_mut().enumerate() {
            let sentinels = Arc::new(Sentinels::start());
            let contestant = match at {
                0 => Contestant::Leasehold(leases_at(sentinels.url(), TTL, false).await?),
                _ => plain_by_sentinels(&sentinels).await?,
            };
            let names = (0..NAMES).map(|name| format!("job-{name}")).collect();
            let first = First::after(&contestant, names);
            sleep(WINDOW / 10).await;
            sentinels.primary().kill();
            let (old, asked) = (sentinels.primary().port(), sentinels.clone());
            let others = move || (0..3).any(|at| asked.named_by(at).is_some_and(|named| named.port() != old));
            times.push(first.since(moment_of(others).await?).await);
        }
    }
    let names = ["leasehold", "plain fred"];
    let rows: Vec<_> = names.iter().zip(&times).map(|(name, times)| vec![(*name).to_owned(), shown(times)]).collect();
    let titles = ["ms", "from a Sentinel's word to the first cycle at the new primary"];
    let place = "three servers, three Sentinels and the client on the same 2 cores";
    section.table("A failover by Sentinels, primary killed", place, &titles, &rows);
    Ok(())
}

async fn plain_by_sentinels(sentinels: &Sentinels) -> Result<Contestant> {
    let mut hash = String::new();
    for server in sentinels.servers() {
        hash = plain::load(&client_at(server.port()).await?).await?;
    }
    let hosts = sentinels.sentinels().iter().map(|sentinel| ("127.0.0.1", sentinel.port())).collect();
    Ok(Contestant::Plain(client_of(ServerConfig::new_sentinel(hosts, SERVICE)).await?, hash))
}
