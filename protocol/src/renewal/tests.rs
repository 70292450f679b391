//! Every transition of the core, each invariant by its number, and a proptest against a reference that keeps only the
//! list of confirmations.

use proptest::prelude::*;

use super::*;

mod quorum;
mod stalling;

const TTL: Duration = Duration::from_secs(3);
/// The TTL minus 1 % and 2 ms.
const VALID: Duration = Duration::from_millis(2_968);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn core_with(ttl: Duration, max_hold: Option<Duration>, nodes: usize) -> HeldLease {
    let mut tally = Tally::new(nodes);
    for node in 0..nodes {
        tally.confirm(node, at(1_000));
    }
    let config = LeaseConfig { ttl, max_hold, patience: Duration::from_secs(1), stall_after: None };
    HeldLease::new(config, tally, Jitter::from_seed(7))
}

/// A lease from an attempt that was sent at 1 s: valid until 3.968 s.
fn core() -> HeldLease {
    core_with(TTL, None, 1)
}

fn over(reason: LossReason, since: Time) -> Phase {
    Phase::Over { reason, since }
}

const NOTHING: Orders = Orders { renew: false, reconnect: Nodes::NONE, repair: Nodes::NONE, undo: false, news: false };
const LOST: Orders = Orders { undo: true, news: true, ..NOTHING };

#[test]
fn it_begins_held_until_the_send_plus_ttl_less_drift() {
    let core = core();
    assert_eq!((core.phase(), core.valid_until()), (Phase::Held, at(1_000) + VALID));
}

#[test]
fn a_renewal_is_due_within_a_tenth_before_the_third() {
    for seed in 0..200 {
        let mut tally = Tally::new(1);
        tally.confirm(0, at(1_000));
        let config = LeaseConfig { ttl: TTL, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
        let due = HeldLease::new(config, tally, Jitter::from_seed(seed)).next_tick().unwrap();
        assert!(due <= at(2_000) && due >= at(1_900), "{due:?}");
    }
}

/// The time from a renewal at this moment until the lease comes due.
fn gap_after(sent: Time, seed: u64) -> Duration {
    let mut tally = Tally::new(1);
    tally.confirm(0, sent);
    let config = LeaseConfig { ttl: TTL, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
    HeldLease::new(config, tally, Jitter::from_seed(seed)).next_tick().unwrap().since(sent)
}

#[test]
fn one_round_of_eight_comes_early_by_up_to_a_tenth() {
    let gaps: Vec<_> = (0..8_000).map(|millis| gap_after(at(millis), 7)).collect();
    let early: Vec<_> = gaps.iter().filter(|gap| **gap < TTL / 3).collect();
    assert!((900..=1_100).contains(&early.len()), "{}", early.len());
    let far = early.iter().filter(|gap| ***gap < TTL / 3 * 19 / 20).count();
    assert!((400..=600).contains(&far), "half of them by more than half of that: {far}");
}

#[test]
fn invariant_11_leases_that_were_renewed_together_come_due_together_and_those_of_another_process_do_not() {
    let seeds = (0..200).map(at);
    let differs = seeds.filter(|sent| gap_after(*sent, 7) != gap_after(*sent, 8)).count();
    assert!((20..=80).contains(&differs), "an eighth of each: {differs}");
}

#[test]
fn invariant_11_a_lease_goes_along_within_the_last_tenth_before_its_round_and_stays_before_that() {
    let mut core = core();
    let due = core.next_tick().unwrap();
    let tenth = Time::from_nanos(due.as_nanos() - 100_000_000);
    let before = Time::from_nanos(tenth.as_nanos() - 1);
    assert_eq!((core.go_along(before, None), core.next_tick()), (NOTHING, Some(due)));
    assert_eq!(core.go_along(tenth, None), Orders { renew: true, ..NOTHING });
    assert_eq!(core.go_along(tenth, None), NOTHING, "invariant 7: twice for one moment");
    assert_eq!(core.tick(tenth), NOTHING);
    // It is followed up like any round.
    let patience = Duration::from_millis(500);
    assert_eq!(core.tick(tenth + patience), Orders { renew: true, news: true, ..NOTHING });
    let _ = core.answer(tenth + patience, 0, tenth, RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), tenth + VALID);
}

#[test]
fn invariant_11_at_one_moment_of_eight_all_of_a_ttl_go_along_that_have_room() {
    let moments = || (1_030..1_790).map(at);
    let goes = |moment: Time, meets| core().go_along(moment, meets).renew;
    let meet = moments().filter(|moment| goes(*moment, Some(TTL))).count();
    assert!((60..=140).contains(&meet), "an eighth of seven hundred and sixty: {meet}");
    let another = TTL * 2;
    assert!(moments().all(|moment| !goes(moment, None) && !goes(moment, Some(another))));
    // Another lease with the same seed picks the same moments.
    let other = |moment: Time| core_with(TTL, Some(TTL), 1).go_along(moment, Some(TTL)).renew;
    assert!(moments().all(|moment| goes(moment, Some(TTL)) == other(moment)));
}

#[test]
fn invariant_11_nothing_else_goes_along() {
    let mut unanswered = core();
    assert!(unanswered.tick(at(2_000)).renew);
    assert_eq!(unanswered.go_along(at(2_450), None), NOTHING, "its next round is near, but not the first");
    let mut at_risk = core();
    assert!(at_risk.tick(at(2_000)).renew);
    let _ = at_risk.answer(at(2_001), 0, at(2_000), RenewalAnswer::Unclear);
    let due = at_risk.next_tick().unwrap();
    assert_eq!((at_risk.go_along(at(2_001), None), at_risk.next_tick()), (NOTHING, Some(due)));
    let mut over = core();
    assert_eq!(over.go_along(at(10_000), None), LOST);
    assert_eq!(over.go_along(at(10_001), None), NOTHING);
    let mut bounded = core_with(TTL, Some(Duration::from_millis(500)), 1);
    assert_eq!(bounded.go_along(at(1_499), None), NOTHING, "what is near is its end");
}

#[test]
fn invariant_11_a_hint_goes_along_with_its_nearest_neighbours_and_not_twice_in_twenty_milliseconds() {
    let mut core = core();
    let round = core.next_tick();
    core.hint(at(1_250));
    assert_eq!(core.go_along(at(1_229), None), NOTHING);
    assert_eq!((core.go_along(at(1_230), None), core.next_tick()), (Orders { renew: true, ..NOTHING }, round));
    core.hint(at(1_231));
    assert_eq!((core.go_along(at(1_249), None), core.next_tick()), (NOTHING, Some(at(1_250))));
    assert_eq!(core.tick(at(1_250)), Orders { renew: true, ..NOTHING });
}

#[test]
fn a_tick_before_its_time_orders_nothing() {
    let mut core = core();
    assert_eq!(core.tick(at(1_500)), NOTHING);
}

#[test]
fn invariant_1_a_confirmation_moves_the_deadline_from_its_own_send() {
    let mut core = core();
    assert!(core.tick(at(2_000)).renew);
    assert_eq!(core.answer(at(2_700), 0, at(2_000), RenewalAnswer::Confirmed), NOTHING);
    assert_eq!(core.valid_until(), at(2_000) + VALID);
    assert!(core.next_tick().unwrap() <= at(3_000), "the next third counts from that send too");
}

#[test]
fn invariant_1_an_older_confirmation_never_moves_it_back() {
    let mut core = core();
    let _ = core.answer(at(2_600), 0, at(2_500), RenewalAnswer::Confirmed);
    let _ = core.answer(at(2_700), 0, at(2_000), RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), at(2_500) + VALID);
}

#[test]
fn invariant_1_on_a_quorum_the_majority_th_largest_send_counts() {
    let mut core = core_with(TTL, None, 3);
    let _ = core.answer(at(2_100), 0, at(2_000), RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), at(1_000) + VALID);
    let _ = core.answer(at(2_100), 1, at(1_900), RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), at(1_900) + VALID);
}

#[test]
fn invariant_2_the_deadline_ends_it_whatever_the_event() {
    let deadline = at(1_000) + VALID;
    let events: [fn(&mut HeldLease, Time) -> Orders; 4] = [
        |core, now| core.expire_if_due(now),
        |core, now| core.tick(now),
        |core, now| core.answer(now, 0, at(3_000), RenewalAnswer::Confirmed),
        |core, now| core.finish(now, LossReason::Released),
    ];
    for event in events {
        let mut core = core();
        assert_eq!(event(&mut core, deadline), LOST);
        assert_eq!(core.phase(), over(LossReason::Expired, deadline));
    }
}

#[test]
fn invariant_2_a_nanosecond_before_it_holds() {
    let mut core = core();
    let just_before = Time::from_nanos((at(1_000) + VALID).as_nanos() - 1);
    assert_eq!(core.expire_if_due(just_before), NOTHING);
    assert_eq!(core.phase(), Phase::Held);
}

#[test]
fn invariant_2_nothing_revives_it() {
    let mut core = core();
    let _ = core.tick(at(10_000));
    assert_eq!(core.answer(at(10_001), 0, at(10_000), RenewalAnswer::Confirmed), NOTHING);
    assert_eq!((core.valid_until(), core.next_tick()), (Time::ZERO, None));
}

#[test]
fn invariant_7_a_late_confirmation_does_not_order_a_round_twice_for_one_moment() {
    let mut core = core();
    assert!(core.tick(at(2_000)).renew);
    assert!(core.tick(at(3_000)).renew);
    let _ = core.answer(at(3_000), 0, at(2_000), RenewalAnswer::Confirmed);
    assert_eq!(core.tick(at(3_000)), NOTHING);
    assert!(core.next_tick().unwrap() > at(3_000));
}

#[test]
fn invariant_9_a_hint_asks_once_and_moves_no_round() {
    let mut core = core();
    let round = core.next_tick().unwrap();
    core.hint(at(1_100));
    assert_eq!(core.next_tick(), Some(at(1_100)));
    assert_eq!(core.tick(at(1_100)), Orders { renew: true, ..NOTHING });
    assert_eq!((core.phase(), core.next_tick()), (Phase::Held, Some(round)));
    assert_eq!(core.tick(at(1_101)), NOTHING);
    assert_eq!(core.answer(at(1_102), 0, at(1_100), RenewalAnswer::Denied(Denial::Gone)), LOST);
}

#[test]
fn invariant_9_a_flood_of_hints_is_a_renewal_in_twenty_milliseconds_and_none_is_forgotten() {
    let mut core = core();
    let mut renewals = 0;
    for tenth in 0..1_000 {
        let now = at(1_100) + Duration::from_micros(100 * tenth);
        core.hint(now);
        renewals += u32::from(core.tick(now).renew);
    }
    assert_eq!(renewals, 5, "in 100 ms");
    // The last hint came after the last renewal.
    let due = core.next_tick().unwrap();
    assert!(due <= at(1_200) && core.tick(due).renew, "{due:?}");
}

#[test]
fn invariant_9_a_hint_beside_an_unanswered_round_says_nothing_about_risk() {
    let mut core = core();
    assert!(core.tick(at(2_000)).renew);
    core.hint(at(2_001));
    assert_eq!(core.tick(at(2_019)), NOTHING);
    assert_eq!(core.tick(at(2_020)), Orders { renew: true, ..NOTHING });
    assert_eq!(core.phase(), Phase::Held);
}

#[test]
fn invariant_3_a_definite_no_ends_it_at_once() {
    for (denial, reason) in [(Denial::Gone, LossReason::Deleted), (Denial::Taken, LossReason::Taken)] {
        let mut core = core();
        assert_eq!(core.answer(at(2_010), 0, at(2_000), RenewalAnswer::Denied(denial)), LOST);
        assert_eq!(core.phase(), over(reason, at(2_010)));
    }
}

#[test]
fn invariant_3_a_no_counts_whichever_round_it_answers() {
    let mut core = core();
    let _ = core.answer(at(2_600), 0, at(2_500), RenewalAnswer::Confirmed);
    assert_eq!(core.answer(at(2_700), 0, at(2_000), RenewalAnswer::Denied(Denial::Gone)), LOST);
}

#[test]
fn invariant_3_a_minority_that_denies_ends_nothing() {
    let mut core = core_with(TTL, None, 3);
    assert_eq!(core.answer(at(2_010), 0, at(2_000), RenewalAnswer::Denied(Denial::Gone)), NOTHING);
    assert_eq!(core.answer(at(2_010), 1, at(2_000), RenewalAnswer::Denied(Denial::Gone)), LOST);
}

#[test]
fn invariant_3_an_error_puts_it_at_risk_and_a_confirmation_brings_it_back() {
    let mut core = core();
    let _ = core.tick(at(2_000));
    assert_eq!(core.answer(at(2_005), 0, at(2_000), RenewalAnswer::Unclear), Orders { news: true, ..NOTHING });
    assert_eq!(core.phase(), Phase::AtRisk);
    assert_eq!(core.answer(at(2_100), 0, at(2_050), RenewalAnswer::Confirmed), Orders { news: true, ..NOTHING });
    assert_eq!(core.phase(), Phase::Held);
}

#[test]
fn a_failed_renewal_is_retried_quickly_and_then_less_quickly() {
    let mut core = core();
    let mut now = at(2_000);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert!(core.tick(now).renew);
        let _ = core.answer(now, 0, now, RenewalAnswer::Unclear);
        let next = core.next_tick().unwrap();
        pauses.push(next.since(now));
        now = next;
    }
    assert!(pauses[0] <= TTL / 3 / 64, "{pauses:?}");
    assert!(pauses.windows(2).all(|pair| pair[1] >= pair[0] / 2), "half jitter on a doubling bound: {pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= TTL / 6), "{pauses:?}");
}

#[test]
fn invariant_8_after_a_refusal_a_part_of_the_ttl_passes_and_the_lease_is_at_risk_meanwhile() {
    let mut core = core();
    let mut now = at(2_000);
    let mut rounds = 0;
    while now < at(1_000) + VALID {
        assert!(core.tick(now).renew);
        let _ = core.answer(now, 0, now, RenewalAnswer::Refused);
        assert_eq!(core.phase(), Phase::AtRisk);
        let next = core.next_tick().unwrap();
        assert!(next == core.valid_until() || (TTL / 12..=TTL / 6).contains(&next.since(now)), "{:?}", next.since(now));
        (now, rounds) = (next, rounds + 1);
    }
    assert!((4..=8).contains(&rounds), "{rounds}");
    assert_eq!(core.tick(now), Orders { undo: true, news: true, ..NOTHING });
}

#[test]
fn a_lease_that_was_refused_is_held_again_once_it_is_confirmed() {
    let mut core = core();
    let _ = core.tick(at(2_000));
    let _ = core.answer(at(2_005), 0, at(2_000), RenewalAnswer::Refused);
    assert_eq!(core.answer(at(2_200), 0, at(2_195), RenewalAnswer::Confirmed), Orders { news: true, ..NOTHING });
    let next = core.next_tick().unwrap().since(at(2_195));
    assert!((TTL * 9 / 30..=TTL / 3).contains(&next), "{next:?}");
}

#[test]
fn the_pause_after_a_failure_is_between_half_and_all_of_its_bound() {
    let pauses: Vec<_> = (0..200)
        .map(|seed| {
            let mut tally = Tally::new(1);
            tally.confirm(0, at(1_000));
            let config = LeaseConfig { ttl: TTL, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
            let mut core = HeldLease::new(config, tally, Jitter::from_seed(seed));
            assert!(core.tick(at(2_000)).renew);
            let _ = core.answer(at(2_000), 0, at(2_000), RenewalAnswer::Unclear);
            core.next_tick().unwrap().since(at(2_000))
        })
        .collect();
    let (shortest, longest, bound) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap(), TTL / 3 / 64);
    assert!((bound / 2..bound * 6 / 10).contains(shortest), "{shortest:?}");
    assert!((bound * 9 / 10..=bound).contains(longest), "{longest:?}");
}

#[test]
fn silence_puts_it_at_risk_after_the_patience_and_another_round_goes_out() {
    let mut core = core();
    assert_eq!(core.tick(at(2_000)), Orders { renew: true, ..NOTHING });
    assert_eq!(core.tick(at(2_499)), NOTHING);
    assert_eq!(core.tick(at(2_500)), Orders { renew: true, news: true, ..NOTHING });
    assert_eq!(core.phase(), Phase::AtRisk);
}

#[test]
fn three_patiences_of_silence_make_the_connection_suspect() {
    let mut core = core();
    let mut reconnected_at = Vec::new();
    for now in (2_000..3_900).map(at) {
        if !core.tick(now).reconnect.is_empty() {
            reconnected_at.push(now);
        }
    }
    assert_eq!(reconnected_at, [at(3_500)]);
}

#[test]
fn a_new_connection_has_three_patiences_as_well() {
    for seed in 0..200 {
        let mut tally = Tally::new(1);
        tally.confirm(0, at(1_000));
        // A third of its TTL is a little shorter than three patiences.
        let config = LeaseConfig {
            ttl: Duration::from_millis(8_700),
            max_hold: None,
            patience: Duration::from_secs(1),
            stall_after: None,
        };
        let mut core = HeldLease::new(config, tally, Jitter::from_seed(seed));
        let mut reconnected_at = Vec::new();
        while let Some(look) = core.next_tick() {
            if !core.tick(look).reconnect.is_empty() {
                reconnected_at.push(look);
            }
        }
        assert_eq!(reconnected_at.len(), 1, "it is over before that: {reconnected_at:?}");
    }
}

#[test]
fn invariant_8_an_outage_of_any_length_has_a_handful_of_rounds_under_way() {
    let mut core = core_with(Duration::from_secs(3_600), None, 1);
    let mut rounds = 0;
    for _ in 0..100 {
        let Some(look) = core.next_tick() else { break };
        rounds += u32::from(core.tick(look).renew);
    }
    assert_eq!(core.next_tick(), None, "it is over in the end");
    // Gaps of 1, 2, 4 … s up to a third of an hour, in the remaining two thirds: 12, and 2 for the rest.
    assert!((10..=14).contains(&rounds), "{rounds}");
}

#[test]
fn invariant_4_a_late_confirmation_counts_for_its_own_round() {
    let mut core = core();
    let _ = core.tick(at(2_000));
    let _ = core.tick(at(2_500));
    let _ = core.tick(at(3_000));
    // The answer to the first round arrives when two more are under way.
    assert_eq!(core.answer(at(3_900), 0, at(2_000), RenewalAnswer::Confirmed), Orders { news: true, ..NOTHING });
    assert_eq!((core.phase(), core.valid_until()), (Phase::Held, at(2_000) + VALID));
    assert!(core.tick(at(3_900)).renew, "its third has passed, so the next round is due");
}

#[test]
fn invariant_5_after_a_release_no_renewal_is_ordered() {
    for reason in [LossReason::Released, LossReason::Closed] {
        let mut core = core();
        assert_eq!(core.finish(at(1_500), reason), Orders { news: true, ..NOTHING });
        assert_eq!(core.tick(at(2_500)), NOTHING);
        assert_eq!(core.answer(at(2_500), 0, at(1_400), RenewalAnswer::Unclear), NOTHING);
        assert_eq!((core.phase(), core.next_tick()), (over(reason, at(1_500)), None));
    }
}

#[test]
fn invariant_6_max_hold_ends_it_and_orders_nothing_but_the_news() {
    let mut core = core_with(TTL, Some(Duration::from_secs(5)), 1);
    let _ = core.answer(at(4_000 - 100), 0, at(3_900), RenewalAnswer::Confirmed);
    let _ = core.answer(at(5_900), 0, at(5_800), RenewalAnswer::Confirmed);
    assert_eq!(core.valid_until(), at(6_000));
    assert_eq!(core.tick(at(6_000)), Orders { news: true, ..NOTHING });
    assert_eq!(core.phase(), over(LossReason::MaxHold, at(6_000)));
}

#[test]
fn the_earlier_of_deadline_and_max_hold_is_the_reason() {
    let mut expired = core_with(TTL, Some(Duration::from_secs(5)), 1);
    let _ = expired.expire_if_due(at(60_000));
    assert_eq!(expired.phase(), over(LossReason::Expired, at(1_000) + VALID));

    let mut held_long = core_with(TTL, Some(TTL), 1);
    let _ = held_long.answer(at(2_000), 0, at(1_900), RenewalAnswer::Confirmed);
    let _ = held_long.expire_if_due(at(60_000));
    assert_eq!(held_long.phase(), over(LossReason::MaxHold, at(4_000)));
}

#[test]
fn where_both_come_at_once_it_is_max_hold() {
    let mut core = core_with(TTL, Some(VALID), 1);
    assert_eq!(core.expire_if_due(at(1_000) + VALID), Orders { news: true, ..NOTHING });
    assert_eq!(core.phase(), over(LossReason::MaxHold, at(1_000) + VALID));
}

#[test]
fn a_quorum_that_was_in_doubt_is_the_reason_and_a_process_that_stood_still_is_not() {
    for (nodes, doubted, reason) in
        [(3, true, LossReason::NoQuorum), (3, false, LossReason::Expired), (1, true, LossReason::Expired)]
    {
        let mut core = core_with(TTL, None, nodes);
        for node in (0..nodes).filter(|_| doubted) {
            let _ = core.answer(at(2_005), node, at(2_000), RenewalAnswer::Unclear);
        }
        assert_eq!(core.phase(), if doubted { Phase::AtRisk } else { Phase::Held });
        assert_eq!(core.expire_if_due(at(60_000)), LOST);
        assert_eq!(core.phase(), over(reason, at(1_000) + VALID));
    }
}

#[test]
fn a_renewal_is_confirmed_when_a_majority_has_confirmed_that_send_or_a_later_one() {
    let mut core = core_with(TTL, None, 3);
    assert!(core.is_confirmed(at(1_000)) && !core.is_confirmed(at(1_001)));
    let _ = core.answer(at(2_001), 0, at(2_000), RenewalAnswer::Confirmed);
    assert!(!core.is_confirmed(at(2_000)));
    let _ = core.answer(at(2_011), 1, at(2_010), RenewalAnswer::Confirmed);
    assert!(core.is_confirmed(at(2_000)) && !core.is_confirmed(at(2_001)));
}

#[test]
fn what_a_node_never_had_is_not_on_it() {
    let mut tally = Tally::new(3);
    tally.confirm(0, at(1_000));
    tally.confirm(1, at(1_000));
    tally.deny(2, at(1_000), Denial::Gone);
    let mut core = HeldLease::new(
        LeaseConfig { ttl: TTL, max_hold: None, patience: TTL, stall_after: None },
        tally,
        Jitter::from_seed(7),
    );
    assert_eq!(core.may_be_on(), [0, 1].into_iter().collect());
    // The node has the key, because it was repaired.
    assert_eq!(core.answer(at(2_001), 0, at(2_000), RenewalAnswer::Confirmed).repair, [2].into_iter().collect());
    assert!(core.may_be_on().contains(2));
}

fn lacking_the_third() -> HeldLease {
    let mut tally = Tally::new(3);
    tally.confirm(0, at(1_000));
    tally.confirm(1, at(1_000));
    tally.deny(2, at(1_000), Denial::Taken);
    HeldLease::new(
        LeaseConfig { ttl: TTL, max_hold: None, patience: TTL, stall_after: None },
        tally,
        Jitter::from_seed(7),
    )
}

#[test]
fn invariant_12_a_hint_of_a_node_that_lacks_the_key_orders_a_repair_there_and_no_renewal() {
    let (mut core, repair) = (lacking_the_third(), Orders { repair: Nodes::one(2), ..NOTHING });
    let round = core.next_tick();
    core.hint_of(2, at(1_100));
    assert!(core.next_tick() <= Some(at(1_100)));
    assert_eq!((core.tick(at(1_100)), core.next_tick()), (repair, round));
    assert!(core.may_be_on().contains(2), "it may have the key from then on");
    // Another hint in the same 20 ms waits for their end; another holder had the key again.
    let _taken = core.answer(at(1_101), 2, at(1_100), RenewalAnswer::Denied(Denial::Taken));
    core.hint_of(2, at(1_101));
    assert_eq!((core.tick(at(1_101)), core.next_tick()), (NOTHING, Some(at(1_120))));
    assert_eq!(core.tick(at(1_120)), repair);
    // The node has the key now.
    let _done = core.answer(at(1_121), 2, at(1_120), RenewalAnswer::Confirmed);
    core.hint_of(2, at(1_200));
    assert_eq!(core.tick(at(1_200)), Orders { renew: true, ..NOTHING });
}

#[test]
fn invariant_12_a_node_that_has_confirmed_nothing_yet_lacks_the_key_and_one_that_has_it_is_renewed() {
    let mut tally = Tally::new(3);
    tally.confirm(0, at(1_000));
    tally.confirm(1, at(1_000));
    tally.suspect(2);
    let mut core = HeldLease::new(
        LeaseConfig { ttl: TTL, max_hold: None, patience: TTL, stall_after: None },
        tally,
        Jitter::from_seed(7),
    );
    core.hint_of(2, at(1_010));
    assert_eq!(core.tick(at(1_010)), Orders { repair: Nodes::one(2), ..NOTHING });
    core.hint_of(1, at(1_011));
    assert_eq!(core.tick(at(1_011)), Orders { renew: true, ..NOTHING });
}

#[test]
fn invariant_12_a_node_is_not_repaired_for_a_hint_that_has_it_by_then_nor_while_the_lease_is_at_risk() {
    let mut core = lacking_the_third();
    core.hint_of(2, at(1_100));
    let _done = core.answer(at(1_101), 2, at(1_090), RenewalAnswer::Confirmed);
    assert_eq!(core.tick(at(1_102)), NOTHING);
    let mut core = lacking_the_third();
    let _unclear = core.answer(at(2_001), 1, at(2_000), RenewalAnswer::Unclear);
    assert_eq!(core.phase(), Phase::AtRisk);
    core.hint_of(2, at(2_002));
    assert_eq!(core.tick(at(2_002)).repair, Nodes::NONE, "no majority is known to have it");
}

#[test]
fn a_short_lease_is_not_renewed_much_before_its_third() {
    for seed in 0..200 {
        let mut tally = Tally::new(1);
        tally.confirm(0, at(1_000));
        let config = LeaseConfig { ttl: Duration::from_millis(120), max_hold: None, patience: TTL, stall_after: None };
        let due = HeldLease::new(config, tally, Jitter::from_seed(seed)).next_tick().unwrap();
        assert!(due <= at(1_040) && due >= at(1_040 - 4), "{due:?}");
    }
}

#[test]
fn only_those_who_are_silent_are_connected_to_anew() {
    let mut core = core_with(TTL, None, 3);
    let mut reconnected = Nodes::NONE;
    for now in (2_000..3_900).map(at) {
        let orders = core.tick(now);
        reconnected = if orders.reconnect.is_empty() { reconnected } else { orders.reconnect };
        if orders.renew {
            let _ = core.answer(now, 1, now, RenewalAnswer::Confirmed);
        }
    }
    assert_eq!(reconnected, [0, 2].into_iter().collect());
}

#[test]
fn one_node_more_that_fails_in_a_lost_round_changes_nothing() {
    let rounds_with = |failing: usize| -> Vec<Time> {
        let mut core = core_with(TTL, None, 3);
        let mut rounds = Vec::new();
        for _ in 0..6 {
            let now = core.next_tick().unwrap();
            assert!(core.tick(now).renew);
            for node in 0..failing {
                let _ = core.answer(now, node, now, RenewalAnswer::Unclear);
            }
            rounds.push(now);
        }
        rounds
    };
    assert_eq!(rounds_with(2), rounds_with(3));
}

#[derive(Debug, Clone)]
enum Event {
    /// Time passes, and the driver ticks on time, late or early.
    Wait(u64),
    /// Time passes, and other leases are renewed.
    Along(u64),
    /// The oldest unanswered round gets this answer.
    RenewalAnswer(RenewalAnswer),
    /// An answer to a round that was sent long ago.
    Late(RenewalAnswer),
    Hint,
    Finish,
}

fn answers() -> impl Strategy<Value = RenewalAnswer> {
    prop_oneof![
        6 => Just(RenewalAnswer::Confirmed),
        2 => Just(RenewalAnswer::Unclear),
        1 => Just(RenewalAnswer::Refused),
        1 => Just(RenewalAnswer::Denied(Denial::Gone)),
        1 => Just(RenewalAnswer::Denied(Denial::Taken)),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (0_u64..1_500).prop_map(Event::Wait),
        4 => (0_u64..1_100).prop_map(Event::Along),
        5 => answers().prop_map(Event::RenewalAnswer),
        2 => answers().prop_map(Event::Late),
        2 => Just(Event::Hint),
        1 => Just(Event::Finish),
    ];
    prop::collection::vec(event, 1..80)
}

/// A reference for rule 1 that remembers only events.
struct Reference {
    confirmed: Vec<Time>,
    over: bool,
}

impl Reference {
    fn deadline(&self) -> Time {
        self.confirmed.iter().copied().max().unwrap() + VALID
    }
}

proptest! {
    #[test]
    fn the_core_agrees_with_a_reference_that_remembers_everything(events in events(), seed: u64) {
        let mut tally = Tally::new(1);
        tally.confirm(0, at(1_000));
        let config = LeaseConfig { ttl: TTL, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
        let mut core = HeldLease::new(config, tally, Jitter::from_seed(seed));
        let mut reference = Reference { confirmed: vec![at(1_000)], over: false };
        let (mut now, mut sent, mut answered) = (at(1_000), Vec::new(), Vec::new());
        let mut undone = 0;

        for event in events {
            let was_over = reference.over;
            let orders = match event {
                Event::Wait(millis) | Event::Along(millis) => {
                    now = now + Duration::from_millis(millis);
                    let orders = if matches!(event, Event::Wait(_)) { core.tick(now) } else { core.go_along(now, Some(TTL)) };
                    if orders.renew {
                        prop_assert!(sent.last() != Some(&now), "invariant 7: twice for one moment");
                        sent.push(now);
                    }
                    orders
                }
                Event::RenewalAnswer(_) if sent.is_empty() => continue,
                Event::RenewalAnswer(answer) => {
                    let round = sent.remove(0);
                    answered.push(round);
                    answer_both(&mut core, &mut reference, now, round, &answer)
                }
                Event::Late(answer) => {
                    let Some(&round) = answered.first() else { continue };
                    answer_both(&mut core, &mut reference, now, round, &answer)
                }
                Event::Hint => {
                    core.hint(now);
                    Orders::default()
                }
                Event::Finish => {
                    let orders = core.finish(now, LossReason::Released);
                    reference.over = true;
                    orders
                }
            };
            undone += u32::from(orders.undo);
            reference.over |= now >= reference.deadline();

            let core_over = matches!(core.phase(), Phase::Over { .. });
            prop_assert_eq!(core_over, reference.over, "invariants 2 and 3");
            if core_over {
                prop_assert_eq!((core.valid_until(), core.next_tick()), (Time::ZERO, None));
                prop_assert!(!(was_over && (orders.renew || orders.undo || orders.news)), "invariant 5: {:?}", orders);
                prop_assert!(undone <= 1, "invariant 6");
            } else {
                prop_assert_eq!(core.valid_until(), reference.deadline(), "invariants 1 and 4");
                let next = core.next_tick().unwrap();
                prop_assert!(next <= reference.deadline(), "invariant 7: {:?}", next);
            }
        }
    }

    #[test]
    fn a_driver_that_obeys_never_loops_hot(ttl_ms in 100_u64..60_000, rtt_ms in 0_u64..400, seed: u64) {
        let ttl = Duration::from_millis(ttl_ms);
        let mut tally = Tally::new(1);
        tally.confirm(0, at(1_000));
        let config = LeaseConfig { ttl, max_hold: None, patience: Duration::from_secs(1), stall_after: None };
        let mut core = HeldLease::new(config, tally, Jitter::from_seed(seed));
        let mut in_flight = std::collections::VecDeque::new();
        let (mut rounds, mut looks) = (0_u64, 0_u64);
        let (mut now, until) = (at(1_000), at(1_000) + ttl * 10);
        while now < until {
            let Some(look) = core.next_tick() else { break };
            let reply = in_flight.front().map(|&sent: &Time| sent + Duration::from_millis(rtt_ms));
            if let Some(reply) = reply.filter(|&reply| reply <= look) {
                now = now.max(reply);
                let sent = in_flight.pop_front().unwrap();
                let _ = core.answer(now, 0, sent, RenewalAnswer::Confirmed);
                continue;
            }
            now = now.max(look);
            looks += 1;
            if core.tick(now).renew {
                rounds += 1;
                in_flight.push_back(now);
            }
            // A lease is renewed once in a third of its TTL, at most a tenth of a third early. While the link is slower
            // than a patience (a sixth), it is renewed once each patience.
            prop_assert!(looks <= 10 * 6 * 2 && rounds <= 10 * 6 * 2, "{looks} looks, {rounds} rounds in ten TTLs");
        }
    }
}

fn answer_both(
    core: &mut HeldLease,
    reference: &mut Reference,
    now: Time,
    round: Time,
    answer: &RenewalAnswer,
) -> Orders {
    let orders = core.answer(now, 0, round, answer.clone());
    if !reference.over && now < reference.deadline() {
        match answer {
            RenewalAnswer::Confirmed => reference.confirmed.push(round),
            RenewalAnswer::Denied(_) => reference.over = true,
            RenewalAnswer::Unclear | RenewalAnswer::Refused => {}
        }
    }
    orders
}
