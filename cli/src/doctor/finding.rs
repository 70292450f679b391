//! The result of one check.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Ok,
    /// A weaker promise, which may be enough: one holder at a time is not certain.
    Note,
    /// Something has to be done.
    Problem,
}

/// The result of one check, and the advice for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// The subject of the check: a stable word for programs.
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) what: String,
    pub(super) advice: &'static str,
}

pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Finding {
    Finding { check, level: Level::Ok, what: what.into(), advice: "" }
}

pub(super) fn note(check: &'static str, what: impl Into<String>, advice: &'static str) -> Finding {
    Finding { check, level: Level::Note, what: what.into(), advice }
}

pub(super) fn problem(check: &'static str, what: impl Into<String>, advice: &'static str) -> Finding {
    Finding { check, level: Level::Problem, what: what.into(), advice }
}

/// The level in a word, for people and programs.
pub(super) fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Problem => "problem",
    }
}
