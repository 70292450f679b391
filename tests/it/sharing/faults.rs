//! The rows F80 to F89 and F100 to F107 of the fault table: locks that many hold at a time.

use std::{
    collections::HashSet,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use leasehold::{Client, Error, Lease, LossReason, Status};
use support::{
    Action, Child, ClockShim, Cluster, HANGS, Lag, Match, Part, Proxy, Server, Wire, eventually_async, fenced_write,
    scripts::{DOWNGRADE, JOIN, PART, POLL, RENEW_SHARES},
    two_workers, within,
};
use tokio::task::JoinSet;

use super::{acquired, assert_prompt};
use crate::{
    common::{Confirmed as _, LONG, MEDIUM, NAME, OTHER_TYPES, SHORT, ending, program, program_with, replace},
    fair::line::{HEARTBEAT, SOON, all_can_be_called, had, nothing_is_left, place, programs},
};

const HOLDERS: &str = "{job}:lh:holders";
/// The fault table's allowance on top of the TTL for a waiter behind one that has died.
const NOTICED: Duration = Duration::from_millis(250);

/// A child that shares the lock and is killed by its parent.
fn shares_until_killed(part: &Part, ttl: Duration, permits: Option<u32>) {
    two_workers().block_on(async {
        let leases = program_with(part.url.clone(), ttl).await;
        let lock = permits.map_or_else(|| leases.rw_lock(NAME).read(), |permits| leases.semaphore(NAME, permits));
        let _lease = acquired(&lock).await;
        part.say("has it");
        part.hear();
    });
}

fn start_sharing(child: &Child) {
    child.says("has it");
}

#[test]
fn f80_a_reader_is_killed_and_a_writer_waits() {
    if let Some(part) = Part::mine() {
        return shares_until_killed(&part, MEDIUM, None);
    }
    two_workers().block_on(async {
        let server = Server::start();
        let mut child = Child::start(f80_a_reader_is_killed_and_a_writer_waits, "reads", &server.url());
        start_sharing(&child);
        // Whose end the writer knows until it releases.
        let leases = program_with(server.url(), 3 * MEDIUM).await;
        let reading = acquired(&leases.rw_lock(NAME).read()).await;
        let fence = reading.fence();
        let writer = place(&leases.rw_lock(NAME).write()).await;
        let lag = Lag::start();
        child.kill();
        let killed = Instant::now();
        // The other sharers hold it for as long as they like, and never at risk.
        tokio::time::sleep(MEDIUM / 2).await;
        assert_eq!(reading.status(), Status::Held);
        assert!(!writer.is_finished());
        reading.release().await.unwrap().confirmed();
        let (writing, at) = had(writer).await;
        assert!(at - killed < MEDIUM + NOTICED + lag.worst(), "{:?}", at - killed);
        assert!(writing.fence() > fence);
        writing.release().await.unwrap().confirmed();
        nothing_is_left(&mut server.wire()).await;
    });
}

#[test]
fn f81_a_reader_is_stopped_and_goes_on_when_a_writer_has_written() {
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let leases = program_with(part.url.clone(), SHORT).await;
            let lease = acquired(&leases.rw_lock(NAME).read()).await;
            part.say("has it");
            part.hear();
            part.say(if lease.check().is_err() { "lost" } else { "held" });
            let written = fenced_write(&mut Wire::to_port(part.port()), "value", "reader", lease.fence());
            part.say(if written.is_err() { "refused" } else { "written" });
        });
    }
    two_workers().block_on(async {
        let server = Server::start();
        let test = f81_a_reader_is_stopped_and_goes_on_when_a_writer_has_written;
        let mut child = Child::start(test, "reads", &server.url());
        start_sharing(&child);
        let leases = program(server.url()).await;
        let writer = place(&leases.rw_lock(NAME).write()).await;
        child.stop();
        let (writing, _) = had(writer).await;
        fenced_write(&mut server.wire(), "value", "writer", writing.fence()).unwrap();
        tokio::time::sleep(2 * SHORT).await;
        child.tell("check");
        child.cont();
        child.says("lost");
        child.says("refused");
        writing.check().unwrap();
        writing.release().await.unwrap().confirmed();
    });
}

#[test]
fn f82_the_holder_of_a_permit_is_killed() {
    if let Some(part) = Part::mine() {
        return shares_until_killed(&part, SHORT, Some(3));
    }
    two_workers().block_on(async {
        let server = Server::start();
        let mut child = Child::start(f82_the_holder_of_a_permit_is_killed, "has one", &server.url());
        start_sharing(&child);
        let leases = program_with(server.url(), SHORT).await;
        let pool = leases.semaphore(NAME, 3);
        let others = [acquired(&pool).await, acquired(&pool).await];
        let (waiter, lag, mut wire) = (place(&pool).await, Lag::start(), server.wire());
        child.kill();
        let killed = Instant::now();
        while !waiter.is_finished() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
            let there = wire.must(&["ZCOUNT", HOLDERS, &now, "+inf"]).int();
            assert!(there <= 3, "{there} have a permit");
            assert!(killed.elapsed() < SOON);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (taken, at) = had(waiter).await;
        assert!(at - killed < SHORT + NOTICED + lag.worst(), "{:?}", at - killed);
        drop((taken, others));
        nothing_is_left(&mut wire).await;
    });
}

#[test]
fn f82_the_holder_of_several_permits_is_killed() {
    let pool = |client: &Client, take| client.semaphore(NAME, 4).take(take);
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let _lease = acquired(&pool(&program_with(part.url.clone(), SHORT).await, 3)).await;
            part.say("has it");
            part.hear();
        });
    }
    two_workers().block_on(async {
        let server = Server::start();
        let mut child = Child::start(f82_the_holder_of_several_permits_is_killed, "has three", &server.url());
        start_sharing(&child);
        let client = program_with(server.url(), SHORT).await;
        let other = acquired(&pool(&client, 1)).await;
        let waiters = [place(&pool(&client, 2)).await, place(&pool(&client, 1)).await];
        let lag = Lag::start();
        child.kill();
        let killed = Instant::now();
        let mut all = vec![other];
        for waiter in waiters {
            let (taken, at) = had(waiter).await;
            assert!(at - killed < SHORT + NOTICED + lag.worst(), "{:?}", at - killed);
            all.push(taken);
        }
        assert!(pool(&client, 1).try_acquire().await.unwrap().is_none(), "four are taken");
        drop(all);
        nothing_is_left(&mut server.wire()).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f83_the_first_of_the_line_that_does_not_fit_gives_up() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let reading = acquired(&one.rw_lock(NAME).read()).await;
    let writer = place(&other.rw_lock(NAME).write()).await;
    let mut readers = Vec::new();
    for leases in [&one, &other, &one] {
        readers.push(place(&leases.rw_lock(NAME).read()).await);
    }
    let (lag, began) = (Lag::start(), Instant::now());
    writer.abort();
    for reader in readers {
        let (beside, at) = had(reader).await;
        assert!(beside.fence() == reading.fence());
        assert_prompt(at - began, lag.of(3));
        drop(beside);
    }
    drop(reading);
    nothing_is_left(&mut server.wire()).await;
}

/// Readers wait behind a child that waits to write when the child ends; they are admitted within `limit`.
fn f83_a_child_is_passed_over(test: impl Fn(), end: impl FnOnce(&mut Child), limit: Duration) {
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let leases = program(part.url.clone()).await;
            let _writer = place(&leases.rw_lock(NAME).write()).await;
            part.say("waits");
            part.hear();
        });
    }
    two_workers().block_on(async {
        let server = Server::start();
        let [one, other] = programs(&server).await;
        let reading = acquired(&one.rw_lock(NAME).read()).await;
        let mut child = Child::start(test, "waits to write", &server.url());
        child.says("waits");
        all_can_be_called(&mut server.wire(), NAME, 1).await;
        let readers = [place(&one.rw_lock(NAME).read()).await, place(&other.rw_lock(NAME).read()).await];
        let (lag, began) = (Lag::start(), Instant::now());
        end(&mut child);
        for reader in readers {
            let (beside, at) = within(2 * SOON, "the lock", reader).await.unwrap();
            let beside = beside.unwrap();
            assert!(at - began < limit + NOTICED + lag.worst(), "{:?}", at - began);
            assert_eq!(beside.fence(), reading.fence());
            drop(beside);
        }
        drop(reading);
        nothing_is_left(&mut server.wire()).await;
    });
}

#[test]
fn f83_the_first_of_the_line_that_does_not_fit_is_killed() {
    f83_a_child_is_passed_over(f83_the_first_of_the_line_that_does_not_fit_is_killed, Child::kill, HEARTBEAT);
}

/// It counts as alive for as long as its process may be silent. Then the next waiter has to poll.
#[test]
fn f83_the_first_of_the_line_that_does_not_fit_is_stopped() {
    let limit = 4 * HEARTBEAT;
    f83_a_child_is_passed_over(f83_the_first_of_the_line_that_does_not_fit_is_stopped, |child| child.stop(), limit);
}

/// Each reader's loss, with its delay.
async fn told(readers: Vec<Lease>, began: Instant) -> Vec<(LossReason, Duration)> {
    let mut news = JoinSet::new();
    for reader in readers {
        news.spawn(async move {
            let reason = reader.lost().await.reason();
            let told = (reason, began.elapsed());
            let _ended = ending(reader.release().await);
            told
        });
    }
    within(SOON, "the news", news.join_all()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_the_key_of_a_shared_lock_is_overwritten() {
    for make in [&["SET", "made", "theirs", "PX", "60000"][..], OTHER_TYPES[1]] {
        let server = Server::start();
        let [one, other] = programs(&server).await;
        let mut readers = Vec::new();
        for leases in [&one, &other, &one] {
            readers.push(acquired(&leases.rw_lock(NAME).read()).await);
        }
        let mut wire = server.wire();
        let is_tracked =
            |wire: &mut support::Wire| wire.info_field("stats", "tracking_total_items").as_deref() == Some("2");
        eventually_async(SOON, "a key that both watch", || is_tracked(&mut wire)).await;
        let lag = Lag::start();
        replace(&mut wire, make, NAME);
        for (reason, after) in told(readers, Instant::now()).await {
            assert_eq!(reason, LossReason::Taken);
            assert_prompt(after, lag.of(3));
        }
        assert!(wire.exists(NAME), "it is the other's");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_the_key_of_a_shared_lock_in_a_cluster_is_deleted() {
    let cluster = Cluster::start(3, 0);
    let leases = Client::builder().url(cluster.url()).ttl(4 * MEDIUM).build().await.unwrap();
    let name = cluster.name_at(1, "deleted");
    let readers = vec![acquired(&leases.rw_lock(&name).read()).await, acquired(&leases.rw_lock(&name).read()).await];
    let mut wire = cluster.primaries()[1].wire();
    let is_tracked = |wire: &mut support::Wire| wire.info_field("stats", "tracking_total_keys").as_deref() == Some("1");
    eventually_async(SOON, "a key that is watched", || is_tracked(&mut wire)).await;
    let lag = Lag::start();
    assert!(wire.del(&name));
    for (reason, after) in told(readers, Instant::now()).await {
        assert_eq!(reason, LossReason::Deleted);
        assert_prompt(after, lag.of(3));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f84_nobody_of_an_earlier_phase_is_renewed_in_a_later_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (early, late) = (program_with(proxy.url(), MEDIUM).await, program(server.url()).await);
    let lost = acquired(&early.rw_lock(NAME).read()).await;
    proxy.freeze(true);
    assert!(server.wire().del(NAME));
    let reading = acquired(&late.rw_lock(NAME).read()).await;
    assert!(reading.fence() > lost.fence());
    proxy.freeze(false);
    assert_eq!(within(SOON, "the loss", lost.lost()).await.reason(), LossReason::Deleted);
    assert_eq!(server.wire().must(&["ZCARD", HOLDERS]).int(), 1);
    reading.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f85_the_places_of_a_shared_lock_are_deleted_or_of_another_type() {
    for make in [None, Some(OTHER_TYPES[0])] {
        let server = Server::start();
        let leases = program_with(server.url(), SHORT).await;
        let readers = vec![acquired(&leases.rw_lock(NAME).read()).await, acquired(&leases.rw_lock(NAME).read()).await];
        let mut wire = server.wire();
        match make {
            None => assert!(wire.del(HOLDERS)),
            Some(make) => replace(&mut wire, make, HOLDERS),
        }
        for (reason, after) in told(readers, Instant::now()).await {
            assert!(reason == LossReason::Deleted && after < SHORT, "{reason:?} after {after:?}");
        }
        wire.del(NAME);
        if make.is_some() {
            let refused = within(HANGS, "an answer", leases.rw_lock(NAME).read().acquire()).await.unwrap_err();
            let text = refused.to_string();
            assert!(matches!(refused, Error::Refused(_)) && text.contains(HOLDERS), "{text}");
            wire.del(HOLDERS);
        }
        acquired(&leases.rw_lock(NAME).write()).await.release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f86_a_server_that_forgot_all_who_share() {
    let server = Server::start();
    let leases = program_with(server.url(), MEDIUM).await;
    let readers = vec![acquired(&leases.rw_lock(NAME).read()).await, acquired(&leases.rw_lock(NAME).read()).await];
    let fence = readers[0].fence();
    let began = Instant::now();
    server.kill();
    server.restart();
    for (reason, after) in told(readers, began).await {
        assert!(
            matches!(reason, LossReason::Deleted | LossReason::Expired) && after < MEDIUM,
            "{reason:?} after {after:?}"
        );
    }
    let writing = acquired(&leases.rw_lock(NAME).write()).await;
    assert!(writing.fence() > fence);
    writing.release().await.unwrap().confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f87_the_servers_clock_is_set_forward_past_the_ttl_and_back_by_an_hour() {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    let leases = program_with(server.url(), MEDIUM).await;
    let readers = vec![acquired(&leases.rw_lock(NAME).read()).await, acquired(&leases.rw_lock(NAME).read()).await];
    let mut fences = vec![readers[0].fence()];
    clock.forward(2 * MEDIUM);
    for (reason, after) in told(readers, Instant::now()).await {
        assert!(reason == LossReason::Deleted && after < MEDIUM, "{reason:?} after {after:?}");
    }
    let writing = acquired(&leases.rw_lock(NAME).write()).await;
    fences.push(writing.fence());
    writing.release().await.unwrap().confirmed();
    clock.back(Duration::from_secs(3_600));
    for lock in [leases.rw_lock(NAME).read(), leases.semaphore(NAME, 2), leases.rw_lock(NAME).write()] {
        let lease = acquired(&lock).await;
        fences.push(lease.fence());
        lease.release().await.unwrap().confirmed();
    }
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f88_answers_about_shares_are_lost() {
    for (script, what) in [(JOIN, "an acquire"), (PART, "a release"), (RENEW_SHARES, "a renewal"), (POLL, "a writer")] {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let leases = program_with(proxy.url(), MEDIUM).await;
        let swallowed = proxy.on(Match::script(script), 1, Action::SwallowReply);
        let name = leases.rw_lock(NAME);
        let lock = if script == POLL { name.write() } else { name.read() };
        let lease = within(SOON, what, lock.acquire()).await.unwrap();
        if script == RENEW_SHARES {
            within(SOON, "a lost renewal", swallowed.hit()).await;
            tokio::time::sleep(MEDIUM).await;
        }
        lease.check().unwrap();
        let _released = within(SOON, "its release", lease.release()).await.unwrap();
        assert_eq!(swallowed.hits(), 1, "{what}");
        nothing_is_left(&mut server.wire()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f89_those_who_share_go_on_when_memory_is_used_up() {
    let server = Server::start();
    let leases = program_with(server.url(), SHORT).await;
    let (reading, parting) =
        (acquired(&leases.rw_lock(NAME).read()).await, acquired(&leases.rw_lock(NAME).read()).await);
    let mut wire = server.wire();
    wire.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = leases.rw_lock(NAME).read().try_acquire().await.unwrap_err().to_string();
    assert!(refused.contains("maxmemory is reached"), "{refused}");
    let until = Instant::now() + 3 * SHORT;
    while Instant::now() < until {
        reading.check().unwrap();
        tokio::time::sleep(SHORT / 20).await;
    }
    parting.release().await.unwrap().confirmed();
    assert_eq!(wire.must(&["ZCARD", HOLDERS]).int(), 1);
    reading.release_keeping(LONG).await.unwrap().confirmed();
    wire.must(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(leases.rw_lock(NAME).write().try_acquire().await.unwrap().is_none(), "its place is kept");
}

#[tokio::test]
async fn f89_a_writer_goes_on_as_a_reader_when_memory_is_used_up() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let writing = acquired(&one.rw_lock(NAME).write()).await;
    let waiter = place(&other.rw_lock(NAME).read()).await;
    let mut wire = server.wire();
    wire.must(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    wire.must(&["CONFIG", "SET", "maxmemory", "1"]);
    let fence = writing.fence();
    let reading = within(HANGS, "downgrade", writing.downgrade()).await.unwrap();
    assert!(reading.fence() > fence);
    let (beside, _) = had(waiter).await;
    assert_eq!(beside.fence(), reading.fence());
    for lease in [reading, beside] {
        lease.release().await.unwrap().confirmed();
    }
}

#[test]
fn f100_a_thousand_readers_in_ten_processes_behind_a_writer() {
    const PROCESSES: usize = 10;
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let leases = program(part.url.clone()).await;
            part.say("connected");
            part.hear();
            let mut waiters = JoinSet::new();
            for _ in 0..100 {
                waiters.spawn(place(&leases.rw_lock(NAME).read()).await);
            }
            part.say("all wait");
            let mut kept = Vec::new();
            while let Some(waiter) = waiters.join_next().await {
                kept.push(waiter.unwrap().unwrap().0.unwrap());
            }
            part.say("all read");
            part.hear();
            for lease in &kept {
                lease.check().unwrap();
            }
            drop(kept);
            leases.close().await;
        });
    }
    two_workers().block_on(async {
        let server = Server::start();
        let (mut wire, leases) = (server.wire(), program(server.url()).await);
        let writing = acquired(&leases.rw_lock(NAME).write()).await;
        let start = |_| {
            let proxy = Proxy::to(&server);
            (Child::start(f100_a_thousand_readers_in_ten_processes_behind_a_writer, "read", &proxy.url()), proxy)
        };
        let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
        for (child, _) in &mut processes {
            child.says("connected");
            child.tell("wait");
            child.says("all wait");
        }
        all_can_be_called(&mut wire, NAME, 1_000).await;
        for (_, proxy) in &processes {
            proxy.forget();
        }
        writing.release().await.unwrap().confirmed();
        for (child, _) in &processes {
            child.says("all read");
        }
        let is_poll = Match::script(JOIN);
        let polls: usize = processes
            .iter()
            .map(|(_, proxy)| proxy.seen().iter().filter(|seen| is_poll.matches(&seen.args)).count())
            .sum();
        assert!((1_000..=1_200).contains(&polls), "{polls} scripts for 1,000 readers");
        assert_eq!(wire.must(&["ZCARD", HOLDERS]).int(), 1_000);
        let writer = place(&leases.rw_lock(NAME).write()).await;
        for (child, _) in &mut processes {
            assert!(!writer.is_finished(), "somebody reads");
            child.tell("end");
        }
        for (child, _) in processes {
            child.ends();
        }
        had(writer).await.0.release().await.unwrap().confirmed();
        nothing_is_left(&mut wire).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f101_another_librarys_lock_under_the_same_name() {
    let server = Server::start();
    let (leases, mut wire) = (program(server.url()).await, server.wire());
    wire.must(&["SET", NAME, "theirs", "NX", "PX", "60000"]);
    let reader = place(&leases.rw_lock(NAME).read()).await;
    assert!(leases.semaphore(NAME, 5).try_acquire().await.unwrap().is_none());
    let (lag, freed) = (Lag::start(), Instant::now());
    assert!(wire.del(NAME));
    let (reading, at) = had(reader).await;
    assert_prompt(at - freed, lag.of(3));
    assert_eq!(wire.cmd(&["SET", NAME, "theirs", "NX", "PX", "60000"]), support::Value::Nil, "it is taken");
    reading.release().await.unwrap().confirmed();
    wire.must(&["SET", NAME, "theirs", "NX", "PX", "60000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f102_two_limits_of_one_name_under_load() {
    let server = Server::start();
    let (small, large) = (program(server.url()).await, program(server.url()).await);
    let stop = Instant::now() + Duration::from_secs(3);
    let mut workers = JoinSet::new();
    for n in 0..16 {
        let lock = if n % 2 == 0 { small.semaphore(NAME, 3) } else { large.semaphore(NAME, 5) };
        let (server, limit) = (server.port(), if n % 2 == 0 { 3 } else { 5 });
        workers.spawn(async move {
            let (mut wire, mut rounds) = (Wire::to_port(server), 0);
            while Instant::now() < stop {
                let lease = acquired(&lock).await;
                let there = wire.must(&["ZCARD", HOLDERS]).int();
                assert!(there <= 5, "{there} hold it");
                lease.check().unwrap();
                rounds += 1;
                lease.release().await.unwrap().confirmed();
            }
            (limit, rounds)
        });
    }
    let rounds = within(HANGS, "all of them", workers.join_all()).await;
    assert!(rounds.iter().all(|(limit, rounds)| *rounds > 0 && *limit > 0), "{rounds:?}");
    let three = [
        acquired(&small.semaphore(NAME, 3)).await,
        acquired(&small.semaphore(NAME, 3)).await,
        acquired(&large.semaphore(NAME, 5)).await,
    ];
    assert!(small.semaphore(NAME, 3).try_acquire().await.unwrap().is_none());
    let fourth = large.semaphore(NAME, 5).try_acquire().await.unwrap();
    assert!(fourth.is_some());
    drop((three, fourth));
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f103_the_link_is_cut_during_a_downgrade_with_readers_in_line() {
    for action in [Action::CutBefore, Action::CutAfter, Action::SwallowReply] {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let (leases, other) = (program_with(proxy.url(), Duration::from_secs(3)).await, program(server.url()).await);
        let writing = acquired(&leases.rw_lock(NAME).write()).await;
        let fence = writing.fence();
        let (reader, writer) = (place(&other.rw_lock(NAME).read()).await, place(&other.rw_lock(NAME).write()).await);
        let hit = proxy.on(Match::script(DOWNGRADE), 1, action);
        let reading = within(SOON, "the downgrade", writing.downgrade()).await.unwrap();
        assert_eq!(hit.hits(), 1);
        let (beside, _) = had(reader).await;
        assert!(reading.fence() == beside.fence() && reading.fence() > fence);
        assert!(!writer.is_finished());
        drop((reading, beside));
        had(writer).await.0.release().await.unwrap().confirmed();
        nothing_is_left(&mut server.wire()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f104_many_programs_that_share_a_name_leave_each_other_in_peace() {
    const PROGRAMS: usize = 20;
    const TTLS: u32 = 6;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut shares = Vec::new();
    for _ in 0..PROGRAMS {
        let leases = program_with(proxy.url(), MEDIUM).await;
        shares.push((acquired(&leases.rw_lock(NAME).read()).await, leases));
    }
    // From its first renewal on each has the key tracked.
    tokio::time::sleep(MEDIUM).await;
    proxy.forget();
    tokio::time::sleep(TTLS * MEDIUM).await;
    for (share, _) in &shares {
        share.check().unwrap();
    }
    let count = |script| proxy.count(Match::script(script));
    let (thirds, looks, renewals) = (PROGRAMS * TTLS as usize * 3, count(support::scripts::LOOK), count(RENEW_SHARES));
    // One poll after each renewal, and one for each notification, of which there is one in a third of a TTL.
    assert!(looks <= thirds * 3, "{looks} looks in {thirds} thirds of a TTL");
    assert!(renewals <= thirds * 3 / 2, "{renewals} renewals in {thirds} thirds of a TTL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f105_one_of_many_shares_of_a_batch_is_refused_or_of_another_type() {
    let server = Server::start();
    let leases = program_with(server.url(), MEDIUM).await;
    let mut shares = Vec::new();
    for n in 0..250 {
        shares.push(acquired(&leases.rw_lock(format!("job:{n}")).read()).await);
    }
    let mut wire = server.wire();
    replace(&mut wire, OTHER_TYPES[2], "{job:7}:lh:holders");
    replace(&mut wire, OTHER_TYPES[0], "job:8");
    tokio::time::sleep(2 * MEDIUM).await;
    let lost: HashSet<_> =
        shares.iter().filter(|share| share.check().is_err()).map(|share| share.name().to_owned()).collect();
    assert_eq!(lost, HashSet::from(["job:7", "job:8"].map(ToOwned::to_owned)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f106_the_slot_of_a_shared_lock_is_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = Client::builder().url(cluster.url()).ttl(MEDIUM).build().await.unwrap();
    for moved in ["nothing", "the lock", "the places"] {
        let tag = cluster.name_at(0, moved);
        let (slot, name) = (cluster.slot_of(&tag), format!("{{{tag}}}shared"));
        let lock = leases.rw_lock(&name);
        let (reading, parting) = (acquired(&lock.read()).await, acquired(&lock.read()).await);
        cluster.begin_to_move(slot, 0, 2);
        match moved {
            "the lock" => cluster.move_key(&name, 0, 2),
            "the places" => cluster.move_key(&format!("{name}:lht:holders"), 0, 2),
            _ => {}
        }
        // Longer than its TTL: it was renewed, wherever its keys are.
        let until = Instant::now() + 2 * MEDIUM;
        while Instant::now() < until {
            reading.check().unwrap_or_else(|lost| panic!("{moved}: {lost}"));
            tokio::time::sleep(MEDIUM / 20).await;
        }
        parting.release().await.unwrap().confirmed();
        let waiter = tokio::spawn(lock.write().owner(leasehold::Owner::anonymous()).acquire());
        reading.check().unwrap();
        reading.release().await.unwrap().confirmed();
        cluster.finish_moving(slot, 0, 2);
        let writing = within(SOON, "the lock", waiter).await.unwrap().unwrap();
        writing.release().await.unwrap().confirmed();
    }
}

/// A check extends nothing, and takes no place either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f106_the_work_of_a_sharer_stalls_while_its_slot_is_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = Client::builder().url(cluster.url()).ttl(2 * MEDIUM).build().await.unwrap();
    for moved in ["the lock", "the places"] {
        let tag = cluster.name_at(0, moved);
        let (slot, name) = (cluster.slot_of(&tag), format!("{{{tag}}}shared"));
        let reading = acquired(&leases.rw_lock(&name).read().stall_after(MEDIUM * 4 / 5)).await;
        cluster.begin_to_move(slot, 0, 2);
        cluster.move_key(&if moved == "the lock" { name } else { format!("{name}:lht:holders") }, 0, 2);
        assert_eq!(within(SOON, "its end", reading.lost()).await.reason(), LossReason::Stalled, "{moved}");
        cluster.finish_moving(slot, 0, 2);
    }
}

/// As early as any other sharer, and before another caller has the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f106_a_sharer_whose_work_stalls_hears_that_its_keys_are_gone_while_its_slot_is_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = Client::builder().url(cluster.url()).ttl(6 * MEDIUM).build().await.unwrap();
    let tag = cluster.name_at(0, "gone");
    let (slot, name) = (cluster.slot_of(&tag), format!("{{{tag}}}shared"));
    let reading = acquired(&leases.rw_lock(&name).read().stall_after(MEDIUM * 5 / 2)).await;
    cluster.begin_to_move(slot, 0, 2);
    // Half of the span is over without progress, and the other half is soon.
    eventually_async(SOON, "the stall", || reading.remaining() < 3 * MEDIUM).await;
    let mut wire = cluster.primaries()[0].wire();
    assert!(wire.del(&name) && wire.del(&format!("{name}:lht:holders")));
    assert_eq!(within(SOON, "the loss", reading.lost()).await.reason(), LossReason::Deleted);
    cluster.finish_moving(slot, 0, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f106_the_key_of_a_shared_lock_is_deleted_while_its_slot_is_moved() {
    let cluster = Cluster::start(3, 0);
    let leases = Client::builder().url(cluster.url()).ttl(MEDIUM).build().await.unwrap();
    let tag = cluster.name_at(0, "deleted");
    let (slot, name) = (cluster.slot_of(&tag), format!("{{{tag}}}shared"));
    let reading = acquired(&leases.rw_lock(&name).read()).await;
    cluster.begin_to_move(slot, 0, 2);
    let mut wire = cluster.primaries()[0].wire();
    assert!(wire.del(&name));
    // The sharers' places are still there. They do not count without the key.
    assert_eq!(within(SOON, "the loss", reading.lost()).await.reason(), LossReason::Deleted);
    assert!(wire.exists(&format!("{name}:lht:holders")), "the premise");
    drop(reading);
    cluster.finish_moving(slot, 0, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f107_everything_ends_with_shares_held() {
    let server = Server::start();
    let other = program(server.url()).await;
    for how in ["close", "shutdown", "drop", "panic"] {
        let leases = program(server.url()).await;
        let shares = [acquired(&leases.semaphore(NAME, 3)).await, acquired(&leases.semaphore(NAME, 3)).await];
        let waiter = place(&other.rw_lock(NAME).write()).await;
        match how {
            "close" => leases.close().await,
            "shutdown" => {
                let [one, another] = shares;
                let job = tokio::spawn(async move {
                    let reason = one.lost().await.reason();
                    drop(another);
                    one.release().await.unwrap().confirmed();
                    reason
                });
                assert_eq!(leases.shutdown(SOON).await, 0);
                assert_eq!(job.await.unwrap(), LossReason::Closing);
            }
            "drop" => drop(shares),
            _ => {
                let panics = tokio::spawn(async move {
                    let _shares = shares;
                    panic!("the work fails");
                });
                assert!(panics.await.unwrap_err().is_panic());
            }
        }
        had(waiter).await.0.release().await.unwrap().confirmed();
        nothing_is_left(&mut server.wire()).await;
    }
}
