//! A control, to tell a late library from a late machine.
//!
//! A bound such as "within 50 ms" is about the library only while the machine runs threads when they are due. [`Lag`] does
//! beside the test what a client does: it sleeps, sends a request to another thread, and awaits the reply. It measures how
//! late the reply is; a test then allows `50 ms + lag.worst()`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);

/// Measures, until dropped, how late a sleep of 1 ms and a request after it end together.
#[derive(Debug)]
pub struct Lag {
    track: Arc<Mutex<Track>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Track {
    worst: Duration,
    round_since: Instant,
    stop: bool,
}

impl Track {
    /// The current round counts too: in the middle of a stall, the control is late and has not been able to say so.
    fn worst(&self) -> Duration {
        let late = self.round_since.elapsed().saturating_sub(NAP);
        self.worst.max(late)
    }
}

impl Lag {
    /// Starts measuring.
    pub fn start() -> Self {
        let track = Arc::new(Mutex::new(Track { worst: Duration::ZERO, round_since: Instant::now(), stop: false }));
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        let shared = Arc::clone(&track);
        let control = move || {
            while !lock(&shared).stop {
                sleep(NAP);
                request(&client).expect("the server answers");
                let mut track = lock(&shared);
                track.worst = track.worst();
                track.round_since = Instant::now();
            }
        };
        // It ends with the client.
        let server = move || while answer(&server).is_ok() {};
        let thread = |name: &str| Builder::new().name(name.into());
        let threads = vec![
            thread("lag").spawn(control).expect("a thread for the control"),
            thread("lag-server").spawn(server).expect("a thread for its server"),
        ];
        Self { track, threads }
    }

    /// The largest delay since the start.
    pub fn worst(&self) -> Duration {
        lock(&self.track).worst()
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        lock(&self.track).stop = true;
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn lock(track: &Mutex<Track>) -> MutexGuard<'_, Track> {
    track.lock().unwrap_or_else(PoisonError::into_inner)
}

fn request(mut server: &UnixStream) -> io::Result<()> {
    server.write_all(&[0])?;
    server.read_exact(&mut [0])
}

fn answer(mut client: &UnixStream) -> io::Result<()> {
    client.read_exact(&mut [0])?;
    client.write_all(&[0])
}
