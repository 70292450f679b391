//! Requests to a node, and its replies.
//!
//! One [`Request`] has one [`Reply`]. Its caller converts that with `TryFrom` into the type that it expects. A reply of
//! another kind is a failure: it says nothing about the lock.

use std::{sync::Arc, time::Duration};

use crate::{
    failure::Failure, fence::Fence, forced::ForcedRelease, holder::Holder, key::Key, mode::Mode, token::Token,
};
pub use crate::{place::Shard, tally::Denial};

/// A request to a node. Each step is atomic on the node and idempotent for its token (rule 5).
#[derive(Debug, Clone)]
pub enum Request {
    /// Gives the lock to a token if nobody else has it: a [`VoteReply`].
    Acquire(AcquireRequest),
    /// Raises the lock's floor and the fence in its value to at least this one, if the lock is still the token's (rule
    /// 10): [`Owned`].
    Raise {
        /// Of this lock; the key lives on as long as before.
        claim: Claim,
        /// The least that the lock's next fence has to exceed.
        fence: Fence,
    },
    /// Brings a key back that the node has lost, unless somebody else has the lock by now: [`Repaired`].
    Repair {
        /// With this token, for this life.
        claim: Claim,
        /// The fence of the lease: no later one may be smaller.
        fence: Fence,
        /// A node that has been up for less may have forgotten another lease, and brings nothing back.
        restart_delay: Duration,
    },
    /// Gives keys their full life from now on: one verdict each, in order. An inner error means "cannot tell". A lock
    /// that the token has with another fence than the claim's was granted once more: the lease's own key is gone. All of
    /// them are held alone, or all shared.
    Renew(Arc<[Claim]>),
    /// Takes the key from its token (rule 8): [`Owned`].
    Release {
        /// Of this lock; its life does not matter.
        claim: Claim,
        /// How the key is left.
        mode: ReleaseMode,
    },
    /// A fair waiter's request; replayed, it keeps its place: [`Polled`].
    Poll(Poll),
    /// The first waiters of a fair queue: [`Waiters`].
    Waiters {
        /// Of this lock.
        key: Key,
        /// At most this many.
        most: usize,
    },
    /// The lock's holder, if it has one: a [`Holder`].
    Holder(Key),
    /// The lock's holder, if it has one, and who shares it: [`Sharers`].
    Sharers {
        /// Of this lock.
        key: Key,
        /// At most this many of them.
        most: usize,
    },
    /// A lock that a token holds alone becomes one that another token shares, with no moment in between: [`Downgraded`].
    Downgrade {
        /// With this token, for this life; its mode is a share.
        claim: Claim,
        /// The token that holds it alone.
        from: Token,
    },
    /// A [`Page`] of the locks that our tokens hold, in no order. A lock that comes or goes meanwhile may be missing,
    /// and one that stays may come twice.
    Held {
        /// The locks of this shard.
        shard: Shard,
        /// The locks that match this pattern, of Redis' kind.
        pattern: Arc<str>,
        /// From here on: zero at first.
        cursor: u64,
    },
    /// Takes the lock from whoever has it, if its key is a string. The reply says whether there was one.
    ForceRelease {
        /// This lock.
        key: Key,
        /// The message for its holder, for as long as the key would have lived.
        by: Arc<ForcedRelease>,
    },
    /// Whether the node is there, and who it is: [`ServerIdentity`].
    Probe,
    /// Rehearses an acquire, and grants nothing. The reply says how long a recently started node will still grant
    /// nothing. If the node would refuse an acquire, the reply is a failure.
    Rehearse {
        /// A key that no lock has.
        key: Key,
        /// The restart delay, as in [`Voting`].
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
            | Self::Downgrade { claim, .. }
            | Self::Poll(Poll { claim, .. }) => Some(claim),
            _ => None,
        }
    }

    /// The key that it is about, which decides who is asked; of a batch, the first.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Acquire(AcquireRequest { claim: Claim { key, .. }, .. })
            | Self::Raise { claim: Claim { key, .. }, .. }
            | Self::Repair { claim: Claim { key, .. }, .. }
            | Self::Release { claim: Claim { key, .. }, .. }
            | Self::Downgrade { claim: Claim { key, .. }, .. }
            | Self::Poll(Poll { claim: Claim { key, .. }, .. })
            | Self::Waiters { key, .. }
            | Self::Holder(key)
            | Self::Sharers { key, .. }
            | Self::ForceRelease { key, .. }
            | Self::Rehearse { key, .. } => Some(key),
            Self::Renew(claims) => claims.first().map(|claim| &claim.key),
            Self::Held { .. } | Self::Probe => None,
        }
    }

    /// The shard that is asked; a batch is of one.
    pub fn shard(&self, of: impl FnOnce(&Key) -> Shard) -> Shard {
        match self {
            Self::Held { shard, .. } => *shard,
            request => request.key().map_or(Shard::FIRST, of),
        }
    }
}

/// Defines the replies, and how each becomes what its caller has asked for.
macro_rules! replies {
    ($($(#[$attribute:meta])* $kind:ident($reply:ty),)*) => {
        /// A node's reply.
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
    Vote(VoteReply),
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
    Looked(Looked),
    /// To [`Request::Sharers`].
    Sharers(Option<Sharers>),
    /// To [`Request::Downgrade`].
    Downgraded(Downgraded),
    /// To [`Request::Held`].
    Page(Page),
    /// To [`Request::ForceRelease`].
    Flag(bool),
    /// To [`Request::Probe`].
    Identity(ServerIdentity),
    /// To [`Request::Rehearse`].
    Rehearsed(Option<Duration>),
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// `None`: nobody.
    pub holder: Option<Holder>,
    /// Whether we shall be notified when that changes.
    pub tracked: bool,
}

/// Those who share a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharers {
    /// All of them as one, or who holds it alone.
    pub holder: Holder,
    /// Each of them for itself, the first to go first. One who holds it alone is none.
    pub first: Vec<Holder>,
}

/// The fence of the phase that a downgrade has begun, or why it has not.
pub type Downgraded = Result<Fence, Denial>;

/// The waiters of a lock, in order: their tokens, how long each has waited, and how it wants the lock.
pub type Waiters = Vec<(Token, Duration, Mode)>;

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
    /// The keeper's connection. The node, if it can, also notifies us once when a key changes that the request has
    /// found held, whoever changes it.
    Tracked,
}

/// A lock, as one token has it or wants it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Of this lock.
    pub key: Key,
    /// Held with this token.
    pub token: Token,
    /// Alone, or beside others.
    pub mode: Mode,
    /// For this long from now on.
    pub ttl: Duration,
    /// How long its key lives from now on: the TTL, or more (rule 14).
    pub life: Duration,
    /// With this fence, as far as it is known. The fence in the key's value may differ: the token decides whose it is,
    /// but for a renewal.
    pub fence: Option<Fence>,
    /// How long the floor of the lock's fences is kept after a fence was issued or raised, in whole milliseconds. Zero:
    /// until the node's clock has passed the floor.
    pub fence_memory: Duration,
}

/// A request to acquire a lock on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AcquireRequest {
    /// The lock that is wanted.
    pub claim: Claim,
    /// The conditions of a vote. `None` where one node decides and the user set no restart delay.
    pub voting: Option<Voting>,
    /// An adoption (rule 13): the lock is not free, but one of these tokens has it, in whose place this one is put. A node
    /// that has the key has not forgotten it, so no restart delay is asked.
    pub heir_of: Option<Arc<Vec<Token>>>,
}

/// The conditions under which a node votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Voting {
    /// A node that has been up for less may have forgotten a lease, and gives no vote (deployments: a server that
    /// forgot stays out).
    pub restart_delay: Duration,
    /// The fence to issue, if it is large enough. Where a majority issues the same one, no floor has to be raised.
    pub proposal: Option<Fence>,
}

/// A node's answer to an acquire.
#[derive(Debug, Clone)]
pub struct VoteReply {
    /// The outcome.
    pub acquired: Acquired,
    /// The server that voted, and when by its own clock. `None` if the request asked for no vote, or the node does not
    /// know.
    pub identity: Option<ServerIdentity>,
    /// Whether a later request on the same route may have arrived before this one.
    pub overtaken: bool,
}

/// The outcome of an acquire on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The lock is the token's, with this fence.
    Granted(Fence),
    /// Somebody else has it.
    Busy {
        /// The holder.
        holder: Holder,
        /// Whether the node will notify us when the key changes.
        tracked: bool,
    },
    /// The node was started too recently to vote. It votes after this time.
    Recovering(Duration),
    /// To an adoption: nobody has the lock, so there is nothing to adopt.
    Gone,
}

/// A server's own account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its clock, in microseconds since 1970.
    pub time: Option<u64>,
    /// Distinguishes this run of this server from every other.
    pub run_id: Option<Box<str>>,
    /// Whether it stands alone. A member of a cluster and a Sentinel do not: they may forget without a restart.
    pub is_alone: bool,
}

/// The outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repaired {
    /// The node has the key again.
    Done,
    /// Somebody else has it.
    Taken,
    /// Not before this time is over: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// The verdict of a renewal, a raise or a release: done, because the key was ours, or why not.
pub type Owned = Result<(), Denial>;

/// The verdict on a batch of one.
pub fn only(verdicts: Vec<Result<Owned, Failure>>) -> Result<Owned, Failure> {
    verdicts.into_iter().next().unwrap_or_else(|| Err(Failure::unknown("the server's answer is empty")))
}

/// A fair waiter's request: it enters the queue, says that it still waits, takes the lock when it is its turn, and
/// confirms a grant.
#[derive(Debug, Clone)]
pub struct Poll {
    /// The lock that is waited for; its token is the holder's once it is granted.
    pub claim: Claim,
    /// The ticket of an earlier answer. It restores the waiter's place.
    pub ticket: Option<u64>,
    /// How long the lock may wait for its confirmation.
    pub grant: Duration,
    /// How long a waiter that cannot be notified counts as alive. The queue outlives its last poll by twice this.
    pub window: Duration,
    /// Whether to enter the queue. A try only asks: it never enters, and never overtakes.
    pub enter: bool,
    /// A node that has been up for less may have forgotten a lease. It grants this waiter nothing, whoever releases the
    /// lock.
    pub restart_delay: Duration,
}

/// The outcome of a poll.
#[derive(Debug, Clone)]
pub enum Polled {
    /// The lock is the token's, for its TTL.
    Granted(Fence),
    /// It is not the token's turn.
    Waits {
        /// The lock's holder.
        holder: Holder,
        /// Nobody holds the lock, but the node was started too recently to grant it. It grants again after this time.
        recovers_for: Option<Duration>,
        /// `None` if the poll did not enter the queue.
        ticket: Option<u64>,
        /// How many wait before it.
        ahead: u32,
        /// Whether it was not in the queue before.
        entered: bool,
        /// Whether the node will notify us when the lock's key changes.
        tracked: bool,
        /// Whether the node can notify this waiter when it is its turn.
        notified: bool,
    },
}

/// How a release leaves the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReleaseMode {
    /// Free, or with the first of its queue.
    Delete,
    /// As `Delete`, and the token leaves the queue too, together with these tokens of the same process.
    Leave(Arc<[Token]>),
    /// The key stays for this long, under a value of its own, and nobody renews it.
    Retain(Duration, Token),
}

impl ReleaseMode {
    /// `Leave` for one token only.
    pub fn leave() -> Self {
        Self::Leave(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence;

    #[test]
    fn a_request_for_one_token_has_its_claim() {
        let claim = Claim {
            key: Key::of_lock("job"),
            token: Token::random("host:7"),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(1),
            life: Duration::from_secs(1),
            fence: None,
            fence_memory: Duration::ZERO,
        };
        let acquire = Request::Acquire(AcquireRequest { claim: claim.clone(), voting: None, heir_of: None });
        let raise = Request::Raise { claim: claim.clone(), fence: fence::ZERO };
        let release = Request::Release { claim: claim.clone(), mode: ReleaseMode::Delete };
        for request in [acquire, raise, release] {
            assert_eq!(request.claim().map(|of| &of.token), Some(&claim.token), "{request:?}");
        }
        assert!(Request::Holder(claim.key).claim().is_none());
    }
}
