//! The command and what it has started: a process group of its own.

use std::{
    env,
    fs::File,
    io::{self, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::{Child, Command},
    time::Duration,
};

use rustix::{
    io::{Errno, FdFlags, fcntl_setfd},
    pipe::pipe,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
        test_kill_process_group, wait,
    },
};

use super::{
    guard::Guard,
    mark::{self, MARKS},
    now,
    progress::Progress,
    system,
};
use crate::{
    args::Run,
    own::{Exec, Guarding},
};

/// A change of the command's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Stopped(i32),
    Exited(u8),
    Killed(i32),
}

/// The process group that the command leads.
pub(super) struct Group {
    leader: Pid,
    /// Our children from before we became the runner: the command did not start them.
    others: Vec<Pid>,
    guard: Guard,
}

/// The message that the ready command waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Go {
    /// Empty if there are several locks.
    pub(super) fence: String,
    /// A line with fence and name for each lock.
    pub(super) fences: String,
    pub(super) label: String,
    /// Whether the command stops first, until it has the terminal.
    pub(super) stopped: bool,
}

impl Go {
    fn write(&self) -> String {
        // Names and labels have no zero byte, because they come from the command line.
        [if self.stopped { "1" } else { "0" }, &self.fence, &self.fences, &self.label].join("\0")
    }

    /// Parses the message; `None` if the runner has died or needs no command.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '\0').map(str::to_owned);
        let (stopped, fence, fences, label) = (parts.next()? == "1", parts.next()?, parts.next()?, parts.next()?);
        Some(Self { fence, fences, label, stopped })
    }
}

/// A process that becomes the command at `start`. It loads while the lock is acquired. A drop kills it.
pub(super) struct Ready {
    /// `None` once it is the command.
    waiting: Option<(Child, Group)>,
    go: File,
}

impl Ready {
    /// Starts our own program, which ties the command's life to ours. Call this on the main thread: on Linux the
    /// command dies with the thread that started it.
    pub(super) fn new(options: &Run, grace: Duration, progress: Option<&Progress>) -> io::Result<Self> {
        // Orphans of the command become our children, and we reap them. Not every machine's first process does that, or
        // soon.
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(getpid()))?;
        let mut others = system::children();
        let (hears, go) = pipe()?;
        fcntl_setfd(&go, FdFlags::CLOEXEC)?;
        let exec =
            Exec { parent: getpid().as_raw_nonzero().get(), go: hears.as_raw_fd(), command: options.command.clone() };
        // No other process has our ID at this moment.
        let mark = format!("{}-{}", exec.parent, now().as_nanos());
        let mut command = Command::new(own_program()?);
        command.args(exec.words()).process_group(0).env(MARKS, mark::appended(env::var_os(MARKS), &mark));
        // Several locks have no single name, and the name of a run around this one would be wrong too.
        match options.wanted.names() {
            [name] => command.env("LEASEHOLD_NAME", name),
            _ => command.env_remove("LEASEHOLD_NAME"),
        };
        for (name, value) in progress.map(Progress::env).unwrap_or_default() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.spawn()?;
        // The guard would inherit it.
        drop(hears);
        let leader = Pid::from_child(&child);
        let (signal, grace) = (options.stopping.signal.as_raw(), u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        let guarding = Guarding { leader: leader.as_raw_nonzero().get(), signal, grace, mark };
        let guard = Guard::start(guarding).inspect_err(|_| bury(&mut child))?;
        others.extend(guard.process());
        Ok(Self { waiting: Some((child, Group { leader, others, guard })), go: go.into() })
    }

    /// Starts the command, which may run until this deadline.
    pub(super) fn start(mut self, go: &Go, deadline: Duration) -> io::Result<Group> {
        if let Some((_, group)) = &mut self.waiting {
            group.guard.tell(deadline)?;
        }
        self.go.write_all(go.write().as_bytes())?;
        self.waiting.take().map(|(_, group)| group).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some((child, group)) = &mut self.waiting {
            bury(child);
            group.dismiss_guard();
        }
    }
}

fn bury(child: &mut Child) {
    let _gone = child.kill();
    let _buried = child.wait();
}

impl Group {
    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// Moves the deadline before which the guard ends the job if we die.
    pub(super) fn may_run_until(&mut self, deadline: Duration) {
        // Without a guard, or with one that reads nothing, an earlier deadline applies.
        let _as_well_as_we_can = self.guard.tell(deadline);
    }

    /// Ends the guard, because the job has ended: from here on our death ends nothing.
    pub(super) fn dismiss_guard(&mut self) {
        self.guard.dismiss();
    }

    /// Sends a signal to the group, and to the command even if it has left the group. Until we reap the command, no
    /// other process gets its ID. A missing process is not an error. Any other error means that a process exists that
    /// we may not signal.
    pub(super) fn send(&self, signal: Signal, command_is_there: bool) -> io::Result<()> {
        if command_is_there && getpgid(Some(self.leader)).is_ok_and(|group| group != self.leader) {
            let _as_well_as_we_can = kill_process(self.leader, signal);
        }
        match kill_process_group(self.leader, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the group still has a process after the command has ended. Reaps our zombies; other zombies count.
    pub(super) fn is_there(&mut self) -> bool {
        while let Ok(Some((buried, _))) = wait(WaitOptions::NOHANG) {
            self.guard.reaped(buried);
        }
        test_kill_process_group(self.leader) != Err(Errno::SRCH)
    }

    /// Whether the group has a process that is not a zombie. Reads the state of every process of the machine.
    pub(super) fn is_alive(&self) -> bool {
        system::is_alive(self.leader)
    }

    /// Processes that have left the group, and became our children when their parents died. There are none where we are
    /// not a subreaper.
    pub(super) fn strays(&self) -> Vec<Pid> {
        self.outside(self.children())
    }

    /// All processes outside of the group that the command has started, including those whose parents live.
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

    /// The next change of the command's state, if there is one.
    pub(super) fn change(&mut self) -> io::Result<Option<Change>> {
        while let Some((pid, status)) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
            if pid == self.leader {
                return Ok(read(status));
            }
            if status.stopping_signal().is_none() {
                self.guard.reaped(pid);
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

/// The path of this very program. On Linux it stays valid when the file is replaced.
pub(super) fn own_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_is_told_is_read_as_it_was_written() {
        for (label, stopped) in [("", false), ("two words", true), ("two\nlines ", false)] {
            for (fence, fences) in [("17", "17 job"), ("", "17 job\n18 two words")] {
                let go = Go { fence: fence.into(), fences: fences.into(), label: label.into(), stopped };
                assert_eq!(Go::read(&go.write()), Some(go));
            }
        }
        assert_eq!(Go::read(""), None, "nobody says it any more");
    }
}
