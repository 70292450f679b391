//! When a holder is told that its lease is lost: its link hangs right after a renewal, and another client of the server
//! waits for the key to expire.

use std::{
    future::pending,
    time::{Duration, Instant},
};

use distkit::lock::LockGuardState;
use distributed_lock_core::traits::LockHandle as _;
use redis::aio::MultiplexedConnection;
use support::Proxy;
use tokio::{runtime::Builder, time::timeout};

use crate::{
    Contestant, Result, Server,
    contestant::{Guard, redis_rs},
    machine, median,
    page::Section,
    timeline::{Bar, Side, Timeline, bar, note, row},
};

const TTL: Duration = Duration::from_secs(3);
/// How long after a renewal the link hangs.
const HANGS_AFTER: Duration = Duration::from_millis(300);
/// How long to wait for a holder to be told.
const LIMIT: Duration = Duration::from_secs(15);
const ROUNDS: usize = 5;
const NAME: &str = "job";
/// The time between two looks at the key.
pub const LOOK: Duration = Duration::from_millis(1);

/// The loss of one lease. All times are in seconds after its last renewal.
#[derive(Debug, Clone)]
struct Loss {
    /// When the holder was told, if ever.
    told: Option<f64>,
    /// When the next holder had the lock.
    next: f64,
}

impl Loss {
    /// How much later than the next holder's beginning the holder was told, in seconds.
    fn late(&self) -> f64 {
        self.told.unwrap_or(f64::INFINITY) - self.next
    }
}

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("told");
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let (mut rows, mut lanes) = (Vec::new(), Vec::new());
    for (name, mut losses) in runtime.block_on(all())? {
        losses.sort_by(|one, other| one.late().total_cmp(&other.late()));
        if name == "leasehold" && losses.iter().any(|loss| loss.late() > 0.0) {
            return Err(format!("a holder was told after the next one began: {losses:?}").into());
        }
        let late: Vec<f64> = losses.iter().map(Loss::late).collect();
        let (Some(least), Some(most), Some(usual)) = (late.first(), late.last(), losses.get(losses.len() / 2)) else {
            return Err("there was no round".into());
        };
        rows.push(vec![
            name.to_owned(),
            format!("{:.2} s", median(losses.iter().map(|loss| loss.next))),
            format!("{} ({}..{})", lateness(usual.late()), lateness(*least), lateness(*most)),
        ]);
        let mut says = words(usual.late());
        if name == "distkit" {
            says += ", and may take it back";
        }
        lanes.push((name, usual.clone(), says));
    }
    let place = "server and clients on the same 2 cores";
    let titles = ["the link of a holder hangs, TTL 3 s", "the next holder begins after", "the holder is told"];
    section.table("Told of a loss", place, &titles, &rows);
    let title = "The link of a holder hangs: until when each library believes that it holds the lock";
    section.picture("told", title, &drawn(title, &lanes))?;
    section.write()
}

/// The lane of each library: what happened, and what the picture says of it.
fn drawn(title: &'static str, lanes: &[(&str, Loss, String)]) -> String {
    let ttl = TTL.as_secs_f64();
    let end = (lanes.iter().filter_map(|(_, loss, _)| loss.told).fold(ttl, f64::max) + 1.0).ceil();
    let lane = |(name, loss, says): &(&str, Loss, String)| {
        let told = loss.told.unwrap_or(end);
        let mut bars = vec![bar("h", 0.0, told.min(loss.next))];
        if told > loss.next {
            bars.push(bar("w", loss.next, told));
        }
        bars.push(Bar { is_thin: true, ..bar("n", loss.next, end) });
        row(*name, bars, [note(0.0, Side::After, says)])
    };
    Timeline {
        title,
        end,
        step: 1.0,
        unit: "s",
        moments: vec![
            // The first two are too close for two words on one line.
            note(0.0, Side::Before, "last renewal"),
            note(HANGS_AFTER.as_secs_f64(), Side::After, "the link hangs"),
            note(ttl, Side::After, "the key expires"),
        ],
        rows: lanes.iter().map(lane).collect(),
        meanings: &[("h", "holds the lock"), ("w", "believes so, and does not"), ("n", "the next holder")],
    }
    .svg()
}

async fn all() -> Result<Vec<(&'static str, Vec<Loss>)>> {
    let mut all: Vec<(&str, Vec<Loss>)> = Vec::new();
    for _ in 0..ROUNDS {
        let mut tasks = Vec::new();
        for at in 0..Contestant::HOLDING {
            tasks.push(tokio::spawn(async move { one(at).await }));
        }
        for (at, task) in tasks.into_iter().enumerate() {
            let (name, loss) = task.await??;
            match all.get_mut(at) {
                Some((_, losses)) => losses.push(loss),
                None => all.push((name, vec![loss])),
            }
        }
    }
    Ok(all)
}

/// A lease of the contestant at this place, from its first renewal to its loss.
async fn one(at: usize) -> Result<(&'static str, Loss)> {
    let server = Server::start()?;
    let proxy = Proxy::to_port(server.port());
    let contestant = Contestant::holding(&proxy.url(), TTL).await?.swap_remove(at);
    let name = contestant.name();
    let holder = tokio::spawn(async move {
        until_told(&contestant).await?;
        Ok::<_, crate::Error>(Instant::now())
    });
    let (mut connection, _) = redis_rs(server.url()).await?;
    let key = key_of_the_lock(&mut connection).await?;
    let renewed = renewal(&mut connection, &key).await?;
    tokio::time::sleep_until((renewed + HANGS_AFTER).into()).await;
    proxy.freeze(true);
    let next = taken(&mut connection, &key).await?;
    let told = match timeout(LIMIT, holder).await {
        Ok(told) => Some(told??),
        Err(_never) => None,
    };
    let after = |moment: Instant| moment.duration_since(renewed).as_secs_f64();
    Ok((name, Loss { told: told.map(after), next: after(next) }))
}

/// Holds the lock, and returns once the library reports that it is lost, in whatever way it does.
async fn until_told(contestant: &Contestant) -> Result<()> {
    if let Contestant::Rslock(manager, ttl) = contestant {
        // It drops the work, and returns its error.
        return match manager.using(NAME.as_bytes(), *ttl, async || pending::<()>().await).await {
            Ok(()) => Err("the work had no end".into()),
            Err(_lost) => Ok(()),
        };
    }
    match contestant.acquire(NAME).await? {
        Guard::Leasehold(lease) => drop(lease.lost().await),
        Guard::Rlock(guard) => drop(guard.wait_until_inactive().await),
        Guard::DistributedLock(handle) => {
            handle.lost_token().clone().wait_for(|is_lost| *is_lost).await?;
        }
        // It has a flag.
        Guard::Distkit(guard) => {
            while matches!(guard.get_state(), LockGuardState::Acquired) {
                tokio::time::sleep(LOOK).await;
            }
        }
        Guard::Rslock(_) | Guard::Plain(_) | Guard::None => return Err("it does not tell".into()),
    }
    Ok(())
}

/// The key that expires, under whatever name the library has it.
async fn key_of_the_lock(connection: &mut MultiplexedConnection) -> Result<String> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("*{NAME}*")).query_async(connection).await?;
        for key in keys {
            if pttl(connection, &key).await?.is_some_and(|left| left <= TTL) {
                return Ok(key);
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Err("nothing was locked".into())
}

pub async fn pttl(connection: &mut MultiplexedConnection, key: &str) -> Result<Option<Duration>> {
    let left: i64 = redis::cmd("PTTL").arg(key).query_async(connection).await?;
    Ok(u64::try_from(left).ok().map(Duration::from_millis))
}

/// Waits for the first renewal: the key lives longer than it would have.
async fn renewal(connection: &mut MultiplexedConnection, key: &str) -> Result<Instant> {
    let began = Instant::now();
    let mut last = TTL;
    while began.elapsed() < LIMIT {
        let left = pttl(connection, key).await?.ok_or("the lock was not renewed")?;
        if left > last + TTL / 10 {
            return Ok(Instant::now());
        }
        last = left;
        tokio::time::sleep(LOOK).await;
    }
    Err("the lock was not renewed".into())
}

/// Waits for the lock as a library that polls does, and returns when it was there.
async fn taken(connection: &mut MultiplexedConnection, key: &str) -> Result<Instant> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let mut set = redis::cmd("SET");
        let set = set.arg(key).arg("next").arg("NX").arg("PX").arg(60_000);
        if set.query_async::<Option<String>>(connection).await?.is_some() {
            return Ok(Instant::now());
        }
        tokio::time::sleep(LOOK).await;
    }
    Err("the key did not expire".into())
}

/// A cell of the table.
fn lateness(late: f64) -> String {
    if late.is_infinite() { format!("not in {} s", LIMIT.as_secs()) } else { format!("{:+.0} ms", late * 1e3) }
}

/// For the picture.
fn words(late: f64) -> String {
    let span = if late.abs() < 1.0 { format!("{:.0} ms", late.abs() * 1e3) } else { format!("{:.1} s", late.abs()) };
    match late {
        late if late.is_infinite() => format!("not told in {} s", LIMIT.as_secs()),
        late if late <= 0.0 => format!("told {span} before the next holder"),
        _ => format!("told {span} after: two holders meanwhile"),
    }
}
