use super::*;
use proptest::prelude::*;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

#[test]
fn one_node_is_its_own_majority() {
    let mut tally = Tally::new(1);
    assert_eq!(tally.confirmed(), Time::ZERO);
    tally.confirm(0, at(5));
    assert_eq!((tally.confirmed(), tally.denied()), (at(5), None));
    tally.deny(0, at(6), Denial::Gone);
    assert_eq!(tally.denied(), Some(&Denial::Gone));
}

#[test]
fn two_of_three_decide() {
    let mut tally = Tally::new(3);
    tally.confirm(0, at(9));
    assert_eq!(tally.confirmed(), Time::ZERO);
    tally.confirm(1, at(7));
    assert_eq!(tally.confirmed(), at(7));
    tally.deny(0, at(10), Denial::Gone);
    assert_eq!(tally.denied(), None);
    tally.deny(2, at(10), Denial::Taken);
    assert_eq!(tally.denied(), Some(&Denial::Taken));
}

#[test]
fn an_older_confirmation_takes_nothing_back() {
    let mut tally = Tally::new(1);
    tally.confirm(0, at(9));
    tally.deny(0, at(9), Denial::Gone);
    tally.confirm(0, at(3));
    assert_eq!((tally.confirmed(), tally.denied()), (at(9), Some(&Denial::Gone)));
}

#[test]
fn a_denial_of_an_old_request_counts_all_the_same() {
    let mut tally = Tally::new(1);
    tally.confirm(0, at(9));
    tally.deny(0, at(3), Denial::Gone);
    assert_eq!(tally.denied(), Some(&Denial::Gone));
}

#[test]
fn a_node_that_is_not_there_has_no_vote() {
    let mut tally = Tally::new(1);
    tally.confirm(1, at(9));
    tally.deny(1, at(9), Denial::Taken);
    assert_eq!((tally.confirmed(), tally.denied()), (Time::ZERO, None));
}

#[test]
fn a_lost_key_is_healed_once_a_majority_has_confirmed_that_round() {
    let mut tally = Tally::new(3);
    for node in 0..3 {
        tally.confirm(node, at(1));
    }
    tally.deny(2, at(5), Denial::Gone);
    tally.confirm(0, at(5));
    assert_eq!(tally.repairs(), Nodes::NONE, "one of three has confirmed");
    tally.confirm(1, at(5));
    assert_eq!(tally.repairs(), [2].into_iter().collect());
    assert_eq!(tally.repairs(), Nodes::NONE, "once for each denial");
    tally.confirm(2, at(6));
    tally.deny(2, at(5), Denial::Gone);
    assert_eq!(tally.repairs(), Nodes::NONE, "a late answer from before the repair");
    tally.deny(2, at(7), Denial::Gone);
    tally.confirm(0, at(7));
    tally.confirm(1, at(7));
    assert_eq!(tally.repairs(), [2].into_iter().collect(), "it has lost it again");
}

#[test]
fn a_taken_key_is_left_alone() {
    let mut tally = Tally::new(3);
    tally.deny(2, at(5), Denial::Taken);
    tally.confirm(0, at(5));
    tally.confirm(1, at(5));
    assert_eq!(tally.repairs(), Nodes::NONE);
}

#[test]
fn a_round_is_hopeless_when_no_majority_is_left_for_it() {
    let mut tally = Tally::new(5);
    tally.note_unclear(0, at(5));
    tally.deny(1, at(4), Denial::Gone);
    assert!(!tally.is_hopeless(at(5)), "three have not answered");
    tally.confirm(2, at(5));
    tally.note_unclear(3, at(4));
    assert!(!tally.is_hopeless(at(5)), "that was another round");
    tally.note_unclear(3, at(6));
    assert!(tally.is_hopeless(at(5)));
    tally.confirm(0, at(5));
    assert!(!tally.is_hopeless(at(5)), "it came after all");
}

#[test]
fn a_round_that_a_majority_has_confirmed_is_not_hopeless_whatever_the_others_say() {
    for nodes in 1..=9 {
        let mut tally = Tally::new(nodes);
        (0..majority(nodes)).for_each(|node| tally.confirm(node, at(5)));
        for node in 0..nodes {
            tally.note_unclear(node, at(9));
            tally.deny(node, at(9), Denial::Gone);
        }
        assert!(!tally.is_hopeless(at(5)) && !tally.is_hopeless(at(3)) && tally.is_hopeless(at(6)), "{nodes}");
    }
}

#[test]
fn a_denial_stands_until_something_later_is_confirmed() {
    let mut tally = Tally::new(1);
    tally.deny(0, at(5), Denial::Gone);
    tally.confirm(0, at(5));
    assert_eq!(tally.denied(), Some(&Denial::Gone));
    tally.confirm(0, at(7));
    assert_eq!(tally.denied(), None);
}

#[test]
fn a_node_may_have_what_it_was_sent() {
    let mut tally = Tally::new(4);
    tally.confirm(0, at(1));
    tally.suspect(1);
    tally.note_unclear(2, at(1));
    tally.deny(3, at(1), Denial::Gone);
    assert_eq!(tally.may_hold(), [0, 1].into_iter().collect());
}

#[test]
fn who_has_confirmed_less_than_the_last_round_is_silent() {
    let mut tally = Tally::new(3);
    (0..3).for_each(|node| tally.confirm(node, at(4 + u64::try_from(node).unwrap())));
    assert_eq!(tally.silent_since(at(5)), [0].into_iter().collect());
}

#[test]
fn sets_of_nodes() {
    let mut some = Nodes::all(3);
    some.insert(8);
    some.insert(99);
    assert_eq!(some.iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
    assert!(!some.is_empty() && Nodes::NONE.is_empty());
}

#[test]
fn only_what_is_needed_counts() {
    let needs = WakeCondition { count: 2, of: [0, 1, 4].into_iter().collect() };
    let changed = |nodes: &[usize]| needs.are_met_by(nodes.iter().copied().collect());
    assert!(changed(&[0, 4]) && changed(&[0, 1, 2, 4]));
    assert!(!changed(&[4, 2, 3]) && !changed(&[]));
    assert!(WakeCondition::ANY.are_met_by(Nodes::all(1)) && !WakeCondition::ANY.are_met_by(Nodes::NONE));
    assert!(!WakeCondition::NEVER.are_met_by(Nodes::all(9)));
}

proptest! {
    #[test]
    fn the_deadline_counts_from_the_majority_th_largest(
        nodes in 1_usize..=9,
        answers in prop::collection::vec((0_usize..9, 1_u64..100), 0..40),
    ) {
        let mut tally = Tally::new(nodes);
        let mut sends = vec![0; nodes];
        for (node, sent) in answers {
            tally.confirm(node, at(sent));
            if let Some(newest) = sends.get_mut(node) {
                *newest = sent.max(*newest);
            }
        }
        sends.sort_unstable_by(|a, b| b.cmp(a));
        prop_assert_eq!(tally.confirmed(), at(sends[nodes / 2]));
    }
}
