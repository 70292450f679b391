//! Rules 15, 16 and 17 at the server: its content before and after a request.

use leasehold_protocol::{fence::Fence, message::Downgraded, time::Micros};

use super::{
    Run, Setup,
    state::{Asked, Said, State},
};
use crate::model::state::Owner;

/// The rules that were broken on the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Broken {
    /// A phase has begun with a sharer of an earlier one.
    pub(super) has_earlier: bool,
    /// A sharer has the lock for longer than the key lives.
    pub(super) is_outlived: bool,
    /// A token that was not admitted has the lock.
    pub(super) is_brought_back: bool,
    pub(super) beside_too_many: bool,
    /// A token was admitted before another waiter that is reachable, or a reachable waiter has lost its place in the
    /// line.
    pub(super) passed: bool,
    pub(super) issued_smaller: bool,
    /// The first reachable waiter fits, and was not admitted; or an unreachable one was.
    pub(super) left_waiting: bool,
    /// A lease's fence is smaller than that of an earlier lease, or the same as that of another phase.
    pub(super) fence_fell: bool,
    /// A lease was lost without a fault.
    pub(super) lost_for_nothing: bool,
    /// A lease that had expired was believed in again.
    pub(super) is_revived: bool,
}

/// What the server has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The fence in the lock's key, and when the key expires.
    pub(super) key: Option<(Fence, Micros)>,
    pub(super) alone: Option<Owner>,
    /// Each token with a place in a shared lock, and until when, including expired ones.
    pub(super) places: Vec<(Owner, Micros)>,
    /// The sharers that count.
    pub(super) sharers: Vec<Owner>,
    /// The waiters, and their tickets.
    pub(super) line: Vec<(Owner, u64)>,
}

impl Seen {
    pub(super) fn is_shared(&self) -> bool {
        self.key.is_some() && self.alone.is_none()
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        self.key.map(|(fence, _)| fence)
    }

    /// The tokens that have the lock.
    fn holders(&self) -> impl Iterator<Item = Owner> {
        self.alone.iter().chain(&self.sharers).copied()
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.holders().any(|other| other == owner)
    }

    fn ticket(&self, owner: Owner) -> Option<u64> {
        self.line.iter().find(|(other, _)| *other == owner).map(|(_, ticket)| *ticket)
    }

    /// The tokens that have or want the lock.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Owner> {
        self.holders().chain(self.line.iter().map(|(owner, _)| *owner))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.key.is_none() && self.line.is_empty()
    }
}

impl State {
    /// What the server has now. This changes nothing: a key that is not asked for may be gone, or come back with a
    /// clock that is set back.
    pub(super) fn look(&self, setup: &Setup) -> Seen {
        let (now, mut store) = (self.server_time(setup), self.server.store.clone());
        let owner = |token: &_| setup.tokens.owner(token);
        let line = store.queue(now, &setup.key, usize::MAX).1;
        let line = line.iter().filter_map(|(token, ticket)| Some((owner(token)?, *ticket))).collect();
        let has_ended = self.server.bent.ends.is_some_and(|ends| ends <= now);
        let Some((mut until, places)) = store.ends(now, &setup.key).filter(|_| !has_ended) else {
            return Seen { line, ..Seen::default() };
        };
        let holder = store.holder(now, &setup.key).unwrap_or_default();
        let alone = holder.whole_token().and_then(owner);
        let mut places: Vec<_> = places.iter().filter_map(|(token, until)| Some((owner(token)?, *until))).collect();
        if alone.is_none() {
            until = self.server.bent.ends.unwrap_or(until).min(until);
            places.extend(&self.server.bent.places);
        }
        places.sort_unstable();
        let sharers = places.iter().filter(|(_, until)| *until >= now).map(|(owner, _)| *owner).collect();
        Seen { key: holder.fence().map(|fence| (fence, until)), alone, places, sharers, line }
    }

    /// The first reachable waiter of the line, if it fits and has not got the lock.
    pub(super) fn who_fits(&self, setup: &Setup) -> Option<Owner> {
        let Seen { alone, line, .. } = &self.server.seen;
        let first = line.iter().find(|(one, _)| self.is_there(*one))?.0;
        let taken: u32 = self.server.seen.holders().map(|one| setup.permits(one)).sum();
        let limit = setup.parts[usize::from(first.0)].limit;
        let fits = taken == 0 || alone.is_none() && taken < limit;
        fits.then_some(first)
    }

    /// Whether none of those that share the lock may do so beside the permits that all others take.
    pub(super) fn is_crowded(&self, setup: &Setup) -> bool {
        let sharers = &self.server.seen.sharers;
        let limit = |(me, number): &Owner| {
            let me = usize::from(*me);
            let is_it = |session: &&super::state::Session| session.number == *number;
            let session = self.clients[me].sessions.iter().find(is_it);
            session.map_or(setup.parts[me].limit, |session| session.limit)
        };
        let taken: u32 = sharers.iter().map(|one| setup.permits(*one)).sum();
        sharers.len() > 1 && !sharers.iter().any(|one| taken - setup.permits(*one) < limit(one))
    }

    /// Whether a waiter can be reached.
    fn is_there(&self, (me, _): Owner) -> bool {
        !self.clients[usize::from(me)].is_dead
    }
}

impl Run<'_> {
    /// Compares the server's content with what it was before a request.
    pub(super) fn compare(&mut self, before: &Seen, owner: Owner, asked: &Asked, said: &Said) {
        let (setup, after) = (self.setup, self.state.server.seen.clone());
        let mut broken = self.state.broken;
        let begins = after.key.is_some() && (after.fence(), after.alone) != (before.fence(), before.alone);
        // Only these can have been admitted: the token that asks, and those that were called out of the line.
        let asks_to_come_in = match asked {
            Asked::Poll { .. } => true,
            Asked::Downgrade(from) => before.alone == Some((owner.0, *from)),
            Asked::Renew { .. } | Asked::Part { .. } | Asked::Leave { .. } => false,
        };
        let was_called = |one: Owner| before.ticket(one).is_some() && after.ticket(one).is_none();
        // A holder that continues as a reader has no limit.
        let goes_on = |one: Owner| matches!(asked, Asked::Downgrade(_)) && one == owner;
        let limit_of = |one: Owner| if goes_on(one) { u32::MAX } else { setup.parts[usize::from(one.0)].limit };
        let may_come_in = |one: Owner| asks_to_come_in && one == owner || was_called(one);

        // Rule 15.
        broken.has_earlier |= begins && after.places.iter().any(|(one, _)| !may_come_in(*one));
        broken.is_outlived |= after.sharers.iter().any(|one| {
            let ends =
                |(place, until): &(Owner, Micros)| place == one && after.key.is_some_and(|(_, key)| *until > key);
            after.places.iter().any(ends)
        });
        let mut came: Vec<_> = after.holders().filter(|one| !before.has(*one)).collect();
        let is_renewed = matches!(asked, Asked::Renew { .. }) && *said == Said::Owned(Ok(()));
        broken.is_brought_back |= came.iter().any(|one| !may_come_in(*one)) || is_renewed && !before.has(owner);

        // Tokens that were admitted at one moment were admitted in the order of their tickets.
        let ticket = |one: Owner| {
            let asked = if let Asked::Poll { ticket, .. } = asked { *ticket } else { None };
            before.ticket(one).or(asked.filter(|_| one == owner)).unwrap_or(u64::MAX)
        };
        came.sort_by_key(|one| ticket(*one));
        let stayed: Vec<_> = after.holders().filter(|one| before.has(*one)).collect();
        for (place, one) in came.iter().enumerate() {
            let others = stayed.iter().chain(came.iter().take(place));
            let (limit, others) = (limit_of(*one), others.map(|one| setup.permits(*one)).sum::<u32>());
            let fits = others == 0 || others < limit;
            broken.beside_too_many |= !fits || others > 0 && after.alone.is_some();
            let is_passed = |(other, waits): &(Owner, u64)| *waits < ticket(*one) && self.state.is_there(*other);
            broken.passed |= !goes_on(*one) && after.line.iter().any(is_passed);
        }
        let leaves = |one: Owner| one == owner && !matches!(asked, Asked::Renew { .. });
        let is_out = |one: Owner| after.ticket(one).is_none() && !after.has(one) && !leaves(one);
        broken.passed |= before.line.iter().any(|(one, _)| is_out(*one) && self.state.is_there(*one));

        // Rule 17.
        if begins {
            let issued = self.state.server.issued;
            broken.issued_smaller |= after.fence() <= issued;
            self.state.server.issued = after.fence().max(issued);
        }
        let told = match said {
            Said::Granted(fence) | Said::Downgraded(Downgraded::Shared(fence)) => Some(*fence),
            Said::Waits { .. } | Said::Downgraded(_) | Said::Owned(_) => None,
        };
        broken.issued_smaller |= told.is_some_and(|told| Some(told) != after.fence());

        // A request that changes who has the lock, or checks for expired holders, admits the waiters that fit then.
        let looks = match asked {
            Asked::Poll { .. } => !before.has(owner),
            Asked::Downgrade(_) => !before.has(owner) && told.is_some(),
            Asked::Part { .. } => *said == Said::Owned(Ok(())),
            Asked::Leave { .. } => true,
            Asked::Renew { .. } => false,
        };
        // The server takes the asking client to be reachable, though it may have died since.
        let looks = looks && self.state.is_there(owner) && !self.recovers();
        broken.left_waiting |= looks && self.state.who_fits(setup).is_some();
        let is_deaf = |one: Owner| one != owner && was_called(one) && !self.state.is_there(one);
        broken.left_waiting |= setup.hears && came.iter().any(|one| is_deaf(*one));
        self.state.broken = broken;
    }
}
