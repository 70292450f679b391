//! Where a node is, and which urls say so.

use super::redis::{Address, Seeds, Target};
use crate::error::Error;

const LEAST_NODES: usize = 3;
const MOST_NODES: usize = 9;

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeAddress {
    /// In this process, under a name that may be empty.
    Memory(String),
    Redis(Box<Target>),
    /// A cluster, or a primary behind Sentinels: several servers that are one node.
    Routed(Box<Seeds>),
}

impl NodeAddress {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        if let Some(name) = url.strip_prefix("memory://") {
            return Ok(Self::Memory(name.into()));
        }
        match Seeds::parse(url) {
            Some(seeds) => Ok(Self::Routed(Box::new(seeds?))),
            None => Target::parse(url).map(Self::from),
        }
    }

    /// Whether its keys are in slots.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Routed(seeds) if seeds.service().is_none())
    }

    /// Whether a url has said that any of its servers speaks TLS.
    pub(crate) fn has_tls(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(target) => matches!(target.address, Address::Tcp { tls: true, .. }),
            Self::Routed(seeds) => seeds.has_tls(),
        }
    }

    /// The server, or the first that is named, and who we are there.
    pub(crate) fn target_mut(&mut self) -> Option<&mut Target> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(target) => Some(target),
            Self::Routed(seeds) => Some(&mut seeds.target),
        }
    }

    /// Those of a quorum, no two of which are one node.
    pub(crate) fn of_quorum(named: impl ExactSizeIterator<Item = Result<Self, Error>>) -> Result<Vec<Self>, Error> {
        let nodes = named.len();
        if nodes % 2 == 0 || !(LEAST_NODES..=MOST_NODES).contains(&nodes) {
            return Err(Error::config(format!(
                "the number of servers of quorum is {nodes}: it must be 3, 5, 7 or 9 (an even one survives no more than one less; for one \
                 server there is `url`)"
            )));
        }
        let mut places: Vec<Self> = Vec::with_capacity(nodes);
        for (at, place) in named.enumerate() {
            let place = place.map_err(|error| Error::config(format!("quorum[{at}]: {error}")))?;
            if let Self::Routed(seeds) = &place {
                let scheme = if seeds.service().is_some() { "redis-sentinel" } else { "redis-cluster" };
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

    /// Whether two are one node for certain.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) => one == other && !one.is_empty(),
            (Self::Redis(one), Self::Redis(other)) => one.address == other.address,
            _ => false,
        }
    }

    /// Without who we are there.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Memory(name) => format!("memory://{name}"),
            Self::Redis(target) => target.to_string(),
            Self::Routed(seeds) => seeds.to_string(),
        }
    }
}

impl From<Target> for NodeAddress {
    fn from(target: Target) -> Self {
        Self::Redis(Box::new(target))
    }
}
