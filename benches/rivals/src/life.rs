//! The life of a lease, as a picture: renewed, at risk, lost, and a late write that its resource refuses.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use leasehold::{Client, Status};
use redis::aio::MultiplexedConnection;
use support::{FENCED_WRITE, Proxy};
use tokio::time::{sleep, sleep_until};

use crate::{
    Result, Server,
    contestant::{leases_at, redis_rs},
    timeline::{LEFT, RIGHT, TOP, begin, legend, rect, seconds, text},
    told::{LOOK, pttl},
};

const TTL: Duration = Duration::from_secs(3);
/// How long after the acquire the link hangs: after the second renewal.
const HANGS_AFTER: Duration = Duration::from_millis(2_300);
const NAME: &str = "job";
const RESOURCE: &str = "report";

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
        let end = (self.next + 1.5).ceil();
        let x = |seconds: f64| LEFT + (RIGHT - LEFT) * seconds.clamp(0.0, end) / end;
        let (lane, bottom) = (50.0, TOP + 150.0);
        let mut svg = begin("The life of a lease with a TTL of 3 s, whose link hangs", bottom + 52.0);
        let marks = [(HANGS_AFTER.as_secs_f64(), "the link hangs"), (self.next, "the key has expired")];
        for (at, what) in marks {
            let place = x(at);
            let _ = write!(svg, "<path class=\"g\" d=\"M{place:.1} 48V{bottom:.0}\"/>");
            text(&mut svg, place + 2.0, 44.0, "s", what);
        }
        text(&mut svg, 10.0, TOP + 17.0, "", "the lease");
        rect(&mut svg, "h", x(0.0), TOP + 4.0, x(self.at_risk) - x(0.0), 14.0);
        rect(&mut svg, "r", x(self.at_risk), TOP + 4.0, x(self.lost) - x(self.at_risk), 14.0);
        for renewed in &self.renewed {
            text(&mut svg, x(*renewed), TOP + 34.0, "s\" text-anchor=\"middle", "▲ renewed");
        }
        let early = (self.next - self.lost) * 1e3;
        text(
            &mut svg,
            x(self.lost) - 4.0,
            TOP + 34.0,
            "s\" text-anchor=\"end",
            &format!("lost(), {early:.0} ms before ▲"),
        );
        text(&mut svg, 10.0, TOP + lane + 17.0, "", "the next holder");
        rect(&mut svg, "n", x(self.next), TOP + lane + 4.0, x(end) - x(self.next), 14.0);
        text(&mut svg, 10.0, TOP + 2.0 * lane + 17.0, "", "the resource");
        for write in &self.writes {
            let (place, top) = (x(write.at), TOP + 2.0 * lane + 4.0);
            let (class, says) = match (write.accepted, write.by) {
                (true, "first") => ("h", "accepted"),
                (true, _) => ("n", "accepted"),
                (false, _) => ("w", "refused: its fence is smaller"),
            };
            rect(&mut svg, class, place - 5.0, top, 10.0, 14.0);
            let (place, anchor) =
                if write.accepted { (place, "s\" text-anchor=\"middle") } else { (RIGHT, "s\" text-anchor=\"end") };
            let top = if write.accepted { top + 28.0 } else { top + 40.0 };
            text(&mut svg, place, top, anchor, says);
        }
        seconds(&mut svg, bottom + 14.0, end, x);
        legend(
            &mut svg,
            bottom + 28.0,
            &[("h", "held"), ("r", "at risk"), ("n", "the next holder"), ("w", "a late write")],
        );
        svg + "</svg>\n"
    }
}
