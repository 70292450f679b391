//! The entry point: configuration, validated when it is built.

use std::{fmt, io, sync::Arc, time::Duration};

use crate::{
    capabilities::Capabilities,
    clock::{Clock, SystemClock},
    error::{Error, ErrorKind},
    guarded::Guarded,
    keeper::{Host, Keeper},
    lock::{Lock, check_times},
    node::{
        Node,
        memory::Memory,
        redis::{Limits, Redis, Target},
    },
    shared::{Options, Shared},
};

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_GRANT: Duration = Duration::from_secs(1);
const LONGEST_LABEL: usize = 128;
const LONGEST_PREFIX: usize = 256;

/// Connections to where the locks are, and the keeper that renews them. Cheap to clone: make one per process.
///
/// It works from any runtime, and from none: a clone may be used on another Tokio runtime than the one that built it,
/// or outside of all. Only a runtime that it is built on must have timers and I/O (`enable_all`). Dropping the last clone ends nothing while a lease lives.
#[derive(Clone)]
pub struct Leases {
    shared: Arc<Shared>,
}

impl Leases {
    /// Connects with the defaults of [`builder`](Self::builder).
    ///
    /// - `redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS (crate feature `tls-rustls` or
    ///   `tls-native`)
    /// - `unix:///path[?db=…&user=…&password=…]`
    /// - `memory://` for a store of its own inside this process, `memory://name` for one shared by everybody in this
    ///   process who says the same name
    ///
    /// # Errors
    ///
    /// See [`Builder::build`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, Error> {
        Self::builder().url(url).build().await
    }

    /// The same behaviour without a server: for tests, demos and first tries. Nobody else sees these locks.
    ///
    /// # Panics
    ///
    /// If the operating system cannot start a thread.
    #[must_use]
    #[allow(clippy::expect_used, reason = "as std::thread::spawn; `connect(\"memory://\")` gives an error instead")]
    pub fn in_memory() -> Self {
        let builder = Self::builder();
        let (host, stop) = Host::start(builder.keeper).expect("the keeper's thread starts");
        Self { shared: Shared::new(builder.options, builder.clock, host, stop, Memory::private()) }
    }

    /// Everything that can be set.
    pub fn builder() -> Builder {
        let options = Options {
            ttl: DEFAULT_TTL,
            max_hold: None,
            prefix: String::new(),
            label: default_label(),
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            fair: false,
            grant: DEFAULT_GRANT,
        };
        let clock = Arc::new(SystemClock);
        Builder { url: None, options, connect_timeout: DEFAULT_CONNECT_TIMEOUT, keeper: Keeper::default(), clock }
    }

    /// The lock of this name. Nothing is sent yet.
    ///
    /// Its key is exactly the builder's prefix and this name: what other libraries with the same key lock, this locks.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.shared.clone(), name.as_ref())
    }

    /// A value that refuses writers from the past, by their fence.
    #[must_use]
    pub fn guarded(&self, key: impl AsRef<str>) -> Guarded {
        Guarded::new(self.shared.clone(), key.as_ref())
    }

    /// What the server can do for waiters and holders, and what it tells of itself. For a look at a deployment; nothing
    /// has to be asked before locks are used.
    ///
    /// It asks the server to push if that was not done yet, and waits for at most two command time-outs.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or this was closed. What it refuses to tell is no error.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        self.shared.check_open()?;
        Ok(self.shared.node.capabilities(self.shared.options.command_timeout).await?)
    }

    /// Ends everything that came from this and its clones: refuses new work, ends waiters with
    /// [`Closed`](crate::AcquireError::Closed), signals [`Closed`](crate::LossReason::Closed) to every lease and
    /// releases it. Waits for the releases, at most a command time-out in all; what is not confirmed by then goes on in
    /// the background.
    ///
    /// Call it before the process exits: what was not released by then stays locked for a TTL.
    ///
    /// # Cancel safety
    ///
    /// New work is refused and leases are signalled from the first poll on; the releases go on in the background.
    pub async fn close(&self) {
        self.shared.close().await;
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("node", &self.shared.node)
            .field("options", &self.shared.options)
            .field("closed", &self.shared.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// Settings of a [`Leases`]. [`build`](Self::build) checks them all.
#[derive(Clone)]
#[must_use = "nothing is connected before `build`"]
pub struct Builder {
    url: Option<String>,
    options: Options,
    connect_timeout: Duration,
    keeper: Keeper,
    clock: Arc<dyn Clock>,
}

impl Builder {
    /// Where the locks are; see [`Leases::connect`] for what can stand here. Required.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// How long a key lives without a renewal, 100 ms to a day, unless the lock says otherwise. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The longest that any lease is renewed for, unless the lock says otherwise. Default `None`: no bound.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.options.max_hold = max_hold.into();
        self
    }

    /// Stands before every name, at most 256 bytes. Default none.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// How others see us while we hold a lock, 1 to 128 bytes without control characters. Default `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// How long `build` tries to connect, 1 ms to an hour. Default 5 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long one answer of the server is waited for, 1 ms to an hour. Default 1 s. Renewals wait for as long as
    /// their lease allows.
    pub fn command_timeout(mut self, limit: Duration) -> Self {
        self.options.command_timeout = limit;
        self
    }

    /// Whether locks are acquired first come, first served, unless the lock [says otherwise](crate::Lock::fair). Default
    /// no.
    pub fn fair(mut self, fair: bool) -> Self {
        self.options.fair = fair;
        self
    }

    /// How long a [fair](crate::Lock::fair) waiter whose turn has come has to take the lock before it goes to the next
    /// one, 50 ms to an hour; at most the TTL. Default 1 s. Waiters take it within a round trip: it is what one costs
    /// the others whose process is stopped.
    pub fn grant(mut self, grant: Duration) -> Self {
        self.options.grant = grant;
        self
    }

    /// Where leases are kept alive. Default: a thread of its own.
    pub fn keeper(mut self, keeper: Keeper) -> Self {
        self.keeper = keeper;
        self
    }

    /// The clock that leases are judged by. For tests of what happens when the machine is suspended.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Checks every setting, then connects.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`]: a setting is wrong; the text names it, and its bound. Nothing was sent.
    /// - [`ErrorKind::Refused`]: the server turned us down, in its own words.
    /// - [`ErrorKind::Unavailable`]: it could not be reached for `connect_timeout`.
    ///
    /// # Cancel safety
    ///
    /// Dropping it closes what was opened.
    pub async fn build(self) -> Result<Leases, Error> {
        let place = self.check()?;
        let Self { options, connect_timeout, keeper, clock, .. } = self;
        let (host, stop) = Host::start(keeper).map_err(|error| no_keeper(&error))?;
        let node: Arc<dyn Node> = match place {
            Place::Memory(name) if name.is_empty() => Memory::private(),
            Place::Memory(name) => Memory::named(&name),
            Place::Redis(target) => {
                let limits = Limits { connect: connect_timeout, command: options.command_timeout };
                Arc::new(Redis::connect(target, limits, host.clone(), clock.clone()).await?)
            }
        };
        Ok(Leases { shared: Shared::new(options, clock, host, stop, node) })
    }

    fn check(&self) -> Result<Place, Error> {
        let Options { ttl, max_hold, prefix, label, command_timeout, grant, fair: _ } = &self.options;
        check_times(*ttl, *max_hold)?;
        let least = Duration::from_millis(1);
        check_limit("connect_timeout", self.connect_timeout, least)?;
        check_limit("command_timeout", *command_timeout, least)?;
        check_limit("grant", *grant, Duration::from_millis(50))?;
        if prefix.len() > LONGEST_PREFIX {
            let length = prefix.len();
            return Err(Error::config(format!("prefix is {length} bytes long: {LONGEST_PREFIX} is the most")));
        }
        if label.is_empty() || label.len() > LONGEST_LABEL || label.chars().any(char::is_control) {
            return Err(Error::config(format!(
                "label is {label:?}: it must have 1 to {LONGEST_LABEL} bytes and no control characters"
            )));
        }
        let url = self.url.as_deref().ok_or_else(|| {
            Error::config("url is not set: say where the locks are, as in `.url(\"redis://127.0.0.1:6379\")`")
        })?;
        match url.strip_prefix("memory://") {
            Some(name) => Ok(Place::Memory(name.into())),
            None => Target::parse(url).map(Place::Redis),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the url: it may hold a password.
        f.debug_struct("Builder")
            .field("options", &self.options)
            .field("connect_timeout", &self.connect_timeout)
            .field("keeper", &self.keeper)
            .finish_non_exhaustive()
    }
}

enum Place {
    Memory(String),
    Redis(Target),
}

fn check_limit(name: &str, limit: Duration, least: Duration) -> Result<(), Error> {
    let most = Duration::from_secs(60 * 60);
    if (least..=most).contains(&limit) {
        return Ok(());
    }
    Err(Error::config(format!("{name} is {limit:?}: it must be from {least:?} to {most:?}")))
}

fn no_keeper(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the keeper's thread cannot be started: {error}"))
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
