//! Locks that many hold at a time, on every deployment with one server for each name; the other deployments refuse
//! them.

use super::*;

/// Acquires a share, which leaves room for others.
async fn shared(lock: &Lock) -> Lease {
    let lease = within(HANGS, "a place", lock.acquire()).await.unwrap();
    lease.check().unwrap();
    lease
}

pub(super) async fn readers_share_a_name_and_writers_have_it_alone(place: Place) {
    let (one, two) = place.two_programs().await;
    let [mine, theirs] = [&one, &two].map(|leases| leases.rw_lock("job"));
    let (first, second) = (shared(&mine.read()).await, shared(&theirs.read()).await);
    assert_eq!(first.fence(), second.fence());
    let refused = theirs.write().acquire_within(Duration::ZERO).await.unwrap_err().to_string();
    assert!(refused.contains("2 sharers, one of them this program (fence "), "{refused}");
    let waits = tokio::spawn(theirs.write().owner(Owner::anonymous()).acquire());
    let fence = first.fence();
    have_places(&mine.write(), 1).await;
    assert!(mine.read().try_acquire().await.unwrap().is_none(), "a writer waits");
    first.release().await.unwrap().confirmed();
    second.release().await.unwrap().confirmed();
    let writing = within(HANGS, "its turn", waits).await.unwrap().unwrap();
    assert!(writing.fence() > fence);
    let reading = within(HANGS, "the downgrade", writing.downgrade()).await.unwrap();
    let beside = shared(&mine.read()).await;
    assert_eq!(beside.fence(), reading.fence());
    reading.release().await.unwrap().confirmed();
    beside.release().await.unwrap().confirmed();
    assert!(mine.write().try_acquire().await.unwrap().is_some());
}

pub(super) async fn no_more_hold_a_name_than_there_are_permits(place: Place) {
    let (one, two) = place.two_programs().await;
    let [mine, theirs] = [&one, &two].map(|leases| leases.semaphore("pool", 2));
    let (first, second) = (shared(&mine).await, shared(&theirs).await);
    assert!(mine.try_acquire().await.unwrap().is_none());
    let waits = tokio::spawn(mine.clone().owner(Owner::anonymous()).acquire());
    have_places(&theirs, 1).await;
    second.release().await.unwrap().confirmed();
    let third = within(HANGS, "its turn", waits).await.unwrap().unwrap();
    assert!(theirs.try_acquire().await.unwrap().is_none());
    drop(first);
    let fourth = shared(&theirs).await;
    for lease in [third, fourth] {
        lease.release().await.unwrap().confirmed();
    }
}

pub(super) async fn several_permits_are_taken_at_once_and_in_turn(place: Place) {
    let (one, two) = place.two_programs().await;
    let [mine, theirs] = [&one, &two].map(|client| client.semaphore("pool", 4));
    let (three, light) = (shared(&mine.clone().take(3)).await, shared(&theirs).await);
    assert_eq!(three.fence(), light.fence());
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let waits = tokio::spawn(theirs.clone().take(2).owner(Owner::anonymous()).acquire());
    have_places(&mine, 1).await;
    light.release().await.unwrap().confirmed();
    let behind = tokio::spawn(mine.clone().owner(Owner::anonymous()).acquire());
    have_places(&theirs, 2).await;
    assert!(mine.try_acquire().await.unwrap().is_none(), "one is free, but for the first that waits");
    let taken: Vec<_> = mine.holders().await.unwrap().iter().map(leasehold::Holder::permits).collect();
    assert_eq!(taken, [Some(3)]);
    three.release().await.unwrap().confirmed();
    let heavy = within(HANGS, "its turn", waits).await.unwrap().unwrap();
    let light = within(HANGS, "its turn", behind).await.unwrap().unwrap();
    let last = shared(&mine).await;
    assert!(mine.try_acquire().await.unwrap().is_none(), "2 and 1 and 1 are taken");
    drop(heavy);
    let pair = shared(&mine.clone().take(2)).await;
    for lease in [light, last, pair] {
        lease.release().await.unwrap().confirmed();
    }
    shared(&mine.take(4)).await.release().await.unwrap().confirmed();
}

pub(super) async fn a_lease_that_is_adopted_as_permits_lets_in_no_more_than_fit(place: Place) {
    let (one, two) = place.two_programs().await;
    let [mine, theirs] = [&one, &two].map(|client| client.semaphore("pool", 4));
    let alone = shared(&one.lock("pool")).await;
    let wait = || tokio::spawn(theirs.clone().owner(Owner::anonymous()).acquire());
    let first = wait();
    have_places(&mine, 1).await;
    let second = wait();
    have_places(&mine, 2).await;
    let ticket = alone.into_ticket().unwrap();
    let three = within(HANGS, "the adoption", theirs.clone().take(3).adopt(ticket)).await.unwrap();
    assert_eq!(mine.waiters().await.unwrap().len(), 1, "one more fits");
    let first = within(HANGS, "its turn", first).await.unwrap().unwrap();
    three.release().await.unwrap().confirmed();
    let second = within(HANGS, "its turn", second).await.unwrap().unwrap();
    for lease in [first, second] {
        lease.release().await.unwrap().confirmed();
    }
}

pub(super) async fn a_share_outlives_many_ttls(place: Place) {
    let (one, two) = place.two_programs().await;
    let shares = [shared(&one.rw_lock("job").read()).await, shared(&two.rw_lock("job").read()).await];
    let until = Instant::now() + 3 * TTL;
    while Instant::now() < until {
        for share in &shares {
            share.check().unwrap();
        }
        assert!(one.lock("job").try_acquire().await.unwrap().is_none());
        tokio::time::sleep(TTL / 20).await;
    }
    for share in shares {
        share.release().await.unwrap().confirmed();
    }
}

pub(super) async fn all_who_share_a_lock_hear_that_it_was_taken_by_force(place: Place) {
    let (one, two) = place.two_programs().await;
    let shares = [shared(&one.rw_lock("job").read()).await, shared(&two.rw_lock("job").read()).await];
    assert!(two.lock("job").force_release().await.unwrap());
    shares[1].check().expect_err("its own program took it");
    let writing = within(HANGS, "the lock", two.rw_lock("job").write().acquire()).await.unwrap();
    for share in &shares {
        let lost = within(HANGS, "the loss", share.lost()).await;
        assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken | LossReason::Forced), "{lost:?}");
    }
    drop(shares);
    writing.check().unwrap();
    writing.release().await.unwrap().confirmed();
}

pub(super) async fn a_quorum_shares_nothing(place: Place) {
    let leases = place.program("one").await;
    for lock in [leases.rw_lock("job").read(), leases.rw_lock("job").write(), leases.semaphore("job", 2)] {
        let refused = within(HANGS, "an answer", lock.acquire()).await.unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused:?}");
        assert!(refused.to_string().starts_with("shared locks do not work over a quorum"), "{refused}");
    }
    let refused = leases.lock("job").acquire().await.unwrap().downgrade().await.unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused:?}");
    assert!(leases.lock("job").try_acquire().await.unwrap().is_some(), "it was released");
}

macro_rules! shared {
    ($($place:tt)*) => {
        at! { $($place)*:
            readers_share_a_name_and_writers_have_it_alone
            no_more_hold_a_name_than_there_are_permits
            several_permits_are_taken_at_once_and_in_turn
            a_lease_that_is_adopted_as_permits_lets_in_no_more_than_fit
            a_share_outlives_many_ttls
            all_who_share_a_lock_hear_that_it_was_taken_by_force
        }
    };
}

shared! { memory }
shared! { redis }
shared! { redis_without_push }
shared! { cluster }
shared! { replicated }
at! { quorum_of_three: a_quorum_shares_nothing }

/// Places that differ from these in a layer that does not affect shares.
mod whole {
    use super::*;

    shared! { at_night redis_rented }
    shared! { at_night cluster_rented }
    shared! { at_night sentinel }
    shared! { at_night cluster_replicated }
    shared! { at_night sentinel_replicated }
    at! { at_night quorum_of_memory: a_quorum_shares_nothing }
}
