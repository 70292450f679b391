//! `leasehold show` and `leasehold release`: who has a lock, and an end to it.

use std::{
    future::Future,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
};

use leasehold::{Holder, Leases};
use serde_json::{Value, json};

use crate::{
    args::{Release, Servers, Show},
    exit::{Ended, Exit},
    say::print,
};

/// Does something with a connection.
fn with<T, F: Future<Output = Result<T, Ended>>>(servers: &Servers, act: impl FnOnce(Leases) -> F) -> Result<T, Ended> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ended::new(Exit::Io, format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let leases = servers.builder().build().await?;
        let outcome = act(leases.clone()).await;
        leases.close().await;
        outcome
    })
}

pub(crate) fn show(options: &Show) -> Result<ExitCode, Ended> {
    let (holder, waiters) = with(&options.servers, |leases| async move {
        let lock = leases.lock(&options.name);
        Ok((lock.holder().await?, lock.waiters().await?))
    })?;
    let held = holder.is_some();
    if options.json {
        let waiters: Vec<Value> = waiters
            .iter()
            .map(|waiting| json!({ "label": waiting.label(), "waited_ms": millis(waiting.waited()) }))
            .collect();
        print(
            &json!({ "name": options.name, "holder": holder.as_ref().map(as_json), "waiters": waiters }).to_string(),
        )?;
    } else {
        match &holder {
            Some(holder) => print(&format!("{:?} is held by {holder}", options.name))?,
            None => print(&format!("{:?} is free", options.name))?,
        }
        for waiting in &waiters {
            print(&format!("  {} waits, since {:.1?}", waiting.label(), waiting.waited()))?;
        }
    }
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(holder: &Holder) -> Value {
    json!({
        "label": holder.label(),
        "remaining_ms": holder.remaining().map(millis),
        "fence": holder.fence().map(u64::from),
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn release(options: &Release) -> Result<ExitCode, Ended> {
    let was_held = with(&options.servers, |leases| async move {
        let lock = leases.lock(&options.name);
        let Some(holder) = lock.holder().await? else { return Ok(false) };
        if !options.yes && !confirmed(&options.name, &holder)? {
            return Err(Ended::new(Exit::Conflict(1), "nothing was done"));
        }
        Ok(lock.force_release().await?)
    })?;
    print(&format!("{:?} {}", options.name, if was_held { "was taken away from its holder" } else { "was free" }))?;
    Ok(ExitCode::SUCCESS)
}

fn confirmed(name: &str, holder: &Holder) -> Result<bool, Ended> {
    if !io::stdin().is_terminal() {
        return Err(Ended::new(Exit::Usage, "there is nobody to ask: say --yes"));
    }
    let _asked = write!(io::stderr(), "{name:?} is held by {holder}. It may be at work still. Take it away? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Ended::new(Exit::Io, format!("no answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
