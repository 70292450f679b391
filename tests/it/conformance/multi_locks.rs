//! Several locks at once on every kind of node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Lock, LossReason, MultiLock};
use support::{HANGS, within};
use tokio::sync::{Barrier, oneshot};

use super::{Place, TTL};
use crate::common::{Confirmed as _, ending};

const LONG: Duration = Duration::from_secs(30);

fn several(leases: &Client, names: &[&str]) -> MultiLock {
    leases.multi_lock(names.iter().map(|name| leases.lock(name)))
}

async fn is_free(lock: &Lock) -> bool {
    match lock.try_acquire().await.unwrap() {
        Some(lease) => lease.release().await.is_ok(),
        None => false,
    }
}

async fn until_free(lock: &Lock, free: bool) {
    within(HANGS, lock.name(), async {
        while is_free(lock).await != free {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

pub(super) async fn several_locks_are_acquired_and_released_together(place: Place) {
    let (one, two) = place.two_programs().await;
    let multi = several(&one, &["b", "c", "a"]);
    let held = multi.acquire().await.unwrap();
    assert_eq!(held.leases().iter().map(leasehold::Lease::name).collect::<Vec<_>>(), ["a", "b", "c"]);
    for lease in held.leases() {
        let holder = two.lock(lease.name()).holder().await.unwrap().unwrap();
        assert_eq!((held.fence(lease.name()), holder.fence()), (Some(lease.fence()), Some(lease.fence())));
        assert!(held.remaining() <= lease.remaining() + TTL / 2 && !held.remaining().is_zero());
    }
    assert_eq!(held.fence("d"), None);
    held.check().unwrap();
    assert!(several(&two, &["c", "d"]).try_acquire().await.unwrap().is_none());
    assert!(is_free(&two.lock("d")).await, "of a try that finds one held nothing stays");
    let (view, token) = (held.handle(), held.cancellation_token());
    held.release().await.unwrap().confirmed();
    assert_eq!(view.lost().await.reason(), LossReason::Released);
    within(HANGS, "the token", token.cancelled()).await;
    drop(within(HANGS, "all of them", several(&two, &["a", "b", "c"]).acquire()).await.unwrap());
    let fences = multi.run(async |held| Ok::<_, Error>(["a", "b", "c"].map(|name| held.fence(name)))).await.unwrap();
    assert!(fences.iter().all(Option::is_some));
}

/// Of tries for the same locks one wins, whatever their order; of tries for overlapping sets at least one.
pub(super) async fn of_tries_for_several_locks_that_meet_one_wins(place: Place) {
    let mut programs = Vec::new();
    for label in ["one", "two", "three", "four"] {
        programs.push(place.program(label).await);
    }
    let same: [&[&str]; 4] = [&["a", "b"], &["b", "a"], &["a", "b"], &["b", "a"]];
    let ring: [&[&str]; 4] = [&["a", "b"], &["b", "c"], &["c", "d"], &["d", "a"]];
    for round in 0..100 {
        let (sets, most) = if round % 4 == 3 { (ring, 2) } else { (same, 1) };
        let started = Arc::new(Barrier::new(sets.len()));
        let tries = programs.iter().zip(sets).map(|(program, names)| {
            let names = names.iter().map(|name| format!("{name}:{round}")).collect::<Vec<_>>();
            let all = program.multi_lock(names.iter().map(|name| program.leases.lock(name)));
            let started = started.clone();
            tokio::spawn(async move {
                started.wait().await;
                all.try_acquire().await.unwrap()
            })
        });
        let tries: Vec<_> = tries.collect();
        let mut won = Vec::new();
        for tried in tries {
            won.extend(within(HANGS, "a try", tried).await.unwrap());
        }
        assert!((1..=most).contains(&won.len()), "round {round}: {} of {sets:?} have won", won.len());
        for held in won {
            held.release().await.unwrap().confirmed();
        }
    }
}

/// A waiting multi-lock keeps the locks before the one that it waits for, and none behind it.
pub(super) async fn a_multi_lock_keeps_what_comes_before_the_lock_it_waits_for(place: Place) {
    let (one, two) = place.two_programs().await;
    let theirs = two.lock("b").acquire().await.unwrap();
    let multi = several(&one, &["a", "b", "c"]);
    let refused = multi.acquire_within(Duration::ZERO).await.unwrap_err();
    assert!(matches!(&refused, Error::TimedOut { name, holder, .. } if name == "b" && holder.label() == Some("two")));
    until_free(&two.lock("a"), true).await;
    until_free(&two.lock("c"), true).await;
    let waiting = tokio::spawn(multi.acquire());
    let (first, last) = (two.lock("a"), two.lock("c"));
    until_free(&first, false).await;
    until_free(&last, true).await;
    assert!(!is_free(&first).await, "it is kept");
    theirs.release().await.unwrap().confirmed();
    let held = within(HANGS, "all of them", waiting).await.unwrap().unwrap();
    for name in ["a", "b", "c"] {
        assert!(two.lock(name).try_acquire().await.unwrap().is_none(), "{name} is held");
    }
    held.release().await.unwrap().confirmed();
    let theirs = two.lock("b").acquire().await.unwrap();
    let refused = within(HANGS, "the end of the wait", multi.acquire_within(TTL / 2)).await.unwrap_err();
    let Error::TimedOut { name, waited, .. } = refused else { panic!("{refused}") };
    assert!(name == "b" && waited >= TTL / 2, "{name}: {waited:?}");
    drop(theirs);
    for name in ["a", "b", "c"] {
        drop(within(HANGS, name, two.lock(name).acquire()).await.unwrap());
    }
}

pub(super) async fn programs_that_want_the_same_locks_in_another_order_take_turns(place: Place) {
    let (one, two) = place.two_programs().await;
    let rounds = if place.fair && !place.pushes { 1 } else { 5 };
    let inside = Arc::new([0; 3].map(AtomicUsize::new));
    let mut tasks = Vec::new();
    for names in [&["a", "b", "c"][..], &["c", "b", "a"], &["b", "a"], &["c", "b"]] {
        for leases in [&one, &two] {
            let (multi, inside) = (several(leases, names), inside.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    let held = multi.acquire().await.unwrap();
                    let ours = || names.iter().map(|name| &inside[usize::from(name.as_bytes()[0] - b'a')]);
                    assert!(ours().all(|lock| lock.fetch_add(1, Ordering::SeqCst) == 0), "two inside");
                    tokio::task::yield_now().await;
                    ours().for_each(|lock| lock.store(0, Ordering::SeqCst));
                    held.release().await.unwrap().confirmed();
                }
            }));
        }
    }
    for task in tasks {
        within(Duration::from_secs(60), "every task", task).await.unwrap();
    }
}

pub(super) async fn a_lost_one_of_several_is_told_and_the_others_stay_held(place: Place) {
    let (one, two) = place.two_programs().await;
    let multi = several(&one, &["a", "b", "c"]);
    let held = multi.acquire().await.unwrap();
    let token = held.cancellation_token();
    assert!(!token.is_cancelled());
    assert!(two.lock("b").force_release().await.unwrap());
    let lost = within(HANGS, "the loss", held.lost()).await;
    assert_eq!((lost.name(), lost.reason()), ("b", LossReason::Forced));
    assert_eq!((ending(held.check()), held.remaining()), (lost, Duration::ZERO));
    within(HANGS, "the token", token.cancelled()).await;
    assert!(held.cancellation_token().is_cancelled() && held.leases()[0].is_held() && held.leases()[2].is_held());
    assert!(!is_free(&two.lock("a")).await && !is_free(&two.lock("c")).await);
    assert_eq!(ending(held.release().await).name(), "b");
    assert!(is_free(&two.lock("a")).await && is_free(&two.lock("c")).await);
    // Work under the locks is stopped.
    let (started, running) = oneshot::channel();
    let run = tokio::spawn(multi.run(|_| async move {
        started.send(()).unwrap();
        std::future::pending::<Result<(), Error>>().await
    }));
    within(HANGS, "the work", running).await.unwrap();
    assert!(two.lock("c").force_release().await.unwrap());
    assert_eq!(ending(within(HANGS, "the end of run", run).await.unwrap()).name(), "c");
    for name in ["a", "b", "c"] {
        drop(within(HANGS, name, two.lock(name).acquire()).await.unwrap());
    }
}

pub(super) async fn each_lock_of_several_has_its_own_options(place: Place) {
    let (one, two) = place.two_programs().await;
    let locks = |interval| {
        let reentrant = one.lock("a").reentrant(true);
        [reentrant, one.lock("b").once_per(interval), one.lock("c").keep_for(TTL / 2), one.prefix("x:").lock("a")]
    };
    // A lease that is given back does not count: no work was done under it.
    let theirs = two.lock("x:a").acquire().await.unwrap();
    assert!(one.multi_lock(locks(LONG)).try_acquire().await.unwrap().is_none());
    let refused = one.multi_lock(locks(LONG)).acquire_within(TTL / 2).await.unwrap_err();
    assert!(matches!(refused, Error::TimedOut { .. }), "{refused}");
    for name in ["a", "b", "c"] {
        drop(within(HANGS, name, two.lock(name).acquire()).await.unwrap());
    }
    theirs.release().await.unwrap().confirmed();
    let outer = one.lock("a").reentrant(true).acquire().await.unwrap();
    let held = within(HANGS, "all of them", one.multi_lock(locks(TTL)).acquire()).await.unwrap();
    assert_eq!(held.leases()[0].hold_count(), 2);
    assert_eq!(held.leases()[3].name(), "a", "of another prefix");
    held.release().await.unwrap().confirmed();
    outer.check().unwrap();
    for name in ["c", "b"] {
        let holder = two.lock(name).holder().await.unwrap().unwrap();
        assert_eq!(holder.label(), Some("one (released)"), "{name}");
    }
    for name in ["c", "b"] {
        drop(within(HANGS, "its end", two.lock(name).acquire()).await.unwrap());
    }
}
