//! The wait of one acquire, decided: when it checks the lock and on which route, how long it sleeps, and when it ends.
//!
//! Of the plain waiters of one name in a process only the leader checks. A fair waiter has a place of its own in the
//! server's queue: it polls for that, and while it leads also for the others of its process.
//!
//! # Invariants
//!
//! 1. A leader whose time is over checks once more; that check decides. A follower ends with what its leader saw.
//! 2. A follower whose leader is late becomes a substitute: it goes on without the turn.
//! 3. After split votes only time brings the next check. Everybody undoes its own votes then, and a waiter that checked
//!    at each of these notifications would meet the others again at once.
//! 4. A leader checks one command time-out before its time is over, so that a silent server is not reported as a
//!    holder. A check later than that is recent enough.
//! 5. Where this process holds the lock itself, a plain waiter asks no server before it is notified of the release.

use std::time::Duration;

use crate::{
    backoff::{self, Backoff},
    check::Check,
    holder::Holder,
    jitter::Jitter,
    message::Route,
    queue_position::QueuePosition,
    tally::{Nodes, WakeCondition, majority},
    time::Time,
};

/// The shortest time of a check: the rest of a wait may be too short for any server's answer.
pub const SHORTEST_CHECK: Duration = Duration::from_millis(15);

/// A moment longer than a wait, so that a timer that ends with it finds it over.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// The facts on which the wait loop decides.
#[allow(missing_debug_implementations)]
pub struct Facts<'a> {
    /// The time.
    pub now: Time,
    /// By when the leader will have checked, or said by when it will.
    pub leader_due: Time,
    /// A fair waiter's place.
    pub queue: Option<Queued<'a>>,
    /// Facts that are only looked up when they matter.
    pub around: &'a dyn Surroundings,
}

/// Facts that are only looked up when they matter.
pub trait Surroundings {
    /// The lock's holder in this process, if there is one.
    fn held_here(&self) -> Option<Holder>;
    /// Whether servers track keys at all.
    fn tracks(&self) -> bool;
    /// The route on which a key is tracked, or the keeper's when there is no capacity left.
    fn tracked(&self) -> Route;
}

/// A fair waiter's place in the queue, and what its server has notified it of.
#[derive(Debug, Clone, Copy)]
pub struct Queued<'a> {
    /// As the last poll found it.
    pub position: &'a QueuePosition,
    /// When it was asked to poll.
    pub due: Time,
    /// Whether the lock is granted, and has only to be taken.
    pub is_granted: bool,
    /// The route of a request that needs no tracking.
    pub usual: Route,
    /// The route of the last poll.
    pub polled_on: Route,
    /// How long the lock may wait for its confirmation.
    pub grant: Duration,
}

/// The next step of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the servers, and give the result to [`WaitLoop::checked`].
    Check(Route),
    /// Wait until then, or until something happens.
    Sleep(Time),
    /// The time is over: [`WaitLoop::seen`] is the reason.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Somebody else of this process checks for us.
    Follower,
    /// It has the turn.
    Leader,
    /// It goes on without the turn.
    Substitute,
}

/// The wait of one acquire.
#[derive(Debug)]
pub struct WaitLoop {
    is_fair: bool,
    role: Role,
    until: Time,
    nodes: usize,
    command_timeout: Duration,
    backoff: Backoff,
    seen: Check,
    /// When the last check of our own ended.
    checked_at: Time,
    /// The result of a check that was not reported yet.
    report: Option<Check>,
    next_check: Time,
    /// The check is due, whatever the clock says.
    is_due: bool,
    /// The sleep under way ends with a check.
    sleeps_for_check: bool,
    is_notified: bool,
    is_over: bool,
}

impl WaitLoop {
    /// After a first check of our own, or none if others of this process wait already.
    pub fn new(is_fair: bool, nodes: usize, command_timeout: Duration, until: Time, jitter: Jitter) -> Self {
        Self {
            is_fair,
            role: Role::Follower,
            until,
            nodes,
            command_timeout,
            backoff: Backoff::new(jitter),
            seen: Check::NotYet,
            checked_at: Time::ZERO,
            report: None,
            next_check: Time::NEVER,
            is_due: false,
            sleeps_for_check: false,
            is_notified: false,
            is_over: false,
        }
    }

    /// Begins in the line: with the turn, if it was free. `seen` is what a first check of our own has found.
    pub fn begins(&mut self, seen: Check, has_turn: bool, facts: &Facts<'_>) {
        if has_turn {
            self.role = Role::Leader;
        } else if !self.is_fair {
            // By the time that its turn comes, what it saw itself is out of date.
            return;
        }
        (self.checked_at, self.report, self.seen) = (facts.now, Some(seen.clone()), seen);
        // The first check is not tracked, which would cost more. So a plain leader checks again at once, unless that
        // brings nothing.
        let again_at_once = match &self.seen {
            _ if self.is_fair => false,
            Check::NotYet => true,
            Check::Split { .. } => false,
            Check::Held { .. } | Check::Failed(_) => facts.around.tracks(),
        };
        self.next_check = if again_at_once { facts.now } else { self.plan(facts) };
    }

    /// The step to take now. Execute a `Check` before the next call.
    pub fn next(&mut self, facts: &Facts<'_>) -> Action {
        loop {
            if self.is_over {
                return Action::End;
            }
            if self.role == Role::Follower {
                if let Some(action) = self.follow(facts) {
                    return action;
                }
            }
            let due = self.due(facts);
            if !self.is_due && !self.is_notified && due > facts.now {
                self.sleeps_for_check = true;
                return Action::Sleep(due);
            }
            let asks_nobody = !self.is_fair && !self.is_notified;
            match asks_nobody.then(|| facts.around.held_here()).flatten() {
                None => return Action::Check(self.route(facts)),
                Some(holder) => {
                    let needs = WakeCondition { count: majority(self.nodes), of: Nodes::all(self.nodes) };
                    self.saw(Check::Held { holder, tracked: self.role == Role::Leader, needs }, facts);
                }
            }
        }
    }

    /// A follower's part of [`next`](Self::next): nothing if it has to check, or has become a substitute.
    fn follow(&mut self, facts: &Facts<'_>) -> Option<Action> {
        let (now, late) = (facts.now, self.leader_is_late_after());
        if now >= self.until {
            // Something has happened, and the leader did not check: we do it once ourselves.
            if self.is_fair || now <= facts.leader_due + SHORTEST_CHECK {
                return Some(Action::End);
            }
            self.substitute(facts);
            return None;
        }
        if now > facts.leader_due + late {
            self.substitute(facts);
            return None;
        }
        // A notification may move the leader's moment to an earlier one, so this is never far away.
        let look_after = (facts.leader_due + late + JUST_AFTER).min(now + late).min(self.until);
        let check = if self.is_fair { self.due(facts) } else { Time::NEVER };
        if self.is_due || check <= now {
            return None;
        }
        self.sleeps_for_check = check < look_after;
        Some(Action::Sleep(check.min(look_after)))
    }

    fn substitute(&mut self, facts: &Facts<'_>) {
        self.role = Role::Substitute;
        self.begins_to_lead(facts);
    }

    /// Our turn has come.
    pub fn has_turn(&mut self, facts: &Facts<'_>) {
        let has_led = self.role == Role::Substitute;
        self.role = Role::Leader;
        if !has_led {
            self.begins_to_lead(facts);
        }
    }

    fn begins_to_lead(&mut self, facts: &Facts<'_>) {
        if self.is_fair {
            self.next_check = self.plan(facts);
        } else {
            // Its last result, as a follower, is out of date.
            self.seen = Check::NotYet;
            self.next_check = facts.now;
        }
    }

    /// A follower hears of its leader's check.
    pub fn heard(&mut self, look: Check) {
        self.report = Some(look.clone());
        // That the leader had no answer is no reason for a fair waiter to ask as well.
        if !self.is_fair || matches!(look, Check::Held { .. }) {
            self.seen = look;
        }
    }

    /// The sleep is over.
    pub fn slept(&mut self) {
        self.is_due = self.sleeps_for_check;
    }

    /// Something may have happened to the lock since the last check. The notifications of a fair waiter are in the
    /// facts.
    pub fn notified(&mut self) {
        self.is_notified = !self.is_fair;
    }

    /// Whether a notification brings a check.
    pub fn heeds_notifications(&self) -> bool {
        self.is_fair || (self.leads() && !matches!(self.seen, Check::Split { .. }))
    }

    /// Whether it checks for those behind it, and has to tell them what it sees.
    pub fn leads(&self) -> bool {
        self.role != Role::Follower
    }

    /// The result of the last check that counts.
    pub fn seen(&self) -> &Check {
        &self.seen
    }

    /// The same, at the end.
    pub fn into_seen(self) -> Check {
        self.seen
    }

    /// Takes the newest result, if there is one since the last call.
    pub fn report(&mut self) -> Option<Check> {
        self.report.take()
    }

    /// Takes the result of a check that began at `began` and could take `limit`.
    pub fn checked(&mut self, look: Check, began: Time, limit: Duration, facts: &Facts<'_>) {
        let look = match look {
            Check::Held { holder, tracked, needs } => {
                let tracked = tracked && (self.is_fair || self.role == Role::Leader);
                Check::Held { holder, tracked, needs }
            }
            // A check that had no time for an answer says nothing about the server: the result before it stands.
            Check::Failed(_)
                if limit < self.command_timeout / 2
                    && facts.now.since(began) >= limit
                    && matches!(self.seen, Check::Held { .. } | Check::Split { .. }) =>
            {
                self.seen.clone()
            }
            look => look,
        };
        self.saw(look, facts);
    }

    fn saw(&mut self, look: Check, facts: &Facts<'_>) {
        let had_failed = matches!(self.seen, Check::Failed(_));
        (self.is_due, self.is_notified) = (false, false);
        (self.checked_at, self.report, self.seen) = (facts.now, Some(look.clone()), look);
        self.is_over = facts.now >= self.until;
        // A check that failed was repeated on a route that tracks nothing; now that the server answers, it is tracked.
        let untracked = matches!(self.seen, Check::Held { tracked: false, .. });
        self.next_check = if !self.is_fair && untracked && had_failed && facts.around.tracks() {
            facts.now
        } else {
            self.plan(facts)
        };
    }

    /// When to check, if nothing happens before (invariant 4).
    fn plan(&mut self, facts: &Facts<'_>) -> Time {
        let planned = self.plan_freely(facts);
        let before_the_end = Time::ZERO + self.until.since(Time::ZERO + self.command_timeout);
        let answers = matches!(self.seen, Check::Held { .. });
        if answers && self.leads() && before_the_end > self.checked_at { planned.min(before_the_end) } else { planned }
    }

    fn plan_freely(&mut self, facts: &Facts<'_>) -> Time {
        let Some(queue) = facts.queue else { return facts.now + self.backoff.after(&self.seen) };
        let is_untracked = queue.position.is_first() && queue.polled_on != Route::Tracked;
        if is_untracked && facts.around.tracks() && self.route(facts) == Route::Tracked {
            return self.checked_at;
        }
        let pause = queue.position.next_poll(&self.seen, self.leads(), queue.grant, &mut self.backoff);
        pause.map_or(Time::NEVER, |pause| self.checked_at + pause)
    }

    /// When to check as things are.
    fn due(&self, facts: &Facts<'_>) -> Time {
        let due = self.next_check.min(self.until);
        facts.queue.map_or(due, |queue| due.min(queue.due))
    }

    fn route(&self, facts: &Facts<'_>) -> Route {
        match facts.queue {
            Some(queue) if queue.is_granted => queue.usual,
            // The first has the lock tracked: it takes what becomes free otherwise than by a release. So has the second, which
            // may be the first by now, and would poll once more for that.
            Some(queue) if queue.position.ticket.is_none() || queue.position.ahead > 1 => Route::Keeper,
            _ if matches!(self.seen, Check::Failed(_)) => Route::Keeper,
            _ => facts.around.tracked(),
        }
    }

    /// The time after which a late leader counts as not polled: a leader that is polled waits only for a slot or an
    /// answer.
    fn leader_is_late_after(&self) -> Duration {
        backoff::LONGEST_PAUSE + self.command_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

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
        deaf: bool,
    }

    impl Surroundings for World {
        fn held_here(&self) -> Option<Holder> {
            self.holder.clone()
        }

        fn tracks(&self) -> bool {
            !self.deaf
        }

        fn tracked(&self) -> Route {
            if self.deaf { Route::Keeper } else { Route::Tracked }
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
        let (world, deaf) = (World::default(), World { deaf: true, ..World::default() });
        let mut wait = leader(&world, held(false), Time::NEVER);
        assert_eq!(wait.next(&world.at(0)), Action::Check(Route::Tracked));
        assert!(matches!(wait.report(), Some(Check::Held { .. })) && wait.report().is_none(), "told once");
        assert_eq!(leader(&world, Check::NotYet, Time::NEVER).next(&world.at(0)), Action::Check(Route::Tracked));
        assert!(sleeps(leader(&world, split(), Time::NEVER).next(&world.at(0))) > at(0));
        assert!(sleeps(leader(&deaf, held(false), Time::NEVER).next(&deaf.at(0))) > at(0));
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
        // No answer for all of the time that is left.
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
        // A shorter wait asks no more often.
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
        let place = QueuePosition { ticket: Some(7), ahead: 3, called: true, recovers_for: None };
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
        let first = QueuePosition { ticket: Some(7), ahead: 0, called: true, recovers_for: None };
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
    fn a_leader_that_was_the_second_and_finds_itself_first_polls_once() {
        let (world, [second, first]) = (
            World::default(),
            [1, 0].map(|ahead| QueuePosition { ticket: Some(7), ahead, called: true, recovers_for: None }),
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
        let place = QueuePosition { ticket: Some(7), ahead: 3, called: true, recovers_for: None };
        let mut wait = WaitLoop::new(true, 1, COMMAND, at(500), Jitter::from_seed(7));
        wait.begins(held(false), false, &world.queued(0, &place));
        wait.heard(failed());
        assert!(matches!(wait.report(), Some(Check::Failed(_))) && matches!(wait.seen(), Check::Held { .. }));
        assert_eq!(wait.next(&world.queued(500, &place)), Action::End);
    }

    #[test]
    fn a_fair_follower_whose_last_sleep_ends_a_moment_early_does_not_poll() {
        let world = World::default();
        let place = QueuePosition { ticket: Some(7), ahead: 3, called: true, recovers_for: None };
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
        let place = QueuePosition { ticket: Some(7), ahead: 3, called: true, recovers_for: None };
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
        let place = QueuePosition { ticket: Some(7), ahead: 3, called: true, recovers_for: None };
        let mut wait = WaitLoop::new(true, 1, COMMAND, Time::NEVER, Jitter::from_seed(7));
        wait.begins(held(false), false, &world.queued(0, &place));
        let facts = world.queued(0, &place);
        let facts =
            Facts { leader_due: at(60_000), queue: facts.queue.map(|queue| Queued { due: at(50), ..queue }), ..facts };
        assert_eq!(wait.next(&facts), Action::Sleep(at(50)));
        wait.slept();
        assert_eq!(wait.next(&facts), Action::Check(Route::Keeper));
    }
}
