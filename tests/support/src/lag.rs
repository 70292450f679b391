//! A control timer, to tell a late library from a late machine.
//!
//! A bound such as "within 50 ms" is about the library only while the machine
//! runs threads when they are due. [`Lag`] sleeps beside the test and measures
//! how late it is woken; a test then allows `50 ms + lag.worst()`.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);

/// Measures, until dropped, by how much a 1 ms sleep overshoots.
#[derive(Debug)]
pub struct Lag {
    track: Arc<Mutex<Track>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Track {
    worst: Duration,
    napping_since: Instant,
    stop: bool,
}

impl Track {
    /// What the current nap has overshot so far counts too: asked in the middle
    /// of a stall, the control thread is late and has not been able to say so.
    fn worst(&self) -> Duration {
        let late = self.napping_since.elapsed().saturating_sub(NAP);
        self.worst.max(late)
    }
}

impl Lag {
    /// Starts measuring.
    pub fn start() -> Self {
        let track = Arc::new(Mutex::new(Track { worst: Duration::ZERO, napping_since: Instant::now(), stop: false }));
        let shared = Arc::clone(&track);
        let thread = std::thread::Builder::new()
            .name("lag".into())
            .spawn(move || {
                loop {
                    std::thread::sleep(NAP);
                    let mut track = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    track.worst = track.worst();
                    track.napping_since = Instant::now();
                    if track.stop {
                        return;
                    }
                }
            })
            .expect("a thread for the control timer");
        Self { track, thread: Some(thread) }
    }

    /// The largest overshoot since the start.
    pub fn worst(&self) -> Duration {
        self.lock().worst()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Track> {
        self.track.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.lock().stop = true;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
