//! From the command line to the servers.

use std::{convert::identity, future::Future, time::Duration};

use leasehold::{Builder, Client, Error, Server, Tls};
use tokio::sync::oneshot;

use crate::{
    exit::{Ended, Exit},
    say::{self, tell},
    servers::Servers,
};

/// The default TTL, and the shortest one allowed.
const USUAL_TTL: Duration = Duration::from_secs(30);
const SHORTEST_TTL: Duration = Duration::from_millis(100);
/// The least by which a restart delay exceeds the TTL.
const SECOND: Duration = Duration::from_secs(1);
/// The default restart delay of a quorum.
const QUORUM_DELAY: Duration = Duration::from_secs(31);

/// The server to ask if none is named.
const LOCAL: &str = "redis://127.0.0.1:6379";

/// Runs `work` to its end, on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::new(Exit::Io, format!("no runtime: {error}")))?;
    let outcome = runtime.block_on(work);
    // The program ends next, which frees the memory. A name server that does not answer must not delay the exit.
    std::mem::forget(runtime);
    outcome
}

/// Builds the client on a thread outside of every runtime, so that all requests to a server share one connection. If no
/// thread can be started, there are two.
pub(crate) async fn build(builder: Builder) -> Result<Client, Error> {
    let (tell, told) = oneshot::channel();
    let outside = builder.clone();
    let build = move || drop(tell.send(leasehold::block_on(outside.build()).and_then(identity)));
    let _thread = std::thread::Builder::new().name("build".into()).spawn(build);
    match told.await {
        Ok(built) => built,
        Err(_none) => builder.build().await,
    }
}

/// Runs `act` with a client of these servers, then closes the client.
pub(crate) fn with<T, F: Future<Output = Result<T, Ended>>>(
    servers: &Servers,
    act: impl FnOnce(Client) -> F,
) -> Result<T, Ended> {
    servers.tell_a_guess();
    block_on(async {
        let client = build(servers.builder()).await?;
        let outcome = act(client.clone()).await;
        client.close().await;
        outcome
    })
}

impl Servers {
    /// The server's URL, unless the servers are a quorum.
    pub(crate) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(LOCAL)
    }

    /// If no server was named, tells the user which one is asked.
    pub(crate) fn tell_a_guess(&self) {
        if !self.is_named() {
            tell(format_args!("asking {LOCAL}: neither --url nor LEASEHOLD_URL names a server"));
            // Before anything is drawn.
            say::finish();
        }
    }

    /// How long a server grants no lock after its start.
    pub(crate) fn delay(&self) -> Option<Duration> {
        self.restart_delay.or_else(|| (!self.quorum.is_empty()).then_some(QUORUM_DELAY))
    }

    /// Whether the servers have a queue for fair waiters, as all deployments but a quorum do.
    pub(crate) fn have_queues(&self) -> bool {
        self.quorum.is_empty()
    }

    pub(crate) fn builder(&self) -> Builder {
        let builder = Client::builder()
            .connect_timeout(self.connect_timeout)
            .prefix(&self.prefix)
            .min_replicas(self.min_replicas);
        let map = self.map.iter().map(|(from, to)| (from, to));
        let builder = if self.map.is_empty() { builder } else { builder.address_map(map) };
        let builder = match self.restart_delay {
            None => builder,
            // A delay of zero goes with any TTL.
            Some(delay) if delay.is_zero() => builder.restart_delay(delay),
            // `run` and `hold` set their own TTL. For the others, choose one that `build` accepts beside the delay.
            Some(delay) => {
                builder.ttl(USUAL_TTL.min(delay.saturating_sub(SECOND)).max(SHORTEST_TTL)).restart_delay(delay)
            }
        };
        // The builder reports what is wrong with a URL.
        if self.quorum.is_empty() {
            match self.server(self.url()) {
                Ok(server) => builder.server(server),
                Err(_) => builder.url(self.url()),
            }
        } else {
            match self.quorum.iter().map(|url| self.server(url)).collect::<Result<Vec<_>, _>>() {
                Ok(servers) => builder.quorum(servers),
                Err(_) => builder.quorum(&self.quorum),
            }
        }
    }

    /// The server at this URL, with the options that apply to each server.
    fn server(&self, url: &str) -> Result<Server, leasehold::Error> {
        let mut server: Server = url.parse()?;
        if let Some(file) = &self.password_file {
            server = server.password_file(file);
        }
        if let Some(tls) = self.tls() {
            server = server.tls(tls);
        }
        Ok(server)
    }

    fn tls(&self) -> Option<Tls> {
        let client = self.cert.as_ref().zip(self.key.as_ref());
        if self.cacert.is_none() && client.is_none() && self.sni.is_none() {
            return None;
        }
        let mut tls = Tls::new();
        if let Some(file) = &self.cacert {
            tls = tls.ca_file(file);
        }
        if let Some((certificate, key)) = client {
            tls = tls.client_cert_files(certificate, key);
        }
        if let Some(name) = &self.sni {
            tls = tls.server_name(name);
        }
        Some(tls)
    }
}
