//! The address of a server, and the number of a part of a node.

use std::fmt;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The host: a name or an address, without brackets.
    pub host: Box<str>,
    /// The port, which is not zero.
    pub port: u16,
}

impl Place {
    /// Reads the text of a redirection: the port follows the last colon. Without a host, the host is the sender's.
    /// Without a port, there is no address.
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

/// A part of a node that fails by itself, such as one primary of a cluster. A node that is not a cluster is one shard.
/// Numbers are never reused. They decide what waits for what; nothing relies on which shard has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u32);

impl Shard {
    /// The only shard of a node that is not a cluster.
    pub const FIRST: Self = Self(0);
}
