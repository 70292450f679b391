//! Which server of a cluster has which slot, by the newest of what its servers report.
//!
//! Views and redirections go in, in any order. Owners come out.
//!
//! # Invariants
//!
//! 1. A slot never goes back to a server that lost it in a failover. Of two claims to a slot, the one with the larger
//!    config epoch wins, however late it arrives (Redis cluster specification, "configuration handling, propagation,
//!    and failovers"). A view that has heard only half of the failover neither gives the slot back nor leaves it
//!    without an owner.
//! 2. `MOVED` counts only from the slot's owner. Its target has at least the owner's epoch until a view reports more,
//!    so no older view takes the slot back.
//! 3. A view that knows none of our servers is of another cluster. It is ignored until all views have been such for
//!    `FOREIGN`.
//! 4. The number of a server that has no slot any more is never reused.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::RangeInclusive,
    time::Duration,
};

pub use crate::place::Place;
use crate::{
    place::Shard,
    slot::{SLOTS, SlotSet},
    time::Time,
};

#[cfg(test)]
mod tests;

/// A primary, as one server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Primary {
    /// Its name in its cluster, which it keeps for life.
    pub id: Box<str>,
    /// Where it is; `None` if the server does not report that.
    pub place: Option<Place>,
    /// Its config epoch: larger after each failover.
    pub epoch: u64,
    /// The slots that it claims.
    pub slots: Vec<RangeInclusive<u16>>,
    /// Its replicas.
    pub replicas: Vec<Replica>,
}

/// A replica of a primary, as one server sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// Its name in its cluster, which it keeps as a primary.
    pub id: Box<str>,
    /// Where it is.
    pub place: Place,
    /// Whether it seems to be dead.
    pub is_failing: bool,
}

/// A cluster, as one server sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The name of the server whose view it is, if it reports that.
    pub by: Option<Box<str>>,
    /// All primaries, including those that claim no slot.
    pub primaries: Vec<Primary>,
    /// The names of all servers that it knows, in whatever state.
    pub known: BTreeSet<Box<str>>,
    /// Config epochs start over from here, if this server still has the first slot, in this epoch.
    pub begins_anew: Option<(Place, u64)>,
}

/// The owners of all slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    owners: Box<[Option<Shard>]>,
    servers: BTreeMap<Shard, Server>,
    last: Shard,
    /// The servers that have reported that their cluster is down.
    down: BTreeSet<Shard>,
    /// Since when every view has been foreign.
    foreign_since: Option<Time>,
}

/// A server that has slots.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Server {
    /// The server's name; unknown if only a redirection has named it.
    id: Option<Box<str>>,
    place: Place,
    /// Its config epoch; unknown once epochs start over.
    epoch: Option<u64>,
    replicas: Vec<Replica>,
    /// The names of the servers whose slots it has taken over.
    replaced: Vec<Box<str>>,
}

/// The outcome of a view or a redirection.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Changes {
    /// The slots that have another owner now, or none.
    pub slots: SlotSet,
    /// The servers that have no slot any more.
    pub retired: Vec<Shard>,
    /// The servers that have another address now.
    pub elsewhere: Vec<Shard>,
    /// The replicas that have taken over.
    pub taken_over: Vec<TakenOver>,
    /// Whether this is another cluster than before.
    pub is_another: bool,
}

/// A replica has taken over slots from its primary. It may lack the primary's last writes.
#[derive(Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// Where the primary was.
    pub before: Place,
    /// Where the new primary is.
    pub now: Place,
    /// Its config epoch.
    pub epoch: u64,
    /// The slots that were taken over.
    pub slots: SlotSet,
    /// Whether this takeover was not known before: a view, or a redirection, may report a part of the slots only.
    pub is_new: bool,
}

/// A change that a view would make to a primary that we know, or to the slots without an owner.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The slots that change hands, by the name, epoch and place of the new owner.
    slots: BTreeMap<Option<Owner>, SlotSet>,
    place: Option<Place>,
    epoch: Option<u64>,
}

type Owner = (Option<Box<str>>, Option<u64>, Place);

impl Claim {
    /// Whether all that the other claim would change is in this one too.
    pub fn has(&self, other: &Self) -> bool {
        let is_in =
            |(owner, slots): (&Option<Owner>, &SlotSet)| self.slots.get(owner).is_some_and(|ours| ours.has_all(slots));
        other.slots.iter().all(is_in)
            && (other.place.is_none() || other.place == self.place)
            && (other.epoch.is_none() || other.epoch == self.epoch)
    }

    /// Whether the servers that would gain the slots are known.
    pub fn is_among(&self, topology: &Topology) -> bool {
        let is_known = |(id, ..): &Owner| id.is_some() && topology.servers.values().any(|server| server.id == *id);
        self.slots.keys().flatten().all(is_known)
    }

    /// The places of the servers that would gain the slots.
    pub fn gainers(&self) -> impl Iterator<Item = &Place> {
        self.slots.keys().flatten().map(|(_, _, place)| place)
    }
}

/// The owner of each range of slots, in the order of the slots.
fn in_turn(owners: &[Option<Shard>]) -> impl Iterator<Item = Shard> {
    owners.chunk_by(|one, next| one == next).filter_map(|range| *range.first()?)
}

/// How long every view has to be foreign before the cluster counts as another one.
const FOREIGN: Duration = Duration::from_secs(5);

impl Default for Topology {
    fn default() -> Self {
        let owners = (0..SLOTS).map(|_| None).collect();
        // The first number is that of a node that is not a cluster.
        let (servers, down) = (BTreeMap::new(), BTreeSet::new());
        Self { owners, servers, last: Shard::FIRST, down, foreign_since: None }
    }
}

/// Whether the owner has taken over the slots of the other server. A server may hear of that bit by bit. It knows the
/// new one as a primary before it knows of its slots, and may attribute its epoch to the old one.
fn is_replaced(servers: &BTreeMap<Shard, Server>, owner: Option<Shard>, other: Shard) -> bool {
    let owner = owner.filter(|owner| *owner != other).and_then(|owner| servers.get(&owner));
    let id = servers.get(&other).and_then(|server| server.id.as_ref());
    owner.zip(id).is_some_and(|(owner, id)| owner.replaced.contains(id))
}

/// Whether this server was known as a replica of the owner. If it has the owner's epoch, it has taken over: an earlier
/// view attributed that epoch to the old primary, and two primaries never have the same.
fn is_replica(servers: &BTreeMap<Shard, Server>, shard: Shard, owner: Option<Shard>) -> bool {
    let owner = owner.and_then(|owner| servers.get(&owner));
    servers.get(&shard).zip(owner).is_some_and(|(server, owner)| server.is_among(&owner.replicas))
}

impl Server {
    /// Whether it is one of these replicas. A redirection reports only the place.
    fn is_among(&self, replicas: &[Replica]) -> bool {
        replicas.iter().any(|replica| Some(&replica.id) == self.id.as_ref() || replica.place == self.place)
    }
}

impl Topology {
    /// Merges a view that was requested at this time.
    pub fn merge(&mut self, View { primaries, known, begins_anew, .. }: &View, now: Time) -> Changes {
        let (before, mut is_another) = (self.owners.clone(), false);
        let is_ours = |server: &Server| server.id.as_ref().is_some_and(|id| known.contains(id));
        if self.servers.is_empty() || self.servers.values().any(is_ours) {
            self.foreign_since = None;
        } else if now.since(*self.foreign_since.get_or_insert(now)) < FOREIGN {
            return Changes::default();
        } else if primaries.iter().any(|primary| !primary.slots.is_empty()) {
            // The cluster was created anew.
            (self.owners, self.foreign_since, is_another) = (Self::default().owners, None, true);
            self.servers.clear();
        }
        let first = self.owner(0).and_then(|owner| self.servers.get(&owner));
        if begins_anew.as_ref().is_some_and(|(place, epoch)| {
            first.is_some_and(|first| first.place == *place && first.epoch.unwrap_or_default() == *epoch)
        }) {
            self.servers.values_mut().for_each(|server| server.epoch = None);
        }
        let entered: Vec<Option<Shard>> = primaries.iter().map(|primary| self.enter(primary)).collect();
        let named: HashMap<Shard, &Primary> =
            entered.iter().zip(primaries).filter_map(|(shard, primary)| Some(((*shard)?, primary))).collect();
        // The view's knowledge of a server is no older than ours.
        let is_newer = |servers: &BTreeMap<Shard, Server>, shard| {
            let ours = servers.get(&shard).and_then(|server| server.epoch);
            named.get(&shard).is_some_and(|primary| Some(primary.epoch) >= ours)
        };
        // A server that has taken over slots and seems to have none: the view has not heard of them yet.
        let is_halfway = |servers: &BTreeMap<Shard, Server>, shard| {
            let has_taken_over = servers.get(&shard).is_some_and(|server| !server.replaced.is_empty());
            has_taken_over && named.get(&shard).is_some_and(|primary| primary.slots.is_empty())
        };
        let mut claims: Vec<Option<(Shard, u64)>> = vec![None; self.owners.len()];
        for (shard, primary) in &named {
            for slot in primary.slots.iter().cloned().flatten() {
                let claim = claims.get_mut(usize::from(slot));
                if let Some(claim) = claim.filter(|claim| claim.is_none_or(|(_, epoch)| epoch < primary.epoch)) {
                    *claim = Some((*shard, primary.epoch));
                }
            }
        }
        // Slots come in ranges: what is decided of one holds for the next with the same owner and claim.
        let mut last = ((None, None), None);
        for (owner, claim) in self.owners.iter_mut().zip(claims) {
            let (before, decided) = last;
            if before == (*owner, claim) {
                *owner = decided;
                continue;
            }
            let before = (*owner, claim);
            let epoch = owner.and_then(|owner| self.servers.get(&owner)).and_then(|server| server.epoch);
            // If the owner does not claim the slot there, it has given it away.
            let is_told_anew = owner.is_some_and(|owner| is_newer(&self.servers, owner));
            let is_primary = owner.is_some_and(|owner| named.contains_key(&owner));
            *owner = match claim {
                Some((shard, claimed)) if Some(claimed) <= epoch && is_replaced(&self.servers, *owner, shard) => *owner,
                Some((shard, claimed))
                    if Some(claimed) == epoch && !is_primary && is_replica(&self.servers, shard, *owner) =>
                {
                    Some(shard)
                }
                Some((shard, claimed)) if is_told_anew || epoch.is_none_or(|epoch| claimed > epoch) => Some(shard),
                None if is_told_anew && !owner.is_some_and(|owner| is_halfway(&self.servers, owner)) => None,
                _ => *owner,
            };
            last = (before, *owner);
        }
        let mut elsewhere = Vec::new();
        for (shard, primary) in named {
            if let Some(server) = self.servers.get_mut(&shard).filter(|server| Some(primary.epoch) >= server.epoch) {
                server.epoch = Some(primary.epoch);
                if !primary.slots.is_empty() {
                    // A replica that is a primary in this view may be about to take over.
                    server.replicas.retain(|replica| primaries.iter().any(|other| other.id == replica.id));
                    server.replicas.extend(primary.replicas.iter().cloned());
                }
                if let Some(place) = primary.place.as_ref().filter(|place| **place != server.place) {
                    server.place = place.clone();
                    elsewhere.push(shard);
                }
            }
        }
        let changes = self.since(&before);
        elsewhere.retain(|shard| self.servers.contains_key(shard));
        Changes { elsewhere, is_another, ..changes }
    }

    /// The changes that a view would make: to each primary that we know, and to the slots without an owner.
    pub fn claims(&self, view: &View, now: Time) -> BTreeMap<Option<Shard>, Claim> {
        let mut after = self.clone();
        let changes = after.merge(view, now);
        let mut claims: BTreeMap<Option<Shard>, Claim> = BTreeMap::new();
        for slot in (0..SLOTS).filter(|slot| changes.slots.contains(*slot)) {
            let owner = after.owner(slot).and_then(|owner| after.servers.get(&owner));
            let owner = owner.map(|owner| (owner.id.clone(), owner.epoch, owner.place.clone()));
            claims.entry(self.owner(slot)).or_default().slots.entry(owner).or_default().insert(slot);
        }
        for (shard, before) in &self.servers {
            let Some(after) = after.servers.get(shard) else { continue };
            if after.place != before.place {
                claims.entry(Some(*shard)).or_default().place = Some(after.place.clone());
            }
            if after.epoch != before.epoch {
                claims.entry(Some(*shard)).or_default().epoch = after.epoch;
            }
        }
        claims
    }

    /// Whether the last views were of another cluster (invariant 3).
    pub fn is_foreign(&self) -> bool {
        self.foreign_since.is_some()
    }

    /// A server has answered `MOVED`: the slot is at `to` now, or nowhere.
    pub fn moved(&mut self, from: Shard, slot: u16, to: Option<Place>) -> Changes {
        if self.owner(slot) != Some(from) {
            return Changes::default();
        }
        let before = self.owners.clone();
        let epoch = self.servers.get(&from).and_then(|server| server.epoch);
        let target = to.map(|place| {
            let target = self.at(&place).unwrap_or_else(|| {
                self.add(Server { id: None, place, epoch, replicas: Vec::new(), replaced: Vec::new() })
            });
            if let Some(server) = self.servers.get_mut(&target) {
                server.epoch = server.epoch.max(epoch);
            }
            target
        });
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = target;
        }
        self.since(&before)
    }

    /// The owner of a slot.
    pub fn owner(&self, slot: u16) -> Option<Shard> {
        *self.owners.get(usize::from(slot))?
    }

    /// Whether an answer of this server about a slot counts.
    pub fn counts(&self, slot: u16, server: Shard) -> bool {
        self.owner(slot) == Some(server)
    }

    /// A server has reported that its cluster is down.
    pub fn is_down_now(&mut self, server: Shard) {
        if self.servers.contains_key(&server) {
            self.down.insert(server);
        }
    }

    /// The server serves again. Returns whether it had reported otherwise.
    pub fn serves_again(&mut self, server: Shard) -> bool {
        self.down.remove(&server)
    }

    /// Whether a server has reported that its cluster is down.
    pub fn is_down(&self, server: Shard) -> bool {
        self.down.contains(&server)
    }

    /// All servers that have reported that their cluster is down.
    pub fn down(&self) -> Vec<Shard> {
        self.down.iter().copied().collect()
    }

    /// The server at this place, if it has slots.
    pub fn at(&self, place: &Place) -> Option<Shard> {
        self.servers.iter().find(|(_, server)| server.place == *place).map(|(shard, _)| *shard)
    }

    /// The config epoch of a server.
    pub fn epoch(&self, server: Shard) -> u64 {
        self.servers.get(&server).and_then(|server| server.epoch).unwrap_or_default()
    }

    /// Where a server is.
    pub fn place(&self, server: Shard) -> Option<&Place> {
        self.servers.get(&server).map(|server| &server.place)
    }

    /// Where a server's replicas are, except those that seem to be dead.
    pub fn replicas(&self, server: Shard) -> impl Iterator<Item = &Place> {
        let all = self.servers.get(&server).into_iter().flat_map(|server| &server.replicas);
        all.filter(|replica| !replica.is_failing).map(|replica| &replica.place)
    }

    /// All servers that have slots, in the order of their lowest slots.
    pub fn servers(&self) -> Vec<Shard> {
        let mut seen = BTreeSet::new();
        in_turn(&self.owners).filter(|owner| seen.insert(*owner)).collect()
    }

    /// The slots of a server.
    pub fn slots(&self, server: Shard) -> SlotSet {
        (0..SLOTS).filter(|&slot| self.counts(slot, server)).collect()
    }

    /// Our number for a server of a view, if it has one or claims a slot.
    fn enter(&mut self, primary: &Primary) -> Option<Shard> {
        let known = self.servers.iter_mut().find(|(_, server)| match &server.id {
            Some(id) => *id == primary.id,
            None => Some(&server.place) == primary.place.as_ref(),
        });
        if let Some((shard, server)) = known {
            server.id.get_or_insert_with(|| primary.id.clone());
            return Some(*shard);
        }
        let place = primary.place.clone().filter(|_| !primary.slots.is_empty())?;
        let (id, replicas) = (Some(primary.id.clone()), primary.replicas.clone());
        Some(self.add(Server { id, place, epoch: Some(primary.epoch), replicas, replaced: Vec::new() }))
    }

    fn add(&mut self, server: Server) -> Shard {
        self.last = Shard(self.last.0 + 1);
        self.servers.insert(self.last, server);
        self.last
    }

    fn since(&mut self, before: &[Option<Shard>]) -> Changes {
        let changed = (0..SLOTS).zip(before.iter().zip(&*self.owners)).filter(|(_, (before, now))| before != now);
        let mut hands: BTreeMap<(Shard, Shard), SlotSet> = BTreeMap::new();
        let mut slots = SlotSet::default();
        for (slot, (before, now)) in changed {
            slots.insert(slot);
            if let (Some(before), Some(now)) = (before, now) {
                hands.entry((*before, *now)).or_default().insert(slot);
            }
        }
        let mut taken_over = Vec::new();
        for (hands, slots) in hands {
            let Some(mut one) = self.taken_over(hands, slots) else { continue };
            let before = self.servers.get(&hands.0).and_then(|before| before.id.clone());
            if let (Some(before), Some(now)) = (before, self.servers.get_mut(&hands.1)) {
                one.is_new = !now.replaced.contains(&before);
                if one.is_new {
                    now.replaced.push(before);
                }
            }
            taken_over.push(one);
        }
        let [there, had]: [BTreeSet<Shard>; 2] = [&*self.owners, before].map(|owners| in_turn(owners).collect());
        self.servers.retain(|shard, _| there.contains(shard));
        self.down.retain(|shard| there.contains(shard));
        let retired = had.difference(&there).copied().collect();
        Changes { slots, retired, taken_over, ..Changes::default() }
    }

    /// Slots have moved from one server to another. Returns the takeover, if the new owner was a replica of the old
    /// one.
    fn taken_over(&self, (before, now): (Shard, Shard), slots: SlotSet) -> Option<TakenOver> {
        let (before, now) = (self.servers.get(&before)?, self.servers.get(&now)?);
        now.is_among(&before.replicas).then(|| TakenOver {
            before: before.place.clone(),
            now: now.place.clone(),
            epoch: now.epoch.unwrap_or_default(),
            slots,
            is_new: true,
        })
    }
}
