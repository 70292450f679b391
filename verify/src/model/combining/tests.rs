//! The searches: no order of events breaks a rule, and each seeded bug does.

use leasehold_protocol::time::Time;
use uuid::Uuid;

use super::{state::Faults, *};
use crate::model::search::{self, searches};

pub(super) const NO_FAULTS: Faults = Faults { drops: 0, cuts: 0, ends: 0, forgotten: 0, refused: 0, odd: 0, full: 0 };

pub(super) fn world(name: &'static str, flights: usize, wanted: &[usize], faults: Faults) -> Setup {
    let token = |number| Token::new(Uuid::from_u64_pair(0, number), &number.to_string());
    Setup {
        name,
        flights,
        batch: 2,
        wanted: wanted.to_vec(),
        faults,
        votes: false,
        is_torn: false,
        is_stalled: false,
        closes: Time::ZERO + 3 * PACE,
        bug: None,
        keys: ["job", "other"].map(|name| Key::new("", name).unwrap()).into(),
        tokens: (0..4).map(token).collect(),
    }
}

/// Asserts that this bug breaks this rule.
fn breaks(bug: SeededBug, setup: Setup, rule: &'static str) {
    search::breaks(&Setup { name: bug.name(), bug: Some(bug), ..setup }, rule);
}

impl Setup {
    fn for_millis(self, millis: u32) -> Self {
        Self { closes: Time::ZERO + PACE * millis, ..self }
    }
}

/// Two callers of one lock.
fn two(name: &'static str, faults: Faults) -> Setup {
    world(name, 1, &[0, 0], faults)
}

/// Two callers of one lock, about which other nodes decide too.
fn votes(name: &'static str, faults: Faults) -> Setup {
    Setup { votes: true, ..two(name, faults) }
}

/// Three callers of one lock.
fn three(name: &'static str, faults: Faults) -> Setup {
    world(name, 1, &[0, 0, 0], faults)
}

/// The worlds that every test run searches.
fn quick() -> Vec<Setup> {
    let drops = Faults { drops: 1, ..NO_FAULTS };
    vec![
        two("no faults", NO_FAULTS),
        two("a caller gives up", drops).for_millis(2),
        Setup { is_torn: true, ..two("a caller gives up, threads are slow", drops) }.for_millis(2),
        two("the script is forgotten", Faults { forgotten: 1, ..NO_FAULTS }),
        two("a call is refused", Faults { refused: 1, ..NO_FAULTS }).for_millis(2),
        two("a grant is answered with alone", Faults { odd: 1, ..NO_FAULTS }).for_millis(2),
        two("a cut", Faults { cuts: 1, ..NO_FAULTS }).for_millis(2),
        two("the runtime ends", Faults { ends: 1, ..NO_FAULTS }).for_millis(2),
        Setup { is_stalled: true, ..two("the runtime stands still", NO_FAULTS) },
        two("the connection takes nothing", Faults { full: 1, ..NO_FAULTS }).for_millis(2),
        world("two locks", 1, &[0, 1], NO_FAULTS).for_millis(2),
        world("two flights", 2, &[0, 0, 0], NO_FAULTS).for_millis(2),
        votes("votes", NO_FAULTS).for_millis(2),
        votes("votes, a caller gives up", drops).for_millis(2),
        votes("votes, the script is forgotten", Faults { forgotten: 1, ..NO_FAULTS }).for_millis(2),
        votes("votes, a call is refused", Faults { refused: 1, ..NO_FAULTS }).for_millis(2),
        votes("votes, a grant is answered with alone", Faults { odd: 1, ..NO_FAULTS }).for_millis(2),
        votes("votes, a cut", Faults { cuts: 1, ..NO_FAULTS }).for_millis(1),
        Setup { batch: 1, ..three("batches of one", NO_FAULTS) },
    ]
}

/// The worlds that only the deep search adds.
fn deep() -> Vec<Setup> {
    let drops = Faults { drops: 1, ..NO_FAULTS };
    vec![
        two("a caller gives up", drops),
        Setup { is_torn: true, ..two("a caller gives up, threads are slow", drops) },
        two("a cut", Faults { cuts: 1, ..NO_FAULTS }),
        two("the runtime ends", Faults { ends: 1, ..NO_FAULTS }),
        Setup { is_stalled: true, ..two("a caller gives up, the runtime stands still", drops) },
        votes("votes", NO_FAULTS),
        votes("votes, a cut", Faults { cuts: 1, ..NO_FAULTS }).for_millis(2),
        votes("votes, the runtime ends", Faults { ends: 1, ..NO_FAULTS }).for_millis(2),
        two("both give up", Faults { drops: 2, ..NO_FAULTS }),
        two("a caller gives up, the script is forgotten", Faults { forgotten: 1, ..drops }),
        two("a caller gives up, a call is refused", Faults { refused: 1, ..drops }),
        two("a caller gives up, a grant is answered with alone", Faults { odd: 1, ..drops }),
        two("a caller gives up, a cut", Faults { cuts: 1, ..drops }),
        two("a caller gives up, the runtime ends", Faults { ends: 1, ..drops }),
        two("the script is forgotten, a cut", Faults { forgotten: 1, cuts: 1, ..NO_FAULTS }),
        three("no faults", NO_FAULTS),
        three("a caller gives up", drops),
        three("the script is forgotten", Faults { forgotten: 1, ..NO_FAULTS }),
        three("a call is refused", Faults { refused: 1, ..NO_FAULTS }).for_millis(2),
        three("a grant is answered with alone", Faults { odd: 1, ..NO_FAULTS }).for_millis(2),
        three("a cut", Faults { cuts: 1, ..NO_FAULTS }),
        three("the runtime ends", Faults { ends: 1, ..NO_FAULTS }).for_millis(2),
        world("two locks", 1, &[0, 0, 1], NO_FAULTS).for_millis(2),
        world("two flights", 2, &[0, 0, 0], NO_FAULTS),
        Setup { batch: 1, ..three("batches of one, a caller gives up", drops) }.for_millis(2),
        Setup { batch: 1, ..three("batches of one, a cut", Faults { cuts: 1, ..NO_FAULTS }) }.for_millis(2),
        world("two flights, a caller gives up", 2, &[0, 0, 0], drops).for_millis(2),
        world("two flights, a cut", 2, &[0, 0, 0], Faults { cuts: 1, ..NO_FAULTS }).for_millis(2),
    ]
}

searches! {
    fn no_order_of_two_callers_breaks_a_rule("no faults");
    fn a_caller_that_gives_up_breaks_no_rule("a caller gives up");
    fn a_caller_that_gives_up_before_a_batch_is_sent_breaks_no_rule("a caller gives up, threads are slow");
    fn a_second_sending_breaks_no_rule("the script is forgotten");
    fn a_refused_call_breaks_no_rule("a call is refused");
    fn a_grant_that_is_answered_with_alone_breaks_no_rule("a grant is answered with alone");
    fn a_cut_breaks_no_rule("a cut");
    fn the_end_of_the_runtime_breaks_no_rule("the runtime ends");
    fn a_runtime_that_stands_still_breaks_no_rule("the runtime stands still");
    fn a_connection_that_takes_nothing_breaks_no_rule("the connection takes nothing");
    fn two_locks_break_no_rule("two locks");
    fn two_flights_break_no_rule("two flights");
    fn votes_that_come_late_break_no_rule("votes");
    fn a_caller_that_gives_up_on_votes_breaks_no_rule("votes, a caller gives up");
    fn a_second_sending_of_votes_breaks_no_rule("votes, the script is forgotten");
    fn a_refused_call_of_votes_breaks_no_rule("votes, a call is refused");
    fn a_vote_that_is_answered_with_alone_breaks_no_rule("votes, a grant is answered with alone");
    fn a_cut_of_votes_breaks_no_rule("votes, a cut");
}

/// Where other nodes decide, a release may be sent while its acquire still waits.
#[test]
fn every_release_takes_a_vote_out_of_the_queue() {
    breaks(SeededBug::OnlyUndosWithdraw, votes("votes", NO_FAULTS), NEVER_WITH_ITS_ACQUIRE);
}

#[test]
fn a_vote_that_was_overtaken_is_taken_back() {
    breaks(SeededBug::LateVoteStays, votes("votes", Faults { forgotten: 1, ..NO_FAULTS }), NOTHING_STAYS);
}

#[test]
fn a_release_that_may_not_have_been_sent_says_nothing_of_a_vote() {
    breaks(SeededBug::ReleaseTakenForSent, votes("votes", Faults { drops: 1, ..NO_FAULTS }), NOTHING_STAYS);
}

#[test]
fn a_full_batch_leaves_nobody_behind_for_longer_than_the_pace() {
    search::within(quick(), "batches of one");
    breaks(SeededBug::LeftBehind, Setup { batch: 1, ..three("three callers", NO_FAULTS) }, PACED);
}

#[test]
fn what_has_waited_for_the_pace_needs_a_flight() {
    breaks(SeededBug::FlightNotStarted, two("two callers", NO_FAULTS), PACED);
    breaks(SeededBug::SweeperNotWoken, three("three callers", NO_FAULTS), PACED);
}

#[test]
fn a_second_sending_leaves_out_what_was_answered() {
    breaks(
        SeededBug::SecondSendingOfAll,
        three("three callers", Faults { forgotten: 1, ..NO_FAULTS }),
        NOT_AFTER_ITS_ANSWER,
    );
}

#[test]
fn what_the_sweeper_has_answered_is_not_answered_again() {
    breaks(SeededBug::AnsweredAgain, two("two callers", NO_FAULTS), TOLD_ONCE);
}

#[test]
fn who_has_just_come_waits_for_a_link() {
    breaks(SeededBug::AllTurnedAway, two("two callers", Faults { cuts: 1, ..NO_FAULTS }), WAITS_FOR_A_LINK);
}

#[test]
fn an_error_of_the_whole_is_nobodys() {
    breaks(SeededBug::ErrorIsEverybodys, two("two callers", Faults { refused: 1, ..NO_FAULTS }), OWN_ERROR);
}

#[test]
fn silence_is_everybodys() {
    breaks(SeededBug::SilenceIsNobodys, three("three callers", NO_FAULTS), RELEASED_ONCE);
}

#[test]
fn each_reply_is_its_own_requests() {
    breaks(SeededBug::RepliesOutOfOrder, three("three callers", NO_FAULTS), HOLDER_HAS_IT);
}

#[test]
fn what_is_answered_with_alone_is_asked_again() {
    breaks(SeededBug::AloneIsTheEnd, two("two callers", Faults { odd: 1, ..NO_FAULTS }), NOTHING_STAYS);
    breaks(SeededBug::ReplayDrawsAnew, two("two callers", Faults { odd: 1, ..NO_FAULTS }), HOLDER_HAS_IT);
}

#[test]
fn a_release_without_a_fence_goes_alone() {
    breaks(SeededBug::UndosTravel, two("two callers", Faults { drops: 1, ..NO_FAULTS }), NEVER_WITH_ITS_ACQUIRE);
}

#[test]
fn a_release_takes_its_acquire_out_of_the_queue() {
    breaks(SeededBug::NothingWithdrawn, two("two callers", Faults { drops: 1, ..NO_FAULTS }), TAKEN_BACK);
}

#[test]
fn a_batch_releases_first() {
    breaks(SeededBug::AcquiresFirst, three("three callers", NO_FAULTS), RELEASES_FIRST);
}

#[test]
fn a_flight_that_ends_is_followed() {
    breaks(SeededBug::FlightNotFollowed, two("two callers", NO_FAULTS), ALL_IS_OVER);
}

#[test]
fn a_dropped_flight_has_ended() {
    breaks(SeededBug::DroppedFlightStays, two("two callers", Faults { drops: 1, ..NO_FAULTS }), ALL_IS_OVER);
}

#[test]
fn a_crash_is_noticed() {
    breaks(SeededBug::CrashUnnoticed, two("two callers", Faults { ends: 1, ..NO_FAULTS }), ALL_IS_OVER);
}

#[test]
fn the_sweeper_looks_until_nothing_is_left() {
    breaks(SeededBug::SweeperStops, two("two callers", NO_FAULTS), IN_TIME);
}

#[test]
fn each_request_of_a_batch_was_overtaken() {
    breaks(
        SeededBug::OvertakenIsTheFirsts,
        world("two locks", 1, &[0, 1, 1], Faults { forgotten: 1, ..NO_FAULTS }),
        ALL_OVERTAKEN,
    );
}

#[test]
fn a_batch_is_no_larger_than_it_may_be() {
    breaks(SeededBug::BatchTooLarge, world("two locks", 1, &[0, 0, 1, 1], NO_FAULTS), BATCH_IS_SMALL);
}
