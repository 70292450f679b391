//! The cost of holding a lease on a cluster, and on one server for comparison.

use std::time::Duration;

use support::Cluster;
use tokio::{runtime::Builder, time::sleep};

use super::{PLACE, PRIMARIES};
use crate::{
    Result, Server, TTL,
    contestant::leases_at,
    held::{self, Holder},
    page::Section,
    server::client_at,
    stats,
};

/// Long enough to check the servers' addresses several times, and for several renewals.
const WINDOW: Duration = Duration::from_secs(30);

pub fn main(section: &mut Section) -> Result<()> {
    let cluster = Cluster::start_unshimmed(PRIMARIES, 0);
    let ports: Vec<u16> = cluster.primaries().iter().map(support::Server::port).collect();
    let ids = cluster.primaries().iter().map(support::Server::pid).collect();
    let holder = Holder { url: cluster.url(), ports: ports.clone(), ids, leases: 100_000, shares: false };
    let cells = held::measured(&holder)?;
    let row = ["100,000".to_owned()].into_iter().chain(cells).collect();
    section.table("Held leases on a cluster", PLACE, &held::TITLES, &[row]);

    let server = Server::start()?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        Ok::<_, crate::Error>([
            idle("one server", &server.url(), &[server.port()]).await?,
            idle("three primaries", &cluster.url(), &ports).await?,
        ])
    })?;
    let titles = ["commands a second and server", "a program that has connected", "that holds a lock of 30 s"];
    section.table("The cost of a program that is idle", PLACE, &titles, &rows);
    Ok(())
}

async fn idle(title: &str, url: &str, ports: &[u16]) -> Result<Vec<String>> {
    let leases = leases_at(url, TTL, false).await?;
    let nothing = commands(ports).await?;
    let lease = leases.lock("one").acquire().await?;
    let holds = commands(ports).await?;
    drop(lease);
    leases.close().await;
    Ok(vec![title.to_owned(), format!("{nothing:.2}"), format!("{holds:.2}")])
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
async fn commands(ports: &[u16]) -> Result<f64> {
    let mut clients = Vec::new();
    for port in ports {
        clients.push(client_at(*port).await?);
    }
    sleep(Duration::from_secs(1)).await;
    let all = async || {
        let mut calls = 0;
        for client in &clients {
            calls += stats::calls(client).await?;
        }
        Ok::<_, crate::Error>(calls)
    };
    let before = all().await?;
    sleep(WINDOW).await;
    Ok((all().await? - before) as f64 / WINDOW.as_secs_f64() / ports.len() as f64)
}
