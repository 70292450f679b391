//! The command and what it has started: a process group of its own.

use std::{io, os::unix::process::CommandExt, process::Command};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, test_kill_process_group, wait,
};

use crate::args::Run;

/// What the command has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Stopped,
    Exited(u8),
    Killed(i32),
}

/// Its leader is the command.
pub(super) struct Group {
    leader: Pid,
}

impl Group {
    /// Starts the command by way of ourselves, so that it dies with us; `stopped` until it is continued. To be called on
    /// the main thread: on Linux the command dies with the thread that started it.
    pub(super) fn start(options: &Run, fence: u64, label: &str, stopped: bool) -> io::Result<Self> {
        // What the command leaves behind comes to us to be buried: not every machine's first process does that, or soon.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let mut command = Command::new(own_program()?);
        command.arg("__exec").arg("--parent").arg(getpid().as_raw_nonzero().to_string());
        if stopped {
            command.arg("--stopped");
        }
        let child = command
            .arg("--")
            .args(&options.command)
            .env("LEASEHOLD_NAME", &options.name)
            .env("LEASEHOLD_FENCE", fence.to_string())
            .env("LEASEHOLD_LABEL", label)
            .process_group(0)
            .spawn()?;
        Ok(Self { leader: Pid::from_child(&child) })
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// To all of them. Who is gone needs no signal.
    pub(super) fn send(&self, signal: Signal) {
        let _gone = kill_process_group(self.leader, signal);
    }

    /// Whether any of them is there, once the command has ended.
    pub(super) fn is_there(&self) -> bool {
        while let Ok(Some(_buried)) = wait(WaitOptions::NOHANG) {}
        test_kill_process_group(self.leader).is_ok()
    }

    /// What has become of the command since the last look, one change after the other.
    pub(super) fn change(&self) -> io::Result<Option<Change>> {
        while let Some((pid, status)) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
            if pid == self.leader {
                return Ok(read(status));
            }
        }
        Ok(None)
    }
}

fn read(status: WaitStatus) -> Option<Change> {
    if status.stopped() {
        return Some(Change::Stopped);
    }
    let exited = status.exit_status().map(|code| Change::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    exited.or_else(|| status.terminating_signal().map(Change::Killed))
}

/// This very program, also where its file was replaced meanwhile.
fn own_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
