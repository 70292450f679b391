//! The terminal that we were started from: it is the command's while that runs.

use std::{
    fs::{File, OpenOptions},
    io,
};

use rustix::{
    process::{Pid, getpgrp},
    termios::{tcgetpgrp, tcsetpgrp},
};

use crate::signals::unstopped;

/// The terminal of our session.
pub(super) struct Terminal {
    file: File,
}

impl Terminal {
    /// `None` if there is none.
    pub(super) fn open() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { file })
    }

    /// Whether we are in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.is_of(getpgrp())
    }

    pub(super) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|foreground| foreground == group)
    }

    pub(super) fn give_to(&self, group: Pid) -> io::Result<()> {
        Ok(tcsetpgrp(&self.file, group)?)
    }

    /// Who is in the background and takes the terminal is sent TTOU, which would stop us.
    pub(super) fn take_back(&self) -> io::Result<()> {
        unstopped(|| self.give_to(getpgrp()))
    }
}
