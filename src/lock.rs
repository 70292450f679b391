//! What to acquire, and how long to wait for it.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use leasehold_protocol::{
    fence,
    holder::Holder,
    key::Key,
    message::{Request, Waiters},
};
use tracing::Instrument as _;

use crate::{
    acquire::{Acquire, OnWait, Patience},
    client::{Client, Options, Wanted},
    error::{AcquireError, Error, RunError},
    foreign::{Relay, relayed},
    lease::{Lease, LeaseHandle},
    metrics::{Acquiring, Group},
    owner::Owner,
    waiter::Waiter,
};

/// Shortest and longest TTL.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);

/// A named lock with its options. It holds nothing yet: [`acquire`](Self::acquire) gives a [`Lease`].
///
/// The setters consume and return it, and never fail: a bad value makes every acquire
/// [`Refused`](AcquireError::Refused) before anything is sent. Cheap to clone and to keep.
#[derive(Clone)]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    client: Arc<Client>,
    name: Arc<str>,
    ttl: Duration,
    max_hold: Option<Duration>,
    reentrant: bool,
    fair: bool,
    fence_memory: Duration,
    owner: Owner,
    on_wait: Option<OnWait>,
    metrics_group: Group,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: &str) -> Self {
        let Options { ttl, max_hold, fair, fence_memory, metrics_group, .. } = client.options;
        let (name, owner) = (name.into(), Owner::task());
        Self { client, name, ttl, max_hold, reentrant: false, fair, fence_memory, owner, on_wait: None, metrics_group }
    }

    /// The lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long the key lives without a renewal, 100 ms to a day; the builder's, 30 s, unless set here.
    ///
    /// It is how long the others wait after this process has died, and how long an outage may last before a lease is
    /// lost. It does not bound the job: the watchdog renews. Where there is a
    /// [`restart_delay`](crate::Builder::restart_delay) it must be at least a second less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest that a lease is renewed for, counted from its acquire; at least the TTL. After that the holder is told
    /// [`MaxHold`](crate::LossReason::MaxHold) and has what is left of the TTL to stop. `None`, the default, is no bound.
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.max_hold = max_hold.into();
        self
    }

    /// Lets the same [`Owner`] in again while it holds the lock: another [`Lease`] on the same acquisition, with the same
    /// fence and TTL. The key goes with the last of them.
    ///
    /// It must be asked for both times. It is not the default because an owner is a *task*: all branches of `join!`, `select!`
    /// and `buffer_unordered`, a dispatcher that acquires and hands the leases to workers, and all requests of one HTTP/1.1
    /// connection would be let in together. Where that may be, [share](crate::LeaseHandle::share) the lease itself, or give each
    /// an [`Owner`] of its own.
    ///
    /// Without it an acquire waits for whoever has the lock, its own task included, and a `wait` event warns of that.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// First come, first served, across processes: the acquire takes a place in a queue on the server, and the lock
    /// goes to the first of it at the very moment when it is released. The builder's, no, unless set here.
    ///
    /// - A waiter whose process has died, that gave up or whose time is over costs the others nothing. A stopped process
    ///   costs them one [grant](crate::Builder::grant_timeout), however many of its waiters there are. So does a process whose
    ///   machine or network died, one that was out of the server's reach for ten minutes when its waiter gave up, and one
    ///   that is killed where the server cannot call it ([`calls_waiters`](crate::Capabilities::calls_waiters) is false).
    /// - [`try_acquire`](Self::try_acquire) does not overtake the queue either.
    /// - Others, and other libraries, stay excluded while the lock is held or granted, and every release by this library
    ///   passes it on to the queue. But a lock that becomes *free* goes to whoever asks first, who may not have asked for
    ///   fairness: when its holder died and the key expired, after [`MaxHold`](crate::LossReason::MaxHold) or
    ///   [`release_keeping`](crate::Lease::release_keeping), or when somebody deleted the key.
    /// - After the server has lost the queue, and when a stopped process goes on, the waiters take their places again
    ///   with the tickets that they had, one by one: the first to come back may be a later one.
    /// - While a server is too young for the [`restart_delay`](crate::Builder::restart_delay), they only queue: what is
    ///   released then is free until the delay is over.
    /// - It works on one server; over a quorum the acquire is [`Refused`](crate::AcquireError::Refused).
    pub fn fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// For how long the server keeps the floor of this name's fences after an acquire, zero to 24 hours; the builder's, 24
    /// hours, unless set here. See [`Builder::fence_memory`](crate::Builder::fence_memory) for what a shorter one gives up. The
    /// last acquire decides: give a name the same one everywhere.
    pub fn fence_memory(mut self, memory: Duration) -> Self {
        self.fence_memory = memory;
        self
    }

    /// As whom to acquire; [`Owner::task`] unless set.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Is called while an acquire waits: at first, and again when the lock has changed hands. It runs inside the acquire,
    /// in the caller's own task, so it should be quick: while it blocks, this acquire stands still, and those behind it in
    /// this process wait for up to two seconds and two command time-outs before they go on without it. A panic in it
    /// unwinds through the acquire, which is undone as if it had been dropped. Nobody else notices either.
    pub fn on_wait(mut self, tell: impl Fn(&Holder) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Counts this lock in a group of this name: its series have the label `lock="name"`. The builder's, none, unless set
    /// here; an empty name is none.
    ///
    /// Name kinds of jobs, and not each of a thousand locks: every group has some eighty series in every process. A process
    /// has at most 100 groups, and counts further ones as `other`. See the page [`metrics`](crate::metrics).
    #[cfg(feature = "metrics")]
    pub fn metrics_group(mut self, name: impl AsRef<str>) -> Self {
        self.metrics_group = Group::named(name.as_ref());
        self
    }

    /// Acquires the lock, waiting for as long as it takes: for other holders, and through outages of the server.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Refused`] if it can never work (a bad name or option, a wrong password, a missing right),
    /// [`AcquireError::Closed`]. That somebody holds the lock, this task included, is none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place up. What it may have acquired is released in the background, and nothing is
    /// left in Redis after that. While the server is out of reach, a request that was sent already may be executed when it
    /// is back: its key then lives for one TTL at most. What was not sent by then is never sent. A place in the queue of a
    /// fair lock may stay for as long as others wait in it, if the server was out of reach for ten minutes.
    pub fn acquire(&self) -> impl Future<Output = Result<Lease, AcquireError>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Unlimited)
    }

    /// Acquires the lock, waiting for at most `limit`, exact to 20 ms, and to 35 ms while the server is silent. Zero is
    /// one try. Where hundreds of waits of a process end at the same moment, the last of their last looks may take longer.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`AcquireError::TimedOut`] with the holder if the lock was held at the last look
    /// that there was time for an answer to, [`AcquireError::Unavailable`] if that one had none.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<Lease, AcquireError>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Within(limit))
    }

    /// Acquires the lock if it is free; `None` if somebody holds it. Never waits for longer than the command time-out.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`AcquireError::Unavailable`] if the server gives no answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>, AcquireError>> + Send + use<> {
        let acquire = self.clone().acquire_or_wait(Patience::None);
        async move {
            match acquire.await {
                Err(AcquireError::TimedOut { .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        }
    }

    /// Acquires the lock, runs `work` under it, releases it; stops and drops the work the moment the lease is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::Leases::in_memory();
    /// let answer = leases.lock("reports:nightly").run(|lease| async move { u64::from(lease.fence()) + 1 }).await?;
    /// # assert!(answer > 1); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RunError::Acquire`] if the work never started; [`RunError::Lost`] if it was stopped, or ended when the lease was
    /// gone already. Finished work whose release is merely unconfirmed is `Ok`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then releases in the background.
    pub fn run<F, Fut>(&self, work: F) -> impl Future<Output = Result<Fut::Output, RunError>> + use<F, Fut>
    where
        F: FnOnce(LeaseHandle) -> Fut,
        Fut: Future,
    {
        let acquire = self.acquire();
        async move { Ok(acquire.await?.run(work).await?) }
    }

    /// Who holds the lock now, ourselves included; `None` if nobody does. Over a quorum: who has its key on a majority of
    /// the nodes, or may have, as far as they answer.
    ///
    /// # Errors
    ///
    /// The server cannot be reached or says no, or the name is none.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn holder(&self) -> Result<Option<Holder>, Error> {
        let key = self.key()?;
        let asking = self.client.quorum.holder(&key, self.client.options.command_timeout);
        let holder = relayed!(Relay::of_answers(), asking)?;
        Ok(holder.map(|holder| self.client.watchdog.recognize(&key, holder)))
    }

    /// Who waits for the lock in its [fair](Self::fair) queue, the first in line first; at most ten thousand of them.
    /// Waiters that did not ask for fairness are known to their own process only.
    ///
    /// # Errors
    ///
    /// As [`holder`](Self::holder), and if the queue's key holds something else.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        let key = self.key()?;
        let (node, limit) = (self.client.sole()?, self.client.options.command_timeout);
        let asking = node.ask(node.route(), Request::Waiters { key, most: MOST_WAITERS }, limit);
        let waiters: Waiters = relayed!(Relay::of_answers(), asking)?;
        Ok(waiters.into_iter().map(|(token, waited)| Waiter { token, waited }).collect())
    }

    /// Deletes the lock's key **whoever holds it**, on every node, and says whether there was one. Its holder finds out by its next
    /// renewal at the latest; until then two may believe that they hold the lock. For operators, after a holder that
    /// will certainly not come back.
    ///
    /// # Errors
    ///
    /// The server, or a majority, cannot be reached; or the key is not a string, so not a lock, and is left alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not have deleted the key.
    pub async fn force_release(&self) -> Result<bool, Error> {
        let key = self.key()?;
        let releasing = self.client.quorum.force_release(&key, self.client.options.command_timeout);
        let released = relayed!(Relay::of_answers(), releasing)?;
        self.client.freed(&key);
        Ok(released)
    }

    fn key(&self) -> Result<Key, Error> {
        self.client.check_open()?;
        Ok(Key::new(&self.client.options.prefix, &self.name)?)
    }

    async fn acquire_or_wait(self, patience: Patience) -> Result<Lease, AcquireError> {
        let span = tracing::debug_span!(target: "leasehold", "acquire", lock = &*self.name);
        let (client, began) = (self.client.clone(), self.client.now());
        let acquiring = Acquiring::begins(self.metrics_group);
        let outcome = match self.wanted() {
            Ok(wanted) => {
                let acquire = Acquire::new(self.client, wanted, self.owner, self.reentrant, patience, self.on_wait);
                relayed!(Relay::of_answers(), acquire.run().instrument(span))
            }
            Err(refused) => Err(refused),
        };
        acquiring.ended(&outcome, patience.is_one_try(), client.now().since(began));
        outcome
    }

    /// Everything that can be refused without asking anybody.
    fn wanted(&self) -> Result<Wanted, AcquireError> {
        self.client.check_open().map_err(|_| self.client.end())?;
        check_times(self.ttl, self.max_hold, self.client.quorum.restart_delay()).map_err(AcquireError::Refused)?;
        check_fence_memory(self.fence_memory).map_err(AcquireError::Refused)?;
        if self.fair {
            self.client.sole().map_err(|_| AcquireError::Refused(fair_quorum()))?;
        }
        let key = Key::new(&self.client.options.prefix, &self.name)
            .map_err(|invalid| AcquireError::Refused(invalid.into()))?;
        let Self { ttl, max_hold, fair, fence_memory, metrics_group, .. } = *self;
        Ok(Wanted { key, ttl, max_hold, fair, fence_memory, owner: None, metrics_group })
    }
}

/// The most that [`Lock::waiters`] tells of.
const MOST_WAITERS: usize = 10_000;

pub(crate) fn fair_quorum() -> Error {
    Error::config(
        "fair is on, which works on one server only, not over a quorum: turn it off, or use the url of one server",
    )
}

/// The bounds that hold for a lock as for the builder.
pub(crate) fn check_times(ttl: Duration, max_hold: Option<Duration>, restart_delay: Duration) -> Result<(), Error> {
    if !TTL.contains(&ttl) {
        let (least, most) = (TTL.start(), TTL.end());
        return Err(Error::config(format!("ttl is {ttl:?}: it must be from {least:?} to {most:?}")));
    }
    // A server counts its uptime in whole seconds, and up to one too many.
    if !restart_delay.is_zero() && ttl + Duration::from_secs(1) > restart_delay {
        return Err(Error::config(format!(
            "ttl is {ttl:?}: it must be at least 1 s less than restart_delay, {restart_delay:?}, for which a server that \
             was restarted gives no vote because it may have forgotten a lease"
        )));
    }
    match max_hold {
        Some(max_hold) if max_hold < ttl => {
            Err(Error::config(format!("max_hold is {max_hold:?}: it must be at least the ttl, {ttl:?}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_fence_memory(memory: Duration) -> Result<(), Error> {
    if memory > fence::MEMORY {
        let most = fence::MEMORY;
        return Err(Error::config(format!("fence_memory is {memory:?}: it must be at most {most:?}")));
    }
    Ok(())
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .field("max_hold", &self.max_hold)
            .field("reentrant", &self.reentrant)
            .field("fair", &self.fair)
            .field("fence_memory", &self.fence_memory)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
