//! The links of a connection: the one that there is now, and the task that makes the next.
//!
//! # Invariants
//!
//! 1. A request that finds no link waits for one here, not in fred, and only within its own limit. When the limit is
//!    over, it was never sent, and never will be.
//! 2. While the connection is open there is a link, or one is being made; unless the connection's runtime has ended.
//! 3. While the server says that it is no primary, its address is resolved and connected to again, once in
//!    [`LOOK_EVERY`]. The link stays until another leads to a primary: the server's own words are the best answer
//!    meanwhile.

use std::{
    convert::Infallible,
    future::pending,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fred::error::Error as FredError;
use leasehold_protocol::{doubling::Doubling, failure::Failure, time::Time};
use tokio::sync::{Notify, watch};

use super::{
    endpoint::Endpoint,
    failure::{classify, is_full, is_refusal, is_wrong_server, words},
    kind::{ServerKind, Wanted},
    link::{Ending, Link},
    login::{FIRST_PAUSE, LONGEST_PAUSE},
    opening::{Opening, mistake_of},
};
use crate::{
    error::Error,
    foreign::{self, Event},
    metrics::NodeMetrics,
};

/// The least time for an answer: fred takes zero as "for ever".
pub(super) const SHORTEST_LIMIT: Duration = Duration::from_millis(1);

/// How often another primary is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The link that there is now, and what makes the next one.
pub(super) struct Links {
    pub(super) server: Arc<str>,
    pub(super) endpoint: Endpoint,
    metrics: NodeMetrics,
    state: watch::Sender<LinkState>,
    /// Whether there was a link at any time.
    was_up: AtomicBool,
    no_primary: Notify,
    sibling: OnceLock<Weak<Links>>,
}

enum LinkState {
    Up(Arc<Link>),
    /// With the reason why the last try to connect has failed.
    Down(Option<FredError>),
    /// Closed, or its runtime has ended.
    Over,
}

/// The new links of a connection, each of which knows nothing of those before.
pub(crate) struct NewLinks {
    states: watch::Receiver<LinkState>,
    seen: u64,
}

impl NewLinks {
    /// Completes when there is a new link. Never on a connection that is over.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(crate) async fn next(&mut self) {
        let seen = self.seen;
        let is_new = |state: &LinkState| matches!(state, LinkState::Up(link) if link.number() > seen);
        match self.states.wait_for(is_new).await.ok().map(|state| number(&state)) {
            Some(number) => self.seen = number,
            None => std::future::pending().await,
        }
    }

    /// The number of the last one.
    pub(crate) fn last(&self) -> u64 {
        self.seen
    }

    /// Whether there was a new link since the last call.
    pub(crate) fn have_come(&mut self) -> bool {
        let number = number(&self.states.borrow());
        let is_new = number > self.seen;
        self.seen = self.seen.max(number);
        is_new
    }
}

impl Links {
    /// `first` is the one that there is; if there is none, it is on its way.
    pub(super) fn new(endpoint: Endpoint, first: Option<Link>) -> Arc<Self> {
        let server: Arc<str> = endpoint.target.to_string().into();
        let was_up = AtomicBool::new(first.is_some());
        let state = first.map_or(LinkState::Down(None), |link| LinkState::Up(Arc::new(link)));
        let (metrics, state) = (NodeMetrics::of(&server), watch::Sender::new(state));
        Arc::new(Self { server, endpoint, metrics, state, was_up, no_primary: Notify::new(), sibling: OnceLock::new() })
    }

    /// The links that come after the one that there is now.
    pub(super) fn new_ones(&self) -> NewLinks {
        let states = self.state.subscribe();
        let seen = number(&states.borrow());
        NewLinks { states, seen }
    }

    /// Two connections to one server: when one hears that it is no primary, the other looks for another too.
    pub(super) fn pair(self: &Arc<Self>, other: &Arc<Self>) {
        let _paired = self.sibling.set(Arc::downgrade(other));
        let _paired = other.sibling.set(Arc::downgrade(self));
    }

    /// There is no link any more, and will be none. The last one, if it was up.
    pub(super) fn close(&self) -> Option<Arc<Link>> {
        match self.state.send_replace(LinkState::Over) {
            LinkState::Up(link) => Some(link),
            LinkState::Down(_) | LinkState::Over => None,
        }
    }

    pub(super) fn now(&self) -> Time {
        self.endpoint.now()
    }

    pub(super) fn up(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            LinkState::Up(link) => Some(link.clone()),
            LinkState::Down(_) | LinkState::Over => None,
        }
    }

    /// The link, as soon as there is one (invariant 1). `left` becomes what is left of it.
    pub(super) async fn link(&self, left: &mut Duration) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let (until, mut states) = (self.now() + *left, self.state.subscribe());
        let not_down = states.wait_for(|state| !matches!(state, LinkState::Down(_)));
        let _in_time = tokio::time::timeout(*left, not_down).await.is_ok();
        *left = until.since(self.now()).max(SHORTEST_LIMIT);
        self.link_now()
    }

    /// Completes once there is no link.
    pub(super) async fn unlinked(&self) {
        let mut states = self.state.subscribe();
        let _is_over = states.wait_for(|state| !matches!(state, LinkState::Up(_))).await.is_err();
    }

    /// The link, or why there is none.
    pub(super) fn link_now(&self) -> Result<Arc<Link>, Failure> {
        match &*self.state.borrow() {
            LinkState::Up(link) => Ok(link.clone()),
            LinkState::Down(reason) => Err(self.unsent(reason.as_ref())),
            LinkState::Over => Err(Failure::unsent(format!("the connection to redis at {} has ended", self.server))),
        }
    }

    /// Why there was no link yet, unless the server has turned us away.
    pub(super) fn never_up(&self) -> Option<String> {
        match &*self.state.borrow() {
            LinkState::Down(reason) if !self.was_up.load(Ordering::Acquire) => match reason {
                Some(reason) if is_refusal(reason) || is_full(reason) => None,
                reason => Some(reason.as_ref().map_or("it does not answer", words).into()),
            },
            _ => None,
        }
    }

    /// Completes when there is a link, or none will be, or the server has no room for another client.
    pub(super) async fn settled(&self) -> Result<(), Error> {
        let mut states = self.state.subscribe();
        let settles = |state: &LinkState| match state {
            LinkState::Up(_) => Some(Ok(())),
            LinkState::Down(reason) => match reason {
                Some(reason) if is_full(reason) => Some(Ok(())),
                reason => reason.as_ref().and_then(|reason| mistake_of(&self.endpoint, reason)).map(Err),
            },
            LinkState::Over => Some(Err(Error::unavailable("the runtime of the connection has ended"))),
        };
        loop {
            if let Some(settled) = settles(&states.borrow_and_update()) {
                return settled;
            }
            if states.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    pub(super) fn is_turned_away(&self) -> bool {
        matches!(&*self.state.borrow(), LinkState::Down(Some(reason)) if is_full(reason))
    }

    pub(super) fn full(&self) -> Failure {
        Failure::unsent(format!(
            "redis at {} has not answered the requests before this one, which is not sent: there is a limit to how many wait",
            self.server
        ))
    }

    fn unsent(&self, reason: Option<&FredError>) -> Failure {
        match reason {
            Some(reason) if is_refusal(reason) || is_full(reason) => {
                classify((&self.server, self.endpoint.wanted), reason, self.endpoint.limits.connect)
            }
            _ => Failure::unsent(format!(
                "there is no connection to redis at {}, and nothing was sent: {}",
                self.server,
                reason.map_or("the server does not answer", words)
            )),
        }
    }

    /// Whether it was the link until now.
    pub(super) fn give_up(&self, link: &Arc<Link>) -> bool {
        let was_up = self.state.send_if_modified(|state| {
            let is_up = matches!(state, LinkState::Up(up) if Arc::ptr_eq(up, link));
            if is_up {
                *state = LinkState::Down(None);
            }
            is_up
        });
        link.end();
        was_up
    }

    /// Replaces each link that ends, or leads to no primary, for as long as its runtime lives; makes the first, if there
    /// is none.
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
                    links.0.replace_up(Arc::new(link));
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

    /// The server has answered that it is no primary: here, and to whoever else has a connection to it.
    pub(super) fn find_primary(&self) {
        // Where others say where it is, an address leads nowhere else.
        if self.endpoint.wanted != Wanted::Alone {
            return;
        }
        self.no_primary.notify_one();
        if let Some(sibling) = self.sibling.get().and_then(Weak::upgrade) {
            sibling.no_primary.notify_one();
        }
    }

    /// A link to a primary, once the server is known to be none (invariant 3).
    async fn other_primary(&self, opening: &mut Opening, looked: &mut Time) -> (Link, Ending) {
        loop {
            self.no_primary.notified().await;
            tokio::time::sleep((*looked + LOOK_EVERY).since(self.now())).await;
            *looked = self.now();
            match opening.next().await {
                Ok((_, _)) if self.is_primary_again().await => {}
                Ok((link, ending)) if matches!(link.kind().await, ServerKind::Primary | ServerKind::Unknown) => {
                    return (link, ending);
                }
                Ok(_no_primary_either) => {}
                Err(error) => self.tell_trouble(&error),
            }
        }
    }

    /// Authenticates anew on the link that there is now, before its credentials end.
    async fn keep_authenticated(&self) -> Infallible {
        let (Some(provider), Some(link)) = (&self.endpoint.target.provider, self.up()) else { return pending().await };
        let Some(mut known) = link.login().cloned() else { return pending().await };
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

    /// Whether what the link leads to was promoted meanwhile.
    async fn is_primary_again(&self) -> bool {
        match self.up() {
            Some(link) => !link.is_to_a_replica(self.endpoint.limits).await,
            None => false,
        }
    }

    /// The server is another from now on.
    fn replace_up(&self, link: Arc<Link>) {
        let mut old = None;
        self.state.send_if_modified(|state| {
            let is_open = !matches!(state, LinkState::Over);
            if is_open {
                old = Some(std::mem::replace(state, LinkState::Up(link)));
            }
            is_open
        });
        if let Some(LinkState::Up(old)) = old {
            old.end();
        }
        self.metrics.note_reconnect();
    }

    /// There is no link, or it is of no use.
    pub(super) fn tell_trouble(&self, error: &FredError) {
        foreign::tell_debug(|| Event::Connection { node: self.server.to_string(), error: words(error).into() });
    }

    /// The link has ended, if it was not given up before.
    fn lost(&self, reason: Option<&FredError>) {
        self.metrics.note_up(false);
        if let Some(error) = reason {
            self.tell_trouble(error);
        }
        let mut ended = None;
        self.state.send_if_modified(|state| {
            if let LinkState::Up(link) = state {
                ended = Some(link.clone());
                *state = LinkState::Down(reason.cloned());
            }
            ended.is_some()
        });
        if let Some(link) = ended {
            link.end();
        }
    }

    /// Tries until there is a link again.
    async fn connect_again(&self, opening: &mut Opening) -> Ending {
        loop {
            match opening.next().await {
                Ok((link, ending)) => {
                    let is_first = link.number() == 1;
                    self.was_up.store(true, Ordering::Release);
                    self.replace_down(LinkState::Up(Arc::new(link)), true);
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
                    self.replace_down(LinkState::Down(Some(error)), settles);
                }
            }
        }
    }

    /// Unless the connection is over.
    fn replace_down(&self, by: LinkState, is_news: bool) {
        self.state.send_if_modified(|state| {
            let is_down = matches!(state, LinkState::Down(_));
            if is_down {
                *state = by;
            }
            is_down && is_news
        });
    }
}

/// Marks the connection as over when its maintenance task ends, so that nobody waits for a link in vain.
struct EndsWithIt(Arc<Links>);

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        let _last = self.0.close();
    }
}

fn number(state: &LinkState) -> u64 {
    match state {
        LinkState::Up(link) => link.number(),
        LinkState::Down(_) | LinkState::Over => 0,
    }
}
