//! What the tool says. Who does not listen any more is no reason to fail, and never to panic.

use std::{
    fmt::Display,
    io::{self, ErrorKind, IsTerminal, Write},
    sync::{
        OnceLock,
        mpsc::{self, Sender},
    },
    time::Duration,
};

use crate::exit::{Ended, Exit};

/// A head, in bold if standard output is a terminal, and nobody minds (no-color.org).
pub(crate) fn bold(text: &str) -> String {
    let minds = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stdout().is_terminal() && !minds { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.into() }
}

/// How long the tool waits in the end for whoever reads what it has told.
const PATIENCE: Duration = Duration::from_millis(500);

/// What there is to be written, and who waits for that.
enum Line {
    Text(String),
    End(Sender<()>),
}

/// The lines on their way to standard error, if there was one.
static LINES: OnceLock<Sender<Line>> = OnceLock::new();

/// A line on standard error, in its own time: a pipe may be full of what the command has said, and nobody read it. That must
/// not hold up whoever renews the lease and stops the command.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
pub(crate) fn tell(what: impl Display) {
    let lines = LINES.get_or_init(|| {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines {
                match line {
                    Line::Text(text) => drop(io::stderr().write_all(text.as_bytes())),
                    Line::End(written) => drop(written),
                }
            }
        });
        sender
    });
    let _nobody_writes = lines.send(Line::Text(format!("leasehold: {what}\n")));
}

/// Waits a moment until what was told is written.
pub(crate) fn finish() {
    if let Some(lines) = LINES.get() {
        let (written, all) = mpsc::channel();
        let _nobody_writes = lines.send(Line::End(written));
        let _written = all.recv_timeout(PATIENCE);
    }
}

/// A line on standard output.
pub(crate) fn print(line: &str) -> Result<(), Ended> {
    write(format!("{line}\n").as_bytes())
}

pub(crate) fn write(bytes: &[u8]) -> Result<(), Ended> {
    let mut output = io::stdout();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Ended::new(Exit::Io, format!("nothing can be written: {error}")))
        }
        _ => Ok(()),
    }
}
