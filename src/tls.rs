//! The TLS settings of a connection, as a program gives them.

use std::{fmt, path::PathBuf, sync::Arc};

/// The TLS settings of connections to a server: the authorities to trust, and the client's certificate. See
/// [`Server::tls`](crate::Server::tls).
///
/// By default the machine's own authorities are trusted, and the client has no certificate. Files are in PEM, and are
/// read for each new connection, so a certificate may be replaced while the program runs.
///
/// ```
/// # use leasehold::{Server, Tls};
/// let tls = Tls::new()
///     .ca_file("/etc/redis/ca.pem")
///     .client_cert_files("/etc/redis/worker.pem", "/etc/redis/worker.key");
/// let server = Server::at("redis.example", 6380).tls(tls);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use = "it is given to a `Server`"]
pub struct Tls {
    pub(crate) authorities: Option<Pem>,
    /// A certificate and its key.
    pub(crate) client: Option<(Pem, Pem)>,
    pub(crate) server_name: Option<String>,
    pub(crate) accepts_any: bool,
}

/// A text in PEM, and where it is from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pem {
    /// The name of the setting.
    name: &'static str,
    at: At,
}

#[derive(Clone, PartialEq, Eq)]
enum At {
    File(PathBuf),
    Here(Arc<[u8]>),
}

impl Tls {
    /// Trusts the machine's own authorities, and has no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file, and no others.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(Pem { name: "ca_file", at: At::File(file.into()) });
        self
    }

    /// Trusts the authorities in this text of a PEM file, and no others.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.authorities = Some(Pem { name: "ca_pem", at: At::Here(pem.as_ref().into()) });
        self
    }

    /// Presents the certificate in the first file, whose private key is in the second one, to a server that asks for it
    /// (`tls-auth-clients`). Intermediate certificates follow it in its file. The key must have no passphrase; with the
    /// feature `tls-native` it must be PKCS #8 (`BEGIN PRIVATE KEY`).
    pub fn client_cert_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.client = Some((
            Pem { name: "client_cert_files", at: At::File(certificate.into()) },
            Pem { name: "client_cert_files", at: At::File(key.into()) },
        ));
        self
    }

    /// Like [`client_cert_files`](Self::client_cert_files), with the texts of the two files.
    pub fn client_cert_pem(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.client = Some((
            Pem { name: "client_cert_pem", at: At::Here(certificate.as_ref().into()) },
            Pem { name: "client_cert_pem", at: At::Here(key.as_ref().into()) },
        ));
        self
    }

    /// The name that the server's certificate must have, if it is not the host of the server, such as through a tunnel.
    /// It is sent to the server (SNI).
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Accepts any certificate: **anyone on the path to the server can read the password and grant locks**. For a
    /// server whose certificate no authority vouches for, in a network that you trust. An authority of your own is
    /// better: sign the server's certificate with it, and pass it to [`ca_file`](Self::ca_file).
    pub fn danger_accept_any_certificate(mut self) -> Self {
        self.accepts_any = true;
        self
    }

    /// Checks for mistakes that show before any file is read.
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.server_name {
            Some(name) if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c)) => {
                Err(format!("server_name is {name:?}: it must be a name or an address"))
            }
            _ if self.accepts_any && self.authorities.is_some() => {
                Err(format!("{} is set, and danger_accept_any_certificate: leave one of them out", self.authority()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a part of it is given as a file or as text, and so is read for each connection.
    pub(crate) fn has_files(&self) -> bool {
        self.authorities.is_some() || self.client.is_some()
    }

    fn authority(&self) -> &'static str {
        self.authorities.as_ref().map_or("", |pem| pem.name)
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
impl Pem {
    /// The whole text.
    pub(crate) fn read(&self) -> Result<Vec<u8>, String> {
        match &self.at {
            At::Here(text) => Ok(text.to_vec()),
            At::File(file) => std::fs::read(file).map_err(|error| {
                format!("{} names {}, which cannot be read ({error}): name a PEM file", self.name, file.display())
            }),
        }
    }
}

/// Shows the setting, and the file.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            At::Here(_) => f.write_str(self.name),
            At::File(file) => write!(f, "{} {}", self.name, file.display()),
        }
    }
}

/// Without the contents of texts and files.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.as_ref().map(ToString::to_string))
            .field("client", &self.client.as_ref().map(|(certificate, _)| certificate.to_string()))
            .field("server_name", &self.server_name)
            .field("accepts_any", &self.accepts_any)
            .finish()
    }
}
