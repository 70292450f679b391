//! One server: our connections to it, and which requests are sent on which connection.

use std::{
    fmt,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{message::Route, token::Token};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

pub(super) use self::request::SendOptions;
use self::{
    address::AddressFindings,
    combining::{Combining, Packing},
    replicas::{Replicas, Shortage},
    witness::Witness,
};
use super::{
    subscription::{Subscription, channel},
    transport::{Connection, Endpoint, Side, cannot_connect, unreachable},
};
use crate::{error::Error, keeper::Host, metrics::NodeMetrics};

mod address;
mod combining;
mod pack;
mod renewals;
mod replicas;
mod request;
mod shares;
mod single;
mod survey;
mod witness;

/// One server, and our connections to it.
///
/// One connection is on the caller's runtime, for speed. One is on the transport's thread, for everything that must not
/// depend on that runtime. Another one there receives the server's notifications while any are wanted.
pub(super) struct Connections {
    /// Used on that runtime only: a runtime that has ended, or is not polled, must not block callers elsewhere.
    pub(super) home: Option<(Id, Arc<Connection>)>,
    pub(super) keeper: Arc<Connection>,
    combining: Option<Arc<Combining>>,
    /// The writes that replicas have to confirm, for each connection; `None` if replicas need not confirm.
    replicas: Option<Both>,
    command_timeout: Duration,
    pub(super) subscription: Arc<Subscription>,
    witness: Arc<Witness>,
    findings: AddressFindings,
    metrics: NodeMetrics,
    pub(super) host: Host,
    pub(super) address: String,
}

/// The writes to confirm on the home connection, if there is one, and on the keeper's.
type Both = (Option<Arc<Replicas>>, Arc<Replicas>);

impl Connections {
    /// Connects. `votes` is the restart delay, if votes are asked for. The address is checked every `check_every`;
    /// never if that is zero.
    pub(super) async fn connect(
        endpoint: Endpoint,
        host: Host,
        home: Option<Handle>,
        votes: Option<Duration>,
        check_every: Duration,
    ) -> Result<Arc<Self>, Error> {
        let transport = host.transport().await.map_err(|error| no_thread(&error))?;
        let here = elsewhere(home, &host);
        let open = |runtime, place| open(runtime, place, endpoint.clone(), host.clone());
        let (home, keeper) = match here.clone() {
            Some(runtime) => {
                let began = endpoint.now();
                let home = open(runtime.clone(), Side::Here(runtime.clone(), host.clone())).await?;
                // Not earlier: the last place on a server is for the home connection, without which nothing works.
                let keeper = Arc::new(Connection::begin(host.runtime(), Side::Keeper(host.clone()), &endpoint));
                home.pair(&keeper);
                let left = (began + endpoint.limits.connect).since(endpoint.now());
                tokio::select! {
                    biased;
                    settled = keeper.settled() => settled?,
                    () = host.sleep(left) => return Err(unreachable(&endpoint, keeper.last_error().as_ref())),
                }
                (Some((runtime.id(), home)), keeper)
            }
            None => (None, open(host.runtime().clone(), Side::Keeper(host.clone())).await?),
        };
        // On the callers' connection: the keeper's only if there is no other.
        let (busiest, runtime) = match (&home, here.clone()) {
            (Some((_, home)), Some(runtime)) => (home, runtime),
            _ => (&keeper, host.runtime().clone()),
        };
        let (replicas, limit) = (both(&endpoint, &host, here.zip(home.as_ref()), &keeper), endpoint.limits.command);
        let of_busiest = busiest_of(replicas.as_ref());
        let witness = Witness::new(endpoint.clock.clone());
        let votes = votes.map(|delay| (witness.clone(), delay));
        let combining = Combining::new(Packing::Keys, votes, busiest.clone(), of_busiest, runtime, host.clone(), limit);
        let sent = (Some(combining), replicas, witness);
        let seat = endpoint.seat.clone();
        let connections = Self::of(endpoint, host, &transport, (home, keeper), sent, (channel(), false));
        if !check_every.is_zero() || seat.is_some() {
            let looking = address::look_after(Arc::downgrade(&connections), check_every, seat);
            connections.host.spawn_until_stopped_on(&transport, looking);
        }
        Ok(connections)
    }

    /// Begins the connections to a server that others have named. They are made in the background: requests wait for
    /// them within their limits. The server notifies fair waiters on `channel`.
    pub(super) fn begin(
        endpoint: Endpoint,
        host: Host,
        transport: &Handle,
        home: Option<Handle>,
        channel: Arc<str>,
        has_slots: bool,
    ) -> Arc<Self> {
        let keeper = Arc::new(Connection::begin(host.runtime(), Side::Keeper(host.clone()), &endpoint));
        let runtime = elsewhere(home, &host);
        let home = runtime.clone().map(|runtime| {
            let side = Side::Here(runtime.clone(), host.clone());
            (runtime.id(), Arc::new(Connection::begin(&runtime, side, &endpoint)))
        });
        let busiest = home.as_ref().map_or_else(|| keeper.clone(), |(_, home)| home.clone());
        let replicas = both(&endpoint, &host, runtime.clone().zip(home.as_ref()), &keeper);
        let runtime = runtime.unwrap_or_else(|| host.runtime().clone());
        let packing = if has_slots { Packing::Slots } else { Packing::Keys };
        let (of_busiest, limit) = (busiest_of(replicas.as_ref()), endpoint.limits.command);
        let combining = (packing == Packing::Keys || endpoint.limits.undeclared_keys)
            .then(|| Combining::new(packing, None, busiest, of_busiest, runtime, host.clone(), limit));
        let witness = Witness::new(endpoint.clock.clone());
        Self::of(endpoint, host, transport, (home, keeper), (combining, replicas, witness), (channel, has_slots))
    }

    fn of(
        endpoint: Endpoint,
        host: Host,
        transport: &Handle,
        (home, keeper): (Option<(Id, Arc<Connection>)>, Arc<Connection>),
        (combining, replicas, witness): (Option<Arc<Combining>>, Option<Both>, Arc<Witness>),
        (channel, has_slots): (Arc<str>, bool),
    ) -> Arc<Self> {
        let command_timeout = endpoint.limits.command;
        let address = endpoint.target.to_string();
        let subscription = Subscription::new(channel, NodeMetrics::of(&address));
        let serving = subscription.clone().serve(endpoint, keeper.clone(), host.clone(), has_slots);
        host.spawn_until_stopped_on(transport, serving);
        let (findings, metrics) = (AddressFindings::default(), NodeMetrics::of(&address));
        Arc::new(Self {
            home,
            keeper,
            combining,
            replicas,
            command_timeout,
            subscription,
            witness,
            findings,
            metrics,
            host,
            address,
        })
    }

    /// Closes all, within `limit`.
    pub(super) fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.subscription.close();
        let (keeper, home) = (self.keeper.clone(), self.home.as_ref().map(|(_, home)| home.clone()));
        let time = self.host.time_keeper();
        Box::pin(async move {
            let close = pin!(async {
                let close_home = async {
                    if let Some(home) = home {
                        home.close(limit).await;
                    }
                };
                tokio::join!(keeper.close(limit), close_home);
            });
            time.keep(close).await;
        })
    }

    /// Ends the connections to a server that is no longer ours: the outcome of each unanswered request is unknown.
    pub(super) fn retire(&self) {
        self.subscription.close();
        let home = self.home.as_ref().map(|(_, home)| home);
        [Some(&self.keeper), home].into_iter().flatten().for_each(|connection| connection.end());
    }

    /// Withdraws an acquire that is no longer wanted. Returns whether it was never sent, and never will be.
    pub(super) fn withdraw(&self, token: &Token) -> bool {
        self.combining.as_ref().is_some_and(|combining| combining.withdraw(token))
    }

    /// Notes that no caller waits for the answer to this token's request now.
    pub(super) fn set_aside(&self, token: &Token) {
        if let Some(combining) = &self.combining {
            combining.set_aside(token);
        }
    }

    pub(super) fn connection(&self, route: Route) -> Arc<Connection> {
        match (route, &self.home) {
            (Route::Home, Some((_, home))) => home.clone(),
            _ => self.keeper.clone(),
        }
    }

    /// This `via`, but on the program's own connection while the server has no room for the keeper's.
    fn passable(&self, options: SendOptions) -> SendOptions {
        let is_turned_away = options.route != Route::Home && self.home.is_some() && self.keeper.is_turned_away();
        if is_turned_away { SendOptions { route: Route::Home, ..options } } else { options }
    }

    /// The replicas that have to confirm writes on this route, if any do.
    fn replicas(&self, route: Route) -> Option<&Arc<Replicas>> {
        let (home, keeper) = self.replicas.as_ref()?;
        Some(home.as_ref().filter(|_| route == Route::Home).unwrap_or(keeper))
    }

    /// Why the server was never reached; `None` if it was, or turns us away.
    pub(super) fn never_reached(&self) -> Option<String> {
        let why = self.keeper.never_reached()?;
        match &self.home {
            Some((_, home)) => home.never_reached(),
            None => Some(why),
        }
    }

    /// Whether requests on this route may be batched.
    fn travels_with_others(&self, route: Route) -> bool {
        match route {
            Route::Home => true,
            Route::Keeper => self.home.is_none(),
            Route::Tracked => false,
        }
    }
}

fn both(
    endpoint: &Endpoint,
    host: &Host,
    home: Option<(Handle, &(Id, Arc<Connection>))>,
    keeper: &Arc<Connection>,
) -> Option<Both> {
    let wanted = endpoint.limits.min_replicas;
    if wanted == 0 {
        return None;
    }
    let shortage = Shortage::at(&endpoint.target.to_string());
    let of = |connection: &Arc<Connection>, runtime| {
        Replicas::new(wanted, connection.clone(), runtime, host.clone(), shortage.clone())
    };
    Some((home.map(|(runtime, (_, home))| of(home, runtime)), of(keeper, host.runtime().clone())))
}

fn busiest_of(both: Option<&Both>) -> Option<Arc<Replicas>> {
    both.map(|(home, keeper)| home.as_ref().unwrap_or(keeper).clone())
}

/// The route for a caller on the current runtime, given the runtime of the program's own connections, if any.
pub(super) fn route_from(home: Option<Id>) -> Route {
    match (home, Handle::try_current()) {
        (Some(home), Ok(here)) if here.id() == home => Route::Home,
        _ => Route::Keeper,
    }
}

/// The runtime of the program's own connections, if it is not the keeper's.
pub(super) fn elsewhere(home: Option<Handle>, host: &Host) -> Option<Handle> {
    home.filter(|runtime| runtime.id() != host.runtime().id())
}

pub(super) fn no_thread(error: &io::Error) -> Error {
    Error::unavailable(format!("the thread for connections cannot be started: {error}"))
}

/// Opens a connection on `runtime`, in a task that only the end of the keeper cancels: a connection that opens too late
/// is dropped, and so closed.
async fn open(runtime: Handle, place: Side, endpoint: Endpoint, host: Host) -> Result<Arc<Connection>, Error> {
    // The last try, or a name server that does not answer, may take longer.
    let too_late = host.sleep(endpoint.limits.connect);
    let last_error = Arc::<Mutex<_>>::default();
    let opening = {
        let (endpoint, last_error, host) = (endpoint.clone(), last_error.clone(), host.clone());
        runtime.spawn(async move {
            tokio::select! {
                biased;
                // The connection is no longer wanted, and its timers end with the keeper.
                () = host.stopped() => Err(Error::Closed),
                opened = Connection::open(place, &endpoint, &last_error) => opened,
            }
        })
    };
    tokio::select! {
        biased;
        opened = opening => match opened {
            Ok(connection) => connection.map(Arc::new),
            Err(error) if error.is_panic() => Err(cannot_connect()),
            Err(_ended) => Err(Error::unavailable("the runtime of the connection has ended")),
        },
        () = too_late => Err(unreachable(&endpoint, last_error.lock().as_ref())),
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}
