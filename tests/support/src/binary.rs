//! The server program that the tests run, and its features.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The variable that names the server program. If unset, `redis-server` is taken from `PATH`.
const VARIABLE: &str = "LEASEHOLD_TEST_SERVER";

/// The variable that names the program for upgrades. If unset, the server program is used.
const NEXT: &str = "LEASEHOLD_TEST_NEXT_SERVER";

/// The version that a server program reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Valkey, whose numbers continue from Redis 7.2.
    pub valkey: bool,
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// Whether features of Redis `major.minor` can be expected.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }

    /// Parses the output of `--version`.
    fn parse(line: &str) -> Option<Self> {
        let numbers = line.split_whitespace().find_map(|w| w.strip_prefix("v="))?;
        let mut numbers = numbers.split('.').map_while(|part| part.parse().ok());
        Some(Self {
            valkey: line.to_ascii_lowercase().contains("valkey"),
            major: numbers.next()?,
            minor: numbers.next()?,
            patch: numbers.next().unwrap_or(0),
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.valkey { "Valkey" } else { "Redis" };
        write!(f, "{name} {}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A server program that was found, and its version.
#[derive(Debug)]
pub(crate) struct Binary {
    /// Its path.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
}

impl Binary {
    /// The server program of this process; panics if it is not found.
    pub(crate) fn get() -> &'static Self {
        static FOUND: OnceLock<Binary> = OnceLock::new();
        FOUND.get_or_init(Self::find)
    }

    /// The path of the program for upgrades.
    pub(crate) fn next() -> PathBuf {
        let named = std::env::var_os(NEXT).filter(|name| !name.is_empty());
        let found = |name: OsString| on_path(&name).unwrap_or_else(|| panic!("{NEXT}: there is no {name:?}"));
        named.map_or_else(|| Self::get().path.clone(), found)
    }

    fn find() -> Self {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| OsString::from("redis-server"));
        let Some(path) = on_path(&name) else {
            panic!(
                "no server program `{}`: install redis-server (on Debian and Ubuntu \
                 `apt-get install redis-server`; `scripts/test` does it), or name a Redis or \
                 Valkey server program in {VARIABLE}",
                name.to_string_lossy()
            );
        };
        let output = Command::new(&path)
            .arg("--version")
            .output()
            .unwrap_or_else(|error| panic!("{} does not run: {error}", path.display()));
        let line = String::from_utf8_lossy(&output.stdout);
        let version =
            Version::parse(&line).unwrap_or_else(|| panic!("{} has no known version: {line:?}", path.display()));
        Self { path, version }
    }
}

/// The path of the program `name`, as a shell would find it.
pub(crate) fn on_path(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let name = PathBuf::from(name.as_ref());
    if name.components().count() > 1 {
        return name.is_file().then_some(name);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(&name)).find(|candidate| candidate.is_file())
}
