//! A primary with replicas that nobody watches.

use std::time::Duration;

use super::{
    server::{Server, ServerBuilder},
    wait::eventually,
};

/// By then each replica has all, on a machine that has much else to do.
const LINKED: Duration = Duration::from_secs(30);

/// How many replicas a primary counts: none before it has said for the first time how much it has.
pub(crate) fn online(primary: &Server) -> usize {
    let mut wire = primary.wire();
    let all = (0..9).map_while(|at| wire.info_field("replication", &format!("slave{at}")));
    all.filter(|one| one.contains("state=online")).count()
}

/// Waits until so many replicas acknowledge what this primary writes: after it has all, a replica may take a second to
/// say so for the first time.
#[track_caller]
pub fn await_replicas(primary: &Server, replicas: usize) {
    let mut wire = primary.wire();
    wire.set_patience(LINKED * 2).expect("a limit");
    wire.set("probe", "value");
    wire.del("probe");
    let counted = wire.cmd(&["WAIT", &replicas.to_string(), &LINKED.as_millis().to_string()]).int();
    assert_eq!(usize::try_from(counted), Ok(replicas), "replicas acknowledge");
}

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
        all.follow();
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

    /// Has each replica follow the first primary, and waits until that counts them all.
    #[track_caller]
    pub fn follow(&self) {
        let port = self.primary.port().to_string();
        self.replicas.iter().for_each(|replica| drop(replica.wire().must(&["REPLICAOF", "127.0.0.1", &port])));
        eventually(LINKED, "the replicas have all", || online(&self.primary) == self.replicas.len());
        await_replicas(&self.primary, self.replicas.len());
    }
}
