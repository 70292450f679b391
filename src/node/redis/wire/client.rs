//! fred's clients, as we have them: one connection, which fred never makes again, and requests that it sends once.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fred::{
    clients::{Client as FredClient, Pipeline, WithOptions},
    error::Error as FredError,
    interfaces::{ClientLike, EventInterface, PubsubInterface},
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Message, Value,
        config::{ConnectionConfig, Options, PerformanceConfig, Server, TcpConfig},
    },
};
use socket2::TcpKeepalive;
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    task::AbortHandle,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    config::Config,
    error::{Error, ErrorKind, is_answer, words},
    weighed,
};

/// How many notifications may wait for us; more at a time count as missed. Redis 6.2 sends one for every key that we
/// renew ourselves, so some batches of these fit in. fred sets aside as much, some 500 bytes for each, for eight kinds
/// of news, of which we hear two.
const BACKLOG: usize = 2048;

/// A peer that has gone without a word is noticed by the kernel: this long after the last one, and as many times more.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(1);

/// A command, with its arguments.
pub(crate) type Command = (&'static str, Vec<Value>);

/// The server's answer to a command, or why there is none.
pub(crate) type Answer = Result<Value, Error>;

/// What sends on a connection.
#[derive(Clone)]
pub(crate) struct Client {
    fred: FredClient,
    task: AbortHandle,
    load: Arc<AtomicUsize>,
}

/// A connection, which ends with this.
pub(crate) struct Wire(Client);

/// fred's task for a connection.
pub(crate) struct Running {
    errors: Receiver<(FredError, Option<Server>)>,
    /// `None` once it has ended.
    task: Option<ConnectHandle>,
}

/// What a server pushes on a connection.
pub(crate) struct Pushes {
    messages: Receiver<Message>,
    running: Running,
}

/// Connects, within this time for each step of it.
pub(crate) async fn connect(config: Config, connect: Duration, command: Duration) -> Result<(Wire, Running), Error> {
    begin(FredClient::new(config.0, Some(performance(command)), Some(settings(connect)), None)).await
}

/// The same to be pushed to: with room for what comes in a burst.
pub(crate) async fn receive(config: Config, connect: Duration, command: Duration) -> Result<(Wire, Pushes), Error> {
    let performance = PerformanceConfig { broadcast_channel_capacity: BACKLOG, ..performance(command) };
    let client = FredClient::new(config.0, Some(performance), Some(settings(connect)), None);
    let messages = client.message_rx();
    let (wire, running) = begin(client).await?;
    Ok((wire, Pushes { messages, running }))
}

fn performance(command: Duration) -> PerformanceConfig {
    PerformanceConfig { default_command_timeout: command, ..PerformanceConfig::default() }
}

/// The settings of a connection. Each step of a handshake has the time that all of it may take, and not the ten seconds
/// that fred would wait for one that hangs. A command time-out would be too short: over a slow link each round trip may
/// take longer than an answer should.
fn settings(connect: Duration) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: connect,
        internal_command_timeout: connect,
        max_command_attempts: 1,
        // WRONGPASS, LOADING, READONLY and their like are answers, not reasons to drop the connection under everybody else.
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

/// Without a policy for connecting again fred's task ends with the connection, and cancels what is left in its queue. A
/// request that comes later stays there, and nobody reads it.
async fn begin(client: FredClient) -> Result<(Wire, Running), Error> {
    let errors = client.error_rx();
    let task = connected(&client).await?;
    let wire = Wire(Client { fred: client, task: task.abort_handle(), load: Arc::default() });
    Ok((wire, Running { errors, task: Some(task) }))
}

/// Connects for the first time. The handle is of fred's task, which ends with the connection, and it with that.
///
/// # Cancel safety
///
/// Dropped, it ends fred's task, which would go on to a connection that nobody has.
async fn connected(client: &FredClient) -> Result<ConnectHandle, FredError> {
    let mut connected = Box::pin(client.wait_for_connect());
    // Its first poll subscribes to the outcome, so connecting must not begin before.
    let early = poll_fn(|context| Poll::Ready(connected.as_mut().poll(context).is_ready())).await;
    let mut connecting = AbortOnDropHandle::new(client.connect());
    // fred bounds this itself, by the time-outs of `settings`.
    tokio::select! {
        biased;
        outcome = &mut connected, if !early => outcome?,
        ended = &mut connecting => match ended {
            // A runtime without timers or I/O.
            Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
            _ => connected.await?,
        },
    }
    Ok(connecting.detach())
}

impl Client {
    /// Sends a command when this is first polled; the answer.
    pub(crate) async fn ask(&self, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
        self.check()?;
        self.once(limit).custom(custom(command), arguments).await.map_err(Error::of_request)
    }

    /// Sends a command right behind another; the answers of both.
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

    /// Sends commands one right behind the other; the answer of each. An error is that of all. fred does not take them out
    /// of its queue when the time is over; but it keeps the order, so an undo on the same link comes later.
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
        let mut answers: Vec<Answer> = answers.map(|answer| answer.map_err(Error::of_request)).collect();
        // fred tells once what befell all of them.
        let is_of_all = matches!(&answers[..], [Err(error)] if !is_answer(error));
        if answers.len() == many && !is_of_all {
            return Ok(answers);
        }
        Err(answers.pop().and_then(Result::err).unwrap_or_else(unread))
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), Error> {
        self.fred.subscribe(channel).await.map_err(Error::from)
    }

    /// The first argument of a request, which weighs as much as all of it for as long as fred holds that.
    pub(crate) fn weighed(&self, text: impl AsRef<str> + Send + 'static, rest: &[Value]) -> Value {
        weighed::argument(text, rest, &self.load).into()
    }

    /// The weight of all requests.
    pub(crate) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Says goodbye to the server, after what was sent before. It may hang.
    pub(crate) async fn quit(&self) {
        let _outcome = self.fred.quit().await;
    }

    /// Ends the connection, with all that it holds.
    pub(crate) fn end(&self) {
        self.task.abort();
    }

    /// Whether a request can be handed over: nobody takes any once the task has ended.
    fn check(&self) -> Result<(), Error> {
        if self.task.is_finished() { Err(Error::link_is_over()) } else { Ok(()) }
    }

    /// One sending at the transport: resends are ours (rule 8). `custom` is what obeys these options.
    fn once(&self, limit: Duration) -> WithOptions<FredClient> {
        let options = Options { max_attempts: Some(1), timeout: Some(limit), ..Options::default() };
        self.fred.with_options(&options)
    }
}

impl Deref for Wire {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

/// fred's task holds the client, and the client the connection: only its end closes that.
impl Drop for Wire {
    fn drop(&mut self) {
        self.end();
    }
}

impl Running {
    /// Completes when the connection has ended; with the reason if there is one.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn ended(&mut self) -> Option<Error> {
        let Self { errors, task } = self;
        let error = tokio::select! {
            biased;
            error = errors.recv() => error.ok(),
            // It may have come between the two looks.
            () = has_ended(task) => errors.try_recv().ok(),
        };
        error.map(|(error, _server)| error.into())
    }

    /// Completes once its task has ended: what that had, it has answered or dropped.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn settled(&mut self) {
        has_ended(&mut self.task).await;
    }
}

async fn has_ended(task: &mut Option<ConnectHandle>) {
    if let Some(running) = task {
        let _ended = running.await;
        *task = None;
    }
}

impl Pushes {
    /// The next one; `None` if some were missed, an error when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Value>, String> {
        tokio::select! {
            message = self.messages.recv() => match message {
                Ok(message) => Ok(Some(message.value)),
                Err(RecvError::Lagged(_)) => Ok(None),
                Err(RecvError::Closed) => Err("the receiver has ended".into()),
            },
            error = self.running.ended() => {
                Err(error.as_ref().map_or("its connection has ended", words).into())
            }
        }
    }
}

fn custom(command: &'static str) -> CustomCommand {
    CustomCommand::new_static(command, ClusterHash::FirstKey, false)
}

fn unread() -> Error {
    Error::new(ErrorKind::Other, "the answers cannot be read")
}
