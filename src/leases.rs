//! The entry point.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_protocol::{glob, node_status::NodeStatus};

use crate::{
    client::{Client, Options},
    election::Election,
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

/// Connections to where the locks are, and the keeper that renews them. Cheap to clone: make one per process.
///
/// It works from any runtime, and from none: a clone may be used on another Tokio runtime than the one that built it,
/// or outside of all. Dropping the last clone ends nothing while a lease lives.
///
/// Only a runtime that it is built on must have timers and I/O (`enable_all`). Without them `build` fails with
/// [`Error::Misuse`]. Tokio cannot be asked for that, so a task of that runtime panics first: its message is printed,
/// and with `panic = "abort"` it ends the program.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let (one, same) = (leases.clone(), leases);
/// let lease = one.lock("reports:nightly").acquire().await?;
/// assert!(same.lock("reports:nightly").try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[doc(alias = "redisson")]
#[derive(Clone)]
pub struct Leases {
    pub(crate) scope: Scope,
}

impl Leases {
    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS (crate feature `tls-rustls` or
    ///   `tls-native`)
    /// - `unix:///path[?db=…&user=…&password=…]`
    /// - `redis-cluster://[user[:password]@]host[:port][,host[:port]…]` for a [cluster], of which these are some servers
    /// - `redis-sentinel://[user[:password]@]sentinel[:port][,…]/SERVICE` for the [primary] that these Sentinels watch
    /// - `memory://` for a store of its own inside this process, `memory://name` for one shared by everybody in this
    ///   process who says the same name, while any of them lives. It goes by the clock of the
    ///   `Leases` that made it
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

    /// As [`connect`](Self::connect), but connects at the first use: see [`Builder::build_lazy`].
    ///
    /// # Errors
    ///
    /// See [`Builder::build_lazy`].
    pub fn connect_lazy(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build_lazy()
    }

    /// Locks that behave the same without a server: for tests, demos and first tries. Nobody else sees these locks.
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread.
    #[must_use]
    #[allow(clippy::expect_used, reason = "as std::thread::spawn; `connect(\"memory://\")` gives an error instead")]
    pub fn in_memory() -> Self {
        let (options, clock) = Self::builder().in_memory();
        let (host, stop) = Host::start(&clock).expect("the keeper's thread starts");
        metrics::describe();
        let node = memory::node(Memory::private(&clock), &host);
        let quorum = Quorum::of_one("memory://", node, &clock, &host, options.command_timeout);
        Self::of(Client::new(options, clock, host, stop, quorum, None))
    }

    pub(crate) fn of(client: Arc<Client>) -> Self {
        Self { scope: Scope::new(client) }
    }

    /// Everything that can be set.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// The lock of this name. Nothing is sent yet.
    ///
    /// Its key is exactly the builder's prefix and this name: what other libraries with the same key lock, this locks.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.scope.clone(), name.as_ref())
    }

    /// The name that many may read and one may write. Nothing is sent yet. See [`RwLock`].
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.lock(name))
    }

    /// The name that `permits` holders may have at a time, 1 to 1,000,000: each with a lease like any other. Nothing is
    /// sent yet.
    ///
    /// A holder is let in if fewer than *its own* `permits` hold the name by then, whatever the others ask for. So a
    /// deployment that goes from 3 to 5 permits needs no coordination. While both run, no more than 5 hold it, and none
    /// that asks with 3 comes in beside 3.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let gpu = leases.semaphore("gpu:inference", 2);
    /// let (one, other) = (gpu.acquire().await?, gpu.acquire().await?);
    /// assert!(gpu.try_acquire().await?.is_none(), "both are taken");
    /// one.release().await?;
    /// let third = gpu.acquire().await?;
    /// # third.release().await?; other.release().await?; Ok(()) }
    /// ```
    ///
    /// It is always first come, first served: [`fair`](Lock::fair) changes nothing. All that have it at one time have the
    /// same [fence](crate::Lease::fence), which does not tell them apart. To protect a resource from a holder that was
    /// stopped, give each permit a name of its own. It works on one server, on a cluster and behind Sentinels; over a
    /// quorum the acquire ends with [`Error::Unsupported`].
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        self.lock(name).with_access(Access::Permit(permits))
    }

    /// The election of this name, which is the lock of this name. Nothing is sent yet.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        self.lock(name).into()
    }

    /// These locks, acquired together: all of them or none. Nothing is sent yet.
    ///
    /// They may have different [prefixes](Self::prefix), and each has its own options. See [`MultiLock`].
    pub fn multi_lock(&self, locks: impl IntoIterator<Item = Lock>) -> MultiLock {
        MultiLock::new(&self.scope.client, locks)
    }

    /// These connections and this keeper with a further prefix, behind those that are there: for a tenant, or a part of
    /// the program. Together they have at most 256 bytes. Cheap: it is no client of its own, and to close it closes
    /// all.
    ///
    /// A bad value makes what is done with it end with [`Error::Config`], before anything is sent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let tenant = leases.prefix("tenant7:").label("req-91");
    /// let lease = tenant.lock("invoice:12").acquire().await?; // the key tenant7:invoice:12
    /// let held = tenant.list("*").await?;
    /// assert_eq!((held.len(), held[0].name(), lease.label()), (1, "invoice:12", "req-91"));
    /// # lease.release().await?; Ok(()) }
    /// ```
    #[must_use = "it is there for its locks"]
    pub fn prefix(&self, prefix: impl AsRef<str>) -> Self {
        Self { scope: self.scope.clone().prefix(prefix.as_ref()) }
    }

    /// This `Leases` with a label for its locks: how others see who holds them, 1 to 128 bytes without control
    /// characters; the builder's unless set. A bad value is told as that of a [prefix](Self::prefix).
    #[must_use = "it is there for its locks"]
    pub fn label(&self, label: impl Into<String>) -> Self {
        Self { scope: self.scope.clone().label(label.into()) }
    }

    /// This `Leases`, which counts its locks in a group of this name, unless the lock [says
    /// otherwise](Lock::metrics_group).
    #[cfg(feature = "metrics")]
    #[must_use = "it is there for its locks"]
    pub fn metrics_group(&self, name: impl AsRef<str>) -> Self {
        let mut scope = self.scope.clone();
        scope.options.metrics_group = metrics::Group::named(name.as_ref());
        Self { scope }
    }

    /// The locks that anybody holds now with this library, by their names. `pattern` is one of Redis' own kind (`*`,
    /// `?`, `[a-z]`, `\` before what stands for itself), for names without the [prefix](Self::prefix). For
    /// the inspection of a deployment: it goes through all keys of the server, in steps that nobody else notices.
    ///
    /// A lock that is acquired or released meanwhile may be missing. Over a quorum the list has the locks of every node
    /// that answers; ask each lock for its [`holder`](Lock::holder).
    ///
    /// # Errors
    ///
    /// The server, a majority, or a primary of a cluster cannot be reached or says no.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list(&self, pattern: impl AsRef<str>) -> Result<Vec<Lock>, Error> {
        match self.list_reachable(pattern).await? {
            (locks, None) => Ok(locks),
            (_some, Some(missing)) => Err(missing),
        }
    }

    /// Like [`list`](Self::list), for people who look at a cluster while some of its primaries are away: the locks of
    /// the others, and an error that names the primaries whose locks are missing, and says why.
    ///
    /// # Errors
    ///
    /// The server, a majority, or each primary of a cluster cannot be reached or says no.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn list_reachable(&self, pattern: impl AsRef<str>) -> Result<(Vec<Lock>, Option<Error>), Error> {
        let Scope { client, .. } = &self.scope;
        self.scope.check()?;
        client.ready().await?;
        let prefix = self.scope.whole_prefix();
        let pattern = glob::literally(prefix) + pattern.as_ref();
        let held = relayed!(client.quorum.held(&pattern, client.options.command_timeout)).map_err(Error::of)?;
        // Somebody may have copied a token of ours to where no lock can be.
        let is_lock = |name: &&str| self.scope.key(name).is_ok();
        let names = held.locks.iter().filter_map(|lock| lock.strip_prefix(prefix)).filter(is_lock);
        Ok((names.map(|name| self.lock(name)).collect(), held.missing.map(Error::of)))
    }

    /// Whether a lock could be acquired now, for the readiness probe of a service: the server, or a majority of a
    /// quorum, would grant one that is free. It fails for every cause that would refuse an acquire: a replica, a full
    /// memory, a missing right, data that is still being loaded, a [`restart_delay`](Builder::restart_delay) that is
    /// not over. It takes at most a command time-out; before the [first connection](Builder::build_lazy) also the time
    /// for that.
    ///
    /// It rehearses an acquire on the key `{prefix}:lh:health`, and writes nothing; of a cluster on each primary, of which
    /// more than half must pass, on `{prefix0}:lh:health` and its like. If your user has no right to that key, it shows
    /// only whether the server answers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let leases = leasehold::Leases::in_memory();
    /// let status = match leases.health().await {
    ///     Ok(()) => (200, "ready".to_owned()),
    ///     Err(error) => (503, error.to_string()),
    /// };
    /// # assert_eq!(status.0, 200); }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] or [`Error::Refused`]; over a quorum [`Error::votes`] says what each node said.
    /// [`Error::Closed`] as soon as this is shut down, so that a load balancer turns away.
    ///
    /// # Cancel safety
    ///
    /// It writes nothing.
    pub async fn health(&self) -> Result<(), Error> {
        self.scope.client.check_acquires()?;
        self.scope.client.ready().await?;
        let Options { prefix, command_timeout, .. } = &self.scope.client.options;
        let rehearsal = self.scope.client.quorum.health(prefix, *command_timeout);
        relayed!(rehearsal).map_err(Error::of)
    }

    /// The state of the nodes, in the order in which the builder was given them, as far as answers have shown it. Of a
    /// cluster, its primaries, in the order of their lowest slots. Asks nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// for node in leases.nodes() {
    ///     println!("{}: {:?}", node.address(), node.state());
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.scope.client.quorum.status()
    }

    /// Waits for everybody who has a lease, for at most `limit`, and then closes this and its clones. For a program
    /// that is asked to stop: nobody else gets a lock before the work under it is over.
    ///
    /// At once, new acquires and waiters end with [`Closed`](crate::Error::Closed), and every holder is asked to stop:
    /// [`lost`](crate::Lease::lost) completes with [`Closing`](crate::LossReason::Closing), and cancellation tokens are
    /// cancelled. The leases are renewed as before, and [`check`](crate::Lease::check) is `Ok`, until their holders
    /// release or drop them. When all are gone, or at the limit, follows [`close`](Self::close).
    ///
    /// Returns how many leases were still held at the limit: others may do the work under them from then on. If another
    /// call closed this before, it returns that call's number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lease = leases.lock("reports:nightly").acquire().await?;
    /// let job = tokio::spawn(async move {
    ///     lease.lost().await; // the shutdown asks for a stop
    ///     lease.check()?; // the lease is held all the same: time to tidy up
    ///     lease.release().await
    /// });
    /// assert_eq!(leases.shutdown(Duration::from_secs(10)).await, 0);
    /// job.await.expect("it does not panic")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Acquires end and holders are asked from the first poll on. Dropped after that, it closes nothing; call it, or
    /// [`close`](Self::close), again.
    pub async fn shutdown(&self, limit: Duration) -> usize {
        relayed!(self.scope.client.shut_down(limit))
    }

    /// Ends everything **now** that came from this and its clones. A job that still runs is not protected any more:
    /// somebody else may have its lock before it has stopped. To wait for jobs there is [`shutdown`](Self::shutdown).
    ///
    /// It refuses new work, ends waiters with
    /// [`Closed`](crate::Error::Closed), signals [`Closed`](crate::LossReason::Closed) to every lease that is
    /// held, and releases what any lease still has on a server. That includes the key of a lease that has reached its
    /// `max_hold`, or that a quorum has lost, and that was not dropped yet: nothing is left for its drop. Waits for the
    /// releases, at most a command time-out in all; what is not confirmed by then goes on in the background.
    ///
    /// Call it before the process exits: what was not released by then stays locked for a TTL.
    ///
    /// # Cancel safety
    ///
    /// New work is refused and leases are signalled from the first poll on; the releases go on in the background.
    pub async fn close(&self) {
        let _cut_short = relayed!(self.scope.client.close());
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("nodes", &self.scope.client.quorum.members().map(|(_, member)| member.address()).collect::<Vec<_>>())
            .field("prefix", &self.scope.whole_prefix())
            .field("closed", &self.scope.client.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

// The package's own dev-dependency gives the tests of the repository TLS; those of the unpacked package have none.
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
            let error = Leases::connect(url).await.unwrap_err();
            assert!(matches!(error, Error::Config(_)), "{error}");
            let text = error.to_string();
            assert!(["TLS", "tls-rustls", "tls-native"].iter().all(|word| text.contains(word)), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(server.accept().is_err(), "nobody has connected");
    }
}
