//! The settings of a blocking `Leases`.

use std::time::Duration;

use super::{Leases, wait};
#[cfg(feature = "testing")]
use crate::clock::Clock;
use crate::{error::Error, server::Server};

wrapper! {
    /// As [`leasehold::Builder`](crate::Builder). It has no `keeper`, which is always a thread of its own.
    #[derive(Clone)]
    #[must_use = "nothing is connected before `build`"]
    Builder
}

impl Builder {
    setters! {
        Builder:
        url(impl Into<String>);
        server(Server);
        restart_delay(Duration);
        ttl(Duration);
        max_hold(impl Into<Option<Duration>>);
        lock_delay(Duration);
        prefix(impl Into<String>);
        label(impl Into<String>);
        connect_timeout(Duration);
        check_address_every(Duration);
        min_replicas(u8);
        undeclared_keys(bool);
        command_timeout(Duration);
        fair(bool);
        grant_timeout(Duration);
        fence_memory(Duration);
        #[cfg(feature = "metrics")] metrics_group(impl AsRef<str>);
        #[cfg(feature = "testing")] clock(impl Clock);
    }

    /// See [`Builder::quorum`](crate::Builder::quorum).
    #[doc(alias = "redlock")]
    pub fn quorum<S>(self, servers: impl IntoIterator<Item = S>) -> Self
    where
        S: TryInto<Server>,
        S::Error: Into<Error>,
    {
        Self(self.0.quorum(servers))
    }

    /// See [`Builder::address_map`](crate::Builder::address_map).
    pub fn address_map<F: AsRef<str>, T: AsRef<str>>(self, map: impl IntoIterator<Item = (F, T)>) -> Self {
        Self(self.0.address_map(map))
    }

    /// Checks every setting, then connects: [`Builder::build`](crate::Builder::build).
    pub fn build(self) -> Result<Leases, Error> {
        wait(self.0.build())?.map(Leases)
    }

    /// Checks every setting, and connects at the first use, without a wait:
    /// [`Builder::build_lazy`](crate::Builder::build_lazy).
    pub fn build_lazy(self) -> Result<Leases, Error> {
        self.0.build_lazy().map(Leases)
    }
}
