//! `leasehold observe`: who leads, as it changes.

use std::{
    future::pending,
    io,
    pin::pin,
    process::{ExitCode, ExitStatus, Stdio},
};

use leasehold::{Client, Holder, Leaders, Leadership};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::{
    args::Observe,
    connect::with,
    duration::brief,
    exit::{Ended, Exit},
    run::troubles_are_told,
    say::{print, print_for_a_reader, reader_is_gone, shown, tell},
    table::with_fields,
};

/// The exit codes of `--once` if the lock has no leader, and if the leader is not known.
const VACANT: u8 = 1;
const UNKNOWN: u8 = 2;

pub(crate) fn observe(options: &Observe) -> Result<ExitCode, Ended> {
    if !options.once {
        troubles_are_told(false);
    }
    with(&options.servers, |client| async move {
        let leaders = client.election(&options.name).observe()?;
        if options.once { once(options, &client, leaders).await } else { follow(options, &client, leaders).await }
    })
}

async fn once(options: &Observe, client: &Client, mut leaders: Leaders) -> Result<ExitCode, Ended> {
    let now = leaders.next().await.unwrap_or(Leadership::Unknown);
    print(&line(options, &now))?;
    if now == Leadership::Unknown {
        // The observer does not report why, but this request fails for the same reason.
        client.lock(&options.name).holder().await?;
    }
    Ok(match now {
        Leadership::Led(_) | Leadership::Shared(_) => ExitCode::SUCCESS,
        Leadership::Vacant => Exit::Conflict(VACANT).into(),
        _ => Exit::Conflict(UNKNOWN).into(),
    })
}

/// Prints each change, until the program is ended from outside. Without a command it ends once its reader has gone.
async fn follow(options: &Observe, client: &Client, mut leaders: Leaders) -> Result<ExitCode, Ended> {
    let mut running: Option<Child> = None;
    // The latest change, while no command was started for it yet.
    let mut news: Option<Leadership> = None;
    let unread = async { if options.exec.is_none() { reader_is_gone().await } else { pending().await } };
    let mut unread = pin!(unread);
    loop {
        tokio::select! {
            biased;
            now = leaders.next() => {
                let Some(now) = now else { return Err(client.health().await.map_or_else(Ended::from, |()| closed())) };
                let is_read = print_for_a_reader(&line(options, &now))?;
                if !is_read && options.exec.is_none() {
                    return Ok(ExitCode::SUCCESS);
                }
                news = Some(now);
            }
            ended = end_of(&mut running) => {
                running = None;
                ended?;
            }
            () = &mut unread => return Ok(ExitCode::SUCCESS),
        }
        if let (Some(command), None, Some(now)) = (&options.exec, &running, &news) {
            running = start(command, now)
                .map_err(|error| tell(format_args!("the command of --exec cannot be started: {error}")))
                .ok();
            news = None;
        }
    }
}

fn closed() -> Ended {
    Ended::new(Exit::Unreachable, "nothing is observed any more")
}

/// Waits for the end of the command, if one runs. A failure is printed, and the next change starts another command.
async fn end_of(running: &mut Option<Child>) -> Result<(), Ended> {
    let Some(child) = running else { return pending().await };
    match child.wait().await {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            tell(format_args!("the command of --exec has failed: {}", how(status)));
            Ok(())
        }
        Err(error) => Err(Ended::new(Exit::Io, format!("the command of --exec cannot be waited for: {error}"))),
    }
}

fn how(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| format!("exit status {code}"))
}

/// Runs the command in a shell, with the change in its environment. The command outlives the tool if that is ended
/// meanwhile.
fn start(command: &str, now: &Leadership) -> io::Result<Child> {
    // Another program may have written any label, and an environment cannot have a NUL.
    let label = now.leader().and_then(Holder::label).unwrap_or_default().replace('\0', "\u{fffd}");
    let fence = holder(now).and_then(Holder::fence).map(|fence| fence.to_string()).unwrap_or_default();
    Command::new("sh")
        .args(["-c", command])
        .env("LEASEHOLD_STATE", word(now))
        .env("LEASEHOLD_LEADER", label)
        .env("LEASEHOLD_FENCE", fence)
        .stdin(Stdio::null())
        .spawn()
}

fn word(now: &Leadership) -> &'static str {
    match now {
        Leadership::Led(_) => "led",
        Leadership::Shared(_) => "shared",
        Leadership::Vacant => "vacant",
        _ => "unknown",
    }
}

/// The leader, or all sharers of the lock as one holder.
fn holder(now: &Leadership) -> Option<&Holder> {
    match now {
        Leadership::Led(holder) | Leadership::Shared(holder) => Some(holder),
        _ => None,
    }
}

fn line(options: &Observe, now: &Leadership) -> String {
    let (state, holder) = (word(now), holder(now));
    if options.json {
        return with_fields(json!(now), [("name", json!(options.name))]).to_string();
    }
    let Some(holder) = holder else { return state.to_owned() };
    let fence = holder.fence().map(|fence| format!(" fence {fence}")).unwrap_or_default();
    if holder.is_shared() {
        let by = holder.sharers().map(|sharers| format!(" by {sharers}")).unwrap_or_default();
        let left = holder.remaining().map(|left| format!(", the last for {}", brief(left))).unwrap_or_default();
        return format!("{state}{by}{fence}{left}");
    }
    let by = holder.label().map_or_else(|| "by a program without a label".to_owned(), shown);
    format!("{state} {by}{fence}")
}
