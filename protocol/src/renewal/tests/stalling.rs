//! Leases that are renewed only while their work makes progress (invariant 13).

use super::*;

/// Slow 2 s after its last progress, stalled after 4 s.
const SPAN: Duration = Duration::from_secs(4);

fn watched(nodes: usize, max_hold: Option<Duration>) -> HeldLease {
    watched_for(SPAN, nodes, max_hold)
}

fn watched_for(span: Duration, nodes: usize, max_hold: Option<Duration>) -> HeldLease {
    let mut tally = Tally::new(nodes);
    (0..nodes).for_each(|node| tally.confirm(node, at(1_000)));
    let config = LeaseConfig { ttl: TTL, max_hold, patience: Duration::from_secs(1), stall_after: Some(span) };
    HeldLease::new(config, tally, Jitter::from_seed(7))
}

/// Ticks it whenever it is due, up to this moment, with every renewal confirmed at once; returns when each was sent.
fn renewed_until(core: &mut HeldLease, end: Time) -> Vec<Time> {
    let mut sent = Vec::new();
    while let Some(now) = core.next_tick().filter(|due| *due <= end) {
        if core.tick(now).renew && !core.is_check(now) {
            sent.push(now);
            (0..core.nodes()).for_each(|node| assert!(!core.answer(now, node, now, RenewalAnswer::Confirmed).undo));
        }
    }
    sent
}

#[test]
fn it_is_at_risk_at_half_of_the_span_and_ends_by_the_deadline_of_its_last_renewal() {
    for nodes in [1, 3] {
        let mut core = watched(nodes, None);
        renewed_until(&mut core, at(2_999));
        assert_eq!((core.phase(), core.awaits_progress()), (Phase::Held, false));
        assert_eq!(core.tick(at(3_000)), Orders { news: true, ..NOTHING });
        assert_eq!((core.phase(), core.awaits_progress()), (Phase::AtRisk, true));
        let sent = renewed_until(&mut core, at(20_000));
        let last = *sent.last().unwrap();
        assert!(last >= at(4_000) && last < at(5_000), "{last:?}");
        assert_eq!(core.phase(), over(LossReason::Stalled, last + VALID));
    }
}

/// A check is to confirm nothing, so its failure does not end the lease either.
#[test]
fn a_check_without_an_answer_leaves_the_reason_as_it_is() {
    let mut core = watched(1, None);
    renewed_until(&mut core, at(5_000));
    let check = (5_000..6_500).map(at).find(|now| core.tick(*now).renew).expect("it is checked");
    assert_eq!((core.is_check(check), core.answer(check, 0, check, RenewalAnswer::Unclear)), (true, NOTHING));
    renewed_until(&mut core, at(20_000));
    assert!(matches!(core.phase(), Phase::Over { reason: LossReason::Stalled, .. }), "{:?}", core.phase());
}

/// A repair is due from the hint on, and not since the repair before it.
#[test]
fn a_hint_of_a_node_without_the_key_is_no_standstill_of_the_process() {
    let mut core = watched(3, None);
    for node in [0, 1] {
        let _ = core.answer(at(1_001), node, at(1_000), RenewalAnswer::Confirmed);
    }
    let _ = core.answer(at(1_001), 2, at(1_001), RenewalAnswer::Denied(Denial::Taken));
    for now in (1_100..2_400).step_by(100) {
        let _ = core.tick(at(now));
    }
    core.hint_of(2, at(2_999));
    let _ = core.tick(at(3_000));
    assert!(core.awaits_progress(), "half of its span has passed");
}

#[test]
fn work_that_makes_progress_is_renewed_without_an_end() {
    let mut core = watched(1, None);
    for second in 2..60 {
        assert!(renewed_until(&mut core, at(1_000 * second)).len() <= 2);
        core.progressed(at(1_000 * second));
    }
    assert_eq!((core.phase(), core.valid_until() > at(60_000)), (Phase::Held, true));
}

#[test]
fn progress_in_time_renews_at_once_and_ends_the_risk() {
    let mut core = watched(1, None);
    renewed_until(&mut core, at(5_500));
    assert_eq!(core.phase(), Phase::AtRisk);
    let late = Time::from_nanos(core.valid_until().as_nanos() - 1_000_000);
    assert!(renewed_until(&mut core, late).is_empty(), "it has stalled");
    core.progressed(late);
    assert_eq!(core.tick(late), Orders { renew: true, news: true, ..NOTHING });
    assert_eq!((core.phase(), core.awaits_progress()), (Phase::Held, false));
    let _ = core.answer(late, 0, late, RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), late + VALID);
}

#[test]
fn nothing_lengthens_the_life_of_the_key_of_stalled_work() {
    let mut core = watched(3, None);
    renewed_until(&mut core, at(5_000));
    assert_eq!(core.tick(at(5_000)), NOTHING);
    let end = core.valid_until();
    core.hint(at(5_001));
    core.hint_of(2, at(5_001));
    assert_eq!(core.go_along(at(5_050), Some(TTL)), NOTHING);
    let check = core.next_tick().unwrap();
    assert_eq!(core.tick(check), Orders { renew: true, ..NOTHING });
    assert!(core.is_check(check) && !core.is_check(at(4_900)));
    for node in 0..3 {
        assert_eq!(core.answer(check, node, check, RenewalAnswer::Confirmed), NOTHING);
    }
    assert_eq!(core.valid_until(), end, "it counts for nothing");
    let sent = at(4_900);
    let _ = core.answer(at(5_200), 0, sent, RenewalAnswer::Confirmed);
    assert_eq!(core.answer(at(5_200), 2, sent, RenewalAnswer::Denied(Denial::Gone)), NOTHING, "no repair");
    assert!(renewed_until(&mut core, end).is_empty());
    assert!(matches!(core.phase(), Phase::Over { reason: LossReason::Stalled, .. }), "{:?}", core.phase());
}

/// Where no notification comes, a deletion is noticed as early as that of any other lease's key.
#[test]
fn the_key_of_stalled_work_is_checked_each_third_of_the_ttl() {
    let mut core = watched(1, None);
    let renewed = *renewed_until(&mut core, at(5_000)).last().unwrap();
    let (mut checked, mut end) = (Vec::new(), core.valid_until());
    while let Some(now) = core.next_tick().filter(|due| *due < end) {
        if core.tick(now).renew {
            checked.push(now);
            if checked.len() == 2 {
                end = now;
                let _ = core.answer(now, 0, now, RenewalAnswer::Denied(Denial::Gone));
            }
        }
    }
    let [first, second] = checked[..] else { panic!("{checked:?}") };
    let third = TTL / 3;
    assert!(first.since(renewed) <= third * 3 / 2 && second.since(first) <= third * 3 / 2, "{renewed:?} {checked:?}");
    assert!(core.is_check(first) && core.is_check(second));
    assert_eq!(core.phase(), over(LossReason::Deleted, second));
}

/// A driver may miss that progress was reported, since the report is no more than a store.
#[test]
fn stalled_work_is_looked_at_several_times_before_its_deadline() {
    let mut core = watched(1, None);
    renewed_until(&mut core, at(5_000));
    core.progressed(at(5_050));
    let next = core.next_tick().unwrap();
    assert!(next <= at(5_000) + TTL / 8, "{next:?}");
    assert!(core.tick(next).renew);
}

/// Its answer makes the next renewal due at a time that has passed: that does not show that the process stood still.
#[test]
fn a_late_answer_does_not_begin_the_span_anew() {
    const SHORT: Duration = Duration::from_millis(1_600);
    let mut core = watched_for(SHORT, 1, None);
    let (mut sent, mut late) = (None, at(0));
    // Up to the first check.
    loop {
        let (mut next, now) = (core.clone(), core.next_tick().unwrap());
        let renews = next.tick(now).renew;
        if renews && next.is_check(now) {
            break;
        } else if renews {
            sent.get_or_insert(now);
        }
        (core, late) = (next, now);
    }
    let sent = sent.unwrap();
    let _ = core.answer(late, 0, sent, RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), deadline(sent, TTL), "it was sent before the work stalled");
    assert!(core.next_tick().unwrap() + SHORT / 8 < late, "the scene needs a renewal that was due");
    assert!(!core.tick(late).renew);
}

#[test]
fn a_process_that_stood_still_has_not_stalled_for_that_time() {
    let mut core = watched(1, None);
    renewed_until(&mut core, at(2_500));
    let continued = core.next_tick().unwrap() + Duration::from_millis(1_200);
    let orders = core.tick(continued);
    assert!(orders.renew && core.phase() == Phase::Held, "{orders:?}");
    let _ = core.answer(continued, 0, continued, RenewalAnswer::Confirmed);
    renewed_until(&mut core, continued + Duration::from_millis(1_999));
    assert!(!core.awaits_progress());
    renewed_until(&mut core, continued + SPAN / 2);
    assert!(core.awaits_progress());
}

#[test]
fn servers_that_are_silent_and_a_hold_that_ends_are_named_before_the_stall() {
    let mut core = watched(3, None);
    renewed_until(&mut core, at(2_500));
    let end = core.valid_until();
    while let Some(due) = core.next_tick() {
        let _ = core.tick(due);
    }
    assert_eq!(core.phase(), over(LossReason::NoQuorum, end));
    let mut core = watched(1, Some(Duration::from_millis(4_500)));
    renewed_until(&mut core, at(20_000));
    assert_eq!(core.phase(), over(LossReason::MaxHold, at(5_500)));
}
