use super::*;

const OTHER: &str = "a:1";
const NOTHING: HealthOrders = HealthOrders { probe: None, wake: false, tell: None };
const WAKE: HealthOrders = HealthOrders { probe: None, wake: true, tell: None };

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn no_answer() -> Failure {
    Failure::unknown("no answer in time")
}

/// The second of two nodes. The first is [`OTHER`], and runs as `run1`.
fn node() -> (NodeHealth, Peers) {
    let mut peers = Peers::new(&[OTHER.into(), "b:1".into()], millis(1_000));
    assert_eq!(peers.identities.enter(0, "run1", at(1)), None);
    (NodeHealth::new(1, false), peers)
}

fn health() -> NodeHealth {
    node().0
}

/// A node that fell silent for this reason.
fn silent(reason: &str) -> (NodeHealth, ProbeRow) {
    let mut health = health();
    let orders = health.failed(&Failure::unknown(reason), at(1_000), at(1_100));
    let row = orders.probe.unwrap();
    assert_eq!(
        orders,
        HealthOrders { tell: Some(HealthChange::Silent { reason: reason.into() }), probe: Some(row), wake: false }
    );
    assert!(health.is_silent() && health.is_troubled());
    (health, row)
}

fn identity(run_id: &str) -> ServerIdentity {
    ServerIdentity { run_id: Some(run_id.into()), ..ServerIdentity::default() }
}

fn may_vote(health: &NodeHealth) -> Result<(), Failure> {
    health.askable(Some(()), true)
}

fn state(health: &NodeHealth, now: Time) -> NodeState {
    health.status("b:1", now, Duration::ZERO).state().clone()
}

mod silence {
    use super::*;

    #[test]
    fn a_tenth_of_a_second_in_vain_is_silence() {
        let mut health = health();
        assert_eq!(health.failed(&no_answer(), at(1_000), at(1_099)), NOTHING);
        assert_eq!((may_vote(&health), health.is_troubled()), (Ok(()), true), "one failure is trouble, not silence");
        let orders = health.failed(&no_answer(), at(1_099), at(1_100));
        assert_eq!(orders.tell, Some(HealthChange::Silent { reason: "no answer in time".into() }));
        assert!(orders.probe.is_some());
        assert_eq!(may_vote(&health), Err(Failure::unavailable("no answer in time")));
    }

    #[test]
    fn overlapping_waits_count_once() {
        let mut health = health();
        for _ in 0..10 {
            assert_eq!(health.failed(&no_answer(), at(1_000), at(1_060)), NOTHING);
        }
        assert_eq!(health.failed(&no_answer(), at(1_030), at(1_099)), NOTHING, "39 ms more");
        assert_eq!(health.failed(&no_answer(), at(5_000), at(5_000)), NOTHING, "a pause is not a wait");
        assert!(health.failed(&no_answer(), at(5_000), at(5_001)).probe.is_some());
    }

    #[test]
    fn an_answer_ends_what_was_waited_before_it() {
        let mut health = health();
        assert_eq!(health.failed(&no_answer(), at(1_000), at(1_090)), NOTHING);
        assert_eq!(health.answered(at(1_090)), WAKE);
        assert!(!health.is_troubled());
        assert_eq!(health.failed(&no_answer(), at(1_090), at(1_180)), NOTHING);
    }

    #[test]
    fn an_answer_on_another_connection_counts() {
        let mut health = health();
        health.note_answer(at(1_450));
        assert_eq!(health.failed(&no_answer(), at(1_000), at(1_500)), NOTHING, "50 ms since the answer");
        health.note_answer(at(1_400));
        assert_eq!(health.failed(&no_answer(), at(1_000), at(1_549)), NOTHING, "an older answer is not news");
    }

    #[test]
    fn a_link_that_breaks_at_once_is_no_silence() {
        let mut health = health();
        for sent in 1_000..2_000 {
            assert_eq!(health.failed(&no_answer(), at(sent), at(sent)), NOTHING);
        }
        assert_eq!(may_vote(&health), Ok(()));
    }

    #[test]
    fn an_answer_that_means_no_is_no_silence() {
        for no in [Failure::unavailable("LOADING"), Failure::refused("NOAUTH")] {
            let mut health = health();
            assert_eq!(health.failed(&no, at(1_000), at(2_000)), NOTHING);
            assert_eq!(may_vote(&health), Ok(()));
        }
    }

    #[test]
    fn a_request_that_goes_on_too_long_is_silence() {
        let mut health = health();
        let orders = health.silent();
        assert_eq!(orders.tell, Some(HealthChange::Silent { reason: "it does not answer".into() }));
        assert!(orders.probe.is_some() && health.is_silent());
        assert_eq!(may_vote(&health), Err(Failure::unavailable("it does not answer")));
    }

    #[test]
    fn silence_begins_and_ends_once() {
        let (mut health, _row) = silent("no answer");
        assert_eq!(health.silent(), NOTHING);
        assert_eq!(health.failed(&no_answer(), at(1_100), at(2_000)), NOTHING);
        assert_eq!(health.answered(at(2_001)), HealthOrders { tell: Some(HealthChange::Answers), ..WAKE });
        assert_eq!((health.is_silent(), health.is_troubled(), may_vote(&health)), (false, false, Ok(())));
        assert_eq!(health.answered(at(2_002)), WAKE);
    }

    #[test]
    fn the_only_node_is_always_asked() {
        let mut health = NodeHealth::new(0, true);
        assert_eq!(health.failed(&no_answer(), at(1_000), at(9_000)), NOTHING);
        assert_eq!(health.silent(), NOTHING);
        assert_eq!((health.is_silent(), may_vote(&health)), (false, Ok(())));
        assert_eq!(state(&health, at(9_000)), NodeState::Unreachable("no answer in time".into()));
    }
}

mod probes {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (mut health, row) = silent("no answer");
        let pauses: Vec<_> = (0..7).filter_map(|_| health.next_probe(row)).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 250, 250]);
    }

    #[test]
    fn a_row_ends_with_the_silence() {
        let (mut health, row) = silent("no answer");
        let _woken = health.answered(at(2_000));
        assert_eq!(health.next_probe(row), None);
    }

    #[test]
    fn the_next_silence_has_a_row_of_its_own() {
        let (mut health, first) = silent("no answer");
        assert!((0..7).all(|_| health.next_probe(first).is_some()));
        let _woken = health.answered(at(2_000));
        let second = health.silent().probe.unwrap();
        assert_eq!(health.next_probe(first), None, "one row at a time");
        assert_eq!(health.next_probe(second), Some(millis(10)));
    }

    #[test]
    fn the_last_probe_tells_why_it_is_unreachable() {
        let (mut health, _row) = silent("no answer");
        health.probe_failed(&Failure::unsent("connection refused"));
        assert_eq!(state(&health, at(2_000)), NodeState::Unreachable("connection refused".into()));
        let _woken = health.answered(at(2_000));
        health.probe_failed(&no_answer());
        assert_eq!(state(&health, at(2_000)), NodeState::Up, "it has answered otherwise");
    }
}

mod texts {
    use super::*;

    #[test]
    fn a_refusal_and_an_unreachable_node_are_told_apart() {
        let mut health = health();
        assert_eq!(health.failed(&Failure::refused("NOPERM"), at(1_000), at(1_001)), NOTHING);
        assert_eq!(state(&health, at(1_001)), NodeState::Refused("NOPERM".into()));
        assert!(health.is_troubled());
        assert_eq!(health.failed(&no_answer(), at(1_001), at(1_002)), NOTHING);
        assert_eq!(state(&health, at(1_002)), NodeState::Unreachable("no answer in time".into()));
        assert_eq!(health.answered(at(1_003)), WAKE);
        assert_eq!((state(&health, at(1_003)), health.is_troubled()), (NodeState::Up, false));
    }

    #[test]
    fn a_node_without_a_connection_is_not_asked() {
        let ask = |health: &NodeHealth| health.askable(None::<()>, true).unwrap_err();
        let mut health = health();
        assert_eq!(ask(&health), Failure::unavailable("it is not connected yet"));
        assert_eq!((state(&health, at(1)), health.is_troubled()), (NodeState::Unknown, false));
        health.not_connected(&Failure::refused("WRONGPASS"));
        assert_eq!(ask(&health), Failure::refused("WRONGPASS"));
        assert_eq!((state(&health, at(1)), health.is_troubled()), (NodeState::Refused("WRONGPASS".into()), true));
        health.not_connected(&Failure::unavailable("connection refused"));
        assert_eq!(ask(&health), Failure::unavailable("connection refused"));
        assert_eq!(state(&health, at(1)), NodeState::Unreachable("connection refused".into()));
        health.not_connected(&Failure::refused("WRONGPASS"));
        assert_eq!(state(&health, at(1)), NodeState::Refused("WRONGPASS".into()), "the last try counts");
    }

    #[test]
    fn a_late_arrival_is_told_and_asked() {
        let mut health = health();
        health.not_connected(&Failure::unavailable("connection refused"));
        assert_eq!(health.arrived(at(1)), HealthOrders { tell: Some(HealthChange::Answers), ..WAKE });
        assert_eq!((state(&health, at(1)), may_vote(&health)), (NodeState::Up, Ok(())));
    }
}

mod identity {
    use super::*;

    const SAME: &str = "it is the same server as a:1, and one server has one vote: name independent servers";

    #[test]
    fn one_server_under_two_addresses_has_one_vote_until_that_ends() {
        let (mut health, mut peers) = node();
        let (outcome, orders) = health.identified(at(1), &identity("run1"), &mut peers.identities);
        let row = orders.probe.unwrap();
        assert_eq!(outcome, Err(Failure::unavailable(SAME)));
        assert_eq!((orders.tell, orders.wake), (Some(HealthChange::SameServer { other: OTHER.into() }), false));
        assert_eq!((may_vote(&health), health.is_troubled()), (Err(Failure::unavailable(SAME)), true));
        assert_eq!(health.askable(Some(7), false), Ok(7), "an undo matters there too");
        assert_eq!(state(&health, at(1)), NodeState::SameServer(OTHER.into()));

        // Its answers do not end that state, and it is probed at a steady pace.
        assert_eq!(health.answered(at(1)), WAKE);
        assert_eq!((health.next_probe(row), health.next_probe(row)), (Some(millis(1_000)), Some(millis(1_000))));
        let again = health.identified(at(1), &identity("run1"), &mut peers.identities);
        assert_eq!(again, (Err(Failure::unavailable(SAME)), NOTHING), "told once");

        assert_eq!(health.identified(at(1), &identity("run2"), &mut peers.identities), (Ok(()), NOTHING));
        assert_eq!((may_vote(&health), health.is_troubled(), health.next_probe(row)), (Ok(()), false, None));
        assert!(
            health.identified(at(1), &identity("run1"), &mut peers.identities).1.probe.is_some(),
            "told and probed anew"
        );
    }

    #[test]
    fn a_server_that_keeps_its_identity_to_itself_has_its_vote() {
        let (mut health, mut peers) = node();
        assert_eq!(health.identified(at(1), &ServerIdentity::default(), &mut peers.identities), (Ok(()), NOTHING));
    }

    #[test]
    fn a_silent_node_that_is_the_same_server_has_one_row_of_probes() {
        let (mut health, row) = silent("no answer");
        let (_, mut peers) = node();
        let (_, orders) = health.identified(at(1), &identity("run1"), &mut peers.identities);
        assert_eq!((orders.probe, orders.tell), (None, Some(HealthChange::SameServer { other: OTHER.into() })));
        assert_eq!(health.next_probe(row), Some(millis(10)));
        let _woken = health.answered(at(2_000));
        assert_eq!(health.next_probe(row), Some(millis(1_000)), "the row continues");
    }
}

mod votes {
    use super::*;

    fn voted(health: &mut NodeHealth, peers: &mut Peers, sent: u64, identity: &ServerIdentity) -> Result<(), Failure> {
        let (outcome, orders) = health.voted(at(sent), at(sent + 10), identity, Duration::ZERO, peers);
        assert!(outcome.is_err() || orders == NOTHING);
        outcome
    }

    fn at_time(time: u64, run_id: &str) -> ServerIdentity {
        ServerIdentity { time: Some(time), ..identity(run_id) }
    }

    fn offset(health: &NodeHealth) -> Option<i64> {
        health.status("b:1", Time::ZERO, Duration::ZERO).clock_offset_micros()
    }

    fn proposal(peers: &Peers) -> Option<u64> {
        peers.fence_proposal.at(at(2_000)).map(u64::from)
    }

    #[test]
    fn a_vote_shows_identity_and_clock() {
        let (mut health, mut peers) = node();
        assert_eq!(voted(&mut health, &mut peers, 2_000, &at_time(9_000_000, "run2")), Ok(()));
        assert!(peers.identities.is_known(1, "run2"));
        assert_eq!(offset(&health), Some(9_000_000 - 2_005_000), "half of the round trip is the way there");
        assert_eq!(proposal(&peers), Some(9_050_000));
    }

    #[test]
    fn a_vote_heard_late_takes_back_no_newer_news() {
        let (mut health, mut peers) = node();
        assert_eq!(voted(&mut health, &mut peers, 2_000, &at_time(9_000_000, "run2")), Ok(()));
        let before = (offset(&health), proposal(&peers));

        // An older answer from the same server counts, but does not change the offset.
        assert_eq!(voted(&mut health, &mut peers, 1_999, &at_time(99_000_000, "run2")), Ok(()));
        assert_eq!(voted(&mut health, &mut peers, 1_999, &ServerIdentity::default()), Ok(()));
        // An answer from the server that was there before it does not count.
        let other = Failure::unknown("another server has answered under this address since");
        assert_eq!(voted(&mut health, &mut peers, 1_999, &at_time(99_000_000, "run0")), Err(other));
        assert!(peers.identities.is_known(1, "run2"));
        assert_eq!((offset(&health), proposal(&peers)), before);

        assert_eq!(voted(&mut health, &mut peers, 2_000, &at_time(9_000_000, "run3")), Ok(()), "as new as the newest");
        assert_eq!(voted(&mut health, &mut peers, 2_001, &identity("run4")), Ok(()));
        assert!(peers.identities.is_known(1, "run4"));
        assert!(
            voted(&mut health, &mut peers, 2_000, &identity("run3")).is_err(),
            "the newest vote is another one now"
        );
    }

    /// The connection of votes may lead to the server that was left, and that of renewals to another node's.
    #[test]
    fn a_vote_that_was_under_way_does_not_hide_that_it_is_the_same_server() {
        let (mut health, mut peers) = node();
        assert_eq!(voted(&mut health, &mut peers, 1_000, &identity("run2")), Ok(()));
        assert!(health.identified(at(1_500), &identity("run1"), &mut peers.identities).0.is_err());
        assert!(voted(&mut health, &mut peers, 1_499, &identity("run2")).is_err());
        assert!(may_vote(&health).is_err(), "it is still known");
        assert_eq!(health.identified(at(2_500), &identity("run2"), &mut peers.identities).0, Ok(()));
        assert_eq!((may_vote(&health), voted(&mut health, &mut peers, 2_400, &identity("run2"))), (Ok(()), Ok(())));
    }

    #[test]
    fn a_late_vote_ends_no_recovery() {
        let (mut health, mut peers) = node();
        let (_, orders) = health.voted(at(2_000), at(2_010), &identity("run2"), millis(500), &mut peers);
        assert_eq!(orders.tell, Some(HealthChange::Recovers { votes_in: millis(500) }));
        assert_eq!(voted(&mut health, &mut peers, 1_999, &identity("run2")), Ok(()));
        assert!(health.recovers_in(at(2_100)).is_some());
        assert_eq!(voted(&mut health, &mut peers, 2_001, &identity("run2")), Ok(()));
        assert!(health.recovers_in(at(2_100)).is_none());
    }

    #[test]
    fn what_the_same_server_granted_is_to_be_undone() {
        let (mut health, mut peers) = node();
        let (outcome, orders) = health.voted(at(1), at(2), &identity("run1"), millis(500), &mut peers);
        let failure = outcome.unwrap_err();
        assert!(failure.may_have_happened(), "{failure}");
        assert_eq!(orders.tell, Some(HealthChange::SameServer { other: OTHER.into() }));
        assert!(orders.probe.is_some() && health.recovers_in(at(2)).is_none());
    }
}

mod recovery {
    use super::*;

    #[test]
    fn a_recovery_is_told_when_it_begins() {
        let mut health = health();
        assert_eq!(health.recovering(Duration::ZERO, at(1_000)), NOTHING);
        assert!(health.recovers_in(at(1_000)).is_none());
        let orders = health.recovering(millis(500), at(1_000));
        assert_eq!(orders, HealthOrders { tell: Some(HealthChange::Recovers { votes_in: millis(500) }), ..NOTHING });
        assert_eq!(health.recovering(millis(300), at(1_200)), NOTHING, "told once");
        assert!(health.recovers_in(at(1_499)).is_some() && health.recovers_in(at(1_500)).is_none());
        assert_eq!(health.recovering(Duration::ZERO, at(1_300)), NOTHING);
        assert!(health.recovers_in(at(1_300)).is_none(), "it votes");
        assert!(health.recovering(millis(500), at(2_000)).tell.is_some(), "another recovery");
    }

    #[test]
    fn users_see_how_long_it_lasts() {
        let mut health = health();
        health.note_answer(at(1_000));
        let _told = health.recovering(millis(500), at(1_000));
        assert_eq!(state(&health, at(1_200)), NodeState::Recovering { remaining: millis(300) });
        assert_eq!(state(&health, at(1_500)), NodeState::Up);
        assert!(!health.is_troubled(), "it answers");
    }
}

mod clocks {
    use super::*;

    /// The offset of a clock that showed `time` to a request of `took` milliseconds.
    fn offset(time: u64, took: u64) -> ClockOffset {
        ClockOffset::new(time, at(1_000), at(1_000 + took))
    }

    #[test]
    fn clocks_differ_only_by_what_is_certain() {
        for (one, other, by) in [
            (offset(5_000_000, 0), offset(5_000_000, 0), 0),
            (offset(5_000_000, 0), offset(5_003_000, 0), 3),
            (offset(5_004_000, 4), offset(5_000_000, 0), 0),
            (offset(5_010_000, 4), offset(5_000_000, 0), 6),
            (offset(5_010_000, 4), offset(5_001_000, 2), 5),
            (offset(5_000_000, 1_000), offset(5_003_000, 1_000), 0),
        ] {
            assert_eq!(one.differs_from(other), millis(by), "{one:?} {other:?}");
            assert_eq!(other.differs_from(one), millis(by), "either way");
        }
    }

    #[test]
    fn users_see_the_offset_from_their_wall_clock() {
        let (mut health, mut peers) = node();
        assert_eq!(health.status("b:1", at(1_000), millis(7_000)).clock_offset_micros(), None);
        let identity = ServerIdentity { time: Some(6_000_000), ..ServerIdentity::default() };
        let _voted = health.voted(at(1_000), at(1_000), &identity, Duration::ZERO, &mut peers);
        // Its clock showed six seconds at our first, so it shows nine at our fourth, when the wall clock shows seven.
        let status = health.status("b:1", at(4_000), millis(7_000));
        assert_eq!(status.clock_offset_micros(), Some(2_000_000));
        assert_eq!(health.clock_offset().map(|offset| offset.micros), Some(5_000_000));
    }
}

#[test]
fn users_see_the_address_and_the_last_answer() {
    let mut health = health();
    assert_eq!(health.status("b:1", at(5), Duration::ZERO).last_answer(), None);
    health.note_answer(at(2));
    health.note_answer(at(1));
    let status = health.status("b:1", at(5), Duration::ZERO);
    assert_eq!((status.address(), status.state(), status.last_answer()), ("b:1", &NodeState::Up, Some(millis(3))));
}
