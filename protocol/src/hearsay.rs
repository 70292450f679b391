//! Which views of a cluster are believed, among the answers to one round of questions: pure.
//!
//! A server that is cut off, was restored from a backup, or is hostile reports a false view, in any epoch. The primary
//! that would lose by it contradicts it, and so do the other servers.
//!
//! # Invariants
//!
//! 1. A view that changes what we know of a primary (its slots, its place, its epoch) counts once that primary or a
//!    second server reports the same. If the primary does not answer, one report is enough, once all other servers have
//!    been heard, and those that would gain.
//! 2. The report of a primary alone does not give its slots to a server that we do not know: that server is asked too.
//! 3. A server counts once, at however many addresses it was asked.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    place::{Place, Shard},
    time::Time,
    topology::{Claim, Primary, Topology, View},
};

/// A round of questions.
#[derive(Debug, Default)]
pub struct Hearsay {
    /// The servers that have not answered yet: a primary, or `None` for another server.
    asked: Vec<Option<Shard>>,
    said: Vec<Said>,
    silent: BTreeSet<Shard>,
    /// The places that were asked because they would gain, each with the server whose view says so.
    gainers: Vec<(Option<Box<str>>, Place)>,
    /// The topology for which the claims of the views were computed.
    known: Topology,
}

/// The changes that a view would make: to each primary, and to the slots without an owner.
type Claims = BTreeMap<Option<Shard>, Claim>;

/// The most servers that are asked because they would gain by one server's view.
const MOST_GAINERS: usize = 4;

#[derive(Debug)]
struct Said {
    /// The primary that reported the view, or `None` for another server.
    of: Option<Shard>,
    view: View,
    /// The changes that it would make, once computed.
    claims: Option<Claims>,
    /// Whether the view is not believed yet.
    is_open: bool,
}

impl Said {
    fn claims(&self) -> impl Iterator<Item = (&Option<Shard>, &Claim)> {
        self.claims.iter().flatten()
    }
}

impl Hearsay {
    /// Notes that a server is asked: this primary, on its existing connection, or another server.
    pub fn ask(&mut self, primary: Option<Shard>) {
        self.asked.push(primary);
    }

    /// Notes that this server has answered, or will not.
    pub fn heard(&mut self, primary: Option<Shard>, view: Option<View>) {
        if let Some(at) = self.asked.iter().position(|asked| *asked == primary) {
            self.asked.swap_remove(at);
        }
        if let Some(view) = view {
            self.said.push(Said { of: primary, view, claims: None, is_open: true });
        }
    }

    /// Notes that a primary does not answer requests.
    pub fn is_silent(&mut self, primary: Shard) {
        self.silent.insert(primary);
    }

    /// The next view to merge.
    pub fn believed(&mut self, topology: &Topology, now: Time) -> Option<View> {
        self.compute_claims(topology, now);
        let at = self.next(topology)?;
        let said = self.said.get_mut(at)?;
        said.is_open = false;
        Some(said.view.clone())
    }

    /// The primaries that would lose something by a view that is not believed, and the places that would gain by it and
    /// were not returned before. A server that has taken over reports that itself.
    pub fn contested(&mut self, topology: &Topology, now: Time) -> (BTreeSet<Shard>, Vec<Place>) {
        self.compute_claims(topology, now);
        let losers = self.open().flat_map(|said| said.claims().filter_map(|(of, _)| *of)).collect();
        let new = self.to_ask();
        let gainers = new.iter().map(|(_, place)| place.clone()).collect();
        self.gainers.extend(new);
        (losers, gainers)
    }

    /// Computes what each view claims, which is expensive, once for each view and topology.
    fn compute_claims(&mut self, topology: &Topology, now: Time) {
        if self.known != *topology {
            self.known = topology.clone();
            self.said.iter_mut().for_each(|said| said.claims = None);
        }
        for said in &mut self.said {
            said.claims.get_or_insert_with(|| topology.claims(&said.view, now));
        }
    }

    /// The views that are not believed yet.
    fn open(&self) -> impl Iterator<Item = &Said> {
        self.said.iter().filter(|said| said.is_open)
    }

    fn next(&self, topology: &Topology) -> Option<usize> {
        let knows_nothing = topology.servers().is_empty();
        let counts = |said: &Said, of: Option<Shard>, claim: &Claim, may_be_alone: bool| {
            let is_silent = of.is_none_or(|of| self.silent.contains(&of));
            let others = self.said.iter().filter(|other| other.view.by != said.view.by);
            knows_nothing
                || (of.is_none() || said.of == of) && claim.is_among(topology)
                || may_be_alone && is_silent && claim.gainers().all(|gainer| is_asked(&self.gainers, gainer))
                || others.filter_map(|other| other.claims.as_ref()?.get(&of)).any(|theirs| theirs.has(claim))
        };
        let first = |may_be_alone| {
            self.said.iter().position(|said| {
                said.is_open && said.claims().all(|(of, claim)| counts(said, *of, claim, may_be_alone))
            })
        };
        let is_answered = || self.asked.iter().all(|asked| asked.is_some_and(|asked| self.silent.contains(&asked)));
        // A lone view is believed about primaries that do not answer, once no other answer is awaited.
        first(false).or_else(|| (is_answered() && self.to_ask().is_empty()).then(|| first(true))?)
    }

    /// The places that would gain and were not asked yet.
    fn to_ask(&self) -> Vec<(Option<Box<str>>, Place)> {
        let mut all = self.gainers.clone();
        for said in self.open() {
            let by = &said.view.by;
            for place in said.claims().flat_map(|(_, claim)| claim.gainers()) {
                if !is_asked(&all, place) && all.iter().filter(|(for_whom, _)| for_whom == by).count() < MOST_GAINERS {
                    all.push((by.clone(), place.clone()));
                }
            }
        }
        all.split_off(self.gainers.len())
    }
}

fn is_asked(gainers: &[(Option<Box<str>>, Place)], place: &Place) -> bool {
    gainers.iter().any(|(_, asked)| asked == place)
}

/// Sorts the views of a program that knows nothing yet. The view of most servers comes first, and of two such views the
/// one with the larger epoch. Views of another cluster are left out. Fails with one view of each cluster if as many
/// servers are of the other one.
pub fn sort<T>(mut views: Vec<T>, read: impl Fn(&T) -> &View) -> Result<Vec<T>, [T; 2]> {
    let count = |is_meant: &dyn Fn(&View) -> bool| {
        let by: BTreeSet<_> = views.iter().map(&read).filter(|view| is_meant(view)).map(|view| &view.by).collect();
        by.len()
    };
    let ranks: Vec<_> = views
        .iter()
        .map(&read)
        .map(|view| {
            let kin = count(&|other| !other.known.is_disjoint(&view.known));
            let epoch = view.primaries.iter().map(|primary| primary.epoch).max();
            Reverse((kin, count(&|other| owners(other) == owners(view)), epoch))
        })
        .collect();
    let mut ranked: Vec<_> = ranks.into_iter().zip(views.drain(..)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let Some((Reverse((kin, ..)), first)) = ranked.first() else { return Ok(views) };
    let known = read(first).known.clone();
    let (kin, mut strangers) = (*kin, Vec::new());
    for (Reverse(rank), view) in ranked {
        if !read(&view).known.is_disjoint(&known) {
            views.push(view);
        } else if rank.0 >= kin {
            strangers.push(view);
        }
    }
    match strangers.pop() {
        Some(stranger) => Err([views.swap_remove(0), stranger]),
        None => Ok(views),
    }
}

/// The slots of each primary that has any.
fn owners(view: &View) -> BTreeSet<(&str, Vec<(u16, u16)>)> {
    let slots = |primary: &Primary| {
        let mut slots: Vec<_> = primary.slots.iter().map(|slots| (*slots.start(), *slots.end())).collect();
        slots.sort_unstable();
        slots
    };
    view.primaries
        .iter()
        .filter(|primary| !primary.slots.is_empty())
        .map(|primary| (&*primary.id, slots(primary)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, ops::RangeInclusive};

    use proptest::prelude::*;

    use super::*;
    use crate::topology::Replica;

    fn place(port: u16) -> Place {
        Place { host: "h".into(), port }
    }

    fn id(port: u16) -> Box<str> {
        format!("id-{port}").into()
    }

    /// A primary that is named after its port.
    fn primary(port: u16, epoch: u64, slots: &[RangeInclusive<u16>], replicas: &[u16]) -> Primary {
        let replica = |port: &u16| Replica { id: id(*port), place: place(*port), is_failing: false };
        let replicas = replicas.iter().map(replica).collect();
        Primary { id: id(port), place: Some(place(port)), epoch, slots: slots.to_vec(), replicas }
    }

    fn view(by: u16, primaries: &[Primary]) -> View {
        View { by: Some(id(by)), primaries: primaries.to_vec(), known: (0..9).map(id).collect(), begins_anew: None }
    }

    /// Three primaries, 1 to 3; the first has the replica 4.
    fn three(by: u16) -> View {
        view(by, &[primary(1, 1, &[0..=9], &[4]), primary(2, 2, &[10..=19], &[]), primary(3, 3, &[20..=29], &[])])
    }

    /// The view after the first primary's replica has taken over.
    fn after(by: u16) -> View {
        view(by, &[primary(4, 4, &[0..=9], &[1]), primary(2, 2, &[10..=19], &[]), primary(3, 3, &[20..=29], &[])])
    }

    fn topology(first: &View) -> Topology {
        let mut topology = Topology::default();
        let _changes = topology.merge(first, Time::ZERO);
        topology
    }

    fn owner(topology: &Topology, slot: u16) -> Option<u16> {
        topology.place(topology.owner(slot)?).map(|place| place.port)
    }

    /// Asks a server, which reports this view.
    fn says(hearsay: &mut Hearsay, primary: Option<Shard>, view: View) {
        hearsay.ask(primary);
        hearsay.heard(primary, Some(view));
    }

    /// Merges the views that are believed.
    fn go_on(hearsay: &mut Hearsay, topology: &mut Topology) {
        while let Some(view) = hearsay.believed(topology, Time::ZERO) {
            let _changes = topology.merge(&view, Time::ZERO);
        }
    }

    #[test]
    fn one_server_alone_takes_nothing_from_a_primary_that_answers() {
        let longer = view(2, &[primary(1, 1, &[0..=9], &[]), primary(2, 9, &[0..=19], &[])]);
        let elsewhere = view(2, &[Primary { place: Some(place(8)), ..primary(1, 1, &[0..=9], &[4]) }]);
        let epoch = view(2, &[primary(1, 1 << 60, &[0..=9], &[4])]);
        let nobody = view(2, &[primary(1, 1, &[], &[4])]);
        for lie in [after(2), longer, elsewhere, epoch, nobody] {
            let (mut topology, mut hearsay) = (topology(&three(1)), Hearsay::default());
            let first = topology.owner(0).unwrap();
            for by in ["id-2", "id-2", "id-3"] {
                // The second is the same server at another address. The third reports what we know.
                let view = if by == "id-2" { lie.clone() } else { three(3) };
                says(&mut hearsay, None, View { by: Some(by.into()), ..view });
                go_on(&mut hearsay, &mut topology);
                assert_eq!((owner(&topology, 0), topology.epoch(first)), (Some(1), 1), "{lie:?}");
            }
            says(&mut hearsay, None, View { by: None, ..lie.clone() });
            assert!(hearsay.believed(&topology, Time::ZERO).is_some(), "a second one says the same");
        }
    }

    #[test]
    fn a_primary_says_itself_what_it_has_lost() {
        let (mut topology, mut hearsay) = (topology(&three(1)), Hearsay::default());
        let (first, second) = (topology.owner(0).unwrap(), topology.owner(10));
        says(&mut hearsay, second, after(2));
        go_on(&mut hearsay, &mut topology);
        assert_eq!(hearsay.contested(&topology, Time::ZERO), ([first].into(), vec![place(4)]));
        assert_eq!(hearsay.contested(&topology, Time::ZERO), ([first].into(), vec![]), "it is asked once");
        says(&mut hearsay, Some(first), after(1));
        go_on(&mut hearsay, &mut topology);
        assert_eq!(owner(&topology, 0), Some(4));
    }

    #[test]
    fn who_does_not_answer_contradicts_nobody() {
        let (mut topology, mut hearsay) = (topology(&three(1)), Hearsay::default());
        says(&mut hearsay, topology.owner(10), after(2));
        go_on(&mut hearsay, &mut topology);
        assert_eq!(owner(&topology, 0), Some(1));
        hearsay.is_silent(topology.owner(0).unwrap());
        go_on(&mut hearsay, &mut topology);
        assert_eq!(owner(&topology, 0), Some(1), "the other one is asked first");
        assert_eq!(hearsay.contested(&topology, Time::ZERO).1, [place(4)]);
        hearsay.ask(None);
        go_on(&mut hearsay, &mut topology);
        assert_eq!(owner(&topology, 0), Some(1));
        hearsay.heard(None, None);
        go_on(&mut hearsay, &mut topology);
        assert_eq!(owner(&topology, 0), Some(4));
    }

    #[test]
    fn a_view_with_many_that_gain_keeps_none_of_another_view_from_being_asked() {
        let (topology, mut hearsay) = (topology(&three(1)), Hearsay::default());
        let mut many: Vec<_> = (40..50).map(|port| primary(port, 9, &[port - 40..=port - 40], &[])).collect();
        many.push(primary(3, 3, &[20..=29], &[]));
        says(&mut hearsay, topology.owner(20), view(3, &many));
        assert_eq!(hearsay.contested(&topology, Time::ZERO).1.len(), MOST_GAINERS);
        says(&mut hearsay, topology.owner(10), after(2));
        assert_eq!(hearsay.contested(&topology, Time::ZERO).1, [place(4)]);
    }

    /// The second server that reports it knows of fewer slots.
    #[test]
    fn what_two_say_counts_and_no_more() {
        let (mut topology, mut hearsay) = (topology(&three(1)), Hearsay::default());
        let of = |by, slots: RangeInclusive<u16>| {
            let rest = *slots.start() - 1;
            view(by, &[primary(1, 1, &[0..=rest], &[]), primary(2, 5, &[10..=19, slots], &[])])
        };
        says(&mut hearsay, topology.owner(10), of(2, 5..=9));
        says(&mut hearsay, topology.owner(20), of(3, 8..=9));
        go_on(&mut hearsay, &mut topology);
        assert_eq!([4, 5, 7, 8, 9].map(|slot| owner(&topology, slot)), [1, 1, 1, 2, 2].map(Some));
    }

    #[test]
    fn the_first_views_are_sorted_by_votes_and_then_by_epochs() {
        let of_another =
            |by, known: u16| View { known: [id(known)].into(), ..view(by, &[primary(known, 9, &[0..=29], &[])]) };
        let sorted = |views: &[&View]| {
            let views = views.iter().copied().cloned().collect();
            let name = |view: &View| view.by.clone().unwrap_or_default();
            match sort(views, |view| view) {
                Ok(views) => Ok(views.iter().map(name).collect::<Vec<_>>()),
                Err(two) => Err(two.each_ref().map(name)),
            }
        };
        assert_eq!(sorted(&[&after(2), &three(1), &three(3)]), Ok(vec![id(1), id(3), id(2)]));
        assert_eq!(sorted(&[&three(1), &after(2)]), Ok(vec![id(2), id(1)]));
        assert_eq!(sorted(&[&of_another(5, 77), &three(1), &three(2)]), Ok(vec![id(1), id(2)]), "of another cluster");
        let twice = of_another(5, 77);
        assert_eq!(sorted(&[&twice, &twice, &twice, &three(1), &three(2)]), Ok(vec![id(1), id(2)]), "one server");
        assert!(
            sorted(&[&of_another(5, 77), &three(1)]).is_err_and(|two| two.contains(&id(1)) && two.contains(&id(5)))
        );
        assert_eq!(sorted(&[]), Ok(vec![]));
    }

    fn a_lie() -> impl Strategy<Value = View> {
        let slots = (0..30_u16, 0..30_u16).prop_map(|(first, last)| first..=last);
        let epoch = prop_oneof![0..8_u64, Just(1 << 60)];
        let one = (0..9_u16, 0..9_u16, epoch, prop::collection::vec(slots, 0..3), 0..9_u16);
        let one = one.prop_map(|(name, port, epoch, slots, replica)| Primary {
            place: Some(place(port)),
            ..primary(name, epoch, &slots, &[replica])
        });
        (prop::option::of(0..9_u16), prop::collection::vec(one, 0..5))
            .prop_map(|(by, primaries)| View { by: by.map(id), ..view(3, &primaries) })
    }

    proptest! {
        /// The third of three primaries lies at will. The first fails over, and then reports nothing, or what it
        /// reported before.
        #[test]
        fn one_of_three_that_lies_at_will_decides_nothing(
            lies in prop::collection::vec(a_lie(), 4..16),
            turns in prop::collection::vec(0..3_usize, 16),
            is_silent in any::<bool>(),
        ) {
            let mut topology = topology(&three(1));
            let over = lies.len() / 2;
            for (step, lie) in lies.iter().enumerate() {
                let is_over = step >= over;
                let truth = |by| if is_over { after(by) } else { three(by) };
                let mut hearsay = Hearsay::default();
                let mut round = vec![(2, truth(2)), (3, lie.clone())];
                if !is_over || !is_silent {
                    round.push((1, three(1)));
                } else if let Some(first) = topology.at(&place(1)) {
                    hearsay.ask(Some(first));
                    hearsay.is_silent(first);
                }
                let turn = turns[step] % round.len();
                round.rotate_left(turn);
                let round: Vec<_> = round.into_iter().map(|(port, view)| (topology.at(&place(port)), Some(view))).collect();
                for (primary, _) in &round {
                    hearsay.ask(*primary);
                }
                let mut round: VecDeque<_> = round.into();
                while let Some((primary, view)) = round.pop_front() {
                    hearsay.heard(primary, view);
                    go_on(&mut hearsay, &mut topology);
                    for gainer in hearsay.contested(&topology, Time::ZERO).1 {
                        hearsay.ask(None);
                        let view = match gainer.port {
                            1 if is_over && is_silent => None,
                            1 => Some(three(1)),
                            3 => Some(lie.clone()),
                            port @ (2 | 4) => Some(truth(port)),
                            _ => None,
                        };
                        round.push_back((None, view));
                    }
                    if !is_over {
                        prop_assert_eq!(owner(&topology, 0), Some(1), "{:?}", lie);
                        prop_assert_eq!(owner(&topology, 10), Some(2));
                    }
                }
                if is_over {
                    prop_assert_eq!(owner(&topology, 0), Some(4));
                }
            }
        }
    }
}
