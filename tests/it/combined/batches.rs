//! Which requests are batched, which are sent alone, and which request waits for which.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use leasehold::{Client, Lease, Owner};
use support::{
    Action, HANGS, Lag, Match, Nodes, SIGNAL, Server, eventually_async, one_thread,
    scripts::{ACQUIRE, COMBINED, RELEASE, RENEW},
    two_workers, within,
};

use super::{Crowd, MANY, Rig, names};
use crate::common::{Confirmed as _, LONG};

/// A vote waits behind a release that waits for its turn.
#[tokio::test]
async fn over_a_quorum_a_vote_finds_free_what_was_to_be_released_before_it() {
    let nodes = Nodes::start(3);
    let builder = Client::builder().quorum(nodes.urls()).restart_delay(Duration::ZERO).ttl(LONG);
    let leases = builder.build().await.expect("they are there");
    let mut held = Vec::new();
    for name in names(MANY) {
        held.push(leases.lock(name).acquire().await.expect("it is free"));
    }
    let mut releases = Crowd::of(held.into_iter().map(Lease::release));
    releases.once().await;
    let last = leases.lock(names(MANY).last().expect("there are many"));
    let next = within(HANGS, "they vote", last.try_acquire()).await.expect("they are well");
    assert!(next.is_some(), "its release was asked for before");
    assert!(releases.all().await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_name_is_released_and_acquired_in_one_batch() {
    let rig = Rig::start().await;
    let before = rig.leases.lock("job:one").owner(Owner::anonymous()).acquire().await.expect("it is free");
    let fence = before.fence();
    let asked = (0..2).map(|_| rig.leases.lock("job:one").owner(Owner::anonymous()).try_acquire());
    let (fillers, next) = rig.queued(asked).await;
    let mut release = Crowd::of([before.release()]);
    release.once().await;
    rig.go_on(fillers).await;
    release.all().await.remove(0).expect("it was ours").confirmed();
    let mut next: Vec<Lease> = next.all().await.into_iter().filter_map(|outcome| outcome.expect("served")).collect();
    assert_eq!(rig.batches(), [3]);
    assert_eq!(next.len(), 1, "the release came first, and then one of the two");
    let next = next.remove(0);
    assert!(next.fence() > fence);
    next.renew().await.expect("it is ours");
    next.release().await.expect("it was ours to the end").confirmed();
}

#[tokio::test]
async fn a_script_that_the_server_forgets_between_two_batches_is_sent_again() {
    let rig = Rig::start().await;
    let leases = rig.hold(MANY).await;
    rig.server.wire().must(&["SCRIPT", "FLUSH"]);
    rig.proxy.forget();
    for outcome in rig.release(leases).await {
        outcome.expect("it was ours").confirmed();
    }
    assert_eq!(rig.batches(), [MANY, MANY], "by its hash, and then by its text");
    let leases = rig.hold(MANY).await;
    let fences: BTreeSet<_> = leases.iter().map(Lease::fence).collect();
    assert_eq!(fences.len(), 1, "one batch has one time");
    assert_eq!(rig.batches(), [MANY; 3]);
}

/// A second sending leaves out callers that were answered meanwhile, and each of the others gets its own answer.
#[tokio::test]
async fn a_second_sending_leaves_out_who_was_answered_meanwhile() {
    const COMMAND: Duration = Duration::from_secs(2);
    let rig = Rig::with(Server::start(), |builder| builder.command_timeout(COMMAND)).await;
    rig.hold(1).await.remove(0).release().await.unwrap().confirmed();
    let mut wire = rig.server.wire();
    wire.must(&["SCRIPT", "FLUSH"]);
    for known in [ACQUIRE, RELEASE, RENEW] {
        wire.must(&["SCRIPT", "LOAD", known]);
    }
    rig.proxy.forget();
    // The answer that the script is unknown arrives after half of the callers have timed out.
    let unknown = rig.proxy.on(Match::script(COMBINED), 1, Action::HoldReply);
    let limit = |number: usize| if number % 2 == 0 { COMMAND * 5 / 8 } else { HANGS };
    let asked = (0..MANY).map(|number| {
        let lock = rig.leases.lock(format!("job:{number}"));
        async move { lock.acquire_within(limit(number)).await }
    });
    let mut crowd = rig.batch(asked).await;
    within(HANGS, "the batch is in the air", unknown.hit()).await;
    within(HANGS, "half of them are answered", crowd.until(MANY / 2)).await;
    unknown.release();
    let outcomes = crowd.all().await;
    assert_eq!(rig.batches()[..2], [MANY, MANY / 2], "{:?}", rig.batches());
    for (number, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(lease) if number % 2 == 1 => {
                assert_eq!(lease.name(), format!("job:{number}"));
                lease.renew().await.expect("it is ours");
                lease.release().await.expect("it was ours to the end").confirmed();
            }
            Err(leasehold::Error::Unavailable(_)) if number % 2 == 0 => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    rig.nothing_is_left().await;
}

#[tokio::test]
async fn fences_of_other_memories_travel_in_batches_of_their_own() {
    let rig = Rig::start().await;
    let memory = |number: usize| Duration::from_secs(60 * 60) * u32::from(number % 4 >= 2);
    let asked = (0..8).map(|number| rig.leases.lock(format!("job:{number}")).fence_memory(memory(number)).acquire());
    let leases = rig.batch(asked).await.all().await;
    assert_eq!(rig.batches(), [2, 2, 2, 2]);
    let mut wire = rig.server.wire();
    for (number, lease) in leases.into_iter().enumerate() {
        let floor = wire.pttl(&format!("{{job:{number}}}:lh:fence"));
        let (least, most) = if memory(number).is_zero() { (-2, 2) } else { (3_000_000, 3_600_000) };
        assert!((least..=most).contains(&floor), "{number}: {floor}");
        let (lease, name) = (lease.expect("it is free"), format!("job:{number}"));
        let fence = lease.fence();
        lease.release().await.expect("it was ours").confirmed();
        let next = rig.leases.lock(name).fence_memory(memory(number)).acquire().await.expect("it is free");
        assert!(next.fence() > fence);
    }
}

#[tokio::test]
async fn a_batch_on_a_link_that_breaks_is_over_and_the_next_goes_by_the_next_link() {
    let rig = Rig::start().await;
    let cut = rig.proxy.on(Match::script(COMBINED), 1, Action::CutBefore);
    let first = rig.try_all(names(MANY)).await;
    within(HANGS, "the fault happens", cut.hit()).await;
    assert!(first.iter().all(Result::is_err), "{first:?}");
    let leases = rig.hold(MANY).await;
    let script = Match::script(COMBINED);
    let links: Vec<_> =
        rig.proxy.seen().into_iter().filter(|seen| script.matches(&seen.args)).map(|seen| seen.connection).collect();
    // The first batch may have won locks: they are taken back before the next batch is sent.
    assert!(
        matches!(links[..], [one, ref undos @ .., other] if one < other && undos.iter().all(|link| *link == other)),
        "{links:?}"
    );
    for outcome in rig.release(leases).await {
        outcome.expect("it was ours").confirmed();
    }
    rig.nothing_is_left().await;
}

/// Each task has its own lock, and then one of a few shared ones.
async fn thousands(rig: &Rig) {
    const TASKS: usize = 3_000;
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| {
            let (own, shared) =
                (rig.leases.lock(format!("job:{number}")), rig.leases.lock(format!("job:s{}", number % 40)));
            let shared = shared.owner(Owner::anonymous());
            tokio::spawn(async move {
                let lease = own.acquire().await.expect("it is free");
                assert_eq!(lease.name(), format!("job:{number}"));
                let tried = shared.try_acquire().await.expect("the server answers");
                let shared = tried.map(|lease| (lease.name().to_owned(), lease.fence(), lease));
                lease.release().await.expect("it was ours").confirmed();
                match shared {
                    Some((name, fence, lease)) => {
                        lease.release().await.expect("it was ours").confirmed();
                        Some((name, fence))
                    }
                    None => None,
                }
            })
        })
        .collect();
    let mut granted = Vec::new();
    for task in tasks {
        granted.extend(within(3 * HANGS, "everybody is answered", task).await.unwrap());
    }
    let different: BTreeSet<_> = granted.iter().collect();
    assert_eq!(different.len(), granted.len(), "no two grants of a name have one fence");
    assert!(granted.len() >= 40, "{} grants", granted.len());
    let batches = rig.batches();
    assert!(batches.iter().all(|&size| (1..=128).contains(&size)), "{batches:?}");
    assert!(!batches.is_empty(), "no request was batched: the premise");
    rig.nothing_is_left().await;
}

#[test]
fn thousands_of_tasks_are_served_on_one_thread_and_on_several() {
    for runtime in [one_thread(), two_workers()] {
        runtime.block_on(async {
            let rig = Rig::with(Server::start(), |builder| builder.command_timeout(HANGS)).await;
            thousands(&rig).await;
        });
    }
}

/// Requests that were sent and are never polled again delay no other request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_do_not_poll_delay_nobody() {
    let rig = Rig::start().await;
    let unpolled = rig.fill().await;
    rig.clock.go_on();
    let lag = Lag::start();
    let mut worst = Duration::ZERO;
    for number in 0..100 {
        let began = Instant::now();
        let crowd = Crowd::of((0..8).map(|other| rig.leases.lock(format!("job:{number}:{other}")).acquire()));
        for lease in crowd.all().await {
            drop(lease.expect("it is free"));
        }
        worst = worst.max(began.elapsed());
    }
    // A flight is requested, and it comes after the releases of the turn before.
    assert!(worst <= SIGNAL + lag.of(3), "{worst:?}; the machine lagged {:?}", lag.worst());
    drop(unpolled);
    rig.nothing_is_left().await;
}

#[tokio::test]
async fn an_impatient_caller_goes_alone() {
    let rig = Rig::start().await;
    let (fillers, patient) = rig.queued(names(2).map(|name| rig.leases.lock(name).try_acquire())).await;
    let mut impatient = Crowd::of([rig.leases.lock("job:now").acquire_within(super::COMMAND / 3)]);
    impatient.once().await;
    let alone = || rig.proxy.count(Match::script(ACQUIRE).and(Match::containing("job:")));
    eventually_async(HANGS, "it goes out", || alone() == 1).await;
    assert_eq!(rig.batches(), [0; 0], "others wait still");
    rig.go_on(fillers).await;
    assert_eq!(impatient.all().await.len(), 1);
    assert_eq!(patient.all().await.len(), 2);
    assert_eq!(rig.batches(), [2]);
}

#[test]
fn callers_on_another_runtime_go_alone_by_the_keepers_connection() {
    let (home, away) = (one_thread(), two_workers());
    let rig = home.block_on(Rig::start());
    let fillers = home.block_on(rig.fill());
    let leases =
        away.block_on(async { Crowd::of(names(MANY).map(|name| rig.leases.lock(name).acquire())).all().await });
    let alone = Match::script(ACQUIRE).and(Match::containing("job:"));
    assert_eq!((rig.proxy.count(alone), rig.batches()), (MANY, vec![]));
    let releases = leases.into_iter().map(|lease| lease.expect("it is free").release());
    for outcome in away.block_on(Crowd::of(releases).all()) {
        outcome.expect("it was ours").confirmed();
    }
    assert_eq!((rig.proxy.count(Match::script(RELEASE)), rig.batches()), (MANY, vec![]));
    home.block_on(rig.go_on(fillers));
    assert_eq!(rig.server.wire().keys("job:*"), [""; 0]);
}

/// Invariant 1: later requests are sent although the flights before them have not returned.
#[tokio::test]
async fn what_waits_goes_while_flights_are_held_up() {
    let rig = Rig::start().await;
    let held = rig.proxy.on(Match::script(ACQUIRE), 1, Action::HoldReply);
    let (fillers, crowd) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).try_acquire())).await;
    rig.clock.go_on();
    within(HANGS, "a lone request is held up", held.hit()).await;
    eventually_async(HANGS, "the batch is sent", || rig.batches() == [MANY]).await;
    held.release();
    rig.go_on(fillers).await;
    assert!(crowd.all().await.iter().all(|outcome| matches!(outcome, Ok(Some(_)))));
}

/// Invariant 1: a crowd is sent although a lone request is under way and its answer is not polled.
#[tokio::test]
async fn a_crowd_waits_for_no_flight() {
    let rig = Rig::start().await;
    let (fillers, crowd) = rig.queued(names(32).map(|name| rig.leases.lock(name).try_acquire())).await;
    // The clock stands still: nothing is due.
    assert!(crowd.all().await.iter().all(|outcome| matches!(outcome, Ok(Some(_)))));
    assert_eq!(rig.batches(), [32]);
    rig.go_on(fillers).await;
}

/// Invariant 6: requests behind dropped ones are still sent.
#[tokio::test]
async fn lone_requests_that_are_dropped_are_followed_by_what_waits() {
    let rig = Rig::start().await;
    let (fillers, crowd) = rig.queued(names(MANY).map(|name| rig.leases.lock(name).try_acquire())).await;
    // The clock stands still: only what follows a flight is due. (Its votes are awaited in the background.)
    drop(fillers);
    assert!(crowd.all().await.iter().all(|outcome| matches!(outcome, Ok(Some(_)))));
    assert_eq!(rig.batches(), [MANY]);
    rig.clock.go_on();
}
