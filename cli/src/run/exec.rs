//! The last step before the command: this process becomes it.

use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::RawFd,
        unix::{ffi::OsStrExt, fs::PermissionsExt, process::CommandExt},
    },
    path::Path,
    process::{Command, ExitCode},
};

use nix::unistd::close;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process};

use super::group::Go;
use crate::{
    exit::{Ended, Exit},
    own::Exec,
};

/// Searches for the command as `execvp` does, before the lock keeps others from running it.
pub(crate) fn find(program: &OsStr) -> Result<(), Ended> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let name = Path::new(program);
    let named = if program.as_bytes().contains(&b'/') {
        vec![name.to_owned()]
    } else {
        env::split_paths(&path).map(|directory| directory.join(name)).collect()
    };
    let failed = |exit, why| Err(Ended::new(exit, format!("{}: {why}", program.to_string_lossy())));
    let mut there = named.iter().filter_map(|file| file.metadata().ok()).peekable();
    if program.is_empty() || there.peek().is_none() {
        return failed(Exit::NotFound, "there is no such command");
    }
    // One execute bit is enough here. The system reports any other missing right.
    if there.any(|file| file.is_file() && file.permissions().mode() & 0o111 != 0) {
        return Ok(());
    }
    failed(Exit::NotExecutable, "it cannot be executed")
}

/// Dies of an interrupt.
pub(crate) fn interrupted() -> ExitCode {
    let _dead = kill_process(getpid(), Signal::INT);
    Exit::Signal(Signal::INT.as_raw()).into()
}

/// Waits until the command may begin; `None` if it never may.
fn told(pipe: RawFd) -> io::Result<Option<Go>> {
    let descriptors = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    // This descriptor closes on exec. It replaces one that the command would inherit.
    let mut go = File::open(format!("{descriptors}/{pipe}"))?;
    close(pipe)?;
    let mut text = String::new();
    go.read_to_string(&mut text)?;
    Ok(Go::read(&text))
}

/// Becomes the command. From here on it dies with its parent, where the system can do that.
pub(crate) fn exec(options: &Exec) -> Result<ExitCode, Ended> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Ended::new(Exit::Io, format!("{what}: {error}"));
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("the command cannot be tied to us", &error))?;
    // The parent may have died before. Where the system cannot tie us to it, it may also die while we wait.
    let is_orphan = || getppid() != Pid::from_raw(options.parent);
    let gone = || Ended::new(Exit::Io, "who holds the lease has gone");
    if is_orphan() {
        return Err(gone());
    }
    let Some(go) = told(options.go).map_err(|error| failed("the command is not told to begin", &error))? else {
        return Ok(ExitCode::SUCCESS);
    };
    if is_orphan() {
        return Err(gone());
    }
    if go.stopped {
        kill_process(getpid(), Signal::STOP).map_err(|error| failed("waiting for the terminal", &error))?;
    }
    let Some((program, arguments)) = options.command.split_first() else {
        return Err(Ended::new(Exit::Usage, "no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env("LEASEHOLD_FENCES", go.fences).env("LEASEHOLD_LABEL", go.label);
    if go.fence.is_empty() {
        command.env_remove("LEASEHOLD_FENCE");
    } else {
        command.env("LEASEHOLD_FENCE", go.fence);
    }
    let error = command.exec();
    let exit = if error.kind() == io::ErrorKind::NotFound { Exit::NotFound } else { Exit::NotExecutable };
    Err(Ended::new(exit, format!("{}: {error}", program.to_string_lossy())))
}
