//! Faults of a quorum's keys and scripts: deleted, overwritten, flushed, changed and retyped, on a minority of the
//! nodes and on a majority. Rows F13 to F18.

use std::time::{Duration, Instant};

use leasehold::{Client, Lease, LossReason, Lost, NodeAnswer, Vote};
use support::{Action, Match, SIGNAL, eventually_async, scripts::REPAIR, seen, timed, within};
use tokio::task::JoinHandle;

use super::scene::{HANGS, Node, Scene, Share, at_once, builder, built};
use crate::common::{Calm, Confirmed as _, FENCE, LONG, MEDIUM, NAME, assert_says_lost, is_ours, unconfirmed};

/// Sets the key to a value that is not ours.
const SOMEBODY: &[&str] = &["SET", NAME, "somebody-else", "PX", "60000"];

/// Fails unless the loss is reported within the limit, for this reason.
async fn is_told(
    loss: JoinHandle<(Lost, Instant)>,
    since: Instant,
    limit: Duration,
    reason: LossReason,
    scene: &Scene,
) {
    let (lost, at) = within(HANGS, "the signal of a loss", loss).await.expect("it does not panic");
    // A notification, a check, and a renewal.
    let (took, bound, limit) = (at.saturating_duration_since(since), limit, limit + scene.lag.of(3));
    assert_eq!(lost.reason(), reason);
    let what = if bound == SIGNAL { "quorum: signal after the fault" } else { "quorum: signal without push" };
    seen::took(what, took, bound, &scene.lag);
    assert!(took <= limit, "{took:?} after the fault, not within {limit:?}");
}

/// Blocks repairs, for tests that expect a loss. Servers that lose a key one moment after the other could be repaired
/// one by one by a renewal in flight, and nothing would be lost.
fn are_not_healed(nodes: &[Node]) {
    for node in nodes {
        node.proxy.on_each(Match::script(REPAIR), Action::Mangle);
    }
}

/// Fails unless every node has the key of the lease again within the limit.
async fn is_healed(scene: &Scene, lease: &Lease, since: Instant, limit: Duration) {
    scene.is_everywhere(lease, HANGS).await;
    // A notification, a check, a renewal, a repair, and this test's own check.
    let (took, bound, limit) = (since.elapsed(), limit, limit + scene.lag.of(5));
    let what =
        if bound == SIGNAL { "quorum: repaired after the fault" } else { "quorum: repaired by the next renewal" };
    seen::took(what, took, bound, &scene.lag);
    assert!(took <= limit, "repaired {took:?} after the fault, not within {limit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_deleted_on_a_minority_is_repaired() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        // The TTL is so long that no renewal on schedule can have repaired it.
        let lease = scene.acquire_everywhere(LONG).await;
        scene.are_watched(1).await;
        let calm = Calm::of(&lease);
        let deleted = at_once(scene.faulty(Share::Minority), &["DEL", NAME]);
        is_healed(&scene, &lease, deleted, SIGNAL).await;
        for wire in &mut scene.wires() {
            assert!(wire.pttl(NAME) > 20_000, "it is a key of the full TTL");
            let floor: u64 = wire.get(FENCE).and_then(|floor| floor.parse().ok()).expect("a floor");
            assert!(floor >= u64::from(lease.fence()));
        }
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_deleted_on_a_majority_is_a_loss() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let lease = scene.acquire_everywhere(LONG).await;
        scene.are_watched(1).await;
        let loss = timed(lease.lost());
        are_not_healed(scene.faulty(Share::Majority));
        let deleted = at_once(scene.faulty(Share::Majority), &["DEL", NAME]);
        is_told(loss, deleted, SIGNAL, LossReason::Deleted, &scene).await;
        // The job has to stop first. While nodes that lost the key do not vote yet, the others keep out other holders.
        let kept = nodes - scene.faulty(Share::Majority).len();
        tokio::time::sleep(SIGNAL).await;
        assert_eq!(scene.tokens(NAME).iter().flatten().count(), kept, "the remaining keys stay while it is held");
        assert_says_lost(lease.release().await, LossReason::Deleted);
        // Closing waits for background work, which must not create a key again.
        scene.leases.close().await;
        assert_eq!(scene.tokens(NAME), vec![None; nodes]);
    }
}

/// The remaining keys would be kept until the lease is dropped, but then the connections are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_deletes_the_keys_of_a_lease_that_a_majority_denied() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let lease = scene.acquire_everywhere(LONG).await;
        scene.are_watched(1).await;
        let loss = timed(lease.lost());
        are_not_healed(scene.faulty(Share::Majority));
        let deleted = at_once(scene.faulty(Share::Majority), &["DEL", NAME]);
        is_told(loss, deleted, SIGNAL, LossReason::Deleted, &scene).await;
        let kept = nodes - scene.faulty(Share::Majority).len();
        assert_eq!(scene.tokens(NAME).iter().flatten().count(), kept, "the premise");
        scene.leases.close().await;
        assert_eq!(scene.tokens(NAME), vec![None; nodes]);
        assert_says_lost(lease.release().await, LossReason::Deleted);
    }
}

/// A client of the same nodes, none of which may push to it.
async fn without_push(scene: &Scene) -> Client {
    built(builder(scene.nodes.iter().map(Node::url_without_push).collect())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_without_notifications_the_next_renewal_repairs_or_reports_the_loss() {
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let leases = without_push(&scene).await;
        let lease = leases.lock(NAME).ttl(MEDIUM).acquire().await.expect("the nodes are well");
        scene.is_everywhere(&lease, HANGS).await;
        scene.is_renewed(&lease, MEDIUM).await;
        let (calm, loss) = (Calm::of(&lease), timed(lease.lost()));
        if share == Share::Majority {
            are_not_healed(scene.faulty(share));
        }
        let deleted = at_once(scene.faulty(share), &["DEL", NAME]);
        let limit = MEDIUM / 3 + SIGNAL;
        match share {
            Share::Minority => {
                is_healed(&scene, &lease, deleted, limit).await;
                calm.lasted(&scene.lag);
                lease.release().await.expect("it was ours to the end").confirmed();
            }
            Share::Majority => {
                is_told(loss, deleted, limit, LossReason::Deleted, &scene).await;
                assert_says_lost(lease.release().await, LossReason::Deleted);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_overwritten_on_a_minority_is_left_alone() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(MEDIUM).await;
    let (calm, [faulty]) = (Calm::of(&lease), scene.faulty(Share::Minority)) else { panic!("one of three") };
    at_once(scene.faulty(Share::Minority), SOMEBODY);
    // Time for a wrong change to the key or the lease.
    tokio::time::sleep(MEDIUM).await;
    let mut wire = faulty.server.wire();
    assert_eq!(wire.get(NAME).as_deref(), Some("somebody-else"));
    assert!(wire.pttl(NAME) > 50_000, "the other's TTL is left alone");

    // Once that key is deleted, ours is put back.
    let gone = Instant::now();
    wire.del(NAME);
    is_healed(&scene, &lease, gone, MEDIUM / 3 + SIGNAL).await;

    wire.must(SOMEBODY);
    scene.is_renewed(&lease, MEDIUM).await;
    calm.lasted(&scene.lag);
    lease.release().await.expect("a majority was ours to the end").confirmed();
    eventually_async(MEDIUM / 2, "ours are gone, the other's is not", || {
        scene.tokens(NAME) == [None, None, Some("somebody-else".to_owned())]
    })
    .await;
    scene.leases.close().await;
    assert_eq!(wire.get(NAME).as_deref(), Some("somebody-else"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_overwritten_on_a_majority_is_a_loss() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(LONG).await;
    scene.are_watched(1).await;
    let loss = timed(lease.lost());
    let taken = at_once(scene.faulty(Share::Majority), SOMEBODY);
    is_told(loss, taken, SIGNAL, LossReason::Taken, &scene).await;
    assert_says_lost(lease.release().await, LossReason::Taken);
    scene.leases.close().await;
    let theirs = Some("somebody-else".to_owned());
    assert_eq!(scene.tokens(NAME), [None, theirs.clone(), theirs], "theirs is left alone, and nothing of ours is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_flushed_minority_is_repaired() {
    for flush in ["FLUSHALL", "FLUSHDB"] {
        let scene = Scene::of(3).await;
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(scene.acquire_as(name, LONG).await);
        }
        for lease in &held {
            scene.is_everywhere(lease, HANGS).await;
        }
        scene.are_watched(held.len()).await;
        let calm: Vec<_> = held.iter().map(Calm::of).collect();
        let flushed = at_once(scene.faulty(Share::Minority), &[flush]);
        for lease in &held {
            is_healed(&scene, lease, flushed, SIGNAL).await;
        }
        for calm in calm {
            calm.lasted(&scene.lag);
        }
        for lease in held {
            lease.release().await.expect("it was ours to the end").confirmed();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_flushed_majority_is_a_loss() {
    for flush in ["FLUSHALL", "FLUSHDB"] {
        let scene = Scene::of(3).await;
        let held = [scene.acquire_as("a", LONG).await, scene.acquire_as("b", LONG).await];
        for lease in &held {
            scene.is_everywhere(lease, HANGS).await;
        }
        scene.are_watched(held.len()).await;
        let losses = held.each_ref().map(|lease| timed(lease.lost()));
        are_not_healed(scene.faulty(Share::Majority));
        let flushed = at_once(scene.faulty(Share::Majority), &[flush]);
        for loss in losses {
            is_told(loss, flushed, SIGNAL, LossReason::Deleted, &scene).await;
        }
        // The floors were flushed too; the clocks continue the fences.
        let next = scene.acquire_as("a", LONG).await;
        assert!(next.fence() > held[0].fence());
        next.release().await.expect("it was ours to the end").confirmed();
        for lease in held {
            assert_says_lost(lease.release().await, LossReason::Deleted);
        }
        scene.leases.close().await;
        for name in ["a", "b"] {
            assert_eq!(scene.tokens(name), [None, None, None], "no key is created again");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_ttl_changed_by_hand_is_corrected() {
    for (share, change) in Share::BOTH.into_iter().flat_map(|share| [(share, "PERSIST"), (share, "PEXPIRE")]) {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        scene.are_watched(1).await;
        let calm = Calm::of(&lease);
        let command = if change == "PERSIST" { &[change, NAME][..] } else { &[change, NAME, "3600000"] };
        let changed = at_once(scene.faulty(share), command);
        let (mut wires, full) = (scene.wires(), i64::try_from(MEDIUM.as_millis()).expect("a short TTL"));
        eventually_async(HANGS, "a renewal puts the TTL right", || {
            wires.iter_mut().all(|wire| (1..=full).contains(&wire.pttl(NAME)))
        })
        .await;
        let (took, bound) = (changed.elapsed(), MEDIUM / 3 + SIGNAL);
        seen::took("quorum: TTL put right", took, bound, &scene.lag);
        assert!(took <= scene.allowed(bound), "{share:?}, {change}: {took:?}");
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_another_type_on_a_minority_is_left_alone_and_on_a_majority_a_loss() {
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        scene.are_watched(1).await;
        let (calm, loss, faulty) = (Calm::of(&lease), timed(lease.lost()), scene.faulty(share));
        at_once(faulty, &["HSET", "made", "field", "value"]);
        let replaced = at_once(faulty, &["RENAME", "made", NAME]);
        match share {
            Share::Minority => {
                // Time for a wrong change to the key or the lease.
                tokio::time::sleep(MEDIUM).await;
                calm.lasted(&scene.lag);
                lease.release().await.expect("a majority was ours to the end").confirmed();
            }
            Share::Majority => {
                is_told(loss, replaced, SIGNAL, LossReason::Taken, &scene).await;
                assert_says_lost(lease.release().await, LossReason::Taken);
            }
        }
        scene.leases.close().await;
        for node in faulty {
            assert_eq!(node.server.wire().must(&["HGET", NAME, "field"]).text(), "value", "it is left alone");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_script_flush_during_use_is_invisible() {
    let scene = Scene::of(3).await;
    let held = scene.acquire_as("held", MEDIUM).await;
    let calm = Calm::of(&held);
    let flush = || {
        for node in &scene.nodes {
            node.server.wire().must(&["SCRIPT", "FLUSH"]);
        }
    };
    // For three TTLs, so that renewals find an empty cache too.
    let until = Instant::now() + 3 * MEDIUM;
    let mut cycles = 0;
    while Instant::now() < until {
        flush();
        let lease = scene.acquire(MEDIUM).await;
        flush();
        is_ours(&lease).await;
        flush();
        lease.release().await.expect("it was ours to the end").confirmed();
        cycles += 1;
    }
    seen::counted("quorum: cycles with an empty cache", cycles);
    calm.lasted(&scene.lag);
    held.release().await.expect("it was ours to the end").confirmed();
}

/// Two of five nodes have released it, one had lost it, and two do not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_release_reports_each_nodes_answer() {
    let scene = Scene::of(5).await;
    let lease = scene.acquire_everywhere(LONG).await;
    are_not_healed(&scene.nodes[..1]);
    for node in &scene.nodes[3..] {
        node.proxy.black_hole(true);
    }
    scene.nodes[0].server.wire().del(NAME);
    let error = unconfirmed(within(HANGS, "the release", lease.release()).await);
    let votes = error.votes().expect("it was put to five nodes");
    let answers: Vec<_> = votes.nodes().iter().map(Vote::answer).collect();
    assert_eq!((votes.granted(), votes.needed()), (2, 3), "{error}");
    assert!(matches!(answers[0], NodeAnswer::NotOurs), "{error}");
    assert!(matches!(answers[3..], [NodeAnswer::Unreachable(_), NodeAnswer::Unreachable(_)]), "{error}");
}
