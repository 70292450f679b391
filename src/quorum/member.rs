//! One node in its quorum: asks it, tells its [`NodeHealth`] what comes of that, and carries out what follows.
//!
//! # Invariants
//!
//! 1. A node without trouble costs one load before it is asked, and one store and one load when it has answered: no
//!    lock. While there is trouble, every answer goes to the health.
//! 2. Locks are taken in the order `health`, `peers`. Neither is held while anything is awaited, notified or told.

use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, UNIX_EPOCH},
};

use leasehold_protocol::{
    failure::Failure,
    message::{AcquireRequest, Acquired, Reply, Request, Route, ServerIdentity, Vote},
    node_health::{ClockOffset, News, NodeHealth, Orders, Peers, ProbeRow},
    node_status::NodeStatus,
    time::Time,
    token::Token,
    troubles::causes_of_absence,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::undo::Undos;
use crate::{
    capabilities::Capabilities,
    clock::{self, Clock, wall},
    error::Error,
    foreign::{self, Event},
    keeper::Host,
    metrics::{self, NodeMetrics},
    node::{Answer, Node, NodeListener},
    troubles::Troubles,
};

/// One node, and what its answers have shown.
pub(crate) struct Member {
    address: Box<str>,
    /// Not there before the first connection.
    node: OnceLock<Arc<dyn Node>>,
    listener: OnceLock<Weak<dyn NodeListener>>,
    peers: Arc<Mutex<Peers>>,
    clock: Arc<dyn Clock>,
    host: Host,
    command_timeout: Duration,
    pub(super) undos: Undos,
    /// The troubles that were reported of it.
    told: Troubles,
    /// Nanoseconds on our clock; zero before the first.
    last_answer: AtomicU64,
    /// When an acquire request that may have been overtaken was last answered; nanoseconds on our clock.
    last_overtaken: AtomicU64,
    /// [`NodeHealth::is_troubled`], for those who do not have its lock.
    is_troubled: AtomicBool,
    health: Mutex<NodeHealth>,
    back: Notify,
    metrics: NodeMetrics,
}

impl Member {
    pub(super) fn new(
        at: usize,
        address: &str,
        is_only: bool,
        peers: Arc<Mutex<Peers>>,
        clock: Arc<dyn Clock>,
        host: Host,
        command_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            address: address.into(),
            node: OnceLock::new(),
            listener: OnceLock::new(),
            peers,
            clock,
            host,
            command_timeout,
            undos: Undos::new(),
            told: Troubles::default(),
            last_answer: AtomicU64::new(0),
            last_overtaken: AtomicU64::new(0),
            is_troubled: AtomicBool::new(false),
            health: Mutex::new(NodeHealth::new(at, is_only)),
            back: Notify::new(),
            metrics: NodeMetrics::of(address),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Only what is not asked of it goes past its health.
    pub(super) fn node(&self) -> Option<&Arc<dyn Node>> {
        self.node.get()
    }

    /// The gate through which tests control it, if it is in memory.
    #[cfg(feature = "testing")]
    pub(crate) fn gate(&self) -> Option<&crate::node::memory::Gate> {
        self.node()?.gate()
    }

    /// Whether its answers are there at the first poll.
    pub(crate) fn answers_at_once(&self) -> bool {
        self.node().is_some_and(|node| node.answers_at_once())
    }

    pub(super) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// It is connected for the first time.
    pub(super) fn install(&self, node: Arc<dyn Node>) {
        let node = self.node.get_or_init(|| node);
        self.metrics.note_up(true);
        if let Some(listener) = self.listener.get() {
            node.listen(listener.clone());
        }
    }

    pub(super) fn listen(&self, listener: Weak<dyn NodeListener>) {
        let listener = self.listener.get_or_init(|| listener);
        if let Some(node) = self.node.get() {
            node.listen(listener.clone());
        }
    }

    fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// Asks it something, unless that is pointless.
    pub(crate) fn ask<T>(self: &Arc<Self>, route: Route, request: Request, limit: Duration) -> Asked<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        self.ask_at(self.now(), route, request, limit)
    }

    /// The same by who has just looked at the clock.
    pub(crate) fn ask_at<T>(self: &Arc<Self>, now: Time, route: Route, request: Request, limit: Duration) -> Asked<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        self.send(now, self.askable(true), T::try_from, |node| node.send(route, request, limit))
    }

    /// The same for what is taken back there: that matters even if the node has no vote.
    pub(super) fn ask_without_vote<T>(self: &Arc<Self>, route: Route, request: Request, limit: Duration) -> Asked<T>
    where
        T: TryFrom<Reply, Error = Failure>,
    {
        self.send(self.now(), self.askable(false), T::try_from, |node| node.send(route, request, limit))
    }

    pub(super) fn capabilities(self: &Arc<Self>, limit: Duration) -> Asked<Capabilities, Capabilities> {
        self.send(self.now(), self.askable(true), Ok, |node| node.capabilities(limit))
    }

    /// Asks it at `now` for its vote.
    pub(super) fn vote(
        self: &Arc<Self>,
        now: Time,
        route: Route,
        request: AcquireRequest,
        limit: Duration,
    ) -> ComingVote {
        ComingVote(self.ask_at(now, route, Request::Acquire(request), limit))
    }

    /// Nobody wants this acquire any more. Whether it was never sent, and never will be.
    pub(crate) fn withdraw(&self, token: &Token) -> bool {
        self.node().is_some_and(|node| node.withdraw(token))
    }

    fn send<T, R>(
        self: &Arc<Self>,
        now: Time,
        node: Result<&Arc<dyn Node>, Failure>,
        read: fn(R) -> Result<T, Failure>,
        ask: impl FnOnce(&dyn Node) -> Answer<R>,
    ) -> Asked<T, R>
    where
        R: Send + 'static,
    {
        match node {
            Ok(node) => Asked { answer: ask(&**node), read, of: Some((self.clone(), now)) },
            Err(failure) => Asked { answer: Box::pin(ready(Err(failure))), read, of: None },
        }
    }

    /// Keeps what the node says of itself with a vote that was asked for at `sent`.
    fn voted(self: &Arc<Self>, sent: Time, Vote { acquired, identity, overtaken }: Vote) -> Result<Acquired, Failure> {
        if overtaken {
            self.last_overtaken.store(self.now().as_nanos(), Ordering::Release);
        }
        if let Some(identity) = identity {
            let votes_in = if let Acquired::Recovering(left) = &acquired { *left } else { Duration::ZERO };
            self.update(|health, now| health.voted(sent, now, &identity, votes_in, &mut self.peers.lock()))?;
        }
        Ok(acquired)
    }

    /// Whether an acquire request that was sent at `sent`, and answered, may have come later than what followed it.
    pub(crate) fn overtaken_since(&self, sent: Time) -> bool {
        Time::from_nanos(self.last_overtaken.load(Ordering::Acquire)) >= sent
    }

    fn askable(&self, needs_vote: bool) -> Result<&Arc<dyn Node>, Failure> {
        match self.node.get() {
            Some(node) if !self.is_troubled.load(Ordering::Acquire) => Ok(node),
            node => self.health.lock().askable(node, needs_vote),
        }
    }

    /// It has answered what was sent at `sent`, or not.
    fn heard(self: &Arc<Self>, failure: Option<&Failure>, sent: Time) {
        // A refusal of a key is an answer of the server.
        let Some(failure) = failure.filter(|failure| !failure.is_of_a_key()) else { return self.answered() };
        // Before the health catches up with the answers so far, so that it hears of every one after those.
        self.is_troubled.store(true, Ordering::Release);
        self.update(|health, now| ((), health.failed(failure, sent, now)));
    }

    fn answered(self: &Arc<Self>) {
        self.last_answer.store(self.now().as_nanos(), Ordering::Release);
        if self.is_troubled.load(Ordering::Acquire) {
            self.update(|health, now| ((), health.answered(now)));
        }
    }

    /// Something was asked of it that it has not answered for too long.
    pub(crate) fn silent(self: &Arc<Self>) {
        self.update(|health, _now| ((), health.silent()));
    }

    /// The health, which knows of every answer by now.
    fn health(&self) -> MutexGuard<'_, NodeHealth> {
        let mut health = self.health.lock();
        health.note_answer(Time::from_nanos(self.last_answer.load(Ordering::Acquire)));
        health
    }

    /// Tells the health of an event, and carries out what follows.
    fn update<T>(self: &Arc<Self>, event: impl FnOnce(&mut NodeHealth, Time) -> (T, Orders)) -> T {
        let mut health = self.health();
        let (outcome, orders) = event(&mut health, self.now());
        let is_troubled = health.is_troubled();
        self.is_troubled.store(is_troubled, Ordering::Release);
        let is_news = self.metrics.set_up(!is_troubled);
        drop(health);
        if is_news {
            metrics::have_news();
        }
        self.carry_out(orders);
        outcome
    }

    fn carry_out(self: &Arc<Self>, Orders { probe, wake, tell }: Orders) {
        if let Some(row) = probe {
            self.host.spawn_until_stopped(self.clone().probe(row));
        }
        if wake {
            self.back.notify_waiters();
        }
        let node = || self.address().into();
        match tell {
            None => {}
            Some(News::Silent { reason }) => {
                if let Some(count) = self.meet(causes_of_absence(&reason, None)) {
                    foreign::tell(Event::NodeSilent { node: node(), reason, count });
                }
            }
            Some(News::Answers) => {
                // Leases want to be renewed there, and whoever waits may have missed something.
                if let Some(listener) = self.listener.get().and_then(Weak::upgrade) {
                    listener.missed();
                }
                if self.told.end().is_some() {
                    foreign::tell(Event::NodeAnswers { node: node() });
                }
            }
            Some(News::Recovers { votes_in }) => {
                self.tell("recovers".to_owned(), Event::NodeRecovers { node: node(), votes_in });
            }
            Some(News::SameServer { other }) => {
                self.tell(format!("is {other}"), Event::SameServer { node: node(), other });
            }
        }
    }

    /// It is in trouble. How often it was since that was last told, if it is to be told: a node may come and go many
    /// times a minute.
    fn meet(&self, causes: impl IntoIterator<Item = String>) -> Option<u64> {
        self.told.meet_causes(self.now(), causes)
    }

    fn tell(&self, cause: String, event: Event) {
        if self.meet([cause]).is_some() {
            foreign::tell(event);
        }
    }

    /// The first connection to it is made in the background.
    pub(super) fn is_absent(&self, error: String) {
        self.tell("absent".to_owned(), Event::NodeAbsent { node: self.address().into(), error });
    }

    async fn probe(self: Arc<Self>, row: ProbeRow) {
        loop {
            let Some(pause) = self.health.lock().next_probe(row) else { return };
            self.host.sleep(pause).await;
            let Some(node) = self.node.get() else { return };
            match node.ask(Route::Keeper, Request::Probe, self.command_timeout).await {
                Ok(identity) => {
                    let _refused_from_now_on = self.check_identity(&identity);
                    self.answered();
                }
                Err(failure) => self.health.lock().probe_failed(&failure),
            }
        }
    }

    /// It could not be connected to.
    pub(super) fn not_there(self: &Arc<Self>, error: &Error) {
        let is_refusal = matches!(error, Error::Refused(_));
        let kind = if is_refusal { Failure::refused } else { Failure::unavailable };
        self.update(|health, _now| (health.not_connected(&kind(error.to_string())), Orders::default()));
    }

    /// It could be connected to at last.
    pub(super) fn arrived(self: &Arc<Self>) {
        self.update(|health, now| ((), health.arrived(now)));
    }

    /// Completes when it has answered after a failure.
    pub(super) async fn back(&self) {
        self.back.notified().await;
    }

    fn is_silent(&self) -> bool {
        self.is_troubled.load(Ordering::Acquire) && self.health.lock().is_silent()
    }

    /// Completes when it is not silent, or not any more.
    pub(crate) async fn speaks(&self) {
        loop {
            // Made before the look, it hears of every return after it.
            let back = self.back.notified();
            if !self.is_silent() {
                return;
            }
            back.await;
        }
    }

    /// Whether it is known to give no vote yet: asking it to bring a key back is pointless.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovers_in().is_some()
    }

    pub(super) fn recovers_in(&self) -> Option<Duration> {
        self.health.lock().recovers_in(self.now())
    }

    pub(crate) fn note_recovery(self: &Arc<Self>, left: Duration) {
        self.update(|health, now| ((), health.recovering(left, now)));
    }

    /// Fails if it is the same server as another node.
    pub(super) fn check_identity(self: &Arc<Self>, identity: &ServerIdentity) -> Result<(), Failure> {
        self.update(|health, _now| health.identified(identity, &mut self.peers.lock().identities))
    }

    /// It has answered for the first time; with its clock, so that the first fence can be proposed.
    pub(super) fn greet(&self, identity: &ServerIdentity) {
        let now = self.now();
        self.last_answer.store(now.as_nanos(), Ordering::Release);
        if let Some(time) = identity.time {
            self.peers.lock().fence_proposal.note_time(time, now);
        }
    }

    pub(super) fn clock_offset(&self) -> Option<ClockOffset> {
        self.health.lock().clock_offset()
    }

    pub(super) fn measure_clock(&self) {
        let offset = || self.status().clock_offset_micros();
        if let Some(micros) = NodeMetrics::WANT_CLOCKS.then(offset).flatten() {
            self.metrics.note_clock_offset(micros);
        }
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let wall = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.health().status(&self.address, self.now(), wall)
    }
}

/// A node's answer on its way. It is told to the node's health, and read as the request's own type.
///
/// It is the box that the node made and a few words beside it, so that one request takes one allocation.
#[must_use = "it is sent when it is looked at"]
pub(crate) struct Asked<T, R = Reply> {
    answer: Answer<R>,
    read: fn(R) -> Result<T, Failure>,
    /// The node and the time of asking; none where that was pointless.
    of: Option<(Arc<Member>, Time)>,
}

impl<T, R> Future for Asked<T, R> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.answer.as_mut().poll(context)).and_then(self.read);
        if let Some((member, sent)) = &self.of {
            member.heard(outcome.as_ref().err(), *sent);
        }
        Poll::Ready(outcome)
    }
}

/// A node's vote on its way.
pub(crate) struct ComingVote(Asked<Vote>);

impl Future for ComingVote {
    type Output = Result<Acquired, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(match &self.0.of {
            Some((member, sent)) => outcome.and_then(|vote| member.voted(*sent, vote)),
            None => outcome.map(|vote| vote.acquired),
        })
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("address", &self.address).field("node", &self.node.get()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    /// The files below a directory that name the trait as an object.
    fn files_that_see_nodes(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_that_see_nodes(&path, found);
            } else if fs::read_to_string(&path).unwrap_or_default().contains(concat!("dyn ", "Node>")) {
                found.push(path);
            }
        }
    }

    #[test]
    fn a_request_reaches_a_node_through_its_member_only() {
        let (src, mut found) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), Vec::new());
        files_that_see_nodes(&src, &mut found);
        found.retain(|path| !path.starts_with(src.join("node")));
        found.sort();
        // The first makes nodes, and probes them before they are members; the others ask and install them.
        assert_eq!(found, ["quorum/connect.rs", "quorum/member.rs", "quorum/mod.rs"].map(|path| src.join(path)));
    }
}
