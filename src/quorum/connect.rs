//! Turns urls into nodes that answer.

use std::{
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    doubling::Doubling,
    failure::Failure,
    message::{Request, Route, ServerIdentity},
    votes::NodeAnswer,
};

use tokio::runtime::Handle;

use super::{FanOut, Member, Quorum};
use crate::{
    clock::Clock,
    error::Error,
    keeper::Host,
    node::{
        Node, NodeAddress, Seat,
        memory::{self, Memory},
        redis::{AddressMap, Endpoint, Limits, Redis, Routed},
    },
    options::Names,
};

/// How long the other nodes are awaited once a majority is connected. After that they are connected in the background.
const GRACE: Duration = Duration::from_millis(500);

/// The pause before the next try to connect in the background; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The configuration of connections.
#[derive(Debug, Clone)]
pub(crate) struct ConnectConfig {
    pub(crate) limits: Limits,
    pub(crate) host: Host,
    pub(crate) clock: Arc<dyn Clock>,
    /// The addresses at which to reach servers that others announce.
    pub(crate) map: AddressMap,
    /// The names of our connections, and which keys are ours.
    pub(crate) names: Names,
    /// The runtime of the program's own connections; without it there are none.
    pub(crate) home: Option<Handle>,
    /// The restart delay with which nodes are asked for votes, if they are.
    pub(crate) votes: Option<Duration>,
    /// How often to check that an address still resolves to the same server; never, if zero.
    pub(crate) check_every: Duration,
}

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// A node that answers, and the identity that it reports.
type Arrival = (Arc<dyn Node>, ServerIdentity);

impl ConnectConfig {
    fn connect(&self, place: &NodeAddress, seat: Option<Seat>) -> Connecting<Arc<dyn Node>> {
        match place {
            NodeAddress::Memory(name) => {
                let clock = &self.clock;
                let memory = if name.is_empty() { Memory::private(clock) } else { Memory::named(name, clock) };
                Box::pin(ready(Ok(memory::node(memory, &self.host))))
            }
            NodeAddress::Redis(seeds) if place.is_routed() => {
                let seeds = (&**seeds, self.map.clone());
                let connecting =
                    Routed::connect(seeds, self.limits, &self.clock, &self.names, self.host.clone(), self.home.clone());
                Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Node>) })
            }
            NodeAddress::Redis(seeds) => {
                let (target, clock) = (seeds.target.clone(), self.clock.clone());
                let endpoint = Endpoint::new(target, self.limits, clock, self.names.clone()).seated(seat);
                let connecting =
                    Redis::connect(endpoint, self.host.clone(), self.home.clone(), self.votes, self.check_every);
                Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Node>) })
            }
        }
    }

    fn arrive(&self, place: &NodeAddress, seat: Option<Seat>) -> Connecting<Arrival> {
        let (connecting, limit) = (self.connect(place, seat), self.limits.command);
        Box::pin(async move {
            let node = connecting.await?;
            let identity = node.ask(Route::Home, Request::Probe, limit).await.map_err(Error::of)?;
            Ok((node, identity))
        })
    }
}

impl Quorum {
    /// The nodes at these places, none of them connected.
    pub(crate) fn at(places: &[NodeAddress], restart_delay: Duration, config: &ConnectConfig) -> Self {
        let addresses: Vec<String> = places.iter().map(NodeAddress::address).collect();
        let ConnectConfig { limits, host, clock, .. } = config;
        Self::new(&addresses, restart_delay, clock, host, limits.command)
    }

    /// Connects to every node at once, and completes once a majority is connected. The others follow in the background.
    /// After a failure it may be called again.
    pub(crate) async fn connect(&self, places: &[NodeAddress], config: &ConnectConfig) -> Result<(), Error> {
        let ConnectConfig { limits, host, .. } = config;
        if let ([place], Some(only)) = (places, self.only()) {
            only.install(config.connect(place, None).await?);
            return Ok(());
        }
        let absent = |at: &usize| self.member(*at).is_some_and(|member| member.node().is_none());
        let arrive = |(at, place): (usize, _)| (at, config.arrive(place, self.seat(at, &config.clock)));
        let arriving = places.iter().enumerate().map(arrive).filter(|(at, _)| absent(at));
        let mut coming: FanOut<Connecting<Arrival>> = arriving.collect();
        let mut outcomes: Vec<Option<Error>> = places.iter().map(|_| None).collect();
        let mut connected = self.members().filter(|(_, member)| member.node().is_some()).count();
        let mut grace = std::pin::pin!(host.sleep(limits.connect + GRACE));
        let mut is_waiting = false;
        while !coming.is_empty() {
            if connected >= self.majority() && !is_waiting {
                grace.set(host.sleep(GRACE));
                is_waiting = true;
            }
            let (at, outcome) = tokio::select! {
                biased;
                next = coming.next() => next,
                () = &mut grace, if is_waiting => break,
            };
            // Waiting cannot mend this: one of the urls is wrong.
            let of_url = |error| match error {
                Error::Config(why) => Error::config(format!("quorum[{at}]: {why}")),
                error => error,
            };
            let outcome = outcome
                .map_err(of_url)
                .and_then(|arrival| self.member(at).map_or(Ok(()), |member| admit(at, member, arrival)));
            match outcome {
                Ok(()) => connected += 1,
                Err(error) if error.is_mistake() => return Err(error),
                Err(error) => outcomes.splice(at..=at, [Some(error)]).for_each(drop),
            }
        }
        if connected < self.majority() {
            return Err(too_few(self, &outcomes));
        }
        self.await_absent(places, outcomes, coming, config);
        Ok(())
    }

    /// Connects in the background to the nodes that are not connected yet.
    fn await_absent(
        &self,
        places: &[NodeAddress],
        outcomes: Vec<Option<Error>>,
        mut coming: FanOut<Connecting<Arrival>>,
        config: &ConnectConfig,
    ) {
        let failed = outcomes.into_iter().enumerate().filter_map(|(at, error)| Some((at, None, error?)));
        let silent = || Error::unavailable("it does not answer");
        let coming = coming.take().map(|(at, connecting)| (at, Some(Box::pin(connecting) as Connecting<_>), silent()));
        for (at, connecting, error) in failed.chain(coming) {
            if let (Some(member), Some(place)) = (self.member(at), places.get(at)) {
                member.not_there(&error);
                let later = ConnectConfig { home: None, ..config.clone() };
                let seated = (at, self.seat(at, &config.clock));
                let trying = keep_trying(seated, member.clone(), connecting, place.clone(), later);
                config.host.spawn_until_stopped(trying);
                member.is_absent(error.to_string());
            }
        }
    }
}

/// Admits a connected node, unless it may have no vote. Two votes from one server, or a server that may forget without
/// a restart, are a mistake in the urls.
fn admit(at: usize, member: &Arc<Member>, (node, identity): Arrival) -> Result<(), Error> {
    let turned_down = |why: &str| Error::config(format!("quorum[{at}], {}: {why}", member.address()));
    if !identity.is_alone {
        return Err(turned_down(
            "it is part of a cluster, or a Sentinel, and may forget without a restart: name stand-alone servers",
        ));
    }
    member.check_identity(&identity).map_err(|failure| turned_down(&failure.to_string()))?;
    member.greet(&identity);
    member.install(node);
    Ok(())
}

async fn keep_trying(
    (at, seat): (usize, Option<Seat>),
    member: Arc<Member>,
    first: Option<Connecting<Arrival>>,
    place: NodeAddress,
    config: ConnectConfig,
) {
    let mut pauses = Doubling::from(FIRST_PAUSE);
    let mut connecting = first;
    loop {
        let outcome = match connecting.take() {
            Some(first) => first.await,
            None => config.arrive(&place, seat.clone()).await,
        };
        match outcome.and_then(|arrival| admit(at, &member, arrival)) {
            Ok(()) => return member.arrived(),
            Err(error) => member.not_there(&error),
        }
        config.host.sleep(pauses.next(LONGEST_PAUSE)).await;
    }
}

fn too_few(quorum: &Quorum, outcomes: &[Option<Error>]) -> Error {
    let vote = |((_, member), outcome): ((usize, &Arc<Member>), &Option<Error>)| {
        let answer = match outcome {
            None => NodeAnswer::Granted,
            Some(error @ Error::Refused(_)) => NodeAnswer::Refused(error.to_string()),
            Some(error) => NodeAnswer::Unreachable(error.to_string()),
        };
        (member.address().into(), answer)
    };
    Error::of(Failure::of_nodes(quorum.members().zip(outcomes).map(vote)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_place_makes_its_reader_panic(url in "(memory|redis)?(://)?.{0,20}") {
            if let Ok(place) = NodeAddress::parse(&url) {
                prop_assert!(place.is_same(&place) || url == "memory://");
                prop_assert!(!place.address().is_empty());
            }
        }
    }
}
