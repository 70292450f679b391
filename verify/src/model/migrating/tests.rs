//! The searches: while a slot is moved no order of events breaks the promise; without a step of an acquire, one does.

use super::*;
use crate::{
    model::{
        routed::{FENCES_GROW, ONE_HOLDER, SHOWN, Setup},
        search::{breaks, searches},
        state::Clock,
    },
    seeded::SeededBug,
};

/// The source's clock gains on the clients' as much as it may. The target's loses as much, and is behind.
const CLOCKS: [Clock; 2] =
    [Clock { offset: 1_000_000_100_000_000_000, rate: 1_010 }, Clock { offset: 1_000_000_000_000_000_000, rate: 990 }];

const MOVING: Move = Move { stage: Stage::Before, may_end: false, may_be_given_up: false };
const WHOLE: Move = Move { may_end: true, ..MOVING };
const GIVEN_UP: Move = Move { may_be_given_up: true, ..MOVING };

fn world(name: &'static str, handover: Move) -> Setup<Move> {
    Setup::new(name, handover, CLOCKS)
}

/// The worlds that every test run searches.
fn quick() -> Vec<Setup<Move>> {
    vec![
        world("a slot on its way", MOVING).for_millis(700),
        world("a slot on its way, a message is late, short", MOVING).late(1, 0).for_millis(100),
        world("from the first key to the last, short", WHOLE).for_millis(700),
        world("given up, short", GIVEN_UP).for_millis(700),
    ]
}

/// The worlds that only the deep search adds.
fn deep() -> Vec<Setup<Move>> {
    vec![
        world("a slot on its way, a message is late", MOVING).late(1, 0),
        world("a slot on its way, retries", MOVING).attempts(2, 2),
        world("from the first key to the last", WHOLE),
        world("from the first key to the last, a message is late, short", WHOLE).late(1, 0).for_millis(400),
        world("given up", GIVEN_UP),
        world("given up, a message is late, short", GIVEN_UP).late(1, 0).for_millis(400),
    ]
}

searches! {
    fn a_slot_on_its_way_breaks_no_promise("a slot on its way");
    fn a_slot_on_its_way_and_a_late_message_break_no_promise("a slot on its way, a message is late, short");
    fn a_whole_move_breaks_no_promise("from the first key to the last, short");
    fn a_move_that_is_given_up_breaks_no_promise("given up, short");
}

#[test]
fn an_acquire_without_its_third_step_gives_two_holders() {
    let setup = world("", GIVEN_UP).with(SeededBug::StepUnconfirmed).for_millis(100);
    breaks(&setup, ONE_HOLDER);
    breaks(&setup, SHOWN);
}

#[test]
fn a_floor_before_the_take_makes_fences_fall() {
    breaks(&world("", MOVING).with(SeededBug::FloorBeforeTake).for_millis(100), FENCES_GROW);
}
