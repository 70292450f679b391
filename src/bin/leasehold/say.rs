//! What the tool says. Who does not listen any more is no reason to fail, and never to panic.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use crate::exit::{Ended, Exit};

/// A line on standard error.
pub(crate) fn tell(what: impl Display) {
    let _nobody_listens = writeln!(io::stderr(), "leasehold: {what}");
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
