//! The floors of fences: the fence shown when a lock's floor is missing, what a released name leaves, and rows F97 to
//! F99 of the fault table.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Fence, Lease};
use support::{
    ClockShim, HANGS, Nodes, Server, Wire,
    scripts::{ACQUIRE, POLL},
    within,
};

use crate::common::{Confirmed as _, FENCE, LONG, told};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const TOKEN: &str = "lh1:0d9a60f5-51a8-4bd6-a02c-0123456789ab@host:7";

async fn remembering(url: impl Into<String>, memory: Duration) -> Client {
    // A busy server on a busy machine may answer late, which no test here is about.
    Client::builder().url(url).ttl(DAY).fence_memory(memory).command_timeout(HANGS).build().await.unwrap()
}

async fn take(leases: &Client, name: &str) -> Lease {
    within(HANGS, "the lock is free", leases.lock(name).acquire()).await.unwrap()
}

async fn next_fence(leases: &Client, name: &str) -> Fence {
    let lease = take(leases, name).await;
    let fence = lease.fence();
    lease.release().await.unwrap().confirmed();
    fence
}

async fn seen(leases: &Client, name: &str) -> Option<Fence> {
    leases.lock(name).holder().await.unwrap().expect("it is held").fence()
}

/// All keys found by `SCAN`.
fn scanned(wire: &mut Wire) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    for _page in 0..1_000 {
        let reply = wire.must(&["SCAN", &cursor, "COUNT", "1000"]);
        let [next, page] = reply.array() else { panic!("{reply:?}") };
        keys.extend(page.array().iter().map(support::Value::text));
        cursor = next.text();
        if cursor == "0" {
            return keys;
        }
    }
    panic!("{} keys, and no end", keys.len());
}

#[tokio::test]
async fn a_lease_held_for_25_hours_shows_its_fence() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let (holder, other) = (remembering(server.url(), DAY).await, remembering(server.url(), DAY).await);
    let lease = take(&holder, "job").await;
    for _half in 0..2 {
        clock.forward(25 * HOUR / 2);
        lease.renew().await.unwrap();
    }
    assert!(!server.wire().exists(FENCE), "its floor has gone: the premise");
    assert_eq!(seen(&other, "job").await, Some(lease.fence()));
    let fence = lease.fence();
    lease.release().await.unwrap().confirmed();
    assert!(next_fence(&other, "job").await > fence);
}

#[tokio::test]
async fn a_lease_whose_floor_was_deleted_shows_its_fence() {
    let server = Server::start();
    let (holder, other) = (remembering(server.url(), DAY).await, remembering(server.url(), DAY).await);
    let lease = take(&holder, "job").await;
    assert!(server.wire().del(FENCE));
    assert_eq!(seen(&other, "job").await, Some(lease.fence()));
    assert!(matches!(other.lock("job").acquire_within(Duration::ZERO).await,
        Err(Error::TimedOut { holder, .. }) if holder.fence() == Some(lease.fence())));
    let fence = lease.fence();
    lease.release().await.unwrap().confirmed();
    assert!(next_fence(&other, "job").await > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f97_floors_are_evicted_while_locks_are_held() {
    let server = Server::start();
    let (leases, other) = (remembering(server.url(), DAY).await, remembering(server.url(), DAY).await);
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(take(&leases, &format!("held{n}")).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let evicting = {
        let (over, mut wire) = (over.clone(), server.wire());
        tokio::task::spawn_blocking(move || {
            let mut evicted = 0;
            while !over.load(Ordering::Relaxed) {
                let floors = wire.keys("*:lh:fence");
                evicted += floors.iter().filter(|floor| wire.del(floor)).count();
            }
            evicted
        })
    };
    let taking: Vec<_> = (0..8)
        .map(|n| {
            let leases = if n % 2 == 0 { leases.clone() } else { other.clone() };
            tokio::spawn(async move {
                let (name, mut last) = (format!("taken{}", n / 4), None);
                for _ in 0..100 {
                    let lease = within(HANGS, "its turn", leases.lock(&name).acquire()).await.unwrap();
                    let fence = lease.fence();
                    assert!(last < Some(fence), "{fence} after {last:?}");
                    assert_eq!(seen(&leases, &name).await, Some(fence));
                    last = Some(fence);
                    lease.release().await.unwrap().confirmed();
                }
            })
        })
        .collect();
    for task in taking {
        task.await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let evicted = evicting.await.unwrap();
    assert!(evicted >= 20, "{evicted} floors evicted: this shows nothing");
    for lease in held {
        lease.renew().await.unwrap();
        assert_eq!(seen(&other, lease.name()).await, Some(lease.fence()), "{}", lease.name());
        let (name, fence) = (lease.name().to_owned(), lease.fence());
        lease.release().await.unwrap().confirmed();
        assert!(next_fence(&other, &name).await > fence, "{name}");
    }
}

/// A quorum's servers must not evict. If they do, holders keep their fences all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f97_floors_are_evicted_from_a_quorum_while_locks_are_held() {
    let nodes = Nodes::seasoned(3);
    // A fast clock issues larger fences, to which the others are raised.
    nodes.clock(1).forward(SECOND / 2);
    let program = || Client::builder().quorum(nodes.urls()).ttl(LONG).build();
    let (holder, other) = (program().await.unwrap(), program().await.unwrap());
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(take(&holder, &format!("held{n}")).await);
    }
    for at in 0..3 {
        let mut wire = nodes[at].wire();
        let floors = wire.keys("*:lh:fence");
        assert!(!floors.is_empty(), "this would show nothing");
        for floor in floors {
            assert!(wire.del(&floor));
        }
    }
    for lease in held {
        lease.renew().await.unwrap();
        assert_eq!(seen(&other, lease.name()).await, Some(lease.fence()), "{}", lease.name());
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test]
async fn f98_the_clock_is_set_back_by_less_than_the_fence_memory() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let leases = remembering(server.url(), HOUR).await;
    let mut last = next_fence(&leases, "job").await;
    // While the floor exists, and after it has expired.
    for ahead in [30 * MINUTE, HOUR + SECOND] {
        clock.forward(ahead);
        assert_eq!(server.wire().exists(FENCE), ahead < HOUR, "{ahead:?}");
        clock.back(59 * MINUTE);
        let next = next_fence(&leases, "job").await;
        assert!(next > last, "{next} after {last}, {ahead:?} ahead");
        last = next;
        clock.reset();
        // Past the fence issued while the clock was ahead.
        clock.forward(2 * HOUR);
        last = last.max(next_fence(&leases, "job").await);
    }
}

#[tokio::test]
async fn f98_the_clock_is_set_back_by_more_than_the_fence_memory() {
    for (memory, step) in [(HOUR, HOUR + 2 * SECOND), (Duration::ZERO, SECOND)] {
        let clock = ClockShim::new();
        let server = Server::builder().clock(&clock).start();
        let leases = remembering(server.url(), memory).await;
        let first = next_fence(&leases, "job").await;
        clock.forward(memory + SECOND / 2);
        assert!(!server.wire().exists(FENCE), "its floor has gone");
        clock.back(step);
        let second = next_fence(&leases, "job").await;
        assert!(second < first, "the documented exception: {second} after {first}");
        let third = next_fence(&leases, "job").await;
        assert!(third > second, "and grows from there: {third}");
    }
}

#[test]
fn f99_an_acquire_is_replayed_after_its_floor_has_gone() {
    let server = Server::start();
    let mut wire = server.wire();
    let fence = |reply: &support::Value| reply.array()[1].text().parse::<u64>().unwrap();
    let acquire = |wire: &mut Wire, proposal: &str| {
        let reply = wire.must(&["EVAL", ACQUIRE, "2", "job", FENCE, TOKEN, "30000", "3600000", "0", proposal]);
        assert_eq!(reply.array()[0].int(), 1, "{reply:?}");
        fence(&reply)
    };
    let first = acquire(&mut wire, "");
    assert!(wire.del(FENCE));
    assert_eq!(acquire(&mut wire, &(first + 1_000_000).to_string()), first);
    let (line, wait) = ("{job}:lh:queue", "{job}:lh:wait");
    let poll = ["EVAL", POLL, "5", "job", FENCE, line, wait, "{job}:lh:holders"];
    let arguments = [TOKEN, "30000", "0", "1000", "1000", "", "1", "0", "3600000", "0"];
    let polled = wire.must(&[&poll[..], &arguments].concat());
    assert_eq!((polled.array()[0].int(), fence(&polled)), (1, first), "nor does a poll");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fence_memory_ten_thousand_names_leave_no_key() {
    let server = Server::start();
    let leases = remembering(server.url(), Duration::ZERO).await;
    for batch in 0..100 {
        let taking: Vec<_> = (0..100)
            .map(|n| {
                let leases = leases.clone();
                tokio::spawn(async move { next_fence(&leases, &format!("job:{batch}:{n}")).await })
            })
            .collect();
        for task in taking {
            task.await.unwrap();
        }
    }
    // A floor still ahead of the clock at the release expires a millisecond later.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(scanned(&mut server.wire()), Vec::<String>::new());
}

#[tokio::test]
async fn without_fence_memory_fences_grow_while_the_clock_stands_or_goes_on() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let leases = remembering(server.url(), Duration::ZERO).await;
    let mut last = next_fence(&leases, "job").await;
    for rate in [-1_000_000, 0, 1_000_000] {
        clock.gain(rate);
        for _ in 0..100 {
            for lock in [leases.lock("job"), leases.lock("job").fair(true)] {
                let lease = within(HANGS, "the lock is free", lock.acquire()).await.unwrap();
                assert!(lease.fence() > last, "{} after {last} at a rate of {rate}", lease.fence());
                last = lease.fence();
                lease.release().await.unwrap().confirmed();
            }
        }
    }
}

#[tokio::test]
async fn a_fence_memory_is_the_locks_or_the_builders_and_at_most_a_day() {
    let server = Server::start();
    let leases = remembering(server.url(), HOUR).await;
    let lives = async |lock: leasehold::Lock| {
        lock.acquire().await.unwrap().release().await.unwrap().confirmed();
        let lives = Duration::from_millis(server.wire().pttl(FENCE).try_into().unwrap_or(0));
        server.wire().del(FENCE);
        lives.as_secs().div_ceil(60)
    };
    for fair in [false, true] {
        let lock = leases.lock("job").fair(fair);
        assert_eq!(lives(lock.clone()).await, 60, "fair {fair}");
        assert_eq!(lives(lock.clone().fence_memory(DAY)).await, 24 * 60, "fair {fair}");
        assert_eq!(lives(lock.fence_memory(Duration::ZERO)).await, 0, "fair {fair}");
    }
    let too_long = DAY + Duration::from_nanos(1);
    let built = Client::builder().url(server.url()).fence_memory(too_long).build().await.unwrap_err();
    let refused = leases.lock("job").fence_memory(too_long).acquire().await.unwrap_err();
    for error in [built, refused] {
        assert!(matches!(error, Error::Config(_)));
        let said = error.to_string();
        assert!(said.contains("fence_memory") && said.contains("at most 24 h"), "{said}");
    }
}

#[tokio::test]
async fn a_share_of_floors_that_a_user_may_not_weigh_is_not_made_up() {
    let server = Server::start();
    let everybody = remembering(server.url(), DAY).await;
    next_fence(&everybody, "job").await;
    for (rights, is_told) in [
        (["~*", "+@all"], true),
        (["~*", "-scan"], false),
        (["~*", "-dbsize"], false),
        (["~*", "-memory"], false),
        (["~other*", "+@all"], false),
    ] {
        let user = ["ACL", "SETUSER", "clerk", "reset", "on", ">secret", "&*", "+@all"];
        server.wire().must(&[&user[..], &rights[..]].concat());
        let clerk = Client::connect(format!("redis://clerk:secret@127.0.0.1:{}", server.port())).await.unwrap();
        let said = told(&clerk).await;
        assert_eq!(said.floors.is_some(), is_told, "{rights:?}: {said:?}");
    }
    let denied = server.wire().must(&["ACL", "LOG"]).array().len();
    assert!(denied <= 4, "one entry for each right that is missing, and not one for each key: {denied}");
}

/// The floor lives for the fair waiter's own fence memory, whoever releases the lock to it.
#[tokio::test]
async fn a_waiter_that_is_granted_the_lock_has_its_own_fence_memory() {
    let server = Server::start();
    let (holder, waiter) = (remembering(server.url(), DAY).await, remembering(server.url(), HOUR).await);
    let lease = holder.lock("job").fair(true).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("job").fair(true).acquire());
    support::eventually_async(HANGS, "it waits", || server.wire().exists("{job}:lh:queue")).await;
    lease.release().await.unwrap().confirmed();
    let lease = within(HANGS, "its turn", waiting).await.unwrap().unwrap();
    let lives = Duration::from_millis(server.wire().pttl(FENCE).try_into().unwrap());
    assert!(lives <= HOUR && lives > 59 * MINUTE, "{lives:?}");
    lease.release().await.unwrap().confirmed();
}

/// Prints the figures of the table in `docs/deployments.md`, for names of 14 and of 42 bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_million_released_names_leave() {
    const NAMES: usize = 10_000;
    for bytes in [14, 42] {
        let server = Server::start();
        let used = || server.wire().info_field("memory", "used_memory").unwrap().parse::<usize>().unwrap();
        let leases = remembering(server.url(), DAY).await;
        next_fence(&leases, "warm").await;
        let before = used();
        for batch in 0..NAMES / 100 {
            let taking: Vec<_> = (0..100)
                .map(|n| {
                    let (leases, name) = (leases.clone(), format!("{:0>bytes$}", 100 * batch + n));
                    tokio::spawn(async move { next_fence(&leases, &name).await })
                })
                .collect();
            for task in taking {
                task.await.unwrap();
            }
        }
        let each = (used() - before) / NAMES;
        println!(
            "a name of {bytes} bytes leaves {each} bytes: a million a day {each} MB, with 1 h {} MB",
            each.div_ceil(24)
        );
        // At least the key and a fence of 16 digits. Valkey 8.1 needs 50 more bytes, Redis more than that.
        let least = bytes + "{}:lh:fence".len() + 16;
        assert!((least..=200).contains(&each), "{each} bytes for a name of {bytes}");
        assert_eq!(scanned(&mut server.wire()).len(), NAMES + 1, "one floor for each");
    }
}
