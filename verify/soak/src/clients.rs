//! The clients of a worker, and the primaries that they know.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use leasehold::{Builder, Client, Error, NodeStatus, Server};

use crate::{
    record::{Line, Ports, Process, now},
    setup::{COMMAND_TIMEOUT, LOOK_EVERY, RESTART_DELAY, Stage, TTLS, USER},
    worker::{Part, say},
};

/// How often to check which servers are the primaries.
const NAME_EVERY: Duration = Duration::from_millis(20);

/// The settings that every client here has.
pub fn builder(process: Process) -> Builder {
    Client::builder()
        .label(process.to_string())
        .command_timeout(COMMAND_TIMEOUT)
        .connect_timeout(Duration::from_secs(1))
        .grant_timeout(Duration::from_millis(300))
}

/// The clients for the locks of its stage. With servers on their own, the second one is the quorum's.
pub async fn built_for(part: &Part, over: &AtomicBool) -> Option<(Client, Option<Client>)> {
    let (first, nodes) = part.servers.split_first().expect("the parent names the servers");
    if part.stage.is_routed() {
        let all = || builder(part.process).url(first).min_replicas(part.min_replicas);
        return Some((built(over, all).await?, None));
    }
    let lone: Server = first.parse().expect("the parent's url is one");
    let lone = lone.user(USER).password_file(&part.password);
    let lone = built(over, || builder(part.process).server(lone.clone()).check_address_every(LOOK_EVERY)).await?;
    if part.stage == Stage::Shared {
        return Some((lone, None));
    }
    let quorum = || builder(part.process).quorum(nodes).restart_delay(RESTART_DELAY).ttl(TTLS[0]);
    Some((lone, Some(built(over, quorum).await?)))
}

/// Reports which servers are the primaries, whenever that changes: from then on no answer of another server counts.
pub async fn name_primaries(process: Process, leases: Client) {
    let mut last: Ports = [].into();
    loop {
        let port = |node: &NodeStatus| node.address().rsplit_once(':')?.1.parse().ok();
        let mut ports: Vec<u16> = leases.nodes().iter().filter_map(port).collect();
        ports.sort_unstable();
        let ports: Ports = ports.into();
        if ports != last && !ports.is_empty() {
            say([Line::Named { process, at: now(), ports: ports.clone() }]);
            last = ports;
        }
        tokio::time::sleep(NAME_EVERY).await;
    }
}

/// Tries until the servers are there.
pub async fn built(over: &AtomicBool, builder: impl Fn() -> Builder) -> Option<Client> {
    while !over.load(Ordering::SeqCst) {
        match builder().build().await {
            Ok(leases) => return Some(leases),
            // A password that only one side knows is refused.
            Err(error) if error.is_transient() || matches!(error, Error::Refused(_)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    None
}
