//! Requests to a node, and its replies.
//!
//! Each [`Request`] has one [`Reply`], which the caller converts with `TryFrom` into the type that it expects. A reply
//! of another kind is a failure: it says nothing about the lock.

use std::{sync::Arc, time::Duration};

use crate::{
    failure::Failure, fence::Fence, forced::ForcedRelease, holder::Holder, key::Key, mode::Mode, token::Token,
};
pub use crate::{place::Shard, tally::Denial};

/// A request to a node. Each step is atomic on the node and idempotent for its token (rule 5).
#[derive(Debug, Clone)]
pub enum Request {
    /// Gives the lock to a token unless another token has it. Reply: [`VoteReply`].
    Acquire(AcquireRequest),
    /// Raises the lock's floor and the fence in its value to at least this one, if the lock is still the token's (rule
    /// 10). Reply: [`Owned`].
    Raise {
        /// The lock and its token; the key's expiry does not change.
        claim: Claim,
        /// The new floor, which the lock's next fence must exceed.
        fence: Fence,
    },
    /// Restores a key that the node has lost, unless another token has the lock by now. Reply: [`Repaired`].
    Repair {
        /// The token to restore, and its life.
        claim: Claim,
        /// The fence of the lease: no later one may be smaller.
        fence: Fence,
        /// The restart delay. A node that has been up for less may have forgotten another lease, so it restores
        /// nothing.
        restart_delay: Duration,
    },
    /// Gives keys their full life from now on; a claim whose life is zero leaves its key's life as it is. The reply has
    /// one verdict per key, in order; an inner error means "cannot tell". If the token has the lock with another fence
    /// than the claim's, it was granted again: the lease's own key is gone. All claims are exclusive, or all are shares.
    Renew(Arc<[Claim]>),
    /// Takes the key from its token (rule 8). Reply: [`Owned`].
    Release {
        /// The lock and its token; the claim's life does not matter.
        claim: Claim,
        /// How the key is left.
        mode: ReleaseMode,
    },
    /// A fair waiter's request. If it is replayed, the waiter keeps its place. Reply: [`Polled`].
    Poll(Poll),
    /// Asks for the first waiters of a fair queue. Reply: [`Waiters`].
    Waiters {
        /// The lock's key.
        key: Key,
        /// The most waiters to list.
        most: usize,
    },
    /// Asks for the lock's holder, if it has one. Reply: [`Looked`].
    Holder(Key),
    /// Asks for the lock's holder, if it has one, and its sharers. Reply: [`Sharers`].
    Sharers {
        /// The lock's key.
        key: Key,
        /// The most sharers to list.
        most: usize,
    },
    /// Turns a lock that one token holds alone into one that another token shares, with no gap in between. Reply:
    /// [`Downgraded`].
    Downgrade {
        /// The new token and its life; its mode is a share.
        claim: Claim,
        /// The token that holds the lock alone.
        from: Token,
        /// The restart delay, as in [`Voting`].
        restart_delay: Duration,
    },
    /// Lists a [`Page`] of the locks that our tokens hold, in no order. A lock that is acquired or released meanwhile
    /// may be missing, and one that stays held may be listed twice.
    Held {
        /// The shard whose locks are listed.
        shard: Shard,
        /// The pattern that the locks match, in Redis' syntax.
        pattern: Arc<str>,
        /// The cursor to continue from: zero at first.
        cursor: u64,
    },
    /// Takes the lock from its holder or sharers, if its key is a string. The reply says whether the lock was held.
    ForceRelease {
        /// The lock's key.
        key: Key,
        /// The message for the holder, kept for as long as the key would have lived.
        by: Arc<ForcedRelease>,
    },
    /// Asks whether the node is there, and which server it is. Reply: [`ServerIdentity`].
    Probe,
    /// Rehearses an acquire, and grants nothing. The reply says how long a recently started node will still grant
    /// nothing. If the node would refuse an acquire, the reply is a failure.
    Rehearse {
        /// A key that no lock uses.
        key: Key,
        /// The restart delay, as in [`Voting`].
        restart_delay: Duration,
    },
}

impl Request {
    /// The one claim that the request is about, if there is one.
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

    /// The key that the request is about, which decides which server is asked; for a batch, the first key.
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

    /// The shard that is asked. All keys of a batch are in one shard.
    pub fn shard(&self, of: impl FnOnce(&Key) -> Shard) -> Shard {
        match self {
            Self::Held { shard, .. } => *shard,
            request => request.key().map_or(Shard::FIRST, of),
        }
    }
}

/// Defines the replies, and the conversion of each into the type that its caller expects.
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
    /// The reply to [`Request::Acquire`].
    Vote(VoteReply),
    /// The reply to [`Request::Raise`] and [`Request::Release`].
    Owned(Owned),
    /// The reply to [`Request::Repair`].
    Repaired(Repaired),
    /// The reply to [`Request::Renew`].
    Renewed(Vec<Result<Owned, Failure>>),
    /// The reply to [`Request::Poll`].
    Polled(Polled),
    /// The reply to [`Request::Waiters`].
    Waiters(Waiters),
    /// The reply to [`Request::Holder`].
    Looked(Looked),
    /// The reply to [`Request::Sharers`].
    Sharers(Option<Sharers>),
    /// The reply to [`Request::Downgrade`].
    Downgraded(Downgraded),
    /// The reply to [`Request::Held`].
    Page(Page),
    /// The reply to [`Request::ForceRelease`].
    Flag(bool),
    /// The reply to [`Request::Probe`].
    Identity(ServerIdentity),
    /// The reply to [`Request::Rehearse`].
    Rehearsed(Option<Duration>),
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// `None` if the lock is free.
    pub holder: Option<Holder>,
    /// Whether the node will notify us when the holder changes.
    pub tracked: bool,
}

/// The sharers of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharers {
    /// All sharers as one holder, or the exclusive holder.
    pub holder: Holder,
    /// Each sharer, the first to expire first. Empty if the lock is held alone.
    pub first: Vec<Holder>,
}

/// The outcome of a downgrade.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Downgraded {
    /// The new token shares the lock, in a phase with this fence.
    Shared(Fence),
    /// The lock is not the old token's.
    Denied(Denial),
    /// The node hands nothing over before this time has passed: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// The waiters of a lock, in order: their tokens, how long each has waited, and how it wants the lock.
pub type Waiters = Vec<(Token, Duration, Mode)>;

/// A part of a node's locks, and the cursor of the next part: zero at the end.
pub type Page = (u64, Vec<String>);

/// Which of a node's connections a request takes. Two requests on one route arrive in the order in which they were
/// handed over; across routes no order is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// The connection of the runtime on which the node was made.
    Home,
    /// The keeper's connection, which works from any thread or runtime.
    Keeper,
    /// The keeper's connection. If the node can, it also notifies us once when a key that the request found held
    /// changes, whoever changes it.
    Tracked,
}

/// A lock, as one token holds or requests it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The lock's key.
    pub key: Key,
    /// The token that holds or requests it.
    pub token: Token,
    /// Whether it is held alone or shared.
    pub mode: Mode,
    /// The TTL, counted from now.
    pub ttl: Duration,
    /// How long the key lives from now on: the TTL, or more (rule 14). Zero for a renewal that only checks whether the
    /// key is the token's.
    pub life: Duration,
    /// The fence, as far as it is known. The fence in the key's value may differ, because the token decides whose key
    /// it is. Only a renewal also compares the fence.
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
    /// For an adoption (rule 13): one of these tokens must have the lock, and this token replaces it. A node that has
    /// the key has not forgotten it, so no restart delay applies.
    pub heir_of: Option<Arc<Vec<Token>>>,
}

/// The conditions under which a node votes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Voting {
    /// The restart delay. A node that has been up for less may have forgotten a lease, so it gives no vote
    /// (deployments: a server that forgot stays out).
    pub restart_delay: Duration,
    /// The fence to issue, if it is large enough. If a majority issues the same one, no floor has to be raised.
    pub proposal: Option<Fence>,
}

/// A node's answer to an acquire.
#[derive(Debug, Clone)]
pub struct VoteReply {
    /// The outcome.
    pub acquired: Acquired,
    /// The server that voted, and the time on its own clock. `None` if the request asked for no vote, or the node does
    /// not know its server.
    pub identity: Option<ServerIdentity>,
    /// Whether a later request on the same route may have arrived before this one.
    pub overtaken: bool,
}

/// The outcome of an acquire on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Acquired {
    /// The lock is the token's, with this fence.
    Granted(Fence),
    /// Another token has it.
    Busy {
        /// The holder.
        holder: Holder,
        /// Whether the node will notify us when the key changes.
        tracked: bool,
    },
    /// The node was started too recently to vote. It votes after this time.
    Recovering(Duration),
    /// For an adoption: the lock is free, so there is nothing to adopt.
    Gone,
}

/// A server's identity, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Its clock, in microseconds since 1970.
    pub time: Option<u64>,
    /// Distinguishes this run of this server from every other.
    pub run_id: Option<Box<str>>,
    /// Whether the server is standalone. A member of a cluster and a Sentinel are not: they may forget without a
    /// restart.
    pub is_alone: bool,
}

/// The outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repaired {
    /// The node has the key again.
    Done,
    /// Another token has it.
    Taken,
    /// The node repairs nothing before this time has passed: see [`Acquired::Recovering`].
    Recovering(Duration),
}

/// The verdict of a renewal, a raise or a release: `Ok` if the key was ours and it is done, or else why not.
pub type Owned = Result<(), Denial>;

/// The only verdict of a batch of one.
pub fn only(verdicts: Vec<Result<Owned, Failure>>) -> Result<Owned, Failure> {
    verdicts.into_iter().next().unwrap_or_else(|| Err(Failure::unknown("the server's answer is empty")))
}

/// A fair waiter's request. It enters the queue, shows that the waiter still waits, takes the lock when it is its turn,
/// and confirms a grant.
#[derive(Debug, Clone)]
pub struct Poll {
    /// The lock that is waited for. Its token becomes the holder's once the lock is granted.
    pub claim: Claim,
    /// The ticket of an earlier answer, which restores the waiter's place.
    pub ticket: Option<u64>,
    /// How long a granted lock waits for its confirmation.
    pub grant: Duration,
    /// How long a waiter that cannot be notified counts as alive. The queue outlives its last poll by twice this.
    pub window: Duration,
    /// Whether to enter the queue. A try only asks: it never enters, and never overtakes.
    pub enter: bool,
    /// The restart delay. A node that has been up for less may have forgotten a lease. It does not grant this waiter
    /// the lock, whoever releases it.
    pub restart_delay: Duration,
}

/// The outcome of a poll.
#[derive(Debug, Clone)]
pub enum Polled {
    /// The token has the lock, for its TTL.
    Granted(Fence),
    /// It is not the token's turn.
    Waits {
        /// The lock's holder.
        holder: Holder,
        /// How long the node grants nothing: the lock is free, but the node was started too recently.
        recovers_for: Option<Duration>,
        /// The waiter's ticket; `None` if the poll did not enter the queue.
        ticket: Option<u64>,
        /// How many waiters are ahead of it.
        ahead: u32,
        /// Whether the waiter was not in the queue before.
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
    /// The key is deleted, or passed to the first of its queue.
    Delete,
    /// Like `Delete`; the token also leaves the queue, together with these tokens of the same process.
    Leave(Arc<[Token]>),
    /// The key stays for this long under another token, and is not renewed.
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
