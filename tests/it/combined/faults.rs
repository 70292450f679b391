//! Rows of the fault table whose requests are batched. Each test is named after its row.

use std::{
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Lease, Released};
use support::{
    Action, HANGS, Lag, Match, Server, eventually, eventually_async, on_no_runtime, one_thread,
    scripts::{ACQUIRE, COMBINED, RELEASE},
    seen, two_workers, within,
};
use tokio::runtime::Handle;

use super::{COMMAND, Crowd, MANY, Rig, names};
use crate::common::{Confirmed as _, LONG, block_both_workers, program_with, unconfirmed};

/// For leases that expire in their test unless renewed.
const TTL: Duration = Duration::from_secs(1);

fn combined() -> Match {
    Match::script(COMBINED)
}

/// The outcome of each request is unknown, and each caller gets an error that says so.
#[track_caller]
fn all_unavailable(outcomes: &[Result<Option<Lease>, Error>]) {
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::Unavailable(_)))), "{outcomes:?}");
}

#[tokio::test]
async fn f8_link_reset_in_the_middle_of_a_batch_of_acquires() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let rig = Rig::start().await;
        let cut = rig.proxy.on(combined(), 1, action);
        let leases = rig.hold(MANY).await;
        within(HANGS, "the fault happens", cut.hit()).await;
        assert_eq!(rig.batches()[0], MANY, "{action:?}");
        for lease in &leases {
            lease.renew().await.expect("the undo is for the token that was cut");
        }
        for outcome in rig.release(leases).await {
            outcome.expect("it was ours to the end").confirmed();
        }
        rig.nothing_is_left().await;
    }
}

#[tokio::test]
async fn f8_link_reset_in_the_middle_of_a_batch_of_releases() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let rig = Rig::start().await;
        let leases = rig.hold(MANY).await;
        let cut = rig.proxy.on(combined(), 1, action);
        for outcome in rig.release(leases).await {
            outcome.expect("it is sent again, and was ours").confirmed();
        }
        within(HANGS, "the fault happens", cut.hit()).await;
        assert_eq!(rig.batches(), [MANY, MANY], "{action:?}");
        assert_eq!(rig.server.wire().keys("job:*"), [""; 0], "{action:?}: released and still there");
    }
}

#[tokio::test]
async fn f8_link_reset_in_the_middle_of_every_batch_and_release() {
    let rig = Rig::start().await;
    let leases = rig.hold(MANY).await;
    let cuts = [combined(), Match::script(RELEASE)].map(|script| rig.proxy.on_each(script, Action::CutBefore));
    for outcome in rig.release(leases).await {
        unconfirmed(outcome);
    }
    assert_eq!(rig.server.wire().keys("job:*").len(), MANY, "nothing can have released them");
    cuts.iter().for_each(support::RuleHandle::disarm);
    rig.nothing_is_left().await;
}

#[tokio::test]
async fn f9_replies_of_a_batch_of_acquires_lost() {
    for action in [Action::CutBefore, Action::CutAfter, Action::SwallowReply, Action::DropRequest] {
        let rig = Rig::start().await;
        let lost = rig.proxy.on(combined(), 1, action);
        let outcomes = rig.try_all(names(MANY)).await;
        within(HANGS, "the fault happens", lost.hit()).await;
        assert_eq!(rig.batches()[0], MANY, "{action:?}");
        all_unavailable(&outcomes);
        eventually_async(HANGS, "each is undone", || rig.proxy.count(Match::script(RELEASE)) >= MANY).await;
        rig.nothing_is_left().await;
        let executed = rig.server.wire().keys("{job:*").len();
        let was_executed = matches!(action, Action::CutAfter | Action::SwallowReply);
        assert_eq!(executed, if was_executed { MANY } else { 0 }, "{action:?}: the premise");
    }
}

#[tokio::test]
async fn f9_a_batch_of_acquires_that_arrives_after_its_undos() {
    let rig = Rig::start().await;
    let late = rig.proxy.on(combined(), 1, Action::Hold);
    let outcomes = rig.try_all(names(MANY)).await;
    within(HANGS, "the fault happens", late.hit()).await;
    all_unavailable(&outcomes);
    // The undos are behind it on its link, or have arrived on another link.
    late.release();
    let mut wire = rig.server.wire();
    eventually_async(HANGS, "the batch is executed", || wire.keys("{job:*").len() == MANY).await;
    // A key that was granted after an undo on another link expires like that of a dead holder.
    eventually_async(LONG + HANGS, "no key is left", || wire.keys("job:*").is_empty()).await;
}

#[tokio::test]
async fn f10_reply_of_a_batch_of_releases_swallowed_and_the_commands_replayed() {
    let rig = Rig::start().await;
    let leases = rig.hold(MANY).await;
    let stranger = program_with(rig.server.url(), LONG).await;
    let rivals: Vec<_> = names(MANY).map(|name| tokio::spawn(stranger.lock(name).acquire())).collect();
    let swallowed = rig.proxy.on(combined(), 1, Action::SwallowReply);
    // The replays must find the next holders' keys.
    let replays = rig.proxy.on_each(Match::script(RELEASE), Action::Hold);
    let releases = tokio::spawn(rig.batch(leases.into_iter().map(Lease::release)).await.all());
    let mut successors = Vec::new();
    for rival in rivals {
        successors.push(within(HANGS, "the rival has it", rival).await.unwrap().expect("it is free"));
    }
    within(HANGS, "the fault happens", swallowed.hit()).await;
    within(HANGS, "a replay", replays.hit()).await;
    let values = |rig: &Rig| names(MANY).map(|name| rig.server.wire().get(&name)).collect::<Vec<_>>();
    let held = values(&rig);
    replays.release();
    for outcome in within(HANGS, "the releases end", releases).await.unwrap() {
        outcome.expect("it was ours to the end").confirmed();
    }
    assert_eq!(values(&rig), held, "the next holders' keys are left alone");
    for successor in successors {
        successor.release().await.expect("it was the successor's to the end").confirmed();
    }
}

#[tokio::test]
async fn f11_batches_over_a_link_that_is_slow_each_way() {
    /// As in the row, a round trip takes a good part of the command timeout.
    const COMMAND: Duration = TTL;
    let ttls = if seen::is_wanted() { 100 } else { 5 };
    let rig = Rig::with(Server::start(), |builder| builder.command_timeout(COMMAND)).await;
    let (started, slow) = (Instant::now(), Duration::from_millis(200));
    loop {
        rig.proxy.delay(slow);
        let lag = Lag::start();
        let is_too_slow = || lag.worst() > Duration::from_millis(50) && !seen::is_wanted();
        let asked = names(MANY).map(|name| rig.leases.lock(name).ttl(TTL).acquire());
        let leases: Result<Vec<_>, _> = rig.batch(asked).await.all().await.into_iter().collect();
        let leases = leases.expect("the server answers in time");
        tokio::time::sleep(TTL * ttls).await;
        let checked: Result<Vec<()>, _> = leases.iter().map(Lease::check).collect();
        let released = rig.release(leases).await;
        rig.proxy.delay(Duration::ZERO);
        if checked.is_ok() && released.iter().all(|released| *released == Ok(Released::Confirmed)) {
            break;
        }
        // A renewal that was due after a third of the TTL has less than that to spare.
        let is_excused = is_too_slow() && started.elapsed() < 3 * TTL * ttls;
        assert!(is_excused, "{checked:?}, {released:?}; {:?}", lag.worst());
        rig.nothing_is_left().await;
    }
    assert!(rig.batches().iter().filter(|&&size| size == MANY).count() >= 2, "{:?}", rig.batches());
    seen::at_least("TTLs that a batch of leases was held", ttls as usize, ttls as usize);
    assert_eq!(rig.server.wire().keys("job:*"), [""; 0]);
}

#[tokio::test]
async fn f21_memory_is_used_up_and_batches_travel() {
    let rig = Rig::start().await;
    let mut wire = rig.server.wire();
    let held = rig.hold(MANY).await;
    wire.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let free = || (0..MANY).map(|number| format!("job:free:{number}"));
    for outcome in rig.try_all(free()).await {
        let Err(error) = outcome else { panic!("nobody can be served, and it says {outcome:?}") };
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("OOM") && error.to_string().contains("maxmemory is reached"), "{error}");
    }
    assert_eq!(wire.keys("job:free:*"), [""; 0]);
    for outcome in rig.release(held).await {
        outcome.expect("a release needs no memory").confirmed();
    }
    assert_eq!(rig.batches(), [MANY; 3]);
    assert_eq!(wire.keys("job:*"), [""; 0]);
    wire.must(&["CONFIG", "SET", "maxmemory", "0"]);
    for outcome in rig.try_all(free()).await {
        assert!(outcome.expect("there is memory again").is_some());
    }
}

/// All requests of one thread are in one batch. With two workers a flight may end while they are made: some may then go
/// in another batch, or alone.
fn each_has_travelled_once(rig: &Rig, script: &str, threads: usize) {
    let batches = rig.batches();
    let alone = rig.proxy.count(Match::script(script).and(Match::containing("job:")));
    if threads == 1 {
        assert_eq!((&*batches, alone), (&[MANY][..], 0));
    } else {
        assert!(!batches.is_empty(), "no request was batched: the premise");
        assert_eq!(batches.iter().sum::<usize>() + alone, MANY, "{batches:?}, and {alone} alone");
    }
    rig.proxy.forget();
}

#[test]
fn f25_job_blocks_every_thread_after_a_batch() {
    let cases = [(1, one_thread(), thread::sleep as fn(Duration)), (2, two_workers(), block_both_workers)];
    for (threads, runtime, block) in cases {
        let (rig, leases) = runtime.block_on(async {
            let rig = Rig::with(Server::start(), |builder| builder.ttl(TTL)).await;
            let leases = rig.hold(MANY).await;
            each_has_travelled_once(&rig, ACQUIRE, threads);
            block(3 * TTL);
            (rig, leases)
        });
        for lease in &leases {
            lease.check().expect("the keeper has renewed it");
        }
        runtime.block_on(async {
            for outcome in rig.release(leases).await {
                outcome.expect("it was ours to the end").confirmed();
            }
            each_has_travelled_once(&rig, RELEASE, threads);
            rig.nothing_is_left().await;
        });
    }
}

#[tokio::test]
async fn f31_acquires_dropped_before_their_batch() {
    let rig = Rig::start().await;
    let (fillers, queued) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).acquire())).await;
    drop(queued);
    rig.go_on(fillers).await;
    // Later requests are sent later.
    let later = within(HANGS, "the server is well", rig.leases.lock("later").acquire()).await.unwrap();
    let unwanted = rig.proxy.count(Match::script(COMBINED).and(Match::containing("job:")));
    assert_eq!(unwanted, 0, "a dropped request is never sent");
    assert_eq!(rig.proxy.count(Match::script(RELEASE)), 0, "and needs no undo");
    later.release().await.unwrap().confirmed();
    rig.nothing_is_left().await;
}

#[tokio::test]
async fn f31_acquires_dropped_while_their_batch_is_in_the_air() {
    for action in [Action::Hold, Action::HoldReply] {
        let rig = Rig::start().await;
        let held = rig.proxy.on(combined(), 1, action);
        let crowd = rig.batch(names(MANY).map(|name| rig.leases.lock(name).acquire())).await;
        within(HANGS, "the batch is in the air", held.hit()).await;
        drop(crowd);
        held.release();
        let mut wire = rig.server.wire();
        eventually_async(HANGS, "the batch is executed", || wire.keys("{job:*").len() == MANY).await;
        rig.nothing_is_left().await;
    }
}

#[tokio::test]
async fn f31_acquires_dropped_after_their_batch() {
    let rig = Rig::start().await;
    let crowd = rig.batch(names(MANY).map(|name| rig.leases.lock(name).acquire())).await;
    let mut wire = rig.server.wire();
    eventually_async(HANGS, "the batch is executed", || wire.keys("job:*").len() == MANY).await;
    // It was sent behind the first on the same link, so the first has its answer, and has not been polled since.
    rig.leases.lock("behind").acquire().await.expect("it is free").release().await.unwrap().confirmed();
    drop(crowd);
    rig.nothing_is_left().await;
}

#[tokio::test]
async fn f31_releases_dropped_at_any_time_are_carried_out() {
    for action in [None, Some(Action::Hold), Some(Action::HoldReply)] {
        let rig = Rig::start().await;
        let leases = rig.hold(MANY).await;
        let (fillers, releases) = rig.queued(leases.into_iter().map(Lease::release)).await;
        if let Some(action) = action {
            let held = rig.proxy.on(combined(), 1, action);
            rig.go_on(fillers).await;
            within(HANGS, "the batch is in the air", held.hit()).await;
            drop(releases);
            held.release();
        } else {
            drop(releases);
            rig.go_on(fillers).await;
        }
        rig.nothing_is_left().await;
    }
}

/// 1,000 acquires are queued and in the air when their runtime ends.
#[test]
fn f33_runtime_shut_down_with_1000_acquires_under_way() {
    const AT_ONCE: Duration = Duration::from_secs(1);
    for runtime in [one_thread(), two_workers()] {
        let lag = Lag::start();
        let (rig, air) = runtime.block_on(async {
            let rig = Rig::with(Server::start(), |builder| builder.ttl(TTL)).await;
            let air = rig.proxy.on(combined(), 1, Action::HoldReply);
            for name in names(1_000) {
                tokio::spawn(rig.leases.lock(name).acquire());
            }
            within(HANGS, "a batch is in the air", air.hit()).await;
            (rig, air)
        });
        let down = Instant::now();
        drop(runtime);
        let took = down.elapsed();
        seen::took("runtime shut down", took, AT_ONCE, &lag);
        assert!(took <= AT_ONCE + lag.worst(), "{took:?}");
        air.release();
        let mut wire = rig.server.wire();
        // The keeper continues, and must not keep renewing.
        eventually(TTL + HANGS, "all is released or expired", || wire.keys("job:*").is_empty());
    }
}

/// The time that a request may take, and then an undo's turn behind it.
const ANSWERED: Duration = COMMAND.saturating_mul(2);

/// The keeper answers every caller while the connection's runtime is not polled, or has ended.
fn is_answered(ends: bool) {
    for in_the_air in [false, true] {
        let (runtime, lag) = (one_thread(), Lag::start());
        let (rig, crowd, fillers, air) = runtime.block_on(async {
            let rig = Rig::start().await;
            let air = rig.proxy.on(combined(), 1, Action::HoldReply);
            let (fillers, crowd) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).try_acquire())).await;
            if in_the_air {
                rig.clock.go_on();
                within(HANGS, "the batch is in the air", air.hit()).await;
            }
            (rig, crowd, fillers, air)
        });
        rig.clock.go_on();
        let asked = Instant::now();
        let runtime = if ends { None } else { Some(runtime) };
        let outcomes = on_no_runtime("everybody is answered", async {
            let outcomes = crowd.on_any().await;
            drop(fillers);
            outcomes
        });
        let took = asked.elapsed();
        seen::took("everybody answered", took, ANSWERED, &lag);
        assert!(took <= ANSWERED + lag.worst(), "{took:?}");
        for outcome in outcomes {
            // A request that was not sent is not repeated: its caller gets an error.
            assert!(matches!(outcome, Err(Error::Unavailable(_))), "in the air: {in_the_air}: {outcome:?}");
        }
        air.release();
        let mut wire = rig.server.wire();
        eventually(HANGS, "no key is left", || wire.keys("job:*").is_empty());
        // And the client still works.
        let lease = on_no_runtime("acquire", rig.leases.lock("job:after").acquire()).expect("it is free");
        on_no_runtime("release", lease.release()).expect("it was ours").confirmed();
        drop(runtime);
    }
}

#[test]
fn f48_requests_are_answered_while_their_runtime_is_not_polled() {
    is_answered(false);
}

#[test]
fn f48_requests_are_answered_when_their_runtime_has_ended() {
    is_answered(true);
}

/// The program drops everything, and the runtime of its connection stands still: the keeper alone takes back what was
/// granted.
#[test]
fn f48_acquires_are_taken_back_when_their_program_has_gone_and_their_runtime_rests() {
    let runtime = one_thread();
    let (server, proxy, replies) = runtime.block_on(async {
        let rig = Rig::start().await;
        let (fillers, crowd) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).acquire())).await;
        let replies = rig.proxy.on(combined(), 1, Action::HoldReply);
        rig.go_on(fillers).await;
        within(HANGS, "the batch is executed", replies.hit()).await;
        rig.filled.lock().unwrap().clear();
        let Rig { server, proxy, .. } = rig;
        drop(crowd);
        (server, proxy, replies)
    });
    let mut wire = server.wire();
    assert_eq!(wire.keys("job:*").len(), MANY, "the premise: all are granted, and nobody knows");
    eventually(HANGS, "no key is left", || wire.keys("job:*").is_empty());
    replies.release();
    drop((proxy, runtime));
}

#[test]
fn f48_acquires_whose_runtime_ends_get_their_locks_elsewhere() {
    let runtime = one_thread();
    let (rig, crowd, fillers) = runtime.block_on(async {
        let rig = Rig::start().await;
        let (fillers, crowd) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).acquire())).await;
        (rig, crowd, fillers)
    });
    rig.clock.go_on();
    drop(runtime);
    let leases = on_no_runtime("the locks", crowd.on_any());
    drop(fillers);
    for lease in leases {
        on_no_runtime("release", lease.expect("it is free").release()).expect("it was ours").confirmed();
    }
    assert_eq!(rig.server.wire().keys("job:*"), [""; 0]);
}

/// Crowds of tries fail all through an outage, beside as many waiters. Failed tries leave no task behind.
#[tokio::test]
async fn f90_an_outage_under_waiters_and_crowds_of_failing_tries() {
    const SERVED: Duration = Duration::from_secs(2);
    const FREE: Duration = Duration::from_millis(100);
    let rig = Rig::start().await;
    let lag = Lag::start();
    let tasks = || Handle::current().metrics().num_alive_tasks();
    rig.server.kill();
    let waiters: Vec<_> = names(MANY).map(|name| tokio::spawn(rig.leases.lock(name).acquire())).collect();
    let mut most = 0;
    for round in 0..4 {
        let tries = (0..MANY).map(|number| rig.leases.lock(format!("tried:{round}:{number}")).try_acquire());
        let mut tries = std::pin::pin!(Crowd::of(tries).all());
        let outcomes = loop {
            tokio::select! {
                outcomes = &mut tries => break outcomes,
                () = tokio::time::sleep(Duration::from_millis(10)) => most = most.max(tasks()),
            }
        };
        all_unavailable(&outcomes);
    }
    // A flight or two, the link that is being established, and the waiters themselves.
    seen::at_most("tasks in an outage", most, MANY + 32);
    assert!(most <= MANY + 32, "{most} tasks");
    rig.server.restart();
    let back = Instant::now();
    let mut leases = Vec::new();
    for waiter in waiters {
        leases.push(within(HANGS, "a waiter is served", waiter).await.unwrap().expect("an outage is no reason"));
    }
    let took = back.elapsed();
    seen::took("all waiters served", took, SERVED, &lag);
    assert!(took <= SERVED + lag.worst(), "{took:?}");
    let mut wire = rig.server.wire();
    let lease = rig.leases.lock("afterwards").acquire().await.expect("the server is back");
    drop(lease);
    let start = Instant::now();
    eventually_async(HANGS, "the dropped lease is free", || !wire.exists("afterwards")).await;
    let free = start.elapsed();
    assert!(free <= FREE + lag.worst(), "{free:?}");
}

/// With no server behind the proxy, no request of a crowd fails for lack of a connection before its own limit.
#[tokio::test]
async fn f8_requests_that_come_late_in_an_outage_wait_for_the_link_too() {
    let rig = Rig::with(Server::start(), |builder| builder.command_timeout(Duration::from_secs(2))).await;
    rig.proxy.refuse(true);
    rig.proxy.cut();
    // A request may go out on the link until its loss is noticed.
    let probe = rig.leases.lock("probe").try_acquire().await;
    assert!(matches!(probe, Err(Error::Unavailable(_))), "{probe:?}");
    let early = Crowd::of(names(MANY).map(|name| rig.leases.lock(name).try_acquire()));
    let early = tokio::spawn(early.all());
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    let late = (0..MANY).map(|number| rig.leases.lock(format!("job:late:{number}")).try_acquire());
    let late = tokio::spawn(Crowd::of(late).all());
    for outcome in within(HANGS, "their time is over", early).await.unwrap() {
        assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    }
    rig.proxy.refuse(false);
    for outcome in within(HANGS, "the link is back", late).await.unwrap() {
        let lease = outcome.expect("it had time left, and the link is back").expect("it is free");
        lease.release().await.unwrap().confirmed();
    }
}
