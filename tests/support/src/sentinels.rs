//! A primary, its replicas, and the Sentinels that watch it.

use std::time::Duration;

use super::{
    replicated::online,
    resp::Value,
    server::{Server, ServerBuilder, start_together},
    tls::Authority,
    wait::eventually,
};

/// How the Sentinels call it.
pub const SERVICE: &str = "locks";

/// By then all know each other, on a machine that has much else to do.
const READY: Duration = Duration::from_secs(30);

/// Real servers: a primary with two replicas, and three Sentinels.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    watchers: [Server; 3],
    /// Whether they speak TLS to each other.
    has_tls: bool,
}

impl Sentinels {
    /// All of them, in peace with each other.
    #[track_caller]
    pub fn start() -> Self {
        Self::with(None)
    }

    /// The same over TLS among each other, and with clients that want it.
    #[track_caller]
    pub fn start_with_tls(authority: &Authority) -> Self {
        Self::with(Some(authority))
    }

    #[track_caller]
    fn with(authority: Option<&Authority>) -> Self {
        let by = |server: ServerBuilder| authority.into_iter().fold(server, ServerBuilder::tls_by);
        let port = |of: &Server| if authority.is_some() { of.tls_port() } else { of.port() };
        let server = || by(Server::builder().arg("--repl-diskless-sync-delay", "0"));
        let primary = server().start();
        let replica = || {
            let replica = server().start();
            replica.wire().must(&["REPLICAOF", "127.0.0.1", &port(&primary).to_string()]);
            replica
        };
        let replicas = [replica(), replica()];
        let sentinels = start_together(|ports: [[u16; 2]; 3]| {
            let ports = ports.map(|[plain, tls]| if authority.is_some() { tls } else { plain });
            [0, 1, 2].map(|own| {
                let mut lines = vec![
                    format!("sentinel myid {}", id(ports[own])),
                    format!("sentinel monitor {SERVICE} 127.0.0.1 {} 2", port(&primary)),
                    format!("sentinel down-after-milliseconds {SERVICE} 500"),
                    format!("sentinel failover-timeout {SERVICE} 5000"),
                ];
                let replica = |one: &Server| format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", port(one));
                lines.extend(replicas.iter().map(replica));
                let others = ports.iter().filter(|other| **other != ports[own]);
                lines.extend(
                    others.map(|other| format!("sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {}", id(*other))),
                );
                let config = lines.join("\n") + "\n";
                by(Server::builder().sentinel_that_knows(config))
            })
        });
        let has_tls = authority.is_some();
        let all = Self { servers: std::iter::once(primary).chain(replicas).collect(), watchers: sentinels, has_tls };
        eventually(READY, "the replicas are linked", || online(all.primary()) == all.replicas().len());
        eventually(READY, "the Sentinels are a quorum", || all.watchers.iter().all(can_fail_over));
        all
    }

    /// The first primary.
    pub fn primary(&self) -> &Server {
        &self.servers[0]
    }

    /// Those that were made replicas.
    pub fn replicas(&self) -> &[Server] {
        &self.servers[1..]
    }

    /// The first primary and its replicas.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Those that watch.
    pub fn sentinels(&self) -> &[Server] {
        &self.watchers
    }

    /// The url that names all Sentinels.
    pub fn url(&self) -> String {
        self.url_of(&self.watchers)
    }

    /// The url that names these.
    pub fn url_of(&self, sentinels: &[Server]) -> String {
        let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The url that names all Sentinels by their ports for TLS.
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
        let own = |server: &Server| if self.has_tls { server.tls_port() } else { server.port() };
        self.servers.iter().find(|server| own(server).to_string() == port)
    }
}

/// A name that no other Sentinel has.
fn id(port: u16) -> String {
    format!("{:040x}", u64::from(port) * 7_919)
}

fn can_fail_over(sentinel: &Server) -> bool {
    let mut wire = sentinel.wire();
    let quorum = wire.cmd(&["SENTINEL", "CKQUORUM", SERVICE]);
    let replicas = wire.cmd(&["SENTINEL", "REPLICAS", SERVICE]);
    // Each has said something, or it would not be promoted.
    let are_there = |replica: &Value| match replica {
        Value::Array(fields) => {
            fields.windows(2).any(|pair| pair[0].text() == "master-link-status" && pair[1].text() == "ok")
        }
        _ => false,
    };
    quorum.error().is_none() && matches!(replicas, Value::Array(all) if all.len() == 2 && all.iter().all(are_there))
}
