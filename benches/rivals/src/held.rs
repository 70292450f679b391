//! One lease to a million, held by one process: their cost, and how late a renewal is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Lease, Lock};
use tokio::{runtime::Builder, sync::mpsc, task::JoinSet};

use crate::{
    Result, Server, Spread, TTL, chart::Bars, contestant::leases_at, machine, page::Section, peer, server::client_at,
    short, stats, usage,
};

/// Linux shows 15 characters of a thread's name.
pub const KEEPER: &str = "leasehold-keepe";
/// How many acquires run at once, because one after the other would take minutes.
const AT_ONCE: usize = 256;
/// How many are taken one after the other, so that no buffer grows beside them.
const FEW: usize = 10_000;
/// A third of the TTL, and a second: by then each lease has had its first renewal, and no checks of its start are left.
const SETTLED: Duration = Duration::from_secs(11);
/// Two whole renewals of each lease, which are a third of the TTL apart, and two seconds.
const WINDOW: Duration = Duration::from_secs(22);
/// The window for the most leases: more than a minute.
const LONGER: Duration = WINDOW.saturating_mul(3);
/// More leases than this are checked rarely, because checking all of them takes time.
const MANY: usize = 100_000;

/// The values of a holder's argument: what its process holds.
const LOCKS: &str = "locks";
const SHARES: &str = "shares";

pub const TITLES: [&str; 9] = [
    "leases of TTL 30 s",
    "keeper, of a core",
    "server, of a core",
    "renewals a second",
    "memory of each",
    "latest renewal",
    "lost",
    "taken in",
    "measured for",
];

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("held");
    let (mut rows, mut keepers) = (Vec::new(), Vec::new());
    for (leases, title) in [(1, "1"), (100, "100"), (10_000, "10,000"), (100_000, "100,000"), (1_000_000, "1,000,000")]
    {
        let server = Server::start()?;
        let (ports, ids) = (vec![server.port()], vec![server.id()]);
        let cells = measured(&Holder { url: server.url(), ports, ids, leases, shares: false })?;
        let keeper = cells.first().and_then(|cell| cell.split(' ').next()?.parse().ok()).unwrap_or_default();
        keepers.push((title.to_owned(), Spread::of([keeper])));
        rows.push([title.to_owned()].into_iter().chain(cells).collect());
    }
    section.table("Held leases", "server and client on the same 2 cores", &TITLES, &rows);
    let title = "The keeper's share of a core, in %, by the number of held leases";
    section.bars("held", &Bars::of_one(title, "% of a core", keepers))?;
    Builder::new_multi_thread().enable_all().build()?.block_on(short::tables(&mut section))?;
    section.write()
}

/// A process that holds leases, on these servers.
#[derive(Debug)]
pub struct Holder {
    pub url: String,
    pub ports: Vec<u16>,
    /// The process IDs of the servers.
    pub ids: Vec<u32>,
    pub leases: usize,
    /// Whether the leases are shares of one name, instead of a name each.
    pub shares: bool,
}

/// Measures the cost of a holder: the cells behind the first of [`TITLES`].
pub fn measured(holder: &Holder) -> Result<Vec<String>> {
    fn list<T: ToString>(values: &[T]) -> String {
        values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    }
    let Holder { url, ports, ids, leases, shares } = holder;
    let what = if *shares { SHARES } else { LOCKS };
    let line = peer::output_of(&["holder", url, &list(ports), &list(ids), &leases.to_string(), what])?;
    Ok(line.trim().split('|').map(str::to_owned).collect())
}

impl Holder {
    /// The holder that the arguments of its process describe.
    pub fn of(url: &str, ports: &str, ids: &str, leases: &str, what: &str) -> Result<Self> {
        let ports = ports.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let ids = ids.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { url: url.to_owned(), ports, ids, leases: leases.parse()?, shares: what == SHARES })
    }
}

/// Acts as a holder, in a process of its own, so that its memory is that of its leases.
pub fn serve(holder: Holder) -> Result<()> {
    let Holder { url, ports, ids, leases: count, shares } = holder;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let leases = runtime.block_on(leases_at(url, TTL, false))?;
    let clients = ports.iter().map(|port| runtime.block_on(client_at(*port))).collect::<Result<Vec<_>>>()?;
    runtime.block_on(async { leases.lock("first").acquire().await?.release().await })?;
    let mut held: Vec<Lease> = Vec::with_capacity(count);
    let mut deadlines = vec![0_u64; count];
    let (memory, started) = (usage::memory()?, Instant::now());
    let of_all = leases.rw_lock("jobs").read();
    let lock_of: LockOf = Arc::new(move |job| if shares { of_all.clone() } else { leases.lock(format!("jobs:{job}")) });
    runtime.block_on(acquire(&lock_of, count, &mut held))?;
    let taken = started.elapsed();
    #[allow(clippy::cast_precision_loss, reason = "a million at most")]
    let each = (usage::memory()? - memory) / count as f64;

    thread::sleep(SETTLED);
    look(&held, &mut deadlines, started);
    // A renewal calls this once for each of its leases.
    let renewal = if shares { "zscore" } else { "pexpire" };
    let renewals = |client| runtime.block_on(stats::calls_of(client, renewal));
    let renewed = || clients.iter().map(renewals).sum::<Result<u64>>();
    let servers = || ids.iter().map(|id| usage::cpu_of(*id)).sum::<Result<f64>>();
    let (keeper, redis) = (usage::cpu_of_threads(KEEPER)?, servers()?);
    let (before, watched) = (renewed()?, Instant::now());
    let mut latest = 0;
    while watched.elapsed() < if count > MANY { LONGER } else { WINDOW } {
        // This is often enough to see each renewal.
        thread::sleep(Duration::from_secs(if count > MANY { 4 } else { 1 }));
        latest = latest.max(look(&held, &mut deadlines, started));
    }
    let seconds = watched.elapsed().as_secs_f64();
    let share = |used: f64| format!("{:.2} %", used / seconds * 100.0);
    let lost = held.iter().filter(|lease| !lease.is_held()).count();
    let cells = [
        share(usage::cpu_of_threads(KEEPER)? - keeper),
        share(servers()? - redis),
        format!("{:.1}", f64::from(u32::try_from(renewed()? - before)?) / seconds),
        // A few leases take less than a page of memory.
        if count < FEW { String::new() } else { format!("{each:.0} bytes") },
        format!("{latest} ms"),
        lost.to_string(),
        format!("{:.1} s", taken.as_secs_f64()),
        format!("{seconds:.0} s"),
    ];
    println!("{}", cells.join("|"));
    // A million releases need not be awaited, because the server is about to end.
    std::process::exit(0)
}

type LockOf = Arc<dyn Fn(usize) -> Lock + Send + Sync>;

async fn acquire(lock_of: &LockOf, count: usize, held: &mut Vec<Lease>) -> Result<()> {
    let mut running = JoinSet::new();
    let names = Arc::new(AtomicUsize::new(0));
    let (sender, mut taken) = mpsc::channel(AT_ONCE);
    for _ in 0..if count > FEW { AT_ONCE } else { 1 } {
        let (lock_of, names, sender) = (lock_of.clone(), names.clone(), sender.clone());
        running.spawn(async move {
            loop {
                let job = names.fetch_add(1, Ordering::Relaxed);
                if job >= count {
                    return Ok::<_, crate::Error>(());
                }
                sender.send(lock_of(job).acquire().await?).await?;
            }
        });
    }
    drop(sender);
    while let Some(lease) = taken.recv().await {
        held.push(lease);
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// How many milliseconds later than a third of the TTL a renewal since the last check came.
///
/// A renewal moves the deadline by the time since the previous one.
#[allow(clippy::cast_possible_truncation, reason = "no process runs that long")]
fn look(held: &[Lease], deadlines: &mut [u64], started: Instant) -> u64 {
    let third = (TTL / 3).as_millis() as u64;
    let mut latest = 0;
    for (lease, deadline) in held.iter().zip(deadlines) {
        let remaining = lease.remaining();
        // Lost leases are counted separately.
        if remaining.is_zero() {
            continue;
        }
        let now = (started.elapsed() + remaining).as_millis() as u64;
        // The first check has no previous deadline.
        if *deadline > 0 && now > *deadline {
            latest = latest.max((now - *deadline).saturating_sub(third));
        }
        *deadline = (*deadline).max(now);
    }
    latest
}
