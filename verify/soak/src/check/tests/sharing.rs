//! Names that several processes may hold at a time.

use std::num::NonZeroU32;

use leasehold_protocol::mode::Mode;

use super::*;

/// A share of a process of its own, asked for 5 ms before it began. In milliseconds.
fn share(slot: u16, limit: u32, fence: u64, start: u64, end: u64) -> Lease {
    takes(slot, 1, limit, fence, start, end)
}

/// A share that takes this number of permits.
fn takes(slot: u16, permits: u32, of: u32, fence: u64, start: u64, end: u64) -> Lease {
    let (limit, permits) = (NonZeroU32::new(of).filter(|of| of.get() < u32::MAX), NonZeroU32::new(permits).unwrap());
    Lease { mode: Mode::Shared { limit, permits }, ..lease(slot, fence, start, end) }
}

fn read(slot: u16, fence: u64, start: u64, end: u64) -> Lease {
    share(slot, u32::MAX, fence, start, end)
}

/// A loss of the sharers' places in the first lock.
fn places(from: u64, to: u64) -> Loss {
    Loss { cause: Cause::Places, ..loss(0, Some(0), from, to) }
}

fn phase(fence: u64, slots: &[u16]) -> Found {
    Found::Shared(fence, slots.iter().map(|slot| id(*slot)).collect())
}

/// The lease of a writer that continues as a reader: its token is that of the writer's lease.
fn goes_on(from: &Lease, slot: u16, fence: u64, start: u64, end: u64) -> Lease {
    Lease { known_as: from.id, ..read(slot, fence, start, end) }
}

#[test]
fn readers_share_it_and_a_writer_comes_after_them_and_before_others() {
    let mut history = with_leases([
        lease(1, 8, 100, 200),
        read(2, 9, 201, 300),
        read(3, 9, 220, 400),
        // A reader admitted beside the one that was admitted beside the first.
        read(4, 9, 350, 420),
        lease(5, 10, 421, 430),
        share(6, 1, 11, 440, 450),
    ]);
    history.looks = vec![
        look(0, 150, 151, &[token(1, 8)]),
        look(0, 250, 251, &[phase(9, &[2, 3])]),
        look(0, 410, 411, &[phase(9, &[4])]),
        look(0, 431, 432, &[Found::Nothing]),
    ];
    assert_eq!(check(&history), []);
}

#[test]
fn one_alone_is_beside_nobody() {
    let writes = |start, end| lease(2, 10, start, end);
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), writes(201, 300)])), "");
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), writes(199, 300)])), "a");
    assert_eq!(found(&with_leases([writes(100, 200), read(1, 11, 199, 300)])), "a");
    assert_eq!(found(&with_leases([share(1, 5, 9, 100, 200), writes(150, 160)])), "a");
    let two = [read(1, 9, 100, 200), read(3, 9, 110, 210), writes(199, 300)];
    assert_eq!(found(&with_leases(two)), "aa", "each of them counts");
}

#[test]
fn no_more_share_it_than_the_limits_of_those_who_do() {
    let at = |limits: &[u32]| {
        let share = |(slot, limit): (usize, &u32)| {
            // All have waited for long, so it is not known which was admitted last.
            Lease { invoked: 10 * MILLI, ..share(u16::try_from(slot).unwrap(), *limit, 9, 100 + slot as u64, 200) }
        };
        found(&with_leases(limits.iter().enumerate().map(share)))
    };
    assert_eq!(at(&[2, 2]), "");
    assert_eq!(at(&[2, 2, 2]), "a");
    assert_eq!(at(&[2, 3, 2]), "", "the one with 3 came in last");
    assert_eq!(at(&[2, 3, 2, 3]), "a");
    assert_eq!(at(&[2, 2, u32::MAX, 2]), "a", "of those with 2, two at most, whoever else is there");
    assert_eq!(at(&[1]), "");
    let one_after_the_other = [share(1, 1, 9, 100, 200), share(2, 1, 9, 201, 300)];
    assert_eq!(found(&with_leases(one_after_the_other)), "");
}

#[test]
fn as_many_permits_are_taken_as_there_are() {
    let at = |all: &[(u32, u32)]| {
        let share = |(slot, (permits, of)): (usize, &(u32, u32))| {
            let start = 100 + slot as u64;
            Lease { invoked: 10 * MILLI, ..takes(u16::try_from(slot).unwrap(), *permits, *of, 9, start, 200) }
        };
        found(&with_leases(all.iter().enumerate().map(share)))
    };
    assert_eq!(at(&[(3, 5), (2, 5)]), "");
    assert_eq!(at(&[(3, 5), (3, 5)]), "a");
    assert_eq!(at(&[(3, 5), (1, 5), (1, 5)]), "");
    assert_eq!(at(&[(3, 5), (1, 5), (2, 5)]), "a");
    assert_eq!(at(&[(3, 3), (2, 5)]), "", "the one with 5 came in last");
    assert_eq!(at(&[(3, 3), (3, 5)]), "a");
    let one_after_the_other = [takes(1, 3, 5, 9, 100, 300), takes(2, 3, 5, 9, 200, 210)];
    assert_eq!(found(&with_leases(one_after_the_other)), "a", "it was let in beside 3");
}

#[test]
fn nobody_is_let_in_beside_as_many_as_its_own_limit() {
    let there = [read(1, 9, 100, 300), read(2, 9, 110, 300)];
    let with = |one: Lease| found(&with_leases(there.iter().cloned().chain([one])));
    assert_eq!(with(share(3, 3, 9, 200, 210)), "");
    assert_eq!(with(share(3, 2, 9, 200, 210)), "a");
    assert_eq!(with(share(3, 1, 9, 200, 210)), "a");
    let waited = |since: u64| Lease { invoked: since * MILLI, ..share(3, 2, 9, 200, 210) };
    assert_eq!(with(waited(111)), "a");
    assert_eq!(with(waited(109)), "", "it may have come in before the second reader");
}

#[test]
fn a_lost_place_forgives_those_who_had_it_and_nobody_else() {
    let three = [share(1, 2, 9, 100, 400), share(2, 2, 9, 110, 400), share(3, 2, 10, 200, 210)];
    let with = |losses: &[Loss]| found(&History { losses: losses.into(), ..with_leases(three.clone()) });
    assert_eq!(with(&[]), "abb");
    assert_eq!(with(&[places(150, 151)]), "");
    assert_eq!(with(&[loss(0, None, 150, 151)]), "");
    assert_eq!(with(&[Loss { name: Some(1), ..places(150, 151) }]), "abb", "another name");
    assert_eq!(with(&[places(205, 206)]), "abb", "later");
    let late = [share(1, 2, 9, 100, 600), share(2, 2, 9, 110, 600), share(3, 2, 10, 500, 510)];
    let losses = vec![places(150, 151)];
    assert_eq!(found(&History { losses: losses.clone(), ..with_leases(late) }), "abb", "a TTL after it");
    let alone = [lease(1, 9, 100, 400), read(2, 10, 200, 210)];
    assert_eq!(found(&History { losses, ..with_leases(alone) }), "a", "a holder alone loses nothing");
}

#[test]
fn those_who_share_it_at_one_time_have_one_number() {
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), read(2, 9, 150, 300)])), "");
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), read(2, 10, 150, 300)])), "b");
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), read(2, 8, 150, 300)])), "bb", "it falls, too");
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), read(2, 10, 201, 300)])), "", "two phases");
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), read(2, 8, 210, 300)])), "b");
}

#[test]
fn nobody_alone_has_the_number_of_a_phase() {
    assert_eq!(found(&with_leases([read(1, 9, 100, 200), lease(2, 9, 210, 300)])), "b");
    assert_eq!(found(&with_leases([lease(2, 9, 100, 200), read(1, 9, 210, 300)])), "b");
    let waited = Lease { invoked: 10 * MILLI, ..read(1, 9, 210, 300) };
    assert_eq!(found(&with_leases([lease(2, 9, 100, 200), waited])), "b");
    let between = [read(1, 9, 100, 200), lease(2, 10, 210, 220), read(3, 9, 230, 240)];
    assert_eq!(found(&with_leases(between)), "b");
}

#[test]
fn a_phase_that_is_over_does_not_go_on() {
    let with = |seen: &[Found], invoked: u64| {
        let later = Lease { invoked: invoked * MILLI, ..read(2, 9, 230, 300) };
        let looks = vec![look(0, 210, 211, seen)];
        found(&History { looks, ..with_leases([read(1, 9, 100, 200), later]) })
    };
    assert_eq!(with(&[Found::Nothing], 220), "b");
    assert_eq!(with(&[phase(10, &[3])], 220), "b");
    assert_eq!(with(&[token(3, 10)], 220), "b");
    assert_eq!(with(&[phase(9, &[])], 220), "", "all are over, but it is there");
    assert_eq!(with(&[Found::Unknown], 220), "");
    assert_eq!(with(&[Found::Nothing], 205), "", "it may have come in, and be gone at the look, and in again");
}

#[test]
fn a_share_that_outlives_its_place_is_wrong() {
    let with = |found: Found, losses: &[Loss]| {
        let looks = vec![look(0, 150, 151, &[found])];
        self::found(&History { looks, losses: losses.into(), ..with_leases([read(1, 9, 100, 330)]) })
    };
    assert_eq!(with(phase(9, &[1, 2]), &[]), "");
    assert_eq!(with(Found::Unknown, &[]), "");
    assert_eq!(with(phase(9, &[2]), &[]), "d", "another one's place");
    assert_eq!(with(phase(9, &[]), &[]), "d");
    assert_eq!(with(phase(10, &[1]), &[]), "d", "another phase");
    assert_eq!(with(Found::Nothing, &[]), "d");
    assert_eq!(with(token(1, 9), &[]), "d", "somebody is alone");
    assert_eq!(with(phase(9, &[]), &[places(140, 141)]), "");
    let alone = History { looks: vec![look(0, 150, 151, &[phase(9, &[1])])], ..with_leases([lease(1, 9, 100, 330)]) };
    assert_eq!(found(&alone), "d", "it shares it, and was told that it is alone");
    // A writer that continues as a reader is known by its earlier name.
    let writer = lease(1, 9, 100, 140);
    let reader = goes_on(&writer, 2, 10, 145, 200);
    let seen = |slot| vec![look(0, 150, 151, &[phase(10, &[slot])])];
    assert_eq!(found(&History { looks: seen(1), ..with_leases([writer.clone(), reader.clone()]) }), "");
    assert_eq!(found(&History { looks: seen(2), ..with_leases([writer, reader]) }), "d");
}

#[test]
fn the_news_of_a_lost_place_has_a_cause_and_comes_with_the_next_renewal() {
    let told = |of: Lease, losses: &[Loss]| {
        let lease = Lease { how: Ending::Deleted, ..of };
        found(&History { losses: losses.into(), ..with_leases([lease]) })
    };
    let lost = places(150, 151);
    assert_eq!(told(read(1, 9, 100, 200), std::slice::from_ref(&lost)), "");
    assert_eq!(told(lease(1, 9, 100, 200), std::slice::from_ref(&lost)), "e");
    assert_eq!(told(read(1, 9, 100, 200), &[]), "e");
    let seen = vec![look(0, 152, 153, &[phase(9, &[1])])];
    let signal = Lease { how: Ending::Deleted, ..read(1, 9, 100, 200) };
    let again = History { losses: vec![lost.clone()], looks: seen, ..with_leases([signal]) };
    assert_eq!(found(&again), "e", "it has its place after it");
    // A third of its TTL, and 100 ms: not a whole one.
    let late = |end| {
        let looks = vec![look(0, 6_001, 6_002, &[phase(9, &[])])];
        let losses = vec![places(5_999, 6_000)];
        found(&History { looks, losses, ..with_leases([Lease { ttl: 600 * MILLI, ..read(1, 9, 100, end) }]) })
    };
    assert_eq!(late(6_300), "");
    assert_eq!(late(6_301), "d");
}

#[test]
fn nobody_comes_between_a_writer_and_the_reader_that_it_becomes() {
    let writer = lease(1, 9, 100, 200);
    let with = |reader: Lease, others: &[Lease], losses: &[Loss]| {
        let all = [writer.clone(), reader].into_iter().chain(others.iter().cloned());
        found(&History { losses: losses.into(), ..with_leases(all) })
    };
    let reader = |fence| goes_on(&writer, 2, fence, 210, 300);
    assert_eq!(with(reader(10), &[], &[]), "");
    assert_eq!(with(reader(12), &[read(3, 12, 215, 220)], &[]), "", "one that comes in beside it");
    // Its acquire returns so late that only the fences show the order.
    let other = |fence| Lease { end: None, invoked: 10 * MILLI, ..lease(3, fence, 220, 220) };
    assert_eq!(with(reader(12), &[other(11)], &[]), "b");
    assert_eq!(with(reader(12), &[other(8)], &[]), "");
    assert_eq!(with(reader(12), &[other(13)], &[]), "");
    assert_eq!(with(reader(12), &[other(11)], &[loss(0, None, 150, 151)]), "", "it had lost it");
    assert_eq!(with(reader(9), &[], &[]), "b", "it keeps its number");
    assert_eq!(with(reader(8), &[], &[]), "b");
}

#[test]
fn of_a_shared_name_nothing_is_left_but_its_fence() {
    let with = |key: &str| {
        let remnant = Remnant { name: 0, server: 0, key: key.into(), at: 1, lasts: Some(MILLI), is_left: false };
        found(&History { remnants: vec![remnant], ..history() })
    };
    assert_eq!(with("{lone}:lh:holders"), "f");
    assert_eq!(with("{lone}:lh:fence"), "");
}
