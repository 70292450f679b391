//! The terminal that we were started from, which the command has while it runs.

use std::{
    fs::{File, OpenOptions},
    io,
};

use rustix::{
    io::Errno,
    process::{Pid, getpgrp, test_kill_process_group},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use crate::signals::unstopped;

/// The terminal of our session.
pub(super) struct Terminal {
    file: File,
    /// Its modes when we began.
    modes: Option<Termios>,
}

impl Terminal {
    /// Opens the terminal; `None` if the process has no terminal.
    pub(super) fn open() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let modes = tcgetattr(&file).ok();
        Some(Self { file, modes })
    }

    /// Whether we are in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    pub(super) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|foreground| foreground == group)
    }

    /// Whether all processes of its foreground group have died.
    pub(super) fn is_nobodys(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|foreground| test_kill_process_group(foreground) == Err(Errno::SRCH))
    }

    pub(super) fn give_to(&self, group: Pid) -> io::Result<()> {
        Ok(tcsetpgrp(&self.file, group)?)
    }

    /// Takes the terminal back. From the background that would raise TTOU, which stops us.
    pub(super) fn take_back(&self) -> io::Result<()> {
        unstopped(|| self.give_to(getpgrp()))
    }

    /// Restores the terminal's modes from when we began.
    pub(super) fn restore(&self) -> io::Result<()> {
        let Some(modes) = &self.modes else { return Ok(()) };
        Ok(unstopped(|| tcsetattr(&self.file, OptionalActions::Now, modes))?)
    }
}
