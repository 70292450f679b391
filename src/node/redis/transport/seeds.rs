//! Reads the url of a cluster, `redis-cluster://[user[:password]@]host[:port][,host[:port]…][?tls_name=NAME]`, and of a
//! primary behind Sentinels, `redis-sentinel://[user[:password]@]sentinel[:port][,…]/SERVICE[/database][?…]`.
//!
//! Each host is read as the only one of a url: what is refused there is refused here, in the same words.

use std::{fmt, net::IpAddr};

use url::form_urlencoded;

use super::{
    kind::Wanted,
    url::{Address, Target, decode, read_database},
};
use crate::{error::Error, tls::Tls};

/// The most hosts that a url may name.
const MOST: usize = 64;

/// The port of a Sentinel whose url names none.
const SENTINEL_PORT: u16 = 26_379;

/// Some servers of a cluster, which name the others; or Sentinels, which name the primary.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seeds {
    /// The first, and who we are on the servers that keep locks.
    pub(crate) target: Target,
    more: Vec<Address>,
    /// The name in the servers' certificates, if that is not their host.
    tls_name: Option<String>,
    sentinels: Option<Sentinels>,
}

/// The names that certificates may have instead of their server's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// All servers that keep locks have it.
    given: Option<String>,
    /// The first seed of a cluster goes by it: mostly it is a name of those too that are known by an IP address.
    of_first: Option<String>,
}

impl CertificateNames {
    /// The name in the certificate of a server that is announced with one host and reached at another, if there is a name.
    /// A Sentinel that has a name has a certificate of its own.
    pub(crate) fn of<'a>(&'a self, announced: &'a str, reached: &'a str, kind: Wanted) -> Option<&'a str> {
        let name = |host: &'a str| Some(host).filter(|host| !is_ip(host));
        let given = self.given.as_deref().filter(|_| is_ip(announced) || kind != Wanted::Sentinel);
        given.or(name(announced)).or(name(reached)).or(self.of_first.as_deref())
    }
}

fn is_ip(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

/// The service that we want of them, and our name there.
#[derive(Clone, PartialEq, Eq)]
struct Sentinels {
    service: String,
    user: Option<String>,
    password: Option<String>,
    tls: bool,
}

impl Seeds {
    /// Those of a url, if its scheme is that of a cluster or of Sentinel.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, Error>> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let (one, kind) = scheme.split_once(['-', '+'])?;
        let one = match one {
            "redis" | "valkey" => "redis",
            "rediss" | "valkeys" => "rediss",
            _ => return None,
        };
        match kind {
            "cluster" => Some(Self::of_cluster(one, rest)),
            "sentinel" => Some(Self::of_sentinels(one, rest)),
            _ => None,
        }
    }

    fn of_cluster(scheme: &str, rest: &str) -> Result<Self, Error> {
        let Parts { hosts, path, query } = Parts::of(rest);
        let (target, more) = read_hosts(scheme, &hosts, rest, None)?;
        if !matches!(path, "" | "0") {
            return Err(Error::config("a cluster has no databases: leave what follows the url's last / out"));
        }
        let mut tls_name = None;
        for (parameter, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*parameter {
                "tls_name" => tls_name = Some(read_tls_name(scheme, &value)?),
                _ => return Err(unknown(&parameter, "tls_name is known")),
            }
        }
        Ok(Self { target, more, tls_name, sentinels: None })
    }

    fn of_sentinels(scheme: &str, rest: &str) -> Result<Self, Error> {
        let Parts { hosts, path, query } = Parts::of(rest);
        let (mut target, more) = read_hosts(scheme, &hosts, rest, Some(SENTINEL_PORT))?;
        if path.contains('#') || query.contains('#') {
            return Err(Error::config(
                "the url has a fragment (#…), which means nothing here: a # in a password is %23",
            ));
        }
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        let service = decode("service", service)?;
        if service.is_empty() {
            return Err(Error::config(
                "the url names no service: write it like redis-sentinel://one:26379,two:26379/SERVICE, with the name that \
                 `sentinel monitor` has given to the primary",
            ));
        }
        if !database.is_empty() {
            target.database = Some(read_database(database)?);
        }
        let mut sentinels = Sentinels { service, user: None, password: None, tls: scheme == "rediss" };
        let mut tls_name = None;
        for (parameter, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*parameter {
                "tls_name" => tls_name = Some(value.into_owned()),
                "sentinel_user" => sentinels.user = Some(value.into_owned()).filter(|user| !user.is_empty()),
                "sentinel_password" => sentinels.password = Some(value.into_owned()).filter(|word| !word.is_empty()),
                "sentinel_tls" => sentinels.tls = read_yes_or_no(&value)?,
                // It may be a part of a password with a bare &.
                _ if query.contains("sentinel_password") => {
                    return Err(Error::config(
                        "what follows the url's ? is not understood: known are sentinel_user, sentinel_password, in which & is \
                         %26 and + is %2B, sentinel_tls and tls_name",
                    ));
                }
                _ => {
                    return Err(unknown(
                        &parameter,
                        "known are sentinel_user, sentinel_password, sentinel_tls and tls_name",
                    ));
                }
            }
        }
        let has_tls = scheme == "rediss" || sentinels.tls;
        let tls_name =
            tls_name.map(|name| read_tls_name(if has_tls { "rediss" } else { "redis" }, &name)).transpose()?;
        if sentinels.user.is_some() && sentinels.password.is_none() {
            return Err(Error::config(
                "the url has a sentinel_user and no sentinel_password: give one, or leave the user out",
            ));
        }
        Ok(Self { target, more, tls_name, sentinels: Some(sentinels) })
    }

    /// The service that Sentinels watch, if they do.
    pub(crate) fn service(&self) -> Option<&str> {
        self.sentinels.as_ref().map(|sentinels| &*sentinels.service)
    }

    /// Each of the servers that are named, and who we are there.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let target = |address: &Address| match (&self.sentinels, address) {
            (Some(Sentinels { user, password, tls, .. }), Address::Tcp { host, port, .. }) => Target {
                user: user.clone(),
                password: password.clone(),
                tls: self.target.tls.clone(),
                ..Target::at(Address::Tcp { host: host.clone(), port: *port, tls: *tls })
            },
            _ => Target { address: address.clone(), ..self.target.clone() },
        };
        self.addresses().map(target).collect()
    }

    fn addresses(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.target.address).chain(&self.more)
    }

    /// Whether any of the servers speaks TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.targets()
            .iter()
            .chain([&self.target])
            .any(|target| matches!(target.address, Address::Tcp { tls: true, .. }))
    }

    /// The names in the certificates of servers, where these are not their hosts.
    pub(crate) fn names_in_certificates(&self) -> CertificateNames {
        let of_first = match &self.target.address {
            Address::Tcp { host, .. } if self.sentinels.is_none() && !is_ip(host) => Some(host.clone()),
            Address::Tcp { .. } | Address::Unix(_) => None,
        };
        CertificateNames { given: self.target.tls.server_name.clone().or_else(|| self.tls_name.clone()), of_first }
    }
}

/// The parts of a url behind its scheme.
struct Parts<'a> {
    hosts: Vec<&'a str>,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    /// A password may have anything but an `@`, and so may the parameters of Sentinel: the hosts begin after the last one
    /// that stands before them.
    fn of(rest: &'a str) -> Self {
        let (_user, rest) = user_and_hosts(rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        Self { hosts: hosts.split(',').collect(), path, query }
    }
}

/// User and password with the `@`, and the rest.
fn user_and_hosts(rest: &str) -> (&str, &str) {
    rest.rfind('@').and_then(|at| rest.split_at_checked(at + 1)).unwrap_or(("", rest))
}

/// Whether another host than the first has a scheme before it. The parameters may have anything.
fn names_schemes(rest: &str) -> bool {
    let (before, _) = rest.split_once('?').unwrap_or((rest, ""));
    before.split(',').skip(1).any(|host| host.contains("://"))
}

/// Refuses what looks like hosts before the user, or between several users. The text shows nothing of it.
fn check_user(user: &str) -> Result<(), Error> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    // As in `one:6379,:password@two`.
    let (port, rest) = password.split_once(',').unwrap_or((password, ""));
    let is_port = !rest.is_empty() && port.parse::<u16>().is_ok();
    if user.contains('@') || name.contains(',') || is_port {
        return Err(Error::config(
            "the url's user and password stand once, before the first host: \
             redis-cluster://user:password@one:6379,two:6379; in them, a comma is %2C and @ is %40",
        ));
    }
    Ok(())
}

/// Each of them as the only one of a url; the first, and where the others are.
fn read_hosts(
    scheme: &str,
    hosts: &[&str],
    rest: &str,
    default_port: Option<u16>,
) -> Result<(Target, Vec<Address>), Error> {
    if hosts.len() > MOST {
        let many = hosts.len();
        return Err(Error::config(format!(
            "the url names {many} hosts, {MOST} are the most: one that answers is enough"
        )));
    }
    let (user, _) = user_and_hosts(rest);
    if names_schemes(rest) {
        return Err(Error::config(
            "the url has a scheme before more than one host: write it once, like redis-cluster://one:6379,two:6379",
        ));
    }
    check_user(user.strip_suffix('@').unwrap_or(user))?;
    let mut targets = Vec::with_capacity(hosts.len());
    for host in hosts {
        if host.is_empty() {
            return Err(Error::config(
                "the url names a host that is empty: write it like redis-cluster://one:6379,two:6379",
            ));
        }
        if host.contains(char::is_whitespace) {
            return Err(Error::config(
                "the url has a space: write its hosts with commas only, like redis-cluster://one:6379,two:6379",
            ));
        }
        let has_port = host.rfind(':').is_some_and(|colon| !host.ends_with(']') && colon > 0);
        let port = default_port.filter(|_| !has_port).map(|port| format!(":{port}")).unwrap_or_default();
        targets.push(Target::parse(&format!("{scheme}://{user}{host}{port}"))?);
    }
    let mut targets = targets.into_iter();
    let Some(target) = targets.next() else { return Err(Error::config("the url names no host")) };
    Ok((target, targets.map(|target| target.address).collect()))
}

fn read_tls_name(scheme: &str, value: &str) -> Result<String, Error> {
    if scheme == "redis" {
        return Err(Error::config("the url has a tls_name, and no TLS: write rediss-cluster:// or rediss-sentinel://"));
    }
    if value.is_empty() {
        return Err(Error::config("the url's tls_name is empty: leave it out"));
    }
    Tls::new().server_name(value).check().map_err(|why| Error::config(why.replace("server_name", "tls_name")))?;
    Ok(value.to_owned())
}

fn read_yes_or_no(value: &str) -> Result<bool, Error> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        // It may be a part of a password with a bare &.
        _ => Err(Error::config("the url's sentinel_tls is neither yes nor no")),
    }
}

fn unknown(parameter: &str, known: &str) -> Error {
    Error::config(format!("the url's parameter {parameter:?} is unknown: {known}"))
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
        Seeds::parse(url).expect("the scheme is one of several servers")
    }

    #[test]
    fn a_url_names_some_servers_and_who_we_are_on_all_of_them() {
        let seeds = parse("redis-cluster://worker:p%40ss@one,[::1]:7000,10.0.0.3:7001").unwrap();
        assert_eq!(seeds.to_string(), "one:6379,[::1]:7000,10.0.0.3:7001");
        assert_eq!((seeds.target.user.as_deref(), seeds.target.password.as_deref()), (Some("worker"), Some("p@ss")));
        let seeds = parse("redis-cluster://worker:p,ss,1@one,two").unwrap();
        assert_eq!(
            (seeds.to_string().as_str(), seeds.target.password.as_deref()),
            ("one:6379,two:6379", Some("p,ss,1"))
        );
        assert!(parse("redis-sentinel://one/locks?sentinel_password=a,b://c").is_ok());
        for same in ["redis+cluster://one:6379", "valkey-cluster://one/", "REDIS-CLUSTER://one/0"] {
            assert_eq!(parse(same).unwrap().to_string(), "one:6379", "{same}");
        }
        assert!(Seeds::parse("redis://one").is_none() && Seeds::parse("one,two").is_none());
    }

    #[test]
    fn a_certificate_has_the_name_that_is_given_or_is_announced_or_leads_there_or_is_that_of_the_first_seed() {
        let (cluster, sentinel) = (Wanted::InCluster, Wanted::Sentinel);
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
            ("rediss-sentinel://one/locks", Wanted::Named, "10.0.0.1", "10.0.0.1", None),
            ("rediss-sentinel://one/locks?tls_name=n", Wanted::Named, "10.0.0.1", "10.0.0.1", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", Wanted::Named, "two", "two", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", sentinel, "10.0.0.1", "10.0.0.1", Some("n")),
            ("rediss-sentinel://one/locks?tls_name=n", sentinel, "two", "two", Some("two")),
        ] {
            let names = parse(url).unwrap().names_in_certificates();
            assert_eq!(names.of(announced, reached, kind), name, "{url} {announced} {reached}");
        }
        for wrong in ["a b", "a/b"] {
            let error = parse(&format!("rediss-cluster://one?tls_name={wrong}")).unwrap_err().to_string();
            assert!(error.contains("tls_name") && error.contains("must be a name"), "{error}");
        }
    }

    #[test]
    fn a_url_names_sentinels_their_service_and_who_we_are_on_both_kinds_of_servers() {
        let seeds =
            parse("redis-sentinel://worker:p%40ss@one,[::1]:7000/locks/3?sentinel_user=w&sentinel_password=a%40b")
                .unwrap();
        assert_eq!((seeds.to_string().as_str(), seeds.service()), ("one:26379,[::1]:7000", Some("locks")));
        let data = &seeds.target;
        assert_eq!(
            (data.user.as_deref(), data.password.as_deref(), data.database),
            (Some("worker"), Some("p@ss"), Some(3))
        );
        for sentinel in seeds.targets() {
            assert_eq!((sentinel.user.as_deref(), sentinel.password.as_deref()), (Some("w"), Some("a@b")));
            assert_eq!(sentinel.database, None);
        }
        for (url, data, sentinels) in [
            ("redis+sentinel://[::1]/my%20locks", false, false),
            ("rediss-sentinel://one/locks", true, true),
            ("valkeys-sentinel://one/locks?sentinel_tls=no", true, false),
            ("valkey+sentinel://one/locks?sentinel_tls=yes", false, true),
        ] {
            let seeds = parse(url).unwrap();
            let is_tls = |target: &Target| matches!(target.address, Address::Tcp { tls: true, .. });
            let of_sentinels: Vec<bool> = seeds.targets().iter().map(is_tls).collect();
            assert_eq!((is_tls(&seeds.target), of_sentinels), (data, vec![sentinels]), "{url}");
        }
        assert_eq!(parse("redis+sentinel://[::1]/my%20locks").unwrap().to_string(), "[::1]:26379");
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
            ("redis-cluster://one,redis-cluster://two", "write it once"),
            ("redis-cluster://one:1,redis://two:2", "write it once"),
            ("redis-cluster://:sesame@one,redis-cluster://:sesame@two", "write it once"),
            ("redis-cluster://one, two", "commas only"),
            ("redis-cluster://one:1 ,two:2", "commas only"),
            ("redis-cluster://one,:sesame@two", "before the first host"),
            ("redis-cluster://one:7000,:sesame@two:7001", "before the first host"),
            ("redis-cluster://:sesame@one,:sesame@two", "before the first host"),
            ("redis-sentinel://one,redis-sentinel://two/locks", "write it once"),
            ("redis-sentinel://one, two/locks", "commas only"),
            ("redis-sentinel://one,:sesame@two/locks", "before the first host"),
            ("redis-sentinel://one", "names no service"),
            ("redis-sentinel://one/", "names no service"),
            ("redis-sentinel:///locks", "host that is empty"),
            ("redis-sentinel://one/locks/x", "database \"x\""),
            ("redis-sentinel://one/locks?timeout=3", "parameter \"timeout\""),
            ("redis-sentinel://one/locks?sentinel_tls=1", "neither yes nor no"),
            ("redis-sentinel://one/locks?sentinel_user=a", "no sentinel_password"),
            ("redis-sentinel://one/locks?tls_name=a", "no TLS"),
            ("redis-sentinel://one/locks#x", "fragment"),
        ] {
            let error = parse(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains(says) && !error.contains("sesame"), "{url}: {error}");
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
            "redis-sentinel://worker:12/sesame@one/locks",
            "redis-sentinel://one/locks?sentinel_password=12&sesame",
            "redis-sentinel://one/locks?sentinel_password=12@sesame",
            "redis-sentinel://one/locks?sentinel_password=12#sesame",
            "redis-sentinel://one/locks?sentinel_password=sesame&sentinel_tls=maybe",
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
        }
    }
}
