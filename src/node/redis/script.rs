//! The scripts, each sent by its hash.

use std::sync::LazyLock;

use crate::plants;

/// One Lua script: its text is the documentation of what it does.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: LazyLock<&'static str>,
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($(#[$attribute:meta])* $name:ident = $($file:literal)+;)*) => {$(
        $(#[$attribute])*
        pub(crate) static $name: Script = Script {
            source: LazyLock::new(|| plants::script(concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+))),
            hash: LazyLock::new(|| fred::util::sha1_hash(&$name.source)),
        };
    )*};
}

// A script may need parts before it; its header says which.
scripts! {
    ACQUIRE = "draw" "may_vote" "acquire";
    RAISE = "lift" "raise";
    HEAL = "may_vote" "lift" "heal";
    RENEW = "renew";
    RELEASE = "draw" "promote" "pass_on" "release";
    KEEP = "keep";
    HOLDER = "holder";
    FORCE_RELEASE = "draw" "promote" "pass_on" "force_release";
    GUARDED_SET = "guarded_set";
    GUARDED_GET = "guarded_get";
    KNOCK = "draw" "promote" "knock";
    LEAVE = "draw" "promote" "pass_on" "leave";
    QUEUE = "queue";
}

impl Script {
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}
