//! Races between `close` and other calls.

use shuttle::{future::block_on, thread};

use super::{explore, linger, time, wire::Scene};
use crate::{Error, LossReason};

#[test]
fn who_wins_while_close_is_called_is_told() {
    explore(|| {
        let scene = Scene::new();
        let lock = scene.lock();
        let acquiring = thread::spawn(move || match block_on(lock.acquire()) {
            Ok(lease) => assert_eq!(block_on(lease.lost()).reason(), LossReason::Closed),
            Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
        });
        linger(60);
        block_on(scene.engine.close());
        acquiring.join().unwrap();
        scene.settle();
    });
}

#[test]
fn close_ends_every_lease_and_every_acquire() {
    explore(|| {
        let scene = Scene::new();
        let held = block_on(scene.lock().acquire()).unwrap();
        let waiting = {
            let lock = scene.lock();
            thread::spawn(move || block_on(lock.acquire()).map(|lease| block_on(lease.lost()).reason()))
        };
        let letting_go = thread::spawn(move || drop(held));
        let passing = thread::spawn(|| (0..2).for_each(|_| time::pass()));
        linger(60);
        block_on(scene.engine.close());
        match waiting.join().unwrap() {
            Ok(reason) => assert_eq!(reason, LossReason::Closed),
            Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
        }
        letting_go.join().unwrap();
        passing.join().unwrap();
        scene.settle();
    });
}
