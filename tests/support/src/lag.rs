//! A control, to tell a late library from a late machine.
//!
//! A bound such as "within 50 ms" tests the library only while the machine runs threads when they are due. Beside the
//! test, [`Lag`] does what a client does: it sleeps, sends a request, and awaits the reply. As in a client, several
//! threads pass it on: the caller's, the client's, a proxy's, the server's, and back through all of them. It measures
//! how late the reply is; a test then allows `50 ms + lag.worst()`.
//!
//! Each of these threads stays on its own core. A host may take one core away for a tenth of a second, and then only
//! the threads on it are late.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const NAP: Duration = Duration::from_millis(2);

/// The fewest threads that pass a request on: the client's, the proxy's and the server's, in both directions.
const FEWEST_HANDS: usize = 6;
/// On a machine with more cores than this, some are not measured.
const MOST_CORES: usize = 8;

/// Measures, until dropped, how late a short sleep followed by a request ends.
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
    /// The worst delay. It includes the current round, because in the middle of a stall the control has not yet
    /// recorded it.
    fn worst(&self) -> Duration {
        let late = self.round_since.elapsed().saturating_sub(NAP);
        self.worst.max(late)
    }
}

impl Lag {
    /// Starts measuring.
    pub fn start() -> Self {
        let track = Arc::new(Mutex::new(Track { worst: Duration::ZERO, round_since: Instant::now(), stop: false }));
        let cores = cores();
        let hands = FEWEST_HANDS.max(cores.len());
        let pairs: Vec<_> = (0..=hands).map(|_| UnixStream::pair().expect("a pair of sockets")).collect();
        let (mut out, mut back): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let (request, reply) = (out.remove(0), back.pop().expect("one more than hands"));
        let shared = Arc::clone(&track);
        let control = move || {
            while !lock(&shared).stop {
                sleep(NAP);
                hand_on(&request).and_then(|()| take(&reply)).expect("the reply comes");
                let mut track = lock(&shared);
                track.worst = track.worst();
                track.round_since = Instant::now();
            }
        };
        let mut threads = vec![spawn(control)];
        // Each of them ends with the one before it.
        let hands = back.into_iter().zip(out);
        threads.extend(hands.zip(cores.into_iter().cycle()).map(|((from, to), core)| {
            spawn(move || {
                stay_on(core);
                while take(&from).and_then(|()| hand_on(&to)).is_ok() {}
            })
        }));
        Self { track, threads }
    }

    /// The largest delay since the start.
    pub fn worst(&self) -> Duration {
        lock(&self.track).worst()
    }

    /// How late `requests` successive requests may be, because each of them may be late.
    pub fn of(&self, requests: u32) -> Duration {
        self.worst() * requests
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

fn spawn(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().name("lag".into()).spawn(run).expect("a thread for the control")
}

/// The cores that this process may run on.
fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("Linux tells");
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).take(MOST_CORES).collect()
}

fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).expect("it may run there");
}

fn lock(track: &Mutex<Track>) -> MutexGuard<'_, Track> {
    track.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hand_on(mut to: &UnixStream) -> io::Result<()> {
    to.write_all(&[0])
}

fn take(mut from: &UnixStream) -> io::Result<()> {
    from.read_exact(&mut [0])
}
