//! Faults of the server and of its link: F3 to F10, F20, F22 without its ACL part, and acquires while the server is
//! away.
//!
//! The deadline is computed from outside. The proxy reads a request after the library has sent it, so a lease may be
//! believed at most until the reading of its last confirmed request + TTL − drift. From then on `check()` must be
//! `Err`, without tolerance; `lost()` may lag by 50 ms and by a control timer's lag in the same run. The control is one
//! thread that is woken, so times compared to it are measured on the first woken thread, too.

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use leasehold::{Client, Error, Lease, LeaseHandle, Lock, LossReason, Owner, Status, StatusChanges};
use support::{
    Action, Lag, Match, Proxy, RuleHandle, SIGNAL, Server, Stamped, eventually, eventually_async, eventually_but_for,
    scripts::{ACQUIRE, RELEASE, RENEW},
    seen, stamped, within,
};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::common::{
    COMMAND, Confirmed as _, LONG, MEDIUM, NAME, RESTARTS, SHORT, assert_says_lost, on_one_connection, requests, told,
    unconfirmed,
};

/// How exact the end of a bounded wait is, not counting the control timer's lag.
const EXACT: Duration = Duration::from_millis(20);
/// The time that the last check of a bounded wait has for an answer, even after the wait has ended.
const LAST_LOOK: Duration = Duration::from_millis(15);
/// Not a promise: anything that takes longer hangs.
const HANGS: Duration = Duration::from_secs(5);

/// A server, a proxy in front of it, and a client that goes through the proxy.
struct Rig {
    leases: Client,
    proxy: Proxy,
    server: Server,
    lag: Lag,
}

impl Rig {
    async fn start() -> Self {
        Self::with(Server::start()).await
    }

    async fn with(server: Server) -> Self {
        let lag = Lag::start();
        // The scripts are cached, so each request is one command, and a rule's n-th is the n-th request.
        let mut wire = server.wire();
        for script in [ACQUIRE, RENEW, RELEASE] {
            wire.must(&["SCRIPT", "LOAD", script]);
        }
        let proxy = Proxy::to(&server);
        let leases = client(&proxy.url()).await;
        Self { leases, proxy, server, lag }
    }

    fn lock(&self, ttl: Duration) -> Lock {
        self.leases.lock(NAME).ttl(ttl)
    }

    async fn acquire(&self, ttl: Duration) -> Lease {
        self.acquire_as(NAME, ttl).await
    }

    async fn acquire_as(&self, name: &str, ttl: Duration) -> Lease {
        let acquire = self.leases.lock(name).ttl(ttl).acquire();
        within(HANGS, "the lock is free", acquire).await.expect("the server is well")
    }

    /// Another process that waits for the lock over its own link. Completes with the lease and when it was acquired.
    async fn rival(&self) -> JoinHandle<(Lease, Instant)> {
        let leases = client(&self.server.url()).await;
        tokio::spawn(async move {
            // After an outage, its own earlier tries delay it by one TTL at most.
            let lease = leases.lock(NAME).ttl(MEDIUM).acquire().await.expect("an outage ends no acquire");
            (lease, Instant::now())
        })
    }

    /// The deadline given by the newest request of this script up to `until`, once confirmed.
    fn deadline(&self, script: &str, lease: &Lease, ttl: Duration, until: Instant) -> Instant {
        let (requests, seen) = (requests(script, lease), self.proxy.seen());
        let newest = seen
            .iter()
            .rev()
            .find(|seen| seen.at <= until && requests.matches(&seen.args))
            .expect("there was such a request");
        newest.at + ttl.saturating_sub(ttl / 100 + Duration::from_millis(2))
    }

    /// Waits until each lease has just been renewed. Returns their deadlines.
    async fn renewed<const N: usize>(&self, leases: [&Lease; N], ttl: Duration) -> [Instant; N] {
        let renewals = |lease| self.proxy.count(requests(RENEW, lease));
        let before = leases.map(renewals);
        eventually_async(HANGS, "a renewal is confirmed", || {
            let renewed = |(lease, before)| renewals(lease) > before && is_fresh(lease, ttl);
            leases.into_iter().zip(before).all(renewed)
        })
        .await;
        leases.map(|lease| self.deadline(RENEW, lease, ttl, Instant::now()))
    }

    fn on(&self, script: &str, action: Action) -> RuleHandle {
        self.proxy.on(Match::script(script), 1, action)
    }

    /// Waits until the key is deleted. Its TTL must be `LONG`, so that it cannot just have expired.
    #[track_caller]
    fn is_taken_away(&self) {
        let mut wire = self.server.wire();
        eventually(HANGS, "the key is taken away", || !wire.exists(NAME));
    }
}

async fn client(url: &str) -> Client {
    Client::builder().url(url).command_timeout(COMMAND).build().await.expect("the server is there")
}

/// Whether the last renewal was just confirmed: without one, a third of the TTL has passed when the next is due.
fn is_fresh(lease: &Lease, ttl: Duration) -> bool {
    lease.remaining() > ttl * 4 / 5
}

/// Waits until a rule reports its hit, because its effect may have been noticed sooner.
async fn has_happened(fault: &RuleHandle) {
    within(HANGS, "the fault happens", fault.hit()).await;
}

async fn sleep_until(moment: Instant) {
    tokio::time::sleep_until(moment.into()).await;
}

async fn next(changes: &mut StatusChanges, what: &str) -> Option<Status> {
    within(HANGS, what, changes.next()).await
}

/// The last time that `check()` returned `Ok`, and the first that it returned `Err`. Fails if `check()` is `Ok` at the
/// deadline or later.
fn checked(lease: LeaseHandle, deadline: Instant) -> JoinHandle<(Instant, Instant)> {
    // On a thread of its own, because a busy runtime would check too late.
    spawn_blocking(move || {
        let mut last_ok = Instant::now();
        loop {
            let asked = Instant::now();
            if lease.check().is_err() {
                return (last_ok, Instant::now());
            }
            last_ok = asked;
            assert!(asked < deadline, "check() is Ok {:?} after the deadline", asked - deadline);
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// The requirement of F4: no report before the deadline, all reports by then, and no other holder sooner. `begin` is
/// called right after a renewal, and returns a moment after which no request can have been confirmed; `end` is called
/// once the holders have been notified.
async fn is_told_by_the_deadline(rig: Rig, begin: impl AsyncFnOnce(&Rig) -> Instant, end: impl FnOnce(&Rig)) {
    // A `check()` at the deadline would complete `lost()` too, which must complete by its own timer. So one lease is
    // only checked, and another only awaited.
    let lease = rig.acquire(SHORT).await;
    let quiet = rig.acquire_as("quiet", SHORT).await;
    let rival = rig.rival().await;
    // Slow enough to expose a deadline that counts from a reply.
    rig.proxy.delay(Duration::from_millis(15));
    rig.renewed([&lease, &quiet], SHORT).await;
    let last = begin(&rig).await;

    // Nothing more is confirmed: the latest that each may be believed, and what the library itself promises.
    let [latest, quiet_latest] = [&lease, &quiet].map(|lease| rig.deadline(RENEW, lease, SHORT, last));
    let [promised, quiet_promised] = [&lease, &quiet].map(|lease| Instant::now() + lease.remaining());
    let (checked, awaited) = (checked(lease.handle(), latest), stamped(quiet.lost()));
    let (last_ok, was_err) = checked.await.expect("check() is Err from the deadline on");
    let Stamped { output: lost, woken, returned } =
        within(HANGS, "lost() completes", awaited).await.expect("it does not panic");
    let allowed = SIGNAL + rig.lag.worst();
    assert!(was_err >= promised, "check() was Err {:?} before the deadline", promised - was_err);
    assert!(returned >= quiet_promised, "lost() came {:?} before the deadline", quiet_promised - returned);
    seen::took("signal after the deadline", woken.saturating_duration_since(quiet_latest), SIGNAL, &rig.lag);
    assert!(woken <= quiet_latest + allowed, "lost() came {:?} after the deadline", woken - quiet_latest);
    assert_eq!(lost.reason(), LossReason::Expired);

    end(&rig);
    let (successor, acquired) = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
    assert!(acquired > last_ok, "two held the lock at the same time");
    assert!(successor.fence() > lease.fence());
    assert_says_lost(lease.release().await, LossReason::Expired);
    assert_says_lost(quiet.release().await, LossReason::Expired);
    // The first holder's requests in flight have arrived by now, and did not affect the successor's key.
    successor.renew().await.expect("the successor holds the lock");
    successor.release().await.expect("it did to the end").confirmed();
}

/// The requirement of F3: at risk, then held again, and never lost. `begin` is called right after a renewal, `end` once
/// the lease is at risk.
async fn stays_held(rig: Rig, begin: impl FnOnce(&Rig), end: impl FnOnce(&Rig)) {
    let lease = rig.acquire(MEDIUM).await;
    let (fence, mut changes) = (lease.fence(), lease.status_changes());
    let [deadline] = rig.renewed([&lease], MEDIUM).await;
    begin(&rig);
    assert_eq!(next(&mut changes, "a missing renewal is reported").await, Some(Status::AtRisk));
    lease.check().expect("at risk is not lost");
    end(&rig);
    assert_eq!(next(&mut changes, "a renewal gets through").await, Some(Status::Held));

    // Waits until the lease would have ended without that renewal.
    sleep_until(deadline).await;
    assert_eq!(lease.status(), Status::Held);
    assert_eq!(lease.fence(), fence);
    lease.release().await.expect("it was held to the end").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_server_stopped_for_less_than_the_lease() {
    let rig = Rig::start().await;
    stays_held(rig, |rig| rig.server.stop(), |rig| rig.server.cont()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_server_stopped_for_longer_than_the_lease() {
    let rig = Rig::start().await;
    is_told_by_the_deadline(
        rig,
        async |rig| {
            rig.server.stop();
            Instant::now()
        },
        |rig| rig.server.cont(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_server_killed_and_restarted_empty() {
    let rig = Rig::start().await;
    let lease = rig.acquire(RESTARTS).await;
    let not_told = rig.acquire_as("not told", LONG).await;
    let [deadline] = rig.renewed([&lease], RESTARTS).await;
    let awaited = stamped(lease.lost());
    rig.server.kill();
    let killed = Instant::now();
    rig.server.restart();
    let back = Instant::now();
    assert!(back < deadline, "the server took too long to start for this test");

    let heard = within(HANGS, "lost() completes", awaited).await.expect("it does not panic");
    assert_eq!(heard.output.reason(), LossReason::Deleted);
    // The renewals sent to the restarted server. The first may have waited for it, and the next one behind it.
    let renewals = requests(RENEW, &lease);
    let mut seen = rig.proxy.seen();
    seen.retain(|seen| renewals.matches(&seen.args));
    let newest = seen.iter().map(|seen| seen.connection).max();
    seen.retain(|seen| Some(seen.connection) == newest && seen.at > killed);
    // A restarted server does not know the script's hash, unless another lease has sent it the text.
    let by_text = Match::command("EVAL");
    let found_out = seen.iter().find(|seen| by_text.matches(&seen.args)).or(seen.first()).expect("a renewal found out");
    let (due, allowed) = (back + RESTARTS / 3, SIGNAL + rig.lag.worst());
    seen::took("renewal after it was due", seen[0].at.saturating_duration_since(due), SIGNAL, &rig.lag);
    assert!(seen[0].at <= due + allowed, "the renewal came {:?} after it was due", seen[0].at - due);
    let late = heard.woken.saturating_duration_since(found_out.at);
    seen::took("signal after the renewal that found out", late, SIGNAL, &rig.lag);
    assert!(late <= allowed, "lost() came {late:?} after the renewal that found out");
    assert_says_lost(lease.release().await, LossReason::Deleted);

    // Whether or not the loss was reported, the release reports it.
    rig.leases.lock("not told").holder().await.expect("the link is up again");
    assert_says_lost(not_told.release().await, LossReason::Deleted);
    assert_eq!(rig.server.wire().keys("*"), Vec::<String>::new(), "no key is created again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_server_killed_and_restarted_with_its_append_only_file() {
    let rig = Rig::with(Server::builder().aof(true).start()).await;
    let lease = rig.acquire(RESTARTS).await;
    let token = rig.server.wire().get(NAME);
    let [deadline] = rig.renewed([&lease], RESTARTS).await;
    rig.server.kill();
    rig.server.restart();
    assert!(Instant::now() < deadline, "the server took too long to start for this test");

    rig.renewed([&lease], RESTARTS).await;
    // Waits until the lease would have ended without a renewal after the restart.
    sleep_until(deadline).await;
    lease.check().expect("the server was back in time");
    assert_eq!(rig.server.wire().get(NAME), token);
    lease.release().await.expect("it was held to the end").confirmed();
    assert!(!rig.server.wire().exists(NAME));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_link_black_holed_just_before_a_renewal_and_for_ever() {
    let rig = Rig::start().await;
    let vanish = async |rig: &Rig| {
        let renewal = rig.proxy.on_each(Match::script(RENEW), Action::DropRequest);
        let last = Instant::now();
        within(SHORT, "a renewal is due", renewal.hit()).await;
        rig.proxy.black_hole(true);
        last
    };
    is_told_by_the_deadline(rig, vanish, |_for_ever| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_link_reset_in_the_middle_of_an_acquire() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let rig = Rig::start().await;
        let cut = rig.on(ACQUIRE, action);
        let lease = rig.acquire(LONG).await;
        has_happened(&cut).await;
        // The new holder keeps its key: the undo is for the token of the cut try.
        lease.renew().await.expect("it is ours");
        lease.release().await.expect("it was ours to the end").confirmed();
        rig.is_taken_away();

        let cut = rig.on(ACQUIRE, action);
        match rig.lock(LONG).try_acquire().await {
            Ok(Some(lease)) => lease.release().await.expect("it was ours to the end").confirmed(),
            Err(Error::Unavailable(_)) => {}
            other => panic!("{action:?}: {other:?}"),
        }
        has_happened(&cut).await;
        rig.is_taken_away();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_link_reset_in_the_middle_of_a_renewal() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let rig = Rig::start().await;
        let cut = rig.on(RENEW, action);
        let lease = rig.acquire(SHORT).await;
        let deadline = rig.deadline(ACQUIRE, &lease, SHORT, Instant::now());
        within(SHORT, "a renewal is due", cut.hit()).await;
        eventually_async(SHORT, "the renewal is tried again", || is_fresh(&lease, SHORT)).await;
        assert!(rig.proxy.count(Match::script(RENEW)) >= 2, "{action:?}");

        // Waits until the lease would have ended without the second try.
        sleep_until(deadline).await;
        lease.check().expect("a link that was reset is no loss");
        lease.release().await.expect("it was held to the end").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_link_reset_in_the_middle_of_a_release() {
    for action in [Action::CutBefore, Action::CutAfter] {
        let rig = Rig::start().await;
        let lease = rig.acquire(LONG).await;
        let cut = rig.on(RELEASE, action);
        lease.release().await.expect("it was sent again, and was ours").confirmed();
        has_happened(&cut).await;
        assert!(!rig.server.wire().exists(NAME), "{action:?}: released and still there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_re_entrant_acquire_of_a_lease_at_risk_waits_for_as_long_as_it_was_told() {
    const TTL: Duration = Duration::from_secs(3);
    // Longer than one renewal is awaited, and shorter than the rest of a lease at risk.
    const LIMIT: Duration = Duration::from_millis(450);
    let rig = Rig::start().await;
    let lock = rig.lock(TTL).reentrant(true).owner(Owner::unique());
    let lease = within(HANGS, "the lock is free", lock.acquire()).await.expect("it is");
    let mut changes = lease.status_changes();
    rig.proxy.black_hole(true);
    assert_eq!(next(&mut changes, "a missing renewal is reported").await, Some(Status::AtRisk));
    let began = Instant::now();
    let error = lock.acquire_within(LIMIT).await.map(drop).expect_err("no renewal gets through");
    let took = began.elapsed();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(took >= LIMIT && took <= LIMIT + LAST_LOOK + EXACT + rig.lag.worst(), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_release_on_a_link_that_stalls_takes_one_command_time_out_at_most() {
    let rig = Rig::start().await;
    let lease = rig.acquire(LONG).await;
    rig.proxy.black_hole(true);
    let began = Instant::now();
    let released = lease.release().await;
    let took = began.elapsed();
    unconfirmed(released);
    assert!(took <= COMMAND + SIGNAL + rig.lag.worst(), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_link_reset_in_the_middle_of_every_release() {
    let rig = Rig::start().await;
    let lease = rig.acquire(LONG).await;
    let cut = rig.proxy.on_each(Match::script(RELEASE), Action::CutBefore);
    unconfirmed(lease.release().await);
    assert!(rig.server.wire().exists(NAME), "nothing can have released it");
    cut.disarm();
    rig.is_taken_away();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_a_release_that_comes_when_the_key_has_expired() {
    let rig = Rig::start().await;
    let patient = Client::builder().url(rig.proxy.url()).command_timeout(HANGS);
    let patient = patient.build().await.expect("the server is well");
    let lease = within(HANGS, "the lock is free", patient.lock(NAME).ttl(SHORT).acquire()).await.expect("it is");
    let held_up = rig.on(RELEASE, Action::Hold);
    let (deadline, release) = (SystemTime::now() + lease.remaining(), tokio::spawn(lease.release()));
    has_happened(&held_up).await;
    let mut wire = rig.server.wire();
    eventually(HANGS, "the key expires", || !wire.exists(NAME));
    // Long enough to tell the lease's end from the moment it is noticed.
    tokio::time::sleep(SHORT).await;
    held_up.release();
    match within(HANGS, "the release ends", release).await.expect("it does not panic") {
        Err(Error::Lost(lost)) => {
            assert_eq!(lost.reason(), LossReason::Expired, "it was not deleted");
            assert!(lost.since() <= deadline + SHORT / 2, "{:?} after it", lost.since().duration_since(deadline));
        }
        other => panic!("it had expired, and the release returned {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_reply_of_an_acquire_swallowed() {
    let rig = Rig::start().await;
    let swallowed = rig.on(ACQUIRE, Action::SwallowReply);
    let lease = rig.acquire(LONG).await;
    has_happened(&swallowed).await;
    lease.renew().await.expect("it is ours");
    lease.release().await.expect("it was ours to the end").confirmed();
    rig.is_taken_away();

    let swallowed = rig.on(ACQUIRE, Action::SwallowReply);
    match rig.lock(LONG).try_acquire().await {
        Err(Error::Unavailable(_)) => {}
        other => panic!("there was no answer, and the try returned {other:?}"),
    }
    has_happened(&swallowed).await;
    rig.is_taken_away();
}

/// The undo does not wait for a new connection in place of the lost one: it uses the keeper's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_link_of_an_acquire_that_ends_for_good() {
    let (server, patience) = (Server::start(), HANGS * 2);
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).command_timeout(patience).build().await.unwrap();
    let cut = proxy.on(Match::script(ACQUIRE), 1, Action::CutAfter);
    proxy.refuse(true);
    let trying = tokio::spawn(leases.lock(NAME).ttl(LONG).try_acquire());
    has_happened(&cut).await;
    let mut wire = server.wire();
    eventually_async(HANGS, "it is taken back", || !wire.exists(NAME)).await;
    within(HANGS, "the try", trying).await.unwrap().unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_acquire_that_arrives_after_its_undo() {
    let rig = Rig::start().await;
    let late = rig.on(ACQUIRE, Action::Hold);
    // The first undo may be sent behind the acquire on the same link, so the second is the one that overtakes it.
    rig.on(RELEASE, Action::DropRequest);
    let undone = rig.proxy.on(Match::script(RELEASE), 2, Action::HoldReply);
    match rig.lock(SHORT).try_acquire().await {
        Err(Error::Unavailable(_)) => {}
        other => panic!("there was no answer, and the try returned {other:?}"),
    }
    has_happened(&undone).await;
    undone.release();
    late.release();
    let mut wire = rig.server.wire();
    eventually(SHORT, "the acquire is executed", || wire.exists(NAME));
    let executed = Instant::now();
    // The late acquire is not believed, and blocks others no longer than a dead holder's key would (F1).
    let rival = rig.rival().await;
    let (_, acquired) = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
    let bound = SHORT + Duration::from_millis(250);
    let allowed = bound + rig.lag.worst();
    seen::took("next holder after the late acquire", acquired.saturating_duration_since(executed), bound, &rig.lag);
    assert!(acquired <= executed + allowed, "the rival waited {:?}", acquired - executed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_reply_of_a_release_swallowed_and_the_command_replayed() {
    let rig = Rig::start().await;
    let lease = rig.acquire(LONG).await;
    let rival = rig.rival().await;
    let swallowed = rig.on(RELEASE, Action::SwallowReply);
    // The replay must meet the next holder's key.
    let replay = rig.proxy.on(Match::script(RELEASE), 2, Action::Hold);
    let release = tokio::spawn(lease.release());
    let (successor, _) = within(HANGS, "the rival gets the lock", rival).await.expect("it does not panic");
    has_happened(&swallowed).await;
    has_happened(&replay).await;
    let held = rig.server.wire().get(NAME);
    replay.release();

    within(HANGS, "the release ends", release)
        .await
        .expect("it does not panic")
        .expect("it was ours to the end")
        .confirmed();
    assert_eq!(rig.server.wire().get(NAME), held, "the next holder's key is left alone");
    successor.renew().await.expect("the successor holds the lock");
    successor.release().await.expect("it did to the end").confirmed();
}

/// A part of `MEDIUM` that puts a lease at risk (half of it without an answer), but does not end it.
const RISKY: Duration = Duration::from_millis(1_050);
/// Longer than `SHORT`, so a lease ends.
const DEADLY: Duration = Duration::from_millis(900);

/// Runs a script until it is killed. It has written nothing, so it can be killed.
fn run_away(rig: &Rig) {
    let mut wire = rig.server.wire();
    wire.must(&["CONFIG", "SET", "lua-time-limit", "20"]);
    wire.send(&["EVAL", "while true do end", "0"]).expect("the server reads it");
    let mut probe = rig.server.wire();
    let busy = |reply: support::Value| reply.error().is_some_and(|text| text.starts_with("BUSY"));
    eventually(HANGS, "the script keeps the server busy", || busy(probe.cmd(&["PING"])));
}

fn kill_the_script(rig: &Rig) {
    rig.server.wire().must(&["SCRIPT", "KILL"]);
}

fn pause(rig: &Rig, span: Duration) {
    rig.server.wire().must(&["CLIENT", "PAUSE", &span.as_millis().to_string(), "ALL"]);
}

fn sleep(rig: &Rig, span: Duration) {
    // Its answer arrives when it ends.
    rig.server.wire().send(&["DEBUG", "SLEEP", &span.as_secs_f64().to_string()]).expect("the server reads it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_client_pause_shorter_than_the_lease() {
    stays_held(Rig::start().await, |rig| pause(rig, RISKY), |_ends_by_itself| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_client_pause_longer_than_the_lease() {
    is_told_by_the_deadline(
        Rig::start().await,
        async |rig| {
            pause(rig, DEADLY);
            Instant::now()
        },
        |_ends_by_itself| {},
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_debug_sleep_shorter_than_the_lease() {
    stays_held(Rig::start().await, |rig| sleep(rig, RISKY), |_ends_by_itself| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_debug_sleep_longer_than_the_lease() {
    is_told_by_the_deadline(
        Rig::start().await,
        async |rig| {
            sleep(rig, DEADLY);
            Instant::now()
        },
        |_ends_by_itself| {},
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_slow_script_shorter_than_the_lease() {
    stays_held(Rig::start().await, run_away, kill_the_script).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_slow_script_longer_than_the_lease() {
    is_told_by_the_deadline(
        Rig::start().await,
        async |rig| {
            run_away(rig);
            Instant::now()
        },
        kill_the_script,
    )
    .await;
}

/// The requirement of F22 for a server that answers but does not serve: its own error is reported, never that the lock
/// is busy.
async fn says_why(rig: &Rig, word: &str) {
    match rig.lock(LONG).try_acquire().await {
        Err(Error::Unavailable(error)) => assert!(error.to_string().contains(word), "{word}: {error}"),
        other => panic!("the server said {word}, and the call returned {other:?}"),
    }
    match rig.lock(LONG).acquire_within(COMMAND).await {
        // The last check may have been too short for an answer.
        Err(Error::Unavailable(_)) => {}
        other => panic!("the server said {word}, and the call returned {other:?}"),
    }
}

/// Makes the server a replica of a primary that does not exist.
fn demote(rig: &Rig, serves: &str) {
    let mut wire = rig.server.wire();
    wire.must(&["CONFIG", "SET", "replica-serve-stale-data", serves]);
    wire.must(&["REPLICAOF", "127.0.0.1", "1"]);
}

fn promote(rig: &Rig) {
    rig.server.wire().must(&["REPLICAOF", "NO", "ONE"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_readonly_masterdown_and_busy_are_named() {
    type Fault = fn(&Rig);
    let faults: [(&str, Fault, Fault); 3] = [
        ("READONLY", |rig| demote(rig, "yes"), promote),
        ("MASTERDOWN", |rig| demote(rig, "no"), promote),
        ("BUSY", run_away, kill_the_script),
    ];
    for (word, begin, end) in faults {
        let rig = Rig::start().await;
        begin(&rig);
        says_why(&rig, word).await;
        end(&rig);
        rig.acquire(LONG).await.release().await.expect("the server is well again").confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_loading_is_named() {
    let rig = Rig::start().await;
    let mut wire = rig.server.wire();
    // While loading it answers once every 2 MB, which take 50 ms each, 0.5 s in all.
    for setting in [["rdbcompression", "no"], ["key-load-delay", "5000"]] {
        wire.must(&["CONFIG", "SET", setting[0], setting[1]]);
    }
    wire.must(&["DEBUG", "POPULATE", "100", "filler", "200000"]);
    wire.send(&["DEBUG", "RELOAD"]).expect("the server reads it");
    let mut probe = rig.server.wire();
    let loading = || probe.info_field("persistence", "loading").as_deref() == Some("1");
    eventually(HANGS, "the server is loading", loading);
    says_why(&rig, "LOADING").await;
    rig.acquire(LONG).await.release().await.expect("the server is well again").confirmed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_a_held_lease_rides_out_a_server_that_is_a_replica_for_a_while() {
    let masterdown = stays_held(Rig::start().await, |rig| demote(rig, "no"), promote);
    let readonly = stays_held(Rig::start().await, |rig| demote(rig, "yes"), promote);
    tokio::join!(masterdown, readonly);
}

/// How a server is unavailable.
#[derive(Debug, Clone, Copy)]
enum Away {
    Killed,
    Stopped,
    BlackHoled,
}

impl Away {
    const ALL: [Self; 3] = [Self::Killed, Self::Stopped, Self::BlackHoled];

    /// A client of a server that was available and is no longer.
    async fn begin(self) -> (Rig, Client) {
        let rig = Rig::start().await;
        // Only without a proxy is a connection to a killed server refused.
        let leases = match self {
            Self::Killed | Self::Stopped => client(&rig.server.url()).await,
            Self::BlackHoled => client(&rig.proxy.url()).await,
        };
        match self {
            Self::Killed => rig.server.kill(),
            Self::Stopped => rig.server.stop(),
            Self::BlackHoled => rig.proxy.black_hole(true),
        }
        (rig, leases)
    }

    fn end(self, rig: &Rig) {
        match self {
            Self::Killed => rig.server.restart(),
            Self::Stopped => rig.server.cont(),
            Self::BlackHoled => rig.proxy.black_hole(false),
        }
    }
}

/// Waits until leftovers of tries are gone. A command may have been in the socket of a stopped server, behind its own
/// undo; then its key lives for one TTL after the server is back.
async fn is_gone_within(ttl: Duration, rig: &Rig) {
    let mut wire = rig.server.wire();
    eventually_but_for(&rig.lag, ttl + SIGNAL, "the key is gone", || !wire.exists(NAME)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_waits_for_a_server_that_is_away() {
    for away in Away::ALL {
        let (rig, leases) = away.begin().await;
        let acquire = tokio::spawn(leases.lock(NAME).ttl(MEDIUM).acquire());
        // Waits during the outage, for two checks that end without an answer.
        tokio::time::sleep(COMMAND * 2).await;
        assert!(!acquire.is_finished(), "{away:?}: {:?}", acquire.await);
        away.end(&rig);
        let lease = within(HANGS, "the lock is acquired", acquire).await.expect("it does not panic");
        lease.expect("an outage ends no acquire").release().await.expect("it was ours").confirmed();
        is_gone_within(MEDIUM, &rig).await;
    }
}

// On one thread: a wait of the test is woken by its own timer, like the control.
#[tokio::test]
async fn try_acquire_of_a_server_that_is_away_ends_within_the_command_timeout() {
    for away in Away::ALL {
        let (rig, leases) = away.begin().await;
        let started = Instant::now();
        let outcome = within(HANGS, "the try ends", leases.lock(NAME).ttl(SHORT).try_acquire()).await;
        let took = started.elapsed();
        assert_is_unavailable(away, outcome.map(drop));
        assert!(took <= COMMAND + EXACT + rig.lag.worst(), "{away:?}: it took {took:?}");
        away.end(&rig);
        is_gone_within(SHORT, &rig).await;
    }
}

// One thread, as above.
#[tokio::test]
async fn acquire_within_of_a_server_that_is_away_ends_when_its_time_is_over() {
    for away in Away::ALL {
        // Shorter than one check, and longer.
        for limit in [COMMAND / 3, COMMAND * 5 / 3] {
            let (rig, leases) = away.begin().await;
            let started = Instant::now();
            let outcome = within(HANGS, "the wait ends", leases.lock(NAME).ttl(SHORT).acquire_within(limit)).await;
            let took = started.elapsed();
            assert_is_unavailable(away, outcome.map(drop));
            // Two timers end it, one after the other: its own, and that of its last check.
            let most = limit + EXACT + LAST_LOOK + 2 * rig.lag.worst();
            assert!(took >= limit && took <= most, "{away:?}: {limit:?} took {took:?}");
            away.end(&rig);
            is_gone_within(SHORT, &rig).await;
        }
    }
}

#[track_caller]
fn assert_is_unavailable(away: Away, outcome: Result<(), Error>) {
    match outcome {
        Err(Error::Unavailable(_)) => {}
        other => panic!("{away:?}: {other:?}"),
    }
}

/// Many short waits at once count as no more silence than one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_waits_share_connections() {
    const SHORT_WAIT: Duration = Duration::from_millis(50);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases =
        Client::builder().url(proxy.url()).command_timeout(Duration::from_secs(1)).build().await.expect("there");
    // The scripts are cached, so each call is one command.
    leases.lock("first").acquire().await.expect("free").release().await.expect("ours").confirmed();
    // The third connection is open too; a lease requests it after a while.
    told(&leases).await;
    let connections = || proxy.seen().iter().map(|seen| seen.connection).max();
    let before = connections();
    proxy.freeze(true);
    let patient = tokio::spawn(leases.lock("patient").try_acquire());
    let hasty = (0..24).map(|n| tokio::spawn(leases.lock(format!("hasty-{n}")).acquire_within(SHORT_WAIT)));
    for hasty in hasty.collect::<Vec<_>>() {
        let outcome = within(HANGS, "a short wait", hasty).await.expect("it does not panic");
        assert!(outcome.is_err(), "nothing was answered");
    }
    proxy.freeze(false);
    let lease =
        within(HANGS, "the answer", patient).await.expect("it does not panic").expect("its answer was on its way");
    assert!(lease.is_some(), "it is free");
    // On the current connection, whichever it is.
    leases.lock("last").acquire().await.expect("free").release().await.expect("ours").confirmed();
    assert_eq!(connections(), before, "the connection was given up");
}

/// The link has become slow: a round trip takes longer than an answer may, but the client must still reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_outlives_a_reconnection_over_a_slow_link() {
    const TTL: Duration = Duration::from_secs(6);
    let rig = Rig::start().await;
    let lease = rig.acquire(TTL).await;
    rig.renewed([&lease], TTL).await;
    let cut = Instant::now();
    rig.proxy.delay(COMMAND);
    rig.proxy.cut();
    // Only a renewal sent after the cut extends the lease by this much.
    eventually_async(TTL, "a renewal is confirmed", || lease.remaining() + cut.elapsed() > TTL + TTL / 6).await;
    assert!(lease.is_held());
}

/// The server is stopped for longer than an attempt's undo lasts, and executes the attempt when it continues. The
/// attempt is undone as soon as the server answers anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_acquire_that_a_stopped_server_executes_when_it_goes_on() {
    const TTL: Duration = Duration::from_secs(2);
    /// Long before the key would expire.
    const TAKEN_BACK: Duration = Duration::from_millis(500);
    let rig = Rig::start().await;
    // On another connection the undo would also be in the server's socket.
    let leases = on_one_connection(Client::builder().url(rig.proxy.url()).command_timeout(COMMAND)).await;
    rig.server.stop();
    let outcome = within(HANGS, "the try ends", leases.lock(NAME).ttl(TTL).try_acquire()).await;
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    // The undo is retried for one TTL.
    tokio::time::sleep(TTL + 2 * COMMAND).await;
    rig.server.cont();
    let other = within(HANGS, "the server answers", leases.lock("other").acquire()).await.expect("it is free");
    let answers = Instant::now();
    eventually_async(HANGS, "no key is left", || !rig.server.wire().exists(NAME)).await;
    let took = answers.elapsed();
    assert!(rig.server.wire().exists("{job}:lh:fence"), "the server has not executed the acquire: the premise");
    assert!(took <= TAKEN_BACK + rig.lag.worst(), "{took:?}; the machine lagged {:?}", rig.lag.worst());
    other.release().await.expect("it is there").confirmed();
}
