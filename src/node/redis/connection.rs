//! One connection: made, used, given up for dead, closed.

use std::{
    fmt,
    future::{Future, poll_fn},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fred::{
    clients::{Client, Pipeline, WithOptions},
    error::{Error as FredError, ErrorKind as FredKind},
    interfaces::{ClientLike, EventInterface},
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Value,
        config::{
            Config, ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig,
        },
    },
};
use parking_lot::Mutex;
use socket2::TcpKeepalive;
use tokio::task::AbortHandle;

use super::{
    failure::{classify, is_full, is_refusal, words},
    reply,
    script::Script,
    tls,
    url::{Place, Target},
};
use crate::{
    clock::{Clock, Time},
    error::{Error, ErrorKind},
    keeper::Host,
    node::Failure,
};

/// Reconnection starts after this and doubles to the longest; a server that was away for a blink costs no more.
const FIRST_RETRY_MS: u32 = 1;
const LONGEST_RETRY_MS: u32 = 500;

/// Script, number of keys, and as many keys and arguments as a lone acquire has.
const ARGUMENTS: usize = 6;

/// The pause between two tries to connect for the first time.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// How many pushed messages may wait for us; more at a time count as missed.
const BACKLOG: usize = 4096;

/// A peer that has gone without a word is noticed by the kernel: this long after the last one, and as many times more.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(1);

/// Time-outs of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) command: Duration,
}

/// What holds for the newest connection to the server only.
#[derive(Debug, Default)]
struct Newest {
    /// How many there were before it.
    number: AtomicU64,
    /// When it was made. All times are in nanoseconds.
    made: AtomicU64,
    /// How long calls have waited in vain since the last answer, and until when that was reckoned.
    silent: AtomicU64,
    reckoned: AtomicU64,
    /// The scripts that were sent on it, and that the server so knows.
    known: AtomicU32,
}

impl Newest {
    fn begins(&self, clock: &dyn Clock) {
        self.made.store(Time::now(clock).as_nanos(), Ordering::Relaxed);
        self.silent.store(0, Ordering::Relaxed);
        self.known.store(0, Ordering::Relaxed);
    }
}

/// How a script's answer came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// The server will tell when a key changes that was read.
    pub(super) watched: bool,
    /// The script was sent twice, for the server did not know it: what was sent after it may have come before it.
    pub(super) resent: bool,
}

/// A connection to one server, multiplexed, which reconnects by itself.
pub(super) struct Connection {
    client: Client,
    server: Arc<str>,
    limits: Limits,
    newest: Arc<Newest>,
    clock: Arc<dyn Clock>,
    reconnecting: AtomicBool,
    /// Why the last reconnection was turned down, until one succeeds.
    turned_down: Arc<Mutex<Option<FredError>>>,
    tasks: [AbortHandle; 2],
}

impl Connection {
    /// Connects, trying until `limits.connect` has passed or the server refuses us. The connection lives on the runtime
    /// that this runs on. Not cancel safe: fred goes on connecting, so this must be run to its end.
    pub(super) async fn open(
        target: &Target,
        limits: Limits,
        clock: &Arc<dyn Clock>,
        last_reason: &Mutex<String>,
    ) -> Result<Self, Error> {
        let config = config(target)?;
        let until = Time::now(&**clock) + limits.connect;
        loop {
            let error = match Self::try_open(target, config.clone(), limits, clock.clone()).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if is_refusal(&error) {
                return Err(classify(&target.to_string(), &error, limits.connect).into());
            }
            if Time::now(&**clock) + CONNECT_PAUSE >= until {
                return Err(unreachable(target, limits, words(&error)));
            }
            *last_reason.lock() = words(&error).into();
            // On this runtime's own timers: the keeper's end with a `build` that is given up.
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "like fred's own tasks it belongs to this runtime and this connection"
    )]
    async fn try_open(
        target: &Target,
        config: Config,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, FredError> {
        let settings = connection(target, limits);
        let client = Client::new(config, Some(performance(limits)), Some(settings), Some(reconnection()));
        let router = connect(&client).await?.abort_handle();
        let (turned_down, newest) = (Arc::new(Mutex::new(None)), Arc::new(Newest::default()));
        newest.begins(&*clock);
        let watching = watch(client.clone(), turned_down.clone(), newest.clone(), clock.clone());
        let watch = tokio::task::spawn(watching).abort_handle();
        Ok(Self {
            client,
            server: target.to_string().into(),
            limits,
            newest,
            clock,
            reconnecting: AtomicBool::new(false),
            turned_down,
            tasks: [router, watch],
        })
    }

    /// Runs a script once: by its text the first time, so that this takes one round trip on a server that has never seen
    /// it, then by its hash; with its text again if the server has forgotten it. `limit` bounds both. With `watch` the
    /// server is asked to tell when a key changes that the script reads; the answer says whether it will.
    ///
    /// `arguments` gives the keys and the arguments, and is asked again for the second sending: a copy kept for that
    /// would cost every call.
    pub(super) async fn run(
        self: Arc<Self>,
        host: Host,
        script: &'static Script,
        keys: usize,
        arguments: impl Fn(&mut Vec<Value>) + Send,
        limit: Duration,
        watch: bool,
    ) -> Result<(Value, Way), Failure> {
        let (mut client, number) = (once(&self.client, limit), self.number());
        let began = self.clock.now();
        // What follows on this connection comes after it, and may take it for known.
        let is_first = self.newest.known.fetch_or(script.bit, Ordering::Relaxed) & script.bit == 0;
        let (mut by_hash, mut resent) = (!is_first, false);
        let outcome = loop {
            let (command, text) = if by_hash { ("EVALSHA", script.hash()) } else { ("EVAL", *script.source) };
            let mut all: Vec<Value> = Vec::with_capacity(ARGUMENTS);
            all.push(text.into());
            all.push(i64::try_from(keys).unwrap_or(i64::MAX).into());
            arguments(&mut all);
            let outcome = if watch {
                send_watched(&client, command, all).await
            } else {
                client.custom(custom(command), all).await.map(|value| (value, false))
            };
            match outcome {
                Err(error) if by_hash && unknown_script(&error) => {
                    (by_hash, resent) = (false, true);
                    let left = limit.saturating_sub(self.clock.now().saturating_sub(began));
                    // Zero is fred's "for ever".
                    client = once(&self.client, left.max(SHORTEST_LIMIT));
                }
                outcome => break outcome,
            }
        };
        match outcome {
            Ok((value, watched)) => {
                self.newest.silent.store(0, Ordering::Relaxed);
                Ok((value, Way { watched, resent }))
            }
            Err(error) if error.kind() == &FredKind::Timeout => {
                self.note_silence(&host, limit, number);
                Err(self.why_silent(&error, limit))
            }
            Err(error) => Err(classify(&self.server, &error, limit)),
        }
    }

    /// Sends a command that is no script.
    pub(super) async fn command(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
        limit: Duration,
    ) -> Result<Value, FredError> {
        ask(&self.client, command, arguments, limit).await
    }

    /// What the server says of itself; nothing if it keeps that to itself.
    pub(super) async fn info(self: Arc<Self>, host: Host, limit: Duration) -> Result<String, Failure> {
        let number = self.number();
        match self.command("INFO", Vec::new(), limit).await {
            Ok(info) => {
                self.newest.silent.store(0, Ordering::Relaxed);
                Ok(info.as_string().unwrap_or_default())
            }
            Err(error) => {
                // It may be all that is asked on this connection.
                if error.kind() == &FredKind::Timeout {
                    self.note_silence(&host, limit, number);
                }
                let failure = classify(&self.server, &error, limit);
                if failure.is_refusal() { Ok(String::new()) } else { Err(failure) }
            }
        }
    }

    /// One of its settings; `None` if it keeps that to itself.
    pub(super) async fn setting(&self, name: &'static str, limit: Duration) -> Option<String> {
        reply::setting(&self.command("CONFIG", vec!["GET".into(), name.into()], limit).await.ok()?)
    }

    /// Hears of each new connection to the server, which knows nothing of the one before.
    pub(super) fn reconnections(&self) -> tokio::sync::broadcast::Receiver<Server> {
        self.client.reconnect_rx()
    }

    /// The reason behind a silence, where the server gave one: it turns our reconnections down.
    fn why_silent(&self, error: &FredError, limit: Duration) -> Failure {
        let turned_down = self.turned_down.lock();
        match turned_down.as_ref().filter(|reason| is_refusal(reason) || is_full(reason)) {
            Some(reason) => classify(&self.server, reason, limit).halfway(),
            None => classify(&self.server, error, limit),
        }
    }

    fn number(&self) -> u64 {
        self.newest.number.load(Ordering::Relaxed)
    }

    /// fred does not notice a dead peer by itself while commands are written: half a command time-out of silence does. What
    /// waits side by side waits once; and what was asked before the newest connection was made, which was `number` then,
    /// says nothing of that one.
    fn note_silence(self: &Arc<Self>, host: &Host, waited: Duration, number: u64) {
        if number != self.number() {
            return;
        }
        let now = Time::now(&*self.clock);
        let reckoned = Time::from_nanos(self.newest.reckoned.fetch_max(now.as_nanos(), Ordering::Relaxed));
        let news = u64::try_from(waited.min(now.since(reckoned)).as_nanos()).unwrap_or(u64::MAX);
        let silent = self.newest.silent.fetch_add(news, Ordering::Relaxed).saturating_add(news);
        if Duration::from_nanos(silent) >= self.limits.command / 2 {
            self.newest.silent.store(0, Ordering::Relaxed);
            self.clone().reconnect(host);
        }
    }

    /// Whether the connection is younger than any silence on it could be told by.
    pub(super) fn is_new(&self) -> bool {
        let made = Time::from_nanos(self.newest.made.load(Ordering::Relaxed));
        Time::now(&*self.clock).since(made) < self.limits.command / 2
    }

    /// Gives the connection up and makes a new one, in the background, one at a time. While there is none fred is making
    /// one, and would make another after it.
    pub(super) fn reconnect(self: Arc<Self>, host: &Host) {
        if !self.client.is_connected() || self.reconnecting.swap(true, Ordering::AcqRel) {
            return;
        }
        host.spawn(async move {
            // Against a frozen server this call does not return by itself.
            let _outcome = tokio::time::timeout(self.limits.command, self.client.force_reconnection()).await;
            self.reconnecting.store(false, Ordering::Release);
        });
    }

    pub(super) async fn close(&self, limit: Duration) {
        // Quitting hangs while the server is away; dropping ends what is left.
        let _outcome = tokio::time::timeout(limit, self.client.quit()).await;
    }
}

/// fred's tasks hold the client, and the client the connection: only ending them closes it.
impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Sends a command that is no script.
pub(super) async fn ask(
    client: &Client,
    command: &'static str,
    arguments: Vec<Value>,
    limit: Duration,
) -> Result<Value, FredError> {
    once(client, limit).custom(custom(command), arguments).await
}

/// One sending at the transport: resends are ours (rule 8). `custom` is what obeys these options.
/// What an answer has at least.
const SHORTEST_LIMIT: Duration = Duration::from_millis(1);

fn once(client: &Client, limit: Duration) -> WithOptions<Client> {
    let options = Options { max_attempts: Some(1), timeout: Some(limit), ..Options::default() };
    client.with_options(&options)
}

fn custom(command: &'static str) -> CustomCommand {
    CustomCommand::new_static(command, ClusterHash::FirstKey, false)
}

/// Sends a command right behind the one that has the keys it reads watched. fred does not call back what it has queued
/// of a pipeline when the time is over; but it keeps the order, so whoever undoes it comes later if it takes the same
/// way.
async fn send_watched(
    client: &WithOptions<Client>,
    command: &'static str,
    arguments: Vec<Value>,
) -> Result<(Value, bool), FredError> {
    let pipeline = Pipeline::from(client.clone());
    let _queued: Value = pipeline.custom(custom("CLIENT"), vec!["CACHING", "YES"]).await?;
    let _queued: Value = pipeline.custom(custom(command), arguments).await?;
    let mut answers = pipeline.try_all::<Value>().await;
    let answer = answers.pop().unwrap_or_else(|| Err(FredError::new(FredKind::Protocol, "no answer to a pipeline")))?;
    // Refused on a connection that does not track, or not any more: the next command runs all the same.
    Ok((answer, answers.pop().is_some_and(|caching| caching.is_ok())))
}

fn unknown_script(error: &FredError) -> bool {
    error.details().starts_with("NOSCRIPT")
}

/// Connects for the first time. The handle is of fred's task, which ends with the connection, and it with that.
pub(super) async fn connect(client: &Client) -> Result<ConnectHandle, FredError> {
    let mut connected = Box::pin(client.wait_for_connect());
    // Its first poll subscribes to the outcome, so connecting must not begin before.
    let early = poll_fn(|context| Poll::Ready(connected.as_mut().poll(context).is_ready())).await;
    let mut connecting = client.connect();
    // fred bounds this itself, by the time-outs of `connection`.
    tokio::select! {
        biased;
        outcome = &mut connected, if !early => outcome?,
        ended = &mut connecting => match ended {
            // A runtime without timers or I/O.
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            _ => connected.await?,
        },
    }
    Ok(connecting)
}

/// Keeps the last reason for which the server turned us down, and forgets with each new connection what the server knew:
/// it may be another one.
async fn watch(client: Client, turned_down: Arc<Mutex<Option<FredError>>>, newest: Arc<Newest>, clock: Arc<dyn Clock>) {
    let (mut errors, mut connections) = (client.error_rx(), client.reconnect_rx());
    loop {
        // What both have waits in this order: a reason to turn us down comes before what we were let in by.
        let reason = tokio::select! {
            biased;
            error = errors.recv() => error.map(|(error, _server)| Some(error)),
            connection = connections.recv() => connection.map(|_server| None),
        };
        match reason {
            Ok(reason) => {
                if let Some(error) = &reason {
                    tracing::debug!(name: "connection", target: "leasehold", error = words(error));
                } else {
                    newest.number.fetch_add(1, Ordering::Relaxed);
                    newest.begins(&*clock);
                }
                *turned_down.lock() = reason;
            }
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        }
    }
}

pub(super) fn unreachable(target: &Target, limits: Limits, reason: &str) -> Error {
    let Limits { connect, .. } = limits;
    let text = format!(
        "cannot reach redis at {target} within {connect:?}: {reason}. Is the server running there, and is the url right?"
    );
    Error::new(ErrorKind::Unavailable, text)
}

pub(super) fn config(target: &Target) -> Result<Config, Error> {
    let (server, tls) = match &target.place {
        Place::Unix(path) => (ServerConfig::Unix { path: path.clone() }, false),
        Place::Tcp { host, port, tls } => {
            (ServerConfig::Centralized { server: Server::new(host.as_str(), *port) }, *tls)
        }
    };
    let mut config = Config {
        server,
        username: target.user.clone(),
        password: target.password.clone(),
        database: Some(target.database).filter(|&database| database != 0),
        ..Config::default()
    };
    if tls {
        tls::enable(&mut config)?;
    }
    Ok(config)
}

pub(super) fn performance(limits: Limits) -> PerformanceConfig {
    PerformanceConfig { default_command_timeout: limits.command, ..PerformanceConfig::default() }
}

/// As [`performance`], for a connection that is pushed to: room for what comes in a burst.
pub(super) fn receiving(limits: Limits) -> PerformanceConfig {
    PerformanceConfig { broadcast_channel_capacity: BACKLOG, ..performance(limits) }
}

/// A step of a handshake may take as long as an answer, for each of its round trips; and not the ten seconds that fred
/// would wait for one that hangs.
pub(super) fn connection(target: &Target, limits: Limits) -> ConnectionConfig {
    // TCP, and two for TLS before 1.3.
    let connecting = if matches!(target.place, Place::Tcp { tls: true, .. }) { 3 } else { 1 };
    // PING or AUTH, CLIENT ID, INFO; and SELECT.
    let greeting = if target.database == 0 { 3 } else { 4 };
    let limit = |round_trips| limits.connect.min(limits.command.saturating_mul(round_trips));
    ConnectionConfig {
        connection_timeout: limit(connecting),
        internal_command_timeout: limit(greeting),
        max_command_attempts: 1,
        reconnect_on_auth_error: true,
        // LOADING, READONLY and their like are answers, not reasons to drop the connection under everybody else.
        reconnect_errors: Vec::new(),
        tcp: TcpConfig {
            nodelay: Some(true),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_AGAIN)),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: Some(limits.connect),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

fn reconnection() -> ReconnectPolicy {
    // Zero attempts: for ever.
    let mut policy = ReconnectPolicy::new_exponential(0, FIRST_RETRY_MS, LONGEST_RETRY_MS, 2);
    policy.set_jitter(0);
    policy
}
