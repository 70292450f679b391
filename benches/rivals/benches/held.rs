//! What many held leases cost, and what a short one costs the keeper. A process of its own, so that memory is this
//! benchmark's.

use std::time::{Duration, Instant};

use leasehold::{Lease, Leases};
use leasehold_bench::{
    Result, Server,
    table::{head, row},
    usage,
};

const LEASES: u32 = 10_000;
/// Two renewals of each lease, wherever between two renewals it begins.
const WINDOW: Duration = Duration::from_secs(20);
const CYCLES: u32 = 20_000;
/// Linux shows 15 characters of a thread's name.
const KEEPER: &str = "leasehold-keepe";

#[tokio::main]
async fn main() -> Result<()> {
    let server = Server::start()?;
    let leases = leasehold_bench::leases(&server).await?;
    println!("\n### Many leases, short leases\n\n{}", head(&["what", "value", "wanted"]));
    held(&server, &leases).await?;
    short(&leases).await?;
    leases.close().await;
    Ok(())
}

async fn held(server: &Server, leases: &Leases) -> Result<()> {
    let client = server.client().await?;
    leases.lock("first").acquire().await?.release().await?;
    let mut held: Vec<Lease> = Vec::with_capacity(LEASES as usize);
    let memory = usage::memory()?;
    for job in 0..LEASES {
        held.push(leases.lock(format!("jobs:{job}")).acquire().await?);
    }
    let each = (usage::memory()? - memory) / f64::from(LEASES);

    let renewed = || server.calls(&client, "pexpire");
    let (cpu, keeper, redis, before) = (usage::cpu()?, usage::cpu_of_threads(KEEPER)?, server.cpu()?, renewed().await?);
    let started = Instant::now();
    tokio::time::sleep(WINDOW).await;
    let renewals = u32::try_from(renewed().await? - before)?;
    let seconds = started.elapsed().as_secs_f64();
    let share = |used: f64| format!("{:.2} % of a core", used / seconds * 100.0);

    let say = |what: &str, value: String, wanted: &str| println!("{}", row([what, &value, wanted]));
    say("10,000 leases held: memory of each", format!("{each:.0} bytes"), "≤ 1,024");
    say("renewals", format!("{:.0} per second", f64::from(renewals) / seconds), "1,000");
    say("keeper thread", share(usage::cpu_of_threads(KEEPER)? - keeper), "≤ 1 %");
    say("whole process", share(usage::cpu()? - cpu), "");
    say("redis-server", share(server.cpu()? - redis), "");
    say("leases lost", held.iter().filter(|lease| !lease.is_held()).count().to_string(), "0");
    for lease in held {
        lease.release().await?;
    }
    Ok(())
}

async fn short(leases: &Leases) -> Result<()> {
    let lock = leases.lock("short");
    let (process, keeper, started) = (usage::cpu()?, usage::cpu_of_threads(KEEPER)?, Instant::now());
    for _ in 0..CYCLES {
        lock.acquire().await?.release().await?;
    }
    let wall = started.elapsed().as_secs_f64();
    let keeper = usage::cpu_of_threads(KEEPER)? - keeper;
    let process = usage::cpu()? - process;
    let micros = |seconds: f64| format!("{:.2} µs", seconds / f64::from(CYCLES) * 1e6);
    println!("{}", row(["20,000 short leases: each takes", &micros(wall), ""]));
    println!("{}", row(["processor time of the process for each", &micros(process), ""]));
    println!("{}", row(["processor time of the keeper for each", &micros(keeper), "a table entry"]));
    Ok(())
}
