//! Redlock as implemented by other libraries, on the same keys: each side excludes the other, in both orders.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::Error;
use support::{SIGNAL, Wire, eventually_async, within};

use super::scene::{HANGS, Scene, builder, built};
use crate::common::{Calm, Confirmed as _, LONG, MEDIUM, NAME, in_vain};

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// A client of the classic algorithm, with connections of its own.
struct Classic {
    wires: Vec<Wire>,
    token: &'static str,
}

impl Classic {
    fn of(scene: &Scene, token: &'static str) -> Self {
        Self { wires: scene.wires(), token }
    }

    /// Tries once, for a majority or nothing.
    fn acquire(&mut self, ttl: Duration) -> bool {
        let (majority, ttl) = (self.wires.len() / 2 + 1, ttl.as_millis().to_string());
        let set = |wire: &mut Wire| !wire.must(&["SET", NAME, self.token, "NX", "PX", &ttl]).is_nil();
        let granted = self.wires.iter_mut().filter_map(|wire| set(wire).then_some(())).count();
        if granted < majority {
            self.release();
        }
        granted >= majority
    }

    /// Releases the lock. Returns how many nodes had its key.
    fn release(&mut self) -> usize {
        let delete = |wire: &mut Wire| wire.must(&["EVAL", COMPARE_AND_DELETE, "1", NAME, self.token]).int() == 1;
        self.wires.iter_mut().filter_map(|wire| delete(wire).then_some(())).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_holder_keeps_us_out_until_it_releases() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let mut classic = Classic::of(&scene, "classic");
        assert!(classic.acquire(LONG));

        assert!(scene.leases.lock(NAME).ttl(LONG).try_acquire().await.expect("the nodes are well").is_none());
        let error = in_vain(&scene.leases.lock(NAME), Duration::from_millis(100)).await;
        let Error::TimedOut { holder, .. } = error else { panic!("{error}") };
        assert_eq!((holder.label(), holder.fence()), (None, None));
        assert!(holder.remaining().is_some_and(|left| left <= LONG && left > LONG / 2), "{holder:?}");
        let holder = scene.leases.lock(NAME).holder().await.expect("the nodes are well").expect("it is held");
        assert_eq!(holder.label(), None);

        let waiter = tokio::spawn(scene.leases.lock(NAME).acquire());
        scene.are_watched(2).await;
        assert!(!waiter.is_finished());
        let released = Instant::now();
        assert_eq!(classic.release(), nodes, "its keys are untouched");
        let lease = within(HANGS, "the lock", waiter).await.expect("it does not panic").expect("it is free");
        let took = released.elapsed();
        assert!(took <= SIGNAL + scene.lag.of(3), "it was notified after {took:?}");
        lease.release().await.expect("it was ours to the end").confirmed();
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_holder_that_dies_keeps_us_out_for_its_ttl() {
    const TTL: Duration = Duration::from_millis(400);
    let scene = Scene::of(3).await;
    let mut classic = Classic::of(&scene, "classic");
    for _ in 0..5 {
        let before = Instant::now();
        assert!(classic.acquire(TTL));
        let lease = within(HANGS, "the lock", scene.leases.lock(NAME).acquire()).await.expect("it runs out");
        let took = before.elapsed();
        // Servers count in whole milliseconds.
        assert!(took + Duration::from_millis(2) >= TTL, "two held it: {took:?}");
        assert!(took <= scene.allowed(TTL + SIGNAL), "{took:?}");
        // The classic client set its keys one after the other, and a majority is enough for our lease.
        let run_out = || !scene.tokens(NAME).contains(&Some("classic".to_owned()));
        eventually_async(HANGS, "the last of its keys runs out", run_out).await;
        assert_eq!(classic.release(), 0, "expired keys are no longer its own");
        lease.release().await.expect("it was ours to the end").confirmed();
        scene.is_taken_away(NAME).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_keeps_classic_clients_out_and_they_do_not_disturb_it() {
    for nodes in [3, 5] {
        let scene = Scene::of(nodes).await;
        let lease = scene.acquire_everywhere(MEDIUM).await;
        let token = scene.tokens(NAME);
        let calm = Calm::of(&lease);
        let mut classic = Classic::of(&scene, "classic");
        let until = Instant::now() + MEDIUM * 3 / 2;
        while Instant::now() < until {
            assert!(!classic.acquire(LONG), "two hold the lock");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(scene.tokens(NAME), token);
        calm.lasted(&scene.lag);
        lease.release().await.expect("it was ours to the end").confirmed();
        // Both sides need only a majority; on the other nodes the release may be a moment behind.
        assert!(classic.acquire(LONG), "the lock is free");
        assert!(classic.release() > nodes / 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_majority_is_enough_and_our_minority_is_undone() {
    let scene = Scene::of(3).await;
    let mut classic = Classic::of(&scene, "classic");
    // The third node did not answer the classic client in time.
    let third = classic.wires.pop().expect("three");
    assert!(classic.acquire(LONG) && classic.wires.len() == 2);
    classic.wires.push(third);

    for _ in 0..10 {
        assert!(scene.leases.lock(NAME).ttl(LONG).try_acquire().await.expect("the nodes are well").is_none());
    }
    let error = in_vain(&scene.leases.lock(NAME).ttl(LONG), Duration::from_millis(100)).await;
    let Error::TimedOut { holder, .. } = error else { panic!("{error}") };
    assert_eq!(holder.label(), None);
    let theirs = Some("classic".to_owned());
    eventually_async(HANGS, "what was granted is undone", || {
        scene.tokens(NAME) == [theirs.clone(), theirs.clone(), None]
    })
    .await;
    assert_eq!(classic.release(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_clients_leftovers_on_a_minority_block_nobody() {
    const LEFT: Duration = Duration::from_millis(700);
    let scene = Scene::of(3).await;
    let mut wire = scene.nodes[2].server.wire();
    // The classic client died before it had a majority.
    wire.must(&["SET", NAME, "classic", "PX", &LEFT.as_millis().to_string()]);
    let left = Instant::now();
    let lease = scene.acquire(MEDIUM).await;
    assert!(left.elapsed() < LEFT, "it is not waited for");
    let calm = Calm::of(&lease);
    assert_eq!(wire.get(NAME).as_deref(), Some("classic"), "it is left alone");
    // The key expires, and our renewal takes its place.
    scene.is_everywhere(&lease, LEFT + MEDIUM / 3 + SIGNAL).await;
    calm.lasted(&scene.lag);
    lease.release().await.expect("it was ours to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_plain_strings_at_exactly_the_prefix_and_the_name() {
    let scene = Scene::of(3).await;
    let leases = built(builder(scene.urls()).prefix("app:").label("here")).await;
    let lease = leases.lock("night job").ttl(LONG).acquire().await.expect("the nodes are well");
    let mut wires = scene.wires();
    let all_have = |wire: &mut Wire| wire.exists("app:night job");
    eventually_async(HANGS, "every node has it", || wires.iter_mut().all(all_have)).await;
    let mut tokens = Vec::new();
    for wire in &mut wires {
        assert_eq!(wire.must(&["TYPE", "app:night job"]).text(), "string");
        assert_eq!(wire.keys("*"), ["app:night job", "{app:night job}:lh:fence"]);
        assert!((1..=30_000).contains(&wire.pttl("app:night job")));
        tokens.extend(wire.get("app:night job"));
    }
    assert!(tokens[0].starts_with("lh1:") && tokens[0].ends_with("@here"), "{tokens:?}");
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "one token for all nodes");
    lease.release().await.expect("it was ours to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classic_clients_and_ours_take_turns() {
    const TURNS: usize = 60;
    let scene = Scene::of(3).await;
    let inside = Arc::new(AtomicU64::new(0));
    let alone = |inside: &AtomicU64| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
        thread::sleep(Duration::from_micros(300));
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    let classic = ["one", "two"].map(|token| {
        let (mut classic, inside) = (Classic::of(&scene, token), inside.clone());
        tokio::task::spawn_blocking(move || {
            let mut pause = Duration::from_millis(1);
            for _ in 0..TURNS {
                while !classic.acquire(LONG) {
                    // Each client has its own pause, so that they do not split the votes for ever.
                    pause = (pause * 7 / 5).min(Duration::from_millis(if token == "one" { 11 } else { 17 }));
                    thread::sleep(pause);
                }
                alone(&inside);
                classic.release();
            }
        })
    });
    let mut fence = None;
    for _ in 0..TURNS {
        let lease = scene.acquire(LONG).await;
        alone(&inside);
        lease.check().expect("it was not taken");
        assert!(fence < Some(lease.fence()));
        fence = Some(lease.fence());
        lease.release().await.expect("it was ours to the end").confirmed();
    }
    for classic in classic {
        within(HANGS, "its turns", classic).await.expect("two hold the lock");
    }
}
