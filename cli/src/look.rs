//! `leasehold show`, `ls` and `release`: locks, their holders, and the forced release.

use std::{
    fmt::Write as _,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::SystemTime,
};

use humantime::format_rfc3339_millis;
use leasehold::{Holder, Lock, Mode, Waiter, check_reason};
use serde_json::{Value, json};

use crate::{
    args::{Ls, Release, Show},
    connect::with,
    duration::{ago, brief},
    exit::{Ended, Exit},
    say::{bold, print, shown, tell},
    table::{self, Row},
};

/// How many sharers of a lock are shown, unless all are asked for.
const FIRST: usize = 20;

/// The holders of a lock, and its waiters.
struct Seen {
    holder: Option<Holder>,
    /// Each sharer, as far as we may read them.
    sharers: Vec<Holder>,
    /// `None` over a quorum, and where we may not read them.
    waiters: Option<Vec<Waiter>>,
}

pub(crate) fn show(options: &Show) -> Result<ExitCode, Ended> {
    let seen = with(&options.servers, |client| async move {
        let lock = client.lock(&options.name);
        let unknown = |who: &str, error| tell(format_args!("who {who} {:?} is not known: {error}", options.name));
        let waiters = if options.servers.have_queues() { Some(table::waiting(&lock).await?) } else { None };
        let waiters = waiters.and_then(|told| told.map_err(|error| unknown("waits for", error)).ok());
        let holder = lock.holder().await?;
        let sharers = match &holder {
            Some(holder) if holder.is_shared() => sharing(&lock).await?,
            _ => Ok(Vec::new()),
        };
        let sharers = sharers.map_err(|error| unknown("shares", error)).unwrap_or_default();
        Ok(Seen { holder, sharers, waiters })
    })?;
    if options.json {
        print(&seen.as_json(&options.name).to_string())?;
    } else {
        seen.print(&options.name, if options.all { usize::MAX } else { FIRST })?;
    }
    Ok(if seen.holder.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The sharers of a lock. The inner error says why we may not list them, although we may see that the lock is shared.
async fn sharing(lock: &Lock) -> Result<Result<Vec<Holder>, leasehold::Error>, leasehold::Error> {
    match lock.holders().await {
        Err(error) if error.is_transient() => Err(error),
        // The lock may be held alone by now.
        told => Ok(told.map(|holders| holders.into_iter().filter(Holder::is_shared).collect())),
    }
}

impl Seen {
    fn print(&self, name: &str, most: usize) -> Result<(), Ended> {
        let Self { holder, sharers, .. } = self;
        let Some(holder) = holder else {
            print(&format!("{name:?} is free"))?;
            return self.print_waiters();
        };
        print(&format!("{name:?} is held by {}", shown(&holder.to_string())))?;
        if let Some((since, held)) = holder.since().and_then(|since| Some((moment(since)?, ago(since)))) {
            print(&format!("  since {since}, for {}", brief(held)))?;
        }
        for sharer in sharers.iter().take(most) {
            let (left, label) = (sharer.remaining().unwrap_or_default(), shown(sharer.label().unwrap_or("?")));
            let how = match sharer.permits() {
                Some(permits @ 2..) => format!("takes {permits} permits"),
                _ => "shares it".to_owned(),
            };
            // A place that a release has left is nobody's to renew.
            let unless = if label.ends_with(" (released)") { "" } else { " unless renewed" };
            print(&format!("  {label} {how}, for {left:.1?}{unless}"))?;
        }
        let all = holder.sharers().map_or(sharers.len(), |all| usize::try_from(all).unwrap_or(usize::MAX));
        match all.saturating_sub(sharers.len().min(most)) {
            0 => {}
            more if sharers.len() > most => print(&format!("  and {more} more: --all shows them"))?,
            more => print(&format!("  and {more} more"))?,
        }
        self.print_waiters()
    }

    fn print_waiters(&self) -> Result<(), Ended> {
        let waiters = self.waiters.as_deref().unwrap_or_default();
        // If nothing is shared, every waiter wants the lock alone.
        let is_shared = self.holder.as_ref().is_some_and(Holder::is_shared);
        let tells_mode = is_shared || waiters.iter().any(|waiter| waiter.mode() != Mode::Exclusive);
        for waiter in waiters {
            let how = if tells_mode { format!(" for it ({})", waiter.mode()) } else { String::new() };
            print(&format!("  {} waits{how}, since {:.1?}", shown(waiter.label()), waiter.waited()))?;
        }
        Ok(())
    }

    fn as_json(&self, name: &str) -> Value {
        let Self { holder, sharers, waiters } = self;
        let sharers = holder.as_ref().is_some_and(Holder::is_shared).then_some(sharers);
        json!({ "name": name, "holder": holder, "shared_by": sharers, "waiters": waiters })
    }
}

/// The moment as text; `None` for one that no calendar has, because a key's value may be anything.
fn moment(moment: SystemTime) -> Option<String> {
    let mut text = String::new();
    write!(text, "{}", format_rfc3339_millis(moment)).ok().map(|()| text)
}

pub(crate) fn ls(options: &Ls) -> Result<ExitCode, Ended> {
    let seen = with(&options.servers, |client| async move {
        table::read(&client, &options.pattern, options.servers.have_queues()).await
    })?;
    list(&seen.rows, options)?;
    seen.unread.iter().chain(&seen.missing).for_each(tell);
    Ok(if seen.unread.is_empty() && seen.missing.is_none() { ExitCode::SUCCESS } else { Exit::Unreachable.into() })
}

fn list(rows: &[Row], options: &Ls) -> Result<(), Ended> {
    if options.json {
        let rows: Vec<Value> = rows.iter().map(Row::as_json).collect();
        return print(&Value::from(rows).to_string());
    } else if options.quiet {
        return rows.iter().try_for_each(|row| print(&shown(&row.name)));
    }
    let mut lines = table::lines(rows, None);
    if let Some(head) = lines.first_mut() {
        *head = bold(head);
    }
    print(&lines.join("\n"))
}

pub(crate) fn release(options: &Release) -> Result<ExitCode, Ended> {
    // A mistake is one whether or not the lock is held.
    if let Some(reason) = &options.reason {
        check_reason(reason)?;
    }
    let holder = with(&options.servers, |client| async move {
        let lock = client.lock(&options.name);
        let Some(mut holder) = lock.holder().await? else { return Ok(None) };
        loop {
            if options.yes {
                break;
            }
            if !confirmed(&options.name, &holder)? {
                return Err(Ended::new(Exit::Conflict(1), "nothing was done"));
            }
            // The user takes time to answer, and the answer applies to this holder only.
            match holder_again(&lock).await? {
                None => return Ok(None),
                Some(now) => {
                    let is_same = is_same(&now, &holder);
                    // If the lock is shared, other sharers may have come and gone.
                    holder = now;
                    if is_same {
                        break;
                    }
                }
            }
        }
        let was_held = match &options.reason {
            Some(reason) => lock.force_release_because(reason).await?,
            None => lock.force_release().await?,
        };
        Ok(was_held.then_some(holder))
    })?;
    if options.json {
        print(&json!({ "name": options.name, "taken_from": holder }).to_string())?;
    } else {
        print(&format!("{:?} {}", options.name, holder.as_ref().map_or_else(|| "was free".into(), taken_from)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the holder, twice if need be: the server may have closed an idle connection, and the next one answers.
async fn holder_again(lock: &leasehold::Lock) -> Result<Option<Holder>, leasehold::Error> {
    match lock.holder().await {
        Err(error) if error.is_transient() => lock.holder().await,
        told => told,
    }
}

fn taken_from(holder: &Holder) -> String {
    match holder.sharers() {
        Some(1) => "was taken away from 1 sharer".into(),
        Some(sharers) => format!("was taken away from {sharers} sharers"),
        None if holder.is_shared() => "was taken away from its sharers".into(),
        None => "was taken away from its holder".into(),
    }
}

/// Whether both are the same by label and fence. A fence identifies a lease, or all leases that share a lock. Another
/// library's lock has no fence.
fn is_same(one: &Holder, other: &Holder) -> bool {
    (one.label(), one.fence()) == (other.label(), other.fence())
}

fn confirmed(name: &str, holder: &Holder) -> Result<bool, Ended> {
    if !io::stdin().is_terminal() {
        return Err(Ended::new(Exit::Usage, "standard input is not a terminal: pass --yes to confirm"));
    }
    let _asked = write!(
        io::stderr(),
        "{name:?} is held by {}. {} may be at work still. Take it away? [y/N] ",
        shown(&holder.to_string()),
        if holder.is_shared() { "All of them" } else { "It" }
    );
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Ended::new(Exit::Io, format!("no answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
