//! Downgrade: from writing to reading, without another writer in between.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{acquisition::Undo, message::Route, tally::Nodes, time::Time};
use tracing::Instrument as _;

use crate::{
    acquire::{Acquire, AcquireSpec, Patience},
    engine::Engine,
    error::Error,
    foreign::relayed,
    held::{Heir, Hold},
    lease::Lease,
    options::{Access, Names},
    owner::Owner,
};

impl Lease {
    /// Turns this lease into a share of the lock, for a writer that has to read on: no one holds it alone in between.
    /// One atomic step replaces this lease with a share, with a larger [fence](Self::fence), and admits the waiters
    /// that want to share. A lease that is already shared is returned as it is.
    ///
    /// This lease ends when the call begins: [`lost`](Self::lost) of its handles completes with
    /// [`HandedOver`](crate::LossReason::HandedOver), and the returned lease has handles of its own. It has the TTL,
    /// the label and all other options of this one. A [`max_hold`](crate::Lock::max_hold) still counts from the
    /// original acquire.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let index = client.rw_lock("search:index");
    /// let writing = index.write().acquire().await?;
    /// let reading = writing.downgrade().await?;
    /// let other = index.read().acquire().await?; // beside it
    /// assert_eq!(reading.fence(), other.fence());
    /// # other.release().await?; reading.release().await?; Ok(()) }
    /// ```
    ///
    /// An attempt without an answer is repeated for as long as this lease would have lasted.
    ///
    /// # Errors
    ///
    /// The lock is released then.
    ///
    /// - [`Error::Lost`]: the lease had already ended, or its key is gone or taken.
    /// - [`Error::Misuse`]: [other leases](crate::LeaseHandle::share) share its hold, and only this lease is dropped.
    /// - [`Error::Unsupported`]: it is held over a quorum, which has no shares.
    /// - [`Error::Closed`]: a [shutdown](crate::Client::shutdown) or a close has begun.
    /// - [`Error::Unavailable`]: no answer in all that time, or the server had not been up for the
    ///   [`restart_delay`](crate::Builder::restart_delay).
    /// - [`Error::Refused`]: the server refused the request. A lack of memory does not cause that.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background, as after an error.
    pub async fn downgrade(self) -> Result<Self, Error> {
        if self.mode().is_shared() {
            return Ok(self);
        }
        let view = self.as_handle();
        let (engine, hold, now) = (view.engine.clone(), view.hold.clone(), view.engine.now());
        engine.check_process()?;
        let wanted = to_share(&engine, &hold, self.grace(), now)?;
        let left = self.remaining();
        let (handed_over, reaction) = hold.hand_over(now, &view.signal(), Heir::Itself);
        engine.watchdog.execute(&hold, reaction);
        handed_over?;
        let span = hold.end_span();
        let name = tracing::debug_span!(target: "leasehold", "downgrade", lock = self.name());
        let mut left_behind = LeftBehind { engine: &engine, hold: &hold, is_there: true };
        let mut acquire = Acquire::new(engine.clone(), wanted, Patience::Within(left));
        let sharing = acquire.downgrade(&hold, self.owner_slot()).instrument(name);
        let lease = relayed!(sharing)?;
        left_behind.is_there = false;
        if let Some(span) = span {
            span.ends("downgraded");
        }
        Ok(lease)
    }
}

/// A share with all options of this hold.
fn to_share(engine: &Engine, hold: &Hold, grace: Duration, now: Time) -> Result<AcquireSpec, Error> {
    let options = hold.options(now, Access::Read);
    options.check_access(!engine.quorum.is_one())?;
    let (prefix, label) = (engine.options.prefix.clone(), hold.claim.token.label().into());
    Ok(AcquireSpec {
        key: hold.claim.key.clone(),
        names: Some(Arc::new(Names { prefix, label })),
        options,
        // The downgrade takes it from the hold.
        owner: Owner::anonymous(),
        reentrant: false,
        keep_for: hold.kept_for(now),
        once_per: Some(hold.interval_left(now)),
        grace,
        on_wait: None,
        is_on_trial: false,
    })
}

/// A hold that has ended, and that no share has replaced: it is released when this is dropped.
struct LeftBehind<'a> {
    engine: &'a Arc<Engine>,
    hold: &'a Arc<Hold>,
    is_there: bool,
}

impl Drop for LeftBehind<'_> {
    fn drop(&mut self) {
        let Self { engine, hold, is_there } = self;
        if !*is_there {
            return;
        }
        let now = engine.now();
        let (nodes, mode) = (Nodes::all(engine.quorum.len()), hold.release_mode(now, Duration::ZERO));
        let order = Undo { nodes, route: Route::Keeper, mode, is_attempt: false };
        engine.watchdog.undo(&order, &hold.claim_at(now));
    }
}
