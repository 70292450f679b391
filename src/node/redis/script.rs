//! A script, sent by its hash once the server knows it.

use std::sync::OnceLock;

/// One Lua script: its text is the documentation of what it does.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) source: &'static str,
    hash: OnceLock<String>,
    /// Its place in a set of scripts.
    pub(crate) bit: u32,
}

/// Defines scripts, each with a place of its own in a set. One may need parts before it; its header says which.
macro_rules! scripts {
    ($($at:literal $name:ident = $($file:literal)+;)*) => {$(
        pub(super) static $name: Script =
            Script::new($at, concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+));
    )*};
}

pub(super) use scripts;

impl Script {
    pub(super) const fn new(at: u32, source: &'static str) -> Self {
        Self { source, hash: OnceLock::new(), bit: 1 << at }
    }

    pub(super) fn hash(&'static self) -> &'static str {
        self.hash.get_or_init(|| fred::util::sha1_hash(self.source))
    }
}
