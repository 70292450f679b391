//! The searches: with rule 11 no order of events breaks the promise; without any one part of the rule, some order does.

use super::*;
use crate::{
    model::{
        routed::{AUTHORITY, BOTH_BELIEVE, BRIEFLY, ONE_HOLDER, Setup},
        search::{Search, breaks, searches},
        state::Clock,
    },
    seeded::SeededBug,
};

/// Both clocks gain on the clients' as much as they may. The replica's is ahead by less than the drift allows for.
const CLOCKS: [Clock; 2] = [
    Clock { offset: 1_000_000_100_000_000_000, rate: 1_010 },
    Clock { offset: 1_000_000_100_001_000_000, rate: 1_010 },
];

fn world(name: &'static str) -> Setup<Failover> {
    Setup::new(name, Failover::default(), CLOCKS)
}

/// The worlds that every test run searches.
fn quick() -> Vec<Setup<Failover>> {
    vec![
        world("nothing is late, short").for_millis(700),
        world("a message is late, short").late(1, 0).for_millis(100),
        world("a view is late, short").late(0, 1).for_millis(100),
        world("one client, nothing is late").attempts(1, 0).for_millis(2_000),
    ]
}

/// The worlds that only the deep search adds.
fn deep() -> Vec<Setup<Failover>> {
    vec![
        world("nothing is late"),
        world("a message is late").late(1, 0).for_millis(400),
        world("a view is late").late(0, 1),
        world("nothing is late, retries, short").attempts(2, 2).for_millis(400),
    ]
}

searches! {
    fn a_failover_breaks_no_promise("nothing is late, short");
    fn a_failover_and_a_late_message_break_no_promise("a message is late, short");
    fn a_failover_and_a_late_view_break_no_promise("a view is late, short");
    fn a_replaced_primary_is_believed_for_a_second_at_most("one client, nothing is late");
}

#[test]
fn answers_of_a_replaced_primary_that_count_give_two_holders() {
    let setup = world("").with(SeededBug::ReplacedCounts).for_millis(100);
    breaks(&setup, ONE_HOLDER);
    breaks(&setup, AUTHORITY);
}

#[test]
fn a_topology_that_goes_back_gives_two_holders() {
    breaks(&world("").late(0, 1).with(SeededBug::TopologyGoesBack).for_millis(100), ONE_HOLDER);
}

#[test]
fn without_questions_a_replaced_primary_is_believed_for_long() {
    breaks(&world("").with(SeededBug::NotCrossChecked), BRIEFLY);
}

/// A write that was not replicated may be lost, whatever clients do. Rule 11 is about what they hear after that.
#[test]
fn a_lost_write_gives_two_holders_until_the_first_is_told() {
    let search = Search::of(&world("two believers").for_millis(100), &[BOTH_BELIEVE]);
    assert!(search.path(BOTH_BELIEVE).is_some() && search.path(ONE_HOLDER).is_none());
}
