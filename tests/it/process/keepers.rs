//! Where there is no keeper: its thread cannot be started, or the runtime of `Keeper::CurrentRuntime` has ended. Then
//! every call fails, and none panics or hangs.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Error, Keeper, Lease, Leases, LossReason, Owner, Released, Status, blocking};
use support::{Child, HANGS, Lag, Part, SIGNAL, Server, alone, eventually, on_no_runtime, one_thread, two_workers};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test here.
const LONG: Duration = Duration::from_secs(60);

/// Counts the panics of this process from now on, those that somebody catches too.
fn panics() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, report) = (count.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::SeqCst);
        report(panic);
    }));
    count
}

/// Where a call comes from.
#[derive(Debug, Clone, Copy)]
enum From {
    NoRuntime,
    AnotherRuntime,
}

impl From {
    const BOTH: [Self; 2] = [Self::NoRuntime, Self::AnotherRuntime];

    #[track_caller]
    fn call<F: Future>(self, what: &str, call: F) -> F::Output {
        match self {
            Self::NoRuntime => on_no_runtime(what, call),
            Self::AnotherRuntime => one_thread().block_on(support::within(HANGS, what, call)),
        }
    }
}

/// How many threads this process has, and how many files it has open.
fn resources() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|all| std::fs::read_dir(all).expect("this is Linux").count())
}

#[test]
fn f94_no_thread_can_be_started() {
    alone(|| {
        // The stack of every thread that does not say how large it should be: no machine has so much memory.
        const LARGE: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");
        if let Some(part) = Part::mine() {
            let panics = panics();
            thread::Builder::new().spawn(|| ()).expect_err("the premise");
            let start = Instant::now();
            // The first runtime of a process opens what all of them share.
            drop(one_thread());
            let at_first = resources();
            for url in [&*part.url, "memory://"] {
                for from in From::BOTH {
                    let error = from.call("build", Leases::connect(url)).expect_err("there is no thread");
                    assert!(matches!(error, Error::Unavailable(_)), "{error}");
                    assert!(error.to_string().contains("the keeper's thread cannot be started"), "{error}");
                    assert_eq!(resources(), at_first, "{from:?}");
                }
            }
            assert!(start.elapsed() < HANGS);
            assert_eq!(panics.load(Ordering::SeqCst), 0);
            return;
        }
        let server = Server::start();
        Child::start_with(f94_no_thread_can_be_started, "build", &server.url(), LARGE.0, LARGE.1).ends();
    });
}

async fn build(url: &str) -> Leases {
    Leases::builder().url(url).ttl(LONG).keeper(Keeper::CurrentRuntime).build().await.unwrap()
}

/// What is left of a runtime that has ended while a lease was held there. Its key stays, so each has a name of its own.
fn left_behind(runtime: Runtime, url: &str) -> (Leases, Lease) {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("held:{}", NAMES.fetch_add(1, Ordering::SeqCst));
    let held = runtime.block_on(async {
        let leases = build(url).await;
        let lease = leases.lock(name).owner(Owner::anonymous()).acquire().await.unwrap();
        (leases, lease)
    });
    drop(runtime);
    held
}

#[track_caller]
fn assert_says_so(what: &str, error: &Error) {
    let text = error.to_string();
    assert!(matches!(error, Error::Unavailable(_)), "{what}: {text}");
    assert!(text.contains("runtime that kept the leases") && text.contains("has ended"), "{what}: {text}");
    assert!(text.contains("build a new Leases"), "{what} says what to do: {text}");
}

type Call = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// Every call that asks a server something, with its name.
fn calls(leases: &Leases, held: &str) -> Vec<(&'static str, Call)> {
    fn call<T: std::fmt::Debug, E: Into<Error>>(call: impl Future<Output = Result<T, E>> + 'static) -> Call {
        Box::pin(async move { call.await.map(drop).map_err(Into::into) })
    }
    let free = leases.lock("free").owner(Owner::anonymous());
    let (held, fair) = (leases.lock(held).owner(Owner::anonymous()), free.clone().fair(true));
    let (lock, all, guarded) = (free.clone(), leases.clone(), leases.guarded("result"));
    let (lock2, lock3, all2, guarded2) = (lock.clone(), lock.clone(), all.clone(), guarded.clone());
    vec![
        ("acquire", call(free.acquire())),
        ("acquire, held", call(held.acquire())),
        ("acquire_within", call(free.acquire_within(LONG))),
        ("acquire_within, held", call(held.acquire_within(LONG))),
        ("try_acquire", call(free.try_acquire())),
        ("try_acquire, held", call(held.try_acquire())),
        ("fair acquire", call(fair.acquire())),
        ("fair try_acquire", call(fair.try_acquire())),
        ("run", call(free.run(async |_| Ok::<_, Error>(())))),
        ("holder", call(async move { lock.holder().await })),
        ("waiters", call(async move { lock2.waiters().await })),
        ("force_release", call(async move { lock3.force_release().await })),
        ("held", call(async move { all.list("*").await })),
        ("capabilities", call(async move { all2.capabilities().await })),
        ("guarded get", call(async move { guarded.get().await })),
        ("guarded set", call(async move { guarded2.set("value", "7".parse().unwrap()).await })),
    ]
}

fn every_call_fails(url: &str) {
    let panics = panics();
    for runtime in [one_thread, two_workers] {
        for from in From::BOTH {
            let (leases, lease) = left_behind(runtime(), url);
            for (what, call) in calls(&leases, lease.name()) {
                let error = from.call(what, call).expect_err(what);
                assert_says_so(what, &error);
            }
            let nodes = leases.nodes();
            assert_eq!(nodes.len(), 1, "it asks nothing: {nodes:?}");
            let start = Instant::now();
            from.call("close", leases.close());
            assert!(start.elapsed() < HANGS);
            let closed = from.call("acquire, closed", leases.lock("free").acquire());
            assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
            drop(lease);
        }
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[test]
fn every_call_fails_once_the_runtime_has_ended() {
    alone(|| {
        let server = Server::start();
        every_call_fails(&server.url());
    });
}

#[test]
fn every_call_fails_once_the_runtime_has_ended_in_memory() {
    alone(|| {
        every_call_fails("memory://");
    });
}

/// All that can be done with a lease is to hear of its end.
fn the_lease_is_lost(url: &str) {
    let panics = panics();
    for runtime in [one_thread, two_workers] {
        for from in From::BOTH {
            let (_leases, lease) = left_behind(runtime(), url);
            let lost = from.call("lost", lease.lost());
            assert_eq!(lost.reason(), LossReason::KeeperEnded);
            assert!(lost.to_string().contains("keeper that renewed it has ended"), "{lost}");
            assert_eq!(lease.check(), Err(lost.clone().into()));
            assert_eq!(lease.remaining(), Duration::ZERO);
            assert_eq!(lease.status(), Status::Lost(lost.clone()));
            assert!(lease.cancellation_token().is_cancelled());
            let renewed = from.call("renew", lease.renew());
            assert!(matches!(&renewed, Err(Error::Lost(end)) if *end == lost), "{renewed:?}");
            let released = from.call("release", lease.release());
            assert!(matches!(&released, Err(Error::Lost(end)) if *end == lost), "{released:?}");

            let (leases, lease) = left_behind(runtime(), url);
            from.call("a drop", async {
                drop(lease);
                drop(leases);
            });
        }
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0);
}

#[test]
fn a_lease_is_lost_when_its_runtime_ends() {
    alone(|| {
        let server = Server::start();
        the_lease_is_lost(&server.url());
    });
}

#[test]
fn a_lease_is_lost_when_its_runtime_ends_in_memory() {
    alone(|| {
        the_lease_is_lost("memory://");
    });
}

/// A call that is under way on a thread of its own, and what comes of it.
fn under_way<T: Send + 'static>(
    from: From,
    what: &'static str,
    call: impl Future<Output = T> + Send + 'static,
) -> mpsc::Receiver<(T, Instant)> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let output = from.call(what, call);
        tell.send((output, Instant::now())).ok();
    });
    told
}

/// Fails unless the call ends at once when the runtime does.
#[track_caller]
fn ends_at_once<T>(what: &str, ended: Instant, lag: &Lag, call: &mpsc::Receiver<(T, Instant)>) -> T {
    let (output, at) = call.recv_timeout(HANGS).unwrap_or_else(|why| panic!("{what}: {why}"));
    let (took, limit) = (at.saturating_duration_since(ended), SIGNAL + lag.worst());
    assert!(took <= limit, "{what} ended {took:?} after the runtime, not within {limit:?}");
    output
}

#[test]
fn pending_calls_end_with_the_runtime() {
    alone(|| {
        let (server, lag, panics) = (Server::start(), Lag::start(), panics());
        for url in [server.url(), "memory://ends".into()] {
            for from in From::BOTH {
                let runtime = two_workers();
                let (leases, lease) = runtime.block_on(async {
                    let leases = build(&url).await;
                    let lease =
                        leases.lock(format!("waits:{from:?}")).owner(Owner::anonymous()).acquire().await.unwrap();
                    (leases, lease)
                });
                let (tell, told) = mpsc::channel();
                let waits = |fair: bool| {
                    let tell = tell.clone();
                    let lock = leases.lock(lease.name()).fair(fair).owner(Owner::anonymous());
                    lock.on_wait(move |_| tell.send(()).unwrap())
                };
                let waiting = [
                    under_way(from, "acquire", waits(false).acquire()),
                    under_way(from, "acquire, in line", waits(false).acquire()),
                    under_way(from, "acquire_within", waits(false).acquire_within(LONG)),
                    under_way(from, "fair acquire", waits(true).acquire()),
                    under_way(from, "fair acquire, in line", waits(true).acquire()),
                ];
                for _ in &waiting {
                    told.recv_timeout(HANGS).expect("it waits");
                }
                let lost = under_way(from, "lost", lease.lost());
                let mut changes = lease.status_changes();
                let change = under_way(from, "status", async move { changes.next().await });
                drop(runtime);
                let ended = Instant::now();
                for call in &waiting {
                    match ends_at_once("a waiting acquire", ended, &lag, call) {
                        Err(error @ Error::Unavailable(_)) => assert_says_so("a waiting acquire", &error),
                        other => panic!("{other:?}"),
                    }
                }
                let lost = ends_at_once("lost", ended, &lag, &lost);
                assert_eq!(lost.reason(), LossReason::KeeperEnded);
                assert_eq!(ends_at_once("status", ended, &lag, &change), Some(Status::Lost(lost)));
            }
        }
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_request_under_way_ends_with_the_runtime() {
    alone(|| {
        let (server, lag, panics) = (Server::start(), Lag::start(), panics());
        for from in From::BOTH {
            let runtime = two_workers();
            let (leases, lease) = runtime.block_on(async {
                let leases = Leases::builder().url(server.url()).ttl(LONG).command_timeout(LONG);
                let leases = leases.keeper(Keeper::CurrentRuntime).build().await.unwrap();
                let lease = leases.lock(format!("asked:{from:?}")).owner(Owner::anonymous()).acquire().await.unwrap();
                (leases, lease)
            });
            server.stop();
            let free = leases.lock("free").owner(Owner::anonymous());
            let (asked, handle) = (free.clone(), lease.handle());
            let under_way_now = [
                (
                    "try_acquire",
                    under_way(from, "try_acquire", {
                        let free = free.clone();
                        async move { free.try_acquire().await.map(drop) }
                    }),
                ),
                ("holder", under_way(from, "holder", async move { asked.holder().await.map(drop) })),
                ("renew", under_way(from, "renew", async move { handle.renew().await })),
            ];
            let releasing = under_way(from, "release", async move { lease.release().await });
            let closing = {
                let leases = leases.clone();
                under_way(from, "close", async move {
                    leases.capabilities().await.unwrap_err();
                    leases.close().await;
                })
            };
            // Each of them has been polled once, or will find out by its first poll.
            drop(runtime);
            let ended = Instant::now();
            for (what, call) in &under_way_now {
                ends_at_once(what, ended, &lag, call).expect_err(what);
            }
            let released = ends_at_once("release", ended, &lag, &releasing);
            // Its first poll may come when the runtime has ended, and the lease with it; or when it is closed.
            let is_over = |reason| matches!(reason, LossReason::KeeperEnded | LossReason::Closed);
            let is_lost = |error: &Error| error.lost().is_some_and(|lost| is_over(lost.reason()));
            let ended_with_it = released.as_ref().is_err_and(is_lost);
            assert!(ended_with_it || matches!(released, Ok(Released::Unconfirmed(_))), "{released:?}");
            ends_at_once("close", ended, &lag, &closing);
            server.cont();
        }
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

/// The runtime may end between any two steps of a call.
#[test]
fn calls_that_race_with_the_end_of_the_runtime_fail_and_do_not_panic() {
    alone(|| {
        const ROUNDS: usize = 60;
        let (server, panics) = (Server::start(), panics());
        for round in 0..ROUNDS {
            let url = if round % 3 == 0 { "memory://".into() } else { server.url() };
            let runtime = two_workers();
            let leases = runtime.block_on(build(&url));
            let begun = Arc::new(AtomicUsize::new(0));
            let racing = From::BOTH.map(|from| {
                let (leases, begun) = (leases.clone(), begun.clone());
                under_way(from, "a race", async move {
                    let lock = leases.lock(format!("race:{round}:{from:?}")).owner(Owner::anonymous());
                    loop {
                        begun.fetch_add(1, Ordering::SeqCst);
                        match lock.acquire_within(LONG).await {
                            Ok(lease) => drop(lease.release().await),
                            Err(error) => break error,
                        }
                    }
                })
            });
            eventually(HANGS, "the race is on", || begun.load(Ordering::SeqCst) > 4 + round);
            runtime.shutdown_background();
            for race in racing {
                let (error, _) = race.recv_timeout(HANGS).expect("it ends");
                assert_says_so("a race", &error);
            }
            on_no_runtime("close", leases.close());
        }
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_runtime_that_outlives_its_leases_says_nothing() {
    alone(|| {
        let (server, panics) = (Server::start(), panics());
        let runtime = two_workers();
        let tasks = || runtime.metrics().num_alive_tasks();
        let mut wire = server.wire();
        runtime.block_on(async {
            let leases = build(&server.url()).await;
            let lease = leases.lock("job").acquire().await.unwrap();
            drop(leases);
            lease.check().unwrap();
            drop(lease);
        });
        eventually(HANGS, "the drop of the last lease releases it", || !wire.exists("job"));
        eventually(HANGS, "every task ends", || tasks() == 0);
        drop(runtime);
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_start_that_is_given_up_panics_nowhere_and_leaves_no_task() {
    alone(|| {
        let panics = panics();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let connect_timeout = Duration::from_millis(400);
        // Connections come about, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        runtime.block_on(async {
            for _ in 0..3 {
                let nobody_there = Leases::builder().url(&url).connect_timeout(connect_timeout).build();
                tokio::time::timeout(Duration::from_millis(100), nobody_there).await.unwrap_err();
            }
        });
        let tasks = || runtime.metrics().num_alive_tasks();
        eventually(HANGS, "every task to end", || tasks() == 0);
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

/// As one that becomes a daemon does. The threads of the keeper are not in the child.
#[test]
fn in_a_process_that_was_forked_every_call_says_so_at_once() {
    const TTL: Duration = Duration::from_secs(2);
    alone(|| {
        let server = Server::start();
        let leases = blocking::Leases::builder().url(server.url()).ttl(TTL).build().unwrap();
        let held = leases.lock("held").acquire().unwrap();
        let before = leases.lock("before").acquire().unwrap();
        let in_child = || {
            let began = Instant::now();
            let refused = leases.lock("other").acquire_within(TTL).unwrap_err();
            assert!(matches!(refused, Error::Config(_)) && refused.to_string().contains("forked"), "{refused}");
            leases.lock("other").acquire().unwrap_err();
            leases.lock("other").try_acquire().unwrap_err();
            let Released::Unconfirmed(why) = before.release().unwrap() else { panic!("nobody has answered") };
            let [health, holder] = [leases.health().err(), leases.lock("held").holder().err()];
            for error in [health.unwrap(), holder.unwrap()].iter().map(ToString::to_string).chain([why.to_string()]) {
                assert!(error.contains("forked"), "{error}");
            }
            leases.close().unwrap();
            assert!(began.elapsed() < TTL / 2, "they waited: {:?}", began.elapsed());
            thread::sleep(TTL.saturating_sub(began.elapsed()));
            held.check().unwrap_err();
        };
        match fork::fork().unwrap() {
            fork::Fork::Child => {
                let hangs = || {
                    thread::sleep(HANGS);
                    std::process::exit(2);
                };
                thread::Builder::new().spawn(hangs).unwrap();
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(in_child));
                std::process::exit(i32::from(outcome.is_err()));
            }
            fork::Fork::Parent(child) => {
                assert_eq!(fork::waitpid(child).unwrap(), 0, "what it has asserted is above");
                held.check().unwrap();
            }
        }
    });
}
