//! A directory that is deleted with its owner.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::spawner;

/// Deleted with all its contents on drop, or when this process ends for any reason.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new empty directory; `what` appears in its name.
    ///
    /// The path is short, because a Unix socket's may not exceed 107 bytes.
    pub fn new(what: &str) -> Self {
        let path = Cleaner::get().root.join(format!("{what}-{:08x}", random() & 0xffff_ffff));
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("no directory {}: {error}", path.display()));
        Self(path)
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Ends a server together with this process, even if the kernel was not asked to. For servers that are used to the end,
/// so no destructor ends them.
pub(crate) fn end_with_this_process(server: u32) {
    let mut shell = Cleaner::get().shell.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(shell.stdin.as_mut().expect("its input was asked for"), "{server}").expect("the cleaner reads");
}

/// A shell that cleans up once its input has ended, at the latest with this process.
struct Cleaner {
    /// The parent directory of all others.
    root: PathBuf,
    shell: Mutex<Child>,
}

impl Cleaner {
    /// The id of an ended process may be reused, so it counts only for a process working in the directory.
    const SCRIPT: &str = r#"
        trap '' HUP INT TERM
        while read -r pid; do set -- "$@" "$pid"; done
        root=$1
        shift
        for pid; do
            case $(readlink "/proc/$pid/cwd") in "$root"/*) kill -KILL "$pid" ;; esac
        done
        rm -rf "$root"
    "#;

    fn get() -> &'static Self {
        static CLEANER: OnceLock<Cleaner> = OnceLock::new();
        CLEANER.get_or_init(|| {
            let name = format!("leasehold-{}-{:08x}", std::process::id(), random() & 0xffff_ffff);
            let root = std::env::temp_dir().join(name);
            std::fs::create_dir(&root).unwrap_or_else(|error| panic!("no directory {}: {error}", root.display()));
            let mut command = Command::new("sh");
            command.args(["-c", Self::SCRIPT, "cleaner"]).arg(&root);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            Self { root, shell: Mutex::new(spawner::spawn(command).expect("a shell")) }
        })
    }
}

/// A number that differs each time; std's hash keys are the only available source of randomness.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
