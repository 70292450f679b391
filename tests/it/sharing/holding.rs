//! Sharers that are admitted beside each other: with which fence, for how long, and which keys they leave.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lock, LossReason, Mode, Owner};
use support::{HANGS, Lag, Server, Wire, eventually_async, within};
use tokio::task::JoinSet;

use super::{acquired, assert_prompt};
use crate::{
    common::{Confirmed as _, LONG, NAME, SHORT, ending, have_places, program, program_with},
    fair::line::{SOON, had, nothing_is_left, place, programs},
};

/// The description of the holders that a failed try gets.
async fn busy(lock: &Lock) -> String {
    match lock.acquire_within(Duration::ZERO).await {
        Err(Error::TimedOut { holder, .. }) => holder.to_string(),
        outcome => panic!("not busy: {outcome:?}"),
    }
}

#[tokio::test]
async fn readers_share_a_name_and_its_fence_and_a_writer_has_it_alone() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let [mine, theirs] = [&one, &other].map(|leases| leases.rw_lock(NAME));
    let to_read = Mode::Shared { limit: None, permits: std::num::NonZeroU32::MIN };
    assert_eq!((mine.name(), mine.read().mode(), mine.write().mode()), (NAME, to_read, Mode::Exclusive));
    let (first, second) = (acquired(&mine.read()).await, acquired(&theirs.read()).await);
    assert_eq!((first.fence(), first.mode()), (second.fence(), to_read));
    assert!(mine.write().try_acquire().await.unwrap().is_none());
    assert!(one.lock(NAME).try_acquire().await.unwrap().is_none(), "a plain lock is shut out too");
    let says = busy(&theirs.write()).await;
    let expected = format!("2 sharers, one of them this program (fence {}), the last of them for ", first.fence());
    assert!(says.starts_with(&expected), "{says}");
    let fence = first.fence();
    first.release().await.unwrap().confirmed();
    assert!(theirs.write().try_acquire().await.unwrap().is_none(), "one is left");
    second.release().await.unwrap().confirmed();
    let writing = acquired(&theirs.write()).await;
    assert!(writing.fence() > fence, "later than those before");
    assert!(mine.read().try_acquire().await.unwrap().is_none());
    let fence = writing.fence();
    writing.release().await.unwrap().confirmed();
    let last = acquired(&mine.read()).await;
    assert!(last.fence() > fence);
    last.release().await.unwrap().confirmed();
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn as_many_hold_a_name_as_there_are_permits() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let [mine, theirs] = [&one, &other].map(|leases| leases.semaphore(NAME, 3));
    assert_eq!(mine.mode().to_string(), "one of 3 permits");
    let held = [acquired(&mine).await, acquired(&theirs).await, acquired(&mine).await];
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let says = busy(&theirs).await;
    assert!(
        says.starts_with("3 sharers, one of them this program (fence ") && says.contains("), the first of them for "),
        "{says}"
    );
    let waiter = place(&theirs).await;
    let [freed, ..] = &held;
    let fence = freed.fence();
    let (lag, began) = (Lag::start(), Instant::now());
    let [freed, second, third] = held;
    freed.release().await.unwrap().confirmed();
    let (fourth, at) = had(waiter).await;
    assert_prompt(at - began, lag.of(3));
    assert_eq!((fourth.fence(), second.fence()), (fence, fence), "no holder was alone in between");
    for lease in [second, third, fourth] {
        lease.check().unwrap();
        lease.release().await.unwrap().confirmed();
    }
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_reader_does_not_overtake_a_writer_that_waits() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let [mine, theirs] = [&one, &other].map(|leases| leases.rw_lock(NAME));
    let first = acquired(&mine.read()).await;
    let writer = place(&theirs.write()).await;
    let mut readers = Vec::new();
    for lock in [mine.read(), theirs.read(), mine.read()] {
        assert!(lock.try_acquire().await.unwrap().is_none(), "another waiter is ahead");
        readers.push(place(&lock).await);
    }
    first.release().await.unwrap().confirmed();
    let (writing, _) = had(writer).await;
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    let (fence, lag, began) = (writing.fence(), Lag::start(), Instant::now());
    writing.release().await.unwrap().confirmed();
    for reader in readers {
        let (reading, at) = had(reader).await;
        assert!(reading.fence() > fence);
        assert_prompt(at - began, lag.of(3));
        // The others are admitted beside it.
        tokio::spawn(async move { reading.lost().await });
    }
}

#[tokio::test]
async fn shares_are_renewed_in_two_programs_for_as_long_as_they_are_held() {
    let server = Server::start();
    let (one, other) = (program_with(server.url(), SHORT).await, program_with(server.url(), SHORT).await);
    let mut held = Vec::new();
    for leases in [&one, &other, &one, &other] {
        held.push(acquired(&leases.rw_lock(NAME).read()).await);
        held.push(acquired(&leases.semaphore("pool", 9)).await);
    }
    let alone = acquired(&one.lock("alone")).await;
    let until = Instant::now() + 4 * SHORT;
    while Instant::now() < until {
        alone.check().unwrap();
        for lease in &held {
            lease.check().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for lease in held.into_iter().chain([alone]) {
        lease.release().await.unwrap().confirmed();
    }
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn all_who_share_a_key_are_told_at_once_that_it_was_deleted() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let mut told = JoinSet::new();
    for leases in [&one, &other] {
        for _ in 0..10 {
            let lease = acquired(&leases.rw_lock(NAME).read()).await;
            told.spawn(async move { (lease.lost().await, Instant::now(), lease) });
        }
    }
    let mut wire = server.wire();
    // A key is tracked from its first renewal on.
    eventually_async(SOON, "a key that both watch", || {
        wire.info_field("stats", "tracking_total_items").as_deref() == Some("2")
    })
    .await;
    let (lag, began) = (Lag::start(), Instant::now());
    assert!(wire.del(NAME));
    for _ in 0..20 {
        let (lost, at, lease) = within(SOON, "the news", told.join_next()).await.unwrap().unwrap();
        assert_eq!(lost.reason(), LossReason::Deleted);
        assert_prompt(at - began, lag.of(3));
        drop(lease);
    }
    let writing = acquired(&other.rw_lock(NAME).write()).await;
    writing.release().await.unwrap().confirmed();
    nothing_is_left(&mut wire).await;
}

#[tokio::test]
async fn who_waits_for_a_plain_lock_finds_a_share_of_its_own_program_as_any_other() {
    let server = Server::start();
    let leases = program_with(server.url(), SHORT).await;
    let reading = acquired(&leases.rw_lock(NAME).read()).await;
    // It polls again when the key could have expired.
    let busy = leases.lock(NAME).acquire_within(3 * SHORT).await;
    let Err(Error::TimedOut { holder, .. }) = busy else { panic!("{busy:?}") };
    let says = format!("sharers, one of them this program (fence {})", reading.fence());
    assert!(holder.to_string().starts_with(&says), "{holder}");
    reading.release().await.unwrap().confirmed();
}

/// A share that came later has left before: no share is the newest any more.
#[tokio::test]
async fn a_share_hears_that_its_program_has_the_lock_alone_after_the_key_was_deleted() {
    let server = Server::start();
    // Its expiry is not notified.
    let leases = program(server.url_without_push(server.port())).await;
    let lock = leases.rw_lock(NAME);
    let (stays, leaves) = (acquired(&lock.read()).await, acquired(&lock.read()).await);
    leaves.release().await.unwrap().confirmed();
    assert!(server.wire().del(NAME));
    let (lag, began) = (Lag::start(), Instant::now());
    let alone = acquired(&lock.write()).await;
    assert_eq!(within(SOON, "the news", stays.lost()).await.reason(), LossReason::Taken);
    assert_prompt(began.elapsed(), lag.worst());
    alone.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn a_share_of_an_earlier_phase_hears_of_it_when_its_program_comes_into_a_later_one() {
    let server = Server::start();
    // Its expiry is not notified.
    let leases = program(server.url_without_push(server.port())).await;
    let lock = leases.rw_lock(NAME).read();
    let earlier = acquired(&lock).await;
    assert!(server.wire().del(NAME));
    let (lag, began) = (Lag::start(), Instant::now());
    let later = acquired(&lock).await;
    assert_eq!(within(SOON, "the news", earlier.lost()).await.reason(), LossReason::Deleted);
    assert_prompt(began.elapsed(), lag.worst());
    assert!(later.fence() > earlier.fence());
    later.release().await.unwrap().confirmed();
    drop(earlier);
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_key_that_would_end_before_one_of_those_who_share_it_is_extended_at_once() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let lock = leases.rw_lock(NAME).read();
    // The remaining life would be enough for the first share alone. The second one is not renewed in all that time.
    let [short, long] = [SHORT, 6 * SOON].map(|ttl| lock.clone().ttl(ttl));
    let shares = [acquired(&short).await, acquired(&long).await];
    let mut wire = server.wire();
    eventually_async(SOON, "a key that is watched", || {
        wire.info_field("stats", "tracking_total_keys").as_deref() == Some("1")
    })
    .await;
    wire.must(&["PEXPIRE", NAME, "5000"]);
    eventually_async(SOON, "as long as the second one", || wire.must(&["PTTL", NAME]).int() > 60_000).await;
    for share in shares {
        share.release().await.unwrap().confirmed();
    }
    nothing_is_left(&mut wire).await;
}

#[tokio::test]
async fn a_share_that_was_dropped_is_free() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let permit = acquired(&one.semaphore(NAME, 1)).await;
    let waiter = place(&other.semaphore(NAME, 1)).await;
    drop(permit);
    let (permit, _) = had(waiter).await;
    let panics = tokio::spawn(async move {
        let _permit = permit;
        panic!("the work fails");
    });
    assert!(panics.await.unwrap_err().is_panic());
    acquired(&one.semaphore(NAME, 1)).await.release().await.unwrap().confirmed();
    // Cancelled waiters, with a place and without one.
    let reading = acquired(&one.rw_lock(NAME).read()).await;
    let writer = place(&other.rw_lock(NAME).write()).await;
    let reader = place(&one.rw_lock(NAME).read()).await;
    writer.abort();
    let (beside, _) = had(reader).await;
    assert_eq!(beside.fence(), reading.fence());
    drop((beside, reading));
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn an_owner_that_shares_a_name_gets_it_again_but_not_alone() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let name = leases.rw_lock(NAME);
    let (read, write) = (name.read().reentrant(true), name.write().reentrant(true));
    let reading = acquired(&read).await;
    let again = acquired(&read).await;
    assert_eq!((again.fence(), again.hold_count()), (reading.fence(), 2));
    let error = within(HANGS, "an answer", write.acquire()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"this owner shares "job": release that first, for two that share it and want it alone would wait for each other"#
    );
    assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    drop((again, reading));
    let writing = acquired(&write).await;
    let reading = acquired(&read).await;
    assert_eq!((reading.mode(), reading.hold_count()), (Mode::Exclusive, 2), "as it is held");
    drop(writing);
    reading.check().unwrap();
    assert!(leases.rw_lock(NAME).read().owner(Owner::anonymous()).try_acquire().await.unwrap().is_none());
    drop(reading);
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn permits_out_of_bounds_and_a_quorum_are_refused_before_anything_is_sent() {
    let leases = leasehold::Client::connect_lazy("redis://127.0.0.1:1").unwrap();
    for permits in [0, 1_000_001] {
        let error = leases.semaphore(NAME, permits).acquire().await.unwrap_err();
        assert_eq!(error.to_string(), format!("permits is {permits}: it must be from 1 to 1,000,000"));
    }
    let bounds = "it must be from 1 to the number of permits, 4";
    for take in [0, 5] {
        let error = leases.semaphore(NAME, 4).take(take).acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert_eq!(error.to_string(), format!("take is {take}: {bounds}"));
    }
    let name = leases.rw_lock(NAME);
    for lock in [leases.lock(NAME), name.read(), name.write()] {
        let error = lock.take(2).try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            "take is 2: only a lock with permits has several to take, which `semaphore` makes"
        );
    }
    let quorum = leasehold::Client::builder().quorum((1..=3).map(|port| format!("redis://127.0.0.1:{port}")));
    let quorum = quorum.build_lazy().unwrap();
    let memory = leasehold::Client::builder().quorum((1..=3).map(|n| format!("memory://shared-{n}")));
    let memory = memory.build().await.unwrap();
    for leases in [quorum, memory] {
        let name = leases.rw_lock(NAME);
        for lock in [name.read(), name.write(), leases.semaphore(NAME, 2)] {
            let error = within(HANGS, "an answer", lock.acquire()).await.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
            assert_eq!(
                error.to_string(),
                "shared locks do not work over a quorum, whose nodes may each admit others so that more \
                 hold it than may: use the url of one server, or a name for each permit"
            );
        }
    }
}

#[tokio::test]
async fn an_owner_that_takes_permits_gets_no_more_of_them_again() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let pool = leases.semaphore(NAME, 4).reentrant(true);
    let two = acquired(&pool.clone().take(2)).await;
    let again = acquired(&pool).await;
    assert_eq!((again.mode().to_string(), again.hold_count()), ("2 of 4 permits".to_owned(), 2));
    let error = within(HANGS, "an answer", pool.clone().take(3).acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    assert_eq!(
        error.to_string(),
        r#"this owner shares "job" for 2 of its permits, and cannot take 3: take all at the first acquire"#
    );
    drop((two, again));
    acquired(&pool.take(4)).await.release().await.unwrap().confirmed();
    nothing_is_left(&mut server.wire()).await;
}

/// All permits of a released place that stays become free at the end of its time.
#[tokio::test]
async fn permits_come_back_all_at_once() {
    const KEPT: Duration = Duration::from_millis(300);
    let server = Server::start();
    for url in [server.url(), "memory://permits".to_owned()] {
        let (leases, lag) = (program_with(url, LONG).await, Lag::start());
        let pool = leases.semaphore(NAME, 4);
        let light = acquired(&pool).await;
        acquired(&pool.clone().take(3)).await.release_keeping(KEPT).await.unwrap().confirmed();
        let began = Instant::now();
        assert!(pool.try_acquire().await.unwrap().is_none(), "they are kept");
        acquired(&pool.clone().take(3)).await.release().await.unwrap().confirmed();
        assert_served(began.elapsed(), KEPT, &lag, "kept");
        light.release().await.unwrap().confirmed();
        let twice = pool.clone().take(2).once_per(Duration::from_secs(3600));
        for _ in 0..2 {
            acquired(&twice).await.release().await.unwrap().confirmed();
        }
        assert!(pool.try_acquire().await.unwrap().is_none(), "four were taken in this interval");
    }
}

/// A set of sharers has no more members than sharers, and none that stays behind.
#[tokio::test]
async fn what_several_permits_leave_on_the_server_is_counted() {
    let server = Server::start();
    let (leases, mut wire) = (program(server.url()).await, server.wire());
    let pool = leases.semaphore(NAME, 1_000);
    let members = |wire: &mut Wire| wire.must(&["ZCARD", "{job}:lh:holders"]).int();
    let light = acquired(&pool).await;
    let heavy = acquired(&pool.clone().take(900)).await;
    assert_eq!(members(&mut wire), 3, "two sharers, and what they take beyond one each");
    assert_eq!(wire.must(&["ZSCORE", "{job}:lh:holders", "+"]).text(), "-899");
    heavy.release().await.unwrap().confirmed();
    assert_eq!(members(&mut wire), 1);
    light.release().await.unwrap().confirmed();
    nothing_is_left(&mut wire).await;
}

#[tokio::test]
async fn of_n_permits_n_can_be_acquired_in_an_interval() {
    let server = Server::start();
    let leases = program_with(server.url(), SHORT).await;
    let hourly = leases.semaphore(NAME, 2).once_per(Duration::from_secs(3600));
    for _ in 0..2 {
        acquired(&hourly).await.release().await.unwrap().confirmed();
    }
    assert!(hourly.try_acquire().await.unwrap().is_none());
    assert!(leases.semaphore(NAME, 3).try_acquire().await.unwrap().is_some(), "its own number is larger");
}

#[tokio::test]
async fn a_kept_share_keeps_its_place() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let pool = leases.semaphore(NAME, 2);
    let (kept, other) = (acquired(&pool).await, acquired(&pool).await);
    kept.release_keeping(LONG).await.unwrap().confirmed();
    assert!(pool.try_acquire().await.unwrap().is_none(), "two still have it");
    other.release().await.unwrap().confirmed();
    let one = acquired(&pool).await;
    assert!(pool.try_acquire().await.unwrap().is_none());
    assert!(leases.rw_lock(NAME).write().try_acquire().await.unwrap().is_none());
    one.release().await.unwrap().confirmed();
}

/// Checks that the next holder came when the kept place ended, and not a heartbeat of 5 s later.
#[track_caller]
fn assert_served(took: Duration, kept: Duration, lag: &Lag, case: &str) {
    assert!(took >= kept && took <= kept + Duration::from_secs(1) + lag.worst(), "{case}: after {took:?}");
}

/// The lock's key lives no longer than its last sharer, even if that one is a released share.
#[tokio::test]
async fn a_kept_share_keeps_a_plain_lock_out_for_its_time_only() {
    const KEPT: Duration = Duration::from_millis(300);
    let server = Server::start();
    for url in [server.url(), "memory://kept".to_owned()] {
        let (leases, lag) = (program_with(url, LONG).await, Lag::start());
        for is_first in [true, false] {
            let [one, other] = [(); 2].map(|()| leases.rw_lock(NAME).read());
            let (kept, other) = (acquired(&one).await, acquired(&other).await);
            let began = Instant::now();
            if is_first {
                kept.release_keeping(KEPT).await.unwrap().confirmed();
                other.release().await.unwrap().confirmed();
            } else {
                other.release().await.unwrap().confirmed();
                kept.release_keeping(KEPT).await.unwrap().confirmed();
            }
            let alone = acquired(&leases.lock(NAME)).await;
            assert_served(began.elapsed(), KEPT, &lag, "a plain lock");
            alone.release().await.unwrap().confirmed();
        }
    }
}

/// At its last poll before that, the waiter was told of a later end.
#[tokio::test]
async fn who_waits_for_a_kept_share_begins_when_that_ends() {
    const KEPT: Duration = Duration::from_millis(300);
    let server = Server::start();
    for url in [server.url(), "memory://kept too".to_owned()] {
        let (leases, lag) = (program_with(url, LONG).await, Lag::start());
        let (readers, permits) = (leases.rw_lock(NAME), leases.semaphore(NAME, 2));
        for case in ["kept, waits, free", "waits, free, kept", "waits, kept"] {
            let (one, wanted) = match case {
                "waits, kept" => (permits.clone(), permits.clone()),
                _ => (readers.read(), readers.write()),
            };
            let (kept, other) = (acquired(&one).await, acquired(&one).await);
            let comes = || tokio::spawn(wanted.clone().owner(Owner::anonymous()).acquire());
            let mut began = Instant::now();
            let (waits, _stays) = if case == "kept, waits, free" {
                kept.release_keeping(KEPT).await.unwrap().confirmed();
                let waits = comes();
                have_places(&one, 1).await;
                other.release().await.unwrap().confirmed();
                (waits, None)
            } else {
                let (waits, mut stays) = (comes(), Some(other));
                have_places(&one, 1).await;
                if case == "waits, free, kept" {
                    stays.take().unwrap().release().await.unwrap().confirmed();
                }
                began = Instant::now();
                kept.release_keeping(KEPT).await.unwrap().confirmed();
                (waits, stays)
            };
            let next = within(HANGS, "the lock", waits).await.unwrap().unwrap();
            assert_served(began.elapsed(), KEPT, &lag, case);
            next.release().await.unwrap().confirmed();
        }
    }
}

/// A waiter behind others polls seldom: the one that becomes the first does at once.
#[tokio::test]
async fn the_next_first_waiter_is_there_when_a_kept_place_ends() {
    const KEPT: Duration = Duration::from_secs(1);
    let server = Server::start();
    for url in [server.url(), "memory://another first".to_owned()] {
        // In one process, the waiter that becomes the first may poll without being asked.
        let programs = [program_with(url.clone(), LONG).await, program_with(url, LONG).await];
        let lag = Lag::start();
        for case in ["one gives up", "both places end", "two of three give up"] {
            let is_plain = case == "two of three give up";
            let lock_of = |program: &Client| {
                let lock = if is_plain { program.lock(NAME).fair(true) } else { program.semaphore(NAME, 2) };
                lock.owner(Owner::anonymous())
            };
            let lock = lock_of(&programs[0]);
            let kept = acquired(&lock).await;
            let mut other = if is_plain { None } else { Some(acquired(&lock).await) };
            let mut waits = Vec::new();
            for place in 1..=if is_plain { 3 } else { 2 } {
                waits.push(tokio::spawn(lock_of(&programs[place % 2]).acquire()));
                have_places(&lock, place).await;
            }
            let began = Instant::now();
            if case == "both places end" {
                kept.release_keeping(KEPT / 2).await.unwrap().confirmed();
                other.take().unwrap().release_keeping(KEPT).await.unwrap().confirmed();
            } else if is_plain {
                waits.drain(..2).for_each(|wait| wait.abort());
                have_places(&lock, 1).await;
                kept.release_keeping(KEPT).await.unwrap().confirmed();
            } else {
                kept.release_keeping(KEPT).await.unwrap().confirmed();
                waits.remove(0).abort();
            }
            let mut leases = Vec::new();
            for wait in waits {
                leases.push(within(HANGS, "its turn", wait).await.unwrap().unwrap());
            }
            assert_served(began.elapsed(), KEPT, &lag, case);
            for lease in leases {
                lease.release().await.unwrap().confirmed();
            }
            drop(other);
        }
    }
}

#[tokio::test]
async fn a_forced_release_ends_it_for_all_who_share_it() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let readers = [acquired(&one.rw_lock(NAME).read()).await, acquired(&other.rw_lock(NAME).read()).await];
    assert!(one.lock(NAME).force_release().await.unwrap());
    let writing = acquired(&other.rw_lock(NAME).write()).await;
    for reader in readers {
        let lost = within(SOON, "the loss", reader.lost()).await;
        let by = lost.forced().expect("the loss names its cause");
        assert_eq!((lost.reason(), by.label()), (LossReason::Forced, "program 0"));
        assert_eq!(ending(reader.release().await).reason(), LossReason::Forced);
    }
    writing.check().unwrap();
    writing.release().await.unwrap().confirmed();
    let mut wire = server.wire();
    assert!(wire.del("{job}:lh:forced"), "for as long as their key would have lived");
    nothing_is_left(&mut wire).await;
}
