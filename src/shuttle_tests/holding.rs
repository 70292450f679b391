//! Races between a caller that releases, and the keeper that renews or finds the lease lost.

use std::sync::Arc;

use leasehold_protocol::token::Token;
use shuttle::{future::block_on, thread};

use super::{
    explore, time,
    wire::{Asked, Scene, TTL},
};
use crate::{Error, Lease, LossReason, Owner, Status};

fn acquired(scene: &Scene) -> (Lease, Token) {
    let lease = block_on(scene.lock().try_acquire()).unwrap().unwrap();
    let token = scene.wire.tokens().pop().unwrap();
    (lease, token)
}

fn count(asked: &[Asked], what: Asked) -> usize {
    asked.iter().filter(|asked| **asked == what).count()
}

fn some_time() -> thread::JoinHandle<()> {
    thread::spawn(|| (0..4).for_each(|_| time::pass()))
}

#[test]
fn a_release_is_sent_once_and_no_renewal_after_it() {
    explore(|| {
        let scene = Scene::new();
        let (lease, token) = acquired(&scene);
        let passing = some_time();
        let released = thread::spawn(move || block_on(lease.release())).join().unwrap();
        passing.join().unwrap();
        assert!(released.is_ok(), "it was held all the time: {released:?}");
        scene.settle();
        let asked = scene.wire.asked(&token);
        assert_eq!(count(&asked, Asked::Release), 1, "{asked:?}");
        assert_eq!(asked.last(), Some(&Asked::Release), "{asked:?}");
    });
}

#[test]
fn a_dropped_lease_is_released_once_and_not_renewed_after_it() {
    explore(|| {
        let scene = Scene::new();
        let (lease, token) = acquired(&scene);
        let passing = some_time();
        thread::spawn(move || drop(lease)).join().unwrap();
        passing.join().unwrap();
        scene.settle();
        let asked = scene.wire.asked(&token);
        assert_eq!(count(&asked, Asked::Release), 1, "{asked:?}");
        assert_eq!(asked.last(), Some(&Asked::Release), "{asked:?}");
    });
}

#[test]
fn a_renewal_by_hand_is_not_sent_after_the_release() {
    explore(|| {
        let scene = Scene::new();
        let (lease, token) = acquired(&scene);
        let handle = lease.handle();
        let renewing = thread::spawn(move || block_on(handle.renew()));
        assert!(block_on(lease.release()).is_ok());
        match renewing.join().unwrap() {
            Ok(()) => {}
            Err(Error::Lost(lost)) => assert_eq!(lost.reason(), LossReason::Released),
            Err(unknown) => panic!("its outcome is known: {unknown}"),
        }
        scene.settle();
        let asked = scene.wire.asked(&token);
        assert_eq!((count(&asked, Asked::Release), asked.last()), (1, Some(&Asked::Release)), "{asked:?}");
    });
}

/// Drops a lease while it is being lost, and observes that from all sides.
fn lost_while_it_is_dropped(lose: fn(&Scene), reason: LossReason) {
    let scene = Scene::new();
    let (lease, token) = acquired(&scene);
    let (lost, handle) = (lease.lost(), lease.handle());
    let mut changes = lease.status_changes();
    let cancelled = lease.cancellation_token();
    let losing = {
        let scene = scene.clone();
        thread::spawn(move || {
            lose(&scene);
            (0..2).for_each(|_| time::pass());
        })
    };
    let hearing = thread::spawn(move || {
        let lost = block_on(lost);
        block_on(cancelled.cancelled());
        lost
    });
    let watching = thread::spawn(move || {
        let mut seen = Vec::new();
        while let Some(status) = block_on(changes.next()) {
            seen.push(status);
        }
        seen
    });
    let checking = {
        let handle = handle.clone();
        thread::spawn(move || {
            let ends: Vec<_> = (0..3).filter_map(|_| handle.check().err()).collect();
            ends
        })
    };
    drop(lease);
    losing.join().unwrap();
    let end = hearing.join().unwrap();
    assert!([reason, LossReason::Released].contains(&end.reason()), "{end}");
    assert_eq!(handle.check(), Err(end.clone().into()));
    assert!(checking.join().unwrap().iter().all(|other| *other == end.clone().into()), "one end only");
    let seen = watching.join().unwrap();
    let last = if end.reason() == reason { Status::Lost(end) } else { Status::Released };
    assert_eq!(seen.last(), Some(&last));
    let ends = seen.iter().filter(|status| matches!(status, Status::Lost(_) | Status::Released)).count();
    assert_eq!(ends, 1, "{seen:?}");
    scene.settle();
    let asked = scene.wire.asked(&token);
    assert_eq!(count(&asked, Asked::Release), 1, "undone or released, but once: {asked:?}");
}

#[test]
fn a_lease_that_is_taken_by_force_while_it_is_dropped_has_one_end() {
    explore(|| lost_while_it_is_dropped(|scene| scene.wire.take_by_force("job"), LossReason::Forced));
}

#[test]
fn a_lease_that_expires_while_it_is_dropped_has_one_end() {
    explore(|| lost_while_it_is_dropped(|_| time::pass_by(TTL * 2), LossReason::Expired));
}

#[test]
fn who_enters_again_while_the_last_lease_is_released_has_the_key() {
    explore(|| {
        let scene = Scene::new();
        let lock = scene.lock().owner(Owner::unique()).reentrant(true);
        let first = block_on(lock.acquire()).unwrap();
        let fence = first.fence();
        let entering = {
            let (lock, wire) = (lock.clone(), scene.wire.clone());
            thread::spawn(move || {
                let lease = block_on(lock.acquire()).unwrap();
                let held = wire.holder("job").and_then(|holder| holder.fence());
                assert!(lease.is_held(), "time stands still");
                assert_eq!(held, Some(lease.fence()), "a lease without its key");
                lease
            })
        };
        let releasing = thread::spawn(move || block_on(first.release()));
        assert!(releasing.join().unwrap().is_ok());
        let second = entering.join().unwrap();
        assert!(second.is_held() && second.fence() >= fence);
        assert_eq!(second.hold_count(), 1);
        assert_eq!(scene.wire.holder("job").and_then(|holder| holder.fence()), Some(second.fence()));
        // The re-entry belongs to the new lease, whichever it was.
        let third = block_on(lock.try_acquire()).unwrap().expect("its owner is let in");
        assert_eq!(third.fence(), second.fence());
        assert!(block_on(third.release()).is_ok());
        assert!(block_on(second.release()).is_ok());
        scene.settle();
        assert!(scene.engine.owners.is_empty());
        let released = |token: &Token| count(&scene.wire.asked(token), Asked::Release);
        let tokens = scene.wire.tokens();
        assert!(tokens.iter().all(|token| released(token) <= 1) && tokens.last().map(released) == Some(1));
    });
}

#[test]
fn of_two_leases_on_one_acquisition_the_last_to_go_takes_the_key() {
    explore(|| {
        let scene = Scene::new();
        let lock = scene.lock().owner(Owner::unique()).reentrant(true);
        let (one, two) = (block_on(lock.acquire()).unwrap(), block_on(lock.acquire()).unwrap());
        assert_eq!(two.hold_count(), 2);
        let passing = some_time();
        let going = [one, two].map(|lease| thread::spawn(move || block_on(lease.release())));
        for gone in going {
            assert!(gone.join().unwrap().is_ok());
        }
        passing.join().unwrap();
        scene.settle();
        let token = scene.wire.tokens().pop().unwrap();
        assert_eq!(count(&scene.wire.asked(&token), Asked::Release), 1);
        assert!(Arc::strong_count(&scene.wire) > 0 && scene.engine.owners.is_empty());
    });
}
