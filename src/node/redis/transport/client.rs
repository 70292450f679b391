//! fred's clients, as we have them: one connection, which fred never makes again, and requests that it sends once.

use std::{
    future::{Future, poll_fn},
    panic::resume_unwind,
    task::Poll,
    time::Duration,
};

use fred::{
    clients::{Client, Pipeline, WithOptions},
    error::{Error as FredError, ErrorKind as FredKind},
    interfaces::ClientLike,
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Value,
        config::{Config, ConnectionConfig, Options, PerformanceConfig, ReconnectPolicy, TcpConfig},
    },
};
use socket2::TcpKeepalive;
use tokio_util::task::AbortOnDropHandle;

use super::{endpoint::Limits, failure::is_answer};

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
pub(crate) type Answer = Result<Value, FredError>;

/// The client of a link.
pub(super) fn of_link(config: Config, limits: Limits) -> Client {
    Client::new(config, Some(performance(limits)), Some(settings(limits)), Some(waits_for_its_end()))
}

/// A client that is pushed to: room for what comes in a burst.
pub(crate) fn receiving(config: Config, limits: Limits) -> Client {
    let performance = PerformanceConfig { broadcast_channel_capacity: BACKLOG, ..performance(limits) };
    Client::new(config, Some(performance), Some(settings(limits)), None)
}

fn performance(limits: Limits) -> PerformanceConfig {
    PerformanceConfig { default_command_timeout: limits.command, ..PerformanceConfig::default() }
}

/// The settings of a connection. Each step of a handshake has the time that all of it may take, and not the ten seconds
/// that fred would wait for one that hangs. A command time-out would be too short: over a slow link each round trip may
/// take longer than an answer should.
fn settings(limits: Limits) -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: limits.connect,
        internal_command_timeout: limits.connect,
        max_command_attempts: 1,
        // WRONGPASS, LOADING, READONLY and their like are answers, not reasons to drop the connection under everybody else.
        reconnect_on_auth_error: false,
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

/// fred waits, for longer than any program runs, before it connects again: time to end its task, and with that its
/// queue. Without a policy its task would end by itself, and its queue would go on to take requests that nobody reads.
fn waits_for_its_end() -> ReconnectPolicy {
    let mut policy = ReconnectPolicy::new_constant(0, u32::MAX);
    policy.set_jitter(0);
    policy
}

/// Connects for the first time. The handle is of fred's task, which ends with the connection, and it with that.
///
/// # Cancel safety
///
/// Dropped, it ends fred's task, which would go on to a connection that nobody has.
pub(crate) async fn connect(client: &Client) -> Result<ConnectHandle, FredError> {
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

/// Sends a command that is no script.
pub(crate) async fn ask(client: &Client, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
    once(client, limit).custom(custom(command), arguments).await
}

/// One sending at the transport: resends are ours (rule 8). `custom` is what obeys these options.
pub(super) fn once(client: &Client, limit: Duration) -> WithOptions<Client> {
    let options = Options { max_attempts: Some(1), timeout: Some(limit), ..Options::default() };
    client.with_options(&options)
}

pub(super) fn custom(command: &'static str) -> CustomCommand {
    CustomCommand::new_static(command, ClusterHash::FirstKey, false)
}

/// Commands to be sent one right behind the other. fred does not take a pipeline out of its queue when the time is
/// over; but it keeps the order, so an undo on the same link comes later.
pub(super) async fn queue(
    client: WithOptions<Client>,
    commands: impl IntoIterator<Item = Command>,
) -> Result<Pipeline<WithOptions<Client>>, FredError> {
    let pipeline = Pipeline::from(client);
    for (command, arguments) in commands {
        let _queued: Value = pipeline.custom(custom(command), arguments).await?;
    }
    Ok(pipeline)
}

/// Sends a command right behind another; the answers of both.
pub(super) async fn send_behind(
    client: WithOptions<Client>,
    first: Command,
    command: Command,
) -> Result<(Answer, Answer), FredError> {
    let answers = all(&queue(client, [first, command]).await?, 2).await?;
    let [first, second] = <[_; 2]>::try_from(answers).map_err(|_| unread())?;
    Ok((first, second))
}

/// The answers of a pipeline of so many.
pub(super) async fn all(pipeline: &Pipeline<WithOptions<Client>>, many: usize) -> Result<Vec<Answer>, FredError> {
    let mut answers = pipeline.try_all::<Value>().await;
    // fred tells once what befell all of them.
    let is_of_all = matches!(&answers[..], [Err(error)] if !is_answer(error));
    if answers.len() == many && !is_of_all {
        return Ok(answers);
    }
    Err(answers.pop().and_then(Result::err).unwrap_or_else(unread))
}

fn unread() -> FredError {
    FredError::new(FredKind::Protocol, "the answers cannot be read")
}
