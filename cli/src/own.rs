//! Internal commands, with which the tool starts itself: no help, no completion and no page lists them.
//!
//! They are parsed by hand, because the command of every run waits for one of them.

use std::ffi::OsString;

pub(crate) const INTERRUPTED: &str = "__interrupted";
const EXEC: &str = "__exec";
const GUARD: &str = "__guard";
const PARENT: &str = "--parent";
const GO: &str = "--go";
const LEADER: &str = "--leader";
const SIGNAL: &str = "--signal";
const GRACE: &str = "--grace";
const MARK: &str = "--mark";
/// The words of the command follow it.
const COMMAND: &str = "--";

/// An internal command of the tool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// Becomes the command, once it is tied to the life of the process that started it.
    Exec(Exec),
    /// Ends a job whose tool has died.
    Guard(Guarding),
    /// Dies of an interrupt.
    Interrupted,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exec {
    /// The parent, with which this process dies.
    pub(crate) parent: i32,
    /// The pipe that says when to begin, and with what.
    pub(crate) go: i32,
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Guarding {
    /// The first process of the job, whose group has its number.
    pub(crate) leader: i32,
    pub(crate) signal: i32,
    /// In milliseconds.
    pub(crate) grace: u64,
    pub(crate) mark: String,
}

impl Own {
    /// Parses the words after the program's name; `None` if they are not an internal command.
    pub(crate) fn read(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let first = words.next()?;
        if first == INTERRUPTED {
            return Some(Self::Interrupted);
        }
        let mut value = |name: &str| {
            words.next().filter(|word| word == name)?;
            words.next()?.into_string().ok()
        };
        if first == GUARD {
            let (leader, signal) = (value(LEADER)?.parse().ok()?, value(SIGNAL)?.parse().ok()?);
            let (grace, mark) = (value(GRACE)?.parse().ok()?, value(MARK)?);
            return Some(Self::Guard(Guarding { leader, signal, grace, mark }));
        }
        if first != EXEC {
            return None;
        }
        let (parent, go) = (value(PARENT)?.parse().ok()?, value(GO)?.parse().ok()?);
        words.next().filter(|word| word == COMMAND)?;
        Some(Self::Exec(Exec { parent, go, command: words.collect() }))
    }
}

impl Exec {
    /// The words to start it with. They take no less room than what is added to the command's environment later. So a
    /// command whose arguments are too long cannot be made ready, and no lock is acquired for it.
    pub(crate) fn words(self) -> impl Iterator<Item = OsString> {
        let (parent, go) = (self.parent.to_string(), self.go.to_string());
        [EXEC, PARENT, &parent, GO, &go, COMMAND].map(OsString::from).into_iter().chain(self.command)
    }
}

impl Guarding {
    pub(crate) fn words(self) -> impl Iterator<Item = OsString> {
        let Self { leader, signal, grace, mark } = self;
        let numbers = (leader.to_string(), signal.to_string(), grace.to_string());
        let words = [GUARD, LEADER, &numbers.0, SIGNAL, &numbers.1, GRACE, &numbers.2, MARK, &mark];
        words.map(OsString::from).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_read_as_it_was_handed_over() {
        let guarding = || Guarding { leader: 17, signal: 15, grace: 250, mark: "17-42".into() };
        assert_eq!(Own::read(guarding().words()), Some(Own::Guard(guarding())));
        for read in 1..9 {
            assert_eq!(Own::read(guarding().words().take(read)), None, "{read}");
        }
    }

    #[test]
    fn a_command_is_read_as_it_was_handed_over() {
        for command in [&["true"][..], &["sh", "-c", "--go", ""], &["--", "7"]] {
            let exec = || Exec { parent: 17, go: 3, command: command.iter().map(Into::into).collect() };
            assert_eq!(Own::read(exec().words()), Some(Own::Exec(exec())));
        }
    }

    #[test]
    fn other_words_are_read_by_others() {
        let exec = [EXEC, PARENT, "17", GO, "x", COMMAND, "true"];
        for words in [&[][..], &["run"], &exec[..1], &exec[..5], &exec, &["__other"]] {
            assert_eq!(Own::read(words.iter().map(Into::into)), None, "{words:?}");
        }
    }
}
