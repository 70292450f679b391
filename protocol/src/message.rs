//! What a node is asked, and what it answers.
//!
//! One [`Request`] has one [`Reply`]. The type inside of the reply is what a caller asks for: it converts with
//! `TryFrom`, and a reply of another kind says nothing about the lock.

use std::{sync::Arc, time::Duration};

pub use crate::tally::Denial;
use crate::{failure::Failure, fence::Fence, holder::Holder, key::Key, token::Token};

/// What a node is asked. Each step is atomic on the node and idempotent for its token (rule 5).
#[derive(Debug, Clone)]
pub enum Request {
    /// Gives the lock to a token if nobody else has it: a [`Vote`].
    Acquire(AcquireRequest),
    /// Raises the lock's floor and the fence in its value to at least this one, if the lock is still the token's (rule 10):
    /// [`Owned`].
    Raise {
        /// Of this lock; its TTL does not change.
        claim: Claim,
        /// The least that the lock's next fence has to exceed.
        fence: Fence,
    },
    /// Brings a key back that the node has lost, unless somebody else has the lock by now: [`Repaired`].
    Repair {
        /// With this token, for this TTL.
        claim: Claim,
        /// The fence of the lease, below which no later one may be.
        fence: Fence,
        /// A node that has been up for less may have forgotten another lease, and brings nothing back.
        restart_delay: Duration,
    },
    /// Gives leases their full TTL from now on: one verdict each, in order. An inner error means "cannot tell".
    Renew(Arc<[Claim]>),
    /// Takes the key from its token (rule 8): [`Owned`].
    Release {
        /// Of this lock; its TTL does not matter.
        claim: Claim,
        /// What becomes of the key.
        mode: ReleaseMode,
    },
    /// A fair waiter's request; replayed, it keeps its place: [`Polled`].
    Poll(Poll),
    /// The first so many of a fair queue: [`Waiters`].
    Waiters {
        /// Of this lock.
        key: Key,
        /// At most so many.
        most: usize,
    },
    /// Who has the lock: a [`Holder`], if anybody has.
    Holder(Key),
    /// A [`Page`] of the locks that our tokens hold. In no order; one that comes or goes meanwhile may be missing, and one
    /// that stays may come twice.
    Held {
        /// Those that match this pattern, of Redis' kind.
        pattern: Arc<str>,
        /// From here on: zero at first.
        cursor: u64,
    },
    /// Deletes the lock's key, whoever has it, if it is a string: whether there was one.
    ForceRelease(Key),
    /// Writes a guarded value, if the fence is not older than what the key has seen: [`Guarding`].
    GuardedSet {
        /// Under this key.
        key: Key,
        /// This value.
        value: Arc<[u8]>,
        /// With this fence.
        fence: Fence,
    },
    /// A guarded value and the fence that it was written with, if there is one.
    GuardedGet(Key),
    /// Whether the node is there, and who it is: [`ServerIdentity`].
    Probe,
    /// All that an acquire asks of a node, but nothing is granted: for how long a node that was started lately grants
    /// nothing, if it does not now. What would refuse an acquire is a failure.
    Rehearse {
        /// A key that no lock has.
        key: Key,
        /// As that of [`Voting`].
        restart_delay: Duration,
    },
}

impl Request {
    /// The one claim that it is about, if there is one.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Acquire(AcquireRequest { claim, .. })
            | Self::Raise { claim, .. }
            | Self::Repair { claim, .. }
            | Self::Release { claim, .. }
            | Self::Poll(Poll { claim, .. }) => Some(claim),
            _ => None,
        }
    }
}

/// Defines the replies, and how each becomes what its caller has asked for.
macro_rules! replies {
    ($($(#[$attribute:meta])* $kind:ident($reply:ty),)*) => {
        /// What a node answers.
        #[derive(Debug, Clone)]
        pub enum Reply {
            $($(#[$attribute])* $kind($reply),)*
        }

        $(
            impl From<$reply> for Reply {
                fn from(reply: $reply) -> Self {
                    Self::$kind(reply)
                }
            }

            impl TryFrom<Reply> for $reply {
                type Error = Failure;

                fn try_from(reply: Reply) -> Result<Self, Failure> {
                    match reply {
                        Reply::$kind(reply) => Ok(reply),
                        _ => Err(Failure::unknown("the node has answered what it was not asked")),
                    }
                }
            }
        )*
    };
}

replies! {
    /// To [`Request::Acquire`].
    Vote(Vote),
    /// To [`Request::Raise`] and [`Request::Release`].
    Owned(Owned),
    /// To [`Request::Repair`].
    Repaired(Repaired),
    /// To [`Request::Renew`].
    Renewed(Vec<Result<Owned, Failure>>),
    /// To [`Request::Poll`].
    Polled(Polled),
    /// To [`Request::Waiters`].
    Waiters(Waiters),
    /// To [`Request::Holder`].
    Holder(Option<Holder>),
    /// To [`Request::Held`].
    Page(Page),
    /// To [`Request::ForceRelease`].
    Flag(bool),
    /// To [`Request::GuardedSet`].
    Guarding(Guarding),
    /// To [`Request::GuardedGet`].
    Guarded(Option<(Vec<u8>, Fence)>),
    /// To [`Request::Probe`].
    Identity(ServerIdentity),
    /// To [`Request::Rehearse`].
    Rehearsed(Option<Duration>),
}

/// Who waits for a lock, in order: tokens, and how long each has waited.
pub type Waiters = Vec<(Token, Duration)>;

/// A part of what a node has, and the cursor of the next part: zero at the end.
pub type Page = (u64, Vec<String>);

/// Which of a node's connections a request takes. Two requests on one route arrive in the order in which they were
/// handed over; across routes nothing is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// The connection of the runtime on which the node was made.
    Home,
    /// The keeper's connection, which works from everywhere.
    Keeper,
    /// The same; and the node, if it can, notifies us once when a key changes that the request has found held, whoever
    /// changes it.
    Tracked,
}

/// A lock, as one token has it or wants it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Of this lock.
    pub key: Key,
    /// Held with this token.
    pub token: Token,
    /// For so long from now on.
    pub ttl: Duration,
    /// With this fence, as far as it is known. The value may have another one: the token decides whose it is.
    pub fence: Option<Fence>,
    /// For how long the floor of the lock's fences is kept after a fence was issued or raised, in whole milliseconds. Zero is
    /// until the node's clock has passed it.
    pub fence_memory: Duration,
}

/// What an acquire asks of a node.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// The lock that is wanted.
    pub claim: Claim,
    /// What it takes to be a vote; where one node decides and nobody asked for a restart delay, nothing.
    pub voting: Option<Voting>,
}

/// Under which conditions a node votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voting {
    /// A node that has been up for less may have forgotten a lease, and gives no vote (deployments: a server that forgot stays
    /// out).
    pub restart_delay: Duration,
    /// The fence to draw, if it is large enough: where a majority draws the same, no floor has to be raised.
    pub proposal: Option<Fence>,
}

/// What a node answered to an acquire.
#[derive(Debug, Clone)]
pub struct Vote {
    /// What it came to.
    pub acquired: Acquired,
    /// Who voted, and when by its own clock. There if the request asked for a vote, and the node knows.
    pub sign: Option<ServerIdentity>,
    /// Whether what was asked after the request on its route may have come before it.
    pub overtaken: bool,
}

/// What an acquire found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The lock is the token's, with this fence.
    Granted(Fence),
    /// Somebody else has it.
    Busy {
        /// Who.
        holder: Holder,
        /// Whether the node will tell when the key changes.
        tracked: bool,
    },
    /// It was started too short a time ago to vote, and will for the first time after this one.
    Recovering(Duration),
}

/// A server's own account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its clock, in microseconds since 1970.
    pub time: Option<u64>,
    /// What tells this run of this server from every other.
    pub run_id: Option<Box<str>>,
    /// Whether it is part of a cluster, or watches over others: then it may forget without a restart.
    pub is_alone: bool,
}

/// What bringing a lost key back came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repaired {
    /// The node has the key again.
    Done,
    /// Somebody else has it.
    Taken,
    /// Not before this time is over: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// What a renewal or a release found under the key: ours (and it was done), or not.
pub type Owned = Result<(), Denial>;

/// The verdict on a batch of one.
pub fn only(verdicts: Vec<Result<Owned, Failure>>) -> Result<Owned, Failure> {
    verdicts.into_iter().next().unwrap_or_else(|| Err(Failure::unknown("the server's answer is empty")))
}

/// What a guarded write found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarding {
    /// It was written.
    Written,
    /// A later holder has written.
    Stale {
        /// With this fence.
        seen: Fence,
    },
}

/// A fair waiter's request: it enters the queue, says that it still waits, takes the lock when it is its turn, and
/// confirms a grant.
#[derive(Debug, Clone)]
pub struct Poll {
    /// The lock that is waited for; its token is the holder's once it is granted.
    pub claim: Claim,
    /// That of an earlier answer, which gives it its place back.
    pub ticket: Option<u64>,
    /// How long the lock may wait for its confirmation.
    pub grant: Duration,
    /// How long a waiter that cannot be called counts as alive, and half of what the queue outlives its last poll by.
    pub window: Duration,
    /// Or only look: a try never enters, and never overtakes.
    pub enter: bool,
    /// A node that has been up for less may have forgotten a lease, and grants this waiter nothing, whoever lets go of the
    /// lock.
    pub restart_delay: Duration,
}

/// What a poll found.
#[derive(Debug, Clone)]
pub enum Polled {
    /// The lock is the token's, for its TTL.
    Granted(Fence),
    /// It is not the token's turn.
    Waits {
        /// Who has the lock.
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
        tracked: bool,
        /// Whether the node can call this waiter when it is its turn.
        called: bool,
    },
}

/// What a release makes of the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// Nobody has it, or the first of its queue.
    Delete,
    /// The same, and its token leaves the queue too.
    Leave,
    /// The key stays for so long, under a value of its own, and nobody renews it.
    Retain(Duration, Token),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence;

    #[test]
    fn a_request_for_one_token_has_its_claim() {
        let claim = Claim {
            key: Key::of_lock("job"),
            token: Token::draw("host:7"),
            ttl: Duration::from_secs(1),
            fence: None,
            fence_memory: Duration::ZERO,
        };
        let acquire = Request::Acquire(AcquireRequest { claim: claim.clone(), voting: None });
        let raise = Request::Raise { claim: claim.clone(), fence: fence::ZERO };
        let release = Request::Release { claim: claim.clone(), mode: ReleaseMode::Delete };
        for request in [acquire, raise, release] {
            assert_eq!(request.claim().map(|of| &of.token), Some(&claim.token), "{request:?}");
        }
        assert!(Request::Holder(claim.key).claim().is_none());
    }
}
