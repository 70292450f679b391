//! From a release in this process to a waiter in another one, where the name is shared before or after.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Lock};
use tokio::time::sleep;

use super::PLACE;
use crate::{
    Contestant, Result, Server, TTL, contestant::leases_at, hand_off::hand_off, page::Section, peer::Peer, percentile,
};

const WARM_UP: u32 = 5;
const ROUNDS: u32 = 100;
/// The waiter has settled by then.
const HELD: Duration = Duration::from_millis(20);
const PERMITS: u32 = 4;

const FAIR: usize = 0;
const WRITER: usize = 1;
const READER: usize = 2;
const PERMIT: usize = 3;

/// The contestants, in the order of the numbers above.
pub async fn contestants(url: &str) -> Result<Vec<Contestant>> {
    let leases = leases_at(url, TTL, true).await?;
    let of = |title, lock_of: fn(&Client, &str) -> Lock| {
        let leases = leases.clone();
        Contestant::Locks(title, Arc::new(move |name| lock_of(&leases, name)))
    };
    Ok(vec![
        Contestant::Fair(leases.clone()),
        of("a writer", |leases, name| leases.rw_lock(name).write()),
        of("a reader", |leases, name| leases.rw_lock(name).read()),
        of("a permit", |leases, name| leases.semaphore(name, PERMITS)),
    ])
}

/// A hand-over: the holder's mode, the waiter's mode, and how many others have a share all the time.
struct Hand {
    title: &'static str,
    from: usize,
    to: usize,
    others: u32,
}

const HANDS: [Hand; 4] = [
    Hand { title: "a fair lock", from: FAIR, to: FAIR, others: 0 },
    Hand { title: "a permit of 4, of which others hold 3", from: PERMIT, to: PERMIT, others: PERMITS - 1 },
    Hand { title: "a writer to a reader", from: WRITER, to: READER, others: 0 },
    Hand { title: "a reader to a writer", from: READER, to: WRITER, others: 0 },
];

pub async fn main(section: &mut Section) -> Result<()> {
    let times = measure().await?;
    let fair = percentile(times[0].iter().copied(), 0.5);
    let rows = HANDS.iter().zip(&times).map(|(hand, times)| {
        let shares = [0.5, 0.9, 0.99].map(|share| percentile(times.iter().copied(), share));
        let wanted = if hand.from == FAIR { "" } else { "at most 1.1" };
        let cells = shares.into_iter().map(|micros| format!("{micros:.0}"));
        let ends = [format!("{:.2}", shares[0] / fair), wanted.to_owned()];
        [hand.title.to_owned()].into_iter().chain(cells).chain(ends).collect()
    });
    let rows: Vec<_> = rows.collect();
    let titles = ["microseconds", "median", "90 %", "99 %", "to the fair lock", "wanted"];
    section.table("From a release to the next, in two processes", PLACE, &titles, &rows);
    Ok(())
}

async fn measure() -> Result<Vec<Vec<f64>>> {
    let server = Server::start()?;
    let here = contestants(&server.url()).await?;
    let mut peer = Peer::start(["sharer", &server.url()])?;
    let mut times = vec![Vec::new(); HANDS.len()];
    for round in 0..WARM_UP + ROUNDS {
        for (at, hand) in HANDS.iter().enumerate() {
            let (name, from) = (format!("job-{at}-{round}"), &here[hand.from]);
            let mut others = Vec::new();
            for _ in 0..hand.others {
                others.push(from.acquire(&name).await?);
            }
            let took = hand_off(from, hand.to, &name, HELD, &mut peer).await?;
            if round >= WARM_UP {
                times[at].push(took);
            }
            for other in others {
                from.release(other).await?;
            }
            // This keeps one hand-over from meeting the next.
            sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(times)
}
