//! The metrics of leases and their faults, as an exporter sees them (feature `metrics`).

// The library's doors for time and tasks are not those of its tests.
#![allow(clippy::disallowed_methods)]
// A helper that cannot do its work has to stop the test and say why.
#![allow(clippy::expect_used)]

use std::time::Duration;

use leasehold::{Leases, LossReason, Owner, Status};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::{HANGS, Server, eventually_async, within};

const TTL: Duration = Duration::from_secs(4);

/// What stands there behind this name, with its label if it has one.
fn told(exporter: &PrometheusHandle, name: &str) -> Option<f64> {
    let text = exporter.render();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// One for all: a recorder is the whole process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_their_faults_are_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let exporter = recorder.handle();
    metrics::set_global_recorder(recorder).expect("it is the first");
    let told = |name: &str| told(&exporter, name);
    let gauges = || ["leasehold_held", "leasehold_waiting", "leasehold_at_risk"].map(&told);
    let server = Server::start();
    let leases = Leases::builder().url(server.url()).ttl(TTL).build().await.expect("it is there");
    let lock = leases.lock("job").owner(Owner::anonymous());

    let lease = lock.acquire().await.expect("it is free");
    assert_eq!(gauges(), [Some(1.0), Some(0.0), Some(0.0)]);
    let waiter = tokio::spawn(lock.acquire());
    eventually_async(HANGS, "one waits", || gauges() == [Some(1.0), Some(1.0), Some(0.0)]).await;
    waiter.abort();
    eventually_async(HANGS, "nobody waits", || gauges() == [Some(1.0), Some(0.0), Some(0.0)]).await;
    assert_eq!(told("leasehold_acquires_total{outcome=\"abandoned\"}"), Some(1.0));
    assert!(lock.try_acquire().await.expect("the server is well").is_none());
    assert_eq!(told("leasehold_acquires_total{outcome=\"timed_out\"}"), Some(1.0));

    lease.renew().await.expect("the server is well");
    for quantile in ["0", "1"] {
        let ratio = told(&format!("leasehold_renewal_remaining_ratio{{quantile=\"{quantile}\"}}"));
        assert!(ratio.is_some_and(|ratio| ratio > 0.0 && ratio <= 1.0), "{ratio:?}");
    }
    assert!(told("leasehold_renewal_seconds_count").is_some_and(|renewals| renewals >= 1.0));

    server.stop();
    let mut changes = lease.status_changes();
    assert_eq!(within(HANGS, "it is at risk", changes.next()).await, Some(Status::AtRisk));
    eventually_async(HANGS, "it is told", || gauges() == [Some(1.0), Some(0.0), Some(1.0)]).await;
    server.cont();
    assert_eq!(within(HANGS, "it is well", changes.next()).await, Some(Status::Held));
    eventually_async(HANGS, "it is told", || gauges() == [Some(1.0), Some(0.0), Some(0.0)]).await;

    server.wire().del("job");
    assert_eq!(within(HANGS, "it is lost", lease.lost()).await.reason(), LossReason::Deleted);
    eventually_async(HANGS, "it is told", || gauges() == [Some(0.0), Some(0.0), Some(0.0)]).await;
    assert_eq!(told("leasehold_losses_total{reason=\"deleted\"}"), Some(1.0));
    drop(lease);

    let next = lock.acquire().await.expect("it is free");
    next.release().await.expect("it was ours");
    assert_eq!(gauges(), [Some(0.0), Some(0.0), Some(0.0)]);
    assert_eq!(told("leasehold_hold_seconds_count"), Some(2.0));
    assert_eq!(told("leasehold_wait_seconds_count"), Some(2.0), "of those that had it");
    assert!(exporter.render().contains("# HELP leasehold_held "), "an exporter is told what it is");
}
