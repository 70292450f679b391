//! Slots that move to another primary with their keys.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Error, LossReason};
use support::{Cluster, HANGS, Lag, Server, eventually_async, within};
use tokio::{sync::watch, task::JoinSet};

use super::{TAKEN_OVER, acquire, connect};
use crate::common::{Confirmed as _, LONG};

/// A waiter that watches a slot is notified that it leaves, and asks its new owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44a_a_slot_that_moves_takes_its_holder_and_its_waiters_along() {
    for fair in [false, true] {
        let cluster = Cluster::start(3, 0);
        let leases = connect(&cluster.url()).await.unwrap();
        let other = connect(&cluster.url()).await.unwrap();
        let name = cluster.name_at(0, "job");
        let lock = leases.lock(&name).ttl(Duration::from_secs(2)).fair(fair);
        let lease = within(HANGS, "the lock", lock.acquire()).await.unwrap();
        let waiter = tokio::spawn(other.lock(&name).ttl(LONG).fair(fair).acquire());
        cluster.move_slot(cluster.slot_of(&name), 0, 2);
        // Longer than its TTL, so it was renewed at its new place.
        tokio::time::sleep(Duration::from_secs(3)).await;
        lease.check().unwrap();
        assert!(cluster.primaries()[2].wire().exists(&name));
        let fence = lease.fence();
        lease.release().await.unwrap().confirmed();
        let next = within(HANGS, "the next lease", waiter).await.unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap().confirmed();
        let slots: Vec<_> = leases.nodes().iter().map(leasehold::NodeStatus::slots).collect();
        assert_eq!(slots, [Some(5_460), Some(5_463), Some(5_461)], "in the order of the lowest slot");
    }
}

/// In each state of a slot that moves key by key, locks are renewed, acquired and released, and nothing is left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44a_a_slot_that_is_being_moved_goes_on_serving() {
    let (cluster, ttl) = (Cluster::start(3, 0), Duration::from_millis(900));
    let leases = connect(&cluster.url()).await.unwrap();
    for moved in ["nothing", "the lock", "the lock and its fence"] {
        // A slot of its own: one that moves there and back may be lost between servers that are notified late.
        let tag = cluster.name_at(0, moved);
        let (slot, name) = (cluster.slot_of(&tag), |what: &str| format!("{{{tag}}}{what}"));
        let held = acquire(&leases, &name("held"), ttl).await;
        let free = acquire(&leases, &name("free"), LONG).await;
        let mut fences = vec![free.fence()];
        free.release().await.unwrap().confirmed();
        cluster.begin_to_move(slot, 0, 2);
        if moved != "nothing" {
            cluster.move_key(&name("held"), 0, 2);
        }
        if moved == "the lock and its fence" {
            cluster.move_key(&format!("{}:lht:fence", name("held")), 0, 2);
        }
        // Longer than its TTL, so it was renewed, wherever it is.
        let renewed_for = Instant::now();
        while renewed_for.elapsed() < ttl * 2 {
            held.check().unwrap();
            // A free lock that was held before, so its floor exists.
            let lease = acquire(&leases, &name("free"), LONG).await;
            assert!(leases.lock(name("free")).try_acquire().await.unwrap().is_none(), "{moved}: it is held");
            let holder = leases.lock(name("free")).holder().await.unwrap().expect("we hold it");
            assert_eq!((holder.is_ours(), holder.fence()), (true, Some(lease.fence())), "{moved}");
            fences.push(lease.fence());
            lease.release().await.unwrap().confirmed();
            assert!(leases.lock(name("free")).holder().await.unwrap().is_none(), "{moved}: it was released");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let hour = Duration::from_secs(60 * 60);
        let delayed = within(HANGS, "the lock", leases.lock(name("free")).lock_delay(hour).acquire()).await.unwrap();
        let left = leases.lock(name("free")).holder().await.unwrap().and_then(|holder| holder.remaining());
        assert!(left.is_some_and(|left| left > hour), "{moved}: its key outlives the lease by the delay, not {left:?}");
        fences.push(delayed.fence());
        delayed.release().await.unwrap().confirmed();
        let fence = held.fence();
        held.release().await.unwrap().confirmed();
        let next = acquire(&leases, &name("held"), LONG).await;
        assert!(next.fence() > fence, "{moved}");
        next.release().await.unwrap().confirmed();
        cluster.finish_moving(slot, 0, 2);
        let locks: Vec<String> = cluster.keys_in(slot, 2).into_iter().filter(|key| !key.ends_with(":fence")).collect();
        assert!(locks.is_empty(), "{moved}: {locks:?} is left");
        let lease = acquire(&leases, &name("free"), LONG).await;
        fences.push(lease.fence());
        lease.release().await.unwrap().confirmed();
        assert!(fences.is_sorted_by(|one, next| one < next), "{moved}: {fences:?}");
    }
}

/// A slot moves to a server that has none yet, as when a cluster grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44d_the_first_slot_of_a_new_primary() {
    let cluster = Cluster::start(2, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    // All slots of the second go to the first, so that it is like new, but not made a replica, as servers from 7.0 on
    // would do.
    cluster.servers()[1].wire().cmd(&["CONFIG", "SET", "cluster-allow-replica-migration", "no"]);
    let mine = cluster.name_at(1, "job");
    let home = cluster.slot_of(&mine);
    cluster.give_all_slots(1, 0);
    let lease = acquire(&leases, &mine, Duration::from_millis(900)).await;
    eventually_async(HANGS, "the second has none", || leases.nodes().len() == 1).await;
    cluster.begin_to_move(home, 0, 1);
    cluster.move_key(&mine, 0, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    lease.check().unwrap();
    assert_eq!(leases.nodes().len(), 1, "it has no slot yet");
    cluster.finish_moving(home, 0, 1);
    eventually_async(HANGS, "it has one", || leases.nodes().len() == 2).await;
    lease.check().unwrap();
    lease.release().await.unwrap().confirmed();
    leases.close().await;
}

/// The other leases of its primary do not wait for the answer of the server that has the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44c_a_key_that_has_moved_to_a_server_that_hangs_costs_its_own_lease() {
    const TTL: Duration = Duration::from_secs(3);
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let moves = cluster.name_at(0, "moves");
    let slot = cluster.slot_of(&moves);
    let mut others = Vec::new();
    for other in ["a", "b", "c"] {
        others.push(acquire(&leases, &cluster.name_at(0, other), TTL).await);
    }
    let moved = acquire(&leases, &moves, TTL).await;
    cluster.begin_to_move(slot, 0, 2);
    cluster.move_key(&moves, 0, 2);
    eventually_async(HANGS, "its renewal", || moved.remaining() < TTL * 3 / 4).await;
    eventually_async(HANGS, "it is renewed there", || moved.remaining() > TTL * 3 / 4).await;
    let server = &cluster.primaries()[2];
    server.stop();
    let lost = within(HANGS, "the signal", moved.lost()).await;
    assert_eq!(lost.reason(), LossReason::Expired);
    let began = Instant::now();
    while began.elapsed() < TTL {
        for other in &others {
            other.check().unwrap();
        }
        tokio::time::sleep(TTL / 100).await;
    }
    server.cont();
}

/// An operator cancels a move after some keys have moved: those are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_move_that_is_given_up_after_keys_have_gone() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    let lease = acquire(&leases, &name, Duration::from_millis(900)).await;
    cluster.begin_to_move(slot, 0, 2);
    cluster.move_key(&name, 0, 2);
    tokio::time::sleep(Duration::from_secs(2)).await;
    lease.check().unwrap();
    cluster.give_up_moving(slot, 0, 2);
    let lost = within(HANGS, "the signal", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted);
    let next = acquire(&leases, &name, LONG).await;
    assert!(next.fence() > lease.fence());
    next.release().await.unwrap().confirmed();
}

/// A fair lock waits for the move and reports it; its queue continues afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f54_a_fair_lock_waits_until_its_slot_has_arrived() {
    let cluster = Cluster::start(3, 0);
    let leases = connect(&cluster.url()).await.unwrap();
    let name = cluster.name_at(0, "job");
    let slot = cluster.slot_of(&name);
    let lock = leases.lock(&name).ttl(LONG).fair(true);
    let lease = within(HANGS, "the lock", lock.clone().acquire()).await.unwrap();
    cluster.begin_to_move(slot, 0, 2);
    cluster.move_key(&name, 0, 2);
    let error = lock.clone().owner(leasehold::Owner::anonymous()).try_acquire().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)) && text.contains(&format!("slot {slot} is being moved")), "{text}");
    let error = leases.lock(&name).force_release().await.unwrap_err().to_string();
    assert!(error.contains("is being moved"), "{error}");
    lease.release().await.unwrap().confirmed();
    let waiting = tokio::spawn(lock.acquire());
    cluster.finish_moving(slot, 0, 2);
    within(HANGS, "the lock", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
}

/// Under load, servers of the next version join as replicas and take over one after the other, and the old ones leave.
/// `scripts/test-servers` provides the two versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f59_a_rolling_upgrade_under_load() {
    const TTL: Duration = Duration::from_secs(10);
    const TASKS: usize = 16;
    let (started, lag) = (Cell::new(0), Lag::start());
    let cluster = Cluster::with(3, 1, |server| {
        started.set(started.get() + 1);
        server.next_version(started.get() > 3)
    });
    let leases = connect(&cluster.url()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..100 {
        held.push(acquire(&leases, &format!("held-{number}"), TTL).await);
    }
    let (stop, stopped) = watch::channel(false);
    let (mut load, cycles) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for task in 0..TASKS {
        let lock = leases.lock(format!("busy-{task}")).ttl(TTL);
        let (stopped, cycles) = (stopped.clone(), cycles.clone());
        load.spawn(async move {
            let mut last = None;
            while !*stopped.borrow() {
                let lease = within(TAKEN_OVER, "the lock", lock.acquire()).await.unwrap();
                assert!(last.is_none_or(|last| lease.fence() > last), "{last:?}, then {}", lease.fence());
                last = Some(lease.fence());
                // Its server may end before it answers.
                let _confirmed = lease.release().await;
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for primary in 0..3 {
        let (old, new) = (&cluster.primaries()[primary], cluster.replica_of(primary));
        let role = |server: &Server| server.wire().info_field("replication", "role");
        // The others may deny it their votes. The old one then serves no client for ten seconds, and has to be told
        // again.
        let mut told = None::<Instant>;
        eventually_async(TAKEN_OVER, "the new one has taken over", || {
            if told.is_none_or(|told| told.elapsed() > Duration::from_secs(11)) {
                told = Some(Instant::now());
                new.wire().must(&["CLUSTER", "FAILOVER"]);
            }
            role(new).as_deref() == Some("master")
        })
        .await;
        eventually_async(HANGS, "the old one knows it", || role(old).as_deref() == Some("slave")).await;
        let id = cluster.id(primary);
        old.kill();
        for server in &cluster.servers()[primary + 1..] {
            server.wire().must(&["CLUSTER", "FORGET", &id]);
        }
        let goes_on = cycles.load(Ordering::Relaxed) + 10 * TASKS;
        eventually_async(TAKEN_OVER, "the load goes on", || cycles.load(Ordering::Relaxed) >= goes_on).await;
    }
    stop.send_replace(true);
    while let Some(ended) = within(TAKEN_OVER, "the load ends", load.join_next()).await {
        ended.unwrap();
    }
    let all = || leases.nodes().iter().map(|node| node.address().to_owned()).collect::<Vec<_>>();
    let is_new = |address: &String| (0..3).any(|at| address.ends_with(&format!(":{}", cluster.replica_of(at).port())));
    eventually_async(HANGS, "only new servers are left", || all().len() == 3 && all().iter().all(is_new)).await;
    for lease in held {
        // It was replicated long before, and has outlived its primary.
        lease.check().unwrap_or_else(|lost| panic!("{}: {lost}; the machine lagged {:?}", lease.name(), lag.worst()));
        lease.renew().await.unwrap();
        lease.release().await.unwrap().confirmed();
    }
}
