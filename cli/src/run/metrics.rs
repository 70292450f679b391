//! Measurements: for whoever asks over HTTP while a command runs, and in a file when it has ended.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    process,
    time::{Duration, SystemTime},
};

use metrics_exporter_prometheus::PrometheusBuilder;

use crate::exit::Exit;

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

/// Writes how a run has ended, for the node exporter's textfile collector: all of it, or nothing.
pub(super) fn write(file: &Path, lock: &str, exit: Exit, ran: Duration) -> io::Result<()> {
    let mut unfinished = file.file_name().unwrap_or_default().to_owned();
    // The collector reads names that end in `.prom`.
    unfinished.push(format!(".{}.tmp", process::id()));
    let unfinished = file.with_file_name(unfinished);
    let written =
        fs::write(&unfinished, text(lock, exit, ran, wall_clock())).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _was_never_there = fs::remove_file(&unfinished);
    }
    written
}

#[allow(clippy::disallowed_methods, reason = "no lease is judged by it: it is told to Prometheus")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// By the format of Prometheus.
fn text(lock: &str, exit: Exit, ran: Duration, now: Duration) -> String {
    let lock = lock.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    let seconds = |duration: Duration| format!("{:.3}", duration.as_secs_f64());
    let is = |what: bool| u8::from(what).to_string();
    [
        ("last_timestamp_seconds", "When the last run ended.", seconds(now)),
        ("duration_seconds", "How long the last run held the lock.", seconds(ran)),
        ("exit_code", "The exit code of the last run.", exit.code().to_string()),
        ("busy", "Whether the lock was held, so that the command did not run.", is(matches!(exit, Exit::Conflict(_)))),
        ("losses", "Whether the lock was lost, or --max-hold was over.", is(exit == Exit::Lost)),
    ]
    .map(|(metric, help, value)| {
        let name = format!("leasehold_run_{metric}");
        format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{lock=\"{lock}\"}} {value}\n")
    })
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_escaped() {
        let text = text("a\\b\"c\nd", Exit::Conflict(0), Duration::from_millis(1_500), Duration::from_secs(7));
        for line in [
            r#"leasehold_run_last_timestamp_seconds{lock="a\\b\"c\nd"} 7.000"#,
            r#"leasehold_run_duration_seconds{lock="a\\b\"c\nd"} 1.500"#,
            r#"leasehold_run_exit_code{lock="a\\b\"c\nd"} 0"#,
            r#"leasehold_run_busy{lock="a\\b\"c\nd"} 1"#,
            r#"leasehold_run_losses{lock="a\\b\"c\nd"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
}
