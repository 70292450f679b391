//! The user and password for a server, if they change while the program runs.

use std::{fmt, time::Duration};

/// A user and a password, as a program's [provider](crate::Server::credentials) returns them.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Credentials;
/// let token = Credentials::new("worker", "a-token-from-the-cloud").valid_for(Duration::from_secs(15 * 60));
/// assert!(!format!("{token:?}").contains("a-token")); // a password is never shown
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// The credentials of this user.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into(), valid_for: None }
    }

    /// The credentials of the server's default user, which has a password only (`requirepass`).
    #[must_use]
    pub fn of_default_user(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), valid_for: None }
    }

    /// How long the server accepts these credentials, from the moment at which the provider was asked. After two thirds
    /// of that the provider is asked again, and open connections authenticate again (`AUTH`). Without it the provider
    /// is asked only when there is a new connection.
    #[must_use]
    pub fn valid_for(mut self, span: Duration) -> Self {
        self.valid_for = Some(span);
        self
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}
