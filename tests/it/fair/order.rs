//! Fair locks between programs: the order of their waiters, and that leaving waiters leave nothing behind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, LossReason, Owner};
use support::{Dropped, Lag, Match, Polls, Proxy, Server, eventually_async, scripts::POLL, within};
use tokio::sync::Notify;

use super::line::{HEARTBEAT, History, PROMPT, SOON, all_can_be_called, had, nothing_is_left, place, programs, tokens};
use crate::common::{Confirmed as _, program};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_listed_in_order_with_label_and_wait() {
    let server = Server::start();
    let [holder, one, two] = programs(&server).await;
    let (lock, mut wire) = (holder.lock("job"), server.wire());
    assert!(lock.waiters().await.unwrap().is_empty(), "no queue");
    let lease = lock.acquire().await.unwrap();
    assert!(lock.waiters().await.unwrap().is_empty(), "nobody waits");
    let history = History::new();
    let (began, mut tasks) = (Instant::now(), Vec::new());
    for (n, leases) in [&one, &two, &two, &one, &holder].into_iter().enumerate() {
        tasks.push(history.enter(&leases.lock("job"), n).await);
    }
    let mut others = Vec::new();
    for (n, leases) in [&one, &two, &holder].into_iter().enumerate() {
        let (seen, history) = (Arc::new(Notify::new()), history.clone());
        let tell = seen.clone();
        let acquire = leases.lock("job").owner(Owner::anonymous()).on_wait(move |_| tell.notify_one()).acquire();
        others.push(tokio::spawn(async move { history.pass(acquire.await.unwrap(), 10 + n).await }));
        within(SOON, "it waits", seen.notified()).await;
    }
    let waiters = lock.waiters().await.unwrap();
    let labels: Vec<_> = waiters.iter().map(|waiter| waiter.label().to_owned()).collect();
    assert_eq!(labels, ["program 1", "program 2", "program 2", "program 1", "program 0"], "and no unfair waiter");
    let waited: Vec<_> = waiters.iter().map(leasehold::Waiter::waited).collect();
    assert!(waited.is_sorted_by(|a, b| a >= b) && waited[0] <= began.elapsed(), "{waited:?}");

    all_can_be_called(&mut wire, "job", 5).await;
    lease.release().await.unwrap().confirmed();
    for task in tasks.into_iter().chain(others) {
        within(SOON, "everybody has it", task).await.unwrap();
    }
    let mut order = history.had();
    assert_eq!(order[..5], [0, 1, 2, 3, 4], "the fair ones first, for it was never free between them: {order:?}");
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4, 10, 11, 12]);
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_overtakes_the_queue() {
    const WAITERS: usize = 10;
    let server = Server::start();
    let [holder, one, two, barger] = programs(&server).await;
    let (mut wire, history) = (server.wire(), History::new());
    let lease = holder.lock("job").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..WAITERS {
        let leases = if n % 2 == 0 { &one } else { &two };
        tasks.push(history.enter(&leases.lock("job"), n).await);
    }
    all_can_be_called(&mut wire, "job", WAITERS).await;
    let line = tokens(&mut wire, "job");
    let fair = barger.lock("job").fair(true).owner(Owner::anonymous());
    assert!(fair.try_acquire().await.unwrap().is_none());
    let outcome = fair.acquire_within(Duration::ZERO).await;
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    assert_eq!(tokens(&mut wire, "job"), line, "one try takes no place");

    let (over, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut bargers = Vec::new();
    for kind in 0..3 {
        let (over, tries, history) = (over.clone(), tries.clone(), history.clone());
        let lock = barger.lock("job").fair(kind == 0).owner(Owner::anonymous());
        bargers.push(tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let outcome = if kind == 2 {
                    lock.acquire_within(Duration::from_millis(3)).await.ok()
                } else {
                    lock.try_acquire().await.unwrap()
                };
                assert!(outcome.is_none() || history.count() == WAITERS, "{kind} overtook {:?}", history.had());
                tries.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let other_library = std::thread::spawn({
        let (over, tries, history, mut wire) = (over.clone(), tries.clone(), history.clone(), server.wire());
        move || {
            while !over.load(Ordering::SeqCst) {
                let taken = wire.cmd(&["SET", "job", "another", "NX", "PX", "5"]).is_ok();
                assert!(!taken || history.count() == WAITERS, "another library overtook {:?}", history.had());
                tries.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    eventually_async(SOON, "they hammer", || tries.load(Ordering::SeqCst) > 100).await;
    assert_eq!(tokens(&mut wire, "job"), line);
    lease.release().await.unwrap().confirmed();
    for task in tasks {
        within(SOON, "everybody has it", task).await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    for barger in bargers {
        barger.await.unwrap();
    }
    other_library.join().unwrap();
    assert_eq!(history.had(), (0..WAITERS).collect::<Vec<_>>());
    nothing_is_left(&mut wire).await;
}

async fn dropped_after_any_poll() {
    let server = Server::start();
    let [holder, ours, theirs] = programs(&server).await;
    let (mut wire, lag, mut worst) = (server.wire(), Lag::start(), Duration::ZERO);
    for when in [Dropped::AtOnce, Dropped::WhenWoken] {
        let (mut polls, mut middles, mut ready) = (1, 0, false);
        for turn in 0..200 {
            let name = format!("{when:?}, polls {polls}, turn {turn}");
            let lease = holder.lock(&name).acquire().await.unwrap();
            let seen = Arc::new(Notify::new());
            let tell = seen.clone();
            let lock = ours.lock(&name).fair(true).owner(Owner::anonymous()).on_wait(move |_| tell.notify_one());
            let polled = Polls::of(lock.acquire(), polls, when);
            let mut dropped = tokio::spawn(async move { (polled.await, Instant::now()) });
            let mut gone = None;
            tokio::select! {
                () = seen.notified() => {}
                outcome = &mut dropped => gone = Some(outcome.unwrap()),
            }
            let next = place(&theirs.lock(&name)).await;
            let mut since = Instant::now();
            lease.release().await.unwrap().confirmed();
            let (outcome, at) = match gone {
                Some(gone) => gone,
                None => within(SOON, &name, dropped).await.unwrap(),
            };
            since = since.max(at);
            if let Some(lease) = outcome {
                since = Instant::now();
                lease.unwrap().release().await.unwrap().confirmed();
                ready = middles > 0;
                // All its wakeups may arrive at once: then it was not dropped midway, and runs once more.
                polls = 2;
            } else {
                middles += usize::from(polls > 1);
                polls += 1;
            }
            let (lease, at) = had(next).await;
            let took = at.saturating_duration_since(since);
            let late = lag.worst();
            assert!(
                took <= PROMPT + 2 * late,
                "{name}: the next one had it after {took:?}; the machine lagged {late:?}"
            );
            worst = worst.max(took);
            lease.release().await.unwrap().confirmed();
            if ready {
                break;
            }
        }
        assert!(ready, "it was dropped {middles} times in the middle, and never ready after that");
    }
    println!("passed on within {worst:?}");
    nothing_is_left(&mut wire).await;
}

/// A new process takes its first place only once it can be notified there: if it dies, no waiter is held up by it.
#[tokio::test]
async fn the_first_place_of_a_process_is_that_of_a_waiter_that_can_be_notified() {
    let server = Server::start();
    let holder = program(server.url()).await;
    let lease = holder.lock("job").acquire().await.unwrap();
    let proxy = Proxy::to(&server);
    let waits = place(&program(proxy.url()).await.lock("job")).await;
    // After the script and its five keys: what it requests, its channel, and whether it takes a place.
    let polls = proxy.seen().into_iter().filter(|seen| Match::script(POLL).matches(&seen.args));
    let places: Vec<_> = polls.filter(|seen| seen.args[14] == b"1").map(|seen| seen.args[13].clone()).collect();
    assert!(!places.is_empty() && places.iter().all(|channel| channel.starts_with(b"leasehold:")), "{places:?}");
    lease.release().await.unwrap().confirmed();
    had(waits).await.0.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f31_a_waiter_dropped_after_any_poll_passes_its_grant_on() {
    dropped_after_any_poll().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_waiter_dropped_after_any_poll_on_several_threads_passes_its_grant_on() {
    dropped_after_any_poll().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_as_the_grant_comes_is_won_or_over_but_never_both() {
    const WAIT: u64 = 40;
    let server = Server::start();
    let [holder, ours, theirs] = programs(&server).await;
    let (mut wire, lag) = (server.wire(), Lag::start());
    let (mut won, mut over) = (0, 0);
    for round in 0..48_u64 {
        let lease = holder.lock("job").acquire().await.unwrap();
        let (seen, began) = (Arc::new(Notify::new()), Instant::now());
        let tell = seen.clone();
        let lock = ours.lock("job").fair(true).owner(Owner::anonymous()).on_wait(move |_| tell.notify_one());
        let acquire = lock.acquire_within(Duration::from_millis(WAIT));
        let mut waiter = tokio::spawn(async move { (acquire.await, Instant::now()) });
        let waits = async {
            tokio::select! {
                () = seen.notified() => None,
                ended = &mut waiter => Some(ended.unwrap()),
            }
        };
        // The wait ends instead, if the machine left its first poll unanswered for all of that time.
        let ended = within(SOON, "it waits", waits).await;
        let next = place(&theirs.lock("job")).await;
        // From 3 ms before the end to 3 ms after it.
        let at = Duration::from_micros(WAIT * 1_000 - 3_000 + round * 125);
        tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
        lease.release().await.unwrap().confirmed();
        let released = Instant::now();
        let (outcome, at) = match ended {
            Some(ended) => ended,
            None => within(SOON, "the wait's end", waiter).await.unwrap(),
        };
        let since = match outcome {
            Ok(lease) => {
                won += 1;
                assert!(!next.is_finished(), "two holders");
                assert_eq!(wire.get("{job}:lh:fence"), Some(lease.fence().to_string()));
                lease.release().await.unwrap().confirmed();
                Instant::now()
            }
            // If the machine stalled for 15 ms, the last poll was not answered in time.
            Err(Error::TimedOut { .. } | Error::Unavailable(_)) => {
                over += 1;
                at.max(released)
            }
            Err(error) => panic!("{error}"),
        };
        let (lease, at) = had(next).await;
        let took = at.saturating_duration_since(since);
        // The last poll has 15 ms for its answer, and a leaving waiter waits for that first.
        let limit = PROMPT + Duration::from_millis(15) + 2 * lag.worst();
        assert!(took <= limit, "round {round}: the next one had it after {took:?}");
        lease.release().await.unwrap().confirmed();
    }
    println!("{won} won, {over} were over");
    assert!(won > 0 && over > 0, "{won} won, {over} were over: never at the same instant");
    nothing_is_left(&mut wire).await;
}

/// A server does not notify a connection of its own changes, so a client notifies its own waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_waiter_acquires_as_soon_as_a_key_is_gone_that_its_own_client_has_kept() {
    const KEPT: Duration = Duration::from_secs(3);
    let (server, lag) = (Server::start(), Lag::start());
    for drops in [true, false] {
        let [leases] = programs(&server).await;
        let began = Instant::now();
        let lease = leases.lock("job").keep_for(KEPT).acquire().await.unwrap();
        let waiter = place(&leases.lock("job")).await;
        // By then the waiter polls rarely.
        tokio::time::sleep_until((began + KEPT.saturating_sub(2 * PROMPT)).into()).await;
        if drops {
            drop(lease);
        } else {
            lease.release().await.unwrap().confirmed();
        }
        let (next, at) = had(waiter).await;
        let took = at.duration_since(began);
        assert!(took + Duration::from_millis(2) >= KEPT && took <= KEPT + PROMPT + lag.worst(), "{took:?}");
        next.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_waiters_are_served_once_per_interval_each_in_its_turn() {
    const INTERVAL: Duration = Duration::from_millis(700);
    let (server, lag) = (Server::start(), Lag::start());
    let [one, two] = programs(&server).await;
    let mut wire = server.wire();
    let first = one.lock("job").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for leases in [&two, &one, &two] {
        waiters.push(place(&leases.lock("job").once_per(INTERVAL)).await);
    }
    let (mut passed_on, mut least, mut most) = (Instant::now(), Duration::ZERO, Duration::ZERO);
    // The lock is passed on at once, to a waiter that then has it once per interval.
    first.release().await.unwrap().confirmed();
    for waiter in waiters {
        let (lease, at) = had(waiter).await;
        let took = at.duration_since(passed_on);
        assert!(took + Duration::from_millis(2) >= least, "{took:?} after the one before");
        // The second waiter gets no notification about a key that is kept: its heartbeat discovers it.
        assert!(took <= most + PROMPT + lag.worst(), "{took:?} after the one before");
        let left = Duration::from_millis(wire.pttl("job").try_into().unwrap());
        assert!(left + at.elapsed() + PROMPT + lag.worst() >= INTERVAL, "its grant became a whole life, not {left:?}");
        // A key lives from the poll that confirmed it, which was sent before that.
        (passed_on, least, most) = (at, INTERVAL.saturating_sub(PROMPT + lag.worst()), INTERVAL + HEARTBEAT);
        drop(lease);
    }
    assert!(wire.exists("job"), "retained for the last of them");
    wire.del("job");
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f34_close_takes_fair_waiters_out_of_the_queue() {
    let server = Server::start();
    let [holder, closed, stays] = programs(&server).await;
    let mut wire = server.wire();
    let lease = holder.lock("job").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        waiters.push(place(&closed.lock("job")).await);
    }
    let next = place(&stays.lock("job")).await;
    within(SOON, "the end", closed.close()).await;
    for waiter in waiters {
        let (outcome, _) = within(SOON, "the waiter's end", waiter).await.unwrap();
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    }
    assert_eq!(tokens(&mut wire, "job").len(), 1, "close waits until they have left");
    let (lag, released) = (Lag::start(), Instant::now());
    lease.release().await.unwrap().confirmed();
    let (lease, at) = had(next).await;
    assert!(at.duration_since(released) <= PROMPT + lag.worst());
    lease.release().await.unwrap().confirmed();
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_waiters_acquire_in_order_too() {
    const WAITERS: usize = 8;
    let grant = Duration::from_millis(300);
    let server = Server::start();
    let mut wire = server.wire();
    let url = server.url_without_push(server.port());
    let mut all = Vec::new();
    for _ in 0..2 {
        all.push(Client::builder().url(&url).grant_timeout(grant).build().await.unwrap());
    }
    let lease = all[0].lock("job").acquire().await.unwrap();
    let (history, mut tasks) = (History::new(), Vec::new());
    for n in 0..WAITERS {
        tasks.push(history.enter(&all[n % 2].lock("job"), n).await);
    }
    let (lag, released) = (Lag::start(), Instant::now());
    lease.release().await.unwrap().confirmed();
    for task in tasks {
        within(SOON, "everybody has it", task).await.unwrap();
    }
    // Each waiter polls often enough to meet its grant.
    let took = released.elapsed();
    println!("without calls: {took:?}");
    assert_eq!(history.had(), (0..WAITERS).collect::<Vec<_>>());
    assert!(took <= grant * 8 + PROMPT + lag.worst(), "{took:?}");
    nothing_is_left(&mut wire).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_lock_is_re_entered_and_bounded_like_any_other() {
    let server = Server::start();
    let [one, two] = programs(&server).await;
    let mut wire = server.wire();
    let ttl = Duration::from_millis(300);
    let mine = one.lock("job").fair(true).reentrant(true).ttl(ttl).max_hold(2 * ttl).owner(Owner::unique());
    let (first, second) = (mine.acquire().await.unwrap(), mine.acquire().await.unwrap());
    assert_eq!(first.fence(), second.fence());
    let next = place(&two.lock("job")).await;
    let third = mine.acquire().await.unwrap();
    assert_eq!(first.fence(), third.fence(), "its own lock, before all who wait");
    for lease in [first, second] {
        lease.release().await.unwrap().confirmed();
        assert!(!next.is_finished());
    }
    let lag = Lag::start();
    let lost = within(SOON, "the end of max_hold", third.lost()).await;
    assert_eq!(lost.reason(), LossReason::MaxHold);
    let told = Instant::now();
    let (next, at) = had(next).await;
    // The remaining TTL.
    let took = at.saturating_duration_since(told);
    assert!(took <= ttl + PROMPT + lag.worst(), "{took:?}");
    assert!(next.fence() > third.fence());
    next.release().await.unwrap().confirmed();
    drop(third);
    nothing_is_left(&mut wire).await;
}
