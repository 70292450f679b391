//! `leasehold top`: the held locks, again and again.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use leasehold::{Client, NodeState};
use rustix::{
    process::Signal,
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use tokio::sync::{mpsc, watch};

use crate::{
    args::Top,
    connect::with,
    duration::written,
    exit::{Ended, Exit},
    keyboard::{Key, Keys, is_elsewhere, read_all},
    say::{self, bold},
    signals::{Signals, stop_here, unstopped},
    table::{self, Order, Table},
};

pub(crate) fn top(options: &Top) -> Result<ExitCode, Ended> {
    if !say::is_drawn_on() {
        return Err(Ended::new(
            Exit::Usage,
            "top draws on a terminal, and this is none that can be drawn on: see `leasehold ls`",
        ));
    }
    with(&options.servers, |client| async move { show(options, &client).await })
}

async fn show(options: &Top, client: &Client) -> Result<ExitCode, Ended> {
    let mut signals = Signals::catch().map_err(|error| Ended::new(Exit::Io, format!("no signals: {error}")))?;
    let (mut keys, mut view) = (keys(), View::new());
    let mut screen = Screen::enter();
    let interval = options.interval.max(SHORTEST);
    let mut seen = looks(client.clone(), options, interval);
    loop {
        tokio::select! {
            Ok(()) = seen.changed() => {}
            // The terminal may have another size by then, or another process may have written to it.
            () = tokio::time::sleep(REDRAW) => {}
            key = keys.recv() => match key {
                Some(Key::Byte(b'q' | b'Q' | 4)) => return Ok(ExitCode::SUCCESS),
                Some(key) => view.press(key),
                None => {}
            },
            signal = signals.next() => match signal {
                Signal::TSTP => {
                    drop(screen.take());
                    stop_here();
                }
                // Another process has the terminal now, or had it meanwhile.
                Signal::CONT => drop(screen.take()),
                Signal::CHILD => {}
                Signal::INT => return Ok(ExitCode::SUCCESS),
                ending => return Ok(Exit::Signal(ending.as_raw()).into()),
            },
        }
        if screen.is_none() {
            screen = Screen::enter();
        }
        if screen.is_none() {
            continue;
        }
        let size = tcgetwinsize(io::stdout()).ok();
        // A terminal that does not know its size reports 0.
        let (width, height) = size.map_or((0, 0), |size| (size.ws_col.into(), size.ws_row.into()));
        let (width, height) = (if width == 0 { 80 } else { width }, if height == 0 { 24 } else { height });
        let seen = seen.borrow_and_update().clone();
        let is_table = seen.is_ok() && !view.explains;
        draw(&view.frame(client, interval, seen, width, height), is_table)?;
    }
}

/// How often to redraw what has not changed.
const REDRAW: Duration = Duration::from_secs(1);

/// The index of the table's head.
const HEAD: usize = 2;

/// The shortest time between two reads of the table.
const SHORTEST: Duration = Duration::from_millis(100);

/// The latest table. A task keeps reading it, so that a slow server does not delay the exit.
#[allow(clippy::disallowed_methods, reason = "it ends with the program")]
fn looks(client: Client, options: &Top, interval: Duration) -> watch::Receiver<Result<Table, String>> {
    let (pattern, have_queues) = (options.pattern.clone(), options.servers.have_queues());
    let (sender, receiver) = watch::channel(Err("no answer yet".to_owned()));
    tokio::spawn(async move {
        loop {
            let seen = table::read(&client, &pattern, have_queues).await;
            if sender.send(seen.map_err(|ended| ended.why().unwrap_or_default().to_owned())).is_err() {
                return;
            }
            tokio::time::sleep(interval).await;
        }
    });
    receiver
}

const EXPLAINED: [&str; 5] = [
    "s            sort by name, time held, expiry, holder",
    "arrows       scroll by a line (also j and k)",
    "PgUp, PgDn   scroll by a page (also b and space)",
    "?            show or hide these keys",
    "q            quit",
];

/// The visible part of the table.
struct View {
    order: Order,
    /// The first line of the table that is shown.
    first: usize,
    /// The number of lines of a page.
    page: usize,
    /// Whether it explains the keys instead.
    explains: bool,
}

impl View {
    fn new() -> Self {
        Self { order: Order::Name, first: 0, page: 1, explains: false }
    }

    /// Changes the view by a key. From any line behind the last page, `page_of` returns to that page.
    fn press(&mut self, key: Key) {
        match key {
            Key::Up | Key::Byte(b'k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Byte(b'j') => self.first = self.first.saturating_add(1),
            Key::PageUp | Key::Byte(b'b') => self.first = self.first.saturating_sub(self.page),
            Key::PageDown | Key::Byte(b' ') => self.first = self.first.saturating_add(self.page),
            Key::Home => self.first = 0,
            Key::End => self.first = usize::MAX,
            Key::Byte(b's') => self.order = self.order.next(),
            Key::Byte(b'?') => self.explains = !self.explains,
            Key::Byte(_) => {}
        }
    }

    /// A picture of at most this size: its subject, then the table, the keys or an error.
    fn frame(
        &mut self,
        client: &Client,
        interval: Duration,
        seen: Result<Table, String>,
        width: usize,
        height: usize,
    ) -> Vec<String> {
        let nodes = client.nodes();
        let up = nodes.iter().filter(|node| matches!(node.state(), NodeState::Up | NodeState::Unknown)).count();
        let place = match &nodes[..] {
            [one] => one.address().to_owned(),
            nodes => format!("{up} of {} nodes", nodes.len()),
        };
        let mut lines = match seen {
            _ if self.explains => {
                let mut lines = vec![format!("leasehold: {place}; q ends"), String::new()];
                lines.extend(EXPLAINED.map(ToOwned::to_owned));
                lines
            }
            Ok(Table { mut rows, unread, missing }) => {
                let waiting: usize = rows.iter().filter_map(|row| row.waiters).sum();
                let held = rows.len() + unread.len();
                let every = written(interval);
                self.order.sort(&mut rows);
                let mut lines = vec![
                    format!("leasehold: {held} held, {waiting} in line, at {place}; every {every}, q ends"),
                    format!("by {} (s); ? explains the keys", self.order.word()),
                ];
                let mut table = table::lines(&rows, Some(width)).into_iter();
                lines.extend(table.next());
                let unread = unread.iter().chain(&missing).flat_map(|why| table::folded(&say::shown(why), width));
                let body: Vec<_> = table.chain(unread).collect();
                lines.extend(self.page_of(body, height.saturating_sub(lines.len())));
                lines
            }
            Err(error) => {
                let mut lines = vec![format!("leasehold: {place}; q ends"), String::new()];
                lines.extend(table::folded(&say::shown(&error), width));
                lines
            }
        };
        lines.truncate(height);
        lines.iter().map(|line| table::cut(line, width)).collect()
    }

    /// The lines that fit. If these are not all, the last line says which they are.
    fn page_of(&mut self, body: Vec<String>, room: usize) -> Vec<String> {
        let all = body.len();
        if all <= room {
            (self.first, self.page) = (0, room.max(1));
            return body;
        }
        self.page = room.saturating_sub(1).max(1);
        self.first = self.first.min(all.saturating_sub(self.page));
        let mut lines: Vec<_> = body.into_iter().skip(self.first).take(self.page).collect();
        lines.push(format!(
            "{} to {} of {all} lines: scroll with the arrows",
            self.first + 1,
            self.first + lines.len()
        ));
        lines
    }
}

/// The keys that are pressed. There are none after the end of the input.
#[allow(clippy::disallowed_methods, reason = "nothing else can wait for a key, and it ends with the program")]
fn keys() -> mpsc::UnboundedReceiver<Key> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut keys = Keys::default();
        read_all(|bytes| bytes.iter().filter_map(|byte| keys.push(*byte)).all(|key| sender.send(key).is_ok()));
        // The end of the input is no reason to quit.
        std::mem::forget(sender);
    });
    receiver
}

/// The terminal while we draw on it. A drop restores it.
struct Screen {
    before: Option<Termios>,
}

impl Screen {
    /// Takes the screen; `None` in the background of the terminal.
    fn enter() -> Option<Self> {
        if is_elsewhere() {
            return None;
        }
        let input = io::stdin();
        let before = tcgetattr(&input).ok();
        if let Some(mut modes) = before.clone() {
            // A key is read as soon as it is pressed, and is not shown.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            let _as_it_was = unstopped(|| tcsetattr(&input, OptionalActions::Now, &modes));
        }
        // The other screen, and no cursor.
        let _nobody_sees = write!(io::stdout(), "\u{1b}[?1049h\u{1b}[?25l").and_then(|()| io::stdout().flush());
        Some(Self { before })
    }
}

/// Draws the lines from the upper left corner on, and erases what was there before.
fn draw(lines: &[String], is_table: bool) -> Result<(), Ended> {
    let line = |(at, line): (usize, &String)| if is_table && at == HEAD { bold(line) } else { line.clone() };
    let lines: Vec<String> = lines.iter().enumerate().map(line).collect();
    // Erase each line first: at the end of a line as wide as the terminal, that would erase the line's last character.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(view: &mut View, all: usize, room: usize) -> Vec<String> {
        view.page_of((0..all).map(|line| line.to_string()).collect(), room)
    }

    #[test]
    fn what_does_not_fit_is_scrolled() {
        let mut view = View::new();
        assert_eq!(lines(&mut view, 3, 3), ["0", "1", "2"]);
        assert_eq!(lines(&mut view, 9, 3), ["0", "1", "1 to 2 of 9 lines: scroll with the arrows"]);
        for (key, first) in [
            (Key::Down, "1"),
            (Key::PageDown, "3"),
            (Key::Up, "2"),
            (Key::End, "7"),
            (Key::PageDown, "7"),
            (Key::PageUp, "5"),
            (Key::Home, "0"),
            (Key::Up, "0"),
        ] {
            view.press(key);
            assert_eq!(lines(&mut view, 9, 3)[0], first, "{key:?}");
        }
        // Fewer lines than before, and a terminal without any lines.
        view.press(Key::End);
        assert_eq!(lines(&mut view, 4, 3)[0], "2");
        let _no_panic = lines(&mut view, 4, 0);
        assert_eq!(lines(&mut view, 2, 3), ["0", "1"]);
    }
}
