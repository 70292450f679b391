//! `leasehold run`: a command under a lease.

use std::{future::Future, process::ExitCode, time::Duration};

use leasehold::{AcquireError, Clock, Lease, Lock, ReleaseError, SystemClock};
use rustix::process::Signal;

use self::{job::Job, plan::Plan};
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
mod terminal;

pub(crate) use exec::exec;

/// A server of a quorum that is restarted remembers no key, and votes after its delay: no key is kept for longer.
fn keeps_for_that_long(options: &Run) -> Result<(), Ended> {
    let Some(keep_for) = options.keep_for.filter(|_| !options.servers.quorum.is_empty()) else { return Ok(()) };
    let delay = options.servers.restart_delay.unwrap_or(Duration::from_secs(31));
    if delay.is_zero() || keep_for <= delay {
        return Ok(());
    }
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
    say::prepare();
    let plan = Plan::new(options.grace, options.ttl).map_err(|why| Ended::new(Exit::Usage, why))?;
    // All of it on the main thread: the command dies with the thread that started it.
    block_on(async {
        let mut signals = Signals::catch().map_err(|error| Ended::new(Exit::Io, format!("no signals: {error}")))?;
        if let Some(address) = options.metrics_addr {
            // Another run may be there already, and a job is worth more than its measurements.
            if let Err(ended) = metrics::serve(address) {
                tell(ended);
            }
        }
        let mut builder = options.servers.builder().ttl(options.ttl).max_hold(options.max_hold).fair(options.fair);
        if let Some(label) = &options.label {
            builder = builder.label(label);
        }
        let leases = match unless_ended(&mut signals, builder.build()).await {
            Ok(built) => built?,
            Err(signal) => return Ok(Exit::Signal(signal.as_raw()).into()),
        };
        let outcome = match unless_ended(&mut signals, acquire(options, &leases.lock(&options.name))).await {
            Ok(Ok(lease)) => hold(options, plan, lease, &mut signals).await,
            Ok(Err(ended)) => Err(ended),
            Err(signal) => Ok(Exit::Signal(signal.as_raw()).into()),
        };
        // Also takes a waiter out of its queue.
        leases.close().await;
        outcome
    })
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

/// Runs the command, and frees the lock.
async fn hold(options: &Run, plan: Plan, lease: Lease, signals: &mut Signals) -> Result<ExitCode, Ended> {
    let acquired = now();
    let (outcome, told) = match Job::start(options, plan, &lease, acquired) {
        Ok(job) => {
            let (exit, told) = job.watch(&lease, signals).await;
            (Ok(exit), told)
        }
        Err(ended) => (Err(ended), true),
    };
    let_go(options, lease, now().saturating_sub(acquired), told).await;
    outcome
}

async fn acquire(options: &Run, lock: &Lock) -> Result<Lease, Ended> {
    let conflict = options.conflict_exit_code;
    let lock = if options.verbose {
        let name = options.name.clone();
        lock.clone().on_wait(move |holder| tell(format_args!("{name:?} is held by {holder}; waiting")))
    } else {
        lock.clone()
    };
    let began = now();
    let acquired = if options.nonblock {
        match lock.try_acquire().await {
            Ok(Some(lease)) => Ok(lease),
            Ok(None) => {
                let why = format!("the lock {:?} is held", options.name);
                return Err(Ended::new(Exit::Conflict(conflict), why));
            }
            Err(error) => Err(error),
        }
    } else if let Some(limit) = options.wait {
        lock.acquire_within(limit).await
    } else {
        lock.acquire().await
    };
    let lease = acquired.map_err(|error: AcquireError| Ended::waiting(&error, conflict))?;
    if options.verbose {
        let waited = now().saturating_sub(began);
        tell(format_args!("{:?} is ours after {waited:.3?}, fence {}", options.name, lease.fence()));
    }
    Ok(lease)
}

/// Frees the lock, or keeps it for as long as was asked. What goes wrong is told, and is no reason to fail: the command has
/// done its work.
async fn let_go(options: &Run, lease: Lease, held: Duration, told: bool) {
    let rest = options.keep_for.map(|keep| keep.saturating_sub(held)).filter(|rest| !rest.is_zero());
    let released = match rest {
        Some(rest) => lease.release_after(rest).await,
        None => lease.release().await,
    };
    match released {
        Ok(()) => {}
        Err(ReleaseError::Lost(_)) if told => {}
        Err(error) => tell(&error),
    }
}
