//! The settings of a `Client`, checked when it is built.

use std::{
    fmt, io,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::rounded::Rounded;

use super::Client;
use crate::{
    clock::{Clock, SystemClock},
    engine::{Engine, Options},
    error::{Error, FORKED},
    foreign::relayed,
    keeper::Host,
    metrics,
    node::{
        NodeAddress,
        redis::{AddressMap, Limits},
    },
    options::{LockOptions, Names, check_label, check_prefix},
    quorum::{self, ConnectConfig, Quorum},
    server::Server,
};

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_GRANT: Duration = Duration::from_secs(1);
/// The bounds of the default pause between two checks of what an address resolves to.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The default TTL, plus the second by which a server's uptime may be wrong.
const DEFAULT_RESTART_DELAY: Duration = Duration::from_secs(31);
/// Nobody runs more replicas than this, and a typing mistake would make every acquire fail.
const MOST_REPLICAS: u8 = 9;
const LONGEST_RESTART_DELAY: Duration = Duration::from_secs(24 * 60 * 60 + 1);

/// Settings of a [`Client`]. [`build`](Self::build) checks them all.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Client;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = Client::builder()
///     .url("memory://") // or "redis://127.0.0.1:6379"
///     .ttl(Duration::from_secs(20))
///     .prefix("jobs:")
///     .label("worker-1")
///     .build()
///     .await?;
/// # client.lock("a").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected before `build`"]
pub struct Builder {
    server: Option<Result<Server, Error>>,
    quorum: Option<Vec<Result<Server, Error>>>,
    restart_delay: Option<Duration>,
    options: Options,
    connect_timeout: Duration,
    check_address_every: Option<Duration>,
    address_map: Result<AddressMap, Error>,
    min_replicas: u8,
    undeclared_keys: bool,
    clock: Arc<dyn Clock>,
}

// It calls the program's clock only once something was built from it.
impl UnwindSafe for Builder {}
impl RefUnwindSafe for Builder {}

impl Builder {
    pub(super) fn new() -> Self {
        let options = Options {
            lock: LockOptions::default(),
            prefix: "".into(),
            label: default_label().into(),
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            grant_timeout: DEFAULT_GRANT,
            in_slots: false,
        };
        Self {
            server: None,
            quorum: None,
            restart_delay: None,
            options,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            check_address_every: None,
            address_map: Ok(AddressMap::default()),
            min_replicas: 0,
            undeclared_keys: true,
            clock: Arc::new(SystemClock),
        }
    }

    /// The settings that a [`Client`] in memory needs.
    pub(super) fn in_memory(self) -> (Options, Arc<dyn Clock>) {
        (self.options, self.clock)
    }

    /// The url of the server that keeps the locks; see [`Client::connect`] for the possible urls. This,
    /// [`server`](Self::server) or [`quorum`](Self::quorum) is required.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.server = Some(Server::try_from(url.into()));
        self
    }

    /// The server that keeps the locks: like [`url`](Self::url), as a [`Server`].
    pub fn server(mut self, server: Server) -> Self {
        self.server = Some(Ok(server));
        self
    }

    /// Keeps every lock on a majority of these servers (Redlock): 3, 5, 7 or 9 servers that are independent of each
    /// other. The lock survives the death of the others, and fencing tokens still grow. Each is a url, or a [`Server`].
    ///
    /// Each must be a stand-alone server that forgets only by a restart: `maxmemory-policy noeviction`, no replica that
    /// takes over, no cluster. A restarted server gives no vote until the [`restart_delay`](Self::restart_delay) has
    /// passed. [Fair](crate::Lock::fair) locks work on one server only. The page
    /// [`deployments`](crate::docs::deployments) says when a quorum is worth it.
    #[doc(alias = "redlock")]
    pub fn quorum<S>(mut self, servers: impl IntoIterator<Item = S>) -> Self
    where
        S: TryInto<Server>,
        S::Error: Into<Error>,
    {
        let server = |server: S| server.try_into().map_err(Into::into);
        self.quorum = Some(servers.into_iter().map(server).collect());
        self
    }

    /// How long a server must have been up before it grants a lock, because a restart may have made it forget the
    /// holder. Until then waiters keep waiting, [fair](crate::Lock::fair) ones in their order. Zero to a day and a second,
    /// rounded up to seconds. Default 31 s over a [`quorum`](Self::quorum), and zero on one server.
    ///
    /// It is a property of the servers, not of one program: **give it the same value everywhere**, at least a second
    /// more than the longest life of a key there. That is a TTL plus its [`lock_delay`](Self::lock_delay), or a
    /// [`once_per`](crate::Lock::once_per). (A longer life than this allows is refused.) Zero is for servers that have
    /// every write on disk before they answer (`appendfsync always`).
    ///
    /// A server's clock must be right before the server starts, because the server measures its uptime by it. A clock
    /// that is put forward makes a new server look old, so it grants too early. After its clock was set back, a server
    /// looks new: a client that has known it for the delay continues, and any other client waits until it has.
    pub fn restart_delay(mut self, delay: Duration) -> Self {
        self.restart_delay = Some(delay);
        self
    }

    /// How long a key lives without a renewal, 100 ms to a day, unless the lock overrides it. Default 30 s. If a round
    /// trip to the server takes half of it, no lease can be kept.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.lock.ttl = ttl;
        self
    }

    /// The longest time for which any lease is renewed, unless the lock overrides it. Default `None`: no bound.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.options.lock.max_hold = max_hold.into();
        self
    }

    /// How much longer a key stays after its holder dies or its lease is lost, at most an hour, unless the
    /// [lock](crate::Lock::lock_delay) overrides it. Default zero. With a [`restart_delay`](Self::restart_delay), the
    /// TTL and the delay together must be at least a second less than that.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.options.lock.lock_delay = delay;
        self
    }

    /// The prefix of all names, at most 256 bytes. Default none.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into().into();
        self
    }

    /// The label by which others see the holder of a lock, 1 to 128 bytes without control characters, unless the
    /// [lock](crate::Lock::label) or the [`Client`](Client::label) overrides it. Default `host:pid`.
    ///
    /// Connections are named after it, `leasehold:label:role`, in the server's `CLIENT LIST`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into().into();
        self
    }

    /// How long `build` tries to connect, 1 ms to an hour. Default 5 s. It also limits each step of a later handshake.
    /// On Linux a connection counts as broken when sent data stays unacknowledged for longer than this.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How often a fresh connection checks that each server's address still [resolves to the same
    /// server](crate::docs::operations#where-an-address-leads): 100 ms to an hour, or zero for never. It checks only
    /// while a lock is held or was requested. Default: the TTL, but at least 10 s and at most a minute. Whatever this is,
    /// it also checks when two nodes of a quorum show the same server.
    pub fn check_address_every(mut self, pause: Duration) -> Self {
        self.check_address_every = Some(pause);
        self
    }

    /// Maps the server addresses that a cluster or Sentinels announce to those that are reachable from here: behind
    /// address translation, forwarded ports or containers. Each entry maps an announced `host:port` or `host` to
    /// another one; the first match counts. Default none: announced addresses are used as they are.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let builder = Client::builder()
    ///     .url("redis-cluster://localhost:7001")
    ///     .address_map([("172.18.0.2:6379", "localhost:7001"), ("172.18.0.3:6379", "localhost:7002")]);
    /// # let _ = builder;
    /// ```
    ///
    /// An entry that is not an address is an [`Error::Config`] of `build`, and so is a map without a `redis-cluster://`
    /// or `redis-sentinel://` url.
    pub fn address_map<F: AsRef<str>, T: AsRef<str>>(mut self, map: impl IntoIterator<Item = (F, T)>) -> Self {
        let mut all = AddressMap::default();
        let read = map.into_iter().try_for_each(|(from, to)| all.add(from.as_ref(), to.as_ref()));
        self.address_map = read.map(|()| all);
        self
    }

    /// The number of replicas of the server that must have a grant or a renewal before it counts, 0 to 9. Default 0: a
    /// failover may forget the locks acquired last.
    ///
    /// If all replicas must confirm, a lease survives whichever of them takes over; with fewer, it survives if the one
    /// that takes over has confirmed it. An acquire that too few confirm within a quarter of its TTL is taken back, and
    /// counts as [unavailable](Error::Unavailable); a renewal that too few confirm does not move the deadline. Kept
    /// keys are confirmed too, but releases are not: if a failover loses a release, the next holder waits for the rest
    /// of the TTL.
    ///
    /// One `WAIT` confirms all writes of a connection. It takes a round trip, and the user needs the right to that
    /// command. While replicas are missing, each `WAIT` delays other requests on its connection by at most 50 ms. If
    /// replicas acknowledge later than that, it delays them for as long as that takes, up to 400 ms. A replica that is
    /// further away confirms nothing. The setting is not checked against the number of replicas, which may change. With
    /// [`quorum`](Self::quorum) and `memory://` it is an [`Error::Config`] of `build`. This is [rule
    /// 12](crate::docs::safety#rule-12).
    pub fn min_replicas(mut self, replicas: u8) -> Self {
        self.min_replicas = replicas;
        self
    }

    /// Whether scripts may touch keys that they do not declare. Default true: acquires and releases that meet at a
    /// primary of a cluster are batched in one script, though their keys are in many slots. Redis and Valkey return an
    /// error for each key that is on another server, and that lock is requested alone.
    ///
    /// A service whose cluster is made of proxies [may return no such
    /// error](crate::docs::services#several-shards-behind-one-address). With `false` each lock has its own script,
    /// which declares all its keys. [`Client::list`](crate::Client::list) declares none in any case, and only reads.
    pub fn undeclared_keys(mut self, yes: bool) -> Self {
        self.undeclared_keys = yes;
        self
    }

    /// How long a call waits for one answer of the server, including the wait for a connection: 1 ms to an hour.
    /// Default 1 s. Renewals wait for as long as their lease allows. Make it longer than two round trips to the server:
    /// a release asks twice within it.
    pub fn command_timeout(mut self, limit: Duration) -> Self {
        self.options.command_timeout = limit;
        self
    }

    /// Whether locks are acquired first come, first served, unless the lock [overrides it](crate::Lock::fair). Default
    /// no.
    pub fn fair(mut self, fair: bool) -> Self {
        self.options.lock.fair = fair;
        self
    }

    /// How long a [fair](crate::Lock::fair) waiter has to take the lock, once it is its turn, before the next waiter
    /// gets it: 50 ms to an hour; at most the TTL. Default 1 s. Waiters take it within a round trip. A waiter whose
    /// process is stopped costs the others this time.
    pub fn grant_timeout(mut self, timeout: Duration) -> Self {
        self.options.grant_timeout = timeout;
        self
    }

    /// How long a server keeps the floor of a name's fences after the last acquire of that name, zero to 24 hours,
    /// unless the lock [overrides it](crate::Lock::fence_memory). Default 24 hours. Rounded up to milliseconds.
    ///
    /// The floor is a small key beside the lock's, `{name}:lh:fence`. It makes fences grow even if the server's clock
    /// was set back ([rule 9](crate::docs::safety#rule-9)). A shorter memory has a price: **the next fence may be
    /// smaller if the server's clock was set back by more than the memory**. While the clock advances, or stands still,
    /// fences grow with any memory. Zero keeps a floor only until the server's clock has passed the fence, at most two
    /// milliseconds on one server: a released name leaves nothing. That is for programs that lock millions of names;
    /// the page [`deployments`](crate::docs::deployments) says what those cost.
    ///
    /// The fence of a held lock is in the lock's own key, and does not depend on the memory.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.options.lock.fence_memory = memory;
        self
    }

    /// Counts all locks in a metrics group of this name, unless the lock [sets another](crate::Lock::metrics_group).
    /// Default none.
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, name: impl AsRef<str>) -> Self {
        self.options.lock.metrics_group = metrics::Group::named(name.as_ref());
        self
    }

    /// The clock by which leases are judged and keys in memory expire. For tests of what happens when the machine is
    /// suspended.
    #[cfg(feature = "testing")]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks every setting, then connects.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`]: a setting is wrong; the text names it, and its bound. Nothing was sent, except what it
    ///   takes to find that two servers of a quorum are the same, or that one is part of a cluster.
    /// - [`Error::Refused`]: the server refused us; the text has the server's own words.
    /// - [`Error::Unavailable`]: a thread could not be started; the text says so, and the next `build` tries again. Or
    ///   the server could not be reached within `connect_timeout`. For a quorum a majority is enough, and the others
    ///   are connected as they become reachable; [`Error::votes`] has the outcome of each.
    ///
    /// # Cancel safety
    ///
    /// Dropping it closes what was opened.
    pub async fn build(self) -> Result<Client, Error> {
        let client = self.build_lazy()?;
        relayed!(client.scope.engine.connect())?;
        Ok(client)
    }

    /// Checks every setting, and connects at the first use: for a program that must start while its server is down. It
    /// may be called inside a runtime or outside.
    ///
    /// The first call then also takes the time to connect, at most the `connect_timeout`, beyond its own limits;
    /// [`acquire_within`](crate::Lock::acquire_within) keeps its limit, and [`acquire`](crate::Lock::acquire) waits. An
    /// error that [`build`](Self::build) would return is then the error of that call, and the next call tries again.
    ///
    /// # Errors
    ///
    /// [`Error::Config`]; [`Error::Unavailable`] if a thread could not be started; [`Error::Misuse`] in a
    /// process that was forked after a `Client` was made.
    pub fn build_lazy(self) -> Result<Client, Error> {
        let places = self.check()?;
        let (restart_delay, check_every) = (self.restarts_after(), self.checks_every());
        let Self { mut options, connect_timeout, address_map, min_replicas, undeclared_keys, clock, .. } = self;
        options.in_slots = places.iter().any(NodeAddress::is_cluster);
        let (host, stop) = Host::start(&clock).map_err(|error| no_keeper(&error))?;
        let limits =
            Limits { connect: connect_timeout, command: options.command_timeout, min_replicas, undeclared_keys };
        let votes = quorum::votes(places.len(), restart_delay).then_some(restart_delay);
        let names = Names { prefix: options.prefix.clone(), label: options.label.clone() };
        let map = address_map?;
        let (host_too, clock_too) = (host.clone(), clock.clone());
        let config =
            ConnectConfig { limits, host: host_too, clock: clock_too, map, names, home: None, votes, check_every };
        let quorum = Quorum::at(&places, restart_delay, &config);
        metrics::describe();
        let to_connect = Some((places, config));
        Ok(Client::of(Engine::new(options, clock, host, stop, quorum, to_connect)))
    }

    fn restarts_after(&self) -> Duration {
        let unless_set = if self.quorum.is_some() { DEFAULT_RESTART_DELAY } else { Duration::ZERO };
        self.restart_delay.unwrap_or(unless_set)
    }

    fn checks_every(&self) -> Duration {
        let unless_set = || self.options.lock.ttl.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.check_address_every.unwrap_or_else(unless_set)
    }

    fn check(&self) -> Result<Vec<NodeAddress>, Error> {
        let Options { lock, prefix, label, command_timeout, grant_timeout, .. } = &self.options;
        let restart_delay = self.restarts_after();
        if restart_delay > LONGEST_RESTART_DELAY {
            return Err(Error::config(format!(
                "restart_delay is {restart_delay:?}: it must be at most {LONGEST_RESTART_DELAY:?}"
            )));
        }
        lock.check(self.quorum.is_some(), restart_delay)?;
        let least = Duration::from_millis(1);
        check_limit("connect_timeout", self.connect_timeout, least)?;
        check_limit("command_timeout", *command_timeout, least)?;
        if let Some(pause) = self.check_address_every.filter(|pause| !pause.is_zero()) {
            check_limit("check_address_every", pause, Duration::from_millis(100))?;
        }
        check_limit("grant_timeout", *grant_timeout, Duration::from_millis(50))?;
        check_prefix(prefix)?;
        check_label(label)?;
        let has_map = !self.address_map.clone()?.is_empty();
        let places = self.places(restart_delay)?;
        if has_map && !places.iter().any(NodeAddress::is_routed) {
            return Err(Error::config(
                "address_map is set, and the url names the servers themselves: it is for redis-cluster:// and redis-sentinel://, \
                 whose servers are announced by others",
            ));
        }
        self.check_replicas(&places)?;
        Ok(places)
    }

    fn check_replicas(&self, places: &[NodeAddress]) -> Result<(), Error> {
        let replicas = self.min_replicas;
        let wrong = |why: &str| Err(Error::config(format!("min_replicas is {replicas}: {why}")));
        match places {
            _ if replicas == 0 => Ok(()),
            _ if replicas > MOST_REPLICAS => wrong("it must be at most 9"),
            _ if self.quorum.is_some() => {
                wrong("the servers of a quorum have no replicas, a majority of them confirms each lock; leave it out")
            }
            [NodeAddress::Memory(_)] => wrong("memory:// has no replicas; leave it out"),
            _ => Ok(()),
        }
    }

    fn places(&self, restart_delay: Duration) -> Result<Vec<NodeAddress>, Error> {
        match (&self.server, &self.quorum) {
            (Some(_), Some(_)) => {
                Err(Error::config("one server (url or server) and quorum are both set: choose one of them"))
            }
            (Some(server), None) => {
                let place = server.clone()?.place()?;
                if place.is_routed() && !restart_delay.is_zero() {
                    return Err(Error::config(format!(
                        "restart_delay is {restart_delay:?}: a replica that takes over has not restarted, and \
                         may have forgotten a lock all the same; leave it out, or use a quorum"
                    )));
                }
                Ok(vec![place])
            }
            (None, Some(servers)) => NodeAddress::of_quorum(servers.iter().cloned().map(|server| server?.place())),
            (None, None) => {
                Err(Error::config("url is not set: say where the locks are, as in `.url(\"redis://127.0.0.1:6379\")`"))
            }
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the url: it may contain a password.
        f.debug_struct("Builder")
            .field("options", &self.options)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

fn check_limit(name: &str, limit: Duration, least: Duration) -> Result<(), Error> {
    let most = Duration::from_secs(60 * 60);
    if (least..=most).contains(&limit) {
        return Ok(());
    }
    Err(Error::config(format!("{name} is {limit:?}: it must be from {} to {}", Rounded(least), Rounded(most))))
}

fn no_keeper(error: &io::Error) -> Error {
    if error.kind() == io::ErrorKind::Unsupported {
        return Error::misuse(FORKED);
    }
    let text =
        format!("the keeper's thread cannot be started: {error}. Is there a limit on threads, or too little memory?");
    Error::unavailable(text)
}

fn default_label() -> String {
    let pid = std::process::id();
    let host = host_name().unwrap_or_else(|| "unknown".into());
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    format!("{host}:{pid}")
}

#[cfg(unix)]
fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(not(unix))]
fn host_name() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}
