//! From the command line to the servers.

use std::{future::Future, time::Duration};

use leasehold::{Builder, Keeper, Leases};

use crate::{
    args::Servers,
    exit::{Ended, Exit},
    say::{self, tell},
};

/// The TTL where none is asked for, and the shortest that there is.
const USUAL_TTL: Duration = Duration::from_secs(30);
const SHORTEST_TTL: Duration = Duration::from_millis(100);
/// A restart delay is that much longer.
const SECOND: Duration = Duration::from_secs(1);
/// The restart delay of a quorum where none is asked for.
const QUORUM_DELAY: Duration = Duration::from_secs(31);

/// The server that is asked where none is named.
const LOCAL: &str = "redis://127.0.0.1:6379";

/// Runs this to its end, on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::new(Exit::Io, format!("no runtime: {error}")))?;
    let outcome = runtime.block_on(work);
    // The program ends next, and its memory with it. A name server that says nothing must not keep us.
    std::mem::forget(runtime);
    outcome
}

/// Does something with a connection.
pub(crate) fn with<T, F: Future<Output = Result<T, Ended>>>(
    servers: &Servers,
    act: impl FnOnce(Leases) -> F,
) -> Result<T, Ended> {
    servers.tell_a_guess();
    block_on(async {
        let leases = servers.builder().build().await?;
        let outcome = act(leases.clone()).await;
        leases.close().await;
        outcome
    })
}

impl Servers {
    /// The server, unless it is a quorum.
    pub(crate) fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(LOCAL)
    }

    /// Whoever has named no server is told which one answers.
    pub(crate) fn tell_a_guess(&self) {
        if !self.is_named() {
            tell(format_args!("asking {LOCAL}: neither --url nor LEASEHOLD_URL names a server"));
            // Before anything is drawn.
            say::finish();
        }
    }

    /// For how long a server grants nothing after its start.
    pub(crate) fn delay(&self) -> Option<Duration> {
        self.restart_delay.or_else(|| (!self.quorum.is_empty()).then_some(QUORUM_DELAY))
    }

    pub(crate) fn builder(&self) -> Builder {
        // The tool has one thread, which never blocks: a second one would be a second connection.
        let builder = Leases::builder().keeper(Keeper::CurrentRuntime);
        let builder = builder.connect_timeout(self.connect_timeout).prefix(&self.prefix);
        let builder = match self.restart_delay {
            None => builder,
            // No delay suits any TTL.
            Some(delay) if delay.is_zero() => builder.restart_delay(delay),
            // Who acquires says for how long; the others do not, and may not be refused for it.
            Some(delay) => {
                builder.ttl(USUAL_TTL.min(delay.saturating_sub(SECOND)).max(SHORTEST_TTL)).restart_delay(delay)
            }
        };
        if self.quorum.is_empty() { builder.url(self.url()) } else { builder.quorum(&self.quorum) }
    }
}
