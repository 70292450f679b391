//! Reads the url of a cluster: `redis-cluster://[user[:password]@]host[:port][,host[:port]…][?tls_name=NAME]`.
//!
//! Each host is read as the only one of a url: what is refused there is refused here, in the same words.

use std::fmt;

use url::form_urlencoded;

use super::url::{Address, Target};
use crate::error::Error;

/// The most hosts that a url may name.
const MOST: usize = 64;

/// Some servers of a cluster, which name the others.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// The first, and who we are on all of them.
    pub(crate) target: Target,
    more: Vec<Address>,
    /// The name in the servers' certificates, if that is not their host.
    tls_name: Option<String>,
}

impl Seeds {
    /// Those of a url, if its scheme is that of a cluster.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = text.split_once("://")?;
        let one = match scheme.to_ascii_lowercase().as_str() {
            "redis-cluster" | "redis+cluster" | "valkey-cluster" | "valkey+cluster" => "redis",
            "rediss-cluster" | "rediss+cluster" | "valkeys-cluster" | "valkeys+cluster" => "rediss",
            _ => return None,
        };
        Some(Self::of(one, rest))
    }

    fn of(scheme: &str, rest: &str) -> Result<Self, Error> {
        // A password may have anything but this.
        let (user, hosts) = rest.rfind('@').and_then(|at| rest.split_at_checked(at + 1)).unwrap_or(("", rest));
        let (hosts, query) = hosts.split_once('?').unwrap_or((hosts, ""));
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.len() > MOST {
            let many = hosts.len();
            return Err(Error::config(format!(
                "the url names {many} hosts, {MOST} are the most: one that answers is enough"
            )));
        }
        let mut targets = Vec::with_capacity(hosts.len());
        for host in hosts {
            if host.is_empty() {
                return Err(Error::config(
                    "the url names a host that is empty: write it like redis-cluster://one:6379,two:6379",
                ));
            }
            targets.push(Target::parse(&format!("{scheme}://{user}{host}"))?);
        }
        if !matches!(path, "" | "0") {
            return Err(Error::config("a cluster has no databases: leave what follows the url's last / out"));
        }
        let mut tls_name = None;
        for (parameter, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*parameter {
                "tls_name" if scheme == "redis" => {
                    return Err(Error::config("the url has a tls_name, and no TLS: write rediss-cluster://"));
                }
                "tls_name" if value.is_empty() => {
                    return Err(Error::config("the url's tls_name is empty: leave it out"));
                }
                "tls_name" => tls_name = Some(value.into_owned()),
                _ => {
                    return Err(Error::config(format!(
                        "the url's parameter {parameter:?} is unknown: tls_name is known"
                    )));
                }
            }
        }
        let mut targets = targets.into_iter();
        let Some(target) = targets.next() else { return Err(Error::config("the url names no host")) };
        Ok(Self { target, more: targets.map(|target| target.address).collect(), tls_name })
    }

    /// Each of them.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.target.address).chain(&self.more)
    }

    /// The name in the certificate of a server, if that is not its host: where servers are announced by their addresses,
    /// it is mostly that of the first seed.
    pub(crate) fn name_in_certificates(&self) -> Option<&str> {
        let of_first = match &self.target.address {
            Address::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => Some(&**host),
            Address::Tcp { .. } | Address::Unix(_) => None,
        };
        self.target.tls.server_name.as_deref().or(self.tls_name.as_deref()).or(of_first)
    }
}

/// Where they are, without who we are there: for errors and `Debug`.
impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, address) in self.addresses().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}", Target::at(address.clone()))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Seeds, Error> {
        Seeds::parse(url).expect("the scheme is that of a cluster")
    }

    #[test]
    fn a_url_names_some_servers_and_who_we_are_on_all_of_them() {
        let seeds = parse("redis-cluster://worker:p%40ss@one,[::1]:7000,10.0.0.3:7001").unwrap();
        assert_eq!(seeds.to_string(), "one:6379,[::1]:7000,10.0.0.3:7001");
        assert_eq!((seeds.target.user.as_deref(), seeds.target.password.as_deref()), (Some("worker"), Some("p@ss")));
        assert_eq!(seeds.name_in_certificates(), Some("one"));
        for same in ["redis+cluster://one:6379", "valkey-cluster://one/", "REDIS-CLUSTER://one/0"] {
            assert_eq!(parse(same).unwrap().to_string(), "one:6379", "{same}");
        }
        let named = parse("rediss-cluster://10.0.0.1?tls_name=cache.example").unwrap();
        assert_eq!(named.name_in_certificates(), Some("cache.example"));
        assert_eq!(parse("rediss-cluster://10.0.0.1").unwrap().name_in_certificates(), None);
        assert!(Seeds::parse("redis://one").is_none() && Seeds::parse("one,two").is_none());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many = format!("redis-cluster://{}", ["h"; 65].join(","));
        for (url, says) in [
            (&*many, "65 hosts"),
            ("redis-cluster://", "host that is empty"),
            ("redis-cluster://one,,two", "host that is empty"),
            ("redis-cluster://one:0", "port is 0"),
            ("redis-cluster://one:99999", "not a URL"),
            ("redis-cluster://one/3", "no databases"),
            ("redis-cluster:///run/redis.sock", "host that is empty"),
            ("redis-cluster://one?timeout=3", "parameter \"timeout\""),
            ("redis-cluster://one?tls_name=a", "no TLS"),
            ("rediss-cluster://one?tls_name=", "tls_name is empty"),
            ("redis-cluster://one#two", "fragment"),
        ] {
            let error = parse(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }

    #[test]
    fn nothing_shows_the_password() {
        let seeds = parse("redis-cluster://worker:sesame@one,two").unwrap();
        assert!(!format!("{seeds:?} {seeds}").contains("sesame"));
        for wrong in [
            "redis-cluster://worker:12/sesame@one,two",
            "redis-cluster://worker:12?sesame@one,two",
            "redis-cluster://worker:12#sesame@one,two",
            "redis-cluster://worker:12@sesame@one,two:0",
            "redis-cluster://worker:sesame@one,two:x",
            "redis-cluster://worker:sesame@one/3",
            "redis-cluster://worker:sesame@",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
        }
    }
}
