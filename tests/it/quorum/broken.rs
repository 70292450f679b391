//! Bugs found by adversarial testing.

use std::{collections::BTreeSet, time::Duration};

use leasehold::doctor::survey;
use support::{
    Action, Match, Server, Wire,
    scripts::{ACQUIRE, RELEASE, REPAIR},
    within,
};

use super::scene::{HANGS, Scene};
use crate::common::{COMMAND, Confirmed as _, LONG, NAME, unconfirmed};

/// Long enough to tell a loop that never pauses from a backoff of up to a second.
const A_WHILE: Duration = Duration::from_secs(2);
/// More requests than that backoff sends; a loop would send thousands.
const FEW: usize = 40;

/// The part that a token shares with the value of its key.
fn identity(arg: &[u8]) -> Option<String> {
    let identity = arg.get(..40).filter(|arg| arg.starts_with(b"lh1:"))?;
    Some(String::from_utf8_lossy(identity).into_owned())
}

fn asked(scene: &Scene) -> usize {
    scene.nodes.iter().map(|node| node.proxy.count(Match::script(ACQUIRE))).sum()
}

/// Waits for the lock, and counts the requests to the nodes once the wait has begun.
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
async fn waiting_for_a_holder_of_two_nodes_does_not_spin_on_the_third() {
    let scene = Scene::of(3).await;
    for node in &scene.nodes[1..] {
        // The free node answers first, so its answer counts.
        node.proxy.delay(Duration::from_millis(2));
        node.server.wire().must(&["SET", NAME, "another library's", "PX", "30000"]);
    }
    let looks = looks_of_a_waiter(&scene).await;
    assert!(looks < FEW, "it asked {looks} times in {A_WHILE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_majority_to_return_does_not_spin_on_the_minority() {
    let scene = Scene::of(3).await;
    scene.nodes[1].server.kill();
    scene.nodes[2].server.kill();
    let looks = looks_of_a_waiter(&scene).await;
    assert!(looks < FEW, "it asked {looks} times in {A_WHILE:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_server_memory_does_not_spin() {
    let server = Server::start();
    let leases = leasehold::Client::builder().url(server.url()).build().await.expect("it is there");
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

/// An unknown script is sent twice, and requests sent in between arrive before the second send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resent_vote_of_a_slow_node_does_not_outlive_the_release() {
    let scene = Scene::of(3).await;
    for node in &scene.nodes {
        let mut wire = node.server.wire();
        wire.must(&["SCRIPT", "FLUSH"]);
        wire.must(&["SCRIPT", "LOAD", RELEASE]);
    }
    scene.nodes[2].proxy.delay(Duration::from_millis(5));
    let lease = scene.acquire(LONG).await;
    lease.release().await.expect("it was ours").confirmed();
    tokio::time::sleep(Duration::from_millis(300)).await;
    scene.is_taken_away_within(Duration::from_secs(1), NAME).await;
}

/// The holder of a majority is reported, even if a node with another answer replies first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_of_four_of_five_nodes_is_reported_whichever_node_answers_first() {
    let scene = Scene::of(5).await;
    let holder = scene.other().await;
    // A request enables notifications. If they were enabled later, every waiter would check again in case it missed
    // one.
    for leases in [&holder, &scene.leases] {
        let _told = survey(leases).await;
    }
    let mut wires = scene.wires();
    let are_on = || wires.iter_mut().all(|wire| wire.trackers().len() == 2);
    support::eventually_async(HANGS, "pushes are on", are_on).await;
    scene.nodes[0].server.wire().must(&["SET", NAME, "left over", "PX", "30000"]);
    let lease = holder.lock(NAME).ttl(LONG).acquire().await.expect("four are enough");
    // Its first renewal, which touches its keys. The next one is due in ten seconds.
    scene.are_watched(1).await;
    for node in &scene.nodes[3..] {
        node.proxy.delay(Duration::from_millis(5));
    }
    let told = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let tell = told.clone();
    let lock = scene.leases.lock(NAME).on_wait(move |_| {
        tell.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let waiter = tokio::spawn(lock.ttl(LONG).acquire());
    scene.are_watched(2).await;
    let before = asked(&scene);
    tokio::time::sleep(A_WHILE).await;
    let looks = asked(&scene) - before;
    assert_eq!(told.load(std::sync::atomic::Ordering::SeqCst), 1, "after {looks} requests");
    assert_eq!(looks, 0, "every node will notify");
    waiter.abort();
    lease.release().await.expect("it was ours").confirmed();
}

/// A dropped `Client` does not probe its nodes, so pending undos must be sent all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_dropped_while_a_node_is_silent_is_released_when_the_node_returns() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(LONG).await;
    let node = &scene.nodes[2];
    node.proxy.black_hole(true);
    let began = std::time::Instant::now();
    while *scene.leases.nodes()[2].state() == leasehold::NodeState::Up {
        assert!(began.elapsed() < Duration::from_secs(5), "its silence is not noticed");
        let _other = scene.leases.lock("other").ttl(LONG).try_acquire().await;
    }
    drop(lease);
    let Scene { leases, nodes, lag: _lag } = scene;
    drop(leases);
    tokio::time::sleep(Duration::from_secs(1)).await;
    nodes[2].proxy.black_hole(false);
    let mut wire = nodes[2].server.wire();
    support::eventually_async(Duration::from_secs(6), "the key is taken away", || !wire.exists(NAME)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_gets_no_answer_is_not_asked_for_again_at_once() {
    const TIMEOUT: Duration = Duration::from_millis(20);
    const TTL: Duration = Duration::from_secs(2);
    let scene = Scene::with(3, |builder| builder.command_timeout(TIMEOUT)).await;
    let lease = scene.acquire_everywhere(TTL).await;
    let unanswered = scene.nodes[2].proxy.on_each(Match::script(RELEASE), Action::DropRequest);
    drop(lease);
    tokio::time::sleep(TTL).await;
    // Without pauses it would be sent every 20 ms. The pauses double from there to a second.
    let asked = unanswered.hits();
    assert!((2..20).contains(&asked), "{asked}");
}

/// A release that a majority neither confirmed nor denied may still have freed the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_unknown_outcome_wakes_a_waiter_of_the_same_client() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(LONG).await;
    let waiter = tokio::spawn(scene.leases.lock(NAME).ttl(LONG).owner(leasehold::Owner::unique()).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    // One node has lost the key, and another becomes unavailable for good.
    scene.nodes[2].server.kill();
    while *scene.leases.nodes()[2].state() == leasehold::NodeState::Up {
        drop(scene.leases.lock("other").ttl(LONG).try_acquire().await);
    }
    scene.nodes[1].proxy.on_each(Match::script(REPAIR), Action::Mangle);
    scene.nodes[1].server.wire().del(NAME);
    let released = lease.release().await;
    unconfirmed(released);
    let next = support::within(Duration::from_secs(10), "the waiter has it", waiter).await;
    drop(next.expect("it does not panic").expect("two of three are free"));
}

/// A node that is unavailable for an hour must not leave a task for every lease of that hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_a_silent_node_never_had_are_not_undone_there() {
    let scene = Scene::of(3).await;
    let proxy = &scene.nodes[2].proxy;
    let is_up = || *scene.leases.nodes()[2].state() == leasehold::NodeState::Up;
    proxy.black_hole(true);
    while is_up() {
        scene.acquire_as("other", LONG).await.release().await.expect("it was ours").confirmed();
    }
    // By then the requests to it have timed out, and no more are sent.
    tokio::time::sleep(2 * COMMAND).await;
    for _ in 0..50 {
        scene.acquire(LONG).await.release().await.expect("it was ours").confirmed();
        drop(scene.acquire(LONG).await);
    }
    assert!(!is_up());
    // The leases of that name in requests of this script to the node.
    let tokens = |script| -> BTreeSet<String> {
        let (wanted, seen) = (Match::script(script), proxy.seen());
        let of_name = seen.iter().filter(|seen| wanted.matches(&seen.args) && seen.args.contains(&NAME.into()));
        of_name.flat_map(|seen| &seen.args).filter_map(|arg| identity(arg)).collect()
    };
    proxy.black_hole(false);
    support::eventually_async(Duration::from_secs(5), "it answers again", is_up).await;
    tokio::time::sleep(A_WHILE).await;
    let (asked, undone) = (tokens(ACQUIRE), tokens(RELEASE));
    assert!(asked.len() < 40, "its silence is noticed");
    let never_had: Vec<_> = undone.difference(&asked).collect();
    assert!(never_had.is_empty(), "it was asked for {} of 100 leases, and to undo {never_had:?}", asked.len());
}

/// A drop's release uses another connection than the acquire, and may reach a node before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_after_a_drop_waits_for_a_vote_that_the_release_has_overtaken() {
    // Long enough for both rules in turn.
    let scene = Scene::with(3, |builder| builder.command_timeout(HANGS)).await;
    let vote = scene.nodes[2].proxy.on(Match::script(ACQUIRE), 1, Action::Hold);
    let lease = scene.acquire(LONG).await;
    within(HANGS, "the vote is on its way", vote.hit()).await;
    let release = scene.nodes[1].proxy.on(Match::script(RELEASE), 1, Action::Hold);
    let overtakes = scene.nodes[2].proxy.on(Match::script(RELEASE), 1, Action::HoldReply);
    drop(lease);
    for (rule, what) in [(&release, "a release that is slow"), (&overtakes, "a release that overtakes the vote")] {
        within(HANGS, what, rule.hit()).await;
    }
    let taken_back = scene.nodes[2].proxy.on(Match::script(RELEASE), 1, Action::Hold);
    let again = tokio::spawn(scene.leases.lock(NAME).try_acquire());
    // The third node reports that it has nothing, and then grants the dropped lease; the second still has it.
    overtakes.release();
    vote.release();
    within(HANGS, "the grant is to be taken back", taken_back.hit()).await;
    taken_back.release();
    release.release();
    assert!(within(HANGS, "the try", again).await.unwrap().unwrap().is_some(), "busy with the lease that was dropped");
}
