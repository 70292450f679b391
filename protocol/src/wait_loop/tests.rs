use super::*;
use crate::{failure::Failure, mode::token_of_a_phase};

const COMMAND: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_millis(1_200);
const REMAINING: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// One server that tracks keys.
#[derive(Default)]
struct World {
    holder: Option<Holder>,
    untracked: bool,
}

impl WaitContext for World {
    fn held_here(&self) -> Option<Holder> {
        self.holder.clone()
    }

    fn tracks(&self) -> bool {
        !self.untracked
    }

    fn tracked(&self) -> Route {
        if self.untracked { Route::Keeper } else { Route::Tracked }
    }
}

impl World {
    fn at(&self, millis: u64) -> Facts<'_> {
        Facts { now: at(millis), leader_due: Time::NEVER, queue: None, around: self }
    }

    fn queued<'a>(&'a self, millis: u64, position: &'a QueuePosition) -> Facts<'a> {
        let (usual, polled_on, grant) = (Route::Home, Route::Keeper, Duration::from_secs(1));
        let queue = Queued { position, due: Time::NEVER, is_granted: false, usual, polled_on, grant };
        Facts { queue: Some(queue), ..self.at(millis) }
    }
}

fn held(tracked: bool) -> Check {
    let holder = Holder { remaining: Some(REMAINING), ..Holder::default() };
    Check::Held { holder, tracked, needs: WakeCondition::ANY }
}

fn failed() -> Check {
    Check::Failed(Failure::unknown("no answer"))
}

fn split() -> Check {
    Check::Split { holder: Holder::default(), answered: Duration::ZERO, took: Duration::ZERO }
}

fn plain(until: Time) -> WaitLoop {
    WaitLoop::new(false, 1, COMMAND, until, Jitter::from_seed(7))
}

fn leader(world: &World, seen: Check, until: Time) -> WaitLoop {
    let mut wait = plain(until);
    wait.begins(seen, true, &world.at(0));
    wait
}

fn sleeps(action: Action) -> Time {
    let Action::Sleep(until) = action else { panic!("{action:?}") };
    until
}

#[test]
fn a_leader_has_the_key_tracked_at_once_unless_no_server_tracks() {
    let (world, untracked) = (World::default(), World { untracked: true, ..World::default() });
    let mut wait = leader(&world, held(false), Time::NEVER);
    assert_eq!(wait.next(&world.at(0)), Action::Check(Route::Tracked));
    assert!(matches!(wait.report(), Some(Check::Held { .. })) && wait.report().is_none(), "told once");
    assert_eq!(leader(&world, Check::NotYet, Time::NEVER).next(&world.at(0)), Action::Check(Route::Tracked));
    assert!(sleeps(leader(&world, split(), Time::NEVER).next(&world.at(0))) > at(0));
    assert!(sleeps(leader(&untracked, held(false), Time::NEVER).next(&untracked.at(0))) > at(0));
}

#[test]
fn a_tracked_leader_sleeps_until_the_key_expires_or_a_notification() {
    let world = World::default();
    let mut wait = leader(&world, held(false), Time::NEVER);
    wait.checked(held(true), at(0), COMMAND, &world.at(10));
    assert!(sleeps(wait.next(&world.at(10))) > at(10) + REMAINING);
    assert!(wait.leads() && wait.heeds_notifications());
    wait.notified();
    assert_eq!(wait.next(&world.at(20)), Action::Check(Route::Tracked));
    wait.checked(held(true), at(20), COMMAND, &world.at(30));
    assert!(sleeps(wait.next(&world.at(30))) > at(30) + REMAINING, "one notification, one check");
    wait.slept();
    assert_eq!(wait.next(&world.at(30)), Action::Check(Route::Tracked), "though the clock stands still");
}

#[test]
fn before_its_end_it_sees_whether_the_server_still_answers() {
    let (world, until) = (World::default(), at(5_000));
    let mut wait = leader(&world, held(false), until);
    wait.checked(held(true), at(0), COMMAND, &world.at(10));
    assert_eq!(sleeps(wait.next(&world.at(10))), at(4_800));
    wait.slept();
    assert_eq!(wait.next(&world.at(4_800)), Action::Check(Route::Tracked));
    // The request was unanswered for all of the remaining time.
    wait.checked(failed(), at(4_800), COMMAND, &world.at(5_000));
    assert_eq!(wait.next(&world.at(5_000)), Action::End);
    assert!(matches!(wait.into_seen(), Check::Failed(_)));
}

#[test]
fn what_answers_a_command_time_out_before_the_end_is_asked_at_the_end() {
    let (world, until) = (World::default(), at(5_000));
    let mut wait = leader(&world, held(false), until);
    wait.checked(held(true), at(4_800), COMMAND, &world.at(4_801));
    assert_eq!(sleeps(wait.next(&world.at(4_801))), until);
    // A shorter wait does not check more often.
    let mut wait = leader(&world, held(false), at(150));
    wait.checked(held(true), at(0), COMMAND, &world.at(1));
    assert_eq!(sleeps(wait.next(&world.at(1))), at(150));
}

#[test]
fn after_split_votes_a_notification_brings_no_check() {
    let world = World::default();
    let mut wait = leader(&world, split(), Time::NEVER);
    assert!(!wait.heeds_notifications());
    wait.checked(held(true), at(0), COMMAND, &world.at(10));
    assert!(wait.heeds_notifications());
}

#[test]
fn what_failed_is_checked_untracked_and_tracked_again_when_the_server_answers() {
    let world = World::default();
    let mut wait = leader(&world, failed(), Time::NEVER);
    assert_eq!(wait.next(&world.at(0)), Action::Check(Route::Keeper));
    wait.checked(failed(), at(0), COMMAND, &world.at(10));
    assert!(sleeps(wait.next(&world.at(10))) > at(10));
    wait.slept();
    assert_eq!(wait.next(&world.at(20)), Action::Check(Route::Keeper));
    wait.checked(held(false), at(20), COMMAND, &world.at(30));
    assert_eq!(wait.next(&world.at(30)), Action::Check(Route::Tracked));
    wait.checked(held(false), at(30), COMMAND, &world.at(40));
    assert!(sleeps(wait.next(&world.at(40))) > at(40), "no loop without a pause");
}

#[test]
fn a_lock_that_is_held_here_is_not_asked_about_before_a_notification() {
    let holder = Holder { remaining: Some(REMAINING), ..Holder::default() };
    let world = World { holder: Some(holder), ..World::default() };
    let mut wait = leader(&world, Check::NotYet, Time::NEVER);
    wait.report();
    assert!(sleeps(wait.next(&world.at(0))) > at(0) + REMAINING);
    assert!(matches!(wait.report(), Some(Check::Held { tracked: true, .. })));
    wait.notified();
    assert_eq!(wait.next(&world.at(10)), Action::Check(Route::Tracked));
}

#[test]
fn a_leader_checks_once_more_when_its_time_is_over() {
    let world = World::default();
    let mut wait = leader(&world, held(false), at(500));
    wait.checked(held(true), at(0), COMMAND, &world.at(10));
    wait.checked(held(true), at(300), COMMAND, &world.at(310));
    assert_eq!(wait.next(&world.at(310)), Action::Sleep(at(500)));
    assert_eq!(wait.next(&world.at(500)), Action::Check(Route::Tracked));
    wait.checked(held(true), at(500), COMMAND, &world.at(510));
    assert_eq!(wait.next(&world.at(510)), Action::End);
}

#[test]
fn a_check_that_was_cut_off_says_nothing() {
    let world = World::default();
    let mut wait = leader(&world, held(true), at(500));
    wait.checked(failed(), at(480), COMMAND / 4, &world.at(580));
    assert!(matches!(wait.seen(), Check::Held { .. }));
    wait.checked(failed(), at(300), COMMAND, &world.at(500));
    assert!(matches!(wait.seen(), Check::Failed(_)), "it had all the time that a check has");
    let mut wait = leader(&world, Check::NotYet, at(500));
    wait.checked(failed(), at(480), COMMAND / 4, &world.at(580));
    assert!(matches!(wait.seen(), Check::Failed(_)), "nothing was seen before");
}

#[test]
fn a_follower_leaves_it_to_its_leader_and_ends_with_what_that_saw() {
    let world = World::default();
    let mut wait = plain(at(5_000));
    wait.begins(held(false), false, &world.at(0));
    let facts = |millis| Facts { leader_due: at(5_000), ..world.at(millis) };
    assert!(wait.report().is_none() && !wait.leads() && !wait.heeds_notifications());
    assert_eq!(wait.next(&facts(0)), Action::Sleep(Time::ZERO + LATE), "the leader may be due at once by then");
    wait.slept();
    assert_eq!(wait.next(&facts(1_200)), Action::Sleep(at(2_400)));
    wait.heard(held(true));
    assert!(wait.report().is_some());
    assert_eq!(wait.next(&facts(5_000)), Action::End);
    assert!(matches!(wait.into_seen(), Check::Held { .. }));
}

#[test]
fn a_follower_goes_on_without_a_leader_that_is_late() {
    let world = World::default();
    let mut wait = plain(Time::NEVER);
    wait.begins(Check::NotYet, false, &world.at(0));
    let facts = |millis| Facts { leader_due: at(400), ..world.at(millis) };
    assert_eq!(wait.next(&facts(1_200)), Action::Sleep(at(1_601)));
    assert_eq!(wait.next(&facts(1_601)), Action::Check(Route::Tracked));
    wait.checked(held(true), at(1_601), COMMAND, &facts(1_610));
    assert!(matches!(wait.seen(), Check::Held { tracked: false, .. }), "nobody notifies it");
    let pause = sleeps(wait.next(&facts(1_610)));
    assert!(pause > at(1_610) && pause < at(1_700), "{pause:?}");
}

#[test]
fn a_follower_checks_once_if_its_leader_slept_through_a_notification() {
    let world = World::default();
    let wait = |leader_due| {
        let mut wait = plain(at(500));
        wait.begins(Check::NotYet, false, &world.at(0));
        wait.next(&Facts { leader_due, ..world.at(500) })
    };
    assert_eq!(wait(at(490)), Action::End);
    assert_eq!(wait(at(400)), Action::Check(Route::Tracked));
}

#[test]
fn a_turn_is_used_at_once() {
    let world = World::default();
    let mut wait = plain(Time::NEVER);
    wait.begins(Check::NotYet, false, &world.at(0));
    wait.heard(held(true));
    wait.has_turn(&world.at(10));
    assert_eq!(wait.next(&world.at(10)), Action::Check(Route::Tracked));
    wait.checked(held(true), at(10), COMMAND, &world.at(20));
    assert!(matches!(wait.seen(), Check::Held { tracked: true, .. }));
}

#[test]
fn a_fair_follower_polls_when_it_is_notified_and_takes_a_grant_on_the_usual_route() {
    let world = World::default();
    let place = QueuePosition { ticket: Some(7), ahead: 3, notified: true, recovers_for: None };
    let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
    wait.begins(held(false), false, &world.queued(0, &place));
    let quiet = Facts { leader_due: at(60_000), ..world.queued(0, &place) };
    assert_eq!(wait.next(&quiet), Action::Sleep(Time::ZERO + LATE), "it only looks after its leader");
    wait.slept();
    let notified = |is_granted| {
        let facts = world.queued(50, &place);
        Facts { queue: facts.queue.map(|queue| Queued { due: at(50), is_granted, ..queue }), ..facts }
    };
    assert_eq!(wait.next(&notified(false)), Action::Check(Route::Keeper));
    assert_eq!(wait.next(&notified(true)), Action::Check(Route::Home));
}

#[test]
fn the_first_fair_waiter_has_the_lock_tracked_and_a_leader_keeps_the_queue_alive() {
    let world = World::default();
    let first = QueuePosition { ticket: Some(7), ahead: 0, notified: true, recovers_for: None };
    let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
    wait.begins(held(false), true, &world.queued(0, &first));
    assert_eq!(wait.next(&world.queued(0, &first)), Action::Check(Route::Tracked));
    let facts = |millis| {
        let facts = world.queued(millis, &first);
        Facts { queue: facts.queue.map(|queue| Queued { polled_on: Route::Tracked, ..queue }), ..facts }
    };
    wait.checked(held(true), at(0), COMMAND, &facts(10));
    assert_eq!(wait.next(&facts(10)), Action::Sleep(at(5_010)), "the heartbeat");
    wait.checked(failed(), at(5_010), COMMAND, &facts(5_300));
    assert!(sleeps(wait.next(&facts(5_300))) < at(5_400));
    wait.slept();
    assert_eq!(wait.next(&facts(5_400)), Action::Check(Route::Keeper));
}

#[test]
fn the_first_fair_waiter_beside_sharers_has_nothing_tracked_before_somebody_holds_the_lock_alone() {
    let world = World::default();
    let first = QueuePosition { ticket: Some(7), ahead: 0, notified: true, recovers_for: None };
    let shared = Check::Held {
        holder: Holder::of(Some(token_of_a_phase()), Some(REMAINING), None),
        tracked: false,
        needs: WakeCondition::ANY,
    };
    let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
    wait.begins(shared, true, &world.queued(0, &first));
    assert_eq!(wait.next(&world.queued(0, &first)), Action::Sleep(at(5_000)), "the heartbeat");
    wait.slept();
    assert_eq!(wait.next(&world.queued(5_000, &first)), Action::Check(Route::Keeper));
    wait.checked(held(false), at(5_000), COMMAND, &world.queued(5_010, &first));
    assert_eq!(wait.next(&world.queued(5_010, &first)), Action::Check(Route::Tracked));
}

#[test]
fn a_leader_that_was_the_second_and_finds_itself_first_polls_once() {
    let (world, [second, first]) = (
        World::default(),
        [1, 0].map(|ahead| QueuePosition { ticket: Some(7), ahead, notified: true, recovers_for: None }),
    );
    let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
    wait.begins(held(false), true, &world.queued(0, &second));
    assert_eq!(
        sleeps(wait.next(&world.queued(0, &second))),
        at(5_000),
        "it polled untracked, and has no need to be tracked"
    );
    wait.slept();
    assert_eq!(wait.next(&world.queued(5_000, &second)), Action::Check(Route::Tracked));
    let facts = world.queued(5_010, &first);
    let facts = Facts { queue: facts.queue.map(|queue| Queued { polled_on: Route::Tracked, ..queue }), ..facts };
    wait.checked(held(true), at(5_000), COMMAND, &facts);
    assert_eq!(wait.next(&facts), Action::Sleep(at(10_010)));
}

#[test]
fn a_fair_follower_ends_without_a_last_poll() {
    let world = World::default();
    let place = QueuePosition { ticket: Some(7), ahead: 3, notified: true, recovers_for: None };
    let mut wait = WaitLoop::new(true, 1, COMMAND, at(500), Jitter::from_seed(7));
    wait.begins(held(false), false, &world.queued(0, &place));
    wait.heard(failed());
    assert!(matches!(wait.report(), Some(Check::Failed(_))) && matches!(wait.seen(), Check::Held { .. }));
    assert_eq!(wait.next(&world.queued(500, &place)), Action::End);
}

#[test]
fn a_fair_follower_whose_last_sleep_ends_a_moment_early_does_not_poll() {
    let world = World::default();
    let place = QueuePosition { ticket: Some(7), ahead: 3, notified: true, recovers_for: None };
    let mut wait = WaitLoop::new(true, 1, COMMAND, at(500), Jitter::from_seed(7));
    wait.begins(held(false), false, &world.queued(0, &place));
    let facts = |millis| Facts { leader_due: at(60_000), ..world.queued(millis, &place) };
    assert_eq!(wait.next(&facts(0)), Action::Sleep(at(500)));
    wait.slept();
    assert_eq!(wait.next(&facts(499)), Action::Sleep(at(500)));
    wait.slept();
    assert_eq!(wait.next(&facts(500)), Action::End);
}

#[test]
fn a_follower_sees_what_its_leader_saw() {
    let world = World::default();
    let mut wait = plain(at(5_000));
    wait.begins(Check::NotYet, false, &world.at(0));
    wait.heard(failed());
    assert!(matches!(wait.seen(), Check::Failed(_)));
    let place = QueuePosition { ticket: Some(7), ahead: 3, notified: true, recovers_for: None };
    let mut fair = WaitLoop::new(true, 1, COMMAND, at(500), Jitter::from_seed(7));
    fair.begins(failed(), false, &world.queued(0, &place));
    fair.heard(held(true));
    assert!(matches!(fair.seen(), Check::Held { .. }));
}

#[test]
fn a_leader_is_late_only_after_its_moment() {
    let world = World::default();
    let mut wait = plain(Time::NEVER);
    wait.begins(Check::NotYet, false, &world.at(0));
    let facts = Facts { leader_due: at(400), ..world.at(1_600) };
    assert_eq!(wait.next(&facts), Action::Sleep(at(1_601)));
}

#[test]
fn a_fair_follower_polls_when_it_has_slept_for_that_though_the_clock_stands_still() {
    let world = World::default();
    let place = QueuePosition { ticket: Some(7), ahead: 3, notified: true, recovers_for: None };
    let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
    wait.begins(held(false), false, &world.queued(0, &place));
    let facts = world.queued(0, &place);
    let facts =
        Facts { leader_due: at(60_000), queue: facts.queue.map(|queue| Queued { due: at(50), ..queue }), ..facts };
    assert_eq!(wait.next(&facts), Action::Sleep(at(50)));
    wait.slept();
    assert_eq!(wait.next(&facts), Action::Check(Route::Keeper));
}
