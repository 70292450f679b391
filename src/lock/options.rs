//! The options of a lock.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::holder::Holder;

use super::Lock;
use crate::owner::Owner;

impl Lock {
    /// How long the key lives without a renewal, 100 ms to a day. Default: the builder's, 30 s.
    ///
    /// It is how long others wait after this process has died, and how long an outage may last before a lease is lost.
    /// It does not bound the job, because the keeper renews. With a [`restart_delay`](crate::Builder::restart_delay) it
    /// must be at least a second less than that.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.scope.options.ttl = ttl;
        self
    }

    /// The longest time for which a lease is renewed, counted from its acquire; at least the TTL. After that the lease
    /// ends with [`MaxHold`](crate::LossReason::MaxHold), and its holder has the rest of the TTL to stop. `None`, the
    /// default, means no bound.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.scope.options.max_hold = max_hold.into();
        self
    }

    /// The longest time without progress for which a lease is renewed; from a third of the TTL to the `max_hold`. It ends
    /// leases whose work hangs, without a bound on how long the work may take. `None`, the default, renews regardless.
    ///
    /// The work reports each step with [`progress`](crate::LeaseHandle::progress); the acquire counts as the first. After
    /// half of the time without progress the lease is [at risk](crate::Status::AtRisk). After all of it the lease is not
    /// renewed any more: it ends by its deadline, up to a TTL later, with [`Stalled`](crate::LossReason::Stalled).
    /// Progress that is reported before that renews it at once.
    ///
    /// After its process stood still, for longer than an eighth of the time, the work has all of it anew. If the process
    /// stands still again before the next report, only that time is not counted. A re-entrant acquire shares the lease,
    /// with the span of the acquire that it enters.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn copy(_: u32) -> Result<(), leasehold::Error> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("import").stall_after(Duration::from_secs(60));
    /// lock.run(async |lease| {
    ///     for row in 0..1_000 {
    ///         copy(row).await?;
    ///         lease.progress();
    ///     }
    ///     Ok::<_, leasehold::Error>(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub fn stall_after(mut self, span: impl Into<Option<Duration>>) -> Self {
        self.scope.options.stall_after = span.into();
        self
    }

    /// Lets the same [`Owner`] acquire the lock again while it holds it: it gets another [`Lease`](crate::Lease) on the
    /// same acquisition, with the same fence and TTL. The key is released with the last of these leases.
    ///
    /// Both acquires must ask for it. It is not the default because an owner is a *task*. These would be admitted
    /// together:
    ///
    /// - all branches of `join!`, `select!` and `buffer_unordered`
    /// - all workers of a dispatcher that acquires leases and hands them out
    /// - all requests of one HTTP/1.1 connection
    ///
    /// Where that can happen, [share](crate::LeaseHandle::share) the lease itself, or give each an [`Owner`] of its
    /// own.
    ///
    /// Without it an acquire waits for any holder. It even waits for its own task, and a `wait` event warns of that.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let ledger = client.lock("ledger").reentrant(true);
    /// let outer = ledger.acquire().await?;
    /// let inner = ledger.acquire().await?; // the same task: another lease on the same acquisition
    /// assert_eq!((outer.fence(), inner.hold_count()), (inner.fence(), 2));
    /// # Ok(()) }
    /// ```
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// Acquires the lock first come, first served, across processes. Default: the builder's setting, off.
    ///
    /// The acquire takes a place in a queue on the server. A release passes the lock to the first in the queue at that
    /// very moment.
    ///
    /// - A waiter that gave up or timed out, or whose process has died, costs the others nothing. A stopped process
    ///   costs them one [grant time-out](crate::Builder::grant_timeout), however many waiters it has. So does a process
    ///   whose machine or network died, and one that is killed where the server cannot notify it, which `leasehold
    ///   doctor` reports. So does a waiter that gave up and could not reach the server for ten minutes.
    /// - [`try_acquire`](Self::try_acquire) does not overtake the queue either.
    /// - Acquires that are not fair, and other libraries, stay excluded while the lock is held or granted, and every
    ///   release by this library passes it on to the queue. But a lock that becomes *free* goes to whoever asks first,
    ///   fair or not. It becomes free when its holder died and the key expired, after
    ///   [`MaxHold`](crate::LossReason::MaxHold) or [`release_keeping`](crate::Lease::release_keeping), or when the key
    ///   was deleted by hand.
    /// - After the server has lost the queue, the waiters take their places again with their old tickets, one by one.
    ///   So do those of a stopped process that resumes. A later waiter may then be served first.
    /// - While a server has not been up for the [`restart_delay`](crate::Builder::restart_delay), waiters only queue: a
    ///   lock released then stays free until the delay has passed.
    /// - It works on one server; over a quorum the acquire ends with [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn fair(mut self, fair: bool) -> Self {
        self.scope.options.fair = fair;
        self
    }

    /// How many of its [permits](crate::Client::semaphore) an acquire takes, 1 to all of them. Default: 1.
    ///
    /// They are taken in one step, held by one lease, and released together. A waiter that wants several is not
    /// overtaken by one that wants fewer. Callers of one name may take different numbers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let memory = client.semaphore("build:gigabytes", 64);
    /// let link = memory.clone().take(16).acquire().await?;
    /// assert!(memory.clone().take(49).try_acquire().await?.is_none(), "48 are left");
    /// # link.release().await?; Ok(()) }
    /// ```
    ///
    /// A [re-entrant](Self::reentrant) acquire shares the lease that its owner has, which has to take at least as many.
    /// For a lock without permits, or a number out of bounds, the acquire ends with
    /// [`Error::Config`](crate::Error::Config).
    pub fn take(mut self, permits: u32) -> Self {
        self.scope.options.take = permits;
        self
    }

    /// How long the server keeps the floor of this name's fences after an acquire, zero to 24 hours. Default: the
    /// builder's, 24 hours. See [`Builder::fence_memory`](crate::Builder::fence_memory) for the price of a shorter
    /// memory. The last acquire decides, so give a name the same value everywhere.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.scope.options.fence_memory = memory;
        self
    }

    /// Keeps the key for at least this long after the acquire, no matter when the lease is released or dropped.
    ///
    /// For work that must not be repeated too soon once it is finished, such as a report that every machine of a fleet
    /// would write once an hour. After a crash it is repeated at once: if it must not even begin again, use
    /// [`once_per`](Self::once_per). At most 31 days, and over a quorum at most 1 s less
    /// than the [`restart_delay`](crate::Builder::restart_delay). Zero, the default, keeps nothing.
    ///
    /// Meanwhile others see `label (released)` as the holder. A process that dies leaves the key for its TTL only, and
    /// a lost lease leaves nothing, because then the work has not been done. A release that reaches the server after
    /// the key has expired leaves nothing either. Work that fails keeps the key as well. To keep it only after success,
    /// take a lease and end it with
    /// [`release_keeping`](crate::Lease::release_keeping) or [`release`](crate::Lease::release).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let hourly = client.lock("reports:hourly").keep_for(Duration::from_secs(59 * 60));
    /// # async fn job(_: leasehold::LeaseHandle) -> Result<&'static str, leasehold::Error> { Ok("done") }
    /// assert_eq!(hourly.try_run(job).await?, Some("done"));
    /// assert_eq!(hourly.try_run(job).await?, None); // not within the hour
    /// # Ok(()) }
    /// ```
    pub fn keep_for(mut self, keep: Duration) -> Self {
        self.keep_for = keep;
        self
    }

    /// Limits the lock to one acquire in this interval, whether the lease is released, dropped or lost, or its holder
    /// dies.
    ///
    /// For work that must not *begin* again too soon, even after a crash, such as a mail to everybody once an hour. The
    /// interval, 1 ms to 31 days, counts from the sending of the acquire, by the server's clock. With a
    /// [`restart_delay`](crate::Builder::restart_delay) it must be at least a second less than that, because a
    /// restarted server has forgotten the key. Unless this is set, there is no limit.
    ///
    /// [`keep_for`](Self::keep_for) is the other promise: it applies once the work is done, and a crash leaves nothing
    /// of it, because the work was not done. With both, the key stays for the longer of the two. The
    /// [cookbook](crate::docs::cookbook) says which one you need.
    ///
    /// With it the key lives for the rest of the interval, and at least for the TTL; the lease's deadline does not
    /// change. With [N permits](crate::Client::semaphore), N can be acquired in an interval. A release or a drop leaves
    /// the key until the interval has passed, and others see `label (released)`. Waiters, including [fair](Self::fair)
    /// ones, are served after that. A [re-entrant](Self::reentrant) acquire does not count as another one.
    /// [`force_release`](Self::force_release) frees the lock at once. A release that reaches the server late keeps the
    /// key longer by that delay. An acquire that is given up is undone, and does not count. If the server executes it
    /// only after that, when it is back from an outage, it counts if no process is left to undo it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let hourly = client.lock("newsletter").once_per(Duration::from_secs(59 * 60));
    /// drop(hourly.acquire().await?); // it crashed, say
    /// assert!(hourly.try_acquire().await?.is_none()); // not within the hour
    /// # Ok(()) }
    /// ```
    pub fn once_per(mut self, interval: Duration) -> Self {
        self.once_per = Some(interval);
        self
    }

    /// How much longer the key stays after its holder dies or its lease is lost: time for what that holder still has
    /// under way. At most an hour. Default: the builder's, zero. With a
    /// [`restart_delay`](crate::Builder::restart_delay), the TTL and the delay together must be at least a second less
    /// than that.
    ///
    /// A lost lease still ends at its deadline. But its key stays longer by the delay, so no one else has the lock
    /// while a stopped process wakes, or a write that was sent before arrives. The same applies at the end of a
    /// [`max_hold`](Self::max_hold). A release and a drop free the lock at once, and so do
    /// [`close`](crate::Client::close) and [`force_release`](Self::force_release).
    ///
    /// It only makes a second holder rarer, because a process may be stopped for longer. A
    /// [`fence`](crate::Lease::fence) never errs.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.scope.options.lock_delay = delay;
        self
    }

    /// Gives work under the lock this much time to tidy up before a loss: [`run`](Self::run),
    /// [`run_within`](Self::run_within), [`try_run`](Self::try_run) and [`Lease::run`](crate::Lease::run) then ask it to
    /// stop first. At most half of the TTL. Zero, the default, drops the work when the lease is lost.
    ///
    /// If no renewal gets through, the work is asked to stop this long before the deadline, and is still protected. If
    /// the server reports that the key is gone, the work is asked at once, and is not protected. It is notified through
    /// [`lost`](crate::LeaseHandle::lost) and [`cancellation_token`](crate::LeaseHandle::cancellation_token) of its
    /// handle. In the first case `lost` completes with [`Expiring`](crate::LossReason::Expiring), in the second with
    /// the reason of the loss.
    ///
    /// From then on the work is polled for the grace, and longer if the lease holds after all; then it is dropped. If
    /// less than the grace is left when the work begins, or after a pause of the process, only that much of it is
    /// protected: [`check`](crate::LeaseHandle::check) reports it. Work that ends while the lease holds returns its own
    /// result, even though it was asked to stop. A lease made by [`share`](crate::LeaseHandle::share) has no grace.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn copy_everything() -> Result<(), leasehold::Error> { Ok(()) }
    /// # async fn delete_the_half_of_it() {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("backup").grace(Duration::from_secs(5));
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

    /// The label by which others see this holder, 1 to 128 bytes without control characters; the label of the
    /// [`Client`](crate::Client::label) unless set here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.lock("scheduler").label("10.0.0.7:8080").acquire().await?;
    /// assert_eq!(client.lock("scheduler").holder().await?.expect("it is held").label(), Some("10.0.0.7:8080"));
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
    /// call it too. An acquire that waits calls it at first, and again whenever the lock has changed hands.
    /// [`Holder::not_a_lock`] reports a key that is not a lock, which no one will release.
    ///
    /// It runs inside the acquire, in the caller's own task, so it should be quick. While it blocks, this acquire makes
    /// no progress. Acquires that wait behind it in this process continue without it after at most two seconds plus two
    /// command time-outs. A panic in it unwinds through the acquire, which is undone as if it had been dropped. The
    /// panic affects no one else.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lock = client.lock("reports:nightly").on_wait(|holder| eprintln!("waiting for {holder}"));
    /// lock.acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn on_wait(mut self, tell: impl Fn(&Holder) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Counts this lock in a metrics group of this name: its series have the label `lock="name"`. Default: the
    /// builder's, none; an empty name means none.
    ///
    /// Name kinds of jobs, not each of a thousand locks, because every group has about eighty series in every process.
    /// A process has at most 100 groups, and counts further ones as `other`. See the page
    /// [`metrics`](crate::docs::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, name: impl AsRef<str>) -> Self {
        self.scope.options.metrics_group = crate::metrics::Group::named(name.as_ref());
        self
    }
}
