use proptest::prelude::*;

use super::*;

fn place(port: u16) -> Place {
    Place { host: "h".into(), port }
}

/// A primary that is named after its port.
fn primary(port: u16, epoch: u64, slots: &[RangeInclusive<u16>]) -> Primary {
    let id = format!("id-{port}").into();
    Primary { id, place: Some(place(port)), epoch, slots: slots.to_vec(), replicas: vec![replica(port + 100)] }
}

fn replica(port: u16) -> Replica {
    Replica { id: format!("id-{port}").into(), place: place(port), is_failing: false }
}

/// The port of a slot's owner.
fn port(topology: &Topology, slot: u16) -> Option<u16> {
    topology.place(topology.owner(slot)?).map(|place| place.port)
}

fn of(views: &[View]) -> Topology {
    let mut topology = Topology::default();
    for view in views {
        let _changes = topology.merge(view, Time::ZERO);
    }
    topology
}

/// The view of a server in a cluster whose servers know every server that ever existed.
fn view(primaries: &[Primary]) -> View {
    View {
        by: None,
        primaries: primaries.to_vec(),
        known: (1..200).map(|port| format!("id-{port}").into()).collect(),
        begins_anew: None,
    }
}

/// The view of a server that knows only these primaries.
fn foreign(primaries: &[Primary]) -> View {
    let known = primaries.iter().map(|primary| primary.id.clone()).collect();
    View { by: None, primaries: primaries.to_vec(), known, begins_anew: None }
}

#[test]
fn a_first_view_is_taken_as_it_is() {
    let mut topology = Topology::default();
    let first = view(&[primary(2, 2, &[100..=199]), primary(1, 1, &[0..=99, 200..=200]), primary(3, 3, &[])]);
    let changes = topology.merge(&first, Time::ZERO);
    assert_eq!((changes.slots.len(), changes.retired.len()), (201, 0));
    assert_eq!(
        [0, 99, 100, 199, 200, 201].map(|slot| port(&topology, slot)),
        [1, 1, 2, 2, 1, 0].map(|port| Some(port).filter(|port| *port > 0))
    );
    let servers: Vec<_> = topology.servers().iter().filter_map(|server| topology.place(*server)).cloned().collect();
    assert_eq!(servers, [place(1), place(2)]);
    let first = topology.owner(0).unwrap();
    assert_eq!((topology.slots(first).len(), topology.replicas(first).collect()), (101, vec![&place(101)]));
    assert!(first != Shard::FIRST && topology.counts(0, first) && !topology.counts(100, first));
    assert_eq!(
        topology.merge(&view(&[primary(1, 1, &[0..=99, 200..=200])]), Time::ZERO),
        Changes::default(),
        "it says the same"
    );
}

#[test]
fn a_failover_takes_all_slots_for_good() {
    let (before, after) = (view(&[primary(1, 1, &[0..=99])]), view(&[primary(101, 5, &[0..=99])]));
    let mut topology = of(std::slice::from_ref(&before));
    let old = topology.owner(0).unwrap();
    let changes = topology.merge(&after, Time::ZERO);
    assert_eq!((changes.slots.len(), changes.retired), (100, vec![old]));
    assert_eq!(topology.merge(&before, Time::ZERO), Changes::default(), "an old view");
    assert_eq!(port(&topology, 7), Some(101));
    // The old primary returns in a new term, as another shard.
    let _changes = topology.merge(&view(&[primary(1, 6, &[0..=99])]), Time::ZERO);
    assert!(port(&topology, 7) == Some(1) && topology.owner(7) != Some(old));
}

#[test]
fn a_slot_that_was_given_away_goes_over() {
    let mut topology = of(&[view(&[primary(1, 1, &[0..=99]), primary(2, 2, &[100..=199])])]);
    // Its new owner had the largest epoch already, and needed no new one.
    let changes = topology.merge(&view(&[primary(1, 1, &[0..=49]), primary(2, 2, &[50..=199])]), Time::ZERO);
    assert_eq!((changes.slots.len(), changes.retired.len()), (50, 0));
    assert_eq!([49, 50].map(|slot| port(&topology, slot)), [Some(1), Some(2)]);
    let changes = topology.merge(&view(&[primary(1, 1, &[0..=39]), primary(2, 2, &[50..=199])]), Time::ZERO);
    assert_eq!(changes.slots.len(), 10, "nobody has these");
    assert_eq!(port(&topology, 45), None);
}

#[test]
fn a_view_that_knows_none_of_ours_counts_for_nothing_until_all_are_such() {
    let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let ours = view(&[primary(1, 5, &[0..=99])]);
    // Even with a larger epoch, and with a slot that has no owner.
    let another = foreign(&[primary(201, 9, &[0..=199])]);
    for other in [View::default(), foreign(&[primary(201, 0, &[])]), another.clone()] {
        let mut topology = of(std::slice::from_ref(&ours));
        for seconds in [1, 5] {
            assert_eq!(topology.merge(&other, at(seconds)), Changes::default(), "{other:?}");
        }
        assert_eq!((port(&topology, 7), port(&topology, 100)), (Some(1), None));
        // One of our servers has answered meanwhile.
        assert_eq!(topology.merge(&ours, at(5)), Changes::default());
        assert_eq!(topology.merge(&other, at(6)), Changes::default());
    }
    let mut topology = of(std::slice::from_ref(&ours));
    let old = topology.owner(7).unwrap();
    let _nothing = topology.merge(&another, at(1));
    let changes = topology.merge(&another, at(6));
    assert_eq!((changes.slots.len(), changes.retired), (200, vec![old]));
    assert_eq!(port(&topology, 7), Some(201));
}

#[test]
fn a_server_that_comes_back_elsewhere_is_the_same_server() {
    let mut topology = of(&[view(&[primary(1, 1, &[0..=99])])]);
    let server = topology.owner(7).unwrap();
    let there = Primary { place: Some(place(77)), ..primary(1, 1, &[0..=99]) };
    let changes = topology.merge(&view(std::slice::from_ref(&there)), Time::ZERO);
    assert_eq!((changes.elsewhere, changes.slots.len()), (vec![server], 0));
    assert_eq!((port(&topology, 7), topology.owner(7)), (Some(77), Some(server)));
    let again = topology.merge(&view(std::slice::from_ref(&there)), Time::ZERO);
    assert_eq!(again, Changes::default());
}

#[test]
fn a_redirection_counts_from_the_owner_only() {
    let mut topology = of(&[view(&[primary(1, 3, &[0..=99]), primary(2, 2, &[100..=199])])]);
    let [one, two] = [0, 100].map(|slot| topology.owner(slot).unwrap());
    assert_eq!(topology.moved(two, 7, Some(place(2))), Changes::default());
    let changes = topology.moved(one, 7, Some(place(2)));
    assert!(changes.slots.len() == 1 && changes.slots.contains(7) && topology.counts(7, two));
    // Like the view before, this one knows the new owner by an epoch that is outdated now.
    let _changes = topology.merge(&view(&[primary(1, 3, &[0..=99]), primary(2, 2, &[100..=199])]), Time::ZERO);
    assert!(topology.counts(7, two));
    let changes = topology.moved(one, 8, None);
    assert!(changes.slots.contains(8) && topology.owner(8).is_none());
}

#[test]
fn a_server_that_a_redirection_names_is_known_by_its_place_until_a_view_names_it() {
    let mut topology = of(&[view(&[primary(1, 3, &[0..=1])])]);
    let one = topology.owner(0).unwrap();
    let _changes = topology.moved(one, 0, Some(place(7)));
    let seven = topology.owner(0).unwrap();
    let changes = topology.merge(&view(&[primary(1, 3, &[1..=1]), primary(7, 4, &[0..=0])]), Time::ZERO);
    assert_eq!((changes, topology.owner(0)), (Changes::default(), Some(seven)));
    let changes = topology.merge(&view(&[primary(7, 5, &[0..=1])]), Time::ZERO);
    assert_eq!((changes.retired, topology.owner(1)), (vec![one], Some(seven)));
}

#[test]
fn places_are_read_as_servers_write_them() {
    let read = |text| Place::read(text, "sender").map(|place| place.to_string());
    for (text, place) in [
        ("127.0.0.1:7001", Some("127.0.0.1:7001")),
        ("::1:17001", Some("[::1]:17001")),
        (":17001", Some("sender:17001")),
        (":0", None),
        ("?:7001", None),
        ("host", None),
        ("host:70000", None),
    ] {
        assert_eq!(read(text).as_deref(), place, "{text}");
    }
}

/// An event in a cluster of four servers: a failover of one to a new one, or a move of a slot to another one.
#[derive(Debug, Clone)]
enum Event {
    Failover(usize),
    Move(u16, usize),
}

const OF_TEST: u16 = 8;

/// The views of a cluster after each of these events.
fn truth(events: &[Event]) -> Vec<View> {
    // Each server's port, epoch and slots.
    let mut servers: Vec<(u16, u64, BTreeSet<u16>)> =
        (0..4).map(|at| (at + 1, u64::from(at) + 1, (at * 2..at * 2 + 2).collect())).collect();
    let (mut last_port, mut last_epoch) = (4, 4);
    let seen = |servers: &[(u16, u64, BTreeSet<u16>)]| {
        let primary = |(port, epoch, slots): &(u16, u64, BTreeSet<u16>)| {
            primary(*port, *epoch, &slots.iter().map(|slot| *slot..=*slot).collect::<Vec<_>>())
        };
        view(&servers.iter().map(primary).collect::<Vec<_>>())
    };
    let mut views = vec![seen(&servers)];
    for event in events {
        last_epoch += 1;
        match *event {
            Event::Failover(at) => {
                last_port += 1;
                servers[at].0 = last_port;
                servers[at].1 = last_epoch;
            }
            Event::Move(slot, to) => {
                for (_, _, slots) in &mut servers {
                    slots.remove(&slot);
                }
                servers[to].2.insert(slot);
                servers[to].1 = last_epoch;
            }
        }
        views.push(seen(&servers));
    }
    views
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_usize..4).prop_map(Event::Failover),
        (0..OF_TEST, 0_usize..4).prop_map(|(slot, to)| Event::Move(slot, to))
    ]
}

proptest! {
    #[test]
    fn the_newest_view_holds_in_whatever_order_they_come(
        events in prop::collection::vec(event(), 0..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let views = truth(&events);
        let order: Vec<usize> = order.iter().map(|at| at.index(views.len())).collect();
        let (mut topology, mut newest) = (Topology::default(), 0);
        for at in order {
            newest = newest.max(at);
            let _changes = topology.merge(&views[at], Time::ZERO);
            let expected = of(&[views[newest].clone()]);
            for slot in 0..OF_TEST {
                prop_assert_eq!(port(&topology, slot), port(&expected, slot), "slot {} of {:?}", slot, &views[newest]);
            }
            prop_assert_eq!(topology.servers().len(), expected.servers().len());
        }
    }
}

/// Slots that another server claims were moved to it.
#[test]
fn a_replica_that_claims_the_slots_of_its_primary_has_taken_over() {
    let first = [primary(1, 1, &[0..=99]), primary(2, 2, &[100..=199])];
    let taken_over = |changes: &Changes| {
        let of = |one: &TakenOver| (one.before.port, one.now.port, one.epoch, one.slots.len());
        changes.taken_over.iter().map(of).collect::<Vec<_>>()
    };
    let mut topology = of(&[view(&first)]);
    // The primary is listed without slots, and without its replicas.
    let without = Primary { replicas: Vec::new(), ..primary(1, 1, &[]) };
    let changes = topology.merge(&view(&[without, primary(101, 3, &[0..=99]), first[1].clone()]), Time::ZERO);
    assert_eq!(taken_over(&changes), [(1, 101, 3, 100)]);
    // The replica is recognised by its id, at any address.
    let mut topology = of(&[view(&first)]);
    let elsewhere = Primary { id: "id-101".into(), ..primary(9, 3, &[0..=99]) };
    let changes = topology.merge(&view(&[elsewhere, first[1].clone()]), Time::ZERO);
    assert_eq!(taken_over(&changes), [(1, 9, 3, 100)]);
    // Some servers know it as a primary before they know its slots.
    let mut topology = of(&[view(&first)]);
    let lonely = Primary { replicas: Vec::new(), ..first[0].clone() };
    let halfway = view(&[lonely, primary(101, 3, &[]), first[1].clone()]);
    assert!(topology.merge(&halfway, Time::ZERO).slots.is_empty());
    let changes = topology.merge(&view(&[primary(101, 3, &[0..=99]), first[1].clone()]), Time::ZERO);
    assert_eq!(taken_over(&changes), [(1, 101, 3, 100)]);
    // A redirection shows the takeover, for one slot.
    let mut topology = of(&[view(&first)]);
    let owner = topology.owner(7).unwrap();
    let changes = topology.moved(owner, 7, Some(place(101)));
    assert_eq!((taken_over(&changes), changes.taken_over[0].is_new), (vec![(1, 101, 1, 1)], true));
    // A view shows it for the other slots.
    let changes = topology.merge(&view(&[primary(101, 3, &[0..=99]), first[1].clone()]), Time::ZERO);
    assert_eq!((taken_over(&changes), changes.taken_over[0].is_new), (vec![(1, 101, 3, 99)], false));
    // A moved slot is not a takeover.
    let mut topology = of(&[view(&first)]);
    let changes = topology.merge(&view(&[primary(1, 1, &[0..=98]), primary(2, 4, &[99..=199])]), Time::ZERO);
    assert_eq!((taken_over(&changes), changes.slots.len()), (vec![], 1));
}

/// A server that stood still in a failover learns of it step by step. First the new one is a primary, then the old one
/// has the new epoch, and the slots come last.
#[test]
fn slots_that_were_taken_over_do_not_go_back_in_a_view_that_is_halfway() {
    let first = [primary(1, 1, &[0..=99]), primary(2, 2, &[100..=199])];
    let failed_over = view(&[primary(101, 3, &[0..=99]), first[1].clone()]);
    for epoch in [1, 3] {
        let mut topology = of(&[view(&first), failed_over.clone()]);
        let halfway = view(&[primary(1, epoch, &[0..=99]), primary(101, 3, &[]), first[1].clone()]);
        assert!(topology.merge(&halfway, Time::ZERO).slots.is_empty(), "the old one claims them in epoch {epoch}");
        assert_eq!(port(&topology, 0), Some(101));
        // Until the old one takes over again.
        let _changes = topology.merge(&view(&[primary(1, 4, &[0..=99]), first[1].clone()]), Time::ZERO);
        assert_eq!(port(&topology, 0), Some(1));
    }
}

/// In between it may learn that the old one is a replica: then the slots have no owner, until the new one claims them.
#[test]
fn slots_that_were_taken_over_are_not_given_up_in_a_view_that_is_halfway() {
    let first = [primary(1, 1, &[0..=99]), primary(2, 2, &[100..=199])];
    let failed_over = view(&[primary(101, 3, &[0..=99]), first[1].clone()]);
    let nobodys = view(&[primary(101, 3, &[]), first[1].clone()]);
    for epoch in [1, 3] {
        let mut topology = of(&[view(&first), failed_over.clone()]);
        let halfway = view(&[primary(1, epoch, &[0..=99]), primary(101, 3, &[]), first[1].clone()]);
        for view in [&nobodys, &halfway, &nobodys] {
            assert!(topology.merge(view, Time::ZERO).slots.is_empty());
        }
        assert_eq!(port(&topology, 0), Some(101), "the old one has claimed them in epoch {epoch}");
        // A slot is given up if its server keeps others.
        let one_less = view(&[primary(101, 3, &[0..=98]), first[1].clone()]);
        assert_eq!(topology.merge(&one_less, Time::ZERO).slots.len(), 1);
        assert_eq!((port(&topology, 98), port(&topology, 99)), (Some(101), None));
    }
    // The slots of a server that took nothing over are given up.
    let mut topology = of(&[view(&first)]);
    let changes = topology.merge(&view(&[primary(1, 1, &[]), first[1].clone()]), Time::ZERO);
    assert_eq!((changes.slots.len(), port(&topology, 0)), (100, None));
}

/// A halfway view may come first, and give the new one's epoch to the old one.
#[test]
fn a_replica_takes_over_in_an_epoch_that_was_taken_for_its_primarys() {
    let first = [primary(1, 1, &[0..=99]), primary(2, 2, &[100..=199])];
    let failed_over = view(&[primary(101, 3, &[0..=99]), first[1].clone()]);
    let halfway = view(&[primary(1, 3, &[0..=99]), first[1].clone()]);
    let both = view(&[primary(1, 3, &[0..=99]), primary(101, 3, &[]), first[1].clone()]);
    for before in [vec![halfway.clone()], vec![both.clone()], vec![halfway.clone(), both.clone()]] {
        let mut topology = of(&[view(&first)]);
        // A redirection has already shown the new one for one slot.
        let owner = topology.owner(7).unwrap();
        let _changes = topology.moved(owner, 7, Some(place(101)));
        for view in &before {
            let _changes = topology.merge(view, Time::ZERO);
        }
        let _changes = topology.merge(&failed_over, Time::ZERO);
        assert_eq!([0, 7, 99].map(|slot| port(&topology, slot)), [Some(101); 3], "after {before:?}");
        // Late views do not undo it.
        for late in [&view(&first), &halfway, &both] {
            assert!(topology.merge(late, Time::ZERO).slots.is_empty());
        }
    }
    // Another primary with that epoch is not one of its replicas.
    let mut topology = of(&[view(&first), halfway]);
    let odd = view(&[primary(7, 3, &[0..=99]), first[1].clone()]);
    assert!(topology.merge(&odd, Time::ZERO).slots.is_empty());
}

/// The new view's epoch is zero, smaller, or equal.
#[test]
fn a_view_that_begins_anew_is_taken_whatever_its_epochs_are() {
    for epoch in [0, 2, 3] {
        let mut topology = of(&[view(&[primary(1, 3, &[0..=99])])]);
        let next = view(&[primary(2, epoch, &[0..=99])]);
        let _changes = topology.merge(&next, Time::ZERO);
        assert_eq!(port(&topology, 0), Some(1), "{epoch} is no larger");
        // Views that name another predecessor than the one known do not count.
        for other in [(place(4), 3), (place(1), 2)] {
            let _changes = topology.merge(&View { begins_anew: Some(other), ..next.clone() }, Time::ZERO);
            assert_eq!(port(&topology, 0), Some(1));
        }
        let changes = topology.merge(&View { begins_anew: Some((place(1), 3)), ..next }, Time::ZERO);
        assert_eq!((port(&topology, 0), changes.retired.len()), (Some(2), 1));
        assert_eq!(topology.epoch(topology.owner(0).unwrap()), epoch);
        // From then on, epochs count as before.
        let _changes = topology.merge(&view(&[primary(4, epoch, &[0..=99])]), Time::ZERO);
        assert_eq!(port(&topology, 0), Some(2));
    }
}
