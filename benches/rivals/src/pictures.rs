//! The pictures of the pages: each is drawn from a run, which fails where a promise is not kept.

use std::time::{Duration, Instant};

use leasehold::{Client, Lock};
use redis::aio::MultiplexedConnection;
use support::Proxy;
use tokio::{
    runtime::Builder,
    time::{sleep, sleep_until},
};

use crate::{
    Result, Server,
    contestant::{leases_at, redis_rs},
    life,
    page::write_picture,
    timeline::{Row, Side, Timeline, bar, note, row},
    told::{LOOK, pttl},
};

const TTL: Duration = Duration::from_secs(3);
const NAME: &str = "job";
/// How long each way to a server of the quorum takes, in ms. The last one hangs.
const WAYS: [u64; 4] = [10, 20, 30, 40];
/// How long each program of the queue works, and after which time the next one asks.
const WORK: Duration = Duration::from_millis(600);
const ASKS_AFTER: Duration = Duration::from_millis(150);

pub fn main() -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    for (name, svg) in [
        ("life", runtime.block_on(life::picture())?),
        ("round", runtime.block_on(round())?),
        ("queue", runtime.block_on(queue())?),
        ("hand-over", runtime.block_on(hand_over())?),
    ] {
        write_picture(name, &svg, true)?;
        println!("docs/performance/{name}.svg is new");
    }
    Ok(())
}

/// An acquire over five servers, one of which hangs.
async fn round() -> Result<String> {
    let servers = (0..=WAYS.len()).map(|_| Server::start()).collect::<Result<Vec<_>>>()?;
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::to_port(server.port())).collect();
    let client = Client::builder().quorum(proxies.iter().map(Proxy::url)).restart_delay(Duration::ZERO).ttl(TTL);
    let client = client.build().await?;
    // Connections and scripts are there.
    client.lock("warm").acquire().await?.release().await?;
    let mut granted = Vec::new();
    for (proxy, way) in proxies.iter().zip(WAYS) {
        proxy.delay(Duration::from_millis(way));
    }
    if let Some(hangs) = proxies.last() {
        hangs.freeze(true);
    }
    let began = Instant::now();
    let looks: Vec<_> =
        servers.iter().take(WAYS.len()).map(|server| tokio::spawn(has_key(server.url(), began))).collect();
    let lease = client.lock(NAME).acquire().await?;
    let acquired = millis(began.elapsed());
    for look in looks {
        granted.push(look.await??);
    }
    let answered: Vec<f64> =
        granted.iter().zip(WAYS).map(|(at, way)| at + millis(Duration::from_millis(way))).collect();
    let is_by_majority = answered.get(2).is_some_and(|third| *third <= acquired + 1.0)
        && answered.get(3).is_some_and(|fourth| acquired < *fourth);
    if !is_by_majority {
        return Err(format!("acquired after {acquired} ms, answered after {answered:?}").into());
    }
    lease.release().await?;
    let end = 120.0;
    let mut rows: Vec<Row> = answered
        .iter()
        .zip(&granted)
        .enumerate()
        .map(|(at, (answered, granted))| {
            row(
                format!("server {}", at + 1),
                [bar("r", 0.0, *answered), bar("h", *granted, end)],
                [note(*granted, Side::After, format!("granted; the answer arrives after {answered:.0} ms"))],
            )
        })
        .collect();
    rows.push(row("server 5", [bar("w", 0.0, end)], [note(0.0, Side::After, "hangs: nobody waits for it")]));
    Ok(Timeline {
        title: "An acquire over five servers: the third answer decides",
        end,
        step: 20.0,
        unit: "ms",
        moments: vec![note(acquired, Side::After, "the lease is acquired")],
        rows,
        meanings: &[("r", "asked"), ("h", "the key is there"), ("w", "no answer")],
    }
    .svg())
}

/// When the server has the key, in ms.
async fn has_key(url: String, began: Instant) -> Result<f64> {
    let (mut connection, _) = redis_rs(url).await?;
    while began.elapsed() < TTL {
        if pttl(&mut connection, NAME).await?.is_some() {
            return Ok(millis(began.elapsed()));
        }
        sleep(LOOK / 4).await;
    }
    Err("a server was not asked".into())
}

/// One turn in the queue: its times in seconds.
#[derive(Debug)]
struct Turn {
    asked: f64,
    held: f64,
    over: f64,
}

/// Four programs in a fair queue, and one that asks without a place in it.
async fn queue() -> Result<String> {
    let server = Server::start()?;
    let began = Instant::now();
    let after = move || began.elapsed().as_secs_f64();
    let mut callers = Vec::new();
    for at in 0..4 {
        let lock = leases_at(server.url(), TTL, true).await?.lock(NAME);
        callers.push(tokio::spawn(async move {
            sleep_until((began + Duration::from_millis(100) + ASKS_AFTER * at).into()).await;
            let asked = after();
            let lease = lock.acquire().await?;
            let held = after();
            sleep(WORK).await;
            lease.release().await?;
            Ok::<_, crate::Error>(Turn { asked, held, over: after() })
        }));
    }
    let other = leases_at(server.url(), TTL, false).await?.lock(NAME);
    sleep_until((began + WORK * 2).into()).await;
    let tried = after();
    let is_refused = other.try_acquire().await?.is_none();
    let mut turns = Vec::new();
    for caller in callers {
        turns.push(caller.await??);
    }
    if !is_refused || !turns.is_sorted_by(|one, next| one.over <= next.held + 0.01) {
        return Err(format!("not in turn: {is_refused}, {turns:?}").into());
    }
    let end = turns.last().map_or(0.0, |turn| turn.over).ceil();
    let mut rows: Vec<Row> = turns
        .iter()
        .enumerate()
        .map(|(at, Turn { asked, held, over })| {
            row(format!("program {}", at + 1), [bar("r", *asked, *held), bar("h", *held, *over)], [])
        })
        .collect();
    let says = [note(tried + 0.05, Side::After, "refused: the lock is passed on, never free")];
    rows.push(row("not in the queue", [bar("w", tried, tried + 0.03)], says));
    Ok(Timeline {
        title: "A fair queue: each release grants the lock to the longest waiter",
        end,
        step: 0.5,
        unit: "s",
        moments: Vec::new(),
        rows,
        meanings: &[("r", "waits"), ("h", "holds the lock"), ("w", "tries")],
    }
    .svg())
}

/// A lease that goes on in another program, while a third one waits.
async fn hand_over() -> Result<String> {
    let server = Server::start()?;
    let mut locks: Vec<Lock> = Vec::new();
    for _ in 0..3 {
        locks.push(leases_at(server.url(), TTL, false).await?.lock(NAME));
    }
    let [old, new, other] = &locks[..] else { return Err("three programs".into()) };
    let (mut connection, _) = redis_rs(server.url()).await?;
    let lease = old.acquire().await?;
    let began = Instant::now();
    let after = move || began.elapsed().as_secs_f64();
    let waiting = tokio::spawn(other.acquire());
    let key = tokio::spawn(async move { is_there_for(&mut connection, began, Duration::from_millis(2_200)).await });
    sleep(Duration::from_secs(1)).await;
    let first = u64::from(lease.fence());
    let (ticket, left) = (lease.into_ticket()?.expose(), after());
    // The ticket travels.
    sleep(Duration::from_millis(300)).await;
    let adopted = new.adopt(ticket.parse()?).await?;
    let (came, second) = (after(), u64::from(adopted.fence()));
    sleep(Duration::from_secs(1)).await;
    adopted.release().await?;
    let over = after();
    let next = waiting.await??;
    let held = after();
    if !key.await?? || held < over || second <= first || u64::from(next.fence()) <= second {
        return Err("the lock was free in between, or a fence fell".into());
    }
    let end = 3.0;
    Ok(Timeline {
        title: "A hand-over: the lease goes on in another program, with a larger fence",
        end,
        step: 0.5,
        unit: "s",
        moments: vec![note(left, Side::Before, "into_ticket()"), note(came, Side::After, "adopt(ticket)")],
        rows: vec![
            row("the old program", [bar("h", 0.0, left)], []),
            row("the new program", [bar("h", came, over)], []),
            row("the key", [bar("h", 0.0, held), bar("n", held, end)], [note(0.0, Side::After, "held all the time")]),
            row("another program", [bar("r", 0.0, held), bar("n", held, end)], []),
        ],
        meanings: &[("h", "the lease"), ("n", "the next holder"), ("r", "waits")],
    }
    .svg())
}

/// Whether the key is there at each look.
async fn is_there_for(connection: &mut MultiplexedConnection, began: Instant, span: Duration) -> Result<bool> {
    while began.elapsed() < span {
        if pttl(connection, NAME).await?.is_none() {
            return Ok(false);
        }
        sleep(LOOK).await;
    }
    Ok(true)
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
