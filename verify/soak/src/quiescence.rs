//! After the last fault: no worker begins anything any more, so every lock can be acquired, and then no keys are left.

use std::time::Duration;

use leasehold::{Client, Lock};
use support::Server;
use tokio::task::JoinSet;

use crate::{
    clients::builder,
    crew::{Crew, Worker},
    history::{Remnant, Timed},
    record::{Call, MILLI, Process, now},
    scene::Scene,
    setup::{Access, GIVEN_UP, LONE, RESTART_DELAY, Stage, TTLS, nanos},
};

/// How soon every holder has released its lock, or its key has expired by a clock that was set back. By then the grants
/// to dead waiters have lapsed, and nodes that forgot vote again.
const FREE_WITHIN: Duration = Duration::from_secs(10);

/// Ends the workers in peace, and looks at the keys that they leave.
pub fn run(scene: &Scene, workers: Vec<Worker>) {
    end(scene, workers, acquire_all(scene));
    // Longer than any TTL by any clock.
    std::thread::sleep(RESTART_DELAY);
    let elsewhere = scene.lone_servers().map(|server| (LONE, server));
    for (server, at) in (LONE + 1..scene.stage.servers()).map(|node| (node, &scene.servers[node])).chain(elsewhere) {
        look(scene, server, at, scene.server(server).port() != at.port());
    }
}

/// Makes the workers rest, and end when `meanwhile` is done.
pub fn end(crew: &Crew, mut workers: Vec<Worker>, meanwhile: impl Future<Output = ()>) {
    for worker in &mut workers {
        worker.rest();
    }
    for worker in &mut workers {
        worker.rested(crew);
    }
    // This happens while the workers live, because a worker still renews leases that it did not release.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(meanwhile);
    for worker in &mut workers {
        worker.dismiss();
    }
    for worker in workers {
        worker.ended(crew);
    }
}

/// Acquires each lock in a new process, past every proxy, and releases it.
async fn acquire_all(scene: &Scene) {
    let process = somebody(scene.links.len());
    let (lone, nodes) = (scene.server(LONE).url(), scene.servers.urls().split_off(LONE + 1));
    let lone = builder(process).url(lone).build().await.expect("the server is there");
    let quorum = if nodes.is_empty() {
        None
    } else {
        let quorum = builder(process).quorum(nodes).restart_delay(RESTART_DELAY).ttl(TTLS[0]);
        Some(quorum.build().await.expect("the nodes are there"))
    };
    let locks = scene.stage.kinds().iter().map(|kind| {
        let leases = quorum.as_ref().filter(|_| kind.quorum).unwrap_or(&lone);
        leases.lock(kind.name).fair(kind.fair).ttl(TTLS[0])
    });
    acquire(scene, process, locks).await;
    let shared = scene.stage.kinds().iter().map(|kind| as_shared(&lone, kind.name, kind.access).ttl(TTLS[0]));
    if scene.stage == Stage::Shared {
        acquire(scene, process, shared).await;
    }
    for leases in [lone].into_iter().chain(quorum) {
        leases.close().await;
    }
}

/// A name in the mode in which the most processes can hold it.
fn as_shared(leases: &Client, name: &str, access: Access) -> Lock {
    match access {
        Access::Permits(of, _) => leases.semaphore(name, of),
        _ => leases.rw_lock(name).read(),
    }
}

/// A process other than those of the workers.
pub fn somebody(workers: usize) -> Process {
    Process { slot: u16::try_from(workers).unwrap_or(u16::MAX), life: 0 }
}

/// Acquires all of these locks, in the order of their names, and lets go of them.
pub async fn acquire(crew: &Crew, process: Process, locks: impl Iterator<Item = Lock>) {
    let mut asking = JoinSet::new();
    for (name, lock) in locks.enumerate() {
        asking.spawn(async move {
            let from = now();
            let acquired = tokio::time::timeout(FREE_WITHIN + GIVEN_UP, lock.acquire()).await;
            let to = now();
            if let Ok(lease) = acquired {
                lease.expect("nothing is refused").release().await.ok();
            }
            Timed { process, name, call: Call::LastAcquire, within: nanos(FREE_WITHIN), from, to }
        });
    }
    let calls = asking.join_all().await;
    crew.recorder().history.calls.extend(calls);
}

/// Looks at the keys that a server still has.
pub fn look(crew: &Crew, server: usize, at: &Server, is_left: bool) {
    let mut wire = at.wire();
    for key in wire.keys("*") {
        let lasts = match wire.pttl(&key) {
            -2 => continue,
            left => u64::try_from(left).ok().map(|left| left * MILLI),
        };
        let is_of = |name: &str| {
            key == name || key.starts_with(&format!("{{{name}}}:lh:")) || key.starts_with(&format!("{name}:lht:"))
        };
        let name = crew.stage.kinds().iter().position(|kind| is_of(kind.name)).unwrap_or(0);
        crew.recorder().history.remnants.push(Remnant { name, server, key, at: now(), lasts, is_left });
    }
}
