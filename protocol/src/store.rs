//! A server as a pure function of its contents, the time and the request.

use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use crate::{
    failure::Failure,
    fence::{self, Fence},
    forced::ForcedRelease,
    glob,
    hash::HashMap,
    holder::Holder,
    key::Key,
    message::{
        AcquireRequest, Acquired, Claim, Denial, Downgraded, Looked, Owned, Poll, Polled, ReleaseMode, Repaired, Reply,
        Request, ServerIdentity, VoteReply, Voting, Waiters,
    },
    mode,
    queue_position::WINDOW,
    time::{Micros, micros},
    token::Token,
};

mod floors;
mod phase;
mod queue;
mod single;
#[cfg(test)]
mod tests;

pub use self::queue::{Notified, Process};
use self::{
    floors::Floors,
    phase::{Entrant, Held, fits},
    queue::{Turn, WaitQueue},
};

/// The contents of a server.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Store {
    locks: HashMap<Key, Held>,
    floors: Floors,
    queues: HashMap<Key, WaitQueue>,
    /// Forced releases, kept for as long as their holders may ask.
    forced: HashMap<Key, Forced>,
    /// How many floors there may be before a sweep removes the expired ones.
    crowded: usize,
    /// When the server started: it has forgotten nothing since.
    up_since: Micros,
}

/// The key of a lock that is held alone: its value and its expiry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StoredLock {
    token: Token,
    fence: Fence,
    until: Micros,
}

/// A lock that was taken by force, from its holder or from all its sharers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Forced {
    from: Token,
    fence: Fence,
    by: Arc<ForcedRelease>,
    until: Micros,
}

/// The outcome of a request.
#[derive(Debug)]
#[must_use = "somebody waits for the reply, and others to be notified"]
pub struct Applied<'a> {
    /// The reply to the request.
    pub reply: Result<Reply, Failure>,
    /// The lock that may have changed hands, or whose expiry may have changed.
    pub changed: Option<&'a Key>,
    /// The notifications about this lock.
    pub notified: Vec<Notified>,
}

impl Store {
    /// A store that has just been started, and so may have forgotten what it knew before.
    pub fn started(now: Micros) -> Self {
        Self { up_since: now, ..Self::default() }
    }

    /// Restarts the server, which finds everything on its disk.
    pub fn restarted(&mut self, now: Micros) {
        self.up_since = now;
    }

    /// Executes a request from this process. `reached` reports whether a channel has a listener.
    pub fn apply<'a>(
        &mut self,
        now: Micros,
        request: &'a Request,
        process: Process<'_>,
        reached: &dyn Fn(&str) -> bool,
    ) -> Applied<'a> {
        let passed_on = |key, reply, has_changed, notified: Vec<Notified>| {
            let changed = (has_changed || !notified.is_empty()).then_some(key);
            Applied { reply: Ok(reply), changed, notified }
        };
        let reply = match request {
            Request::Acquire(request) => {
                let vote = self.acquire(now, request);
                let is_adopted = request.heir_of.is_some() && matches!(vote.acquired, Acquired::Granted(_));
                return passed_on(&request.claim.key, vote.into(), is_adopted, Vec::new());
            }
            Request::Raise { claim, fence } => Ok(self.raise(now, claim, *fence).into()),
            Request::Repair { claim, fence, restart_delay } => {
                Ok(self.repair(now, claim, *fence, *restart_delay).into())
            }
            Request::Renew(batch) => {
                let mut renew = |claim: &Claim| {
                    if claim.mode.is_shared() { self.renew_share(now, claim) } else { self.renew(now, claim) }
                };
                Ok(batch.iter().map(|claim| Ok(renew(claim))).collect::<Vec<_>>().into())
            }
            Request::Release { claim, mode } => {
                let first = match mode {
                    ReleaseMode::Leave(_) => self.live_queue(now, &claim.key).and_then(|queue| queue.head()),
                    _ => None,
                };
                let (owned, mut notified) = self.release(now, claim, mode, process, reached);
                if let Some(first) = first {
                    notified.extend(self.live_queue(now, &claim.key).and_then(|it| it.call_another(&first, reached)));
                }
                let is_ours = owned.is_ok();
                return passed_on(&claim.key, owned.into(), is_ours, notified);
            }
            Request::Poll(poll) => {
                let (polled, notified) = self.poll(now, poll, process, reached);
                let is_granted = matches!(polled, Polled::Granted(_));
                return passed_on(&poll.claim.key, polled.into(), is_granted, notified);
            }
            Request::Waiters { key, most } => Ok(self.waiters(now, key, *most).into()),
            Request::Downgrade { claim, from, restart_delay } => {
                let (downgraded, notified) = self.downgrade(now, claim, from, *restart_delay, reached);
                let is_done = matches!(downgraded, Downgraded::Shared(_));
                return passed_on(&claim.key, downgraded.into(), is_done, notified);
            }
            Request::Sharers { key, most } => Ok(self.sharers(now, key, *most).into()),
            Request::Holder(key) => Ok(Looked { holder: self.holder(now, key), tracked: true }.into()),
            Request::Held { pattern, .. } => Ok((0, self.held(now, pattern)).into()),
            Request::ForceRelease { key, by } => {
                let (was_held, notified) = self.force_release(now, key, by, reached);
                return passed_on(key, was_held.into(), was_held, notified);
            }
            Request::Probe => Ok(identity(now).into()),
            Request::Rehearse { restart_delay, .. } => Ok(self.recovers_for(now, *restart_delay).into()),
        };
        Applied { reply, changed: None, notified: Vec::new() }
    }

    /// Grants the lock to a token, unless another token has it.
    fn acquire(&mut self, now: Micros, request: &AcquireRequest) -> VoteReply {
        let identity = request.voting.map(|_| identity(now));
        // An heir repeats what it did, or learns that the lock is free, on any server.
        let is_its_own = |held: &mut Held| held.alone().is_some_and(|lock| lock.token == request.claim.token);
        let is_settled = request.heir_of.is_some() && self.lock(now, &request.claim.key).is_none_or(is_its_own);
        let delay = request.voting.map(|voting| voting.restart_delay).filter(|_| !is_settled);
        let acquired = match delay.and_then(|delay| self.recovers_for(now, delay)) {
            Some(left) => Acquired::Recovering(left),
            None => self.take(now, request),
        };
        VoteReply { acquired, identity, overtaken: false }
    }

    fn take(&mut self, now: Micros, AcquireRequest { claim, voting, heir_of }: &AcquireRequest) -> Acquired {
        let Claim { key, token, life, fence_memory, .. } = claim;
        let proposal = voting.and_then(|Voting { proposal, .. }| proposal);
        match self.lock(now, key) {
            None if heir_of.is_some() => Acquired::Gone,
            None => Acquired::Granted(self.grant(now, key, token.clone(), *life, proposal, *fence_memory)),
            Some(Held::Alone(lock)) if lock.token == *token => {
                lock.until = lock.until.max(now + micros(*life));
                Acquired::Granted(lock.fence)
            }
            Some(Held::Alone(lock))
                if heir_of
                    .as_ref()
                    .is_some_and(|tokens| tokens.iter().any(|token| token.owns(lock.token.as_str()))) =>
            {
                // The floor may be forgotten, and the clock behind, so the giver's own fence is a floor too.
                let (floor, until) = (u64::from(lock.fence) + 1, lock.until.max(now + micros(*life)));
                let least = proposal.map_or(now, |proposal| now.max(proposal.into())).max(floor);
                let fence = self.issue(now, key, least, *fence_memory);
                self.locks.insert(key.clone(), Held::Alone(StoredLock { token: token.clone(), fence, until }));
                Acquired::Granted(fence)
            }
            Some(_) => busy(self.holder(now, key).unwrap_or_default()),
        }
    }

    /// Raises the floor of a lock that is still the token's, and the fence of its holder.
    fn raise(&mut self, now: Micros, Claim { key, token, fence_memory, .. }: &Claim, fence: Fence) -> Owned {
        let lock = self.owned(now, key, token)?;
        lock.fence = lock.fence.max(fence);
        self.floors.raise(now, key, fence, *fence_memory);
        Ok(())
    }

    /// Restores a lost key.
    fn repair(&mut self, now: Micros, claim: &Claim, fence: Fence, restart_delay: Duration) -> Repaired {
        if let Some(left) = self.recovers_for(now, restart_delay) {
            return Repaired::Recovering(left);
        }
        let Claim { key, token, life, fence_memory, .. } = claim;
        let until = now + micros(*life);
        match self.owned(now, key, token) {
            Err(Denial::Taken) => return Repaired::Taken,
            Ok(lock) => (lock.fence, lock.until) = (lock.fence.max(fence), until),
            Err(Denial::Gone | Denial::Forced(_)) => {
                let lock = StoredLock { token: token.clone(), fence, until };
                drop(self.locks.insert(key.clone(), Held::Alone(lock)));
            }
        }
        self.floors.raise(now, key, fence, *fence_memory);
        Repaired::Done
    }

    /// The uptime, in whole seconds as servers count.
    fn up(&self, now: Micros) -> Duration {
        Duration::from_secs(now.saturating_sub(self.up_since) / 1_000_000)
    }

    /// How long the server still has to be up before it may vote.
    fn recovers_for(&self, now: Micros, restart_delay: Duration) -> Option<Duration> {
        let up = self.up(now).as_secs();
        let delay = u64::try_from(restart_delay.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        (up < delay).then(|| Duration::from_secs(delay - up))
    }

    /// Gives a lock that is still the token's its full life, unless it was granted to the token again. With a life of
    /// zero it only checks the lock.
    fn renew(&mut self, now: Micros, Claim { key, token, life, fence, .. }: &Claim) -> Owned {
        let lock = self.held_by(now, key, token)?;
        if fence.is_some_and(|fence| fence != lock.fence) {
            return Err(Denial::Gone);
        }
        if !life.is_zero() {
            lock.until = now + micros(*life);
        }
        Ok(())
    }

    /// Releases a lock that is still the token's.
    fn release(
        &mut self,
        now: Micros,
        claim: &Claim,
        mode: &ReleaseMode,
        process: Process<'_>,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Owned, Vec<Notified>) {
        let Claim { key, token, .. } = claim;
        let is_shared = claim.mode.is_shared();
        match mode {
            ReleaseMode::Delete if is_shared => return self.part(now, claim, mode, reached),
            ReleaseMode::Delete => {}
            ReleaseMode::Leave(others) => {
                if let Some(queue) = self.live_queue(now, key) {
                    for token in [token].into_iter().chain(&**others) {
                        queue.leave(now, token, process.name, WINDOW);
                    }
                }
                // A leave also passes on a lock that it finds free.
                match self.lock(now, key) {
                    None => return (Err(Denial::Gone), self.pass_on(now, key, 0, None, reached)),
                    Some(Held::Shared(_)) => return self.part(now, claim, mode, reached),
                    Some(Held::Alone(_)) => {}
                }
            }
            ReleaseMode::Retain(keep, stays) if is_shared => {
                return match self.retain_share(now, claim, *keep, stays, reached) {
                    Ok(notified) => (Ok(()), notified.into_iter().collect()),
                    Err(denial) => (Err(denial), Vec::new()),
                };
            }
            ReleaseMode::Retain(keep, stays) => return (self.retain(now, key, token, *keep, stays), Vec::new()),
        }
        let others = if let ReleaseMode::Leave(others) = mode { &**others } else { &[] };
        let is_ours = |held: &Token| held == token || others.contains(held);
        // A single lookup, if the lock is ours.
        if matches!(self.locks.get(key), Some(Held::Alone(lock)) if lock.until > now && is_ours(&lock.token)) {
            return (Ok(()), self.pass_on(now, key, 0, None, reached));
        }
        // A waiter that leaves has no holder to notify of a forced release.
        let leaves = matches!(mode, ReleaseMode::Leave(_));
        let denied = if leaves { self.owned(now, key, token) } else { self.held_by(now, key, token) };
        (denied.map(|_| ()), Vec::new())
    }

    /// Replaces the token by another one, which stays for a time.
    fn retain(&mut self, now: Micros, key: &Key, token: &Token, keep: Duration, stays: &Token) -> Owned {
        if self.owned(now, key, stays).is_err() {
            let lock = self.held_by(now, key, token)?;
            (lock.token, lock.until) = (stays.clone(), now + micros(keep));
        }
        Ok(())
    }

    /// Gives up a share. A leave admits waiters that fit even if its token has no share: it may have been in their way.
    fn part(
        &mut self,
        now: Micros,
        Claim { key, token, .. }: &Claim,
        mode: &ReleaseMode,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Owned, Vec<Notified>) {
        let phase = match self.shared(now, key) {
            Ok(phase) => phase,
            Err(denial) => return (Err(denial), Vec::new()),
        };
        let mut was_in = phase.part(now, token);
        if let ReleaseMode::Leave(others) = mode {
            was_in = others.iter().fold(was_in, |was_in, token| was_in.max(phase.part(now, token)));
        }
        let count = phase.permits(now);
        let ends = phase.end_with_the_last(now, was_in.unwrap_or(0));
        let owned = if was_in.is_some() { Ok(()) } else { Err(Denial::Gone) };
        if was_in.is_none() && !matches!(mode, ReleaseMode::Leave(_)) {
            return (owned, Vec::new());
        }
        (owned, self.pass_on(now, key, count, ends, reached))
    }

    /// Takes the lock, or a share of it, if it is the token's turn. Else enters the queue, if the poll asks for that.
    fn poll(
        &mut self,
        now: Micros,
        poll: &Poll,
        process: Process<'_>,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Polled, Vec<Notified>) {
        let Claim { key, token, life, fence_memory, mode, .. } = &poll.claim;
        let (mut notified, limit) = (Vec::new(), mode::limit(*mode));
        let is_simple = mode.is_shared() && poll.restart_delay.is_zero();
        if is_simple && self.live_queue(now, key).is_none_or(|queue| queue.len() == 0) {
            let joined = self.shared(now, key).ok().and_then(|phase| phase.join_simply(now, token, *life, limit));
            if let Some(fence) = joined {
                return (Polled::Granted(fence), notified);
            }
        }
        let confirmed = |phase_or_lock: &mut Held| match phase_or_lock {
            Held::Alone(lock) if lock.token == *token => {
                lock.until = lock.until.max(now + micros(*life));
                Ok(lock.fence)
            }
            Held::Alone(_) => Err(None),
            Held::Shared(phase) if phase.is_in(now, token) => {
                phase.stay(now, token, *life);
                Ok(phase.fence)
            }
            Held::Shared(phase) => Err(Some(phase.permits(now))),
        };
        // The number of permits that are taken; `None` if the lock is held alone.
        let count = match self.lock(now, key).map(confirmed) {
            Some(Ok(fence)) => {
                self.leave_queue(now, poll, process.name);
                return (Polled::Granted(fence), notified);
            }
            Some(Err(count)) => count,
            None => Some(0),
        };
        let entered = poll.enter && {
            self.live_queue(now, key);
            self.queues.entry(key.clone()).or_default().enter(now, poll, process)
        };
        let recovers_for = self.recovers_for(now, poll.restart_delay).filter(|_| count.is_some());
        if let Some(count) = count.filter(|_| recovers_for.is_none()) {
            let (is_ahead, count) = self.promote(now, key, Some(token), count, reached, &mut notified);
            if !is_ahead && fits(count, limit) {
                self.leave_queue(now, poll, process.name);
                let me = Entrant { token: token.clone(), span: *life, fence_memory: *fence_memory, limit };
                let fence = self.let_in(now, key, me, count);
                if limit > 0 {
                    // The waiters behind may fit as well.
                    let count = count.unwrap_or(0).saturating_add(token.permits().get());
                    self.promote(now, key, None, count, reached, &mut notified);
                }
                notified.extend(self.live_queue(now, key).and_then(|queue| queue.call_another(token, reached)));
                return (Polled::Granted(fence), notified);
            }
        }
        let holder = self.holder_for(now, key, limit).filter(|_| recovers_for.is_none()).unwrap_or_default();
        let queue = self.live_queue(now, key);
        let place = queue.as_ref().and_then(|queue| queue.place(token)).filter(|_| poll.enter);
        let ahead = place.map_or_else(|| queue.map_or(0, |queue| queue.len()), |(_, ahead)| ahead);
        let (ticket, ahead) = (place.map(|(ticket, _)| ticket), u32::try_from(ahead).unwrap_or(u32::MAX));
        (Polled::Waits { holder, recovers_for, ticket, ahead, entered, tracked: true, notified: true }, notified)
    }

    /// Admits the waiters that fit while `count` permits are taken. Returns whether a waiter is still ahead of `me`, and
    /// how many are taken then; `None` if the lock is held alone.
    fn promote(
        &mut self,
        now: Micros,
        key: &Key,
        me: Option<&Token>,
        count: u32,
        reached: &dyn Fn(&str) -> bool,
        notified: &mut Vec<Notified>,
    ) -> (bool, Option<u32>) {
        let (at, mut count) = ((now, self.up(now)), count);
        let Some(queue) = self.live_queue(now, key) else { return (false, Some(count)) };
        let Turn { is_ahead, let_in } = queue.promote(me, at, count, reached, notified);
        for one in let_in {
            let (is_alone, permits) = (one.limit == 0, one.token.permits().get());
            self.let_in(now, key, one, Some(count));
            if is_alone {
                return (is_ahead, None);
            }
            count = count.saturating_add(permits);
        }
        (is_ahead, Some(count))
    }

    /// Turns a lock that one token holds alone into one that another token shares.
    fn downgrade(
        &mut self,
        now: Micros,
        Claim { key, token, life, fence_memory, mode, .. }: &Claim,
        from: &Token,
        restart_delay: Duration,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Downgraded, Vec<Notified>) {
        let mut notified = Vec::new();
        if let Ok(phase) = self.shared(now, key) {
            let downgraded = if phase.is_in(now, token) {
                phase.stay(now, token, *life);
                Downgraded::Shared(phase.fence)
            } else {
                Downgraded::Denied(Denial::Taken)
            };
            return (downgraded, notified);
        }
        let own = match self.held_by(now, key, from) {
            Ok(lock) => lock.fence,
            Err(denial) => return (Downgraded::Denied(denial), notified),
        };
        if let Some(left) = self.recovers_for(now, restart_delay) {
            return (Downgraded::Recovering(left), notified);
        }
        // The floor may be forgotten, and the clock behind, so the lock's own fence is a floor too.
        self.floors.raise(now, key, own, *fence_memory);
        let me = Entrant { token: token.clone(), span: *life, fence_memory: *fence_memory, limit: mode::limit(*mode) };
        let fence = self.let_in(now, key, me, Some(0));
        self.promote(now, key, None, token.permits().get(), reached, &mut notified);
        (Downgraded::Shared(fence), notified)
    }

    /// The number of waiters, and the first of them with their tickets.
    pub fn queue(&mut self, now: Micros, key: &Key, limit: usize) -> (usize, Vec<(Token, u64)>) {
        let Some(queue) = self.live_queue(now, key) else { return (0, Vec::new()) };
        (queue.len(), queue.line().take(limit).map(|(token, ticket)| (token.clone(), ticket)).collect())
    }

    /// The first waiters, how long each has waited, and in which mode.
    fn waiters(&mut self, now: Micros, key: &Key, most: usize) -> Waiters {
        let Some(queue) = self.live_queue(now, key) else { return Waiters::new() };
        let waited = |ticket| Duration::from_micros(now.saturating_sub(ticket));
        let line = queue.line().take(most);
        line.map(|(token, ticket)| (token.clone(), waited(ticket), queue.mode(token))).collect()
    }

    /// The lock's holder.
    pub fn holder(&mut self, now: Micros, key: &Key) -> Option<Holder> {
        let held = self.lock(now, key)?;
        let ((token, fence), until) = (held.token_and_fence(), held.until());
        let remaining = Duration::from_micros(until.saturating_sub(now));
        // Zero: the lock is acquired in steps, and has no fence yet.
        Some(Holder::of(Some(token), Some(remaining), Some(fence).filter(|fence| *fence > fence::ZERO)))
    }

    /// The lock's holder for a token that wants the lock with this limit: sharers are in its way for another time than
    /// the life of the key.
    fn holder_for(&mut self, now: Micros, key: &Key, limit: u32) -> Option<Holder> {
        let holder = self.holder(now, key)?;
        let Ok(phase) = self.shared(now, key) else { return Some(holder) };
        let left = Duration::from_micros(phase.ends_for(now, limit).saturating_sub(now));
        Some(holder.lasting(Some(left)).shared_by(phase.sharers(now)))
    }

    /// The locks that are held and match a pattern.
    fn held(&self, now: Micros, pattern: &str) -> Vec<String> {
        let held = self.locks.iter().filter(|(_, held)| held.until() > now).map(|(key, _)| key.lock());
        held.filter(|lock| glob::matches(pattern, lock)).map(ToOwned::to_owned).collect()
    }

    /// Takes a lock from its holder or sharers.
    fn force_release(
        &mut self,
        now: Micros,
        key: &Key,
        by: &Arc<ForcedRelease>,
        reached: &dyn Fn(&str) -> bool,
    ) -> (bool, Vec<Notified>) {
        let Some(held) = self.lock(now, key) else { return (false, Vec::new()) };
        let ((from, fence), until) = (held.token_and_fence(), held.until());
        self.forced.insert(key.clone(), Forced { from, fence, by: by.clone(), until });
        (true, self.pass_on(now, key, 0, None, reached))
    }

    /// Gives the lock to another holder, whoever has it, and ahead of its queue: for tests.
    pub fn take_over(&mut self, now: Micros, claim: Claim) {
        self.locks.remove(&claim.key);
        self.take(now, &AcquireRequest { claim, voting: None, heir_of: None });
    }

    /// Deletes the key, whoever has it: for tests.
    pub fn delete(&mut self, key: &Key) {
        self.locks.remove(key);
    }

    /// Deletes the queue: for tests.
    pub fn lose_queue(&mut self, key: &Key) {
        self.queues.remove(key);
    }

    /// The lock as its key shows it now: an expired lock is removed.
    fn lock(&mut self, now: Micros, key: &Key) -> Option<&mut Held> {
        if self.locks.get(key).is_some_and(|held| held.until() <= now) {
            self.locks.remove(key);
        }
        self.locks.get_mut(key)
    }

    /// The queue as its keys would show it now: an expired queue is removed.
    fn live_queue(&mut self, now: Micros, key: &Key) -> Option<&mut WaitQueue> {
        if self.queues.get(key).is_some_and(|queue| queue.is_over(now)) {
            self.queues.remove(key);
        }
        self.queues.get_mut(key)
    }

    fn leave_queue(&mut self, now: Micros, poll: &Poll, process: &str) {
        if let Some(queue) = self.live_queue(now, &poll.claim.key) {
            queue.leave(now, &poll.claim.token, process, poll.window);
        }
    }

    /// Passes on a lock that was given up, and of which `count` permits are still taken. It admits the waiters that fit
    /// and can be reached. The lock becomes free if it has no holder then, or if it is too early to grant anything.
    /// `ends`: how long the last permit is taken, if waiters do not know that.
    fn pass_on(
        &mut self,
        now: Micros,
        key: &Key,
        count: u32,
        ends: Option<Duration>,
        reached: &dyn Fn(&str) -> bool,
    ) -> Vec<Notified> {
        let mut notified = Vec::new();
        let (_, count) = self.promote(now, key, None, count, reached, &mut notified);
        if count == Some(0) {
            self.locks.remove(key);
        } else if count.is_some() {
            notified.extend(ends.and_then(|ends| self.live_queue(now, key)?.call_first(ends, reached)));
        }
        notified
    }

    /// Gives a free lock to a token for `span`, with the next fence.
    fn grant(
        &mut self,
        now: Micros,
        key: &Key,
        token: Token,
        span: Duration,
        proposal: Option<Fence>,
        memory: Duration,
    ) -> Fence {
        let least = proposal.map_or(now, |proposal| now.max(proposal.into()));
        let fence = self.issue(now, key, least, memory);
        self.locks.insert(key.clone(), Held::Alone(StoredLock { token, fence, until: now + micros(span) }));
        fence
    }

    /// Issues the next fence of a lock, and keeps its floor.
    #[inline]
    fn issue(&mut self, now: Micros, key: &Key, least: Micros, memory: Duration) -> Fence {
        let floor = self.floors.get(now, key);
        let issued = floor.map_or(least, |floor| least.max(u64::from(floor) + 1));
        // Only a clock beyond the year 294,000 would yield no fence.
        let fence = Fence::try_from(issued).unwrap_or_else(|_| floor.unwrap_or(fence::ZERO));
        self.floors.keep(now, key, fence, memory);
        self.sweep(now);
        fence
    }

    /// The lock, if it is this token's; a ticket's token has no label.
    fn owned(&mut self, now: Micros, key: &Key, token: &Token) -> Result<&mut StoredLock, Denial> {
        let held = self.lock(now, key).ok_or(Denial::Gone)?;
        let is_its = |lock: &&mut StoredLock| lock.token == *token || token.owns(lock.token.as_str());
        held.alone().filter(is_its).ok_or(Denial::Taken)
    }

    /// The lock, if this token holds it; else why it does not, and whether it was taken by force.
    fn held_by(&mut self, now: Micros, key: &Key, token: &Token) -> Result<&mut StoredLock, Denial> {
        // Mostly there are no forced releases, and nothing is looked up.
        if self.forced.is_empty() {
            return self.owned(now, key, token);
        }
        let forced = self.forced.get(key).filter(|forced| forced.until > now && forced.from.owns(token.as_str()));
        let by = forced.map(|forced| forced.by.clone());
        self.owned(now, key, token).map_err(|denial| by.map_or(denial, Denial::Forced))
    }

    /// Names that are never requested again must not stay for ever. Doubling keeps the cost per acquire constant.
    fn sweep(&mut self, now: Micros) {
        if self.floors.len() > self.crowded {
            self.floors.sweep(now);
            self.locks.retain(|_, held| held.until() > now);
            self.queues.retain(|_, queue| !queue.is_over(now));
            self.forced.retain(|_, forced| forced.until > now);
            self.crowded = 2 * self.floors.len().max(512);
        }
    }
}

impl Hash for Store {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_sorted(&self.locks, state);
        self.floors.hash(state);
        hash_sorted(&self.queues, state);
        hash_sorted(&self.forced, state);
        (self.crowded, self.up_since).hash(state);
    }
}

fn hash_sorted<K: Hash + Borrow<str>, V: Hash>(map: &HashMap<K, V>, state: &mut impl Hasher) {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(key, _)| (*key).borrow());
    entries.hash(state);
}

/// The identity of the server, which has no other run.
fn identity(now: Micros) -> ServerIdentity {
    ServerIdentity { time: Some(now), run_id: None, is_alone: true }
}

/// The lock is held. Every key is tracked for every client.
fn busy(holder: Holder) -> Acquired {
    Acquired::Busy { holder, tracked: true }
}
