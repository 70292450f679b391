//! Why a lease ends.

use std::{fmt, sync::Arc};

use crate::{forced::ForcedRelease, tally::Denial};

/// Why a lease ended, or is to end. A lost lease never comes back: acquire a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was confirmed before the deadline: the server was unreachable, frozen or slow, or this process
    /// stood still.
    Expired,
    /// Too few nodes of a quorum confirmed a renewal before the deadline: the others were unreachable, frozen or slow,
    /// or had forgotten the lease.
    NoQuorum,
    /// The key holds somebody else's value.
    Taken,
    /// The key is gone: deleted by hand, evicted, or forgotten by a server that restarted.
    ///
    /// Over a quorum, after this, [`Forced`](Self::Forced) or [`Taken`](Self::Taken), the keys on the other servers
    /// stay until the lease is released or dropped, at most for its TTL. While the servers that forgot the key do not
    /// vote yet ([`restart_delay`]), nobody else can acquire the lock, so the job has time to stop.
    ///
    /// [`restart_delay`]: https://docs.rs/leasehold/latest/leasehold/struct.Builder.html#method.restart_delay
    Deleted,
    /// The key is gone, and since the last renewal a replica has taken over from the server that had it: the replica
    /// had not received the key yet. A write that a server has confirmed is lost in a failover if it was not replicated
    /// ([what a cluster and Sentinel promise]).
    ///
    /// [what a cluster and Sentinel promise]: https://docs.rs/leasehold/latest/leasehold/docs/deployments/#what-a-failover-costs
    FailedOver,
    /// An operator took the lock from its holder: [`force_release`], or `leasehold release --force`. The lease's
    /// [`Lost`] reports who it was, and why. A lock that was taken in another way, by hand or by an older leasehold, is
    /// reported as [`Deleted`](Self::Deleted) or [`Taken`](Self::Taken).
    ///
    /// [`force_release`]: https://docs.rs/leasehold/latest/leasehold/struct.Lock.html#method.force_release
    /// [`Lost`]: https://docs.rs/leasehold/latest/leasehold/struct.Lost.html#method.forced
    Forced,
    /// The lease reached its `max_hold`. Its key is not deleted but expires: the job has until then to stop. That is
    /// the rest of the TTL since the last confirmed renewal: about two thirds of it or more while renewals succeed,
    /// next to nothing if they were failing. A release, a drop or [`close`] deletes the key at once.
    ///
    /// [`close`]: https://docs.rs/leasehold/latest/leasehold/struct.Client.html#method.close
    MaxHold,
    /// Its work made no progress for as long as [`stall_after`] allows, so it was not renewed any more. Its deadline was
    /// that of the last renewal, so the job had that time to stop, or to report progress.
    ///
    /// [`stall_after`]: https://docs.rs/leasehold/latest/leasehold/struct.Lock.html#method.stall_after
    Stalled,
    /// Not a loss: [`release`] was called or the lease was dropped.
    ///
    /// [`release`]: https://docs.rs/leasehold/latest/leasehold/struct.Lease.html#method.release
    Released,
    /// Not a loss: [`into_ticket`] was called. The caller that [adopts] the ticket has the lock next.
    ///
    /// [`into_ticket`]: https://docs.rs/leasehold/latest/leasehold/struct.Lease.html#method.into_ticket
    /// [adopts]: https://docs.rs/leasehold/latest/leasehold/struct.Lock.html#method.adopt
    HandedOver,
    /// Not a loss yet: [`Client::shutdown`] asks the holder to stop. The lease is still held and renewed, until its
    /// holder releases or drops it, or the time for that has passed.
    ///
    /// [`Client::shutdown`]: https://docs.rs/leasehold/latest/leasehold/struct.Client.html#method.shutdown
    Closing,
    /// Not a loss yet: no renewal was confirmed, and only the grace of [`Lock::grace`] is left of the lease.
    ///
    /// [`Lock::grace`]: https://docs.rs/leasehold/latest/leasehold/struct.Lock.html#method.grace
    Expiring,
    /// [`Client::close`] released every lease.
    ///
    /// [`Client::close`]: https://docs.rs/leasehold/latest/leasehold/struct.Client.html#method.close
    Closed,
    /// The keeper has failed, because of a bug in this library or in the program's own clock. The key is not renewed
    /// any more, and expires.
    KeeperEnded,
}

impl LossReason {
    /// Whether the lease has ended. Otherwise its holder is only asked to stop, and still has it: a job that wants to
    /// finish may continue while [`check`] is `Ok`.
    ///
    /// [`check`]: https://docs.rs/leasehold/latest/leasehold/struct.Lease.html#method.check
    #[must_use]
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Closing | Self::Expiring)
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was confirmed before its deadline",
            Self::NoQuorum => "too few nodes confirmed a renewal before its deadline",
            Self::Taken => "its key holds somebody else's value",
            Self::Deleted => "its key is gone from the server",
            Self::FailedOver => "its key was lost in a failover: the replica that took over did not have it",
            Self::Forced => "it was taken away by force",
            Self::MaxHold => "it reached its max_hold",
            Self::Stalled => "its work made no progress",
            Self::Released => "it was released",
            Self::HandedOver => "it was handed over",
            Self::Closing => "its Client is being shut down; it is held until it is released",
            Self::Expiring => "no renewal was confirmed so far, and its deadline is near",
            Self::Closed => "its Client was closed",
            Self::KeeperEnded => "the keeper that renewed it has ended",
        })
    }
}

/// Why a lease ended, and what else is known about that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Loss {
    /// The reason.
    pub reason: LossReason,
    /// The forced release, after [`LossReason::Forced`].
    pub forced: Option<Arc<ForcedRelease>>,
}

impl From<LossReason> for Loss {
    fn from(reason: LossReason) -> Self {
        Self { reason, forced: None }
    }
}

/// The loss of a lease that a majority denies.
impl From<&Denial> for Loss {
    fn from(denial: &Denial) -> Self {
        match denial {
            Denial::Gone => LossReason::Deleted.into(),
            Denial::Taken => LossReason::Taken.into(),
            Denial::Forced(by) => Self { reason: LossReason::Forced, forced: Some(by.clone()) },
        }
    }
}

/// Whether a majority has answered that the holder no longer has the lease.
pub fn was_denied(reason: LossReason) -> bool {
    matches!(reason, LossReason::Deleted | LossReason::FailedOver | LossReason::Taken | LossReason::Forced)
}

/// Whether neither the holder nor an operator wanted the end, so that the holder may still be at work. A job whose
/// lease has reached its `max_hold` is notified in time.
pub fn is_unforeseen(reason: LossReason) -> bool {
    was_denied(reason) && reason != LossReason::Forced
        || matches!(reason, LossReason::Expired | LossReason::NoQuorum | LossReason::Stalled | LossReason::KeeperEnded)
}

/// The label of a loss in metrics; `None` if the reason is not a loss.
pub fn label(reason: LossReason) -> Option<&'static str> {
    match reason {
        LossReason::Released
        | LossReason::HandedOver
        | LossReason::Closing
        | LossReason::Expiring
        | LossReason::Closed => None,
        loss => Some(word(loss)),
    }
}

/// The reason as a word for programs.
fn word(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::NoQuorum => "no_quorum",
        LossReason::Taken => "taken",
        LossReason::Deleted => "deleted",
        LossReason::FailedOver => "failed_over",
        LossReason::Forced => "forced",
        LossReason::MaxHold => "max_hold",
        LossReason::Stalled => "stalled",
        LossReason::Released => "released",
        LossReason::HandedOver => "handed_over",
        LossReason::Closing => "closing",
        LossReason::Expiring => "expiring",
        LossReason::Closed => "closed",
        LossReason::KeeperEnded => "keeper_ended",
    }
}

/// A word such as `no_quorum`, as in the metrics.
#[cfg(feature = "serde")]
impl serde::Serialize for LossReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(word(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_words_of_its_own_and_every_loss_a_label() {
        let reasons = [
            (LossReason::Expired, "expired", true, "before its deadline"),
            (LossReason::NoQuorum, "no_quorum", true, "too few nodes"),
            (LossReason::Taken, "taken", true, "somebody else's"),
            (LossReason::Deleted, "deleted", true, "gone from the server"),
            (LossReason::FailedOver, "failed_over", true, "failover"),
            (LossReason::Forced, "forced", true, "by force"),
            (LossReason::MaxHold, "max_hold", true, "max_hold"),
            (LossReason::Released, "released", false, "was released"),
            (LossReason::HandedOver, "handed_over", false, "handed over"),
            (LossReason::Closing, "closing", false, "shut down"),
            (LossReason::Expiring, "expiring", false, "deadline is near"),
            (LossReason::Closed, "closed", false, "was closed"),
            (LossReason::KeeperEnded, "keeper_ended", true, "keeper"),
        ];
        for (reason, expected, is_loss, words) in reasons {
            assert_eq!((word(reason), label(reason)), (expected, is_loss.then_some(expected)));
            assert!(reason.to_string().contains(words), "{reason}");
            assert_eq!(reason.is_over(), !matches!(reason, LossReason::Closing | LossReason::Expiring));
            assert!(reason.is_over() || !is_loss);
            #[cfg(feature = "serde")]
            assert_eq!(serde_json::to_value(reason).unwrap(), expected);
        }
    }
}
