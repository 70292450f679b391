//! The entry point.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_protocol::{glob, node_status::NodeStatus};

use crate::{
    election::Election,
    engine::{Engine, Options},
    error::Error,
    foreign::relayed,
    keeper::Host,
    lock::Lock,
    metrics,
    multi_lock::MultiLock,
    node::memory::{self, Memory},
    options::Access,
    quorum::Quorum,
    rw_lock::RwLock,
    scope::Scope,
};

mod builder;

pub use self::builder::Builder;

/// The connections to the servers that keep the locks, and the keeper that renews leases. Cheap to clone: make one per
/// process.
///
/// It works in any runtime, and without one: a clone may be used on a different Tokio runtime from the one that built
/// it, or outside all runtimes. Dropping the last clone stops nothing while a lease lives.
///
/// Only a runtime that it is built on needs timers and I/O (`enable_all`). Without them `build` fails with
/// [`Error::Misuse`]. Tokio offers no way to query that, so a task of that runtime panics first: the panic's message is
/// printed, and with `panic = "abort"` the program ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let (one, same) = (client.clone(), client);
/// let lease = one.lock("reports:nightly").acquire().await?;
/// assert!(same.lock("reports:nightly").try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[doc(alias = "redisson")]
#[derive(Clone)]
pub struct Client {
    pub(crate) scope: Scope,
}

/// The held locks that [`Client::list_reachable`] has found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listing {
    /// The locks of the primaries that have answered.
    pub locks: Vec<Lock>,
    /// The error that names the primaries whose locks are missing, and why; `None` if all have answered.
    pub missing: Option<Error>,
}

impl Client {
    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS (crate feature `tls-rustls` or
    ///   `tls-native`)
    /// - `unix:///path[?db=…&user=…&password=…]`
    /// - `redis-cluster://[user[:password]@]host[:port][,host[:port]…]` for a [cluster], given by some of its servers
    /// - `redis-sentinel://[user[:password]@]sentinel[:port][,…]/SERVICE` for the [primary] that these Sentinels watch
    /// - `memory://` for a private store inside this process; `memory://name` for a store that all clients of this
    ///   process with the same name share, while any of them lives. It uses the clock of the `Client` that created it
    ///
    /// For locks over several independent servers see [`Builder::quorum`].
    ///
    /// [cluster]: crate::docs::deployments#a-cluster
    /// [primary]: crate::docs::deployments#a-primary-behind-sentinels
    ///
    /// # Errors
    ///
    /// See [`Builder::build`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build().await
    }

    /// Like [`connect`](Self::connect), but connects at the first use: see [`Builder::build_lazy`].
    ///
    /// # Errors
    ///
    /// See [`Builder::build_lazy`].
    pub fn connect_lazy(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build_lazy()
    }

    /// Creates locks in memory, which behave the same without a server: for tests, demos and first tries. Only this
    /// `Client` and its clones see them.
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread, or the process was forked after a `Client` was made.
    #[must_use]
    #[allow(clippy::expect_used, reason = "as std::thread::spawn; `connect(\"memory://\")` gives an error instead")]
    pub fn in_memory() -> Self {
        let (options, clock) = Self::builder().in_memory();
        let (host, stop) = Host::start(&clock).expect("the keeper's thread starts");
        metrics::describe();
        let node = memory::node(Memory::private(&clock), &host);
        let quorum = Quorum::of_one("memory://", node, &clock, &host, options.command_timeout);
        Self::of(Engine::new(options, clock, host, stop, quorum, None))
    }

    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        Self { scope: Scope::new(engine) }
    }

    /// Returns a [`Builder`], with everything that can be set.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The lock of this name. Nothing is sent yet.
    ///
    /// Its key is exactly the builder's prefix followed by this name, so it excludes other libraries that lock the same
    /// key.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.scope.clone(), name.as_ref())
    }

    /// The readers-writer lock of this name: many may read, or one may write. Nothing is sent yet. See [`RwLock`].
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.lock(name))
    }

    /// A lock that up to `permits` holders may have at once, 1 to 1,000,000: each has a lease like any other. Nothing
    /// is sent yet.
    ///
    /// A holder is admitted if fewer than *its own* `permits` are taken by then, whatever limit the others ask with. It
    /// takes one of them, or as many as [`take`](Lock::take) says. So a deployment that changes from 3 to 5 permits needs
    /// no coordination. While both versions run, at most 5 are taken, and a holder that asks with 3 is never admitted
    /// beside 3.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let gpu = client.semaphore("gpu:inference", 2);
    /// let (one, other) = (gpu.acquire().await?, gpu.acquire().await?);
    /// assert!(gpu.try_acquire().await?.is_none(), "both are taken");
    /// one.release().await?;
    /// let third = gpu.acquire().await?;
    /// # third.release().await?; other.release().await?; Ok(()) }
    /// ```
    ///
    /// It is always first come, first served: [`fair`](Lock::fair) changes nothing. All holders at one time have the
    /// same [fence](crate::Lease::fence), so it does not tell them apart. To protect a resource from a holder that was
    /// stopped, give each permit its own name. It works on one server, on a cluster and behind Sentinels; over a quorum
    /// the acquire ends with [`Error::Unsupported`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        self.lock(name).with_access(Access::Permit(permits))
    }

    /// The election on the lock of this name. Nothing is sent yet.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        self.lock(name).into()
    }

    /// These locks, acquired together: all of them or none. Nothing is sent yet.
    ///
    /// They may have different [prefixes](Self::prefix), and each has its own options. See [`MultiLock`].
    pub fn multi_lock(&self, locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock::new(&self.scope.engine, locks)
    }

    /// This `Client` with another prefix, appended to those that it has: for a tenant, or a part of the program.
    /// Together the prefixes have at most 256 bytes. Cheap: it shares the connections and the keeper, so closing it
    /// closes all.
    ///
    /// With a bad value, calls on its locks and [`list`](Self::list) end with [`Error::Config`] before anything is
    /// sent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let tenant = client.prefix("tenant7:").label("req-91");
    /// let lease = tenant.lock("invoice:12").acquire().await?; // the key tenant7:invoice:12
    /// let held = tenant.list("*").await?;
    /// assert_eq!((held.len(), held[0].name(), lease.label()), (1, "invoice:12", "req-91"));
    /// # lease.release().await?; Ok(()) }
    /// ```
    #[must_use = "it is there for its locks"]
    pub fn prefix(&self, prefix: impl AsRef<str>) -> Self {
        Self { scope: self.scope.clone().prefix(prefix.as_ref()) }
    }

    /// This `Client` with a label for its locks, by which others see who holds them: 1 to 128 bytes without control
    /// characters; the builder's unless set. A bad value is reported like that of a [prefix](Self::prefix).
    #[must_use = "it is there for its locks"]
    pub fn label(&self, label: impl Into<String>) -> Self {
        Self { scope: self.scope.clone().label(label.into()) }
    }

    /// This `Client` with a metrics group of this name for its locks, unless the lock [sets
    /// another](Lock::metrics_group).
    #[cfg(feature = "metrics")]
    #[must_use = "it is there for its locks"]
    pub fn metrics_group(&self, name: impl AsRef<str>) -> Self {
        let mut scope = self.scope.clone();
        scope.options.metrics_group = metrics::Group::named(name.as_ref());
        Self { scope }
    }

    /// Lists the locks that anyone holds now with this library. `pattern` is a Redis pattern (`*`, `?`, `[a-z]`, `\`
    /// before a literal character) for names without the [prefix](Self::prefix). It is for inspecting a deployment: it
    /// scans all keys of the server, in steps small enough not to disturb other clients.
    ///
    /// A lock that is acquired or released meanwhile may be missing. Over a quorum the list contains the locks of every
    /// node that answers; ask each lock for its [`holder`](Lock::holder).
    ///
    /// # Errors
    ///
    /// The server, a majority, or a primary of a cluster cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list(&self, pattern: impl AsRef<str>) -> Result<Vec<Lock>, Error> {
        let Listing { locks, missing } = self.list_reachable(pattern).await?;
        missing.map_or(Ok(locks), Err)
    }

    /// Like [`list`](Self::list), for a cluster of which some primaries may be unreachable: lists the locks of the
    /// others.
    ///
    /// # Errors
    ///
    /// The server, a majority, or every primary of a cluster cannot be reached or refuses the request.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list_reachable(&self, pattern: impl AsRef<str>) -> Result<Listing, Error> {
        let Scope { engine, .. } = &self.scope;
        self.scope.check()?;
        engine.ready().await?;
        let prefix = self.scope.whole_prefix();
        let pattern = glob::literally(prefix) + pattern.as_ref();
        let held = relayed!(engine.quorum.held(&pattern, engine.options.command_timeout)).map_err(Error::of)?;
        // A token of ours may have been copied to a key that cannot be a lock's.
        let is_lock = |name: &&str| self.scope.key(name).is_ok();
        let names = held.locks.iter().filter_map(|lock| lock.strip_prefix(prefix)).filter(is_lock);
        Ok(Listing { locks: names.map(|name| self.lock(name)).collect(), missing: held.missing.map(Error::of) })
    }

    /// Checks whether a lock could be acquired now, for the readiness probe of a service: whether the server, or a
    /// majority of a quorum, would grant a free lock. It fails for every cause that would refuse an acquire: a replica,
    /// full memory, a missing right, data still being loaded, a [`restart_delay`](Builder::restart_delay) that has not
    /// passed. It takes at most a command time-out, and before the [first connection](Builder::build_lazy) also the
    /// time to connect.
    ///
    /// It rehearses an acquire on the key `{prefix}:lh:health`, and writes nothing. On a cluster it does so on each
    /// primary, on keys such as `{prefix0}:lh:health`, and more than half of the primaries must pass. If your user has
    /// no right to that key, it shows only whether the server answers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let client = leasehold::Client::in_memory();
    /// let status = match client.health().await {
    ///     Ok(()) => (200, "ready".to_owned()),
    ///     Err(error) => (503, error.to_string()),
    /// };
    /// # assert_eq!(status.0, 200); }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::Refused`]; over a quorum [`Error::votes`] has each node's answer.
    /// [`Error::Closed`] as soon as a shutdown begins, so that a load balancer turns away.
    ///
    /// # Cancel safety
    ///
    /// It writes nothing.
    pub async fn health(&self) -> Result<(), Error> {
        self.scope.engine.check_acquires()?;
        self.scope.engine.ready().await?;
        let Options { prefix, command_timeout, .. } = &self.scope.engine.options;
        let rehearsal = self.scope.engine.quorum.health(prefix, *command_timeout);
        relayed!(rehearsal).map_err(Error::of)
    }

    /// The state of each node, as far as its answers have shown it, in the order given to the builder. For a cluster:
    /// the state of its primaries, in the order of their lowest slots. Sends nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// for node in client.nodes() {
    ///     println!("{}: {:?}", node.address(), node.state());
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.scope.engine.quorum.status()
    }

    /// Waits until all leases are released or dropped, for at most `limit`, and then closes this and its clones. For a
    /// program that is asked to stop: no one else gets a lock before the work under it has ended.
    ///
    /// At once, new acquires and waiters end with [`Closed`](crate::Error::Closed), and every holder is asked to stop:
    /// [`lost`](crate::Lease::lost) completes with [`Closing`](crate::LossReason::Closing), and cancellation tokens are
    /// cancelled. The leases are renewed as before, and [`check`](crate::Lease::check) is `Ok`, until their holders
    /// release or drop them. When all are gone, or at the limit, [`close`](Self::close) follows.
    ///
    /// Returns the number of leases still held at the limit: from then on others may acquire their locks. If another
    /// call closed this earlier, it returns that call's number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.lock("reports:nightly").acquire().await?;
    /// let job = tokio::spawn(async move {
    ///     lease.lost().await; // the shutdown asks for a stop
    ///     lease.check()?; // the lease is held all the same: time to tidy up
    ///     lease.release().await
    /// });
    /// assert_eq!(client.shutdown(Duration::from_secs(10)).await, 0);
    /// job.await.expect("it does not panic")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// From the first poll on, acquires end and holders are asked to stop. If it is dropped after that, it closes
    /// nothing: call it, or [`close`](Self::close), again.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        relayed!(self.scope.engine.shut_down(limit))
    }

    /// Ends everything that came from this and its clones **now**. A job that still runs is no longer protected:
    /// another holder may have its lock before it has stopped. To wait for jobs, use [`shutdown`](Self::shutdown).
    ///
    /// It refuses new work, ends waiters with [`Closed`](crate::Error::Closed), signals
    /// [`Closed`](crate::LossReason::Closed) to every held lease, and releases what any lease still has on a server.
    /// That includes the key of a lease that has reached its `max_hold`, or that was lost over a quorum, and was not
    /// dropped yet: nothing is left for its drop. It waits for the releases, at most a command time-out in all; those
    /// not confirmed by then continue in the background.
    ///
    /// Call it before the process exits: a lock not released by then stays locked for a TTL.
    ///
    /// # Cancel safety
    ///
    /// From the first poll on, new work is refused and leases are signalled; the releases continue in the background.
    pub async fn close(&self) {
        let _cut_short = relayed!(self.scope.engine.close());
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.scope.engine.quorum.members().map(|(_, member)| member.address()).collect::<Vec<_>>())
            .field("prefix", &self.scope.whole_prefix())
            .field("closed", &self.scope.engine.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

// The package's dev-dependency on itself gives the repository's tests TLS; those of the unpacked package have none.
#[cfg(all(test, not(any(feature = "tls-rustls", feature = "tls-native"))))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn f22_tls_asked_of_a_build_without_it_names_the_features() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        for scheme in ["rediss", "valkeys"] {
            let url = format!("{scheme}://:secret@{}", server.local_addr().unwrap());
            let error = Client::connect(url).await.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error}");
            let text = error.to_string();
            assert!(["TLS", "tls-rustls", "tls-native"].iter().all(|word| text.contains(word)), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(server.accept().is_err(), "nobody has connected");
    }
}
