//! The options of a lock.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::holder::Holder;

use super::Lock;
use crate::owner::Owner;

impl Lock {
    /// How long the key lives without a renewal, 100 ms to a day; the builder's, 30 s, unless set here.
    ///
    /// It is how long the others wait after this process has died, and how long an outage may last before a lease is
    /// lost. It does not bound the job: the keeper renews. Where there is a
    /// [`restart_delay`](crate::Builder::restart_delay) it must be at least a second less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.scope.options.ttl = ttl;
        self
    }

    /// The longest that a lease is renewed for, counted from its acquire; at least the TTL. After that the lease ends
    /// with [`MaxHold`](crate::LossReason::MaxHold), and its holder has the rest of the TTL to stop. `None`, the
    /// default, is no bound.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.scope.options.max_hold = max_hold.into();
        self
    }

    /// Lets the same [`Owner`] in again while it holds the lock: another [`Lease`](crate::Lease) on the same acquisition,
    /// with the same fence and TTL. The key goes with the last of them.
    ///
    /// Both acquires must ask for it. It is not the default because an owner is a *task*. These would be let in
    /// together:
    ///
    /// - all branches of `join!`, `select!` and `buffer_unordered`
    /// - all workers of a dispatcher that acquires leases and hands them out
    /// - all requests of one HTTP/1.1 connection
    ///
    /// Where that may be, [share](crate::LeaseHandle::share) the lease itself, or give each an [`Owner`] of its own.
    ///
    /// Without it an acquire waits for any holder. It even waits for its own task, and a `wait` event warns of that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let ledger = leases.lock("ledger").reentrant(true);
    /// let outer = ledger.acquire().await?;
    /// let inner = ledger.acquire().await?; // the same task: another lease on the same acquisition
    /// assert_eq!((outer.fence(), inner.hold_count()), (inner.fence(), 2));
    /// # Ok(()) }
    /// ```
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// Acquires the lock first come, first served, across processes. The builder's setting, off, unless set here.
    ///
    /// The acquire takes a place in a queue on the server. A release passes the lock to the first of the queue at that
    /// very moment.
    ///
    /// - A waiter whose process has died, that gave up or whose time is over costs the others nothing. A stopped
    ///   process costs them one [grant](crate::Builder::grant_timeout), however many of its waiters there are. So does
    ///   a process whose machine or network died, and one that is killed where the server cannot notify it, as `leasehold
    ///   doctor` tells. So does a waiter that gave up and could not tell the server for ten minutes.
    /// - [`try_acquire`](Self::try_acquire) does not overtake the queue either.
    /// - Others, and other libraries, stay excluded while the lock is held or granted, and every release by this
    ///   library passes it on to the queue. But a lock that becomes *free* goes to the first to ask, fair or not. It
    ///   becomes free when its holder died and the key expired, after [`MaxHold`](crate::LossReason::MaxHold) or
    ///   [`release_keeping`](crate::Lease::release_keeping), or when somebody deleted the key.
    /// - After the server has lost the queue, the waiters take their places again with their old tickets, one by one.
    ///   So they do when a stopped process goes on. A later one may come first.
    /// - While a server is too young for the [`restart_delay`](crate::Builder::restart_delay), waiters only queue: a
    ///   lock that is released then is free until the delay is over.
    /// - It works on one server; over a quorum the acquire ends with [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn fair(mut self, fair: bool) -> Self {
        self.scope.options.fair = fair;
        self
    }

    /// For how long the server keeps the floor of this name's fences after an acquire, zero to 24 hours; the builder's,
    /// 24 hours, unless set here. See [`Builder::fence_memory`](crate::Builder::fence_memory) for what a shorter one
    /// gives up. The last acquire decides: give a name the same one everywhere.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.scope.options.fence_memory = memory;
        self
    }

    /// Keeps the key for at least this long after the acquire, whenever its lease is released or dropped.
    ///
    /// For finished work that is not to be done again too soon, such as a report that every machine of a fleet would write
    /// once an hour. After a crash it is done again at once: where it must not even begin again, use
    /// [`once_per`](Self::once_per). At most 24 hours, and over a quorum at most the
    /// [`restart_delay`](crate::Builder::restart_delay). Zero, the default, keeps nothing.
    ///
    /// Meanwhile others see `label (released)` as the holder. A process that dies leaves the key for its TTL only, and
    /// a lease that is lost leaves nothing: then the work has not been done. A release that reaches the server after
    /// the key has expired leaves nothing either. Work that fails keeps the key as well. To keep it after success only,
    /// take a lease and end it with [`release_keeping`](crate::Lease::release_keeping) or
    /// [`release`](crate::Lease::release).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let hourly = leases.lock("reports:hourly").keep_for(Duration::from_secs(59 * 60));
    /// # async fn job(_: leasehold::LeaseHandle) -> Result<&'static str, leasehold::Error> { Ok("done") }
    /// assert_eq!(hourly.try_run(job).await?, Some("done"));
    /// assert_eq!(hourly.try_run(job).await?, None); // not within the hour
    /// # Ok(()) }
    /// ```
    pub fn keep_for(mut self, keep: Duration) -> Self {
        self.keep_for = keep;
        self
    }

    /// The lock can be acquired at most once in this interval, whatever becomes of the holder: released, dropped, lost
    /// or dead.
    ///
    /// For work that must not *begin* again too soon, even after a crash, such as a mail to everybody once an hour. The
    /// interval counts from the sending of the acquire, by the server's clock, and from 1 ms to 24 hours. Where there is
    /// a [`restart_delay`](crate::Builder::restart_delay) it must be at least a second less: a server that was restarted
    /// has forgotten the key. Not set, nothing is bound.
    ///
    /// [`keep_for`](Self::keep_for) is the other promise: it counts once the work is done, and a crash leaves nothing
    /// of it, for the work was not done. With both, the key stays for the longer of the two. The
    /// [cookbook](crate::docs::cookbook) says which one you need.
    ///
    /// The key then lives for what is left of the interval, and at least for the TTL; the lease's deadline stays what it
    /// is. With [N permits](crate::Leases::semaphore) N can be acquired in so long. A release or a drop leaves the key until
    /// the interval is over, and others see `label (released)`. Waiters,
    /// [fair](Self::fair) ones too, are served after that. A [re-entrant](Self::reentrant) acquire is no other one.
    /// [`force_release`](Self::force_release) frees the lock at once. A release that reaches the server late keeps the key for
    /// so much longer. An acquire that is given up is undone, and does not
    /// count; one that the server executes only after that, when it is back from an outage, counts if nobody is left to
    /// undo it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let hourly = leases.lock("newsletter").once_per(Duration::from_secs(59 * 60));
    /// drop(hourly.acquire().await?); // it crashed, say
    /// assert!(hourly.try_acquire().await?.is_none()); // not within the hour
    /// # Ok(()) }
    /// ```
    pub fn once_per(mut self, interval: Duration) -> Self {
        self.once_per = Some(interval);
        self
    }

    /// How much longer the key outlives a holder that dies or is lost: time for what that one still has under way. The
    /// builder's, none, unless set here; at most an hour. Where there is a
    /// [`restart_delay`](crate::Builder::restart_delay), the TTL and the delay together must be at least a second less.
    ///
    /// A lease that is lost has ended all the same, at its deadline. But its key stays for so much longer, so nobody
    /// else has the lock while a stopped process wakes, or a write that was sent before arrives. So it is at the end of
    /// a [`max_hold`](Self::max_hold). A release and a drop free the lock at once, and so do
    /// [`close`](crate::Leases::close) and [`force_release`](Self::force_release).
    ///
    /// It only makes a second holder rarer: a process may be stopped for longer, and a [`fence`](crate::Lease::fence)
    /// never errs.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.scope.options.lock_delay = delay;
        self
    }

    /// Gives work under the lock this much time to tidy up before a loss: [`run`](Self::run),
    /// [`run_within`](Self::run_within), [`try_run`](Self::try_run) and [`Lease::run`](crate::Lease::run) then ask it to
    /// stop first. At most half of the TTL. Zero, the default, drops the work when the lease is lost.
    ///
    /// If no renewal gets through, the work is asked to stop this long before the deadline, and is still protected. If
    /// the server says that the key is gone, the work is asked at once, and is not protected. It hears of that from
    /// [`lost`](crate::LeaseHandle::lost) and [`cancellation_token`](crate::LeaseHandle::cancellation_token) of its
    /// handle. In the first case `lost` completes with [`Expiring`](crate::LossReason::Expiring), in the second with the reason of the
    /// loss.
    ///
    /// From then on the work is polled for the grace, and longer if the lease holds after all; then it is dropped. If
    /// less than the grace is left when the work begins, or after a pause of the process, only that much of it is
    /// protected: [`check`](crate::LeaseHandle::check) tells. Work that ends while the lease holds gives its own result,
    /// though it was asked to stop. A lease that is [shared](crate::LeaseHandle::share) has no grace.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn copy_everything() -> Result<(), leasehold::Error> { Ok(()) }
    /// # async fn delete_the_half_of_it() {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lock = leases.lock("backup").grace(Duration::from_secs(5));
    /// lock.run(|lease| async move {
    ///     tokio::select! {
    ///         biased;
    ///         lost = lease.lost() => {
    ///             delete_the_half_of_it().await;
    ///             Err(lost.into())
    ///         }
    ///         outcome = copy_everything() => outcome,
    ///     }
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How others see this holder, 1 to 128 bytes without control characters; that of the
    /// [`Leases`](crate::Leases::label) unless set here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lease = leases.lock("scheduler").label("10.0.0.7:8080").acquire().await?;
    /// assert_eq!(leases.lock("scheduler").holder().await?.expect("it is held").label(), Some("10.0.0.7:8080"));
    /// # lease.release().await?; Ok(()) }
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.scope = self.scope.label(label.into());
        self
    }

    /// The owner of the acquires; [`Owner::task`] unless set.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Calls `tell` when an acquire finds the lock held, whether the call waits or not: `try_acquire` and `try_run`
    /// call it too. An acquire that waits calls it at first, and again when the lock has changed hands.
    /// [`Holder::not_a_lock`] tells a key that is no lock, which nobody will release.
    ///
    /// It runs inside the acquire, in the caller's own task, so it should be quick. While it blocks, this acquire
    /// stands still. Those behind it in this process go on without it after at most two seconds and two command
    /// time-outs. A panic in it unwinds through the acquire, which is undone as if it had been dropped. Nobody else
    /// notices the panic.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lock = leases.lock("reports:nightly").on_wait(|holder| eprintln!("waiting for {holder}"));
    /// lock.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn on_wait(mut self, tell: impl Fn(&Holder) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Counts this lock in a group of this name: its series have the label `lock="name"`. The builder's, none, unless
    /// set here; an empty name is none.
    ///
    /// Name kinds of jobs, and not each of a thousand locks: every group has some eighty series in every process. A
    /// process has at most 100 groups, and counts further ones as `other`. See the page
    /// [`metrics`](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, name: impl AsRef<str>) -> Self {
        self.scope.options.metrics_group = crate::metrics::Group::named(name.as_ref());
        self
    }
}
