//! Keys that outlive their lease, over a quorum: row F78.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LossReason};
use support::{Wire, within};

use super::scene::{HANGS, Scene, Share, at_once, builder, built};
use crate::common::{Calm, Confirmed as _, LONG, MEDIUM, NAME, SHORT};

const MINUTE: Duration = Duration::from_secs(60);

fn left(wire: &mut Wire) -> Duration {
    Duration::from_millis(wire.pttl(NAME).try_into().unwrap_or_else(|_| panic!("the key is gone")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_key_that_is_brought_back_has_its_life_again() {
    for (delay, interval) in [(MINUTE, None), (Duration::ZERO, Some(MINUTE))] {
        let scene = Scene::of(3).await;
        let lock = scene.leases.lock(NAME).ttl(LONG).lock_delay(delay);
        let lock = interval.into_iter().fold(lock, leasehold::Lock::once_per);
        let lease = within(HANGS, "the lock is acquired", lock.acquire()).await.unwrap();
        scene.is_everywhere(&lease, LONG).await;
        scene.are_watched(1).await;
        let calm = Calm::of(&lease);
        at_once(scene.faulty(Share::Minority), &["DEL", NAME]);
        scene.is_everywhere(&lease, HANGS).await;
        for wire in &mut scene.wires() {
            let left = left(wire);
            assert!(left + HANGS > MINUTE && left <= LONG + MINUTE, "{left:?}");
        }
        calm.lasted(&scene.lag);
        lease.release().await.unwrap().confirmed();
        if delay.is_zero() {
            assert!(scene.wires().iter_mut().all(|wire| left(wire) + HANGS > MINUTE), "retained");
        } else {
            scene.is_taken_away(NAME).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_a_quorum_that_is_lost_leaves_the_keys() {
    // Long enough for the next holder to be too early, or for the cut-off one to delete.
    const OUTLIVES: Duration = Duration::from_secs(4);
    for (delay, interval) in [(OUTLIVES, None), (Duration::ZERO, Some(OUTLIVES + SHORT))] {
        let scene = Scene::of(3).await;
        let lock = scene.leases.lock(NAME).ttl(SHORT).lock_delay(delay);
        let lock = interval.into_iter().fold(lock, leasehold::Lock::once_per);
        let lease = within(HANGS, "the lock is acquired", lock.acquire()).await.unwrap();
        let acquired = Instant::now();
        scene.is_everywhere(&lease, LONG).await;
        scene.nodes.iter().for_each(|node| node.proxy.black_hole(true));
        let lost = within(HANGS, "the signal of a loss", lease.lost()).await;
        assert!(matches!(lost.reason(), LossReason::NoQuorum | LossReason::Expired), "{lost:?}");
        drop(lease);
        scene.nodes.iter().for_each(|node| node.proxy.black_hole(false));
        // An acquire gets through again, so any undo after the loss would too.
        within(HANGS, "another lock", scene.leases.lock("another").acquire()).await.unwrap().release().await.unwrap();
        scene.leases.close().await;
        assert!(scene.tokens(NAME).iter().all(Option::is_some), "{:?} after the acquire", acquired.elapsed());
        let next = scene.other().await.lock(NAME).ttl(SHORT).acquire();
        drop(within(OUTLIVES + HANGS, "the next holder", next).await.unwrap());
        let took = acquired.elapsed();
        // The cut came some requests after the acquire, and no renewal followed.
        assert!(took >= OUTLIVES, "{took:?} after the acquire");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f78_no_key_outlives_what_a_restarted_server_has_forgotten() {
    const DELAY: Duration = Duration::from_secs(31);
    let secs = Duration::from_secs;
    let scene = Scene::of(3).await;
    let build = || builder(scene.urls()).restart_delay(DELAY).ttl(secs(10));
    let leases = built(build()).await;
    let refused = async |leases: &Client, delay, interval: Option<Duration>| {
        let lock = leases.lock(NAME).lock_delay(delay);
        match interval.into_iter().fold(lock, leasehold::Lock::once_per).try_acquire().await {
            Err(Error::Config(text)) => Some(text.to_string()),
            // All servers were just started, and vote once the delay has passed.
            Err(Error::Unavailable(_)) => None,
            other => panic!("{other:?}"),
        }
    };
    let text = refused(&leases, secs(21) + Duration::from_nanos(1), None).await.expect("it is refused");
    assert!(text.contains("lock_delay is 21.000000001s, and ttl and lock_delay together 31.000000001s"), "{text}");
    assert!(text.contains("at most 30s, 1 s less than restart_delay"), "{text}");
    let text = refused(&leases, Duration::ZERO, Some(secs(30) + Duration::from_nanos(1))).await.expect("it is refused");
    assert!(text.contains("once_per is 30.000000001s: it must be at most 30s, 1 s less than restart_delay"), "{text}");
    assert_eq!(refused(&leases, secs(20), Some(secs(30))).await, None);
    let kept = leases.lock(NAME).keep_for(secs(30) + Duration::from_nanos(1)).try_acquire().await;
    let says = "it must be from 0 s to 30 s, 1 s less than restart_delay";
    assert!(matches!(&kept, Err(Error::Config(text)) if text.to_string().contains(says)), "{kept:?}");
    let kept = leases.lock(NAME).keep_for(secs(30)).try_acquire().await;
    assert!(matches!(kept, Err(Error::Unavailable(_))), "{kept:?}");
    let built = build().lock_delay(secs(22)).build_lazy();
    assert!(matches!(&built, Err(Error::Config(text)) if text.to_string().contains("lock_delay")), "{built:?}");
    // A single server with a restart delay forgets too.
    let alone = Client::builder().url(&scene.urls()[0]).restart_delay(DELAY).ttl(secs(10)).build().await.unwrap();
    assert!(refused(&alone, secs(21) + MEDIUM, None).await.is_some());
    assert!(refused(&alone, Duration::ZERO, Some(secs(31))).await.is_some());
}
