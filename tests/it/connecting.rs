//! A `Client` that connects at its first use, and what a readiness probe reports.

use std::{
    error::Error as _,
    io,
    net::TcpListener,
    task::Poll,
    time::{Duration, Instant},
};

use leasehold::{Builder, Client, Error, NodeState, doctor::survey};
use support::{HANGS, Lag, Proxy, Server, eventually_async, on_no_runtime, one_thread, within};

use crate::common::{Confirmed as _, told};

const SOON: Duration = Duration::from_millis(200);

fn lazy(urls: &[String]) -> Builder {
    let builder = Client::builder().connect_timeout(SOON);
    match urls {
        [url] => builder.url(url),
        // All servers of a test have just been started.
        urls => builder.quorum(urls).restart_delay(Duration::ZERO),
    }
}

fn refuse(proxies: &[Proxy], on: bool) {
    for proxy in proxies {
        proxy.refuse(on);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_connects_at_the_first_use_and_again_after_a_failure() {
    for nodes in [1, 3] {
        let servers: Vec<Server> = (0..nodes).map(|_| Server::start()).collect();
        let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let leases = lazy(&urls).build_lazy().unwrap();
        assert!(proxies.iter().all(|proxy| proxy.connections() == 0), "nothing was used yet");
        refuse(&proxies, true);
        let lock = leases.lock("job");
        let errors = [
            lock.try_acquire().await.map(drop).unwrap_err(),
            lock.holder().await.map(drop).unwrap_err(),
            leases.list("*").await.map(drop).unwrap_err(),
            survey(&leases).await.map(drop).unwrap_err(),
            leases.health().await.unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            assert!(error.to_string().contains("127.0.0.1"), "{error}");
        }
        refuse(&proxies, false);
        let lease = within(HANGS, "the lock", lock.acquire()).await.unwrap();
        leases.health().await.unwrap();
        lease.renew().await.unwrap();
        lease.release().await.unwrap().confirmed();
        // Once all connections are open, no further one is made. With several nodes, the last may still be opening.
        if let [proxy] = proxies.as_slice() {
            told(&leases).await;
            let last = || proxy.seen().iter().map(|seen| seen.connection).max();
            let settles = async {
                // The last of its own connections may still be opening as well.
                let mut before = None;
                while last() != before {
                    before = last();
                    for _ in 0..3 {
                        lock.try_acquire().await.unwrap().expect("it is free").release().await.unwrap().confirmed();
                    }
                }
            };
            within(HANGS, "uses without another connection", settles).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_waits_for_the_first_connection_and_ends_on_time() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.refuse(true);
    let leases = Client::connect_lazy(proxy.url()).unwrap();
    let (limit, lag) = (Duration::from_millis(100), Lag::start());
    let began = Instant::now();
    let error = leases.lock("job").acquire_within(limit).await.unwrap_err();
    let took = began.elapsed();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(took >= limit && took < limit + Duration::from_millis(35) + lag.worst(), "{took:?}");

    let leases = lazy(&[proxy.url()]).build_lazy().unwrap();
    let waiting = [leases.lock("job"), leases.lock("turn").fair(true)].map(|lock| tokio::spawn(lock.acquire()));
    // The outage itself is the fault: it lasts several times as long as one try to connect may take.
    tokio::time::sleep(SOON * 3).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    proxy.refuse(false);
    for waiting in waiting {
        within(HANGS, "the lock", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
    }
    // Closing ends the waiters.
    proxy.refuse(true);
    let leases = Client::connect_lazy(proxy.url()).unwrap();
    let waiting = leases.lock("job").acquire();
    let (outcome, ()) = within(HANGS, "the waiter's end", async { tokio::join!(waiting, leases.close()) }).await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

#[test]
fn a_lazy_one_can_be_made_and_used_without_a_runtime() {
    let server = Server::start();
    let leases = Client::connect_lazy(server.url()).unwrap();
    let lease = on_no_runtime("the lock", leases.lock("job").acquire()).unwrap();
    assert!(server.wire().exists("job"));
    on_no_runtime("the release", lease.release()).unwrap().confirmed();
    // The same client works on a program's own runtime as well.
    one_thread().block_on(async { leases.lock("job").acquire().await.unwrap().release().await.unwrap().confirmed() });
}

#[tokio::test]
async fn what_no_time_mends_is_told_at_once() {
    for url in ["", "http://127.0.0.1", "redis://"] {
        assert!(matches!(Client::connect_lazy(url).unwrap_err(), Error::Config(_)), "{url}");
    }
    let server = Server::builder().arg("--requirepass", "secret").start();
    let leases = Client::connect_lazy(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    let error = within(HANGS, "acquire", leases.lock("job").acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    assert!(matches!(leases.health().await.unwrap_err(), Error::Refused(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_is_that_of_a_majority() {
    let servers: Vec<Server> = (0..3).map(|_| Server::start()).collect();
    let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let leases = lazy(&urls).command_timeout(SOON).build().await.unwrap();
    leases.health().await.unwrap();
    proxies[0].black_hole(true);
    leases.health().await.unwrap();
    proxies[1].black_hole(true);
    let (began, lag) = (Instant::now(), Lag::start());
    let error = leases.health().await.unwrap_err();
    let took = began.elapsed();
    assert!(took < SOON * 2 + lag.worst(), "{took:?}");
    assert_eq!(error.votes().map(|votes| (votes.granted(), votes.needed())), Some((1, 2)), "{error}");
    leases.shutdown(SOON).await;
    assert!(matches!(leases.health().await.unwrap_err(), Error::Closed));
}

#[tokio::test]
async fn a_server_that_may_have_forgotten_is_not_ready_and_says_when() {
    const DELAY: Duration = Duration::from_secs(20);
    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(SOON).restart_delay(DELAY).build().await.unwrap();
    let refused = leases.lock("job").try_acquire().await.unwrap_err();
    for error in [refused, leases.health().await.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
        assert!(error.retry_after().is_some_and(|wait| wait <= DELAY && wait > DELAY / 2), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_try_has_its_own_time_beside_that_of_the_connection() {
    const COMMAND: Duration = Duration::from_millis(400);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // A connection takes several round trips, so it takes longer than the command time-out.
    proxy.delay(COMMAND / 5);
    for fair in [false, true] {
        let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build_lazy().unwrap();
        let began = Instant::now();
        let lease = within(HANGS, "the lock", leases.lock("job").fair(fair).try_acquire()).await;
        assert!(began.elapsed() > COMMAND, "the premise: {:?}", began.elapsed());
        lease.unwrap().expect("it is free").release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_come_during_one_try_to_connect_do_not_wait_for_one_try_each() {
    const MANY: u32 = 10;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.black_hole(true);
    let leases = lazy(&[proxy.url()]).command_timeout(SOON).build_lazy().unwrap();
    let (began, lag) = (Instant::now(), Lag::start());
    let tries: Vec<_> = (0..MANY).map(|n| tokio::spawn(leases.lock(format!("job:{n}")).try_acquire())).collect();
    let waiting: Vec<_> = (0..MANY).map(|n| tokio::spawn(leases.lock(format!("turn:{n}")).acquire())).collect();
    for tried in tries {
        let error = within(HANGS, "the try", tried).await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
    }
    assert!(matches!(leases.health().await.unwrap_err(), Error::Unavailable(_)));
    let took = began.elapsed();
    assert!(took < SOON * 4 + lag.worst(), "{took:?}");
    proxy.black_hole(false);
    for waiting in waiting {
        within(HANGS, "the lock", waiting).await.unwrap().unwrap().release().await.unwrap().confirmed();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_who_all_give_up_too_early_connect_together() {
    for nodes in [1, 3] {
        let servers: Vec<Server> = (0..nodes).map(|_| Server::start()).collect();
        let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
        for proxy in &proxies {
            proxy.delay(SOON / 10);
        }
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let leases = lazy(&urls).connect_timeout(HANGS).build_lazy().unwrap();
        let (lock, mut gave_up) = (leases.lock("job"), 0);
        // No call waits as long as a connection takes.
        while let Err(error) = within(HANGS, "the try", lock.acquire_within(SOON / 2)).await {
            if !error.to_string().contains("could be reached") {
                break;
            }
            gave_up += 1;
            assert!(gave_up < 50, "{error}");
        }
        within(HANGS, "the lock", lock.acquire()).await.unwrap().release().await.unwrap().confirmed();
        assert!(gave_up > 0, "the premise");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_a_first_question_and_leaves_no_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.freeze(true);
    let leases = Client::connect_lazy(proxy.url()).unwrap();
    let asking = tokio::spawn({
        let leases = leases.clone();
        async move { leases.health().await }
    });
    eventually_async(HANGS, "a connection", || proxy.connections() > 0).await;
    leases.close().await;
    assert!(matches!(within(HANGS, "the question's end", asking).await.unwrap(), Err(Error::Closed)));
    proxy.freeze(false);
    eventually_async(HANGS, "the connections to be closed", || proxy.connections() == 0).await;
}

/// The first user's connection would be opened on that runtime, which never polls it.
#[test]
fn a_first_user_whose_runtime_stands_still_holds_up_the_others_for_one_try() {
    let server = Server::start();
    let leases = lazy(&[server.url()]).build_lazy().unwrap();
    let still = one_thread();
    let mut first = Box::pin(leases.lock("first").acquire());
    let begun =
        still.block_on(async { std::future::poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await });
    assert!(begun.is_pending(), "the premise");
    one_thread().block_on(async {
        let lease = within(HANGS, "the lock", leases.lock("job").acquire()).await.unwrap();
        lease.release().await.unwrap().confirmed();
    });
    still
        .block_on(async { within(HANGS, "the first user", first).await.unwrap().release().await.unwrap().confirmed() });
}

#[tokio::test]
async fn whatever_a_server_answers_counts_as_its_last_answer() {
    let server = Server::start();
    let leases = Client::connect(server.url()).await.unwrap();
    leases.lock("job").acquire().await.unwrap().release().await.unwrap();
    server.wire().must(&["SET", "job", "somebody", "PX", "60000"]);
    let lock = leases.lock("job").fair(true);
    let since = |asked: Instant, what| {
        let ago = leases.nodes()[0].last_answer().unwrap();
        assert!(ago <= asked.elapsed(), "the answer to {what} is not the last one, which came {ago:?} ago");
    };
    let asked = Instant::now();
    lock.acquire_within(Duration::from_millis(20)).await.unwrap_err();
    since(asked, "a fair poll");
    let asked = Instant::now();
    lock.waiters().await.unwrap();
    since(asked, "a look at the queue");
}

#[tokio::test]
async fn what_a_server_says_of_a_key_is_no_trouble_of_the_server() {
    let server = Server::start();
    let (leases, mut wire) = (Client::connect(server.url()).await.unwrap(), server.wire());
    for key in ["job", "job:lh:fence", "{job}:lh:queue"] {
        wire.must(&["RPUSH", key, "a list"]);
    }
    let lock = leases.lock("job");
    let refused = [lock.waiters().await.map(drop).unwrap_err(), lock.force_release().await.map(drop).unwrap_err()];
    assert!(refused.iter().all(|error| matches!(error, Error::Refused(_))), "{refused:?}");
    assert_eq!(leases.nodes()[0].state(), &NodeState::Up);
}

/// A connection is opened by a task of the program's runtime, but its timers are the keeper's, which end with the last
/// `Client`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_connects_any_more_once_a_leases_is_dropped() {
    const CONNECT: Duration = Duration::from_secs(1);
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.black_hole(true);
    let leases = Client::builder().url(proxy.url()).connect_timeout(CONNECT).build_lazy().unwrap();
    let outcome = tokio::time::timeout(CONNECT / 4, leases.lock("job").acquire()).await;
    assert!(outcome.is_err(), "the premise: it hangs");
    drop(leases);
    let (before, tasks) = (proxy.connections(), tokio::runtime::Handle::current().metrics());
    eventually_async(HANGS, "every task has ended", || tasks.num_alive_tasks() == 0).await;
    let more = proxy.connections() - before;
    // One try may be under way on each of the two connections.
    assert!(more <= 2, "{more} more connections were made");
}

#[tokio::test]
async fn the_source_of_an_error_is_what_the_system_or_the_server_said() {
    let nobody = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).unwrap();
    let unreachable = Client::connect(format!("redis://{nobody}")).await.unwrap_err();
    let system = unreachable.source().and_then(|source| source.downcast_ref::<io::Error>());
    assert_eq!(system.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused), "{unreachable:?}");
    assert_eq!(unreachable.server_code(), None);

    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(Duration::from_secs(1)).build().await.unwrap();
    let lease = leases.lock("job").acquire().await.unwrap();
    server.wire().must(&["CONFIG", "SET", "requirepass", "sesame"]);
    let refused = Client::connect(server.url()).await.unwrap_err();
    assert_eq!((refused.server_code(), Error::is_transient(&refused)), (Some("NOAUTH"), false));
    assert_eq!(refused.source().unwrap().to_string(), "NOAUTH Authentication required.");
    lease.release().await.unwrap().confirmed();

    // Errors compare by variant, whatever the text.
    assert_eq!(unreachable, lazy(&["redis://[::1]:1".into()]).build().await.unwrap_err());
    assert_ne!(unreachable, refused);
    assert!(Error::Closed.source().is_none());
}
