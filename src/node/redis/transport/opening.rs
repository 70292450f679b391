//! Making the next link of a connection.

use std::{sync::Arc, time::Duration};

use fred::{
    error::{Error as FredError, ErrorKind as FredKind},
    types::config::Config,
};
use leasehold_protocol::{
    reconnect::{Reconnect, ReconnectConfig},
    rounded::Rounded,
    time::Time,
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

use super::{
    failure::{classify, is_closed, is_refusal, is_wrong_server, words},
    kind::ServerKind,
    left_out::LeftOut,
    link::{Ending, Limits, Link, Opened, config},
    url::{Address, Target},
};
use crate::{
    clock::{self, Clock},
    error::Error,
    keeper::Host,
};

/// A very short outage costs the first pause only, unless there was another one just before.
const RECONNECT: ReconnectConfig = ReconnectConfig {
    first: Duration::from_millis(1),
    longest: Duration::from_millis(500),
    longest_flap: Duration::from_millis(32),
    steady: Duration::from_secs(1),
};

/// The most tries to connect that are under way side by side.
const AT_ONCE: u32 = 5;

/// Tries to connect, for as long as there is no link.
///
/// A try that hangs is not given up: a slow link must succeed at some time. After a while the next one begins beside
/// it, because the first may have been lost.
pub(crate) struct Opening {
    place: Side,
    config: Config,
    limits: Limits,
    clock: Arc<dyn Clock>,
    left_out: Arc<LeftOut>,
    /// The number of the link that comes next.
    number: u64,
    reconnect: Reconnect,
    under_way: usize,
    /// When the last try began.
    began: Time,
    /// Whether the next link is there only when the kind of the server is known: the first one, and one after a server
    /// of the wrong kind.
    is_wary: bool,
    hand_over: UnboundedSender<Opened>,
    outcomes: UnboundedReceiver<Opened>,
}

impl Opening {
    pub(crate) fn new(place: Side, target: &Target, limits: Limits, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let (hand_over, outcomes) = unbounded_channel();
        Ok(Self {
            place,
            config: config(target)?,
            limits,
            clock: clock.clone(),
            left_out: Arc::default(),
            number: 1,
            reconnect: Reconnect::new(RECONNECT),
            under_way: 0,
            began: Time::ZERO,
            is_wary: true,
            hand_over,
            outcomes,
        })
    }

    /// The commands that are left out on its links.
    pub(crate) fn left_out(&self) -> Arc<LeftOut> {
        self.left_out.clone()
    }

    /// The first link: tries until `limits.connect` has passed, or the server refuses us, or nobody listens there.
    pub(crate) async fn first(
        &mut self,
        target: &Target,
        last_reason: &Mutex<String>,
    ) -> Result<(Link, Ending), Error> {
        let (limits, clock) = (self.limits, self.clock.clone());
        let until = clock::now(&*clock) + limits.connect;
        loop {
            let error = match self.next().await {
                Ok((link, _)) if link.kind().await == ServerKind::Replica => {
                    return Err(Error::unavailable(format!(
                        "redis at {target} is a replica, and grants no locks: the url must name its primary"
                    )));
                }
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            if error.details() == NO_OUTCOME {
                return Err(Error::config(
                    "this runtime cannot connect: build it with `enable_all()`, or call from outside of it",
                ));
            }
            if is_wrong_server(&error) {
                return Err(Error::config(format!("redis at {target} {}", error.details())));
            }
            if is_refusal(&error) {
                return Err(Error::of(classify(&target.to_string(), &error, limits.connect)));
            }
            if is_closed(&error) {
                return Err(Error::unavailable(format!(
                    "cannot reach redis at {target}: {}. {}",
                    words(&error),
                    advice(target, words(&error))
                )));
            }
            if clock::now(&*clock) >= until {
                return Err(unreachable(target, limits, words(&error)));
            }
            *last_reason.lock() = words(&error).into();
        }
    }

    /// The outcome of the next try that ends.
    pub(crate) async fn next(&mut self) -> Opened {
        if self.under_way == 0 {
            let pause = self.reconnect.pause(clock::now(&*self.clock));
            if !pause.is_zero() {
                self.place.sleep(pause).await;
            }
            self.begin().await?;
        }
        let hangs = RECONNECT.longest.max(self.limits.connect / AT_ONCE);
        loop {
            let rest = (self.began + hangs).since(clock::now(&*self.clock));
            tokio::select! {
                biased;
                Some(opened) = self.outcomes.recv() => {
                    self.under_way -= 1;
                    match &opened {
                        Ok(_) => self.begin_anew(),
                        Err(error) => {
                            self.reconnect.failed();
                            self.is_wary |= is_wrong_server(error);
                        }
                    }
                    return opened;
                }
                // Not from this call on: the tries before this one end one after the other, each with a call of its
                // own.
                () = self.place.sleep(rest) => self.begin().await?,
            }
        }
    }

    /// For the link after this one. The tries that are still under way have nobody to hand a link over to.
    fn begin_anew(&mut self) {
        (self.hand_over, self.outcomes) = unbounded_channel();
        self.under_way = 0;
        self.number += 1;
        self.is_wary = false;
        self.reconnect.came_up(clock::now(&*self.clock));
    }

    /// The last link has led to a server of the wrong kind.
    pub(crate) fn be_wary(&mut self) {
        self.is_wary = true;
    }

    /// In a task that nobody cancels: a link that comes too late is dropped, and so closed.
    async fn begin(&mut self) -> Result<(), FredError> {
        let runtime = match &self.place {
            Side::Here(runtime, _) => runtime.clone(),
            Side::Keeper(host) => host.transport().await.map_err(|error| {
                self.reconnect.failed();
                FredError::from(error)
            })?,
        };
        let (config, limits, number, clock) = (self.config.clone(), self.limits, self.number, self.clock.clone());
        let (is_wary, left_out) = (self.is_wary, self.left_out.clone());
        let report = Report(Some(self.hand_over.clone()));
        (self.under_way, self.began) = (self.under_way + 1, clock::now(&*self.clock));
        runtime
            .spawn(async move { report.opened(Link::open(config, limits, number, &clock, is_wary, left_out).await) });
        Ok(())
    }
}

pub(crate) fn unreachable(target: &Target, limits: Limits, reason: &str) -> Error {
    let connect = Rounded(limits.connect);
    Error::unavailable(format!("cannot reach redis at {target} within {connect}: {reason}. {}", advice(target, reason)))
}

fn advice(target: &Target, reason: &str) -> &'static str {
    match target.address {
        _ if ["reset", "roken pipe"].iter().any(|ended| reason.contains(ended)) => {
            "It takes connections and ends them: is it a port for TLS (rediss://), or a proxy that does not know CLIENT or INFO?"
        }
        Address::Tcp { tls: true, .. } => "Is the server running there, does it speak TLS there, and is the url right?",
        _ => "Is the server running there, and is the url right?",
    }
}

/// Where the links of a connection live.
#[derive(Clone)]
pub(crate) enum Side {
    /// On the runtime of somebody who calls.
    Here(Handle, Host),
    /// Where nothing that blocks the link blocks the keeper.
    Keeper(Host),
}

impl Side {
    /// The runtime of somebody who calls may have no timers.
    async fn sleep(&self, span: Duration) {
        let (Self::Here(_, host) | Self::Keeper(host)) = self;
        host.sleep(span).await;
    }
}

/// Reports how a try has ended, and if it panics or is dropped, that.
struct Report(Option<UnboundedSender<Opened>>);

/// The words for a try that has no outcome: a runtime without timers or I/O.
const NO_OUTCOME: &str = "the runtime of the connection has panicked, or ended";

impl Report {
    fn opened(mut self, opened: Opened) {
        if let Some(hand_over) = self.0.take() {
            let _too_late = hand_over.send(opened);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(hand_over) = self.0.take() {
            let _too_late = hand_over.send(Err(FredError::new(FredKind::Config, NO_OUTCOME)));
        }
    }
}
