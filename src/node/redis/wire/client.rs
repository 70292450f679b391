//! fred's clients as we use them: one connection, which fred never reconnects, and requests that it sends once.

use std::{
    future::{Future, poll_fn},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fred::{
    clients::{Client, Pipeline, WithOptions},
    interfaces::{ClientLike, EventInterface, PubsubInterface},
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Message, Value,
        config::{Config as FredConfig, ConnectionConfig, Options, PerformanceConfig, Server, ServerConfig, TcpConfig},
    },
};
use socket2::TcpKeepalive;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::AbortHandle,
};

use super::{
    error::{Error, ErrorKind, is_answer, words},
    tls, weighed,
};
use crate::tls::Tls;

/// How many notifications may wait for us; beyond that, they count as missed. Redis 6.2 sends one for every key that we
/// renew ourselves, so this has room for some batches of renewals. fred reserves this capacity, at some 500 bytes each,
/// for eight kinds of events, two of which we receive.
const BACKLOG: usize = 2048;

/// The kernel notices a silent peer: it probes this long after the last packet, and then at the shorter interval.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(1);

/// A command, with its arguments.
pub(crate) type Command = (&'static str, Vec<Value>);

/// The server's answer to a command, or why there is no answer.
pub(crate) type Answer = Result<Value, Error>;

/// The server to connect to, and our user there.
#[derive(Debug, Clone)]
pub(crate) struct Config(FredConfig);

/// A connection; it is closed when this is dropped.
pub(crate) struct Wire {
    fred: Client,
    task: AbortHandle,
    load: Arc<AtomicUsize>,
}

/// A connection while it runs: its pushes, and its end.
pub(crate) struct Running {
    pushes: Receiver<Message>,
    /// fred's task, whose outcome is the connection's error; `None` once it has ended.
    task: Option<ConnectHandle>,
}

impl Config {
    pub(crate) fn of_host(host: &str, port: u16, database: Option<u8>) -> Self {
        let server = ServerConfig::Centralized { server: Server::new(host, port) };
        Self(FredConfig { server, database, ..FredConfig::default() })
    }

    #[cfg(unix)]
    pub(crate) fn of_socket(path: std::path::PathBuf, database: Option<u8>) -> Self {
        Self(FredConfig { server: ServerConfig::Unix { path }, database, ..FredConfig::default() })
    }

    pub(crate) fn log_in(&mut self, user: Option<String>, password: Option<String>) {
        (self.0.username, self.0.password) = (user, password);
    }

    /// Reads certificates, which may take long.
    pub(crate) fn enable_tls(&mut self, tls: &Tls) -> Result<(), String> {
        tls::enable(&mut self.0, tls)
    }
}

/// The settings of a connection. Each step of a handshake may take as long as the whole handshake; fred would wait ten
/// seconds for a step that hangs. A command time-out would be too short: over a slow link a round trip may take longer
/// than an answer should.
fn settings(connect: Duration) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: connect,
        internal_command_timeout: connect,
        max_command_attempts: 1,
        // WRONGPASS, LOADING, READONLY and the like are answers, not reasons to drop a connection that others use.
        reconnect_on_auth_error: false,
        reconnect_errors: Vec::new(),
        tcp: TcpConfig {
            nodelay: Some(true),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_AGAIN)),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: Some(connect),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    }
}

/// Connects, within `connect` for each step; `is_pushed_to` if the connection is for pushes. fred's task has no
/// reconnect policy, so it ends with the connection and cancels what is left in its queue.
pub(crate) async fn connect(
    config: Config,
    connect: Duration,
    command: Duration,
    is_pushed_to: bool,
) -> Result<(Wire, Running), Error> {
    let mut performance = PerformanceConfig { default_command_timeout: command, ..PerformanceConfig::default() };
    if is_pushed_to {
        performance.broadcast_channel_capacity = BACKLOG;
    }
    let client = Client::new(config.0, Some(performance), Some(settings(connect)), None);
    let pushes = client.message_rx();
    let mut connected = Box::pin(client.wait_for_connect());
    // The first poll subscribes to the outcome, so it must come before `connect`.
    let early = poll_fn(|context| Poll::Ready(connected.as_mut().poll(context).is_ready())).await;
    let mut task = client.connect();
    // If dropped, this ends fred's task, which would otherwise keep a connection that has no owner.
    let wire = Wire { fred: client.clone(), task: task.abort_handle(), load: Arc::default() };
    // fred bounds this itself, by the time-outs of `settings`.
    let task = tokio::select! {
        biased;
        outcome = &mut connected, if !early => outcome.map(|()| Some(task)),
        ended = &mut task => match ended {
            // A runtime without timers or I/O.
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            _ => connected.await.map(|()| None),
        },
    }?;
    Ok((wire, Running { pushes, task }))
}

impl Wire {
    /// Sends a command when first polled, and returns the answer.
    pub(crate) async fn ask(&self, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
        self.check()?;
        self.once(limit).custom(custom(command), arguments).await.map_err(Error::from)
    }

    /// Sends two commands, one right behind the other, and returns both answers.
    pub(crate) async fn ask_behind(
        &self,
        first: Command,
        command: Command,
        limit: Duration,
    ) -> Result<(Answer, Answer), Error> {
        let answers = self.ask_each([first, command], limit).await?;
        let [first, second] = <[_; 2]>::try_from(answers).map_err(|_| unread())?;
        Ok((first, second))
    }

    /// Sends commands one right behind the other, and returns the answer of each. An error applies to all of them. fred
    /// does not dequeue them on a time-out, but it keeps the order, so an undo on the same link is sent later.
    pub(crate) async fn ask_each(
        &self,
        commands: impl IntoIterator<Item = Command>,
        limit: Duration,
    ) -> Result<Vec<Answer>, Error> {
        let (pipeline, mut many) = (Pipeline::from(self.once(limit)), 0);
        for (command, arguments) in commands {
            let _queued: Value = pipeline.custom(custom(command), arguments).await?;
            many += 1;
        }
        self.check()?;
        let answers = pipeline.try_all::<Value>().await.into_iter();
        let mut answers: Vec<Answer> = answers.map(|answer| answer.map_err(Error::from)).collect();
        // fred reports a common error only once.
        let is_of_all = matches!(&answers[..], [Err(error)] if !is_answer(error));
        if answers.len() == many && !is_of_all {
            return Ok(answers);
        }
        Err(answers.pop().and_then(Result::err).unwrap_or_else(unread))
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), Error> {
        self.fred.subscribe(channel).await.map_err(Error::from)
    }

    /// The first argument of a request, which weighs as much as the whole request for as long as fred holds that.
    pub(crate) fn weighed(&self, text: impl AsRef<str> + Send + 'static, rest: &[Value]) -> Value {
        weighed::argument(text, rest, &self.load).into()
    }

    /// The weight of all requests that fred holds.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Sends `QUIT` behind everything sent before. It may hang.
    pub(crate) async fn quit(&self) {
        let _outcome = self.fred.quit().await;
    }

    /// Closes the connection and drops everything queued on it.
    pub(crate) fn end(&self) {
        self.task.abort();
    }

    /// Fails if a request cannot be handed over: once the task has ended, no receiver takes it.
    fn check(&self) -> Result<(), Error> {
        if self.task.is_finished() { Err(Error::unsent()) } else { Ok(()) }
    }

    /// One sending at the transport: resends are ours (rule 8). `custom` obeys these options.
    fn once(&self, limit: Duration) -> WithOptions<Client> {
        let options = Options { max_attempts: Some(1), timeout: Some(limit), ..Options::default() };
        self.fred.with_options(&options)
    }
}

/// fred's task holds the client, and the client the connection, so only the task's end closes the connection.
impl Drop for Wire {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Completes when the connection has ended, with the reason if there is one. By then its task has answered or
    /// dropped all its requests.
    pub(crate) async fn ended(&mut self) -> Option<Error> {
        ended(&mut self.task).await
    }

    /// The next push; `None` if some were missed, an error when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, String> {
        tokio::select! {
            message = self.pushes.recv() => match message {
                Ok(message) => Ok(Some(message.value)),
                Err(RecvError::Lagged(_)) => Ok(None),
                Err(RecvError::Closed) => Err("the receiver has ended".into()),
            },
            error = ended(&mut self.task) => {
                Err(error.as_ref().map_or("its connection has ended", words).into())
            }
        }
    }
}

async fn ended(task: &mut Option<ConnectHandle>) -> Option<Error> {
    let ended = task.as_mut()?.await;
    *task = None;
    ended.ok()?.err().map(Error::from)
}

fn custom(command: &'static str) -> CustomCommand {
    CustomCommand::new_static(command, ClusterHash::FirstKey, false)
}

fn unread() -> Error {
    Error::new(ErrorKind::Other, "the answers cannot be read")
}
