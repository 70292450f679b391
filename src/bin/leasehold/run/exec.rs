//! The last step before the command: this process becomes it.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use crate::{
    args::Exec,
    exit::{Ended, Exit},
};

/// Dies with its parent from here on, where the system can do that, and becomes the command.
pub(crate) fn exec(options: &Exec) -> Result<ExitCode, Ended> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Ended::new(Exit::Io, format!("{what}: {error}"));
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("the command cannot be tied to us", &error))?;
    // It may have died before.
    if getppid() != Pid::from_raw(options.parent) {
        return Err(Ended::new(Exit::Io, "who holds the lease has gone"));
    }
    if options.stopped {
        kill_process(getpid(), Signal::STOP).map_err(|error| failed("waiting for the terminal", &error))?;
    }
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(Ended::new(Exit::Usage, "no command"));
    };
    let error = Command::new(program).args(arguments).exec();
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    Err(Ended::new(exit, format!("{}: {error}", program.to_string_lossy())))
}
