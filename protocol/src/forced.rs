//! A lock that was taken from its holder by force, and what is reported to that holder.

/// A forced release: the label of its author, and the reason if there is one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForcedRelease {
    label: Box<str>,
    reason: Option<Box<str>>,
}

impl ForcedRelease {
    /// The label of whoever took the lock.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The reason, if one was given.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

/// A forced release by the author with this label, with a reason if there is one.
pub fn by(label: &str, reason: Option<&str>) -> ForcedRelease {
    ForcedRelease { label: label.into(), reason: reason.map(Into::into) }
}

/// The text in which a node keeps a forced release.
pub fn to_text(forced: &ForcedRelease) -> String {
    match &forced.reason {
        Some(reason) => format!("{}\n{reason}", forced.label),
        None => forced.label.to_string(),
    }
}

/// Reads a node's text. Another program may have written it, so control characters are replaced: none can break a line
/// of a log.
pub fn read(text: &str) -> ForcedRelease {
    let (label, reason) = text.split_once('\n').map_or((text, None), |(label, reason)| (label, Some(reason)));
    let plain = |text: &str| text.replace(char::is_control, "\u{fffd}").into_boxed_str();
    ForcedRelease { label: plain(label), reason: reason.filter(|reason| !reason.is_empty()).map(plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        for reason in [None, Some("stuck since noon"), Some("é: \"x\"")] {
            let forced = by("ops@host:7", reason);
            assert_eq!(read(&to_text(&forced)), forced);
            assert_eq!((forced.label(), forced.reason()), ("ops@host:7", reason));
        }
    }

    #[test]
    fn what_others_wrote_breaks_no_line() {
        let forced = read("a\u{1b}[1m\nb\nc\r");
        assert_eq!((forced.label(), forced.reason()), ("a\u{fffd}[1m", Some("b\u{fffd}c\u{fffd}")));
        let empty = read("\n");
        assert_eq!((empty.label(), empty.reason()), ("", None));
    }
}
