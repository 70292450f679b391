//! What a failed command says about what happened on the server.

use std::time::Duration;

use fred::error::{Error, ErrorKind};
use leasehold_protocol::{failure::Failure, rounded::Rounded};

/// Server replies, by their first word, that mean "not now".
const NOT_NOW: [&str; 11] = [
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "READONLY",
    "BUSY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "MOVED",
    "ASK",
];

/// fred's words for a request that found no connection, or no task to send it.
const NEVER_SENT: [&str; 3] =
    ["Failed to send command to router", "Failed to route command", "Connection closed unexpectedly"];

/// What the server or fred said, sorted by whether it was executed: a request that was answered by an error was not,
/// unless the error came from a line of the script; anything else may have been.
pub(super) fn classify(server: &str, error: &Error, limit: Duration) -> Failure {
    let details = error.details();
    let own = own_words(details);
    // What Redis 6.2 wraps of an ACL's refusal has no such word.
    let is_no_right = own != details && lacks_a_right("", own);
    if let Some(word) = reply_word(own).or(is_no_right.then_some("NOPERM")) {
        return server_said(server, word, details);
    }
    match error.kind() {
        ErrorKind::Timeout => silent(server, limit),
        _ if is_unsent(error) => Failure::unsent(format!("the connection to redis at {server} has ended")),
        _ => Failure::unknown(format!("the connection to redis at {server} broke before the answer: {}", words(error))),
    }
}

/// It gave no answer in time.
pub(super) fn silent(server: &str, limit: Duration) -> Failure {
    Failure::unknown(format!("redis at {server} gave no answer within {}", Rounded(limit)))
}

/// Whether the request was never sent, and never will be.
pub(super) fn is_unsent(error: &Error) -> bool {
    NEVER_SENT.iter().any(|text| error.details().starts_with(text))
}

/// Whether a failed connection is the server's refusal of us rather than its absence.
pub(super) fn is_refusal(error: &Error) -> bool {
    error.kind() == &ErrorKind::Auth
        || reply_word(error.details()).is_some_and(|word| !NOT_NOW.contains(&word) && !full(error.details()))
}

/// Whether the server has no room for us.
pub(super) fn is_full(error: &Error) -> bool {
    full(error.details())
}

/// What fred said, or the system: whose errors fred tells as `Os { code: 111, kind: …, message: "Connection refused" }`, and
/// those of the standard library as `Custom { kind: …, error: "failed to lookup address information: …" }`.
pub(super) fn words(error: &Error) -> &str {
    let details = error.details();
    let inside = |of, field| details.strip_prefix(of).and_then(|text: &str| text.split_once(field)?.1.split_once('"'));
    let message = inside("Os {", "message: \"").or_else(|| inside("Custom {", "error: \""));
    match message.map_or(details, |(message, _)| message).trim_end_matches('.') {
        "Failed to route command" => "it could not be sent",
        words if words.starts_with("Decode Error") => "what it answers is not Redis' protocol (TLS is rediss://)",
        words => words,
    }
}

/// An error reply of a server starts with a word in capitals; nothing that fred says does.
fn reply_word(details: &str) -> Option<&str> {
    let word = details.split(' ').next()?;
    (word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_uppercase())).then_some(word)
}

/// Redis before 7.0 wraps what a command inside a script said:
/// `ERR Error running script (call to f_…): @user_script:30: @user_script: 30: -READONLY You can't write …`.
fn own_words(details: &str) -> &str {
    let inner = details.strip_prefix(WRAPPED).and_then(|text| text.split_once("@user_script: "));
    inner.and_then(|(_, text)| text.split_once(": ")).map_or(details, |(_line, said)| said.trim_start_matches('-'))
}

/// What a user can do something with: not the hash of the script, nor its line.
fn spoken(details: &str) -> &str {
    let own = own_words(details);
    own.split_once(" script: ").filter(|(_, place)| place.contains("@user_script")).map_or(own, |(said, _)| said)
}

const WRAPPED: &str = "ERR Error running script";

fn full(details: &str) -> bool {
    details.contains("max number of clients reached")
}

/// An ACL's refusal of a command inside a script does not begin with NOPERM: Redis 7.0, and newer servers.
fn lacks_a_right(word: &str, details: &str) -> bool {
    word == "NOPERM" || ["The user executing the script", "ACL failure in script"].iter().any(|no| details.contains(no))
}

/// One key of a batch of renewals met an error; the lease is at risk, whatever it was.
pub(super) fn not_extended(details: &str) -> Failure {
    let advice = advice(reply_word(details).unwrap_or_default(), details);
    Failure::unknown(format!("redis could not extend this key: \"{details}\"{advice}"))
}

/// What to do about it.
fn advice(word: &str, details: &str) -> &'static str {
    match word {
        _ if lacks_a_right(word, details) => {
            ": give the user the rights that https://docs.rs/leasehold/latest/leasehold/operations/#least-rights lists"
        }
        "NOAUTH" => ": give the url a password",
        "WRONGPASS" => ": check the user and password in the url",
        "LOADING" => ": it answers once its data is loaded",
        "READONLY" | "MASTERDOWN" => ": the url must name a primary, not a replica",
        "OOM" => ": the server's maxmemory is reached, raise it",
        _ => "",
    }
}

fn server_said(server: &str, word: &str, details: &str) -> Failure {
    let advice = advice(word, details);
    let text = format!("redis at {server} said \"{}\"{advice}", spoken(details));
    let failure =
        if NOT_NOW.contains(&word) || full(details) { Failure::unavailable(text) } else { Failure::refused(text) };
    // Such a reply names the line of the script that failed: the lines before it were executed.
    if details.contains(" script: ")
        || details.starts_with(WRAPPED)
        || (word != "NOPERM" && lacks_a_right(word, details))
    {
        failure.halfway()
    } else {
        failure
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn of(kind: ErrorKind, details: &'static str) -> Failure {
        classify("h:1", &Error::new(kind, details), Duration::from_secs(1))
    }

    #[test]
    fn an_error_reply_was_not_executed_and_names_the_servers_reason() {
        for (reply, refused) in [
            ("WRONGPASS invalid username-password pair", true),
            ("NOAUTH Authentication required.", true),
            ("NOPERM this user has no permissions to run the 'evalsha' command", true),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", true),
            ("LOADING Redis is loading the dataset in memory", false),
            ("READONLY You can't write against a read only replica.", false),
            ("MASTERDOWN Link with MASTER is down", false),
            ("ERR max number of clients reached", false),
        ] {
            let failure = of(ErrorKind::Unknown, reply);
            assert_eq!((failure.is_refusal(), failure.may_have_happened()), (refused, false), "{failure}");
            assert!(failure.to_string().contains(reply), "{failure}");
        }
    }

    #[test]
    fn an_error_from_inside_a_script_may_have_done_a_part() {
        let failure = of(ErrorKind::Unknown, "OOM command not allowed script: ab12, on @user_script:20.");
        assert!(failure.may_have_happened() && !failure.is_refusal());
        // Where it stands in the script is nothing for a user.
        assert!(failure.to_string().contains("said \"OOM command not allowed\""), "{failure}");
        let failure = of(ErrorKind::Unknown, "ERR The user executing the script can't run this command or subcommand");
        assert!(failure.may_have_happened() && failure.is_refusal());
        // Redis 6.2
        let failure = of(
            ErrorKind::Unknown,
            "ERR Error running script (call to f_7da5): @user_script:108: @user_script: 108: The user executing the \
             script can't run this command or subcommand",
        );
        assert!(failure.may_have_happened() && failure.is_refusal(), "{failure}");
        assert!(failure.to_string().contains("give the user the rights"), "{failure}");
        assert!(failure.to_string().contains("said \"The user executing the script can't"), "{failure}");
    }

    #[test]
    fn the_systems_errors_are_told_in_its_words() {
        let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
        let refused = Error::from(TcpStream::connect(nobody).unwrap_err());
        assert_eq!((words(&refused), refused.details().starts_with("Os {")), ("Connection refused", true));
        for (details, told) in [
            ("Os { no such thing", "Os { no such thing"),
            ("Custom { kind: Uncategorized, error: \"no such name\" }", "no such name"),
            ("Failed to route command.", "it could not be sent"),
            (
                "Decode Error: frame_type: Invalid frame type.",
                "what it answers is not Redis' protocol (TLS is rediss://)",
            ),
        ] {
            assert_eq!(words(&Error::new(ErrorKind::IO, details)), told);
        }
    }

    #[test]
    fn a_limit_is_told_as_it_was_asked_for() {
        for (limit, told) in [(999_974_122, "1 s"), (250_000_000, "250 ms"), (400_000, "400 µs"), (0, "0 s")] {
            let late = Error::new(ErrorKind::Timeout, "Request timed out.");
            let failure = classify("h:1", &late, Duration::from_nanos(limit));
            assert!(failure.to_string().ends_with(&format!(" within {told}")), "{failure}");
        }
    }

    #[test]
    fn silence_and_a_broken_connection_tell_nothing() {
        for (kind, details) in [
            (ErrorKind::Timeout, "Request timed out."),
            (ErrorKind::IO, "Connection reset by peer (os error 104)"),
            (ErrorKind::Canceled, "channel closed"),
        ] {
            assert!(of(kind, details).may_have_happened(), "{details}");
        }
        assert!(!of(ErrorKind::Unknown, "Failed to send command to router.").may_have_happened());
    }
}
