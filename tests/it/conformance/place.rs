//! The deployments on which every behaviour is tested.

use std::{ops::Deref, sync::Arc, time::Duration};

use leasehold::{Builder, Client, Error, Lock};
use support::{Cluster, Loan, Pool, Replicated, Sentinels, Server, ServerBuilder, await_replicas, one_thread};

use super::TTL;

/// The kind of a place's locks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Uses {
    Lock,
    Write,
    OnePermit,
}

/// A program's `Client`, whose locks are of its place's kind.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) leases: Client,
    pub(super) uses: Uses,
}

impl Program {
    pub(super) fn lock(&self, name: impl AsRef<str>) -> Lock {
        match self.uses {
            Uses::Lock => self.leases.lock(name),
            Uses::Write => self.leases.rw_lock(name).write(),
            Uses::OnePermit => self.leases.semaphore(name, 1),
        }
    }
}

impl Deref for Program {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.leases
    }
}

/// One deployment, on which a test plays several programs by building several `Client`.
pub(super) struct Place {
    /// One url, or those of a quorum.
    pub(super) urls: Vec<String>,
    /// Whether every lock is fair.
    pub(super) fair: bool,
    /// The kind of every lock.
    pub(super) uses: Uses,
    pub(super) pushes: bool,
    /// Whether the server answers `INFO` and `CONFIG`.
    pub(super) tells: bool,
    /// How a program names its server, if a url is not enough.
    named: Option<leasehold::Server>,
    /// Keeps a shared memory store alive between two programs.
    _first: Vec<Client>,
    pub(super) servers: Arc<Servers>,
    min_replicas: u8,
}

/// The servers of a place, reserved for its test until that has ended.
#[derive(Debug)]
pub(super) enum Servers {
    InMemory,
    Each(Vec<Loan<Server>>),
    Cluster(Loan<Cluster>),
    Sentinels(Loan<Sentinels>),
    Replicated(Loan<Replicated>),
}

impl Servers {
    #[track_caller]
    pub(super) fn give_back(self) {
        match self {
            Self::InMemory => {}
            Self::Each(servers) => servers.into_iter().for_each(Loan::give_back),
            Self::Cluster(cluster) => cluster.give_back(),
            Self::Sentinels(sentinels) => sentinels.give_back(),
            Self::Replicated(replicated) => replicated.give_back(),
        }
    }
}

static PLAIN: Pool<Server> = Pool::new(Server::start);
static CLUSTERS: Pool<Cluster> = Pool::new(|| Cluster::start(3, 0));
static SENTINELS: Pool<Sentinels> = Pool::new(Sentinels::start);

impl Place {
    fn of(urls: Vec<String>, servers: Servers) -> Self {
        Self {
            urls,
            fair: false,
            uses: Uses::Lock,
            pushes: true,
            tells: true,
            named: None,
            _first: Vec::new(),
            servers: Arc::new(servers),
            min_replicas: 0,
        }
    }

    fn in_memory(urls: Vec<String>) -> Self {
        let connect = |url| one_thread().block_on(Client::connect(url)).unwrap();
        Self { _first: urls.iter().map(connect).collect(), ..Self::of(urls, Servers::InMemory) }
    }

    fn of_one(server: Loan<Server>) -> Self {
        Self::of(vec![server.url()], Servers::Each(vec![server]))
    }

    fn of_cluster(cluster: Loan<Cluster>) -> Self {
        Self::of(vec![cluster.url()], Servers::Cluster(cluster))
    }

    fn of_sentinels(sentinels: Loan<Sentinels>) -> Self {
        Self::of(vec![sentinels.url()], Servers::Sentinels(sentinels))
    }

    fn quorum(nodes: usize) -> Self {
        let servers: Vec<_> = (0..nodes).map(|_| PLAIN.take()).collect();
        Self::of(servers.iter().map(|server| server.url()).collect(), Servers::Each(servers))
    }

    pub(super) fn memory(test: &str) -> Self {
        Self::in_memory(vec![format!("memory://conformance-{test}")])
    }

    pub(super) fn redis(_test: &str) -> Self {
        Self::of_one(PLAIN.take())
    }

    /// A user that may not enable tracking, and so has to poll.
    pub(super) fn redis_without_push(_test: &str) -> Self {
        static WITHOUT_PUSH: Pool<Server> = Pool::new(|| {
            let server = Server::start();
            server.url_without_push(server.port());
            server
        });
        let server = WITHOUT_PUSH.take();
        let url = server.url_without_push(server.port());
        Self { urls: vec![url], pushes: false, ..Self::of_one(server) }
    }

    /// A service that takes commands away. A denied command fails differently from an unknown one.
    pub(super) fn redis_rented(_test: &str) -> Self {
        static RENTED: Pool<Server> = Pool::new(|| {
            let without = ["CLIENT", "CONFIG", "HELLO", "WAIT"];
            let server = without.into_iter().fold(Server::builder(), ServerBuilder::without_command).start();
            rent(&server);
            server
        });
        let server = RENTED.take();
        Self { urls: vec![rented(&server.url())], pushes: false, tells: false, ..Self::of_one(server) }
    }

    /// A cluster where all the commands that [`redis_rented`](Self::redis_rented) lacks are denied.
    pub(super) fn cluster_rented(_test: &str) -> Self {
        static RENTED: Pool<Cluster> = Pool::new(|| {
            let cluster = Cluster::start(3, 0);
            cluster.primaries().iter().for_each(rent);
            cluster
        });
        let cluster = RENTED.take();
        Self { urls: vec![rented(&cluster.url())], pushes: false, tells: false, ..Self::of_cluster(cluster) }
    }

    /// Over TLS, with certificates on both sides.
    pub(super) fn redis_over_tls(_test: &str) -> Self {
        static WITH_TLS: Pool<Server> = Pool::new(|| Server::builder().tls(true).tls_clients(true).start());
        let server = WITH_TLS.take();
        let [certificate, key] = server.client_pem_paths();
        let tls = leasehold::Tls::new().ca_file(server.ca_pem_path()).client_cert_files(certificate, key);
        let named = leasehold::Server::at("localhost", server.tls_port()).tls(tls);
        Self { named: Some(named), ..Self::of_one(server) }
    }

    /// With a token that is renewed every second.
    pub(super) fn redis_with_credentials(_test: &str) -> Self {
        static WITH_USER: Pool<Server> = Pool::new(|| {
            let server = Server::start();
            server.wire().must(&["ACL", "SETUSER", "worker", "on", ">sesame", "~*", "&*", "+@all"]);
            server
        });
        let server = WITH_USER.take();
        let named = leasehold::Server::at("127.0.0.1", server.port()).credentials(async || {
            let token = leasehold::Credentials::new("worker", "sesame").valid_for(Duration::from_millis(1_500));
            Ok::<_, Error>(token)
        });
        Self { named: Some(named), ..Self::of_one(server) }
    }

    pub(super) fn quorum_of_memory(test: &str) -> Self {
        Self::in_memory((0..5).map(|node| format!("memory://conformance-{test}-{node}")).collect())
    }

    pub(super) fn quorum_of_three(_test: &str) -> Self {
        Self::quorum(3)
    }

    pub(super) fn quorum_of_five(_test: &str) -> Self {
        Self::quorum(5)
    }

    pub(super) fn cluster(_test: &str) -> Self {
        Self::of_cluster(CLUSTERS.take())
    }

    pub(super) fn cluster_fair(_test: &str) -> Self {
        Self { fair: true, ..Self::of_cluster(CLUSTERS.take()) }
    }

    pub(super) fn sentinel(_test: &str) -> Self {
        Self::of_sentinels(SENTINELS.take())
    }

    /// One primary, whose replica must confirm its writes.
    pub(super) fn replicated(_test: &str) -> Self {
        static REPLICATED: Pool<Replicated> = Pool::new(|| Replicated::start(1));
        let replicated = REPLICATED.take();
        let urls = vec![replicated.primary().url()];
        Self { min_replicas: 1, ..Self::of(urls, Servers::Replicated(replicated)) }
    }

    pub(super) fn cluster_replicated(_test: &str) -> Self {
        static REPLICATED: Pool<Cluster> = Pool::new(|| {
            let cluster = Cluster::start(1, 1);
            await_replicas(&cluster.primaries()[0], 1);
            cluster
        });
        Self { min_replicas: 1, ..Self::of_cluster(REPLICATED.take()) }
    }

    pub(super) fn sentinel_replicated(_test: &str) -> Self {
        let sentinels = SENTINELS.take();
        await_replicas(sentinels.primary(), sentinels.replicas().len());
        Self { min_replicas: 1, ..Self::of_sentinels(sentinels) }
    }

    pub(super) fn memory_fair(test: &str) -> Self {
        Self { fair: true, ..Self::memory(&format!("{test}-fair")) }
    }

    pub(super) fn redis_fair(test: &str) -> Self {
        Self { fair: true, ..Self::redis(test) }
    }

    /// Every lock is a write lock.
    pub(super) fn redis_writing(test: &str) -> Self {
        Self { uses: Uses::Write, ..Self::redis(test) }
    }

    /// Every lock is a semaphore with one permit.
    pub(super) fn redis_of_one_permit(test: &str) -> Self {
        Self { uses: Uses::OnePermit, ..Self::redis(test) }
    }

    pub(super) fn memory_of_one_permit(test: &str) -> Self {
        Self { uses: Uses::OnePermit, ..Self::memory(&format!("{test}-permit")) }
    }

    pub(super) fn redis_fair_without_push(test: &str) -> Self {
        Self { fair: true, ..Self::redis_without_push(test) }
    }

    pub(super) fn is_quorum(&self) -> bool {
        self.urls.len() > 1
    }

    pub(super) fn is_in_memory(&self) -> bool {
        matches!(*self.servers, Servers::InMemory)
    }

    /// The servers that have this key.
    pub(super) fn servers_of(&self, key: &str) -> Vec<&Server> {
        match &*self.servers {
            Servers::InMemory => Vec::new(),
            Servers::Each(servers) => servers.iter().map(Deref::deref).collect(),
            Servers::Cluster(cluster) => vec![&cluster.primaries()[cluster.home_of(key)]],
            Servers::Sentinels(sentinels) => vec![sentinels.primary()],
            Servers::Replicated(replicated) => vec![replicated.primary()],
        }
    }

    /// Deletes a key that would never expire.
    pub(super) fn delete(&self, key: &str) {
        for server in self.servers_of(key) {
            server.wire().del(key);
        }
    }

    /// How many replicas a primary has.
    pub(super) fn replicas(&self) -> usize {
        match &*self.servers {
            Servers::Sentinels(sentinels) => sentinels.replicas().len(),
            _ => self.min_replicas.into(),
        }
    }

    pub(super) fn builder(&self) -> Builder {
        let builder = Client::builder().ttl(TTL).fair(self.fair).min_replicas(self.min_replicas);
        match (&self.named, &*self.urls) {
            (Some(server), _) => builder.server(server.clone()),
            (None, [url]) => builder.url(url),
            // The servers of a test have just been started.
            (None, urls) => builder.quorum(urls).restart_delay(Duration::ZERO),
        }
    }

    /// One program's `Client`.
    pub(super) async fn program(&self, label: &str) -> Program {
        Program { leases: self.builder().label(label).build().await.unwrap(), uses: self.uses }
    }

    pub(super) async fn two_programs(&self) -> (Program, Program) {
        (self.program("one").await, self.program("two").await)
    }
}

/// Creates a user whose only right on this server is to use locks.
fn rent(server: &Server) {
    let denied = ["-client", "-config", "-info", "-wait", "-subscribe", "-psubscribe", "-publish", "-hello"];
    let rights = ["on", ">secret", "allkeys", "allchannels", "allcommands"].into_iter().chain(denied);
    let denial = ["ACL", "SETUSER", "renter"].into_iter().chain(rights).collect::<Vec<_>>();
    server.wire().must(&denial);
}

/// The url of that user.
fn rented(url: &str) -> String {
    url.replace("://", "://renter:secret@")
}
