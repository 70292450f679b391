//! Shared locks: the sharers, and until when each of them counts.

use std::{collections::BTreeMap, time::Duration};

use super::{Forced, Notified, Store, StoredLock};
use crate::{
    fence::Fence,
    holder::{Holder, RELEASED},
    key::Key,
    message::{Claim, Denial, Owned, Sharers},
    mode::token_of_a_phase,
    time::{Micros, micros},
    token::Token,
};

/// The contents of a lock's key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Held {
    Alone(StoredLock),
    Shared(Box<Phase>),
}

/// A period in which a lock is shared.
///
/// 1. A sharer counts until its time has passed, as many as it takes permits. When another is admitted, those that have
///    expired are removed, so that they do not return when the clock goes back.
/// 2. The lock's key and the places outlive every sharer. They are written when less than a TTL of either is left. Once
///    no sharer outlives one that was released and stays, they live no longer than that one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Phase {
    pub(super) fence: Fence,
    /// The end of the lock's key.
    until: Micros,
    places: BTreeMap<Token, Micros>,
    /// The end of the places' own key; zero while it has none.
    places_until: Micros,
}

impl Held {
    pub(super) fn until(&self) -> Micros {
        match self {
            Self::Alone(lock) => lock.until,
            Self::Shared(phase) => phase.until,
        }
    }

    pub(super) fn set_until(&mut self, until: Micros) {
        match self {
            Self::Alone(lock) => lock.until = until,
            Self::Shared(phase) => phase.until = until,
        }
    }

    /// The lock, if it is held alone.
    pub(super) fn alone(&mut self) -> Option<&mut StoredLock> {
        match self {
            Self::Alone(lock) => Some(lock),
            Self::Shared(_) => None,
        }
    }

    pub(super) fn token_and_fence(&self) -> (Token, Fence) {
        match self {
            Self::Alone(lock) => (lock.token.clone(), lock.fence),
            Self::Shared(phase) => (token_of_a_phase(), phase.fence),
        }
    }
}

impl Phase {
    pub(super) fn begun(now: Micros, fence: Fence, token: Token, span: Duration) -> Self {
        let until = now + micros(span);
        Self { fence, until, places: BTreeMap::from([(token, until)]), places_until: until }
    }

    /// The number of sharers.
    pub(super) fn sharers(&self, now: Micros) -> u32 {
        u32::try_from(self.ends(now).count()).unwrap_or(u32::MAX)
    }

    /// The number of permits that are taken.
    pub(super) fn permits(&self, now: Micros) -> u32 {
        self.ends(now).fold(0, |all, (token, _)| all.saturating_add(token.permits().get()))
    }

    /// The sharers, and until when each counts.
    fn ends(&self, now: Micros) -> impl Iterator<Item = (&Token, Micros)> {
        let are_there = self.places_until > now;
        self.places.iter().map(|(token, until)| (token, *until)).filter(move |(_, until)| are_there && *until >= now)
    }

    pub(super) fn is_in(&self, now: Micros, token: &Token) -> bool {
        self.places_until > now && self.places.get(token).is_some_and(|until| *until >= now)
    }

    /// Keeps a current sharer for `span` from now on.
    pub(super) fn stay(&mut self, now: Micros, token: &Token, span: Duration) {
        self.places.insert(token.clone(), now + micros(span));
        self.outlive(now, span);
    }

    /// Admits a sharer beside others.
    fn join(&mut self, now: Micros, token: Token, span: Duration) {
        if self.places_until <= now {
            self.empty();
        }
        self.places.insert(token, now + micros(span));
        self.outlive(now, span);
        self.places.retain(|_, until| *until >= now);
    }

    /// Admits a sharer in the simple case, as the scripts do: there are sharers, none has expired, and each takes one
    /// permit.
    pub(super) fn join_simply(&mut self, now: Micros, token: &Token, span: Duration, limit: u32) -> Option<Fence> {
        let count = self.sharers(now);
        let all = usize::try_from(count).is_ok_and(|count| count == self.places.len());
        if !all || self.permits(now) > count || count == 0 || count >= limit {
            return None;
        }
        self.join(now, token.clone(), span);
        Some(self.fence)
    }

    /// Makes key and places outlive a sharer that was just admitted or kept. Neither ever lives for less than before.
    fn outlive(&mut self, now: Micros, span: Duration) {
        if self.until.min(self.places_until) <= now + micros(span) {
            let longer = now + longer(span);
            (self.until, self.places_until) = (self.until.max(longer), self.places_until.max(longer));
        }
    }

    /// If no sharer counts for longer than one that was released and stays, key and places live no longer than that
    /// one. Returns for how long the last place lasts, if waiters do not know that: a sharer that has gone would have been
    /// in until `before`, which is later.
    pub(super) fn end_with_the_last(&mut self, now: Micros, before: Micros) -> Option<Duration> {
        let (last, until) = self.ends(now).max_by_key(|(token, until)| (*until, token.as_str()))?;
        let is_retained = last.label().ends_with(RELEASED);
        // A whole millisecond more, the unit in which a server counts, so that they outlive it.
        let end = until + 1_000;
        if is_retained {
            (self.until, self.places_until) = (self.until.min(end), self.places_until.min(end));
        }
        (before > until).then(|| Duration::from_micros(end - now))
    }

    /// Makes the lock's key outlive one sharer.
    fn outlive_alone(&mut self, now: Micros, span: Duration) {
        if self.until <= now + micros(span) {
            self.until = now + longer(span);
        }
    }

    /// Keeps a current sharer for `span` from now on, going by the places' own key; for zero it only checks it.
    pub(super) fn extend(&mut self, now: Micros, token: &Token, span: Duration) -> Owned {
        if !self.is_in(now, token) {
            self.part(now, token);
            return Err(Denial::Gone);
        }
        if !span.is_zero() {
            self.places.insert(token.clone(), now + micros(span));
            self.places_until = self.places_until.max(now + longer(span));
        }
        Ok(())
    }

    /// Removes a sharer. Returns until when it would have been in, if it was.
    pub(super) fn part(&mut self, now: Micros, token: &Token) -> Option<Micros> {
        let was_in = self.is_in(now, token);
        let until = self.places.remove(token);
        if self.places.is_empty() {
            self.empty();
        }
        until.filter(|_| was_in)
    }

    /// Deletes the key of the places.
    pub(super) fn empty(&mut self) {
        self.places.clear();
        self.places_until = 0;
    }

    /// When the first place becomes free; with a limit of zero, which is for the lock alone, when all are.
    pub(super) fn ends_for(&self, now: Micros, limit: u32) -> Micros {
        let ends = self.ends(now).map(|(_, until)| until);
        if limit == 0 { ends.max() } else { ends.min() }.unwrap_or(now)
    }
}

/// How long key and places live after a sharer was admitted or kept: in whole milliseconds, as a server counts.
fn longer(span: Duration) -> Micros {
    (micros(span) * 4).div_ceil(3_000) * 1_000
}

impl Store {
    /// Makes the lock's key outlive one sharer, if it is the key of that sharer's phase.
    pub(super) fn extend_phase(&mut self, now: Micros, Claim { key, life, fence, .. }: &Claim) -> Owned {
        let phase = self.shared(now, key)?;
        if Some(phase.fence) != *fence {
            return Err(Denial::Taken);
        }
        phase.outlive_alone(now, *life);
        Ok(())
    }

    /// Admits a token that fits: alone, or beside sharers that take `count` permits.
    pub(super) fn let_in(&mut self, now: Micros, key: &Key, one: Entrant, count: Option<u32>) -> Fence {
        let Entrant { token, span, fence_memory, limit } = one;
        if limit == 0 {
            return self.grant(now, key, token, span, None, fence_memory);
        }
        if count != Some(0) {
            if let Some(Held::Shared(phase)) = self.lock(now, key) {
                phase.join(now, token, span);
                return phase.fence;
            }
        }
        let fence = self.issue(now, key, now, fence_memory);
        self.locks.insert(key.clone(), Held::Shared(Box::new(Phase::begun(now, fence, token, span))));
        fence
    }

    /// Gives a share that is still the token's its full life; never restores one (rule 7).
    pub(super) fn renew_share(&mut self, now: Micros, claim: &Claim) -> Owned {
        let is_of = |forced: &&Forced| forced.from.is_of_a_phase() && Some(forced.fence) == claim.fence;
        let forced = self.forced.get(&claim.key).filter(|forced| forced.until > now).filter(is_of);
        let by = forced.map(|forced| forced.by.clone());
        self.extend_share(now, claim).map_err(|denial| by.map_or(denial, Denial::Forced))
    }

    fn extend_share(&mut self, now: Micros, Claim { key, token, life, fence, .. }: &Claim) -> Owned {
        let phase = self.shared(now, key)?;
        if fence.is_some_and(|fence| fence != phase.fence) {
            // It is a later phase, which the token may have entered again from a queue.
            return Err(Denial::Gone);
        }
        if !phase.is_in(now, token) {
            phase.part(now, token);
            return Err(Denial::Gone);
        }
        if !life.is_zero() {
            phase.stay(now, token, *life);
        }
        Ok(())
    }

    /// Replaces a sharer by another one, which stays for a time. The first waiter was told of a later end.
    pub(super) fn retain_share(
        &mut self,
        now: Micros,
        Claim { key, token, .. }: &Claim,
        keep: Duration,
        stays: &Token,
        reached: &dyn Fn(&str) -> bool,
    ) -> Result<Option<Notified>, Denial> {
        let phase = self.shared(now, key)?;
        if phase.is_in(now, stays) {
            return Ok(None);
        }
        if !phase.is_in(now, token) {
            phase.part(now, token);
            return Err(Denial::Gone);
        }
        phase.places.insert(stays.clone(), now + micros(keep));
        phase.places.remove(token);
        phase.outlive(now, keep);
        phase.end_with_the_last(now, 0);
        let ends = keep + Duration::from_millis(1);
        Ok(self.live_queue(now, key).and_then(|queue| queue.call_first(ends, reached)))
    }

    /// The phase of a shared lock.
    pub(super) fn shared(&mut self, now: Micros, key: &Key) -> Result<&mut Phase, Denial> {
        match self.lock(now, key).ok_or(Denial::Gone)? {
            Held::Shared(phase) => Ok(phase),
            Held::Alone(_) => Err(Denial::Taken),
        }
    }

    /// The holder of a lock, and its first sharers. The holder's remaining time is that of the last sharer.
    pub(super) fn sharers(&mut self, now: Micros, key: &Key, most: usize) -> Option<Sharers> {
        let holder = self.holder(now, key)?;
        let Ok(phase) = self.shared(now, key) else { return Some(Sharers { holder, first: Vec::new() }) };
        let (count, mut ends) = (phase.sharers(now), phase.ends(now).collect::<Vec<_>>());
        ends.sort_by_key(|(token, until)| (*until, token.as_str()));
        let left = |until: Micros| Some(Duration::from_micros(until.saturating_sub(now)));
        let holder = match ends.last() {
            Some((_, until)) => holder.lasting(left(*until)),
            None => holder,
        };
        let of =
            |(token, until): (&Token, Micros)| Holder::of_share(Some(token.clone()), left(until), Some(phase.fence));
        let first = ends.into_iter().take(most).map(of).collect();
        Some(Sharers { holder: holder.shared_by(count), first })
    }

    /// Loses the places of a lock's sharers: for tests.
    pub fn lose_places(&mut self, now: Micros, key: &Key) {
        if let Ok(phase) = self.shared(now, key) {
            phase.empty();
        }
    }

    /// The end of a lock's key, and its sharers' places: for tests. Each key is read, so that what has expired is
    /// removed, and does not return when the clock goes back.
    pub fn ends(&mut self, now: Micros, key: &Key) -> Option<(Micros, Vec<(Token, Micros)>)> {
        self.floors.sweep(now);
        self.forced.retain(|_, forced| forced.until > now);
        let held = self.lock(now, key)?;
        let until = held.until();
        let places = match held {
            Held::Shared(phase) if phase.places_until > now => {
                phase.places.iter().map(|(token, until)| (token.clone(), *until)).collect()
            }
            _ => Vec::new(),
        };
        Some((until, places))
    }
}

/// A token that is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entrant {
    pub(super) token: Token,
    pub(super) span: Duration,
    pub(super) fence_memory: Duration,
    /// How many may be taken: see [`limit`](crate::mode::limit).
    pub(super) limit: u32,
}

/// Whether a token with this limit may be admitted while `count` permits are taken; `None` if the lock is held alone.
pub(super) fn fits(count: Option<u32>, limit: u32) -> bool {
    count.is_some_and(|count| count == 0 || count < limit)
}

#[cfg(test)]
mod tests;
