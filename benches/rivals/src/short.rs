//! Short leases: the cost of one, and their effect on the rest of a process that has a million of them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fred::{clients::Client as Fred, interfaces::KeysInterface as _};
use leasehold::{Client, Lease};
use tokio::{
    runtime::Builder,
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{Result, Server, contestant::leases, held::KEEPER, machine, page::Section, percentile, usage};

const CYCLES: u32 = 20_000;
/// How many leases there are in all.
const MANY: usize = 1_000_000;
/// How many acquires, and as many releases, are under way at once.
const LANES: usize = 256;
/// The most that each lane holds.
const OF_A_LANE: usize = 1_000;
/// The first is released before the keeper asks the server to report changes; for the second it asks once, without a
/// renewal.
const HELD_FOR: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// How long the process is watched without short leases.
const ALONE: Duration = Duration::from_secs(15);
/// The pause between two timed cycles, so that these add no load of their own.
const PAUSE: Duration = Duration::from_millis(1);
/// How many leases of each kind are lost on purpose at a time.
const PROBES: usize = 16;
/// The age of a lease when its key is deleted: by then the server reports its changes.
const OLD: Duration = Duration::from_millis(500);
/// The TTL of a lease that ends by its deadline, and the longest that it is held.
const ENDS: Duration = Duration::from_secs(1);

/// Both tables, for the section of held leases.
pub async fn tables(section: &mut Section) -> Result<()> {
    let cores = "server and client on the same 2 cores";
    section.table("Short leases", cores, &["20,000 short leases", "each"], &one_by_one().await?);
    section.table("A million short leases", cores, &TITLES, &beside_many().await?);
    Ok(())
}

/// Prints both tables alone, on the terminal.
pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    Builder::new_multi_thread().enable_all().build()?.block_on(tables(&mut Section::new("held")))
}

/// Measures leases one by one. A lease that ends before its first third never reaches the keeper.
async fn one_by_one() -> Result<Vec<Vec<String>>> {
    let server = Server::start()?;
    let leases = leases(&server).await?;
    let lock = leases.lock("short");
    let (process, keeper, started) = (usage::cpu()?, usage::cpu_of_threads(KEEPER)?, Instant::now());
    for _ in 0..CYCLES {
        crate::contestant::confirmed(&lock.acquire().await?.release().await?)?;
    }
    let wall = started.elapsed().as_secs_f64();
    let used = [wall, usage::cpu()? - process, usage::cpu_of_threads(KEEPER)? - keeper];
    leases.close().await;
    let names = ["an acquire and a release", "processor time of the process", "processor time of the keeper"];
    let micros = |seconds: f64| format!("{:.2} µs", seconds / f64::from(CYCLES) * 1e6);
    Ok(names.iter().zip(used).map(|(name, used)| vec![(*name).to_owned(), micros(used)]).collect())
}

const TITLES: [&str; 4] = ["median, 99 %, most", "no others", "a million of 0.1 s", "a million of 1 s"];

/// The names of the figures that [`watched`] returns.
const WATCHED: [&str; 9] = [
    "an acquire",
    "a release",
    "from the deletion of a key to `lost()`",
    "from a deadline to `lost()`",
    "short leases a second",
    "most of them at once",
    "of them lost, or released without an answer",
    "keeper, of a core",
    "server, of a core",
];

async fn beside_many() -> Result<Vec<Vec<String>>> {
    let mut columns = vec![watched(None).await?];
    for held_for in HELD_FOR {
        columns.push(watched(Some(held_for)).await?);
    }
    let row = |(at, name): (usize, &&str)| {
        [(*name).to_owned()].into_iter().chain(columns.iter().filter_map(|column| column.get(at).cloned())).collect()
    };
    Ok(WATCHED.iter().enumerate().map(row).collect())
}

/// Runs a million leases, each held for this long, and measures other work meanwhile; without a time, it only measures.
async fn watched(held_for: Option<Duration>) -> Result<Vec<String>> {
    let server = Server::start()?;
    let (client, leases) = (server.client().await?, leases(&server).await?);
    // Costs that occur only once are not measured: connections, scripts, the first session of notifications.
    lost_by_deletion(&leases, &client, "first").await?;
    let ends = Arc::new(AtomicBool::new(false));
    let (keeper, redis, started) = (usage::cpu_of_threads(KEEPER)?, server.cpu()?, Instant::now());
    let cycles = tokio::spawn(cycles(leases.clone(), ends.clone()));
    let deleted = each_until(&ends, {
        let (leases, client) = (leases.clone(), client.clone());
        move |name| {
            let (leases, client) = (leases.clone(), client.clone());
            async move { lost_by_deletion(&leases, &client, &name).await }
        }
    });
    let ended = each_until(&ends, {
        let leases = leases.clone();
        move |name| {
            let leases = leases.clone();
            async move { lost_by_deadline(&leases, &name).await }
        }
    });
    let churned = if let Some(held_for) = held_for {
        Some(churn(&leases, held_for).await?)
    } else {
        sleep(ALONE).await;
        None
    };
    let seconds = started.elapsed().as_secs_f64();
    let share = |used: f64| format!("{:.0} %", used / seconds * 100.0);
    let shares = [share(usage::cpu_of_threads(KEEPER)? - keeper), share(server.cpu()? - redis)];
    ends.store(true, Ordering::Relaxed);
    let (acquires, releases): (Vec<f64>, Vec<f64>) = cycles.await??.into_iter().unzip();
    let times = [acquires, releases, all(deleted).await?, all(ended).await?];
    let short = churned.map_or([const { String::new() }; 3], |churned| churned.cells(seconds));
    leases.close().await;
    Ok(times.iter().map(|times| spread(times)).chain(short).chain(shares).collect())
}

/// The spread of times in seconds.
fn spread(times: &[f64]) -> String {
    let millis = [0.5, 0.99, 1.0].map(|share| format!("{:.2}", percentile(times.iter().copied(), share) * 1e3));
    format!("{} ms", millis.join(", "))
}

/// The seconds of an acquire and of its release, over and over.
async fn cycles(leases: Client, ends: Arc<AtomicBool>) -> Result<Vec<(f64, f64)>> {
    let (lock, mut times) = (leases.lock("beside"), Vec::new());
    while !ends.load(Ordering::Relaxed) {
        let started = Instant::now();
        let lease = lock.acquire().await?;
        let acquired = Instant::now();
        lease.release().await?;
        times.push(((acquired - started).as_secs_f64(), acquired.elapsed().as_secs_f64()));
        sleep(PAUSE).await;
    }
    Ok(times)
}

/// Runs a probe over and over, for [`PROBES`] names at a time.
fn each_until<F>(
    ends: &Arc<AtomicBool>,
    probe: impl Fn(String) -> F + Clone + Send + 'static,
) -> JoinSet<Result<Vec<f64>>>
where
    F: Future<Output = Result<f64>> + Send + 'static,
{
    let mut probes = JoinSet::new();
    for at in 0..PROBES {
        let (probe, ends) = (probe.clone(), ends.clone());
        probes.spawn(async move {
            // The probes are staggered.
            sleep(ENDS * u32::try_from(at)? / u32::try_from(PROBES)?).await;
            let mut times = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                times.push(probe(format!("probes:{at}")).await?);
            }
            Ok(times)
        });
    }
    probes
}

async fn all(mut probes: JoinSet<Result<Vec<f64>>>) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    while let Some(times) = probes.join_next().await {
        all.extend(times??);
    }
    Ok(all)
}

/// Seconds from the deletion of a lease's key until its holder knows.
async fn lost_by_deletion(leases: &Client, client: &Fred, name: &str) -> Result<f64> {
    let name = format!("deleted:{name}");
    let lease = leases.lock(&name).acquire().await?;
    sleep(OLD).await;
    let lost = lease.lost();
    let noticed = tokio::spawn(async move {
        lost.await;
        Instant::now()
    });
    let deleted = Instant::now();
    client.del::<(), _>(name).await?;
    Ok(noticed.await?.duration_since(deleted).as_secs_f64())
}

/// Seconds from the last deadline of a lease until its holder knows.
async fn lost_by_deadline(leases: &Client, name: &str) -> Result<f64> {
    let lease = leases.lock(format!("ends:{name}")).ttl(ENDS).max_hold(ENDS).acquire().await?;
    let lost = lease.lost();
    // By then a renewal has moved the deadline as far as `max_hold` lets it.
    sleep(ENDS * 4 / 5).await;
    let deadline = Instant::now() + lease.remaining();
    lost.await;
    Ok(Instant::now().saturating_duration_since(deadline).as_secs_f64())
}

/// The progress of the short leases.
#[derive(Debug, Default)]
struct Churn {
    begun: AtomicUsize,
    held: AtomicUsize,
    most: AtomicUsize,
    lost: AtomicUsize,
}

impl Churn {
    fn cells(&self, seconds: f64) -> [String; 3] {
        #[allow(clippy::cast_precision_loss, reason = "a million")]
        let rate = crate::table::thousands(MANY as f64 / seconds);
        [rate, self.most.load(Ordering::Relaxed).to_string(), self.lost.load(Ordering::Relaxed).to_string()]
    }
}

/// Begins [`MANY`] leases, each of which is released once it was held for this long.
async fn churn(leases: &Client, held_for: Duration) -> Result<Arc<Churn>> {
    let (churn, mut lanes) = (Arc::<Churn>::default(), JoinSet::new());
    for _ in 0..LANES {
        let (sender, receiver) = channel(OF_A_LANE);
        lanes.spawn(acquire(leases.clone(), churn.clone(), sender));
        lanes.spawn(release(churn.clone(), held_for, receiver));
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    Ok(churn)
}

async fn acquire(leases: Client, churn: Arc<Churn>, acquired: Sender<(Instant, Lease)>) -> Result<()> {
    loop {
        let job = churn.begun.fetch_add(1, Ordering::Relaxed);
        if job >= MANY {
            return Ok(());
        }
        let lease = leases.lock(format!("jobs:{job}")).acquire().await?;
        let held = churn.held.fetch_add(1, Ordering::Relaxed) + 1;
        churn.most.fetch_max(held, Ordering::Relaxed);
        acquired.send((Instant::now(), lease)).await?;
    }
}

async fn release(churn: Arc<Churn>, held_for: Duration, mut acquired: Receiver<(Instant, Lease)>) -> Result<()> {
    while let Some((at, lease)) = acquired.recv().await {
        sleep_until((at + held_for).into()).await;
        let was_ours = lease.release().await.is_ok_and(|released| released.is_confirmed());
        churn.lost.fetch_add(usize::from(!was_ours), Ordering::Relaxed);
        churn.held.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(())
}
