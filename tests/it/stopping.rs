//! Holders that are asked to stop: by a shutdown, or because their deadline is near.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Barrier},
    task::{Context, Waker},
    time::Duration,
};

use leasehold::{Client, Error, Lease, LossReason, Owner};
use support::{HANGS, Proxy, Server, within};

async fn held(leases: &Client, many: usize) -> Vec<Lease> {
    let mut held = Vec::new();
    for at in 0..many {
        held.push(leases.lock(format!("job:{at}")).acquire().await.unwrap());
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lease_that_is_shared_while_a_shutdown_begins_is_asked_to_stop() {
    for _ in 0..300 {
        let leases = Client::in_memory();
        let held = held(&leases, 20).await;
        let (handles, start): (Vec<_>, _) = (held.iter().map(Lease::handle).collect(), Arc::new(Barrier::new(2)));
        let shutdown = tokio::spawn({
            let start = start.clone();
            async move {
                start.wait();
                leases.shutdown(HANGS).await
            }
        });
        let sharing = tokio::task::spawn_blocking(move || {
            start.wait();
            handles.iter().rev().map(|handle| handle.share().unwrap()).collect::<Vec<_>>()
        });
        let shared = within(HANGS, "the leases", sharing).await.unwrap();
        for lease in held.iter().chain(&shared) {
            assert_eq!(within(HANGS, "the signal", lease.lost()).await.reason(), LossReason::Closing);
        }
        drop((held, shared));
        assert_eq!(within(HANGS, "the shutdown", shutdown).await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_grace_has_asked_one_lease_is_not_told_to_those_that_join_it() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let leases = Client::builder().url(proxy.url()).ttl(Duration::from_secs(1)).build().await.unwrap();
    let lock = leases.lock("job").reentrant(true).owner(Owner::unique());
    let mut shutdown = None;
    let work = async |lease: leasehold::LeaseHandle| {
        proxy.freeze(true);
        assert_eq!(within(HANGS, "the signal", lease.lost()).await.reason(), LossReason::Expiring);
        let mut changes = lease.status_changes();
        proxy.freeze(false);
        within(HANGS, "a renewal", changes.next()).await;
        let other = within(HANGS, "re-entry", lock.acquire()).await.unwrap();
        assert_eq!((other.hold_count(), other.cancellation_token().is_cancelled()), (2, false), "{other:?}");
        let mut lost = pin!(other.lost());
        assert!(lost.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // A shutdown asks both, and any holder that joins later.
        shutdown = Some(tokio::spawn({
            let leases = leases.clone();
            async move { leases.shutdown(HANGS).await }
        }));
        assert_eq!(within(HANGS, "the shutdown's signal", lost).await.reason(), LossReason::Closing);
        let third = lease.share().unwrap();
        assert_eq!(within(HANGS, "its signal too", third.lost()).await.reason(), LossReason::Closing);
        Ok::<_, Error>(())
    };
    let run = Box::pin(lock.clone().grace(Duration::from_millis(400)).run(work));
    within(HANGS, "the run", run).await.unwrap();
    assert_eq!(within(HANGS, "the shutdown", shutdown.expect("it began")).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_shutdown_tells_how_many_leases_were_cut_short_whoever_did_it() {
    const LIMIT: Duration = Duration::from_millis(100);
    let leases = Client::in_memory();
    let kept = held(&leases, 2).await;
    let _shared = kept[0].as_handle().share().unwrap();
    let (first, second) = tokio::join!(leases.shutdown(LIMIT), leases.shutdown(HANGS));
    assert_eq!((first, second), (3, 3), "neither must report that all went well");
    assert_eq!(within(HANGS, "one more", leases.shutdown(HANGS)).await, 3);

    let leases = Client::in_memory();
    let _kept = held(&leases, 1).await;
    let closing = async {
        tokio::time::sleep(LIMIT).await;
        leases.close().await;
    };
    assert_eq!(tokio::join!(leases.shutdown(HANGS), closing).0, 1, "closed by another task");
}
