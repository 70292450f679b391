//! A directory that goes when its owner does.

use std::path::{Path, PathBuf};

/// Removed with all its contents on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new empty directory; `what` appears in its name.
    ///
    /// The path is kept short, because a Unix socket's may not pass 107 bytes.
    pub fn new(what: &str) -> Self {
        let name = format!("leasehold-{what}-{}-{:08x}", std::process::id(), random() & 0xffff_ffff);
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("no directory {}: {error}", path.display()));
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A number that differs each time; std's hash keys are the one source of
/// randomness at hand.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
