//! The scripts, each sent by its hash once the server knows it.

use std::sync::LazyLock;

/// One Lua script: its text is the documentation of what it does.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: &'static str,
    /// Its place in a set of scripts.
    pub(crate) bit: u32,
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($(#[$attribute:meta])* $at:literal $name:ident = $($file:literal)+;)*) => {$(
        $(#[$attribute])*
        pub(crate) static $name: Script = Script {
            source: concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+),
            bit: 1 << $at,
            hash: LazyLock::new(|| fred::util::sha1_hash($name.source)),
        };
    )*};
}

// Each has a place of its own. It may need parts before it; its header says which.
scripts! {
    0 ACQUIRE = "issue" "may_vote" "acquire";
    1 RAISE = "floor" "raise";
    2 REPAIR = "may_vote" "floor" "repair";
    3 RENEW = "renew";
    4 RELEASE = "issue" "may_vote" "promote" "pass_on" "release";
    5 KEEP = "keep";
    6 HOLDER = "holder";
    7 FORCE_RELEASE = "issue" "may_vote" "promote" "pass_on" "force_release";
    8 GUARDED_SET = "guarded_set";
    9 GUARDED_GET = "guarded_get";
    10 POLL = "issue" "may_vote" "promote" "poll";
    11 LEAVE = "issue" "may_vote" "promote" "pass_on" "leave";
    12 QUEUE = "queue";
    13 LOOK = "look";
    14 HELD = "held";
}

impl Script {
    pub(crate) fn hash(&'static self) -> &'static str {
        &self.hash
    }
}
