//! Clusters of three primaries, Sentinels, and a replica: the cost of a cycle there, and of a failure.

mod failing;
mod holding;
mod moving;
mod replicas;

use std::time::Duration;

use support::Cluster;
use tokio::runtime::Builder;

use crate::{
    Contestant, Result, Server,
    contestant::leases,
    machine,
    page::Section,
    rates::Load,
    rivals::{processor_time, rates},
};

const PLACE: &str = "three primaries and the client on the same 2 cores";
const PRIMARIES: usize = 3;

pub fn main() -> Result<()> {
    machine::pin_to_two()?;
    let mut section = Section::new("cluster");
    cycles(&mut section)?;
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        failing::frozen(&mut section).await?;
        failing::promoted(&mut section).await?;
        failing::planned(&mut section).await?;
        failing::named(&mut section).await?;
        moving::main(&mut section).await
    })?;
    holding::main(&mut section)?;
    replicas::main(&mut section)?;
    section.write()
}

/// The last tables alone, which are on no page.
pub fn replicas() -> Result<()> {
    machine::pin_to_two()?;
    replicas::main(&mut Section::new("cluster"))
}

fn cycles(section: &mut Section) -> Result<()> {
    let (cluster, server) = (Cluster::start_unshimmed(PRIMARIES, 0), Server::start()?);
    let ids: Vec<u32> = cluster.primaries().iter().map(support::Server::pid).chain([server.id()]).collect();
    let mut measured = Vec::new();
    for (tasks, title) in [(1, "1 task"), (16, "16 tasks"), (256, "256 tasks"), (2_000, "2,000 tasks")] {
        let contestants = async {
            let mut all = Contestant::cluster(&cluster).await?;
            all.push(Contestant::OneServer(leases(&server).await?));
            Ok(all)
        };
        let load = Load::new(Builder::new_multi_thread(), tasks, contestants)?;
        measured.push((title.to_owned(), load.measure(&ids)?));
    }
    rates(section, "Cycles per second on a cluster", PLACE, &measured);
    processor_time(section, "Processor time of a cycle on a cluster", PLACE, &measured);
    Ok(())
}

/// A row for each of [`Contestant::cluster`], each with a cluster of its own, so that no contestant meets another's
/// damage.
async fn each(
    replicas: usize,
    measure: impl AsyncFn(&Contestant, &Cluster) -> Result<Vec<String>>,
) -> Result<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    loop {
        let cluster = Cluster::start_unshimmed(PRIMARIES, replicas);
        let mut contestants = Contestant::cluster(&cluster).await?;
        if rows.len() == contestants.len() {
            return Ok(rows);
        }
        let contestant = contestants.swap_remove(rows.len());
        drop(contestants);
        let cells = measure(&contestant, &cluster).await?;
        rows.push([contestant.name().to_owned()].into_iter().chain(cells).collect());
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
