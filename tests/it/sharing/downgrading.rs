//! From writing to reading, and shares that are handed over.

use std::time::{Duration, Instant};

use leasehold::{Client, Error, LeaseHandle, LossReason, Mode};
use support::{Action, HANGS, Lag, Match, Proxy, Server, scripts::DOWNGRADE, within};

use super::assert_prompt;
use crate::{
    common::{Confirmed as _, LONG, MEDIUM, NAME, ending, is_retained, program, program_with},
    fair::line::{SOON, had, nothing_is_left, place, programs},
};

#[tokio::test]
async fn a_writer_goes_on_as_a_reader_and_those_that_wait_to_read_come_in_beside_it() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let [mine, theirs] = [&one, &other].map(|leases| leases.rw_lock(NAME));
    let writing = mine.write().acquire().await.unwrap();
    let (handle, fence) = (writing.handle(), writing.fence());
    let (reader, writer) = (place(&theirs.read()).await, place(&theirs.write()).await);
    let (lag, began) = (Lag::start(), Instant::now());
    let reading = within(HANGS, "the downgrade", writing.downgrade()).await.unwrap();
    assert_eq!(ending(handle.check()).reason(), LossReason::HandedOver);
    assert!(
        reading.fence() > fence && reading.mode() == Mode::Shared { limit: None, permits: std::num::NonZeroU32::MIN }
    );
    let (beside, at) = had(reader).await;
    assert!(beside.fence() == reading.fence());
    assert_prompt(at - began, lag.of(3));
    assert!(!writer.is_finished(), "two read");
    let reading = reading.downgrade().await.expect("it shares already");
    reading.release().await.unwrap().confirmed();
    beside.release().await.unwrap().confirmed();
    had(writer).await.0.release().await.unwrap().confirmed();
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_downgrade_keeps_the_options_of_its_lease() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let ttl = Duration::from_secs(5);
    let tenant = leases.prefix("tenant:").label("req-91");
    let lock = tenant.rw_lock(NAME).write().ttl(ttl).keep_for(LONG).max_hold(Duration::from_secs(7));
    let reading = lock.acquire().await.unwrap().downgrade().await.unwrap();
    assert_eq!((reading.label(), reading.name()), ("req-91", NAME));
    assert!(reading.remaining() <= ttl);
    reading.release().await.unwrap().confirmed();
    assert!(tenant.rw_lock(NAME).write().try_acquire().await.unwrap().is_none(), "its place is kept");
    let hour = Duration::from_secs(3_600);
    let reading =
        leases.rw_lock("short").write().ttl(ttl).max_hold(ttl).acquire().await.unwrap().downgrade().await.unwrap();
    reading.renew().await.unwrap();
    assert!(reading.remaining() <= ttl, "as long as before");
    let reading = leases.rw_lock("long").write().ttl(hour).acquire().await.unwrap().downgrade().await.unwrap();
    assert!(reading.remaining() + Duration::from_secs(60) > hour);
    let places = async |name: &str| leases.lock(name).holders().await.unwrap().remove(0).remaining().unwrap();
    let writing = leases.rw_lock("delayed").write().ttl(ttl).lock_delay(LONG).acquire().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert!(reading.remaining() <= ttl && places("delayed").await > LONG, "behind one that dies");
    let writing = leases.rw_lock("hourly").write().ttl(ttl).once_per(hour).acquire().await.unwrap();
    writing.downgrade().await.unwrap().release().await.unwrap().confirmed();
    assert!(places("hourly").await + Duration::from_secs(60) > hour, "once an hour");
}

#[tokio::test]
async fn a_downgraded_lease_ends_with_the_max_hold_of_the_one_before_and_its_grace() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let lock = leases.rw_lock(NAME).write().ttl(MEDIUM).max_hold(2 * MEDIUM).grace(MEDIUM / 3);
    let reading = lock.acquire().await.unwrap().downgrade().await.unwrap();
    let mut told = None;
    let work = async |lease: LeaseHandle| {
        told = Some(lease.lost().await.reason());
        Ok::<_, Error>(())
    };
    within(SOON, "its end", reading.run(work)).await.unwrap();
    assert_eq!(told, Some(LossReason::Expiring), "there is time to end the work");
}

/// A server that came back with older data may have the lease again, while another one has the lock.
#[tokio::test]
async fn a_downgrade_asks_for_the_restart_delay() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (ttl, delay) = (Duration::from_secs(1), Duration::from_secs(2));
    let leases = Client::builder().url(proxy.url()).ttl(ttl).restart_delay(delay).build().await.unwrap();
    let writing = leases.rw_lock(NAME).write().acquire().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    let sent = proxy.seen().into_iter().find(|seen| Match::script(DOWNGRADE).matches(&seen.args)).unwrap();
    // Behind the command, the script, five keys and their number, two tokens, the TTL and the memory.
    assert_eq!(sent.args.get(12).map(Vec::as_slice), Some(&b"2"[..]), "{:?}", sent.args);
    reading.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn a_downgrade_without_an_answer_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, other) = (program_with(proxy.url(), Duration::from_secs(5)).await, program(server.url()).await);
    let writing = leases.rw_lock(NAME).write().acquire().await.unwrap();
    let swallowed = proxy.on(Match::script(DOWNGRADE), 1, Action::SwallowReply);
    let reading = within(SOON, "the downgrade", writing.downgrade()).await.unwrap();
    assert_eq!(swallowed.hits(), 1);
    reading.check().unwrap();
    let beside = other.rw_lock(NAME).read().try_acquire().await.unwrap().expect("it is shared");
    assert_eq!(beside.fence(), reading.fence());
    drop((reading, beside));
    nothing_is_left(&mut server.wire()).await;
    // The share is valid from the send on, however late the answer.
    let (late, writing) = (Duration::from_millis(150), leases.rw_lock(NAME).write().acquire().await.unwrap());
    let answer = proxy.on(Match::script(DOWNGRADE), 1, Action::HoldReply);
    let comes = async {
        answer.hit().await;
        tokio::time::sleep(late).await;
        answer.release();
    };
    let (reading, ()) = within(SOON, "the downgrade", async { tokio::join!(writing.downgrade(), comes) }).await;
    let reading = reading.unwrap();
    assert!(reading.remaining() + late < Duration::from_secs(5), "{:?}", reading.remaining());
    drop(reading);
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_downgrade_of_a_key_that_is_gone_is_lost_and_one_that_is_dropped_leaves_nothing() {
    let server = Server::start();
    let leases = program(server.url()).await;
    let (name, mut wire) = (leases.rw_lock(NAME), server.wire());
    let writing = name.write().acquire().await.unwrap();
    wire.must(&["SET", NAME, "somebody else", "PX", "1"]);
    let lost = ending(within(HANGS, "an answer", writing.downgrade()).await);
    assert!(matches!(lost.reason(), LossReason::Deleted | LossReason::Taken), "{lost:?}");
    let writing = name.write().acquire().await.unwrap();
    let never = tokio::time::timeout(Duration::ZERO, writing.downgrade()).await;
    drop(never);
    nothing_is_left(&mut wire).await;
    let shared = name.write().acquire().await.unwrap();
    let second = shared.handle().share().unwrap();
    let error = shared.downgrade().await.unwrap_err();
    assert!(
        matches!(&error, Error::Misuse(why) if why.to_string().contains("1 other lease shares this hold")),
        "{error:?}"
    );
    drop(second);
    nothing_is_left(&mut wire).await;
}

#[tokio::test]
async fn a_downgrade_that_did_not_come_to_pass_leaves_nothing_of_the_lease_before() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program(proxy.url()).await;
    let lock = leases.rw_lock(NAME).write();
    let refused = proxy.on(Match::script(DOWNGRADE), 1, Action::Mangle);
    let error = within(HANGS, "an answer", lock.acquire().await.unwrap().downgrade()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && refused.hits() == 1, "{error:?}");
    nothing_is_left(&mut server.wire()).await;
    let dropped = proxy.on(Match::script(DOWNGRADE), 1, Action::DropRequest);
    let writing = lock.acquire().await.unwrap();
    tokio::select! {
        biased;
        () = within(HANGS, "the request", dropped.hit()) => {}
        outcome = writing.downgrade() => panic!("nobody answered: {outcome:?}"),
    }
    nothing_is_left(&mut server.wire()).await;
}

/// Whether its request or its reply was lost, no other holder is admitted before the interval or the keep ends.
#[tokio::test]
async fn a_downgrade_that_is_dropped_ends_no_interval_and_no_keep() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let (leases, other) = (program_with(proxy.url(), LONG).await, program(server.url()).await);
    let hour = Duration::from_secs(3_600);
    for (case, action) in [("request", Action::DropRequest), ("reply", Action::SwallowReply)] {
        for is_once in [false, true] {
            let name = format!("{case} {is_once}");
            let lock = leases.rw_lock(&*name).write();
            let lock = if is_once { lock.once_per(hour) } else { lock.keep_for(hour) };
            let writing = lock.acquire().await.unwrap();
            let lost = proxy.on(Match::script(DOWNGRADE), 1, action);
            tokio::select! {
                biased;
                () = within(HANGS, "the request", lost.hit()) => {}
                outcome = writing.downgrade() => panic!("nobody answered: {outcome:?}"),
            }
            is_retained(&other, &name).await;
        }
    }
}

#[tokio::test]
async fn a_downgrade_that_nobody_answers_ends_with_its_lease_and_with_its_program() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = program_with(proxy.url(), MEDIUM).await;
    let writing = leases.rw_lock(NAME).write().acquire().await.unwrap();
    proxy.freeze(true);
    let (lag, began) = (Lag::start(), Instant::now());
    let error = within(SOON, "its end", writing.downgrade()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert_prompt(began.elapsed().saturating_sub(MEDIUM), lag.worst());
    proxy.freeze(false);
    nothing_is_left(&mut server.wire()).await;

    let leases = program(proxy.url()).await;
    let writing = leases.rw_lock(NAME).write().acquire().await.unwrap();
    let sent = proxy.on(Match::script(DOWNGRADE), 1, Action::DropRequest);
    let downgrade = async { (writing.downgrade().await, Instant::now()) };
    let close = async {
        sent.hit().await;
        let began = Instant::now();
        leases.close().await;
        began
    };
    let ((outcome, ended), began) = within(SOON, "both", async { tokio::join!(downgrade, close) }).await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    assert_prompt(ended - began, lag.worst());
    nothing_is_left(&mut server.wire()).await;
}

#[tokio::test]
async fn a_reader_goes_on_from_another_programs_ticket_and_a_share_is_not_handed_over() {
    let server = Server::start();
    let [one, other] = programs(&server).await;
    let writing = one.rw_lock(NAME).write().acquire().await.unwrap();
    let fence = writing.fence();
    let reading = other.rw_lock(NAME).read().adopt(writing.into_ticket().unwrap()).await.unwrap();
    assert!(reading.mode().is_shared() && reading.fence() > fence);
    let beside = one.rw_lock(NAME).read().acquire().await.unwrap();
    let ticket = beside.ticket();
    let error = beside.into_ticket().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a lease that is shared is not handed over: release it, and have the other process acquire one of its own"
    );
    for lock in [one.rw_lock(NAME).read(), one.rw_lock(NAME).write()] {
        assert_eq!(ending(lock.adopt(ticket.clone()).await).reason(), LossReason::Taken);
    }
    reading.release().await.unwrap().confirmed();
    nothing_is_left(&mut server.wire()).await;
}
