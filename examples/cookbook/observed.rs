//! Logs and metrics of a lease, set up as in a program.
//!
//! Three traps. The library logs the steps of a lease (acquired, renewed, released) at level DEBUG: without the filter
//! line you see trouble only. Install the exporter before the first `Client`, or it knows no descriptions. And without
//! buckets the exporter renders summaries, whose quantiles you cannot add up over machines. A renewal takes
//! milliseconds and a job takes hours, so each histogram needs buckets of its own.
//!
//! ```text
//! cargo run -p leasehold-cookbook --example observed
//! RUST_LOG=leasehold=info cargo run -p leasehold-cookbook --example observed
//! ```

use std::{env, error::Error, time::Duration};

use leasehold::Client;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::{sleep, timeout};
use tracing::Level;
use tracing_subscriber::EnvFilter;

/// Logs the steps of leases, and otherwise only level INFO and above. `leasehold=info` is for a busy program.
const FILTER: &str = "info,leasehold=debug";

fn log() -> Result<(), Box<dyn Error + Send + Sync>> {
    let filter = EnvFilter::try_new(env::var("RUST_LOG").as_deref().unwrap_or(FILTER))?;
    tracing_subscriber::fmt().with_env_filter(filter).try_init()
}

fn measure() -> Result<PrometheusHandle, Box<dyn Error>> {
    let full = |name: &str| Matcher::Full(format!("leasehold_{name}"));
    // In seconds: for round trips, and for times from "free" to "all night".
    let (round_trip, long) =
        ([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0], [0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36e3]);
    let exporter = PrometheusBuilder::new()
        .set_buckets_for_metric(full("renewal_seconds"), &round_trip)?
        .set_buckets_for_metric(full("wait_seconds"), &long)?
        .set_buckets_for_metric(full("hold_seconds"), &long)?
        // The remaining share of the TTL at a renewal: two thirds in good health, 0 is a loss.
        .set_buckets_for_metric(full("renewal_remaining_ratio"), &[0.1, 0.25, 0.5, 0.6, 0.65, 0.7, 1.0])?;
    // A service uses `with_http_listener(…).install()` of the feature `http-listener`, or serves `render()` by itself.
    Ok(exporter.install_recorder()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    log()?;
    let metrics = measure().map_err(|error| error.to_string())?;
    if env::var("RUST_LOG").is_err() {
        assert!(tracing::enabled!(target: "leasehold", Level::DEBUG), "the steps are shown");
        assert!(!tracing::enabled!(target: "fred", Level::DEBUG), "and not those of the client below");
    }

    let url = env::var("REDIS_URL").unwrap_or_else(|_| "memory://".into());
    let client = Client::connect(url).await?;
    let lock = client.lock("examples:observed");
    let lease = lock.acquire().await?;
    // The keeper does this after a third of the TTL.
    lease.renew().await?;
    assert!(lock.try_acquire().await?.is_none());
    lease.release().await?;
    // Taken away by force: a warning, and a loss to be counted.
    let lease = lock.acquire().await?;
    lock.force_release().await?;
    let lost = lease.lost().await;
    tracing::error!("the job stops: {lost}");
    drop(lease);
    client.close().await;

    let expected = [
        r#"leasehold_acquires_total{outcome="acquired",mode="exclusive"} 2"#,
        r#"leasehold_acquires_total{outcome="busy",mode="exclusive"} 1"#,
        r#"leasehold_losses_total{reason="forced"} 1"#,
        r#"leasehold_renewal_seconds_bucket{le="2"} "#,
        r#"leasehold_hold_seconds_bucket{le="36000"} 2"#,
        r#"leasehold_held{mode="exclusive"} 0"#,
    ];
    // The library updates the exporter in the background, so that an exporter that blocks delays no lease.
    let text = timeout(Duration::from_secs(10), async {
        loop {
            let text = metrics.render();
            if expected.iter().all(|start| text.lines().any(|line| line.starts_with(start))) {
                return text;
            }
            sleep(Duration::from_millis(10)).await;
        }
    });
    println!("\n{}", text.await.map_err(|_| metrics.render())?);
    Ok(())
}
