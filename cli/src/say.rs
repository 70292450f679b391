//! The tool's output. A reader that has gone is no reason to fail, and never one to panic.

use std::{
    env,
    fmt::Display,
    future::pending,
    io::{self, ErrorKind, IsTerminal, Write},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::sync::oneshot;

use crate::{
    exit::{Ended, Exit},
    signals::block_output_stops,
};

/// Whether standard output is a terminal that can do more than print lines.
pub(crate) fn is_drawn_on() -> bool {
    io::stdout().is_terminal() && env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// The text of a head, in bold if standard output is a terminal and `NO_COLOR` is not set (no-color.org).
pub(crate) fn bold(text: &str) -> String {
    let minds = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_drawn_on() && !minds { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.into() }
}

/// How long the tool waits at its end until its messages are written.
const PATIENCE: Duration = Duration::from_millis(500);

/// A message to write, or a caller that waits until the earlier ones are written.
pub(crate) enum Line {
    Text(String),
    End(Sender<()>),
}

/// The queue of lines for standard error, once it is needed. The inner `None` means that its thread could not start.
static LINES: OnceLock<Option<Sender<Line>>> = OnceLock::new();

/// Whether a message was queued since the last `finish`.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Starts the thread that writes messages, unless it runs. It is called early, because later the system may refuse us a
/// thread.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
pub(crate) fn prepare() -> Option<&'static Sender<Line>> {
    let start = || {
        let (sender, lines) = mpsc::channel();
        thread::Builder::new().spawn(move || write_lines(&lines)).ok().map(|_ends_with_us| sender)
    };
    LINES.get_or_init(start).as_ref()
}

/// Queues a line for standard error, which another thread writes. The pipe may be full of the command's output, and
/// have no reader. That must not delay the renewal of the lease or the end of the command.
pub(crate) fn tell(what: impl Display) {
    if let Some(lines) = prepare() {
        TOLD.store(true, Ordering::Relaxed);
        let _nobody_writes = lines.send(Line::Text(format!("leasehold: {}\n", shown(&what.to_string()))));
    }
}

fn write_lines(lines: &Receiver<Line>) {
    // A write from the background of a terminal may stop the whole process.
    let _as_it_is = block_output_stops();
    for line in lines {
        match line {
            Line::Text(text) => write_line(text.as_bytes()),
            Line::End(written) => drop(written),
        }
    }
}

/// Writes all of it, even if the command has set our common standard error to `O_NONBLOCK`.
pub(crate) fn write_line(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match io::stderr().write(bytes) {
            Ok(written) if written > 0 => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(10)),
            _ => return,
        }
    }
}

/// Waits until all messages are written, but only for a moment.
pub(crate) fn finish() {
    if !TOLD.swap(false, Ordering::Relaxed) {
        return;
    }
    if let Some(Some(lines)) = LINES.get() {
        let (written, all) = mpsc::channel();
        let _nobody_writes = lines.send(Line::End(written));
        let _written = all.recv_timeout(PATIENCE);
    }
}

/// The text with its invisible characters escaped: those in a name could move the cursor, or reverse the line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if is_unseen(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Control characters, and those that have no width or set the direction (Unicode's explicit bidirectional formatting).
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A line on standard output.
pub(crate) fn print(line: &str) -> Result<(), Ended> {
    print_for_a_reader(line).map(drop)
}

/// Like `print`, but returns false if the reader has gone.
pub(crate) fn print_for_a_reader(line: &str) -> Result<bool, Ended> {
    let mut output = io::stdout();
    match output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        outcome => written(outcome).map(|()| true),
    }
}

/// Completes once the reader of standard output has gone, without a line to write. A file has no reader that goes.
#[allow(clippy::disallowed_methods, reason = "it ends with the program, and nothing else can wait for any output")]
pub(crate) async fn reader_is_gone() {
    let (tell, told) = oneshot::channel();
    // Without the thread, the next line notices it.
    let watching = thread::Builder::new().spawn(move || {
        if waits_for_the_reader_to_go() {
            let _nobody_waits = tell.send(());
        }
    });
    if watching.is_err() || told.await.is_err() {
        pending::<()>().await;
    }
}

/// Waits until the reader of standard output has gone. Returns false if the system cannot tell.
fn waits_for_the_reader_to_go() -> bool {
    let output = io::stdout();
    let mut watched = [PollFd::new(&output, PollFlags::empty())];
    loop {
        match poll(&mut watched, None) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return watched.iter().any(|one| one.revents().intersects(PollFlags::ERR | PollFlags::HUP)),
        }
    }
}

pub(crate) fn write(bytes: &[u8]) -> Result<(), Ended> {
    let mut output = io::stdout();
    written(output.write_all(bytes).and_then(|()| output.flush()))
}

/// Accepts a broken pipe: its reader has read enough.
pub(crate) fn written(result: io::Result<()>) -> Result<(), Ended> {
    match result {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Ended::new(Exit::Io, format!("nothing can be written: {error}")))
        }
        _ => Ok(()),
    }
}
