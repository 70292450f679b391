//! The searches: within the assumptions no rule is broken; outside of each of them, one is.

use super::{
    search::{Search, breaks, searches},
    worlds::{NO_FAULTS, deep, one, quick, three},
    *,
};
use crate::seeded::SeededBug;

searches! {
    fn one_node_without_faults("one node, no faults");
    fn one_node_that_is_asked_early("one node, an early renewal");
    fn one_node_and_a_late_message("one node, a late message");
    fn one_node_and_a_pause("one node, a pause");
    fn one_node_and_a_late_message_and_a_cut("one node, a late message, a cut");
    fn one_node_and_a_death("one node, a death and a request twice");
    fn one_node_that_forgets("one node, amnesia");
    fn one_node_that_remembers("one node, a restart with its data, its clock set back");
    fn one_node_and_a_hand_over_with_a_late_message("one node, a hand-over, a late message");
    fn one_node_and_a_hand_over_with_a_pause_and_a_death("one node, a hand-over, a pause, a death");
    fn one_node_and_work_that_stalls("one node, work that stalls, short");
    fn three_nodes_and_a_hand_over("three nodes, a hand-over");
    fn three_nodes_without_faults("three nodes, no faults");
    fn three_nodes_that_are_offered_a_fence("three nodes, fences proposed");
    fn three_nodes_one_of_which_is_new("three nodes, one of them new");
    fn three_nodes_and_a_cut("three nodes, a cut");
    fn three_nodes_and_a_death("three nodes, a death");
    fn three_nodes_and_a_late_message("three nodes, a late message, short");
    fn three_nodes_one_of_which_forgets("three nodes, amnesia");
}

#[test]
fn an_adoption_that_does_not_compare_gives_two_holders() {
    let setup = one("an unchecked adoption", NO_FAULTS).handing_over().attempts(2, 2);
    breaks(&setup.with(SeededBug::AdoptionUnchecked), ONE_HOLDER);
}

#[test]
fn a_giver_that_goes_on_believing_gives_two_holders() {
    breaks(&one("a giver that believes", NO_FAULTS).handing_over().with(SeededBug::GiverBelieves), ONE_HOLDER);
}

#[test]
fn an_heir_with_the_fence_of_its_giver_has_no_larger_one() {
    let setup = one("an heir with an old fence", NO_FAULTS).handing_over().with(SeededBug::HeirKeepsFence);
    breaks(&setup, LATER_IS_LARGER);
}

#[test]
fn progress_that_a_timer_reports_renews_what_has_stalled() {
    let setup = one("a timer reports", NO_FAULTS).stalling(0).for_millis(1_400);
    breaks(&setup.with(SeededBug::TimerReports), NOT_RENEWED);
}

#[test]
fn a_check_that_shortens_what_a_late_renewal_extends_gives_two_holders() {
    let late = Faults { late: 1, ..NO_FAULTS };
    let setup = one("a check that shortens", late).stalling(0).for_millis(1_900);
    breaks(&setup.with(SeededBug::CheckShortens), ONE_HOLDER);
}

#[test]
fn a_clock_faster_than_a_ttl_allows_for_gives_two_holders() {
    let paused = Faults { pauses: 1, ..NO_FAULTS };
    breaks(&one("a clock that gains 2 %", paused).rate(1_020), ONE_HOLDER);
}

#[test]
fn nothing_off_for_drift_gives_two_holders() {
    let paused = Faults { pauses: 1, ..NO_FAULTS };
    breaks(&one("nothing off for drift", paused).with(SeededBug::NoDrift), ONE_HOLDER);
}

#[test]
fn a_deadline_from_the_reply_gives_two_holders() {
    let faults = Faults { late: 1, pauses: 1, ..NO_FAULTS };
    breaks(
        &Setup { grid: TTL / 4, ..one("a deadline from the reply", faults).with(SeededBug::DeadlineFromReply) },
        ONE_HOLDER,
    );
}

#[test]
fn a_step_of_a_servers_clock_gives_two_holders() {
    let faults = Faults { steps: 1, ..NO_FAULTS };
    breaks(&Setup { step: 2_000_000, ..one("a step forward", faults) }, ONE_HOLDER);
    let faults = Faults { late: 1, ..faults };
    breaks(&Setup { step: 2_000_000, ..three("a step forward of one of three", faults).for_millis(100) }, ONE_HOLDER);
}

#[test]
fn a_node_that_forgot_and_votes_gives_two_holders() {
    breaks(&one("one node that forgot", Faults { amnesias: 1, ..NO_FAULTS }), ONE_HOLDER);
    breaks(
        &three("a node of three that forgot", Faults { amnesias: 1, late: 1, ..NO_FAULTS }).for_millis(100),
        ONE_HOLDER,
    );
}

#[test]
fn a_restart_delay_without_the_second_more_gives_two_holders() {
    let faults = Faults { amnesias: 1, pauses: 1, ..NO_FAULTS };
    breaks(&Setup { restart_delay: TTL, ..one("a second too short", faults) }, ONE_HOLDER);
}

#[test]
fn without_the_second_phase_fences_fall() {
    let faults = Faults { late: 1, ..NO_FAULTS };
    let setup = three("no second phase", faults).with(SeededBug::NoSecondPhase).for_millis(100);
    breaks(&setup, LATER_IS_LARGER);
    breaks(&setup, FENCES_GROW);
}

#[test]
fn a_clock_set_back_on_a_server_that_forgot_makes_fences_fall() {
    let faults = Faults { amnesias: 1, steps: 1, ..NO_FAULTS };
    breaks(&Setup { step: -5_000_000, ..one("forgot, and went back", faults) }, FENCES_GROW);
}

#[test]
fn a_late_grant_that_is_not_undone_stays() {
    breaks(&three("a late grant stays", NO_FAULTS).with(SeededBug::LateGrantStays), NOTHING_STAYS);
}

#[test]
fn a_release_without_the_compare_gives_two_holders() {
    let setup = one("a release of whatever is there", Faults { pauses: 1, ..NO_FAULTS }).attempts(2, 1);
    breaks(&setup.with(SeededBug::ReleaseUnchecked).for_millis(2_000), ONE_HOLDER);
}

#[test]
fn a_raise_that_does_not_rewrite_the_value_shows_another_fence() {
    breaks(&three("a raise leaves the value", NO_FAULTS).with(SeededBug::RaiseLeavesValue).for_millis(100), SHOWN);
}

#[test]
fn an_undo_that_compares_the_whole_value_leaves_a_key() {
    breaks(&three("a whole value compared", NO_FAULTS).with(SeededBug::WholeValueCompared), NOTHING_STAYS);
}

#[test]
fn a_replay_that_draws_anew_shows_another_fence() {
    let faults = Faults { doubled: 1, pauses: 1, ..NO_FAULTS };
    breaks(&one("a replay draws anew", faults).with(SeededBug::ReplayDrawsAnew), SHOWN);
}

/// This holds whatever the clocks do, so whichever client holds the lock meanwhile. It is enough for the resource.
#[test]
fn who_begins_later_has_the_larger_fence_whatever_the_clocks_do() {
    let faults = Faults { pauses: 1, ..NO_FAULTS };
    let setup = one("a clock that gains a half", faults).rate(1_500);
    let search = Search::of(&setup, &[LATER_IS_LARGER]);
    assert!(search.path(ONE_HOLDER).is_some() && search.path(LATER_IS_LARGER).is_none());
}
