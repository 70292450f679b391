//! The least that a hand-off takes on this machine: two processes with blocking sockets, and no runtime.
//!
//! The waiter tracks the key over RESP3, is notified of its deletion, and takes it on the same connection.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _, stdin},
    net::TcpStream,
};

use crate::{Result, peer::monotonic};

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// The answer for a missing key, over RESP3.
const NOTHING: &str = "_\r\n";

/// A connection that sends a request, and reads until a text arrives. Anything behind the text stays for the next read.
#[derive(Debug)]
pub struct Blocking {
    stream: TcpStream,
    heard: String,
}

impl Blocking {
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, heard: String::new() })
    }

    /// Holds a name, so that the waiter waits for it.
    pub fn hold(&mut self, name: &str) -> Result<()> {
        self.ask(&["SET", name, "other", "PX", "30000"], "+OK")
    }

    pub fn release(&mut self, name: &str) -> Result<()> {
        self.ask(&["EVAL", COMPARE_AND_DELETE, "1", name, "other"], ":1\r\n")
    }

    fn ask(&mut self, command: &[&str], until: &str) -> Result<()> {
        self.send(command)?;
        self.until(&[until]).map(drop)
    }

    fn send(&mut self, command: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", command.len());
        for part in command {
            write!(request, "${}\r\n{part}\r\n", part.len())?;
        }
        Ok(self.stream.write_all(request.as_bytes())?)
    }

    /// Reads until one of the texts arrives, and returns it.
    fn until<'a>(&mut self, texts: &[&'a str]) -> Result<&'a str> {
        let mut buffer = [0; 4096];
        loop {
            for text in texts {
                if let Some((_, behind)) = self.heard.split_once(text) {
                    self.heard = behind.to_owned();
                    return Ok(text);
                }
            }
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err("the server has hung up".into());
            }
            self.heard += &String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        }
    }
}

/// Acts as the waiter of the bound.
pub fn serve(port: u16) -> Result<()> {
    let mut server = Blocking::connect(port)?;
    server.ask(&["HELLO", "3"], "modules")?;
    server.ask(&["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"], "+OK")?;
    println!("{}", monotonic());
    for order in stdin().lines() {
        let order = order?;
        let (_, name) = order.split_once(' ').ok_or("an order without a name")?;
        server.ask(&["CLIENT", "CACHING", "YES"], "+OK")?;
        server.send(&["GET", name])?;
        // On a busy machine the key is deleted before the waiter arrives.
        if server.until(&["other", NOTHING])? != NOTHING {
            server.until(&["invalidate"])?;
        }
        server.ask(&["SET", name, "mine", "NX", "PX", "30000"], "+OK")?;
        println!("{}", monotonic());
        server.ask(&["DEL", name], ":1\r\n")?;
    }
    Ok(())
}
