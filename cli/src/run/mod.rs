//! `leasehold run`: a command under a lease.

use std::{
    ffi::OsString,
    future::Future,
    io::{self, IsTerminal},
    os::unix::process::CommandExt,
    pin::{Pin, pin},
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, Error, Lock, LossReason, MultiLease, Released, SystemClock};
use rustix::process::{Signal, kill_current_process_group};
use tokio::{task::yield_now, time::timeout};

use self::{
    exec::find,
    group::{Ready, own_program},
    job::{Interrupted, Job, Outcome, ready_for},
    plan::Plan,
    progress::Progress,
};
use crate::{
    args::{LockArgs, Run},
    connect::{block_on, build},
    duration::{LONGEST_KEEP, brief, written},
    exit::{Ended, Exit},
    own,
    say::{self, tell},
    signals::{Signals, stop_here},
};

mod exec;
mod group;
mod guard;
mod hold;
mod job;
mod mark;
mod metrics;
mod plan;
mod progress;
mod system;
mod terminal;
mod trouble;

pub(crate) use exec::{exec, interrupted};
pub(crate) use guard::guard;
pub(crate) use hold::hold as hold_for_a_script;
pub(crate) use trouble::is_told as troubles_are_told;

const SECOND: Duration = Duration::from_secs(1);

/// The longest time to close the client after a failed acquire.
const A_MOMENT: Duration = Duration::from_millis(250);

/// Refuses a `--keep-for` that is too long. In a quorum, a restarted server has forgotten its keys, and votes after its
/// delay, so no key is kept for longer than that delay.
fn keeps_for_that_long(options: &LockArgs) -> Result<(), Ended> {
    let Some(keep_for) = options.lease.keep_for else { return Ok(()) };
    if keep_for > LONGEST_KEEP {
        return Err(Ended::new(
            Exit::Usage,
            format!("--keep-for {} is too long: {} is the most", written(keep_for), brief(LONGEST_KEEP)),
        ));
    }
    if options.servers.quorum.is_empty() {
        return Ok(());
    }
    let Some(delay) = options.servers.delay().filter(|&delay| !delay.is_zero() && keep_for > delay) else {
        return Ok(());
    };
    let why = format!(
        "--keep-for {} is longer than --restart-delay, {}, for which a quorum can keep it: give every program a longer one",
        written(keep_for),
        written(delay)
    );
    Err(Ended::new(Exit::Usage, why))
}

/// Refuses a lock that outlives the restart delay, for which a server that may have forgotten the lock is ignored.
fn outlives_for_that_long(options: &LockArgs) -> Result<(), Ended> {
    let Some(delay) = options.servers.delay().filter(|delay| !delay.is_zero()) else { return Ok(()) };
    let (lease, most) = (&options.lease, delay.saturating_sub(SECOND));
    let together = lease.lock_delay.filter(|delay| !delay.is_zero()).map(|delay| lease.ttl + delay);
    let too_long = [("--once-per", lease.once_per), ("--ttl and --lock-delay together,", together)];
    match too_long.into_iter().find_map(|(what, span)| Some((what, span.filter(|&span| span > most)?))) {
        Some((what, span)) => Err(Ended::new(
            Exit::Usage,
            format!(
                "{what} {} must be at least a second less than --restart-delay, {}, after which a restarted server has \
                 forgotten the lock: give every program a longer one",
                written(span),
                written(delay)
            ),
        )),
        None => Ok(()),
    }
}

/// The time by the machine's clock that counts suspend, as the deadlines do.
fn now() -> Duration {
    SystemClock.now()
}

pub(crate) fn run(options: &Run) -> Result<ExitCode, Ended> {
    let outcome = outcome(options);
    if let Some(file) = &options.metrics_file {
        let (exit, ran) = match &outcome {
            Ok(outcome) => (outcome.exit, outcome.ran),
            Err(ended) => (ended.exit, Duration::ZERO),
        };
        // A job is worth more than its measurements.
        if let Err(error) = metrics::write(file, &options.wanted.name, exit, ran) {
            tell(format_args!("--metrics-file {}: {error}", file.display()));
        }
    }
    let lost = options.stopping.lost_exit_code;
    let outcome = match outcome {
        Ok(outcome) if outcome.exit == Exit::Lost => return Ok(lost.into()),
        Err(ended) if ended.exit == Exit::Lost => return Err(ended.with(Exit::Command(lost))),
        outcome => outcome?,
    };
    if outcome.interrupted != Interrupted::No && outcome.exit == Exit::Signal(Signal::INT.as_raw()) {
        say::finish();
        die_interrupted(outcome.interrupted);
    }
    Ok(outcome.exit.into())
}

fn outcome(options: &Run) -> Result<Outcome, Ended> {
    keeps_for_that_long(&options.wanted)?;
    outlives_for_that_long(&options.wanted)?;
    let plan =
        Plan::new(options.stopping.grace, options.wanted.lease.ttl).map_err(|why| Ended::new(Exit::Usage, why))?;
    find(options.command.first().map(OsString::as_os_str).unwrap_or_default())?;
    trouble::is_told(options.wanted.verbose);
    // Everything runs on the main thread, because the command dies with the thread that started it.
    block_on(async {
        let mut signals = catch()?;
        if let Some(address) = options.metrics_addr {
            // Another run may use the address already, and a job is worth more than its measurements.
            if let Err(why) = Box::pin(metrics::serve(address)).await {
                tell(why);
            }
        }
        let (ready, before) = (Arc::new(Mutex::new(None)), signals.before());
        let progress = Progress::open(options)?;
        let progress = progress.as_ref();
        let meanwhile = || {
            // This comes before the command runs, which may use up the threads that we are allowed.
            say::prepare();
            put(&ready, ready_for(options, plan, progress, before)?);
            Ok(())
        };
        let waits = {
            let ready = ready.clone();
            // The ready process is not needed while another holder has the lock, which may be for hours.
            move || drop(taken(&ready))
        };
        let work =
            async |lease, signals: &mut Signals| hold(options, (plan, progress), lease, taken(&ready), signals).await;
        under_a_lease(&options.wanted, &mut signals, std::future::pending(), meanwhile, waits, work)
            .await?
            .or_else(|signal| Ok(Outcome::signal(signal)))
    })
}

fn put(ready: &Mutex<Option<Ready>>, process: Ready) {
    if let Ok(mut ready) = ready.lock() {
        *ready = Some(process);
    }
}

fn taken(ready: &Mutex<Option<Ready>>) -> Option<Ready> {
    ready.lock().ok().and_then(|mut ready| ready.take())
}

fn catch() -> Result<Signals, Ended> {
    Signals::catch().map_err(|error| Ended::new(Exit::Io, format!("no signals: {error}")))
}

/// Acquires the lock, or all of them, and does the work, or returns the signal that came first. Calls `meanwhile` once
/// while it connects, and `waits` when another holder has the lock. Stops waiting when `gives_up` completes.
async fn under_a_lease<T>(
    options: &LockArgs,
    signals: &mut Signals,
    gives_up: impl Future<Output = Ended>,
    meanwhile: impl FnOnce() -> Result<(), Ended>,
    waits: impl Fn() + Send + Sync + 'static,
    work: impl AsyncFnOnce(MultiLease, &mut Signals) -> Result<T, Ended>,
) -> Result<Result<T, Signal>, Ended> {
    let began = now();
    let lease = &options.lease;
    let mut builder = options.servers.builder().ttl(lease.ttl).max_hold(lease.max_hold).fair(options.waiting.fair);
    if let Some(limit) = options.waiting.wait {
        builder = builder.connect_timeout(options.servers.connect_timeout.min(limit.max(SECOND)));
    }
    if let Some(label) = &lease.label {
        builder = builder.label(label);
    }
    if let Some(delay) = lease.lock_delay {
        builder = builder.lock_delay(delay);
    }
    if let Some(memory) = lease.fence_memory {
        builder = builder.fence_memory(memory);
    }
    let mut gives_up = pin!(gives_up);
    let building = async {
        let meanwhile = async {
            // All tasks have a turn first, so that our threads start, and the server's address is resolved, while we
            // wait for the new process to load.
            yield_now().await;
            meanwhile()
        };
        let building = async { build(builder).await.map_err(Ended::from) };
        tokio::try_join!(building, meanwhile).map(|(client, ())| client)
    };
    let built = tokio::select! {
        ended = &mut gives_up => return Err(ended),
        built = unless_ended(signals, Box::pin(building)) => built,
    };
    let client = match built {
        Ok(built) => built?,
        Err(signal) => return Ok(Err(signal)),
    };
    let acquired = tokio::select! {
        ended = gives_up => Ok(Err(ended)),
        acquired = unless_ended(signals, Box::pin(acquire(options, &client, waits, began))) => acquired,
    };
    let has_waited_in_vain = matches!(acquired, Ok(Err(_)));
    let outcome = match acquired {
        Ok(Ok(lease)) => Box::pin(work(lease, signals)).await.map(Ok),
        Ok(Err(ended)) => Err(ended),
        Err(signal) => Ok(Err(signal)),
    };
    // Closing also takes a waiter out of its queue. After a failed acquire, a server that refuses this too must not
    // delay the exit.
    if has_waited_in_vain {
        let _left_behind = timeout(A_MOMENT, client.close()).await;
    } else {
        client.close().await;
    }
    outcome
}

/// Dies of an interrupt, as if the terminal had sent it to our whole process group, and not to the command alone. The
/// script or the shell's loop around us has to end too. For that, this process becomes another program, which catches
/// no signals.
fn die_interrupted(who: Interrupted) {
    if who == Interrupted::TheCommand {
        let _not_us = kill_current_process_group(Signal::INT);
    }
    if let Ok(program) = own_program() {
        let _as_well_as_we_can = std::process::Command::new(program).arg(own::INTERRUPTED).exec();
    }
}

/// The future's output, or the signal that came before it and would end us. The future is boxed because it is large,
/// and would take its room twice here, on the stack.
async fn unless_ended<F: Future>(signals: &mut Signals, mut future: Pin<Box<F>>) -> Result<F::Output, Signal> {
    loop {
        tokio::select! {
            output = &mut future => return Ok(output),
            signal = signals.next() => match signal {
                Signal::CHILD | Signal::CONT => {}
                Signal::TSTP => stop_here(),
                ending => return Err(ending),
            },
        }
    }
}

/// Runs the command, then releases the lock, or keeps it until `--keep-for` has passed.
async fn hold(
    options: &Run,
    how: (Plan, Option<&Progress>),
    lease: MultiLease,
    ready: Option<Ready>,
    signals: &mut Signals,
) -> Result<Outcome, Ended> {
    let acquired = now();
    let job = match Job::start(options, how, &lease, acquired, ready, signals.before()) {
        Ok(job) => job,
        Err(ended) => {
            // `ended` has the reason, whatever the release finds. Release at once, because another process may do the
            // job.
            let _freed = lease.release().await;
            return Err(ended);
        }
    };
    let mut outcome = job.watch(&lease, signals).await;
    outcome.ran = now().saturating_sub(acquired);
    if release(lease, options.wanted.lease.keep_for, outcome.ran, outcome.lost).await == Found::Lost {
        outcome.exit = Exit::Lost;
    }
    Ok(outcome)
}

/// The state of the lock, as a release found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    OursAsFarAsIsKnown,
    /// The lock had been taken away, and we had not noticed.
    Lost,
}

/// Releases a lock that was `held` for this long, or keeps it until `keep_for` has passed.
async fn release(lease: MultiLease, keep_for: Option<Duration>, held: Duration, loss_was_told: bool) -> Found {
    let rest = keep_for.map(|keep| keep.saturating_sub(held)).filter(|rest| !rest.is_zero());
    let released = match rest {
        Some(rest) => lease.release_keeping(rest).await,
        None => lease.release().await,
    };
    match released {
        // This is not a failure: the command has done its work, under the lock.
        Ok(Released::Unconfirmed(why)) => tell(format_args!("the command has ended; {why}")),
        Ok(_) => {}
        // We printed the reason when it was lost.
        Err(_) if loss_was_told => {}
        Err(error) => {
            tell(&error);
            if let Error::Lost(lost) = error {
                // The command may have run without the lock: it is not known since when.
                if matches!(
                    lost.reason(),
                    LossReason::Deleted | LossReason::FailedOver | LossReason::Taken | LossReason::Forced
                ) {
                    return Found::Lost;
                }
            }
        }
    }
    Found::OursAsFarAsIsKnown
}

/// Acquires the lock, or all of them, within `--wait`, which counts from `began`.
async fn acquire(
    options: &LockArgs,
    client: &Client,
    waits: impl Fn() + Send + Sync + 'static,
    began: Duration,
) -> Result<MultiLease, Ended> {
    let conflict = options.waiting.conflict_exit_code;
    let (verbose, nonblock, waits) = (options.verbose, options.waiting.nonblock, Arc::new(waits));
    // A person at a terminal would take silence for a hang; cron would mail the line.
    let at_a_terminal = !verbose && io::stderr().is_terminal();
    let lock = |name: &String| {
        let (name, waits, is_told) = (name.clone(), waits.clone(), AtomicBool::new(!at_a_terminal));
        let lock = match options.lease.permits {
            Some(permits) => client.semaphore(&name, permits).take(options.lease.take.unwrap_or(1)),
            None if options.lease.shared => client.rw_lock(&name).read(),
            None => client.lock(&name),
        };
        let lock = lock.on_wait(move |holder| {
            if !nonblock {
                waits();
            }
            if holder.not_a_lock().is_some() {
                // Such a key is not a lock, so it is never released.
                tell(format_args!("{name:?} is held by {holder}"));
            } else if !nonblock && (verbose || !is_told.swap(true, Ordering::Relaxed)) {
                tell(format_args!("{name:?} is held by {holder}; waiting"));
            }
        });
        options.lease.once_per.into_iter().fold(lock, Lock::once_per).stall_after(options.lease.stall_after)
    };
    let asked = now();
    let rest = options.waiting.wait.map(|limit| limit.saturating_sub(asked.saturating_sub(began)));
    let limit = if nonblock { Some(Duration::ZERO) } else { rest };
    let acquired = match (options.names(), limit) {
        ([name], None) => lock(name).acquire().await.map(MultiLease::from),
        ([name], Some(limit)) => lock(name).acquire_within(limit).await.map(MultiLease::from),
        (names, None) => client.multi_lock(names.iter().map(lock)).acquire().await,
        (names, Some(limit)) => client.multi_lock(names.iter().map(lock)).acquire_within(limit).await,
    };
    let held = acquired.map_err(|error| match error {
        // No message: cron would mail it every hour.
        Error::TimedOut { .. } if nonblock && !verbose => Ended::silently(Exit::Conflict(conflict)),
        Error::TimedOut { name, holder, .. } if nonblock => {
            Ended::new(Exit::Conflict(conflict), format!("the lock {name:?} is held by {holder}"))
        }
        error => Ended::waiting(&error, conflict),
    })?;
    if verbose {
        let waited = now().saturating_sub(asked);
        for lease in held.leases() {
            tell(format_args!("acquired {:?} after {waited:.1?}, with fence {}", lease.name(), lease.fence()));
        }
    }
    Ok(held)
}
