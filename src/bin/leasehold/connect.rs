//! From the command line to the servers.

use std::future::Future;

use leasehold::{Builder, Keeper, Leases};

use crate::{
    args::Servers,
    exit::{Ended, Exit},
};

/// Runs this to its end, on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::new(Exit::Io, format!("no runtime: {error}")))?;
    runtime.block_on(work)
}

/// Does something with a connection.
pub(crate) fn with<T, F: Future<Output = Result<T, Ended>>>(
    servers: &Servers,
    act: impl FnOnce(Leases) -> F,
) -> Result<T, Ended> {
    block_on(async {
        let leases = servers.builder().build().await?;
        let outcome = act(leases.clone()).await;
        leases.close().await;
        outcome
    })
}

impl Servers {
    pub(crate) fn builder(&self) -> Builder {
        // The tool has one thread, which never blocks: a second one would be a second connection.
        let builder = Leases::builder().keeper(Keeper::CurrentRuntime);
        let builder = builder.connect_timeout(self.connect_timeout).prefix(&self.prefix);
        let builder = match self.restart_delay {
            Some(delay) => builder.restart_delay(delay),
            None => builder,
        };
        if self.quorum.is_empty() { builder.url(&self.url) } else { builder.quorum(&self.quorum) }
    }
}
