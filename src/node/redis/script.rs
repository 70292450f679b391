//! A script, sent by its hash once the server knows it.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::wire::sha1;

/// One Lua script. Its text documents what it does.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) source: &'static str,
    hash: OnceLock<String>,
    /// The script's bit in a set of scripts.
    pub(crate) bit: u32,
    /// Whether a process that stood still sends the script again: a replay has the same answer, and is still useful
    /// that late. A renewal is no longer useful, and a replayed release answers something else.
    pub(super) repeats: bool,
}

/// Defines scripts, each with its own bit in a set. A script may need parts before it; its header says which.
macro_rules! scripts {
    ($($at:literal $name:ident $($repeats:ident)? = $($file:literal)+;)*) => {$(
        pub(super) static $name: Script =
            Script::new($at, concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+))$(.$repeats())?;
    )*};
}

scripts! {
    0 ACQUIRE repeats = "acquire" "value" "issue" "may_vote" "acquire_any";
    1 RAISE = "value" "issue" "floor" "raise";
    2 REPAIR = "value" "issue" "may_vote" "floor" "repair";
    3 RENEW = "value" "renew";
    4 RELEASE = "release" "keys" "value" "release_by_identity" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "release_to_queue";
    5 KEEP = "value" "keep";
    6 HOLDER repeats = "holder";
    7 FORCE_RELEASE = "keys" "value" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "force_release";
    8 POLL repeats = "keys" "value" "issue" "may_vote" "permits" "phase" "promote" "poll";
    9 LEAVE = "keys" "value" "issue" "may_vote" "permits" "phase" "promote" "pass_on" "leave";
    10 QUEUE repeats = "queue";
    11 LOOK = "look";
    12 HELD repeats = "held";
    13 FLOORS = "floors";
    14 COMBINED repeats = "value" "issue" "may_vote" "combined";
    15 REHEARSE repeats = "may_vote" "rehearse";
    16 TAKE repeats = "value" "take";
    17 ISSUE_ALONE repeats = "issue" "issue_alone";
    18 CONFIRM repeats = "value" "confirm";
    19 RELEASE_ALONE = "value" "release_alone";
    20 COMBINED_SLOTS repeats = "value" "issue" "combined_slots";
    21 SUCCEED repeats = "value" "issue" "may_vote" "succeed";
    22 JOIN repeats = "permits" "join" "keys" "value" "issue" "may_vote" "phase" "promote" "poll";
    23 PART = "permits" "part" "keys" "value" "issue" "may_vote" "phase" "promote" "pass_on" "part_and_pass_on";
    24 RENEW_SHARES = "permits" "renew_shares";
    25 KEEP_SHARE = "keys" "value" "permits" "phase" "keep_share";
    26 SHARERS repeats = "sharers";
    27 DOWNGRADE repeats = "keys" "value" "issue" "may_vote" "permits" "phase" "promote" "downgrade";
    28 EXTEND_PHASE = "extend_phase";
    29 EXTEND_SHARE = "permits" "extend_share";
}

impl Script {
    pub(super) const fn new(at: u32, source: &'static str) -> Self {
        Self { source, hash: OnceLock::new(), bit: 1 << at, repeats: false }
    }

    pub(super) const fn repeats(mut self) -> Self {
        self.repeats = true;
        self
    }

    pub(super) fn hash(&'static self) -> &'static str {
        self.hash.get_or_init(|| sha1(self.source))
    }
}

/// A script's text or hash, as sent.
pub(super) enum Text {
    Fixed(&'static str),
    OfRun(Arc<str>),
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        match self {
            Self::Fixed(text) => text,
            Self::OfRun(text) => text,
        }
    }
}

/// The scripts of votes that only one run of one server knows, so a vote need not ask for the run id.
///
/// # Invariants
///
/// 1. A text is sent only on a link on which that run has answered. A link ends with the server process that it is
///    connected to, so no other run learns the script.
/// 2. A server that does not know a hash is never sent the text because of that: it may have been restarted.
/// 3. They are sent only if the caller itself has known the run for the restart delay.
#[derive(Debug)]
pub(super) struct OfRun {
    run_id: Box<str>,
    /// For [`ACQUIRE`].
    alone: KnownToOne,
    /// For [`COMBINED`].
    combined: KnownToOne,
}

#[derive(Debug)]
struct KnownToOne {
    source: Arc<str>,
    hash: Arc<str>,
    was_sent: AtomicBool,
}

impl KnownToOne {
    fn new(run_id: &str, begin: &str, end: &str) -> Self {
        let of_run = include_str!("scripts/of_run.lua").replace("RUN_ID", run_id);
        let source =
            [begin, include_str!("scripts/value.lua"), include_str!("scripts/issue.lua"), &of_run, end].concat();
        let hash = sha1(&source).into();
        Self { source: source.into(), hash, was_sent: AtomicBool::new(false) }
    }
}

impl OfRun {
    /// The votes of this run; `None` if `run_id` is not a run id.
    pub(super) fn new(run_id: &str) -> Option<Self> {
        let is_run_id = !run_id.is_empty() && run_id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let known = |begin, end| KnownToOne::new(run_id, begin, end);
        is_run_id.then(|| Self {
            run_id: run_id.into(),
            alone: known(include_str!("scripts/acquire.lua"), include_str!("scripts/acquire_any.lua")),
            combined: known("", include_str!("scripts/combined.lua")),
        })
    }

    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// This script as sent to that run: first its text, then its hash. On the link, the hash comes after the text.
    pub(super) fn next(&self, script: &Script) -> (&'static str, Text) {
        let known = if script.bit == COMBINED.bit { &self.combined } else { &self.alone };
        let by_hash = known.was_sent.swap(true, Ordering::Relaxed);
        let (name, text) = if by_hash { ("EVALSHA", &known.hash) } else { ("EVAL", &known.source) };
        (name, Text::OfRun(text.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_script_of_a_run_carries_its_id_and_is_sent_as_a_text_once() {
        let [one, two] = ["0a1b", "2c3d"].map(|run_id| OfRun::new(run_id).unwrap());
        let mut hashes = HashSet::new();
        for script in [&ACQUIRE, &COMBINED] {
            let ((name, text), (again, hash)) = (one.next(script), one.next(script));
            assert_eq!((name, again), ("EVAL", "EVALSHA"));
            assert!(text.as_ref().contains("return '0a1b', 0") && !text.as_ref().contains("RUN_ID"));
            assert!(text.as_ref().ends_with(&script.source[script.source.len() - 500..]), "it does the same");
            assert_eq!(hash.as_ref(), sha1(text.as_ref()));
            hashes.insert(hash.as_ref().to_owned());
            let _text = two.next(script);
            hashes.insert(two.next(script).1.as_ref().to_owned());
        }
        assert_eq!(hashes.len(), 4);
    }

    #[test]
    fn what_is_no_run_id_becomes_no_script() {
        for odd in ["", "0a1b'", "0a 1b", "é", "x\n"] {
            assert!(OfRun::new(odd).is_none(), "{odd:?}");
        }
    }
}
