//! Faults of servers and links under a quorum, on a minority of the nodes and on a majority: F5 to F12 and F19.
//!
//! A fault of a minority must be invisible: the lease is held, `check()` is always `Ok`, and no status but `Held` is
//! ever reported. Deadlines are computed from outside, as in `faults/network.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Error, LossReason, NodeState, Released, Status};
use support::{
    Action, Lag, Match, Nodes, RuleHandle, SIGNAL, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RAISE, RELEASE, RENEW},
    seen, within,
};
use tokio::task::spawn_blocking;

use super::scene::{HANGS, Node, Scene, Share, all_hit, builder, built, floors_apart, on_each, on_first, renewals};
use crate::common::{
    COMMAND, Calm, Confirmed as _, FENCE, LONG, MEDIUM, NAME, RESTARTS, SHORT, assert_says_lost, assert_was_ours,
    ending, is_ours,
};

/// The ways in which a link is reset in the middle of a command.
const CUTS: [Action; 2] = [Action::CutBefore, Action::CutAfter];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_all_nodes_killed_and_restarted_with_their_append_only_files() {
    let (nodes, lag) = (Nodes::with(3, |server| server.aof(true)), Lag::start());
    let leases = built(builder(nodes.urls())).await;
    let lease =
        within(HANGS, "a free lock", leases.lock(NAME).ttl(RESTARTS).acquire()).await.expect("the nodes are well");
    let tokens = || -> Vec<_> { nodes.iter().map(|server| server.wire().token(NAME)).collect() };
    let is_everywhere = || tokens().iter().all(Option::is_some);
    eventually_async(HANGS, "every node has it", is_everywhere).await;
    let before = tokens();
    let deadline = Instant::now() + lease.remaining();
    for server in nodes.iter() {
        server.kill();
    }
    for server in nodes.iter() {
        server.restart();
    }
    assert!(Instant::now() < deadline, "the servers took too long to start for this test");
    let is_renewed = || Instant::now() + lease.remaining() > deadline + SIGNAL || lease.check().is_err();
    eventually_async(HANGS, "a renewal is confirmed", is_renewed).await;
    assert_eq!((lease.check(), tokens()), (Ok(()), before));
    lease.release().await.expect("it was held to the end").confirmed();
    // A majority has answered, but the last node may still be connecting.
    let is_nowhere = || tokens().iter().all(Option::is_none);
    eventually_but_for(&lag, MEDIUM / 2, "no node has it", is_nowhere).await;
}

/// A renewal is awaited as long as it may help, but its silent node is noticed long before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_no_renewal_is_silent_before_the_renewal_is_given_up() {
    const TTL: Duration = Duration::from_secs(6);
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(TTL).await;
    scene.nodes[2].proxy.black_hole(true);
    let is_silent = || *scene.leases.nodes()[2].state() != NodeState::Up;
    // The next renewal is sent within a third of the TTL, and its node counts as silent after one command time-out.
    eventually_but_for(&scene.lag, TTL / 3 + 2 * COMMAND, "its silence is known", is_silent).await;
    lease.check().expect("two of three hold it");
    lease.release().await.expect("two of three held it").confirmed();
}

fn restart_empty(nodes: &[Node]) {
    for node in nodes {
        node.server.kill();
    }
    for node in nodes {
        node.server.restart();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_minority_killed_and_restarted_empty_is_repaired() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        let calm = Calm::of(&lease);
        restart_empty(scene.faulty(Share::Minority));
        // The returned node gets a request by the next probe at the latest, and its lost key is repaired at once.
        scene.is_everywhere(&lease, MEDIUM).await;
        scene.is_renewed(&lease, MEDIUM).await;
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();
        scene.is_taken_away_within(MEDIUM / 2, NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_majority_killed_and_restarted_empty_is_a_loss() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(RESTARTS).await;
    let not_told = scene.acquire_as("not told", LONG).await;
    scene.is_renewed(&lease, RESTARTS).await;
    let deadline = Instant::now() + lease.remaining();
    let faulty = scene.faulty(Share::Majority);
    restart_empty(faulty);
    let back = Instant::now();
    assert!(back < deadline, "the servers took too long to start for this test");

    let lost = within(HANGS, "lost() completes", lease.lost()).await;
    let (took, limit) = (back.elapsed(), scene.allowed(RESTARTS / 3 + COMMAND + SIGNAL));
    seen::took("quorum: signal after the nodes were back", took, RESTARTS / 3 + COMMAND + SIGNAL, &scene.lag);
    assert_eq!(lost.reason(), LossReason::Deleted);
    // A renewal is due within a third of the TTL, and a returned node gets one by its next probe.
    assert!(took <= limit, "it was reported {took:?} after the nodes were back, not within {limit:?}");
    assert_says_lost(lease.release().await, LossReason::Deleted);
    assert_says_lost(not_told.release().await, LossReason::Deleted);
    scene.leases.close().await;
    for node in faulty {
        assert_eq!(node.server.wire().keys("*"), Vec::<String>::new(), "no key is created again");
    }
    assert_eq!(scene.tokens(NAME), vec![None; 3]);
}

/// Cuts off these nodes just before a renewal, for ever. Returns a moment after which none can have confirmed one.
async fn vanish(nodes: &[Node]) -> Instant {
    let renewals = on_each(nodes, RENEW, Action::DropRequest);
    let last = Instant::now();
    all_hit(&renewals, "a renewal is due").await;
    for node in nodes {
        node.proxy.black_hole(true);
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_minority_black_holed_just_before_a_renewal_and_for_ever() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        scene.is_renewed(&lease, MEDIUM).await;
        let calm = Calm::of(&lease);
        vanish(scene.faulty(Share::Minority)).await;
        // The time in which the fault must stay unnoticed.
        tokio::time::sleep(2 * MEDIUM).await;
        calm.lasted(&scene.lag);
        let started = Instant::now();
        lease.release().await.expect("a majority released it").confirmed();
        // Nodes known to be silent are not waited for.
        assert!(started.elapsed() <= scene.allowed(COMMAND / 2), "the release took {:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_majority_black_holed_just_before_a_renewal_and_for_ever() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(SHORT).await;
    // A `check()` at the deadline would complete `lost()` too, which must complete by its own timer.
    let quiet = scene.acquire_as("quiet", SHORT).await;
    let other = scene.other().await;
    let rival = tokio::spawn(async move {
        let lease = other.lock(NAME).ttl(MEDIUM).acquire().await.expect("an outage ends no acquire");
        (lease, Instant::now())
    });
    scene.is_renewed(&quiet, SHORT).await;
    scene.is_renewed(&lease, SHORT).await;
    let faulty = scene.faulty(Share::Majority);
    let last = vanish(faulty).await;

    // The healthy node continues to confirm, so the latest renewal of the others counts.
    let latest = |lease| {
        let seen = faulty.iter().flat_map(|node| renewals(node, lease)).filter(|at| *at <= last).max();
        seen.expect("it was renewed") + SHORT.saturating_sub(SHORT / 100 + Duration::from_millis(2))
    };
    let (deadline, quiet_deadline) = (latest(&lease), latest(&quiet));
    let lost = tokio::spawn({
        let lost = quiet.lost();
        async move { (lost.await, Instant::now()) }
    });
    let handle = lease.handle();
    let checked = spawn_blocking(move || {
        let mut last_ok = Instant::now();
        loop {
            let asked = Instant::now();
            if handle.check().is_err() {
                return last_ok;
            }
            last_ok = asked;
            assert!(asked < deadline, "check() is Ok {:?} after the deadline", asked - deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let last_ok = checked.await.expect("check() is Err from the deadline on");
    let (lost, at) = within(HANGS, "lost() completes", lost).await.expect("it does not panic");
    seen::took("quorum: signal after the deadline", at.saturating_duration_since(quiet_deadline), SIGNAL, &scene.lag);
    assert!(at <= quiet_deadline + scene.allowed(SIGNAL), "lost() came {:?} late", at - quiet_deadline);
    assert_eq!(lost.reason(), LossReason::NoQuorum);
    assert_eq!(ending(lease.check()).reason(), LossReason::NoQuorum);

    let (successor, acquired) = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
    assert!(acquired > last_ok, "two held the lock at the same time");
    assert!(successor.fence() > lease.fence());
    assert_says_lost(lease.release().await, LossReason::NoQuorum);
    is_ours(&successor).await;
    successor.release().await.expect("it did to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_links_reset_in_the_middle_of_an_acquire() {
    for (share, action) in Share::BOTH.into_iter().flat_map(|share| CUTS.map(|cut| (share, cut))) {
        let scene = Scene::of(3).await;
        let cuts = on_first(scene.faulty(share), ACQUIRE, action);
        let lease = scene.acquire(MEDIUM).await;
        all_hit(&cuts, "the links are reset").await;
        // With a minority cut, the first attempt wins, and the first renewal round repairs the node without a key.
        let calm = Calm::of(&lease);
        if share == Share::Minority {
            assert_eq!(scene.nodes[0].proxy.count(Match::script(ACQUIRE)), 1, "{action:?}");
        }
        scene.is_everywhere(&lease, MEDIUM).await;
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();

        let cuts = on_first(scene.faulty(share), ACQUIRE, action);
        match scene.leases.lock("tried").ttl(LONG).try_acquire().await {
            Ok(Some(lease)) => lease.release().await.expect("it was ours to the end").confirmed(),
            Err(Error::Unavailable(_)) if share == Share::Majority => {}
            other => panic!("{share:?}, {action:?}: {other:?}"),
        }
        all_hit(&cuts, "the links are reset").await;
        scene.is_taken_away("tried").await;
    }
}

/// Requests waiting for a link to a node are sent in any order once it is up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn f8_acquires_and_their_releases_wait_for_the_same_link() {
    const LEASES: usize = 16;
    let scene = Scene::of(3).await;
    scene.acquire_everywhere(MEDIUM).await.release().await.expect("it was ours to the end").confirmed();
    let apart = &scene.nodes[2].proxy;
    apart.refuse(true);
    apart.cut();
    // From now on the link is known to have ended.
    scene.acquire(MEDIUM).await.release().await.expect("it was ours to the end").confirmed();
    let names: Vec<String> = (0..LEASES).map(|number| format!("tried:{number}")).collect();
    let cycles = names.iter().map(|name| {
        let lock = scene.leases.lock(name).ttl(LONG);
        tokio::spawn(async move {
            let lease = lock.acquire().await.expect("a majority grants it");
            lease.release().await.expect("it was ours to the end").confirmed();
        })
    });
    for cycle in cycles.collect::<Vec<_>>() {
        within(HANGS, "it is released", cycle).await.expect("it does not panic");
    }
    let before = apart.count(Match::script(ACQUIRE));
    apart.refuse(false);
    eventually_async(HANGS, "they come through", || apart.count(Match::script(ACQUIRE)) > before).await;
    scene.acquire_everywhere(MEDIUM).await.release().await.expect("it was ours to the end").confirmed();
    for name in &names {
        scene.is_taken_away(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_links_reset_in_the_middle_of_a_raise() {
    for (share, action) in Share::BOTH.into_iter().flat_map(|share| CUTS.map(|cut| (share, cut))) {
        let scene = Scene::of(3).await;
        floors_apart(&scene.nodes);
        // The node with the largest fence answers first, so the others must be raised, the last one before the one
        // between.
        scene.nodes[1].proxy.delay(Duration::from_millis(30));
        scene.nodes[2].proxy.delay(Duration::from_millis(15));
        let cuts = on_first(scene.faulty(share), RAISE, action);
        let lease = scene.acquire(LONG).await;
        all_hit(&cuts, "the links are reset").await;
        if share == Share::Minority {
            assert_eq!(scene.nodes[0].proxy.count(Match::script(ACQUIRE)), 1, "{action:?}");
        }
        is_ours(&lease).await;
        let fence = u64::from(lease.fence());
        let floor = |node: &Node| node.server.wire().get(FENCE).and_then(|floor| floor.parse().ok());
        let raised = scene.nodes.iter().filter(|node| floor(node).is_some_and(|floor: u64| floor >= fence)).count();
        assert!(raised >= 2, "{share:?}, {action:?}: {raised} nodes have the floor");
        lease.release().await.expect("it was ours to the end").confirmed();
        // A failed attempt leaves nothing either.
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_links_reset_in_the_middle_of_a_renewal() {
    for (share, action) in Share::BOTH.into_iter().flat_map(|share| CUTS.map(|cut| (share, cut))) {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        scene.is_renewed(&lease, MEDIUM).await;
        let deadline = Instant::now() + lease.remaining();
        let calm = Calm::of(&lease);
        let cuts = on_first(scene.faulty(share), RENEW, action);
        all_hit(&cuts, "the links are reset").await;
        scene.is_renewed(&lease, MEDIUM).await;
        if share == Share::Minority {
            // Waits until the lease would have ended without that renewal.
            tokio::time::sleep_until(deadline.into()).await;
            calm.lasted(&scene.lag);
        }
        lease.check().expect("a reset link is not a loss");
        lease.release().await.expect("it was ours to the end").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_links_reset_in_the_middle_of_a_release() {
    for (share, action) in Share::BOTH.into_iter().flat_map(|share| CUTS.map(|cut| (share, cut))) {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(LONG).await;
        let cuts = on_first(scene.faulty(share), RELEASE, action);
        lease.release().await.expect("it was sent again, and was ours").confirmed();
        all_hit(&cuts, "the links are reset").await;
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_links_reset_in_the_middle_of_every_release() {
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let lease = scene.acquire_everywhere(LONG).await;
        let cuts = on_each(scene.faulty(share), RELEASE, Action::CutBefore);
        match (share, lease.release().await) {
            (Share::Minority, Ok(Released::Confirmed)) | (Share::Majority, Ok(Released::Unconfirmed(_))) => {}
            (share, other) => panic!("{share:?} released nothing, and it returned {other:?}"),
        }
        let left = scene.tokens(NAME).iter().flatten().count();
        assert_eq!(left, scene.faulty(share).len(), "nothing can have released it there");
        cuts.iter().for_each(RuleHandle::disarm);
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_replies_of_an_acquire_swallowed() {
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let swallowed = on_first(scene.faulty(share), ACQUIRE, Action::SwallowReply);
        let lease = scene.acquire(LONG).await;
        all_hit(&swallowed, "the replies are swallowed").await;
        if share == Share::Minority {
            assert_eq!(scene.nodes[0].proxy.count(Match::script(ACQUIRE)), 1);
        }
        is_ours(&lease).await;
        lease.release().await.expect("it was ours to the end").confirmed();
        scene.is_taken_away(NAME).await;
    }
    for share in Share::BOTH {
        let scene = Scene::of(3).await;
        let swallowed = on_first(scene.faulty(share), ACQUIRE, Action::SwallowReply);
        match (share, scene.leases.lock(NAME).ttl(LONG).try_acquire().await) {
            (Share::Minority, Ok(Some(lease))) => lease.release().await.expect("a majority released it").confirmed(),
            (Share::Majority, Err(Error::Unavailable(_))) => {}
            (share, other) => panic!("{share:?} did not answer, and it returned {other:?}"),
        }
        all_hit(&swallowed, "the replies are swallowed").await;
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_replies_of_a_release_swallowed_and_the_commands_replayed() {
    for share in Share::BOTH {
        // A release waits half of it for a replay.
        let scene = Scene::with(3, |builder| builder.command_timeout(Duration::from_secs(2))).await;
        let lease = scene.acquire_everywhere(LONG).await;
        let other = scene.other().await;
        let rival = tokio::spawn(other.lock(NAME).ttl(LONG).acquire());
        let faulty = scene.faulty(share);
        let swallowed = on_first(faulty, RELEASE, Action::SwallowReply);
        // The replays must meet the next holder's key.
        let second = |node: &Node| node.proxy.on(Match::script(RELEASE), 2, Action::Hold);
        let replays: Vec<_> = faulty.iter().map(second).collect();
        let release = tokio::spawn(lease.release());
        let successor = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
        let successor = successor.expect("the nodes are well");
        all_hit(&swallowed, "the replies are swallowed").await;
        all_hit(&replays, "they are sent again").await;
        let token = scene.is_everywhere(&successor, HANGS).await;
        replays.iter().for_each(RuleHandle::release);
        within(HANGS, "the release ends", release)
            .await
            .expect("it does not panic")
            .expect("it was ours to the end")
            .confirmed();
        assert_eq!(scene.tokens(NAME), vec![Some(token); 3], "the next holder's keys are left alone");
        is_ours(&successor).await;
        successor.release().await.expect("it did to the end").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_link_that_is_slow_each_way() {
    // The row's own numbers, if figures are wanted. Else a loaded machine has time for the round trip of 0.4 s.
    let (ttl, ttls) = if seen::is_wanted() { (Duration::from_secs(1), 100) } else { (Duration::from_secs(3), 7) };
    let scene = Scene::with(3, |builder| builder.command_timeout(ttl)).await;
    let lease = scene.acquire(ttl).await;
    scene.nodes.iter().for_each(|node| node.proxy.delay(Duration::from_millis(200)));
    let began = Instant::now();
    let lost = tokio::time::timeout(ttl * ttls, lease.lost()).await;
    assert!(lost.is_err(), "{lost:?}; the machine lagged {:?}", scene.lag.worst());
    lease.check().expect("it was renewed all the time");
    seen::at_least("quorum: TTLs held", (began.elapsed().as_millis() / ttl.as_millis()) as usize, ttls as usize);
    lease.release().await.expect("it was ours to the end").confirmed();
    scene.is_taken_away(NAME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_acquired_over_a_link_that_is_slow_each_way() {
    const TTL: Duration = Duration::from_secs(3);
    let scene = Scene::with(3, |builder| builder.command_timeout(TTL)).await;
    scene.nodes.iter().for_each(|node| node.proxy.delay(Duration::from_millis(200)));
    // An answer takes 400 ms, and with the second phase 800, which leaves more than half of the TTL.
    let lease = scene.acquire(TTL).await;
    let attempts = scene.nodes[0].proxy.count(Match::script(ACQUIRE));
    assert_eq!(attempts, 1, "the machine lagged {:?}", scene.lag.worst());
    let lost = tokio::time::timeout(2 * TTL, lease.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    lease.release().await.expect("it was ours to the end").confirmed();
}

/// Three processes take turns, and one of them also holds another lock all the time, while replies are lost.
async fn turns_are_taken_while_one_reply_is_lost_in(many: u64) {
    const TURNS: u64 = 15;
    // A reply is never lost alone: its connection stays silent until the library has replaced it, after two command
    // time-outs. That leaves time for three more tries in a row.
    const TTL: Duration = COMMAND.saturating_mul(20);
    let scene = Scene::of(3).await;
    let lose = |(node, seed): (&Node, u64)| {
        node.proxy.on_each(Match::command("EVALSHA").and(Match::one_in(many, seed)), Action::SwallowReply)
    };
    let rules: Vec<_> = scene.nodes.iter().zip(1..).map(lose).collect();
    let lease = scene.acquire_as("held", TTL).await;
    let inside = Arc::new(AtomicU64::new(0));
    let mut turns = Vec::new();
    for _ in 0..3 {
        let leases = built(builder(scene.nodes.iter().map(|node| node.proxy.url()).collect())).await;
        let inside = inside.clone();
        turns.push(tokio::spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..TURNS {
                let lease = leases.lock(NAME).ttl(MEDIUM).acquire().await.expect("silence ends no acquire");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                fences.push(lease.fence());
                // Without answers from a majority the release is unknown, and continues in the background.
                let released = lease.release().await;
                assert_was_ours(&released);
            }
            fences
        }));
    }
    let mut fences = Vec::new();
    for turns in turns {
        let theirs = within(HANGS * 8, "each has had its turns", turns).await.expect("it does not panic");
        assert!(theirs.is_sorted());
        fences.extend(theirs);
    }
    fences.sort_unstable();
    let drawn = fences.len();
    fences.dedup();
    assert_eq!(fences.len(), drawn, "two leases have one fence");
    let lost: usize = rules.iter().map(RuleHandle::hits).sum();
    seen::at_least("quorum: replies lost", lost, 1);
    assert!(lost > 0, "the rules had something to do");
    assert_eq!(lease.check(), Ok(()), "{lost} replies were lost; the machine lagged {:?}", scene.lag.worst());
    rules.iter().for_each(RuleHandle::disarm);
    eventually_async(HANGS, "it is well", || lease.status() == Status::Held).await;
    // Connections that lost a reply last may not have been replaced yet.
    let released = lease.release().await;
    assert_was_ours(&released);
    scene.is_taken_away("held").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_one_reply_in_a_hundred_is_lost() {
    turns_are_taken_while_one_reply_is_lost_in(100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_one_reply_in_ten_is_lost() {
    turns_are_taken_while_one_reply_is_lost_in(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_client_kill_of_every_connection_repeatedly() {
    let scene = Scene::of(3).await;
    let lease = scene.acquire_everywhere(MEDIUM).await;
    let mut wires = scene.wires();
    let mut kill = || {
        for wire in &mut wires {
            for kind in ["pubsub", "normal"] {
                wire.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
        }
    };
    // How long this machine takes to connect and to renew.
    kill();
    let cut = Instant::now();
    while lease.renew().await.is_err() {
        assert_eq!(lease.check(), Ok(()), "after one cut");
    }
    let renewed = cut.elapsed();
    // Longer than a lease lasts without renewals.
    let (until, mut kills) = (Instant::now() + 2 * MEDIUM, 1);
    while Instant::now() < until || kills <= 8 {
        kill();
        kills += 1;
        // Every third pause is long enough for that, however late the machine has been.
        let enough = if kills % 3 == 0 { renewed } else { Duration::ZERO };
        tokio::time::sleep(Duration::from_millis(7 * (kills % 15)) + scene.lag.worst() + enough).await;
    }
    assert!(kills > 8, "{kills}");
    seen::at_least("quorum: kills of every connection", usize::try_from(kills).expect("a few"), 9);
    assert_eq!(lease.check(), Ok(()), "the machine lagged {:?}", scene.lag.worst());
    scene.is_renewed(&lease, MEDIUM).await;
    lease.release().await.expect("it was ours to the end").confirmed();
    scene.is_taken_away_within(MEDIUM / 2, NAME).await;
}

/// The probe of a silent node. A new connection asks for sections of `INFO` instead.
fn probe() -> Match {
    Match::with(|args| matches!(args, [name] if name.eq_ignore_ascii_case(b"INFO")))
}

/// While it is silent a node is only probed, and it may return at any moment, so a release waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_waits_for_nodes_that_are_about_to_answer_again() {
    let scene = Scene::with(3, |builder| builder.command_timeout(Duration::from_secs(1))).await;
    let lease = scene.acquire_everywhere(LONG).await;
    let majority = &scene.nodes[1..];
    let lost = on_each(majority, RENEW, Action::SwallowReply);
    let hold = |node: &Node| node.proxy.on_each(probe(), Action::HoldReply);
    let probes: Vec<_> = majority.iter().map(hold).collect();
    lease.renew().await.expect_err("two of three are silent");
    all_hit(&probes, "the probe").await;
    lost.iter().for_each(RuleHandle::disarm);
    let released = tokio::spawn(lease.release());
    let first = &scene.nodes[0].server;
    eventually_async(HANGS, "the release has begun", || !first.wire().exists(NAME)).await;
    probes.iter().for_each(RuleHandle::disarm);
    probes.iter().for_each(RuleHandle::release);
    let released = within(HANGS, "the release ends", released).await.expect("it does not panic");
    assert_eq!(released, Ok(Released::Confirmed));
    scene.is_taken_away(NAME).await;
}

/// One connection may be dead while the node is healthy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_on_another_connection_is_not_silent() {
    // With one node killed a renewal needs both others, each within a command time-out.
    let scene = Scene::with(3, |builder| builder.command_timeout(Duration::from_secs(1))).await;
    let lease = scene.acquire_everywhere(LONG).await;
    scene.nodes[0].server.kill();
    let renewed = async || lease.renew().await.expect("two of three answer");
    renewed().await;
    // A probe would not be answered.
    let probes = scene.nodes[2].proxy.on_each(probe(), Action::HoldReply);
    let held = scene.nodes[2].proxy.on_each(Match::script(ACQUIRE), Action::HoldReply);
    let other = tokio::spawn(scene.leases.lock("other").try_acquire());
    // No request is in flight most of the time, and each answer is newer than any silence that counts.
    while !other.is_finished() {
        renewed().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other.await.expect("it does not panic").expect_err("only one of three answers");
    assert!(held.hits() > 0);
    renewed().await;
    held.release();
    probes.release();
    lease.release().await.expect("it was ours to the end").confirmed();
}

/// A fence to which a majority must be raised takes a second round trip, which is part of the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_phases_of_an_acquire_have_one_limit() {
    const LIMIT: Duration = Duration::from_millis(250);
    let scene = Scene::with(3, |builder| builder.command_timeout(Duration::from_secs(1))).await;
    floors_apart(&scene.nodes);
    // If all three answered, the first one's late vote would make up for the fences of the other two.
    scene.nodes[2].proxy.black_hole(true);
    for node in &scene.nodes {
        node.proxy.delay(Duration::from_millis(80));
    }
    let (lag, started) = (Lag::start(), Instant::now());
    let outcome = within(HANGS, "an answer", scene.leases.lock(NAME).acquire_within(LIMIT)).await;
    let (took, late) = (started.elapsed(), lag.worst());
    assert!(outcome.is_err(), "two round trips take 0.32 s, and this took {took:?}");
    assert!(took <= LIMIT + Duration::from_millis(20) + late, "it took {took:?}; the machine lagged {late:?}");
    for node in &scene.nodes {
        node.proxy.delay(Duration::ZERO);
    }
    scene.is_taken_away(NAME).await;
}
