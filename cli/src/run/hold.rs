//! `leasehold hold`: a lease for a script, for as long as it keeps our standard input open.

use std::{pin::pin, process::ExitCode, thread};

use leasehold::MultiLease;
use rustix::process::Signal;
use tokio::sync::{oneshot, watch};

use super::{Found, catch, keeps_for_that_long, now, outlives_for_that_long, release, trouble, under_a_lease};
use crate::{
    args::{Hold, LockArgs},
    connect::block_on,
    exit::{Ended, Exit},
    keyboard::read_all,
    say::{self, print},
    signals::{Signals, stop_here},
};

pub(crate) fn hold(options: &Hold) -> Result<ExitCode, Ended> {
    let options = &options.wanted;
    keeps_for_that_long(options)?;
    outlives_for_that_long(options)?;
    say::prepare();
    trouble::is_told(options.verbose);
    let exit = block_on(async {
        let mut signals = catch()?;
        let input = Input::read();
        let gives_up = async {
            input.closed().await;
            let why = format!("standard input was closed before {:?} was acquired", options.name);
            Ended::new(Exit::Io, why)
        };
        let work = async |lease, signals: &mut Signals| until_closed(options, lease, &input, signals).await;
        let held = under_a_lease(options, &mut signals, gives_up, || Ok(()), || {}, work).await?;
        Ok(held.unwrap_or_else(|signal| Exit::Signal(signal.as_raw())))
    })?;
    Ok(exit.into())
}

async fn until_closed(
    options: &LockArgs,
    lease: MultiLease,
    input: &Input,
    signals: &mut Signals,
) -> Result<Exit, Ended> {
    let acquired = now();
    let line = match lease.leases() {
        [lease] => format!("held {}", lease.fence()),
        leases => {
            let lines: Vec<_> = leases.iter().map(|lease| format!("held {} {}", lease.fence(), lease.name())).collect();
            lines.join("\n")
        }
    };
    let (mut told, mut is_told) = (pin!(tell_the_script(line)), false);
    let exit = loop {
        tokio::select! {
            biased;
            lost = lease.lost() => return Err(Ended::new(Exit::Lost, lost.to_string())),
            outcome = &mut told, if !is_told => {
                outcome?;
                is_told = true;
            }
            () = input.closed() => break Exit::Command(0),
            signal = ending(signals) => break Exit::Signal(signal.as_raw()),
        }
    };
    let released = release(lease, options.lease.keep_for, now().saturating_sub(acquired), false).await;
    Ok(if released == Found::Lost { Exit::Lost } else { exit })
}

/// Prints the line on a thread of its own: a full pipe without a reader must not stop the renewals.
#[allow(clippy::disallowed_methods, reason = "it ends with the program, and nothing else can wait for standard output")]
async fn tell_the_script(line: String) -> Result<(), Ended> {
    let (tell, told) = oneshot::channel();
    let telling = thread::Builder::new().spawn(move || {
        let _nobody_waits = tell.send(print(&line));
    });
    telling.map_err(|error| Ended::new(Exit::Io, format!("no thread to tell the script: {error}")))?;
    told.await.unwrap_or(Ok(()))
}

/// The next signal that ends us.
async fn ending(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Signal::CHILD | Signal::CONT => {}
            Signal::TSTP => stop_here(),
            ending => return ending,
        }
    }
}

/// Standard input, which may still be open.
struct Input(watch::Receiver<()>);

impl Input {
    #[allow(
        clippy::disallowed_methods,
        reason = "nothing else can wait for standard input, and it ends with the program"
    )]
    fn read() -> Self {
        let (open, input) = watch::channel(());
        thread::spawn(move || {
            read_all(|_| true);
            drop(open);
        });
        Self(input)
    }

    /// # Cancel safety
    ///
    /// Every call completes once the input is closed, so a dropped call loses nothing.
    async fn closed(&self) {
        let mut input = self.0.clone();
        while input.changed().await.is_ok() {}
    }
}
