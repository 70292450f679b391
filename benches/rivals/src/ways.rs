//! Other ways to hold a lock, each compared with its parts: adoptions, observers, several locks at once, blocking
//! calls.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Leaders, block_on};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{Result, Server, TTL, machine, median, page::Section, percentile, stats};

/// The rounds, and the cycles in each, where contestants take turns.
const ROUNDS: u32 = 20;
const CYCLES: u32 = 200;
/// How often an observed lock changes hands.
const TERMS: u32 = 60;
/// The leader of a lock whose observers' requests are counted has this TTL, so it renews once in a third of it.
const OBSERVED_TTL: Duration = Duration::from_secs(3);
const COUNTED: Duration = Duration::from_secs(15);
/// How long two programs contend for two locks.
const CONTEND: Duration = Duration::from_millis(1_500);
/// Not a measure: anything longer is a hang.
const HANGS: Duration = Duration::from_secs(20);

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("ways");
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let place = "server and client on the same 2 cores";
    let server = Server::start()?;

    let (acquires, adoptions) = runtime.block_on(adopt(&server))?;
    let blocked = block(&server)?;
    let row = |what: &str, times: &[f64], unit: f64| {
        let shares = [0.5, 0.99].map(|share| percentile(times.iter().copied(), share));
        let ratio = format!("{:.2}", shares[0] / unit);
        [what.to_owned()].into_iter().chain(shares.map(|micros| format!("{micros:.0}"))).chain([ratio]).collect()
    };
    let (acquire, cycle) = (median(acquires.iter().copied()), median(blocked.0.iter().copied()));
    let rows: Vec<Vec<String>> = vec![
        row("an acquire", &acquires, acquire),
        row("an adoption", &adoptions, acquire),
        row("a cycle on a current-thread runtime", &blocked.0, cycle),
        row("a cycle by `leasehold::block_on`", &blocked.1, cycle),
    ];
    section.table(
        "Adoptions, and calls that a thread waits for",
        place,
        &["microseconds", "median", "99 %", "to the one"],
        &rows,
    );

    let mut rows = Vec::new();
    for observers in [1, 1_000] {
        let (times, commands) = runtime.block_on(observe(&server, observers))?;
        let shares = [0.5, 0.99].map(|share| format!("{:.2}", percentile(times.iter().copied(), share)));
        let cells = [observers.to_string()].into_iter().chain(shares).chain([format!("{commands:.2}")]);
        rows.push(cells.collect());
    }
    let titles = ["observers in one process", "told of the next leader, ms, median", "99 %", "looks a renewal"];
    section.table("Observers, until the last of them is told", place, &titles, &rows);

    let mut rows = Vec::new();
    for names in [2, 100, 1_000] {
        let [acquire, release] = runtime.block_on(several(&server, names))?;
        rows.push(vec![names.to_string(), format!("{acquire:.2}"), format!("{release:.2}")]);
    }
    let titles = ["free names", "acquired after, ms, median", "released after, ms"];
    section.table("Several at once", "server and client on the same 2 cores", &titles, &rows);
    let ratio = runtime.block_on(contend(&server))?;
    section.say(&format!(
        "Two programs that want the same two locks in opposite orders, by `multi_lock`, do {ratio:.2} times the cycles of two \
         that take them by hand in one order (the median of seven pairs of runs)."
    ));
    section.write()
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// The times of acquires and of adoptions, in turns.
async fn adopt(server: &Server) -> Result<(Vec<f64>, Vec<f64>)> {
    let leases = Client::builder().url(server.url()).ttl(TTL).build().await?;
    let measuring = tokio::spawn(async move {
        let (mut acquires, mut adoptions) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            for turn in 0..CYCLES {
                let lock = leases.lock(format!("ways:{turn}"));
                let started = Instant::now();
                let lease = lock.acquire().await?;
                let took = micros(started);
                let ticket = lease.into_ticket()?;
                let started = Instant::now();
                let heir = lock.adopt(ticket).await?;
                let adopted = micros(started);
                heir.release().await?;
                if round > 0 {
                    acquires.push(took);
                    adoptions.push(adopted);
                }
            }
        }
        Ok::<_, leasehold::Error>((acquires, adoptions))
    });
    Ok(measuring.await??)
}

/// The times of a cycle on a runtime of one thread, and of a cycle that blocks, in turns.
fn block(server: &Server) -> Result<(Vec<f64>, Vec<f64>)> {
    let runtime: Runtime = Builder::new_current_thread().enable_all().build()?;
    let here = runtime.block_on(Client::connect(server.url()))?.lock("ways:async");
    let waiting = block_on(Client::connect(server.url()))??.lock("ways:block_on");
    let (mut polled, mut blocked) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let turn = runtime.block_on(async {
            let mut times = Vec::new();
            for _ in 0..CYCLES {
                let started = Instant::now();
                here.acquire().await?.release().await?;
                times.push(micros(started));
            }
            Ok::<_, leasehold::Error>(times)
        })?;
        let mut other = Vec::new();
        for _ in 0..CYCLES {
            let started = Instant::now();
            block_on(block_on(waiting.acquire())??.release())??;
            other.push(micros(started));
        }
        if round > 0 {
            polled.extend(turn);
            blocked.extend(other);
        }
    }
    Ok((polled, blocked))
}

/// The time from a leader's release until the last observer learns the next leader, each on its own connections. Also
/// how often the observers look for each renewal of a leader.
async fn observe(server: &Server, observers: u32) -> Result<(Vec<f64>, f64)> {
    let client = server.client().await?;
    let candidate = Client::builder().url(server.url()).ttl(OBSERVED_TTL).label("here").build().await?;
    let observing = Client::connect(server.url()).await?;
    let next = Client::builder().url(server.url()).ttl(OBSERVED_TTL).label("there").build().await?;
    let mut times = Vec::new();
    for turn in 0..TERMS {
        let name = format!("observed:{observers}:{turn}");
        let term = candidate.election(&name).campaign().await?;
        let (told, mut telling) = mpsc::unbounded_channel();
        let mut waiting = JoinSet::new();
        for _ in 0..observers {
            waiting.spawn(told_of_another(observing.election(&name).observe()?, told.clone()));
        }
        for _ in 0..observers {
            timeout(HANGS, telling.recv()).await?.ok_or("an observer has ended")?;
        }
        let campaigning = tokio::spawn(next.election(&name).campaign());
        sleep(Duration::from_millis(20)).await;
        let released = Instant::now();
        tokio::spawn(term.release()).await??;
        let mut last = released;
        while let Some(at) = timeout(HANGS, waiting.join_next()).await? {
            last = last.max(at?);
        }
        times.push((last - released).as_secs_f64() * 1e3);
        campaigning.await??.release().await?;
    }
    let _term = candidate.election("observed").campaign().await?;
    let leaders: Vec<Leaders> =
        (0..observers).map(|_| observing.election("observed").observe()).collect::<Result<_, _>>()?;
    sleep(OBSERVED_TTL).await;
    let looks = || stats::calls_of(&client, "getrange");
    let renewals = || stats::calls_of(&client, "pexpire");
    let (looked, renewed) = (looks().await?, renewals().await?);
    sleep(COUNTED).await;
    let (looked, renewed) = (looks().await? - looked, renewals().await? - renewed);
    drop(leaders);
    #[allow(clippy::cast_precision_loss)]
    Ok((times, looked as f64 / renewed.max(1) as f64))
}

/// Reports that it knows the leader, and ends at the next leader.
async fn told_of_another(mut leaders: Leaders, knows: mpsc::UnboundedSender<()>) -> Instant {
    while let Some(now) = leaders.next().await {
        match now.leader().and_then(leasehold::Holder::label) {
            Some("here") => drop(knows.send(())),
            Some(_) => break,
            None => {}
        }
    }
    Instant::now()
}

/// How long it takes to acquire this many free locks at once, and to release them; in milliseconds.
async fn several(server: &Server, names: u32) -> Result<[f64; 2]> {
    let leases = Client::builder().url(server.url()).ttl(TTL).build().await?;
    let all = leases.multi_lock((0..names).map(|name| leases.lock(format!("several:{name}"))));
    let measuring = tokio::spawn(async move {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let started = Instant::now();
            let held = all.acquire().await?;
            let took = micros(started);
            let started = Instant::now();
            held.release().await?;
            if round > 0 {
                acquires.push(took / 1e3);
                releases.push(micros(started) / 1e3);
            }
        }
        Ok::<_, leasehold::Error>([median(acquires), median(releases)])
    });
    Ok(measuring.await??)
}

/// The ratio of the cycles of two programs that take two locks in opposite orders, to those of two that take them in
/// one order by hand.
async fn contend(server: &Server) -> Result<f64> {
    let mut ratios = Vec::new();
    for pair in 0..7 {
        let by_hand = cycles(server, pair, true).await?;
        let together = cycles(server, pair, false).await?;
        ratios.push(f64::from(together) / f64::from(by_hand));
    }
    Ok(median(ratios))
}

async fn cycles(server: &Server, pair: u32, by_hand: bool) -> Result<u32> {
    let (count, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut programs = JoinSet::new();
    for program in 0..2 {
        let leases = Client::builder().url(server.url()).ttl(TTL).build().await?;
        let (count, is_over) = (count.clone(), is_over.clone());
        programs.spawn(async move {
            let names = ["a", "b"].map(|name| format!("contended:{pair}:{name}"));
            let [a, b] = names.map(|name| leases.lock(name));
            let locks = if program == 0 { [a.clone(), b.clone()] } else { [b.clone(), a.clone()] };
            let together = leases.multi_lock(locks);
            while !is_over.load(Ordering::Relaxed) {
                if by_hand {
                    let (first, second) = (a.acquire().await?, b.acquire().await?);
                    let (one, other) = tokio::join!(first.release(), second.release());
                    one.and(other)?;
                } else {
                    together.acquire().await?.release().await?;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    sleep(CONTEND).await;
    is_over.store(true, Ordering::Relaxed);
    while let Some(done) = timeout(HANGS, programs.join_next()).await? {
        done??;
    }
    Ok(count.load(Ordering::Relaxed))
}
