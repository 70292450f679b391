//! Guarded values, which only a fence that is not older can replace.

use super::Store;
use crate::{failure::Failure, fence::Fence, holder::Holder, key::Key, message::Guarding, time::Micros};

impl Store {
    /// Writes a guarded value, if the fence is not older than what the key has seen.
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

    /// A guarded value, and the fence that it was written with.
    pub(super) fn guarded_get(&mut self, now: Micros, key: &Key) -> Result<Option<(Vec<u8>, Fence)>, Failure> {
        if self.lock(now, key).is_some() {
            return Err(wrong_type(key, "a lock, not a guarded value"));
        }
        Ok(self.guarded.get(key).cloned())
    }
}

/// The holder that a guarded value looks like: on a server it is a hash without a TTL.
pub(super) fn guarded_value() -> Holder {
    Holder::of_type(Some("hash"), -1)
}

pub(super) fn wrong_type(key: &Key, what: &str) -> Failure {
    Failure::refused(format!("WRONGTYPE the key {key:?} holds {what}")).of_a_key()
}
