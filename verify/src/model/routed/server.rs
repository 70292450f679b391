//! A server, executing the requests that it does not redirect.

use leasehold_protocol::{fence::Fence, holder::Holder, key::Key, message::Claim, store::Store, time::Micros};

use super::{
    Handover, Setup,
    state::{Part, Told},
};
use crate::model::{
    node,
    state::{Kind, Owner},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::model) struct Server {
    pub(in crate::model) store: Store,
    /// The owner of the key, and when it expires by the server's own clock.
    pub(in crate::model) key: Option<(Owner, Micros)>,
    /// The fence in its value, as a look shows it.
    pub(super) shown: Option<Fence>,
    /// The key came after its client had stopped waiting for the request that put it there.
    pub(super) is_belated: bool,
}

impl Server {
    /// Notes the owner of the key now.
    pub(super) fn look<H: Handover>(&mut self, setup: &Setup<H>, now: Micros) {
        let holder = self.store.holder(now, &setup.key);
        self.shown = holder.as_ref().and_then(Holder::fence);
        let key = holder.and_then(|holder| {
            let until = now + u64::try_from(holder.remaining()?.as_micros()).ok()?;
            Some((setup.tokens.owner(holder.whole_token()?)?, until))
        });
        self.is_belated &= key.map(|(owner, _)| owner) == self.key.map(|(owner, _)| owner);
        self.key = key;
    }

    /// The lock's key goes to another server.
    pub(in crate::model) fn move_lock(&mut self, now: Micros, key: &Key, to: &mut Self, there: Micros) {
        self.store.move_lock(now, key, &mut to.store, there);
        (to.key, to.is_belated) = (self.key, self.is_belated);
    }

    /// Executes a request.
    pub(super) fn execute(&mut self, now: Micros, claim: Claim, kind: Kind, part: &Part) -> Told {
        match part {
            Part::Single(single) => Told::Single(self.store.single(now, single)),
            Part::Whole => Told::Said(node::execute(&mut self.store, now, claim, kind)),
        }
    }
}
