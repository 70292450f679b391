//! The errors, and what to do about each.

use std::{
    convert::Infallible, error::Error as StdError, fmt, io, mem::discriminant, panic::AssertUnwindSafe, sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    failure::{Cause, Failure},
    holder::Holder,
    key::InvalidName,
    rounded::Rounded,
    votes::Votes,
};

use crate::lost::Lost;

/// Any error of this crate: every call that can fail returns it, so a program's own error type needs one `#[from]`.
///
/// Its text is a sentence that says what to do. Match on the variants, or use the accessors. Two errors are equal if they
/// are the same variant. The [`source`](std::error::Error::source) is an [`io::Error`] if the system failed a
/// connection, and a server's error reply in the server's words if there was one.
///
/// ```
/// use leasehold::{Client, Error};
///
/// /// The error type of a program: one conversion serves every call.
/// #[derive(Debug)]
/// enum JobError {
///     Lock(Error),
/// }
///
/// impl From<Error> for JobError {
///     fn from(error: Error) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// async fn job(client: &Client) -> Result<(), JobError> {
///     let lease = client.lock("reports:nightly").acquire().await?;
///     lease.check()?;
///     lease.renew().await?;
///     lease.release().await?;
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), JobError> { job(&Client::in_memory()).await }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting or a name is wrong. The text names it, and its bound. Nothing was sent.
    #[error(transparent)]
    Config(Details),
    /// The call is wrong here or now: on a thread that runs a runtime, after a fork, while other leases share the hold.
    /// Nothing was sent.
    #[error(transparent)]
    Misuse(Details),
    /// The deployment cannot do this: no lock is shared or fair over a quorum. Nothing was sent.
    #[error(transparent)]
    Unsupported(Details),
    /// The server could not be reached, or did not answer in time: try again later. Without a connection nothing was
    /// sent. Otherwise nothing stays on the server for longer than one TTL after it is back. Over a quorum
    /// [`Error::votes`] has each node's answer.
    #[error(transparent)]
    Unavailable(Details),
    /// The server refused the request: wrong password, missing right, wrong type. The text has the server's own words.
    #[error(transparent)]
    Refused(Details),
    /// [`Client::close`](crate::Client::close) or [`Client::shutdown`](crate::Client::shutdown) was called.
    #[error("this Client was closed or is shut down: build a new one")]
    Closed,
    /// Another holder had the lock for the whole time given to [`acquire_within`](crate::Lock::acquire_within).
    #[error("waited {} for the lock {name:?}, which is held by {holder}", Rounded(*waited))]
    #[non_exhaustive]
    TimedOut {
        /// The lock's name.
        name: String,
        /// How long we waited.
        waited: Duration,
        /// The holder at the last check.
        holder: Box<Holder>,
    },
    /// The lease has ended: what the job did after [`Lost::since`] was not protected. (Or it was made from what
    /// [`lost`](crate::Lease::lost) completed with.)
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The server did not confirm a [renewal](crate::Lease::renew) in time. The lease is valid for as long as
    /// [`remaining`](crate::Lease::remaining) says, and the keeper continues to renew it. (An unconfirmed release is
    /// not an error: [`Released::Unconfirmed`](crate::Released::Unconfirmed).)
    #[error(transparent)]
    Unconfirmed(Details),
}

/// The cause of an error, in the words of the server, the system or this library, and the answers of a quorum's nodes.
#[derive(Clone)]
pub struct Details(Arc<Explanation>);

struct Explanation {
    text: Box<str>,
    votes: Option<Arc<Votes>>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

/// The words of a server, or the error of the operating system.
enum Source {
    /// Of a number alone, so it has nothing inside that a panic could leave half changed.
    System(AssertUnwindSafe<io::Error>),
    Said(Said),
}

/// An error reply, or words of the resolver, of TLS or of the protocol.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
struct Said {
    words: Box<str>,
    is_reply: bool,
}

/// By the variant.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        discriminant(self) == discriminant(other)
    }
}

impl Eq for Error {}

/// By the text.
impl PartialEq for Details {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Details {}

impl StdError for Details {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(match self.0.source.as_ref()? {
            Source::System(error) => &error.0,
            Source::Said(said) => said,
        })
    }
}

/// The text of an error after a fork.
pub(crate) const FORKED: &str =
    "this process was forked after a Client was made, and has no keeper: fork before the first Client, or exec";

/// The text of an error after the keeper has failed.
const FAILED: &str = "the keeper has failed after a panic on its thread: make a new Client";

/// Whether an error says that the keeper has ended. No later call succeeds then.
fn names_the_keepers_end(text: &str) -> bool {
    text.contains(FORKED) || text.contains(FAILED)
}

/// For [`Builder::quorum`](crate::Builder::quorum), which takes servers as well as urls.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Error {
    pub(crate) fn config(text: impl Into<Box<str>>) -> Self {
        Self::Config(Details::new(text))
    }

    /// An [`Error::Config`] with this text, if a setting is wrong.
    pub(crate) fn config_if(is_wrong: bool, text: &str) -> Result<(), Self> {
        if is_wrong { Err(Self::config(text)) } else { Ok(()) }
    }

    pub(crate) fn misuse(text: impl Into<Box<str>>) -> Self {
        Self::Misuse(Details::new(text))
    }

    pub(crate) fn unsupported(text: impl Into<Box<str>>) -> Self {
        Self::Unsupported(Details::new(text))
    }

    pub(crate) fn unavailable(text: impl Into<Box<str>>) -> Self {
        Self::Unavailable(Details::new(text))
    }

    /// The end of a wait in which no server has answered.
    pub(crate) fn unanswered() -> Self {
        Self::unavailable("the wait ended before the server had answered")
    }

    /// The error for the failure of a server, or of the nodes of a quorum.
    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn of(failure: Failure) -> Self {
        let details = Details::of(failure.to_string(), &failure);
        if failure.is_refusal() { Self::Refused(details) } else { Self::Unavailable(details) }
    }

    #[allow(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(crate) fn of_name(invalid: InvalidName) -> Self {
        Self::config(invalid.to_string())
    }

    pub(crate) fn keeper_ended() -> Self {
        Self::unavailable(FORKED)
    }

    pub(crate) fn keeper_failed() -> Self {
        Self::unavailable(FAILED)
    }

    pub(crate) fn unconfirmed_renewal(failure: &Failure) -> Self {
        Self::Unconfirmed(Details::of(format!("the renewal is not confirmed: {failure}"), failure))
    }

    /// Whether the same call may succeed later with nothing changed. [`Lost`](Self::Lost) is not transient: that lease
    /// has ended, and a new one must be acquired.
    ///
    /// Retry the acquire, not the work. A transient error of an acquire means that no work was done. If your work calls
    /// the library too, such as [`renew`](crate::Lease::renew), its transient errors come from the middle of the work.
    /// See [the guide](crate::docs::guide#work-that-can-fail).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // The keeper's runtime does not come back. Over a quorum each node's answer says so.
            Self::Unavailable(details) | Self::Unconfirmed(details) => !names_the_keepers_end(&details.0.text),
            Self::TimedOut { .. } => true,
            _ => false,
        }
    }

    /// Whether a setting or the call itself is wrong, or the deployment cannot do it: the same call fails again, whatever
    /// the servers do.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Misuse(_) | Self::Unsupported(_))
    }

    /// How long to wait before trying again, if that is known.
    ///
    /// - After [`TimedOut`](Self::TimedOut) it is the holder's [`remaining`](crate::Holder::remaining): how long its
    ///   key lives **if the holder has died**. A living holder renews the key, and may release it at any moment: for a
    ///   job of three seconds with the default TTL it is nearly 30 s. So it is not a bound for a busy lock. For a
    ///   `Retry-After` use at most the duration of your jobs, such as five seconds.
    /// - Otherwise it is the time until enough servers have been up for the
    ///   [`restart_delay`](crate::Builder::restart_delay).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TimedOut { holder, .. } => holder.remaining(),
            _ => self.details()?.0.retry_after,
        }
    }

    /// The answer of each node of a quorum, if too few of them granted the request.
    ///
    /// ```
    /// # fn tell(error: &leasehold::Error) {
    /// for vote in error.votes().iter().flat_map(|votes| votes.nodes()) {
    ///     eprintln!("{} {}", vote.address(), vote.answer());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn votes(&self) -> Option<&Votes> {
        self.details()?.votes()
    }

    /// The end of the lease, if the error is [`Lost`](Self::Lost).
    #[must_use]
    pub fn lost(&self) -> Option<&Lost> {
        match self {
            Self::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    /// The holder of the lock at the end of the wait, if the error is [`TimedOut`](Self::TimedOut).
    #[must_use]
    pub fn timed_out(&self) -> Option<&Holder> {
        match self {
            Self::TimedOut { holder, .. } => Some(holder),
            _ => None,
        }
    }

    /// The first word of the server's error reply, if that is the cause: `NOAUTH`, `READONLY`, `OOM`.
    #[must_use]
    pub fn server_code(&self) -> Option<&str> {
        self.details()?.server_code()
    }

    fn details(&self) -> Option<&Details> {
        match self {
            Self::Config(details)
            | Self::Misuse(details)
            | Self::Unsupported(details)
            | Self::Unavailable(details)
            | Self::Refused(details)
            | Self::Unconfirmed(details) => Some(details),
            Self::Closed | Self::TimedOut { .. } | Self::Lost(_) => None,
        }
    }
}

impl Details {
    pub(crate) fn new(text: impl Into<Box<str>>) -> Self {
        Self(Arc::new(Explanation { text: text.into(), votes: None, retry_after: None, source: None }))
    }

    pub(crate) fn of_release(failure: &Failure, is_kept: bool) -> Self {
        let why = failure.to_string();
        // A runtime that has ended does nothing more.
        let goes_on = if names_the_keepers_end(&why) { "The" } else { "It goes on while this process runs, and the" };
        let kept = if is_kept { ", or after the time for which it is kept" } else { "" };
        let text = format!("the release is not confirmed: {why}. {goes_on} key expires within its TTL{kept}");
        Self::of(text, failure)
    }

    fn of(text: String, failure: &Failure) -> Self {
        let (votes, retry_after) = (failure.votes().cloned(), failure.retry_after());
        let source = failure.cause().map(|cause| match cause {
            Cause::System(number) => Source::System(AssertUnwindSafe(io::Error::from_raw_os_error(*number))),
            Cause::Server(words) => Source::Said(Said { words: words.clone(), is_reply: true }),
            Cause::Words(words) => Source::Said(Said { words: words.clone(), is_reply: false }),
        });
        Self(Arc::new(Explanation { text: text.into(), votes, retry_after, source }))
    }

    /// The first word of the server's error reply, if that is the cause.
    #[must_use]
    pub fn server_code(&self) -> Option<&str> {
        match self.0.source.as_ref()? {
            Source::Said(Said { words, is_reply: true }) => words.split(' ').next(),
            _ => None,
        }
    }

    /// The answer of each node of a quorum, if too few of them granted the request.
    #[must_use]
    pub fn votes(&self) -> Option<&Votes> {
        self.0.votes.as_deref()
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.text, f)
    }
}

/// The failure of a request whose runtime has ended; the request may have been sent before.
pub(crate) fn keeper_ended() -> Failure {
    Failure::unknown(FORKED)
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::votes::NodeAnswer;

    use super::*;

    #[test]
    fn no_time_brings_a_runtime_back() {
        let kinds = |failure: &Failure| {
            let nodes = ["one", "two"].map(|node| (node.to_owned(), NodeAnswer::Unreachable(failure.to_string())));
            let of_nodes = Error::of(Failure::of_nodes(nodes));
            [Error::of(failure.clone()), Error::unconfirmed_renewal(failure), of_nodes]
        };
        assert!(!Error::keeper_ended().is_transient());
        assert!(!Error::keeper_failed().is_transient());
        assert!(kinds(&keeper_ended()).iter().all(|error| !error.is_transient()));
        assert!(kinds(&Failure::unknown("no answer")).iter().all(Error::is_transient));
    }
}
