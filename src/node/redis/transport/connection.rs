//! A connection to one server: how a request is sent on its links, and what its failure means.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use leasehold_protocol::{failure::Failure, time::Time};
use parking_lot::Mutex;
use tokio::{runtime::Handle, task::AbortHandle};

use super::{
    endpoint::Endpoint,
    failure::{
        self, classify_of, has_no_seat, is_a_replica_by_now, is_no_primary, is_unauthenticated, is_wrong_server,
        missing_right,
    },
    kind::ServerKind,
    link::{Before, Ending, Link},
    links::{Links, SHORTEST_LIMIT},
    opening::{Opening, Side},
    question,
};
use crate::{
    clock::stood_still,
    error::Error,
    keeper::Host,
    node::redis::{
        script::Script,
        wire::{Answer, Error as WireError, ErrorKind as WireKind, Value},
    },
};

/// An answer that is due at a certain time is late after this long.
const MOMENT: Duration = Duration::from_millis(2);

/// How a script's answer arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    /// The server will notify us when a key that was read changes.
    pub(crate) tracked: bool,
    /// Later requests on this connection may have reached the server before this one. It waited for a link, among
    /// others, or was sent twice, for instance because the server did not know the script.
    pub(crate) overtaken: bool,
    /// An earlier sending may have been executed too: this process stood still, and missed its answer.
    pub(crate) repeated: bool,
    /// The number of the link on which it came.
    pub(crate) link: u64,
}

/// A connection to one server, multiplexed, which reconnects by itself.
pub(crate) struct Connection {
    links: Arc<Links>,
    /// Makes the next link when one has ended.
    maintenance: AbortHandle,
}

/// A connection is its links, and has them maintained for as long as it lives.
impl Deref for Connection {
    type Target = Links;

    fn deref(&self) -> &Links {
        &self.links
    }
}

impl Connection {
    /// Connects, trying until `limits.connect` has passed or the server refuses us. The task that replaces its links
    /// lives on the runtime of this call, the links themselves at `place`.
    pub(crate) async fn open(
        place: Side,
        endpoint: &Endpoint,
        last_error: &Mutex<Option<WireError>>,
    ) -> Result<Self, Error> {
        let mut opening = Opening::new(place.role(), place, endpoint.clone(), Arc::default());
        let first = opening.first(last_error).await?;
        Ok(Self::of(&Handle::current(), opening, Some(first)))
    }

    /// Like [`open`](Self::open), but connects in the background: requests wait for the link within their limits. The
    /// task that makes it lives on `runtime`.
    pub(crate) fn begin(runtime: &Handle, place: Side, endpoint: &Endpoint) -> Self {
        Self::of(runtime, Opening::new(place.role(), place, endpoint.clone(), Arc::default()), None)
    }

    fn of(runtime: &Handle, opening: Opening, first: Option<(Link, Ending)>) -> Self {
        let (first, ending) = first.unzip();
        let links = Links::new(&opening.next, first);
        let maintenance = runtime.spawn(links.clone().maintain(ending, opening)).abort_handle();
        Self { links, maintenance }
    }

    /// Runs a script: by its text the first time on a link, then by its hash. So a server that has never seen it needs
    /// one round trip; a server that has forgotten it gets the text again. `limit` bounds all of this, including the
    /// wait for a link. `before` returns what to send before each sending; the answer comes with whether it is tracked.
    ///
    /// If this process stood still past the limit, it sends a script [that repeats](Script::repeats) once more. If that
    /// fails too, the first sending may have been executed.
    ///
    /// `arguments` adds the keys and then the arguments, and returns how many are keys. It returns `None` if the answer
    /// is no longer wanted; then nothing is sent. It is called right before each sending: a copy kept for a second one
    /// would cost every call.
    pub(crate) async fn run(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        before: impl Fn() -> Before + Send,
    ) -> Result<(Value, Delivery), Failure> {
        let until = self.now() + limit;
        match self.run_once(script, arguments, (limit, until), &before).await {
            Err(failure) if script.repeats && failure.is_silence() && stood_still(self.now(), until) => {
                let time = (limit, self.now() + limit);
                // Boxed: it is large, and nearly never needed.
                let again = Box::pin(self.run_once(script, arguments, time, &before)).await;
                let (value, delivery) = again.map_err(|failure| Failure::unknown(failure.to_string()))?;
                Ok((value, Delivery { overtaken: true, repeated: true, ..delivery }))
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
    ) -> Result<(Value, Delivery), Failure> {
        let (mut left, mut overtaken) = (limit, self.up().is_none());
        loop {
            let link = self.link(&mut left).await?;
            if link.is_full() {
                return Err(self.full());
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
                    link.answered_in(|| limit.saturating_sub(until.since(self.now())));
                    return Ok((value, Delivery { tracked, overtaken, repeated: false, link: link.number }));
                }
                // The link had ended before, unnoticed: on the next link this is still the first sending.
                Err(error) if error.kind == WireKind::Unsent && self.now() < until => {
                    self.give_up(&link);
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

    /// Runs a script for each of these, one right behind the other. Returns each outcome, and the number of the link.
    /// An error applies to all.
    pub(crate) async fn run_each<T>(
        &self,
        script: &'static Script,
        each: &[T],
        arguments: impl Fn(&T, &mut Vec<Value>) -> usize,
        mut limit: Duration,
        before: Before,
    ) -> Result<(Vec<Result<Value, Failure>>, u64), Failure> {
        let until = self.now() + limit;
        let link = self.link(&mut limit).await?;
        if link.is_full() {
            return Err(self.full());
        }
        let call = |one: &T| link.call(script, !link.is_first(script), &mut |all| Some(arguments(one, all)));
        let outcome = link.send_each(each.iter().filter_map(call), limit, before).await;
        let failed = |error: WireError| self.failed(&link, &error, (limit, until));
        let answers = outcome.map_err(failed)?;
        link.answered();
        Ok((answers.into_iter().map(|answer| answer.map_err(failed)).collect(), link.number))
    }

    /// Runs the script of votes: the one for the link's run, if that run is known and `is_trusted`, else `script`,
    /// which asks the server for its run.
    pub(crate) async fn vote(
        &self,
        script: &'static Script,
        arguments: &mut (impl FnMut(&mut Vec<Value>) -> Option<usize> + Send),
        limit: Duration,
        before: impl Fn() -> Before + Send,
        is_trusted: impl Fn(&str) -> bool + Send,
    ) -> Result<(Value, Delivery), Failure> {
        let until = self.now() + limit;
        let link = self.up().filter(|link| link.is_steady() && !link.is_full());
        let of_run = |link: Arc<Link>| link.of_run().filter(|run| is_trusted(run.run_id())).map(|run| (link, run));
        let Some((link, run)) = link.and_then(of_run) else {
            return self.run_once(script, arguments, (limit, until), &before).await;
        };
        let call = link.evaluate(|| run.next(script), arguments).ok_or_else(unwanted)?;
        match link.send(call, limit, before()).await {
            Ok((value, tracked)) => {
                link.answered();
                return Ok((value, Delivery { tracked, overtaken: false, repeated: false, link: link.number }));
            }
            // It may be another run by now: it is asked for its run, and not sent the text.
            Err(error) if unknown_script(&error) => link.forget_run(),
            Err(error) if error.kind == WireKind::Unsent && self.now() < until => {
                self.give_up(&link);
            }
            Err(error) => return Err(self.failed(&link, &error, (limit, until))),
        }
        let time = self.left(limit, until);
        let (value, delivery) = self.run_once(script, arguments, time, &before).await?;
        Ok((value, Delivery { overtaken: true, ..delivery }))
    }

    /// Notes that this run answered on the link with this number.
    pub(crate) fn note_run(&self, link: u64, run_id: &str) {
        if let Some(link) = self.up().filter(|up| up.number == link) {
            link.note_run(run_id);
        }
    }

    /// Counts the replicas that have what was written on this link; returns once `wanted` have it, or after `time`.
    pub(crate) async fn replicas(&self, link: u64, wanted: u8, time: Duration) -> Result<u32, Failure> {
        let Some(link) = self.up().filter(|up| up.number == link) else {
            return Err(Failure::unknown("the connection ended before replicas were asked for"));
        };
        let limit = time + self.endpoint.limits.command;
        let until = self.now() + limit;
        let read = |count: Value| count.as_u64().and_then(|count| u32::try_from(count).ok());
        match count_replicas(&link, wanted, time, limit).await {
            (Ok(_), Err(why)) => {
                self.give_up(&link);
                Err(Failure::unknown(format!("redis at {} has written it, but {why} (min_replicas)", self.server)))
            }
            (Ok(count), Ok(())) => {
                link.answered();
                let count = read(count);
                if count.is_some_and(|count| count < u32::from(wanted)) {
                    let now = self.now();
                    link.health().replicas_missing(time, now);
                }
                count.ok_or_else(|| Failure::unknown("the answer to WAIT is no number"))
            }
            // It was a primary when it wrote.
            (Err(error), _) if is_a_replica_by_now(error.details()) => {
                self.find_primary();
                Err(Failure::unknown(format!("redis at {} has become a replica", self.server)))
            }
            (Err(error), _) => Err(self.failed(&link, &error, (limit, until)).halfway()),
        }
    }

    /// Sends a command that is not a script.
    pub(crate) async fn command(&self, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
        let unsent = |failure: Failure| WireError::new(WireKind::Other, failure.to_string());
        let mut left = limit;
        let link = self.link(&mut left).await.map_err(unsent)?;
        self.ask(&link, command, arguments, left).await
    }

    /// The server's `INFO`; empty if it refuses that.
    pub(crate) async fn info(&self, limit: Duration) -> Result<String, Failure> {
        let (mut left, until) = (limit, self.now() + limit);
        let link = self.link(&mut left).await?;
        match self.ask(&link, "INFO", Vec::new(), left).await {
            Ok(info) => {
                link.answered();
                Ok(info.as_string().unwrap_or_default())
            }
            Err(error) => {
                // It may be the only question on this connection.
                let failure = self.failed(&link, &error, (limit, until));
                if failure.is_refusal() { Ok(String::new()) } else { Err(failure) }
            }
        }
    }

    /// The current link, and its server's `INFO`, if it reports that and was not asked before.
    pub(crate) async fn server_info(&self) -> Option<(Arc<Link>, Option<String>)> {
        let link = self.up()?;
        if link.leads_to().is_some() {
            return Some((link, None));
        }
        let info = self.info_of(&link).await.ok();
        if info.is_none() {
            // Its runtime may have stopped: questions must not pile up there.
            link.note_where_it_leads(None);
        }
        Some((link, info))
    }

    /// Reads the `INFO` of the server at the address, on a connection of its own. Fails if there is no server, or only
    /// a replica.
    pub(crate) async fn fresh_info(&self, host: Host) -> Result<String, WireError> {
        let asking = question::ask(host, &self.endpoint, &self.left_out, async |link| match link.kind.get().await {
            ServerKind::Replica => Err(WireError::new(WireKind::Other, "its address leads to a replica")),
            _ => self.info_of(link).await,
        });
        // Boxed: it is large, and rarely needed.
        Box::pin(asking).await.inspect_err(|error| self.tell_trouble(error))
    }

    /// The server's `INFO`, if it arrives in a quarter of a command's time.
    async fn info_of(&self, link: &Link) -> Result<String, WireError> {
        let limit = self.endpoint.limits.command / 4;
        let asking = self.ask(link, "INFO", vec!["server".into()], limit.max(SHORTEST_LIMIT));
        let info = tokio::time::timeout(limit, asking).await.map_err(|_| no_answer())??;
        Ok(info.as_string().unwrap_or_default())
    }

    /// One of the server's settings; `None` if it does not report that.
    pub(crate) async fn setting(&self, name: &'static str, limit: Duration) -> Option<String> {
        setting(&self.command("CONFIG", vec!["GET".into(), name.into()], limit).await.ok()?)
    }

    /// The failure of a request that waited for its turn, and was not sent.
    pub(crate) fn late(&self) -> Failure {
        self.link_now().err().unwrap_or_else(|| Failure::unsent("its time was over before it could be sent"))
    }

    /// Completes when there is a link. After `limit`, an error says why there is none.
    pub(crate) async fn linked(&self, mut limit: Duration) -> Result<(), Failure> {
        self.link(&mut limit).await.map(|_link| ())
    }

    /// Why there is no link, if there is none.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.link_now().err().map(|failure| failure.to_string())
    }

    /// The failure of a request without an answer in time.
    pub(crate) fn silent(&self, limit: Duration) -> Failure {
        failure::silent(&self.server, limit)
    }

    /// Gives the link up and makes a new one in the background, unless it is too early to notice silence on it.
    pub(crate) fn reconnect(&self) {
        let now = self.now();
        if let Some(link) = self.up().filter(|link| !link.health().is_beyond_doubt(now)) {
            self.give_up(&link);
        }
    }

    /// Pairs two connections to one server: when one learns that it is not a primary, both look for another.
    pub(crate) fn pair(&self, other: &Self) {
        let _paired = self.sibling.set(Arc::downgrade(&other.links));
        let _paired = other.sibling.set(Arc::downgrade(&self.links));
    }

    /// Ends the connection: no answer counts from now on, and nothing more is sent.
    pub(crate) fn end(&self) {
        match self.links.close() {
            // The maintenance task ends with the link, and notifies the waiting callers.
            Some(link) => link.end(),
            None => self.maintenance.abort(),
        }
    }

    pub(crate) async fn close(&self, limit: Duration) {
        // First, because the end of the maintenance task ends the link.
        let link = self.links.close();
        self.maintenance.abort();
        if let Some(link) = link {
            link.quit(limit).await;
        }
    }

    /// Sends a command that we can do without.
    async fn ask(&self, link: &Link, command: &'static str, arguments: Vec<Value>, limit: Duration) -> Answer {
        self.left_out.check(command, self.now())?;
        let outcome = link.command(command, arguments, limit).await;
        self.left_out.note(command, &outcome, self.now());
        outcome
    }

    /// Notes and classifies the failure of a request on this link. The wire does not notice a dead peer by itself while
    /// commands are written; silence shows it. `time` is the request's limit, and when that ended.
    fn failed(&self, link: &Arc<Link>, error: &WireError, time: (Duration, Time)) -> Failure {
        self.failed_of(link, error, time, |_| None)
    }

    /// Like `failed`, for a script.
    fn failed_of(
        &self,
        link: &Arc<Link>,
        error: &WireError,
        (limit, until): (Duration, Time),
        more: impl FnOnce(&str) -> Option<String>,
    ) -> Failure {
        let now = self.now();
        let is_silence = error.kind == WireKind::Timeout && !stood_still(now, until);
        if is_wrong_server(error)
            || has_no_seat(error)
            || is_unauthenticated(error)
            || (is_silence && link.health().timed_out(limit, now))
        {
            self.give_up(link);
        }
        if is_no_primary(error.details()) {
            self.find_primary();
        }
        classify_of((&self.server, self.endpoint.wanted), error, limit, more)
    }

    /// The rest of a limit that ends at `until`, and when that rest ends. It is the whole limit in a process that stood
    /// still then.
    pub(crate) fn left(&self, limit: Duration, until: Time) -> (Duration, Time) {
        let now = self.now();
        let left = if stood_still(now, until) { limit } else { until.since(now).max(SHORTEST_LIMIT) };
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
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The value in the answer to `CONFIG GET` of one setting.
pub(crate) fn setting(reply: &Value) -> Option<String> {
    let Value::Array(parts) = reply else { return None };
    let [_name, value] = &**parts else { return None };
    value.as_string()
}

/// The answer to a `WAIT` that takes up to `time`, and whether it is of the history that the link's writes belong to.
async fn count_replicas(
    link: &Link,
    wanted: u8,
    time: Duration,
    limit: Duration,
) -> (Answer, Result<(), &'static str>) {
    let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1);
    let wait = link.command("WAIT", vec![i64::from(wanted).into(), millis.into()], limit);
    // In one flight, in this order. Boxed, because they are large.
    let mut waiting = Box::pin(async { tokio::join!(biased; wait, link.has_its_history(limit)) });
    tokio::select! {
        biased;
        count = &mut waiting => count,
        // An idle server checks ten times a second whether a `WAIT` has timed out. Any command wakes it: this one asks
        // for no replicas, needs no other right, and returns at once.
        () = tokio::time::sleep(time + MOMENT) => {
            let awake = link.command("WAIT", vec![0.into(), 0.into()], limit);
            let (count, _at_once) = tokio::join!(waiting, awake);
            count
        }
    }
}

pub(super) fn no_answer() -> WireError {
    WireError::new(WireKind::Timeout, "it does not answer")
}

fn unwanted() -> Failure {
    Failure::unsent("nobody waits for the answer any more")
}

fn unknown_script(error: &WireError) -> bool {
    error.details().starts_with("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::{TcpListener, TcpStream},
        sync::Notify,
    };

    use super::*;
    use crate::{
        clock::SystemClock,
        keeper::{Host, Stop},
        node::redis::transport::{Limits, Seeds},
        options::Names,
    };

    /// Longer than the test: a wait that lasts this long fails it.
    const LIMIT: Duration = Duration::from_secs(5);

    /// The port of a server that answers `OK` to each request, except one of [`UNANSWERED`] words, which it notifies
    /// of.
    #[allow(clippy::disallowed_methods, reason = "it belongs to the test's runtime")]
    async fn server(unanswered: Arc<Notify>) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, unanswered.clone()));
            }
        });
        port
    }

    const UNANSWERED: &str = "*7";

    async fn answer(stream: TcpStream, unanswered: Arc<Notify>) -> std::io::Result<()> {
        let (requests, mut answers) = stream.into_split();
        let mut lines = BufReader::new(requests).lines();
        while let Some(line) = lines.next_line().await?.filter(|line| line != "QUIT") {
            if line == UNANSWERED {
                unanswered.notify_one();
            } else if line.starts_with('*') {
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

    /// After this the queue of requests is not read any more, as may happen while the task of the link ends.
    #[tokio::test]
    async fn a_request_that_is_left_in_the_queue_of_a_link_that_is_over_was_never_sent() {
        let (connection, _stop) = connection(server(Arc::default()).await).await;
        let (link, mut links) = (connection.up().unwrap(), connection.new_links());
        link.quit(LIMIT).await;
        tokio::time::timeout(LIMIT, links.next()).await.expect("there is another link");
        for before in [Before::Nothing, Before::Tracking, Before::Asking] {
            let mut no_arguments = |all: &mut Vec<Value>| {
                all.push("key".into());
                Some(1)
            };
            let look = link.call(&crate::node::redis::script::LOOK, false, &mut no_arguments).unwrap();
            let error = link.send(look, LIMIT, before).await.unwrap_err();
            assert_eq!(error.kind, WireKind::Unsent, "{error:?}");
        }
        let error = link.command("PING", Vec::new(), LIMIT).await.unwrap_err();
        assert_eq!(error.kind, WireKind::Unsent, "{error:?}");
        // As if it had been handed over just before the task had ended.
        let left = tokio::time::timeout(LIMIT, link.or_over(std::pin::pin!(std::future::pending::<Answer>()))).await;
        let error = left.expect("nobody waits on it").unwrap_err();
        assert_eq!(error.kind, WireKind::Unsent, "{error:?}");
        connection.command("PING", Vec::new(), LIMIT).await.expect("the next link has an answer");
    }

    /// When its task is aborted, a written request ends with the same error as a queued one.
    #[tokio::test]
    async fn a_request_that_was_written_before_its_link_ended_may_have_been_executed() {
        let unanswered = Arc::<Notify>::default();
        let (connection, _stop) = connection(server(unanswered.clone()).await).await;
        let link = connection.up().unwrap();
        let end = async {
            unanswered.notified().await;
            link.end();
        };
        let (error, ()) = tokio::join!(link.command("PING", vec!["word".into(); 6], LIMIT), end);
        let failure = connection.failed(&link, &error.unwrap_err(), (LIMIT, connection.now() + LIMIT));
        assert!(failure.may_have_happened(), "{failure}");
    }
}
