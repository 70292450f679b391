//! Which server was the primary of which lock, and when: as observed during a round, with the conclusions for its
//! history.

use crate::{
    history::{Cause, Failover, History, Look, Loss},
    record::Nanos,
};

/// A server that was a replica at one moment, and a primary at the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    pub shard: usize,
    pub server: usize,
    pub from: Nanos,
    pub to: Nanos,
}

/// A server, and the time in which it did something, or something was done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct During {
    pub server: usize,
    pub from: Nanos,
    pub to: Nanos,
}

/// A lock was in this shard in this time, or in part of it while its slot was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    pub name: usize,
    pub shard: usize,
    pub from: Nanos,
    pub to: Nanos,
}

/// An observation of one server, which reported before and after it that it was a primary.
#[derive(Debug, Clone)]
pub struct Seen {
    pub shard: usize,
    pub server: usize,
    pub look: Look,
}

#[derive(Debug, Default)]
pub struct Ledger {
    /// The first primary of each shard, by the shard's number.
    pub first: Vec<usize>,
    pub promotions: Vec<Promotion>,
    /// When servers were ordered to take over from a primary that waits until they have all its writes.
    pub in_peace: Vec<During>,
    /// When servers were dead.
    pub dead: Vec<During>,
    pub stays: Vec<Stay>,
    pub seen: Vec<Seen>,
    /// The servers that a Sentinel named, in order, each with the first time.
    pub named: Vec<(usize, Nanos)>,
}

impl Ledger {
    pub fn new(first: Vec<usize>, homes: &[usize]) -> Self {
        let stay = |(name, &shard)| Stay { name, shard, from: 0, to: Nanos::MAX };
        Self { first, stays: homes.iter().enumerate().map(stay).collect(), ..Self::default() }
    }

    /// The primary of a shard, as far as is known by now.
    pub fn primary(&self, shard: usize) -> usize {
        let last = self.promotions.iter().rfind(|promotion| promotion.shard == shard);
        last.map_or(self.first[shard], |promotion| promotion.server)
    }

    /// The locks of a shard, including those on their way.
    pub fn names_in(&self, shard: usize) -> Vec<usize> {
        let stays = self.stays.iter().filter(|stay| stay.shard == shard && stay.to == Nanos::MAX);
        stays.map(|stay| stay.name).collect()
    }

    /// The shard of a lock.
    pub fn home(&self, name: usize) -> usize {
        self.stays.iter().rfind(|stay| stay.name == name).map_or(0, |stay| stay.shard)
    }

    /// Notes that the locks begin to be moved.
    pub fn begin_to_move(&mut self, names: &[usize], to: usize, now: Nanos) {
        let stays = names.iter().map(|&name| Stay { name, shard: to, from: now, to: Nanos::MAX });
        self.stays.extend(stays);
    }

    /// Notes that everything of these locks has been moved.
    pub fn have_moved(&mut self, names: &[usize], from: usize, now: Nanos) {
        let here = |stay: &&mut Stay| names.contains(&stay.name) && stay.shard == from && stay.to == Nanos::MAX;
        self.stays.iter_mut().filter(here).for_each(|stay| stay.to = now);
    }

    /// Enters the input of the checks into a history. The servers have these ports. If all replicas confirm each grant,
    /// one that takes over may lack only the keys on their way to its shard, because their move does not wait for the
    /// replicas there.
    pub fn enter(&self, history: &mut History, ports: &[u16], all_replicas_confirm: bool) {
        for (at, promotion) in self.promotions.iter().enumerate() {
            let before = self.promotions[..at].iter().rfind(|before| before.shard == promotion.shard);
            let old = before.map_or(self.first[promotion.shard], |before| before.server);
            let Promotion { shard, server, from, to } = *promotion;
            let failover = self.failover(promotion, old, ports);
            let index = history.failovers.len();
            if failover.loses {
                let is_there = |stay: &&Stay| stay.shard == shard && stay.from <= to && from <= stay.to;
                let is_elsewhere_too = |stay: &&Stay| {
                    let mut others = self.stays.iter().filter(|other| other.name == stay.name && other.shard != shard);
                    others.any(|other| other.from <= to && from <= other.to)
                };
                let may_be_lost = |stay: &&Stay| !all_replicas_confirm || is_elsewhere_too(stay);
                let losses = self.stays.iter().filter(is_there).filter(may_be_lost).map(|stay| Loss {
                    server: 0,
                    name: Some(stay.name),
                    from,
                    to,
                    cause: Cause::Failover(index),
                });
                history.losses.extend(losses);
            }
            debug_assert_ne!(old, server);
            history.failovers.push(failover);
        }
        let rightful = self.seen.iter().filter(|seen| self.is_rightful(seen));
        history.looks.extend(rightful.map(|seen| seen.look.clone()));
    }

    fn failover(&self, promotion: &Promotion, old: usize, ports: &[u16]) -> Failover {
        let &Promotion { shard, server, from, to } = promotion;
        // It was still a replica when it was ordered to take over.
        let in_peace = |during: &During| during.server == server && during.from <= to && to <= during.to;
        let is_dead = |during: &&During| during.server == old && during.from <= to && to <= during.to;
        let named = self.named.iter().filter(|(named, at)| *named == server && *at >= from);
        Failover {
            shard,
            old: ports[old],
            new: ports[server],
            promoted: (from, to),
            named: named.map(|(_, at)| *at).min().unwrap_or(to).max(to),
            dead: self.dead.iter().find(is_dead).map(|during| during.from),
            loses: !self.in_peace.iter().any(in_peace),
        }
    }

    /// Whether the server was the lock's only primary during the whole look.
    fn is_rightful(&self, seen: &Seen) -> bool {
        let Look { name, from, to, .. } = seen.look;
        let of_shard = || self.promotions.iter().filter(|promotion| promotion.shard == seen.shard);
        let is_settled = of_shard().all(|promotion| promotion.to < from || to < promotion.from);
        let last = of_shard().rfind(|promotion| promotion.to < from);
        let primary = last.map_or(self.first[seen.shard], |promotion| promotion.server);
        let mut stays = self.stays.iter().filter(|stay| stay.name == name && stay.from <= to && from <= stay.to);
        is_settled && primary == seen.server && stays.all(|stay| stay.shard == seen.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Found;

    /// Two shards, of the servers 0 and 2, and 1 and 3. The first lock is in the first, the second in the second.
    fn ledger() -> Ledger {
        Ledger::new(vec![0, 1], &[0, 1])
    }

    const PORTS: [u16; 4] = [10, 11, 12, 13];

    fn promotion(server: usize, from: Nanos, to: Nanos) -> Promotion {
        Promotion { shard: server % 2, server, from, to }
    }

    fn entered(ledger: &Ledger) -> History {
        let mut history = History::default();
        ledger.enter(&mut history, &PORTS, false);
        history
    }

    fn seen(server: usize, name: usize, from: Nanos, to: Nanos) -> Seen {
        let look = Look { name, from, to, found: [Found::Nothing].into() };
        Seen { shard: server % 2, server, look }
    }

    #[test]
    fn one_that_takes_over_may_lack_writes_unless_it_was_told_in_peace() {
        let mut ledger = ledger();
        ledger.promotions = vec![promotion(2, 100, 110), promotion(0, 200, 210)];
        ledger.in_peace = vec![During { server: 0, from: 150, to: 220 }];
        let history = entered(&ledger);
        let of = |at: usize| (history.failovers[at].old, history.failovers[at].new, history.failovers[at].loses);
        assert_eq!((of(0), of(1)), ((10, 12, true), (12, 10, false)));
        let losses: Vec<_> = history.losses.iter().map(|loss| (loss.name, loss.from, loss.to)).collect();
        assert_eq!(losses, [(Some(0), 100, 110)], "the other shard has lost nothing");
        let peace = |server, from, to| During { server, from, to };
        for in_peace in [peace(0, 211, 220), peace(0, 150, 209), peace(2, 150, 220)] {
            ledger.in_peace = vec![in_peace];
            assert!(entered(&ledger).failovers[1].loses, "{in_peace:?}");
        }
    }

    #[test]
    fn where_all_replicas_confirm_one_may_lack_only_what_is_on_its_way() {
        let mut ledger = ledger();
        ledger.begin_to_move(&[0], 1, 200);
        ledger.have_moved(&[0], 0, 300);
        for (server, from, names) in
            [(3, 150, vec![]), (2, 150, vec![]), (3, 250, vec![0]), (2, 250, vec![0]), (3, 301, vec![])]
        {
            ledger.promotions = vec![promotion(server, from, from + 10)];
            let mut history = History::default();
            ledger.enter(&mut history, &PORTS, true);
            let lost: Vec<_> = history.losses.iter().filter_map(|loss| loss.name).collect();
            assert_eq!(lost, names, "{server} at {from}");
            assert!(history.failovers[0].loses, "what was not confirmed");
        }
    }

    #[test]
    fn a_primary_that_is_dead_when_another_takes_over_says_no_more() {
        let with = |dead: During| {
            let ledger = Ledger { promotions: vec![promotion(2, 100, 110)], dead: vec![dead], ..ledger() };
            entered(&ledger).failovers[0].dead
        };
        assert_eq!(with(During { server: 0, from: 50, to: 120 }), Some(50));
        assert_eq!(with(During { server: 0, from: 50, to: 105 }), None, "it was back by then");
        assert_eq!(with(During { server: 0, from: 111, to: 120 }), None);
        assert_eq!(with(During { server: 1, from: 50, to: 120 }), None);
    }

    #[test]
    fn a_sentinel_names_it_later() {
        let named = vec![(2, 90), (2, 150), (2, 160), (1, 105)];
        let ledger = Ledger { promotions: vec![promotion(2, 100, 110)], named, ..ledger() };
        assert_eq!(entered(&ledger).failovers[0].named, 150);
        let ledger = Ledger { named: Vec::new(), ..ledger };
        assert_eq!(entered(&ledger).failovers[0].named, 110);
    }

    #[test]
    fn a_look_counts_at_the_only_primary() {
        let promotions = vec![promotion(2, 100, 110)];
        let counts = |seen: Seen| {
            let ledger = Ledger { promotions: promotions.clone(), seen: vec![seen], ..ledger() };
            !entered(&ledger).looks.is_empty()
        };
        assert!(counts(seen(0, 0, 90, 99)) && counts(seen(2, 0, 111, 120)));
        assert!(!counts(seen(0, 0, 90, 100)) && !counts(seen(2, 0, 110, 120)), "it took over meanwhile, perhaps");
        assert!(!counts(seen(0, 0, 150, 160)) && !counts(seen(2, 0, 90, 95)), "the other is the primary");
        assert!(counts(seen(1, 1, 100, 110)), "of another shard");
        assert!(!counts(seen(1, 0, 90, 95)), "the lock is elsewhere");
    }

    #[test]
    fn a_lock_that_is_moved_is_on_both_until_it_has_arrived() {
        let mut ledger = ledger();
        ledger.begin_to_move(&[0], 1, 200);
        assert_eq!((ledger.names_in(0), ledger.names_in(1), ledger.home(0)), (vec![0], vec![1, 0], 1));
        ledger.have_moved(&[0], 0, 300);
        assert_eq!((ledger.names_in(0), ledger.names_in(1)), (vec![], vec![1, 0]));
        let mut counts = |seen: Seen| {
            ledger.seen = vec![seen];
            !entered(&ledger).looks.is_empty()
        };
        assert!(counts(seen(0, 0, 190, 199)) && counts(seen(1, 0, 301, 310)));
        for at in [200, 250, 300] {
            assert!(!counts(seen(0, 0, at, at)) && !counts(seen(1, 0, at, at)), "it is on its way");
        }
        // A loss in either of the two shards may concern it.
        for (from, names) in [(150, vec![Some(1)]), (250, vec![Some(1), Some(0)])] {
            ledger.promotions = vec![promotion(3, from, from + 10)];
            let lost: Vec<_> = entered(&ledger).losses.iter().map(|loss| loss.name).collect();
            assert_eq!(lost, names);
        }
        ledger.promotions = vec![promotion(2, 301, 310)];
        assert!(entered(&ledger).losses.is_empty(), "it has left");
    }
}
