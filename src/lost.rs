//! The end of a lease, and why.

use std::{
    error::Error as StdError,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::fence::Fence;

/// Why a lease ended. Final: a lost lease never comes back, acquire a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// No renewal was confirmed before the deadline: the server was unreachable, frozen or slow, or this process
    /// stood still.
    Expired,
    /// Of a quorum too few nodes confirmed a renewal before the deadline: the others were unreachable, frozen or slow,
    /// or had forgotten the lease.
    NoQuorum,
    /// The key holds somebody else's value.
    Taken,
    /// The key is gone: deleted by hand, evicted, or forgotten by a server that restarted.
    ///
    /// Over a quorum, after this and [`Taken`](Self::Taken), what is left on the other servers stays until the lease is
    /// released or dropped, at most for its TTL: as long as those who forgot do not vote yet
    /// ([`restart_delay`](crate::Builder::restart_delay)), nobody else has the lock while the job stops.
    Deleted,
    /// The lease reached its `max_hold`. Its key is not deleted but expires: the job has until then to stop. That is what
    /// was left of the TTL that the last confirmed renewal gave it: some two thirds of it or more while renewals succeed,
    /// next to nothing if they had been failing. A release, a drop or [`close`](crate::Leases::close) deletes the key at
    /// once.
    MaxHold,
    /// Not a loss: [`release`](crate::Lease::release) was called or the lease was dropped.
    Released,
    /// [`Leases::close`](crate::Leases::close) released every lease.
    Closed,
    /// The keeper that renewed it has ended: with [`Keeper::CurrentRuntime`](crate::Keeper::CurrentRuntime) the runtime
    /// that the [`Leases`](crate::Leases) was built on; or it has failed, which is a bug of this library. Nobody renews its
    /// key, which expires.
    KeeperEnded,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was confirmed before its deadline",
            Self::NoQuorum => "too few nodes confirmed a renewal before its deadline",
            Self::Taken => "its key holds somebody else's value",
            Self::Deleted => "its key is gone from the server",
            Self::MaxHold => "it reached its max_hold",
            Self::Released => "it was released",
            Self::Closed => "its Leases was closed",
            Self::KeeperEnded => "the keeper that renewed it has ended",
        })
    }
}

/// What [`lost`](crate::Lease::lost) completes with: which lease ended, why, and since when.
///
/// Cheap to clone. As an error its text is a whole sentence for a log.
#[derive(Clone)]
pub struct Lost(Arc<Inner>);

struct Inner {
    name: Box<str>,
    fence: Fence,
    reason: LossReason,
    since: SystemTime,
    held_for: Duration,
}

impl Lost {
    pub(crate) fn new(name: &str, fence: Fence, reason: LossReason, since: SystemTime, held_for: Duration) -> Self {
        Self(Arc::new(Inner { name: name.into(), fence, reason, since, held_for }))
    }

    /// The lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The fencing token of the lease that ended.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Why it ended.
    #[must_use]
    pub fn reason(&self) -> LossReason {
        self.0.reason
    }

    /// From when on the lease was not valid: for [`LossReason::Expired`] the deadline that passed, not the moment
    /// somebody noticed. On the wall clock, for logs.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        self.0.since
    }

    /// How long the lease was valid.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        self.0.held_for
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, fence, reason, held_for, .. } = &*self.0;
        write!(f, "the lease on {name:?} (fence {fence}) ended {held_for:.3?} after it was acquired: {reason}")
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("reason", &self.reason())
            .field("since", &self.since())
            .field("held_for", &self.held_for())
            .finish()
    }
}

impl PartialEq for Lost {
    fn eq(&self, other: &Self) -> bool {
        let key = |lost: &Self| (lost.reason(), lost.fence(), lost.since());
        self.name() == other.name() && key(self) == key(other)
    }
}

impl Eq for Lost {}

impl StdError for Lost {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_why_and_when() {
        let fence = Fence::try_from(7_u64).unwrap();
        let lost = Lost::new("job", fence, LossReason::Expired, SystemTime::UNIX_EPOCH, Duration::from_millis(12_345));
        assert_eq!(
            lost.to_string(),
            "the lease on \"job\" (fence 7) ended 12.345s after it was acquired: no renewal was confirmed before its \
             deadline"
        );
    }
}
