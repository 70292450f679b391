//! Several locks as one: acquired together, in an order that rules out deadlocks.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use futures_util::future::{join_all, try_join_all};
use leasehold_protocol::{
    backoff::Backoff,
    multi_lock::{self, MOST, Next, in_order},
    time::Time,
    wait_loop::SHORTEST_CHECK,
};

pub use self::lease::{MultiLease, MultiLeaseHandle};
use crate::{
    acquire::Patience,
    clock::wall,
    engine::Engine,
    error::Error,
    foreign::relayed,
    lease::Lease,
    lock::{Lock, runs},
    random,
};

mod lease;

/// A holder whose fence is at most this many microseconds before ours may be another try: the clocks of a cluster
/// differ.
const JUST_NOW: u128 = 1_000_000;

/// Several locks, 1 to 1,000, that are acquired together: all of them or none. It holds nothing yet.
///
/// Others may want the same locks in another order, and there is never a deadlock. All locks are tried at the same
/// time, so it takes one round trip if all are free. If some are held, it keeps those that come before the first held
/// one in the order of their keys, gives the rest back, and waits for the first held one. A lock that is lost meanwhile
/// is acquired again. All processes use the same order, whatever [prefixes](crate::Client::prefix) they have. Only
/// locks that you hold *beside* it can still cause a deadlock, so acquire together what you hold together.
///
/// Each lock has its own options: `ttl`, `fair`, `max_hold`, `grace`, `owner`, `reentrant`, `lock_delay`, `label`.
/// [`keep_for`](Lock::keep_for) counts from the moment when all are held. The interval of a
/// [`once_per`](Lock::once_per) counts from the acquire of its lock, but only if all were held: it takes another round
/// trip to ensure that. A lock that is given back before that leaves nothing, and a process that dies before that leaves
/// the key for a TTL. A [`max_hold`](Lock::max_hold) counts from the acquire of its lock, which may have to wait for the
/// others. [`on_wait`](Lock::on_wait) is called for the locks that the acquire really waits for; an acquire
/// that does not wait calls it for all that it finds held.
///
/// It is not a transaction: others may see the first lock taken before the last. But if several tries meet, one wins:
/// the try that has the first lock waits for the locks that the others give back, for at most half of a command
/// time-out. A lost lease is reported at once, and the others stay held until they are released.
///
/// ```
/// # use leasehold::{Client, Error};
/// # async fn transfer(_: leasehold::Fence, _: leasehold::Fence) -> Result<(), Error> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # let client = Client::in_memory();
/// let both = client.multi_lock(["account:9", "account:7"].map(|name| client.lock(name)));
/// both.run(async |held| {
///     let fence = |name| held.fence(name).expect("it is one of them");
///     transfer(fence("account:7"), fence("account:9")).await
/// })
/// .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a multi-lock holds nothing until it is acquired"]
pub struct MultiLock {
    engine: Arc<Engine>,
    /// The locks in the order in which they are waited for, or why they do not fit together.
    locks: Result<Arc<[Lock]>, Error>,
}

impl MultiLock {
    pub(crate) fn new(engine: &Arc<Engine>, locks: impl IntoIterator<Item = Lock>) -> Self {
        let with_key = |lock: Lock| {
            if Arc::ptr_eq(&lock.scope.engine, engine) {
                return Ok((lock.key()?, lock));
            }
            let name = lock.name();
            Err(Error::misuse(format!("all locks of a multi-lock are of one Client: {name:?} is of another")))
        };
        // The iterator may be endless.
        let keyed: Result<Vec<_>, Error> = locks.into_iter().take(MOST + 1).map(with_key).collect();
        let ordered = keyed.and_then(|keyed| in_order(keyed).map_err(|unfit| Error::config(unfit.to_string())));
        Self { engine: engine.clone(), locks: ordered.map(Arc::from) }
    }

    /// Acquires all locks, waiting for as long as it takes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let held = client.multi_lock([client.lock("a"), client.lock("b")]).acquire().await?;
    /// println!("ours, for {:?} at least", held.remaining());
    /// held.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`] of each lock: then none is held. [`Error::Config`], before anything is sent, if there are
    /// no locks or more than 1,000, or if one occurs twice. [`Error::Misuse`] if one belongs to another
    /// [`Client`](crate::Client).
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`] of each lock: dropping the future gives back the locks that it has.
    pub fn acquire(&self) -> impl Future<Output = Result<MultiLease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Unlimited)
    }

    /// Acquires all locks, waiting for at most `limit` in total, as exact as [`Lock::acquire_within`]. Zero means one
    /// try.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). [`Error::TimedOut`] with the lock that it waited for last, and its holder;
    /// [`Error::Unavailable`] if a server gave no answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_within(&self, limit: Duration) -> impl Future<Output = Result<MultiLease, Error>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Within(limit))
    }

    /// Acquires all locks if all are free; if one is held, returns `None` and holds none. Never waits longer than the
    /// command time-out.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Unavailable`] if a server gives no answer.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<MultiLease>, Error>> + Send + use<> {
        let lock = self.clone();
        async move {
            // Created here, because a future that is moved before it is awaited takes its memory twice.
            match lock.acquire_or_wait(Patience::None).await {
                Err(Error::TimedOut { .. }) => Ok(None),
                outcome => outcome.map(Some),
            }
        }
    }

    async fn acquire_or_wait(self, patience: Patience) -> Result<MultiLease, Error> {
        let locks = self.locks?;
        // If one of them is refused, nothing is sent for the others.
        for lock in &*locks {
            lock.clone().wanted()?;
        }
        let acquiring = Acquiring::new(&self.engine, &locks, patience);
        let leases = relayed!(Box::pin(acquiring.run()))?;
        for (lock, lease) in locks.iter().zip(&leases) {
            lock.begin(lease);
        }
        Ok(MultiLease::of(leases))
    }
}

runs! {
    MultiLock, MultiLeaseHandle;
    /// Acquires all locks, runs `work`, releases them; stops and drops the work the moment one of the leases is lost.
    /// Otherwise like [`Lock::run`].
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and then the work never started. Otherwise as [`MultiLease::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, then releases in the background.
    run;
    /// Like [`run`](Self::run), but waits for at most `limit` for all locks.
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    run_within;
    /// Like [`run`](Self::run), but skips the work and returns `None` if one of the locks is held.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and then the work never started. Otherwise as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    try_run;
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.locks.as_ref().map(|locks| locks.iter().map(Lock::name).collect::<Vec<_>>());
        f.debug_tuple("MultiLock").field(&names).finish()
    }
}

/// One acquire of all locks: does what [`multi_lock::MultiLock`] orders.
struct Acquiring<'a> {
    engine: &'a Engine,
    locks: &'a [Lock],
    patience: Patience,
    started: Time,
    until: Time,
    multi: multi_lock::MultiLock<Lease>,
}

impl<'a> Acquiring<'a> {
    fn new(engine: &'a Engine, locks: &'a [Lock], patience: Patience) -> Self {
        let (started, multi) = (engine.now(), multi_lock::MultiLock::new(locks.len()));
        Self { engine, locks, patience, started, until: patience.until(started), multi }
    }

    async fn run(mut self) -> Result<Vec<Lease>, Error> {
        let (mut busy, mut backoff) = (None, Backoff::new(random::jitter()));
        loop {
            match self.multi.next(Lease::is_held) {
                Next::Done => match self.lengthen().await {
                    Ok(_all) => return Ok(self.multi.into_held()),
                    Err(_) if !self.multi.held().all(Lease::is_held) => self.multi.lost(),
                    Err(error) if !error.is_transient() || self.engine.now() >= self.until => return Err(error),
                    Err(_) => self.engine.host.sleep(backoff.next(None)).await,
                },
                Next::Try(missing) => busy = self.try_all(missing).await?,
                Next::Wait(at) if self.engine.now() < self.until => self.wait(at, self.until, false).await?,
                Next::Wait(at) => match busy.take().unwrap_or_else(Error::unanswered) {
                    busy if self.may_have_met_a_try(&busy) => self.wait(at, self.most(), true).await?,
                    busy => return Err(self.timed(busy)),
                },
            }
        }
    }

    /// Tries all missing locks at the same time. Returns why the first of those it did not get was refused.
    async fn try_all(&mut self, missing: Vec<usize>) -> Result<Option<Error>, Error> {
        let waits = !self.patience.is_one_try();
        let one_try = |lock: &Lock| {
            let lock = if waits { lock.quiet() } else { lock.clone() };
            lock.acquire_here(Patience::None, true)
        };
        let tries = missing.iter().filter_map(|at| self.locks.get(*at)).map(one_try);
        // A try may take a command time-out, which may be more than the time left.
        let until = if waits { self.until } else { self.started + self.engine.options.command_timeout };
        let left = until.since(self.engine.now()).max(SHORTEST_CHECK);
        let is_limited = until != Time::NEVER && (waits || missing.len() < self.locks.len());
        let outcomes = tokio::select! {
            biased;
            outcomes = join_all(tries) => outcomes,
            () = self.engine.host.sleep(left), if is_limited => return Err(Error::unanswered()),
        };
        let mut busy = None;
        for (at, outcome) in missing.into_iter().zip(outcomes) {
            match outcome {
                Ok(lease) => self.multi.got(at, lease),
                // Held, or unreachable for now: the wait continues until that passes.
                Err(error) if error.is_transient() => busy = busy.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        Ok(busy)
    }

    /// Makes the keys live for the intervals of their locks, now that all are held.
    async fn lengthen(&self) -> Result<Vec<()>, Error> {
        let most = self.engine.options.command_timeout;
        let until = if self.patience.is_one_try() { self.started + most } else { self.until };
        let limit = until.since(self.engine.now()).max(SHORTEST_CHECK).min(most);
        let lengthened = try_join_all(self.multi.held().map(|lease| lease.lengthen(limit))).await;
        if lengthened.is_err() {
            self.multi.held().for_each(Lease::try_out_again);
        }
        lengthened
    }

    /// Whether a try that has the first lock was refused one that was acquired just now: perhaps by another try, which
    /// is refused the first lock and gives all of its own back.
    fn may_have_met_a_try(&self, busy: &Error) -> bool {
        let (Some(first), Error::TimedOut { holder, .. }) = (self.multi.first(), busy) else { return false };
        // A fence is the time of its acquire, in microseconds; or more, if there was a larger one before it.
        let now = wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let ours = u128::from(u64::from(first.fence())).min(now);
        let theirs = holder.fence().map(|fence| u128::from(u64::from(fence)));
        // The fence of those who share is the time of the first of them, and any of them may have come just now.
        let is_new = theirs.is_none_or(|theirs| theirs + JUST_NOW >= ours) || holder.is_shared();
        self.patience.is_one_try() && is_new && self.engine.now() < self.most()
    }

    fn most(&self) -> Time {
        self.started + self.engine.options.command_timeout / 2
    }

    /// Waits for one lock until then; if `is_quiet`, its `on_wait` has been called.
    async fn wait(&mut self, at: usize, until: Time, is_quiet: bool) -> Result<(), Error> {
        let Some(lock) = self.locks.get(at) else { return Ok(()) };
        let lock = if is_quiet { lock.quiet() } else { lock.clone() };
        let left = until.since(self.engine.now());
        let patience = if until == Time::NEVER { Patience::Unlimited } else { Patience::Within(left) };
        let outcome = lock.acquire_here(patience, true).await;
        outcome.map(|lease| self.multi.got(at, lease)).map_err(|error| self.timed(error))
    }

    /// The error of one lock as that of all: they have waited since the acquire began.
    fn timed(&self, error: Error) -> Error {
        match error {
            Error::TimedOut { name, holder, .. } => {
                Error::TimedOut { name, waited: self.engine.now().since(self.started), holder }
            }
            error => error,
        }
    }
}
