//! The searches: with enough replicas no order of events breaks the promise; with fewer, or without any one part of
//! rule 12, some order does.

use super::*;
use crate::{
    model::search::{breaks, searches},
    seeded::SeededBug,
};

/// One replica, which has to confirm.
fn one_of_one(name: &'static str) -> Setup {
    Setup::new(name, 1, 1, Heir::Any, Old::GoesOn)
}

/// One of two has to confirm, and the foremost takes over from a primary that is dead.
fn one_of_two(name: &'static str) -> Setup {
    Setup::new(name, 1, 2, Heir::Foremost, Old::Dies)
}

/// Both have to confirm, and any takes over.
fn two_of_two(name: &'static str) -> Setup {
    Setup::new(name, 2, 2, Heir::Any, Old::Lingers)
}

/// The worlds that every test run searches.
fn quick() -> Vec<Setup> {
    vec![
        one_of_one("one of one, short").for_millis(100),
        one_of_one("one of one, clocks behind, short").behind().for_millis(100),
        one_of_one("one connection, a link breaks, short").shared().breaks(1).for_millis(40),
        one_of_one("one connection, others write, short").shared().others(1).for_millis(40),
        one_of_two("one of two, short").for_millis(40),
        two_of_two("two of two, short").for_millis(40),
    ]
}

/// The worlds that only the deep search adds.
fn deep() -> Vec<Setup> {
    vec![
        one_of_one("one of one, a link breaks, short").breaks(1).for_millis(40),
        one_of_one("one connection, a link breaks, others write, short").shared().breaks(1).others(1).for_millis(40),
        one_of_one("one of one, others write, short").others(1).for_millis(40),
        one_of_one("one connection, retries, short").shared().attempts(2, 2).for_millis(40),
        one_of_one("one of one").for_millis(700),
    ]
}

searches! {
    fn a_replica_that_has_confirmed_takes_over_and_no_promise_is_broken("one of one, short");
    fn fences_grow_though_the_clock_of_the_replica_is_behind("one of one, clocks behind, short");
    fn a_link_that_breaks_breaks_no_promise("one connection, a link breaks, short");
    fn what_others_write_breaks_no_promise("one connection, others write, short");
    fn the_foremost_of_two_takes_over_and_no_promise_is_broken("one of two, short");
    fn any_of_two_that_have_confirmed_takes_over_and_no_promise_is_broken("two of two, short");
}

#[test]
fn without_replicas_a_failover_gives_two_holders() {
    let setup = Setup { wanted: 0, ..one_of_one("no replica has to confirm") }.for_millis(100);
    breaks(&setup, ONE_HOLDER);
    breaks(&setup.behind(), FENCES_GROW);
}

/// One of two is not enough where the one that lacks it may take over, or the old primary keeps one on its side.
#[test]
fn one_replica_of_two_is_too_few_if_any_takes_over_or_the_old_primary_keeps_one() {
    let any = Setup::new("one of two, any takes over", 1, 2, Heir::Any, Old::Dies);
    breaks(&any.for_millis(40), ONE_HOLDER);
    let keeps = Setup::new("one of two, the old primary keeps one", 1, 2, Heir::Foremost, Old::Lingers);
    breaks(&keeps.for_millis(40), ONE_HOLDER);
}

#[test]
fn a_wait_that_confirms_what_was_answered_after_it_was_sent_gives_two_holders() {
    breaks(&one_of_one("").others(1).with(SeededBug::WaitConfirmsLater).for_millis(40), ONE_HOLDER);
}

#[test]
fn a_wait_on_another_link_gives_two_holders() {
    breaks(&one_of_one("").breaks(1).with(SeededBug::WaitOnAnotherLink).for_millis(40), ONE_HOLDER);
}

#[test]
fn a_replayed_acquire_that_writes_nothing_gives_two_holders() {
    breaks(&one_of_one("").breaks(1).with(SeededBug::ReplayWritesNothing).for_millis(40), ONE_HOLDER);
}

#[test]
fn a_renewal_that_counts_without_replicas_gives_two_holders() {
    breaks(&one_of_one("").with(SeededBug::RenewalUnreplicated), ONE_HOLDER);
}
