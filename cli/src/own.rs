//! Internal commands, by which the tool starts itself: no help, no completion and no page offers them.
//!
//! They are read by hand. The command of every run waits for one of them.

use std::ffi::OsString;

pub(crate) const INTERRUPTED: &str = "__interrupted";
const EXEC: &str = "__exec";
const PARENT: &str = "--parent";
const GO: &str = "--go";
/// The command's own words are behind it.
const COMMAND: &str = "--";

/// What the tool is to do for itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// Becomes the command, once it is tied to the life of the process that started it.
    Exec(Exec),
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

impl Own {
    /// From the words behind the program's name; `None` if they are somebody else's.
    pub(crate) fn read(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let first = words.next()?;
        if first == INTERRUPTED {
            return Some(Self::Interrupted);
        }
        if first != EXEC {
            return None;
        }
        let mut number = |name: &str| {
            words.next().filter(|word| word == name)?;
            words.next()?.to_str()?.parse().ok()
        };
        let (parent, go) = (number(PARENT)?, number(GO)?);
        words.next().filter(|word| word == COMMAND)?;
        Some(Self::Exec(Exec { parent, go, command: words.collect() }))
    }
}

impl Exec {
    /// They take no less room than what is added to the command's environment later. So a command whose arguments are too
    /// long cannot be made ready, and no lock is acquired for it.
    pub(crate) fn words(self) -> impl Iterator<Item = OsString> {
        let (parent, go) = (self.parent.to_string(), self.go.to_string());
        [EXEC, PARENT, &parent, GO, &go, COMMAND].map(OsString::from).into_iter().chain(self.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
