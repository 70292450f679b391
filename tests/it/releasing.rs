//! The state that a release and a close leave behind.

use std::{
    cell::RefCell,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use leasehold::{Client, Error, Lease, LeaseHandle, LossReason, Lost, SystemClock};
use support::{
    Action, Child, HANGS, Match, Part, Proxy, RuleHandle, Server, eventually, eventually_async, one_thread,
    scripts::{KEEP, RELEASE},
    two_workers, within,
};

use crate::common::{COMMAND, Confirmed as _, unconfirmed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_in_the_middle_of_everything_leaves_no_key() {
    let server = Server::start();
    for _ in 0..5 {
        let leases = Client::connect(server.url()).await.unwrap();
        let cycles = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..200)
            .map(|n| {
                let (lock, cycles) = (leases.lock(format!("job:{n}")), cycles.clone());
                tokio::spawn(async move {
                    loop {
                        match lock.acquire().await {
                            Ok(lease) => drop(lease.release().await),
                            Err(error) => break error,
                        }
                        cycles.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        eventually_async(HANGS, "everybody to be busy", || cycles.load(Ordering::Relaxed) > 400).await;
        leases.close().await;
        for task in tasks {
            let error = within(HANGS, "the task's end", task).await.unwrap();
            assert!(matches!(error, Error::Closed), "{error}");
        }
        assert_eq!(server.wire().keys("job:*"), Vec::<String>::new());
    }
}

/// The key would be kept until the lease is dropped, but then the connections are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_releases_a_lease_that_has_reached_its_max_hold() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let leases = Client::connect(server.url()).await.unwrap();
    let lock = leases.lock("job").ttl(TTL).max_hold(TTL);
    let lease = lock.acquire().await.unwrap();
    let queued = leases.lock("queued").fair(true).ttl(TTL).max_hold(TTL).acquire().await.unwrap();
    for lease in [&lease, &queued] {
        assert_eq!(within(HANGS, "max_hold", lease.lost()).await.reason(), LossReason::MaxHold);
    }
    let left = ["job", "queued"].map(|key| server.wire().pttl(key));
    assert!(left.iter().all(|&left| left > 0), "the premise: {left:?}");
    leases.close().await;
    assert_eq!(["job", "queued"].map(|key| server.wire().pttl(key)), [-2, -2]);
    within(HANGS, "the release", lease.release()).await.unwrap().confirmed();
    drop(queued);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_cannot_shorten_a_retained_key() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::connect(proxy.url()).await.unwrap();
    let lease = leases.lock("job").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let renew = Match::script(support::scripts::RENEW);
    let renewal = proxy.on(renew, 1, Action::Hold);
    within(HANGS, "a renewal on its way", renewal.hit()).await;
    let hour = Duration::from_secs(3_600);
    lease.release_keeping(hour).await.unwrap().confirmed();
    // The first renewal on a connection is sent as text.
    let calls = |server: &Server| server.wire().info_field("commandstats", "cmdstat_eval").unwrap_or_default();
    let before = calls(&server);
    renewal.release();
    eventually(HANGS, "the renewal to be executed", || calls(&server) != before);
    let left = Duration::from_millis(server.wire().pttl("job").try_into().unwrap());
    assert!(left > hour / 2, "{left:?}");
}

#[test]
fn a_runtime_that_cannot_connect_is_named_as_the_cause() {
    let server = Server::start();
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = bare.block_on(Client::connect(server.url())).unwrap_err();
    assert!(error.to_string().contains("enable_all()"), "{error}");
}

/// A clock shared by all processes on this machine.
fn moment() -> Duration {
    SystemClock.now()
}

#[test]
fn a_shutdown_hands_the_lock_to_another_process_when_the_job_is_over() {
    const TIDIES_UP_FOR: Duration = Duration::from_millis(500);
    const TTL: Duration = Duration::from_millis(400);
    let leases = async |url: &str| Client::builder().url(url).ttl(TTL).build().await.unwrap();
    if let Some(part) = Part::mine() {
        return two_workers().block_on(async {
            let lock = leases(&part.url).await.lock("job");
            part.say("waits");
            let lease = lock.acquire().await.unwrap();
            part.say(moment().as_nanos());
            lease.release().await.unwrap().confirmed();
        });
    }
    let server = Server::start();
    two_workers().block_on(async {
        let leases = leases(&server.url()).await;
        let lease = leases.lock("job").acquire().await.unwrap();
        let next =
            Child::start(a_shutdown_hands_the_lock_to_another_process_when_the_job_is_over, "next", &server.url());
        next.says("waits");
        let job = tokio::spawn(async move {
            assert_eq!(lease.lost().await.reason(), LossReason::Closing);
            let (began, mut believed) = (moment(), moment());
            while believed < began + TIDIES_UP_FOR {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let now = moment();
                lease.check().unwrap();
                believed = now;
            }
            lease.release().await.unwrap().confirmed();
            believed
        });
        assert_eq!(within(HANGS, "the shutdown", leases.shutdown(HANGS)).await, 0);
        let believed = within(HANGS, "the job", job).await.unwrap();
        let acquired = Duration::from_nanos(next.says("").trim().parse().unwrap());
        assert!(acquired > believed, "both believed, from {acquired:?} to {believed:?}");
        next.ends();
    });
}

thread_local! {
    static KEPT: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

/// Tokio's own thread-locals may be destroyed by then.
#[test]
fn a_lease_that_is_dropped_by_the_end_of_its_thread_is_released() {
    let server = Server::start();
    for url in ["memory://".to_owned(), server.url()] {
        let leases = one_thread().block_on(Client::connect(&url)).unwrap();
        let lease = one_thread().block_on(leases.lock("job").acquire()).unwrap();
        let owner = thread::spawn(move || {
            KEPT.set(Some(lease));
            // They are made after ours, so they are destroyed before it.
            one_thread().block_on(async {});
        });
        owner.join().unwrap();
        drop(one_thread().block_on(leases.lock("job").acquire_within(HANGS)).expect("it was released"));
    }
}

/// The next line waits for the previous release. If that release's reply is lost, the lock is free all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_the_release_of_a_dropped_lease_leaves_time_to_acquire_again() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // Longer than the shortest check takes.
    proxy.delay(Duration::from_millis(20));
    let leases = Client::connect(proxy.url()).await.unwrap();
    for limit in [None, Some(Duration::from_millis(500))] {
        let lock = leases.lock("job");
        let lease = lock.acquire().await.unwrap();
        let lost = proxy.on(Match::script(support::scripts::RELEASE), 1, Action::SwallowReply);
        drop(lease);
        let again = match limit {
            None => lock.try_acquire().await.unwrap(),
            Some(limit) => Some(lock.acquire_within(limit).await.unwrap()),
        };
        assert!(lost.wait_hit(HANGS), "the premise");
        again.expect("it is free").release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_lost_to_its_max_hold_keeps_nothing() {
    const TTL: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = Server::start();
    for how in ["release", "drop", "close", "release_keeping"] {
        let leases = Client::connect(server.url()).await.unwrap();
        let lease = leases.lock(how).ttl(TTL).max_hold(TTL).keep_for(HOUR).acquire().await.unwrap();
        assert_eq!(within(HANGS, "max_hold", lease.lost()).await.reason(), LossReason::MaxHold);
        match how {
            "release" => lease.release().await.unwrap().confirmed(),
            "drop" => drop(lease),
            "close" => leases.close().await,
            // A release that the caller asks for.
            _ => lease.release_keeping(HOUR).await.unwrap().confirmed(),
        }
        if how == "release_keeping" {
            assert!(server.wire().pttl(how) > 3_000_000, "{how}");
        } else {
            eventually_async(TTL / 2, how, || !server.wire().exists(how)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_release_says_that_its_key_may_stay() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let command = Duration::from_millis(200);
    let leases = Client::builder().url(proxy.url()).command_timeout(command).build().await.unwrap();
    for (script, words) in
        [(support::scripts::RELEASE, "within its TTL"), (support::scripts::KEEP, "for which it is kept")]
    {
        let lease = leases.lock("job").acquire().await.unwrap();
        let lost = proxy.on_each(Match::script(script), Action::SwallowReply);
        let keeps = script == support::scripts::KEEP;
        let released = if keeps { lease.release_keeping(command).await } else { lease.release().await };
        let text = unconfirmed(released).to_string();
        assert!(text.ends_with(words), "{text}");
        lost.disarm();
    }
}

/// A program's own error.
#[derive(Debug, PartialEq)]
enum JobError {
    Lock(Error),
    OfItsOwn,
}

impl From<Error> for JobError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// Retries a call while it may succeed with nothing changed: three times at most.
async fn retried<T>(mut call: impl AsyncFnMut() -> Result<T, JobError>) -> Result<T, JobError> {
    let mut outcome = call().await;
    for _ in 1..3 {
        match outcome {
            Err(JobError::Lock(error)) if error.is_transient() => outcome = call().await,
            _ => break,
        }
    }
    outcome
}

/// A caller that retries pays once, whichever of the calls it uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_release_is_never_answered_is_done_once_by_a_caller_that_retries() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build().await.unwrap();
    for how in ["run", "run_within", "try_run", "grace", "release", "release_keeping"] {
        let (lock, paid) = (leases.lock(how), AtomicUsize::new(0));
        let swallowed = [RELEASE, KEEP].map(|script| proxy.on_each(Match::script(script), Action::SwallowReply));
        let pay = |_: LeaseHandle| {
            paid.fetch_add(1, Ordering::SeqCst);
            ready(Ok::<_, JobError>(()))
        };
        let outcome = retried(async || {
            match how {
                "run" => lock.run(pay).await?,
                "run_within" => lock.run_within(HANGS, pay).await?,
                "try_run" => lock.try_run(pay).await?.unwrap_or_default(),
                "grace" => lock.clone().grace(Duration::from_secs(1)).run(pay).await?,
                how => {
                    let lease = lock.acquire().await?;
                    pay(lease.handle()).await?;
                    let keep = Duration::from_secs(60);
                    let ended =
                        if how == "release" { lease.release().await? } else { lease.release_keeping(keep).await? };
                    assert!(!ended.is_confirmed(), "{how}: {ended:?}");
                }
            }
            Ok(())
        });
        let outcome = within(HANGS, how, Box::pin(outcome)).await;
        assert!(swallowed.iter().any(|rule| rule.hits() > 0), "{how}: the premise");
        assert_eq!(paid.load(Ordering::SeqCst), 1, "{how}: how often it was paid");
        assert_eq!(outcome, Ok(()), "{how}");
        swallowed.iter().for_each(RuleHandle::disarm);
    }
}

/// The text is meant for a log: it states the reason and what happens next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unconfirmed_release_says_why_and_that_the_key_expires() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build().await.unwrap();
    for keeps in [false, true] {
        let lease = leases.lock(format!("job:{keeps}")).acquire().await.unwrap();
        proxy.black_hole(true);
        let released = if keeps { lease.release_keeping(HANGS).await } else { lease.release().await };
        let text = unconfirmed(released).to_string();
        assert!(text.starts_with("the release is not confirmed: "), "{text}");
        assert!(text.contains("It goes on while this process runs, and the key expires within its TTL"), "{text}");
        assert_eq!(text.contains("after the time for which it is kept"), keeps, "{text}");
        proxy.black_hole(false);
        // The release continued: nothing else frees the lock before its TTL has passed.
        eventually_async(HANGS, "the release goes on", || server.wire().pttl(&format!("job:{keeps}")) < 20_000).await;
    }
}

/// The work ends in the same poll in which its key is deleted, so only the release can notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_the_release_finds_is_an_error_but_never_hides_that_of_the_work() {
    let server = Server::start();
    let leases = Client::connect(server.url()).await.unwrap();
    for fails in [true, false] {
        let name = format!("job:{fails}");
        let mut wire = server.wire();
        let work = async |lease: LeaseHandle| {
            wire.del(lease.name());
            if fails { Err(JobError::OfItsOwn) } else { Ok(()) }
        };
        match (fails, leases.lock(&name).run(work).await) {
            (true, outcome) => assert_eq!(outcome, Err(JobError::OfItsOwn)),
            (false, Err(JobError::Lock(error))) => {
                assert_eq!(error.lost().map(Lost::reason), Some(LossReason::Deleted), "{error}");
                assert!(!error.is_transient(), "{error}");
            }
            (false, other) => panic!("its key was gone, and it says {other:?}"),
        }
    }
}
