//! A command that runs under a lease.

use std::{
    collections::HashSet,
    future::{Future, poll_fn},
    io::{self, IsTerminal},
    pin::pin,
    task::Poll,
    time::Duration,
};

use leasehold::{MultiLease, Status, StatusChanges};
use rustix::process::{Pid, Signal, kill_process};

use super::{
    group::{Change, Go, Group, Ready},
    now,
    plan::{Due, MARGIN, Plan},
    progress::Progress,
    terminal::Terminal,
    trouble,
};
use crate::{
    args::Run,
    exit::{Ended, Exit},
    say::tell,
    signals::{Before, Signals, stop_all},
};

/// How often to check the lease: timers stand still while the machine sleeps.
const LOOK: Duration = Duration::from_millis(250);

/// The least by which a renewal moves the deadline. A smaller difference comes from our calculation.
const RENEWED: Duration = Duration::from_millis(1);

/// How often to check for survivors of the command at first, while most of them end.
const SURVIVORS: Duration = Duration::from_millis(10);

/// The progress of the command's end.
enum Stage {
    Running,
    /// It was asked to stop, and may run until then.
    Asked {
        until: Duration,
    },
    Killed {
        at: Duration,
    },
}

/// A running command, and what it has started.
pub(super) struct Job<'a> {
    options: &'a Run,
    plan: Plan,
    group: Group,
    progress: Option<&'a Progress>,
    terminal: Option<Terminal>,
    /// The command has the terminal whenever we could have it.
    shares_terminal: bool,
    /// We received an interrupt.
    interrupted: bool,
    stage: Stage,
    acquired: Duration,
    /// The latest deadline that was confirmed.
    deadline: Duration,
    /// The lease was lost, or as good as, while the command ran.
    lost: bool,
    /// Why the lease was lost, as we have printed it.
    told: Option<String>,
    /// The command's own exit. Its survivors may still be running.
    exit: Option<Exit>,
    /// The processes outside of the group that we have asked to stop.
    asked: HashSet<Pid>,
    /// We have printed that a survivor cannot be killed.
    told_immortal: bool,
    /// We have printed that the command cannot be sent a signal.
    told_deaf: bool,
}

/// Whether an interrupt has ended the job. If so we die of one too, because only that ends a shell's loop around us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupted {
    No,
    /// We received it. An interrupt of the terminal went to the rest of our process group too.
    Us,
    /// The command had the terminal: no other process got the interrupt.
    TheCommand,
}

/// How a job ended.
pub(super) struct Outcome {
    pub(super) exit: Exit,
    /// How long it had the lock.
    pub(super) ran: Duration,
    /// We have printed that the lease was lost.
    pub(super) lost: bool,
    pub(super) interrupted: Interrupted,
}

impl Outcome {
    /// The outcome of a job that a signal ended before it began.
    pub(super) fn signal(signal: Signal) -> Self {
        let interrupted = if signal == Signal::INT { Interrupted::Us } else { Interrupted::No };
        Self { exit: Exit::Signal(signal.as_raw()), ran: Duration::ZERO, lost: false, interrupted }
    }
}

/// Makes the command ready.
pub(super) fn ready_for(
    options: &Run,
    plan: Plan,
    progress: Option<&Progress>,
    before: Before,
) -> Result<Ready, Ended> {
    before.while_blocked(|| Ready::new(options, plan.grace(), progress)).map_err(|error| not_started(&error))
}

fn not_started(error: &io::Error) -> Ended {
    // A shell exits with the same code.
    let too_long = error.kind() == io::ErrorKind::ArgumentListTooLong;
    let exit = if too_long { Exit::NotExecutable } else { Exit::Io };
    Ended::new(exit, format!("the command cannot be started: {error}"))
}

/// The message that starts the command.
fn go(held: &MultiLease, stopped: bool) -> Go {
    let label = held.leases().first().map(|lease| lease.label().to_owned()).unwrap_or_default();
    let fences = held.leases().iter().map(|lease| format!("{} {}", lease.fence(), lease.name())).collect::<Vec<_>>();
    let fence = match held.leases() {
        [lease] => lease.fence().to_string(),
        _ => String::new(),
    };
    Go { fence, fences: fences.join("\n"), label, stopped }
}

/// The changes of each lease, by the name of its lock.
struct Changes(Vec<(String, StatusChanges)>);

impl Changes {
    fn of(held: &MultiLease) -> Self {
        Self(held.leases().iter().map(|lease| (lease.name().to_owned(), lease.status_changes())).collect())
    }

    /// The next change of any lease; `None` once all have ended. A dropped call loses no change.
    async fn next(&mut self) -> Option<(String, Status)> {
        poll_fn(|context| {
            let mut change = None;
            self.0.retain_mut(|(name, changes)| {
                if change.is_some() {
                    return true;
                }
                let next = pin!(changes.next()).poll(context);
                change = match &next {
                    Poll::Ready(Some(status)) => Some((name.clone(), status.clone())),
                    _ => None,
                };
                next != Poll::Ready(None)
            });
            if change.is_some() || self.0.is_empty() { Poll::Ready(change) } else { Poll::Pending }
        })
        .await
    }
}

/// Prints that a lease is at risk, or safe again after that. `Job::look` prints the end of a lease.
fn tell_change(name: String, status: &Status, missing: Option<String>, at_risk: &mut HashSet<String>) {
    match status {
        Status::AtRisk => {
            match missing {
                Some(missing) => tell(format_args!("{name:?} is at risk: the command {missing}")),
                None => tell(format_args!("{name:?} is at risk: no renewal is confirmed{}", trouble::of_renewals())),
            }
            at_risk.insert(name);
        }
        Status::Held if at_risk.remove(&name) => {
            tell(format_args!("{name:?} is safe again: a renewal is confirmed"));
        }
        _ => {}
    }
}

impl<'a> Job<'a> {
    pub(super) fn start(
        options: &'a Run,
        (plan, progress): (Plan, Option<&'a Progress>),
        lease: &MultiLease,
        acquired: Duration,
        ready: Option<Ready>,
        before: Before,
    ) -> Result<Self, Ended> {
        lease.check().map_err(|lost| Ended::new(Exit::Lost, format!("{lost}; the command was not started")))?;
        if !matches!(plan.running(lease.remaining()), Due::Wait(_)) {
            let why = format!(
                "{:?} was acquired so slowly that it is nearly over; the command was not started",
                options.wanted.name
            );
            return Err(Ended::new(Exit::Lost, why));
        }
        let terminal = Terminal::open();
        // In front of a pager, the command gets the terminal when it asks for it: the pager may want it too.
        let shares_terminal =
            io::stdin().is_terminal() && io::stdout().is_terminal() && terminal.as_ref().is_some_and(Terminal::is_ours);
        let go = go(lease, shares_terminal);
        let deadline = now() + lease.remaining();
        let group = match ready.map(|ready| ready.start(&go, deadline)) {
            Some(Ok(group)) => group,
            // The ready process was dropped during a wait, or was killed.
            None | Some(Err(_)) => {
                ready_for(options, plan, progress, before)?.start(&go, deadline).map_err(|error| not_started(&error))?
            }
        };
        Ok(Self {
            options,
            plan,
            group,
            progress,
            terminal,
            shares_terminal,
            interrupted: false,
            stage: Stage::Running,
            acquired,
            deadline,
            lost: false,
            told: None,
            exit: None,
            asked: HashSet::new(),
            told_immortal: false,
            told_deaf: false,
        })
    }

    /// Runs until the command and everything that it started have ended.
    pub(super) async fn watch(mut self, lease: &MultiLease, signals: &mut Signals) -> Outcome {
        let mut changes = Changes::of(lease);
        let mut lost = Box::pin(lease.lost());
        let (mut news, mut held, mut at_risk) = (true, true, HashSet::new());
        if let Some(progress) = self.progress {
            // The start of the command counts as progress.
            progress.note();
        }
        let progress = self.progress;
        let progresses = || async move {
            match progress {
                Some(progress) => progress.next().await,
                None => std::future::pending().await,
            }
        };
        let ended = loop {
            if let Some(exit) = self.exit.filter(|_| !self.is_anybody_there(lease)) {
                break exit;
            }
            let rest = self.look(lease);
            tokio::select! {
                biased;
                signal = signals.next() => self.signalled(signal, lease),
                _ = &mut lost, if held => held = false,
                change = changes.next(), if news => {
                    news = change.is_some();
                    if let Some((name, status)) = change.filter(|_| self.options.wanted.verbose) {
                        let missing = self.progress.and_then(Progress::missing);
                        tell_change(name, &status, missing, &mut at_risk);
                    }
                }
                () = progresses() => lease.progress(),
                () = tokio::time::sleep(rest) => {}
            }
        };
        self.group.dismiss_guard();
        let had_terminal = self
            .terminal
            .as_ref()
            .filter(|terminal| terminal.is_of(self.group.leader()) || self.shares_terminal && terminal.is_nobodys());
        if let Some(terminal) = had_terminal {
            let _gone = terminal.take_back();
            // A command without time to tidy up may leave the terminal without echo. Shells restore it for their
            // children only.
            if self.lost || matches!(ended, Exit::Signal(_)) {
                let _gone = terminal.restore();
            }
            // Repeat the message, which may have disappeared with the screen of an editor.
            if let Some(why) = self.told.as_ref().filter(|_| io::stderr().is_terminal()) {
                tell(format_args!("{why}; the command was stopped"));
            }
        }
        let interrupted = if self.lost || ended != Exit::Signal(Signal::INT.as_raw()) {
            Interrupted::No
        } else if self.interrupted {
            Interrupted::Us
        } else if had_terminal.is_some() {
            Interrupted::TheCommand
        } else {
            Interrupted::No
        };
        Outcome { exit: if self.lost { Exit::Lost } else { ended }, ran: Duration::ZERO, lost: self.lost, interrupted }
    }

    /// Whether the survivors of the ended command still need the lock.
    fn is_anybody_there(&mut self, lease: &MultiLease) -> bool {
        let is_dead_for = match self.stage {
            Stage::Killed { at } => now().saturating_sub(at),
            _ => Duration::ZERO,
        };
        // A zombie still counts as a member of its process group, and is not always ours to reap.
        let group = self.group.is_there() && (self.stage_is_new() || self.group.is_alive());
        let there = group || self.lost && !self.group.strays().is_empty();
        if there && is_dead_for >= MARGIN && !self.told_immortal {
            self.told_immortal = true;
            let held = if lease.check().is_ok() { "is held meanwhile" } else { "is not held any more" };
            tell(format_args!(
                "what the command has left behind cannot be killed: {:?} {held}",
                self.options.wanted.name
            ));
        }
        // Waiting is useless without a lease.
        there && (is_dead_for < MARGIN || lease.check().is_ok())
    }

    /// Whether the command was asked or killed so recently that survivors may be ending just now.
    fn stage_is_new(&self) -> bool {
        let since = match self.stage {
            Stage::Running => return true,
            Stage::Asked { until } => (now() + self.plan.grace()).saturating_sub(until),
            Stage::Killed { at } => now().saturating_sub(at),
        };
        since < MARGIN
    }

    /// Does what is due for the lease, and returns how long nothing more is due.
    fn look(&mut self, lease: &MultiLease) -> Duration {
        let now = now();
        let definite = lease.check().err();
        if definite.is_none() {
            let deadline = now + lease.remaining();
            if deadline > self.deadline + RENEWED {
                trouble::is_over();
                self.group.may_run_until(deadline);
            }
            self.deadline = deadline;
        }
        let left = self.deadline.saturating_sub(now);
        let is_over = definite.is_some() || self.exit.is_some();
        let due = match self.stage {
            Stage::Running if !is_over => self.plan.running(left),
            // Too little time for a grace is left before the last confirmed deadline.
            Stage::Running if Plan::asked(self.plan.grace(), left) == Due::Kill => Due::Kill,
            Stage::Running => Due::Ask,
            Stage::Asked { until } => Plan::asked(until.saturating_sub(now), left),
            Stage::Killed { .. } => Due::Kill,
        };
        if matches!(self.stage, Stage::Running) && !matches!(due, Due::Wait(_)) && self.exit.is_none() {
            self.lost = true;
            let why = definite.map_or_else(|| self.why(now), |lost| lost.to_string());
            tell(format_args!("{why}; the command is stopped"));
            self.told = Some(why);
        }
        let often = if self.exit.is_some() && self.stage_is_new() { SURVIVORS } else { LOOK };
        match due {
            Due::Wait(rest) => {
                if matches!(self.stage, Stage::Asked { .. }) {
                    self.ask_strays();
                }
                rest.min(often)
            }
            Due::Ask => {
                self.send(self.options.stopping.signal);
                // A stopped process handles the signal only once it continues.
                self.send(Signal::CONT);
                let until = now + self.plan.grace();
                self.stage = Stage::Asked { until };
                self.group.may_run_until(self.deadline.min(until + MARGIN));
                self.ask_strays();
                Duration::ZERO
            }
            Due::Kill => {
                if !matches!(self.stage, Stage::Killed { .. }) {
                    self.stage = Stage::Killed { at: now };
                }
                // List the descendants first: they become our children only when their parents die, and we may have
                // exited by then.
                let outsiders = self.lost.then(|| self.group.outsiders());
                self.send(Signal::KILL);
                for outsider in outsiders.into_iter().flatten() {
                    let _gone = kill_process(outsider, Signal::KILL);
                }
                often
            }
        }
    }

    /// Asks the strays to stop after a loss, because the signal to the group did not reach them.
    fn ask_strays(&mut self) {
        for stray in self.lost.then(|| self.group.strays()).into_iter().flatten() {
            if self.asked.insert(stray) {
                let _gone = kill_process(stray, self.options.stopping.signal);
                let _gone = kill_process(stray, Signal::CONT);
            }
        }
    }

    fn send(&mut self, signal: Signal) {
        let Err(error) = self.group.send(signal, self.exit.is_none()) else { return };
        if !std::mem::replace(&mut self.told_deaf, true) {
            tell(format_args!(
                "the command cannot be sent a signal, {error}: run leasehold as its user, not the command as another from it"
            ));
        }
    }

    /// The reason why a held lease is about to end.
    fn why(&self, now: Duration) -> String {
        let name = &self.options.wanted.name;
        // --max-hold counts from before we had the lease, hence the margin.
        let by_order = self
            .options
            .wanted
            .lease
            .max_hold
            .is_some_and(|most| now.max(self.deadline) + MARGIN >= self.acquired.saturating_add(most));
        if by_order {
            return format!("{name:?} was held for its --max-hold");
        }
        if let Some(stalled) = self.progress.and_then(Progress::stalled) {
            return format!("{name:?} is about to be lost: the command {stalled}");
        }
        format!("{name:?} is about to be lost: no renewal was confirmed{}", trouble::of_renewals())
    }

    /// Forwards a signal, or handles a change of the command's state.
    fn signalled(&mut self, signal: Signal, lease: &MultiLease) {
        if signal != Signal::CHILD {
            if signal == Signal::CONT {
                // Check before the command continues: the lease may have expired while we were stopped.
                self.look(lease);
                if self.shares_terminal {
                    self.hand_over();
                }
            }
            self.interrupted |= signal == Signal::INT;
            self.send(signal);
            return;
        }
        // One signal may stand for several changes.
        while self.exit.is_none() {
            match self.group.change() {
                Ok(None) => return,
                Ok(Some(Change::Exited(code))) => self.exit = Some(Exit::Command(code)),
                Ok(Some(Change::Killed(signal))) => self.exit = Some(Exit::Signal(signal)),
                Ok(Some(Change::Stopped(signal))) => self.stopped(signal, lease),
                // Something else has reaped it, which must not happen.
                Err(_) => self.exit = Some(Exit::Io),
            }
        }
    }

    /// The command has stopped: it waits for the terminal, or the terminal's user or another process stopped it.
    fn stopped(&mut self, signal: i32, lease: &MultiLease) {
        let Some(terminal) = &self.terminal else { return };
        if terminal.is_ours() {
            let wants_it = [Signal::TTIN, Signal::TTOU].iter().any(|wants| wants.as_raw() == signal);
            if self.shares_terminal || wants_it {
                self.hand_over();
            } else {
                // The stop key reached us, and is meant for our whole process group. If no process could continue us,
                // the system does not stop us, and the command continues.
                stop_all();
                self.look(lease);
            }
            self.send(Signal::CONT);
            return;
        }
        // Stop our whole process group with the command. If no process could continue us, the system does not stop us.
        stop_all();
        // We get here once we are continued: the lease may have expired meanwhile.
        self.look(lease);
        if self.terminal.as_ref().is_some_and(|terminal| terminal.is_of(self.group.leader())) {
            // No shell has taken the terminal, so none would continue the command.
            self.send(Signal::CONT);
        }
    }

    fn hand_over(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.is_ours()) {
            self.shares_terminal = true;
            let _gone = terminal.give_to(self.group.leader());
        }
    }
}
