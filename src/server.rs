//! A server that keeps locks, as a program names it.

use std::{fmt, str::FromStr};

use crate::{error::Error, node::NodeAddress};

/// One server that keeps locks: where it is, and who we are there. [`Leases::connect`](crate::Leases::connect) says
/// which urls there are.
///
/// A [`Builder`](crate::Builder) takes urls too. This type is for a program that checks its settings early: parsing
/// finds what is wrong with a url, and connects to nothing.
///
/// ```
/// # use leasehold::{Leases, Server};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let server: Server = "redis://worker:secret@127.0.0.1:6379/1".parse()?;
/// assert_eq!(server.to_string(), "127.0.0.1:6379"); // the password is never shown
/// let leases = Leases::builder().server(server).build_lazy()?;
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Server(pub(crate) NodeAddress);

/// # Errors
///
/// [`Error::Config`], which says what is wrong with the url, and never shows its password.
impl FromStr for Server {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        NodeAddress::parse(url).map(Self)
    }
}

impl TryFrom<&str> for Server {
    type Error = Error;

    fn try_from(url: &str) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<&String> for Server {
    type Error = Error;

    fn try_from(url: &String) -> Result<Self, Error> {
        url.parse()
    }
}

impl From<&Server> for Server {
    fn from(server: &Server) -> Self {
        server.clone()
    }
}

impl TryFrom<String> for Server {
    type Error = Error;

    fn try_from(url: String) -> Result<Self, Error> {
        url.parse()
    }
}

/// Where it is, without who we are there.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.address())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.0.address()).finish()
    }
}
