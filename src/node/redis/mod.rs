//! A Redis or Valkey server as a node. Only `wire/` knows the client library.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_protocol::{
    message::{Reply, Request, Route, Shard},
    token::Token,
};
use tokio::runtime::Handle;

use self::server::{Connections, SendOptions, route_from};
pub(crate) use self::{
    routed::Routed,
    transport::{Address, AddressMap, Endpoint, Limits, Provider, Seeds},
};
use super::{Answer, Links, Node, NodeListener};
use crate::{
    error::Error,
    keeper::Host,
    survey::{Inquiry, ServerSaid},
};

#[cfg(test)]
mod fuzz;
mod info;
mod reply;
mod routed;
mod script;
mod server;
mod subscription;
mod transport;
mod wire;

/// One server as a node.
#[derive(Debug)]
pub(crate) struct Redis(Arc<Connections>);

impl Redis {
    /// Connects. The home connection is made on the runtime `home`, if that is given. `votes` is the restart delay, if
    /// votes are asked for. The address is checked every `check_every`; never if that is zero.
    ///
    /// Boxed, so that the transport is compiled into this crate once, and not again into every program that connects.
    pub(crate) fn connect(
        endpoint: Endpoint,
        host: Host,
        home: Option<Handle>,
        votes: Option<Duration>,
        check_every: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send>> {
        Box::pin(async move { Connections::connect(endpoint, host, home, votes, check_every).await.map(Self) })
    }
}

impl Node for Redis {
    fn route(&self) -> Route {
        route_from(self.0.home.as_ref().map(|(home, _)| *home))
    }

    fn listen(&self, listener: Weak<dyn NodeListener>) {
        self.0.subscription.listen(listener);
    }

    fn tracking_capacity(&self) -> usize {
        self.0.subscription.tracking_capacity()
    }

    fn send(&self, route: Route, request: Request, limit: Duration) -> Answer<Reply> {
        self.0.ask(SendOptions::new(route, limit), request)
    }

    fn links(&self) -> Option<&dyn Links> {
        Some(self)
    }

    fn survey(&self, _: Shard, inquiry: Inquiry) -> Answer<ServerSaid> {
        let (server, time) = (self.0.clone(), self.0.host.time_keeper());
        Box::pin(async move {
            let asking = pin!(server.survey(&inquiry, |place| server.beside(place)));
            time.keep(asking).await
        })
    }

    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.close(limit)
    }
}

impl Links for Redis {
    fn withdraw(&self, token: &Token) -> bool {
        self.0.withdraw(token)
    }

    fn set_aside(&self, token: &Token) {
        self.0.set_aside(token);
    }

    fn trouble(&self, _: Shard) -> Option<String> {
        self.0.keeper.trouble()
    }

    fn unlinked(&self, route: Route, _: Shard) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let connection = self.0.connection(route);
        Box::pin(async move { connection.unlinked().await })
    }

    fn reconnect(&self, route: Route, _: Shard) {
        self.0.connection(route).reconnect();
    }
}
