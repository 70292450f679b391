//! Leases that are renewed only while their work makes progress (F113).

use std::{
    future::pending,
    pin::pin,
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, future::try_join, stream};
use leasehold::{Client, Error, LeaseHandle, Lock, LossReason, Owner, Status};
use support::{
    Action, Child, HANGS, Lag, Match, Part, Proxy, Seen, Server, eventually_async, one_thread, scripts::RENEW, within,
};

use crate::common::{Confirmed as _, LONG, MEDIUM, NAME, ending, program_with};

/// Shorter than the TTL, so that a lease that is lost was not renewed after it.
const SPAN: Duration = Duration::from_millis(600);
/// How often work reports progress: several times in half of the span, also on a loaded machine.
const STEP: Duration = Duration::from_millis(20);

async fn watched(server: &Server) -> (Client, Lock) {
    let client = program_with(server.url(), MEDIUM).await;
    let lock = client.lock(NAME).stall_after(SPAN);
    (client, lock)
}

/// Reports progress for longer than the lease would last without.
async fn works(lease: &LeaseHandle) {
    let began = Instant::now();
    while began.elapsed() < SPAN + 2 * MEDIUM {
        tokio::time::sleep(STEP).await;
        lease.progress();
    }
}

/// Waits until the lease has stalled: from then on no renewal is sent.
async fn stalls(lease: &LeaseHandle) {
    within(HANGS, "no renewal", async {
        while lease.remaining() > MEDIUM / 3 {
            tokio::time::sleep(STEP).await;
        }
    })
    .await;
}

#[tokio::test]
async fn f113_work_that_hangs_is_dropped_before_another_can_hold_the_lock() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let other = program_with(server.url(), MEDIUM).await;
    let (lag, began) = (Lag::start(), Instant::now());
    let next = async {
        let lease = within(HANGS, "the lock", other.lock(NAME).acquire()).await.unwrap();
        (lease, Instant::now())
    };
    let hung = async {
        let end = lock.run(async |_| pending::<Result<(), Error>>().await).await;
        (end, Instant::now())
    };
    tokio::pin!(hung);
    // It has the lock before the other asks for it.
    assert!(tokio::time::timeout(STEP, &mut hung).await.is_err());
    let ((end, ended), (lease, at)) = tokio::join!(hung, next);
    assert_eq!(ending(end).reason(), LossReason::Stalled);
    assert!(ended <= at, "the work was dropped {:?} after the next lease began", ended - at);
    let late = (at - began).saturating_sub(SPAN + MEDIUM);
    assert!(late <= Duration::from_millis(250) + lag.worst(), "{late:?} after the stall was due");
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn work_that_makes_progress_is_renewed_whatever_it_takes() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let lease = lock.acquire().await.unwrap();
    works(&lease.handle()).await;
    assert_eq!(lease.status(), Status::Held);
    lease.release().await.unwrap().confirmed();
}

#[tokio::test]
async fn f113_progress_after_a_stall_renews_at_once() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let lease = lock.acquire().await.unwrap();
    stalls(&lease.handle()).await;
    assert_eq!(lease.status(), Status::AtRisk);
    let mut changes = lease.status_changes();
    lease.progress();
    assert_eq!(within(HANGS, "its recovery", changes.next()).await, Some(Status::Held));
    within(HANGS, "a renewal", async {
        while lease.remaining() <= MEDIUM / 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    lease.check().unwrap();
}

/// Each item that arrives is progress, and a stream that stops is none.
#[tokio::test]
async fn a_stream_that_is_followed_reports_each_item() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let lease = lock.acquire().await.unwrap();
    let steps = ((SPAN + MEDIUM).as_millis() / STEP.as_millis()).try_into().unwrap();
    let rows = stream::iter(0..steps).chain(stream::pending());
    let mut rows = pin!(lease.handle().follow(rows));
    for row in 0..steps {
        tokio::time::sleep(STEP).await;
        assert_eq!(rows.next().await, Some(row));
    }
    assert_eq!(lease.status(), Status::Held);
    tokio::select! {
        row = rows.next() => panic!("{row:?}"),
        lost = within(HANGS, "the stall", lease.lost()) => assert_eq!(lost.reason(), LossReason::Stalled),
    }
}

/// An owner that acquires again works, so it makes progress; it does not wait, nor ask again and again.
#[tokio::test]
async fn f113_an_owner_that_enters_a_stalled_lease_renews_it() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let lock = lock.reentrant(true).owner(Owner::unique());
    for tries in [false, true] {
        let lease = lock.acquire().await.unwrap();
        stalls(&lease.handle()).await;
        let before = server.wire().scripts();
        let again = if tries { within(HANGS, "a try", lock.try_acquire()).await.unwrap() } else { None };
        let again = match again {
            Some(again) => again,
            None => within(HANGS, "the lock", lock.acquire_within(MEDIUM)).await.unwrap(),
        };
        assert_eq!((again.fence(), again.check().is_ok()), (lease.fence(), true));
        let asked = server.wire().scripts() - before;
        assert!(asked < 10, "{asked} requests");
        drop((again, lease));
    }
}

/// Its key is watched as that of any other lease.
#[tokio::test]
async fn f113_a_stalled_lease_that_is_taken_by_force_is_told_at_once() {
    let server = Server::start();
    let other = program_with(server.url(), LONG).await;
    for how in ["force", "DEL"] {
        let (_ours, lock) = watched(&server).await;
        let lease = lock.acquire().await.unwrap();
        stalls(&lease.handle()).await;
        let (lag, began, left) = (Lag::start(), Instant::now(), lease.remaining());
        if how == "force" {
            assert!(other.lock(NAME).force_release().await.unwrap());
        } else {
            server.wire().del(NAME);
        }
        let lost = within(HANGS, "the loss", lease.lost()).await;
        let expected = if how == "force" { LossReason::Forced } else { LossReason::Deleted };
        assert_eq!(lost.reason(), expected);
        let took = began.elapsed();
        assert!(took < left / 2 + lag.worst(), "{took:?} of {left:?}");
    }
}

/// The check is sent before the answer to the last renewal has come.
#[tokio::test]
async fn f113_a_check_does_not_shorten_what_a_renewal_has_extended() {
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let client = program_with(proxy.url(), TTL).await;
    let lease = client.lock(NAME).stall_after(TTL * 4 / 10).acquire().await.unwrap();
    eventually_async(HANGS, "the time before its renewal", || lease.remaining() < TTL * 3 / 4).await;
    proxy.refuse(true);
    proxy.cut();
    eventually_async(HANGS, "the stall", || lease.remaining() < TTL * 11 / 20).await;
    let (mut wire, renewal) = (server.wire(), proxy.on(Match::script(RENEW), 1, Action::HoldReply));
    let before = wire.scripts();
    proxy.refuse(false);
    // A new connection may have missed a change.
    eventually_async(HANGS, "the renewal and the check", || wire.scripts() >= before + 2).await;
    let (believed, _released) = (lease.remaining(), renewal.release());
    eventually_async(HANGS, "the confirmation", || lease.remaining() > believed).await;
    let (on_the_server, believed) = (wire.pttl(NAME), lease.remaining());
    assert!(u128::try_from(on_the_server).unwrap() >= believed.as_millis(), "{on_the_server} ms of {believed:?}");
}

/// Checks that travel together are refused together, and then sent in parts: these are checks too.
#[tokio::test]
async fn f113_a_check_that_is_refused_with_others_lengthens_nothing() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let client = program_with(proxy.url(), 3 * SPAN).await;
    let acquire = |name| client.lock(name).stall_after(SPAN).acquire();
    let (_good, bad) = try_join(acquire("good"), acquire("bad")).await.unwrap();
    eventually_async(HANGS, "slow work", || bad.status() == Status::AtRisk).await;
    server.wire().must(&["ACL", "SETUSER", "default", "resetkeys", "~good", "~{good}:*"]);
    // The lives that each renewal asks for: behind its keys are a value and a life for each.
    let lives = || {
        let renewals = proxy.seen().into_iter().filter(|seen| Match::script(RENEW).matches(&seen.args));
        let lives = |seen: Seen| {
            let keys: usize = String::from_utf8_lossy(&seen.args[2]).parse().unwrap();
            let lives = seen.args[3 + keys..].iter().skip(1).step_by(2).take(keys);
            lives.map(|life| String::from_utf8_lossy(life).into_owned()).collect::<Vec<_>>()
        };
        renewals.map(lives).collect::<Vec<_>>()
    };
    let after_the_check = || lives().into_iter().skip_while(|lives| *lives != ["0", "0"]).skip(1).collect::<Vec<_>>();
    eventually_async(HANGS, "its parts", || after_the_check().len() >= 2).await;
    assert_eq!(after_the_check()[..2], [["0"], ["0"]]);
}

/// The span counts from the moment when all locks are held: until then the first one does not stall.
#[tokio::test]
async fn a_multi_lock_that_waited_for_long_has_its_whole_span() {
    let server = Server::start();
    let (client, lock) = watched(&server).await;
    let other = program_with(server.url(), LONG).await;
    let busy = other.lock("z").acquire().await.unwrap();
    let acquiring = tokio::spawn(client.multi_lock([lock, client.lock("z")]).acquire());
    let mut wire = server.wire();
    eventually_async(HANGS, "the first is held", || wire.exists(NAME)).await;
    let first = wire.get(NAME).unwrap();
    tokio::time::sleep(SPAN + 2 * MEDIUM).await;
    busy.release().await.unwrap().confirmed();
    let held = within(HANGS, "all of them", acquiring).await.unwrap().unwrap();
    assert_eq!(wire.get(NAME).unwrap(), first, "it is the same acquisition");
    tokio::time::sleep(SPAN / 4).await;
    assert!(held.leases().iter().all(|lease| lease.status() == Status::Held));
    held.release().await.unwrap().confirmed();
}

/// A renewal by hand is progress too.
#[tokio::test]
async fn a_renewal_by_hand_counts_as_progress() {
    let server = Server::start();
    let (_client, lock) = watched(&server).await;
    let lease = lock.acquire().await.unwrap();
    stalls(&lease.handle()).await;
    lease.renew().await.unwrap();
    assert!(lease.remaining() > MEDIUM / 2);
    let mut changes = lease.status_changes();
    if lease.status() == Status::AtRisk {
        assert_eq!(within(HANGS, "its recovery", changes.next()).await, Some(Status::Held));
    }
}

#[test]
fn f113_a_thread_reports_progress_while_the_runtime_is_blocked() {
    let server = Server::start();
    one_thread().block_on(async {
        let (_client, lock) = watched(&server).await;
        let lease = lock.acquire().await.unwrap();
        let handle = lease.handle();
        let reporting = thread::spawn(move || one_thread().block_on(works(&handle)));
        // Blocks the only thread of the runtime.
        reporting.join().unwrap();
        assert_eq!(lease.status(), Status::Held);
        lease.release().await.unwrap().confirmed();
    });
}

/// The work of a process that was stopped has all of its time anew.
#[test]
fn f113_a_process_that_is_stopped_and_continued_has_not_stalled() {
    const TTL: Duration = Duration::from_secs(6);
    const SPAN: Duration = Duration::from_secs(2);
    if let Some(part) = Part::mine() {
        return one_thread().block_on(async {
            let client = program_with(&*part.url, TTL).await;
            let lease = client.lock(NAME).stall_after(SPAN).acquire().await.unwrap();
            let mut changes = lease.status_changes();
            let reporting = async {
                part.say("held");
                for _ in 0..(SPAN.as_millis() / STEP.as_millis()) {
                    let step = Instant::now();
                    tokio::time::sleep(STEP).await;
                    if step.elapsed() > SPAN {
                        // The step in which it was stopped has not come far.
                        tokio::time::sleep(SPAN / 4).await;
                    }
                    lease.progress();
                }
            };
            tokio::select! {
                biased;
                change = changes.next() => part.say(format!("changed {change:?}")),
                () = reporting => part.say("held on"),
            }
        });
    }
    let server = Server::start();
    let child = Child::start(f113_a_process_that_is_stopped_and_continued_has_not_stalled, "worker", &server.url());
    child.says("held");
    child.stop();
    // Longer than the work may take without progress.
    thread::sleep(SPAN + SPAN / 4);
    child.cont();
    child.says("held on");
}

#[tokio::test]
async fn any_lease_of_a_hold_reports_and_a_multi_lock_reports_to_all() {
    let server = Server::start();
    let (client, lock) = watched(&server).await;
    let lease = lock.acquire().await.unwrap();
    let shared = lease.handle().share().unwrap();
    works(&shared.handle()).await;
    assert_eq!((lease.status(), shared.status()), (Status::Held, Status::Held));
    drop((lease, shared));
    let both = ["a", "b"].map(|name| client.lock(name).stall_after(SPAN));
    let held = client.multi_lock(both).acquire().await.unwrap();
    let began = Instant::now();
    while began.elapsed() < SPAN + MEDIUM {
        tokio::time::sleep(STEP).await;
        held.progress();
    }
    assert!(held.leases().iter().all(|lease| lease.status() == Status::Held));
    let lost = within(HANGS, "the stall", held.lost()).await;
    assert_eq!(lost.reason(), LossReason::Stalled);
}

#[tokio::test]
async fn a_downgraded_lease_and_one_that_is_adopted_begin_anew() {
    let server = Server::start();
    let (client, lock) = watched(&server).await;
    let writing = client.rw_lock("config").write().stall_after(SPAN).acquire().await.unwrap();
    stalls(&writing.handle()).await;
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(reading.status(), Status::Held);
    let lost = within(HANGS, "the stall", reading.lost()).await;
    assert_eq!(lost.reason(), LossReason::Stalled);

    let lease = lock.acquire().await.unwrap();
    stalls(&lease.handle()).await;
    let adopted = lock.adopt(lease.into_ticket().unwrap()).await.unwrap();
    assert_eq!(adopted.status(), Status::Held);
    let lost = within(HANGS, "the stall", adopted.lost()).await;
    assert_eq!(lost.reason(), LossReason::Stalled);
}

#[tokio::test]
async fn a_span_that_no_renewal_can_keep_is_refused() {
    let client = Client::in_memory();
    let lock = client.lock(NAME).ttl(LONG);
    let third = Duration::from_secs(10);
    let least = "it must be at least a third of the ttl, 10s";
    for (lock, says) in [
        (lock.clone().stall_after(Duration::ZERO), format!("stall_after is 0ns: {least}")),
        (lock.clone().stall_after(Duration::from_millis(9_980)), format!("stall_after is 9.98s: {least}")),
        (lock.clone().max_hold(2 * LONG).stall_after(3 * LONG), "at most the max_hold, 60s".into()),
    ] {
        let error = lock.try_acquire().await.unwrap_err();
        assert!(matches!(error, Error::Config(_)) && error.to_string().contains(&says), "{error}");
    }
    drop(lock.stall_after(third).try_acquire().await.unwrap().unwrap());
}
