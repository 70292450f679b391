//! The guard of a job: a process beside the tool that ends the job if the tool dies, before the lease can be anyone
//! else's.
//!
//! The guard reads a pipe whose other end only the tool has. Each renewal writes the new deadline there, and the tool's
//! death closes the pipe. The guard then does what the tool does when a lease is lost: it asks the job to stop, waits
//! for `--grace`, and kills it. After a job's normal end the tool kills the guard before it closes the pipe.
//!
//! Until then the guard is in a process group of its own, where no signal to the job, or to the tool's group, reaches
//! it. Once the tool has died, the guard joins the job's group first. A group keeps its ID while it has a member, so no
//! other process can be signalled.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufRead, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitCode, Stdio},
    thread::sleep,
    time::Duration,
};

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::{
    fs::{OFlags, fcntl_setfl},
    io::{FdFlags, fcntl_setfd},
    pipe::pipe,
    process::{
        Pid, Signal, WaitOptions, getpgid, kill_current_process_group, kill_process, kill_process_group, setpgid,
        waitpid,
    },
};

use super::{
    group::own_program,
    mark::{self, MARKS},
    now,
    plan::{Due, MARGIN, Plan},
    system,
};
use crate::own::Guarding;

/// How often the guard checks what is left of a job that was asked to stop.
const OFTEN: Duration = Duration::from_millis(50);

/// How long a killed process takes to end.
const A_MOMENT: Duration = Duration::from_millis(1);

/// The tool's handle on the guard. A drop without [`dismiss`](Self::dismiss) lets the guard end the job.
pub(super) struct Guard {
    /// `None` once it was reaped, because another process may have the ID then.
    process: Option<Pid>,
    deadlines: File,
}

impl Guard {
    pub(super) fn start(guarding: Guarding) -> io::Result<Self> {
        let (hears, deadlines) = pipe()?;
        fcntl_setfd(&hears, FdFlags::CLOEXEC)?;
        fcntl_setfd(&deadlines, FdFlags::CLOEXEC)?;
        // A stopped guard reads nothing, which must not block the tool.
        fcntl_setfl(&deadlines, OFlags::NONBLOCK)?;
        let mut command = Command::new(own_program()?);
        // Without the mark of a run around this one, whose guard would kill this guard first.
        command.args(guarding.words()).env_clear().process_group(0);
        command.stdin(hears).stdout(Stdio::null()).stderr(Stdio::null());
        // The guard inherits the mask, so a signal to the group that it joins does not end it.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let child = command.spawn();
        before.thread_set_mask()?;
        Ok(Self { process: Some(Pid::from_child(&child?)), deadlines: deadlines.into() })
    }

    pub(super) fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Writes the deadline until which the job may run.
    pub(super) fn tell(&mut self, deadline: Duration) -> io::Result<()> {
        self.deadlines.write_all(format!("{}\n", deadline.as_millis()).as_bytes())
    }

    /// Notes that a process was reaped, which may be the guard.
    pub(super) fn reaped(&mut self, process: Pid) {
        self.process = self.process.filter(|guard| *guard != process);
    }

    /// Kills the guard, because the job has ended.
    pub(super) fn dismiss(&mut self) {
        if let Some(process) = self.process.take() {
            let _gone = kill_process(process, Signal::KILL);
            let _buried = waitpid(Some(process), WaitOptions::empty());
        }
    }
}

/// Waits until the tool has died, then ends its job.
pub(crate) fn guard(job: &Guarding) -> ExitCode {
    if let (Some(leader), Some(signal)) = (Pid::from_raw(job.leader), Signal::from_named_raw(job.signal)) {
        let deadline = last_deadline(io::stdin().lock());
        let orphans = Orphans { leader, mark: &job.mark, asked: HashSet::new() };
        orphans.end(signal, Duration::from_millis(job.grace), deadline);
    }
    ExitCode::SUCCESS
}

/// The last deadline that the tool wrote before its death.
fn last_deadline(told: impl BufRead) -> Duration {
    told.lines()
        .map_while(Result::ok)
        .filter_map(|line| line.parse().ok())
        .last()
        .map_or(Duration::ZERO, Duration::from_millis)
}

/// The job of a tool that has died.
struct Orphans<'a> {
    leader: Pid,
    mark: &'a str,
    /// The processes outside of the group that were asked to stop.
    asked: HashSet<Pid>,
}

impl Orphans<'_> {
    fn end(mut self, signal: Signal, grace: Duration, deadline: Duration) {
        // This fails if the group has no process any more.
        let has_group = setpgid(None, Some(self.leader)).is_ok();
        let until = now() + grace;
        let rest = |now: Duration| Plan::asked(until.saturating_sub(now), deadline.saturating_sub(now));
        // These two signals would end or stop the guard as well.
        let asks = ![Signal::KILL, Signal::STOP].contains(&signal) && rest(now()) != Due::Kill;
        if asks && has_group {
            let _gone = kill_current_process_group(signal);
            let _gone = kill_current_process_group(Signal::CONT);
        }
        while let (true, Due::Wait(rest)) = (asks, rest(now())) {
            // The order matters: a process may leave the group meanwhile, but cannot come back.
            let (is_group_there, outsiders) = (has_group && system::is_alive(self.leader), self.outsiders());
            if !is_group_there && outsiders.is_empty() {
                return;
            }
            for outsider in outsiders {
                if self.asked.insert(outsider) {
                    let _gone = kill_process(outsider, signal);
                    let _gone = kill_process(outsider, Signal::CONT);
                }
            }
            sleep(rest.min(OFTEN));
        }
        if has_group {
            let _left = setpgid(None, None);
            let _gone = kill_process_group(self.leader, Signal::KILL);
        }
        let began = now();
        while now().saturating_sub(began) < MARGIN {
            let outsiders = self.outsiders();
            if outsiders.is_empty() {
                return;
            }
            for outsider in outsiders {
                let _gone = kill_process(outsider, Signal::KILL);
            }
            // A killed process may have started another one just before.
            sleep(A_MOMENT);
        }
    }

    /// The job's processes outside of its group, and those of runs inside the job. There are none where the system has
    /// no `/proc`.
    fn outsiders(&self) -> Vec<Pid> {
        let mut marked = system::with_variable(MARKS, |marks| mark::is_among(marks, self.mark));
        marked.retain(|process| getpgid(Some(*process)).is_ok_and(|group| group != self.leader));
        marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_that_was_written_last_counts() {
        for (told, deadline) in [("", 0), ("17\n", 17), ("17\n18000\n", 18_000), ("17\nx\n", 17)] {
            assert_eq!(last_deadline(told.as_bytes()), Duration::from_millis(deadline), "{told:?}");
        }
    }
}
