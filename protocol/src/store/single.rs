//! The keys of a cluster whose slot is being moved one by one: requests that need one key, and keys that move to
//! another server.

use super::{Held, Store, StoredLock};
use crate::{
    fence,
    holder::Holder,
    key::Key,
    message::{Claim, Denial, Owned},
    stepwise::{Single, SingleReply},
    time::{Micros, micros},
};

impl Store {
    /// Executes a request that needs one key.
    pub fn single(&mut self, now: Micros, single: &Single) -> SingleReply {
        match single {
            Single::Take(claim) => self.take_alone(now, claim),
            Single::Issue(Claim { key, fence_memory, .. }) => {
                SingleReply::Issued(self.issue(now, key, now, *fence_memory))
            }
            Single::Confirm(claim) => SingleReply::Owned(self.confirm(now, claim)),
            Single::Release(Claim { key, token, .. }) => {
                let released = self.held_by(now, key, token).map(|_| ());
                if released.is_ok() {
                    self.locks.remove(key);
                }
                SingleReply::Owned(released)
            }
            Single::ExtendPhase(claim) => SingleReply::Owned(self.extend_phase(now, claim)),
            Single::ExtendShare(Claim { key, token, life, .. }) => {
                SingleReply::Owned(self.shared(now, key).and_then(|phase| phase.extend(now, token, *life)))
            }
            Single::Part(Claim { key, token, .. }) => {
                let was_in = self.shared(now, key).is_ok_and(|phase| phase.part(now, token).is_some());
                SingleReply::Owned(was_in.then_some(()).ok_or(Denial::Gone))
            }
        }
    }

    fn take_alone(&mut self, now: Micros, Claim { key, token, life, .. }: &Claim) -> SingleReply {
        let until = now + micros(*life);
        match self.lock(now, key) {
            None => {
                let lock = StoredLock { token: token.clone(), fence: fence::ZERO, until };
                self.locks.insert(key.clone(), Held::Alone(lock));
                SingleReply::Taken
            }
            Some(Held::Alone(lock)) if lock.token == *token => {
                lock.until = lock.until.max(until);
                SingleReply::Taken
            }
            Some(_) => SingleReply::Busy(self.holder(now, key).unwrap_or_else(Holder::nobody)),
        }
    }

    fn confirm(&mut self, now: Micros, Claim { key, token, life, fence, .. }: &Claim) -> Owned {
        let lock = self.owned(now, key, token)?;
        (lock.fence, lock.until) = (fence.unwrap_or(fence::ZERO), now + micros(*life));
        Ok(())
    }

    /// Whether the store has the key of a lock.
    pub fn has_lock(&mut self, now: Micros, key: &Key) -> bool {
        self.lock(now, key).is_some()
    }

    /// Whether the store has the key of a lock's floor.
    pub fn has_floor(&mut self, now: Micros, key: &Key) -> bool {
        self.floors.get(now, key).is_some()
    }

    /// Moves the key of a lock to another server, by whose clock it lives as long there.
    pub fn move_lock(&mut self, now: Micros, key: &Key, to: &mut Self, there: Micros) {
        if self.has_lock(now, key) {
            if let Some(mut held) = self.locks.remove(key) {
                held.set_until(there + (held.until() - now));
                to.locks.insert(key.clone(), held);
            }
        }
    }

    /// Moves the key of the lock's floor, like [`move_lock`](Self::move_lock).
    pub fn move_floor(&mut self, now: Micros, key: &Key, to: &mut Self, there: Micros) {
        if let Some((floor, left)) = self.floors.take(now, key) {
            to.floors.put(key, floor, there + left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{mode::Mode, token::Token};

    const NOW: Micros = 1_000_000_000;
    const TTL: Duration = Duration::from_secs(1);

    fn claim(label: &str) -> Claim {
        let (key, token) = (Key::of_lock("job"), Token::random(label));
        Claim { key, token, mode: Mode::Exclusive, ttl: TTL, life: TTL, fence: None, fence_memory: fence::MEMORY }
    }

    fn owned(reply: SingleReply) -> Owned {
        let SingleReply::Owned(owned) = reply else { panic!("{reply:?}") };
        owned
    }

    #[test]
    fn a_free_lock_is_taken_without_a_fence_and_gets_it_once_it_is_issued() {
        let (mut store, first, second) = (Store::default(), claim("a"), claim("b"));
        assert_eq!(store.single(NOW, &Single::Take(first.clone())), SingleReply::Taken);
        assert_eq!(store.holder(NOW, &first.key).unwrap().fence(), None);
        let SingleReply::Busy(holder) = store.single(NOW, &Single::Take(second.clone())) else { panic!("it is held") };
        assert_eq!(holder.whole_token(), Some(&first.token));
        let SingleReply::Issued(fence) = store.single(NOW, &Single::Issue(first.clone())) else { panic!("no fence") };
        let confirm = Single::Confirm(Claim { fence: Some(fence), ..first.clone() });
        assert_eq!(owned(store.single(NOW + 10, &confirm)), Ok(()));
        let holder = store.holder(NOW + 10, &first.key).unwrap();
        assert_eq!((holder.fence(), holder.remaining()), (Some(fence), Some(TTL)));
        assert_eq!(owned(store.single(NOW, &Single::Release(second.clone()))), Err(Denial::Taken));
        assert_eq!(owned(store.single(NOW, &Single::Release(first.clone()))), Ok(()));
        assert_eq!(owned(store.single(NOW, &confirm)), Err(Denial::Gone), "nothing is created");
        let SingleReply::Issued(next) = store.single(NOW, &Single::Issue(second)) else { panic!("no fence") };
        assert!(next > fence);
    }

    #[test]
    fn a_step_that_is_sent_again_shortens_nothing() {
        let (mut store, claim) = (Store::default(), claim("a"));
        for (now, left) in [(NOW, 1_000_000), (NOW + 300_000, 1_000_000), (NOW + 100_000, 1_200_000)] {
            assert_eq!(store.single(now, &Single::Take(claim.clone())), SingleReply::Taken);
            let remaining = store.holder(now, &claim.key).unwrap().remaining();
            assert_eq!(remaining, Some(Duration::from_micros(left)), "{now}");
        }
    }

    #[test]
    fn keys_go_one_by_one_and_keep_their_time() {
        let (mut here, mut there, claim) = (Store::default(), Store::default(), claim("a"));
        let _taken = here.single(NOW, &Single::Take(claim.clone()));
        let _issued = here.single(NOW, &Single::Issue(claim.clone()));
        here.move_lock(NOW + 100, &claim.key, &mut there, 50);
        assert!(!here.has_lock(NOW + 100, &claim.key) && here.has_floor(NOW + 100, &claim.key));
        let remaining = there.holder(50, &claim.key).unwrap().remaining();
        assert_eq!(remaining, Some(Duration::from_micros(999_900)));
        here.move_floor(NOW + 100, &claim.key, &mut there, 50);
        assert!(!here.has_floor(NOW + 100, &claim.key) && there.has_floor(50, &claim.key));
        let SingleReply::Issued(next) = there.single(50, &Single::Issue(claim)) else { panic!("no fence") };
        assert_eq!(u64::from(next), NOW + 1, "the clock there is behind");
    }
}
