//! Servers that are reused by the tests of one process, one test at a time.
//!
//! A test has its servers to itself while it runs, and finds them as new: empty, without cached scripts, and without
//! clients other than those of the deployment. [`Loan::give_back`] fails a test that leaves anything else.

use std::{
    collections::BTreeSet,
    fmt,
    ops::Deref,
    sync::{Mutex, PoisonError},
};

use super::{
    bounds::HANGS, cluster::Cluster, replicated::Replicated, resp::Value, sentinels::Sentinels, server::Server,
    temp_dir::end_with_this_process, wait::settles, wire::Wire,
};

/// A deployment that can be reused.
pub trait Deployment: Send + 'static {
    /// The servers of all its processes.
    fn processes(&self) -> Vec<&Server>;

    /// The servers that clients write to.
    fn primaries(&self) -> Vec<&Server> {
        self.processes()
    }
}

impl Deployment for Server {
    fn processes(&self) -> Vec<&Server> {
        vec![self]
    }
}

impl Deployment for Cluster {
    fn processes(&self) -> Vec<&Server> {
        self.servers().iter().collect()
    }

    fn primaries(&self) -> Vec<&Server> {
        Cluster::primaries(self).iter().collect()
    }
}

impl Deployment for Sentinels {
    fn processes(&self) -> Vec<&Server> {
        self.servers().iter().chain(self.sentinels()).collect()
    }

    fn primaries(&self) -> Vec<&Server> {
        vec![self.primary()]
    }
}

impl Deployment for Replicated {
    fn processes(&self) -> Vec<&Server> {
        [self.primary()].into_iter().chain(self.replicas()).collect()
    }

    fn primaries(&self) -> Vec<&Server> {
        vec![self.primary()]
    }
}

/// Deployments of one kind, started as tests need them.
#[derive(Debug)]
pub struct Pool<T> {
    start: fn() -> T,
    idle: Mutex<Vec<Box<Kept<T>>>>,
}

impl<T: Deployment> Pool<T> {
    /// A pool whose deployments are started by `start`.
    pub const fn new(start: fn() -> T) -> Self {
        Self { start, idle: Mutex::new(Vec::new()) }
    }

    /// A deployment that no other test uses: a returned one, or a new one.
    #[track_caller]
    pub fn take(&'static self) -> Loan<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Loan { pool: self, kept: idle.unwrap_or_else(|| Box::new(Kept::new((self.start)()))) }
    }
}

/// One test's use of a deployment. The processes end with it unless it is given back.
pub struct Loan<T: Deployment> {
    pool: &'static Pool<T>,
    kept: Box<Kept<T>>,
}

impl<T: Deployment> Loan<T> {
    /// Makes the deployment available to the next test. Call it after the test's runtime has ended.
    ///
    /// # Panics
    ///
    /// If the test has left a connection, a key without a TTL, a user or a setting.
    #[track_caller]
    pub fn give_back(self) {
        let Self { pool, kept } = self;
        kept.clean();
        pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
    }
}

impl<T: Deployment> Deref for Loan<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.kept.deployment
    }
}

impl<T: Deployment> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").finish_non_exhaustive()
    }
}

/// A deployment, with the state of its primaries when it was new.
#[derive(Debug)]
struct Kept<T> {
    deployment: T,
    new: Vec<State>,
}

#[derive(Debug)]
struct State {
    clients: usize,
    settings: BTreeSet<String>,
}

impl<T: Deployment> Kept<T> {
    fn new(deployment: T) -> Self {
        // A pool lives as long as the process, which does not run its destructor.
        deployment.processes().into_iter().for_each(|server| end_with_this_process(server.pid()));
        let new = deployment.primaries().into_iter().map(|server| State::of(&mut server.wire())).collect();
        Self { deployment, new }
    }

    #[track_caller]
    fn clean(&self) {
        for (server, new) in self.deployment.primaries().into_iter().zip(&self.new) {
            let mut wire = server.wire();
            let closed = settles(HANGS, || clients(&mut wire) <= new.clients);
            assert!(
                closed,
                "the test has left connections to {}: {}",
                server.port(),
                wire.must(&["CLIENT", "LIST"]).text()
            );
            let lasting: Vec<String> = wire.keys("*").into_iter().filter(|key| wire.pttl(key) == -1).collect();
            assert!(lasting.is_empty(), "the test has left keys that never expire: {lasting:?}");
            let now = settings(&mut wire);
            let changed: Vec<_> = now.symmetric_difference(&new.settings).collect();
            assert!(changed.is_empty(), "the test has changed users or settings: {changed:?}");
            wire.must(&["FLUSHALL"]);
            wire.must(&["SCRIPT", "FLUSH"]);
        }
    }
}

impl State {
    fn of(wire: &mut Wire) -> Self {
        Self { clients: clients(wire), settings: settings(wire) }
    }
}

/// The number of connected clients, without replicas.
fn clients(wire: &mut Wire) -> usize {
    let clients = wire.info_field("clients", "connected_clients").expect("every server counts its clients");
    clients.parse().expect("a number")
}

/// The server's users and settings, if it lists them.
fn settings(wire: &mut Wire) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (command, width) in [(&["ACL", "LIST"][..], 1), (&["CONFIG", "GET", "*"], 2)] {
        if let Value::Array(parts) = wire.cmd(command) {
            let words: Vec<String> = parts.iter().map(Value::text).collect();
            all.extend(words.chunks(width).map(|line| line.join(" ")));
        }
    }
    all
}
