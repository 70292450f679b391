//! Leases over a quorum whose runtime ends: rows F33 and F48.

use std::time::{Duration, Instant};

use leasehold::{Client, Lease};
use support::{Child, Lag, Nodes, Part, SIGNAL, Wire, eventually_async, eventually_but_for, seen, two_workers, within};

use super::scene::{HANGS, builder, built};
use crate::common::{Confirmed as _, NAME};

async fn acquired(leases: &Client, name: &str) -> Lease {
    within(HANGS, "a free lock", leases.lock(name).acquire()).await.expect("the nodes are well")
}

/// Wires to all nodes.
fn wires(nodes: &Nodes) -> Vec<Wire> {
    nodes.iter().map(support::Server::wire).collect()
}

#[test]
fn f33_runtime_shut_down_with_1000_leases() {
    const TTL: Duration = Duration::from_secs(8);
    const LEASES: usize = 1_000;
    const AT_ONCE: Duration = Duration::from_secs(1);
    if let Some(part) = Part::mine() {
        let runtime = two_workers();
        let leases = runtime.block_on(async {
            let urls = part.url.split(',').map(ToOwned::to_owned).collect();
            let leases = built(builder(urls).ttl(TTL).command_timeout(Duration::from_secs(2))).await;
            let acquires: Vec<_> =
                (0..LEASES).map(|n| tokio::spawn(leases.lock(format!("job:{n}")).acquire())).collect();
            for acquire in acquires {
                let lease = acquire.await.expect("it does not panic").expect("the nodes are well");
                tokio::spawn(async move {
                    let lost = lease.lost().await;
                    panic!("{lost}");
                });
            }
            leases
        });
        part.say("held");
        part.hear();
        drop(runtime);
        if part.name == "live on" {
            part.say("shut down");
            part.hear();
        }
        drop(leases);
        return;
    }
    for end in ["exit", "live on"] {
        let (nodes, lag) = (Nodes::start(3), Lag::start());
        let mut wires = wires(&nodes);
        let mut keys = || -> Vec<usize> { wires.iter_mut().map(|wire| wire.keys("job:*").len()).collect() };
        let mut holder = Child::start(f33_runtime_shut_down_with_1000_leases, end, &nodes.urls().join(","));
        holder.says("held");
        let majorities = keys().iter().sum::<usize>();
        assert!(majorities >= 2 * LEASES, "{majorities} keys");
        holder.tell("end");
        let mut told = Instant::now();
        if end == "live on" {
            // The process continues, and so does its keeper, which must not continue renewing.
            holder.says("shut down");
            let is_gone = || keys().iter().all(|keys| *keys == 0);
            two_workers().block_on(eventually_but_for(&lag, TTL + SIGNAL, "all is released or expired", is_gone));
            holder.tell("end");
            told = Instant::now();
        }
        holder.ends();
        let took = told.elapsed();
        seen::took("exit of the process", took, AT_ONCE, &lag);
        assert!(took <= AT_ONCE + lag.worst(), "{end}: the process took {took:?} to exit");
        let is_gone = || keys().iter().all(|keys| *keys == 0);
        two_workers().block_on(eventually_but_for(&lag, TTL + SIGNAL, "all is released or expired", is_gone));
    }
}

#[test]
fn f48_the_runtime_that_built_it_ended() {
    const TTL: Duration = Duration::from_secs(1);
    let nodes = Nodes::start(3);
    let first = two_workers();
    let (leases, lease) = first.block_on(async {
        let leases = built(builder(nodes.urls()).ttl(TTL)).await;
        let lease = acquired(&leases, NAME).await;
        (leases, lease)
    });
    drop(first);
    // Without any runtime, for well over a TTL; the length is the fault itself.
    std::thread::sleep(TTL * 3 / 2);
    assert_eq!(lease.check(), Ok(()));
    two_workers().block_on(async {
        let refused = leases.lock(NAME).acquire_within(Duration::from_millis(100)).await;
        assert!(refused.is_err(), "it is held");
        acquired(&leases, "other").await.release().await.expect("the nodes are well").confirmed();
        within(HANGS, "the release", lease.release()).await.expect("it was ours to the end").confirmed();
        let is_gone = || wires(&nodes).iter_mut().all(|wire| !wire.exists(NAME));
        eventually_async(HANGS, "no node has it", is_gone).await;
        within(HANGS, "the end", leases.close()).await;
    });
}
