//! One connection through the proxy: two queues, and the purpose of each reply.
//!
//! A single task owns all of it. It writes only while it holds the proxy's state, so that a control applies to every
//! byte after its return.

use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown, sockopt::set_socket_linger};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::proxy::{Messages, Shared};
use super::proxy_rule::{Action, Rule};
use super::resp::{self, Value};

/// A suspended server with a full backlog would keep a connection attempt
/// waiting for minutes.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Closes a socket so that its peer gets a reset instead of an end.
pub(crate) fn reset(socket: impl AsFd) {
    set_socket_linger(&socket, Some(Duration::ZERO)).ok();
    drop(socket);
}

/// Serves a client until both sides are done or the connection is cut.
pub(crate) async fn run(shared: &Arc<Shared>, client: TcpStream, connection: u64, epoch: u64, upstream: SocketAddr) {
    let mut changes = shared.subscribe();
    client.set_nodelay(true).ok();
    let mut traffic = Traffic::new(Arc::clone(shared), connection);
    let born_silent = shared.lock().black_hole;
    if born_silent {
        return silence(traffic, &mut changes, client, None, epoch).await;
    }
    let connecting = TcpStream::connect(upstream);
    let Ok(Ok(server)) = tokio::time::timeout(CONNECT_LIMIT, connecting).await else {
        return reset(client);
    };
    server.set_nodelay(true).ok();

    loop {
        changes.borrow_and_update();
        let wait = match traffic.pump(&client, &server, epoch) {
            Next::Wait(wait) => wait,
            Next::Over => return,
            Next::Silence => {
                return silence(traffic, &mut changes, client, Some(server), epoch).await;
            }
            Next::Cut(rule) => {
                reset(client);
                if let Some(rule) = rule {
                    rule.fire();
                }
                return;
            }
        };
        let due = wait.until.unwrap_or_else(Instant::now);
        tokio::select! {
            _ = changes.changed() => {}
            _ = client.readable(), if !traffic.up.ended => {
                let read = read_all(&client);
                traffic.take_from_client(&read);
            }
            _ = server.readable(), if !traffic.down.ended => {
                let read = read_all(&server);
                traffic.take_from_server(&read);
            }
            _ = client.writable(), if wait.client_full => {}
            _ = server.writable(), if wait.server_full => {}
            () = tokio::time::sleep_until(due.into()), if wait.until.is_some() => {}
        }
    }
}

/// Serves a connection caught in a black hole: reads what the client sends, and keeps both sockets open so that neither
/// side is notified.
async fn silence(
    mut traffic: Traffic,
    changes: &mut watch::Receiver<u64>,
    client: TcpStream,
    server: Option<TcpStream>,
    epoch: u64,
) {
    traffic.silent = true;
    loop {
        changes.borrow_and_update();
        let cut = traffic.shared.lock().cut_done > epoch;
        if cut {
            reset(client);
            drop(server);
            return;
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = client.readable(), if !traffic.up.ended => {
                let read = read_all(&client);
                traffic.take_from_client(&read);
                traffic.up.queue.clear();
            }
        }
    }
}

/// Swaps two texts of equal length.
fn swap(text: &mut [u8], one: &[u8], other: &[u8]) {
    let mut at = 0;
    while let Some(part) = text.get_mut(at..at + one.len()) {
        let with = if part == one { Some(other) } else { Some(one).filter(|_| part == other) };
        if let Some(with) = with {
            part.copy_from_slice(with);
        }
        at += with.map_or(1, <[u8]>::len);
    }
}

/// The bytes read from a socket, and whether and how its stream ended.
struct Read {
    bytes: Vec<u8>,
    end: Option<What>,
}

fn read_all(socket: &TcpStream) -> Read {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    // Bounded, so that a flood in one direction does not delay the other.
    while bytes.len() < 1024 * 1024 {
        match socket.try_read(&mut chunk) {
            Ok(0) => {
                let end = Some(What::End);
                return Read { bytes, end };
            }
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => {
                let end = Some(What::Cut(None));
                return Read { bytes, end };
            }
        }
    }
    Read { bytes, end: None }
}

/// The next step after all deliverable bytes are delivered.
enum Next {
    Wait(Wait),
    /// Both directions have ended.
    Over,
    /// The black hole has caught this connection.
    Silence,
    /// Reset the client; the rule, if it was one, has then taken effect.
    Cut(Option<Arc<Rule>>),
}

#[derive(Default)]
struct Wait {
    until: Option<Instant>,
    client_full: bool,
    server_full: bool,
}

/// The traffic in flight on one connection.
struct Traffic {
    shared: Arc<Shared>,
    connection: u64,
    up: Route,
    down: Route,
    /// The fates of the replies still due, in the order of their commands.
    pending: VecDeque<Pending>,
    /// A reply has been lost, so none may follow.
    muted: bool,
    /// In a black hole: commands are only recorded.
    silent: bool,
    /// Messages may arrive that do not answer a command.
    subscribed: bool,
}

struct Pending {
    replies: usize,
    fate: Fate,
}

#[derive(Clone)]
enum Fate {
    Deliver,
    Lose,
    LoseFor(Arc<Rule>),
    CutFor(Arc<Rule>),
    HoldFor(Arc<Rule>),
}

impl Traffic {
    fn new(shared: Arc<Shared>, connection: u64) -> Self {
        Self {
            shared,
            connection,
            up: Route::default(),
            down: Route::default(),
            pending: VecDeque::new(),
            muted: false,
            silent: false,
            subscribed: false,
        }
    }

    /// Delivers everything that may be delivered now.
    fn pump(&mut self, client: &TcpStream, server: &TcpStream, epoch: u64) -> Next {
        let state = self.shared.lock();
        if state.cut_done > epoch {
            return Next::Cut(None);
        }
        if state.black_hole {
            return Next::Silence;
        }
        let mut wait = Wait::default();
        if state.frozen {
            return Next::Wait(wait);
        }
        let mut gone = [false; 2];
        let routes = [(&mut self.up, server, &mut wait.server_full), (&mut self.down, client, &mut wait.client_full)];
        for ((route, to, full), gone) in routes.into_iter().zip(&mut gone) {
            match route.flush(to, state.delay) {
                Flushed::Nothing => {}
                Flushed::Until(due) => {
                    wait.until = Some(wait.until.map_or(due, |other| other.min(due)));
                }
                Flushed::Full => *full = true,
                Flushed::Cut(rule) => return Next::Cut(rule),
                Flushed::Gone => *gone = true,
            }
        }
        // A side that accepts no more bytes is still read to its end, which is then passed on in the other direction.
        let up = gone[0] || self.up.over();
        let down = gone[1] || self.down.over();
        if up && down {
            return Next::Over;
        }
        Next::Wait(wait)
    }

    fn take_from_client(&mut self, read: &Read) {
        self.up.unread.extend_from_slice(&read.bytes);
        while !self.up.raw {
            match resp::frame_len(&self.up.unread) {
                Ok(Some(length)) => {
                    let frame: Vec<u8> = self.up.unread.drain(..length).collect();
                    if let Some(args) = resp::arguments(&frame) {
                        self.command(frame, &args);
                        continue;
                    }
                    // A frame, but not a command: this is not a Redis client.
                    self.up.push(What::bytes(frame), None);
                    self.go_raw();
                }
                Ok(None) => break,
                Err(resp::Malformed) => self.go_raw(),
            }
        }
        if self.up.raw {
            self.up.push_unread();
        }
        if read.end.is_some() {
            self.up.ended = true;
            // Never a reset, because the server must still execute everything before it.
            self.up.push(What::End, None);
        }
    }

    fn take_from_server(&mut self, read: &Read) {
        self.down.unread.extend_from_slice(&read.bytes);
        while !self.down.raw {
            match resp::frame_len(&self.down.unread) {
                Ok(Some(length)) => {
                    let mut frame: Vec<u8> = self.down.unread.drain(..length).collect();
                    for (one, other) in &self.shared.lock().swaps {
                        swap(&mut frame, one, other);
                    }
                    self.reply(frame);
                }
                Ok(None) => break,
                Err(resp::Malformed) => self.down.raw = true,
            }
        }
        if self.down.raw {
            if self.muted {
                self.down.unread.clear();
            }
            self.down.push_unread();
        }
        if let Some(end) = &read.end {
            self.down.ended = true;
            self.down.push_unread();
            self.down.push(end.clone(), None);
        }
    }

    /// Stops parsing in either direction: replies cannot be told apart without the commands.
    fn go_raw(&mut self) {
        self.up.raw = true;
        self.down.raw = true;
        self.down.push_unread();
    }

    fn command(&mut self, mut frame: Vec<u8>, args: &[Vec<u8>]) {
        let rule = {
            let mut state = self.shared.lock();
            state.note(self.connection, args);
            if self.silent {
                return;
            }
            state.rule_for(args)
        };
        let mut hold = None;
        let mut fate = if self.muted { Fate::Lose } else { Fate::Deliver };
        if let Some(rule) = rule {
            match rule.action {
                Action::DropRequest => {
                    self.muted = true;
                    rule.fire();
                    return;
                }
                Action::Skip => {
                    rule.fire();
                    return;
                }
                Action::CutBefore => {
                    self.up.push(What::Cut(Some(rule)), None);
                    return;
                }
                Action::SwallowReply => {
                    self.muted = true;
                    fate = Fate::LoseFor(rule);
                }
                Action::CutAfter => fate = Fate::CutFor(rule),
                Action::Mangle => {
                    frame = resp::encode(&["MANGLED"]);
                    rule.fire();
                }
                Action::HoldReply if self.muted => {}
                Action::HoldReply => fate = Fate::HoldFor(rule),
                Action::Hold => hold = Some(rule),
            }
        }
        let replies = self.replies_to(args);
        if replies > 0 {
            self.pending.push_back(Pending { replies, fate });
        }
        self.up.push(What::bytes(frame), hold);
        if args.first().is_some_and(|name| name.eq_ignore_ascii_case(b"PSYNC")) {
            // A replica: the server sends it files and commands, but no replies.
            self.go_raw();
        }
    }

    /// The number of replies to a command: one, except for the empty command and for subscriptions, which are confirmed
    /// per channel.
    fn replies_to(&mut self, args: &[Vec<u8>]) -> usize {
        let Some(name) = args.first() else { return 0 };
        let name = name.to_ascii_uppercase();
        if !name.ends_with(b"SUBSCRIBE") {
            return 1;
        }
        self.subscribed = true;
        (args.len() - 1).max(1)
    }

    fn reply(&mut self, frame: Vec<u8>) {
        if self.subscribed && is_message(&frame) {
            return self.message(&frame);
        }
        let fate = match self.pending.front_mut() {
            Some(pending) => {
                pending.replies -= 1;
                let (fate, done) = (pending.fate.clone(), pending.replies == 0);
                if done {
                    self.pending.pop_front();
                }
                fate
            }
            None if self.muted => Fate::Lose,
            None => Fate::Deliver,
        };
        match fate {
            Fate::Deliver => self.down.push(What::bytes(frame), None),
            Fate::Lose => {}
            Fate::LoseFor(rule) => rule.fire(),
            Fate::CutFor(rule) => self.down.push(What::Cut(Some(rule)), None),
            Fate::HoldFor(rule) => self.down.push(What::bytes(frame), Some(rule)),
        }
    }

    fn message(&mut self, frame: &[u8]) {
        let fate = {
            let mut state = self.shared.lock();
            state.messages_seen += 1;
            state.messages
        };
        let (copies, late) = match fate {
            _ if self.muted => return,
            Messages::Lose => return,
            Messages::Pass => (1, Duration::ZERO),
            Messages::Twice => (2, Duration::ZERO),
            Messages::Late(by) => (1, by),
        };
        for _ in 0..copies {
            self.down.push(What::bytes(frame.to_owned()), None);
            if let Some(item) = self.down.queue.back_mut() {
                item.arrived += late;
            }
        }
    }
}

/// Whether a reply is a published message, which comes unasked.
fn is_message(frame: &[u8]) -> bool {
    let Ok(Some((Value::Array(items), _))) = resp::decode(frame) else {
        return false;
    };
    matches!(items.first(), Some(Value::Bulk(kind)) if kind.ends_with(b"message"))
}

/// One direction.
#[derive(Default)]
struct Route {
    /// A frame that is not complete yet.
    unread: Vec<u8>,
    /// The bytes are not RESP2, and are passed on as they arrive.
    raw: bool,
    /// Nothing more will be read.
    ended: bool,
    queue: VecDeque<Item>,
}

struct Item {
    arrived: Instant,
    what: What,
    hold: Option<Hold>,
}

struct Hold {
    rule: Arc<Rule>,
    announced: bool,
}

#[derive(Clone)]
enum What {
    Bytes { bytes: Vec<u8>, written: usize },
    End,
    Cut(Option<Arc<Rule>>),
}

impl What {
    fn bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes { bytes, written: 0 }
    }
}

enum Flushed {
    /// Only new bytes or a changed control can make more deliverable.
    Nothing,
    Until(Instant),
    Full,
    Cut(Option<Arc<Rule>>),
    /// The receiver has closed the connection.
    Gone,
}

impl Route {
    fn push(&mut self, what: What, hold: Option<Arc<Rule>>) {
        self.queue.push_back(Item {
            arrived: Instant::now(),
            what,
            hold: hold.map(|rule| Hold { rule, announced: false }),
        });
    }

    fn push_unread(&mut self) {
        if !self.unread.is_empty() {
            let bytes = std::mem::take(&mut self.unread);
            self.push(What::bytes(bytes), None);
        }
    }

    fn over(&self) -> bool {
        self.ended && self.queue.is_empty()
    }

    fn flush(&mut self, to: &TcpStream, delay: Duration) -> Flushed {
        while let Some(item) = self.queue.front_mut() {
            let due = item.arrived + delay;
            if due > Instant::now() {
                return Flushed::Until(due);
            }
            if let Some(hold) = &mut item.hold {
                if !hold.announced {
                    hold.announced = true;
                    hold.rule.fire();
                }
                if !hold.rule.is_released() {
                    return Flushed::Nothing;
                }
            }
            match &mut item.what {
                What::Cut(rule) => return Flushed::Cut(rule.take()),
                What::End => {
                    shutdown(to, Shutdown::Write).ok();
                }
                What::Bytes { bytes, written } => match write_some(to, bytes, written) {
                    Ok(true) => {}
                    Ok(false) => return Flushed::Full,
                    Err(_) => {
                        self.queue.clear();
                        return Flushed::Gone;
                    }
                },
            }
            self.queue.pop_front();
        }
        Flushed::Nothing
    }
}

/// Writes from `written` on; false if the socket accepts no more for now.
fn write_some(to: &TcpStream, bytes: &[u8], written: &mut usize) -> Result<bool> {
    while *written < bytes.len() {
        match to.try_write(&bytes[*written..]) {
            Ok(count) => *written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
