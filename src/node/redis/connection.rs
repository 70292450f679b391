//! A connection to one server: the link that there is now, and the task that makes the next one.
//!
//! # Invariants
//!
//! 1. A request that finds no link waits for one here, not in fred, and only within its own limit. When the limit is
//!    over, it was never sent, and never will be.
//! 2. While the connection is open there is a link, or one is being made; unless the connection's runtime has ended.
//! 3. While the server says that it is no primary, its address is resolved and connected to again, once in [`LOOK_EVERY`]. The
//!    link stays until another leads to a primary: the server's own words are the best answer meanwhile.

use std::{
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use fred::{
    error::{Error as FredError, ErrorKind as FredKind},
    types::Value,
};
use leasehold_protocol::{failure::Failure, time::Time};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};

pub(crate) use super::link::Limits;
use super::{
    failure::{
        self, classify, classify_of, is_full, is_no_primary, is_refusal, is_unsent, is_wrong_server, missing_right,
        words,
    },
    kind::ServerKind,
    left_out::LeftOut,
    link::{Ending, Link},
    opening::{Opening, Side},
    reply,
    script::Script,
    url::Target,
};
use crate::{
    clock::{self, Clock, stood_still},
    error::Error,
    foreign::{self, Event},
    metrics::NodeMetrics,
};

/// The least time for an answer: fred takes zero as "for ever".
const SHORTEST_LIMIT: Duration = Duration::from_millis(1);

/// How often another primary is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How a script's answer came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// The server will notify us when a key changes that was read.
    pub(super) tracked: bool,
    /// Later requests on this connection may have reached the server before this one. It waited for a link, among
    /// others, or was sent twice, for instance because the server did not know the script.
    pub(super) overtaken: bool,
    /// An earlier sending may have been executed too: this process stood still, and did not hear of it.
    pub(super) repeated: bool,
    /// The number of the link on which it came.
    pub(super) link: u64,
}

/// A connection to one server, multiplexed, which reconnects by itself.
pub(super) struct Connection {
    inner: Arc<Inner>,
    /// Makes the next link when one has ended.
    maintenance: AbortHandle,
}

struct Inner {
    server: Arc<str>,
    metrics: NodeMetrics,
    limits: Limits,
    clock: Arc<dyn Clock>,
    state: watch::Sender<State>,
    no_primary: Notify,
    sibling: OnceLock<Weak<Inner>>,
    left_out: Arc<LeftOut>,
}

enum State {
    Up(Arc<Link>),
    /// With the reason why the last try to connect has failed.
    Down(Option<FredError>),
    /// Closed, or its runtime has ended.
    Over,
}

/// The new links of a connection, each of which knows nothing of those before.
pub(super) struct Links {
    states: watch::Receiver<State>,
    seen: u64,
}

impl Links {
    /// Completes when there is a new link. Never on a connection that is over.
    ///
    /// # Cancel safety
    ///
    /// It loses nothing.
    pub(super) async fn next(&mut self) {
        let seen = self.seen;
        let is_new = |state: &State| matches!(state, State::Up(link) if link.number() > seen);
        match self.states.wait_for(is_new).await.ok().map(|state| number(&state)) {
            Some(number) => self.seen = number,
            None => std::future::pending().await,
        }
    }

    /// The number of the last one.
    pub(super) fn last(&self) -> u64 {
        self.seen
    }

    /// Whether there was a new link since the last call.
    pub(super) fn have_come(&mut self) -> bool {
        let number = number(&self.states.borrow());
        let is_new = number > self.seen;
        self.seen = self.seen.max(number);
        is_new
    }
}

/// The rest of this limit, which is over at `until`; all of it in a process that stood still then.
pub(super) fn left(now: Time, limit: Duration, until: Time) -> Duration {
    if stood_still(now, until) { limit } else { until.since(now).max(SHORTEST_LIMIT) }
}

fn is_timeout(error: &FredError) -> bool {
    error.kind() == &FredKind::Timeout
}

fn number(state: &State) -> u64 {
    match state {
        State::Up(link) => link.number(),
        State::Down(_) | State::Over => 0,
    }
}

impl Connection {
    /// Connects, trying until `limits.connect` has passed or the server refuses us. The task that replaces its links
    /// lives on the runtime of this call, the links themselves at `place`.
    #[allow(
        clippy::disallowed_methods,
        reason = "like fred's own tasks it belongs to this runtime and this connection"
    )]
    pub(super) async fn open(
        place: Side,
        target: &Target,
        limits: Limits,
        clock: &Arc<dyn Clock>,
        last_reason: &Mutex<String>,
    ) -> Result<Self, Error> {
        let mut opening = Opening::new(place, target, limits, clock)?;
        let (link, ending) = opening.first(target, last_reason).await?;
        let (server, state): (Arc<str>, _) = (target.to_string().into(), watch::Sender::new(State::Up(Arc::new(link))));
        let metrics = NodeMetrics::of(&server);
        let (clock, no_primary) = (clock.clone(), Notify::new());
        let (sibling, left_out) = (OnceLock::new(), opening.left_out());
        let inner = Arc::new(Inner { server, metrics, limits, clock, state, no_primary, sibling, left_out });
        let maintenance = tokio::task::spawn(inner.clone().maintain(ending, opening)).abort_handle();
        Ok(Self { inner, maintenance })
    }

    /// Runs a script: by its text the first time on a link, then by its hash. So a server that has never seen it needs
    /// one round trip; a server that has forgotten it gets the text again. `limit` bounds all of this, the wait for a
    /// link too. With `track` the server is asked to notify us when a key changes that the script reads; the answer
    /// says whether it will.
    ///
    /// If this process stood still past the limit, it sends a script [that repeats](Script::repeats) once more. If that
    /// fails too, the first sending may have been executed.
    ///
    /// `arguments` adds the keys and then the arguments, and returns how many are keys. It returns `None` if nobody
    /// wants the answer any more; then nothing is sent. It is called right before each sending: a copy kept for a
    /// second one would cost every call.
    pub(super) async fn run(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        track: impl Fn() -> bool + Send,
    ) -> Result<(Value, Way), Failure> {
        let inner = &self.inner;
        let until = inner.now() + limit;
        match self.run_once(script, arguments, (limit, until), &track).await {
            Err(failure) if script.repeats && failure.is_silence() && stood_still(inner.now(), until) => {
                let time = (limit, inner.now() + limit);
                // Boxed: it is large, and nearly never needed.
                let again = Box::pin(self.run_once(script, arguments, time, &track)).await;
                let (value, way) = again.map_err(|failure| Failure::unknown(failure.to_string()))?;
                Ok((value, Way { overtaken: true, repeated: true, ..way }))
            }
            outcome => outcome,
        }
    }

    async fn run_once(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        (limit, mut until): (Duration, Time),
        track: &(impl Fn() -> bool + Send),
    ) -> Result<(Value, Way), Failure> {
        let inner = &*self.inner;
        let (mut left, mut overtaken) = (limit, inner.up().is_none());
        loop {
            let link = inner.link(&mut left).await?;
            if link.is_full() {
                return Err(inner.full());
            }
            let (track, mut by_hash) = (track(), !link.is_first(script));
            let outcome = loop {
                let call = link.call(script, by_hash, arguments).ok_or_else(unwanted)?;
                match link.send(call, left, track).await {
                    Err(error) if by_hash && unknown_script(&error) => {
                        (by_hash, overtaken) = (false, true);
                        (left, until) = inner.left(limit, until);
                    }
                    outcome => break outcome,
                }
            };
            match outcome {
                Ok((value, tracked)) => {
                    link.answered();
                    return Ok((value, Way { tracked, overtaken, repeated: false, link: link.number() }));
                }
                // The link had ended before, and nobody has noticed yet: on the next one it is the first sending still.
                Err(error) if is_unsent(&error) && inner.now() < until => {
                    inner.give_up(&link);
                    overtaken = true;
                    (left, until) = inner.left(limit, until);
                }
                Err(error) => {
                    let keys = || {
                        let mut all = Vec::new();
                        let keys = arguments(&mut all).unwrap_or_default();
                        all.iter().take(keys).filter_map(Value::as_string).collect()
                    };
                    let more = |details: &str| missing_right(details, script.source, keys);
                    return Err(inner.failed_of(&link, &error, (limit, until), more));
                }
            }
        }
    }

    /// Runs the script of a vote: that of the run that the link leads to, if it is known and `is_trusted`, else `script`, which
    /// asks the server for its run.
    pub(super) async fn vote(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        track: impl Fn() -> bool + Send,
        is_trusted: impl Fn(&str) -> bool + Send,
    ) -> Result<(Value, Way), Failure> {
        let (inner, until) = (&*self.inner, self.inner.now() + limit);
        let link = inner.up().filter(|link| !link.is_full());
        let of_run = |link: Arc<Link>| link.of_run().filter(|run| is_trusted(run.run_id())).map(|run| (link, run));
        let Some((link, run)) = link.and_then(of_run) else {
            return self.run_once(script, arguments, (limit, until), &track).await;
        };
        let (name, text) = run.next();
        let call = link.evaluate(name, text, arguments).ok_or_else(unwanted)?;
        match link.send(call, limit, track()).await {
            Ok((value, tracked)) => {
                link.answered();
                return Ok((value, Way { tracked, overtaken: false, repeated: false, link: link.number() }));
            }
            // It may be another run by now: it is asked, and not given the text.
            Err(error) if unknown_script(&error) => link.forget_run(),
            Err(error) if is_unsent(&error) && inner.now() < until => inner.give_up(&link),
            Err(error) => return Err(inner.failed(&link, &error, (limit, until))),
        }
        let time = inner.left(limit, until);
        let (value, way) = self.run_once(script, arguments, time, &track).await?;
        Ok((value, Way { overtaken: true, ..way }))
    }

    /// This run has answered on the link with this number.
    pub(super) fn note_run(&self, link: u64, run_id: &str) {
        if let Some(link) = self.inner.up().filter(|up| up.number() == link) {
            link.note_run(run_id);
        }
    }

    /// Sends a command that is no script.
    pub(super) async fn command(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
        limit: Duration,
    ) -> Result<Value, FredError> {
        let unsent = |failure: Failure| FredError::new(FredKind::IO, failure.to_string());
        let mut left = limit;
        let link = self.inner.link(&mut left).await.map_err(unsent)?;
        self.inner.ask(&link, command, arguments, left).await
    }

    /// The server's `INFO`; empty if it refuses that.
    pub(super) async fn info(&self, limit: Duration) -> Result<String, Failure> {
        let (mut left, until) = (limit, self.now() + limit);
        let link = self.inner.link(&mut left).await?;
        match self.inner.ask(&link, "INFO", Vec::new(), left).await {
            Ok(info) => {
                link.answered();
                Ok(info.as_string().unwrap_or_default())
            }
            Err(error) => {
                // It may be all that is asked on this connection.
                let failure = self.inner.failed(&link, &error, (limit, until));
                if failure.is_refusal() { Ok(String::new()) } else { Err(failure) }
            }
        }
    }

    /// One of its settings; `None` if it does not tell that.
    pub(super) async fn setting(&self, name: &'static str, limit: Duration) -> Option<String> {
        reply::setting(&self.command("CONFIG", vec!["GET".into(), name.into()], limit).await.ok()?)
    }

    pub(super) fn now(&self) -> Time {
        self.inner.now()
    }

    /// It takes no more requests now.
    pub(super) fn full(&self) -> Failure {
        self.inner.full()
    }

    /// It has not taken a request that waited for its turn.
    pub(super) fn late(&self) -> Failure {
        let no_link = self.inner.link_now().err();
        no_link.unwrap_or_else(|| {
            Failure::unsent("the requests before this one took all of its time, and it was not sent")
        })
    }

    /// It gave no answer in time.
    pub(super) fn silent(&self, limit: Duration) -> Failure {
        failure::silent(&self.inner.server, limit)
    }

    /// The links that come after the one that there is now.
    pub(super) fn links(&self) -> Links {
        let states = self.inner.state.subscribe();
        let seen = number(&states.borrow());
        Links { states, seen }
    }

    /// Gives the link up and makes a new one, in the background; unless it is younger than any silence on it could be told
    /// by.
    pub(super) fn reconnect(&self) {
        if let Some(link) = self.inner.up() {
            if !link.is_new(self.inner.now()) {
                self.inner.give_up(&link);
            }
        }
    }

    /// The server has answered that it is no primary: another one may be by now.
    pub(super) fn find_primary(&self) {
        self.inner.find_primary();
    }

    /// Two connections to one server: when one hears that it is no primary, the other looks for another too.
    pub(super) fn pair(&self, other: &Self) {
        let _paired = self.inner.sibling.set(Arc::downgrade(&other.inner));
        let _paired = other.inner.sibling.set(Arc::downgrade(&self.inner));
    }

    pub(super) async fn close(&self, limit: Duration) {
        self.maintenance.abort();
        if let State::Up(link) = self.inner.state.send_replace(State::Over) {
            link.quit(limit).await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.maintenance.abort();
        self.inner.state.send_replace(State::Over);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.inner.server).finish_non_exhaustive()
    }
}

impl Inner {
    fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    fn up(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            State::Up(link) => Some(link.clone()),
            State::Down(_) | State::Over => None,
        }
    }

    /// The link, as soon as there is one (invariant 1). `left` becomes what is left of it.
    async fn link(&self, left: &mut Duration) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.up() {
            return Ok(link);
        }
        let (until, mut states) = (self.now() + *left, self.state.subscribe());
        let not_down = states.wait_for(|state| !matches!(state, State::Down(_)));
        let _in_time = tokio::time::timeout(*left, not_down).await.is_ok();
        *left = until.since(self.now()).max(SHORTEST_LIMIT);
        self.link_now()
    }

    /// The link, or why there is none.
    fn link_now(&self) -> Result<Arc<Link>, Failure> {
        match &*self.state.borrow() {
            State::Up(link) => Ok(link.clone()),
            State::Down(reason) => Err(self.unsent(reason.as_ref())),
            State::Over => Err(Failure::unsent(format!("the connection to redis at {} has ended", self.server))),
        }
    }

    fn full(&self) -> Failure {
        Failure::unsent(format!(
            "redis at {} has not answered the requests before this one, which is not sent: there is a limit to how many wait",
            self.server
        ))
    }

    fn unsent(&self, reason: Option<&FredError>) -> Failure {
        match reason {
            Some(reason) if is_refusal(reason) || is_full(reason) => {
                classify(&self.server, reason, self.limits.connect)
            }
            _ => Failure::unsent(format!(
                "there is no connection to redis at {}, and nothing was sent: {}",
                self.server,
                reason.map_or("the last one has ended, and the server does not answer", words)
            )),
        }
    }

    /// Sends a command that we can do without.
    async fn ask(
        &self,
        link: &Link,
        command: &'static str,
        arguments: Vec<Value>,
        limit: Duration,
    ) -> Result<Value, FredError> {
        self.left_out.check(command, self.now())?;
        let outcome = link.command(command, arguments, limit).await;
        self.left_out.note(command, &outcome, self.now());
        outcome
    }

    /// A request on this link came to nothing. fred does not notice a dead peer by itself while commands are written:
    /// silence does. `limit` was its time, which was over at `until`.
    fn failed(&self, link: &Arc<Link>, error: &FredError, time: (Duration, Time)) -> Failure {
        self.failed_of(link, error, time, |_| None)
    }

    /// The same of a script.
    fn failed_of(
        &self,
        link: &Arc<Link>,
        error: &FredError,
        (limit, until): (Duration, Time),
        more: impl FnOnce(&str) -> Option<String>,
    ) -> Failure {
        let now = self.now();
        if is_timeout(error) && !stood_still(now, until) && link.is_silent(limit, now) {
            self.give_up(link);
        }
        if is_wrong_server(error) {
            self.give_up(link);
        }
        if is_no_primary(error.details()) {
            self.find_primary();
        }
        classify_of(&self.server, error, limit, more)
    }

    /// The rest of this limit, which is over at `until`, and when that is over.
    fn left(&self, limit: Duration, until: Time) -> (Duration, Time) {
        let now = self.now();
        let left = left(now, limit, until);
        (left, now + left)
    }

    fn give_up(&self, link: &Arc<Link>) {
        self.state.send_if_modified(|state| {
            let is_up = matches!(state, State::Up(up) if Arc::ptr_eq(up, link));
            if is_up {
                *state = State::Down(None);
            }
            is_up
        });
        link.end();
    }

    /// Replaces each link that ends, or leads to no primary, for as long as its runtime lives.
    async fn maintain(self: Arc<Self>, first: Ending, mut opening: Opening) {
        let (inner, mut ending) = (Over(self), first);
        let mut looked = Time::ZERO;
        loop {
            let ended = tokio::select! {
                biased;
                reason = ending.ended() => Err(reason),
                found = inner.0.other_primary(&mut opening, &mut looked) => Ok(found),
            };
            ending = match ended {
                Ok((link, next)) => {
                    inner.0.replace_up(Arc::new(link));
                    ending.settle().await;
                    next
                }
                Err(reason) => {
                    if reason.as_ref().is_some_and(is_wrong_server) {
                        opening.be_wary();
                    }
                    inner.0.lost(reason.as_ref());
                    let (next, ()) = tokio::join!(inner.0.connect_again(&mut opening), ending.settle());
                    next
                }
            };
        }
    }

    /// The server has answered that it is no primary: here, and to whoever else has a connection to it.
    fn find_primary(&self) {
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
                Err(error) => foreign::tell_debug(|| Event::Connection { error: words(&error).into() }),
            }
        }
    }

    /// Whether what the link leads to was promoted meanwhile.
    async fn is_primary_again(&self) -> bool {
        match self.up() {
            Some(link) => !link.is_to_a_replica(self.limits).await,
            None => false,
        }
    }

    /// The server is another from now on.
    fn replace_up(&self, link: Arc<Link>) {
        let mut old = None;
        self.state.send_if_modified(|state| {
            let is_open = !matches!(state, State::Over);
            if is_open {
                old = Some(std::mem::replace(state, State::Up(link)));
            }
            is_open
        });
        if let Some(State::Up(old)) = old {
            old.end();
        }
        self.metrics.note_reconnect();
    }

    /// The link has ended, if it was not given up before.
    fn lost(&self, reason: Option<&FredError>) {
        self.metrics.note_up(false);
        if let Some(error) = reason {
            foreign::tell_debug(|| Event::Connection { error: words(error).into() });
        }
        let mut ended = None;
        self.state.send_if_modified(|state| {
            if let State::Up(link) = state {
                ended = Some(link.clone());
                *state = State::Down(reason.cloned());
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
                    self.replace_down(State::Up(Arc::new(link)), true);
                    self.metrics.note_reconnect();
                    return ending;
                }
                Err(error) => {
                    foreign::tell_debug(|| Event::Connection { error: words(&error).into() });
                    self.replace_down(State::Down(Some(error)), false);
                }
            }
        }
    }

    /// Unless the connection is over.
    fn replace_down(&self, by: State, is_news: bool) {
        self.state.send_if_modified(|state| {
            let is_down = matches!(state, State::Down(_));
            if is_down {
                *state = by;
            }
            is_down && is_news
        });
    }
}

/// Marks the connection as over when its maintenance task ends, so that nobody waits for a link in vain.
struct Over(Arc<Inner>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Over);
    }
}

fn unwanted() -> Failure {
    Failure::unsent("nobody waits for the answer any more")
}

fn unknown_script(error: &FredError) -> bool {
    error.details().starts_with("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use support::Server;

    use super::*;
    use crate::{
        clock::SystemClock,
        keeper::{Host, Keeper, Stop},
    };

    /// Longer than the test: what is waited for to its end fails it.
    const LIMIT: Duration = Duration::from_secs(5);

    async fn connection(server: &Server) -> (Connection, Stop) {
        let (target, limits) = (Target::parse(&server.url()).unwrap(), Limits { connect: LIMIT, command: LIMIT });
        let (clock, reason): (Arc<dyn Clock>, _) = (Arc::new(SystemClock), Mutex::default());
        let (host, stop) = Host::start(Keeper::CurrentRuntime, &clock).unwrap();
        let here = Side::Here(tokio::runtime::Handle::current(), host);
        (Connection::open(here, &target, limits, &clock, &reason).await.unwrap(), stop)
    }

    /// After this fred takes requests that nobody reads, as it may while its task is ended.
    #[tokio::test]
    async fn a_request_that_is_left_in_the_queue_of_a_link_that_is_over_was_never_sent() {
        let server = Server::start();
        let (connection, _stop) = connection(&server).await;
        let (link, mut links) = (connection.inner.up().unwrap(), connection.links());
        link.quit(LIMIT).await;
        tokio::time::timeout(LIMIT, links.next()).await.expect("there is another link");
        for track in [false, true] {
            let mut no_arguments = |all: &mut Vec<Value>| {
                all.push("key".into());
                Some(1)
            };
            let look = link.call(&super::super::script::LOOK, false, &mut no_arguments).unwrap();
            let error = link.send(look, LIMIT, track).await.unwrap_err();
            assert!(is_unsent(&error), "{error:?}");
        }
        let error = link.command("PING", Vec::new(), LIMIT).await.unwrap_err();
        assert!(is_unsent(&error), "{error:?}");
        connection.command("PING", Vec::new(), LIMIT).await.expect("the next link has an answer");
    }
}
