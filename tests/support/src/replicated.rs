//! A primary with replicas, without Sentinels.

use std::time::Duration;

use super::{
    server::{Server, ServerBuilder},
    wait::eventually,
};

/// By then each replica has all data, even on a busy machine.
const LINKED: Duration = Duration::from_secs(60);

/// The number of replicas that a primary counts, each only once it has first acknowledged its offset.
pub(crate) fn online(primary: &Server) -> usize {
    let mut wire = primary.wire();
    let all = (0..9).map_while(|at| wire.info_field("replication", &format!("slave{at}")));
    all.filter(|one| one.contains("state=online")).count()
}

/// Waits until `count` replicas acknowledge this primary's writes: a replica with all data may take a second until its
/// first acknowledgement.
#[track_caller]
pub fn await_replicas(primary: &Server, replicas: usize) {
    let mut wire = primary.wire();
    wire.set_patience(LINKED * 2).expect("a limit");
    wire.set("probe", "value");
    wire.del("probe");
    let counted = wire.cmd(&["WAIT", &replicas.to_string(), &LINKED.as_millis().to_string()]).int();
    assert_eq!(usize::try_from(counted), Ok(replicas), "replicas acknowledge");
}

/// Real servers: a primary, and replicas with all of its data.
#[derive(Debug)]
pub struct Replicated {
    primary: Server,
    replicas: Vec<Server>,
}

impl Replicated {
    /// A primary with `replicas` replicas.
    #[track_caller]
    pub fn start(replicas: usize) -> Self {
        // Otherwise a primary would wait five seconds for other replicas.
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

    /// The replicas.
    pub fn replicas(&self) -> &[Server] {
        &self.replicas
    }

    /// Makes each replica follow the first primary, and waits until that counts them all.
    #[track_caller]
    pub fn follow(&self) {
        let port = self.primary.port().to_string();
        self.replicas.iter().for_each(|replica| drop(replica.wire().must(&["REPLICAOF", "127.0.0.1", &port])));
        eventually(LINKED, "the replicas have all", || online(&self.primary) == self.replicas.len());
        await_replicas(&self.primary, self.replicas.len());
    }
}
