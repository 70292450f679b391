use proptest::prelude::*;

use super::*;
use crate::holder::Holder;

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

fn meet(troubles: &mut TroubleLog, seconds: u64, causes: &[&str]) -> Option<u64> {
    troubles.meet(at(seconds), causes.iter().map(|&cause| cause.to_owned()))
}

#[test]
fn a_cause_is_told_at_once_and_then_once_a_period_with_its_count() {
    let mut troubles = TroubleLog::new();
    assert_eq!(meet(&mut troubles, 5, &["away"]), Some(1));
    let between: Vec<_> = (5..65).map(|second| meet(&mut troubles, second, &["away"])).collect();
    assert_eq!(between, [None; 60]);
    assert_eq!(meet(&mut troubles, 65, &["away"]), Some(61));
    assert_eq!(meet(&mut troubles, 124, &["away"]), None);
    assert_eq!(meet(&mut troubles, 125, &["away"]), Some(2));
}

#[test]
fn another_cause_is_told_at_once() {
    let mut troubles = TroubleLog::new();
    assert_eq!(meet(&mut troubles, 0, &["away"]), Some(1));
    assert_eq!(meet(&mut troubles, 1, &["full"]), Some(1));
    assert_eq!(meet(&mut troubles, 2, &["away"]), None);
    assert_eq!(meet(&mut troubles, 60, &["away"]), Some(2), "each by its own time");
    assert_eq!(meet(&mut troubles, 60, &["full"]), None);
}

#[test]
fn what_is_told_names_all_of_its_causes() {
    let mut troubles = TroubleLog::new();
    assert_eq!(meet(&mut troubles, 0, &["one", "two"]), Some(1));
    assert_eq!(meet(&mut troubles, 1, &["one"]), None);
    assert_eq!(meet(&mut troubles, 2, &["one", "three"]), Some(2), "the third is new");
    assert_eq!(meet(&mut troubles, 60, &["three"]), None);
    assert_eq!(meet(&mut troubles, 61, &["one", "three"]), None, "they were told at 2");
    assert_eq!(meet(&mut troubles, 62, &["one", "three"]), Some(3));
}

#[test]
fn an_end_is_told_once_and_only_of_what_was_told() {
    let mut troubles = TroubleLog::new();
    assert_eq!((troubles.end(), troubles.are_told()), (None, false));
    assert_eq!(meet(&mut troubles, 0, &["away"]), Some(1));
    assert_eq!(meet(&mut troubles, 1, &["away"]), None);
    assert!(troubles.are_told());
    assert_eq!((troubles.end(), troubles.end()), (Some(1), None));
    assert_eq!(meet(&mut troubles, 2, &["away"]), None, "it comes and goes");
    assert_eq!((troubles.end(), troubles.are_told()), (None, false));
    assert_eq!(meet(&mut troubles, 60, &["away"]), Some(2));
    assert_eq!(troubles.end(), Some(0));
}

#[test]
fn causes_without_a_place_are_counted_until_one_is_free() {
    let mut troubles = TroubleLog::new();
    for n in 0..MOST_CAUSES {
        assert_eq!(meet(&mut troubles, 0, &[&n.to_string()]), Some(1));
    }
    assert_eq!(meet(&mut troubles, 59, &["another"]), None);
    assert_eq!(meet(&mut troubles, 59, &["0"]), None);
    assert_eq!(meet(&mut troubles, 60, &["another"]), Some(3), "itself twice, and what its place had to tell");
    assert_eq!(meet(&mut troubles, 60, &["another"]), None);
}

#[test]
fn a_servers_silence_is_one_cause_however_it_shows_and_its_replies_are_others() {
    let unknown = |text: &str| causes(&Failure::unknown(text));
    let silence = unknown("redis at h:1 gave no answer within 300 ms");
    assert_eq!(silence, ["silent"]);
    assert_eq!(silence, causes(&Failure::unsent("there is no connection to redis at h:1: Connection refused")));
    assert_eq!(silence, causes_of_absence("cannot connect to redis at h:1: Connection refused", None));
    let full = "redis at h:1 said \"OOM command not allowed\": the server's maxmemory is reached";
    assert_eq!(unknown(full), ["OOM command not allowed"]);
    assert_eq!(causes(&Failure::unavailable(full)), unknown(full));
    assert_eq!(causes_of_absence(full, None), unknown(full));
    let moved = |slot: u16| causes(&Failure::unavailable(format!("redis said \"MOVED {slot} h:2\"")));
    assert_eq!(moved(3999), moved(12));
}

#[test]
fn durations_make_no_other_cause() {
    let recovering = |seconds| causes(&Failure::recovering("h:1", Duration::from_secs(seconds)));
    assert_eq!(recovering(7), recovering(29));
    assert_ne!(recovering(7), causes(&Failure::unavailable("the grant was confirmed late")));
    assert_eq!(lasting("within 2 min 5 s, or 1.25 s; s is a letter"), "within or s is a letter");
}

#[test]
fn over_a_quorum_the_causes_are_the_nodes_that_gave_no_vote() {
    let of = |answers: [NodeAnswer; 4]| {
        let answers = answers.into_iter().enumerate().map(|(at, answer)| (format!("h:{at}"), answer));
        causes(&Failure::of_nodes(answers))
    };
    let unreachable = |text: &str| NodeAnswer::Unreachable(text.to_owned());
    let recovering = |seconds| NodeAnswer::Recovering { remaining: Duration::from_secs(seconds) };
    let (held, full) = (NodeAnswer::HeldBy(Holder::default()), unreachable("redis at h:3 said \"OOM no\": raise it"));
    let expected = ["h:1 silent", "h:2 recovering", "h:3 OOM no"];
    assert_eq!(of([NodeAnswer::Granted, unreachable("no answer"), recovering(7), full.clone()]), expected);
    assert_eq!(of([held, unreachable("not asked"), recovering(6), full]), expected);
    let (granted, none) = (NodeAnswer::Granted, NodeAnswer::NotOurs);
    assert_eq!(of([granted.clone(), granted.clone(), granted, none]), ["no majority"]);
}

proptest! {
    #[test]
    fn no_history_tells_more_than_a_line_a_period_and_cause_nor_loses_a_count(
        steps in prop::collection::vec((0_u64..40, 0_usize..20, any::<bool>()), 1..300),
    ) {
        let (mut troubles, mut now, mut met, mut told) = (TroubleLog::new(), 0, 0, 0);
        let (mut lines, mut ends) = (Vec::new(), 0);
        for (pause, cause, ends_now) in steps {
            now += pause;
            if ends_now {
                let end = troubles.end();
                told += end.unwrap_or_default();
                ends += usize::from(end.is_some());
            }
            met += 1;
            if let Some(count) = meet(&mut troubles, now, &[&cause.to_string()]) {
                told += count;
                let recent = |&&(other, at): &&(usize, u64)| other == cause && now - at < 60;
                prop_assert!(lines.iter().find(recent).is_none(), "{cause} at {now}");
                lines.push((cause, now));
                prop_assert!(lines.iter().filter(|(_, at)| now - at < 60).count() <= MOST_CAUSES);
            }
        }
        prop_assert!(ends <= lines.len());
        let untold = troubles.causes.iter().map(|cause| cause.untold).sum::<u64>() + troubles.others;
        prop_assert_eq!(told + untold, met);
    }
}
