//! Leases that a failover forgives, and leases that it does not.

use super::*;
use crate::history::{Failover, Named};

const OLD: u16 = 7_001;
const NEW: u16 = 7_002;
const OTHER: u16 = 7_003;

fn at(millis: u64) -> Nanos {
    millis * MILLI
}

/// The replica takes over at 3.0 s. If the old one is killed, it is dead since 2.5 s; otherwise it continues.
fn failover(killed: bool) -> Failover {
    let (promoted, dead) = ((at(3_000), at(3_010)), killed.then_some(at(2_500)));
    Failover { shard: 0, old: OLD, new: NEW, promoted, named: at(3_010), dead, loses: true }
}

fn named(slot: u16, millis: u64, ports: &[u16]) -> Named {
    Named { process: id(slot).process, at: at(millis), ports: ports.into() }
}

/// The first process knows of it at 3.2 s, the others at once.
fn history_of(killed: bool, leases: impl IntoIterator<Item = Lease>) -> History {
    let loss = Loss { cause: Cause::Failover(0), ..loss(0, Some(0), 3_000, 3_010) };
    let knows = |slot, millis| [named(slot, 1_000, &[OLD, OTHER]), named(slot, millis, &[NEW, OTHER])];
    History {
        failovers: vec![failover(killed)],
        losses: vec![loss],
        named: [knows(1, 3_200), knows(2, 3_020), knows(3, 3_020)].concat(),
        ..with_leases(leases)
    }
}

/// A lease whose holder has renewed it.
fn long(slot: u16, fence: u64, start: u64, end: u64) -> Lease {
    Lease { ttl: at(2_000), ..lease(slot, fence, start, end) }
}

#[test]
fn a_lease_that_the_new_primary_lacks_is_believed_until_its_process_has_heard() {
    let with = |killed, end| found(&history_of(killed, [long(1, 10, 2_400, end), long(2, 11, 3_050, 5_000)]));
    for killed in [true, false] {
        assert_eq!(with(killed, 3_800), "", "600 ms after it knows");
        assert_eq!(with(killed, 3_801), "a");
    }
    let stopped = |until, whom| {
        let marks = vec![Mark { from: at(3_100), to: at(6_000), whom, text: "worker stopped".into() }];
        let leases = [long(1, 10, 2_400, until), long(2, 11, 3_050, 6_000)];
        found(&History { marks, ..history_of(true, leases) })
    };
    let process = id(1).process;
    assert_eq!(stopped(4_500, Whom::Process(process)), "", "a TTL after the last answer of the dead");
    assert_eq!(stopped(4_501, Whom::Process(process)), "a");
    assert_eq!(stopped(3_801, Whom::Process(id(2).process)), "a", "somebody else");
    assert_eq!(stopped(3_801, Whom::Log(process)), "a", "a log is not an excuse");
    let killed = Lease { how: Ending::Killed, ..long(1, 10, 2_400, 4_500) };
    assert_eq!(
        found(&history_of(true, [killed, long(2, 11, 3_050, 5_000)])),
        "",
        "it is not known what it would have heard"
    );
}

#[test]
fn nothing_is_forgiven_that_the_old_primary_cannot_have_granted() {
    let with = |killed, invoked, start| {
        let one = Lease { invoked: at(invoked), ..long(1, 12, start, start + 100) };
        found(&history_of(killed, [one, long(2, 11, start - 5, start + 200)]))
    };
    assert_eq!(with(false, 3_100, 3_300), "", "it was asked before it knew, and answered just then");
    assert_eq!(with(false, 3_100, 3_301), "a");
    assert_eq!(with(false, 3_200, 3_250), "a", "it was asked for when it knew");
    assert_eq!(with(true, 3_000, 3_050), "a", "a dead primary does not answer");
    let late = Lease { invoked: at(2_400), ..long(1, 12, 3_050, 3_100) };
    assert_eq!(found(&history_of(true, [late, long(2, 11, 3_040, 3_300)])), "a", "nor so late");
    let stopped = |by: u64| {
        let marks =
            vec![Mark { from: at(2_450), to: at(2_450 + by), whom: Whom::Process(id(1).process), text: "stop".into() }];
        let late = Lease { invoked: at(2_400), ..long(1, 12, 3_050, 3_100) };
        found(&History { marks, ..history_of(true, [late, long(2, 11, 3_040, 3_300)]) })
    };
    assert_eq!(stopped(600), "", "it has read the answer late");
    assert_eq!(stopped(400), "a");
}

#[test]
fn where_nothing_is_lost_no_second_holder_is_forgiven() {
    let leases = || [long(1, 10, 2_400, 3_300), long(2, 11, 3_050, 3_400)];
    assert_eq!(found(&history_of(true, leases())), "");
    let peace = History { losses: Vec::new(), ..history_of(false, leases()) };
    assert_eq!(found(&peace), "a", "the primary has handed over in peace");
    let elsewhere = vec![Loss { cause: Cause::Failover(0), ..loss(0, Some(1), 3_000, 3_010) }];
    assert_eq!(found(&History { losses: elsewhere, ..history_of(true, leases()) }), "a", "of other slots");
    assert_eq!(found(&history_of(true, [long(1, 10, 2_000, 2_900), long(2, 11, 2_800, 2_990)])), "a", "before it");
}

#[test]
fn fences_grow_across_a_failover() {
    for killed in [true, false] {
        let with = |fence| found(&history_of(killed, [long(1, 10, 2_400, 3_300), long(2, fence, 3_050, 3_400)]));
        assert_eq!((&*with(11), &*with(9)), ("", "b"), "killed: {killed}");
    }
}

#[test]
fn a_loss_in_a_failover_has_one() {
    for how in [Ending::FailedOver, Ending::Deleted, Ending::Taken] {
        let with = |lease: Lease| found(&history_of(true, [Lease { how, ..lease }]));
        assert_eq!(with(long(1, 10, 2_400, 3_300)), "");
        assert_eq!(with(long(1, 10, 2_400, 2_990)), "e", "told before it");
        assert_eq!(with(long(1, 10, 3_050, 3_300)), "e", "granted after it");
        let peace = History { losses: Vec::new(), ..history_of(false, [Lease { how, ..long(1, 10, 2_400, 3_300) }]) };
        assert_eq!(found(&peace), "e");
    }
}

#[test]
fn a_holder_is_refused_only_for_one_that_the_old_primary_let_in_later() {
    let with = |killed, rival: Lease| {
        let holder = long(2, 11, 3_050, 3_400);
        let writes = vec![write(&holder, 3_290, 3_300, Written::Refused)];
        found(&History { writes, ..history_of(killed, [holder, rival]) })
    };
    assert_eq!(with(false, long(1, 12, 3_150, 3_300)), "");
    assert_eq!(with(false, long(1, 10, 2_400, 3_300)), "c", "its fence is smaller");
    assert_eq!(with(false, long(1, 12, 3_350, 3_360)), "ca", "it came later, and from the new one");
    assert_eq!(with(true, long(1, 12, 2_400, 3_300)), "bc", "a dead primary admits no holder");
}

#[test]
fn what_the_new_primary_lacks_is_not_believed_for_long() {
    let with = |end| {
        let looks = vec![look(0, 3_020, 3_021, &[Found::Nothing])];
        found(&History { looks, ..history_of(true, [long(1, 10, 2_400, end)]) })
    };
    assert_eq!((&*with(3_800), &*with(3_801)), ("", "d"));
}

#[test]
fn a_place_that_the_new_primary_grants_once_more_is_not_the_lost_lease() {
    let with = |fence, end| {
        let looks = vec![look(0, 3_020, 3_021, &[token(2, 9)]), look(0, 3_500, 3_501, &[token(1, fence)])];
        found(&History { looks, ..history_of(true, [long(1, 10, 2_400, end)]) })
    };
    assert_eq!(with(12, 3_800), "", "it is told when its process has heard");
    assert_eq!(with(12, 3_801), "d");
    assert_eq!(with(10, 3_801), "d", "a server gives nothing back");
}

#[test]
fn an_observer_may_go_back_from_what_the_old_primary_said_until_its_process_has_heard() {
    let with = |killed, slot: u16, from| {
        let fall = Fall { process: id(slot).process, name: 0, from: at(from), to: at(9_000), before: 8, after: 7 };
        let mut history = history_of(killed, [Lease { ttl: at(50), ..lease(2, 7, 3_050, 3_055) }]);
        history.named[1].at = at(5_000);
        found(&History { falls: vec![fall], ..history })
    };
    assert_eq!(with(false, 1, 5_100), "", "an answer that was on its way");
    assert_eq!(with(false, 1, 5_101), "i");
    assert_eq!(with(true, 1, 3_061), "i", "a dead primary does not answer");
    assert_eq!(with(false, 2, 3_120), "");
    assert_eq!(with(false, 2, 3_121), "i", "this one had heard");
}

#[test]
fn everybody_hears_of_a_new_primary() {
    let end = vec![look(0, 9_000, 9_001, &[Found::Unknown])];
    let with = |of: &[Named]| History { named: of.to_vec(), looks: end.clone(), ..history_of(true, []) };
    let (before, late) = (named(1, 1_000, &[OLD, OTHER]), named(1, 5_011, &[NEW, OTHER]));
    assert_eq!(found(&with(&[before.clone(), named(1, 5_010, &[NEW, OTHER])])), "");
    assert_eq!(found(&with(&[before.clone(), late.clone()])), "h");
    assert_eq!(found(&with(&[before.clone(), named(1, 5_010, &[NEW, OLD, OTHER])])), "h", "for some slots only");
    assert_eq!(found(&with(std::slice::from_ref(&before))), "h", "never");
    assert_eq!(found(&with(&[named(1, 3_500, &[OLD, OTHER])])), "", "it began later");
    let whom = Whom::Process(id(1).process);
    let mark = |from, to, text: &str| vec![Mark { from: at(from), to: at(to), whom, text: text.into() }];
    let stopped = History { marks: mark(4_000, 4_001, "worker stopped"), ..with(&[before.clone(), late]) };
    assert_eq!(found(&stopped), "");
    let killed = History { marks: mark(4_000, 4_000, "worker killed (1ms)"), ..with(std::slice::from_ref(&before)) };
    assert_eq!(found(&killed), "");
    let mut replaced = with(&[before]);
    replaced.failovers.push(Failover { old: NEW, new: OLD, promoted: (at(5_000), at(5_001)), ..failover(true) });
    assert_eq!(found(&replaced), "", "that is the primary again");
}

#[test]
fn nobody_goes_back_to_a_primary_that_was_replaced() {
    let names = |last: u64, ports: &[u16]| {
        let all = [named(1, 1_000, &[OLD, OTHER]), named(1, 3_200, &[NEW, OTHER]), named(1, last, ports)];
        History { named: all.to_vec(), ..history_of(true, []) }
    };
    assert_eq!(found(&names(3_300, &[NEW])), "");
    assert_eq!(found(&names(3_300, &[OLD, OTHER])), "h");
    assert_eq!(found(&names(3_300, &[OLD, NEW, OTHER])), "h");
    let mut again = names(6_300, &[OLD, OTHER]);
    again.failovers.push(Failover { old: NEW, new: OLD, promoted: (at(6_000), at(6_001)), ..failover(true) });
    assert_eq!(found(&again), "");
    again.named[2].at = at(5_900);
    assert_eq!(found(&again), "h", "before that");
}

#[test]
fn a_process_that_stood_still_may_hear_of_two_failovers_one_after_the_other() {
    let with = |last: &[Named]| {
        let mut history = history_of(true, []);
        history.failovers.push(Failover { old: NEW, new: OLD, promoted: (at(5_000), at(5_001)), ..failover(true) });
        history.named = [&[named(1, 1_000, &[OLD, OTHER])], last].concat();
        found(&history)
    };
    let (between, after) = (named(1, 5_050, &[NEW, OTHER]), named(1, 5_100, &[OLD, OTHER]));
    assert_eq!(with(&[between.clone(), after.clone()]), "");
    assert_eq!(with(&[]), "", "it has missed both");
    assert_eq!(with(&[between, after, named(1, 5_200, &[NEW, OTHER])]), "h");
}
