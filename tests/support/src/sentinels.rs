//! A primary, its replicas, and the Sentinels that watch it.

use std::time::Duration;

use super::{
    proxy::Proxy,
    replicated::online,
    resp::Value,
    server::{Server, ServerBuilder, start_together},
    tls::Authority,
    wait::eventually,
};

/// The Sentinels' name for the primary.
pub const SERVICE: &str = "locks";

/// By then all know each other, even on a busy machine.
const READY: Duration = Duration::from_secs(60);

/// Real servers: a primary with two replicas, and three Sentinels.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    watchers: [Server; 3],
    /// The ports under which the others know the servers.
    announced: Vec<u16>,
}

impl Sentinels {
    /// Starts all of them, and waits until they agree.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(None)
    }

    /// Like [`Sentinels::start`], with TLS among each other, and for clients that want it.
    #[track_caller]
    pub fn start_with_tls(authority: &Authority) -> Self {
        Self::with(Some(authority))
    }

    /// Like [`Sentinels::start`], with a proxy through which all others know the first primary.
    #[track_caller]
    pub fn start_behind_a_proxy() -> (Self, Proxy) {
        let primary = server(None).start();
        let proxy = Proxy::to(&primary);
        // Otherwise, as a replica, it would look like another server to them.
        primary.wire().must(&["CONFIG", "SET", "replica-announce-port", &proxy.port().to_string()]);
        (Self::around(primary, proxy.port(), None), proxy)
    }

    #[track_caller]
    fn with(authority: Option<&Authority>) -> Self {
        let primary = server(authority).start();
        let announced = port(&primary, authority);
        Self::around(primary, announced, authority)
    }

    /// Starts all others for a primary, known by this port.
    #[track_caller]
    fn around(primary: Server, announced: u16, authority: Option<&Authority>) -> Self {
        let replica = || {
            let replica = server(authority).start();
            replica.wire().must(&["REPLICAOF", "127.0.0.1", &announced.to_string()]);
            replica
        };
        let replicas = [replica(), replica()];
        let sentinels = start_together(|ports: [[u16; 2]; 3]| {
            let ports = ports.map(|[plain, tls]| if authority.is_some() { tls } else { plain });
            [0, 1, 2].map(|own| {
                let mut lines = vec![
                    format!("sentinel myid {}", id(ports[own])),
                    format!("sentinel monitor {SERVICE} 127.0.0.1 {announced} 2"),
                    format!("sentinel down-after-milliseconds {SERVICE} 500"),
                    format!("sentinel failover-timeout {SERVICE} 5000"),
                ];
                let replica =
                    |one: &Server| format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", port(one, authority));
                lines.extend(replicas.iter().map(replica));
                let others = ports.iter().filter(|other| **other != ports[own]);
                lines.extend(
                    others.map(|other| format!("sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {}", id(*other))),
                );
                let config = lines.join("\n") + "\n";
                by(Server::builder().sentinel_that_knows(config), authority)
            })
        });
        let announced = std::iter::once(announced).chain(replicas.iter().map(|one| port(one, authority))).collect();
        let all = Self { servers: std::iter::once(primary).chain(replicas).collect(), watchers: sentinels, announced };
        eventually(READY, "the replicas are linked", || online(all.primary()) == all.replicas().len());
        eventually(READY, "the Sentinels are a quorum", || all.watchers.iter().all(can_fail_over));
        all
    }

    /// The first primary.
    pub fn primary(&self) -> &Server {
        &self.servers[0]
    }

    /// The initial replicas.
    pub fn replicas(&self) -> &[Server] {
        &self.servers[1..]
    }

    /// The first primary and its replicas.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The Sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.watchers
    }

    /// The url with all Sentinels.
    pub fn url(&self) -> String {
        self.url_of(&self.watchers)
    }

    /// The url with these Sentinels.
    pub fn url_of(&self, sentinels: &[Server]) -> String {
        let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The url with the TLS ports of all Sentinels.
    pub fn tls_url(&self) -> String {
        let hosts: Vec<String> =
            self.watchers.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.tls_port())).collect();
        format!("rediss-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The server that this Sentinel names as the primary.
    pub fn named_by(&self, sentinel: usize) -> Option<&Server> {
        let answer = self.watchers[sentinel].wire().cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let Value::Array(parts) = answer else { return None };
        let port = parts.last()?.text();
        let at = self.announced.iter().position(|announced| announced.to_string() == port)?;
        self.servers.get(at)
    }
}

/// Adds a certificate from this authority, if there is one.
fn by(server: ServerBuilder, authority: Option<&Authority>) -> ServerBuilder {
    authority.into_iter().fold(server, ServerBuilder::tls_by)
}

/// A server that may have replicas.
fn server(authority: Option<&Authority>) -> ServerBuilder {
    by(Server::builder().arg("--repl-diskless-sync-delay", "0"), authority)
}

/// The port under which a server is known without a proxy in front of it.
fn port(of: &Server, authority: Option<&Authority>) -> u16 {
    if authority.is_some() { of.tls_port() } else { of.port() }
}

/// An id that no other Sentinel has.
fn id(port: u16) -> String {
    format!("{:040x}", u64::from(port) * 7_919)
}

fn can_fail_over(sentinel: &Server) -> bool {
    let mut wire = sentinel.wire();
    let quorum = wire.cmd(&["SENTINEL", "CKQUORUM", SERVICE]);
    let replicas = wire.cmd(&["SENTINEL", "REPLICAS", SERVICE]);
    // Each replica has reported once, or it would not be promoted.
    let are_there = |replica: &Value| match replica {
        Value::Array(fields) => {
            fields.windows(2).any(|pair| pair[0].text() == "master-link-status" && pair[1].text() == "ok")
        }
        _ => false,
    };
    quorum.error().is_none() && matches!(replicas, Value::Array(all) if all.len() == 2 && all.iter().all(are_there))
}
