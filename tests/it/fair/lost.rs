//! A fair queue when its keys are lost, its connections end or the server's clock steps: rows F15, F17, F19, F28 and
//! F29 of the fault table.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LossReason, Released};
use support::{ClockShim, Lag, Server, Wire, eventually_async, eventually_but_for, scripts::RELEASE, seen, within};

use super::line::{
    HEARTBEAT, History, PROMPT, SOON, Waiter, all_can_be_called, callable, had, nothing_is_left, place, queue_key,
    tokens, wait_key,
};
use crate::common::{Confirmed as _, LONG, program_with};

/// After the queue was lost, the first waiter to poll takes a free lock. The others have their old places back once all
/// of them have polled.
async fn come_in_their_old_order(wire: &mut Wire, name: &str, mut waiters: Vec<Waiter>, mut line: Vec<String>) {
    let (lag, began) = (Lag::start(), Instant::now());
    eventually_async(SOON, "somebody has it", || waiters.iter().any(Waiter::is_finished)).await;
    let first = waiters.iter().position(Waiter::is_finished).unwrap();
    assert_eq!(line.remove(first), wire.token(name).unwrap());
    let (mut lease, _) = had(waiters.remove(first)).await;
    let is_all = || tokens(wire, name).len() == line.len();
    eventually_but_for(&lag, HEARTBEAT + PROMPT, "all have polled", is_all).await;
    println!("{name}: number {first} first, all are there after {:?}", began.elapsed());
    assert_eq!(tokens(wire, name), line);
    for waiter in waiters {
        let (released, fence) = (Instant::now(), lease.fence());
        lease.release().await.unwrap().confirmed();
        let (next, at) = had(waiter).await;
        let took = at.saturating_duration_since(released);
        assert!(took <= PROMPT + lag.of(2), "{took:?}; the machine lagged {:?}", lag.worst());
        assert!(next.fence() > fence);
        lease = next;
    }
    lease.release().await.unwrap().confirmed();
}

/// Waiters of several programs.
async fn line_of(wire: &mut Wire, all: &[Client], name: &str, count: usize) -> (Vec<Waiter>, Vec<String>) {
    let mut waiters = Vec::new();
    for n in 0..count {
        waiters.push(place(&all[n % all.len()].lock(name)).await);
    }
    all_can_be_called(wire, name, count).await;
    (waiters, tokens(wire, name))
}

async fn three(server: &Server, ttl: Duration) -> [Client; 3] {
    let url = server.url();
    [program_with(&*url, ttl).await, program_with(&*url, ttl).await, program_with(&*url, ttl).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_flushall_with_a_fair_queue() {
    let server = Server::start();
    let (holder, all) = (program_with(server.url(), LONG).await, three(&server, LONG).await);
    let (mut wire, lag) = (server.wire(), Lag::start());
    let lease = holder.lock("job").acquire().await.unwrap();
    let (waiters, line) = line_of(&mut wire, &all, "job", 20).await;
    eventually_async(SOON, "all are watched", || wire.trackers().len() == 4).await;
    let flushed = Instant::now();
    wire.must(&["FLUSHALL"]);
    let lost = within(SOON, "the loss", lease.lost()).await;
    let took = flushed.elapsed();
    // Not `Taken`, unless a waiter was faster than the renewal.
    assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken), "{lost:?}");
    seen::took("signal after the fault, with a fair queue", took, PROMPT, &lag);
    assert!(took <= PROMPT + lag.of(3), "{took:?}");
    come_in_their_old_order(&mut wire, "job", waiters, line).await;
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_keys_are_restored_in_order() {
    const TTL: Duration = Duration::from_secs(1);
    const KEYS: [fn(&str) -> String; 2] = [queue_key, wait_key];
    let server = Server::start();
    let all = three(&server, TTL).await;
    for (n, keys) in [&KEYS[..1], &KEYS[1..], &KEYS].into_iter().enumerate() {
        for at_once in [false, true] {
            let (mut wire, name) = (server.wire(), format!("job {n} {at_once}"));
            let (lag, lease) = (Lag::start(), all[0].lock(&name).acquire().await.unwrap());
            let (waiters, line) = line_of(&mut wire, &all, &name, 9).await;
            let deleted = Instant::now();
            for key in keys {
                wire.del(&key(&name));
            }
            if !at_once {
                let mut are_back =
                    |count| tokens(&mut wire, &name).len() >= count && callable(&mut wire, &name) >= count;
                // The first waiter of each program polls when the holder's key could have expired,
                eventually_but_for(&lag, TTL + PROMPT, &name, || are_back(all.len())).await;
                // and then its program calls its other waiters.
                eventually_async(SOON, &name, || are_back(9)).await;
                println!("{name}: back after {:?}", deleted.elapsed());
                assert_eq!(tokens(&mut wire, &name), line);
                lease.check().unwrap();
            }
            lease.release().await.unwrap().confirmed();
            come_in_their_old_order(&mut wire, &name, waiters, line).await;
        }
    }
    nothing_is_left(&mut server.wire()).await;
}

/// A failover or a restart may lose a grant, but keep the place in the queue that it was for. Another waiter then gets
/// the lock, and the place is granted again later: to the same token, with a larger fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_a_grant_is_told_so_when_its_place_is_granted_once_more() {
    const RIVAL: [&str; 2] = ["lh1:00000000-0000-4000-8000-000000000001", "@rival"];
    let server = Server::start();
    let (all, mut wire) = (three(&server, LONG).await, server.wire());
    let holder = all[0].lock("job").fair(true).acquire().await.unwrap();
    let waiter = place(&all[1].lock("job")).await;
    all_can_be_called(&mut wire, "job", 1).await;
    let (queue, wait) = (queue_key("job"), wait_key("job"));
    let token = tokens(&mut wire, "job").remove(0);
    let ticket = wire.must(&["ZSCORE", &queue, &token]).text();
    let entry = wire.must(&["HGET", &wait, &token]).text();
    holder.release().await.unwrap().confirmed();
    let (lease, _) = had(waiter).await;

    // In one step, so that a renewal finds neither a missing key nor the rival's.
    wire.must(&["MULTI"]);
    wire.must(&["SET", "job", &RIVAL.join(":1")]);
    wire.must(&["ZADD", &queue, &ticket, &token]);
    wire.must(&["HSET", &wait, &token, &entry]);
    wire.must(&["EVAL", RELEASE, "4", "job", "{job}:lh:fence", &queue, &wait, &RIVAL.concat()]);
    wire.must(&["EXEC"]);
    assert_eq!(wire.token("job"), Some(token), "it has its turn again");

    let lost = within(SOON, "the loss", lease.lost()).await;
    assert_eq!(lost.reason(), LossReason::Deleted, "{lost}");
    lease.check().unwrap_err();
    let fence = lease.fence();
    drop(lease);
    let next = within(SOON, "the lock", all[2].lock("job").fair(true).acquire()).await.unwrap();
    assert!(next.fence() > fence);
    next.release().await.unwrap().confirmed();
    // Besides the fence, a mark of the process that did not poll after its second grant.
    assert!(!wire.exists("job") && tokens(&mut wire, "job").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_a_queue_key_of_another_type_is_refused_and_stops_no_holder() {
    let server = Server::start();
    let all = three(&server, LONG).await;
    let mut wire = server.wire();
    for key in [queue_key, wait_key] {
        let key = key("job");
        let lease = all[0].lock("job").acquire().await.unwrap();
        let waiter = place(&all[1].lock("job")).await;
        all_can_be_called(&mut wire, "job", 1).await;
        wire.set(&key, "something else");
        let outcome = all[2].lock("job").fair(true).try_acquire().await;
        let Err(Error::Refused(error)) = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().contains(&key) && error.to_string().contains("another type"), "{error}");
        let (lag, released) = (Lag::start(), Instant::now());
        lease.release().await.unwrap().confirmed();
        let (outcome, at) = within(SOON, "the waiter's end", waiter).await.unwrap();
        assert!(matches!(outcome, Err(Error::Refused(_))), "{outcome:?}");
        assert!(at.duration_since(released) <= PROMPT + lag.worst(), "{:?}", at.duration_since(released));
        assert!(!wire.exists("job"));
        // Waiters outside the queue are not affected.
        all[2].lock("job").acquire().await.unwrap().release().await.unwrap().confirmed();
        wire.must(&["DEL", &queue_key("job"), &wait_key("job")]);
        all[2].lock("job").fair(true).acquire().await.unwrap().release().await.unwrap().confirmed();
    }
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_the_servers_clock_steps_back_while_a_fair_queue_waits() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let (all, mut wire, history) = (three(&server, LONG).await, server.wire(), History::new());
    let lease = all[0].lock("job").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..9 {
        if n == 4 {
            clock.back(Duration::from_secs(3_600));
        }
        tasks.push(history.enter(&all[n % 3].lock("job"), n).await);
    }
    all_can_be_called(&mut wire, "job", 9).await;
    let (lag, released) = (Lag::start(), Instant::now());
    lease.release().await.unwrap().confirmed();
    for task in tasks {
        within(SOON, "everybody has it", task).await.unwrap();
    }
    assert!(released.elapsed() <= 9 * PROMPT + lag.of(9), "{:?}", released.elapsed());
    assert_eq!(history.had(), (0..9).collect::<Vec<_>>());
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f28_the_servers_clock_steps_forward_while_a_fair_queue_waits() {
    const TTL: Duration = Duration::from_secs(1);
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let (all, mut wire) = (three(&server, TTL).await, server.wire());
    let lease = all[0].lock("job").acquire().await.unwrap();
    let (waiters, line) = line_of(&mut wire, &all, "job", 9).await;
    // Holder, queue and fence have expired.
    clock.forward_past(Duration::from_secs(3_600), &mut wire, "job");
    within(SOON, "the loss", lease.lost()).await;
    come_in_their_old_order(&mut wire, "job", waiters, line).await;
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_connections_that_end_while_a_fair_queue_waits() {
    let server = Server::start();
    let (mut wire, lag) = (server.wire(), Lag::start());
    for kinds in [&["pubsub"][..], &["normal"], &["pubsub", "normal"]] {
        for at_once in [false, true] {
            let all = three(&server, LONG).await;
            let lease = all[0].lock("job").acquire().await.unwrap();
            let (waiters, line) = line_of(&mut wire, &all[1..], "job", 6).await;
            eventually_async(SOON, "all are watched", || wire.trackers().len() == 3).await;
            for kind in kinds {
                wire.must(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
            if !at_once {
                eventually_async(SOON, "all are back", || wire.trackers().len() == 3).await;
                all_can_be_called(&mut wire, "job", 6).await;
            }
            let released = Instant::now();
            let outcome = lease.release().await;
            // Its connections may have ended with the answer; the release then continues in the background.
            let was_ours = if at_once { outcome.is_ok() } else { outcome == Ok(Released::Confirmed) };
            assert!(was_ours, "{outcome:?}");
            eventually_async(SOON, "the next one", || waiters.iter().any(Waiter::is_finished)).await;
            let took = released.elapsed();
            println!("{kinds:?}, at once {at_once}: {took:?}");
            // Reconnecting takes a few pauses.
            let limit = if at_once { 5 * PROMPT } else { PROMPT };
            let what = if at_once { "fair hand-off at once" } else { "fair hand-off afterwards" };
            seen::took(what, took, limit, &lag);
            assert!(took <= limit + lag.worst(), "{kinds:?}, at once {at_once}: {took:?}");
            if !at_once {
                assert!(waiters[0].is_finished(), "its place is kept");
            }
            // Two of the three have a waiter.
            eventually_async(SOON, "all are back", || wire.trackers().len() >= 2).await;
            come_in_their_old_order(&mut wire, "job", waiters, line).await;
            nothing_is_left(&mut wire).await;
            for leases in all {
                leases.close().await;
            }
            eventually_async(SOON, "the connections are closed", || wire.receivers() == 0).await;
        }
    }
}
