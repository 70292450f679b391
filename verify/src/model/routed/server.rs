//! A server: what it does when it does not send a request elsewhere.

use leasehold_protocol::{
    acquisition::Said,
    failure::Failure,
    fence::Fence,
    holder::Holder,
    key::Key,
    message::{AcquireRequest, Claim, ReleaseMode, Reply, Request, VoteReply, only},
    store::{Process, Store},
    time::Micros,
};

use super::{
    Handover, Setup,
    state::{Part, Told},
};
use crate::model::state::{Kind, Owner};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::model) struct Server {
    pub(in crate::model) store: Store,
    /// Whose key is there, and until when by its own clock.
    pub(in crate::model) key: Option<(Owner, Micros)>,
    /// The fence in its value, as whoever looks sees it.
    pub(super) shown: Option<Fence>,
    /// The key came when what put it there was not waited for any more.
    pub(super) is_belated: bool,
}

impl Server {
    /// Notes whose key is there now.
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

    /// Does what it is asked.
    pub(super) fn execute(&mut self, now: Micros, claim: Claim, kind: Kind, part: &Part) -> Told {
        if let Part::Single(single) = part {
            return Told::Single(self.store.single(now, single));
        }
        Told::Said(match kind {
            Kind::Acquire => {
                let request = AcquireRequest { claim, voting: None, heir_of: None };
                let vote: VoteReply = ask(&mut self.store, now, &Request::Acquire(request));
                // On this network anything may overtake anything.
                Said::Vote { acquired: vote.acquired, overtaken: true }
            }
            Kind::Renew => {
                let renewed = ask(&mut self.store, now, &Request::Renew([claim].into()));
                Said::Owned(only(renewed).unwrap())
            }
            Kind::Release | Kind::Undo => {
                let request = Request::Release { claim, mode: ReleaseMode::Delete };
                Said::Owned(ask(&mut self.store, now, &request))
            }
            Kind::Raise | Kind::Repair => panic!("one node is never asked for that"),
        })
    }
}

/// What a server answers.
fn ask<T: TryFrom<Reply, Error = Failure>>(store: &mut Store, now: Micros, request: &Request) -> T {
    let applied = store.apply(now, request, Process { name: "", hears: false }, &|_| false);
    applied.reply.and_then(T::try_from).unwrap()
}
