//! A quorum of real servers, each behind a proxy of its own.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::{Builder, Client, Lease, Status};
use support::{
    Action, Lag, Match, Proxy, RuleHandle, Server, Wire, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RAISE, RELEASE, RENEW, REPAIR},
    within,
};

use crate::common::{COMMAND, FENCE, LONG, NAME};

/// Not a promise: anything that takes longer hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(8);

/// One server, and the proxy that is the client's only route to it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
}

impl Node {
    /// The node's url for a user whom the server may not notify.
    pub(crate) fn url_without_push(&self) -> String {
        self.server.url_without_push(self.proxy.port())
    }
}

/// The servers, and a client that goes through their proxies.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) leases: Client,
    pub(crate) nodes: Vec<Node>,
    pub(crate) lag: Lag,
}

/// How many of the nodes have the fault: always the last ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Minority,
    Majority,
}

impl Share {
    pub(crate) const BOTH: [Self; 2] = [Self::Minority, Self::Majority];
}

/// A builder for a test's servers, which are all new and have forgotten nothing.
pub(crate) fn builder(urls: Vec<String>) -> Builder {
    Client::builder().quorum(urls).restart_delay(Duration::ZERO).command_timeout(COMMAND)
}

pub(crate) async fn built(builder: Builder) -> Client {
    builder.build().await.expect("the nodes are there")
}

impl Scene {
    pub(crate) async fn of(nodes: usize) -> Self {
        Self::with(nodes, |builder| builder).await
    }

    /// A scene whose client is built with these settings.
    pub(crate) async fn with(nodes: usize, settings: impl FnOnce(Builder) -> Builder) -> Self {
        let lag = Lag::start();
        let node = |_| {
            let server = Server::start();
            let mut wire = server.wire();
            // The scripts are cached, so each request is one command, and a rule's n-th is the n-th request.
            for script in [ACQUIRE, RAISE, RENEW, REPAIR, RELEASE] {
                wire.must(&["SCRIPT", "LOAD", script]);
            }
            Node { proxy: Proxy::to(&server), server }
        };
        let nodes: Vec<Node> = (0..nodes).map(node).collect();
        let urls = nodes.iter().map(|node| node.proxy.url()).collect();
        let leases = built(settings(builder(urls))).await;
        Self { leases, nodes, lag }
    }

    /// The urls of the servers themselves, without the proxies.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.server.url()).collect()
    }

    /// Another process's client, with links of its own.
    pub(crate) async fn other(&self) -> Client {
        built(builder(self.urls()).label("other")).await
    }

    /// The nodes that have the fault.
    pub(crate) fn faulty(&self, share: Share) -> &[Node] {
        let healthy = match share {
            Share::Minority => self.nodes.len() / 2 + 1,
            Share::Majority => self.nodes.len() / 2,
        };
        &self.nodes[healthy..]
    }

    pub(crate) async fn acquire(&self, ttl: Duration) -> Lease {
        self.acquire_as(NAME, ttl).await
    }

    pub(crate) async fn acquire_as(&self, name: &str, ttl: Duration) -> Lease {
        let acquire = self.leases.lock(name).ttl(ttl).acquire();
        within(HANGS, "the lock is acquired", acquire).await.expect("the nodes are well, or come to be")
    }

    /// Acquires a lease that every node has.
    pub(crate) async fn acquire_everywhere(&self, ttl: Duration) -> Lease {
        let lease = self.acquire(ttl).await;
        self.is_everywhere(&lease, LONG).await;
        lease
    }

    pub(crate) fn wires(&self) -> Vec<Wire> {
        self.nodes.iter().map(|node| node.server.wire()).collect()
    }

    /// The limit with the machine's lag: it may be exceeded by as much as the control timer was late.
    pub(crate) fn allowed(&self, limit: Duration) -> Duration {
        limit + self.lag.worst()
    }

    /// The token that each node has under this name.
    pub(crate) fn tokens(&self, name: &str) -> Vec<Option<String>> {
        self.nodes.iter().map(|node| node.server.wire().token(name)).collect()
    }

    /// Waits until every node has the same token under the lease's name, and returns it.
    pub(crate) async fn is_everywhere(&self, lease: &Lease, limit: Duration) -> String {
        let mut wires = self.wires();
        let mut found = None;
        eventually_but_for(&self.lag, limit.min(HANGS), "every node has the key", || {
            let tokens: Vec<_> = wires.iter_mut().map(|wire| wire.token(lease.name())).collect();
            found = tokens[0].clone().filter(|_| tokens.iter().all(|token| *token == tokens[0]));
            found.is_some()
        })
        .await;
        found.expect("it was found just now")
    }

    /// Waits until no node has the key. Its TTL must be `LONG`, so that it cannot just have expired.
    pub(crate) async fn is_taken_away(&self, name: &str) {
        self.is_taken_away_within(HANGS, name).await;
    }

    /// Like [`is_taken_away`](Self::is_taken_away), for keys that live longer than the limit.
    pub(crate) async fn is_taken_away_within(&self, limit: Duration, name: &str) {
        let mut wires = self.wires();
        let is_taken_away = || !wires.iter_mut().any(|wire| wire.exists(name));
        eventually_but_for(&self.lag, limit, "the key is taken away", is_taken_away).await;
    }

    /// Waits until each node will notify of changes to this many keys. It must have tracked none before.
    pub(crate) async fn are_watched(&self, keys: usize) {
        let mut wires = self.wires();
        eventually_async(HANGS, "the keys are watched", || wires.iter_mut().all(|wire| wire.tracked_keys() >= keys))
            .await;
    }

    /// Waits until every node has seen one more renewal of the lease, and the lease is fresh.
    pub(crate) async fn is_renewed(&self, lease: &Lease, ttl: Duration) {
        let renewals = || -> Vec<usize> { self.nodes.iter().map(|node| renewals(node, lease).len()).collect() };
        let before = renewals();
        eventually_async(HANGS, "a renewal is confirmed", || {
            renewals().iter().zip(&before).all(|(now, before)| now > before)
                && lease.remaining() > ttl * 4 / 5
                && lease.status() == Status::Held
        })
        .await;
    }
}

/// When the proxy of a node saw renewals of the lease.
pub(crate) fn renewals(node: &Node, lease: &Lease) -> Vec<Instant> {
    let (wanted, name) = (Match::script(RENEW), lease.name().as_bytes().to_owned());
    let seen = node.proxy.seen();
    seen.iter().filter(|seen| wanted.matches(&seen.args) && seen.args.contains(&name)).map(|seen| seen.at).collect()
}

/// Interferes with the first run of this script on each of the nodes.
pub(crate) fn on_first(nodes: &[Node], script: &str, action: Action) -> Vec<RuleHandle> {
    nodes.iter().map(|node| node.proxy.on(Match::script(script), 1, action)).collect()
}

/// Interferes with every run of this script on each of the nodes.
pub(crate) fn on_each(nodes: &[Node], script: &str, action: Action) -> Vec<RuleHandle> {
    nodes.iter().map(|node| node.proxy.on_each(Match::script(script), action)).collect()
}

/// Waits until each rule has taken effect.
pub(crate) async fn all_hit(rules: &[RuleHandle], what: &str) {
    for rule in rules {
        within(HANGS, what, rule.hit()).await;
    }
}

/// Runs a command on all of the nodes at once: they are stopped until each has it in its socket. Returns when they
/// continued.
pub(crate) fn at_once(nodes: &[Node], command: &[&str]) -> Instant {
    let mut wires: Vec<Wire> = nodes.iter().map(|node| node.server.wire()).collect();
    // Otherwise it would be accepted when the server continues, and read after later requests on other connections.
    for wire in &mut wires {
        wire.must(&["PING"]);
    }
    for node in nodes {
        node.server.stop();
    }
    for wire in &mut wires {
        wire.send(command).expect("the server's socket takes it");
    }
    let went_on = Instant::now();
    for node in nodes {
        node.server.cont();
    }
    for wire in &mut wires {
        let reply = wire.reply().expect("the server answers");
        assert!(reply.error().is_none(), "{command:?}: {reply:?}");
    }
    went_on
}

/// Makes each node issue another fence, the first node the largest: they are an hour ahead of any clock.
pub(crate) fn floors_apart(nodes: &[Node]) {
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3_600);
    for (node, lower) in nodes.iter().zip(0..) {
        let floor = ahead.saturating_sub(Duration::from_secs(lower));
        node.server.wire().must(&["SET", FENCE, &floor.as_micros().to_string(), "PX", "86400000"]);
    }
}
