//! A command that runs under a lease.

use std::{process::ExitCode, time::Duration};

use leasehold::{Lease, Status};
use rustix::process::Signal;

use super::{
    group::{Change, Group},
    now,
    plan::{Due, MARGIN, Plan},
    terminal::Terminal,
};
use crate::{
    args::Run,
    exit::{Ended, Exit},
    say::tell,
    signals::{Signals, stop_here},
};

/// The clock that timers go by stands still while the machine sleeps: the lease is looked at that often.
const LOOK: Duration = Duration::from_millis(250);

/// How often those are looked for whom the command has left behind.
const SURVIVORS: Duration = Duration::from_millis(10);

/// Where the command stands.
enum Stage {
    Running,
    /// It was asked to stop; for how long it may go on.
    Asked {
        until: Duration,
    },
    Killed,
}

/// A command that runs.
pub(super) struct Job<'a> {
    options: &'a Run,
    plan: Plan,
    group: Group,
    terminal: Option<Terminal>,
    stage: Stage,
    acquired: Duration,
    /// The latest deadline that was confirmed.
    deadline: Duration,
    /// The lease was lost, or as good as.
    lost: bool,
}

impl<'a> Job<'a> {
    pub(super) fn start(options: &'a Run, plan: Plan, lease: &Lease, acquired: Duration) -> Result<Self, Ended> {
        lease.check().map_err(|lost| Ended::new(Exit::Lost, format!("{lost}; the command was not started")))?;
        if !matches!(plan.running(lease.remaining()), Due::Wait(_)) {
            let why = format!(
                "{:?} was acquired so slowly that it is nearly over; the command was not started",
                options.name
            );
            return Err(Ended::new(Exit::Lost, why));
        }
        let terminal = Terminal::open();
        let waits = terminal.as_ref().is_some_and(Terminal::is_ours);
        let group = Group::start(options, lease.fence().into(), lease.label(), waits)
            .map_err(|error| Ended::new(Exit::Io, format!("the command cannot be started: {error}")))?;
        let deadline = now() + lease.remaining();
        Ok(Self { options, plan, group, terminal, stage: Stage::Running, acquired, deadline, lost: false })
    }

    /// Until the command has ended, and everything that it started. The exit code, and whether a loss was told.
    pub(super) async fn watch(mut self, lease: &Lease, signals: &mut Signals) -> (ExitCode, bool) {
        let mut changes = lease.status_changes();
        let mut lost = Box::pin(lease.lost());
        let mut news = true;
        let exit = loop {
            let rest = self.look(lease);
            tokio::select! {
                biased;
                signal = signals.next() => if let Some(exit) = self.signalled(signal, lease) {
                    break exit;
                },
                _ = &mut lost, if !self.lost => {}
                status = changes.next(), if news => {
                    news = status.is_some();
                    if self.options.verbose && status == Some(Status::AtRisk) {
                        tell(format_args!("{:?} is at risk: no renewal is confirmed", self.options.name));
                    }
                }
                () = tokio::time::sleep(rest) => {}
            }
        };
        self.end_survivors(lease).await;
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_of(self.group.leader())) {
            let _gone = terminal.take_back();
        }
        (if self.lost { Exit::Lost.into() } else { exit }, self.lost)
    }

    /// Does what is due by the lease; how long nothing is.
    fn look(&mut self, lease: &Lease) -> Duration {
        let now = now();
        let definite = lease.check().err();
        if definite.is_none() {
            self.deadline = now + lease.remaining();
        }
        let left = self.deadline.saturating_sub(now);
        let due = match (&self.stage, &definite) {
            (Stage::Running, None) => self.plan.running(left),
            // Its last deadline is the last moment for a grace.
            (Stage::Running, Some(_)) if Plan::asked(self.plan.grace(), left) == Due::Kill => Due::Kill,
            (Stage::Running, Some(_)) => Due::Ask,
            (Stage::Asked { until }, _) => Plan::asked(until.saturating_sub(now), left),
            (Stage::Killed, _) => Due::Wait(LOOK),
        };
        let was_running = matches!(self.stage, Stage::Running);
        match due {
            Due::Wait(rest) => return rest.min(LOOK),
            Due::Ask => {
                self.group.send(self.options.signal);
                // Who stands still hears nothing.
                self.group.send(Signal::CONT);
                self.stage = Stage::Asked { until: now + self.plan.grace() };
            }
            Due::Kill => {
                self.group.send(Signal::KILL);
                self.stage = Stage::Killed;
            }
        }
        if was_running {
            self.lost = true;
            let why = definite.map_or_else(|| self.why(now), |lost| lost.to_string());
            tell(format_args!("{why}; the command is stopped"));
        }
        Duration::ZERO
    }

    /// Why a lease that is held is about to be over.
    fn why(&self, now: Duration) -> String {
        let name = &self.options.name;
        // It was reckoned from a moment before we had it.
        let by_order =
            self.options.max_hold.is_some_and(|most| now.max(self.deadline) + MARGIN >= self.acquired + most);
        if by_order {
            return format!("{name:?} was held for its --max-hold");
        }
        format!("{name:?} is about to be lost: no renewal was confirmed")
    }

    /// Passes a signal on. The exit code, if it tells of the command's end.
    fn signalled(&mut self, signal: Signal, lease: &Lease) -> Option<ExitCode> {
        if signal != Signal::CHILD {
            if signal == Signal::CONT {
                // Before anything goes on: the time that we stood still may have been the lease's.
                self.look(lease);
                self.hand_over();
            }
            self.group.send(signal);
            return None;
        }
        // One signal may stand for several changes.
        loop {
            match self.group.change() {
                Ok(None) => return None,
                Ok(Some(Change::Exited(code))) => return Some(code.into()),
                Ok(Some(Change::Killed(signal))) => return Some(Exit::Signal(signal).into()),
                Ok(Some(Change::Stopped)) => self.stopped(lease),
                // Somebody else has waited for it, which nobody may.
                Err(_) => return Some(Exit::Io.into()),
            }
        }
    }

    /// The command stands still: it waits for the terminal, or whoever sits there has stopped it.
    fn stopped(&mut self, lease: &Lease) {
        let Some(terminal) = &self.terminal else { return };
        if !terminal.is_ours() {
            if terminal.is_of(self.group.leader()) {
                let _gone = terminal.take_back();
            }
            stop_here();
            // And on we go: the time that we stood still may have been the lease's.
            self.look(lease);
        }
        self.hand_over();
        self.group.send(Signal::CONT);
    }

    fn hand_over(&self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_ours()) {
            let _gone = terminal.give_to(self.group.leader());
        }
    }

    /// The command's end is the end of the job: what it has left behind has a grace.
    async fn end_survivors(&mut self, lease: &Lease) {
        if !self.group.is_there() {
            return;
        }
        self.group.send(self.options.signal);
        self.group.send(Signal::CONT);
        let asked = now();
        while self.group.is_there() {
            let rest = self.plan.grace().saturating_sub(now().saturating_sub(asked));
            if Plan::asked(rest, lease.remaining()) == Due::Kill {
                self.group.send(Signal::KILL);
                break;
            }
            tokio::time::sleep(SURVIVORS).await;
        }
        // Who is dead, and not buried, still counts as there; and not everywhere that is for us to do.
        let killed = now();
        while self.group.is_there() && now().saturating_sub(killed) < MARGIN {
            tokio::time::sleep(SURVIVORS).await;
        }
    }
}
