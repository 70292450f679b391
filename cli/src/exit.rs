//! The exit codes of the tool itself: those of `sysexits.h`, where it has one.

use std::process::ExitCode;

use leasehold::Error;

/// The way the tool ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command's own code.
    Command(u8),
    /// Another holder has the lock.
    Conflict(u8),
    /// The command line or the configuration is wrong.
    Usage,
    /// The server cannot be reached, or refuses us.
    Unreachable,
    /// Output could not be written, input ended too early, or a process could not be started.
    Io,
    /// The lease was lost, and the command killed.
    Lost,
    NotExecutable,
    NotFound,
    /// A signal ended us.
    Signal(i32),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Command(code) | Self::Conflict(code) => code,
            Self::Usage => 64,
            Self::Unreachable => 69,
            Self::Io => 74,
            Self::Lost => 75,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// The tool's end, and the line that says why.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    why: Option<String>,
}

impl Ended {
    pub(crate) fn new(exit: Exit, why: impl Into<String>) -> Self {
        Self { exit, why: Some(why.into()) }
    }

    /// An end without a message.
    pub(crate) fn silently(exit: Exit) -> Self {
        Self { exit, why: None }
    }

    /// This end with another exit code.
    pub(crate) fn with(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    pub(crate) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The end of a failed acquire: `conflict` is the code for a lock that is held.
    pub(crate) fn waiting(error: &Error, conflict: u8) -> Self {
        let exit = match error {
            Error::TimedOut { .. } => Exit::Conflict(conflict),
            _ if error.is_mistake() => Exit::Usage,
            _ => Exit::Unreachable,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        let exit = if error.is_mistake() { Exit::Usage } else { Exit::Unreachable };
        Self::new(exit, error.to_string())
    }
}
