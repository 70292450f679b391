//! What an adversary found.

// The library's doors for time and tasks are not those of its tests.
#![allow(clippy::disallowed_methods)]
// A helper that cannot do its work has to stop the test and say why.
#![allow(clippy::expect_used, clippy::indexing_slicing)]

mod quorum_scene;
mod support;

use std::time::Duration;

use quorum_scene::{LONG, NAME, Scene};
use support::{Match, Server, Wire, scripts::ACQUIRE};

/// Long enough to tell a loop that never pauses from backoff with a pause of a second.
const A_WHILE: Duration = Duration::from_secs(2);
/// More than that backoff sends; a loop would send thousands.
const FEW: usize = 40;

fn asked(scene: &Scene) -> usize {
    scene.nodes.iter().map(|node| node.proxy.count(Match::script(ACQUIRE))).sum()
}

/// Waits for the lock, and counts what that asks of the nodes once the wait has begun.
async fn looks_of_a_waiter(scene: &Scene) -> usize {
    let waiter = tokio::spawn(scene.leases.lock(NAME).ttl(LONG).acquire());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = asked(scene);
    tokio::time::sleep(A_WHILE).await;
    let looks = asked(scene) - before;
    waiter.abort();
    looks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_holder_of_two_nodes_does_not_spin_on_the_third() {
    let scene = Scene::of(3).await;
    for node in &scene.nodes[1..] {
        // The free one is heard first, so that it counts.
        node.proxy.delay(Duration::from_millis(2));
        node.server.wire().must(&["SET", NAME, "another library's", "PX", "30000"]);
    }
    let looks = looks_of_a_waiter(&scene).await;
    assert!(looks < FEW, "it asked {looks} times in {A_WHILE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_majority_to_come_back_does_not_spin_on_the_minority() {
    let scene = Scene::of(3).await;
    scene.nodes[1].server.kill();
    scene.nodes[2].server.kill();
    let looks = looks_of_a_waiter(&scene).await;
    assert!(looks < FEW, "it asked {looks} times in {A_WHILE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_memory_does_not_spin() {
    let server = Server::start();
    let leases = leasehold::Leases::builder().url(server.url()).build().await.expect("it is there");
    server.wire().must(&["CONFIG", "SET", "maxmemory", "1"]);
    let waiter = tokio::spawn(leases.lock(NAME).acquire());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let count = |wire: &mut Wire| -> usize {
        wire.info_field("stats", "total_commands_processed").and_then(|n| n.parse().ok()).expect("a number")
    };
    let mut wire = server.wire();
    let before = count(&mut wire);
    tokio::time::sleep(A_WHILE).await;
    let commands = count(&mut wire) - before;
    waiter.abort();
    assert!(commands < 10 * FEW, "{commands} commands in {A_WHILE:?}");
}
