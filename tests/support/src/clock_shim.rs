//! Steps the wall clock of a child process, and of nothing else.
//!
//! Setting the machine's clock would need rights and would disturb everything
//! on it. A preloaded library moves the wall clock of one program instead, and
//! leaves the monotonic clocks as they are, just as a real step would.

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::temp_dir::TempDir;
use super::wire::Wire;

/// A server need not look at the wall clock for each command: Valkey 9.1 does so
/// once a millisecond and counts on from there by the processor's counter.
const NOTICED: Duration = Duration::from_millis(5);

/// The library to preload, which build.rs has compiled.
const LIBRARY: &str = concat!(env!("OUT_DIR"), "/clock_shim.so");

/// A wall clock that can be moved; programs started with [`ClockShim::env`]
/// go by it. One shim may drive several programs.
#[derive(Debug)]
pub struct ClockShim {
    directory: TempDir,
    file: std::fs::File,
    offset_micros: Mutex<i64>,
}

impl ClockShim {
    /// A clock that still shows the right time.
    pub fn new() -> Self {
        let directory = TempDir::new("clock");
        let file = std::fs::File::create(directory.path().join("offset")).expect("a file for the clock's offset");
        let shim = Self { directory, file, offset_micros: Mutex::new(0) };
        shim.write(|_| 0);
        shim
    }

    /// What to set in the environment of a program that shall go by this clock.
    pub fn env(&self) -> Vec<(&'static str, OsString)> {
        // A server would start without it, and go by the machine's clock.
        assert!(Path::new(LIBRARY).exists(), "{LIBRARY} has gone: was target/ moved? To build it again: cargo clean");
        let offset = self.directory.path().join("offset");
        vec![("LD_PRELOAD", LIBRARY.into()), ("LEASEHOLD_CLOCK_FILE", offset.into())]
    }

    /// Moves the clock ahead of where it is now, and returns 5 ms later, when
    /// every server goes by it.
    pub fn forward(&self, by: Duration) {
        self.write(|offset| offset + micros(by));
    }

    /// Moves the clock ahead, and again, until the key of a server that goes by it has lost its value. A renewal that
    /// is executed just then finds the key by the time before, and extends it by the time after: it lives on.
    pub fn forward_past(&self, by: Duration, wire: &mut Wire, key: &str) {
        let value = wire.get(key);
        assert!(value.is_some(), "{key:?} has no value to lose");
        for _ in 0..20 {
            self.forward(by);
            if wire.get(key) != value {
                return;
            }
        }
        panic!("{key:?} has outlived 20 steps of {by:?}");
    }

    /// Moves the clock back from where it is now; returns as [`ClockShim::forward`].
    pub fn back(&self, by: Duration) {
        self.write(|offset| offset - micros(by));
    }

    /// Has the clock go faster by so many parts in a million from now on. Not undone by [`ClockShim::reset`].
    pub fn gain(&self, parts_in_a_million: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the machine's clock is past 1970");
        // The moment first: without a rate nobody looks at it.
        for (number, at) in [(micros(now), 16), (parts_in_a_million, 8)] {
            self.file.write_all_at(&number.to_ne_bytes(), at).expect("the clock's rate can be written");
        }
        std::thread::sleep(NOTICED);
    }

    /// Shows the right time again.
    pub fn reset(&self) {
        self.write(|_| 0);
    }

    fn write(&self, change: impl FnOnce(i64) -> i64) {
        let mut offset = self.offset_micros.lock().unwrap_or_else(PoisonError::into_inner);
        *offset = change(*offset);
        self.file.write_all_at(&offset.to_ne_bytes(), 0).expect("the clock's offset can be written");
        std::thread::sleep(NOTICED);
    }
}

impl Default for ClockShim {
    fn default() -> Self {
        Self::new()
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).expect("a step of less than 292 000 years")
}
