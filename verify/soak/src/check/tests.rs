use leasehold::Mode;

use super::*;
use crate::{
    history::{Cause, LostRelease, Mark, Name, Recorder, Remnant, Timed},
    record::{Call, Ending, Line, MILLI, Process},
};

mod failovers;
mod sharing;

const TTL: Nanos = 300 * MILLI;

/// A lock on a server of its own, number 0, and one over the servers 1 to 3.
fn history() -> History {
    let name = |text: &str, servers| Name { text: text.into(), servers, modes: vec![Mode::Exclusive] };
    History { names: vec![name("lone", 0..1), name("quorum", 1..4)], ..History::default() }
}

fn id(slot: u16) -> LeaseId {
    LeaseId { process: Process { slot, life: 0 }, number: slot.into() }
}

/// A lease of a process of its own, asked for 5 ms before it began. In milliseconds.
fn lease(slot: u16, fence: u64, start: u64, end: u64) -> Lease {
    let (start, end) = (start * MILLI, end * MILLI);
    let invoked = start - 5 * MILLI;
    let (until, how) = (end + TTL, Ending::Release);
    let (id, mode) = (id(slot), Mode::Exclusive);
    Lease { id, known_as: id, name: 0, mode, ttl: TTL, fence, invoked, start, end: Some(end), until, how, told: end }
}

fn over_quorum(slot: u16, fence: u64, start: u64, end: u64) -> Lease {
    Lease { name: 1, ..lease(slot, fence, start, end) }
}

fn loss(server: usize, name: Option<usize>, from: u64, to: u64) -> Loss {
    Loss { server, name, from: from * MILLI, to: to * MILLI, cause: Cause::Deletion }
}

/// A loss by a lone server that forgets everything: the holder is not notified before the deadline.
fn restart(from: u64, to: u64) -> Loss {
    Loss { cause: Cause::EmptyRestart, ..loss(0, None, from, to) }
}

fn write(of: &Lease, from: u64, to: u64, written: Written) -> Write {
    let (from, to) = (from * MILLI, to * MILLI);
    Write { lease: of.id, name: of.name, fence: of.fence, from, to, written }
}

fn look(name: usize, from: u64, to: u64, found: &[Found]) -> Look {
    Look { name, from: from * MILLI, to: to * MILLI, found: found.into() }
}

fn token(slot: u16, fence: u64) -> Found {
    Found::Token(Some(Process { slot, life: 0 }), fence)
}

fn found(history: &History) -> String {
    check(history).iter().map(|violation| violation.check).collect()
}

fn with_leases(leases: impl IntoIterator<Item = Lease>) -> History {
    History { leases: leases.into_iter().collect(), ..history() }
}

#[test]
fn one_after_the_other_is_right() {
    let mut history = with_leases([lease(1, 10, 100, 200), lease(2, 11, 201, 300), lease(3, 12, 301, 301)]);
    let (one, two) = (history.leases[0].clone(), history.leases[1].clone());
    history.writes = vec![
        write(&one, 110, 120, Written::Accepted),
        write(&two, 210, 220, Written::Accepted),
        write(&one, 230, 240, Written::Refused),
    ];
    history.looks = vec![look(0, 150, 151, &[token(1, 10)]), look(0, 195, 205, &[Found::Nothing])];
    assert_eq!(check(&history), []);
    assert_eq!(found(&super::tests::history()), "");
}

#[test]
fn two_at_once_are_wrong() {
    assert_eq!(found(&with_leases([lease(1, 10, 100, 200), lease(2, 11, 199, 300)])), "a");
    assert_eq!(found(&with_leases([lease(1, 10, 100, 500), lease(2, 11, 200, 200)])), "a", "one instant is enough");
    // Every holder that is still there counts, not only the previous one.
    let three = [lease(1, 10, 100, 500), lease(2, 11, 200, 210), lease(3, 12, 300, 310)];
    assert_eq!(found(&with_leases(three)), "aa");
    let other_name = over_quorum(2, 11, 150, 300);
    assert_eq!(found(&with_leases([lease(1, 10, 100, 200), other_name])), "");
}

#[test]
fn who_never_believed_holds_nothing() {
    let never = Lease { end: None, ..lease(1, 10, 100, 100) };
    assert_eq!(found(&with_leases([never.clone(), lease(2, 11, 98, 300)])), "");
    assert_eq!(found(&with_leases([never.clone(), lease(2, 11, 101, 300)])), "");
    assert_eq!(found(&with_leases([never, lease(2, 9, 110, 300)])), "b", "its fence counts all the same");
}

#[test]
fn a_loss_forgives_one_ttl_and_only_those_before_it() {
    let both = |end| [lease(1, 10, 100, end), lease(2, 11, 200, 210)];
    let lost_at = |from, to| vec![loss(0, None, from, to)];
    let with = |leases, losses| found(&History { losses, ..with_leases(leases) });
    assert_eq!(with(both(400), lost_at(150, 151)), "");
    assert_eq!(with(both(400), vec![loss(0, Some(1), 150, 151)]), "a", "another name");
    assert_eq!(with(both(400), vec![loss(1, None, 150, 151)]), "a", "another server");
    assert_eq!(with(both(400), lost_at(205, 206)), "a", "it came after the second had begun");
    assert_eq!(with(both(400), lost_at(80, 90)), "a", "both were asked for after it");
    let late = [lease(1, 10, 100, 600), lease(2, 11, 460, 470)];
    assert_eq!(with(late, lost_at(150, 151)), "a", "a TTL after it");
    assert_eq!(with(both(400), vec![restart(150, 151)]), "");
    let covered = Loss { server: 1, ..restart(150, 151) };
    let of_quorum = || both(400).map(|lease| Lease { name: 1, ..lease });
    assert_eq!(with(of_quorum(), vec![covered]), "a", "the promise knows it");
    assert_eq!(with(of_quorum(), vec![loss(1, None, 150, 151)]), "");
}

#[test]
fn who_was_granted_it_after_the_loss_is_not_forgiven() {
    // Two leases whose acquires have waited since before the loss.
    let waited = |lease| Lease { invoked: 90 * MILLI, ..lease };
    let with = |cause, looks: &[Look]| {
        let losses = vec![Loss { cause, ..loss(0, None, 100, 101) }];
        let leases = [lease(1, 10, 110, 300), lease(2, 11, 200, 250)].map(waited);
        found(&History { losses, looks: looks.to_vec(), ..with_leases(leases) })
    };
    let (one, other) = (look(0, 120, 121, &[token(1, 10)]), look(0, 240, 241, &[token(2, 11)]));
    for cause in [Cause::Deletion, Cause::EmptyRestart] {
        assert_eq!(with(cause, &[]), "", "either may have been granted it before");
        assert_eq!(with(cause, std::slice::from_ref(&one)), "", "so may the other");
        assert_eq!(
            with(cause, &[look(0, 100, 121, &[token(1, 10)]), other.clone()]),
            "",
            "seen before the loss, perhaps"
        );
        assert_eq!(
            with(cause, &[look(0, 120, 121, &[token(1, 9)]), other.clone()]),
            "",
            "another lease of the process"
        );
        assert_eq!(with(cause, &[one.clone(), other.clone()]), "ad");
    }
    assert_eq!(with(Cause::ClockJump, &[one, other]), "", "which may have left both");
}

#[test]
fn a_lease_that_was_held_while_an_address_moved_may_be_refused_for_good() {
    let moved = Loss { cause: Cause::Move, ..loss(0, None, 1_000, 4_000) };
    let with = |of: Lease| {
        let (at, writes) = (of.end.unwrap() / MILLI, vec![]);
        let writes = [writes, vec![write(&of, at - 20, at - 10, Written::Refused)]].concat();
        // A look sees the lease until its end.
        let looks = vec![look(0, at - 15, at - 14, &[token(1, 8)])];
        found(&History { losses: vec![moved.clone()], writes, looks, ..with_leases([of]) })
    };
    assert_eq!(with(lease(1, 8, 3_990, 9_000)), "");
    assert_eq!(with(lease(1, 8, 4_010, 9_000)), "c");
}

#[test]
fn while_an_address_moves_two_may_hold_and_not_for_longer_than_a_ttl_after() {
    let moved = Loss { cause: Cause::Move, ..loss(0, None, 1_000, 4_000) };
    let with = |leases: &[Lease]| found(&History { losses: vec![moved.clone()], ..with_leases(leases.to_vec()) });
    // One lease is from the old server at the last moment, the other from the new one.
    let new = |start, end| lease(2, 9, start, end);
    assert_eq!(with(&[lease(1, 8, 3_990, 4_290), new(3_995, 4_400)]), "");
    assert_eq!(with(&[lease(1, 8, 3_990, 4_310), new(3_995, 4_400)]), "a");
    assert_eq!(with(&[lease(1, 8, 4_010, 4_200), new(4_100, 4_400)]), "a", "asked for when all have gone over");
    assert_eq!(with(&[lease(1, 8, 500, 995), new(990, 1_200)]), "a", "not moved yet");
}

#[test]
fn the_next_renewal_tells_of_a_loss_unless_it_is_disturbed() {
    let process = id(1).process;
    // A TTL is forgiven until 6400 ms, a third of it and 100 ms until 6300 ms.
    let with = |end, cause, lag, marks: &[(Whom, u64, u64)]| {
        let ttl = 600 * MILLI;
        let mark = |&(whom, from, to)| Mark { from: from * MILLI, to: to * MILLI, whom, text: "fault".into() };
        found(&History {
            marks: marks.iter().map(mark).collect(),
            looks: vec![look(0, 6_001, 6_002, &[Found::Nothing])],
            losses: vec![Loss { cause, ..loss(0, None, 5_999, 6_000) }],
            lag: lag * MILLI,
            ..with_leases([Lease { ttl, ..lease(1, 10, 100, end) }])
        })
    };
    let quiet = |end, lag| with(end, Cause::Deletion, lag, &[(Whom::Server(0), 5_999, 6_001)]);
    assert_eq!(quiet(6_300, 0), "");
    assert_eq!(quiet(6_301, 0), "d");
    assert_eq!(quiet(6_350, 50), "");
    assert_eq!(quiet(6_601, 1_000), "d", "a TTL in any case");
    for cause in [Cause::EmptyRestart, Cause::ClockJump] {
        assert_eq!(with(6_600, cause, 0, &[]), "");
        assert_eq!(with(6_601, cause, 0, &[]), "d");
    }
    let after = |whom, from, to| with(6_301, Cause::Deletion, 0, &[(whom, from, to)]);
    let link = |slot, server| Whom::Link { slot, server };
    for whom in [Whom::Server(0), Whom::Process(process), link(1, 0)] {
        assert_eq!(after(whom, 900, 1_000), "", "it may not be over");
        assert_eq!(after(whom, 6_600, 6_700), "");
        assert_eq!(after(whom, 900, 998), "d", "long ago");
        assert_eq!(after(whom, 6_601, 6_700), "d", "later");
    }
    for whom in [Whom::Server(1), Whom::Process(id(2).process), link(2, 0), link(1, 1)] {
        assert_eq!(after(whom, 5_000, 7_000), "d", "it is not in the way");
    }
}

#[test]
fn fences_that_fall_or_stand_still_are_wrong() {
    assert_eq!(found(&with_leases([lease(1, 10, 100, 110), lease(2, 9, 200, 210)])), "b");
    assert_eq!(found(&with_leases([lease(1, 10, 100, 110), lease(2, 10, 200, 210)])), "b");
    // The acquires overlap, and the order is that of the beliefs.
    let waited = Lease { invoked: 0, ..lease(2, 9, 200, 210) };
    assert_eq!(found(&with_leases([lease(1, 10, 100, 110), waited.clone()])), "b");
    let never = Lease { end: None, ..lease(1, 10, 100, 110) };
    assert_eq!(found(&with_leases([never, waited])), "", "it is not known which was first");
    // A grant that is heard late, after its key was deleted and another lease had it.
    let late = Lease { invoked: 10 * MILLI, ..lease(1, 10, 160, 160) };
    let lost = vec![loss(0, None, 100, 101)];
    let history = History { losses: lost, ..with_leases([lease(2, 11, 150, 155), late]) };
    assert_eq!(found(&history), "");
    assert_eq!(found(&History { losses: Vec::new(), ..history }), "b");
}

#[test]
fn the_resource_goes_by_fences() {
    let (one, two) = (lease(1, 10, 100, 200), lease(2, 11, 201, 300));
    let with = |writes| found(&History { writes, ..with_leases([one.clone(), two.clone()]) });
    let later = write(&two, 210, 220, Written::Accepted);
    assert_eq!(with(vec![later.clone(), write(&one, 230, 240, Written::Accepted)]), "c");
    assert_eq!(with(vec![later.clone(), write(&one, 215, 240, Written::Accepted)]), "", "at the same time");
    assert_eq!(with(vec![later, write(&one, 230, 240, Written::Unknown)]), "");
    let refused = write(&one, 110, 120, Written::Refused);
    assert_eq!(with(vec![refused.clone()]), "c", "it believes in its lease after that");
    let lost = vec![loss(0, None, 105, 106)];
    let forgiven = History { writes: vec![refused], losses: lost, ..with_leases([one.clone()]) };
    assert_eq!(found(&forgiven), "");
}

#[test]
fn a_lease_that_outlives_its_key_is_wrong() {
    let with = |found: &[Found], losses| {
        let looks = vec![look(0, 150, 151, found)];
        self::found(&History { looks, losses, ..with_leases([lease(1, 10, 100, 480)]) })
    };
    assert_eq!(with(&[token(1, 10)], vec![]), "");
    assert_eq!(with(&[Found::Unknown], vec![]), "");
    assert_eq!(with(&[Found::Nothing], vec![]), "d");
    assert_eq!(with(&[token(2, 11)], vec![]), "d");
    assert_eq!(with(&[token(1, 11)], vec![]), "d", "another lease of the same process");
    assert_eq!(with(&[Found::Token(None, 10)], vec![]), "d");
    assert_eq!(with(&[Found::Nothing], vec![loss(0, None, 200, 201)]), "d", "that loss came later");
    assert_eq!(with(&[Found::Nothing], vec![restart(100, 101)]), "d", "a TTL after it");
    assert_eq!(with(&[Found::Nothing], vec![restart(149, 190)]), "", "it ended in time");
}

#[test]
fn what_one_server_has_lost_does_not_come_back() {
    let with = |end, looks: &[Look]| {
        let losses = vec![restart(149, 150)];
        found(&History { looks: looks.to_vec(), losses, ..with_leases([lease(1, 10, 100, end)]) })
    };
    let (gone, back) = (look(0, 150, 151, &[Found::Nothing]), look(0, 430, 431, &[token(1, 10)]));
    assert_eq!(with(440, std::slice::from_ref(&gone)), "");
    assert_eq!(with(600, std::slice::from_ref(&gone)), "d");
    assert_eq!(with(440, &[gone, back]), "d", "no process may bring it back");
}

#[test]
fn a_majority_of_a_quorum_must_have_the_key() {
    let (mine, other) = (|| token(1, 10), || token(2, 11));
    let with = |found: &[Found], losses| {
        let looks = vec![look(1, 150, 151, found)];
        self::found(&History { looks, losses, ..with_leases([over_quorum(1, 10, 100, 300)]) })
    };
    assert_eq!(with(&[mine(), token(1, 12), other()], vec![]), "", "a node's floor may be another");
    assert_eq!(with(&[mine(), Found::Unknown, Found::Nothing], vec![]), "");
    assert_eq!(with(&[mine(), Found::Nothing, other()], vec![]), "d");
    // Two looks at each: what was seen in either counts.
    assert_eq!(with(&[mine(), Found::Nothing, other(), mine(), mine(), other()], vec![]), "");
    assert_eq!(with(&[mine(), Found::Nothing, other(), mine(), Found::Nothing, other()], vec![]), "d");
    // A node that forgot does not vote: its key was there.
    let forgot = Loss { cause: Cause::EmptyRestart, ..loss(2, None, 120, 140) };
    assert_eq!(with(&[mine(), Found::Nothing, other()], vec![forgot.clone()]), "");
    assert_eq!(with(&[Found::Nothing, Found::Nothing, other()], vec![forgot]), "d", "the others are judged");
}

#[test]
fn nodes_that_forget_forgive_no_second_holder() {
    let leases = [over_quorum(1, 10, 100, 300), over_quorum(2, 11, 200, 250)];
    let losses = vec![Loss { cause: Cause::EmptyRestart, ..loss(1, None, 120, 140) }];
    assert_eq!(found(&History { losses, ..with_leases(leases) }), "a");
}

#[test]
fn an_alarm_has_a_cause() {
    let with = |how, losses| found(&History { losses, ..with_leases([Lease { how, ..lease(1, 10, 100, 200) }]) });
    for how in [Ending::Deleted, Ending::Taken] {
        assert_eq!(with(how, vec![]), "e");
        assert_eq!(with(how, vec![loss(0, None, 150, 151)]), "");
        assert_eq!(with(how, vec![loss(0, None, 199, 400)]), "", "it may have been at once");
        assert_eq!(with(how, vec![loss(0, None, 201, 202)]), "e", "told before it");
        assert_eq!(with(how, vec![loss(0, None, 80, 90)]), "e", "asked for after it");
        assert_eq!(with(how, vec![loss(0, Some(1), 150, 151)]), "e", "another name");
        assert_eq!(with(how, vec![loss(1, None, 150, 151)]), "e", "another server");
        let looks = vec![look(0, 152, 153, &[token(1, 10)])];
        let losses = vec![loss(0, None, 150, 151)];
        let seen_after_it = History { looks, losses, ..with_leases([Lease { how, ..lease(1, 10, 100, 200) }]) };
        assert_eq!(found(&seen_after_it), "e");
    }
    assert_eq!(with(Ending::OtherLoss, vec![loss(0, None, 150, 151)]), "e", "no loss here is of another kind");
    for how in [Ending::Killed, Ending::Drop, Ending::Release] {
        assert_eq!(with(how, vec![]), "", "needs none");
    }
}

#[test]
fn time_is_not_up_before_a_known_deadline() {
    let with = |how, told: u64| {
        let lease = Lease { how, until: 450 * MILLI, told: told * MILLI, ..lease(1, 10, 100, 200) };
        found(&with_leases([lease]))
    };
    for how in [Ending::Expired, Ending::NoQuorum, Ending::Stalled] {
        assert_eq!(with(how, 449), "e");
        assert_eq!(with(how, 450), "");
    }
    assert_eq!(with(Ending::Release, 300), "", "it was let go of");
}

#[test]
fn a_release_is_told_of_a_loss_only_if_there_was_one() {
    let with = |at: u64, losses| {
        let lost_releases = vec![LostRelease { lease: id(1), at: at * MILLI }];
        found(&History { lost_releases, losses, ..with_leases([lease(1, 10, 100, 200)]) })
    };
    assert_eq!(with(210, vec![]), "e");
    assert_eq!(with(210, vec![loss(0, None, 150, 151)]), "");
    assert_eq!(with(210, vec![loss(0, None, 211, 212)]), "e");
    assert_eq!(with(500, vec![]), "", "its deadline was over");
}

#[test]
fn a_call_ends_in_its_time() {
    let process = id(1).process;
    let with = |took: u64, lag: u64, stopped: &[(Whom, u64, u64)]| {
        let (within, from, to) = (400 * MILLI, 1_000 * MILLI, (1_000 + took) * MILLI);
        let mark = |&(whom, from, to)| Mark { from: from * MILLI, to: to * MILLI, whom, text: "worker stopped".into() };
        found(&History {
            calls: vec![Timed { process, name: 0, call: Call::Release, within, from, to }],
            marks: stopped.iter().map(mark).collect(),
            lag: lag * MILLI,
            ..history()
        })
    };
    assert_eq!(with(900, 0, &[]), "");
    assert_eq!(with(901, 0, &[]), "f");
    assert_eq!(with(1_000, 100, &[]), "");
    let (one, other) = (Whom::Process(process), Whom::Process(id(2).process));
    assert_eq!(with(2_500, 0, &[(one, 1_200, 2_800)]), "");
    assert_eq!(with(2_501, 0, &[(one, 1_200, 2_800)]), "f");
    assert_eq!(with(901, 0, &[(one, 0, 999)]), "f", "before it");
    assert_eq!(with(901, 0, &[(one, 1_902, 4_000)]), "f", "after it");
    assert_eq!(with(901, 0, &[(other, 1_200, 2_000)]), "f");
    assert_eq!(with(901, 0, &[(Whom::Server(0), 1_200, 2_000)]), "f", "a server that hangs is not a cause");
}

#[test]
fn nothing_is_left() {
    let with = |key: &str, lasts: Option<u64>| {
        let (key, lasts) = (key.into(), lasts.map(|lasts| lasts * MILLI));
        found(&History {
            remnants: vec![Remnant { name: 0, server: 0, key, at: 1, lasts, is_left: false }],
            ..history()
        })
    };
    assert_eq!(with("{lone}:lh:fence", Some(86_400_000)), "");
    assert_eq!(with("{lone}:lh:wait", Some(30_000)), "");
    assert_eq!(with("{lone}:lh:wait", Some(30_001)), "f");
    for key in ["lone", "{lone}:lh:queue", "another"] {
        assert_eq!(with(key, Some(1)), "f");
    }
    assert_eq!(with("{lone}:lh:fence", None), "f", "for ever");
    assert_eq!(with("{lone}:lh:wait", None), "f", "for ever");
}

#[test]
fn memory_has_a_bound() {
    let grown = |by| Memory { process: id(1).process, at: 9, before: 10_000, after: 10_000 + by };
    let with = |memories: &[Memory]| History { memories: memories.into(), ..history() };
    assert_eq!(found(&with(&[grown(0), grown(GROWTH)])), "");
    assert_eq!(found(&with(&[grown(0), grown(GROWTH + 1)])), "g");
}

#[test]
fn belief_ends_with_the_last_good_check_or_a_known_deadline() {
    let end_of = |lines: Vec<Line>, killed: bool| {
        let mut recorder = Recorder::new(history().names);
        recorder.history.marks = Vec::<Mark>::new();
        let until = Some(500);
        let (lease, mode) = (id(1), Mode::Exclusive);
        let (name, ttl, fence, invoked, start) = (0, TTL, 1, 1, 2);
        recorder.hear(&Line::Acquired { lease, known_as: lease, name, mode, ttl, fence, invoked, start, until });
        for line in lines {
            recorder.hear(&line);
        }
        if killed {
            recorder.killed(id(1).process);
        }
        recorder.end();
        recorder.history.leases[0].end
    };
    let believed = Line::Believed { lease: id(1), at: 20, until: 600 };
    let ended = |how| Line::Ended { lease: id(1), at: 30, how };
    assert_eq!(end_of(vec![ended(Ending::Release)], false), Some(2));
    assert_eq!(end_of(vec![believed.clone(), ended(Ending::Release)], false), Some(20));
    assert_eq!(end_of(vec![believed.clone(), ended(Ending::Deleted)], false), Some(20), "the signal came at any time");
    assert_eq!(end_of(vec![believed.clone(), ended(Ending::Expired)], false), Some(600));
    assert_eq!(end_of(vec![believed.clone()], true), Some(600), "a killed holder counts until its deadline");
    assert_eq!(end_of(vec![believed, ended(Ending::Drop)], true), Some(20), "it had let go before");
}

#[test]
fn an_observer_never_goes_back_but_where_two_servers_may_have_had_the_lock() {
    let process = id(1).process;
    let fall = |name| Fall { process, name, from: 100 * MILLI, to: 200 * MILLI, before: 8, after: 7 };
    let with = |loss: Option<Loss>| {
        found(&History {
            falls: vec![fall(0)],
            losses: loss.into_iter().collect(),
            ..with_leases([lease(1, 7, 90, 95)])
        })
    };
    assert_eq!(with(None), "i");
    assert_eq!(with(Some(Loss { cause: Cause::EmptyRestart, ..loss(0, None, 110, 120) })), "i");
    assert_eq!(with(Some(Loss { cause: Cause::Move, ..loss(0, None, 110, 120) })), "");
    assert_eq!(with(Some(Loss { cause: Cause::Move, ..loss(0, None, 210, 220) })), "i", "after it");
}
