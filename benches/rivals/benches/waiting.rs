//! What waiting costs, and how fast it ends.

use std::{
    env,
    time::{Duration, Instant},
};

use fred::{
    clients::Client,
    interfaces::{ClientLike as _, KeysInterface as _},
};
use leasehold::{Lease, Leases, Owner};
use leasehold_bench::{
    Contestant, Result, Server, client_at, leases, leases_at, median,
    peer::{self, Peer, monotonic},
    percentile, stats,
    table::{head, row},
    usage,
};
use tokio::{
    runtime::Builder,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::JoinSet,
    time::{sleep, timeout},
};

/// Ends a wait for something that does not happen.
const SOON: Duration = Duration::from_secs(20);
/// Set in the process that waits for many names.
const MANY: &str = "LEASEHOLD_BENCH_MANY";

fn main() -> Result<()> {
    if peer::serve()? {
        return Ok(());
    }
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    if let Ok(port) = env::var(MANY) {
        return runtime.block_on(many_names(port.parse()?));
    }
    runtime.block_on(async {
        hand_offs().await?;
        costs().await?;
        println!("\n### One release among many, losses, many names\n\n{}", head(&["what", "median", "99 %", "most"]));
        one_release("push", false).await?;
        one_release("fair", true).await?;
        losses().await
    })?;
    names()
}

fn say(what: &str, values: &[f64], unit: &str) {
    let cells = [0.5, 0.99, 1.0].map(|share| format!("{:.1}{unit}", percentile(values.iter().copied(), share)));
    println!("{}", row([what.to_owned()].into_iter().chain(cells)));
}

/// Waits until a number of the server's is as large as that.
async fn until<F: Future<Output = Result<u64>>>(least: u64, mut number: impl FnMut() -> F) -> Result<()> {
    let reached = async {
        while number().await? < least {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    };
    timeout(SOON, reached).await.map_err(|_| format!("it has not come to {least}"))?
}

/// Microseconds from the release in this process to the lock in another one.
async fn hand_offs() -> Result<()> {
    /// Before anything is counted: connections, scripts, allocations.
    const WARM_UP: u32 = 5;
    const ROUNDS: u32 = 90;
    /// Ours takes so many more turns, since they are short.
    const OURS: u32 = 3;
    /// The waiter is well settled by then.
    const HELD: Duration = Duration::from_millis(20);

    let server = Server::start()?;
    let (url, client) = (server.url(), server.client().await?);
    let here = Contestant::waiting(&url).await?;
    let mut peer = Peer::start(&url)?;
    let mut times = vec![Vec::new(); here.len()];
    let (mut at_once, mut after_silence) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        for (at, contestant) in here.iter().enumerate() {
            let ours = matches!(contestant, Contestant::Leasehold(_) | Contestant::Fair(_));
            for turn in 0..if ours { OURS } else { 1 } {
                // Those who look now and then do so at any moment of their pause of 0.1 s.
                let held = HELD + Duration::from_millis(if ours { 0 } else { u64::from(37 * round % 100) });
                let took = hand_off(contestant, at, &format!("job:{at}:{round}:{turn}"), held, &mut peer).await?;
                if round >= WARM_UP {
                    times[at].push(took);
                }
            }
        }
        sleep(HELD).await;
        let ping = || {
            let client = client.clone();
            async move {
                let started = monotonic();
                client.ping::<()>(None).await?;
                Ok::<_, fred::error::Error>(micros(monotonic() - started))
            }
        };
        after_silence.push(tokio::spawn(ping()).await??);
        for _ in 0..20 {
            at_once.push(tokio::spawn(ping()).await??);
        }
    }
    let trip = median(at_once.iter().copied());
    let silent = median(after_silence.iter().copied());
    println!("\n### From a release to the next holder, in two processes\n");
    println!("{}", head(&["microseconds", "median", "90 %", "99 %", "round trips", "after silence"]));
    let line = |name: &str, times: &[f64]| {
        let shares = [0.5, 0.9, 0.99].map(|share| percentile(times.iter().copied(), share));
        let trips = [trip, silent].map(|trip| format!("{:.1}", shares[0] / trip));
        let shares = shares.into_iter().map(|time| format!("{time:.0}"));
        println!("{}", row([name.to_owned()].into_iter().chain(shares).chain(trips)));
    };
    for (contestant, times) in here.iter().zip(&times) {
        line(contestant.name(), times);
    }
    line("a round trip (`PING`), one after the other", &at_once);
    line("a round trip after 20 ms of silence", &after_silence);
    Ok(())
}

async fn hand_off(contestant: &Contestant, at: usize, name: &str, held: Duration, peer: &mut Peer) -> Result<f64> {
    let guard = contestant.acquire(name).await?;
    peer.wait(at, name)?;
    sleep(held).await;
    let contestant = contestant.clone();
    let release = async move {
        let released = monotonic();
        contestant.release(guard).await.map(|()| released)
    };
    let released = tokio::spawn(release).await??;
    Ok(micros(peer.report()? - released))
}

#[allow(clippy::cast_precision_loss, reason = "a short span")]
fn micros(nanos: i128) -> f64 {
    nanos as f64 / 1e3
}

/// What those who wait cost the server while nothing happens but the holder's renewals.
async fn costs() -> Result<()> {
    println!("\n### What waiting costs the server, for one name\n");
    let titles = ["commands per second", "50 waiters", "1,000 waiters", "redis-server with 50", "with 1,000"];
    println!("{}", head(&titles));
    let (alone, share) = cost(None, 0).await?;
    let share = |more: f64| format!("{:.2} % of a core", (more - share).max(0.0) * 100.0);
    for at in 0..4 {
        let (few, few_cpu) = cost(Some(at), 50).await?;
        let (many, many_cpu) = cost(Some(at), 1_000).await?;
        let name = Contestant::waiting(&Server::start()?.url()).await?[at].name();
        let commands = [few, many].map(|commands| format!("{:.1}", commands - alone));
        println!("{}", row([name.to_owned()].into_iter().chain(commands).chain([few_cpu, many_cpu].map(share))));
    }
    println!("\nThe holder's own {alone:.1} commands per second are taken off, and its processor time.");
    Ok(())
}

/// Commands per second, those inside scripts included, and the server's share of a core.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn cost(contestant: Option<usize>, waiters: usize) -> Result<(f64, f64)> {
    /// So that everybody has come, and is told.
    const SETTLED: Duration = Duration::from_millis(1_500);
    let server = Server::start()?;
    let client = server.client().await?;
    // One holder for all: each of them is kept out by the same key, which is renewed every second.
    let holder = leases_at(server.url(), Duration::from_secs(3), false).await?;
    let _held = holder.lock("job").acquire().await?;
    let mut waiting = JoinSet::new();
    if let Some(at) = contestant {
        let contestant = Contestant::waiting(&server.url()).await?.swap_remove(at);
        for _ in 0..waiters {
            let contestant = contestant.clone();
            waiting.spawn(async move { contestant.acquire("job").await.map(drop) });
        }
    }
    sleep(SETTLED).await;
    // Whole renewals, and few of those who keep the server busy.
    let window = Duration::from_secs(if contestant.is_none_or(|at| at < 2) { 6 } else { 3 });
    let (before, cpu, started) = (stats::calls(&client).await?, server.cpu()?, Instant::now());
    sleep(window).await;
    let (after, used, seconds) = (stats::calls(&client).await?, server.cpu()? - cpu, started.elapsed().as_secs_f64());
    if let Some(ended) = waiting.try_join_next() {
        return Err(format!("a waiter of {contestant:?} has ended: {ended:?}").into());
    }
    Ok(((after - before) as f64 / seconds, used / seconds))
}

/// A thousand waiters in ten programs, of whom one is to have the lock.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn one_release(title: &str, fair: bool) -> Result<()> {
    const PROGRAMS: usize = 10;
    const WAITERS: usize = 100;
    const ROUNDS: usize = 15;
    /// The holder's first renewal, after which nothing happens for long.
    const QUIET: Duration = Duration::from_millis(400);

    let server = Server::start()?;
    let client = server.client().await?;
    let (won, mut winners) = unbounded_channel();
    let mut held = leases(&server).await?.lock("job").acquire().await?;
    let mut programs = Vec::new();
    let mut waiting = JoinSet::new();
    for program in 0..PROGRAMS {
        let leases = leases_at(server.url(), leasehold_bench::TTL, fair).await?;
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
            // The lock and its fence, in each program.
            until(2 * PROGRAMS as u64 - 1, || stats::watched(&client)).await?;
        }
        let before = scripts(&server, &client).await?;
        let released = Instant::now();
        held.release().await?;
        let (program, lease, at) = timeout(SOON, winners.recv()).await?.ok_or("nobody waits")?;
        let by_then = scripts(&server, &client).await?;
        sleep(Duration::from_millis(100)).await;
        let in_the_end = scripts(&server, &client).await?;
        // The release is one of them.
        attempts.push((by_then - before - 1) as f64);
        all.push((in_the_end - before - 1) as f64);
        times.push(at.duration_since(released).as_secs_f64() * 1e3);
        held = lease;
        wait(&programs[program], program, &won, &mut waiting);
    }
    say(&format!("1,000 waiters in 10 programs, {title}: attempts until there is a new holder"), &attempts, "");
    say(&format!("{title}: attempts in all"), &all, "");
    say(&format!("{title}: from the release to the new holder"), &times, " ms");
    Ok(())
}

/// How many scripts have run.
async fn scripts(server: &Server, client: &Client) -> Result<u64> {
    Ok(server.calls(client, "evalsha").await? + server.calls(client, "eval").await?)
}

/// One more waiter, who says when it has the lock.
fn wait(
    leases: &Leases,
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

/// From the deletion of a key to its holder's knowing it.
async fn losses() -> Result<()> {
    const LEASES: usize = 600;
    let server = Server::start()?;
    let (client, leases) = (server.client().await?, leases(&server).await?);
    let mut held = Vec::with_capacity(LEASES);
    for job in 0..LEASES {
        held.push(leases.lock(format!("jobs:{job}")).acquire().await?);
    }
    until(LEASES as u64, || stats::watched(&client)).await?;
    let mut times = Vec::with_capacity(LEASES);
    for lease in held {
        let name = lease.name().to_owned();
        let told = tokio::spawn(async move {
            lease.lost().await;
            monotonic()
        });
        sleep(Duration::from_millis(2)).await;
        let deleted = monotonic();
        client.del::<(), _>(name).await?;
        times.push(micros(told.await? - deleted) / 1e3);
    }
    say("600 leases: from the deletion of the key to `lost()`", &times, " ms");
    Ok(())
}

/// Has another process wait for many names, and print what that takes.
fn names() -> Result<()> {
    let server = Server::start()?;
    let status = std::process::Command::new(env::current_exe()?).env(MANY, server.port().to_string()).status()?;
    if status.success() { Ok(()) } else { Err(format!("the process that waits for many names: {status}").into()) }
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
    let leases = Leases::connect(format!("redis://127.0.0.1:{port}")).await?;
    // What is there once: connections, scripts, the runtime's own.
    let first = tokio::spawn(leases.lock("job:0").acquire());
    until(2, || stats::watched(&client)).await?;
    first.abort();
    let (memory, started) = (usage::memory()?, Instant::now());
    let mut waiting = JoinSet::new();
    for name in 0..NAMES {
        waiting.spawn(leases.lock(format!("job:{name}")).acquire());
    }
    until(2 * u64::from(NAMES), || stats::watched(&client)).await?;
    let settled = started.elapsed();
    sleep(Duration::from_millis(500)).await;
    let each = (usage::memory()? - memory) / f64::from(NAMES);
    let connections = stats::connections(&client).await? - before;
    println!("{}", row(["10,000 names, one process: until all are watched", &format!("{settled:.1?}"), "", ""]));
    println!("{}", row(["10,000 names: connections of the process", &connections.to_string(), "", ""]));
    println!("{}", row(["10,000 names: memory of each waiter and its task", &format!("{each:.0} bytes"), "", ""]));
    let freed = Instant::now();
    stats::flush(&client).await?;
    while let Some(lease) = waiting.join_next().await {
        lease??.check()?;
    }
    println!(
        "{}",
        row(["10,000 names: until all have their lock after a flush", &format!("{:.1?}", freed.elapsed()), "", ""])
    );
    Ok(())
}
