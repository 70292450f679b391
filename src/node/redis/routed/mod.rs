//! A cluster as one node: our connections to each of its primaries, and which of them has which slot. A primary behind
//! Sentinels is like a cluster of one.
//!
//! # Invariants
//!
//! 1. A primary's answer counts while the newest topology that we have seen names it for the key (rule 11).
//! 2. No request to one primary waits for another.
//! 3. A primary that has no slot any more is left at once: the outcome of what is in flight there is unknown then.
//! 4. A server without slots gets only the requests that the slot's owner redirects to it.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use leasehold_protocol::{
    failure::Failure,
    key::Key,
    message::{Reply, Request, Route},
    place::{Place, Shard},
    slot,
    time::Time,
    token::Token,
    topology::{Topology, View},
};
use parking_lot::{Mutex, RwLock};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch::Sender},
};
use tokio_util::sync::CancellationToken;

use self::{narrowed::Narrowed, pulse::Pulse, sentinel::Sentinels};
use super::{
    server::{Connections, SendOptions, elsewhere, no_thread, route_from},
    subscription::channel,
    transport::{
        Address, AddressMap, CertificateNames, Endpoint, LeftOut, Limits, RequiredKind, Seeds, Target, advice_on_tls,
    },
};
use crate::{
    clock::Clock,
    error::Error,
    keeper::Host,
    metrics::NodeMetrics,
    node::{Answer, Links, Node, NodeListener, ShardInfo, Sharded},
    options::Names,
    survey::{Inquiry, ServerSaid},
};

mod in_parts;
mod narrowed;
mod pulse;
mod refresh;
mod renewing;
mod sentinel;
mod survey;
mod travel;
mod views;
mod watch;

/// A cluster as a node.
#[derive(Debug)]
pub(crate) struct Routed(Arc<Cluster>);

struct Cluster {
    seeds: Vec<Endpoint>,
    /// The Sentinels that name the primary, if this is not a cluster.
    sentinels: Option<Sentinels>,
    /// For every server: the owner of the connections, and the clock.
    pattern: Endpoint,
    names: CertificateNames,
    /// Where announced servers are reached.
    map: AddressMap,
    address: String,
    metrics: NodeMetrics,
    host: Host,
    home: Option<Handle>,
    transport: Handle,
    /// For listeners on its behalf.
    me: Weak<Self>,
    /// The channel on which fair waiters are notified, whichever primary has their queue.
    channel: Arc<str>,
    left_out: Arc<LeftOut>,
    topology: RwLock<Topology>,
    /// The views that bring nothing new to the current topology. Merging one takes 16,384 steps, once a second.
    settled: Mutex<Vec<View>>,
    /// Counts the changes of the topology.
    changes: Sender<u64>,
    /// The primaries in use, each with the listener for its notifications.
    servers: Mutex<HashMap<Shard, (Connected, Arc<Narrowed>)>>,
    /// Servers without slots that were asked for keys of a slot that is being moved to them.
    guests: Mutex<HashMap<Place, Connected>>,
    listener: OnceLock<Weak<dyn NodeListener>>,
    /// Whether the topology was doubted since the watch last checked: it may have changed.
    is_doubted: AtomicBool,
    /// Whether nothing was under way when the watch last checked.
    is_asleep: AtomicBool,
    woken: Arc<Notify>,
    /// The questions under way, such as the one for a server's view: each is asked by one caller at a time.
    asking: Mutex<BTreeSet<String>>,
    closed: CancellationToken,
}

/// Our connections to a server, and the requests under way with it.
type Connected = (Arc<Connections>, Arc<Pulse>);

/// With more primaries than this, none is connected to before the first request to it.
const AT_ONCE: usize = 16;

/// From this number of guests on, idle ones are disconnected before another is added.
const GUESTS: usize = 16;

impl Routed {
    /// Asks all seeds at once: one that names the primaries is enough. The home connections are made on the runtime
    /// `home`, if there is one.
    pub(crate) fn connect(
        (seeds, map): (&Seeds, AddressMap),
        limits: Limits,
        clock: &Arc<dyn Clock>,
        names: &Names,
        host: Host,
        home: Option<Handle>,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send>> {
        let pattern = Endpoint::new(seeds.target.clone(), limits, clock.clone(), names.clone());
        let names = seeds.names_in_certificates();
        let service = seeds.service();
        let kind = if service.is_some() { RequiredKind::Sentinel } else { RequiredKind::InCluster };
        let at = |target| named(pattern.another(target, kind), None, kind, &names);
        let seeds_at: Vec<Endpoint> = seeds.targets().into_iter().map(at).collect();
        let sentinels = service.map(Sentinels::new);
        let address = seeds.to_string();
        Box::pin(async move {
            let transport = host.transport().await.map_err(|error| no_thread(&error))?;
            let cluster = Arc::new_cyclic(|me| Cluster {
                me: me.clone(),
                seeds: seeds_at,
                sentinels,
                pattern,
                names,
                map,
                metrics: NodeMetrics::of_routed(&address),
                address,
                home: elsewhere(home, &host),
                transport,
                host,
                channel: channel(),
                left_out: Arc::default(),
                topology: RwLock::default(),
                settled: Mutex::default(),
                changes: Sender::new(0),
                servers: Mutex::default(),
                guests: Mutex::default(),
                listener: OnceLock::new(),
                is_doubted: AtomicBool::new(false),
                is_asleep: AtomicBool::new(false),
                woken: Arc::default(),
                asking: Mutex::default(),
                closed: CancellationToken::new(),
            });
            cluster.first_view().await?;
            cluster.connect_to_all();
            cluster.host.spawn_until_stopped(watch::run(Arc::downgrade(&cluster)));
            Ok(Self(cluster))
        })
    }
}

/// Ends the connections to guests without requests under way.
fn leave_idle(guests: &mut HashMap<Place, Connected>) {
    guests.retain(|_, (connections, pulse)| {
        let is_asked = pulse.is_under_way();
        if !is_asked {
            connections.retire();
        }
        is_asked
    });
}

/// The text for a server that others have named, and that was not reached there, or where the map leads.
fn out_of_reach(named: &str, place: &Place, target: &Target, why: &str) -> String {
    let (address, advice) = (target.to_string(), advice_on_tls(target, why));
    let at = if place.to_string() == address { String::new() } else { format!(" at {address}") };
    format!(
        "{named}, which cannot be reached{at} ({why}): if it has another address from here, see Builder::address_map{advice}"
    )
}

/// Adds the name in the server's certificate; others may have announced the server on the host `announced`.
fn named(mut endpoint: Endpoint, announced: Option<&str>, kind: RequiredKind, names: &CertificateNames) -> Endpoint {
    if let Address::Tcp { host, .. } = &endpoint.target.address {
        if let Some(name) = names.of(announced.unwrap_or(host), host, kind) {
            endpoint.target.tls.server_name = Some(name.into());
        }
    }
    endpoint
}

impl Cluster {
    /// Connects to all primaries in advance, unless there are many.
    fn connect_to_all(&self) {
        let servers = self.topology.read().servers();
        if servers.len() <= AT_ONCE {
            for server in servers {
                // A request to it reports why there is none.
                drop(self.server(server));
            }
        }
    }

    /// A primary, and the requests under way with it. If necessary, it is connected to in the background.
    fn server(&self, shard: Shard) -> Result<Connected, Failure> {
        let mut servers = self.servers.lock();
        if let Some((server, _)) = servers.get(&shard) {
            return Ok(server.clone());
        }
        // A close, or the end of a primary, reads the servers afterwards.
        if self.closed.is_cancelled() {
            return Err(Failure::unsent("it was closed meanwhile"));
        }
        let place = self.topology.read().place(shard).cloned();
        let place = place.ok_or_else(|| Failure::unsent(format!("a primary of {} is none any more", self.address)))?;
        let guest = self.guests.lock().remove(&place);
        let server = guest.unwrap_or_else(|| self.begin(&place));
        let listener = Arc::new(Narrowed::new(self.me.clone(), shard));
        server.0.subscription.listen(Arc::downgrade(&listener) as Weak<dyn NodeListener>);
        servers.insert(shard, (server.clone(), listener));
        Ok(server)
    }

    fn begin(&self, place: &Place) -> Connected {
        let (host, home, channel) = (self.host.clone(), self.home.clone(), self.channel.clone());
        let has_slots = self.sentinels.is_none();
        let begun = Connections::begin(self.endpoint(place), host, &self.transport, home, channel, has_slots);
        (begun, Arc::default())
    }

    /// A server to which the owner of a slot has redirected a request.
    fn guest(&self, place: &Place) -> Result<Connected, Failure> {
        let known = self.topology.read().at(place);
        if let Some(shard) = known {
            return self.server(shard);
        }
        let mut guests = self.guests.lock();
        if self.closed.is_cancelled() {
            return Err(Failure::unsent("it was closed meanwhile"));
        }
        if guests.len() >= GUESTS && !guests.contains_key(place) {
            leave_idle(&mut guests);
        }
        Ok(guests.entry(place.clone()).or_insert_with(|| self.begin(place)).clone())
    }

    /// The connections to the primary of a shard, if there are any.
    fn known(&self, shard: Shard) -> Option<Connected> {
        self.servers.lock().get(&shard).map(|(server, _)| server.clone())
    }

    fn all(&self) -> Vec<Arc<Connections>> {
        let mut all: Vec<Connected> = self.servers.lock().values().map(|(server, _)| server.clone()).collect();
        all.extend(self.guests.lock().values().cloned());
        all.into_iter().map(|(connections, _)| connections).collect()
    }

    /// The endpoint of a server that keeps locks, as announced.
    fn endpoint(&self, place: &Place) -> Endpoint {
        let kind = if self.sentinels.is_some() { RequiredKind::Named } else { RequiredKind::InCluster };
        self.reach(place, &self.pattern, kind)
    }

    /// The endpoint of an announced server, with our user as on another one of its kind.
    fn reach(&self, place: &Place, like: &Endpoint, kind: RequiredKind) -> Endpoint {
        let Place { host, port } = self.map.reach(place);
        let address = Address::Tcp { host: host.into(), port, tls: like.target.address.has_tls() };
        // Without the name in that other server's certificate.
        let target = Target { address, tls: self.pattern.target.tls.clone(), ..like.target.clone() };
        named(like.another(target, kind), Some(&place.host), kind, &self.names)
    }

    /// Explains a failure of a primary, perhaps asked for this slot, or of the server `on` to which it redirected the
    /// request. A server that was never reached may have another address from here than the announced one.
    fn unsent(&self, failure: Failure, by: &Connections, of: Shard, on: Option<Place>, slot: Option<u16>) -> Failure {
        let why = if failure.is_unsent() { by.never_reached() } else { None };
        let announced = on.or_else(|| self.topology.read().place(of).cloned());
        let (Some(place), Some(why)) = (announced, why) else { return failure };
        let named = match (&self.sentinels, slot) {
            (Some(sentinels), _) => format!("Sentinels name {place} as the primary of {:?}", sentinels.service),
            (None, Some(slot)) => format!("the cluster names {place} for slot {slot}"),
            (None, None) => format!("the cluster names {place}"),
        };
        Failure::unsent(out_of_reach(&named, &place, &self.endpoint(&place).target, &why))
    }

    fn listener(&self) -> Option<Arc<dyn NodeListener>> {
        self.listener.get()?.upgrade()
    }

    /// Whether anything is held or awaited.
    fn is_needed(&self) -> bool {
        self.listener().is_some_and(|listener| listener.is_needed())
    }

    fn shard(&self, key: &Key) -> Shard {
        self.topology.read().owner(slot::of(key.lock())).unwrap_or(Shard::FIRST)
    }

    /// Notes that the topology may have changed.
    fn doubt(&self) {
        self.is_doubted.store(true, Ordering::Release);
        self.woken.notify_one();
    }

    /// Notes that something is under way.
    fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            self.woken.notify_one();
        }
    }

    fn now(&self) -> Time {
        self.pattern.now()
    }
}

impl Node for Routed {
    fn route(&self) -> Route {
        route_from(self.0.home.as_ref().map(Handle::id))
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        let _first_stays = self.0.listener.set(listener);
    }

    fn tracking_capacity(&self) -> usize {
        let capacities = self.0.all().into_iter().map(|server| server.subscription.tracking_capacity());
        capacities.filter(|&capacity| capacity > 0).min().unwrap_or_default()
    }

    fn sharded(&self) -> Option<&dyn Sharded> {
        Some(self)
    }

    fn links(&self) -> Option<&dyn Links> {
        Some(self)
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        let (cluster, time) = (self.0.clone(), self.0.host.time_keeper());
        Box::pin(async move {
            let sending = pin!(cluster.send(SendOptions::new(route, limit), request));
            time.keep(sending).await
        })
    }

    fn survey(&self, shard: Shard, inquiry: Inquiry) -> Answer<ServerSaid> {
        let (cluster, time) = (self.0.clone(), self.0.host.time_keeper());
        Box::pin(async move {
            let asking = pin!(cluster.survey(shard, &inquiry));
            time.keep(asking).await
        })
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.closed.cancel();
        let closing: Vec<_> = self.0.all().iter().map(|server| server.close(limit)).collect();
        Box::pin(async move { drop(join_all(closing).await) })
    }
}

impl Sharded for Routed {
    fn shard(&self, key: &Key) -> Shard {
        self.0.shard(key)
    }

    fn shards(&self) -> Vec<ShardInfo> {
        let topology = self.0.topology.read();
        let info = |shard| {
            let address = topology.place(shard).map(ToString::to_string).unwrap_or_default();
            let (slots, replicas) = (topology.slots(shard).len(), topology.replicas(shard).count());
            let slots = u16::try_from(slots).ok().filter(|_| self.0.sentinels.is_none());
            ShardInfo { shard, address, slots, replicas: Some(replicas) }
        };
        topology.servers().into_iter().map(info).collect()
    }

    fn address_of(&self, shard: Shard) -> String {
        let place = self.0.topology.read().place(shard).map(ToString::to_string);
        place.unwrap_or_else(|| self.0.address.clone())
    }
}

impl Links for Routed {
    fn withdraw(&self, token: &Token) -> bool {
        self.0.all().iter().any(|server| server.withdraw(token))
    }

    fn trouble(&self, shard: Shard) -> Option<String> {
        let (server, _) = self.0.known(shard)?;
        let trouble = server.keeper.trouble()?;
        Some(self.0.unsent(Failure::unsent(trouble), &server, shard, None, None).to_string())
    }

    fn unlinked(&self, route: Route, shard: Shard) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let connection = self.0.known(shard).map(|(server, _)| server.connection(route));
        Box::pin(async move {
            if let Some(connection) = connection {
                connection.unlinked().await;
            }
        })
    }

    fn reconnect(&self, route: Route, shard: Shard) {
        if let Some((server, _)) = self.0.known(shard) {
            server.connection(route).reconnect();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("address", &self.address).finish_non_exhaustive()
    }
}
