//! Steps the wall clock of a child process only.
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

/// A server need not read the wall clock for each command: Valkey 9.1 does so once a millisecond and continues from
/// there by the processor's counter.
const NOTICED: Duration = Duration::from_millis(5);

/// The library to preload, compiled by build.rs.
const LIBRARY: &str = concat!(env!("OUT_DIR"), "/clock_shim.so");

/// A wall clock that can be moved, used by programs started with [`ClockShim::env`]. One shim may drive several
/// programs.
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

    /// The environment of a program that should use this clock.
    pub fn env(&self) -> Vec<(&'static str, OsString)> {
        // Without the library a server would start, and use the machine's clock.
        assert!(Path::new(LIBRARY).exists(), "{LIBRARY} is missing: was target/ moved? To build it again: cargo clean");
        let offset = self.directory.path().join("offset");
        vec![("LD_PRELOAD", LIBRARY.into()), ("LEASEHOLD_CLOCK_FILE", offset.into())]
    }

    /// Moves the clock forward, and returns 5 ms later, when every server has noticed.
    pub fn forward(&self, by: Duration) {
        self.write(|offset| offset + micros(by));
    }

    /// Moves the clock forward, repeatedly, until a key of a server that uses it has expired. A renewal executed just
    /// then reads the key at the earlier time, extends it at the later one, and so saves it.
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

    /// Moves the clock back. Returns like [`ClockShim::forward`].
    pub fn back(&self, by: Duration) {
        self.write(|offset| offset - micros(by));
    }

    /// Makes the clock faster by `parts_in_a_million` from now on. Not undone by [`ClockShim::reset`].
    pub fn gain(&self, parts_in_a_million: i64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the machine's clock is past 1970");
        // The moment is written first, because it is not read without a rate.
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
