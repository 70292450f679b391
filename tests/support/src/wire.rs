//! A raw connection, independent of any client library.
//!
//! Tests read the server's state through it, so that a fault in the library or in its client cannot hide itself. It
//! also acts as another client that deletes, steals or extends a lock behind the library's back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::bounds::HANGS;
use super::resp::{self, Value};

/// One blocking RESP2 connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// The token in a lock's value: see [`Wire::token`].
fn token_in(value: &str) -> String {
    match value.split_at_checked(40) {
        Some((identity, rest)) if value.starts_with("lh1:") && rest.starts_with(':') => {
            format!("{identity}{}", rest.find('@').map_or("", |at| &rest[at..]))
        }
        _ => value.into(),
    }
}

impl Wire {
    /// Connects to a server on this machine.
    #[track_caller]
    pub fn to_port(port: u16) -> Self {
        Self::try_to_port(port).unwrap_or_else(|error| panic!("no connection to 127.0.0.1:{port}: {error}"))
    }

    /// Like [`Wire::to_port`], for callers that expect a failure.
    pub fn try_to_port(port: u16) -> std::io::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect_timeout(&address, HANGS)?;
        stream.set_nodelay(true)?;
        let mut wire = Self { stream, unread: Vec::new() };
        wire.set_patience(HANGS)?;
        Ok(wire)
    }

    /// How long a reply may take before [`Wire::try_cmd`] gives up.
    pub fn set_patience(&mut self, limit: Duration) -> std::io::Result<()> {
        self.stream.set_read_timeout(Some(limit))?;
        self.stream.set_write_timeout(Some(limit))
    }

    /// Sends a command and waits for its reply; an error *reply* is returned,
    /// a broken connection panics.
    #[track_caller]
    pub fn cmd(&mut self, args: &[&str]) -> Value {
        self.try_cmd(args).unwrap_or_else(|error| panic!("{args:?} got no reply: {error}"))
    }

    /// Like [`Wire::cmd`], for callers that expect a broken connection.
    pub fn try_cmd(&mut self, args: &[&str]) -> std::io::Result<Value> {
        self.send(args)?;
        self.reply()
    }

    /// Sends a command and leaves its reply unread, for pipelining.
    pub fn send(&mut self, args: &[&str]) -> std::io::Result<()> {
        self.stream.write_all(&resp::encode(args))
    }

    /// Reads the next reply, whichever command it belongs to.
    pub fn reply(&mut self) -> std::io::Result<Value> {
        use std::io::{Error, ErrorKind};
        loop {
            match resp::decode(&self.unread) {
                Ok(Some((value, length))) => {
                    self.unread.drain(..length);
                    return Ok(value);
                }
                Ok(None) => {}
                Err(malformed) => return Err(Error::new(ErrorKind::InvalidData, malformed)),
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.unread.extend_from_slice(&chunk[..read]),
                // The signal is unrelated to this read.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The value of a string key.
    #[track_caller]
    pub fn get(&mut self, key: &str) -> Option<String> {
        let value = self.must(&["GET", key]);
        (!value.is_nil()).then(|| value.text())
    }

    /// The token in a lock's value, which is the same on every node: the value without its fence. Any other value is
    /// returned unchanged.
    #[track_caller]
    pub fn token(&mut self, key: &str) -> Option<String> {
        self.get(key).map(|value| token_in(&value))
    }

    /// Stores a string without an expiry.
    #[track_caller]
    pub fn set(&mut self, key: &str, value: &str) {
        self.must(&["SET", key, value]);
    }

    /// Deletes a key and returns whether it existed.
    #[track_caller]
    pub fn del(&mut self, key: &str) -> bool {
        self.must(&["DEL", key]).int() == 1
    }

    /// The key's time to live as reported by the server, in milliseconds: -1 without an expiry, -2 without a key.
    #[track_caller]
    pub fn pttl(&mut self, key: &str) -> i64 {
        self.must(&["PTTL", key]).int()
    }

    /// Whether a key exists.
    #[track_caller]
    pub fn exists(&mut self, key: &str) -> bool {
        self.must(&["EXISTS", key]).int() == 1
    }

    /// The names of all keys that match `pattern`, sorted.
    #[track_caller]
    pub fn keys(&mut self, pattern: &str) -> Vec<String> {
        let reply = self.must(&["KEYS", pattern]);
        let mut names: Vec<String> = reply.array().iter().map(Value::text).collect();
        names.sort();
        names
    }

    /// One line of `INFO`, such as `info_field("stats", "total_connections_received")`.
    #[track_caller]
    pub fn info_field(&mut self, section: &str, field: &str) -> Option<String> {
        self.try_info_field(section, field).unwrap_or_else(|error| panic!("INFO {section} got no reply: {error}"))
    }

    /// Like [`Wire::info_field`], for callers that expect a broken connection.
    pub fn try_info_field(&mut self, section: &str, field: &str) -> std::io::Result<Option<String>> {
        let text = self.try_cmd(&["INFO", section])?.text();
        Ok(text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned()))
    }

    /// How often the server has run a command, including in scripts.
    #[track_caller]
    pub fn calls(&mut self, command: &str) -> usize {
        self.statistic(command, "calls")
    }

    /// How often the server has refused this command without running it.
    #[track_caller]
    pub fn refused(&mut self, command: &str) -> usize {
        self.statistic(command, "rejected_calls")
    }

    #[track_caller]
    fn statistic(&mut self, command: &str, what: &str) -> usize {
        let line = self.info_field("commandstats", &format!("cmdstat_{command}")).unwrap_or_default();
        let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == what).map_or(0, |(_, number)| number.parse().expect("a number"))
    }

    /// The number of scripts that the server has run: on each connection a script is first sent as text, then as its
    /// hash.
    #[track_caller]
    pub fn scripts(&mut self) -> usize {
        self.calls("evalsha") + self.calls("eval")
    }

    /// Runs a command whose error reply would mean a bug in the test.
    #[track_caller]
    pub fn must(&mut self, args: &[&str]) -> Value {
        let value = self.cmd(args);
        if let Value::Error(text) = &value {
            panic!("{args:?} was refused: {text}");
        }
        value
    }
}
