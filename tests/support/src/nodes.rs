//! The independent servers of a quorum, each with a wall clock of its own.

use std::ops::Deref;
use std::time::Duration;

use super::bounds::HANGS;
use super::clock_shim::ClockShim;
use super::proxy::Proxy;
use super::server::{Server, ServerBuilder};
use super::wait::eventually_async;

/// The uptime that [`Nodes::seasoned`] servers report.
pub const AGE: Duration = Duration::from_secs(3 * 60 * 60);

/// Independent servers.
#[derive(Debug)]
pub struct Nodes {
    // Dropped before the clocks that they use.
    servers: Vec<Server>,
    clocks: Vec<ClockShim>,
}

impl Nodes {
    /// Servers that have just been started.
    #[track_caller]
    pub fn start(count: usize) -> Self {
        Self::with(count, |builder| builder)
    }

    /// Servers that seem to have been up for [`AGE`]: uptime is wall clock, and theirs has been moved. They all show
    /// the same time, even after a restart.
    #[track_caller]
    pub fn seasoned(count: usize) -> Self {
        Self::start(count).season()
    }

    /// Like [`Nodes::start`], with more settings for each server.
    #[track_caller]
    pub fn with(count: usize, more: impl Fn(ServerBuilder) -> ServerBuilder) -> Self {
        let clocks: Vec<ClockShim> = (0..count).map(|_| ClockShim::new()).collect();
        let servers = clocks.iter().map(|clock| more(Server::builder().clock(clock)).start()).collect();
        Self { servers, clocks }
    }

    /// The same servers with [`AGE`] more uptime.
    #[must_use]
    pub fn season(self) -> Self {
        for clock in &self.clocks {
            clock.forward(AGE);
        }
        self
    }

    /// The clock of one server.
    pub fn clock(&self, at: usize) -> &ClockShim {
        &self.clocks[at]
    }

    /// The servers' urls, in order.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// A proxy in front of each server, in order.
    pub fn proxies(&self) -> Vec<Proxy> {
        self.servers.iter().map(Proxy::to).collect()
    }

    /// Caches these scripts on every server, so that each run is one command.
    #[track_caller]
    pub fn know(&self, scripts: &[&str]) {
        for server in &self.servers {
            let mut wire = server.wire();
            for script in scripts {
                wire.must(&["SCRIPT", "LOAD", script]);
            }
        }
    }

    /// The servers that have this key. All must be reachable.
    #[track_caller]
    pub fn with_key(&self, key: &str) -> Vec<usize> {
        (0..self.servers.len()).filter(|&at| self.servers[at].wire().exists(key)).collect()
    }

    /// Waits until all servers have this key: a lease needs only a majority, and other votes may be in flight.
    pub async fn all_have(&self, key: &str) {
        eventually_async(HANGS, "all have it", || self.with_key(key).len() == self.servers.len()).await;
    }
}

impl Deref for Nodes {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}

/// The urls of proxies, in order.
pub fn urls(proxies: &[Proxy]) -> Vec<String> {
    proxies.iter().map(Proxy::url).collect()
}
