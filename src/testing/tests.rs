// The tests bypass the library's wrappers for time and tasks.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{future::Future, time::Duration};

use tokio::time::timeout;

use super::*;
use crate::{Owner, Released, Status};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const ALMOST: Duration = Duration::from_secs(3_599);
const TTL: Duration = Duration::from_secs(30);

/// Limits the future to far less real time than these tests let pass on the clock, but much more than a busy machine
/// needs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = timeout(10 * SECOND, future).await;
    done.unwrap_or_else(|_| panic!("{what} takes real time"))
}

async fn leases() -> (Client, ManualClock) {
    let clock = ManualClock::new();
    let leases = Client::builder().url("memory://").ttl(TTL).clock(clock.clone()).build().await.unwrap();
    (leases, clock)
}

#[tokio::test]
async fn the_watchdog_renews_when_the_clock_comes_to_it() {
    let (leases, clock) = leases().await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut renewed = 0;
    for _ in 0..100 {
        let before = lease.remaining();
        soon("four seconds", clock.pass(4 * SECOND, &leases)).await;
        assert_eq!(lease.check(), Ok(()));
        assert!(lease.remaining() > TTL * 3 / 5, "{lease:?}");
        renewed += u32::from(lease.remaining() > before);
    }
    assert!((30..=50).contains(&renewed), "{renewed}");
    // Without a request: the keeper checks because the clock has moved.
    clock.advance(11 * SECOND);
    soon("a renewal", async {
        while lease.remaining() < TTL * 29 / 30 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let remaining = leases.lock("job").holder().await.unwrap().unwrap().remaining().unwrap();
    assert!(remaining > TTL * 29 / 30, "the key's: {remaining:?}");
}

#[tokio::test]
async fn a_jump_beyond_the_ttl_is_a_loss_and_the_key_expires_with_it() {
    let (leases, clock) = leases().await;
    let lock = leases.lock("job");
    let (lease, lost) = {
        let lease = lock.acquire().await.unwrap();
        let lost = tokio::spawn(lease.lost());
        (lease, lost)
    };
    clock.advance(HOUR);
    assert_eq!(lease.check().unwrap_err().lost().unwrap().reason(), LossReason::Expired);
    assert_eq!(soon("the signal", lost).await.unwrap().reason(), LossReason::Expired);
    assert_eq!(lock.holder().await.unwrap(), None);
    let next = lock.try_acquire().await.unwrap().expect("nobody has it");
    assert!(next.fence() > lease.fence());
}

#[tokio::test]
async fn a_named_store_goes_by_the_clock_that_made_it() {
    let (first, second) = (ManualClock::new(), ManualClock::new());
    let connect = |clock: &ManualClock| Client::builder().url("memory://two clocks").clock(clock.clone()).build();
    let (one, other) = (connect(&first).await.unwrap(), connect(&second).await.unwrap());
    let lock = one.lock("job");
    take_over(&lock).unwrap();
    second.advance(HOUR);
    assert!(other.lock("job").holder().await.unwrap().is_some());
    first.advance(HOUR);
    assert_eq!(other.lock("job").holder().await.unwrap(), None);
}

#[tokio::test]
async fn a_lock_is_taken_over_before_all_who_stand_in_line() {
    let (leases, clock) = leases().await;
    let lock = leases.lock("job").fair(true);
    let lease = lock.acquire().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=2 {
        let waiter = lock.clone().owner(Owner::anonymous());
        waiters.push(tokio::spawn(async move { waiter.acquire().await }));
        while lock.waiters().await.unwrap().len() < place {
            tokio::task::yield_now().await;
        }
    }
    take_over(&lock).unwrap();
    assert_eq!(lock.holder().await.unwrap().unwrap().label(), Some("somebody else"));
    soon("a second", clock.pass(SECOND, &leases)).await;
    assert_eq!(soon("the signal", lease.lost()).await.reason(), LossReason::Taken);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    // The waiters have kept their places.
    for waiter in waiters {
        soon("a TTL", clock.pass(2 * TTL, &leases)).await;
        let released = soon("its turn", waiter).await.unwrap().unwrap().release().await;
        assert_eq!(released, Ok(Released::Confirmed));
    }
}

#[tokio::test]
async fn max_hold_passes_in_no_time() {
    let (leases, clock) = leases().await;
    let lease = leases.lock("job").max_hold(HOUR).acquire().await.unwrap();
    let mut changes = lease.status_changes();
    soon("an hour", clock.pass(ALMOST, &leases)).await;
    assert_eq!(lease.status(), Status::Held);
    soon("a second", clock.pass(SECOND, &leases)).await;
    assert_eq!(soon("the signal", lease.lost()).await.reason(), LossReason::MaxHold);
    assert!(matches!(soon("the change", changes.next()).await, Some(Status::Lost(_))));
}

#[tokio::test]
async fn work_stalls_in_no_time() {
    let (leases, clock) = leases().await;
    let lease = leases.lock("job").stall_after(2 * HOUR).acquire().await.unwrap();
    for _ in 0..5 {
        soon("an hour", clock.pass(ALMOST, &leases)).await;
        assert_eq!(lease.status(), Status::Held);
        lease.progress();
    }
    soon("an hour", clock.pass(HOUR, &leases)).await;
    assert_eq!(lease.status(), Status::AtRisk);
    soon("the rest", clock.pass(2 * HOUR, &leases)).await;
    assert_eq!(soon("the signal", lease.lost()).await.reason(), LossReason::Stalled);
}

#[tokio::test]
async fn a_wait_of_an_hour_is_over_in_no_time() {
    let (leases, clock) = leases().await;
    let lock = leases.lock("job").ttl(2 * HOUR);
    let lease = lock.acquire().await.unwrap();
    for fair in [false, true] {
        let waits = tokio::spawn(lock.clone().fair(fair).acquire_within(HOUR));
        tokio::task::yield_now().await;
        soon("an hour", clock.pass(ALMOST, &leases)).await;
        assert!(!waits.is_finished());
        clock.advance(SECOND);
        match soon("the end", waits).await.unwrap() {
            Err(Error::TimedOut { waited, .. }) => assert_eq!(waited, HOUR),
            other => panic!("{other:?}"),
        }
    }
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_lease_is_lost_on_purpose() {
    let (leases, clock) = leases().await;
    let lock = leases.lock("job");

    let lease = lock.acquire().await.unwrap();
    assert!(lock.force_release().await.unwrap());
    clock.advance(SECOND);
    assert_eq!(soon("the loss", lease.lost()).await.reason(), LossReason::Forced);

    let lease = lock.acquire().await.unwrap();
    take_over(&lock).unwrap();
    clock.advance(SECOND);
    assert_eq!(soon("the loss", lease.lost()).await.reason(), LossReason::Taken);
    assert_eq!(lock.holder().await.unwrap().unwrap().label(), Some("somebody else"));
    clock.advance(TTL);
    assert_eq!(lock.holder().await.unwrap(), None, "for a TTL");

    let lease = lock.acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let silence = silence(&leases).unwrap();
    soon("half a TTL", clock.pass(TTL / 2, &leases)).await;
    assert_eq!(soon("the risk", changes.next()).await, Some(Status::AtRisk));
    clock.advance(TTL);
    assert_eq!(soon("the loss", lease.lost()).await.reason(), LossReason::Expired);
    drop(silence);
    assert_eq!(soon("the next", lock.acquire()).await.unwrap().release().await, Ok(Released::Confirmed));
}

#[tokio::test]
async fn what_waited_for_the_end_of_a_silence_is_answered() {
    let (leases, clock) = leases().await;
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let (first, second) = (silence(&leases).unwrap(), silence(&leases).unwrap());
    soon("half a TTL", clock.pass(TTL / 2, &leases)).await;
    assert_eq!(soon("the risk", changes.next()).await, Some(Status::AtRisk));
    drop(first);
    let asked = tokio::spawn(leases.lock("other").acquire());
    tokio::task::yield_now().await;
    assert!(!asked.is_finished(), "one of two still lasts");
    drop(second);
    assert_eq!(soon("the recovery", changes.next()).await, Some(Status::Held));
    assert!(soon("the answer", asked).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_quorum_in_memory_is_silent_too() {
    let clock = ManualClock::new();
    let urls = ["memory://silent 1", "memory://silent 2", "memory://silent 3"];
    let leases = Client::builder().quorum(urls).ttl(TTL).clock(clock.clone()).build().await.unwrap();
    let lock = leases.lock("job");
    let lease = lock.acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let silence = silence(&leases).unwrap();
    soon("half a TTL", clock.pass(TTL / 2, &leases)).await;
    assert_eq!(soon("the risk", changes.next()).await, Some(Status::AtRisk));
    clock.advance(TTL);
    assert_eq!(soon("the loss", lease.lost()).await.reason(), LossReason::NoQuorum);
    drop(silence);
    drop(lease);
    let lease = soon("the next", lock.acquire()).await.unwrap();
    take_over(&lock).unwrap();
    clock.advance(SECOND);
    assert_eq!(soon("the loss", lease.lost()).await.reason(), LossReason::Taken);
}

#[tokio::test]
async fn only_nodes_in_memory_are_for_tests() {
    let (leases, _) = leases().await;
    assert!(matches!(take_over(&leases.lock("")).unwrap_err(), Error::Config(_)));
    leases.close().await;
    assert!(matches!(take_over(&leases.lock("job")).unwrap_err(), Error::Closed));
}

#[test]
fn a_fake_builds_what_the_library_would_tell() {
    let fence = Fence::try_from(7_u64).unwrap();
    let lost = lost("job", fence, LossReason::Taken);
    assert_eq!((lost.name(), lost.fence(), lost.reason()), ("job", fence, LossReason::Taken));
    let holder = holder("web-3:7", TTL, fence);
    assert_eq!((holder.label(), holder.remaining(), holder.fence()), (Some("web-3:7"), Some(TTL), Some(fence)));
    let error = timed_out("job", HOUR, holder);
    assert!(error.to_string().contains("web-3:7"), "{error}");
}
