//! The progress of a command: messages to a socket, as a service of systemd sends them, or a file that changes.

use std::{
    env,
    ffi::OsString,
    fs, io,
    mem::replace,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, SystemTime},
};

use rustix::process::getpid;
use tokio::{net::UnixDatagram, sync::Notify, time::sleep};

use super::now;
use crate::{
    args::Run,
    duration::written,
    exit::{Ended, Exit},
    say::tell,
};

/// How often to check the file, if that is often enough for the span.
const LOOK: Duration = Duration::from_millis(250);

/// The longest message that is read: those of services have a few lines.
const LONGEST: usize = 4096;

pub(super) struct Progress {
    span: Duration,
    source: Source,
    /// When it was reported last.
    last: Mutex<Duration>,
}

enum Source {
    Socket(Listener),
    /// Notified by a thread that checks the file: a file system that hangs must not hold up anything else.
    File(Arc<Notify>),
}

/// A socket in a directory of its own, which other users cannot enter.
struct Listener {
    directory: PathBuf,
    socket: UnixDatagram,
}

impl Listener {
    fn open() -> io::Result<Self> {
        let name = format!("leasehold-{}-{}", getpid().as_raw_nonzero(), now().as_nanos());
        let directory = env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let bound = UnixDatagram::bind(path_in(&directory));
        bound.map(|socket| Self { directory: directory.clone(), socket }).inspect_err(|_| {
            let _gone = fs::remove_dir(&directory);
        })
    }

    /// Completes when progress is reported.
    async fn hears(&self) {
        let mut message = [0; LONGEST];
        loop {
            match self.socket.recv(&mut message).await {
                Ok(length) => {
                    let lines = message.get(..length).unwrap_or_default().split(|byte| *byte == b'\n');
                    if lines.into_iter().any(|line| line == b"WATCHDOG=1") {
                        return;
                    }
                }
                // A socket without a connection reports nothing that lasts.
                Err(_) => sleep(LOOK).await,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.directory);
    }
}

fn path_in(directory: &Path) -> PathBuf {
    directory.join("notify")
}

impl Progress {
    /// The source of progress of the command; `None` if it need not make any. Call it on a runtime.
    pub(super) fn open(options: &Run) -> Result<Option<Self>, Ended> {
        let stopping = &options.stopping;
        let Some(span) = stopping.stall_after else { return Ok(None) };
        let source = match stopping.progress_file.clone() {
            Some(path) => Source::File(watch(path, LOOK.min(span / 8))?),
            None => Source::Socket(Listener::open().map_err(|error| {
                let why = format!("no socket for --stall-after: {error}; set TMPDIR, or give a --progress-file");
                Ended::new(Exit::Io, why)
            })?),
        };
        if matches!(source, Source::Socket(_)) && env::var_os("NOTIFY_SOCKET").is_some() && options.wanted.verbose {
            tell(
                "the command's NOTIFY_SOCKET is ours, for --stall-after; that of our own parent gets no message from it",
            );
        }
        Ok(Some(Self { span, source, last: Mutex::new(now()) }))
    }

    /// The variables by which the command knows where to report, and how often; without a value they are removed.
    pub(super) fn env(&self) -> Vec<(&'static str, Option<OsString>)> {
        match &self.source {
            Source::File(_) => Vec::new(),
            Source::Socket(listener) => vec![
                ("NOTIFY_SOCKET", Some(path_in(&listener.directory).into())),
                // Services report twice in this time, and half of the span without a report is a risk already.
                ("WATCHDOG_USEC", Some((self.span / 2).as_micros().to_string().into())),
                // It names the process that is meant, which is one that is not known yet.
                ("WATCHDOG_PID", None),
            ],
        }
    }

    /// Notes that the command has made progress now.
    pub(super) fn note(&self) {
        if let Ok(mut last) = self.last.lock() {
            *last = now();
        }
    }

    /// Completes when the command reports progress. A dropped call loses none.
    pub(super) async fn next(&self) {
        match &self.source {
            Source::Socket(listener) => listener.hears().await,
            Source::File(changed) => changed.notified().await,
        }
        self.note();
    }

    /// The message that there was no progress for the whole span.
    pub(super) fn stalled(&self) -> Option<String> {
        self.missing_for(self.span)
    }

    /// The message that there was no progress for the whole span, or for half of it.
    pub(super) fn missing(&self) -> Option<String> {
        self.stalled().or_else(|| self.missing_for(self.span / 2))
    }

    fn missing_for(&self, span: Duration) -> Option<String> {
        let idle = now().saturating_sub(*self.last.lock().ok()?);
        (idle >= span).then(|| format!("made no progress for {}", written(span)))
    }
}

/// Watches a file from now on.
fn watch(path: PathBuf, every: Duration) -> Result<Arc<Notify>, Ended> {
    let notify = Arc::new(Notify::new());
    let watched = Arc::downgrade(&notify);
    let watching = move || {
        let mut before = changed(&path);
        while let Some(notify) = watched.upgrade() {
            let there = changed(&path);
            if there.is_some() && replace(&mut before, there) != there {
                notify.notify_one();
            }
            drop(notify);
            thread::sleep(every);
        }
    };
    let started = thread::Builder::new().name("progress".into()).spawn(watching);
    started.map_err(|error| Ended::new(Exit::Io, format!("no thread for --progress-file: {error}")))?;
    Ok(notify)
}

/// The modification time of the file; `None` if it does not exist or cannot be read.
fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
