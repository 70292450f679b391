//! The links of a connection: the current one, and the task that makes the next.
//!
//! # Invariants
//!
//! 1. A request that finds no link waits for one here, not in the wire, and only within its own limit. When the limit
//!    expires, it was never sent, and never will be.
//! 2. While the connection is open there is a link, or one is being made; unless the connection's runtime has ended.
//! 3. While the server reports that it is not a primary, its address is resolved and connected to again, once in
//!    [`LOOK_EVERY`]. The link stays until another one reaches a primary: the server's own replies are the best answer
//!    meanwhile.

use std::{
    convert::Infallible,
    future::pending,
    mem,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_protocol::{doubling::Doubling, failure::Failure, time::Time};
use tokio::sync::{Notify, watch};

use super::{
    endpoint::Endpoint,
    failure::{classify, is_full, is_refusal, is_wrong_server},
    kind::{RequiredKind, ServerKind},
    left_out::LeftOut,
    link::{Ending, Link, NextLink},
    login::{FIRST_PAUSE, LONGEST_PAUSE},
    opening::{Opening, mistake_of},
};
use crate::{
    error::Error,
    foreign::{self, Event},
    metrics::NodeMetrics,
    node::redis::wire::{Error as WireError, words},
};

const AUTHENTICATES: &str = "has not answered an AUTH of this connection yet, and nothing was sent";

/// The least time for an answer: the wire takes zero as "for ever".
pub(super) const SHORTEST_LIMIT: Duration = Duration::from_millis(1);

/// How often another primary is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The current link, and what makes the next one.
pub(crate) struct Links {
    /// The server's address, without our user there.
    pub(crate) server: Arc<str>,
    /// The server's address, and our user there.
    pub(crate) endpoint: Endpoint,
    /// Commands on which connections to the server have ended.
    pub(crate) left_out: Arc<LeftOut>,
    metrics: NodeMetrics,
    state: watch::Sender<LinkState>,
    /// Whether there was a link at any time.
    was_up: AtomicBool,
    no_primary: Notify,
    /// The other connection to the server: when one learns that it is not a primary, both look for another.
    pub(super) sibling: OnceLock<Weak<Links>>,
}

enum LinkState {
    Up(Arc<Link>),
    /// The reason why the last try to connect failed, if there was one.
    Down(Option<WireError>),
    /// Closed, or its runtime has ended.
    Over,
}

impl LinkState {
    fn up(&self) -> Option<&Arc<Link>> {
        match self {
            Self::Up(link) => Some(link),
            Self::Down(_) | Self::Over => None,
        }
    }

    fn is_down(&self) -> bool {
        matches!(self, Self::Down(_))
    }

    /// The number of the link; 0 if there is none.
    fn number(&self) -> u64 {
        self.up().map_or(0, |link| link.number)
    }
}

/// The new links of a connection. A new link knows nothing of earlier ones.
pub(crate) struct NewLinks {
    states: watch::Receiver<LinkState>,
    seen: u64,
}

impl NewLinks {
    /// Completes when there is a new link; never on a connection that has ended.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn next(&mut self) {
        let seen = self.seen;
        match self.states.wait_for(|state| state.number() > seen).await.ok().map(|state| state.number()) {
            Some(number) => self.seen = number,
            None => pending().await,
        }
    }

    /// The number of the last link seen.
    pub(crate) fn last(&self) -> u64 {
        self.seen
    }

    /// Whether there was a new link since the last call.
    pub(crate) fn have_come(&mut self) -> bool {
        let number = self.states.borrow().number();
        let is_new = number > self.seen;
        self.seen = self.seen.max(number);
        is_new
    }
}

impl Links {
    /// `first` is the current link; if there is none, one is being made.
    pub(super) fn new(next: &NextLink, first: Option<Link>) -> Arc<Self> {
        let (endpoint, left_out) = (next.endpoint.clone(), next.left_out.clone());
        let server: Arc<str> = endpoint.target.to_string().into();
        let was_up = AtomicBool::new(first.is_some());
        let state = first.map_or(LinkState::Down(None), |link| LinkState::Up(Arc::new(link)));
        let (metrics, state) = (NodeMetrics::of(&server), watch::Sender::new(state));
        let (no_primary, sibling) = (Notify::new(), OnceLock::new());
        Arc::new(Self { server, endpoint, left_out, metrics, state, was_up, no_primary, sibling })
    }

    /// The links that follow the current one.
    pub(crate) fn new_links(&self) -> NewLinks {
        let states = self.state.subscribe();
        let seen = states.borrow().number();
        NewLinks { states, seen }
    }

    /// Switches to `next` from a state that `ends` accepts. Returns the link that was up. Notifies waiters if
    /// `is_news`.
    fn put(&self, next: LinkState, is_news: bool, ends: impl FnOnce(&LinkState) -> bool) -> Option<Arc<Link>> {
        let mut ended = None;
        self.state.send_if_modified(|state| {
            if ends(state) {
                ended = Some(mem::replace(state, next));
            }
            ended.is_some() && is_news
        });
        ended?.up().cloned()
    }

    /// Closes the connection: no link will follow. Returns the last one, if it was up.
    pub(super) fn close(&self) -> Option<Arc<Link>> {
        self.put(LinkState::Over, true, |_| true)
    }

    pub(crate) fn now(&self) -> Time {
        self.endpoint.now()
    }

    pub(crate) fn up(&self) -> Option<Arc<Link>> {
        self.state.borrow().up().cloned()
    }

    /// The link, as soon as there is one that is steady (invariant 1). The wait is subtracted from `left`.
    pub(super) async fn link(&self, left: &mut Duration) -> Result<Arc<Link>, Failure> {
        let up = match self.up() {
            Some(link) if link.is_steady() => return Ok(link),
            up => up,
        };
        let until = self.now() + *left;
        if let Some(link) = up {
            // Boxed: it is large, and hardly ever waited for.
            let in_step = Box::pin(tokio::time::timeout(*left, link.is_in_step())).await;
            *left = until.since(self.now()).max(SHORTEST_LIMIT);
            match in_step {
                Ok(Ok(())) => return Ok(link),
                Ok(Err(_)) => {}
                Err(_) => return Err(Failure::unsent(format!("redis at {} {AUTHENTICATES}", self.server))),
            }
        }
        let mut states = self.state.subscribe();
        let not_down = states.wait_for(|state| !state.is_down());
        let _in_time = tokio::time::timeout(*left, not_down).await.is_ok();
        *left = until.since(self.now()).max(SHORTEST_LIMIT);
        self.link_now()
    }

    /// Completes once there is no link.
    pub(crate) async fn unlinked(&self) {
        let mut states = self.state.subscribe();
        let _is_over = states.wait_for(|state| state.up().is_none()).await.is_err();
    }

    /// The link, or why there is none.
    pub(super) fn link_now(&self) -> Result<Arc<Link>, Failure> {
        let server = &self.server;
        Err(match &*self.state.borrow() {
            LinkState::Up(link) => return Ok(link.clone()),
            LinkState::Over => Failure::unsent(format!("the connection to redis at {server} has ended")),
            LinkState::Down(Some(reason)) if turns_us_away(reason) => {
                classify((server, self.endpoint.wanted), reason, self.endpoint.limits.connect)
            }
            LinkState::Down(reason) => Failure::unsent(format!(
                "there is no connection to redis at {server}, and nothing was sent: {}",
                reason.as_ref().map_or("the server does not answer", words)
            )),
        })
    }

    /// The error of the last try to connect, while there is no link.
    pub(crate) fn last_error(&self) -> Option<WireError> {
        if let LinkState::Down(error) = &*self.state.borrow() { error.clone() } else { None }
    }

    /// Why the server was never reached; `None` if it was, or turns us away.
    pub(crate) fn never_reached(&self) -> Option<String> {
        match &*self.state.borrow() {
            LinkState::Down(Some(reason)) if turns_us_away(reason) => None,
            LinkState::Down(reason) if !self.was_up.load(Ordering::Acquire) => {
                Some(reason.as_ref().map_or("it does not answer", words).into())
            }
            _ => None,
        }
    }

    /// Completes when there is a link, or none will follow, or the server has no room for another client. In that case
    /// a program continues with the connection that it has: programs that wait for their second would keep others from
    /// their first.
    pub(crate) async fn settled(&self) -> Result<(), Error> {
        let (mut states, mut settled) = (self.state.subscribe(), None);
        let settles = |state: &LinkState| {
            settled = match state {
                LinkState::Up(_) => Some(Ok(())),
                LinkState::Down(Some(reason)) if is_full(reason) => Some(Ok(())),
                LinkState::Down(reason) => {
                    reason.as_ref().and_then(|reason| mistake_of(&self.endpoint, reason)).map(Err)
                }
                LinkState::Over => Some(Err(Error::unavailable("the runtime of the connection has ended"))),
            };
            settled.is_some()
        };
        // Only the end of these links could end the wait without it.
        let _is_told = states.wait_for(settles).await.is_ok();
        settled.unwrap_or(Ok(()))
    }

    /// Whether the server has no room for another client, and turns this one away.
    pub(crate) fn is_turned_away(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Down(Some(reason)) if is_full(reason))
    }

    /// The failure of one request too many.
    pub(crate) fn full(&self) -> Failure {
        Failure::unsent(format!(
            "redis at {} has not answered the requests before this one, which is not sent: there is a limit to how many wait",
            self.server
        ))
    }

    /// Gives this link up: no answer on it counts from now on, and another is made. Returns whether it was current.
    pub(crate) fn give_up(&self, link: &Arc<Link>) -> bool {
        let is_it = |state: &LinkState| state.up().is_some_and(|up| Arc::ptr_eq(up, link));
        let was_up = self.put(LinkState::Down(None), true, is_it).is_some();
        link.end();
        was_up
    }

    /// Replaces each link that ends, or does not reach a primary, for as long as its runtime lives. Makes the first
    /// link, if there is none.
    pub(super) async fn maintain(self: Arc<Self>, first: Option<Ending>, mut opening: Opening) {
        let links = EndsWithIt(self);
        let mut ending = match first {
            Some(first) => first,
            None => links.0.connect_again(&mut opening).await,
        };
        let mut looked = Time::ZERO;
        loop {
            let ended = tokio::select! {
                biased;
                reason = ending.ended() => Err(reason),
                found = links.0.other_primary(&mut opening, &mut looked) => Ok(found),
                never = links.0.keep_authenticated() => match never {},
            };
            ending = match ended {
                Ok((link, next)) => {
                    links.0.replace_up(link);
                    ending.settle().await;
                    next
                }
                Err(reason) => {
                    if reason.as_ref().is_some_and(is_wrong_server) {
                        opening.be_wary();
                    }
                    links.0.lost(reason.as_ref());
                    if matches!(*links.0.state.borrow(), LinkState::Over) {
                        return ending.settle().await;
                    }
                    let (next, ()) = tokio::join!(links.0.connect_again(&mut opening), ending.settle());
                    next
                }
            };
        }
    }

    /// Looks for another primary, here and on the sibling: the server has answered that it is not one.
    pub(crate) fn find_primary(&self) {
        // An address announced by a cluster or a Sentinel is never re-resolved.
        if self.endpoint.wanted != RequiredKind::Alone {
            return;
        }
        self.no_primary.notify_one();
        if let Some(sibling) = self.sibling.get().and_then(Weak::upgrade) {
            sibling.no_primary.notify_one();
        }
    }

    /// A link to a primary, once the server is known not to be one (invariant 3).
    async fn other_primary(&self, opening: &mut Opening, looked: &mut Time) -> (Link, Ending) {
        loop {
            self.no_primary.notified().await;
            tokio::time::sleep((*looked + LOOK_EVERY).since(self.now())).await;
            *looked = self.now();
            match opening.next().await {
                Ok((_, _)) if self.is_primary_again().await => {}
                Ok((link, ending)) if matches!(link.kind.get().await, ServerKind::Primary | ServerKind::Unknown) => {
                    return (link, ending);
                }
                Ok(_no_primary_either) => {}
                Err(error) => self.tell_trouble(&error),
            }
        }
    }

    /// Authenticates again on the current link, before its credentials expire.
    async fn keep_authenticated(&self) -> Infallible {
        let (Some(provider), Some(link)) = (&self.endpoint.target.provider, self.up()) else { return pending().await };
        let Some(mut known) = link.login.clone() else { return pending().await };
        let mut pauses = Doubling::from(FIRST_PAUSE);
        loop {
            let login = provider.renewed(&self.endpoint, &known).await;
            match link.authenticate(&login).await {
                Ok(()) => (known, pauses) = (login, Doubling::from(FIRST_PAUSE)),
                Err(error) => {
                    provider.note(&login, &error);
                    self.tell_trouble(&error);
                    tokio::time::sleep(pauses.next(LONGEST_PAUSE)).await;
                }
            }
        }
    }

    /// Whether the link's server was promoted meanwhile.
    async fn is_primary_again(&self) -> bool {
        match self.up() {
            Some(link) => !link.is_to_a_replica(self.endpoint.limits).await,
            None => false,
        }
    }

    /// Replaces the link by one to another server.
    fn replace_up(&self, link: Link) {
        if let Some(old) = self.put(LinkState::Up(Arc::new(link)), true, |state| !matches!(state, LinkState::Over)) {
            old.end();
        }
        self.metrics.note_reconnect();
    }

    /// Reports why there is no link, or why it is of no use.
    pub(super) fn tell_trouble(&self, error: &WireError) {
        foreign::tell_debug(|| Event::Connection { node: self.server.to_string(), error: words(error).into() });
    }

    /// Notes that the link has ended, if it was not given up before.
    fn lost(&self, reason: Option<&WireError>) {
        self.metrics.note_up(false);
        if let Some(error) = reason {
            self.tell_trouble(error);
        }
        if let Some(link) = self.put(LinkState::Down(reason.cloned()), true, |state| state.up().is_some()) {
            link.end();
        }
    }

    /// Tries until there is a link again, unless the connection has ended.
    async fn connect_again(&self, opening: &mut Opening) -> Ending {
        loop {
            match opening.next().await {
                Ok((link, ending)) => {
                    let is_first = link.number == 1;
                    self.was_up.store(true, Ordering::Release);
                    self.put(LinkState::Up(Arc::new(link)), true, LinkState::is_down);
                    if is_first {
                        self.metrics.note_up(true);
                    } else {
                        self.metrics.note_reconnect();
                    }
                    return ending;
                }
                Err(error) => {
                    self.tell_trouble(&error);
                    self.metrics.note_up(false);
                    // Requests that wait for a link are not woken by each failure.
                    let settles = is_full(&error) || mistake_of(&self.endpoint, &error).is_some();
                    self.put(LinkState::Down(Some(error)), settles, LinkState::is_down);
                }
            }
        }
    }
}

/// Marks the connection as ended when its maintenance task ends, so that no caller waits for a link that never comes.
struct EndsWithIt(Arc<Links>);

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        let _last = self.0.close();
    }
}

fn turns_us_away(reason: &WireError) -> bool {
    is_refusal(reason) || is_full(reason)
}
