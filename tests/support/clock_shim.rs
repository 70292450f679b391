//! Steps the wall clock of a child process, and of nothing else.
//!
//! Setting the machine's clock would need rights and would disturb everything
//! on it. A preloaded library moves the wall clock of one program instead, and
//! leaves the monotonic clocks as they are, just as a real step would.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::temp_dir::TempDir;
use super::wire::Wire;

/// A server need not look at the wall clock for each command: Valkey 9.1 does so
/// once a millisecond and counts on from there by the processor's counter.
const NOTICED: Duration = Duration::from_millis(5);

const SOURCE: &str = include_str!("clock_shim.c");

/// A wall clock that can be moved; programs started with [`ClockShim::env`]
/// go by it. One shim may drive several programs.
#[derive(Debug)]
pub struct ClockShim {
    library: PathBuf,
    directory: TempDir,
    file: std::fs::File,
    offset_micros: Mutex<i64>,
}

impl ClockShim {
    /// A clock that still shows the right time; panics if there is no C compiler.
    pub fn new() -> Self {
        let library = library().to_owned();
        let directory = TempDir::new("clock");
        let file = std::fs::File::create(directory.path().join("offset")).expect("a file for the clock's offset");
        let shim = Self { library, directory, file, offset_micros: Mutex::new(0) };
        shim.write(|_| 0);
        shim
    }

    /// What to set in the environment of a program that shall go by this clock.
    pub fn env(&self) -> Vec<(&'static str, OsString)> {
        let offset = self.directory.path().join("offset");
        vec![("LD_PRELOAD", self.library.clone().into()), ("LEASEHOLD_CLOCK_FILE", offset.into())]
    }

    /// Moves the clock ahead of where it is now, and returns 5 ms later, when
    /// every server goes by it.
    pub fn forward(&self, by: Duration) {
        self.write(|offset| offset + micros(by));
    }

    /// Moves the clock ahead, and again, until the key of a server that goes by it has lost its value. A renewal that is
    /// executed just then finds the key by the time before, and extends it by the time after: it lives on.
    pub fn forward_past(&self, by: Duration, wire: &mut Wire, key: &str) {
        let value = wire.get(key);
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

/// The preloadable library, compiled by the first to ask for it.
///
/// Each test may be a process of its own, so the result is kept between
/// processes, under a name that changes with the source.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        std::fs::create_dir_all(&directory).expect("a directory for the clock shim");
        let mut hasher = DefaultHasher::new();
        SOURCE.hash(&mut hasher);
        let library = directory.join(format!("leasehold_clock_{:016x}.so", hasher.finish()));
        if !library.exists() {
            // Renamed into place: another process must not load half a file.
            let unfinished = library.with_extension(format!("{}.tmp", std::process::id()));
            compile(&unfinished);
            std::fs::rename(&unfinished, &library).expect("the clock shim moves into place");
        }
        library
    })
}

fn compile(output: &Path) {
    let mut compiler = Command::new("cc")
        .args(["-O1", "-Wall", "-shared", "-fPIC", "-x", "c", "-o"])
        .arg(output)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!(
                "the clock tests need a C compiler named `cc` (on Debian and Ubuntu \
                 `apt-get install gcc libc6-dev`): {error}"
            )
        });
    compiler
        .stdin
        .take()
        .expect("the compiler's input was asked for")
        .write_all(SOURCE.as_bytes())
        .expect("the compiler reads its input");
    let output = compiler.wait_with_output().expect("the compiler ends");
    assert!(output.status.success(), "the clock shim does not compile: {}", String::from_utf8_lossy(&output.stderr));
}
