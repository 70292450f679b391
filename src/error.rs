//! What can go wrong, and what to do about it.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use leasehold_protocol::{
    failure::Failure, fence::Fence, holder::Holder, key::InvalidName, rounded::Rounded, votes::Votes,
};

use crate::lost::Lost;

/// What a caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting or a name is wrong. The text names it, and the bound. Nothing was sent.
    Config,
    /// The server could not be reached, or did not answer in time. Try again later.
    Unavailable,
    /// The server answered no: wrong password, missing right, wrong type. The text has its own words.
    Refused,
    /// [`Leases::close`](crate::Leases::close) was called.
    Closed,
    /// Somebody else held the lock for as long as we were willing to wait.
    TimedOut,
    /// The lease was lost.
    Lost,
    /// Whether it happened is not known. Whatever is left on the server ends within one TTL.
    Unknown,
    /// The resource has seen a later holder's fence.
    Stale,
}

/// Any error of this crate, so that a program's own error type needs one `#[from]`.
///
/// Its text says what to do; [`kind`](Self::kind) is for code.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    text: Box<str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    votes: Option<Arc<Votes>>,
}

/// With [`Keeper::CurrentRuntime`](crate::Keeper::CurrentRuntime).
const KEEPER_ENDED: &str = "the runtime that kept the leases of this Leases has ended: build a new Leases, on \
                                       a runtime that outlives its leases or with the default, Keeper::Thread";

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Box<str>>) -> Self {
        Self { kind, text: text.into(), source: None, votes: None }
    }

    pub(crate) fn config(text: impl Into<Box<str>>) -> Self {
        Self::new(ErrorKind::Config, text)
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, "this Leases was closed: build a new one")
    }

    pub(crate) fn keeper_ended() -> Self {
        Self::new(ErrorKind::Unavailable, KEEPER_ENDED)
    }

    /// What each node of a quorum said, when too few of them granted what was asked.
    #[must_use]
    pub fn votes(&self) -> Option<&Votes> {
        self.votes.as_deref()
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later with nothing changed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::Unknown)
    }

    fn wrap(kind: ErrorKind, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { kind, text: source.to_string().into(), source: Some(Arc::new(source)), votes: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:?})", self.kind, self.text)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Our text is the wrapped error's own: its source is the next link.
        self.source.as_deref().and_then(StdError::source)
    }
}

/// Why an acquire did not end in a lease.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else held the lock for all of the time given to `acquire_within`.
    #[error("waited {} for the lock {name:?}, which is held by {holder}", Rounded(*waited))]
    #[non_exhaustive]
    TimedOut {
        /// The lock's name.
        name: String,
        /// How long we waited.
        waited: Duration,
        /// Who held it at the last look.
        holder: Box<Holder>,
    },
    /// [`Leases::close`](crate::Leases::close) was called.
    #[error("this Leases was closed: build a new one")]
    Closed,
    /// The server could not be reached or gave no answer in time. If there was no connection, nothing was sent. Else
    /// nothing is left there for longer than one TTL after the server is back. Over a quorum [`Error::votes`] says what each
    /// node said.
    #[error(transparent)]
    Unavailable(Error),
    /// It can never work as asked: a bad name or option, a wrong password, a missing right.
    #[error(transparent)]
    Refused(Error),
}

impl AcquireError {
    /// Whether the same call may succeed later with nothing changed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Unavailable(_))
    }
}

/// Why a release is not known to have freed the lock.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The lease had ended before: what the job did after [`Lost::since`] was not protected.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The server did not confirm it in time. It is being retried in the background, and the key expires by itself.
    #[error("the release is not confirmed: {0}. It goes on in the background, and the key expires within its TTL")]
    Unknown(Error),
}

/// Why a renewal asked for by hand is not confirmed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// The lease has ended.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The server did not confirm it. The lease is valid for as long as [`remaining`](crate::Lease::remaining) says,
    /// and the watchdog goes on.
    #[error("the renewal is not confirmed: {0}")]
    Unknown(Error),
}

/// Why [`Lock::run`](crate::Lock::run) has no result of the work.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The lock was not acquired, and the work never started.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lease was lost: the work was stopped, or it ended when the lease was gone already.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// Why a guarded write was not made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// A later holder has written: this job is from the past, and must stop.
    #[error("the fence {fence} is older than {seen}, which {key:?} has seen: a later holder has written, so stop")]
    #[non_exhaustive]
    Stale {
        /// The guarded key.
        key: String,
        /// The fence that came with this write.
        fence: Fence,
        /// The largest fence written so far.
        seen: Fence,
    },
    /// The server could not be asked, or said no.
    #[error(transparent)]
    Failed(Error),
}

/// The runtime that the request needs has ended; the request may have gone out before.
pub(crate) fn keeper_ended() -> Failure {
    Failure::unknown(KEEPER_ENDED)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = if failure.is_refusal() { ErrorKind::Refused } else { ErrorKind::Unavailable };
        Self { votes: failure.votes().cloned(), ..Self::new(kind, failure.to_string()) }
    }
}

impl From<InvalidName> for Error {
    fn from(invalid: InvalidName) -> Self {
        Self::config(invalid.to_string())
    }
}

impl From<AcquireError> for Error {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Unavailable(error) | AcquireError::Refused(error) => error,
            AcquireError::Closed => Self::closed(),
            AcquireError::TimedOut { .. } => Self::wrap(ErrorKind::TimedOut, error),
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::wrap(ErrorKind::Lost, lost)
    }
}

impl From<ReleaseError> for Error {
    fn from(error: ReleaseError) -> Self {
        match error {
            ReleaseError::Lost(lost) => lost.into(),
            ReleaseError::Unknown(_) => Self::wrap(ErrorKind::Unknown, error),
        }
    }
}

impl From<RenewError> for Error {
    fn from(error: RenewError) -> Self {
        match error {
            RenewError::Lost(lost) => lost.into(),
            RenewError::Unknown(_) => Self::wrap(ErrorKind::Unknown, error),
        }
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Acquire(error) => error.into(),
            RunError::Lost(lost) => lost.into(),
        }
    }
}

impl From<GuardError> for Error {
    fn from(error: GuardError) -> Self {
        match error {
            GuardError::Failed(error) => error,
            GuardError::Stale { .. } => Self::wrap(ErrorKind::Stale, error),
        }
    }
}
