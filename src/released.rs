//! The outcome of a release.

use leasehold_protocol::failure::Failure;

use crate::error::Details;

/// The outcome of a [release](crate::Lease::release) of a lease that was ours to its end.
///
/// Neither outcome is a failure of the work, so `lease.release().await?` is all that most programs need. The
/// [guide](crate::docs::guide#when-a-release-is-not-confirmed) says more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The server has released the lock. If the acquisition has several leases, it means that this one has ended.
    Confirmed,
    /// The server has not confirmed the release in time. The text says why. The release continues in the background,
    /// and the key expires within its TTL: until then the lock may be busy.
    Unconfirmed(Details),
}

impl Released {
    pub(crate) fn unconfirmed(failure: &Failure, is_kept: bool) -> Self {
        Self::Unconfirmed(Details::of_release(failure, is_kept))
    }

    /// Whether the server has confirmed the release.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        matches!(self, Self::Confirmed)
    }
}
