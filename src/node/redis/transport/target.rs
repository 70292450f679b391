//! A node's address and our user there: read from a url, and used by connections.

use std::{fmt, net::IpAddr, path::PathBuf};

use super::{kind::RequiredKind, login::Provider};
use crate::tls::Tls;

/// A server's address, and our user there.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Asked for user and password, if there is one.
    pub(crate) provider: Option<Provider>,
    pub(crate) database: Option<u8>,
    /// Used if the address has TLS.
    pub(crate) tls: Tls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

/// The servers that a url names: the one that has all locks; or some of a cluster, which name the others; or Sentinels,
/// which name the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// The first server, and our user on the servers that keep locks. Its TLS contains the url's certificate name.
    pub(crate) target: Target,
    /// All servers that name others; empty if there is one server.
    pub(super) hosts: Vec<Address>,
    /// The service that Sentinels watch, and our user on them.
    pub(super) sentinels: Option<(String, Target)>,
}

/// The names that certificates may have instead of their server's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// The name that all servers that keep locks have.
    given: Option<String>,
    /// The name of a cluster's first seed: servers that are known by an IP address usually have it too.
    of_first: Option<String>,
}

impl CertificateNames {
    /// The name in the certificate of a server that is announced with one host and reached at another, if there is one.
    /// A Sentinel that has a name has a certificate of its own.
    pub(crate) fn of<'a>(&'a self, announced: &'a str, reached: &'a str, kind: RequiredKind) -> Option<&'a str> {
        let name = |host: &'a str| Some(host).filter(|host| !is_ip(host));
        let given = self.given.as_deref().filter(|_| is_ip(announced) || kind != RequiredKind::Sentinel);
        given.or(name(announced)).or(name(reached)).or(self.of_first.as_deref())
    }
}

fn is_ip(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

impl Address {
    /// Whether the server speaks TLS.
    pub(crate) fn has_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }
}

impl Target {
    /// The default user's first database at this address.
    pub(crate) fn at(address: Address) -> Self {
        Self { address, user: None, password: None, provider: None, database: None, tls: Tls::default() }
    }
}

impl Seeds {
    /// One server that has all locks.
    pub(super) fn alone(target: Target) -> Self {
        Self { target, hosts: Vec::new(), sentinels: None }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The service that Sentinels watch, if there are any.
    pub(crate) fn service(&self) -> Option<&str> {
        self.sentinels.as_ref().map(|(service, _)| &**service)
    }

    /// The servers that name others, each with our user there.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let like = self.sentinels.as_ref().map_or(&self.target, |(_, like)| like);
        let at = |host: &Address| Target { address: host.clone(), tls: self.target.tls.clone(), ..like.clone() };
        self.hosts.iter().map(at).collect()
    }

    /// Whether any of the servers speaks TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.target.address.has_tls() || self.hosts.iter().any(Address::has_tls)
    }

    /// The names in the certificates of servers, if they differ from the hosts.
    pub(crate) fn names_in_certificates(&self) -> CertificateNames {
        let of_first = match &self.target.address {
            Address::Tcp { host, .. } if self.sentinels.is_none() && !is_ip(host) => Some(host.clone()),
            Address::Tcp { .. } | Address::Unix(_) => None,
        };
        CertificateNames { given: self.target.tls.server_name.clone(), of_first }
    }
}

/// The server's address, without our user there: for errors and `Debug`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The servers' addresses, without our user there.
impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.target)?;
        self.targets().iter().skip(1).try_for_each(|target| write!(f, ",{target}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_the_name_that_is_given_or_is_announced_or_leads_there_or_is_that_of_the_first_seed() {
        let (cluster, sentinel) = (RequiredKind::InCluster, RequiredKind::Sentinel);
        for (url, kind, announced, reached, name) in [
            ("rediss-cluster://one", cluster, "10.0.0.1", "10.0.0.1", Some("one")),
            ("rediss-cluster://one", cluster, "::1", "::1", Some("one")),
            ("rediss-cluster://one", cluster, "two", "two", Some("two")),
            ("rediss-cluster://one", cluster, "10.0.0.1", "two", Some("two")),
            ("rediss-cluster://one", cluster, "two", "10.0.0.1", Some("two")),
            ("rediss-cluster://one", cluster, "two", "three", Some("two")),
            ("rediss-cluster://10.0.0.1,one", cluster, "10.0.0.2", "10.0.0.2", None),
            ("rediss-cluster://one?tls_name=n", cluster, "10.0.0.1", "10.0.0.1", Some("n")),
            ("rediss-cluster://one?tls_name=n", cluster, "10.0.0.1", "two", Some("n")),
            ("rediss-cluster://one?tls_name=n", cluster, "two", "two", Some("n")),
            ("rediss-sentinel://one/locks", RequiredKind::Named, "10.0.0.1", "10.0.0.1", None),
            ("rediss-sentinel://one/locks?tls_name=n", RequiredKind::Named, "10.0.0.1", "10.0.0.1", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", RequiredKind::Named, "two", "two", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", sentinel, "10.0.0.1", "10.0.0.1", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", sentinel, "two", "two", Some("two")),
        ] {
            let names = Seeds::parse(url).unwrap().names_in_certificates();
            assert_eq!(names.of(announced, reached, kind), name, "{url} {announced} {reached}");
        }
        for wrong in ["a b", "a/b"] {
            let error = Seeds::parse(&format!("rediss-cluster://one?tls_name={wrong}")).unwrap_err().to_string();
            assert!(error.contains("tls_name") && error.contains("must be a name"), "{error}");
        }
    }
}
