//! F93: a request that is queued when its connection ends, and dropped meanwhile, is never sent.

use std::time::{Duration, Instant};

use leasehold::Client;
use support::{
    Action, HANGS, Match, Proxy, Server, eventually_async,
    scripts::{ACQUIRE, RELEASE},
    within,
};

use crate::common::COMMAND;

/// The TTL of the dropped acquire, whose undo gives up after it.
const TTL: Duration = Duration::from_secs(1);

/// Pushes are on when the request connection ends, so an acquire that is to be tracked finds no connection. Then the
/// push connection is cut too, and the acquire is dropped. The server is back after the undo has given up.
#[tokio::test(flavor = "multi_thread")]
async fn f93_an_acquire_that_was_queued_and_dropped_takes_no_lock_after_the_outage() {
    let server = Server::start();
    let mut wire = server.wire();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).command_timeout(COMMAND).build().await.expect("it is there");

    wire.must(&["SET", "job", "somebody", "PX", "2000"]);
    let tracked =
        Match::with(|args| args.first().is_some_and(|name| name == b"CLIENT") && args.contains(&b"CACHING".to_vec()));
    let lock = leases.lock("job").ttl(TTL);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually_async(HANGS, "the waiter has the key tracked", || proxy.count(tracked.clone()) > 0).await;

    // The release of a dropped lease uses the connection of the waiter's checks, and ends it.
    let other = leases.lock("other").try_acquire().await.expect("it is free").expect("it is free");
    let release = proxy.on(Match::script(RELEASE), 1, Action::CutBefore);
    proxy.refuse(true);
    drop(other);
    within(HANGS, "the connection ends", release.hit()).await;

    // The holder's key expires, so the waiter checks it, but has no connection to send on.
    eventually_async(HANGS, "the key expires", || !wire.exists("job")).await;
    tokio::time::sleep(COMMAND / 2).await;
    proxy.cut();
    waiter.abort();
    let dropped = Instant::now();
    assert!(waiter.await.is_err_and(|error| error.is_cancelled()), "the acquire did not wait: the premise");
    // Longer than the undo of an attempt lasts.
    tokio::time::sleep(TTL + 2 * COMMAND).await;

    proxy.forget();
    proxy.refuse(false);
    // Queued requests would be sent before these.
    for name in ["one", "two"] {
        let lease = within(HANGS, "the server is back", leases.lock(name).acquire()).await.expect("it is free");
        drop(lease);
    }
    let late = Match::script(ACQUIRE).and(Match::containing("job"));
    eventually_async(HANGS, "both connections are back", || proxy.count(Match::script(RELEASE)) >= 2).await;
    assert_eq!(proxy.count(late), 0, "{:?} after it was dropped", dropped.elapsed());
    assert!(!wire.exists("job"));
}
