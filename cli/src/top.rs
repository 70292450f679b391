//! `leasehold top`: what is held, again and again.

use std::{
    io::{self, Read, Write},
    process::ExitCode,
    time::Duration,
};

use leasehold::{Leases, NodeState};
use rustix::{
    process::{Signal, getpgrp},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr},
};
use tokio::sync::{mpsc, watch};

use crate::{
    args::Top,
    connect::with,
    exit::{Ended, Exit},
    say::{self, bold},
    signals::{Signals, stop_here, unstopped},
    table::{self, Table},
};

pub(crate) fn top(options: &Top) -> Result<ExitCode, Ended> {
    if !say::is_drawn_on() {
        return Err(Ended::new(
            Exit::Usage,
            "top draws on a terminal, and this is none that can be drawn on: see `leasehold ls`",
        ));
    }
    with(&options.servers, |leases| async move { show(options, &leases).await })
}

async fn show(options: &Top, leases: &Leases) -> Result<ExitCode, Ended> {
    let mut signals = Signals::catch().map_err(|error| Ended::new(Exit::Io, format!("no signals: {error}")))?;
    let mut keys = keys();
    let mut screen = Screen::enter();
    let interval = options.interval.max(SHORTEST);
    let mut seen = looks(leases.clone(), options.pattern.clone(), interval);
    loop {
        tokio::select! {
            Ok(()) = seen.changed() => {}
            // The terminal may have another size by then, or somebody have written to it.
            () = tokio::time::sleep(REDRAW) => {}
            key = keys.recv() => if matches!(key, Some(b'q' | b'Q' | 4)) {
                return Ok(ExitCode::SUCCESS);
            },
            signal = signals.next() => match signal {
                Signal::TSTP => {
                    drop(screen);
                    stop_here();
                    screen = Screen::enter();
                }
                // It was another's meanwhile, or is.
                Signal::CONT => {
                    drop(screen);
                    screen = Screen::enter();
                }
                Signal::CHILD => {}
                Signal::INT => return Ok(ExitCode::SUCCESS),
                ending => return Ok(Exit::Signal(ending.as_raw()).into()),
            },
        }
        let size = tcgetwinsize(io::stdout()).ok();
        // A terminal may not know it, and say 0.
        let (width, height) = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
        let (width, height) = (if width == 0 { 80 } else { width }, if height == 0 { 24 } else { height });
        let seen = seen.borrow_and_update().clone();
        draw(&frame(leases, interval, &seen, width, height), seen.is_ok())?;
    }
}

/// How often the same is drawn again.
const REDRAW: Duration = Duration::from_secs(1);

/// The line of the table's head.
const HEAD: usize = 2;

/// No server is asked more often.
const SHORTEST: Duration = Duration::from_millis(100);

/// What each look finds, one after the other: a server that is slow to answer keeps nobody from ending.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
fn looks(leases: Leases, pattern: String, interval: Duration) -> watch::Receiver<Result<Table, String>> {
    let (sender, receiver) = watch::channel(Err("no answer yet".to_owned()));
    tokio::spawn(async move {
        loop {
            let seen = table::read(&leases, &pattern).await;
            if sender.send(seen.map_err(|ended| ended.why().unwrap_or_default().to_owned())).is_err() {
                return;
            }
            tokio::time::sleep(interval).await;
        }
    });
    receiver
}

/// A picture of so many columns and lines at most: what it is about, and the table or what went wrong.
fn frame(
    leases: &Leases,
    interval: Duration,
    seen: &Result<Table, String>,
    width: usize,
    height: usize,
) -> Vec<String> {
    let nodes = leases.nodes();
    let up = nodes.iter().filter(|node| matches!(node.state(), NodeState::Up | NodeState::Unknown)).count();
    let place = match &nodes[..] {
        [one] => one.address().to_owned(),
        nodes => format!("{up} of {} nodes", nodes.len()),
    };
    let mut lines = match seen {
        Ok(Table { rows, unread }) => {
            let waiting: usize = rows.iter().filter_map(|row| row.waiters).sum();
            let head = format!("leasehold: {} held, {waiting} in line, at {place}; ", rows.len() + unread.len());
            let mut lines = vec![head + &format!("every {interval:?}, q ends"), String::new()];
            lines.extend(table::lines(rows, Some(width)));
            lines.extend(unread.iter().flat_map(|why| table::folded(&say::shown(why), width)));
            lines
        }
        Err(error) => {
            let mut lines = vec![format!("leasehold: {place}; q ends"), String::new()];
            lines.extend(table::folded(&say::shown(error), width));
            lines
        }
    };
    if lines.len() > height {
        let hidden = lines.len() - height.saturating_sub(1);
        lines.truncate(height.saturating_sub(1));
        // Of what went wrong, one thing may have many lines.
        let all_are_locks = seen.as_ref().is_ok_and(|seen| seen.unread.is_empty());
        let hidden = if all_are_locks { format!("{hidden} ") } else { String::new() };
        lines.push(format!("and {hidden}more: see `leasehold ls`"));
    }
    lines.iter().map(|line| table::cut(line, width)).collect()
}

/// What is typed; nothing any more when the input ends.
#[allow(clippy::disallowed_methods, reason = "nothing else can wait for a key, and it ends with the program")]
fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let (mut input, mut key) = (io::stdin(), [0]);
        while let Ok(1) = input.read(&mut key) {
            let [key] = key;
            if sender.send(key).is_err() {
                return;
            }
        }
        // An input that has ended says nothing, and is no reason to end.
        std::mem::forget(sender);
    });
    receiver
}

/// The terminal while it is drawn on; as it was before when dropped.
struct Screen {
    before: Option<Termios>,
}

impl Screen {
    /// In the background of the terminal it is not ours: we stop until it is.
    fn enter() -> Self {
        let input = io::stdin();
        if tcgetpgrp(&input).is_ok_and(|foreground| foreground != getpgrp()) {
            stop_here();
        }
        let before = tcgetattr(&input).ok();
        if let Some(mut modes) = before.clone() {
            // A key is there when it is pressed, and is not shown.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _as_it_was = unstopped(|| tcsetattr(&input, OptionalActions::Now, &modes));
        }
        // The other screen, and no cursor.
        let _nobody_sees = write!(io::stdout(), "\u{1b}[?1049h\u{1b}[?25l").and_then(|()| io::stdout().flush());
        Self { before }
    }
}

/// From the upper left corner on; what was there before is wiped away.
fn draw(lines: &[String], is_table: bool) -> Result<(), Ended> {
    let line = |(at, line): (usize, &String)| if is_table && at == HEAD { bold(line) } else { line.clone() };
    let lines: Vec<String> = lines.iter().enumerate().map(line).collect();
    // Each line is wiped first: behind a line as wide as the terminal that would wipe its last sign.
    say::write(format!("\u{1b}[H\u{1b}[2K{}\u{1b}[J", lines.join("\n\u{1b}[2K")).as_bytes())
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _nobody_sees = write!(io::stdout(), "\u{1b}[?25h\u{1b}[?1049l").and_then(|()| io::stdout().flush());
        if let Some(before) = &self.before {
            let _as_it_is = unstopped(|| tcsetattr(io::stdin(), OptionalActions::Now, before));
        }
    }
}
