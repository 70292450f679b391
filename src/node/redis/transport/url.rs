//! Reads a url into a node's address and our user there. All urls but `memory://` have one grammar,
//! `scheme://[user[:password]@][host[:port][,host[:port]…]][/path][?parameter=value[&…]]`:
//!
//! | scheme | hosts | path | parameters |
//! |---|---|---|---|
//! | `redis`, `valkey` | one server | the database | none |
//! | `unix`, `redis+unix` | none | the socket | [`OF_SOCKET`] |
//! | `redis-cluster`, `valkey+cluster` | some servers of a cluster | none | [`OF_CLUSTER`] |
//! | `redis-sentinel`, `valkey+sentinel` | Sentinels | the service, the database | [`OF_SENTINELS`] |
//!
//! An `s` after `redis` or `valkey` is for TLS. Each of several hosts is read as if it were the only one. The text of
//! an error never contains a password.

use std::net::Ipv6Addr;

use percent_encoding::percent_decode_str;
use url::{Host, ParseError, Url, form_urlencoded};

use super::target::{Address, Seeds, Target};
use crate::error::Error;

const DEFAULT_PORT: u16 = 6379;

/// The port of a Sentinel, if the url names none.
const SENTINEL_PORT: u16 = 26_379;

/// The most hosts that a url may name.
const MOST: usize = 64;

/// The parameters that a url may have: of a socket, of a cluster, of Sentinels.
const OF_SOCKET: &[&str] = &["db", "user", "password"];
const OF_CLUSTER: &[&str] = &["tls_name"];
const OF_SENTINELS: &[&str] = &["sentinel_user", "sentinel_password", "sentinel_tls", "tls_name"];

const SEVERAL_HOSTS: &str = "the url names several hosts, which only redis-cluster://one,two and \
                             redis-sentinel://one,two/SERVICE do: name one; a quorum has a url for each";
const LATE_USER: &str = "the url's user and password stand once, before the first host: \
                         redis-cluster://user:password@one:6379,two:6379; in them, a comma is %2C and @ is %40";
const LATE_AT: &str = "the url has an @ after its host: in a password, / is %2F, ? is %3F, # is %23 and @ is %40";
const ENCODED: &str = "in a password, / is %2F, ? is %3F, # is %23 and @ is %40";
const SCHEMES: &str = "use redis://, rediss://, redis-cluster://, redis-sentinel://, unix:// or memory://";
const FRAGMENT: &str = "the url has a fragment (#…), which means nothing here: a # in a password is %23";
pub(super) const NO_UNIX_SOCKETS: &str = "a unix:// url names a Unix socket, which this system has not: use redis://";

impl Seeds {
    /// The servers that a url names, except for `memory://`.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let scheme = scheme.to_ascii_lowercase();
        let (of_one, kind) = scheme.split_once(['-', '+']).unwrap_or((scheme.as_str(), ""));
        match (over_tls(of_one), kind) {
            (Some(tls), "cluster" | "sentinel") => several(rest, tls, kind == "sentinel"),
            _ => one(text),
        }
    }

    /// The server on this host, without TLS. A colon is for an IPv6 address only: the port is another setting.
    pub(crate) fn at_host(host: &str, port: u16) -> Result<Self, Error> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "/@:?#[],".contains(c);
        let is_none = bare.parse::<Ipv6Addr>().is_err() && (host.is_empty() || host.contains(is_odd));
        // It may be a url with a password.
        let shown = if host.contains(['@', '/']) { "what was given" } else { &format!("{host:?}") };
        let how = "it must be a name or an address, without a port (a url is parsed into a `Server`)";
        Error::config_if(is_none, &format!("host is {shown}: {how}"))?;
        Error::config_if(port == 0, "port is 0, on which nobody listens")?;
        Ok(Self::alone(Target::at(Address::Tcp { host: bare.to_ascii_lowercase(), port, tls: false })))
    }
}

/// Whether a scheme is for TLS; `None` if it is not one of Redis.
fn over_tls(scheme: &str) -> Option<bool> {
    match scheme {
        "redis" | "valkey" => Some(false),
        "rediss" | "valkeys" => Some(true),
        _ => None,
    }
}

/// Reads the url of one server that has all locks.
fn one(text: &str) -> Result<Seeds, Error> {
    let url = split(text)?;
    let (scheme, path) = (url.scheme(), url.path().trim_start_matches('/'));
    let is_socket = matches!(scheme, "unix" | "redis+unix");
    let unknown = || Error::config(format!("the url's scheme {scheme:?} is unknown: {SCHEMES}"));
    let on_host = || on_host(&url, over_tls(scheme).ok_or_else(unknown)?, DEFAULT_PORT);
    let mut target = if is_socket { on_socket(&url)? } else { on_host()? };
    Error::config_if(url.fragment().is_some(), FRAGMENT)?;
    read_parameters(&mut target, url.query().unwrap_or_default(), if is_socket { OF_SOCKET } else { &[] })?;
    if !is_socket {
        target.database = database_in(path)?;
    }
    Ok(Seeds::alone(target))
}

/// Reads what follows the scheme in the url of several servers that are one node.
fn several(rest: &str, tls: bool, are_sentinels: bool) -> Result<Seeds, Error> {
    // A password may contain anything but an `@`: the hosts begin after the last one, wherever that is.
    let (user, behind) = rest.rsplit_once('@').unwrap_or(("", rest));
    let (before, query) = behind.split_once('?').unwrap_or((behind, ""));
    let (hosts, path) = before.split_once('/').unwrap_or((before, ""));
    check_hosts(rest, user, hosts)?;
    Error::config_if(behind.contains('#'), FRAGMENT)?;
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    let how = "redis-sentinel://one:26379,two:26379/SERVICE, the name of the primary in `sentinel monitor`";
    let lacks_service = are_sentinels && service.is_empty();
    Error::config_if(lacks_service, &format!("the url names no service: write it like {how}"))?;
    let has_database = !are_sentinels && !matches!(path, "" | "0");
    Error::config_if(has_database, "a cluster has no databases: leave what follows the url's last / out")?;
    let (port, known) = if are_sentinels { (SENTINEL_PORT, OF_SENTINELS) } else { (DEFAULT_PORT, OF_CLUSTER) };
    let read = |host: &str, tls| on_host(&split(&format!("redis://{user}@{host}"))?, tls, port);
    let (first, _) = hosts.split_once(',').unwrap_or((hosts, ""));
    let mut target = Target { database: database_in(database)?, ..read(first, tls)? };
    // The credentials for the hosts, if they are Sentinels.
    let mut there = Target::at(target.address.clone());
    read_parameters(&mut there, query, known)?;
    let is_half = there.user.is_some() && there.password.is_none();
    Error::config_if(is_half, "the url has a sentinel_user and no sentinel_password: give both, or none")?;
    let read = |host| read(host, there.address.has_tls()).map(|target| target.address);
    let hosts = hosts.split(',').map(read).collect::<Result<Vec<_>, Error>>()?;
    if let Some(name) = &there.tls.server_name {
        let has_tls = tls || there.address.has_tls();
        Error::config_if(!has_tls, "the url has a tls_name and no TLS: write rediss-cluster:// or rediss-sentinel://")?;
        Error::config_if(name.is_empty(), "the url's tls_name is empty: leave it out")?;
        there.tls.check().map_err(|why| Error::config(why.replace("server_name", "tls_name")))?;
        target.tls = there.tls.clone();
    }
    let sentinels = if are_sentinels { Some((decode("service", service)?, there)) } else { None };
    Ok(Seeds { target, hosts, sentinels })
}

/// Refuses what is not a list of hosts, or is between them. The error texts show nothing of it.
fn check_hosts(rest: &str, user: &str, hosts: &str) -> Result<(), Error> {
    const HOW: &str = "like redis-cluster://one:6379,two:6379";
    let many = hosts.split(',').count();
    let too_many = format!("the url names {many} hosts, {MOST} are the most: one that answers is enough");
    Error::config_if(many > MOST, &too_many)?;
    // The parameters may contain anything.
    let (before, _) = rest.split_once('?').unwrap_or((rest, ""));
    let has_schemes = before.split(',').skip(1).any(|host| host.contains("://"));
    Error::config_if(has_schemes, &format!("the url has a scheme before more than one host: write it once, {HOW}"))?;
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    // As in `one:6379,:password@two`.
    let is_port = password.split_once(',').is_some_and(|(port, more)| !more.is_empty() && port.parse::<u16>().is_ok());
    Error::config_if(user.contains('@') || name.contains(',') || is_port, LATE_USER)?;
    Error::config_if(user.contains(['/', '?', '#']), LATE_AT)?;
    let has_empty = hosts.split(',').any(str::is_empty);
    Error::config_if(has_empty, &format!("the url names a host that is empty: write it {HOW}"))?;
    let has_space = hosts.contains(char::is_whitespace);
    Error::config_if(has_space, &format!("the url has a space: write its hosts with commas only, {HOW}"))
}

/// The parts of the url of one host, or of a socket.
fn split(text: &str) -> Result<Url, Error> {
    Url::parse(text).map_err(|error| {
        let (_scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // There is a comma between what should be one host and its port.
        let is_list = authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','));
        let what = match error {
            _ if is_list => return Error::config(SEVERAL_HOSTS),
            ParseError::RelativeUrlWithoutBase => "it is empty, or has no redis:// before it".to_owned(),
            error => error.to_string(),
        };
        let how = "write it like redis://user:password@host:6379/0";
        Error::config(format!("the url is not a URL ({what}): {how}; {ENCODED}"))
    })
}

/// The server on the host of a url, and our user there.
fn on_host(url: &Url, tls: bool, default_port: u16) -> Result<Target, Error> {
    let name = url.host_str().unwrap_or_default();
    Error::config_if(name.contains(','), SEVERAL_HOSTS)?;
    Error::config_if(name.is_empty(), "the url names no host: write it like redis://host:6379")?;
    // A password with a bare / or ? or # ends up there, and must not be shown.
    let mut behind = [Some(url.path()), url.query(), url.fragment()].into_iter().flatten();
    Error::config_if(behind.any(|part| part.contains('@')), LATE_AT)?;
    Error::config_if(url.port() == Some(0), "the url's port is 0, on which nobody listens")?;
    let host = match url.host() {
        Some(Host::Ipv6(address)) => address.to_string(),
        // Host names are case-insensitive.
        _ => decode("host", name)?.to_ascii_lowercase(),
    };
    Ok(Target {
        user: non_empty(decode("user", url.username())?),
        password: url.password().map(|password| decode("password", password)).transpose()?,
        ..Target::at(Address::Tcp { host, port: url.port().unwrap_or(default_port), tls })
    })
}

/// The server on the socket of a url.
fn on_socket(url: &Url) -> Result<Target, Error> {
    Error::config_if(cfg!(not(unix)), NO_UNIX_SOCKETS)?;
    Error::config_if(url.host().is_some(), "a unix url has three slashes: unix:///run/redis/redis.sock")?;
    let path = decode("path", url.path())?;
    let is_empty = path.trim_start_matches('/').is_empty();
    Error::config_if(is_empty, "the url names no socket: write it like unix:///run/redis/redis.sock")?;
    Ok(Target::at(Address::Unix(path.into())))
}

/// Reads the parameters after the `?`, which are about this server: a socket, or the first of several hosts.
fn read_parameters(server: &mut Target, query: &str, known: &[&str]) -> Result<(), Error> {
    let all = if known.is_empty() { "none for TCP; the database is the path, /0".into() } else { known.join(", ") };
    // It may be a part of a password with a bare &.
    let is_secret = percent_decode_str(query).decode_utf8_lossy().contains("password");
    let vague = "what follows the url's ? is not understood (in a password, & is %26 and + is %2B)";
    let wrong = |what: String| Error::config(format!("{}: known are {all}", if is_secret { vague } else { &what }));
    for (parameter, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*parameter {
            other if !known.contains(&other) => return Err(wrong(format!("the url's parameter {other:?} is unknown"))),
            "db" => server.database = Some(read_database(&value).map_err(wrong)?),
            "user" | "sentinel_user" => server.user = non_empty(value.into_owned()),
            "password" | "sentinel_password" => server.password = non_empty(value.into_owned()),
            "tls_name" => server.tls.server_name = Some(value.into_owned()),
            _ => match (&mut server.address, &*value) {
                (Address::Tcp { tls, .. }, "yes" | "no") => *tls = value == "yes",
                _ => return Err(Error::config("the url's sentinel_tls is neither yes nor no")),
            },
        }
    }
    Ok(())
}

fn decode(part: &str, text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Error::config(format!("the url's {part} is not UTF-8 after percent-decoding")))
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn database_in(path: &str) -> Result<Option<u8>, Error> {
    if path.is_empty() { Ok(None) } else { read_database(path).map(Some).map_err(Error::config) }
}

fn read_database(number: &str) -> Result<u8, String> {
    number.parse().map_err(|_| format!("the url's database {number:?} is not a number from 0 to 255"))
}

#[cfg(test)]
mod tests;
