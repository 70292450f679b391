//! Makes the next link of a connection.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::Failure,
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
    endpoint::Endpoint,
    failure::{classify, has_no_room, is_refusal, is_wrong_server},
    introduction::Role,
    kind::ServerKind,
    left_out::LeftOut,
    link::{Ending, Link, NextLink, Opened},
    login::{self, is_rejected},
    target::{Address, Target},
};
use crate::{
    error::Error,
    keeper::Host,
    node::redis::wire::{Error as WireError, ErrorKind as WireKind, is_closed, words},
};

/// A very short outage costs only the first pause, unless another outage was just before.
const RECONNECT: ReconnectConfig = ReconnectConfig {
    first: Duration::from_millis(1),
    longest: Duration::from_millis(500),
    longest_flap: Duration::from_millis(32),
    steady: Duration::from_secs(1),
};

/// The most tries to connect that are under way in parallel.
const AT_ONCE: u32 = 5;

/// Tries to connect, for as long as there is no link.
///
/// A try that hangs is not given up: a slow link must succeed eventually. After a while the next try begins beside it,
/// because the first may have been lost.
pub(crate) struct Opening {
    place: Side,
    /// Wary for the first link, and after a server of the wrong kind.
    pub(super) next: NextLink,
    reconnect: Reconnect,
    under_way: usize,
    /// When the last try began.
    began: Time,
    hand_over: UnboundedSender<Opened>,
    outcomes: UnboundedReceiver<Opened>,
}

impl Opening {
    pub(crate) fn new(role: Role, place: Side, endpoint: Endpoint, left_out: Arc<LeftOut>) -> Self {
        let (hand_over, outcomes) = unbounded_channel();
        Self {
            place,
            next: NextLink { endpoint, number: 1, role, is_wary: true, left_out },
            reconnect: Reconnect::new(RECONNECT),
            under_way: 0,
            began: Time::ZERO,
            hand_over,
            outcomes,
        }
    }

    /// Makes the first link: tries until `limits.connect` has passed, the server refuses us, no server listens there,
    /// or our settings are wrong.
    pub(crate) async fn first(&mut self, last_error: &Mutex<Option<WireError>>) -> Result<(Link, Ending), Error> {
        let endpoint = self.next.endpoint.clone();
        let (target, limits) = (&endpoint.target, endpoint.limits);
        let until = endpoint.now() + limits.connect;
        loop {
            let error = match self.next().await {
                Ok((link, _)) if link.kind.get().await == ServerKind::Replica => {
                    return Err(Error::unavailable(format!(
                        "redis at {target} is a replica, and grants no locks: the url must name its primary"
                    )));
                }
                Ok(link) => return Ok(link),
                Err(error) => error,
            };
            if let Some(mistake) = mistake_of(&endpoint, &error) {
                return Err(mistake);
            }
            if endpoint.now() >= until {
                return Err(unreachable(&endpoint, Some(&error)));
            }
            *last_error.lock() = Some(error);
        }
    }

    /// The outcome of the next try that ends.
    pub(crate) async fn next(&mut self) -> Opened {
        if self.under_way == 0 {
            let pause = self.reconnect.pause(self.next.endpoint.now());
            if !pause.is_zero() {
                self.place.sleep(pause).await;
            }
            self.begin().await?;
        }
        let hangs = RECONNECT.longest.max(self.next.endpoint.limits.connect / AT_ONCE);
        loop {
            let rest = (self.began + hangs).since(self.next.endpoint.now());
            tokio::select! {
                biased;
                Some(opened) = self.outcomes.recv() => {
                    self.under_way -= 1;
                    match &opened {
                        Ok(_) => self.begin_anew(),
                        Err(error) => {
                            self.reconnect.failed();
                            self.next.is_wary |= is_wrong_server(error);
                        }
                    }
                    return opened;
                }
                // Counted from the last try, not from this call: the earlier tries end one after the other, each with a
                // call of its own.
                () = self.place.sleep(rest) => self.begin().await?,
            }
        }
    }

    /// Prepares for the link after this one. Tries that are still under way can no longer hand a link over.
    fn begin_anew(&mut self) {
        (self.hand_over, self.outcomes) = unbounded_channel();
        self.under_way = 0;
        self.next.number += 1;
        self.next.is_wary = false;
        self.reconnect.came_up(self.next.endpoint.now());
    }

    /// Notes that the last link reached a server of the wrong kind.
    pub(crate) fn be_wary(&mut self) {
        self.next.is_wary = true;
    }

    /// Begins a try in a task that is never cancelled: a link that opens too late is dropped, and so closed.
    async fn begin(&mut self) -> Result<(), WireError> {
        let runtime = match &self.place {
            Side::Here(runtime, _) => runtime.clone(),
            Side::Keeper(host) => host.transport().await.map_err(|error| {
                self.reconnect.failed();
                WireError::new(WireKind::Other, format!("{error:?}"))
            })?,
        };
        let (next, report) = (self.next.clone(), Report(Some(self.hand_over.clone())));
        (self.under_way, self.began) = (self.under_way + 1, next.endpoint.now());
        runtime.spawn(async move {
            let open = |config, login| Link::open(next.clone(), config, login);
            report.opened(Box::pin(login::connected(&next.endpoint, open)).await);
        });
        Ok(())
    }
}

/// Why trying again is pointless, if it is.
pub(crate) fn mistake_of(endpoint: &Endpoint, error: &WireError) -> Option<Error> {
    let target = &endpoint.target;
    Some(if error.details() == NO_OUTCOME {
        cannot_connect()
    } else if error.kind == WireKind::Mistake {
        Error::config(words(error))
    } else if is_rejected(error) {
        Error::of(Failure::refused(format!("redis at {target}: {}", words(error))).because(error.cause()))
    } else if is_wrong_server(error) {
        Error::config(format!("redis at {target} {}", error.details()))
    } else if is_refusal(error) {
        Error::of(classify((&target.to_string(), endpoint.wanted), error, endpoint.limits.connect))
    } else if is_closed(error) {
        let advice = advice(target, words(error));
        let text = format!("cannot reach redis at {target}: {}. {advice}", words(error));
        Error::of(Failure::unavailable(text).because(error.cause()))
    } else {
        return None;
    })
}

/// The end of the time for connecting, with the error of the last try, if one has ended.
pub(crate) fn unreachable(endpoint: &Endpoint, last: Option<&WireError>) -> Error {
    let (target, connect) = (&endpoint.target, Rounded(endpoint.limits.connect));
    let reason = last.map_or("no answer", words);
    let text = format!("cannot reach redis at {target} within {connect}: {reason}. {}", advice(target, reason));
    let failure = Failure::unavailable(text);
    Error::of(match last {
        Some(error) => failure.because(error.cause()),
        None => failure,
    })
}

/// The caller's runtime has no timers, or no I/O.
pub(crate) fn cannot_connect() -> Error {
    Error::misuse("this runtime cannot connect: build it with `enable_all()`, or call from outside of it")
}

fn advice(target: &Target, reason: &str) -> &'static str {
    match target.address {
        _ if has_no_room(reason) => {
            "It has no room for another client: raise its maxclients, or open fewer connections (one `Client` is enough for a process)"
        }
        _ if ENDED.iter().any(|ended| reason.contains(ended)) => {
            "It takes connections and ends them: is it a port for TLS (rediss://), or a proxy that does not know CLIENT or INFO?"
        }
        Address::Tcp { tls: true, .. } => "Is the server running there, does it speak TLS there, and is the url right?",
        _ => "Is the server running there, and is the url right?",
    }
}

/// Advice on TLS, if it may be the cause, for a server that others have named.
pub(crate) fn advice_on_tls(target: &Target, reason: &str) -> &'static str {
    match target.address {
        _ if ENDED.iter().any(|ended| reason.contains(ended)) => {
            ". It takes connections and ends them: is it a port for TLS?"
        }
        Address::Tcp { tls: true, .. } => ". Does it speak TLS there?",
        _ => "",
    }
}

/// Parts of the error texts for a connection that the server ended.
const ENDED: [&str; 2] = ["reset", "roken pipe"];

/// Where the links of a connection live.
#[derive(Clone)]
pub(crate) enum Side {
    /// On the runtime of a caller.
    Here(Handle, Host),
    /// Where nothing that blocks the link blocks the keeper.
    Keeper(Host),
}

impl Side {
    pub(super) fn role(&self) -> Role {
        match self {
            Self::Here(..) => Role::Main,
            Self::Keeper(_) => Role::Keeper,
        }
    }

    /// Sleeps by the keeper's timers, because a caller's runtime may have none.
    async fn sleep(&self, span: Duration) {
        let (Self::Here(_, host) | Self::Keeper(host)) = self;
        host.sleep(span).await;
    }
}

/// Reports how a try has ended, including a panic or a drop.
struct Report(Option<UnboundedSender<Opened>>);

/// The text for a try that has no outcome: a runtime without timers or I/O.
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
            let _too_late = hand_over.send(Err(WireError::new(WireKind::Other, NO_OUTCOME)));
        }
    }
}
