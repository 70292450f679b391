//! What to acquire, and how long to wait for it.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use tokio::sync::SemaphorePermit;
use tracing::Instrument as _;

use crate::{
    clock::Time,
    error::{AcquireError, Error, RunError},
    fence::Fence,
    holder::Holder,
    jitter::Jitter,
    key::Key,
    lease::{Lease, LeaseHandle},
    node::Failure,
    owner::{Claim, Owner, Seat},
    shared::{Outcome, Shared, Wanted},
    status::Signal,
    wait::{Backoff, Look, Waiter},
    watchdog::{Answer, Entry, Hold},
};

/// Shortest and longest TTL.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);

/// What is left of a wait may be too short for any server's answer; a look gets at least this.
const SHORTEST_LOOK: Duration = Duration::from_millis(15);

/// A named lock with its options. It holds nothing yet: [`acquire`](Self::acquire) gives a [`Lease`].
///
/// The setters consume and return it, and never fail: a bad value makes every acquire
/// [`Refused`](AcquireError::Refused) before anything is sent. Cheap to clone and to keep.
#[derive(Clone)]
#[must_use = "a lock holds nothing until it is acquired"]
pub struct Lock {
    shared: Arc<Shared>,
    name: Arc<str>,
    ttl: Duration,
    max_hold: Option<Duration>,
    reentrant: bool,
    owner: Owner,
    on_wait: Option<OnWait>,
}

type OnWait = Arc<dyn Fn(&Holder) + Send + Sync>;

/// How long an acquire waits.
#[derive(Debug, Clone, Copy)]
enum Patience {
    /// One try.
    None,
    Within(Duration),
    Unlimited,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, name: &str) -> Self {
        let (ttl, max_hold) = (shared.options.ttl, shared.options.max_hold);
        Self { shared, name: name.into(), ttl, max_hold, reentrant: false, owner: Owner::task(), on_wait: None }
    }

    /// The lock's name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long the key lives without a renewal, 100 ms to a day; the builder's, 30 s, unless set here.
    ///
    /// It is how long the others wait after this process has died, and how long an outage may last before a lease is
    /// lost. It does not bound the job: the watchdog renews.
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
    /// It must be asked for both times. It is not the default because an owner is a *task*: all branches of `join!`,
    /// `select!` and `buffer_unordered`, and a dispatcher that acquires and hands the leases to workers, would be let in
    /// together.
    pub fn reentrant(mut self, reentrant: bool) -> Self {
        self.reentrant = reentrant;
        self
    }

    /// As whom to acquire; [`Owner::task`] unless set.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = owner;
        self
    }

    /// Is called while an acquire waits: at first, and again when the lock has changed hands. It runs inside the acquire,
    /// so it should be quick.
    pub fn on_wait(mut self, tell: impl Fn(&Holder) + Send + Sync + 'static) -> Self {
        self.on_wait = Some(Arc::new(tell));
        self
    }

    /// Acquires the lock, waiting for as long as it takes: for other holders, and through outages of the server.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Refused`] if it can never work (a bad name or option, a wrong password, a missing right),
    /// [`AcquireError::AlreadyHeld`] instead of waiting for oneself, [`AcquireError::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the place up. What it may have acquired is released in the background; nothing is left
    /// in Redis after that, or at the very latest one TTL later.
    pub fn acquire(&self) -> impl Future<Output = Result<Lease, AcquireError>> + Send + use<> {
        self.clone().acquire_or_wait(Patience::Unlimited)
    }

    /// Acquires the lock, waiting for at most `limit`, exact to 20 ms. Zero is one try.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`AcquireError::TimedOut`] with the holder if the lock was held at the last look,
    /// [`AcquireError::Unavailable`] if the last look had no answer.
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

    /// Who holds the lock now, ourselves included; `None` if nobody does.
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
        Ok(self.shared.node.holder(&key, self.shared.options.command_timeout).await?)
    }

    /// Deletes the lock's key **whoever holds it**, and says whether there was one. Its holder finds out by its next
    /// renewal at the latest; until then two may believe that they hold the lock. For operators, after a holder that
    /// will certainly not come back.
    ///
    /// # Errors
    ///
    /// The server cannot be reached; or the key is not a string, so not a lock, and is left alone.
    ///
    /// # Cancel safety
    ///
    /// Dropping it may or may not have deleted the key.
    pub async fn force_release(&self) -> Result<bool, Error> {
        let key = self.key()?;
        let released = self.shared.node.force_release(&key, self.shared.options.command_timeout).await?;
        self.shared.lines.freed(&key);
        Ok(released)
    }

    fn key(&self) -> Result<Key, Error> {
        if self.shared.closed.is_cancelled() {
            return Err(Error::closed());
        }
        Key::new(&self.shared.options.prefix, &self.name)
    }

    async fn acquire_or_wait(self, patience: Patience) -> Result<Lease, AcquireError> {
        let span = tracing::debug_span!(target: "leasehold", "acquire", lock = &*self.name);
        let wanted = self.wanted()?;
        let started = self.shared.now();
        let until = match patience {
            Patience::Unlimited => Time::NEVER,
            Patience::Within(limit) => started + limit,
            Patience::None => started,
        };
        let acquire = Acquire { lock: &self, wanted, started, until, waits: !matches!(patience, Patience::None) };
        acquire.run().instrument(span).await
    }

    /// Everything that can be refused without asking anybody.
    fn wanted(&self) -> Result<Wanted, AcquireError> {
        if self.shared.closed.is_cancelled() {
            return Err(AcquireError::Closed);
        }
        check_times(self.ttl, self.max_hold).map_err(AcquireError::Refused)?;
        let key = Key::new(&self.shared.options.prefix, &self.name).map_err(AcquireError::Refused)?;
        Ok(Wanted { key, ttl: self.ttl, max_hold: self.max_hold })
    }
}

/// The bounds that hold for a lock as for the builder.
pub(crate) fn check_times(ttl: Duration, max_hold: Option<Duration>) -> Result<(), Error> {
    if !TTL.contains(&ttl) {
        let (least, most) = (TTL.start(), TTL.end());
        return Err(Error::config(format!("ttl is {ttl:?}: it must be from {least:?} to {most:?}")));
    }
    match max_hold {
        Some(max_hold) if max_hold < ttl => {
            Err(Error::config(format!("max_hold is {max_hold:?}: it must be at least the ttl, {ttl:?}")))
        }
        _ => Ok(()),
    }
}

/// One acquire under way.
struct Acquire<'a> {
    lock: &'a Lock,
    wanted: Wanted,
    started: Time,
    until: Time,
    waits: bool,
}

impl Acquire<'_> {
    async fn run(self) -> Result<Lease, AcquireError> {
        let shared = &self.lock.shared;
        let Some(owner) = self.lock.owner.resolve() else { return self.compete(None).await };
        loop {
            match shared.owners.claim(owner, &self.wanted.key, self.lock.reentrant) {
                Claim::Free(seat) => return self.compete(Some(seat)).await,
                Claim::Held(hold, seat) => {
                    if let Some(lease) = self.enter(hold, seat).await? {
                        return Ok(lease);
                    }
                }
                Claim::Pending(changed) if self.waits => {
                    let ended = tokio::select! {
                        biased;
                        () = changed => continue,
                        ended = self.end() => ended,
                    };
                    return Err(ended.unwrap_or_else(|| self.already_held(true)));
                }
                Claim::Pending(_) => return Err(self.already_held(true)),
                Claim::Refused { pending } => return Err(self.already_held(pending)),
            }
        }
    }

    /// Shares an acquisition of our own. `None`: it has ended, start over.
    async fn enter(&self, hold: Arc<Hold>, seat: Arc<Seat>) -> Result<Option<Lease>, AcquireError> {
        let shared = &self.lock.shared;
        let mut backoff = Backoff::new(Jitter::new());
        loop {
            let now = shared.now();
            let (entry, orders) = hold.enter(now);
            shared.watchdog.obey(&hold, orders);
            match entry {
                Entry::Shared(signal) => return Ok(Some(Lease::new(shared.clone(), hold, signal, Some(seat)))),
                Entry::Over => return Ok(None),
                Entry::AtRisk => {}
            }
            // At risk: not before a renewal has gone through.
            let limit = self.limit(now);
            let answers = shared.node.renew(shared.node.lane(), &[hold.renewal()], limit).await;
            let answer =
                answers.as_ref().ok().and_then(|answers| answers.first()).map_or(Answer::Unclear, Answer::read);
            shared.watchdog.answered(&hold, now, answer);
            match answers {
                Err(failure) if self.is_over() => return Err(AcquireError::Unavailable(failure.into())),
                Err(_) => self.pause(None, &mut backoff).await?,
                Ok(_) => {}
            }
        }
    }

    /// Competes with everybody else: asks at once unless others of this process wait already.
    async fn compete(&self, seat: Option<Arc<Seat>>) -> Result<Lease, AcquireError> {
        let shared = &self.lock.shared;
        let mut look = Look::NotYet;
        if !self.waits || !shared.lines.has(&self.wanted.key) {
            look = match self.try_once().await? {
                Ok(lease) => return Ok(lease.seated(seat)),
                Err(look) => look,
            };
            if self.is_over() {
                return Err(self.over(look));
            }
        }
        let waiter = shared.lines.join(&self.wanted.key);
        let mut told = Told::default();
        if !matches!(look, Look::NotYet) {
            self.tell(&look, &mut told);
            waiter.saw(look);
        }
        let _turn = self.stand_in_line(&waiter, &mut told).await?;
        let mut backoff = Backoff::new(Jitter::new());
        loop {
            let look = match self.try_once().await? {
                Ok(lease) => return Ok(lease.seated(seat)),
                Err(look) => look,
            };
            self.tell(&look, &mut told);
            waiter.saw(look.clone());
            if self.is_over() {
                return Err(self.over(look));
            }
            tokio::select! {
                biased;
                () = waiter.freed() => {}
                paused = self.pause(look.expires_in(), &mut backoff) => paused?,
            }
        }
    }
}

impl Acquire<'_> {
    /// One attempt. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn try_once(&self) -> Result<Result<Won, Look>, AcquireError> {
        let shared = &self.lock.shared;
        let closed = shared.closed.cancelled();
        let outcome = tokio::select! {
            biased;
            outcome = shared.attempt(&self.wanted, self.limit(shared.now())) => outcome,
            () = closed => return Err(AcquireError::Closed),
        };
        match outcome {
            Outcome::Won(hold, signal) => {
                let won = Won { shared: shared.clone(), hold, signal };
                // `close` has seen every hold that was there before it was called, and this sees that it was.
                if shared.closed.is_cancelled() {
                    drop(won.seated(None));
                    return Err(AcquireError::Closed);
                }
                Ok(Ok(won))
            }
            Outcome::Busy(holder) => Ok(Err(Look::Held(holder))),
            Outcome::Failed(failure) if failure.is_refusal() => Err(AcquireError::Refused(failure.into())),
            Outcome::Failed(failure) => Ok(Err(Look::Failed(failure))),
        }
    }

    /// Waits until everybody before us has gone, telling what they see.
    async fn stand_in_line<'w>(
        &self,
        waiter: &'w Waiter<'_>,
        told: &mut Told,
    ) -> Result<SemaphorePermit<'w>, AcquireError> {
        let mut looks = waiter.looks();
        let mut turn = pin!(waiter.turn());
        let mut end = pin!(self.end());
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return Ok(turn),
                ended = &mut end => {
                    let look = looks.borrow_and_update().clone();
                    return Err(ended.unwrap_or_else(|| self.over(look)));
                }
                Ok(()) = looks.changed() => {
                    let look = looks.borrow_and_update().clone();
                    self.tell(&look, told);
                }
            }
        }
    }

    /// Leaves the server alone for a while; an error if the acquire ends meanwhile.
    async fn pause(&self, expires_in: Option<Duration>, backoff: &mut Backoff) -> Result<(), AcquireError> {
        let shared = &self.lock.shared;
        let left = self.until.since(shared.now());
        let pause = backoff.next(expires_in).min(left);
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => Err(AcquireError::Closed),
            () = shared.host.sleep(pause) => Ok(()),
        }
    }

    /// Completes when the acquire must end without its turn having come: `None` when its time is over.
    async fn end(&self) -> Option<AcquireError> {
        let shared = &self.lock.shared;
        let over = async {
            while !self.is_over() {
                shared.host.sleep(self.until.since(shared.now())).await;
            }
        };
        tokio::select! {
            biased;
            () = shared.closed.cancelled() => Some(AcquireError::Closed),
            () = over => None,
        }
    }

    fn is_over(&self) -> bool {
        self.lock.shared.now() >= self.until
    }

    /// How long one look may take: a command time-out, less when the wait ends before.
    fn limit(&self, now: Time) -> Duration {
        let most = self.lock.shared.options.command_timeout;
        if self.until == self.started { most } else { self.until.since(now).max(SHORTEST_LOOK).min(most) }
    }

    /// The end of a wait, from its last look.
    fn over(&self, look: Look) -> AcquireError {
        match look {
            Look::Failed(failure) => AcquireError::Unavailable(failure.into()),
            Look::NotYet => {
                AcquireError::Unavailable(Failure::unavailable("the wait ended before the server had answered").into())
            }
            Look::Held(holder) => AcquireError::TimedOut {
                name: self.lock.name.to_string(),
                waited: self.lock.shared.now().since(self.started),
                holder: Box::new(holder),
            },
        }
    }

    fn already_held(&self, pending: bool) -> AcquireError {
        AcquireError::AlreadyHeld { name: self.lock.name.to_string(), pending }
    }

    /// Tells the log and the program whom we wait for, when that is news.
    fn tell(&self, look: &Look, told: &mut Told) {
        let lock = &*self.lock.name;
        match look {
            Look::NotYet => {}
            Look::Failed(failure) => {
                tracing::warn!(name: "wait", target: "leasehold", lock, %failure, "waiting for the server");
                *told = Told::default();
            }
            Look::Held(holder) if told.is(holder) => {}
            Look::Held(holder) => {
                tracing::info!(name: "wait", target: "leasehold", lock, holder = holder.label(), remaining = ?holder.remaining(), "waiting for {holder}");
                if let Some(on_wait) = &self.lock.on_wait {
                    on_wait(holder);
                }
                *told = Told(Some((holder.token().map(Into::into), holder.fence())));
            }
        }
    }
}

/// The holder that was last told about.
#[derive(Debug, Default)]
struct Told(Option<(Option<Box<str>>, Option<Fence>)>);

impl Told {
    fn is(&self, holder: &Holder) -> bool {
        self.0.as_ref().is_some_and(|(token, fence)| token.as_deref() == holder.token() && *fence == holder.fence())
    }
}

/// A won attempt on its way to be a lease.
struct Won {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
    signal: Arc<Signal>,
}

impl Won {
    fn seated(self, seat: Option<Arc<Seat>>) -> Lease {
        let Self { shared, hold, signal } = self;
        if let Some(seat) = &seat {
            seat.hold(&hold);
        }
        let (lock, label) = (hold.key.name(), hold.token.label());
        tracing::debug!(name: "acquired", target: "leasehold", lock, label, fence = u64::from(hold.fence));
        Lease::new(shared, hold, signal, seat)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .field("max_hold", &self.max_hold)
            .field("reentrant", &self.reentrant)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
