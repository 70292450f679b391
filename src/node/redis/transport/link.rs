//! One link to a server: one TCP connection, and the task for it. A link is never repaired but replaced.
//!
//! # Invariants
//!
//! 1. A request ends with the link that it was handed to: the link's task owns all queued and unanswered requests, and
//!    ends with the link. So no request that was handed over before an outage is sent after it.
//! 2. A link takes no request while the requests that it holds weigh [`FULL`] or more. A request weighs its bytes and
//!    some more, from its sending to its answer, whether or not a caller still waits for that.
//! 3. No caller waits on a link that has ended. A request that is handed over while the task ends may stay in a queue
//!    that is not read any more. tokio empties that queue only up to an entry that a sender has reserved and not filled
//!    yet. The caller would wait for its full limit.
//! 4. Each answer belongs to its request. The protocol matches answers to requests by their order alone. Redis 7.4 and
//!    8.0 and Valkey 8.1 do not answer an AUTH that they refuse, if they read it together with a command before it. So
//!    AUTH goes alone, followed by a question whose answer is known. Until that answer has arrived, nothing else is
//!    sent, and no answer counts.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use leasehold_protocol::link_health::LinkHealth;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    endpoint::{Endpoint, Limits},
    history::History,
    introduction::{INTRODUCTION, Role, introduce},
    kind::{Kind, RequiredKind, ServerKind},
    left_out::LeftOut,
    login::Login,
    seated::Seated,
};
use crate::{
    credentials::Credentials,
    node::redis::{
        script::{OfRun, Script, Text},
        wire::{
            self, Answer, Command, Config, Error as WireError, ErrorKind as WireKind, Running, Value, Wire, is_answer,
        },
    },
    random,
};

/// The most that all requests of a link may weigh together, in bytes.
const FULL: usize = 32 * 1024 * 1024;

/// The time within which an answer that has arrived is delivered.
const MOMENT: Duration = Duration::from_millis(20);

/// The command that asks a server for its kind.
const HELLO: &str = "HELLO";

const PING: &str = "PING";

/// Why a request was never sent: there is no wire, or it is left in a queue that is not read any more.
const LINK_IS_OVER: &str = "The link was over before it was sent";

/// Why an answer does not count.
const UNASSIGNED: &str = "it ended before it was certain which request it had answered";

/// Script, number of keys, and keys and arguments of a lone acquire or release: one more would move all of them.
const ARGUMENTS: usize = 8;

/// The next link of a connection.
#[derive(Clone)]
pub(crate) struct NextLink {
    pub(crate) endpoint: Endpoint,
    pub(crate) number: u64,
    pub(crate) role: Role,
    /// Whether the link is used only once the server's kind is known. If not, requests may follow that question.
    pub(crate) is_wary: bool,
    pub(crate) left_out: Arc<LeftOut>,
}

impl NextLink {
    /// Asks for the server's kind, and right behind that for its history if replicas must confirm writes, and for its
    /// run if it is a node of a quorum.
    async fn question(&self, wire: &Wire, history: &History, seated: Option<&Seated>) -> Result<ServerKind, WireError> {
        let Limits { connect, min_replicas, .. } = self.endpoint.limits;
        let of_history = async {
            if min_replicas > 0 {
                let (command, arguments) = History::question();
                history.note(wire.ask(command, arguments, connect).await);
            }
        };
        let of_run = async {
            if let Some(seated) = seated {
                let (command, arguments) = Seated::question();
                // Boxed: it is large, and most servers are no node of a quorum.
                seated.note(Box::pin(wire.ask(command, arguments, connect)).await);
            }
        };
        let (kind, (), ()) = tokio::join!(biased; self.kind(wire), of_history, of_run);
        kind
    }

    async fn kind(&self, wire: &Wire) -> Result<ServerKind, WireError> {
        if self.left_out.check(HELLO, self.endpoint.now()).is_err() {
            return Ok(ServerKind::Unknown);
        }
        let kind = kind_of(wire, self.endpoint.limits, self.endpoint.wanted).await;
        self.left_out.note(HELLO, &kind, self.endpoint.now());
        kind
    }

    /// Sends the first commands, in one flight: the question for the kind, and the introduction.
    async fn greet(
        &self,
        wire: &Wire,
        history: &History,
        seated: Option<&Seated>,
        has_answered: &AtomicBool,
    ) -> Result<ServerKind, WireError> {
        let kind = async {
            let kind = self.question(wire, history, seated).await;
            has_answered.store(true, Ordering::Relaxed);
            kind
        };
        let (kind, introduced) = tokio::join!(kind, self.introduce(wire));
        kind.and_then(|kind| introduced.map(|()| kind))
    }

    async fn introduce(&self, wire: &Wire) -> Result<(), WireError> {
        introduce(wire, &self.endpoint, self.role, &self.left_out).await
    }

    fn ended_on<T>(&self, command: &'static str) -> Result<T, WireError> {
        let ended = Err(WireError::new(WireKind::Other, format!("it ended on {command}")));
        self.left_out.note(command, &ended, self.endpoint.now());
        ended
    }
}

/// The outcome of a try to connect.
pub(crate) type Opened = Result<(Link, Ending), WireError>;

/// One link.
pub(crate) struct Link {
    wire: Arc<Wire>,
    /// The link's number among those of its connection.
    pub(super) number: u64,
    /// The credentials that the link was made with, if a provider gave them.
    pub(super) login: Option<Login>,
    /// The server's kind when the link was made, once it is known.
    pub(super) kind: Arc<Kind>,
    health: Mutex<LinkHealth>,
    /// Whether an answer arrived that `health` does not know of yet: each request sets this, without a lock.
    has_answered: AtomicBool,
    /// Whether the link is still as patient as its handshake was slow.
    was_slow: AtomicBool,
    /// The scripts that were sent on this link, so the server knows them.
    known: AtomicU32,
    /// The scripts of votes for the server's run, once that is known.
    of_run: Mutex<Option<Arc<OfRun>>>,
    /// The run of the link's server, once asked; `None` inside if not reported. A link never changes its server.
    leads_to: OnceLock<Option<Box<str>>>,
    /// Whether its answers count, if it is to a node of a quorum.
    seated: Option<Arc<Seated>>,
    /// The history that the link's writes belong to, if replicas must confirm them.
    history: Arc<History>,
    given_up: Arc<Notify>,
    /// Cancelled once the task has ended (invariant 3).
    over: CancellationToken,
    step: watch::Sender<Step>,
}

/// Whether answers are in step with their requests (invariant 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    In,
    Unknown,
    Out,
}

/// While this lives, it is unknown whether a link is in step; its drop sets this step.
struct StepGuard<'a>(&'a Link, Step);

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        let Self(link, step) = *self;
        link.step.send_replace(step);
        if step == Step::Out {
            link.end();
        }
    }
}

/// The command sent right before another one that needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Nothing,
    /// Asks the server to notify us when a key that the script reads changes.
    Tracking,
    /// Another server, which has the slot, has redirected the request to this one.
    Asking,
}

impl Before {
    fn command(self) -> Option<Command> {
        match self {
            Self::Nothing => None,
            Self::Tracking => Some(("CLIENT", vec!["CACHING".into(), "YES".into()])),
            Self::Asking => Some(("ASKING", Vec::new())),
        }
    }
}

/// Waits for the end of a link.
pub(crate) struct Ending {
    running: Running,
    given_up: Arc<Notify>,
    kind: Arc<Kind>,
    over: CancellationToken,
}

impl Ending {
    /// Completes when the link has ended, or was given up; with the reason if there is one.
    pub(crate) async fn ended(&mut self) -> Option<WireError> {
        let Self { running, given_up, .. } = self;
        let error = tokio::select! {
            biased;
            error = running.ended() => error,
            () = given_up.notified() => None,
        };
        // The server may have reported its kind, and ended: the end may be noticed first.
        let _known_or_not = tokio::time::timeout(MOMENT, self.kind.get()).await;
        self.kind.wrong().or(error)
    }

    /// Notifies callers that still wait, once the link's task has ended. The link must have been [ended](Link::end).
    pub(crate) async fn settle(mut self) {
        let _ended = self.running.ended().await;
        self.over.cancel();
    }
}

impl Link {
    /// Connects, on the current runtime, with these settings. `login` holds the credentials that a provider gave.
    pub(crate) async fn open(next: NextLink, config: Config, login: Option<Login>) -> Opened {
        let limits = next.endpoint.limits;
        let began = next.endpoint.now();
        let (wire, mut running) = wire::connect(config, limits.connect, limits.command, false).await?;
        let wire = Arc::new(wire);
        let (given_up, history) = (Arc::<Notify>::default(), Arc::<History>::default());
        let seated = next.endpoint.seat.clone().map(Seated::new).map(Arc::new);
        let kind = if next.is_wary {
            let has_answered = AtomicBool::new(false);
            let mut greeting = pin!(next.greet(&wire, &history, seated.as_deref(), &has_answered));
            let known = tokio::select! {
                biased;
                known = &mut greeting => known,
                // The answer may have arrived between the two polls. The rest would stay in a queue that is not read
                // any more.
                _ended = running.ended() => greeting.now_or_never().unwrap_or_else(|| {
                    next.ended_on(if has_answered.load(Ordering::Relaxed) { INTRODUCTION } else { HELLO })
                }),
            }?;
            known.check()?;
            Kind::known(known)
        } else {
            let (its, asking, given_up) = (wire.clone(), next.clone(), given_up.clone());
            let (history, seated) = (history.clone(), seated.clone());
            let answer =
                async move { asking.question(&its, &history, seated.as_deref()).await.unwrap_or(ServerKind::Unknown) };
            let kind = Kind::ask(answer, move || given_up.notify_one()).await;
            let (its, introduced) = (wire.clone(), next.clone());
            let introducing = async move { drop(introduced.introduce(&its).await) };
            #[allow(
                clippy::disallowed_methods,
                reason = "like the tasks of the wire it belongs to this runtime and this link"
            )]
            drop(tokio::task::spawn(introducing));
            kind
        };
        let health = LinkHealth::new(began, next.endpoint.now(), limits.command / 2);
        let link = Self {
            wire,
            number: next.number,
            login,
            kind,
            was_slow: AtomicBool::new(health.patience() > limits.command / 2),
            health: Mutex::new(health),
            has_answered: AtomicBool::new(false),
            known: AtomicU32::new(0),
            of_run: Mutex::default(),
            leads_to: OnceLock::new(),
            seated,
            history,
            given_up: given_up.clone(),
            over: CancellationToken::new(),
            step: watch::Sender::new(Step::In),
        };
        let (kind, over) = (link.kind.clone(), link.over.clone());
        Ok((link, Ending { running, given_up, kind, over }))
    }

    /// Authenticates with other credentials. If the server rejects them, the link stays as it was; without an answer,
    /// the link ends (invariant 4).
    pub(crate) async fn authenticate(&self, login: &Login) -> Result<(), WireError> {
        let Credentials { user, password, .. } = &login.credentials;
        let words: Vec<Value> = user.iter().chain([password]).map(|word| word.as_str().into()).collect();
        let marker = random::number().to_string();
        let patience = self.health().patience();
        self.step.send_replace(Step::Unknown);
        let mut doubt = StepGuard(self, Step::In);
        // After this, everything sent before has been answered.
        self.ping(patience).await?;
        doubt.1 = Step::Out;
        let marked = (PING, vec![Value::from(&marker)]);
        let (taken, answer) = self.or_over(pin!(self.wire.ask_behind(("AUTH", words), marked, patience))).await?;
        if is_of_ping(&answer, &marker) {
            doubt.1 = Step::In;
        }
        taken.map(drop)
    }

    /// A barrier: completes once everything sent before has been answered.
    async fn ping(&self, limit: Duration) -> Result<(), WireError> {
        match self.or_over(pin!(self.wire.ask(PING, Vec::new(), limit))).await {
            Err(error) if !is_answer(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the link's server is still a replica.
    pub(crate) async fn is_to_a_replica(&self, limits: Limits) -> bool {
        !matches!(kind_of(&self.wire, limits, RequiredKind::Alone).await, Ok(ServerKind::Primary | ServerKind::Unknown))
    }

    /// Whether the link takes no more requests now (invariant 2).
    pub(crate) fn is_full(&self) -> bool {
        self.wire.load() >= FULL
    }

    /// Whether a script is sent on this link for the first time. Later requests on this link reach the server after it.
    pub(crate) fn is_first(&self, script: &Script) -> bool {
        self.known.fetch_or(script.bit, Ordering::Relaxed) & script.bit == 0
    }

    /// Whether a script was sent on this link.
    pub(crate) fn knows(&self, script: &Script) -> bool {
        self.known.load(Ordering::Relaxed) & script.bit != 0
    }

    /// The call of a script, by its hash or its text, with its arguments; `None` if it is not wanted any more.
    pub(crate) fn call(
        &self,
        script: &'static Script,
        by_hash: bool,
        arguments: &mut impl FnMut(&mut Vec<Value>) -> Option<usize>,
    ) -> Option<Command> {
        let (name, text) = if by_hash { ("EVALSHA", script.hash()) } else { ("EVAL", script.source) };
        self.evaluate(|| (name, Text::Fixed(text)), arguments)
    }

    /// The run of the link's server, if that is known; the outer `None` before it was asked.
    pub(crate) fn leads_to(&self) -> Option<Option<&str>> {
        self.leads_to.get().map(Option::as_deref)
    }

    /// Notes the server's run; `None` if not reported.
    pub(crate) fn note_where_it_leads(&self, run_id: Option<Box<str>>) {
        let _the_same = self.leads_to.set(run_id);
    }

    /// The scripts of votes for the link's run, if that is known.
    pub(crate) fn of_run(&self) -> Option<Arc<OfRun>> {
        self.of_run.lock().clone()
    }

    /// Notes that this run has answered on this link.
    pub(crate) fn note_run(&self, run_id: &str) {
        let mut of_run = self.of_run.lock();
        if of_run.as_ref().is_none_or(|known| known.run_id() != run_id) {
            *of_run = OfRun::new(run_id).map(Arc::new);
        }
    }

    /// Forgets the run, which does not know its script: its scripts were flushed, or the link reaches another run.
    pub(crate) fn forget_run(&self) {
        *self.of_run.lock() = None;
    }

    /// The call of the script that `script` returns; that is called only if the answer is still wanted.
    pub(crate) fn evaluate(
        &self,
        script: impl FnOnce() -> (&'static str, Text),
        arguments: &mut impl FnMut(&mut Vec<Value>) -> Option<usize>,
    ) -> Option<Command> {
        let mut all: Vec<Value> = Vec::with_capacity(ARGUMENTS);
        all.extend([Value::Null, Value::Null]);
        let keys = arguments(&mut all)?;
        let (name, text) = script();
        let weighed = self.wire.weighed(text, &all);
        if let Some([first, second]) = all.first_chunk_mut() {
            *first = weighed;
            *second = i64::try_from(keys).unwrap_or(i64::MAX).into();
        }
        Some((name, all))
    }

    /// Sends a command, behind the one that it needs `before`. The answer comes with whether it is tracked.
    pub(crate) async fn send(
        &self,
        command: Command,
        limit: Duration,
        before: Before,
    ) -> Result<(Value, bool), WireError> {
        let outcome = match before.command() {
            None => {
                let (name, arguments) = command;
                let answer = pin!(self.wire.ask(name, arguments, limit));
                self.unless_over(answer).await.map(|value| (value, false))
            }
            Some(first) => {
                // Boxed: it is large, and most requests go alone.
                let mut sending = Box::pin(self.wire.ask_behind(first, command, limit));
                let answers = self.unless_over(sending.as_mut()).await;
                answers.and_then(|(first, answer)| match before {
                    // If `ASKING` is refused, that is why the command is too.
                    Before::Asking => first.and(answer).map(|value| (value, false)),
                    // A connection that does not track, or not any more, refuses it, but the next command still runs.
                    _ => Ok((answer?, first.is_ok())),
                })
            }
        };
        // An answer counts only from a server of the right kind, which it reported before.
        if outcome.as_ref().err().is_none_or(is_answer) {
            self.kind.get().await.check()?;
        }
        if outcome.is_ok() {
            self.check_seat().await?;
        }
        outcome
    }

    /// Whether an answer counts as that of its node, if the server is one of a quorum. A refusal always does.
    async fn check_seat(&self) -> Result<(), WireError> {
        match &self.seated {
            None => Ok(()),
            Some(seated) => {
                let again = || {
                    let (command, arguments) = Seated::question();
                    self.command(command, arguments, self.health().patience())
                };
                seated.check(again).await
            }
        }
    }

    /// Sends commands one right behind the other, each behind the one it needs `before`, and returns each answer. An
    /// error applies to all.
    pub(crate) async fn send_each(
        &self,
        commands: impl Iterator<Item = Command>,
        limit: Duration,
        before: Before,
    ) -> Result<Vec<Answer>, WireError> {
        let commands: Vec<Command> =
            commands.flat_map(|command| before.command().into_iter().chain([command])).collect();
        let behind = usize::from(before != Before::Nothing);
        let answers = self.unless_over(pin!(self.wire.ask_each(commands, limit))).await?;
        self.kind.get().await.check()?;
        self.check_seat().await?;
        Ok(answers.into_iter().skip(behind).step_by(behind + 1).collect())
    }

    /// The answer of a request that is sent when this is first polled, while the link is in step (invariant 4).
    async fn unless_over<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = Result<T, WireError>>>,
    ) -> Result<T, WireError> {
        self.is_in_step().await?;
        let answer = self.or_over(answer.as_mut()).await;
        match self.is_in_step().await {
            Err(_) if answer.as_ref().err().is_none_or(is_answer) => Err(WireError::new(WireKind::Other, UNASSIGNED)),
            _ => answer,
        }
    }

    /// Whether it is known if the link is in step: it does not authenticate at this moment.
    pub(super) fn is_steady(&self) -> bool {
        *self.step.borrow() != Step::Unknown
    }

    /// Completes once the link is steady; with an error if it is out of step.
    pub(super) async fn is_in_step(&self) -> Result<(), WireError> {
        let mut step = *self.step.borrow();
        if step == Step::Unknown {
            // Boxed: it is large, and hardly ever waited for.
            step = Box::pin(async {
                let mut steps = self.step.subscribe();
                steps.wait_for(|step| *step != Step::Unknown).await.map_or(Step::Out, |step| *step)
            })
            .await;
        }
        if step == Step::In { Ok(()) } else { Err(WireError::new(WireKind::Unsent, LINK_IS_OVER)) }
    }

    /// The answer, or that none will arrive (invariant 3): by its end the task has answered or dropped all requests.
    ///
    /// The future stays where it is, because it is large.
    pub(super) async fn or_over<T>(
        &self,
        mut answer: Pin<&mut impl Future<Output = Result<T, WireError>>>,
    ) -> Result<T, WireError> {
        tokio::select! {
            biased;
            answer = answer.as_mut() => return answer,
            () = self.over.cancelled() => {}
        }
        // The answer may have arrived between the two polls.
        let late = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        match late {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(WireError::new(WireKind::Unsent, LINK_IS_OVER)),
        }
    }

    /// Sends a command that is not a script.
    pub(crate) async fn command(&self, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
        self.unless_over(pin!(self.wire.ask(command, arguments, limit))).await
    }

    /// Whether the server has been a primary since the link was made, as far as it reports that; if not, why that is not
    /// certain.
    pub(crate) async fn has_its_history(&self, limit: Duration) -> Result<(), &'static str> {
        let (command, arguments) = History::question();
        self.history.goes_on(self.command(command, arguments, limit)).await
    }

    pub(crate) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Like `answered`, for a request that `took` this long. Only a link made by a slow handshake asks how long.
    pub(crate) fn answered_in(&self, took: impl FnOnce() -> Duration) {
        self.answered();
        if self.was_slow.load(Ordering::Relaxed) && self.health().answered_in(took()) {
            self.was_slow.store(false, Ordering::Relaxed);
        }
    }

    /// The link's health now. Only requests without an answer take the lock.
    pub(super) fn health(&self) -> MutexGuard<'_, LinkHealth> {
        let mut health = self.health.lock();
        if self.has_answered.swap(false, Ordering::Relaxed) {
            health.answered();
        }
        health
    }

    /// Ends the link, with all that it holds.
    pub(crate) fn end(&self) {
        self.wire.end();
        self.given_up.notify_one();
    }

    /// Sends `QUIT` to the server, after what was sent before.
    pub(crate) async fn quit(&self, limit: Duration) {
        let _in_time = tokio::time::timeout(limit, self.wire.quit()).await.is_ok();
    }
}

/// A link without an owner is given up.
impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks for the server's kind. Fails only if there is no answer.
async fn kind_of(wire: &Wire, limits: Limits, wanted: RequiredKind) -> Result<ServerKind, WireError> {
    match wire.ask(HELLO, vec!["2".into()], limits.connect).await {
        Ok(answer) => Ok(ServerKind::read(&answer, wanted)),
        Err(error) if is_answer(&error) => Ok(ServerKind::Unknown),
        Err(error) => Err(error),
    }
}

/// Whether it is the answer to a `PING` with this marker. The refusal of a user that may not send one names it.
fn is_of_ping(answer: &Answer, marker: &str) -> bool {
    match answer {
        Ok(value) => value.as_str().is_some_and(|text| text == marker),
        Err(error) => is_answer(error) && error.details().to_ascii_uppercase().contains(PING),
    }
}
