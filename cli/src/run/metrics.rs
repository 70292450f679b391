//! Measurements for whoever asks over HTTP.

use std::net::SocketAddr;

use metrics_exporter_prometheus::PrometheusBuilder;

/// The smallest and the largest too: one tells of losses to come, the other how long a job took.
const QUANTILES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];

/// Serves them from now on, on this runtime.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
pub(super) fn serve(address: SocketAddr) -> Result<(), String> {
    let failed = |why: String| format!("--metrics-addr {address}: {why}");
    let exporter = PrometheusBuilder::new().with_http_listener(address).set_quantiles(&QUANTILES);
    let (recorder, serving) = exporter.and_then(PrometheusBuilder::build).map_err(|error| failed(error.to_string()))?;
    metrics::set_global_recorder(recorder).map_err(|error| failed(error.to_string()))?;
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            crate::say::tell(format_args!("no measurements any more: {error:?}"));
        }
    });
    Ok(())
}
