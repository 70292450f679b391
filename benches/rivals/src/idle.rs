//! The cost of waiters that only wait, and of holders that only hold.

use std::time::{Duration, Instant};

use fred::interfaces::KeysInterface as _;
use tokio::{
    runtime::Builder,
    task::{JoinSet, LocalSet},
    time::sleep,
};

use crate::{Contestant, Result, Server, contestant::leases_at, machine, page::Section, stats, usage};

/// Short, so that there is something to count.
const TTL: Duration = Duration::from_secs(3);
const HELD: u32 = 50;
const PLACE: &str = "server and client on the same 2 cores";

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("idle");
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(waiters(&mut section))?;
    runtime.block_on(LocalSet::new().run_until(holders(&mut section)))?;
    section.say(
        "The 50 locks are taken one after the other over a second, which is a third of the TTL, and measured from one \
         TTL later on. leasehold renews together those that are due within a tenth of their interval, and now and then \
         all of one TTL.\n\nrslock renews only in `using`, a moment before the end. \
         distributed-lock-redis is not among the waiters: it does not wait.",
    );
    section.write()
}

/// The use of a contestant per second.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    commands: f64,
    client: f64,
    server: f64,
}

/// Commands per second, those inside scripts included, and the shares of a core.
#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn used(server: &Server, window: Duration) -> Result<Use> {
    let client = server.client().await?;
    let now = || Ok::<_, crate::Error>((usage::cpu()?, server.cpu()?));
    let (before, cpu, started) = (stats::calls(&client).await?, now()?, Instant::now());
    sleep(window).await;
    let (after, then, seconds) = (stats::calls(&client).await?, now()?, started.elapsed().as_secs_f64());
    Ok(Use {
        commands: (after - before) as f64 / seconds,
        client: (then.0 - cpu.0) / seconds,
        server: (then.1 - cpu.1) / seconds,
    })
}

fn share(share: f64) -> String {
    format!("{:.2} %", share.max(0.0) * 100.0)
}

async fn waiters(section: &mut Section) -> Result<()> {
    let alone = waiting(None, 0).await?;
    let mut rows = Vec::new();
    let names: Vec<&str> = Contestant::waiting(&Server::start()?.url()).await?.iter().map(Contestant::name).collect();
    for (at, name) in names.into_iter().enumerate() {
        let mut cells = vec![name.to_owned()];
        for waiters in [50, 1_000] {
            let used = waiting(Some(at), waiters).await?;
            cells.push(format!("{:.1}", used.commands - alone.commands));
            cells.push(share(used.server - alone.server));
            cells.push(share(used.client - alone.client));
        }
        rows.push(cells);
    }
    let titles =
        ["for one name", "50 waiters: commands a second", "server", "client", "1,000 waiters", "server", "client"];
    section.table("The cost of waiting", PLACE, &titles, &rows);
    section.say(&format!(
        "Shares are of a core. The holder's own use is taken off: {:.1} commands a second.",
        alone.commands
    ));
    Ok(())
}

async fn waiting(contestant: Option<usize>, waiters: usize) -> Result<Use> {
    /// By then all waiters wait, and the server notifies them.
    const SETTLED: Duration = Duration::from_secs(1);
    /// A multiple of the renewals' interval.
    const WINDOW: Duration = Duration::from_secs(3);
    let server = Server::start()?;
    // There is one holder for all: each waiter waits for the same key, which is renewed every second.
    let holder = leases_at(server.url(), TTL, false).await?;
    let _held = holder.lock("job").acquire().await?;
    let mut waiting = JoinSet::new();
    if let Some(at) = contestant {
        let contestant = Contestant::waiting(&server.url()).await?.swap_remove(at);
        if let Contestant::Distkit(..) = contestant {
            // distkit adds a prefix of its own to its names.
            server.client().await?.set::<(), _, _>("distkit-locks:job", "somebody", None, None, false).await?;
        }
        for _ in 0..waiters {
            let contestant = contestant.clone();
            waiting.spawn(async move { contestant.acquire("job").await.map(drop) });
        }
    }
    sleep(SETTLED).await;
    let used = used(&server, WINDOW).await?;
    if let Some(ended) = waiting.try_join_next() {
        return Err(format!("a waiter of {contestant:?} has ended: {ended:?}").into());
    }
    Ok(used)
}

async fn holders(section: &mut Section) -> Result<()> {
    /// The pause between two acquires. The leases spread over a second, a third of the TTL, so that each comes due by
    /// itself at first.
    const APART: Duration = Duration::from_millis(20);
    const WINDOW: Duration = Duration::from_secs(6);
    let mut rows = Vec::new();
    let count = Contestant::holding(&Server::start()?.url(), TTL).await?.len();
    for at in 0..count {
        let server = Server::start()?;
        let contestant = Contestant::holding(&server.url(), TTL).await?.swap_remove(at);
        let name = contestant.name();
        let mut held = JoinSet::new();
        for job in 0..HELD {
            let contestant = contestant.clone();
            held.spawn_local(async move {
                if let Err(error) = contestant.hold(&format!("job-{job}")).await {
                    eprintln!("{}: a held lock: {error}", contestant.name());
                }
            });
            sleep(APART).await;
        }
        sleep(TTL).await;
        let used = used(&server, WINDOW).await?;
        // This needs a runtime and a server, because a guard that is dropped may use both.
        held.shutdown().await;
        let each = used.commands / f64::from(HELD);
        rows.push(vec![name.to_owned(), format!("{each:.2}"), share(used.server), share(used.client)]);
    }
    let titles = ["50 held, TTL 3 s", "commands a second for each", "server, all 50", "client, all 50"];
    section.table("The cost of holding", PLACE, &titles, &rows);
    Ok(())
}
