//! From urls to nodes that answer.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{Member, Quorum};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    keeper::Host,
    node::{
        Failure, Node,
        memory::Memory,
        redis::{Limits, Redis, Target},
    },
    votes::{NodeAnswer, Vote, Votes},
};

/// Once a majority is there, the others are waited for so long; then they are connected to in the background.
const GRACE: Duration = Duration::from_millis(500);

/// The pause before the next try to connect in the background; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this process, under a name that may be empty.
    Memory(String),
    Redis(Target),
}

impl Place {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        match url.strip_prefix("memory://") {
            Some(name) => Ok(Self::Memory(name.into())),
            None => Target::parse(url).map(Self::Redis),
        }
    }

    /// Whether two are one node for certain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => one == other && !one.is_empty(),
            (Self::Redis(one), Self::Redis(other)) => one.place == other.place,
            _ => false,
        }
    }

    /// Without who we are there.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Memory(name) => format!("memory://{name}"),
            Self::Redis(target) => target.to_string(),
        }
    }
}

/// What connections are made with.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    pub(crate) host: Host,
    pub(crate) clock: Arc<dyn Clock>,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Node>, Error>> + Send>>;

impl Terms {
    fn connect(&self, place: &Place) -> Connecting {
        match place {
            Place::Memory(name) => {
                let node: Arc<dyn Node> = if name.is_empty() { Memory::private() } else { Memory::named(name) };
                Box::pin(std::future::ready(Ok(node)))
            }
            Place::Redis(target) => {
                let connecting = Redis::connect(target.clone(), self.limits, self.host.clone(), self.clock.clone());
                Box::pin(async move { Ok(Arc::new(connecting.await?) as Arc<dyn Node>) })
            }
        }
    }
}

impl Quorum {
    /// Connects to every node at once, and is there as soon as a majority is. The others follow in the background.
    pub(crate) async fn connect(places: Vec<Place>, restart_delay: Duration, terms: Terms) -> Result<Self, Error> {
        let addresses: Vec<String> = places.iter().map(Place::address).collect();
        let Terms { limits, host, clock } = &terms;
        let quorum = Self::new(&addresses, restart_delay, clock, host, limits.command);
        if let [place] = &*places {
            quorum.install(0, terms.connect(place).await?);
            return Ok(quorum);
        }
        let mut coming = Coming(places.iter().map(|place| terms.connect(place)).enumerate().collect());
        let mut outcomes: Vec<Option<Error>> = places.iter().map(|_| None).collect();
        let mut connected = 0;
        let mut grace = std::pin::pin!(host.sleep(limits.connect + GRACE));
        let mut is_waiting = false;
        while !coming.0.is_empty() {
            if connected >= quorum.majority() && !is_waiting {
                grace.set(host.sleep(GRACE));
                is_waiting = true;
            }
            let (at, outcome) = tokio::select! {
                biased;
                next = coming.next() => next,
                () = &mut grace, if is_waiting => break,
            };
            match outcome {
                Ok(node) => match quorum.admit(at, node, limits.command).await {
                    Ok(()) => connected += 1,
                    // A mistake in the urls. (Of a node that comes later its state tells.)
                    Err(failure) if failure.is_refusal() => {
                        let address = addresses.get(at).map_or_else(String::new, |address| format!(", {address}"));
                        return Err(Error::config(format!("quorum[{at}]{address}: {failure}")));
                    }
                    Err(failure) => outcomes.splice(at..=at, [Some(failure.into())]).for_each(drop),
                },
                // Nothing that time could mend.
                Err(error) if error.kind() == ErrorKind::Config => return Err(error),
                Err(error) => outcomes.splice(at..=at, [Some(error)]).for_each(drop),
            }
        }
        if connected < quorum.majority() {
            return Err(too_few(&quorum, &outcomes));
        }
        let coming = std::mem::take(&mut coming.0)
            .into_iter()
            .map(|(at, connecting)| (at, Some(connecting), Error::new(ErrorKind::Unavailable, "it does not answer")));
        let failed = outcomes.into_iter().enumerate().filter_map(|(at, error)| Some((at, None, error?)));
        for (at, connecting, error) in failed.chain(coming) {
            if let (Some(member), Some(place)) = (quorum.member(at), places.get(at)) {
                tracing::warn!(name: "node", target: "leasehold", node = member.address(), %error, "it is not there yet");
                member.not_there(&error);
                host.spawn_until_stopped(keep_trying(member.clone(), connecting, place.clone(), terms.clone()));
            }
        }
        Ok(quorum)
    }

    /// A connected node takes its seat, unless it may have none: two votes from one server, or a server that may forget
    /// without a restart, are a mistake in the urls.
    async fn admit(&self, at: usize, node: Arc<dyn Node>, limit: Duration) -> Result<(), Failure> {
        let Some(member) = self.member(at) else { return Ok(()) };
        may_sit(member, &*node, limit).await?;
        member.install(node);
        Ok(())
    }
}

async fn may_sit(member: &Member, node: &dyn Node, limit: Duration) -> Result<(), Failure> {
    let sign = node.probe(limit).await?;
    if !sign.is_alone {
        return Err(Failure::refused(
            "it is part of a cluster, or a Sentinel, and may forget without a restart: a quorum needs stand-alone servers",
        ));
    }
    member.check_identity(&sign)
}

async fn keep_trying(member: Arc<Member>, first: Option<Connecting>, place: Place, terms: Terms) {
    let mut pause = FIRST_PAUSE;
    let mut connecting = first;
    loop {
        let outcome = match connecting.take() {
            Some(first) => first.await,
            None => terms.connect(&place).await,
        };
        let outcome = match outcome {
            Ok(node) => may_sit(&member, &*node, terms.limits.command).await.map(|()| node).map_err(Error::from),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(node) => {
                member.install(node);
                member.arrived();
                return;
            }
            Err(error) => member.not_there(&error),
        }
        terms.host.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connections under way, in the order in which they come.
struct Coming(Vec<(usize, Connecting)>);

impl Coming {
    async fn next(&mut self) -> (usize, Result<Arc<dyn Node>, Error>) {
        std::future::poll_fn(|context| {
            for (place, (at, connecting)) in self.0.iter_mut().enumerate() {
                if let std::task::Poll::Ready(outcome) = connecting.as_mut().poll(context) {
                    let at = *at;
                    drop(self.0.swap_remove(place));
                    return std::task::Poll::Ready((at, outcome));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

fn too_few(quorum: &Quorum, outcomes: &[Option<Error>]) -> Error {
    let vote = |((_, member), outcome): ((usize, &Arc<Member>), &Option<Error>)| {
        let answer = match outcome {
            None => NodeAnswer::Granted,
            Some(error) if error.kind() == ErrorKind::Refused => NodeAnswer::Refused(error.to_string()),
            Some(error) => NodeAnswer::Unreachable(error.to_string()),
        };
        Vote { address: member.address().into(), answer }
    };
    Failure::of_nodes(Votes { votes: quorum.members().zip(outcomes).map(vote).collect() }).into()
}
