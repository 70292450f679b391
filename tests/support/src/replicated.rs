//! A primary with replicas that nobody watches.

use std::time::Duration;

use super::{
    server::{Server, ServerBuilder},
    wait::eventually,
};

/// By then each replica has all, on a machine that has much else to do.
const LINKED: Duration = Duration::from_secs(30);

/// Real servers: a primary, and replicas that have all that it has.
#[derive(Debug)]
pub struct Replicated {
    primary: Server,
    replicas: Vec<Server>,
}

impl Replicated {
    /// With so many replicas.
    #[track_caller]
    pub fn start(replicas: usize) -> Self {
        // Or a primary would wait five seconds for other replicas.
        let server = || -> ServerBuilder { Server::builder().arg("--repl-diskless-sync-delay", "0") };
        let primary = server().start();
        let replicas: Vec<Server> = (0..replicas).map(|_| server().start()).collect();
        let all = Self { primary, replicas };
        all.replicas.iter().for_each(|replica| all.follow(replica));
        all
    }

    /// The first primary.
    pub fn primary(&self) -> &Server {
        &self.primary
    }

    /// The others.
    pub fn replicas(&self) -> &[Server] {
        &self.replicas
    }

    /// Has this replica follow the first primary, and waits until it has all.
    #[track_caller]
    pub fn follow(&self, replica: &Server) {
        let mut wire = replica.wire();
        wire.must(&["REPLICAOF", "127.0.0.1", &self.primary.port().to_string()]);
        let mut linked = || wire.info_field("replication", "master_link_status").as_deref() == Some("up");
        eventually(LINKED, "the replica is linked", &mut linked);
    }
}
