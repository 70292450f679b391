//! The address of a node, and the urls for it.

use super::redis::Seeds;
use crate::error::Error;

/// The address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// In this process, under a name that may be empty.
    Memory(String),
    /// A server; or a cluster, or a primary behind Sentinels, which are several servers and one node.
    Redis(Box<Seeds>),
}

impl NodeAddress {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        match url.strip_prefix("memory://") {
            Some(name) => Ok(Self::Memory(name.into())),
            None => Seeds::parse(url).map(Self::of),
        }
    }

    pub(crate) fn of(seeds: Seeds) -> Self {
        Self::Redis(Box::new(seeds))
    }

    /// Whether the node is made of several servers, of which another may take over.
    pub(crate) fn is_routed(&self) -> bool {
        matches!(self, Self::Redis(seeds) if !seeds.is_alone())
    }

    /// Whether its keys are in slots.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Redis(seeds) if !seeds.is_alone() && seeds.service().is_none())
    }

    /// The addresses of a quorum, no two of which are the same node.
    pub(crate) fn of_quorum(named: impl ExactSizeIterator<Item = Result<Self, Error>>) -> Result<Vec<Self>, Error> {
        let nodes = named.len();
        if !matches!(nodes, 3 | 5 | 7 | 9) {
            return Err(Error::config(format!(
                "the number of servers of quorum is {nodes}: it must be 3, 5, 7 or 9 (an even one survives no more than one less; for one \
                 server there is `url`)"
            )));
        }
        let mut places: Vec<Self> = Vec::with_capacity(nodes);
        for (at, place) in named.enumerate() {
            let place = place.map_err(|error| Error::config(format!("quorum[{at}]: {error}")))?;
            if place.is_routed() {
                let scheme = if place.is_cluster() { "redis-cluster" } else { "redis-sentinel" };
                return Err(Error::config(format!(
                    "quorum[{at}]: {scheme}:// names servers whose replicas take over and may have forgotten a lock: a quorum \
                     is of stand-alone servers"
                )));
            }
            if let Some(other) = places.iter().position(|other| other.is_same(&place)) {
                let address = place.address();
                return Err(Error::config(format!(
                    "quorum[{other}] and quorum[{at}] are both {address}: two votes from one server are none, name \
                     independent servers"
                )));
            }
            places.push(place);
        }
        let in_memory = places.iter().position(|place| matches!(place, Self::Memory(_)));
        if let (Some(at), true) = (in_memory, places.iter().any(|place| matches!(place, Self::Redis(_)))) {
            return Err(Error::config(format!(
                "quorum[{at}] is memory://, which no other process has: its vote would be worth nothing, name servers only"
            )));
        }
        Ok(places)
    }

    /// Whether both are certainly the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => one == other && !one.is_empty(),
            (Self::Redis(one), Self::Redis(other)) => one.target.address == other.target.address,
            _ => false,
        }
    }

    /// The address without our credentials.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Memory(name) => format!("memory://{name}"),
            Self::Redis(seeds) => seeds.to_string(),
        }
    }
}
