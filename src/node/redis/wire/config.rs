//! To what to connect, and as whom.

use fred::types::config::{Config as FredConfig, Server, ServerConfig};

use super::tls;
use crate::tls::Tls;

/// The settings of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Config(pub(super) FredConfig);

impl Config {
    pub(crate) fn of_host(host: &str, port: u16) -> Self {
        Self::of(ServerConfig::Centralized { server: Server::new(host, port) })
    }

    #[cfg(unix)]
    pub(crate) fn of_socket(path: std::path::PathBuf) -> Self {
        Self::of(ServerConfig::Unix { path })
    }

    fn of(server: ServerConfig) -> Self {
        Self(FredConfig { server, ..FredConfig::default() })
    }

    pub(crate) fn log_in(&mut self, user: Option<String>, password: Option<String>) {
        (self.0.username, self.0.password) = (user, password);
    }

    pub(crate) fn select(&mut self, database: Option<u8>) {
        self.0.database = database;
    }

    /// Reads certificates, which may take long.
    pub(crate) fn enable_tls(&mut self, tls: &Tls) -> Result<(), String> {
        tls::enable(&mut self.0, tls)
    }
}
