//! The searches: with rules 15, 16 and 17 no order of events breaks the promise; without a part of them, one does.

use super::*;
use crate::model::{
    search::{breaks, searches},
    worlds::NO_FAULTS,
};

const READER: Part = Part { limit: u32::MAX, permits: 1, attempts: 1, downgrades: false };
const WRITER: Part = Part { limit: 0, ..READER };
const ONE_OF_TWO: Part = Part { limit: 2, ..READER };
const TWO_OF_TWO: Part = Part { limit: 1, permits: 2, ..READER };
const GOING_ON: Part = Part { downgrades: true, ..WRITER };

const LATE: Faults = Faults { late: 1, ..NO_FAULTS };
const TWO_LATE: Faults = Faults { late: 2, ..NO_FAULTS };
const TWICE: Faults = Faults { doubled: 1, ..NO_FAULTS };
const DEATH: Faults = Faults { deaths: 1, ..NO_FAULTS };
const PAUSE: Faults = Faults { pauses: 1, ..NO_FAULTS };
const AMNESIA: Faults = Faults { amnesias: 1, ..NO_FAULTS };
const SET_BACK: Faults = Faults { steps: 1, ..NO_FAULTS };

fn readers(name: &'static str) -> Setup {
    Setup::new(name, &[READER, READER, WRITER])
}

fn permits(name: &'static str) -> Setup {
    Setup::new(name, &[ONE_OF_TWO; 3])
}

fn two_at_once(name: &'static str) -> Setup {
    Setup::new(name, &[ONE_OF_TWO, TWO_OF_TWO, ONE_OF_TWO])
}

fn limits(name: &'static str) -> Setup {
    Setup::new(name, &[Part { limit: 1, ..READER }, ONE_OF_TWO, READER])
}

fn beside_a_writer(name: &'static str) -> Setup {
    Setup::new(name, &[GOING_ON, READER, WRITER])
}

fn downgrade(name: &'static str) -> Setup {
    Setup::new(name, &[GOING_ON, READER])
}

/// The worlds that every test run searches.
fn quick() -> Vec<Setup> {
    vec![
        readers("two readers and a writer"),
        readers("two readers and a writer, a late message, short").faults(LATE).for_millis(400),
        readers("two readers and a writer, a request twice, short").faults(TWICE).for_millis(700),
        readers("two readers and a writer, a death").faults(DEATH),
        readers("two readers and a writer, a pause, short").faults(PAUSE).for_millis(700),
        readers("two readers and a writer, one gives up").cancels(1),
        readers("two readers and a writer, a clock set back").faults(SET_BACK),
        Setup { hears: false, ..readers("two readers and a writer, nobody is called") }.for_millis(700),
        Setup::new("two readers, a late message, a death", &[READER; 2]).faults(Faults { deaths: 1, ..LATE }),
        permits("two permits for three"),
        permits("two permits for three, a late message, short").faults(LATE).for_millis(400),
        permits("two permits for three, a death, one gives up").faults(DEATH).cancels(1),
        permits("two permits for three, amnesia").faults(AMNESIA).delayed().for_millis(2_500),
        Setup::new("two permits for four, one gives up, short", &[ONE_OF_TWO; 4]).cancels(1).for_millis(400),
        two_at_once("one that takes two permits beside two that take one, a death, short")
            .faults(DEATH)
            .for_millis(700),
        limits("limits of one, two and many, a death, short").faults(DEATH).for_millis(700),
        downgrade("a writer goes on as a reader"),
        downgrade("a writer goes on as a reader, a late message, short").faults(LATE).for_millis(700),
        downgrade("a writer goes on as a reader, a request twice").faults(TWICE),
        downgrade("a writer goes on as a reader, a pause").faults(PAUSE),
        downgrade("a writer goes on as a reader, amnesia").faults(AMNESIA).delayed().for_millis(2_500),
    ]
}

/// The worlds that only the deep search adds.
fn deep() -> Vec<Setup> {
    let again = [Part { attempts: 2, ..READER }, Part { attempts: 2, ..WRITER }];
    vec![
        readers("two readers and a writer, a late message").faults(LATE),
        readers("two readers and a writer, a pause").faults(PAUSE),
        readers("two readers and a writer, a restart with its data, its clock set back")
            .faults(Faults { restarts: 1, ..SET_BACK }),
        readers("two readers and a writer, amnesia").faults(AMNESIA).delayed().for_millis(2_500),
        Setup::new("a reader and a writer, retries, a late message, short", &again).faults(LATE).for_millis(700),
        permits("two permits for three, a late message").faults(LATE),
        permits("two permits for three, a pause").faults(PAUSE),
        permits("two permits for three, a death, a clock set back").faults(Faults { deaths: 1, ..SET_BACK }),
        limits("limits of one, two and many, a late message, short").faults(LATE).for_millis(700),
        limits("limits of one, two and many, a death, a clock set back").faults(Faults { deaths: 1, ..SET_BACK }),
        downgrade("a writer goes on as a reader, two late messages, short").faults(TWO_LATE).for_millis(700),
        downgrade("a writer goes on as a reader, a late message, a death").faults(Faults { deaths: 1, ..LATE }),
        downgrade("a writer goes on as a reader, a late message, a clock set back").faults(Faults { steps: 1, ..LATE }),
        downgrade("a writer goes on as a reader, a request twice, amnesia")
            .faults(Faults { doubled: 1, ..AMNESIA })
            .delayed()
            .for_millis(2_500),
        beside_a_writer("a writer goes on as a reader, beside another writer"),
        beside_a_writer("a writer goes on as a reader, beside another writer, a late message, short")
            .faults(LATE)
            .for_millis(700),
        beside_a_writer("a writer goes on as a reader, beside another writer, a request twice, one gives up, short")
            .faults(TWICE)
            .cancels(1)
            .for_millis(700),
    ]
}

searches! {
    fn readers_and_a_writer_keep_the_rules("two readers and a writer");
    fn a_late_message_breaks_no_rule(
        "two readers and a writer, a late message, short",
        "two permits for three, a late message, short",
    );
    fn a_renewal_that_is_late_brings_nobody_back("two readers, a late message, a death");
    fn a_request_that_comes_twice_breaks_no_rule("two readers and a writer, a request twice, short");
    fn whoever_dies_is_no_longer_in_the_way("two readers and a writer, a death");
    fn one_that_stands_still_breaks_no_rule("two readers and a writer, a pause, short");
    fn one_that_gives_up_lets_others_in("two readers and a writer, one gives up");
    fn a_clock_that_is_set_back_brings_nobody_back("two readers and a writer, a clock set back");
    fn waiters_that_nobody_calls_come_in("two readers and a writer, nobody is called");
    fn permits_keep_the_rules(
        "two permits for three",
        "two permits for three, a death, one gives up",
        "two permits for four, one gives up, short",
        "one that takes two permits beside two that take one, a death, short",
    );
    fn a_server_that_forgot_permits_lets_nobody_in_too_soon("two permits for three, amnesia");
    fn each_limit_is_that_of_the_one_who_asks("limits of one, two and many, a death, short");
    fn a_writer_goes_on_as_a_reader("a writer goes on as a reader");
    fn a_late_downgrade_breaks_no_rule("a writer goes on as a reader, a late message, short");
    fn a_downgrade_that_comes_twice_breaks_no_rule("a writer goes on as a reader, a request twice");
    fn a_pause_beside_a_downgrade_breaks_no_rule("a writer goes on as a reader, a pause");
    fn a_server_that_forgot_a_downgrade_lets_nobody_in_too_soon("a writer goes on as a reader, amnesia");
}

#[test]
fn nothing_off_for_drift_lets_a_writer_in_beside_a_reader() {
    breaks(&readers("").faults(PAUSE).with(SeededBug::NoDrift), AS_MANY_AS_MAY);
}

#[test]
fn a_clock_faster_than_a_ttl_allows_for_lets_a_writer_in_beside_a_reader() {
    let mut setup = readers("a clock that gains 2 %").faults(PAUSE);
    setup.server.rate = 1_020;
    breaks(&setup, AS_MANY_AS_MAY);
}

#[test]
fn a_server_that_forgot_and_does_not_wait_lets_in_too_many() {
    breaks(&readers("readers forgotten").faults(AMNESIA), AS_MANY_AS_MAY);
    breaks(&permits("permits forgotten").faults(AMNESIA), AS_MANY_AS_MAY);
    breaks(&downgrade("a downgrade forgotten").faults(AMNESIA), AS_MANY_AS_MAY);
}

#[test]
fn a_clock_that_steps_forward_lets_a_writer_in_beside_a_reader() {
    let setup = readers("a step forward").faults(SET_BACK);
    breaks(&Setup { step: 2_000_000, ..setup }, AS_MANY_AS_MAY);
}

#[test]
fn a_phase_that_begins_with_earlier_sharers_breaks_rule_15() {
    breaks(&permits("").faults(DEATH).with(SeededBug::PhaseKeepsPlaces), NO_EARLIER);
}

#[test]
fn a_renewal_that_brings_back_breaks_rule_15() {
    breaks(&permits("").faults(LATE).with(SeededBug::RenewalBringsBack).for_millis(700), NONE_BACK);
}

#[test]
fn a_key_that_ends_before_a_sharer_breaks_rule_15_and_lets_a_writer_in() {
    let setup = readers("").with(SeededBug::KeyEndsEarly);
    breaks(&setup, KEY_OUTLIVES);
    breaks(&setup, AS_MANY_AS_MAY);
}

#[test]
fn a_limit_that_is_not_looked_at_breaks_rule_16_and_lets_in_too_many() {
    let setup = permits("").with(SeededBug::LimitUnchecked);
    breaks(&setup, WITHIN_LIMIT);
    breaks(&setup, AS_MANY_AS_MAY);
}

#[test]
fn a_newcomer_that_overtakes_breaks_rule_16() {
    breaks(&readers("").with(SeededBug::NewcomerOvertakes), NOT_PASSED);
}

#[test]
fn a_downgrade_that_keeps_its_fence_breaks_rule_17() {
    let setup = downgrade("").with(SeededBug::DowngradeKeepsFence);
    breaks(&setup, LARGER);
    breaks(&setup, FENCES_GROW);
    breaks(&setup, ONE_FENCE);
}
