//! A primary, its replicas, and the Sentinels that watch it.

use std::time::Duration;

use super::{
    resp::Value,
    server::{Server, start_together},
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
    sentinels: [Server; 3],
}

impl Sentinels {
    /// All of them, in peace with each other.
    #[track_caller]
    pub fn start() -> Self {
        let server = || Server::builder().arg("--repl-diskless-sync-delay", "0");
        let primary = server().start();
        let replica = || {
            let replica = server().start();
            replica.wire().must(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
            replica
        };
        let replicas = [replica(), replica()];
        let sentinels = start_together(|ports: [u16; 3]| {
            [0, 1, 2].map(|own| {
                let mut lines = vec![
                    format!("sentinel myid {}", id(ports[own])),
                    format!("sentinel monitor {SERVICE} 127.0.0.1 {} 2", primary.port()),
                    format!("sentinel down-after-milliseconds {SERVICE} 500"),
                    format!("sentinel failover-timeout {SERVICE} 5000"),
                ];
                let replica = |one: &Server| format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", one.port());
                lines.extend(replicas.iter().map(replica));
                let others = ports.iter().filter(|other| **other != ports[own]);
                lines.extend(
                    others.map(|other| format!("sentinel known-sentinel {SERVICE} 127.0.0.1 {other} {}", id(*other))),
                );
                let config = lines.join("\n") + "\n";
                Server::builder().sentinel_that_knows(config)
            })
        });
        let all = Self { servers: std::iter::once(primary).chain(replicas).collect(), sentinels };
        eventually(READY, "the replicas are linked", || all.replicas().iter().all(is_linked));
        eventually(READY, "the Sentinels are a quorum", || all.sentinels.iter().all(can_fail_over));
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
        &self.sentinels
    }

    /// The url that names all Sentinels.
    pub fn url(&self) -> String {
        self.url_of(&self.sentinels)
    }

    /// The url that names these.
    pub fn url_of(&self, sentinels: &[Server]) -> String {
        let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The server that this Sentinel names as the primary.
    pub fn named_by(&self, sentinel: usize) -> Option<&Server> {
        let answer = self.sentinels[sentinel].wire().cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let Value::Array(parts) = answer else { return None };
        let port = parts.last()?.text();
        self.servers.iter().find(|server| server.port().to_string() == port)
    }
}

/// A name that no other Sentinel has.
fn id(port: u16) -> String {
    format!("{:040x}", u64::from(port) * 7_919)
}

fn is_linked(replica: &Server) -> bool {
    replica.wire().info_field("replication", "master_link_status").as_deref() == Some("up")
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
