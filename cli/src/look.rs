//! `leasehold show`, `ls` and `release`: locks, their holders, and the forced release.

use std::{
    fmt::Write as _,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use humantime::format_rfc3339_millis;
use leasehold::{Holder, Waiter};
use serde_json::{Value, json};

use crate::{
    args::{Ls, Release, Show},
    connect::with,
    duration::{ago, brief},
    exit::{Ended, Exit},
    say::{bold, print, shown, tell},
    table::{self, Row},
};

pub(crate) fn show(options: &Show) -> Result<ExitCode, Ended> {
    let (holder, waiters) = with(&options.servers, |leases| async move {
        let lock = leases.lock(&options.name);
        let waiters = if options.servers.have_queues() { Some(table::waiting(&lock).await?) } else { None };
        Ok((lock.holder().await?, waiters))
    })?;
    let waiters = waiters.and_then(|told| {
        told.map_err(|error| tell(format_args!("who waits for {:?} is not known: {error}", options.name))).ok()
    });
    let held = holder.is_some();
    if options.json {
        let waiter = |waiting: &Waiter| json!({ "label": waiting.label(), "waited_ms": millis(waiting.waited()) });
        let waiters: Option<Vec<Value>> = waiters.map(|waiters| waiters.iter().map(waiter).collect());
        print(
            &json!({ "name": options.name, "holder": holder.as_ref().map(as_json), "waiters": waiters }).to_string(),
        )?;
    } else {
        match &holder {
            Some(holder) => {
                print(&format!("{:?} is held by {}", options.name, shown(&holder.to_string())))?;
                if let Some((since, held)) = holder.since().and_then(|since| Some((moment(since)?, ago(since)))) {
                    print(&format!("  since {since}, for {}", brief(held)))?;
                }
            }
            None => print(&format!("{:?} is free", options.name))?,
        }
        for waiting in waiters.iter().flatten() {
            print(&format!("  {} waits, since {:.1?}", shown(waiting.label()), waiting.waited()))?;
        }
    }
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_json(holder: &Holder) -> Value {
    json!({
        "label": holder.label(),
        "since": holder.since().and_then(moment),
        "held_ms": holder.since().map(ago).map(millis),
        "remaining_ms": holder.remaining().map(millis),
        "fence": holder.fence().map(u64::from),
        "not_a_lock": holder.not_a_lock(),
    })
}

/// `None` for a moment that no calendar has: anybody may write a key's value.
pub(crate) fn moment(moment: SystemTime) -> Option<String> {
    let mut text = String::new();
    write!(text, "{}", format_rfc3339_millis(moment)).ok().map(|()| text)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn ls(options: &Ls) -> Result<ExitCode, Ended> {
    let seen = with(&options.servers, |leases| async move {
        table::read(&leases, &options.pattern, options.servers.have_queues()).await
    })?;
    list(&seen.rows, options.json)?;
    seen.unread.iter().chain(&seen.missing).for_each(tell);
    Ok(if seen.unread.is_empty() && seen.missing.is_none() { ExitCode::SUCCESS } else { Exit::Unreachable.into() })
}

fn list(rows: &[Row], json: bool) -> Result<(), Ended> {
    if json {
        let rows: Vec<Value> = rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.name,
                    "label": row.label,
                    "since": row.since.and_then(moment),
                    "held_ms": row.since.map(ago).map(millis),
                    "remaining_ms": row.remaining.map(millis),
                    "fence": row.fence.map(u64::from),
                    "waiters": row.waiters,
                })
            })
            .collect();
        return print(&Value::from(rows).to_string());
    }
    let mut lines = table::lines(rows, None);
    if let Some(head) = lines.first_mut() {
        *head = bold(head);
    }
    print(&lines.join("\n"))
}

pub(crate) fn release(options: &Release) -> Result<ExitCode, Ended> {
    let holder = with(&options.servers, |leases| async move {
        let lock = leases.lock(&options.name);
        let Some(mut holder) = lock.holder().await? else { return Ok(None) };
        loop {
            if options.yes {
                break;
            }
            if !confirmed(&options.name, &holder)? {
                return Err(Ended::new(Exit::Conflict(1), "nothing was done"));
            }
            // The user takes time to answer, and the answer is about this holder.
            match holder_again(&lock).await? {
                None => return Ok(None),
                Some(now) if is_same(&now, &holder) => break,
                Some(now) => holder = now,
            }
        }
        let was_held = match &options.reason {
            Some(reason) => lock.force_release_because(reason).await?,
            None => lock.force_release().await?,
        };
        Ok(was_held.then_some(holder))
    })?;
    if options.json {
        print(&json!({ "name": options.name, "taken_from": holder.as_ref().map(as_json) }).to_string())?;
    } else {
        let done = if holder.is_some() { "was taken away from its holder" } else { "was free" };
        print(&format!("{:?} {done}", options.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the holder, if need be twice: the server may have closed an idle connection, and the next one answers.
async fn holder_again(lock: &leasehold::Lock) -> Result<Option<Holder>, leasehold::Error> {
    match lock.holder().await {
        Err(error) if error.is_transient() => lock.holder().await,
        told => told,
    }
}

/// A lease is known by its fence; another library's lock has none.
fn is_same(one: &Holder, other: &Holder) -> bool {
    (one.label(), one.fence()) == (other.label(), other.fence())
}

fn confirmed(name: &str, holder: &Holder) -> Result<bool, Ended> {
    if !io::stdin().is_terminal() {
        return Err(Ended::new(Exit::Usage, "standard input is not a terminal: pass --yes to confirm"));
    }
    let _asked = write!(
        io::stderr(),
        "{name:?} is held by {}. It may be at work still. Take it away? [y/N] ",
        shown(&holder.to_string())
    );
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Ended::new(Exit::Io, format!("no answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
