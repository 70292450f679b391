//! A server that keeps locks, as a program names it.

use std::{fmt, future::Future, path::PathBuf, str::FromStr};

use crate::{
    credentials::Credentials,
    error::Error,
    node::{
        NodeAddress,
        redis::{Address, Provider, Seeds},
    },
    tls::Tls,
};

/// One server that keeps locks: where it is, and who we are there. [`Leases::connect`](crate::Leases::connect) says
/// which urls there are.
///
/// A [`Builder`](crate::Builder) takes urls too. This type is for a program that checks its settings early: parsing
/// finds what is wrong with a url, and connects to nothing. And it has what a url has no room for:
///
/// ```
/// # use leasehold::{Leases, Server};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let server: Server = "redis://worker@127.0.0.1:6379/1".parse()?;
/// let server = server.password("p@ss/word"); // as it is, and never shown
/// let same = Server::at("127.0.0.1", 6379).user("worker").password("p@ss/word").database(1);
/// assert_eq!(server.to_string(), "127.0.0.1:6379");
/// let leases = Leases::builder().server(same).build_lazy()?;
/// # Ok(()) }
/// ```
///
/// A setting that the url has too is an [`Error::Config`] of the builder, and so is one that cannot be.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "it is given to a `Builder`"]
pub struct Server {
    place: Result<NodeAddress, Error>,
    user: Option<String>,
    /// With the setting that says so.
    secret: Option<(&'static str, Secret)>,
    database: Option<u8>,
    tls: Option<Tls>,
    /// Whether a url has said where it is, and so whether there is TLS.
    by_url: bool,
}

/// How we show who we are.
#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Password(String),
    File(PathBuf),
    Provider(Provider),
}

impl Server {
    /// The server on this host, a name or an address, and this port; without TLS, for the default user without a
    /// password.
    pub fn at(host: impl AsRef<str>, port: u16) -> Self {
        Self::new(Seeds::at_host(host.as_ref(), port).map(NodeAddress::of), false)
    }

    fn new(place: Result<NodeAddress, Error>, by_url: bool) -> Self {
        Self { place, user: None, secret: None, database: None, tls: None, by_url }
    }

    /// The user, with a [password](Self::password) or a [file](Self::password_file) of it. Default the server's own.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password, as it is.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.secret = Some(("password", Secret::Password(password.into())));
        self
    }

    /// A file with the password, which is read for new connections. So a password that changes needs no restart:
    /// connections that there are go on, and the next ones use the new one. The file has the password and nothing else;
    /// one line end after it does not count.
    ///
    /// A file that cannot be read, or is empty, is an [`Error::Config`] at the first connection. Later the last password
    /// is tried again, and the event `credentials` tells it.
    pub fn password_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.secret = Some(("password_file", Secret::File(file.into())));
        self
    }

    /// Asks `provider` for user and password for new connections, and again if the server does not take them: for tokens
    /// of a cloud, or a vault. If they are [valid for](Credentials::valid_for) a while, new connections use them for two
    /// thirds of it. Then it is asked again, and connections that there are authenticate anew, so a job may outlast any
    /// number of tokens.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Credentials, Leases, Server};
    /// # async fn token() -> Result<String, std::io::Error> { Ok("token".into()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let server = Server::at("127.0.0.1", 6379).credentials(|| async {
    ///     let token = token().await?;
    ///     Ok::<_, std::io::Error>(Credentials::new("worker", token).valid_for(Duration::from_secs(900)))
    /// });
    /// let leases = Leases::builder().server(server).build_lazy()?;
    /// # Ok(()) }
    /// ```
    ///
    /// It runs on a thread of its own with a Tokio runtime, so it may block. Connections that are made within a second
    /// share an answer. One that has none within a quarter of the
    /// [`command_timeout`](crate::Builder::command_timeout) takes the last one. After the
    /// [`connect_timeout`](crate::Builder::connect_timeout) a question is given up, and the next one asked on another
    /// thread, of which there are at most four.
    ///
    /// - A provider that fails, hangs or panics, or gives an empty password: the event `credentials` tells it once. A
    ///   first connection fails with [`Error::Unavailable`] after the connect time-out. Later ones use the last answer.
    /// - What it gives is refused by the server: a first connection fails with [`Error::Refused`]. Later it is asked
    ///   again and again, and calls fail with [`Error::Unavailable`]; an acquire waits.
    ///
    /// Its error's text is shown in errors and logs: it must have no secret in it.
    pub fn credentials<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: fmt::Display,
    {
        let ask = move || {
            let asking = provider();
            async move { asking.await.map_err(|error| format!("their provider has failed: {error}")) }
        };
        self.secret = Some(("credentials", Secret::Provider(Provider::new(ask))));
        self
    }

    /// The number of the database. Default 0.
    pub fn database(mut self, number: u8) -> Self {
        self.database = Some(number);
        self
    }

    /// Connects over TLS, and how. It needs the crate feature `tls-rustls` or `tls-native`. With a url it is for
    /// `rediss://`, which says that there is TLS.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// All of it, checked.
    pub(crate) fn place(self) -> Result<NodeAddress, Error> {
        let Self { place, user, secret, database, tls, by_url } = self;
        let mut place = place?;
        let has_slots = place.is_cluster();
        let NodeAddress::Redis(seeds) = &mut place else {
            let is_bare = user.is_none() && secret.is_none() && database.is_none() && tls.is_none();
            Error::config_if(!is_bare, "memory:// is in this process, and has no user, password, database or tls")?;
            return Ok(place);
        };
        let (has_tls, target) = (seeds.has_tls(), &mut seeds.target);
        let has_another = has_slots && database.is_some_and(|number| number != 0);
        Error::config_if(has_another, "database is set, and a cluster has none but 0: leave it out")?;
        let once = |setting, what, is_twice| {
            let text = format!("{setting} is set, and the url has a {what} too: leave one of them out");
            Error::config_if(is_twice, &text)
        };
        once("user", "user", user.is_some() && target.user.is_some())?;
        let setting = secret.as_ref().map_or("", |(setting, _)| *setting);
        once(setting, "password", secret.is_some() && target.password.is_some())?;
        once("database", "database", database.is_some() && target.database.is_some())?;
        Error::config_if(user.as_deref() == Some(""), "user is empty: leave it out for the server's default user")?;
        if let Some(mut wanted) = tls {
            wanted.check().map_err(Error::config)?;
            match &mut target.address {
                Address::Tcp { tls, .. } if !by_url => *tls = true,
                Address::Tcp { .. } if has_tls => {}
                Address::Tcp { .. } => return Err(Error::config("tls is set, and the url has none: write rediss://")),
                Address::Unix(_) => return Err(Error::config("tls is set, and a Unix socket has none: leave tls out")),
            }
            wanted.server_name = wanted.server_name.or(target.tls.server_name.take());
            target.tls = wanted;
        }
        let is_half = user.is_some() && secret.is_none() && target.password.is_none();
        Error::config_if(is_half, "user is set, and no password: give one, or leave user out")?;
        let is_empty = matches!(&secret, Some((_, Secret::Password(password))) if password.is_empty());
        Error::config_if(is_empty, "password is empty: leave it out for a user that has none")?;
        target.user = user.or(target.user.take());
        target.database = database.or(target.database);
        let names_user = target.user.is_some() && matches!(secret, Some((_, Secret::Provider(_))));
        Error::config_if(names_user, "user is set, and credentials gives one too: leave user out")?;
        match secret {
            None => {}
            Some((_, Secret::Password(password))) => target.password = Some(password),
            Some((_, Secret::File(file))) => target.provider = Some(Provider::of_file(target.user.take(), file)),
            Some((_, Secret::Provider(provider))) => target.provider = Some(provider),
        }
        Ok(place)
    }
}

/// # Errors
///
/// [`Error::Config`], which says what is wrong with the url, and never shows its password.
impl FromStr for Server {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        NodeAddress::parse(url).map(|place| Self::new(Ok(place), true))
    }
}

macro_rules! from_url {
    ($($text:ty),*) => {$(
        impl TryFrom<$text> for Server {
            type Error = Error;

            fn try_from(url: $text) -> Result<Self, Error> {
                url.parse()
            }
        }
    )*};
}

from_url!(&str, &String, String);

impl From<&Server> for Server {
    fn from(server: &Server) -> Self {
        server.clone()
    }
}

/// Where it is, without who we are there.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Ok(place) => f.write_str(&place.address()),
            Err(_) => f.write_str("nowhere"),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.to_string()).finish()
    }
}
