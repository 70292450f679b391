//! Competes with all others for a lock: one try, tries that split the votes, and the wait for one that wins.

use std::pin::pin;

use leasehold_protocol::{backoff::Backoff, check::Check, failure::Failure};

use super::{Acquire, FailedAttempts, fair::QueuePlace, tell::tell_acquired, wait::wait};
use crate::{error::Error, lease::Lease, random};

/// The most retries against the same rival token in split votes: its undo may be in flight.
const SAME_SPLITS: u32 = 2;

impl Acquire {
    /// Competes with all others: asks at once, and then waits for as long as it may. A fair acquire, or one that may
    /// share, has its place in the server's queue from then on. Any other does not ask first if others of this process
    /// already wait, or if it was just tried as one of several.
    pub(super) async fn compete(&self) -> Result<Lease, Error> {
        let (engine, key, is_queued) = (&self.engine, &self.wanted.key, self.wanted.options.is_queued());
        let lines = if is_queued { &engine.queues } else { &engine.lines };
        let mut place = if is_queued { Some(Box::new(QueuePlace::new(self)?)) } else { None };
        let asks = is_queued || self.is_one_try() || !self.wanted.is_on_trial && !lines.has(key);
        let seen = match &mut place {
            Some(place) => place.check(engine.quorum.route(), !self.is_one_try()).await?,
            None if asks => self.try_once(engine.quorum.route()).await?,
            None => Err(Check::NotYet),
        };
        let lease = match seen {
            Ok(lease) => lease,
            // Boxed, like the wait below, because the lock is mostly free.
            Err(seen) if self.is_one_try() => Box::pin(self.settle(seen)).await?,
            Err(seen) if asks && self.is_over() => return Err(self.gives_up(seen)),
            Err(seen) => Box::pin(wait(self, lines, place, seen)).await?,
        };
        // The owner's other acquires are notified, and the one that polls this would stop: no await from here on.
        lease.takes_its_owner_slot();
        tell_acquired(&lease);
        Ok(lease)
    }

    /// Concludes a try with this result. When several tries at once split the nodes' votes, the lock is not held: they
    /// continue until one holds it, for a command time-out in all. A token that is always in the way is not a rival
    /// try.
    async fn settle(&self, mut seen: Check) -> Result<Lease, Error> {
        let engine = &self.engine;
        let (mut backoff, mut again) = (Backoff::new(random::jitter()), 0);
        loop {
            let pause = backoff.after(&seen);
            let other = match &seen {
                // Each attempt has a token of its own, and the token of another library is not known.
                Check::Split { holder, .. } if holder.token().is_some() && again < SAME_SPLITS => holder.clone(),
                _ => return Err(self.gives_up(seen)),
            };
            if pause >= self.limit(engine.now()) {
                return Err(self.gives_up(seen));
            }
            self.unless_ended(pin!(engine.host.sleep(pause))).await?;
            self.follow_own_releases().await;
            match self.try_once(engine.quorum.route()).await? {
                Ok(lease) => return Ok(lease),
                Err(look) => {
                    let is_same = matches!(&look, Check::Split { holder, .. } if holder.is_same(&other));
                    (seen, again) = (look, again + u32::from(is_same));
                }
            }
        }
    }

    /// The error of an acquire that has not waited.
    fn gives_up(&self, look: Check) -> Error {
        self.tell_busy(&look);
        self.over(look)
    }

    /// Why an earlier attempt of this acquire has failed, if its token still has the lock.
    fn is_in_its_own_way(&self, look: &Check) -> Option<Failure> {
        let Check::Held { holder, .. } = look else { return None };
        let failed = self.failed.lock();
        let FailedAttempts(failed) = failed.as_deref()?;
        let (_, failure) = failed.iter().find(|(token, _)| holder.whole_token() == Some(token))?;
        Some(failure.clone())
    }

    /// The error at the end of a wait, from its last check.
    pub(super) fn over(&self, look: Check) -> Error {
        if let Some(failure) = self.is_in_its_own_way(&look) {
            return Error::of(failure);
        }
        match look {
            Check::Failed(failure) => Error::of(failure),
            Check::NotYet => Error::unanswered(),
            Check::Held { holder, .. } | Check::Split { holder, .. } => Error::TimedOut {
                name: self.wanted.key.name().into(),
                waited: self.engine.now().since(self.started),
                holder: Box::new(self.engine.watchdog.recognize(&self.wanted.key, holder)),
            },
        }
    }
}
