//! Why a request or a connection failed, and how fred and servers word it.

use std::borrow::Cow;

use fred::error::{Error as FredError, ErrorKind as FredKind};
use leasehold_protocol::failure::Cause;

/// The part of an error that is certain, whatever its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request was never sent, and never will be. With any other kind, it may have been sent.
    Unsent,
    /// There was no answer in time.
    Timeout,
    /// Our settings are wrong, so nothing was connected to.
    Mistake,
    Other,
}

/// An error of the server, of the system, of fred, or of ours.
#[derive(Debug, Clone)]
pub(crate) struct Error {
    pub(crate) kind: ErrorKind,
    details: Cow<'static, str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, details: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, details: details.into() }
    }

    /// No task is left to hand the request to.
    pub(super) fn unsent() -> Self {
        Self::new(ErrorKind::Unsent, "it could not be sent")
    }

    pub(crate) fn details(&self) -> &str {
        &self.details
    }

    /// The reason that the server or the system gave.
    pub(crate) fn cause(&self) -> Cause {
        let details = self.details();
        if is_answer(self) {
            return Cause::Server(own_words(details).into());
        }
        // fred shows an error of the system as its `Debug` does.
        let number = details.strip_prefix("Os { code: ").and_then(|rest| rest.split_once(',')?.0.parse().ok());
        number.map_or_else(|| Cause::Words(words(self).into()), Cause::System)
    }
}

/// No error of fred's becomes [`ErrorKind::Unsent`], not even its `Canceled` for the rest of a queue: rule 6 must not
/// depend on what a dependency may change.
impl From<FredError> for Error {
    fn from(error: FredError) -> Self {
        let is_late = error.kind() == &FredKind::Timeout;
        Self::new(if is_late { ErrorKind::Timeout } else { ErrorKind::Other }, error.details().to_owned())
    }
}

/// Whether the error is the server's answer, and not fred's or the system's.
pub(crate) fn is_answer(error: &Error) -> bool {
    let details = error.details();
    reply_word(details).is_some() || own_words(details) != details
}

/// Whether no server listens there. With several addresses, the error is that of the last one tried, and no other
/// address was better.
pub(crate) fn is_closed(error: &Error) -> bool {
    // The second is for a socket file.
    ["kind: ConnectionRefused", "kind: NotFound"].iter().any(|kind| error.details().contains(kind))
}

/// The message in an error of fred, or of the system. fred shows the system's as
/// `Os { code: 111, kind: …, message: "Connection refused" }`. It shows those of the standard library as
/// `Custom { kind: …, error: "failed to lookup address information: …" }`.
pub(crate) fn words(error: &Error) -> &str {
    let details = error.details();
    let inside = |of, field| details.strip_prefix(of).and_then(|text: &str| text.split_once(field)?.1.split_once('"'));
    let message = inside("Os {", "message: \"").or_else(|| inside("Custom {", "error: \""));
    match message.map_or(details, |(message, _)| message).trim_end_matches('.') {
        words if words.starts_with("Decode Error") => "what it answers is not Redis' protocol (TLS is rediss://)",
        words if words.starts_with("bytes remaining on stream") => "it ended in the middle of a reply",
        "channel closed" | "Canceled" => "it ended",
        words => words,
    }
}

/// An error reply of a server starts with a word in capitals; no error text of fred's does.
pub(crate) fn reply_word(details: &str) -> Option<&str> {
    let word = details.split(' ').next()?;
    (word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
}

/// The error of a command inside a script, without the wrapping that Redis before 7.0 adds. A wrapped one is `ERR Error
/// running script (call to f_…): @user_script:30: @user_script: 30: -READONLY You can't write …`. If the script caught
/// the error and returns it, the text begins at `@user_script: 30: `.
pub(crate) fn own_words(details: &str) -> &str {
    let wrapped = details.starts_with(WRAPPED) || details.starts_with(CAUGHT);
    let inner = details.split_once(CAUGHT).filter(|_| wrapped);
    inner.and_then(|(_, text)| text.split_once(": ")).map_or(details, |(_line, said)| said.trim_start_matches('-'))
}

pub(crate) const WRAPPED: &str = "ERR Error running script";
pub(crate) const CAUGHT: &str = "@user_script: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_fred_says_means_that_a_request_was_never_sent() {
        use FredKind::{Auth, Canceled, Cluster, Config, IO, Parse, Protocol, Routing, Timeout, Unknown};
        for text in ["Failed to send command to router.", "Failed to route command.", "Canceled.", "anything", ""] {
            let of = |kind| Error::from(FredError::new(kind, text)).kind;
            assert_eq!(of(Timeout), ErrorKind::Timeout, "{text}");
            for unclear in [Auth, Canceled, Cluster, Config, IO, Parse, Protocol, Routing, Unknown] {
                assert_eq!(of(unclear), ErrorKind::Other, "{text}");
            }
        }
    }
}
