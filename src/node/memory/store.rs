//! What a server would hold, as a pure function: of what is stored, the time and the request.

use std::{collections::HashMap, time::Duration};

use super::queue::{Queue, Told, Turn};
use crate::{
    fence::Fence,
    holder::Holder,
    key::Key,
    node::{Acquired, Ballot, Bid, Failure, Guarding, Healed, Knock, Knocked, Owned, Renewal, Sign, Voting},
    quorum::tally::Denial,
    token::Token,
};

/// How long a stored fence outlives its own time (rule 9).
const FLOOR_LIVES: Micros = 24 * 60 * 60 * 1_000_000;

/// Microseconds since 1970 on the store's own clock.
pub(crate) type Micros = u64;

/// What a server would hold.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq))]
pub(crate) struct Store {
    locks: HashMap<Key, (Token, Micros)>,
    fences: HashMap<Key, (Fence, Micros)>,
    /// Guarded values; a key is this or a lock, never both.
    guarded: HashMap<Key, (Vec<u8>, Fence)>,
    queues: HashMap<Key, Queue>,
    /// How many fences there may be before those that have expired are looked for.
    crowded: usize,
    /// When it began to forget nothing.
    up_since: Micros,
}

impl Store {
    /// One that has just been started, and so may have forgotten what another one knew.
    #[cfg(test)]
    pub(crate) fn started(now: Micros) -> Self {
        Self { up_since: now, ..Self::default() }
    }

    /// The same, but that it found everything on its disk.
    #[cfg(test)]
    pub(crate) fn restarted(&mut self, now: Micros) {
        self.up_since = now;
    }

    pub(crate) fn acquire(&mut self, now: Micros, bid: &Bid) -> Ballot {
        let sign = bid.voting.map(|_| sign(now));
        let acquired = match bid.voting.and_then(|voting| self.recovers_for(now, voting.restart_delay)) {
            Some(left) => Acquired::Recovering(left),
            None => self.take(now, bid),
        };
        Ballot { acquired, sign, resent: false }
    }

    fn take(&mut self, now: Micros, Bid { key, token, ttl, voting }: &Bid) -> Acquired {
        if self.guarded.contains_key(key) {
            return busy(Holder::default());
        }
        let expires = now + micros(*ttl);
        let proposal = voting.and_then(|Voting { proposal, .. }| proposal);
        match self.lock(now, key) {
            None => {
                self.locks.insert(key.clone(), (token.clone(), expires));
                Acquired::Granted(self.draw(now, key, proposal))
            }
            Some((held, until)) if held == token => {
                *until = expires.max(*until);
                Acquired::Granted(self.floor(now, key).unwrap_or_else(|| self.draw(now, key, proposal)))
            }
            Some(_) => busy(self.holder(now, key).unwrap_or_default()),
        }
    }

    /// Lifts the fence of a lock that is still the token's.
    pub(crate) fn raise(&mut self, now: Micros, key: &Key, token: &Token, fence: Fence) -> Owned {
        self.owned(now, key, token)?;
        self.lift(now, key, fence);
        Ok(())
    }

    /// Brings a lost key back.
    pub(crate) fn heal(&mut self, now: Micros, lease: &Renewal, fence: Fence, restart_delay: Duration) -> Healed {
        if let Some(left) = self.recovers_for(now, restart_delay) {
            return Healed::Recovering(left);
        }
        let Renewal { key, token, ttl } = lease;
        match self.owned(now, key, token) {
            Err(Denial::Taken) => return Healed::Taken,
            Ok(_) | Err(Denial::Gone) => {}
        }
        self.locks.insert(key.clone(), (token.clone(), now + micros(*ttl)));
        self.lift(now, key, fence);
        Healed::Done
    }

    /// How long it has still to be up before it may vote. Servers count in whole seconds.
    fn recovers_for(&self, now: Micros, restart_delay: Duration) -> Option<Duration> {
        let up = now.saturating_sub(self.up_since) / 1_000_000;
        let delay = u64::try_from(restart_delay.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        (up < delay).then(|| Duration::from_secs(delay - up))
    }

    fn lift(&mut self, now: Micros, key: &Key, fence: Fence) {
        if self.floor(now, key).is_none_or(|floor| floor < fence) {
            self.fences.insert(key.clone(), (fence, u64::from(fence).max(now) + FLOOR_LIVES));
        }
    }

    pub(crate) fn renew(&mut self, now: Micros, renewal: &Renewal) -> Owned {
        let until = self.owned(now, &renewal.key, &renewal.token)?;
        *until = now + micros(renewal.ttl);
        Ok(())
    }

    /// Parts with a lock that is still ours: to the first of its queue, or to nobody. `reached` tells whether somebody
    /// listens on a channel; the answer says what they are to be told.
    pub(crate) fn release(
        &mut self,
        now: Micros,
        key: &Key,
        token: &Token,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Owned, Vec<Told>) {
        match self.owned(now, key, token) {
            Ok(_) => (Ok(()), self.pass_on(now, key, reached)),
            Err(denial) => (Err(denial), Vec::new()),
        }
    }

    /// Takes a token out of the queue, and releases the lock if it is that token's. What it finds free is passed on too.
    pub(super) fn leave(
        &mut self,
        now: Micros,
        key: &Key,
        token: &Token,
        channel: Option<&str>,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Owned, Vec<Told>) {
        if let Some(queue) = self.live_queue(now, key) {
            queue.leave(token, channel);
        }
        if self.lock(now, key).is_none() && !self.guarded.contains_key(key) {
            return (Err(Denial::Gone), self.pass_on(now, key, reached));
        }
        self.release(now, key, token, reached)
    }

    /// Takes the lock when it is the token's turn, and enters the queue, if it shall, when it is not.
    pub(super) fn knock(
        &mut self,
        now: Micros,
        knock: &Knock,
        channel: Option<&str>,
        reached: &dyn Fn(&str) -> bool,
    ) -> (Knocked, Vec<Told>) {
        let Knock { key, token, .. } = knock;
        let mut told = Vec::new();
        let free = !self.guarded.contains_key(key)
            && match self.lock(now, key) {
                Some((held, until)) if held == token => {
                    *until = (now + micros(knock.ttl)).max(*until);
                    self.leave_queue(now, knock, channel);
                    let fence = self.floor(now, key).unwrap_or_else(|| self.draw(now, key, None));
                    return (Knocked::Granted(fence), told);
                }
                Some(_) => false,
                None => true,
            };
        let entered = knock.enter && {
            self.live_queue(now, key);
            self.queues.entry(key.clone()).or_default().enter(now, knock, channel)
        };
        if free {
            let turn = self.live_queue(now, key);
            match turn.map_or(Turn::Nobodys, |queue| queue.promote(Some(token), now, reached, &mut told)) {
                Turn::Granted { token, grant } => drop(self.grant(now, key, token, grant)),
                Turn::Mine | Turn::Nobodys => {
                    self.leave_queue(now, knock, channel);
                    return (Knocked::Granted(self.grant(now, key, token.clone(), knock.ttl)), told);
                }
            }
        }
        let holder = self.holder(now, key).unwrap_or_default();
        let queue = self.live_queue(now, key);
        let place = queue.as_ref().and_then(|queue| queue.place(token)).filter(|_| knock.enter);
        let ahead = place.map_or_else(|| queue.map_or(0, |queue| queue.len()), |(_, ahead)| ahead);
        let (ticket, ahead) = (place.map(|(ticket, _)| ticket), u32::try_from(ahead).unwrap_or(u32::MAX));
        (Knocked::Waits { holder, ticket, ahead, entered, watched: true, called: true }, told)
    }

    /// How many wait, and the first of them with their tickets.
    pub(super) fn queue(&mut self, now: Micros, key: &Key, limit: usize) -> (usize, Vec<(Token, u64)>) {
        let Some(queue) = self.live_queue(now, key) else { return (0, Vec::new()) };
        (queue.len(), queue.line().take(limit).map(|(token, ticket)| (token.clone(), ticket)).collect())
    }

    pub(super) fn keep(&mut self, now: Micros, key: &Key, token: &Token, keep: Duration, stays: &Token) -> Owned {
        if self.owned(now, key, stays).is_err() {
            self.owned(now, key, token)?;
            self.locks.insert(key.clone(), (stays.clone(), now + micros(keep)));
        }
        Ok(())
    }

    pub(crate) fn holder(&mut self, now: Micros, key: &Key) -> Option<Holder> {
        if self.guarded.contains_key(key) {
            return Some(Holder::default());
        }
        let fence = self.floor(now, key);
        let (token, until) = self.lock(now, key)?;
        let remaining = Duration::from_micros(until.saturating_sub(now));
        Some(Holder { token: Some(token.clone()), remaining: Some(remaining), fence })
    }

    pub(super) fn force_release(
        &mut self,
        now: Micros,
        key: &Key,
        reached: &dyn Fn(&str) -> bool,
    ) -> Result<(bool, Vec<Told>), Failure> {
        if self.guarded.contains_key(key) {
            return Err(wrong_type(key, "a guarded value, not a lock"));
        }
        let held = self.lock(now, key).is_some();
        Ok((held, if held { self.pass_on(now, key, reached) } else { Vec::new() }))
    }

    pub(super) fn guarded_set(
        &mut self,
        now: Micros,
        key: &Key,
        value: &[u8],
        fence: Fence,
    ) -> Result<Guarding, Failure> {
        if let Some((_, seen)) = self.guarded_get(now, key)? {
            if fence < seen {
                return Ok(Guarding::Stale { seen });
            }
        }
        self.guarded.insert(key.clone(), (value.into(), fence));
        Ok(Guarding::Written)
    }

    pub(super) fn guarded_get(&mut self, now: Micros, key: &Key) -> Result<Option<(Vec<u8>, Fence)>, Failure> {
        if self.lock(now, key).is_some() {
            return Err(wrong_type(key, "a lock, not a guarded value"));
        }
        Ok(self.guarded.get(key).cloned())
    }

    /// The lock as the key shows it now: what has expired is gone.
    fn lock(&mut self, now: Micros, key: &Key) -> Option<&mut (Token, Micros)> {
        if self.locks.get(key).is_some_and(|&(_, until)| until <= now) {
            self.locks.remove(key);
        }
        self.locks.get_mut(key)
    }

    /// The queue as its keys would show it now: what has expired is gone.
    fn live_queue(&mut self, now: Micros, key: &Key) -> Option<&mut Queue> {
        if self.queues.get(key).is_some_and(|queue| queue.is_over(now)) {
            self.queues.remove(key);
        }
        self.queues.get_mut(key)
    }

    fn leave_queue(&mut self, now: Micros, knock: &Knock, channel: Option<&str>) {
        if let Some(queue) = self.live_queue(now, &knock.key) {
            queue.leave(&knock.token, channel);
        }
    }

    /// Parts with a lock that is there. It is never free while somebody in its queue can be reached.
    fn pass_on(&mut self, now: Micros, key: &Key, reached: &dyn Fn(&str) -> bool) -> Vec<Told> {
        let mut told = Vec::new();
        let queue = self.live_queue(now, key);
        match queue.map(|queue| queue.promote(None, now, reached, &mut told)) {
            Some(Turn::Granted { token, grant }) => drop(self.grant(now, key, token, grant)),
            Some(Turn::Mine | Turn::Nobodys) | None => drop(self.locks.remove(key)),
        }
        told
    }

    fn grant(&mut self, now: Micros, key: &Key, token: Token, span: Duration) -> Fence {
        self.locks.insert(key.clone(), (token, now + micros(span)));
        self.draw(now, key, None)
    }

    fn owned(&mut self, now: Micros, key: &Key, token: &Token) -> Result<&mut Micros, Denial> {
        if self.guarded.contains_key(key) {
            return Err(Denial::Taken);
        }
        let (held, until) = self.lock(now, key).ok_or(Denial::Gone)?;
        if held == token { Ok(until) } else { Err(Denial::Taken) }
    }

    fn floor(&mut self, now: Micros, key: &Key) -> Option<Fence> {
        let &(fence, until) = self.fences.get(key)?;
        if until <= now {
            self.fences.remove(key);
            return None;
        }
        Some(fence)
    }

    fn draw(&mut self, now: Micros, key: &Key, proposal: Option<Fence>) -> Fence {
        let floor = self.floor(now, key);
        let least = proposal.map_or(now, |proposal| now.max(proposal.into()));
        let drawn = floor.map_or(least, |floor| least.max(u64::from(floor) + 1));
        // Only a clock beyond the year 294,000 could not give a fence.
        let fence = Fence::try_from(drawn).unwrap_or_else(|_| floor.unwrap_or(Fence::ZERO));
        self.fences.insert(key.clone(), (fence, drawn.max(now) + FLOOR_LIVES));
        self.sweep(now);
        fence
    }

    /// Names that nobody asks for again must not stay for ever. Doubling keeps the cost per acquire constant.
    fn sweep(&mut self, now: Micros) {
        if self.fences.len() > self.crowded {
            self.fences.retain(|_, &mut (_, until)| until > now);
            self.locks.retain(|_, &mut (_, until)| until > now);
            self.queues.retain(|_, queue| !queue.is_over(now));
            self.crowded = 2 * self.fences.len().max(512);
        }
    }
}

/// By everything that is in it, for a model checker tells states by their hashes. Fair queues are none of its business.
#[cfg(test)]
impl std::hash::Hash for Store {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        fn sorted<V: std::hash::Hash>(map: &HashMap<Key, V>, state: &mut impl std::hash::Hasher) {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.lock());
            entries.hash(state);
        }
        assert!(self.queues.is_empty(), "a queue has no hash");
        sorted(&self.locks, state);
        sorted(&self.fences, state);
        sorted(&self.guarded, state);
        (self.crowded, self.up_since).hash(state);
    }
}

/// Every key is watched for everybody.
/// There is no other run of it.
pub(super) fn sign(now: Micros) -> Sign {
    Sign { time: Some(now), run_id: None, is_alone: true }
}

fn busy(holder: Holder) -> Acquired {
    Acquired::Busy { holder, watched: true }
}

fn wrong_type(key: &Key, what: &str) -> Failure {
    Failure::refused(format!("WRONGTYPE the key {key:?} holds {what}"))
}

pub(super) fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(100);

    fn granted(acquired: &Acquired) -> Fence {
        match acquired {
            Acquired::Granted(fence) => *fence,
            other => panic!("{other:?}"),
        }
    }

    fn bid(key: &Key, token: &Token, ttl: Duration) -> Bid {
        Bid { key: key.clone(), token: token.clone(), ttl, voting: None }
    }

    /// From 1 s on, with a restart delay of 3 s.
    fn vote(key: &Key, token: &Token, proposal: u64) -> Bid {
        let voting = Voting { restart_delay: TTL * 30, proposal: Fence::try_from(proposal).ok() };
        Bid { voting: Some(voting), ..bid(key, token, TTL) }
    }

    #[test]
    fn who_was_started_lately_neither_votes_nor_is_healed() {
        let (_, key, one, _) = scene();
        let mut store = Store::started(1_000_000);
        let lease = Renewal { key: key.clone(), token: one.clone(), ttl: TTL };
        let (delay, fence) = (TTL * 30, Fence::try_from(9_000_000_u64).unwrap());
        let Ballot { acquired, sign, .. } = store.acquire(2_500_000, &vote(&key, &one, 0));
        assert!(matches!(acquired, Acquired::Recovering(left) if left == Duration::from_secs(2)), "{acquired:?}");
        assert_eq!(sign.and_then(|sign| sign.time), Some(2_500_000));
        assert_eq!(store.heal(3_999_999, &lease, fence, delay), Healed::Recovering(Duration::from_secs(1)));
        assert_eq!(store.holder(3_999_999, &key), None);
        assert_eq!(store.heal(4_000_000, &lease, fence, delay), Healed::Done);
        assert_eq!(store.floor(4_000_000, &key), Some(fence));
        assert_eq!(store.raise(4_000_000, &key, &one, Fence::ZERO), Ok(()));
        assert_eq!(store.floor(4_000_000, &key), Some(fence), "a floor is never lowered");
    }

    #[test]
    fn what_somebody_else_has_is_neither_raised_nor_healed() {
        let (mut store, key, one, two) = scene();
        granted(&store.acquire(1_000, &bid(&key, &two, TTL)).acquired);
        let lease = Renewal { key: key.clone(), token: one.clone(), ttl: TTL };
        let fence = Fence::try_from(9_000_000_u64).unwrap();
        assert_eq!(store.raise(1_000, &key, &one, fence), Err(Denial::Taken));
        assert_eq!(store.heal(1_000, &lease, fence, Duration::ZERO), Healed::Taken);
        assert!(store.floor(1_000, &key) < Some(fence));
    }

    #[test]
    fn a_proposal_is_drawn_if_it_is_large_enough() {
        let (mut store, key, one, two) = scene();
        let now = 10_000_000;
        assert_eq!(u64::from(granted(&store.acquire(now, &vote(&key, &one, now + 50)).acquired)), now + 50);
        store.release(now, &key, &one, &|_| true).0.unwrap();
        assert_eq!(u64::from(granted(&store.acquire(now, &vote(&key, &two, now + 50)).acquired)), now + 51);
        store.release(now, &key, &two, &|_| true).0.unwrap();
        assert_eq!(u64::from(granted(&store.acquire(now + 60, &vote(&key, &one, 7)).acquired)), now + 60);
    }

    fn scene() -> (Store, Key, Token, Token) {
        (Store::default(), Key::new("", "job").unwrap(), Token::draw("one"), Token::draw("two"))
    }

    #[test]
    fn a_lock_excludes_until_it_expires() {
        let (mut store, key, one, two) = scene();
        granted(&store.acquire(1_000, &bid(&key, &one, TTL)).acquired);
        assert!(matches!(store.acquire(100_999, &bid(&key, &two, TTL)).acquired, Acquired::Busy { .. }));
        granted(&store.acquire(101_000, &bid(&key, &two, TTL)).acquired);
        assert_eq!(store.release(101_000, &key, &one, &|_| true).0, Err(Denial::Taken));
        assert_eq!(store.renew(201_000, &Renewal { key, token: two, ttl: TTL }), Err(Denial::Gone));
    }

    #[test]
    fn fences_grow_when_the_clock_stands_still_or_goes_back() {
        let (mut store, key, one, two) = scene();
        let first = granted(&store.acquire(5_000_000, &bid(&key, &one, TTL)).acquired);
        assert_eq!(granted(&store.acquire(5_000_001, &bid(&key, &one, TTL)).acquired), first, "a replay draws nothing");
        store.release(5_000_001, &key, &one, &|_| true).0.unwrap();
        let second = granted(&store.acquire(1_000, &bid(&key, &two, TTL)).acquired);
        assert!(second > first, "{second} after {first}");
    }

    #[test]
    fn a_fence_outlives_its_lock_by_a_day_and_no_longer() {
        let (mut store, key, one, _) = scene();
        let first = granted(&store.acquire(1_000, &bid(&key, &one, TTL)).acquired);
        let day = micros(Duration::from_secs(24 * 3_600));
        assert_eq!(store.floor(1_000 + day - 1, &key), Some(first));
        assert_eq!(store.floor(1_000 + day, &key), None);
    }

    #[test]
    fn what_has_expired_does_not_pile_up() {
        let mut store = Store::default();
        for day in 1..=10 {
            for n in 0..500 {
                let key = Key::new("", &format!("{day}:{n}")).unwrap();
                granted(&store.acquire(day * (FLOOR_LIVES + 1), &bid(&key, &Token::draw("one"), TTL)).acquired);
            }
        }
        assert!(store.fences.len() <= 1_500 && store.locks.len() <= 1_500, "{}", store.fences.len());
    }

    #[test]
    fn a_replayed_acquire_never_shortens() {
        let (mut store, key, one, _) = scene();
        granted(&store.acquire(0, &bid(&key, &one, TTL * 10)).acquired);
        granted(&store.acquire(0, &bid(&key, &one, TTL)).acquired);
        assert_eq!(store.holder(0, &key).unwrap().remaining, Some(TTL * 10));
    }

    fn knock(key: &Key, token: &Token) -> Knock {
        let (ttl, window) = (TTL, Duration::from_secs(60));
        Knock { key: key.clone(), token: token.clone(), ttl, ticket: None, grant: TTL, window, enter: true }
    }

    #[test]
    fn what_is_held_or_waited_for_is_not_swept_away() {
        let (mut store, key, one, two) = scene();
        let crowd = |store: &mut Store, now: Micros| {
            for n in 0..3_000 {
                let key = Key::new("", &format!("{now}:{n}")).unwrap();
                granted(&store.acquire(now, &bid(&key, &one, TTL)).acquired);
            }
        };
        granted(&store.acquire(0, &bid(&key, &one, TTL)).acquired);
        store.knock(0, &knock(&key, &two), None, &|_| true);
        crowd(&mut store, 1);
        assert_eq!(store.queue(1, &key, 9).0, 1);
        assert_eq!(store.renew(1, &Renewal { key: key.clone(), token: one.clone(), ttl: TTL }), Ok(()));
        crowd(&mut store, 2 * FLOOR_LIVES);
        assert!(store.queues.is_empty() && !store.fences.contains_key(&key) && !store.locks.contains_key(&key));
    }

    #[test]
    fn a_guarded_value_is_written_in_the_order_of_fences() {
        let (mut store, key, ..) = scene();
        let fence = |number: u64| Fence::try_from(number).unwrap();
        for (number, is_written) in [(5, true), (5, true), (4, false), (6, true)] {
            let written = store.guarded_set(0, &key, &[1], fence(number)).unwrap();
            assert_eq!(matches!(written, Guarding::Written), is_written, "{number}");
        }
        assert_eq!(store.guarded_get(0, &key).unwrap(), Some((vec![1], fence(6))));
    }

    #[test]
    fn a_guarded_value_is_somebody_elses_to_every_lock() {
        let (mut store, key, one, _) = scene();
        store.guarded_set(0, &key, &[1], Fence::ZERO).unwrap();
        let lease = Renewal { key: key.clone(), token: one.clone(), ttl: TTL };
        assert!(matches!(store.acquire(0, &bid(&key, &one, TTL)).acquired, Acquired::Busy { .. }));
        assert!(matches!(store.knock(0, &knock(&key, &one), None, &|_| true).0, Knocked::Waits { .. }));
        assert_eq!(store.renew(0, &lease), Err(Denial::Taken));
        assert_eq!(store.release(0, &key, &one, &|_| true).0, Err(Denial::Taken));
        assert_eq!(store.leave(0, &key, &one, None, &|_| true).0, Err(Denial::Taken));
        assert_eq!(store.keep(0, &key, &one, TTL, &Token::draw("kept")), Err(Denial::Taken));
        assert!(store.force_release(0, &key, &|_| true).is_err());
        assert_eq!(store.holder(0, &key), Some(Holder::default()));
    }

    #[test]
    fn what_is_kept_stays_for_its_time_however_often_that_is_said() {
        let (mut store, key, one, two) = scene();
        let stays = Token::draw("kept");
        granted(&store.acquire(0, &bid(&key, &one, TTL)).acquired);
        assert_eq!(store.keep(0, &key, &two, TTL, &stays), Err(Denial::Taken));
        assert_eq!(store.keep(0, &key, &one, TTL * 2, &stays), Ok(()));
        assert_eq!(store.keep(50_000, &key, &one, TTL * 2, &stays), Ok(()), "a replay");
        assert!(store.holder(199_999, &key).is_some() && store.holder(200_000, &key).is_none());
        assert_eq!(store.keep(200_000, &key, &one, TTL, &stays), Err(Denial::Gone));
    }

    #[test]
    fn a_confirmed_grant_has_the_full_ttl() {
        let (mut store, key, one, _) = scene();
        let confirm = |store: &mut Store, now: Micros| store.knock(now, &knock(&key, &one), None, &|_| true).0;
        let Knocked::Granted(first) = confirm(&mut store, 0) else { panic!("it is free") };
        assert!(matches!(confirm(&mut store, 70_000), Knocked::Granted(fence) if fence == first));
        assert!(store.holder(169_999, &key).is_some() && store.holder(170_000, &key).is_none());
    }

    #[test]
    fn a_renewal_and_a_heal_give_the_full_ttl_from_now() {
        let (mut store, key, one, _) = scene();
        let lease = Renewal { key: key.clone(), token: one.clone(), ttl: TTL };
        let lives_until = |store: &mut Store, end: Micros| {
            assert!(store.holder(end - 1, &key).is_some() && store.holder(end, &key).is_none());
        };
        granted(&store.acquire(1_000, &bid(&key, &one, TTL)).acquired);
        assert_eq!(store.renew(60_000, &lease), Ok(()));
        lives_until(&mut store, 160_000);
        assert_eq!(store.heal(200_000, &lease, Fence::ZERO, Duration::ZERO), Healed::Done);
        lives_until(&mut store, 300_000);
    }

    #[test]
    fn a_floor_is_lifted_and_stays_a_day_longer_than_its_fence_or_than_now() {
        let (mut store, key, one, _) = scene();
        let now = 1_000_000;
        granted(&store.acquire(now, &bid(&key, &one, TTL)).acquired);
        for (fence, from) in [(now + 9, now + 9), (now + 20, now + 20)] {
            let fence = Fence::try_from(fence).unwrap();
            assert_eq!(store.raise(now, &key, &one, fence), Ok(()));
            assert_eq!(store.floor(from + FLOOR_LIVES - 1, &key), Some(fence));
        }
        assert_eq!(store.floor(now + 20 + FLOOR_LIVES, &key), None);
        let old = Fence::try_from(5_u64).unwrap();
        assert_eq!(store.raise(now, &key, &one, old), Ok(()));
        assert_eq!(store.floor(now + FLOOR_LIVES - 1, &key), Some(old));
        assert_eq!(store.floor(now + FLOOR_LIVES, &key), None);
    }

    #[test]
    fn a_span_that_is_too_long_is_long() {
        assert!(micros(Duration::MAX) > 1_000 * FLOOR_LIVES);
    }
}
