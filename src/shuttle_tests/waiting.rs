//! Races between waiters and callers that release. Time stands still, so no timer wakes a waiter.

use std::sync::Arc;

use leasehold_protocol::time::Time;
use shuttle::{future::block_on, thread};
use tokio::sync::Notify;

use super::{explore, linger, wire::Scene};
use crate::{Lease, Lock, wait::CheckSlots};

/// An acquire that is cancelled when notified, unless it has completed by then.
fn until(given_up: Arc<Notify>, lock: Lock) -> Option<Lease> {
    block_on(async move {
        tokio::select! {
            biased;
            () = given_up.notified() => None,
            lease = lock.acquire() => lease.ok(),
        }
    })
}

/// One caller holds the lock, with two waiters behind it. Then everything happens at once: a release, and the first
/// waiter gives up. The other waiter gets the lock in the end.
fn one_gives_up(lock: fn(&Scene) -> Lock) {
    let scene = Scene::new();
    let held = block_on(lock(&scene).acquire()).unwrap();
    let (waits, given_up) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = {
        let (told, given_up) = (waits.clone(), given_up.clone());
        let lock = lock(&scene).on_wait(move |_| told.notify_one());
        thread::spawn(move || drop(until(given_up, lock)))
    };
    block_on(waits.notified());
    let second = {
        let lock = lock(&scene);
        thread::spawn(move || block_on(lock.acquire()).unwrap())
    };
    let giving_up = thread::spawn(move || {
        linger(60);
        given_up.notify_one();
    });
    linger(20);
    assert!(block_on(held.release()).is_ok());
    let lease = second.join().unwrap();
    assert!(lease.is_held());
    assert_eq!(scene.wire.holder("job").and_then(|holder| holder.fence()), Some(lease.fence()));
    drop(lease);
    first.join().unwrap();
    giving_up.join().unwrap();
    scene.settle();
}

#[test]
fn who_gives_up_at_the_moment_of_its_wake_passes_the_turn_on() {
    explore(|| one_gives_up(Scene::lock));
}

#[test]
fn who_gives_up_at_the_moment_of_its_grant_passes_the_lock_on() {
    explore(|| one_gives_up(|scene| scene.lock().fair(true)));
}

/// Slots do not lapse, so each waiter finds a free one by a notification.
#[test]
fn a_slot_for_looks_is_never_lost_on_those_who_wait() {
    explore(|| {
        const NEVER: Time = Time::NEVER;
        let slots = Arc::new(CheckSlots::new(2));
        let looking = [(); 4].map(|()| {
            let slots = slots.clone();
            thread::spawn(move || {
                let slot = block_on(async {
                    loop {
                        if let Some(slot) = slots.take(Time::ZERO, NEVER) {
                            break slot;
                        }
                        slots.freed().await;
                    }
                });
                linger(5);
                drop(slot);
            })
        });
        for looked in looking {
            looked.join().unwrap();
        }
        assert_eq!(slots.next_lapse(), None);
    });
}

/// Three callers take turns, and each has the lock once.
fn three_take_turns(lock: fn(&Scene) -> Lock) {
    let scene = Scene::new();
    let taking = [(); 3].map(|()| {
        let lock = lock(&scene);
        thread::spawn(move || {
            let lease = block_on(lock.acquire()).unwrap();
            let fence = lease.fence();
            assert!(block_on(lease.release()).is_ok());
            fence
        })
    });
    let mut fences: Vec<_> = taking.into_iter().map(|taken| taken.join().unwrap()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 3);
    scene.settle();
}

#[test]
fn no_release_is_missed_by_those_who_wait() {
    explore(|| three_take_turns(Scene::lock));
}

#[test]
fn no_release_is_missed_by_those_who_wait_in_a_fair_queue() {
    explore(|| three_take_turns(|scene| scene.lock().fair(true)));
}
