//! Why a node did not do what it was asked.

use std::{fmt, sync::Arc, time::Duration};

use crate::votes::{NodeAnswer, Vote, Votes};

/// Why a node's answer says nothing about the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    text: String,
    kind: FailureKind,
    /// Each node's answer, if it is the failure of many nodes.
    votes: Option<Arc<Votes>>,
    /// When this node may serve, where it is known.
    retry_after: Option<Duration>,
    /// It says something of a key, and nothing of the node.
    is_of_a_key: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FailureKind {
    /// The node cannot serve now, and did nothing.
    Unavailable,
    /// The request was never sent, and never will be.
    Unsent,
    /// The node will not serve this, and did nothing.
    Refused,
    /// It may have happened, or may happen later (rule 6).
    Unknown,
    /// It will not serve this, but may have done a part.
    RefusedHalfway,
}

impl Failure {
    fn of(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { text: text.into(), kind, votes: None, retry_after: None, is_of_a_key: false }
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

    /// It may have happened, or may happen later (rule 6).
    pub fn unknown(text: impl Into<String>) -> Self {
        Self::of(FailureKind::Unknown, text)
    }

    /// Too few nodes granted it. Each answer comes with its node's address. Partial effects are dealt with already.
    pub fn of_nodes(answers: impl IntoIterator<Item = (String, NodeAnswer)>) -> Self {
        let votes = Votes { votes: answers.into_iter().map(|(address, answer)| Vote { address, answer }).collect() };
        let kind = if votes.is_refusal() { FailureKind::Refused } else { FailureKind::Unavailable };
        let (text, retry_after) = (votes.to_string(), votes.retry_after());
        Self { votes: Some(Arc::new(votes)), retry_after, ..Self::of(kind, text) }
    }

    /// A node that may have forgotten leases, and grants nothing for this long.
    pub fn recovering(address: &str, left: Duration) -> Self {
        let answer = NodeAnswer::Recovering { remaining: left };
        let text = format!("the server at {address} {answer}");
        Self { retry_after: Some(left), ..Self::unavailable(text) }
    }

    /// The same failure, of which the cause is the key: its type, or a missing right to it. Others are served.
    pub fn of_a_key(self) -> Self {
        Self { is_of_a_key: true, ..self }
    }

    /// Whether the cause is the key.
    pub fn is_of_a_key(&self) -> bool {
        self.is_of_a_key
    }

    /// Each node's answer, if it is the failure of many.
    pub fn votes(&self) -> Option<&Arc<Votes>> {
        self.votes.as_ref()
    }

    /// How long it is certain to last, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The same failure, from a step that may have done a part of its work.
    pub fn halfway(self) -> Self {
        let kind = match self.kind {
            FailureKind::Refused | FailureKind::RefusedHalfway => FailureKind::RefusedHalfway,
            FailureKind::Unavailable | FailureKind::Unsent | FailureKind::Unknown => FailureKind::Unknown,
        };
        Self { kind, ..self }
    }

    /// Whether the node may have done it, or may do it later.
    pub fn may_have_happened(&self) -> bool {
        matches!(self.kind, FailureKind::Unknown | FailureKind::RefusedHalfway)
    }

    /// Whether the node has said nothing, to this request at least.
    pub fn is_silence(&self) -> bool {
        matches!(self.kind, FailureKind::Unsent | FailureKind::Unknown)
    }

    /// Whether trying again as before is pointless.
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
}
