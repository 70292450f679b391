//! Hand-over: a lease continues in another process, and the lock is never free in between (rule 13).

use std::future::Future;

use leasehold_protocol::ticket::{self, ParseTicketError, Ticket};
use tracing::Instrument as _;

use crate::{
    acquire::{Acquire, Patience},
    error::Error,
    foreign::relayed,
    held::Heir,
    lease::{Lease, LeaseHandle},
    lock::Lock,
    metrics::Acquiring,
};

impl Lease {
    /// Ends the lease here, and returns the ticket with which another process [adopts](Lock::adopt) the lock. Its key
    /// stays, so no one else gets the lock in between.
    ///
    /// Nothing is sent or awaited, so it works right before an `exec` too. This lease ends before the ticket exists:
    /// [`check`](Self::check) of every handle is an error from then on, and [`lost`](Self::lost) completes with
    /// [`HandedOver`](crate::LossReason::HandedOver). So at most one process believes that it holds the lock at any
    /// time.
    ///
    /// The key is not renewed until the ticket is adopted. If that takes longer than [`remaining`](Self::remaining)
    /// returned before the call, the lock becomes free. Call [`renew`](Self::renew) first to have the whole TTL.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("scheduler");
    /// let lease = lock.acquire().await?;
    /// lease.renew().await?; // a full TTL for the successor
    /// let (fence, ticket) = (lease.fence(), lease.into_ticket()?.expose());
    /// // The successor has it from its environment, or from a pipe:
    /// let lease = lock.adopt(ticket.parse()?).await?;
    /// assert!(lease.fence() > fence);
    /// # lease.release().await?; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The lease is dropped then, as at the end of its scope.
    ///
    /// - [`Error::Lost`]: the lease had already ended.
    /// - [`Error::Misuse`]: [other leases](crate::LeaseHandle::share) share its hold; it has a
    ///   [`keep_for`](Lock::keep_for), which belongs to its release; or the lock is held shared.
    pub fn into_ticket(self) -> Result<Ticket, Error> {
        let view = self.as_handle();
        let LeaseHandle { engine, hold, .. } = view;
        engine.check_process()?;
        let (handed_over, reaction) = hold.hand_over(engine.now(), &view.signal(), Heir::Another);
        engine.watchdog.execute(hold, reaction);
        handed_over?;
        let (lock, label, fence) = (self.name(), self.label(), u64::from(self.fence()));
        if let Some(span) = hold.end_span() {
            span.ends("handed_over");
        }
        tracing::debug!(name: "handed_over", target: "leasehold", lock, label, fence, "handed over");
        Ok(self.ticket())
    }

    /// A ticket for the process that takes over when this one has died. The lease stays ours until the ticket is
    /// [adopted](Lock::adopt).
    ///
    /// Then two believe that they hold the lock until this lease learns of the adoption, by its deadline at the latest.
    /// (It may be later if a server [comes back with older data](crate::docs::deployments#persistence).) It is notified
    /// within milliseconds once it is 250 ms old, if the server sends notifications; otherwise its next renewal finds
    /// out. The heir's larger [`fence`](Self::fence) tells them apart. So adopt the ticket only when the process that made it is
    /// known to be dead, and use [`into_ticket`](Self::into_ticket) for everything else.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        let LeaseHandle { engine, hold, .. } = self.as_handle();
        let (claim, rest) = (&hold.claim, hold.interval_left(engine.now()));
        ticket::of(claim.key.lock(), &claim.token, hold.fence, rest)
    }
}

impl Lock {
    /// Takes over the lock from the lease that the ticket was made from. One atomic step replaces that lease's token
    /// with a new one, with a larger fence ([rule 13](crate::docs::safety#rule-13)). It waits for no holder, and
    /// overtakes no waiter in a queue.
    ///
    /// A [shared](crate::RwLock) lock takes over from a lease that holds the lock alone, as in a
    /// [downgrade](Lease::downgrade). A ticket of a share cannot be adopted.
    ///
    /// The new lease has the options of this lock: its TTL, its label, its [`lock_delay`](Self::lock_delay). Only the
    /// interval of a [`once_per`](Self::once_per) comes with the ticket, since an adoption is not a new acquire. What
    /// was left of it when the ticket was made counts from the adoption, so a slow hand-over lengthens it.
    ///
    /// An attempt without an answer is repeated until an outage has lasted for a TTL, at most 64 times. Over a quorum a
    /// majority of the nodes must still have the key; the others get it back later.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] with [`Deleted`](crate::LossReason::Deleted): the lock is no longer held, because it was
    ///   released or has expired. With [`Taken`](crate::LossReason::Taken): another holder has it, which adopted the
    ///   ticket before or acquired the lock since.
    /// - [`Error::Misuse`]: a ticket of another lock. [`Error::Config`]: a bad name or option.
    /// - [`Error::Unavailable`]: no answer in all that time. The ticket may still be good.
    /// - [`Error::Refused`], [`Error::Closed`] as [`acquire`](Self::acquire).
    ///
    /// Give a ticket to one heir only. If two adopt it, one gets the lock, with one exception. Over a quorum, while a
    /// node is unreachable or lacks the key, each may get half of the other nodes. Then both fail, with `Lost` or
    /// `Unavailable`, and the lock becomes free.
    ///
    /// A server that was started less than the [`restart_delay`](crate::Builder::restart_delay) ago hands nothing over.
    /// The call then waits, for as long as the heir's TTL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future undoes an adoption that may have happened, in the background: then the lock is free, once the
    /// interval of a [`once_per`](Self::once_per) is over.
    pub fn adopt(&self, ticket: Ticket) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.clone().adopt_of(ticket)
    }

    async fn adopt_of(mut self, ticket: Ticket) -> Result<Lease, Error> {
        let span = tracing::debug_span!(target: "leasehold", "adopt", lock = self.name());
        let (engine, began) = (self.scope.engine.clone(), self.scope.engine.now());
        let acquiring = Acquiring::begins(self.scope.options.metrics_group, self.mode());
        self.once_per = Some(ticket.rest()).filter(|rest| !rest.is_zero());
        let ttl = self.scope.options.ttl;
        let outcome = match self.wanted() {
            Ok(wanted) if wanted.key.lock() != ticket.name() => Err(Error::misuse(format!(
                "a ticket of the lock {:?} cannot be adopted as {:?}",
                ticket.name(),
                wanted.key.lock(),
            ))),
            Ok(wanted) => {
                let mut acquire = Acquire::new(engine.clone(), wanted, Patience::Within(ttl));
                relayed!(acquire.adopt(&ticket).instrument(span))
            }
            Err(refused) => Err(refused),
        };
        acquiring.ended(&outcome, false, engine.now().since(began));
        outcome
    }
}

/// For `adopt(text.parse()?)`.
impl From<ParseTicketError> for Error {
    fn from(error: ParseTicketError) -> Self {
        Self::config(error.to_string())
    }
}
