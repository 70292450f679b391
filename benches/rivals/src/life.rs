//! The life of a lease, as a picture: renewed, at risk, lost, and a late write that its resource refuses.

use std::time::{Duration, Instant};

use leasehold::{Client, Status};
use redis::aio::MultiplexedConnection;
use support::{FENCED_WRITE, Proxy};
use tokio::time::{sleep, sleep_until};

use crate::{
    Result, Server,
    contestant::{leases_at, redis_rs},
    timeline::{Note, Side, Timeline, bar, note, row},
    told::{LOOK, pttl},
};

const TTL: Duration = Duration::from_secs(3);
/// How long after the acquire the link hangs: after the second renewal.
const HANGS_AFTER: Duration = Duration::from_millis(2_300);
const NAME: &str = "job";
const RESOURCE: &str = "report";
/// The width of a write in the picture, in seconds.
const WRITE: f64 = 0.1;

/// A write to the resource: when, by whom, and whether it was accepted. Times are in seconds after the acquire.
#[derive(Debug)]
struct Attempt {
    at: f64,
    by: &'static str,
    accepted: bool,
}

/// All that happened. Times are in seconds after the acquire.
#[derive(Debug, Default)]
struct Life {
    renewed: Vec<f64>,
    at_risk: f64,
    lost: f64,
    next: f64,
    writes: Vec<Attempt>,
}

/// Runs a lease and its successor, and draws them. Fails where a promise is not kept.
pub async fn picture() -> Result<String> {
    let server = Server::start()?;
    let proxy = Proxy::to_port(server.port());
    let (first, second) = (leases_at(proxy.url(), TTL, false).await?, leases_at(server.url(), TTL, false).await?);
    let life = run(&server, &proxy, &first, second).await?;
    let fences = life.writes.iter().map(|write| (write.by, write.accepted)).collect::<Vec<_>>();
    if life.lost > life.next || fences != [("first", true), ("next", true), ("first", false)] {
        return Err(format!("a promise is not kept: {life:?}").into());
    }
    Ok(life.svg())
}

async fn run(server: &Server, proxy: &Proxy, first: &Client, second: Client) -> Result<Life> {
    let (mut connection, _) = redis_rs(server.url()).await?;
    let lease = first.lock(NAME).acquire().await?;
    let began = Instant::now();
    let after = move || began.elapsed().as_secs_f64();
    let mut life = Life::default();
    let renewals = tokio::spawn(renewals(connection.clone(), began));
    let next = tokio::spawn(async move {
        let lease = second.lock(NAME).acquire().await?;
        Ok::<_, crate::Error>((lease, began.elapsed().as_secs_f64()))
    });
    sleep(TTL / 6).await;
    life.writes.push(Attempt {
        at: after(),
        by: "first",
        accepted: write(&mut connection, lease.fence().into()).await?,
    });
    sleep_until((began + HANGS_AFTER).into()).await;
    let mut changes = lease.status_changes();
    proxy.freeze(true);
    while changes.next().await.is_some_and(|status| status != Status::AtRisk) {}
    life.at_risk = after();
    let _lost = lease.lost().await;
    life.lost = after();
    let (next, at) = next.await??;
    life.next = at;
    sleep(TTL / 6).await;
    life.writes.push(Attempt { at: after(), by: "next", accepted: write(&mut connection, next.fence().into()).await? });
    sleep(TTL / 6).await;
    // Not stopped in time: a pause, or no `await` between the check and the write.
    life.writes.push(Attempt {
        at: after(),
        by: "first",
        accepted: write(&mut connection, lease.fence().into()).await?,
    });
    life.renewed = renewals.await??;
    Ok(life)
}

/// The renewals until the key expires.
async fn renewals(mut connection: MultiplexedConnection, began: Instant) -> Result<Vec<f64>> {
    let (mut renewed, mut last) = (Vec::new(), TTL);
    while began.elapsed() < HANGS_AFTER + TTL / 10 {
        let left = pttl(&mut connection, NAME).await?.unwrap_or_default();
        if left > last + TTL / 10 {
            renewed.push(began.elapsed().as_secs_f64());
        }
        last = left;
        sleep(LOOK).await;
    }
    Ok(renewed)
}

/// Whether the resource accepts a write with this fence.
async fn write(connection: &mut MultiplexedConnection, fence: u64) -> Result<bool> {
    let mut script = redis::cmd("EVAL");
    let stored: u64 =
        script.arg(FENCED_WRITE).arg(1).arg(RESOURCE).arg("text").arg(fence).query_async(connection).await?;
    Ok(stored == fence)
}

impl Life {
    fn svg(&self) -> String {
        let (end, early) = ((self.next + 1.5).ceil(), (self.next - self.lost) * 1e3);
        let mut told: Vec<Note> = self.renewed.iter().map(|at| note(*at, Side::Around, "▲ renewed")).collect();
        told.push(note(self.lost, Side::Before, format!("lost(), {early:.0} ms before ▲")));
        let write = |write: &Attempt| {
            let class = match (write.accepted, write.by) {
                (true, "first") => "h",
                (true, _) => "n",
                (false, _) => "w",
            };
            bar(class, write.at - WRITE / 2.0, write.at + WRITE / 2.0)
        };
        let says = |Attempt { at, accepted, .. }: &Attempt| {
            if *accepted { note(*at, Side::Around, "accepted") } else { note(at - WRITE / 2.0, Side::After, "refused") }
        };
        Timeline {
            title: "The life of a lease with a TTL of 3 s, whose link hangs",
            end,
            step: 1.0,
            unit: "s",
            moments: vec![
                note(HANGS_AFTER.as_secs_f64(), Side::After, "the link hangs"),
                note(self.next, Side::After, "the key has expired"),
            ],
            rows: vec![
                row("the lease", [bar("h", 0.0, self.at_risk), bar("r", self.at_risk, self.lost)], told),
                row("the next holder", [bar("n", self.next, end)], []),
                row(
                    "fences written",
                    self.writes.iter().map(write).collect::<Vec<_>>(),
                    self.writes.iter().map(says).collect::<Vec<_>>(),
                ),
            ],
            meanings: &[("h", "held"), ("r", "at risk"), ("n", "the next holder"), ("w", "a late write")],
        }
        .svg()
    }
}
