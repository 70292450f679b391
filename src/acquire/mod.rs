//! One acquire from its start to its lease: its owner, its connection, and the time that it has.

use std::{collections::VecDeque, pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    backoff::Backoff,
    failure::Failure,
    holder::Holder,
    key::Key,
    message::{Claim, ReleaseMode},
    mode,
    outliving::Outliving,
    time::Time,
    token::Token,
    troubles::causes_of_absence,
    wait_loop::SHORTEST_CHECK,
};

use crate::{
    clock::stood_still,
    engine::Engine,
    error::Error,
    held::{Hold, SharedEntry, retained},
    lease::Lease,
    options::{LockOptions, Names, check_grace},
    owner::{Owner, OwnerId},
    random,
    reentry::{OwnerSlot, Reentry},
    sync::Mutex,
};

mod adopt;
mod attempt;
mod compete;
mod fair;
mod in_place;
mod taken;
mod tell;
mod wait;

/// The number of attempts that are remembered while they wait for their undoing.
const FAILED: usize = 4;

/// Attempts that may have won without an answer, the last one first.
#[derive(Default)]
struct FailedAttempts(VecDeque<(Token, Failure)>);

/// The program's own function, which receives the holder.
pub(crate) type OnWait = Arc<dyn Fn(&Holder) + Send + Sync>;

/// How long an acquire waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// One try.
    None,
    Within(Duration),
    Unlimited,
}

impl Patience {
    /// Whether it is for one try, which does not wait.
    pub(crate) fn is_one_try(self) -> bool {
        matches!(self, Self::None | Self::Within(Duration::ZERO))
    }

    /// The end of a wait that started at `started`.
    pub(crate) fn until(self, started: Time) -> Time {
        match self {
            Self::None => started,
            Self::Within(limit) => started + limit,
            Self::Unlimited => Time::NEVER,
        }
    }
}

/// The lock to acquire and the settings of its lease, checked before any I/O.
pub(crate) struct AcquireSpec {
    pub(crate) key: Key,
    /// The prefix and the label of the lock; `None` for those of the builder.
    pub(crate) names: Option<Arc<Names>>,
    pub(crate) options: LockOptions,
    pub(crate) owner: Owner,
    pub(crate) reentrant: bool,
    /// How long the key stays from the acquire on, whenever the lease is released.
    pub(crate) keep_for: Duration,
    pub(crate) once_per: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) on_wait: Option<OnWait>,
    /// Whether no job runs under the lease before others are acquired too.
    pub(crate) is_on_trial: bool,
}

/// One acquire under way.
pub(crate) struct Acquire {
    engine: Arc<Engine>,
    wanted: AcquireSpec,
    /// The owner, once it is known.
    owner: Option<OwnerId>,
    /// That owner's slot for this lock, if it may enter again.
    owner_slot: Option<Arc<OwnerSlot>>,
    started: Time,
    until: Time,
    /// The tokens of the last attempts that may have won without an answer, and why they failed. Until it is undone,
    /// such a token may be what has the lock.
    failed: Mutex<Option<Box<FailedAttempts>>>,
}

impl Acquire {
    pub(crate) fn new(engine: Arc<Engine>, wanted: AcquireSpec, patience: Patience) -> Self {
        // A try begins with its first poll.
        let started = if matches!(patience, Patience::None) { Time::ZERO } else { engine.now() };
        let until = patience.until(started);
        Self { engine, wanted, owner: None, owner_slot: None, started, until, failed: Mutex::default() }
    }

    /// Runs it to its end. The owner is whoever polls this first.
    pub(crate) async fn run(&mut self) -> Result<Lease, Error> {
        self.owner = self.wanted.owner.resolve();
        self.begin();
        // Boxed, so that no other acquire pays for these.
        if !self.engine.is_connected() {
            Box::pin(self.connect()).await?;
            self.begin();
        }
        self.follow_own_releases().await;
        let lease = match self.owner.filter(|_| self.wanted.reentrant) {
            None => self.compete().await?,
            Some(owner) => self.compete_or_share(owner).await?,
        };
        if !self.wanted.is_on_trial {
            lease.keep_for(self.wanted.keep_for);
        }
        Ok(lease)
    }

    /// Acquires it for an owner that may have it already.
    async fn compete_or_share(&mut self, owner: OwnerId) -> Result<Lease, Error> {
        loop {
            match self.engine.owners.enter(owner, &self.wanted.key, self.engine.now()) {
                Reentry::Free(owner_slot) => {
                    self.owner_slot = Some(owner_slot.clone());
                    tokio::select! {
                        biased;
                        () = owner_slot.won() => {}
                        outcome = self.compete() => return outcome,
                    }
                }
                Reentry::Held(hold, _) if hold.claim.mode.is_shared() && !self.wanted.options.mode().is_shared() => {
                    let name = self.wanted.key.name();
                    return Err(Error::misuse(format!(
                        "this owner shares {name:?}: release that first, for two that share it and want it alone would \
                         wait for each other"
                    )));
                }
                Reentry::Held(hold, _)
                    if hold.claim.mode.is_shared()
                        && mode::permits(hold.claim.mode) < mode::permits(self.wanted.options.mode()) =>
                {
                    return Err(Error::misuse(format!(
                        "this owner shares {:?} for {} of its permits, and cannot take {}: take all at the first acquire",
                        self.wanted.key.name(),
                        mode::permits(hold.claim.mode),
                        self.wanted.options.take
                    )));
                }
                Reentry::Held(hold, owner_slot) => {
                    self.owner_slot = Some(owner_slot);
                    if let Some(lease) = self.share(&hold).await? {
                        return Ok(lease);
                    }
                }
            }
        }
    }

    /// A token of its own, which carries the holder's label.
    fn token(&self) -> Token {
        let label = self.wanted.names.as_ref().map_or(&self.engine.options.label, |names| &names.label);
        random::token(label).taking(mode::permits(self.wanted.options.mode()))
    }

    fn is_one_try(&self) -> bool {
        self.until == self.started
    }

    /// Starts the time of a try: all of it is for the lock, however long ago the call was made.
    fn begin(&mut self) {
        if self.is_one_try() {
            self.started = self.engine.now();
            self.until = self.started;
        }
    }

    /// Makes the first connection, for as long as this waits.
    async fn connect(&self) -> Result<(), Error> {
        let engine = &self.engine;
        let (mut backoff, mut last) = (Backoff::new(random::jitter()), None);
        loop {
            let left = self.until.since(engine.now());
            let outcome = tokio::select! {
                biased;
                () = engine.ended.cancelled() => return Err(engine.end()),
                outcome = engine.connect() => outcome,
                () = engine.host.sleep(left), if !self.is_one_try() && self.until != Time::NEVER => {
                    let unknown = || Error::unavailable("the wait ended before the server could be reached");
                    return Err(last.map_or_else(unknown, Error::Unavailable));
                }
            };
            match outcome {
                Err(Error::Unavailable(why)) if !self.is_over() => {
                    self.tell_outage(causes_of_absence(&why.to_string(), why.votes()), &why);
                    last = Some(why);
                    self.pause(backoff.next(None)).await?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits for this process's own releases: of leases and acquires that were dropped, and of attempts of unknown
    /// outcome. So its next attempt is not refused because of its own tokens. If they get no answer, the lock may be
    /// free all the same, so half of the time is left to check.
    async fn follow_own_releases(&self) {
        let engine = &self.engine;
        let few = engine.quorum.len() - engine.quorum.majority();
        if engine.watchdog.own_releases.are_on_more_than(few, &self.wanted.key) {
            let over = engine.watchdog.own_releases.over(&self.wanted.key, few);
            let wait = async {
                tokio::select! {
                    biased;
                    () = over => {}
                    () = engine.ended.cancelled() => {}
                    () = engine.host.sleep(self.limit(engine.now()) / 2) => {}
                }
            };
            // Boxed, so that no other acquire pays for this.
            Box::pin(wait).await;
        }
    }

    /// Shares an acquisition of this owner. `None` if it has ended: start over.
    async fn share(&self, hold: &Arc<Hold>) -> Result<Option<Lease>, Error> {
        let engine = &self.engine;
        let (mut backoff, mut last, mut is_confirmed) = (Backoff::new(random::jitter()), None, false);
        loop {
            let now = engine.now();
            let (entry, reaction) = hold.enter(now);
            engine.watchdog.execute(hold, reaction);
            match entry {
                SharedEntry::Shared(signal) => {
                    let (owner_slot, grace) = (self.owner_slot.clone(), self.wanted.grace);
                    let lease = Lease::new(engine.clone(), hold.clone(), signal, owner_slot, grace);
                    // Its TTL is that of the acquire that won it.
                    check_grace(grace, hold.claim.ttl)?;
                    return Ok(Some(lease));
                }
                SharedEntry::Over => return Ok(None),
                SharedEntry::AtRisk => {}
            }
            // At risk or on trial: it is shared only after a renewal has succeeded. Its owner works, so it makes progress.
            engine.watchdog.progress(hold);
            let limit = self.limit(now);
            let renewed = engine.watchdog.lengthen(hold, limit).await;
            if hold.is_over() {
                return Ok(None);
            }
            match renewed {
                // The hold is looked at once more, also by a try.
                Ok(()) if !std::mem::replace(&mut is_confirmed, true) => continue,
                Ok(()) => {}
                Err(failure) => last = Some(self.telling(limit, failure, last)),
            }
            if self.is_over() {
                return Err(last.map_or_else(Error::unanswered, Error::of));
            }
            // Even a confirmation changes nothing while the clock stands still.
            self.pause(backoff.next(None)).await?;
        }
    }

    /// How much longer the key lives than the lease, once the work under it has begun.
    fn outliving(&self) -> Outliving {
        Outliving::new(self.wanted.options.lock_delay, self.wanted.once_per.unwrap_or_default())
    }

    /// How the token of a lease that was to continue another one is taken back: the key stays for `keep`, and for the
    /// rest of the interval.
    fn leaves(&self, token: &Token, keep: Duration) -> ReleaseMode {
        retained(keep.max(self.wanted.once_per.unwrap_or_default()), token)
    }

    /// The claim of an attempt with this token.
    fn claim(&self, token: Token) -> Claim {
        let LockOptions { ttl, fence_memory, .. } = self.wanted.options;
        let outliving = if self.wanted.is_on_trial { self.outliving().brief() } else { self.outliving() };
        let life = outliving.life(ttl, Duration::ZERO);
        Claim {
            key: self.wanted.key.clone(),
            token,
            mode: self.wanted.options.mode(),
            ttl,
            life,
            fence: None,
            fence_memory,
        }
    }

    /// Pauses between requests, at most until our time has passed; an error if the acquire ends meanwhile.
    async fn pause(&self, pause: Duration) -> Result<(), Error> {
        let pause = pause.min(self.until.since(self.engine.now()));
        // Even a timer of zero takes a millisecond, which is ten times what a call takes to get here.
        if pause.is_zero() { self.may_begin() } else { self.unless_ended(pin!(self.engine.host.sleep(pause))).await }
    }

    /// Notes a failed attempt, which may have won without an answer.
    fn note_failed(&self, token: Token, failure: Failure) {
        let mut failed = self.failed.lock();
        let FailedAttempts(failed) = &mut **failed.get_or_insert_default();
        failed.truncate(FAILED - 1);
        failed.push_front((token, failure));
    }

    /// Why the last attempt has failed.
    fn last_failure(&self) -> Option<Failure> {
        Some(self.failed.lock().as_ref()?.0.front()?.1.clone())
    }

    /// The more telling one of a failure and the one before it: the end of the wait may have cut the later one short.
    fn telling(&self, limit: Duration, failure: Failure, before: Option<Failure>) -> Failure {
        let is_cut_short = limit < self.engine.options.command_timeout / 2 && failure.is_silence();
        before.filter(|_| is_cut_short).unwrap_or(failure)
    }

    fn is_over(&self) -> bool {
        self.engine.now() >= self.until
    }

    /// How long one check may take: a command time-out, or less if the wait ends sooner. A try has one for all its
    /// checks.
    fn limit(&self, now: Time) -> Duration {
        let (most, is_one_try) = (self.engine.options.command_timeout, self.is_one_try());
        let until = if is_one_try { self.started + most } else { self.until };
        // A process that stood still between two steps has used no time for the lock.
        if is_one_try && stood_still(now, until) {
            return most;
        }
        until.since(now).max(SHORTEST_CHECK).min(most)
    }
}

#[cfg(all(test, not(leasehold_shuttle)))]
mod tests;
