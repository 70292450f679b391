//! A Redis or Valkey server as a node. fred is named in this module and nowhere else.

use std::{
    fmt,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{
    message::{Reply, Request, Route},
    token::Token,
};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

use self::{combining::Combining, connection::Connection, opening::Side, push::Push, witness::Witness};
use super::{Answer, Node, NodeListener};
use crate::{
    capabilities::Capabilities,
    clock::Clock,
    error::{Error, keeper_ended},
    keeper::Host,
    metrics::NodeMetrics,
};

mod combining;
mod connection;
mod failure;
#[cfg(test)]
mod fuzz;
mod info;
mod kind;
mod left_out;
mod link;
mod opening;
mod pack;
mod push;
mod reply;
mod request;
mod script;
mod tls;
mod url;
mod witness;

pub(crate) use self::{connection::Limits, url::Target};

/// One server as a node.
#[derive(Debug)]
pub(crate) struct Redis(Arc<Server>);

/// One server, and our connections to it.
///
/// One is on the runtime that made us, for speed. One is on the transport's thread, for everything that must not depend
/// on that runtime. While there is something to hear, another one there receives the server's notifications.
struct Server {
    /// Used on that runtime only: a runtime that has ended, or that nobody polls, must not hang anybody else.
    home: Option<(Id, Arc<Connection>)>,
    keeper: Arc<Connection>,
    /// Not where votes are asked for: these go at once, and would overtake a release that waits for its turn.
    combining: Option<Arc<Combining>>,
    push: Arc<Push>,
    witness: Arc<Witness>,
    host: Host,
    address: String,
}

impl Redis {
    /// Connects. The home connection is made on the runtime `home`, if there is one. With `votes`, no requests travel
    /// together.
    ///
    /// Boxed, so that the transport is compiled into this crate once, and not again into every program that connects.
    pub(crate) fn connect(
        target: Target,
        limits: Limits,
        host: Host,
        clock: Arc<dyn Clock>,
        home: Option<Handle>,
        votes: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send>> {
        Box::pin(async move {
            let server = Server::connect(target, limits, host, clock, home, votes).await?;
            Ok(Self(Arc::new(server)))
        })
    }
}

impl Server {
    async fn connect(
        target: Target,
        limits: Limits,
        host: Host,
        clock: Arc<dyn Clock>,
        home: Option<Handle>,
        votes: bool,
    ) -> Result<Self, Error> {
        let transport = host.transport().await.map_err(|error| no_thread(&error))?;
        let here = home.filter(|runtime| runtime.id() != host.runtime().id());
        let open = |runtime, place| open(runtime, place, target.clone(), limits, host.clone(), clock.clone());
        let at_the_keeper = || open(host.runtime().clone(), Side::Keeper(host.clone()));
        let (home, keeper) = match here.clone() {
            Some(runtime) => {
                let at_home = open(runtime.clone(), Side::Here(runtime.clone(), host.clone()));
                let (home, keeper) = tokio::join!(at_home, at_the_keeper());
                let (home, keeper) = (home?, keeper?);
                home.pair(&keeper);
                (Some((runtime.id(), home)), keeper)
            }
            None => (None, at_the_keeper().await?),
        };
        // Where its callers are: on the keeper's connection only if there is no other.
        let (busiest, runtime) = match (&home, here) {
            (Some((_, home)), Some(runtime)) => (home, runtime),
            _ => (&keeper, host.runtime().clone()),
        };
        let combining = (!votes).then(|| Combining::new(busiest.clone(), runtime, host.clone(), limits.command));
        let push = Push::new(NodeMetrics::of(&target.to_string()));
        let serving = push.clone().serve(target.clone(), limits, keeper.clone(), host.clone());
        host.spawn_until_stopped_on(&transport, serving);
        let witness = Witness::new(clock);
        Ok(Self { home, keeper, combining, push, witness, host, address: target.to_string() })
    }

    fn connection(&self, route: Route) -> Arc<Connection> {
        match (route, &self.home) {
            (Route::Home, Some((_, home))) => home.clone(),
            _ => self.keeper.clone(),
        }
    }

    /// Whether requests on this route may travel together.
    fn travels_with_others(&self, route: Route) -> bool {
        match route {
            Route::Home => true,
            Route::Keeper => self.home.is_none(),
            Route::Tracked => false,
        }
    }
}

fn no_thread(error: &io::Error) -> Error {
    Error::unavailable(format!("the thread for connections cannot be started: {error}"))
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
            Err(_ended) => Err(Error::unavailable("the runtime of the connection has ended")),
        },
        () = too_late => Err(opening::unreachable(&target, limits, &reason.lock())),
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

impl Node for Redis {
    fn route(&self) -> Route {
        match (&self.0.home, Handle::try_current()) {
            (Some((home, _)), Ok(here)) if here.id() == *home => Route::Home,
            _ => Route::Keeper,
        }
    }

    fn address(&self) -> &str {
        &self.0.address
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        self.0.push.listen(listener);
    }

    fn tracking_capacity(&self) -> usize {
        self.0.push.tracking_capacity()
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        self.0.ask((route, limit), request)
    }

    fn withdraw(&self, token: &Token) -> bool {
        self.0.combining.as_ref().is_some_and(|combining| combining.withdraw(token))
    }

    fn capabilities(&self, limit: Duration) -> Answer<Capabilities> {
        let (keeper, push, host) = (self.0.keeper.clone(), self.0.push.clone(), self.0.host.clone());
        Box::pin(async move {
            let answer = pin!(async {
                // A server that keeps it to itself can be a good one.
                let (fsync, floors) = (keeper.setting("appendfsync", limit), Server::floors(&keeper, limit));
                let (info, append_fsync, floors) = tokio::join!(keeper.info(limit), fsync, floors);
                let info = info?;
                let (notifications, notifies_waiters, capacity) = push.settled(host.sleep(limit)).await;
                let tracked_keys = Some(capacity).filter(|&keys| keys != usize::MAX);
                let told = info::capabilities(&info, floors);
                Ok(Capabilities { notifications, notifies_waiters, tracked_keys, append_fsync, ..told })
            });
            host.time_keeper().keep(answer, || Err(keeper_ended())).await
        })
    }

    fn reconnect(&self, route: Route) {
        self.0.connection(route).reconnect();
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.push.close();
        let (keeper, home) = (self.0.keeper.clone(), self.0.home.as_ref().map(|(_, home)| home.clone()));
        let time = self.0.host.time_keeper();
        Box::pin(async move {
            let close = pin!(async {
                let close_home = async {
                    if let Some(home) = home {
                        home.close(limit).await;
                    }
                };
                tokio::join!(keeper.close(limit), close_home);
            });
            time.keep(close, || ()).await;
        })
    }
}
