//! A node: one independent place that stores keys. What it must be able to do, and nothing about how.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    capabilities::Capabilities,
    error::{Error, ErrorKind, KEEPER_ENDED},
    fence::Fence,
    holder::Holder,
    key::Key,
    quorum::tally::Denial,
    token::Token,
    votes::{NodeAnswer, Votes},
};

pub(crate) mod glob;
pub(crate) mod memory;
pub(crate) mod redis;

/// A node's answer, on its way. It runs to its end or its limit by itself only while it is polled; dropping it leaves
/// the outcome unknown.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Which of a node's connections a request takes. Two requests on one lane arrive in the order in which they were
/// handed over; across lanes nothing is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The connection of the runtime on which the node was made.
    Home,
    /// The keeper's connection, which works from everywhere.
    Keeper,
    /// The same; and where the node is able to, it tells its [`Ear`] once when a key changes that the request has found
    /// held, whoever changes it.
    Watched,
}

/// Who is told what a node notices by itself. Nothing of it is a verdict: it only says where to look.
pub(crate) trait Ear: Send + Sync + 'static {
    /// Something was done to a watched key.
    fn touched(&self, key: &str);

    /// Whether this lock was acquired here, and was not let go of.
    fn holds(&self, key: &str) -> bool;

    /// Whether this is what a lock that is held here should look like: the value, and how long the key will live.
    fn is_as_left(&self, key: &str, value: &str, left: Duration) -> bool;

    /// What was watched is not any more, or was not for a while: anything may have happened.
    fn missed(&self);

    /// Whether there is anything left to listen for.
    fn is_needed(&self) -> bool;

    /// The lock is this fair waiter's, for its grant, once it knocks.
    fn granted(&self, key: &str, token: &str);

    /// This fair waiter comes next, and should look after this time: the one before it may be stopped.
    fn next(&self, token: &str, within: Duration);

    /// Whether anybody waits in a fair queue.
    fn has_waiters(&self) -> bool;

    /// Whether a waiter with this token is there to be told.
    fn has_waiter(&self, token: &str) -> bool;
}

/// A fair waiter's knock: it enters the queue, says that it still waits, takes the lock when it is its turn, and
/// confirms a grant.
#[derive(Debug, Clone)]
pub(crate) struct Knock {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    /// That of an earlier answer, which gives it its place back.
    pub(crate) ticket: Option<u64>,
    /// How long the lock may wait for its confirmation.
    pub(crate) grant: Duration,
    /// How long a waiter that cannot be called counts as alive, and half of what the queue outlives its last knock by.
    pub(crate) window: Duration,
    /// Or only look: a try never enters, and never overtakes.
    pub(crate) enter: bool,
    /// A node that has been up for less may have forgotten a lease, and grants this waiter nothing, whoever lets go of the
    /// lock.
    pub(crate) restart_delay: Duration,
}

/// What a knock found.
#[derive(Debug)]
pub(crate) enum Knocked {
    /// The lock is the token's, for its TTL.
    Granted(Fence),
    Waits {
        holder: Holder,
        /// Nobody holds it, but the node was started too short a time ago to grant it, and will after this one.
        recovers_for: Option<Duration>,
        /// `None` for who only looked.
        ticket: Option<u64>,
        /// How many wait before it.
        ahead: u32,
        /// Whether it was not in the queue before.
        entered: bool,
        /// Whether the node will tell when the lock's key changes.
        watched: bool,
        /// Whether the node can call this waiter when it is its turn.
        called: bool,
    },
}

/// Who waits for a lock, in order: tokens, and how long each has waited.
pub(crate) type Line = Vec<(Token, Duration)>;

/// A part of what a node has, and the cursor of the next part: zero at the end.
pub(crate) type Page = (u64, Vec<String>);

/// What an acquire asks of a node.
#[derive(Debug, Clone)]
pub(crate) struct Bid {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    /// What it takes to be a vote; where one node decides and nobody asked for a restart delay, nothing.
    pub(crate) voting: Option<Voting>,
}

/// Under which conditions a node votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Voting {
    /// A node that has been up for less may have forgotten a lease, and gives no vote (set-ups: a server that forgot stays
    /// out).
    pub(crate) restart_delay: Duration,
    /// The fence to draw, if it is large enough: where a majority draws the same, no floor has to be raised.
    pub(crate) proposal: Option<Fence>,
}

/// What a node answered to a bid.
#[derive(Debug, Clone)]
pub(crate) struct Ballot {
    pub(crate) acquired: Acquired,
    /// Who voted, and when by its own clock. There if the bid asked for a vote, and the node knows.
    pub(crate) sign: Option<Sign>,
    /// Whether what was asked after the bid on its lane may have come before it.
    pub(crate) overtaken: bool,
}

/// What an acquire found.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub(crate) enum Acquired {
    Granted(Fence),
    Busy {
        holder: Holder,
        /// Whether the node will tell when the key changes.
        watched: bool,
    },
    /// It was started too short a time ago to vote, and will for the first time after this one.
    Recovering(Duration),
}

/// A server's own account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sign {
    /// Its clock, in microseconds since 1970.
    pub(crate) time: Option<u64>,
    /// What tells this run of this server from every other.
    pub(crate) run_id: Option<Box<str>>,
    /// Whether it is part of a cluster, or watches over others: then it may forget without a restart.
    pub(crate) is_alone: bool,
}

/// What bringing a lost key back came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Healed {
    Done,
    /// Somebody else has it.
    Taken,
    /// Not before this time is over: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// One lease to be renewed; renewals travel in batches.
#[derive(Debug, Clone)]
pub(crate) struct Renewal {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
}

/// What a renewal or a release found under the key: ours (and it was done), or not.
pub(crate) type Owned = Result<(), Denial>;

/// What a guarded write found.
#[derive(Debug)]
pub(crate) enum Guarding {
    Written,
    Stale { seen: Fence },
}

/// Every step is atomic on the node and idempotent for its token (rule 5). `limit` bounds the wait for the answer;
/// what the limit cuts off has an unknown outcome.
pub(crate) trait Node: fmt::Debug + Send + Sync + 'static {
    /// The lane that fits the caller's place: its own runtime's connection if there is one.
    fn lane(&self) -> Lane;

    /// Who hears of changes; set once, before the first request.
    fn listen(&self, ear: Weak<dyn Ear>);

    /// How many keys may be watched at a time; zero when the node has turned watching down.
    fn room(&self) -> usize;

    /// Where it is, without who we are there.
    fn address(&self) -> &str;

    fn acquire(&self, lane: Lane, bid: &Bid, limit: Duration) -> Answer<Ballot>;

    /// Lifts the lock's fence to at least this one, if the lock is still the token's (rule 10).
    fn raise(&self, lane: Lane, key: &Key, token: &Token, fence: Fence, limit: Duration) -> Answer<Owned>;

    /// Brings a key back that the node has lost, with its fence as the floor, unless it is somebody else's by now or the
    /// node was started too short a time ago.
    fn heal(&self, lease: &Renewal, fence: Fence, restart_delay: Duration, limit: Duration) -> Answer<Healed>;

    /// Whether it is there, and who it is.
    fn probe(&self, limit: Duration) -> Answer<Sign>;

    /// One verdict for each, in order; an inner error means "cannot tell".
    fn renew(&self, lane: Lane, batch: &[Renewal], limit: Duration) -> Answer<Vec<Result<Owned, Failure>>>;

    /// Compare and delete (rule 8).
    fn release(&self, lane: Lane, key: &Key, token: &Token, limit: Duration) -> Answer<Owned>;

    /// Compare and set: the key stays for `keep` with the value `stays`.
    fn keep(
        &self,
        lane: Lane,
        key: &Key,
        token: &Token,
        keep: Duration,
        stays: &Token,
        limit: Duration,
    ) -> Answer<Owned>;

    /// Replayed, it keeps its place.
    fn knock(&self, lane: Lane, knock: &Knock, limit: Duration) -> Answer<Knocked>;

    /// Out of the queue; and if the lock is this token's, it passes on.
    fn leave(&self, lane: Lane, key: &Key, token: &Token, limit: Duration) -> Answer<Owned>;

    /// The first so many of the queue.
    fn line(&self, key: &Key, most: usize, limit: Duration) -> Answer<Line>;

    fn holder(&self, key: &Key, limit: Duration) -> Answer<Option<Holder>>;

    /// A page of the locks that tokens of ours hold, of those that match a pattern of Redis' kind, from a cursor on: zero at
    /// first. In no order; one that comes or goes meanwhile may be missing, and one that stays may come twice.
    fn held(&self, pattern: &str, cursor: u64, limit: Duration) -> Answer<Page>;

    /// Deletes the key whoever holds it, if it is a string. Whether there was one.
    fn force_release(&self, key: &Key, limit: Duration) -> Answer<bool>;

    /// Writes if `fence` is not older than what the key has seen.
    fn guarded_set(&self, key: &Key, value: &[u8], fence: Fence, limit: Duration) -> Answer<Guarding>;

    fn guarded_get(&self, key: &Key, limit: Duration) -> Answer<Option<(Vec<u8>, Fence)>>;

    /// What it can do, and is willing to tell.
    fn capabilities(&self, limit: Duration) -> Answer<Capabilities>;

    /// The lane's connection looks dead: make a new one, in the background.
    fn reconnect(&self, lane: Lane);

    /// Closes the connections. Ends within `limit`.
    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// How a holder parts with its key.
#[derive(Debug, Clone)]
pub(crate) enum Parting {
    Delete,
    /// Out of the queue too.
    Leave,
    /// The key stays for so long, under a value of its own, and nobody renews it.
    KeepFor(Duration, Token),
}

impl Parting {
    /// Asks a node for it, token-checked and idempotent either way.
    pub(crate) fn send(&self, node: &dyn Node, lane: Lane, key: &Key, token: &Token, limit: Duration) -> Answer<Owned> {
        match self {
            Self::Delete => node.release(lane, key, token, limit),
            Self::Leave => node.leave(lane, key, token, limit),
            Self::KeepFor(keep, stays) => node.keep(lane, key, token, *keep, stays, limit),
        }
    }
}

/// The answer to a batch of one.
pub(crate) fn only(answers: Vec<Result<Owned, Failure>>) -> Result<Owned, Failure> {
    answers.into_iter().next().unwrap_or_else(|| Err(Failure::unknown("the server's answer is empty")))
}

/// Why a node's answer says nothing about the lock.
#[derive(Debug, Clone)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub(crate) struct Failure {
    text: String,
    kind: FailureKind,
    /// Where it is the failure of many nodes: what each of them said.
    votes: Option<Arc<Votes>>,
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
    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Unavailable, votes: None }
    }

    pub(crate) fn unsent(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Unsent, votes: None }
    }

    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Refused, votes: None }
    }

    pub(crate) fn unknown(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Unknown, votes: None }
    }

    /// The runtime that the request needs has ended; the request may have gone out before.
    pub(crate) fn keeper_ended() -> Self {
        Self::unknown(KEEPER_ENDED)
    }

    /// Too few nodes granted it. What may have happened on some is dealt with already.
    pub(crate) fn of_nodes(votes: Votes) -> Self {
        let kind = if votes.is_refusal() { FailureKind::Refused } else { FailureKind::Unavailable };
        Self { text: votes.to_string(), kind, votes: Some(Arc::new(votes)) }
    }

    /// A node that may have forgotten.
    pub(crate) fn recovering(address: &str, left: Duration) -> Self {
        let answer = NodeAnswer::Recovering { remaining: left };
        Self::unavailable(format!("the server at {address} {answer}"))
    }

    /// The same failure, from a step that may have done a part of its work.
    pub(crate) fn halfway(self) -> Self {
        let kind = match self.kind {
            FailureKind::Refused | FailureKind::RefusedHalfway => FailureKind::RefusedHalfway,
            FailureKind::Unavailable | FailureKind::Unsent | FailureKind::Unknown => FailureKind::Unknown,
        };
        Self { kind, ..self }
    }

    pub(crate) fn may_have_happened(&self) -> bool {
        matches!(self.kind, FailureKind::Unknown | FailureKind::RefusedHalfway)
    }

    /// Whether the node has said nothing, to this request at least.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self.kind, FailureKind::Unsent | FailureKind::Unknown)
    }

    /// Whether trying again as before is pointless.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.kind, FailureKind::Refused | FailureKind::RefusedHalfway)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = if failure.is_refusal() { ErrorKind::Refused } else { ErrorKind::Unavailable };
        Self::new(kind, failure.text).with_votes(failure.votes)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
