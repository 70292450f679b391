//! Work that is given time to tidy up before its lease expires.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Client, Error, LossReason, Status};
use support::{HANGS, Lag, Proxy, Server, within};
use tokio::sync::oneshot;

use crate::common::ending;

const TTL: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(400);

struct Scene {
    _server: Server,
    proxy: Proxy,
    leases: Client,
    lag: Lag,
}

impl Scene {
    async fn start() -> Self {
        let server = Server::start();
        let proxy = Proxy::to(&server);
        let leases = Client::builder().url(proxy.url()).ttl(TTL).build().await.unwrap();
        Self { _server: server, proxy, leases, lag: Lag::start() }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_is_asked_to_stop_while_its_lease_still_protects_it() {
    let Scene { proxy, leases, lag, _server } = Scene::start().await;
    let work = async |lease: leasehold::LeaseHandle| {
        proxy.freeze(true);
        let token = lease.cancellation_token();
        let lost = within(HANGS, "the signal", lease.lost()).await;
        let left = lease.remaining();
        assert_eq!((lost.reason(), token.is_cancelled()), (LossReason::Expiring, true));
        assert_eq!(lease.status(), Status::AtRisk);
        lease.check().unwrap();
        assert!(left <= GRACE && left + lag.worst() + Duration::from_millis(20) >= GRACE, "{left:?}");
        tokio::time::sleep(left / 4).await;
        lease.check().unwrap();
        Ok::<_, Error>("tidied up")
    };
    let outcome = within(HANGS, "the run", leases.lock("job").grace(GRACE).run(work)).await;
    assert_eq!(outcome.unwrap(), "tidied up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_does_not_stop_is_dropped_when_its_grace_is_over() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let Scene { proxy, leases, lag, _server } = Scene::start().await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Dropped(dropped.clone());
    let ((begin, begun), (tell, asked)) = (oneshot::channel(), oneshot::channel());
    let work = async move |lease: leasehold::LeaseHandle| {
        let _flag = flag;
        begin.send(()).unwrap();
        lease.lost().await;
        tell.send(Instant::now()).unwrap();
        std::future::pending::<Result<(), Error>>().await
    };
    let run = tokio::spawn(leases.lock("job").grace(GRACE).run(work));
    within(HANGS, "the work", begun).await.unwrap();
    proxy.freeze(true);
    let lost = ending(within(HANGS, "the run", run).await.unwrap());
    let took = asked.await.unwrap().elapsed();
    assert_eq!(lost.reason(), LossReason::Expired);
    assert!(dropped.load(Ordering::SeqCst));
    let slack = lag.worst() + Duration::from_millis(50);
    assert!(took + slack >= GRACE && took <= GRACE + slack, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_when_the_server_is_back_in_time() {
    let Scene { proxy, leases, .. } = &Scene::start().await;
    let work = async |lease: leasehold::LeaseHandle| {
        proxy.freeze(true);
        within(HANGS, "the signal", lease.lost()).await;
        let mut changes = lease.status_changes();
        proxy.freeze(false);
        assert_eq!(within(HANGS, "a renewal", changes.next()).await, Some(Status::Held));
        // The work was asked to stop and does not: the lease protects it, and it is not cut short.
        tokio::time::sleep(TTL * 2).await;
        lease.check()
    };
    within(HANGS, "the run", leases.lock("job").grace(GRACE).run(work)).await.unwrap();
}
