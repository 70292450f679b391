//! One server that may have forgotten: with a restart delay it grants nothing until every lease that it knew has
//! expired.

use std::time::{Duration, Instant};

use leasehold::{Builder, Client, Error, LossReason, NodeState};
use support::{ClockShim, HANGS, Proxy, Server, within};

use crate::fair::line::{had, place};

const TTL: Duration = Duration::from_secs(1);
const DELAY: Duration = Duration::from_secs(2);

fn builder(server: &Server, label: &str) -> Builder {
    Client::builder().url(server.url()).ttl(TTL).restart_delay(DELAY).label(label)
}

/// A server that seems to have been up for an hour. Its next run seems so only an hour later.
fn old() -> (Server, ClockShim) {
    let clock = ClockShim::new();
    let server = Server::builder().clock(&clock).start();
    clock.forward(Duration::from_secs(60 * 60));
    (server, clock)
}

/// Restarts the server empty. Returns when it was down: its uptime counts from a later moment.
fn forget(server: &Server) -> Instant {
    server.kill();
    let killed = Instant::now();
    server.restart();
    killed
}

/// The error of tries once they reach the server: it is recovering.
async fn refused(leases: &Client, fair: bool) -> Error {
    let tried = Instant::now();
    loop {
        // The connection's end may not have been noticed yet.
        match leases.lock("job").fair(fair).try_acquire().await {
            Err(error @ Error::Unavailable(_)) if error.to_string().contains("recovering") => return error,
            Ok(Some(_)) => panic!("granted after {:?}", tried.elapsed()),
            _ => assert!(tried.elapsed() < HANGS),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_a_server_restarted_empty_grants_no_lock_that_may_be_held() {
    let (server, _clock) = old();
    let (one, two) = (builder(&server, "one").build().await.unwrap(), builder(&server, "two").build().await.unwrap());
    let lease = one.lock("job").acquire().await.unwrap();
    let (fence, lost) = (lease.fence(), tokio::spawn(lease.lost()));

    let killed = forget(&server);
    let refused = refused(&two, false).await;
    assert!(refused.to_string().contains(&format!("127.0.0.1:{}", server.port())), "{refused}");
    let state = two.nodes().remove(0).state().clone();
    assert!(matches!(state, NodeState::Recovering { remaining } if remaining <= DELAY), "{state:?}");

    let waiter = tokio::spawn(two.lock("job").acquire());
    assert_eq!(within(HANGS, "the loss", lost).await.unwrap().reason(), LossReason::Deleted);
    let second = within(HANGS, "the waiter", waiter).await.unwrap().unwrap();
    // Uptime is counted in whole seconds.
    let waited = killed.elapsed();
    assert!(waited >= TTL, "{waited:?}");
    assert!(second.fence() > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_a_server_restarted_empty_grants_no_fair_waiter_a_lock_that_may_be_held() {
    let (server, _clock) = old();
    let proxy = Proxy::to(&server);
    let one = builder(&server, "one").url(proxy.url()).build().await.unwrap();
    let (two, three) =
        (builder(&server, "two").build().await.unwrap(), builder(&server, "three").build().await.unwrap());
    let lease = one.lock("job").acquire().await.unwrap();
    let waiter = place(&two.lock("job")).await;

    // The holder gets no answer, and believes until its deadline.
    proxy.black_hole(true);
    let killed = forget(&server);
    let refused = refused(&three, true).await;
    assert!(
        refused.is_transient() && refused.to_string().contains(&format!("127.0.0.1:{}", server.port())),
        "{refused}"
    );
    let state = three.nodes().remove(0).state().clone();
    assert!(matches!(state, NodeState::Recovering { remaining } if remaining <= DELAY), "{state:?}");

    let (second, at) = had(waiter).await;
    assert!(!lease.is_held(), "two holders");
    // Uptime is counted in whole seconds.
    let waited = at.saturating_duration_since(killed);
    assert!(waited >= TTL, "{waited:?}");
    assert!(second.fence() > lease.fence());
}

#[tokio::test]
async fn without_a_restart_delay_a_new_server_grants_at_once() {
    let server = Server::start();
    let leases = Client::builder().url(server.url()).ttl(TTL).build().await.unwrap();
    assert!(leases.lock("job").try_acquire().await.unwrap().is_some());
    let with = builder(&server, "one").build().await.unwrap();
    let error = with.lock("another job").try_acquire().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("votes in"), "{error}");
}

#[tokio::test]
async fn a_ttl_longer_than_the_restart_delay_is_refused() {
    let server = Server::start();
    let error = builder(&server, "one").ttl(DELAY).build().await.unwrap_err().to_string();
    assert!(error.contains("ttl is 2s") && error.contains("restart_delay"), "{error}");
    let leases = builder(&server, "one").build().await.unwrap();
    let error = leases.lock("job").ttl(Duration::from_millis(1_001)).try_acquire().await.unwrap_err();
    assert!(matches!(&error, Error::Config(error) if error.to_string().contains("1.001s")), "{error}");
    let error = builder(&server, "one").restart_delay(Duration::from_secs(90_000)).build().await.unwrap_err();
    assert!(error.to_string().contains("restart_delay is 90000s"), "{error}");
}
