//! From a release in this process to the lock in another one.

use std::time::Duration;

use fred::{clients::Client, interfaces::ClientLike as _};
use tokio::{runtime::Builder, time::sleep};

use crate::{
    Contestant, Result, Server, Spread,
    bound::Blocking,
    chart::Bars,
    machine, median,
    page::Section,
    peer::{Peer, monotonic},
    percentile,
};

/// Rounds before anything is counted, for connections, scripts and allocations.
const WARM_UP: u32 = 5;
const ROUNDS: u32 = 40;
/// The turns of a notified contestant for each turn of a polling one, because its turns are short.
const SHORT: u32 = 3;
/// The waiter has settled by then.
const HELD: Duration = Duration::from_millis(20);
const BOUND: &str = "the bound: blocking sockets";

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("handoff");
    let times = Builder::new_multi_thread().enable_all().build()?.block_on(measure())?;
    let of = |name: &str| times.iter().find(|(of, _)| of == name).map(|(_, times)| median(times.iter().copied()));
    let (bound, cold) = (of(BOUND).unwrap_or_default(), of(COLD).unwrap_or_default());
    let rows = times.iter().map(|(name, times)| {
        let shares = [0.5, 0.9, 0.99].map(|share| percentile(times.iter().copied(), share));
        let ratios = [bound, cold].map(|unit| format!("{:.2}", shares[0] / unit));
        let spread = Spread::of(times.iter().copied());
        let cells = shares.into_iter().chain([spread.least, spread.most]).map(|micros| format!("{micros:.0}"));
        [name.clone()].into_iter().chain(cells).chain(ratios).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let titles = ["microseconds", "median", "90 %", "99 %", "least", "most", "to the bound", "to a cold `PING`"];
    let place = "two processes and the server on the same 2 cores";
    section.table("From a release to the next holder, in two processes", place, &titles, &rows);
    section.say(
        "distributed-lock-redis is not here: its `acquire` fails at once where somebody else has the lock, so nobody \
         waits.",
    );
    let notified = times.iter().filter(|(name, _)| name.starts_with("leasehold") || name == BOUND);
    let bars = notified.map(|(name, times)| (name.clone(), Spread::up_to(times.iter().copied(), 0.9)));
    let title = "Microseconds from a release to the next holder, median (least..90 %)";
    section.bars("handoff", &Bars::of_one(title, "microseconds", bars))?;
    section.write()
}

const WARM: &str = "a round trip (`PING`), one after the other";
const COLD: &str = "a round trip after 20 ms of silence";

async fn measure() -> Result<Vec<(String, Vec<f64>)>> {
    let server = Server::start()?;
    let client = server.client().await?;
    let here = Contestant::waiting(&server.url()).await?;
    let mut peer = Peer::start(["peer", &server.url()])?;
    let mut bound = Blocking::connect(server.port())?;
    let mut bound_peer = Peer::start(["bound", &server.port().to_string()])?;
    let mut times = vec![Vec::new(); here.len()];
    let (mut least, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let counts = round >= WARM_UP;
        for (at, contestant) in here.iter().enumerate() {
            let is_ours = !contestant.is_rival();
            for turn in 0..if is_ours { SHORT } else { 1 } {
                // A contestant that polls may be at any moment of its pause of 0.1 s.
                let held = HELD + Duration::from_millis(if is_ours { 0 } else { u64::from(37 * round % 100) });
                let took = hand_off(contestant, at, &format!("job-{at}-{round}-{turn}"), held, &mut peer).await?;
                if counts {
                    times[at].push(took);
                }
            }
        }
        for turn in 0..SHORT {
            let name = format!("bound-{round}-{turn}");
            bound.hold(&name)?;
            bound_peer.wait(0, &name)?;
            sleep(HELD).await;
            let released = monotonic();
            bound.release(&name)?;
            let took = micros(bound_peer.report()? - released);
            if counts {
                least.push(took);
            }
        }
        sleep(HELD).await;
        cold.push(ping(&client).await?);
        for _ in 0..20 {
            warm.push(ping(&client).await?);
        }
    }
    let mut all: Vec<(String, Vec<f64>)> =
        here.iter().map(|contestant| contestant.name().to_owned()).zip(times).collect();
    all.extend([(BOUND.to_owned(), least), (WARM.to_owned(), warm), (COLD.to_owned(), cold)]);
    Ok(all)
}

/// Microseconds from the release in this process to the lock in the peer, which takes it as the contestant `at`.
pub async fn hand_off(contestant: &Contestant, at: usize, name: &str, held: Duration, peer: &mut Peer) -> Result<f64> {
    let guard = contestant.acquire(name).await?;
    peer.wait(at, name)?;
    sleep(held).await;
    let contestant = contestant.clone();
    let release = async move {
        let released = monotonic();
        contestant.release(guard).await.map(|()| released)
    };
    // The release is a task, as in a program: `block_on` itself runs outside the workers.
    let released = tokio::spawn(release).await??;
    Ok(micros(peer.report()? - released))
}

async fn ping(client: &Client) -> Result<f64> {
    let client = client.clone();
    let ping = async move {
        let started = monotonic();
        client.ping::<()>(None).await?;
        Ok::<_, fred::error::Error>(micros(monotonic() - started))
    };
    Ok(tokio::spawn(ping).await??)
}

#[allow(clippy::cast_precision_loss, reason = "a short span")]
pub fn micros(nanos: i128) -> f64 {
    nanos as f64 / 1e3
}
