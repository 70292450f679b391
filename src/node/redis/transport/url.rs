//! Reads a Redis URL into what a connection needs.

use std::{fmt, net::Ipv6Addr, path::PathBuf};

use percent_encoding::percent_decode_str;
use url::{Host, ParseError, Url};

use super::login::Provider;
use crate::{error::Error, tls::Tls};

const DEFAULT_PORT: u16 = 6379;

const SEVERAL_HOSTS: &str = "the url names several hosts, which only redis-cluster://one,two and \
                             redis-sentinel://one,two/SERVICE do: name one; a quorum has a url for each";

/// Where a server is and who we are there.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// It is asked for user and password instead.
    pub(crate) provider: Option<Provider>,
    pub(crate) database: Option<u8>,
    /// If the address says that there is TLS.
    pub(crate) tls: Tls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl Target {
    /// The default user's first database there.
    pub(crate) fn at(address: Address) -> Self {
        Self { address, user: None, password: None, provider: None, database: None, tls: Tls::default() }
    }

    /// On this host, without TLS. A colon is for an IPv6 address only: the port is another setting.
    pub(crate) fn at_host(host: &str, port: u16) -> Result<Self, Error> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_address = bare.parse::<Ipv6Addr>().is_ok();
        let is_name =
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || "/@:?#[],".contains(c));
        if !is_address && !is_name {
            // It may be a url with a password.
            let shown = if host.contains(['@', '/']) { "what was given" } else { &format!("{host:?}") };
            return Err(Error::config(format!(
                "host is {shown}: it must be a name or an address, without a port (a url is parsed into a `Server`)"
            )));
        }
        if port == 0 {
            return Err(Error::config("port is 0, on which nobody listens"));
        }
        Ok(Self::at(Address::Tcp { host: bare.to_ascii_lowercase(), port, tls: false }))
    }

    /// `redis://[user[:password]@]host[:port][/database]`, the same with `rediss`, and
    /// `unix:///path[?db=…&user=…&password=…]`. The text of an error never contains the password.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let url = Url::parse(text).map_err(|error| {
            if has_several_hosts(text) {
                return Error::config(SEVERAL_HOSTS);
            }
            let how = "write it like redis://user:password@host:6379/0; in a password, / is %2F, ? is %3F, # is %23 and @ is %40";
            Error::config(match error {
                ParseError::RelativeUrlWithoutBase => format!("the url is not a URL (it is empty, or has no redis:// before it): {how}"),
                error => format!("the url is not a URL ({error}): {how}"),
            })
        })?;
        match url.scheme() {
            "redis" | "valkey" => Self::tcp(&url, false),
            "rediss" | "valkeys" => Self::tcp(&url, true),
            "unix" | "redis+unix" => Self::unix(&url),
            scheme => Err(Error::config(format!(
                "the url's scheme {scheme:?} is unknown: use redis://, rediss://, redis-cluster://, redis-sentinel://, unix:// or memory://"
            ))),
        }
    }

    fn tcp(url: &Url, tls: bool) -> Result<Self, Error> {
        let host = match url.host() {
            Some(Host::Domain(name)) if name.contains(',') => {
                return Err(Error::config(SEVERAL_HOSTS));
            }
            // Names of hosts know no case.
            Some(Host::Domain(name)) if !name.is_empty() => decode("host", name)?.to_ascii_lowercase(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            _ => return Err(Error::config("the url names no host: write it like redis://host:6379")),
        };
        // A password with a bare / or ? or # has ended up there, and must not be repeated.
        if [Some(url.path()), url.query(), url.fragment()].into_iter().flatten().any(|part| part.contains('@')) {
            return Err(Error::config(
                "the url has an @ after its host: in a password, / is %2F, ? is %3F, # is %23 and @ is %40",
            ));
        }
        if let Some((parameter, _)) = url.query_pairs().next() {
            return Err(unknown_parameter(&parameter, "none is known for TCP; the database is the path, /0"));
        }
        refuse_a_fragment(url)?;
        if url.port() == Some(0) {
            return Err(Error::config("the url's port is 0, on which nobody listens"));
        }
        let database = match url.path().trim_start_matches('/') {
            "" => None,
            number => Some(read_database(number)?),
        };
        Ok(Self {
            user: non_empty(decode("user", url.username())?),
            password: url.password().map(|password| decode("password", password)).transpose()?,
            database,
            ..Self::at(Address::Tcp { host, port: url.port().unwrap_or(DEFAULT_PORT), tls })
        })
    }

    fn unix(url: &Url) -> Result<Self, Error> {
        if cfg!(not(unix)) {
            return Err(Error::config(NO_UNIX_SOCKETS));
        }
        if url.host().is_some() {
            return Err(Error::config("a unix url has three slashes: unix:///run/redis/redis.sock"));
        }
        let path = decode("path", url.path())?;
        if path.trim_start_matches('/').is_empty() {
            return Err(Error::config("the url names no socket: write it like unix:///run/redis/redis.sock"));
        }
        refuse_a_fragment(url)?;
        let mut target = Self::at(Address::Unix(path.into()));
        target.read(url).map_err(|error| {
            // It may be a part of a password with a bare &.
            let has_password = url.query_pairs().any(|(parameter, _)| parameter == "password");
            let vague = "what follows the url's ? is not understood: known are db (0 to 255), user and password, in which \
                         & is %26 and + is %2B";
            if has_password { Error::config(vague) } else { error }
        })?;
        Ok(target)
    }

    fn read(&mut self, url: &Url) -> Result<(), Error> {
        for (parameter, value) in url.query_pairs() {
            match &*parameter {
                "db" => self.database = Some(read_database(&value)?),
                "user" => self.user = non_empty(value.into_owned()),
                "password" => self.password = non_empty(value.into_owned()),
                _ => return Err(unknown_parameter(&parameter, "known are db, user and password")),
            }
        }
        Ok(())
    }
}

/// Whether there is a comma between what should be one host and its port.
fn has_several_hosts(text: &str) -> bool {
    let (_scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','))
}

pub(super) const NO_UNIX_SOCKETS: &str = "a unix:// url names a Unix socket, which this system has not: use redis://";

/// Where the server is, without who we are: for errors and `Debug`.
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

pub(super) fn decode(part: &str, text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Error::config(format!("the url's {part} is not UTF-8 after percent-decoding")))
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

pub(super) fn read_database(number: &str) -> Result<u8, Error> {
    number.parse().map_err(|_| Error::config(format!("the url's database {number:?} is not a number from 0 to 255")))
}

fn refuse_a_fragment(url: &Url) -> Result<(), Error> {
    match url.fragment() {
        None => Ok(()),
        Some(_) => {
            Err(Error::config("the url has a fragment (#…), which means nothing here: a # in a password is %23"))
        }
    }
}

fn unknown_parameter(parameter: &str, known: &str) -> Error {
    Error::config(format!("the url's parameter {parameter:?} is unknown: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, tls: bool) -> Address {
        Address::Tcp { host: host.into(), port, tls }
    }

    #[test]
    fn the_usual_urls() {
        let plain = Target::parse("redis://localhost").unwrap();
        assert_eq!((&plain.address, plain.database, plain.user), (&tcp("localhost", 6379, false), None, None));

        let full = Target::parse("rediss://worker:p%40ss@redis.example:7000/3").unwrap();
        assert_eq!(full.address, tcp("redis.example", 7000, true));
        assert_eq!(
            (full.user.as_deref(), full.password.as_deref(), full.database),
            (Some("worker"), Some("p@ss"), Some(3))
        );

        assert_eq!(Target::parse("redis://LOCALhost").unwrap().address, plain.address);

        let default_user = Target::parse("redis://:secret@[::1]:7000").unwrap();
        assert_eq!((default_user.user, default_user.address.clone()), (None, tcp("::1", 7000, false)));

        let socket = Target::parse("unix:///run/redis.sock?db=2&user=worker&password=p%26").unwrap();
        assert_eq!(socket.address, Address::Unix("/run/redis.sock".into()));
        assert_eq!((socket.database, socket.password.as_deref()), (Some(2), Some("p&")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, says) in [
            ("localhost:6379", "scheme \"localhost\""),
            ("", "it is empty"),
            ("127.0.0.1:6379", "no redis:// before it"),
            ("http://localhost", "scheme \"http\""),
            ("redis://", "host"),
            ("redis://localhost:99999", "not a URL"),
            ("redis://localhost:0", "port is 0"),
            ("redis://one,two", "several hosts"),
            ("redis://one:1,two:2", "several hosts"),
            ("redis://one,redis://two", "several hosts"),
            ("redis://localhost/first", "database \"first\""),
            ("redis://localhost/256", "database \"256\""),
            ("redis://localhost?timeout=3", "parameter \"timeout\""),
            ("redis://:a#b@localhost", "host"),
            ("unix://run/redis.sock", "three slashes"),
            ("unix:///", "no socket"),
            ("unix:///run/redis.sock?dbb=1", "parameter \"dbb\""),
            ("unix:///run/redis.sock?password=a&b", "& is %26"),
            ("unix:///run/redis.sock?password=a#b", "# in a password is %23"),
        ] {
            let error = Target::parse(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }

    #[test]
    fn nothing_shows_the_password() {
        let target = Target::parse("redis://worker:sesame@localhost/1").unwrap();
        assert!(!format!("{target:?} {target}").contains("sesame"));
        for wrong in [
            "redis://worker:123/sesame@localhost",
            "redis://worker:12?sesame@localhost",
            "redis://worker:12?a=b/sesame@localhost",
            "redis://worker:12?sesame=b&c@localhost",
            "redis://worker:12/sesame?c@localhost",
            "unix:///run/redis.sock?password=12&sesame",
            "unix:///run/redis.sock?password=12&db=sesame",
            "redis://worker:sesame@localhost/x",
            "redis://worker:sesame@",
            "foo://worker:sesame@localhost",
        ] {
            let error = Target::parse(wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
        }
    }
}
