//! The end of a lease, or the request to stop before it.

use std::{
    error::Error as StdError,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use leasehold_protocol::{
    fence::Fence,
    forced::ForcedRelease,
    loss::{Loss, LossReason},
    rounded::Rounded,
};

/// The end of a lease, or the request to stop before it: which lease, why, and since when. [`lost`](crate::Lease::lost)
/// completes with it.
///
/// ```
/// # use leasehold::{Client, LossReason};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = Client::in_memory();
/// let lock = client.lock("reports:nightly");
/// let lease = lock.acquire().await?;
/// lock.force_release().await?; // an operator takes it away
/// let lost = lease.lost().await;
/// assert_eq!((lost.name(), lost.reason()), ("reports:nightly", LossReason::Forced));
/// println!("{lost}"); // a sentence for the log
/// # Ok(()) }
/// ```
///
/// Cheap to clone. As an error its text is a whole sentence for a log.
#[derive(Clone)]
pub struct Lost(Arc<LostFacts>);

struct LostFacts {
    name: Box<str>,
    fence: Fence,
    loss: Loss,
    since: SystemTime,
    held_for: Duration,
}

impl Lost {
    pub(crate) fn new(name: &str, fence: Fence, loss: Loss, since: SystemTime, held_for: Duration) -> Self {
        Self(Arc::new(LostFacts { name: name.into(), fence, loss, since, held_for }))
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

    /// Why the lease ended, or is to end.
    #[must_use]
    pub fn reason(&self) -> LossReason {
        self.0.loss.reason
    }

    /// The forced release after [`LossReason::Forced`]: who took the lock away, and why.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = Client::in_memory();
    /// let lock = client.lock("reports:nightly");
    /// let lease = lock.acquire().await?;
    /// client.lock("reports:nightly").label("ops").force_release_because("stuck since noon").await?;
    /// let lost = lease.lost().await;
    /// let forced = lost.forced().expect("it was taken by force");
    /// assert_eq!((forced.label(), forced.reason()), ("ops", Some("stuck since noon")));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn forced(&self) -> Option<&ForcedRelease> {
        self.0.loss.forced.as_deref()
    }

    /// Whether the lease has ended. Otherwise its holder is only asked to stop, and still has the lock: see
    /// [`LossReason::is_over`].
    ///
    /// ```
    /// # use leasehold::{Error, LeaseHandle};
    /// # async fn finish() -> Result<(), Error> { Ok(()) }
    /// async fn stop(lease: LeaseHandle) -> Result<(), Error> {
    ///     let lost = lease.lost().await;
    ///     if lost.is_over() { Err(lost.into()) } else { finish().await }
    /// }
    /// # let _ = stop;
    /// ```
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.reason().is_over()
    }

    /// When the lease ceased to be valid: for [`LossReason::Expired`] the deadline that passed, not the moment it was
    /// noticed. For a reason that asks the work to stop first (`Closing`, `Expiring`), when it was asked. By the wall clock,
    /// for logs.
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
        let LostFacts { name, fence, loss: Loss { reason, forced }, held_for, .. } = &*self.0;
        let what = if reason.is_over() { "ended" } else { "is to end" };
        let held_for = Rounded(*held_for);
        write!(f, "the lease on {name:?} (fence {fence}) {what} {held_for} after it was acquired: {reason}")?;
        if let Some(by) = forced {
            write!(f, ", by {:?}", by.label())?;
            if let Some(why) = by.reason() {
                write!(f, " ({why:?})")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("name", &self.name())
            .field("fence", &self.fence())
            .field("reason", &self.reason())
            .field("forced", &self.forced())
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

/// Serializes `name`, `fence`, `reason` (a word such as `no_quorum`), `since_unix_seconds` and `held_for_seconds`; also
/// `forced_by` and `forced_because` if the lock was taken by force.
#[cfg(feature = "serde")]
impl serde::Serialize for Lost {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let since = self.since().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let fields = if self.forced().is_some() { 7 } else { 5 };
        let mut lost = serializer.serialize_struct("Lost", fields)?;
        lost.serialize_field("name", self.name())?;
        lost.serialize_field("fence", &self.fence())?;
        lost.serialize_field("reason", &self.reason())?;
        lost.serialize_field("since_unix_seconds", &since.as_secs_f64())?;
        lost.serialize_field("held_for_seconds", &self.held_for().as_secs_f64())?;
        if let Some(by) = self.forced() {
            lost.serialize_field("forced_by", by.label())?;
            lost.serialize_field("forced_because", &by.reason())?;
        }
        lost.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_why_and_when() {
        let fence = Fence::try_from(7_u64).unwrap();
        let lost =
            Lost::new("job", fence, LossReason::Expired.into(), SystemTime::UNIX_EPOCH, Duration::from_millis(12_345));
        assert_eq!(
            lost.to_string(),
            "the lease on \"job\" (fence 7) ended 12.3 s after it was acquired: no renewal was confirmed before its \
             deadline"
        );
        let asked = Lost::new("job", fence, LossReason::Closing.into(), SystemTime::UNIX_EPOCH, Duration::from_secs(2));
        assert!(asked.to_string().starts_with("the lease on \"job\" (fence 7) is to end 2 s after"), "{asked}");
        for (why, says) in [(None, "force, by \"ops\""), (Some("it is stuck"), "force, by \"ops\" (\"it is stuck\")")] {
            let forced = forced(fence, why);
            assert!(forced.to_string().ends_with(says), "{forced}");
        }
    }

    fn forced(fence: Fence, why: Option<&str>) -> Lost {
        let loss =
            Loss { reason: LossReason::Forced, forced: Some(Arc::new(leasehold_protocol::forced::by("ops", why))) };
        Lost::new("job", fence, loss, SystemTime::UNIX_EPOCH, Duration::from_secs(2))
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_writes_what_why_and_when() {
        let (fence, since) = (Fence::try_from(7_u64).unwrap(), SystemTime::UNIX_EPOCH + Duration::from_millis(2_500));
        let lost = Lost::new("job", fence, LossReason::NoQuorum.into(), since, Duration::from_millis(12_250));
        let expected =
            r#"{"name":"job","fence":7,"reason":"no_quorum","since_unix_seconds":2.5,"held_for_seconds":12.25}"#;
        assert_eq!(serde_json::to_string(&lost).unwrap(), expected);
        for (status, expected) in [
            (crate::Status::Held, r#""held""#),
            (crate::Status::AtRisk, r#""at_risk""#),
            (crate::Status::Released, r#""released""#),
            (crate::Status::Lost(lost), &format!(r#"{{"lost":{expected}}}"#)),
        ] {
            assert_eq!(serde_json::to_string(&status).unwrap(), expected);
        }
        let forced = serde_json::to_value(forced(fence, None)).unwrap();
        assert_eq!((&forced["forced_by"], &forced["forced_because"]), (&"ops".into(), &serde_json::Value::Null));
    }
}
