//! One release of a writer: its cost for the server, and when all waiting readers are admitted.

use std::time::Duration;

use fred::clients::Client;
use tokio::time::sleep;

use super::{PLACE, crowd::Crowd};
use crate::{
    Result, Server, TTL,
    contestant::{confirmed, leases_at},
    hand_off::micros,
    page::Section,
    peer::monotonic,
    percentile, stats,
    waiting::until,
};

const ROUNDS: u32 = 12;
/// The pause before the release, so that nothing else is under way.
const QUIET: Duration = Duration::from_millis(100);
/// A poll has more parts than a release.
const PARTS_OF_A_RELEASE: usize = 12;

/// The cost of one release.
struct Released {
    /// The script of the release.
    script: f64,
    /// Milliseconds until the last of the waiters was admitted, and scripts for each.
    all_in: Option<(f64, f64)>,
}

pub async fn main(section: &mut Section) -> Result<()> {
    let few = releases(1, 32, true).await?;
    let [many, alone] = [releases(1, 1_000, true).await?, releases(1, 1_000, false).await?];
    let [ten, ten_alone] = [releases(10, 100, true).await?, releases(10, 100, false).await?];
    let median = |all: &[Released]| percentile(all.iter().map(|one| one.script), 0.5);
    let script = |title: &str, all: &[Released], beside: Option<&[Released]>, wanted: &str| {
        let shares = [0.5, 0.9, 1.0].map(|share| percentile(all.iter().map(|one| one.script / 1e3), share));
        let cells = shares.map(|millis| format!("{millis:.2} ms"));
        let ratio = beside.map_or_else(String::new, |beside| format!("{:.2}", median(all) / median(beside)));
        [format!("the writer's release: {title}")].into_iter().chain(cells).chain([ratio, wanted.to_owned()]).collect()
    };
    let all_in = |of: fn((f64, f64)) -> f64, title: &str, unit: &str, wanted: &str| {
        let values: Vec<f64> = ten.iter().filter_map(|one| one.all_in.map(of)).collect();
        let cells = [0.5, 0.9, 1.0].map(|share| format!("{:.2}{unit}", percentile(values.iter().copied(), share)));
        [title.to_owned()].into_iter().chain(cells).chain([String::new(), wanted.to_owned()]).collect()
    };
    let rows: Vec<Vec<String>> = vec![
        script("32 of one process wait to read", &few, None, "at most 0.50 ms"),
        script("1,000 of one process wait, each to have it alone", &alone, None, ""),
        script("1,000 of one process wait to read", &many, Some(&alone), "at most 2 times"),
        script("1,000 of ten processes wait, each to have it alone", &ten_alone, None, ""),
        script("1,000 of ten processes wait to read", &ten, Some(&ten_alone), "at most 2 times"),
        all_in(|(millis, _)| millis, "until the 1,000 of ten processes read", " ms", "at most 60 ms"),
        all_in(|(_, scripts)| scripts, "scripts for each of them", "", "at most 1.20"),
    ];
    let titles = ["one release of a writer", "median", "90 %", "most", "to the row above", "wanted"];
    section.table("A crowd behind a writer", PLACE, &titles, &rows);
    Ok(())
}

async fn releases(processes: usize, each: usize, reads: bool) -> Result<Vec<Released>> {
    let server = Server::start()?;
    let client = server.client().await?;
    let leases = leases_at(server.url(), TTL, true).await?;
    let mut crowds = Vec::with_capacity(processes);
    for _ in 0..processes {
        crowds.push(Crowd::start(&server.url())?);
    }
    let mut all = Vec::new();
    for round in 0..=ROUNDS {
        let name = format!("job-{round}");
        let writer = leases.rw_lock(&name).write();
        let lease = writer.acquire().await?;
        for crowd in &mut crowds {
            crowd.wait(&name, each, reads)?;
        }
        until((processes * each) as u64, || async { Ok(writer.waiters().await?.len() as u64) }).await?;
        sleep(QUIET).await;
        stats::log_slow(&client).await?;
        let (before, released) = (stats::scripts(&client).await?, monotonic());
        confirmed(&lease.release().await?)?;
        let mut all_in = None;
        if reads {
            let mut last = released;
            for crowd in &mut crowds {
                last = last.max(crowd.all_in()?);
            }
            // The release itself is not counted.
            let scripts = stats::scripts(&client).await? - before - 1;
            let each = f64::from(u32::try_from(scripts)?) / f64::from(u32::try_from(processes * each)?);
            all_in = Some((micros(last - released) / 1e3, each));
        }
        let script = of_the_release(&client).await?;
        for crowd in &mut crowds {
            crowd.leave()?;
        }
        if round > 0 {
            all.push(Released { script, all_in });
        }
    }
    Ok(all)
}

/// The microseconds of the first script that releases.
async fn of_the_release(client: &Client) -> Result<f64> {
    let logged = stats::logged(client).await?;
    let released = logged.iter().find(|(_, sent)| {
        sent.first().is_some_and(|command| command.starts_with("EVAL")) && sent.len() < PARTS_OF_A_RELEASE
    });
    Ok(f64::from(u32::try_from(released.ok_or("the server has not logged the release")?.0)?))
}
