//! Classifies a failed command by what may have happened on the server.

use std::time::Duration;

use leasehold_protocol::{
    failure::{Failure, Redirection},
    rounded::Rounded,
};

use super::{kind::RequiredKind, trust::is_explained};
use crate::node::redis::wire::{CAUGHT, Error, ErrorKind, WRAPPED, own_words, reply_word, words};

/// Server replies, by their first word, that mean "not now".
const NOT_NOW: [&str; 9] =
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "OOM", "MISCONF", "NOREPLICAS"];

/// Replies, by their first word, of a server that has become a replica, or is becoming one. Another may be the primary
/// by now.
const NO_PRIMARY: [&str; 3] = ["READONLY", "MASTERDOWN", "LOADING"];

/// The text about a server of the wrong kind, appended to its address.
pub(crate) const CLUSTER: &str = "is part of a cluster, and keeps only some of the keys: the url must name a stand-alone server, or \
                                  be a redis-cluster://";

pub(crate) const NO_CLUSTER: &str = "is not part of a cluster: write redis://";

pub(crate) const SENTINEL: &str = "is a Sentinel, and keeps no keys: the url must name the primary that it watches, or be a redis-sentinel://host/SERVICE";

pub(crate) const NO_SENTINEL: &str = "is no Sentinel: write redis://, or redis-cluster:// for a part of a cluster";

/// The text about a server of a quorum that did not report which one it is, between its address and the reason.
const UNIDENTIFIED: &str = "did not say which server it is (INFO), so its answer does not count: ";

/// The text about a server that is another node of the quorum too, between the two addresses.
const SAME_SERVER: &str = "is the same server as";

/// Classifies an error of the server or of the wire by whether the request may have been executed. A request that was
/// answered by an error was not executed, unless a line of the script met the error. A request without an answer may
/// have been, unless it was never sent.
pub(crate) fn classify(of: (&str, RequiredKind), error: &Error, limit: Duration) -> Failure {
    classify_of(of, error, limit, |_| None)
}

/// Like [`classify`], for a script: `more` may name a right that the user lacks, if the server does not.
pub(crate) fn classify_of(
    of: (&str, RequiredKind),
    error: &Error,
    limit: Duration,
    more: impl FnOnce(&str) -> Option<String>,
) -> Failure {
    let failure = without_cause(of, error, limit, more);
    if error.kind == ErrorKind::Other { failure.because(error.cause()) } else { failure }
}

fn without_cause(
    (server, wanted): (&str, RequiredKind),
    error: &Error,
    limit: Duration,
    more: impl FnOnce(&str) -> Option<String>,
) -> Failure {
    let details = error.details();
    let own = own_words(details);
    // An ACL's refusal that Redis 6.2 wraps does not begin with such a word.
    let is_no_right = own != details && lacks_a_right("", own);
    if let Some(word) = reply_word(own).or(is_no_right.then_some("NOPERM")) {
        let more = lacks_a_right(word, details).then(|| more(details)).flatten().unwrap_or_default();
        return server_said((server, wanted), word, details, &more);
    }
    match error.kind {
        ErrorKind::Timeout => silent(server, limit),
        _ if is_explained(details) => Failure::refused(format!("redis at {server} {details}")),
        // A server of a cluster may have granted the request, and so may one that does not show which it is.
        _ if is_wrong_server(error) || hides(details) => {
            Failure::refused(format!("redis at {server} {details}")).halfway()
        }
        // Nor is it known what it did: that server may have what it granted to nobody.
        _ if has_no_seat(error) => Failure::unknown(format!("redis at {server} {details}")),
        ErrorKind::Unsent => Failure::unsent(format!("the connection to redis at {server} has ended")),
        _ => Failure::unknown(format!("the connection to redis at {server} broke before the answer: {}", words(error))),
    }
}

/// The failure of a request without an answer in time.
pub(crate) fn silent(server: &str, limit: Duration) -> Failure {
    Failure::unknown(format!("redis at {server} gave no answer within {}", Rounded(limit)))
}

/// Whether a server reports that it is not a primary.
pub(crate) fn is_no_primary(details: &str) -> bool {
    reply_word(own_words(details)).is_some_and(|word| NO_PRIMARY.contains(&word))
}

/// Whether a server reports that it cannot `WAIT`, or no longer can, because it has become a replica.
pub(crate) fn is_a_replica_by_now(details: &str) -> bool {
    details.contains("WAIT cannot be used with replica") || reply_word(details) == Some("UNBLOCKED")
}

/// The error for a url whose server keeps no locks for us.
pub(crate) fn wrong_server(text: &'static str) -> Error {
    Error::new(ErrorKind::Other, text)
}

/// Whether it is from [`wrong_server`].
pub(crate) fn is_wrong_server(error: &Error) -> bool {
    [CLUSTER, NO_CLUSTER, SENTINEL, NO_SENTINEL].contains(&error.details())
}

/// The error for an answer of a server that did not report which one it is, for this reason.
pub(super) fn unidentified(why: &str) -> Error {
    Error::new(ErrorKind::Other, format!("{UNIDENTIFIED}{why}"))
}

/// Whether it is from [`unidentified`], and our user has no right to ask.
fn hides(details: &str) -> bool {
    details.strip_prefix(UNIDENTIFIED).and_then(reply_word).is_some_and(|word| !NOT_NOW.contains(&word))
}

/// The error for an answer of a server that has its vote as this other node.
pub(super) fn has_another_seat(other: &str) -> Error {
    Error::new(ErrorKind::Other, format!("{SAME_SERVER} {other}, and one server has one vote"))
}

/// Whether it is from [`has_another_seat`] or [`unidentified`].
pub(super) fn has_no_seat(error: &Error) -> bool {
    [SAME_SERVER, UNIDENTIFIED].iter().any(|text| error.details().starts_with(text))
}

/// Whether a connection failed because the server refused us, or we refused the server; not because it is absent.
pub(crate) fn is_refusal(error: &Error) -> bool {
    is_wrong_server(error)
        || is_explained(error.details())
        || reply_word(error.details()).is_some_and(|word| !NOT_NOW.contains(&word) && !has_no_room(error.details()))
}

/// Whether the server rejects this user and password.
pub(super) fn is_wrong_password(error: &Error) -> bool {
    reply_word(error.details()) == Some("WRONGPASS")
}

/// Whether a connection is not authenticated any more: the next one will be.
pub(super) fn is_unauthenticated(error: &Error) -> bool {
    reply_word(error.details()) == Some("NOAUTH")
}

/// Whether the server has no room for us.
pub(crate) fn is_full(error: &Error) -> bool {
    has_no_room(error.details())
}

/// The part of an error that helps a user: without the script's hash and line.
fn spoken(details: &str) -> &str {
    let own = own_words(details);
    own.rsplit_once(" script: ").filter(|(_, place)| place.contains("@user_script")).map_or(own, |(said, _)| said)
}

/// Whether a server says that it has reached its limit of clients; in a cluster, of clients and cluster connections.
pub(crate) fn has_no_room(details: &str) -> bool {
    details.contains("max number of clients")
}

/// An ACL's refusal of a command inside a script does not begin with NOPERM on Redis 7.0 and newer servers.
fn lacks_a_right(word: &str, details: &str) -> bool {
    word == "NOPERM" || ["The user executing the script", "ACL failure in script"].iter().any(|no| details.contains(no))
}

/// Whether the user has the right to the command, but not to the key.
pub(crate) fn is_no_right_to_a_key(failure: &Failure) -> bool {
    let text = failure.to_string();
    text.contains("NOPERM") && accesses_a_key(&text)
}

/// Whether it is about access to a key, as worded up to 7.2, or from 7.4 on, where the text names the key.
fn accesses_a_key(text: &str) -> bool {
    let names_it = || text.split_once("access the '").is_some_and(|(_, key)| key.contains("' key"));
    text.contains("access a key") || text.contains("access one of the keys") || names_it()
}

/// Whether the cause of the refusal is the key: its type, what it holds, or a missing right to it.
fn is_about_a_key(details: &str) -> bool {
    ["WRONGTYPE", "holds another type", "holds no fence"].iter().any(|text| details.contains(text))
        || accesses_a_key(details)
}

/// Names the right that the user lacks, if the server does not: for the keys of this script, or for a command. The
/// command is in the line that the server names. If it names none, all commands of the script are listed.
pub(crate) fn missing_right(details: &str, source: &str, keys: impl FnOnce() -> Vec<String>) -> Option<String> {
    // From 7.4 on it says `run the 'mget' command` and `access the 'job' key`.
    if details.contains(" the '") {
        return None;
    }
    if details.contains("access") {
        let keys = keys();
        return Some(match &*keys {
            [key] => format!(" of the key {key:?}"),
            [some @ .., last] if keys.len() <= 4 => format!(" of the keys {} and {last:?}", listed(some)),
            [first, ..] => format!(" of {} keys from {first:?} on", keys.len()),
            [] => return None,
        });
    }
    let line =
        details.rsplit_once("user_script:").and_then(|(_, line)| line.trim().split([':', '.']).next()?.parse().ok());
    let commands = |text: &str| {
        let calls = text.split("call('").skip(1);
        calls.filter_map(|rest| rest.split('\'').next()).map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let of_line = line.and_then(|line: usize| Some(commands(source.lines().nth(line.checked_sub(1)?)?)));
    let commands = of_line.filter(|of_line| !of_line.is_empty()).unwrap_or_else(|| commands(source));
    Some(format!(" of a script that runs {}", commands.into_iter().collect::<Vec<_>>().join(", ")))
}

fn listed(keys: &[String]) -> String {
    keys.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", ")
}

/// The failure of one key in a batch of renewals: whatever its error, the lease is at risk.
pub(crate) fn not_extended(details: &str, wanted: RequiredKind) -> Failure {
    let own = own_words(details).trim_end();
    let advice = advice(reply_word(own).unwrap_or_default(), own, wanted);
    Failure::unknown(format!("redis could not extend this key: \"{own}\"{advice}"))
}

/// Advice on an error of a server of this kind, appended to its text.
fn advice(word: &str, details: &str, wanted: RequiredKind) -> &'static str {
    match word {
        _ if lacks_a_right(word, details) => {
            ": give the user the rights that https://docs.rs/leasehold/latest/leasehold/docs/operations/#least-rights lists"
        }
        "NOAUTH" => ": give the url a password",
        "WRONGPASS" => ": check the user and password in the url",
        "LOADING" => ": it answers once its data is loaded",
        "READONLY" | "MASTERDOWN" if wanted == RequiredKind::Named => {
            ": it is a replica now, see to the Sentinels if they name no other server as the primary"
        }
        "READONLY" | "MASTERDOWN" if wanted == RequiredKind::InCluster => {
            ": it is a replica now, see to its cluster if no other server has its slots"
        }
        "READONLY" | "MASTERDOWN" => ": the url must name a primary, not a replica",
        "MOVED" | "ASK" if wanted == RequiredKind::InCluster => ": another server of the cluster has that slot",
        "OOM" => ": the server's maxmemory is reached, raise it",
        "MOVED" | "ASK" | "CROSSSLOT" => {
            ": it is part of a cluster, the url must name a stand-alone server, or be a redis-cluster://"
        }
        "TRYAGAIN" => ": the slot is being moved to another server",
        "CLUSTERDOWN" if details.contains("slot not served") => {
            ": no server has the slot of this key, give it to one (redis-cli --cluster fix)"
        }
        "CLUSTERDOWN" => {
            ": its cluster is down, see to the servers that it lacks (cluster-require-full-coverage no keeps the others up)"
        }
        "MISCONF" => ": it cannot save its data, see to its disk",
        "WRONGTYPE" => {
            ": a key of the lock holds something else; give the lock another name or a prefix, or delete that key"
        }
        "NOREPLICAS" => ": too few of its replicas are there, see to them or to its min-replicas-to-write",
        _ if has_no_room(details) => ": raise its maxclients, or open fewer connections to it",
        _ if details.starts_with("ERR unknown command") && details.to_lowercase().contains("eval") => {
            ": a Sentinel, or a proxy without scripts, is no server for locks; the url must name a primary"
        }
        _ => "",
    }
}

fn server_said((server, wanted): (&str, RequiredKind), word: &str, details: &str, more: &str) -> Failure {
    let advice = advice(word, details, wanted);
    let text = format!("redis at {server} said \"{}\"{more}{advice}", spoken(details));
    // The connection then ends, and other requests on it get the same error, though they may have been executed.
    if word == "CLUSTERDOWN" || details.contains("non local key") {
        return Failure::unknown(text).redirected(Redirection::read(details, server));
    }
    let failure = if NOT_NOW.contains(&word) || has_no_room(details) {
        Failure::unavailable(text)
    } else {
        Failure::refused(text)
    };
    let failure = failure.redirected(Redirection::read(details, server));
    let failure = if is_about_a_key(details) { failure.of_a_key() } else { failure };
    // A replica refuses the first write of a script, and so all of it.
    if word == "READONLY" {
        return failure;
    }
    // Such a reply names the line of the script that failed: the lines before it were executed.
    if details.contains(" script: ")
        || details.starts_with(WRAPPED)
        || details.starts_with(CAUGHT)
        || (word != "NOPERM" && lacks_a_right(word, details))
    {
        failure.halfway()
    } else {
        failure
    }
}

#[cfg(test)]
mod tests;
