//! A connection to one server: how a request is sent on its links, and what its failure means.

use std::{
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fred::{
    clients::Client,
    error::{Error as FredError, ErrorKind as FredKind},
    types::Value,
};
use leasehold_protocol::{failure::Failure, time::Time};
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::AbortHandle};

use super::{
    endpoint::Endpoint,
    failure::{
        self, classify_of, is_a_replica_by_now, is_no_primary, is_unauthenticated, is_unsent, is_wrong_server,
        missing_right,
    },
    introduction::{Role, introduce},
    kind::ServerKind,
    left_out::LeftOut,
    link::{Before, Link},
    links::{Links, NewLinks, SHORTEST_LIMIT},
    opening::{Opening, Side},
    question,
};
use crate::{clock::stood_still, error::Error, keeper::Host, node::redis::script::Script};

/// By then an answer is late that comes at a certain time.
const MOMENT: Duration = Duration::from_millis(2);

/// How a script's answer came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// The server will notify us when a key changes that was read.
    pub(crate) tracked: bool,
    /// Later requests on this connection may have reached the server before this one. It waited for a link, among
    /// others, or was sent twice, for instance because the server did not know the script.
    pub(crate) overtaken: bool,
    /// An earlier sending may have been executed too: this process stood still, and did not hear of it.
    pub(crate) repeated: bool,
    /// The number of the link on which it came.
    pub(crate) link: u64,
}

/// A connection to one server, multiplexed, which reconnects by itself.
pub(crate) struct Connection {
    links: Arc<Links>,
    left_out: Arc<LeftOut>,
    /// The number of the link that has not answered a question about its server.
    mute: AtomicU64,
    /// Makes the next link when one has ended.
    maintenance: AbortHandle,
}

/// The rest of this limit, which is over at `until`; all of it in a process that stood still then.
pub(crate) fn left(now: Time, limit: Duration, until: Time) -> Duration {
    if stood_still(now, until) { limit } else { until.since(now).max(SHORTEST_LIMIT) }
}

fn is_timeout(error: &FredError) -> bool {
    error.kind() == &FredKind::Timeout
}

impl Connection {
    /// Connects, trying until `limits.connect` has passed or the server refuses us. The task that replaces its links
    /// lives on the runtime of this call, the links themselves at `place`.
    #[allow(
        clippy::disallowed_methods,
        reason = "like fred's own tasks it belongs to this runtime and this connection"
    )]
    pub(crate) async fn open(place: Side, endpoint: &Endpoint, last_reason: &Mutex<String>) -> Result<Self, Error> {
        let mut opening = Opening::new(place, endpoint.clone());
        let (link, ending) = opening.first(last_reason).await?;
        let links = Links::new(endpoint.clone(), Some(link));
        let left_out = opening.left_out();
        let maintenance = tokio::task::spawn(links.clone().maintain(Some(ending), opening)).abort_handle();
        Ok(Self { links, left_out, mute: AtomicU64::new(0), maintenance })
    }

    /// The same, but connects in the background: requests wait for the link within their limits. The task that makes it
    /// lives on `runtime`.
    pub(crate) fn begin(runtime: &Handle, place: Side, endpoint: &Endpoint) -> Self {
        let opening = Opening::new(place, endpoint.clone());
        let (links, left_out) = (Links::new(endpoint.clone(), None), opening.left_out());
        let maintenance = runtime.spawn(links.clone().maintain(None, opening)).abort_handle();
        Self { links, left_out, mute: AtomicU64::new(0), maintenance }
    }

    /// Runs a script: by its text the first time on a link, then by its hash. So a server that has never seen it needs
    /// one round trip; a server that has forgotten it gets the text again. `limit` bounds all of this, the wait for a
    /// link too. `before` says what goes before each sending; whether it is tracked comes with the answer.
    ///
    /// If this process stood still past the limit, it sends a script [that repeats](Script::repeats) once more. If that
    /// fails too, the first sending may have been executed.
    ///
    /// `arguments` adds the keys and then the arguments, and returns how many are keys. It returns `None` if nobody
    /// wants the answer any more; then nothing is sent. It is called right before each sending: a copy kept for a
    /// second one would cost every call.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        before: impl Fn() -> Before + Send,
    ) -> Result<(Value, Way), Failure> {
        let until = self.now() + limit;
        match self.run_once(script, arguments, (limit, until), &before).await {
            Err(failure) if script.repeats && failure.is_silence() && stood_still(self.now(), until) => {
                let time = (limit, self.now() + limit);
                // Boxed: it is large, and nearly never needed.
                let again = Box::pin(self.run_once(script, arguments, time, &before)).await;
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
        before: &(impl Fn() -> Before + Send),
    ) -> Result<(Value, Way), Failure> {
        let links = &*self.links;
        let (mut left, mut overtaken) = (limit, links.up().is_none());
        loop {
            let link = links.link(&mut left).await?;
            if link.is_full() {
                return Err(links.full());
            }
            let (before, mut by_hash) = (before(), !link.is_first(script));
            let outcome = loop {
                let call = link.call(script, by_hash, arguments).ok_or_else(unwanted)?;
                match link.send(call, left, before).await {
                    Err(error) if by_hash && unknown_script(&error) => {
                        (by_hash, overtaken) = (false, true);
                        (left, until) = self.left(limit, until);
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
                Err(error) if is_unsent(&error) && self.now() < until => {
                    links.give_up(&link);
                    overtaken = true;
                    (left, until) = self.left(limit, until);
                }
                Err(error) => {
                    let keys = || {
                        let mut all = Vec::new();
                        let keys = arguments(&mut all).unwrap_or_default();
                        all.iter().take(keys).filter_map(Value::as_string).collect()
                    };
                    let more = |details: &str| missing_right(details, script.source, keys);
                    return Err(self.failed_of(&link, &error, (limit, until), more));
                }
            }
        }
    }

    /// Runs a script of one key for each of these, one right behind the other; the outcome of each, and the number of their link.
    /// An error is that of all.
    pub(crate) async fn run_each<T>(
        &self,
        script: &'static Script,
        each: &[T],
        arguments: impl Fn(&T, &mut Vec<Value>) -> usize,
        mut limit: Duration,
        before: Before,
    ) -> Result<(Vec<Result<Value, Failure>>, u64), Failure> {
        let until = self.now() + limit;
        let link = self.links.link(&mut limit).await?;
        if link.is_full() {
            return Err(self.links.full());
        }
        let call = |one: &T| link.call(script, !link.is_first(script), &mut |all| Some(arguments(one, all)));
        let outcome = link.send_each(each.iter().filter_map(call), limit, before).await;
        let answers = outcome.map_err(|error| self.failed(&link, &error, (limit, until)))?;
        link.answered();
        let read =
            |answer: Result<Value, FredError>| answer.map_err(|error| self.failed(&link, &error, (limit, until)));
        Ok((answers.into_iter().map(read).collect(), link.number()))
    }

    /// Runs the script of votes: that of the run that the link leads to, if it is known and `is_trusted`, else
    /// `script`, which asks the server for its run.
    pub(crate) async fn vote(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        before: impl Fn() -> Before + Send,
        is_trusted: impl Fn(&str) -> bool + Send,
    ) -> Result<(Value, Way), Failure> {
        let (links, until) = (&*self.links, self.now() + limit);
        let link = links.up().filter(|link| !link.is_full());
        let of_run = |link: Arc<Link>| link.of_run().filter(|run| is_trusted(run.run_id())).map(|run| (link, run));
        let Some((link, run)) = link.and_then(of_run) else {
            return self.run_once(script, arguments, (limit, until), &before).await;
        };
        let call = link.evaluate(|| run.next(script), arguments).ok_or_else(unwanted)?;
        match link.send(call, limit, before()).await {
            Ok((value, tracked)) => {
                link.answered();
                return Ok((value, Way { tracked, overtaken: false, repeated: false, link: link.number() }));
            }
            // It may be another run by now: it is asked, and not given the text.
            Err(error) if unknown_script(&error) => link.forget_run(),
            Err(error) if is_unsent(&error) && self.now() < until => {
                links.give_up(&link);
            }
            Err(error) => return Err(self.failed(&link, &error, (limit, until))),
        }
        let time = self.left(limit, until);
        let (value, way) = self.run_once(script, arguments, time, &before).await?;
        Ok((value, Way { overtaken: true, ..way }))
    }

    /// This run has answered on the link with this number.
    pub(crate) fn note_run(&self, link: u64, run_id: &str) {
        if let Some(link) = self.links.up().filter(|up| up.number() == link) {
            link.note_run(run_id);
        }
    }

    /// How many replicas have what was written on this link, as soon as so many have it; within this time at most.
    pub(crate) async fn replicas(&self, link: u64, wanted: u8, time: Duration) -> Result<u32, Failure> {
        let Some(link) = self.links.up().filter(|up| up.number() == link) else {
            return Err(Failure::unknown("the connection ended before replicas were asked for"));
        };
        let limit = time + self.links.endpoint.limits.command;
        let until = self.now() + limit;
        let read = |count: Value| count.as_u64().and_then(|count| u32::try_from(count).ok());
        match count_replicas(&link, wanted, time, limit).await {
            Ok(count) => {
                link.answered();
                let count = read(count);
                if count.is_some_and(|count| count < u32::from(wanted)) {
                    link.has_waited_in_vain(time, self.now());
                }
                count.ok_or_else(|| Failure::unknown("the answer to WAIT is no number"))
            }
            // It was a primary when it wrote.
            Err(error) if is_a_replica_by_now(error.details()) => {
                self.links.find_primary();
                Err(Failure::unknown(format!("redis at {} has become a replica", self.links.server)))
            }
            Err(error) => Err(self.failed(&link, &error, (limit, until)).halfway()),
        }
    }

    /// The server, without who we are there.
    pub(crate) fn server(&self) -> &str {
        &self.links.server
    }

    /// Sends a command that is no script.
    pub(crate) async fn command(
        &self,
        command: &'static str,
        arguments: Vec<Value>,
        limit: Duration,
    ) -> Result<Value, FredError> {
        let unsent = |failure: Failure| FredError::new(FredKind::IO, failure.to_string());
        let mut left = limit;
        let link = self.links.link(&mut left).await.map_err(unsent)?;
        self.ask(&link, command, arguments, left).await
    }

    /// The server's `INFO`; empty if it refuses that.
    pub(crate) async fn info(&self, limit: Duration) -> Result<String, Failure> {
        let (mut left, until) = (limit, self.now() + limit);
        let link = self.links.link(&mut left).await?;
        match self.ask(&link, "INFO", Vec::new(), left).await {
            Ok(info) => {
                link.answered();
                Ok(info.as_string().unwrap_or_default())
            }
            Err(error) => {
                // It may be all that is asked on this connection.
                let failure = self.failed(&link, &error, (limit, until));
                if failure.is_refusal() { Ok(String::new()) } else { Err(failure) }
            }
        }
    }

    /// The link that there is; and what its server says of itself, if it does, and was not asked before.
    pub(crate) async fn server_info(&self) -> Option<(Arc<Link>, Option<String>)> {
        let link = self.links.up()?;
        if link.leads_to().is_some() {
            return Some((link, None));
        }
        // Its runtime may have stopped: questions must not pile up there.
        if self.mute.load(Ordering::Relaxed) == link.number() {
            return Some((link, None));
        }
        let info = self.info_of(&link).await.ok();
        if info.is_none() {
            self.mute.store(link.number(), Ordering::Relaxed);
        }
        Some((link, info))
    }

    /// Reads the `INFO` of the server at the address, on a connection of its own. An error if there is none, or only a
    /// replica.
    pub(crate) async fn fresh_info(&self, host: Host) -> Result<String, FredError> {
        // It is large, and seldom.
        let info = Box::pin(self.ask_afresh(host)).await;
        if let Err(error) = &info {
            self.links.tell_trouble(error);
        }
        info
    }

    async fn ask_afresh(&self, host: Host) -> Result<String, FredError> {
        question::ask(host, &self.links.endpoint, &self.left_out, async |link| match link.kind().await {
            ServerKind::Replica => Err(FredError::new(FredKind::Config, "its address leads to a replica")),
            _ => self.info_of(link).await,
        })
        .await
    }

    /// Of an answer that is there in a quarter of a command's time.
    async fn info_of(&self, link: &Link) -> Result<String, FredError> {
        let limit = self.links.endpoint.limits.command / 4;
        let asking = self.ask(link, "INFO", vec!["server".into()], limit.max(SHORTEST_LIMIT));
        let info = tokio::time::timeout(limit, asking).await.map_err(|_| no_answer())??;
        Ok(info.as_string().unwrap_or_default())
    }

    /// No answer on this link counts from now on, and there will be another. Whether it was the link until now.
    pub(crate) fn leave(&self, link: &Arc<Link>) -> bool {
        self.links.give_up(link)
    }

    /// One of its settings; `None` if it does not tell that.
    pub(crate) async fn setting(&self, name: &'static str, limit: Duration) -> Option<String> {
        setting(&self.command("CONFIG", vec!["GET".into(), name.into()], limit).await.ok()?)
    }

    /// Where it leads, and who we are there.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.links.endpoint
    }

    pub(crate) fn now(&self) -> Time {
        self.links.now()
    }

    /// Says whose another connection to this server is.
    pub(crate) async fn introduce(&self, other: &Client, role: Role) -> Result<(), FredError> {
        introduce(other, &self.links.endpoint, role, &self.left_out).await
    }

    /// It takes no more requests now.
    pub(crate) fn full(&self) -> Failure {
        self.links.full()
    }

    /// It has not taken a request that waited for its turn.
    pub(crate) fn late(&self) -> Failure {
        let no_link = self.links.link_now().err();
        no_link.unwrap_or_else(|| {
            Failure::unsent("the requests before this one took all of its time, and it was not sent")
        })
    }

    /// Completes when there is a link. An error says why there is none after this limit.
    pub(crate) async fn linked(&self, mut limit: Duration) -> Result<(), Failure> {
        self.links.link(&mut limit).await.map(|_link| ())
    }

    /// Completes once there is no link.
    pub(crate) async fn unlinked(&self) {
        self.links.unlinked().await;
    }

    /// Why there is no link, if there is none.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.links.link_now().err().map(|failure| failure.to_string())
    }

    /// Completes when there is a link; or when the server has no room for another client. Then a program goes on with the
    /// connection that it has: those that wait for their second would keep others from their first.
    pub(crate) async fn settled(&self) -> Result<(), Error> {
        self.links.settled().await
    }

    /// Whether its server has no room for another client, and turns this one away.
    pub(crate) fn is_turned_away(&self) -> bool {
        self.links.is_turned_away()
    }

    /// Why its server was never reached, unless that has turned us away.
    pub(crate) fn never_reached(&self) -> Option<String> {
        self.links.never_up()
    }

    /// It gave no answer in time.
    pub(crate) fn silent(&self, limit: Duration) -> Failure {
        failure::silent(&self.links.server, limit)
    }

    /// The links that come after the one that there is now.
    pub(crate) fn links(&self) -> NewLinks {
        self.links.new_ones()
    }

    /// Gives the link up and makes a new one, in the background; unless no silence on it could be told yet.
    pub(crate) fn reconnect(&self) {
        if let Some(link) = self.links.up() {
            if !link.is_beyond_doubt(self.links.now()) {
                self.links.give_up(&link);
            }
        }
    }

    /// The server has answered that it is no primary: another one may be by now.
    pub(crate) fn find_primary(&self) {
        self.links.find_primary();
    }

    /// Two connections to one server: when one hears that it is no primary, the other looks for another too.
    pub(crate) fn pair(&self, other: &Self) {
        self.links.pair(&other.links);
    }

    /// No answer counts from now on, and nothing is sent any more.
    pub(crate) fn end(&self) {
        match self.links.close() {
            // Its maintenance ends with it, and tells those who wait.
            Some(link) => link.end(),
            None => self.maintenance.abort(),
        }
    }

    pub(crate) async fn close(&self, limit: Duration) {
        self.maintenance.abort();
        if let Some(link) = self.links.close() {
            link.quit(limit).await;
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
            self.links.give_up(link);
        }
        if is_wrong_server(error) || is_unauthenticated(error) {
            self.links.give_up(link);
        }
        if is_no_primary(error.details()) {
            self.links.find_primary();
        }
        classify_of((&self.links.server, self.links.endpoint.wanted), error, limit, more)
    }

    /// The rest of this limit, which is over at `until`, and when that is over.
    fn left(&self, limit: Duration, until: Time) -> (Duration, Time) {
        let now = self.now();
        let left = left(now, limit, until);
        (left, now + left)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.maintenance.abort();
        let _last = self.links.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.links.server).finish_non_exhaustive()
    }
}

/// The value in the answer to `CONFIG GET` of one setting.
pub(crate) fn setting(reply: &Value) -> Option<String> {
    match reply {
        Value::Array(parts) => match &**parts {
            [_name, value] => value.as_string(),
            _ => None,
        },
        _ => None,
    }
}

/// The answer to a `WAIT` of so long.
async fn count_replicas(link: &Link, wanted: u8, time: Duration, limit: Duration) -> Result<Value, FredError> {
    let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
    let mut waiting = pin!(link.command("WAIT", vec![i64::from(wanted).into(), millis.into()], limit));
    tokio::select! {
        biased;
        count = &mut waiting => count,
        // A server with nothing to do looks ten times a second whether a `WAIT` is over. Whatever comes in wakes it: this
        // asks for no replicas, needs no other right, and is answered at once.
        () = tokio::time::sleep(time + MOMENT) => {
            let awake = link.command("WAIT", vec![0.into(), 0.into()], limit);
            let (count, _at_once) = tokio::join!(waiting, awake);
            count
        }
    }
}

pub(super) fn no_answer() -> FredError {
    FredError::new(FredKind::Timeout, "it does not answer")
}

fn unwanted() -> Failure {
    Failure::unsent("nobody waits for the answer any more")
}

fn unknown_script(error: &FredError) -> bool {
    error.details().starts_with("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::{
        clock::SystemClock,
        keeper::{Host, Stop},
        node::redis::transport::{Limits, Seeds},
        options::Names,
    };

    /// Longer than the test: what is waited for to its end fails it.
    const LIMIT: Duration = Duration::from_secs(5);

    /// The port of a server that answers `OK` to everything.
    #[allow(clippy::disallowed_methods, reason = "it belongs to the test's runtime")]
    async fn server() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        port
    }

    async fn answer(stream: TcpStream) -> std::io::Result<()> {
        let (requests, mut answers) = stream.into_split();
        let mut lines = BufReader::new(requests).lines();
        while let Some(line) = lines.next_line().await?.filter(|line| line != "QUIT") {
            if line.starts_with('*') {
                answers.write_all(b"+OK\r\n").await?;
            }
        }
        Ok(())
    }

    async fn connection(port: u16) -> (Connection, Stop) {
        let (target, limits) = (
            Seeds::at_host("127.0.0.1", port).unwrap().target,
            Limits { connect: LIMIT, command: LIMIT, min_replicas: 0, undeclared_keys: true },
        );
        let names = Names { prefix: "".into(), label: "test".into() };
        let endpoint = Endpoint::new(target, limits, Arc::new(SystemClock), names);
        let (host, stop) = Host::here(&endpoint.clock);
        let here = Side::Here(tokio::runtime::Handle::current(), host);
        (Connection::open(here, &endpoint, &Mutex::default()).await.unwrap(), stop)
    }

    /// After this fred takes requests that nobody reads, as it may while its task is ended.
    #[tokio::test]
    async fn a_request_that_is_left_in_the_queue_of_a_link_that_is_over_was_never_sent() {
        let (connection, _stop) = connection(server().await).await;
        let (link, mut links) = (connection.links.up().unwrap(), connection.links());
        link.quit(LIMIT).await;
        tokio::time::timeout(LIMIT, links.next()).await.expect("there is another link");
        for before in [Before::Nothing, Before::Tracking, Before::Asking] {
            let mut no_arguments = |all: &mut Vec<Value>| {
                all.push("key".into());
                Some(1)
            };
            let look = link.call(&crate::node::redis::script::LOOK, false, &mut no_arguments).unwrap();
            let error = link.send(look, LIMIT, before).await.unwrap_err();
            assert!(is_unsent(&error), "{error:?}");
        }
        let error = link.command("PING", Vec::new(), LIMIT).await.unwrap_err();
        assert!(is_unsent(&error), "{error:?}");
        connection.command("PING", Vec::new(), LIMIT).await.expect("the next link has an answer");
    }
}
