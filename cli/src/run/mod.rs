//! `leasehold run`: a command under a lease.

use std::{ffi::OsString, future::Future, os::unix::process::CommandExt, process::ExitCode, time::Duration};

use leasehold::{Clock, Error, Lease, Lock, LossReason, SystemClock};
use rustix::process::{Signal, kill_current_process_group};

use self::{
    exec::find,
    group::own_program,
    job::{Interrupted, Job, Outcome},
    plan::Plan,
};
use crate::{
    args::Run,
    connect::block_on,
    exit::{Ended, Exit},
    say::{self, tell},
    signals::{Signals, stop_here},
};

mod exec;
mod group;
mod job;
mod metrics;
mod plan;
mod system;
mod terminal;
mod trouble;

pub(crate) use exec::{exec, interrupted};

const SECOND: Duration = Duration::from_secs(1);

/// What a release keeps a key for at most.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server of a quorum that is restarted remembers no key, and votes after its delay: no key is kept for longer.
fn keeps_for_that_long(options: &Run) -> Result<(), Ended> {
    let Some(keep_for) = options.keep_for else { return Ok(()) };
    if keep_for > A_DAY {
        return Err(Ended::new(
            Exit::Usage,
            format!("--keep-for {keep_for:?} is longer than a day, for which a lock is kept at most"),
        ));
    }
    if options.servers.quorum.is_empty() {
        return Ok(());
    }
    let Some(delay) = options.servers.delay().filter(|&delay| !delay.is_zero() && keep_for > delay) else {
        return Ok(());
    };
    let why = format!(
        "--keep-for {keep_for:?} is longer than --restart-delay, {delay:?}, for which a quorum can keep it: give every program \
         a longer one"
    );
    Err(Ended::new(Exit::Usage, why))
}

/// By the machine's clock that counts suspend: deadlines are its.
fn now() -> Duration {
    SystemClock.now()
}

pub(crate) fn run(options: &Run) -> Result<ExitCode, Ended> {
    keeps_for_that_long(options)?;
    let plan = Plan::new(options.grace, options.ttl).map_err(|why| Ended::new(Exit::Usage, why))?;
    find(options.command.first().map(OsString::as_os_str).unwrap_or_default())?;
    say::prepare();
    trouble::is_told();
    // All of it on the main thread: the command dies with the thread that started it.
    let outcome = block_on(under_a_lease(options, plan))?;
    if outcome.interrupted != Interrupted::No && outcome.exit == Exit::Signal(Signal::INT.as_raw()) {
        say::finish();
        die_interrupted(outcome.interrupted);
    }
    Ok(outcome.exit.into())
}

async fn under_a_lease(options: &Run, plan: Plan) -> Result<Outcome, Ended> {
    let began = now();
    let mut signals = Signals::catch().map_err(|error| Ended::new(Exit::Io, format!("no signals: {error}")))?;
    if let Some(address) = options.metrics_addr {
        // Another run may be there already, and a job is worth more than its measurements.
        if let Err(why) = metrics::serve(address) {
            tell(why);
        }
    }
    let mut builder = options.servers.builder().ttl(options.ttl).max_hold(options.max_hold).fair(options.fair);
    if let Some(limit) = options.wait {
        builder = builder.connect_timeout(options.servers.connect_timeout.min(limit.max(SECOND)));
    }
    if let Some(label) = &options.label {
        builder = builder.label(label);
    }
    if let Some(memory) = options.fence_memory {
        builder = builder.fence_memory(memory);
    }
    let leases = match unless_ended(&mut signals, builder.build()).await {
        Ok(built) => built?,
        Err(signal) => return Ok(Outcome::signal(signal)),
    };
    let outcome = match unless_ended(&mut signals, acquire(options, &leases.lock(&options.name), began)).await {
        Ok(Ok(lease)) => hold(options, plan, lease, &mut signals).await,
        Ok(Err(ended)) => Err(ended),
        Err(signal) => Ok(Outcome::signal(signal)),
    };
    // Also takes a waiter out of its queue.
    leases.close().await;
    outcome
}

/// As if the terminal had interrupted all of our process group, and not the command alone: the script around us, or the loop
/// of a shell, has to end too. By a program of its own, which catches no signals.
fn die_interrupted(who: Interrupted) {
    if who == Interrupted::TheCommand {
        let _not_us = kill_current_process_group(Signal::INT);
    }
    if let Ok(program) = own_program() {
        let _as_well_as_we_can = std::process::Command::new(program).arg("__interrupted").exec();
    }
}

/// The future's output, or the signal that came before it and would end us.
async fn unless_ended<F: Future>(signals: &mut Signals, future: F) -> Result<F::Output, Signal> {
    tokio::pin!(future);
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

/// Runs the command, and frees the lock, or keeps it for as long as was asked.
async fn hold(options: &Run, plan: Plan, lease: Lease, signals: &mut Signals) -> Result<Outcome, Ended> {
    let acquired = now();
    let job = match Job::start(options, plan, &lease, acquired, signals) {
        Ok(job) => job,
        Err(ended) => {
            // Told by that, whatever it was; and somebody else may do the job.
            let _freed = lease.release().await;
            return Err(ended);
        }
    };
    let mut outcome = job.watch(&lease, signals).await;
    let held = now().saturating_sub(acquired);
    let rest = options.keep_for.map(|keep| keep.saturating_sub(held)).filter(|rest| !rest.is_zero());
    let released = match rest {
        Some(rest) => lease.release_keeping(rest).await,
        None => lease.release().await,
    };
    match released {
        // What became of it was told when it was lost.
        Err(_) if outcome.lost => {}
        // What else goes wrong is no reason to fail: the command has done its work, under the lock.
        Err(error) => {
            match &error {
                // Nothing goes on in the background of a process that ends.
                Error::Unknown(why) => {
                    let what = if rest.is_some() { "that the lock is kept" } else { "the release" };
                    tell(format_args!(
                        "the command has ended; {what} is not confirmed: {why}. The key expires within its TTL"
                    ));
                }
                other => tell(other),
            }
            if let Error::Lost(lost) = error {
                // Since when is not known.
                if matches!(lost.reason(), LossReason::Deleted | LossReason::Taken) {
                    outcome.exit = Exit::Lost;
                }
            }
        }
        Ok(()) => {}
    }
    Ok(outcome)
}

/// Who has a lock that was not to be had, if that can still be told.
async fn held(lock: &Lock) -> String {
    match lock.holder().await {
        Ok(Some(holder)) => format!("the lock {:?} is held by {holder}", lock.name()),
        _ => format!("the lock {:?} is held", lock.name()),
    }
}

/// Within the time that was given, which has run since we began.
async fn acquire(options: &Run, lock: &Lock, began: Duration) -> Result<Lease, Ended> {
    let conflict = options.conflict_exit_code;
    let lock = if options.verbose {
        let name = options.name.clone();
        lock.clone().on_wait(move |holder| tell(format_args!("{name:?} is held by {holder}; waiting")))
    } else {
        lock.clone()
    };
    let asked = now();
    let acquired = if options.nonblock {
        match lock.try_acquire().await {
            Ok(Some(lease)) => Ok(lease),
            // For who asks every hour that is no news: cron would mail it.
            Ok(None) => {
                let exit = Exit::Conflict(conflict);
                return Err(if options.verbose { Ended::new(exit, held(&lock).await) } else { Ended::silently(exit) });
            }
            Err(error) => Err(error),
        }
    } else if let Some(limit) = options.wait {
        lock.acquire_within(limit.saturating_sub(asked.saturating_sub(began))).await
    } else {
        lock.acquire().await
    };
    let lease = acquired.map_err(|error: Error| Ended::waiting(&error, conflict))?;
    if options.verbose {
        let waited = now().saturating_sub(asked);
        tell(format_args!("{:?} is ours after {waited:.3?}, fence {}", options.name, lease.fence()));
    }
    Ok(lease)
}
