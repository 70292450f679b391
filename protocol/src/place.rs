//! The address of a server, and the number of a part of a node.

use std::fmt;

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// A name or an address, without brackets.
    pub host: Box<str>,
    /// Not zero.
    pub port: u16,
}

impl Place {
    /// From the text in a redirection: the port follows the last colon. One without a host is on the host that has sent
    /// it; one without a port is nowhere.
    pub fn read(text: &str, sender: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = if host.is_empty() { sender } else { host };
        Some(Self { host: host.into(), port }).filter(|place| !place.host.is_empty() && &*place.host != "?")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A part of a node that fails by itself: of a cluster, one of its primaries. A node that is not a cluster is one
/// shard. Numbers are never reused. They say what waits for what: nothing relies on the shard that has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u32);

impl Shard {
    /// The only one of a node that is no cluster.
    pub const FIRST: Self = Self(0);
}
