//! An observer's report about a shared name: its sharers, its waiters, and their modes.

use std::{num::NonZeroU32, time::Duration};

use leasehold::{Client, Error, Holder, Lock, LossReason, Mode};
use support::{HANGS, Server, within};

use super::acquired;
use crate::{
    common::{Confirmed as _, LONG, NAME, SHORT, ending},
    fair::line::{had, nothing_is_left, place, programs},
};

const HOLDERS: &str = "{job}:lh:holders";

async fn holders(lock: &Lock) -> Vec<Holder> {
    within(HANGS, "all who hold it", lock.holders()).await.unwrap()
}

async fn holder(lock: &Lock) -> Holder {
    within(HANGS, "the holder", lock.holder()).await.unwrap().expect("it is held")
}

fn labels(holders: &[Holder]) -> Vec<&str> {
    holders.iter().map(|holder| holder.label().unwrap_or("?")).collect()
}

#[tokio::test]
async fn all_who_share_a_name_are_listed_the_first_to_go_first() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let lock = one.lock(NAME);
    assert_eq!((holders(&lock).await, lock.holder().await.unwrap()), (vec![], None), "it is free");
    let long = acquired(&one.rw_lock(NAME).read().label("long").ttl(3 * LONG)).await;
    let short = acquired(&other.rw_lock(NAME).read().label("short").ttl(LONG)).await;
    let middle = acquired(&other.semaphore(NAME, 5).label("middle").ttl(2 * LONG)).await;
    let all = holders(&lock).await;
    assert_eq!(labels(&all), ["short", "middle", "long"]);
    for (holder, is_ours) in all.iter().zip([false, false, true]) {
        assert_eq!((holder.is_ours(), holder.fence()), (is_ours, Some(long.fence())));
        assert!(holder.is_shared() && holder.token().is_some() && holder.sharers().is_none());
    }
    let seen = holder(&lock).await;
    assert_eq!((seen.is_shared(), seen.sharers(), seen.is_ours(), seen.label()), (true, Some(3), true, None));
    let left = |holder: &Holder| holder.remaining().unwrap();
    assert!(left(&seen) > 2 * LONG && left(&seen) <= 3 * LONG, "that of the last one: {:?}", left(&seen));
    assert!(left(&all[0]) <= LONG && left(&all[1]) > LONG && left(&all[1]) <= 2 * LONG, "{all:?}");
    for lease in [long, short, middle] {
        lease.release().await.unwrap().confirmed();
    }
    let alone = acquired(&one.lock(NAME)).await;
    let all = holders(&other.lock(NAME)).await;
    assert_eq!((labels(&all), all[0].fence()), (vec!["program 0"], Some(alone.fence())));
    assert!(!all[0].is_shared() && !all[0].is_ours());
    assert!(holders(&lock).await[0].is_ours());
}

#[tokio::test]
async fn those_who_share_a_name_are_others_when_our_share_is_of_an_earlier_phase() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let [mine, theirs] = [&one, &other].map(|leases| leases.rw_lock(NAME).read());
    let earlier = acquired(&mine).await;
    assert!(holder(&mine).await.is_ours());
    assert!(server.wire().del(NAME));
    let later = acquired(&theirs).await;
    let seen = holder(&mine).await;
    assert_eq!((seen.is_ours(), seen.sharers(), seen.fence()), (false, Some(1), Some(later.fence())));
    drop((earlier, later));
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_name_that_one_holds_alone_costs_one_question() {
    let server = Server::start();
    let [leases] = programs(&server).await;
    let lock = leases.lock(NAME);
    let alone = acquired(&lock).await;
    // Loads the scripts.
    holder(&lock).await;
    let mut wire = server.wire();
    let asked = async |wire: &mut support::Wire| {
        wire.must(&["CONFIG", "RESETSTAT"]);
        let sharers = holder(&lock).await.sharers();
        let calls = wire.info_field("commandstats", "cmdstat_evalsha").unwrap();
        (sharers, calls.split(',').next().unwrap().to_owned())
    };
    assert_eq!(asked(&mut wire).await, (None, "calls=1".into()));
    alone.release().await.unwrap().confirmed();
    let reading = acquired(&leases.rw_lock(NAME).read()).await;
    holder(&lock).await;
    let (sharers, _) = asked(&mut wire).await;
    assert_eq!(sharers, Some(1));
    reading.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn who_waits_says_whether_it_wants_the_lock_alone() {
    let server = Server::start();
    let [leases] = programs(&server).await;
    let alone = acquired(&leases.lock(NAME)).await;
    let waiting = [
        place(&leases.rw_lock(NAME).write()).await,
        place(&leases.rw_lock(NAME).read()).await,
        place(&leases.semaphore(NAME, 4)).await,
    ];
    let waiters = within(HANGS, "who waits", leases.lock(NAME).waiters()).await.unwrap();
    let modes: Vec<_> = waiters.iter().map(leasehold::Waiter::mode).collect();
    let limit = NonZeroU32::new(4);
    let permits = NonZeroU32::MIN;
    assert_eq!(modes, [Mode::Exclusive, Mode::Shared { limit: None, permits }, Mode::Shared { limit, permits }]);
    for waiter in waiting {
        waiter.abort();
    }
    alone.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn shares_that_another_type_is_in_the_place_of_are_an_error_that_names_the_key() {
    let server = Server::start();
    let [leases] = programs(&server).await;
    let _reading = acquired(&leases.rw_lock(NAME).read()).await;
    let mut wire = server.wire();
    wire.del(HOLDERS);
    wire.must(&["LPUSH", HOLDERS, "data"]);
    let lock = leases.lock(NAME);
    let (error, says) =
        (lock.holders().await.unwrap_err(), "ERR the key {job}:lh:holders holds another type: delete it to go on");
    assert!(matches!(&error, Error::Refused(_)) && error.to_string().contains(says), "{error}");
    let seen = holder(&lock).await;
    assert_eq!((seen.is_shared(), seen.sharers()), (true, None), "its own key shows that it is shared");
    wire.del(HOLDERS);
    assert_eq!(holders(&lock).await, vec![], "it has no sharers any more");
    let seen = holder(&lock).await;
    assert_eq!(seen.sharers(), Some(0));
    assert!(seen.to_string().starts_with("no sharer any more (fence "), "{seen}");
}

#[tokio::test]
async fn a_sharer_that_is_no_token_is_shown_and_counted() {
    let server = Server::start();
    let [leases] = programs(&server).await;
    let _reading = acquired(&leases.rw_lock(NAME).read()).await;
    let mut wire = server.wire();
    wire.must(&["ZADD", HOLDERS, "9e15", "by hand"]);
    let lock = leases.lock(NAME);
    assert_eq!((labels(&holders(&lock).await), holder(&lock).await.sharers()), (vec!["program 0", "?"], Some(2)));
    assert!(leases.semaphore(NAME, 2).try_acquire().await.unwrap().is_none(), "until then it has a place");
    acquired(&leases.semaphore(NAME, 3)).await.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn a_label_may_have_the_signs_that_stand_between_what_the_server_keeps() {
    const SIGNS: &str = "a@b|3*~c>!d:9@e";
    let server = Server::start();
    let [leases] = programs(&server).await;
    let name = leases.rw_lock(NAME);
    let (read, write) = (name.read().label(SIGNS), name.write().label(SIGNS));
    let reading = acquired(&read).await;
    assert_eq!(labels(&holders(&read).await), [SIGNS]);
    let (writer, reader) = (place(&write).await, place(&leases.semaphore(NAME, 7).label(SIGNS)).await);
    let waiters = within(HANGS, "who waits", read.waiters()).await.unwrap();
    let seen: Vec<_> = waiters.iter().map(|waiter| (waiter.label(), waiter.mode())).collect();
    assert_eq!(
        seen,
        [(SIGNS, Mode::Exclusive), (SIGNS, Mode::Shared { limit: NonZeroU32::new(7), permits: NonZeroU32::MIN })]
    );
    reading.release().await.unwrap().confirmed();
    for waiter in [writer, reader] {
        had(waiter).await.0.release().await.unwrap().confirmed();
    }
    nothing_is_left(&mut server.wire()).await;
}

/// A value that begins like a shared lock's, but has no fence, is another library's.
#[tokio::test]
async fn a_key_of_nobodys_acquisition_without_a_fence_is_another_librarys() {
    const VALUE: &str = "lh1:00000000-0000-0000-0000-000000000000:x@shared";
    let server = Server::start();
    let [leases] = programs(&server).await;
    let (name, mut wire) = (leases.rw_lock(NAME), server.wire());
    let reading = acquired(&name.read().ttl(SHORT)).await;
    wire.must(&["SET", NAME, VALUE, "PX", "60000"]);
    let lost = within(HANGS, "the loss", reading.lost()).await.reason();
    assert!(matches!(lost, LossReason::Deleted | LossReason::Taken), "{lost:?}");
    assert_eq!(ending(reading.release().await).reason(), lost);
    let seen = holder(&name.read()).await;
    assert_eq!((seen.is_shared(), seen.label(), seen.fence()), (false, None, None));
    for lock in [name.read(), name.write(), leases.semaphore(NAME, 9)] {
        assert!(lock.try_acquire().await.unwrap().is_none(), "{}", lock.mode());
    }
    assert_eq!(wire.get(NAME).as_deref(), Some(VALUE), "it is the other's");
    wire.del(NAME);
    acquired(&name.read()).await.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn a_share_that_is_kept_is_listed_as_released() {
    let leases = Client::in_memory();
    let lock = leases.semaphore(NAME, 2).label("worker").keep_for(Duration::from_secs(60));
    acquired(&lock).await.release().await.unwrap().confirmed();
    let all = holders(&lock).await;
    assert_eq!((labels(&all), all[0].is_ours()), (vec!["worker (released)"], false));
}

#[tokio::test]
async fn over_a_quorum_the_one_holder_is_listed() {
    let nodes = (0..3).map(|node| format!("memory://looking-{node}"));
    let leases = Client::builder().quorum(nodes).build().await.unwrap();
    let lock = leases.lock(NAME);
    assert!(holders(&lock).await.is_empty());
    let _lease = acquired(&lock).await;
    let all = holders(&lock).await;
    assert_eq!((all.len(), all[0].is_ours(), all[0].is_shared()), (1, true, false));
}
