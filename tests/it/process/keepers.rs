//! A process without a keeper: its thread cannot be started, or did not survive a fork. Then every call fails, and none
//! panics or hangs.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error, Released};
use support::{Child, HANGS, Part, Server, alone, eventually, on_no_runtime, one_thread};
use tokio::runtime::Builder;

use crate::common::wait;

/// Counts the panics of this process from now on, including those that are caught.
fn panics() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, report) = (count.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::SeqCst);
        report(panic);
    }));
    count
}

/// Where a call is made.
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
        // The stack of every thread that does not specify a size: larger than any machine's memory.
        const LARGE: (&str, &str) = ("RUST_MIN_STACK", "70368744177664");
        if let Some(part) = Part::mine() {
            let panics = panics();
            thread::Builder::new().spawn(|| ()).expect_err("the premise");
            let start = Instant::now();
            // The first runtime of a process opens resources that all runtimes share.
            drop(one_thread());
            let at_first = resources();
            for url in [&*part.url, "memory://"] {
                for from in From::BOTH {
                    let error = from.call("build", Client::connect(url)).expect_err("there is no thread");
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

#[test]
fn a_start_that_is_given_up_panics_nowhere_and_leaves_no_task() {
    alone(|| {
        let panics = panics();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let connect_timeout = Duration::from_millis(400);
        // Connections are accepted, but no request is answered.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        runtime.block_on(async {
            for _ in 0..3 {
                let nobody_there = Client::builder().url(&url).connect_timeout(connect_timeout).build();
                tokio::time::timeout(Duration::from_millis(100), nobody_there).await.unwrap_err();
            }
        });
        let tasks = || runtime.metrics().num_alive_tasks();
        eventually(HANGS, "every task to end", || tasks() == 0);
        assert_eq!(panics.load(Ordering::SeqCst), 0);
    });
}

/// A fork without exec, as daemons do. The child does not have the keeper's threads.
#[test]
fn in_a_process_that_was_forked_every_call_says_so_at_once() {
    const TTL: Duration = Duration::from_secs(2);
    alone(|| {
        let server = Server::start();
        let leases = wait(Client::builder().url(server.url()).ttl(TTL).build()).unwrap();
        let held = wait(leases.lock("held").acquire()).unwrap();
        let before = wait(leases.lock("before").acquire()).unwrap();
        let handed_over = wait(leases.lock("handed-over").acquire()).unwrap();
        let [kept, written] = ["kept", "written"].map(|name| wait(leases.lock(name).acquire()).unwrap());
        let dropped = wait(leases.lock("dropped").acquire()).unwrap();
        let in_child = || {
            let began = Instant::now();
            let refused = wait(leases.lock("other").acquire_within(TTL)).unwrap_err();
            assert!(matches!(refused, Error::Misuse(_)) && refused.to_string().contains("forked"), "{refused}");
            wait(leases.lock("other").acquire()).unwrap_err();
            wait(leases.lock("other").try_acquire()).unwrap_err();
            let Released::Unconfirmed(why) = wait(before.release()).unwrap() else { panic!("nobody has answered") };
            assert!(why.to_string().contains("forked"), "{why}");
            let keeping = wait(kept.release_keeping(TTL)).unwrap();
            assert!(!keeping.is_confirmed(), "{keeping:?}");
            drop(dropped);
            let name = leases.lock("held");
            let refused = [
                wait(leases.health()).err(),
                wait(leases.list("*")).err(),
                wait(name.holder()).err(),
                wait(name.waiters()).err(),
                wait(name.force_release()).err(),
                wait(leases.election("held").leader()).err(),
                wait(leases.multi_lock(["one", "two"].map(|one| leases.lock(one))).acquire()).err(),
                wait(held.renew()).err(),
                wait(written.downgrade()).err(),
            ];
            for error in refused {
                let error = error.expect("the keeper is not here");
                assert!(matches!(error, Error::Misuse(_)) && error.to_string().contains("forked"), "{error}");
            }
            let another = wait(Client::builder().url(server.url()).build()).unwrap_err();
            assert!(matches!(another, Error::Misuse(_)) && another.to_string().contains("forked"), "{another}");
            wait(leases.close());
            let ours = [held.check(), handed_over.into_ticket().map(drop)];
            assert!(ours.iter().all(|outcome| matches!(outcome, Err(Error::Misuse(_)))), "{ours:?}");
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
