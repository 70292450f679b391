//! A server, as its connections need to know it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_protocol::time::Time;
use tokio::sync::Semaphore;

use super::{
    kind::RequiredKind,
    target::{Address, Target},
};
use crate::{
    clock::{self, Clock},
    node::{
        Seat,
        redis::wire::{Config, Error as WireError, ErrorKind as WireKind},
    },
    options::Names,
};

/// Time-outs of a connection, how many replicas must have its writes, and whether its scripts may use undeclared keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) command: Duration,
    pub(crate) min_replicas: u8,
    pub(crate) undeclared_keys: bool,
}

/// A server's address and our user there, the time limits, and the clock that measures them.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) target: Target,
    pub(crate) limits: Limits,
    pub(crate) clock: Arc<dyn Clock>,
    /// The label of the holder of its locks, a part of its connections' names; and the prefix of its keys' names.
    pub(crate) names: Names,
    /// The kind that the server has to be of.
    pub(crate) wanted: RequiredKind,
    /// Its seat, if it is a node of a quorum.
    pub(crate) seat: Option<Seat>,
    /// One read of certificates at a time: a disk that hangs blocks only one thread.
    reading: Arc<Semaphore>,
    /// The settings with the machine's own authorities, which are read once.
    by_the_machine: Arc<OnceLock<Config>>,
}

impl Endpoint {
    pub(crate) fn new(target: Target, limits: Limits, clock: Arc<dyn Clock>, names: Names) -> Self {
        let (reading, by_the_machine) = (Arc::new(Semaphore::new(1)), Arc::default());
        Self { target, limits, clock, names, wanted: RequiredKind::Alone, seat: None, reading, by_the_machine }
    }

    /// This endpoint with a seat in a quorum, or without one.
    pub(crate) fn seated(self, seat: Option<Seat>) -> Self {
        Self { seat, ..self }
    }

    /// The endpoint of another server, for the same caller.
    pub(crate) fn another(&self, target: Target, wanted: RequiredKind) -> Self {
        Self { target, wanted, seat: None, by_the_machine: Arc::default(), ..self.clone() }
    }

    pub(crate) fn now(&self) -> Time {
        clock::now(&*self.clock)
    }

    /// The settings of the next connection. Certificates are read now: they may have been replaced.
    pub(super) async fn config(&self) -> Result<Config, WireError> {
        let mut config = config(&self.target)?;
        let Address::Tcp { tls: true, .. } = &self.target.address else { return Ok(config) };
        if let Some(config) = self.by_the_machine.get() {
            return Ok(config.clone());
        }
        let tls = self.target.tls.clone();
        let read = async {
            let one = self.reading.clone().acquire_owned().await;
            let read = move || {
                let _one = one;
                config.enable_tls(&tls).map(|()| config)
            };
            tokio::task::spawn_blocking(read).await
        };
        match tokio::time::timeout(self.limits.connect, read).await {
            Ok(Ok(read)) => {
                let config = read.map_err(mistake)?;
                if !self.target.tls.has_files() {
                    let _first_stays = self.by_the_machine.set(config.clone());
                }
                Ok(config)
            }
            _ => Err(WireError::new(WireKind::Other, "its certificates could not be read in time")),
        }
    }
}

/// The settings without TLS.
#[cfg_attr(unix, allow(clippy::unnecessary_wraps, reason = "elsewhere there are no Unix sockets"))]
pub(crate) fn config(target: &Target) -> Result<Config, WireError> {
    let database = target.database.filter(|&database| database != 0);
    let mut config = match &target.address {
        #[cfg(unix)]
        Address::Unix(path) => Config::of_socket(path.clone(), database),
        #[cfg(not(unix))]
        Address::Unix(_) => return Err(mistake(super::url::NO_UNIX_SOCKETS)),
        Address::Tcp { host, port, .. } => Config::of_host(host, *port, database),
    };
    config.log_in(target.user.clone(), target.password.clone());
    Ok(config)
}

/// The error for our own wrong settings; nothing was connected to.
pub(super) fn mistake(text: impl Into<String>) -> WireError {
    WireError::new(WireKind::Mistake, text.into())
}
