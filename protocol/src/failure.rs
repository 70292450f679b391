//! Why a node did not do what it was asked.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    place::Place,
    slot::SLOTS,
    votes::{NodeAnswer, Vote, Votes},
};

/// Why a node's answer says nothing about the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    text: String,
    kind: FailureKind,
    /// Each node's answer, if it is the failure of many nodes.
    votes: Option<Arc<Votes>>,
    /// How long this node will certainly not serve, if known.
    retry_after: Option<Duration>,
    /// Whether it is about a key, and not about the node.
    is_of_a_key: bool,
    redirection: Option<Box<Redirection>>,
    cause: Option<Box<Cause>>,
}

/// The reason that a server or the operating system gave.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The error reply of a server: `NOAUTH Authentication required.`
    Server(Box<str>),
    /// The number of an error of the operating system.
    System(i32),
    /// An error of name resolution, of TLS or of the protocol, in words.
    Words(Box<str>),
}

/// Where a server of a cluster sends a request instead of executing it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Redirection {
    /// Another server has the slot now, or none has it.
    Moved {
        /// The slot.
        slot: u16,
        /// The server that has the slot, if there is one.
        to: Option<Place>,
    },
    /// The slot is being moved, key by key, and not all keys that the request needs are here.
    Moving {
        /// The server that has the keys, if this one has none of them.
        to: Option<Place>,
    },
    /// The server serves no slot at all: its cluster is down.
    Down,
}

impl Redirection {
    /// Reads an error of the server at this address, `host:port`.
    pub fn read(details: &str, sender: &str) -> Option<Self> {
        let host = sender.rsplit_once(':').map_or(sender, |(host, _port)| host.trim_matches(['[', ']']));
        let mut words = details.split_ascii_whitespace();
        let kind = words.next()?;
        match kind {
            "TRYAGAIN" => return Some(Self::Moving { to: None }),
            "CLUSTERDOWN" => return details.contains("cluster is down").then_some(Self::Down),
            _ => {}
        }
        let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
        let to = Place::read(words.next()?, host);
        match kind {
            "MOVED" => Some(Self::Moved { slot, to }),
            "ASK" => Some(Self::Moving { to }),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FailureKind {
    /// The node cannot serve now, and did nothing.
    Unavailable,
    /// The request was never sent, and never will be.
    Unsent,
    /// The node will not serve this, and did nothing.
    Refused,
    /// The request may have been executed, or may be executed later (rule 6).
    Unknown,
    /// The node will not serve this, but may have done a part of it.
    RefusedHalfway,
}

impl Failure {
    fn of(kind: FailureKind, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind,
            votes: None,
            retry_after: None,
            is_of_a_key: false,
            redirection: None,
            cause: None,
        }
    }

    /// The node cannot serve now, and did nothing.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::of(FailureKind::Unavailable, text)
    }

    /// The request was never sent, and never will be.
    pub fn unsent(text: impl Into<String>) -> Self {
        Self::of(FailureKind::Unsent, text)
    }

    /// The node will not serve this, and did nothing.
    pub fn refused(text: impl Into<String>) -> Self {
        Self::of(FailureKind::Refused, text)
    }

    /// The request may have been executed, or may be executed later (rule 6).
    pub fn unknown(text: impl Into<String>) -> Self {
        Self::of(FailureKind::Unknown, text)
    }

    /// Too few nodes granted it. Each answer comes with its node's address. Partial effects have been dealt with
    /// already.
    pub fn of_nodes(answers: impl IntoIterator<Item = (String, NodeAnswer)>) -> Self {
        let votes = Votes { votes: answers.into_iter().map(|(address, answer)| Vote { address, answer }).collect() };
        let kind = if votes.is_refusal() { FailureKind::Refused } else { FailureKind::Unavailable };
        let (text, retry_after) = (votes.to_string(), votes.retry_after());
        Self { votes: Some(Arc::new(votes)), retry_after, ..Self::of(kind, text) }
    }

    /// The failure of a node that may have forgotten leases, and grants nothing for this long.
    pub fn recovering(address: &str, left: Duration) -> Self {
        let answer = NodeAnswer::Recovering { remaining: left };
        let text = format!("the server at {address} {answer}");
        Self { retry_after: Some(left), ..Self::unavailable(text) }
    }

    /// This failure, whose cause is the key: its type, or a missing right to it. Other keys are served.
    pub fn of_a_key(self) -> Self {
        Self { is_of_a_key: true, ..self }
    }

    /// Whether the cause is the key.
    pub fn is_of_a_key(&self) -> bool {
        self.is_of_a_key
    }

    /// This failure, which reports where the key is.
    pub fn redirected(self, redirection: Option<Redirection>) -> Self {
        Self { redirection: redirection.map(Box::new), ..self }
    }

    /// Where the key is, if the server reported that instead of an answer.
    pub fn redirection(&self) -> Option<&Redirection> {
        self.redirection.as_deref()
    }

    /// This failure, with its cause.
    pub fn because(self, cause: Cause) -> Self {
        Self { cause: Some(Box::new(cause)), ..self }
    }

    /// The reason that a server or the system gave, if it is known.
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_deref()
    }

    /// Each node's answer, if it is the failure of many nodes.
    pub fn votes(&self) -> Option<&Arc<Votes>> {
        self.votes.as_ref()
    }

    /// How long the failure is certain to last, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// This failure, from a step that may have done a part of its work.
    pub fn halfway(self) -> Self {
        let kind = match self.kind {
            FailureKind::Refused | FailureKind::RefusedHalfway => FailureKind::RefusedHalfway,
            FailureKind::Unavailable | FailureKind::Unsent | FailureKind::Unknown => FailureKind::Unknown,
        };
        Self { kind, ..self }
    }

    /// Whether the node may have executed the request, or may do so later.
    pub fn may_have_happened(&self) -> bool {
        matches!(self.kind, FailureKind::Unknown | FailureKind::RefusedHalfway)
    }

    /// Whether the node did not answer, at least not this request.
    pub fn is_silence(&self) -> bool {
        matches!(self.kind, FailureKind::Unsent | FailureKind::Unknown)
    }

    /// Whether the request was never sent, and never will be.
    pub fn is_unsent(&self) -> bool {
        self.kind == FailureKind::Unsent
    }

    /// Whether repeating the request unchanged is pointless.
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, FailureKind::Refused | FailureKind::RefusedHalfway)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_many_nodes_tells_what_each_said() {
        let answers = [("h:1".to_owned(), NodeAnswer::NotOurs), ("h:2".to_owned(), NodeAnswer::NotOurs)];
        let failure = Failure::of_nodes(answers);
        let votes = failure.votes().expect("the votes");
        assert_eq!(failure.to_string(), votes.to_string());
        assert!(votes.to_string().contains("h:1") && votes.to_string().contains("h:2"), "{votes}");
        assert_eq!(Failure::unavailable("away").votes(), None);
    }

    #[test]
    fn redirections_are_read_as_servers_write_them() {
        let read = |details| Redirection::read(details, "sender:6379");
        let place = |host: &str, port| Some(Place { host: host.into(), port });
        let moved = |slot, to| Some(Redirection::Moved { slot, to });
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), moved(3_999, place("127.0.0.1", 6_381)));
        assert_eq!(read("MOVED 449 ::1:17001"), moved(449, place("::1", 17_001)));
        assert_eq!(read("MOVED 449 :17001"), moved(449, place("sender", 17_001)));
        assert_eq!(read("MOVED 7450 :0"), moved(7_450, None));
        assert_eq!(read("ASK 3999 h:6381"), Some(Redirection::Moving { to: place("h", 6_381) }));
        assert_eq!(read("TRYAGAIN Multiple keys request"), Some(Redirection::Moving { to: None }));
        assert_eq!(read("CLUSTERDOWN The cluster is down"), Some(Redirection::Down));
        for other in
            ["", "MOVED", "MOVED 16384 h:1", "MOVED x h:1", "MOVED 1", "ERR no", "CLUSTERDOWN Hash slot not served"]
        {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
