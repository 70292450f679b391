//! The independent servers of a quorum, each with a wall clock of its own.

use std::ops::Deref;
use std::time::Duration;

use super::bounds::HANGS;
use super::clock_shim::ClockShim;
use super::proxy::Proxy;
use super::server::{Server, ServerBuilder};
use super::wait::eventually_async;

/// How long [`Nodes::seasoned`] servers believe that they have been up.
pub const AGE: Duration = Duration::from_secs(3 * 60 * 60);

/// Servers that know nothing of each other.
#[derive(Debug)]
pub struct Nodes {
    // Before the clocks that they go by.
    servers: Vec<Server>,
    clocks: Vec<ClockShim>,
}

impl Nodes {
    /// Servers that were started just now.
    #[track_caller]
    pub fn start(count: usize) -> Self {
        Self::with(count, |builder| builder)
    }

    /// Servers that have been up for [`AGE`], as far as they know: uptime is wall clock, and theirs has been moved.
    /// They all show the same time, and so does one that is restarted.
    #[track_caller]
    pub fn seasoned(count: usize) -> Self {
        Self::start(count).season()
    }

    /// As [`Nodes::start`], with more to each server.
    #[track_caller]
    pub fn with(count: usize, more: impl Fn(ServerBuilder) -> ServerBuilder) -> Self {
        let clocks: Vec<ClockShim> = (0..count).map(|_| ClockShim::new()).collect();
        let servers = clocks.iter().map(|clock| more(Server::builder().clock(clock)).start()).collect();
        Self { servers, clocks }
    }

    /// The same servers, having been up for [`AGE`] longer.
    #[must_use]
    pub fn season(self) -> Self {
        for clock in &self.clocks {
            clock.forward(AGE);
        }
        self
    }

    /// What one server takes for the time.
    pub fn clock(&self, at: usize) -> &ClockShim {
        &self.clocks[at]
    }

    /// Their urls, in order.
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// A proxy in front of each, in order.
    pub fn proxies(&self) -> Vec<Proxy> {
        self.servers.iter().map(Proxy::to).collect()
    }

    /// Has every server know these scripts, so that each run is one command.
    #[track_caller]
    pub fn know(&self, scripts: &[&str]) {
        for server in &self.servers {
            let mut wire = server.wire();
            for script in scripts {
                wire.must(&["SCRIPT", "LOAD", script]);
            }
        }
    }

    /// Which of them have this key. All must be there to be asked.
    #[track_caller]
    pub fn with_key(&self, key: &str) -> Vec<usize> {
        (0..self.servers.len()).filter(|&at| self.servers[at].wire().exists(key)).collect()
    }

    /// Waits until all of them have this key: a lease needs a majority of them, and other votes may be on their way.
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
