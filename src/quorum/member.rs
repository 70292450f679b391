//! One node in its quorum: what is known of it from its answers, and whether it is worth asking.
//!
//! # Invariants
//!
//! 1. A node of a quorum that has been silent is not asked but probed, by one request at a time, until it answers: what
//!    was not sent need not be undone, and a dead node costs nothing. The only node of a lock is always asked.
//! 2. A node that is the same server as another one of the quorum has no vote.

use std::{
    fmt,
    future::ready,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use leasehold_protocol::{
    failure::Failure,
    message::{AcquireRequest as Bid, Acquired, ServerIdentity as Sign, Vote as Ballot},
    time::Time,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{roll::Roll, undo::Undos};
use crate::{
    clock::{Clock, now, wall},
    error::{Error, ErrorKind},
    foreign::{self, Event},
    keeper::Host,
    node::{Answer, Ear, Lane, Node},
    node_status::{NodeState, NodeStatus},
};

/// The pause before a silent node is probed; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How often a node without a vote is asked who it is.
const IDENTIFY_EVERY: Duration = Duration::from_secs(1);

/// So much waiting in vain since the last answer makes a node silent.
const SILENCE: Duration = Duration::from_millis(100);

/// One node, and what its answers have shown.
pub(crate) struct Member {
    at: usize,
    address: Box<str>,
    /// Not there before the first connection.
    node: OnceLock<Arc<dyn Node>>,
    ear: OnceLock<Weak<dyn Ear>>,
    roll: Arc<Roll>,
    clock: Arc<dyn Clock>,
    host: Host,
    command_timeout: Duration,
    pub(super) undos: Undos,
    /// Nanoseconds on our clock; zero before the first.
    last_answer: AtomicU64,
    is_silent: AtomicBool,
    /// When a bid was last answered that may have been overtaken; nanoseconds on our clock.
    last_overtaken: AtomicU64,
    /// Whether `state` has anything to be taken back by an answer.
    is_troubled: AtomicBool,
    back: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    unreachable: Option<String>,
    refused: Option<String>,
    same_as: Option<Box<str>>,
    /// When the request was sent whose answer has told most lately who it is.
    sign_sent: Time,
    recovers_until: Time,
    /// How long we have waited in vain since the last answer, and when that was reckoned.
    waited: Duration,
    waited_until: Time,
    /// The node's clock less ours, in microseconds, and how exact that is.
    offset: Option<Offset>,
}

/// By how much a node's clock is ahead of ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offset {
    micros: i128,
    give_or_take: i128,
}

impl Offset {
    /// By how much two clocks differ for certain.
    fn differs_from(self, other: Self) -> Duration {
        let certain = (self.micros - other.micros).abs() - self.give_or_take - other.give_or_take;
        Duration::from_micros(u64::try_from(certain).unwrap_or_default())
    }
}

impl Member {
    pub(super) fn new(
        at: usize,
        address: &str,
        roll: Arc<Roll>,
        clock: Arc<dyn Clock>,
        host: Host,
        command_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            at,
            address: address.into(),
            node: OnceLock::new(),
            ear: OnceLock::new(),
            roll,
            clock,
            host,
            command_timeout,
            undos: Undos::new(),
            last_answer: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            last_overtaken: AtomicU64::new(0),
            is_troubled: AtomicBool::new(false),
            back: Notify::new(),
            state: Mutex::default(),
        })
    }

    /// Its number in the quorum.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn node(&self) -> Option<&Arc<dyn Node>> {
        self.node.get()
    }

    pub(super) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// It is connected for the first time.
    pub(super) fn install(&self, node: Arc<dyn Node>) {
        let node = self.node.get_or_init(|| node);
        if let Some(ear) = self.ear.get() {
            node.listen(ear.clone());
        }
    }

    pub(super) fn listen(&self, ear: Weak<dyn Ear>) {
        let ear = self.ear.get_or_init(|| ear);
        if let Some(node) = self.node.get() {
            node.listen(ear.clone());
        }
    }

    fn now(&self) -> Time {
        now(&*self.clock)
    }

    /// Asks it something, unless that is pointless.
    pub(crate) fn ask<T: Send + 'static>(self: &Arc<Self>, request: impl FnOnce(&dyn Node) -> Answer<T>) -> Answer<T> {
        self.send(self.askable(true), request)
    }

    /// The same for what is taken back there: that matters even if the node has no vote.
    pub(super) fn ask_without_vote<T: Send + 'static>(
        self: &Arc<Self>,
        request: impl FnOnce(&dyn Node) -> Answer<T>,
    ) -> Answer<T> {
        self.send(self.askable(false), request)
    }

    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        node: Result<&Arc<dyn Node>, Failure>,
        request: impl FnOnce(&dyn Node) -> Answer<T>,
    ) -> Answer<T> {
        let node = match node {
            Ok(node) => node,
            Err(failure) => return Box::pin(ready(Err(failure))),
        };
        let (answer, member, sent) = (request(&**node), self.clone(), self.now());
        Box::pin(async move {
            let outcome = answer.await;
            member.heard(outcome.as_ref().err(), sent);
            outcome
        })
    }

    /// Asks it for its vote. What it says of itself is kept.
    pub(crate) fn vote(self: &Arc<Self>, lane: Lane, bid: &Bid, limit: Duration) -> Answer<Acquired> {
        let (sent, member) = (self.now(), self.clone());
        let answer = self.ask(|node| node.acquire(lane, bid, limit));
        Box::pin(async move {
            let Ballot { acquired, sign, overtaken } = answer.await?;
            if overtaken {
                member.last_overtaken.store(member.now().as_nanos(), Ordering::Release);
            }
            let Some(sign) = sign else { return Ok(acquired) };
            if !member.is_newest(sent) {
                // It counts if it is the same server's; if not, what it granted is undone.
                let is_same = sign.run_id.is_none_or(|run_id| member.roll.is_known(member.at, &run_id));
                let other = || Failure::unknown("another server has answered under this address since");
                return if is_same { Ok(acquired) } else { Err(other()) };
            }
            member.note_clock(&sign, sent);
            // It may have granted all the same, and the address by which that server has its vote may be out of reach.
            member.check_identity(&sign).map_err(Failure::halfway)?;
            member.note_recovery(if let Acquired::Recovering(left) = &acquired { *left } else { Duration::ZERO });
            Ok(acquired)
        })
    }

    /// Whether nothing newer was heard of it than the answer to what was sent at `sent`. A vote that is heard late must not
    /// take back what a later one has shown of the node's clock, or of who it is.
    fn is_newest(&self, sent: Time) -> bool {
        let mut state = self.state.lock();
        let is_newest = sent >= state.sign_sent;
        state.sign_sent = state.sign_sent.max(sent);
        is_newest
    }

    /// Whether a bid that was sent at `sent`, and has been answered, may have come later than what followed it.
    pub(crate) fn overtaken_since(&self, sent: Time) -> bool {
        Time::from_nanos(self.last_overtaken.load(Ordering::Acquire)) >= sent
    }

    fn askable(&self, needs_vote: bool) -> Result<&Arc<dyn Node>, Failure> {
        let node = self.node.get();
        if !self.is_troubled.load(Ordering::Acquire) {
            return node.ok_or_else(|| Failure::unavailable("it is not connected yet"));
        }
        let state = self.state.lock();
        if let Some(other) = state.same_as.as_ref().filter(|_| needs_vote) {
            return Err(Failure::refused(same_server(other)));
        }
        match (node, &state.refused) {
            (Some(node), _) if !self.is_silent.load(Ordering::Acquire) => Ok(node),
            (None, Some(text)) => Err(Failure::refused(text)),
            _ => Err(Failure::unavailable(state.unreachable.as_deref().unwrap_or("no answer"))),
        }
    }

    /// It has answered what was sent at `sent`, or not.
    fn heard(self: &Arc<Self>, failure: Option<&Failure>, sent: Time) {
        let Some(failure) = failure else {
            self.answered();
            return;
        };
        let text = Some(failure.to_string());
        let mut state = self.state.lock();
        if failure.is_refusal() {
            state.refused = text;
        } else {
            state.unreachable = text;
        }
        self.is_troubled.store(true, Ordering::Release);
        // What waits side by side waits once; a link that breaks fails at once, and says nothing of its node; and a node that
        // answers on one connection is not silent, though another one may be dead.
        let (now, answered) = (self.now(), Time::from_nanos(self.last_answer.load(Ordering::Acquire)));
        let counted = state.waited_until.max(answered);
        state.waited += now.since(sent.max(counted));
        state.waited_until = now;
        let is_silent = state.waited >= SILENCE && failure.is_silence();
        drop(state);
        if is_silent {
            self.silent();
        }
    }

    fn answered(&self) {
        self.last_answer.store(self.now().as_nanos(), Ordering::Release);
        if !self.is_troubled.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        (state.unreachable, state.refused, state.waited) = (None, None, Duration::ZERO);
        if state.same_as.is_none() {
            self.is_troubled.store(false, Ordering::Release);
        }
        drop(state);
        // Before the notification: `speaks` looks at it when it is woken.
        let was_silent = self.is_silent.swap(false, Ordering::AcqRel);
        self.back.notify_waiters();
        if was_silent {
            // Leases want to be renewed there, and whoever waits may have missed something.
            if let Some(ear) = self.ear.get().and_then(Weak::upgrade) {
                ear.missed();
            }
            foreign::tell(Event::NodeAnswers { node: self.address().into() });
        }
    }

    /// Something was asked of it that it has not answered for too long (invariant 1).
    pub(crate) fn silent(self: &Arc<Self>) {
        if self.roll.is_one() || self.is_silent.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.state.lock();
        let reason = state.unreachable.get_or_insert_with(|| "it does not answer".into()).clone();
        self.is_troubled.store(true, Ordering::Release);
        drop(state);
        self.host.spawn_until_stopped(self.clone().probe());
        foreign::tell(Event::NodeSilent { node: self.address().into(), reason });
    }

    async fn probe(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        while self.is_silent.load(Ordering::Acquire) {
            self.host.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let Some(node) = self.node.get() else { continue };
            match node.probe(self.command_timeout).await {
                Ok(sign) => {
                    let _refused_from_now_on = self.check_identity(&sign);
                    self.answered();
                }
                Err(failure) => self.state.lock().unreachable = Some(failure.to_string()),
            }
        }
    }

    /// It could not be connected to.
    pub(super) fn not_there(&self, error: &Error) {
        let (text, is_refusal) = (error.to_string(), error.kind() == ErrorKind::Refused);
        let mut state = self.state.lock();
        (state.unreachable, state.refused) = if is_refusal { (None, Some(text)) } else { (Some(text), None) };
        self.is_troubled.store(true, Ordering::Release);
    }

    /// It could be connected to at last.
    pub(super) fn arrived(&self) {
        self.is_silent.store(true, Ordering::Release);
        self.is_troubled.store(true, Ordering::Release);
        self.answered();
    }

    /// Completes when it has answered after a failure.
    pub(super) async fn back(&self) {
        self.back.notified().await;
    }

    /// Completes when it is not silent, or not any more.
    pub(crate) async fn speaks(&self) {
        loop {
            // Made before the look, it hears of every return after it.
            let back = self.back.notified();
            if !self.is_silent.load(Ordering::Acquire) {
                return;
            }
            back.await;
        }
    }

    /// Whether it is known to give no vote yet: asking it to bring a key back is pointless.
    pub(crate) fn is_recovering(&self) -> bool {
        self.now() < self.state.lock().recovers_until
    }

    pub(crate) fn note_recovery(&self, left: Duration) {
        if left.is_zero() && self.state.lock().recovers_until == Time::ZERO {
            return;
        }
        let until = if left.is_zero() { Time::ZERO } else { self.now() + left };
        let was = std::mem::replace(&mut self.state.lock().recovers_until, until);
        if was == Time::ZERO {
            foreign::tell(Event::NodeRecovers { node: self.address().into(), votes_in: left });
        }
    }

    /// Invariant 2.
    pub(super) fn check_identity(self: &Arc<Self>, sign: &Sign) -> Result<(), Failure> {
        let Some(run_id) = &sign.run_id else { return Ok(()) };
        let Some(other) = self.roll.enter(self.at, &self.address, run_id) else {
            if self.is_troubled.load(Ordering::Acquire) {
                self.state.lock().same_as = None;
            }
            return Ok(());
        };
        let failure = Failure::refused(same_server(&other));
        self.is_troubled.store(true, Ordering::Release);
        if self.state.lock().same_as.replace(other.clone()).is_none() {
            self.host.spawn_until_stopped(self.clone().reidentify());
            foreign::tell(Event::SameServer { node: self.address().into(), other: other.into() });
        }
        Err(failure)
    }

    /// It may be led to another server one day.
    async fn reidentify(self: Arc<Self>) {
        while self.state.lock().same_as.is_some() {
            self.host.sleep(IDENTIFY_EVERY).await;
            let Some(node) = self.node.get() else { return };
            if let Ok(sign) = node.probe(self.command_timeout).await {
                if self.check_identity(&sign).is_ok() {
                    self.answered();
                }
            }
        }
    }

    /// It has answered for the first time; with its clock, so that the first fence can be proposed.
    pub(super) fn greet(&self, sign: &Sign) {
        let now = self.now();
        self.last_answer.store(now.as_nanos(), Ordering::Release);
        if let Some(time) = sign.time {
            self.roll.note_time(time, now);
        }
    }

    fn note_clock(&self, sign: &Sign, sent: Time) {
        let Some(time) = sign.time else { return };
        let now = self.now();
        self.roll.note_time(time, sent);
        let half = now.since(sent).as_micros() / 2;
        let ours = i128::from(sent.as_nanos() / 1_000) + i128::try_from(half).unwrap_or_default();
        let offset = Offset { micros: i128::from(time) - ours, give_or_take: i128::try_from(half).unwrap_or_default() };
        self.state.lock().offset = Some(offset);
    }

    pub(super) fn clock_differs_from(&self, other: &Self) -> Option<Duration> {
        let (one, other) = (self.state.lock().offset, other.state.lock().offset);
        Some(one?.differs_from(other?))
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let now = self.now();
        let last_answer = self.last_answer.load(Ordering::Acquire);
        let last_answer = (last_answer != 0).then(|| now.since(Time::from_nanos(last_answer)));
        let state = self.state.lock();
        let node_state = if let Some(other) = &state.same_as {
            NodeState::SameServer(other.to_string())
        } else if let Some(text) = &state.unreachable {
            NodeState::Unreachable(text.clone())
        } else if let Some(text) = &state.refused {
            NodeState::Refused(text.clone())
        } else if now < state.recovers_until {
            NodeState::Recovering { remaining: state.recovers_until.since(now) }
        } else if last_answer.is_some() {
            NodeState::Up
        } else {
            NodeState::Unknown
        };
        let to_wall = i128::from(now.as_nanos() / 1_000)
            - i128::try_from(wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()).unwrap_or_default();
        let offset = state.offset.and_then(|offset| i64::try_from(offset.micros + to_wall).ok());
        NodeStatus { address: self.address.to_string(), state: node_state, last_answer, clock_offset_micros: offset }
    }
}

fn same_server(other: &str) -> String {
    format!("it is the same server as {other}, and one server has one vote: name independent servers")
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("address", &self.address).field("node", &self.node.get()).finish_non_exhaustive()
    }
}
