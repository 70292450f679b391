//! The core over three and five nodes, against a reference that keeps only the answers of each node, in order.

use std::sync::Arc;

use super::*;
use crate::forced;

#[derive(Debug, Clone)]
enum Event {
    Wait(u64),
    /// Any request under way is answered.
    RenewalAnswer(prop::sample::Index, RenewalAnswer),
    /// An answered request is answered once more: a late copy, or another verdict.
    Again(prop::sample::Index, RenewalAnswer),
    Hint,
    HintOf(usize),
    /// A repair that was ordered is done.
    Repair(prop::sample::Index),
}

fn answers() -> impl Strategy<Value = RenewalAnswer> {
    prop_oneof![
        8 => Just(RenewalAnswer::Confirmed),
        2 => Just(RenewalAnswer::Unclear),
        1 => Just(RenewalAnswer::Refused),
        3 => Just(RenewalAnswer::Denied(Denial::Gone)),
        1 => Just(RenewalAnswer::Denied(Denial::Taken)),
        1 => Just(RenewalAnswer::Denied(Denial::Forced(Arc::new(forced::by("ops", None))))),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (0_u64..900).prop_map(Event::Wait),
        12 => (any::<prop::sample::Index>(), answers()).prop_map(|(which, answer)| Event::RenewalAnswer(which, answer)),
        1 => (any::<prop::sample::Index>(), answers()).prop_map(|(which, answer)| Event::Again(which, answer)),
        1 => Just(Event::Hint),
        2 => (0_usize..3).prop_map(Event::HintOf),
        2 => any::<prop::sample::Index>().prop_map(Event::Repair),
    ];
    prop::collection::vec(event, 1..160)
}

/// Every answer so far, and its consequences.
struct Reference {
    said: Vec<Vec<(Time, RenewalAnswer)>>,
    /// The denials for which a repair was ordered.
    repaired: Vec<(usize, Time)>,
    /// The nodes that gave a hint while they lacked the key, and when the next of them may be repaired.
    hinted: Vec<usize>,
    repairs_from: Time,
    is_over: bool,
}

impl Reference {
    fn new(nodes: usize) -> Self {
        let said = vec![vec![(at(1_000), RenewalAnswer::Confirmed)]; nodes];
        Self { said, repaired: Vec::new(), hinted: Vec::new(), repairs_from: Time::ZERO, is_over: false }
    }

    fn majority(&self) -> usize {
        self.said.len() / 2 + 1
    }

    fn nodes(&self) -> std::ops::Range<usize> {
        0..self.said.len()
    }

    fn sends(&self, node: usize, is_such: impl Fn(&RenewalAnswer) -> bool) -> Time {
        let such = self.said[node].iter().filter(|(_, answer)| is_such(answer));
        such.map(|(sent, _)| *sent).max().unwrap_or(Time::ZERO)
    }

    fn confirmed_by(&self, node: usize) -> Time {
        self.sends(node, |answer| *answer == RenewalAnswer::Confirmed)
    }

    /// The newest send such that a majority has confirmed it, or a later one.
    fn confirmed(&self) -> Time {
        let mut sends: Vec<_> = self.nodes().map(|node| self.confirmed_by(node)).collect();
        sends.sort_unstable_by(|one, other| other.cmp(one));
        sends[self.majority() - 1]
    }

    fn deadline(&self) -> Time {
        self.confirmed() + VALID
    }

    /// A node's denial, unless the node has confirmed a later send since; that confirmation also voids older denials.
    fn denied_by(&self, node: usize) -> Option<(Time, Denial)> {
        let (mut standing, mut back) = (None, Time::ZERO);
        for (sent, answer) in self.said[node].iter().cloned() {
            match (answer, &standing) {
                (RenewalAnswer::Denied(denial), _) if sent >= back => standing = Some((sent, denial)),
                (RenewalAnswer::Confirmed, &Some((denied, _))) if sent > denied => {
                    (standing, back) = (None, back.max(sent));
                }
                _ => {}
            }
        }
        standing
    }

    /// Whether a majority denies it.
    fn is_denied(&self) -> bool {
        self.nodes().filter(|&node| self.denied_by(node).is_some()).count() >= self.majority()
    }

    /// Whether no majority is left to confirm what was sent at `sent`.
    fn is_hopeless(&self, sent: Time) -> bool {
        let tells_nothing = |answer: &RenewalAnswer| matches!(answer, RenewalAnswer::Unclear | RenewalAnswer::Refused);
        let may_confirm = |node: &usize| {
            self.confirmed_by(*node) >= sent
                || self.denied_by(*node).is_none() && self.sends(*node, tells_nothing) < sent
        };
        self.nodes().filter(may_confirm).count() < self.majority()
    }

    /// The nodes to be repaired now.
    fn repairs(&mut self) -> Nodes {
        let confirmed = self.confirmed();
        let mut repairs = Nodes::NONE;
        for node in self.nodes() {
            match self.denied_by(node) {
                Some((sent, Denial::Gone))
                    if sent <= confirmed && !self.repaired.iter().any(|&(at, last)| at == node && sent <= last) =>
                {
                    self.repaired.push((node, sent));
                    repairs.insert(node);
                }
                _ => {}
            }
        }
        repairs
    }

    fn hint_of(&mut self, node: usize) {
        if self.denied_by(node).is_some() {
            self.hinted.push(node);
        }
    }

    /// The nodes to be repaired because of a hint.
    fn repairs_for_hints(&mut self, now: Time, is_well: bool) -> Nodes {
        if self.hinted.is_empty() || now < self.repairs_from {
            return Nodes::NONE;
        }
        let hinted = std::mem::take(&mut self.hinted);
        if !is_well {
            return Nodes::NONE;
        }
        self.repairs_from = now + Duration::from_millis(20);
        let may_be_back = |denial: &Denial| !matches!(denial, Denial::Forced(_));
        hinted
            .into_iter()
            .filter(|&node| self.denied_by(node).is_some_and(|(_, denial)| may_be_back(&denial)))
            .collect()
    }

    /// Whether a lease may be at risk after an answer to a request sent at `sent`; or, without an answer, because of
    /// the time.
    fn may_be_at_risk(&self, sent: Option<Time>, newest_round: Time) -> bool {
        match sent {
            Some(sent) => self.is_hopeless(sent) && sent > self.confirmed(),
            // A round is under way that no majority has confirmed.
            None => newest_round > self.confirmed(),
        }
    }

    fn hear(&mut self, now: Time, node: usize, sent: Time, answer: RenewalAnswer) {
        if !self.is_over && now < self.deadline() {
            self.said[node].push((sent, answer));
            self.is_over = self.is_denied();
        }
    }
}

/// The requests between the core and the nodes, each with its node and its time of sending.
#[derive(Default)]
struct Traffic {
    under_way: Vec<(usize, Time)>,
    answered: Vec<(usize, Time)>,
    healing: Vec<(usize, Time)>,
}

impl Traffic {
    /// The node, the time of sending and the answer of an event; `None` if no request is under way.
    fn answer(&mut self, event: Event) -> Option<(usize, Time, RenewalAnswer)> {
        match event {
            Event::RenewalAnswer(which, answer) if !self.under_way.is_empty() => {
                let (node, sent) = self.under_way.swap_remove(which.index(self.under_way.len()));
                self.answered.push((node, sent));
                Some((node, sent, answer))
            }
            Event::Again(which, answer) if !self.answered.is_empty() => {
                let (node, sent) = *which.get(&self.answered);
                Some((node, sent, answer))
            }
            Event::Repair(which) if !self.healing.is_empty() => {
                let (node, sent) = self.healing.swap_remove(which.index(self.healing.len()));
                Some((node, sent, RenewalAnswer::Confirmed))
            }
            _ => None,
        }
    }
}

proptest! {
    #[test]
    fn over_many_nodes_too_the_core_agrees_with_a_reference_that_remembers_everything(
        nodes in prop::sample::select(&[3_usize, 5]),
        events in events(),
        seed: u64,
    ) {
        let mut tally = Tally::new(nodes);
        (0..nodes).for_each(|node| tally.confirm(node, at(1_000)));
        let config = LeaseConfig { ttl: TTL, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
        let mut core = HeldLease::new(config, tally, Jitter::from_seed(seed));
        let mut reference = Reference::new(nodes);
        let mut now = at(1_000);
        let mut traffic = Traffic::default();
        let mut newest = at(1_000);

        for event in events {
            let before = core.phase();
            let (orders, heard) = match event {
                Event::Wait(millis) => {
                    now = now + Duration::from_millis(millis);
                    (core.tick(now), None)
                }
                Event::Hint => {
                    core.hint(now);
                    (core.tick(now), None)
                }
                Event::HintOf(node) => {
                    core.hint_of(node, now);
                    reference.hint_of(node);
                    (core.tick(now), None)
                }
                event => {
                    let Some((node, sent, answer)) = traffic.answer(event) else { continue };
                    (core.answer(now, node, sent, answer.clone()), Some((node, sent, answer)))
                }
            };
            if let Some((node, sent, answer)) = heard.clone() {
                reference.hear(now, node, sent, answer);
            }
            reference.is_over |= now >= reference.deadline();
            if orders.renew {
                newest = now;
                traffic.under_way.extend((0..nodes).map(|node| (node, now)));
            }
            traffic.healing.extend(orders.repair.iter().map(|node| (node, now)));

            prop_assert_eq!(matches!(core.phase(), Phase::Over { .. }), reference.is_over, "invariants 2 and 3");
            if reference.is_over {
                prop_assert_eq!((orders.renew, orders.repair, orders.undo), (false, Nodes::NONE, true), "5 and 6");
                break;
            }
            prop_assert_eq!(core.valid_until(), reference.deadline(), "invariant 1");
            let is_well = core.phase() == Phase::Held;
            let repairs =
                if heard.is_some() { reference.repairs() } else { reference.repairs_for_hints(now, is_well) };
            prop_assert_eq!(orders.repair, repairs, "invariants 10 and 12");
            if (before, core.phase()) == (Phase::Held, Phase::AtRisk) {
                let sent = heard.map(|(_, sent, _)| sent);
                prop_assert!(reference.may_be_at_risk(sent, newest), "invariant 3: {:?}", sent);
            }
        }
    }
}
