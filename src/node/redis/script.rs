//! The scripts, each sent by its hash.

use std::sync::LazyLock;

/// One Lua script: its text is the documentation of what it does.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {$(
        pub(crate) static $name: Script = Script {
            source: include_str!(concat!("scripts/", $file, ".lua")),
            hash: LazyLock::new(|| fred::util::sha1_hash(include_str!(concat!("scripts/", $file, ".lua")))),
        };
    )*};
}

scripts! {
    ACQUIRE = "acquire";
    RENEW = "renew";
    RELEASE = "release";
    KEEP = "keep";
    HOLDER = "holder";
    FORCE_RELEASE = "force_release";
    GUARDED_SET = "guarded_set";
    GUARDED_GET = "guarded_get";
}

impl Script {
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}
