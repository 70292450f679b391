//! Metrics: served over HTTP while a command runs, and written to a file when it has ended.

use std::{
    fs::{self, Permissions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process,
    time::{Duration, SystemTime},
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::exit::Exit;

/// The quantiles to serve. The smallest value warns of losses to come, and the largest shows how long a job took.
const QUANTILES: [f64; 5] = [0.0, 0.5, 0.9, 0.99, 1.0];

/// The most scrapers to answer at a time: each takes a descriptor, and ending the job may need some.
const AT_ONCE: usize = 16;

/// The longest time for one scraper to send its request and read the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often to process the values of histograms, even without a scrape.
const UPKEEP: Duration = Duration::from_secs(5);

/// The longest request, in bytes.
const LONGEST: usize = 8 * 1_024;

/// Serves the metrics from now on, on this runtime.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
pub(super) async fn serve(address: SocketAddr) -> Result<(), String> {
    let failed = |why: String| format!("--metrics-addr {address}: {why}");
    let listener = TcpListener::bind(address).await.map_err(|error| failed(error.to_string()))?;
    let exporter = PrometheusBuilder::new().set_quantiles(&QUANTILES).map_err(|error| failed(error.to_string()))?;
    let recorder = exporter.build_recorder();
    let metrics = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| failed(error.to_string()))?;
    tokio::spawn(answer_all(listener, metrics));
    Ok(())
}

async fn answer_all(listener: TcpListener, metrics: PrometheusHandle) {
    let (mut answers, mut upkeep) = (JoinSet::new(), tokio::time::interval(UPKEEP));
    loop {
        tokio::select! {
            Some(_) = answers.join_next() => {}
            accepted = listener.accept(), if answers.len() < AT_ONCE => match accepted {
                Ok((scraper, _)) => {
                    let metrics = metrics.clone();
                    answers.spawn(async move { timeout(PATIENCE, answer(scraper, &metrics)).await });
                }
                // A descriptor may be free again by then.
                Err(_) => tokio::time::sleep(PATIENCE).await,
            },
            _ = upkeep.tick() => metrics.run_upkeep(),
        }
    }
}

/// Answers any request with the metrics.
async fn answer(mut scraper: TcpStream, metrics: &PrometheusHandle) -> io::Result<()> {
    let (mut asked, mut some) = (Vec::<u8>::new(), [0; 1_024]);
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        match scraper.read(&mut some).await? {
            read @ 1.. if asked.len() < LONGEST => asked.extend(some.iter().take(read)),
            _ => return Ok(()),
        }
    }
    let text = metrics.render();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close\r\n";
    scraper.write_all(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes()).await?;
    scraper.shutdown().await
}

/// Writes how a run has ended, for the node exporter's textfile collector: all of it, or nothing.
pub(super) fn write(file: &Path, lock: &str, exit: Exit, ran: Duration) -> io::Result<()> {
    // A new file takes the place of what is there. Of a device, that would harm the machine.
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("it is no regular file, so it is not replaced"));
    }
    let mut unfinished = file.file_name().unwrap_or_default().to_owned();
    // The collector reads names that end in `.prom`.
    unfinished.push(format!(".{}.tmp", process::id()));
    let unfinished = file.with_file_name(unfinished);
    let written =
        write_new(&unfinished, &text(lock, exit, ran, wall_clock())).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _was_never_there = fs::remove_file(&unfinished);
    }
    written
}

/// Writes a new file, and never through a link: others may write to the directory too, and guess the name.
fn write_new(file: &Path, text: &str) -> io::Result<()> {
    let _left_behind = fs::remove_file(file);
    let mut file = fs::File::create_new(file)?;
    // The collector runs as another user, so our umask must not apply.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())
}

#[allow(clippy::disallowed_methods, reason = "no lease is judged by it: it is told to Prometheus")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The metrics in the format of Prometheus.
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
    fn nothing_is_written_through_a_link() {
        let directory = std::env::temp_dir().join(format!("leasehold-link-{}", process::id()));
        fs::create_dir(&directory).unwrap();
        let (file, other) = (directory.join("job.prom"), directory.join("other"));
        fs::write(&other, "theirs").unwrap();
        std::os::unix::fs::symlink(&other, directory.join(format!("job.prom.{}.tmp", process::id()))).unwrap();
        let written = write(&file, "job", Exit::Command(0), Duration::ZERO);
        let (ours, theirs) = (fs::read_to_string(&file), fs::read_to_string(&other));
        fs::remove_dir_all(&directory).unwrap();
        assert!(written.is_ok() && ours.unwrap().contains("leasehold_run_exit_code"));
        assert_eq!(theirs.unwrap(), "theirs");
    }

    #[test]
    fn nothing_but_a_file_is_replaced() {
        let path = std::env::temp_dir().join(format!("leasehold-socket-{}", process::id()));
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let written = write(&path, "job", Exit::Command(0), Duration::ZERO);
        let is_there = std::os::unix::net::UnixStream::connect(&path).is_ok();
        fs::remove_file(&path).unwrap();
        assert!(written.unwrap_err().to_string().contains("no regular file") && is_there);
        drop(socket);
    }

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
