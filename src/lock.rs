//! A named lock: its options, and the calls that acquire it.

use std::{
    fmt,
    future::Future,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    forced::ForcedRelease,
    holder::Holder,
    key::Key,
    message::{Request, Waiters},
};
use tracing::Instrument as _;

use crate::{
    acquire::{Acquire, OnWait, Patience, Wanted},
    error::Error,
    foreign::{Relay, relayed},
    lease::{Lease, LeaseHandle},
    metrics::Acquiring,
    options::{Millis, check_grace, check_keep, check_once_per, check_reason},
    owner::Owner,
    scope::Scope,
    waiter::Waiter,
};

/// A named lock with its options. It holds nothing yet: [`acquire`](Self::acquire) gives a [`Lease`].
///
/// The setters consume and return it, and never fail: a bad value makes every acquire
/// end with [`Error::Config`] before anything is sent. Cheap to clone and to keep.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let leases = leasehold::Leases::in_memory();
/// let nightly = leases.lock("reports:nightly").ttl(Duration::from_secs(5));
/// let lease = nightly.acquire().await?;
/// lease.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[doc(alias = "mutex")]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    /// With the lock's own options and label.
    pub(crate) scope: Scope,
    name: Arc<str>,
    reentrant: bool,
    keep_for: Duration,
    pub(crate) once_per: Millis,
    grace: Duration,
    owner: Owner,
    on_wait: Option<OnWait>,
}

// A panic of `on_wait` unwinds through one acquire, which is undone.
impl UnwindSafe for Lock {}
impl RefUnwindSafe for Lock {}

impl Lock {
    pub(crate) fn new(scope: Scope, name: &str) -> Self {
        let (name, owner) = (name.into(), Owner::task());
        let (keep_for, grace) = (Duration::ZERO, Duration::ZERO);
        Self { scope, name, reentrant: false, keep_for, once_per: Millis::UNSET, grace, owner, on_wait: None }
    }

    /// The lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

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

    /// Lets the same [`Owner`] in again while it holds the lock: another [`Lease`] on the same acquisition, with the
    /// same fence and TTL. The key goes with the last of them.
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
    ///   a process whose machine or network died, and one that is killed where the server cannot notify it
    ///   ([`notifies_waiters`](crate::Capabilities::notifies_waiters) is false). So does a waiter that gave up and
    ///   could not tell the server for ten minutes.
    /// - [`try_acquire`](Self::try_acquire) does not overtake the queue either.
    /// - Others, and other libraries, stay excluded while the lock is held or granted, and every release by this
    ///   library passes it on to the queue. But a lock that becomes *free* goes to the first to ask, fair or not. It
    ///   becomes free when its holder died and the key expired, after [`MaxHold`](crate::LossReason::MaxHold) or
    ///   [`release_keeping`](crate::Lease::release_keeping), or when somebody deleted the key.
    /// - After the server has lost the queue, the waiters take their places again with their old tickets, one by one.
    ///   So they do when a stopped process goes on. A later one may come first.
    /// - While a server is too young for the [`restart_delay`](crate::Builder::restart_delay), waiters only queue: a
    ///   lock that is released then is free until the delay is over.
    /// - It works on one server; over a quorum the acquire ends with [`Error::Config`].
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
    /// For work that must not run again too soon, such as a task that every machine of a fleet starts once an hour. At
    /// most 24 hours, and over a quorum at most the [`restart_delay`](crate::Builder::restart_delay). Zero, the
    /// default, keeps nothing.
    ///
    /// Meanwhile others see `label (released)` as the holder. A process that dies leaves the key for its TTL only, and
    /// a lease that is lost leaves nothing: then the work has not been done. A release that reaches the server after
    /// the key has expired leaves nothing either. Work that fails keeps the key as well. To keep it after success only,
    /// take a lease and end it with [`release_keeping`](Lease::release_keeping) or [`release`](Lease::release).
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

    /// The lock can be acquired at most once in so long, whatever becomes of the holder: released, dropped, lost or dead.
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
    /// is. A release or a drop leaves the key until the interval is over, and others see `label (released)`. Waiters,
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
        self.once_per = Millis::of(interval);
        self
    }

    /// How much longer the key outlives a holder that dies or is lost: time for what that one still has under way. The
    /// builder's, none, unless set here; at most an hour. Where there is a
    /// [`restart_delay`](crate::Builder::restart_delay), the TTL and the delay together must be at least a second less.
    ///
    /// A lease that is lost has ended all the same, at its deadline. But its key stays for so much longer, so nobody
    /// else has the lock while a stopped process wakes, or a write that was sent before arrives. A release and a drop
    /// free the lock at once, and so do [`max_hold`](Self::max_hold), [`close`](crate::Leases::close) and
    /// [`force_release`](Self::force_release).
    ///
    /// It only makes a second holder rarer: a process may be stopped for longer, and a [`fence`](crate::Lease::fence)
    /// never errs.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.scope.options.lock_delay = Millis::of(delay);
        self
    }

    /// Gives work under the lock this much time to tidy up before a loss: [`run`](Self::run),
    /// [`run_within`](Self::run_within), [`try_run`](Self::try_run) and [`Lease::run`] then ask it to stop first. At
    /// most half of the TTL. Zero, the default, drops the work when the lease is lost.
    ///
    /// If no renewal gets through, the work is asked to stop this long before the deadline, and is still protected. If
    /// the server says that the key is gone, the work is asked at once, and is not protected. It hears of that from
    /// [`lost`](LeaseHandle::lost) and [`cancellation_token`](LeaseHandle::cancellation_token) of its handle. In the
    /// first case `lost` completes with [`Expiring`](crate::LossReason::Expiring), in the second with the reason of the
    /// loss.
    ///
    /// From then on the work is polled for the grace, and longer if the lease holds after all; then it is dropped. If
    /// less than the grace is left when the work begins, or after a pause of the process, only that much of it is
    /// protected: [`check`](LeaseHandle::check) tells. Work that ends while the lease holds gives its own result,
    /// though it was asked to stop. A lease that is [shared](LeaseHandle::share) has no grace.
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

    /// How others see this holder, 1 to 128 bytes without control characters; that of the builder, or of the
    /// [scope](crate::Scope), unless set here.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lease = leases.lock("scheduler").label("10.0.0.7:8080").acquire().await?;
    /// assert_eq!(leases.lock("scheduler").holder().await?.expect("it is held").label(), Some("10.0.0.7:8080"));
    /// # lease.release().await?; Ok(()) }
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.scope = self.scope.label(label);
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

    /// Acquires the lock, waiting for as long as it takes: for other holders, and through outages of the server.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lease = leases.lock("reports:nightly").acquire().await?;
    /// println!("ours, with fence {}", lease.fence());
    /// lease.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Only what waiting cannot mend: [`Error::Config`] (a bad name or option), [`Error::Refused`] (a wrong password, a
    /// missing right), [`Error::Closed`]; [`Error::Unavailable`] once the runtime of a
    /// [`Keeper::CurrentRuntime`](crate::Keeper::CurrentRuntime) has ended. A lock that is held is no error, whoever
    /// holds it, this task included. Neither is an outage: the acquire goes on when the server is back, so no retry is
    /// needed around it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place up. A lock that it may have acquired is released in the background, and
    /// nothing is left in Redis after that. While the server is out of reach, a request that was sent already may be
    /// executed when it is back: its key then lives for one TTL at most. A request that was not sent by then is never
    /// sent. A place in the queue of a fair lock may stay for as long as others wait in it, if the server stays out of
    /// reach for ten minutes.
    pub fn acquire(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Unlimited)
    }

    /// Acquires the lock, waiting for at most `limit`, exact to 20 ms, and to 35 ms while the server is silent. Zero is
    /// one try. Where hundreds of waits of a process end at the same moment, some of their last checks may take longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// # let _held = leases.lock("reports:nightly").acquire().await?;
    /// match leases.lock("reports:nightly").acquire_within(Duration::from_millis(20)).await {
    ///     Ok(lease) => println!("{:?}", lease.release().await?),
    ///     Err(error @ leasehold::Error::TimedOut { .. }) => println!("{error}; try again in {:?}", error.retry_after()),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Error::TimedOut`] with the holder if the lock was held at the last check that
    /// had time for an answer; [`Error::Unavailable`] if that check got none.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Within(limit))
    }

    /// Acquires the lock if it is free; `None` if somebody holds it. Never waits for longer than the command time-out.
    ///
    /// To learn who holds it, as for a `Retry-After`, call [`acquire_within`](Self::acquire_within) with zero: it is
    /// one try too, and its error has the holder.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// match leases.lock("reports:nightly").try_acquire().await? {
    ///     Some(lease) => println!("{:?}", lease.release().await?),
    ///     None => println!("somebody else is at it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Unavailable`] if the server gives no answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    #[doc(alias = "try_lock")]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquire = self.clone().acquire_or_wait(Patience::None);
        async move {
            match acquire.await {
                Err(Error::TimedOut { .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        }
    }

    /// Acquires the lock, runs `work` under it, releases it; stops and drops the work the moment the lease is lost.
    ///
    /// The work gives a `Result`, and this call gives it on. Its error `E` is any type that is
    /// `From<leasehold::Error>`: [`Error`] itself, your program's own with a `#[from]`, `anyhow::Error` or `Box<dyn
    /// Error + Send + Sync>`. So one `?` serves the lock and the work.
    ///
    /// ```
    /// # use leasehold::{Error, Leases};
    /// # async fn insert(_: leasehold::Fence) -> Result<u32, std::num::ParseIntError> { "42".parse() }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// let lock = Leases::in_memory().lock("reports:nightly");
    /// // Work that cannot fail names a type.
    /// let fence = lock.run(|lease| async move { Ok::<_, Error>(lease.fence()) }).await?;
    /// // Work that can: here its `?` and the outer one make the same box of any error.
    /// let rows = lock
    ///     .run(|lease| async move {
    ///         let rows = insert(lease.fence()).await?;
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(rows)
    ///     })
    ///     .await?;
    /// # assert!(rows == 42 && u64::from(fence) > 0); Ok(()) }
    /// ```
    ///
    /// The compiler warns of a forgotten `.await`, and of a result that nobody looks at:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use leasehold::{Error, LeaseHandle, Lock};
    /// # async fn job(_: LeaseHandle) -> Result<(), Error> { Ok(()) }
    /// # async fn forgets(lock: Lock) {
    /// lock.run(job);
    /// # }
    /// ```
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use leasehold::{Error, LeaseHandle, Lock};
    /// # async fn job(_: LeaseHandle) -> Result<(), Error> { Ok(()) }
    /// # async fn forgets(lock: Lock) {
    /// lock.run(job).await;
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// All of them are an `E`.
    ///
    /// - As [`acquire`](Self::acquire): then the work never started, so nothing is done twice if you call again.
    /// - The error of the work. It wins over a loss that only the release after it finds.
    /// - [`Error::Lost`], if the work was stopped, or ended with `Ok` when the lease was gone already.
    ///
    /// A release that is not confirmed is no error: see [the
    /// guide](crate::docs::guide#when-a-release-is-not-confirmed).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then releases in the background.
    pub fn run<F, Fut, T, E>(&self, work: F) -> impl Future<Output = Result<T, E>> + use<F, Fut, T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let acquire = self.acquire();
        async move { acquire.await?.run(work).await }
    }

    /// As [`run`](Self::run), but waits for at most `limit` for the lock.
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub fn run_within<F, Fut, T, E>(
        &self,
        limit: Duration,
        work: F,
    ) -> impl Future<Output = Result<T, E>> + use<F, Fut, T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let acquire = self.acquire_within(limit);
        async move { acquire.await?.run(work).await }
    }

    /// As [`run`](Self::run), but skips the work if the lock is held: `None`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// let lock = leases.lock("reports:nightly");
    /// let _lease = lock.acquire().await?;
    /// # async fn job(_: leasehold::LeaseHandle) -> Result<&'static str, leasehold::Error> { Ok("done") }
    /// assert_eq!(lock.try_run(job).await?, None); // it is busy: somebody else does it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub fn try_run<F, Fut, T, E>(&self, work: F) -> impl Future<Output = Result<Option<T>, E>> + use<F, Fut, T, E>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let acquire = self.try_acquire();
        async move {
            match acquire.await? {
                Some(lease) => lease.run(work).await.map(Some),
                None => Ok(None),
            }
        }
    }

    /// The current holder of the lock, ourselves included; `None` if there is none. Over a quorum: the one with its key
    /// on a majority of the nodes, or that may have it there, as far as they answer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let leases = leasehold::Leases::in_memory();
    /// # let lock = leases.lock("reports:nightly");
    /// # let _held = lock.acquire().await?;
    /// if let Some(holder) = lock.holder().await? {
    ///     println!("held by {holder}");
    ///     # assert!(holder.is_ours());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The server cannot be reached or says no, or the name is not valid.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let asking = client.quorum.holder(&key, client.options.command_timeout);
        let holder = relayed!(Relay::of_answers(), asking).map_err(Error::of)?;
        Ok(holder.map(|holder| client.watchdog.recognize(&key, holder)))
    }

    /// The waiters in the [fair](Self::fair) queue of the lock, the first in line first; at most ten thousand of them.
    /// Only their own process knows of waiters that did not ask for fairness.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder), and if the queue's key holds something else.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let (member, limit) = (client.sole()?, client.options.command_timeout);
        let asking = member.ask(client.quorum.route(), Request::Waiters { key, most: MOST_WAITERS }, limit);
        let waiters: Waiters = relayed!(Relay::of_answers(), asking).map_err(Error::of)?;
        Ok(waiters.into_iter().map(|(token, waited)| Waiter { token, waited }).collect())
    }

    /// Deletes the lock's key **whoever holds it**, on every node, and says whether there was one. Its holder finds out
    /// by its next renewal at the latest; until then two may believe that they hold the lock. For operators, after a
    /// holder that will certainly not come back.
    ///
    /// If it does come back, it hears [`LossReason::Forced`](crate::LossReason::Forced), with the [label](Self::label) of this
    /// lock. The server keeps that for as long as the key would have lived, under `{name}:lh:forced`, and of the last
    /// holder only. Without a right to that key, the holder hears `Deleted` or `Taken`.
    ///
    /// # Errors
    ///
    /// The server, or a majority, cannot be reached; or the key is not a string, so not a lock, and is left alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not have deleted the key.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.take_by_force(None).await
    }

    /// The same, and its holder [hears](crate::Lost::forced) why, as do its log and whoever runs it.
    ///
    /// # Errors
    ///
    /// As [`force_release`](Self::force_release), and [`Error::Config`] for a reason that is empty, has control characters,
    /// or more than 256 bytes.
    ///
    /// # Cancel safety
    ///
    /// As [`force_release`](Self::force_release).
    pub async fn force_release_because(&self, reason: &str) -> Result<bool, Error> {
        check_reason(reason)?;
        self.take_by_force(Some(reason)).await
    }

    async fn take_by_force(&self, reason: Option<&str>) -> Result<bool, Error> {
        let client = &self.scope.client;
        client.ready().await?;
        let key = self.key()?;
        let by = ForcedRelease::new(self.scope.label_in_use(), reason);
        let releasing = client.quorum.force_release(key.clone(), by, client.options.command_timeout);
        let released = relayed!(Relay::of_answers(), releasing).map_err(Error::of)?;
        client.freed(&key);
        Ok(released)
    }

    pub(crate) fn key(&self) -> Result<Key, Error> {
        self.scope.key(&self.name)
    }

    async fn acquire_or_wait(self, patience: Patience) -> Result<Lease, Error> {
        relayed!(Relay::of_answers(), self.acquire_here(patience, false))
    }

    /// The same as a part of a future that is relayed. On trial nobody works under the lease yet: until [`begin`](Self::begin)
    /// it is given back without a trace.
    pub(crate) async fn acquire_here(self, patience: Patience, is_on_trial: bool) -> Result<Lease, Error> {
        let span = tracing::debug_span!(target: "leasehold", "acquire", lock = &*self.name);
        let (client, began) = (self.scope.client.clone(), self.scope.client.now());
        let acquiring = Acquiring::begins(self.scope.options.metrics_group);
        let outcome = match self.wanted() {
            Ok(wanted) => {
                let mut acquire = Acquire::new(client.clone(), Wanted { is_on_trial, ..wanted }, patience);
                acquire.run().instrument(span).await
            }
            Err(refused) => Err(refused),
        };
        acquiring.ended(&outcome, patience.is_one_try(), client.now().since(began));
        outcome
    }

    /// The work under a lease that was on trial begins.
    pub(crate) fn begin(&self, lease: &Lease) {
        lease.begin(self.keep_for);
    }

    /// The same lock, which tells nobody whom it finds there.
    pub(crate) fn quiet(&self) -> Self {
        Self { on_wait: None, ..self.clone() }
    }

    /// Checks everything that can be refused without a request.
    pub(crate) fn wanted(self) -> Result<Wanted, Error> {
        let Scope { client, options, .. } = &self.scope;
        client.check_acquires()?;
        options.check(!client.quorum.is_one(), client.quorum.restart_delay())?;
        check_keep("keep_for", self.keep_for, Duration::ZERO, client.quorum.longest_keep())?;
        check_once_per(self.once_per, client.quorum.restart_delay())?;
        check_grace(self.grace, options.ttl)?;
        let key = self.key()?;
        let Self { scope, owner, reentrant, keep_for, once_per, grace, on_wait, .. } = self;
        let (options, names) = (scope.options, scope.into_names());
        let is_on_trial = false;
        Ok(Wanted { key, names, options, owner, reentrant, keep_for, once_per, grace, on_wait, is_on_trial })
    }
}

/// The most waiters that [`Lock::waiters`] returns.
const MOST_WAITERS: usize = 10_000;

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("options", &self.scope.options)
            .field("reentrant", &self.reentrant)
            .field("keep_for", &self.keep_for)
            .field("once_per", &self.once_per)
            .field("grace", &self.grace)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
