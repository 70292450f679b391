//! The cost of many waiters to the server, and when a waiter checks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Lease, Owner};
use support::{Action, HANGS, Lag, Match, Proxy, SIGNAL, Server, within};
use tokio::sync::mpsc;

use crate::common::{COMMAND, Confirmed as _, program, told};

/// The least time that the last check of a wait has for its answer.
const LAST_LOOK: Duration = Duration::from_millis(15);

fn acquires() -> Match {
    Match::script(support::scripts::ACQUIRE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_one_process_poll_like_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (holder, waiters) = (program(server.url()).await, program(proxy.url()).await);
    let lease = holder.lock("job").acquire().await.unwrap();

    let (tell, mut told) = mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let tell = tell.clone();
        tasks.push(tokio::spawn(waiters.lock("job").on_wait(move |_| tell.send(()).unwrap()).acquire()));
    }
    for _ in 0..100 {
        within(HANGS, "everybody to wait", told.recv()).await;
    }
    proxy.forget();
    // The time over which checks are counted.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let looks = proxy.count(acquires());
    // One waiter's backoff in 1.5 s: its bounds are 10, 20, … 1,000 ms, its pauses half of that on average. If each of
    // the hundred waiters checked, there would be several hundred checks.
    assert!((1..=40).contains(&looks), "{looks} looks in 1.5 s");

    for task in &tasks {
        task.abort();
    }
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_checks_again_when_the_holders_key_expires() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let mut wire = server.wire();
    let ttl = Duration::from_millis(300);
    let lag = Lag::start();
    for _ in 0..5 {
        // The key is never renewed: it belongs to another library, whose process has died.
        // The server counts the TTL from a moment between these two.
        let before = Instant::now();
        wire.must(&["SET", "job", "somebody", "PX", "300"]);
        let set = Instant::now();
        let lease = within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap();
        let (took, since) = (set.elapsed(), before.elapsed());
        assert!(since + Duration::from_millis(2) >= ttl, "{since:?}");
        // A pause ends a millisecond after the expiry seen by the previous check; 20 ms for the check itself.
        let late = lag.worst();
        assert!(took <= ttl + Duration::from_millis(20) + late, "{took:?}; the machine lagged {late:?}");
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_the_same_process_hands_over_at_once() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let lag = Lag::start();
    // The first wait opens the connection for notifications, which keeps the keeper busy for a while.
    for round in 0..20 {
        let lease = leases.lock("job").acquire().await.unwrap();
        let (tell, mut told) = mpsc::unbounded_channel();
        let waiter = tokio::spawn(leases.lock("job").on_wait(move |_| tell.send(()).unwrap()).acquire());
        within(HANGS, "the waiter to wait", told.recv()).await;
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        let next = within(HANGS, "the waiter", waiter).await.unwrap().unwrap();
        let took = released.elapsed();
        // Two round trips, not the rest of a pause, which is as long as the key lives.
        assert!(round == 0 || took <= SIGNAL + lag.of(2), "{took:?}");
        next.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_keeps_its_own_deadline() {
    let server = Server::start();
    let (one, two) = (program(server.url()).await, program(server.url()).await);
    let lease = one.lock("job").acquire().await.unwrap();
    let (lag, started) = (Lag::start(), Instant::now());
    // Far apart, because the waiter whose turn it is must get an answer within its own time to know the holder.
    let patience: Vec<_> = [1_200, 600, 900, 300].map(Duration::from_millis).into();
    let waiters: Vec<_> = patience.iter().map(|&limit| tokio::spawn(two.lock("job").acquire_within(limit))).collect();
    let mut ends = Vec::new();
    for (limit, waiter) in patience.iter().zip(waiters) {
        let error = within(HANGS, "its deadline", waiter).await.unwrap().unwrap_err();
        let Error::TimedOut { waited, holder, .. } = error else { panic!("{error}") };
        // The end of the pause and that of a last check without an answer are two timers, each of which may be late.
        let most = *limit + Duration::from_millis(20) + LAST_LOOK + 2 * lag.worst();
        assert!(waited >= *limit && waited <= most, "{waited:?} of {limit:?}");
        assert_eq!(holder.fence(), Some(lease.fence()));
        ends.push(waited);
    }
    assert!(started.elapsed() < Duration::from_secs(2), "{ends:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_goes_away_passes_its_turn_on() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (one, two) = (program(server.url()).await, program(proxy.url()).await);
    let lease = one.lock("job").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for n in 0..3 {
        let tell = tell.clone();
        waiters.push(tokio::spawn(two.lock("job").on_wait(move |_| tell.send(n).unwrap()).acquire()));
        within(HANGS, "the waiter to wait", told.recv()).await;
    }
    // The first is checking right now, and never gets the answer.
    let asking = proxy.on(acquires(), 1, Action::HoldReply);
    within(HANGS, "a check", asking.hit()).await;
    waiters[0].abort();
    asking.release();
    waiters[1].abort();
    lease.release().await.unwrap().confirmed();
    let last = waiters.pop().unwrap();
    let lease = within(HANGS, "the third", last).await.unwrap().unwrap();
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_nobody_polls_does_not_stop_the_others() {
    let leases = Client::builder().url("memory://").command_timeout(Duration::from_millis(200)).build().await.unwrap();
    let lock = leases.lock("job").owner(Owner::anonymous());
    let lease = lock.acquire().await.unwrap();
    // It is first in line, and is never polled again.
    let mut half = Box::pin(lock.acquire());
    let waiting = tokio::time::timeout(Duration::from_millis(50), &mut half).await;
    assert!(waiting.is_err());
    lease.release().await.unwrap().confirmed();
    // At most two pauses of a second and two checks, and then our own check.
    let limit = Duration::from_secs(4);
    let lease = within(limit, "the lock", tokio::spawn(lock.acquire())).await.unwrap().unwrap();
    lease.release().await.unwrap().confirmed();
}

/// An acquire that is no longer polled.
type Unpolled = Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>>;

/// More acquires of one task than a process may have checks under way. Each is polled twice, and then never again.
/// Another client holds the locks, so each is in its first check as a waiter, or waits for its turn.
async fn unpolled(leases: &Client, names: impl Iterator<Item = String>) -> Vec<Unpolled> {
    let mut acquires: Vec<Unpolled> = Vec::new();
    for name in names {
        acquires.push(Box::pin(leases.lock(name).owner(Owner::anonymous()).acquire()));
    }
    poll_each(&mut acquires).await;
    // Answered after all of them, on the same connection.
    leases.lock("another").holder().await.unwrap();
    poll_each(&mut acquires).await;
    // The same for the keeper's connection, which waiters use. Checks they send later would find the lock free.
    told(leases).await;
    acquires
}

/// Polls without tokio's budget, which would suffice only for some of them.
async fn poll_each(acquires: &mut [Unpolled]) {
    let polls = std::future::poll_fn(|_| {
        for acquire in &mut *acquires {
            assert!(acquire.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        Poll::Ready(())
    });
    tokio::task::unconstrained(polls).await;
}

/// More than twice, and less than three times, the checks that a process makes at a time.
const MANY: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unpolled_waiters_do_not_keep_other_tasks_from_their_locks() {
    const COMMAND: Duration = Duration::from_millis(400);
    let (server, lag) = (Server::start(), Lag::start());
    let holder = program(server.url()).await;
    let leases = Client::builder().url(server.url()).command_timeout(COMMAND).build().await.unwrap();
    let name = |n: usize| format!("job:{n}");
    let mut held = Vec::new();
    for n in 0..MANY {
        held.push(holder.lock(name(n)).acquire().await.unwrap());
    }
    let _unpolled = unpolled(&leases, (0..MANY).map(name)).await;
    let acquires: Vec<_> = (0..MANY)
        .map(|n| {
            let acquire = leases.lock(name(n)).owner(Owner::anonymous()).acquire();
            tokio::spawn(async move { (acquire.await, Instant::now()) })
        })
        .collect();
    for lease in held {
        lease.release().await.unwrap().confirmed();
    }
    let (released, bound) = (Instant::now(), Duration::from_secs(2) + 2 * COMMAND);
    let mut worst = Duration::ZERO;
    for (n, acquire) in acquires.into_iter().enumerate() {
        let (lease, at) = within(HANGS, &name(n), acquire).await.unwrap();
        worst = worst.max(at.saturating_duration_since(released));
        drop(lease.unwrap());
    }
    // Each then makes its own check.
    let limit = bound + SIGNAL + lag.worst();
    assert!(worst <= limit, "the last of {MANY} locks was acquired after {worst:?}, not within {limit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpolled_check_delays_nobody_longer_than_a_check_may_take() {
    // A check may take much longer than a hand-off, so the two are distinguishable.
    const HAND_OFF: Duration = Duration::from_millis(250);
    let (server, lag) = (Server::start(), Lag::start());
    let (holder, leases) = (program(server.url()).await, program(server.url()).await);
    let name = |n: usize| format!("job:{n}");
    let mut held = Vec::new();
    for n in 0..MANY {
        held.push(holder.lock(name(n)).acquire().await.unwrap());
    }
    let _unpolled = unpolled(&leases, (0..MANY).map(name)).await;
    // The default command time-out: the unpolled checks may count for this long.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for round in 0..10 {
        let lease = holder.lock("contended").acquire().await.unwrap();
        let (tell, mut told) = mpsc::unbounded_channel();
        let lock = leases.lock("contended").fair(round % 2 == 1).on_wait(move |_| tell.send(()).unwrap());
        let waiter = tokio::spawn(async move { (lock.acquire().await.unwrap(), Instant::now()) });
        within(HANGS, "the waiter to wait", told.recv()).await;
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        let (lease, at) = within(HANGS, "the hand-off", waiter).await.unwrap();
        let (took, limit) = (at.saturating_duration_since(released), HAND_OFF + lag.worst());
        assert!(took <= limit, "round {round}: handed over after {took:?}, not within {limit:?}");
        lease.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_of_zero_asks_even_when_others_wait() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let mut wire = server.wire();
    wire.must(&["SET", "job", "somebody", "PX", "60000"]);
    let (tell, mut told) = mpsc::unbounded_channel();
    let lock = leases.lock("job").owner(Owner::anonymous());
    let waiter = tokio::spawn(lock.clone().on_wait(move |_| tell.send(()).unwrap()).acquire());
    within(HANGS, "the waiter to wait", told.recv()).await;
    wire.del("job");
    // One of the two checks first and gets the lock; the server notified the other.
    match lock.acquire_within(Duration::ZERO).await {
        Ok(lease) => lease.release().await.unwrap().confirmed(),
        Err(Error::TimedOut { holder, .. }) => assert!(holder.label().is_some(), "the waiter's: {holder:?}"),
        Err(error) => panic!("{error}"),
    }
    within(HANGS, "the waiter", waiter).await.unwrap().unwrap().release().await.unwrap().confirmed();
}

/// The last check has only the rest of the wait, which may be shorter than any answer takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_slow_link_a_lock_that_is_held_is_not_called_unreachable() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let proxies = servers.each_ref().map(Proxy::to);
    let urls = proxies.each_ref().map(Proxy::url);
    let lone = Client::builder().url(urls[0].clone()).build().await.unwrap();
    let quorum = Client::builder().quorum(urls).restart_delay(Duration::ZERO).build().await.unwrap();
    let held = [quorum.lock("job").acquire().await.unwrap(), lone.lock("queued").fair(true).acquire().await.unwrap()];
    let limit = Duration::from_millis(400);
    for proxy in &proxies {
        proxy.delay(Duration::from_millis(20));
    }
    for (leases, name, fair) in [(&lone, "job", false), (&lone, "queued", true), (&quorum, "job", false)] {
        let lock = leases.lock(name).fair(fair).owner(Owner::anonymous());
        match within(HANGS, name, lock.acquire_within(limit)).await {
            Err(Error::TimedOut { waited, .. }) => assert!(waited >= limit, "{name}: {waited:?}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    for lease in held {
        lease.release().await.unwrap().confirmed();
    }
}

/// The server is silent for longer than an answer may take, so the holder is unknown then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_that_begins_during_a_wait_is_told_as_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build().await.unwrap();
    let other = program(server.url()).await;
    let held = other.lock("job").acquire().await.unwrap();
    for fair in [false, true] {
        let lock = leases.lock("job").fair(fair);
        let waiting = tokio::spawn(lock.acquire_within(3 * COMMAND));
        tokio::time::sleep(COMMAND).await;
        proxy.freeze(true);
        let outcome = within(HANGS, "the end of the wait", waiting).await.unwrap();
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "fair: {fair}: {outcome:?}");
        proxy.freeze(false);
        // If the server answers to the end, the holder is known.
        let outcome = within(HANGS, "the end of the wait", lock.acquire_within(3 * COMMAND)).await;
        assert!(matches!(outcome, Err(Error::TimedOut { .. })), "fair: {fair}: {outcome:?}");
    }
    held.release().await.unwrap().confirmed();
}
