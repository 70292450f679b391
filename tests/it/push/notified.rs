//! Notifications: waiters wake up, and losses are reported, without polling. Nothing is broken here; `faults.rs` tests
//! faults.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LossReason, Owner, Status};
use support::{
    Action, ClockShim, HANGS, Lag, Match, Proxy, SIGNAL, Server, Wire, eventually_async, eventually_but_for,
    start_anew, timed, waiter_is_tracked, within,
};
use tokio::sync::mpsc;

use support::scripts::{ACQUIRE, LOOK};

use crate::common::{Confirmed as _, program, told};

fn median(mut all: Vec<Duration>) -> (Duration, Duration) {
    all.sort();
    (all[all.len() / 2], all[all.len() - 1])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_another_process_is_notified() {
    let server = Server::start();
    let (one, two) = (program(server.url()).await, program(server.url()).await);
    let (lag, mut wire, mut all) = (Lag::start(), server.wire(), Vec::new());
    for round in 0..50 {
        start_anew([&mut wire]).await;
        let lease = one.lock("job").acquire().await.unwrap();
        let waiter = timed(two.lock("job").acquire());
        waiter_is_tracked([&mut wire], 1).await;
        let released = Instant::now();
        lease.release().await.unwrap().confirmed();
        let (next, at) = within(HANGS, "the waiter", waiter).await.unwrap();
        let took = at.duration_since(released);
        assert!(took <= SIGNAL + lag.of(2), "round {round}: {took:?}; the machine lagged {:?}", lag.worst());
        all.push(took);
        next.unwrap().release().await.unwrap().confirmed();
    }
    println!("hand-off: median and worst {:?}; the machine lagged {:?}", median(all), lag.worst());
}

/// Neither the holder's own renewals nor the waiters' polls cause notifications that would cause further ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_commands_cause_no_more_notifications() {
    const TTL: Duration = Duration::from_secs(1);
    const WINDOW: Duration = Duration::from_secs(3);
    for (fair, waiters) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
        let server = Server::start();
        let (one, two, mut wire) = (program(server.url()).await, program(server.url()).await, server.wire());
        let lease = one.lock("job").ttl(TTL).fair(fair).acquire().await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..waiters {
            let (told, mut hears) = mpsc::unbounded_channel();
            let lock = two.lock("job").ttl(TTL).fair(fair).owner(Owner::anonymous()).on_wait(move |_| {
                let _enough = told.send(());
            });
            waiting.push(tokio::spawn(lock.acquire()));
            within(HANGS, "it waits", hears.recv()).await.unwrap();
        }
        let counts = |wire: &mut Wire| (wire.calls("pexpire"), wire.scripts());
        // When notifications are switched on, every waiter polls once more.
        for program in [&one, &two] {
            let said = within(HANGS, "what it says", told(program)).await;
            assert_eq!(said.notifications, Some(Ok(())), "{said:?}");
        }
        let mut seen = (0, 0);
        let at_rest = async {
            while std::mem::replace(&mut seen, counts(&mut wire)) != seen {
                tokio::time::sleep(TTL / 5).await;
            }
        };
        within(HANGS, "they have asked", at_rest).await;
        let (start, before) = (Instant::now(), counts(&mut wire));
        // The window in which they are counted.
        tokio::time::sleep(WINDOW).await;
        let (after, elapsed) = (counts(&mut wire), start.elapsed());
        let (renewed, asked) = (after.0 - before.0, after.1 - before.1);
        // A renewal is due after a third of the TTL, at most a tenth of it early; plus the one that starts tracking,
        // and one for either end.
        let due = elapsed.as_millis() / (TTL / 3 * 9 / 10).as_millis() + 3;
        let due = usize::try_from(due).unwrap();
        println!("fair {fair}, {waiters} waiters: {renewed} extensions, {asked} scripts in {elapsed:?}");
        // A waiter in the queue reports that it still waits, which extends two keys.
        let polls = if fair && waiters > 0 { 2 * due } else { 0 };
        assert!((6..=due + polls).contains(&renewed), "fair {fair}, {waiters} waiters: {renewed} of {due}");
        // Each renewal notifies the first waiter and, on an old server, the renewing client too: each polls once.
        assert!(asked <= 3 * due, "fair {fair}, {waiters} waiters: {asked} scripts, {due} renewals");
        // The notifications so far do not prove that later ones arrive.
        let lag = Lag::start();
        let lost = timed(lease.lost());
        let deleted = Instant::now();
        assert!(wire.del("job"));
        let (lost, at) = within(HANGS, "lost()", lost).await.unwrap();
        assert!([LossReason::Deleted, LossReason::Taken].contains(&lost.reason()), "{lost}");
        assert!(at.duration_since(deleted) <= SIGNAL + lag.of(3), "{:?}", at.duration_since(deleted));
        for waiting in waiting {
            waiting.abort();
        }
    }
}

/// When another request reads the key, its new holder has already written it; that holder is in the same process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_followed_by_one_of_the_same_process_is_notified() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, mut wire) = (Client::connect(proxy.url()).await.unwrap(), server.wire());
    let lock = leases.lock("job").owner(Owner::anonymous());
    let lease = lock.acquire().await.unwrap();
    eventually_async(HANGS, "the lease is tracked", || wire.tracked_keys() >= 1).await;
    let look = proxy.on(Match::script(LOOK), 1, Action::Hold);
    assert!(wire.del("job"));
    within(HANGS, "the look", look.hit()).await;
    let next = lock.try_acquire().await.unwrap().expect("it is free");
    let (lag, lost) = (Lag::start(), timed(lease.lost()));
    let looked = Instant::now();
    look.release();
    let (lost, at) = within(HANGS, "lost()", lost).await.unwrap();
    assert_eq!(lost.reason(), LossReason::Taken, "{lost}");
    let took = at.duration_since(looked);
    assert!(took <= SIGNAL + lag.worst(), "{took:?}");
    assert!(next.is_held() && next.fence() > lease.fence());
}

/// A notified waiter's request has been granted, but its caller no longer waits for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notified_waiter_that_is_dropped_leaves_no_key() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (theirs, ours, mut wire) = (program(server.url()).await, program(proxy.url()).await, server.wire());
    // The holder's first renewal, which would make the waiter poll, is over.
    told(&theirs).await;
    let lease = theirs.lock("job").acquire().await.unwrap();
    eventually_async(HANGS, "it is renewed, and tracked", || wire.tracked_keys() >= 1).await;
    let waiter = tokio::spawn(ours.lock("job").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    let granted = proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    lease.release().await.unwrap().confirmed();
    within(HANGS, "the grant", granted.hit()).await;
    assert!(wire.exists("job"));
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    granted.release();
    eventually_async(HANGS, "it is undone", || !wire.exists("job")).await;
    ours.close().await;
    assert!(!wire.exists("job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_frees_the_lock_wakes_the_waiter() {
    const HELD: &[&str] = &["SET", "job", "another library's", "NX", "PX", "60000"];
    const FOR_EVER: &[&str] = &["SET", "job", "another library's"];
    const HASH: &[&str] = &["HSET", "job", "field", "value"];
    const STREAM: &[&str] = &["XADD", "job", "*", "field", "value"];
    const WAYS: [(&[&str], &[&str]); 14] = [
        (HELD, &["DEL", "job"]),
        (HELD, &["UNLINK", "job"]),
        (HELD, &["RENAME", "job", "elsewhere"]),
        (HELD, &["MOVE", "job", "1"]),
        (HELD, &["GETDEL", "job"]),
        (HELD, &["PEXPIRE", "job", "1"]),
        (HELD, &["PEXPIRE", "job", "-1"]),
        (HELD, &["FLUSHALL"]),
        (HELD, &["FLUSHDB"]),
        (HELD, &["EVAL", "return redis.call('DEL', KEYS[1])", "1", "job"]),
        (FOR_EVER, &["DEL", "job"]),
        (HASH, &["DEL", "job"]),
        (HASH, &["HDEL", "job", "field"]),
        (STREAM, &["DEL", "job"]),
    ];
    let server = Server::start();
    let leases = program(server.url()).await;
    let (lag, mut wire) = (Lag::start(), server.wire());
    for (take, free) in WAYS {
        start_anew([&mut wire]).await;
        wire.must(take);
        let waiter = timed(leases.lock("job").acquire());
        waiter_is_tracked([&mut wire], 1).await;
        assert!(!waiter.is_finished());
        let freed = Instant::now();
        wire.must(free);
        let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
        let took = at.duration_since(freed);
        assert!(took <= SIGNAL + lag.of(2), "{take:?} {free:?}: {took:?}");
        lease.unwrap().release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_wakes_the_waiter_and_tells_the_holder() {
    let server = Server::start();
    let [one, two, three] = [program(server.url()).await, program(server.url()).await, program(server.url()).await];
    let (lag, mut wire) = (Lag::start(), server.wire());
    let lease = one.lock("job").acquire().await.unwrap();
    // The holder's renewal has the lock tracked, the waiter's poll the fence too.
    eventually_async(HANGS, "the holder's key is watched", || wire.tracked_keys() >= 1).await;
    let waiter = timed(two.lock("job").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    let lost = timed(lease.lost());
    let forced = Instant::now();
    assert!(three.lock("job").force_release().await.unwrap());
    let (next, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(forced);
    assert!(took <= SIGNAL + lag.of(2), "the waiter: {took:?}");
    let (lost, at) = within(HANGS, "the loss", lost).await.unwrap();
    let took = at.duration_since(forced);
    assert!(took <= SIGNAL + lag.of(3), "the holder: {took:?}");
    assert_eq!(lost.reason(), LossReason::Forced);
    assert!(next.unwrap().fence() > lease.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overwritten_key_is_another_holder_whose_end_is_waited_for() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let (lag, mut wire) = (Lag::start(), server.wire());
    wire.must(&["SET", "job", "one", "PX", "60000"]);
    let (tell, mut told) = mpsc::unbounded_channel();
    let waiter = timed(leases.lock("job").on_wait(move |holder| tell.send(holder.remaining()).unwrap()).acquire());
    assert!(within(HANGS, "the first holder", told.recv()).await.unwrap() > Some(Duration::from_secs(50)));
    waiter_is_tracked([&mut wire], 1).await;
    let taken = Instant::now();
    wire.must(&["SET", "job", "two", "PX", "300"]);
    // A waiter is notified only of holders with readable tokens. Another library's are all alike, so this change is not
    // reported. But the lock is ours when the second key expires, and not a minute later.
    let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(taken);
    assert!(took <= Duration::from_millis(300) + SIGNAL + lag.worst(), "{took:?}");
    assert!(took >= Duration::from_millis(298), "{took:?}");
    lease.unwrap().release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_notified() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let (lag, mut wire, mut all) = (Lag::start(), server.wire(), Vec::new());
    let mut held = Vec::new();
    for round in 0..200 {
        held.push(leases.lock(format!("job:{round}")).acquire().await.unwrap());
    }
    eventually_async(HANGS, "the keys are watched", || wire.tracked_keys() >= 200).await;
    // The renewals that have the keys tracked are answered; otherwise they would report what follows.
    for lease in &held {
        lease.check().unwrap();
    }
    for lease in held {
        let lost = timed(lease.lost());
        let deleted = Instant::now();
        wire.del(lease.name());
        let (lost, at) = within(HANGS, "the loss", lost).await.unwrap();
        assert_eq!(lost.reason(), LossReason::Deleted);
        all.push(at.saturating_duration_since(deleted));
        let took = all[all.len() - 1];
        assert!(took <= SIGNAL + lag.of(3), "{took:?}; the machine lagged {:?}", lag.worst());
    }
    println!("loss: median and worst {:?}; the machine lagged {:?}", median(all), lag.worst());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_alone_is_never_a_loss() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let mut wire = server.wire();
    let lease = leases.lock("job").acquire().await.unwrap();
    let mut changes = lease.status_changes();
    let token = wire.get("job").unwrap();
    let touches: [&[&str]; 6] = [
        &["PEXPIRE", "job", "40000"],
        &["PERSIST", "job"],
        &["SET", "job", &token],
        &["SET", "job", &token, "PX", "20000"],
        &["SETRANGE", "job", "0", "lh1"],
        &["APPEND", "job", ""],
    ];
    for touch in touches.iter().cycle().take(60) {
        eventually_async(HANGS, "the key is watched", || wire.tracked_keys() > 0).await;
        wire.must(touch);
        lease.check().unwrap();
        assert_eq!(lease.status(), Status::Held, "{touch:?}");
    }
    eventually_async(HANGS, "its TTL is right again", || (29_000..=30_000).contains(&wire.pttl("job"))).await;
    assert_eq!(lease.status(), Status::Held);
    let change = tokio::time::timeout(Duration::from_millis(50), changes.next()).await;
    assert!(change.is_err(), "it was {change:?} for a while");
    lease.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_as_the_lock_is_released_ends_one_way() {
    const PATIENCE: Duration = Duration::from_millis(30);
    let server = Server::start();
    let (one, two) = (program(server.url()).await, program(server.url()).await);
    let mut wire = server.wire();
    let mut won = 0;
    for round in 0..120_u32 {
        let lease = one.lock("job").acquire().await.unwrap();
        let fence = lease.fence();
        let started = Instant::now();
        let waiter = tokio::spawn(two.lock("job").acquire_within(PATIENCE));
        // From 3 ms before the end of the wait to 3 ms after it.
        let release = PATIENCE.saturating_sub(Duration::from_millis(3)) + Duration::from_micros(50) * round;
        tokio::time::sleep(release.saturating_sub(Duration::from_millis(1)).saturating_sub(started.elapsed())).await;
        while started.elapsed() < release {
            std::hint::spin_loop();
        }
        lease.release().await.unwrap().confirmed();
        match within(HANGS, "the waiter's end", waiter).await.unwrap() {
            Ok(lease) => {
                assert!(lease.check().is_ok() && lease.fence() > fence && wire.exists("job"));
                won += 1;
                lease.release().await.unwrap().confirmed();
                assert!(!wire.exists("job"));
            }
            // A poll that the machine left unanswered for the whole wait reports no holder.
            Err(Error::TimedOut { .. } | Error::Unavailable(_)) => {
                eventually_async(HANGS, "no key is left", || !wire.exists("job")).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("{won} of 120 had the lock");
    two.close().await;
    assert!(!wire.exists("job"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_cancelled_in_the_hand_off_passes_it_on() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (one, two) = (program(server.url()).await, Client::connect(proxy.url()).await.unwrap());
    let (lag, mut wire) = (Lag::start(), server.wire());
    let lock = two.lock("job").owner(Owner::anonymous());
    for round in 0..80_u32 {
        start_anew([&mut wire]).await;
        let lease = one.lock("job").acquire().await.unwrap();
        let cancelled = tokio::spawn(lock.acquire());
        waiter_is_tracked([&mut wire], 1).await;
        let other = timed(lock.acquire());
        // Every fourth is cancelled at a fixed point, the others at any point.
        let held = match round % 8 {
            0 => Some(proxy.on(Match::script(ACQUIRE), 1, Action::Hold)),
            4 => Some(proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply)),
            _ => None,
        };
        lease.release().await.unwrap().confirmed();
        let released = Instant::now();
        if let Some(held) = held {
            within(HANGS, "the look", held.hit()).await;
            cancelled.abort();
            held.release();
        } else {
            let offset = Duration::from_micros(u64::from(round) * 25);
            while released.elapsed() < offset {
                std::hint::spin_loop();
            }
            cancelled.abort();
        }
        let passed_on = Instant::now();
        match cancelled.await {
            // The acquire was faster than its cancellation, so its lease must be released.
            Ok(lease) => lease.unwrap().release().await.unwrap().confirmed(),
            Err(error) => assert!(error.is_cancelled(), "{error}"),
        }
        let (lease, at) = within(HANGS, "the other", other).await.unwrap();
        let took = at.saturating_duration_since(passed_on);
        // The undo of the cancelled acquire, its notification, and the other's acquire.
        assert!(took <= SIGNAL + lag.of(3), "round {round}: {took:?}, the machine lagged {:?}", lag.worst());
        lease.unwrap().release().await.unwrap().confirmed();
    }
    two.close().await;
    assert_eq!(wire.keys("*"), ["{job}:lh:fence"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiving_connection_is_there_only_while_it_is_needed() {
    let server = Server::start();
    let (leases, closed, dropped) =
        (program(server.url()).await, program(server.url()).await, program(server.url()).await);
    let (lag, mut wire) = (Lag::start(), server.wire());
    wire.must(&["SET", "busy", "somebody", "PX", "60000"]);
    assert_eq!(wire.receivers(), 0, "it is not needed yet");
    let held = dropped.lock("held").acquire().await.unwrap();
    let waits = [tokio::spawn(closed.lock("busy").acquire()), tokio::spawn(leases.lock("busy").acquire())];
    eventually_async(HANGS, "all hear", || wire.receivers() == 3 && wire.trackers().len() == 3).await;

    closed.close().await;
    eventually_async(HANGS, "closing ends it", || wire.receivers() == 2).await;
    // A held lease needs the connection. The last one to be dropped ends it.
    drop(dropped);
    held.renew().await.unwrap();
    assert_eq!(wire.receivers(), 2);
    drop(held);
    eventually_async(HANGS, "dropping ends it", || wire.receivers() == 1).await;

    for wait in waits {
        wait.abort();
    }
    // It is checked every five seconds, and must be idle twice.
    let idle = Instant::now();
    let limit = Duration::from_secs(11);
    eventually_but_for(&lag, limit, "it is closed when nobody needs it", || wire.receivers() == 0).await;
    assert!(idle.elapsed() >= Duration::from_secs(5), "and not at once: {:?}", idle.elapsed());
    eventually_async(HANGS, "and nothing is tracked any more", || wire.trackers().is_empty()).await;

    start_anew([&mut wire]).await;
    wire.must(&["SET", "busy", "somebody", "PX", "60000"]);
    let waiter = timed(leases.lock("busy").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    assert_eq!(wire.receivers(), 1, "it is needed again");
    let freed = Instant::now();
    wire.del("busy");
    let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    assert!(at.duration_since(freed) <= SIGNAL + lag.of(2));
    lease.unwrap().release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_the_servers_clock_does_not_keep_a_waiter_asleep() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let leases = program(server.url()).await;
    let (lag, mut wire) = (Lag::start(), server.wire());

    // Forward: the holder's key has expired, which the server notices ten times a second.
    wire.must(&["SET", "job", "somebody", "PX", "60000"]);
    let waiter = timed(leases.lock("job").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    let stepped = Instant::now();
    clock.forward(HOUR);
    let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(stepped);
    assert!(took <= Duration::from_millis(200) + SIGNAL + lag.worst(), "{took:?}");
    lease.unwrap().release().await.unwrap().confirmed();

    // Back: a key lives on, and its release is still notified.
    start_anew([&mut wire]).await;
    wire.must(&["SET", "job", "somebody", "PX", "3000"]);
    let waiter = timed(leases.lock("job").acquire());
    waiter_is_tracked([&mut wire], 1).await;
    // The waiter's own timer fires, and it finds a key of an hour; or it gets a late notification of the flush.
    let looks = wire.scripts();
    clock.back(HOUR);
    eventually_async(HANGS, "it looks again", || wire.scripts() > looks).await;
    assert!(!waiter.is_finished() && wire.pttl("job") > 3_000_000);
    waiter_is_tracked([&mut wire], 1).await;
    let freed = Instant::now();
    wire.del("job");
    let (lease, at) = within(HANGS, "the waiter", waiter).await.unwrap();
    let took = at.duration_since(freed);
    assert!(took <= SIGNAL + lag.of(2), "{took:?}");
    lease.unwrap().release().await.unwrap().confirmed();
}
