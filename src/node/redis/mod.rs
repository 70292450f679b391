//! A Redis or Valkey server as a node. fred is named in this room and nowhere else.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use fred::types::Value;
use leasehold_protocol::{
    failure::Failure,
    fence::Fence,
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Guarding, Owned, Poll, Polled, Renewal, Repaired, Route, ServerIdentity, Vote},
    token::Token,
};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

use self::{
    connection::{Connection, Way},
    opening::Side,
    push::Push,
    script::Script,
    witness::Witness,
};
use super::{Answer, Line, Node, NodeListener, Page};
use crate::{
    capabilities::Capabilities,
    clock::Clock,
    error::{Error, ErrorKind, keeper_ended},
    keeper::Host,
};

mod connection;
mod failure;
#[cfg(test)]
mod fuzz;
mod link;
mod opening;
mod push;
mod reply;
mod script;
mod tls;
mod url;
mod witness;

pub(crate) use self::{connection::Limits, url::Target};

/// One server, and our connections to it: one on the runtime that made us, for speed; one on the transport's thread, for
/// everything that must not depend on that runtime; and there, while there is something to hear, one on which the server
/// pushes.
pub(crate) struct Redis {
    /// On a clone of that runtime only: a runtime that has ended, or that nobody polls, must not hang anybody else.
    home: Option<(Id, Arc<Connection>)>,
    keeper: Arc<Connection>,
    push: Arc<Push>,
    witness: Arc<Witness>,
    host: Host,
    address: String,
}

impl Redis {
    /// Connects. The home connection is made on the runtime that this is called on, if there is one.
    ///
    /// Boxed, so that the transport is compiled into this crate once, and not again into every program that connects.
    pub(crate) fn connect(
        target: Target,
        limits: Limits,
        host: Host,
        clock: Arc<dyn Clock>,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send>> {
        Box::pin(Self::connect_both(target, limits, host, clock))
    }

    async fn connect_both(target: Target, limits: Limits, host: Host, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let transport = host.transport().await.map_err(|error| no_thread(&error))?;
        let here = Handle::try_current().ok().filter(|runtime| runtime.id() != host.runtime().id());
        let open = |runtime, place| open(runtime, place, target.clone(), limits, host.clone(), clock.clone());
        let at_the_keeper = || open(host.runtime().clone(), Side::Keeper(host.clone()));
        let (home, keeper) = match here {
            Some(runtime) => {
                let at_home = open(runtime.clone(), Side::Here(runtime.clone()));
                let (home, keeper) = tokio::join!(at_home, at_the_keeper());
                (Some((runtime.id(), home?)), keeper?)
            }
            None => (None, at_the_keeper().await?),
        };
        let push = Push::new();
        let serving = push.clone().serve(target.clone(), limits, keeper.clone(), host.clone());
        host.spawn_until_stopped_on(&transport, serving);
        let witness = Witness::new(clock);
        Ok(Self { home, keeper, push, witness, host, address: target.to_string() })
    }

    fn connection(&self, route: Route) -> Arc<Connection> {
        match (route, &self.home) {
            (Route::Home, Some((_, home))) => home.clone(),
            _ => self.keeper.clone(),
        }
    }

    /// Runs a script and reads its reply, with how that came. `arguments` gives `keys` keys and then the arguments.
    fn run<T: Send + 'static>(
        &self,
        route: Route,
        script: &'static Script,
        keys: usize,
        arguments: impl Fn(&mut Vec<Value>) + Send + 'static,
        limit: Duration,
        read: impl FnOnce(&Value, Way) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        let connection = self.connection(route);
        let push = (route == Route::Tracked).then(|| self.push.clone());
        let answer: Answer<T> = Box::pin(async move {
            let track = || push.as_ref().is_some_and(|push| push.is_on());
            let (value, way) = connection.run(script, keys, arguments, limit, track).await?;
            let unreadable =
                || Failure::unknown("redis sent a reply that is not the script's: is there a proxy between?");
            read(&value, way).ok_or_else(unreadable)
        });
        Box::pin(self.host.keep_time(answer, || Err(keeper_ended())))
    }
}

fn no_thread(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the thread for connections cannot be started: {error}"))
}

/// Opens a connection that lives on `runtime`, in a task that nobody cancels: a connection that comes too late is
/// dropped, and so closed.
async fn open(
    runtime: Handle,
    place: Side,
    target: Target,
    limits: Limits,
    host: Host,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Connection>, Error> {
    // The last try, or a name server's silence, may take longer.
    let too_late = host.sleep(limits.connect);
    let reason = Arc::new(Mutex::new("no answer".to_owned()));
    let opening = {
        let (target, reason) = (target.clone(), reason.clone());
        runtime.spawn(async move { Connection::open(place, &target, limits, &clock, &reason).await })
    };
    tokio::select! {
        biased;
        opened = opening => match opened {
            Ok(connection) => connection.map(Arc::new),
            Err(error) if error.is_panic() => Err(Error::config(
                "this runtime cannot connect: build it with `enable_all()`, or call from outside of it",
            )),
            Err(_ended) => Err(Error::new(ErrorKind::Unavailable, "the runtime of the connection has ended")),
        },
        () = too_late => Err(connection::unreachable(&target, limits, &reason.lock())),
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

impl Node for Redis {
    fn route(&self) -> Route {
        match (&self.home, Handle::try_current()) {
            (Some((home, _)), Ok(here)) if here.id() == *home => Route::Home,
            _ => Route::Keeper,
        }
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn acquire(&self, route: Route, request: &AcquireRequest, limit: Duration) -> Answer<Vote> {
        let (request, witness) = (request.clone(), self.witness.clone());
        let votes = request.voting.is_some();
        let arguments = move |all: &mut Vec<Value>| {
            let AcquireRequest { key, token, ttl, voting } = &request;
            all.extend([key.lock().into(), key.fence().into(), token.as_str().into(), millis(*ttl)]);
            if let Some(voting) = voting {
                let proposal = voting.proposal.map(|fence| fence.to_string()).unwrap_or_default();
                all.extend([seconds(voting.restart_delay), proposal.into()]);
                if !voting.restart_delay.is_zero() {
                    witness.testify(all);
                }
            }
        };
        let witness = self.witness.clone();
        self.run(route, &script::ACQUIRE, 2, arguments, limit, move |reply, Way { tracked, overtaken }| {
            let vote = reply::vote(reply, tracked, votes)?;
            if let Some(run_id) = vote.sign.as_ref().and_then(|sign| sign.run_id.as_ref()) {
                witness.heard(run_id);
            }
            Some(Vote { overtaken, ..vote })
        })
    }

    fn raise(&self, route: Route, key: &Key, token: &Token, fence: Fence, limit: Duration) -> Answer<Owned> {
        let (key, token) = (key.clone(), token.clone());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([key.lock().into(), key.fence().into(), token.as_str().into(), fence.to_string().into()]);
        };
        self.run(route, &script::RAISE, 2, arguments, limit, |reply, _| reply::released(reply))
    }

    fn repair(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, limit: Duration) -> Answer<Repaired> {
        let Renewal { key, token, ttl } = lease.clone();
        let witness = self.witness.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([key.lock().into(), key.fence().into(), token.as_str().into(), millis(ttl)]);
            all.extend([fence.to_string().into(), seconds(restart_delay)]);
            if !restart_delay.is_zero() {
                witness.testify(all);
            }
        };
        let witness = self.witness.clone();
        self.run(Route::Keeper, &script::REPAIR, 2, arguments, limit, move |reply, _| {
            witness.read(reply);
            reply::repaired(reply)
        })
    }

    fn probe(&self, limit: Duration) -> Answer<ServerIdentity> {
        let (keeper, witness) = (self.keeper.clone(), self.witness.clone());
        let answer: Answer<ServerIdentity> = Box::pin(async move {
            let sign = reply::sign(&keeper.info(limit).await?);
            if let Some(run_id) = &sign.run_id {
                witness.heard(run_id);
            }
            Ok(sign)
        });
        Box::pin(self.host.keep_time(answer, || Err(keeper_ended())))
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        self.push.listen(listener);
    }

    fn tracking_capacity(&self) -> usize {
        self.push.tracking_capacity()
    }

    fn renew(&self, route: Route, batch: &[Renewal], limit: Duration) -> Answer<Vec<Result<Owned, Failure>>> {
        let (batch, watch) = (batch.to_vec(), route == Route::Tracked);
        let keys = batch.len();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(batch.iter().map(|renewal| renewal.key.lock().into()));
            all.extend(batch.iter().flat_map(|renewal| [renewal.token.as_str().into(), millis(renewal.ttl)]));
            if watch {
                all.push("watch".into());
            }
        };
        self.run(route, &script::RENEW, keys, arguments, limit, |reply, _| reply::renewed(reply))
    }

    fn release(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned> {
        let (key, token, witness) = (key.clone(), token.clone(), self.witness.clone());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(line_keys(&key));
            all.push(token.as_str().into());
            witness.testify_to_queues(all);
        };
        self.run(route, &script::RELEASE, 4, arguments, limit, |reply, _| reply::released(reply))
    }

    fn keep(
        &self,
        route: Route,
        key: &Key,
        token: &Token,
        keep: Duration,
        stays: &Token,
        limit: Duration,
    ) -> Answer<Owned> {
        let (key, token, stays) = (key.clone(), token.clone(), stays.clone());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([key.lock().into(), token.as_str().into(), millis(keep), stays.as_str().into()]);
        };
        self.run(route, &script::KEEP, 1, arguments, limit, |reply, _| reply::released(reply))
    }

    fn poll(&self, route: Route, poll: &Poll, limit: Duration) -> Answer<Polled> {
        let (poll, witness) = (poll.clone(), self.witness.clone());
        let called = self.push.channel().is_some();
        // The process has the name whether or not it hears there.
        let channel = format!("{}{}", if called { "" } else { "~" }, self.push.name());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(line_keys(&poll.key));
            all.extend([poll.token.as_str().into(), millis(poll.ttl)]);
            all.push(poll.ticket.unwrap_or_default().to_string().into());
            all.extend([millis(poll.grant), millis(poll.window)]);
            all.extend([channel.as_str().into(), i64::from(poll.enter).into()]);
            all.push(seconds(poll.restart_delay));
            if !poll.restart_delay.is_zero() {
                witness.testify_and_queue(all);
            }
        };
        let witness = self.witness.clone();
        let read = move |reply: &Value, way: Way| {
            witness.read(reply);
            reply::polled(reply, way.tracked, called)
        };
        self.run(route, &script::POLL, 4, arguments, limit, read)
    }

    fn leave(&self, route: Route, key: &Key, token: &Token, limit: Duration) -> Answer<Owned> {
        let (key, token, witness) = (key.clone(), token.clone(), self.witness.clone());
        // Where it was called on, or would have been: by now it may not be listening.
        let channel = self.push.name().to_owned();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend(line_keys(&key));
            all.extend([token.as_str().into(), channel.as_str().into()]);
            witness.testify_to_queues(all);
        };
        self.run(route, &script::LEAVE, 4, arguments, limit, |reply, _| reply::released(reply))
    }

    fn line(&self, key: &Key, most: usize, limit: Duration) -> Answer<Line> {
        let key = key.clone();
        let arguments = move |all: &mut Vec<Value>| {
            all.push(key.queue().into());
            all.push(i64::try_from(most).unwrap_or(i64::MAX).into());
        };
        self.run(self.route(), &script::QUEUE, 1, arguments, limit, |reply, _| reply::line(reply))
    }

    fn holder(&self, key: &Key, limit: Duration) -> Answer<Option<Holder>> {
        let key = key.clone();
        let arguments = move |all: &mut Vec<Value>| all.extend([key.lock().into(), key.fence().into()]);
        self.run(self.route(), &script::HOLDER, 2, arguments, limit, |reply, _| reply::holder(reply))
    }

    fn held(&self, pattern: &str, cursor: u64, limit: Duration) -> Answer<Page> {
        let pattern = pattern.to_owned();
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([cursor.to_string().into(), pattern.as_str().into(), KEYS_OF_A_PAGE.into()]);
        };
        self.run(self.route(), &script::HELD, 0, arguments, limit, |reply, _| reply::page(reply))
    }

    fn force_release(&self, key: &Key, limit: Duration) -> Answer<bool> {
        let key = key.clone();
        let arguments = move |all: &mut Vec<Value>| all.extend(line_keys(&key));
        self.run(self.route(), &script::FORCE_RELEASE, 4, arguments, limit, |reply, _| reply::flag(reply))
    }

    fn guarded_set(&self, key: &Key, value: &[u8], fence: Fence, limit: Duration) -> Answer<Guarding> {
        let (key, value) = (key.clone(), value.to_owned());
        let arguments = move |all: &mut Vec<Value>| {
            all.extend([key.lock().into(), (&*value).into(), fence.to_string().into()]);
        };
        self.run(self.route(), &script::GUARDED_SET, 1, arguments, limit, |reply, _| reply::guarding(reply))
    }

    fn guarded_get(&self, key: &Key, limit: Duration) -> Answer<Option<(Vec<u8>, Fence)>> {
        let key = key.clone();
        let arguments = move |all: &mut Vec<Value>| all.push(key.lock().into());
        self.run(self.route(), &script::GUARDED_GET, 1, arguments, limit, |reply, _| reply::guarded(reply))
    }

    fn capabilities(&self, limit: Duration) -> Answer<Capabilities> {
        let (keeper, push, host) = (self.keeper.clone(), self.push.clone(), self.host.clone());
        let answer: Answer<Capabilities> = Box::pin(async move {
            // A server that keeps it to itself can be a good one.
            let fsync = keeper.setting("appendfsync", limit);
            let (info, append_fsync) = tokio::join!(keeper.info(limit), fsync);
            let info = info?;
            let (push, calls, room) = push.settled(host.sleep(limit)).await;
            let watched_keys = Some(room).filter(|&room| room != usize::MAX);
            Ok(Capabilities { push, calls, watched_keys, append_fsync, ..Capabilities::read(&info) })
        });
        Box::pin(self.host.keep_time(answer, || Err(keeper_ended())))
    }

    fn reconnect(&self, route: Route) {
        self.connection(route).reconnect();
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.push.close();
        let (keeper, home) = (self.keeper.clone(), self.home.as_ref().map(|(_, home)| home.clone()));
        let close = Box::pin(async move {
            let close_home = async {
                if let Some(home) = home {
                    home.close(limit).await;
                }
            };
            tokio::join!(keeper.close(limit), close_home);
        });
        Box::pin(self.host.keep_time(close, || ()))
    }
}

/// How many keys the server looks at for one page of what is held, in well under a millisecond.
const KEYS_OF_A_PAGE: i64 = 500;

/// The keys of every script that may pass a lock on.
fn line_keys(key: &Key) -> [Value; 4] {
    [key.lock().into(), key.fence().into(), key.queue().into(), key.wait().into()]
}

/// Rounded up, as a restart delay must be.
fn seconds(span: Duration) -> Value {
    i64::try_from(span.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX).into()
}

fn millis(span: Duration) -> Value {
    // Rounded up: a key must not end before the lease that counts on it.
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).into()
}
