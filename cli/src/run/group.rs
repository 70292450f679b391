//! The command and what it has started: a process group of its own.

use std::{io, os::unix::process::CommandExt, process::Command};

use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
        test_kill_process_group, wait,
    },
};

use super::system;
use crate::args::Run;

/// What the command has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Stopped(i32),
    Exited(u8),
    Killed(i32),
}

/// Its leader is the command.
pub(super) struct Group {
    leader: Pid,
    /// Children that whoever became us had: they are none of the command's.
    others: Vec<Pid>,
}

impl Group {
    /// Starts the command by way of ourselves, so that it dies with us; `stopped` until it is continued. To be called on
    /// the main thread: on Linux the command dies with the thread that started it.
    pub(super) fn start(options: &Run, fence: u64, label: &str, stopped: bool) -> io::Result<Self> {
        // What the command leaves behind comes to us to be buried: not every machine's first process does that, or soon.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let others = system::children();
        let mut command = Command::new(own_program()?);
        command.arg("__exec").arg("--parent").arg(getpid().as_raw_nonzero().to_string());
        if stopped {
            command.arg("--stopped");
        }
        let child = command
            .arg("--")
            .args(&options.command)
            .env("LEASEHOLD_NAME", &options.wanted.name)
            .env("LEASEHOLD_FENCE", fence.to_string())
            .env("LEASEHOLD_LABEL", label)
            .process_group(0)
            .spawn()?;
        Ok(Self { leader: Pid::from_child(&child), others })
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// To all of them, and to the command also if it has left the group: while its end was not seen, its number is nobody
    /// else's. Who is gone needs no signal; an error is that of one who is there, and not ours to signal.
    pub(super) fn send(&self, signal: Signal, command_is_there: bool) -> io::Result<()> {
        if command_is_there && getpgid(Some(self.leader)).is_ok_and(|group| group != self.leader) {
            let _as_well_as_we_can = kill_process(self.leader, signal);
        }
        match kill_process_group(self.leader, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether any of them is there, once the command has ended; also one that has died and is not buried.
    pub(super) fn is_there(&self) -> bool {
        while let Ok(Some(_buried)) = wait(WaitOptions::NOHANG) {}
        test_kill_process_group(self.leader) != Err(Errno::SRCH)
    }

    /// Whether any of them lives. It looks at every process of the machine.
    pub(super) fn is_alive(&self) -> bool {
        system::is_alive(self.leader)
    }

    /// Who has left the group, and come to us since, for whoever started it has died: nobody where we are no reaper.
    pub(super) fn strays(&self) -> Vec<Pid> {
        self.outside(self.children())
    }

    /// Everybody outside of the group whom the command has started, also those whose parents live.
    pub(super) fn outsiders(&self) -> Vec<Pid> {
        self.outside(system::with_descendants(self.children()))
    }

    fn children(&self) -> Vec<Pid> {
        system::children().into_iter().filter(|child| !self.others.contains(child)).collect()
    }

    fn outside(&self, mut processes: Vec<Pid>) -> Vec<Pid> {
        processes.retain(|process| getpgid(Some(*process)).is_ok_and(|group| group != self.leader));
        processes
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
    if let Some(signal) = status.stopping_signal() {
        return Some(Change::Stopped(signal));
    }
    let exited = status.exit_status().map(|code| Change::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    exited.or_else(|| status.terminating_signal().map(Change::Killed))
}

/// This very program, also where its file was replaced meanwhile.
pub(super) fn own_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}
