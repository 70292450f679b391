//! Tests that no rule is ever violated, and that the checks would notice if one were.

use proptest::prelude::*;

use super::*;

/// How long before a violation its trace begins.
const BEFORE: Real = 4_000_000_000;

impl Scene {
    /// Plays it, and asserts that no rule is violated.
    fn is_clean(self) -> Counts {
        let Outcome { violations, counts, .. } = self.play(false);
        if let Some(first) = violations.first() {
            let told = |(at, _): &&(Real, String)| (first.at().saturating_sub(BEFORE)..=first.at()).contains(at);
            for (at, what) in self.play(true).trace.iter().filter(told) {
                println!("{:>9} µs  {what}", at / 1_000);
            }
            panic!("{self:?}: {violations:?}");
        }
        counts
    }
}

/// Many seeds of one profile, over one, three and five nodes each.
fn many(profile: FaultProfile, seeds: u64) -> [Counts; 3] {
    many_with(profile, false, seeds)
}

fn many_with(profile: FaultProfile, outlives: bool, seeds: u64) -> [Counts; 3] {
    [1, 3, 5].map(|nodes| {
        let mut counts = Counts::default();
        for seed in 0..seeds {
            counts += Scene { seed, nodes, profile, outlives, bug: None }.is_clean();
        }
        println!("{nodes} nodes: {counts:?}");
        counts
    })
}

#[test]
fn without_faults_leases_are_won_and_renewed_and_none_is_lost() {
    for counts in many(FaultProfile::Quiet, 10) {
        assert!(counts.acquired >= 60 && counts.released >= 30 && counts.renewed >= 100, "{counts:?}");
        assert_eq!((counts.lost, counts.recovering), (0, 0), "{counts:?}");
    }
}

#[test]
fn whatever_befalls_them_no_two_hold_and_fences_grow() {
    for counts in many(FaultProfile::Mixed, 16) {
        assert!(counts.acquired >= 50 && counts.undone >= 50 && counts.released >= 20, "{counts:?}");
    }
}

#[test]
fn with_messages_lost_and_clocks_apart_fences_grow() {
    for counts in many(FaultProfile::Leaky, 60) {
        assert!(counts.acquired >= 125 && counts.undone >= 500, "{counts:?}");
    }
}

#[test]
fn who_stands_still_past_the_deadline_does_not_believe_any_longer() {
    for counts in many(FaultProfile::Pausing, 16) {
        assert!(counts.acquired >= 45 && counts.lost >= 20, "{counts:?}");
    }
}

#[test]
fn a_node_that_forgot_stays_out() {
    for counts in many(FaultProfile::Forgetting, 12) {
        assert!(counts.acquired >= 7 && counts.lost >= 2 && counts.recovering >= 100, "{counts:?}");
    }
}

#[test]
fn nobody_wins_before_a_key_that_outlives_its_lease_may_end() {
    for counts in many_with(FaultProfile::Quiet, true, 10) {
        assert!(counts.acquired >= 60 && counts.released >= 30 && counts.renewed >= 100, "{counts:?}");
        assert_eq!((counts.lost, counts.recovering), (0, 0), "{counts:?}");
    }
    for profile in FAULTY {
        for counts in many_with(profile, true, 12) {
            assert!(counts.acquired >= 10, "{profile:?}: {counts:?}");
        }
    }
}

#[test]
fn a_loss_that_deletes_the_key_lets_somebody_in_too_soon() {
    is_found_with(SeededBug::LossDeletes, (1, FaultProfile::Pausing), true, 100, too_soon);
    is_found_with(SeededBug::LossDeletes, (3, FaultProfile::Pausing), true, 100, too_soon);
}

#[test]
fn a_renewal_that_forgets_the_life_lets_somebody_in_too_soon() {
    is_found_with(SeededBug::LifeForgotten, (1, FaultProfile::Mixed), true, 100, too_soon);
    is_found_with(SeededBug::LifeForgotten, (3, FaultProfile::Pausing), true, 100, too_soon);
}

#[test]
fn a_release_that_frees_the_lock_within_the_interval_lets_somebody_in_too_soon() {
    is_found_with(SeededBug::ReleaseFrees, (1, FaultProfile::Quiet), true, 10, too_soon);
    is_found_with(SeededBug::ReleaseFrees, (3, FaultProfile::Quiet), true, 10, too_soon);
}

#[test]
fn the_worst_moments_do_no_harm() {
    for counts in many(FaultProfile::Sly, 12) {
        assert!(counts.acquired >= 15 && counts.renewed >= 100, "{counts:?}");
    }
}

const FAULTY: [FaultProfile; 5] = {
    use FaultProfile::{Forgetting, Leaky, Mixed, Pausing, Sly};
    [Mixed, Leaky, Pausing, Forgetting, Sly]
};

proptest! {
    // A seed does not get simpler when it gets smaller. PROPTEST_CASES asks for more of them.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_seed_breaks_a_rule(
        seed: u64,
        nodes in prop::sample::select(&[1_usize, 3, 5]),
        profile in prop::sample::select(&FAULTY),
        outlives: bool,
    ) {
        Scene { seed, nodes, profile, outlives, bug: None }.is_clean();
    }
}

/// Asserts that a bug is found, and is the reason.
fn is_found(bug: SeededBug, scene: (usize, FaultProfile), seeds: u64, is_expected: fn(&Violation) -> bool) {
    is_found_with(bug, scene, false, seeds, is_expected);
}

fn is_found_with(
    bug: SeededBug,
    (nodes, profile): (usize, FaultProfile),
    outlives: bool,
    seeds: u64,
    is_expected: fn(&Violation) -> bool,
) {
    let found = (0..seeds).find_map(|seed| {
        let scene = Scene { seed, nodes, profile, outlives, bug: Some(bug) };
        scene.play(false).violations.into_iter().find(is_expected).map(|violation| (scene, violation))
    });
    let Some((scene, violation)) = found else { panic!("{bug:?} is not noticed by any of {seeds} seeds") };
    println!("{scene:?}: {violation:?}");
    Scene { bug: None, ..scene }.is_clean();
}

fn too_soon(violation: &Violation) -> bool {
    matches!(violation, Violation::TooSoon { .. })
}

fn two_holders(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoHolders { .. })
}

#[test]
fn without_the_second_phase_fences_fall() {
    let fell = |violation: &Violation| matches!(violation, Violation::FenceFell { .. });
    is_found(SeededBug::NoSecondPhase, (3, FaultProfile::Leaky), 100, fell);
    is_found(SeededBug::NoSecondPhase, (5, FaultProfile::Leaky), 100, fell);
}

#[test]
fn a_late_grant_that_is_not_undone_is_seen_on_its_node() {
    let left = |violation: &Violation| matches!(violation, Violation::Abandoned { .. });
    is_found(SeededBug::LateGrantStays, (3, FaultProfile::Mixed), 50, left);
    is_found(SeededBug::LateGrantStays, (5, FaultProfile::Quiet), 50, left);
}

#[test]
fn a_node_that_votes_before_its_time_gives_two_holders() {
    is_found(SeededBug::AmnesiacVotes, (1, FaultProfile::Forgetting), 50, two_holders);
    is_found(SeededBug::AmnesiacVotes, (3, FaultProfile::Forgetting), 100, two_holders);
    is_found(SeededBug::AmnesiacVotes, (5, FaultProfile::Forgetting), 100, two_holders);
}

#[test]
fn a_key_brought_back_before_the_nodes_time_gives_two_holders() {
    is_found(SeededBug::RepairUnchecked, (3, FaultProfile::Sly), 800, two_holders);
}

#[test]
fn a_key_brought_back_over_somebody_elses_gives_two_holders() {
    is_found(SeededBug::RepairOverwrites, (3, FaultProfile::Sly), 800, two_holders);
}

#[test]
fn a_restart_delay_without_the_second_more_gives_two_holders() {
    is_found(SeededBug::DelayTooShort, (1, FaultProfile::Forgetting), 600, two_holders);
}

#[test]
fn a_deadline_that_counts_from_a_second_sending_gives_two_holders() {
    is_found(SeededBug::DeadlineFromRetry, (3, FaultProfile::Pausing), 300, two_holders);
}

#[test]
fn a_deadline_that_counts_from_the_reply_gives_two_holders() {
    is_found(SeededBug::DeadlineFromReply, (1, FaultProfile::Pausing), 100, two_holders);
    is_found(SeededBug::DeadlineFromReply, (3, FaultProfile::Pausing), 100, two_holders);
}

#[test]
fn a_raise_that_does_not_rewrite_the_value_shows_another_fence() {
    let shows_another = |violation: &Violation| matches!(violation, Violation::AnotherFence { .. });
    is_found(SeededBug::RaiseLeavesValue, (3, FaultProfile::Leaky), 100, shows_another);
    is_found(SeededBug::RaiseLeavesValue, (5, FaultProfile::Leaky), 100, shows_another);
}

#[test]
fn a_release_that_compares_the_whole_value_leaves_a_key() {
    let left = |violation: &Violation| matches!(violation, Violation::Abandoned { .. });
    is_found(SeededBug::WholeValueCompared, (1, FaultProfile::Leaky), 100, left);
    is_found(SeededBug::WholeValueCompared, (3, FaultProfile::Leaky), 100, left);
}

#[test]
fn a_replay_that_draws_anew_shows_another_fence() {
    let shows_another = |violation: &Violation| matches!(violation, Violation::AnotherFence { .. });
    is_found(SeededBug::ReplayDrawsAnew, (1, FaultProfile::Mixed), 300, shows_another);
}

#[test]
fn clocks_that_differ_by_more_than_a_ttl_allows_for_give_two_holders() {
    is_found(SeededBug::ClocksTooFast, (1, FaultProfile::Pausing), 200, two_holders);
}
