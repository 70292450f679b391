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

/// One server that keeps locks: its address, and the credentials for it. [`Client::connect`](crate::Client::connect)
/// lists the possible urls.
///
/// A [`Builder`](crate::Builder) takes urls too. This type is for a program that checks its settings early: parsing
/// finds what is wrong with a url, and does not connect. It also has settings that a url has no room for:
///
/// ```
/// # use leasehold::{Client, Server};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let server: Server = "redis://worker@127.0.0.1:6379/1".parse()?;
/// let server = server.password("p@ss/word"); // as it is, and never shown
/// let same = Server::at("127.0.0.1", 6379).user("worker").password("p@ss/word").database(1);
/// assert_eq!(server.to_string(), "127.0.0.1:6379");
/// let client = Client::builder().server(same).build_lazy()?;
/// # Ok(()) }
/// ```
///
/// A setting that the url has too is an [`Error::Config`] of the builder, and so is one that is not possible.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "it is given to a `Builder`"]
pub struct Server {
    place: Result<NodeAddress, Error>,
    user: Option<String>,
    /// The name of its setting, and the secret.
    secret: Option<(&'static str, Secret)>,
    database: Option<u8>,
    tls: Option<Tls>,
    /// Whether a url gave the address, and with it whether TLS is used.
    by_url: bool,
}

/// How the client authenticates.
#[derive(Clone, PartialEq, Eq)]
enum Secret {
    Password(String),
    File(PathBuf),
    Provider(Provider),
}

impl Server {
    /// The server on this host (a name or an address) and port; without TLS, for the default user without a password.
    pub fn at(host: impl AsRef<str>, port: u16) -> Self {
        Self::new(Seeds::at_host(host.as_ref(), port).map(NodeAddress::of), false)
    }

    fn new(place: Result<NodeAddress, Error>, by_url: bool) -> Self {
        Self { place, user: None, secret: None, database: None, tls: None, by_url }
    }

    /// The user, who needs a [password](Self::password) or a [password file](Self::password_file). Default: the
    /// server's default user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password, verbatim.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.secret = Some(("password", Secret::Password(password.into())));
        self
    }

    /// A file with the password, which is read for new connections. So a changed password needs no restart: existing
    /// connections continue, and new ones use the new password. The file contains the password and nothing else; one
    /// line end after it is ignored.
    ///
    /// A file that cannot be read, or is empty, is an [`Error::Config`] at the first connection. Later the last
    /// password is tried again, and the event `credentials` reports it.
    pub fn password_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.secret = Some(("password_file", Secret::File(file.into())));
        self
    }

    /// Asks `provider` for the user and password of new connections, and again if the server rejects them: for tokens
    /// of a cloud, or a vault. If they are [valid for](Credentials::valid_for) a limited time, new connections use them
    /// for two thirds of it. Then the provider is asked again, and existing connections authenticate again, so a job
    /// may outlast any number of tokens.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Client, Credentials, Server};
    /// # async fn token() -> Result<String, std::io::Error> { Ok("token".into()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let server = Server::at("127.0.0.1", 6379).credentials(|| async {
    ///     let token = token().await?;
    ///     Ok::<_, std::io::Error>(Credentials::new("worker", token).valid_for(Duration::from_secs(900)))
    /// });
    /// let client = Client::builder().server(server).build_lazy()?;
    /// # Ok(()) }
    /// ```
    ///
    /// The provider runs on a thread of its own with a Tokio runtime, so it may block. Connections that are made within
    /// a second share an answer. A connection without an answer within a quarter of the
    /// [`command_timeout`](crate::Builder::command_timeout) uses the last one. A call of the provider is given up after
    /// the [`connect_timeout`](crate::Builder::connect_timeout), and the next one runs on another thread, of which
    /// there are at most four.
    ///
    /// - If the provider fails, hangs or panics, or returns an empty password, the event `credentials` reports it once.
    ///   A first connection fails with [`Error::Unavailable`] after the connect time-out. Later ones use the last
    ///   answer.
    /// - If the server refuses what the provider returns, a first connection fails with [`Error::Refused`]. Later the
    ///   provider is asked again and again, and calls fail with [`Error::Unavailable`]; an acquire waits.
    ///
    /// The text of the provider's error is shown in errors and logs, so it must not contain a secret.
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

    /// Connects over TLS, with these settings. It needs the crate feature `tls-rustls` or `tls-native`. A url must then
    /// be `rediss://`, which turns TLS on.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The address with all settings, checked.
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

/// The address, without the credentials.
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
