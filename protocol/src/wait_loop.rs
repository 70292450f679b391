//! The wait of one acquire, decided: when it checks the lock and on which route, how long it sleeps, and when it ends.
//!
//! Of the plain waiters of one name in a process, only the leader checks. A fair waiter has its own place in the
//! server's queue and polls for that; while it leads, it also polls for the others of its process.
//!
//! # Invariants
//!
//! 1. A leader whose time is up checks once more, and that check decides. A follower ends with what its leader saw.
//! 2. A follower whose leader is late becomes a substitute: it continues without the turn.
//! 3. After a split vote only time brings the next check. All waiters undo their own votes then, and a waiter that
//!    checked at each of these notifications would meet the others again at once.
//! 4. A leader checks one command time-out before its time is up, so that a silent server is not reported as a holder.
//!    A check later than that is recent enough.
//! 5. If this process holds the lock itself, a plain waiter asks no server before it is notified of the release.

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

/// The shortest time limit of a check: the rest of a wait may be too short for any server's answer.
pub const SHORTEST_CHECK: Duration = Duration::from_millis(15);

/// A moment longer than a wait, so that a timer that ends with it finds it expired.
const JUST_AFTER: Duration = Duration::from_millis(1);

/// The facts on which the wait loop decides.
#[allow(missing_debug_implementations)]
pub struct Facts<'a> {
    /// The time.
    pub now: Time,
    /// When the leader will have checked, or will have announced its next check.
    pub leader_due: Time,
    /// A fair waiter's place.
    pub queue: Option<Queued<'a>>,
    /// Facts that are looked up only when they matter.
    pub around: &'a dyn WaitContext,
}

/// Facts that are looked up only when they matter.
pub trait WaitContext {
    /// The holder in this process that keeps this waiter out, if there is one.
    fn held_here(&self) -> Option<Holder>;
    /// Whether servers track keys at all.
    fn tracks(&self) -> bool;
    /// The route on which a key is tracked, or the keeper's when there is no capacity left.
    fn tracked(&self) -> Route;
}

/// A fair waiter's place in the queue, and what its server has notified it of.
#[derive(Debug, Clone, Copy)]
pub struct Queued<'a> {
    /// The position that the last poll found.
    pub position: &'a QueuePosition,
    /// When the waiter was asked to poll.
    pub due: Time,
    /// Whether the lock is granted, and only has to be taken.
    pub is_granted: bool,
    /// The route of a request that needs no tracking.
    pub usual: Route,
    /// The route of the last poll.
    pub polled_on: Route,
    /// How long a granted lock waits for its confirmation.
    pub grant: Duration,
}

/// The next step of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask the servers, and give the result to [`WaitLoop::checked`].
    Check(Route),
    /// Wait until then, or until something happens.
    Sleep(Time),
    /// The time is up: [`WaitLoop::seen`] is the reason.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Another waiter of this process checks for this one.
    Follower,
    /// It has the turn.
    Leader,
    /// It continues without the turn.
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
    /// A wait after a first check of our own, or after none if others of this process wait already.
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

    /// Begins in the line, with the turn if it was free. `seen` is the result of a first check of our own.
    pub fn begins(&mut self, seen: Check, has_turn: bool, facts: &Facts<'_>) {
        if has_turn {
            self.role = Role::Leader;
        } else if !self.is_fair {
            // By the time its turn comes, its own result is out of date.
            return;
        }
        (self.checked_at, self.report, self.seen) = (facts.now, Some(seen.clone()), seen);
        // The first check is not tracked, because that would cost more. So a plain leader checks again at once, unless
        // that is useless.
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

    /// A follower's part of [`next`](Self::next): `None` if it has to check, or has become a substitute.
    fn follow(&mut self, facts: &Facts<'_>) -> Option<Action> {
        let (now, late) = (facts.now, self.leader_is_late_after());
        if now >= self.until {
            // Something has happened, and the leader did not check: this waiter checks once itself.
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
        // A notification may make the leader's check due earlier, so this moment is never far away.
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

    /// A follower receives the result of its leader's check.
    pub fn heard(&mut self, look: Check) {
        self.report = Some(look.clone());
        // If the leader had no answer, that is no reason for a fair waiter to ask as well.
        if !self.is_fair || matches!(look, Check::Held { .. }) {
            self.seen = look;
        }
    }

    /// The sleep has ended.
    pub fn slept(&mut self) {
        self.is_due = self.sleeps_for_check;
    }

    /// Something may have happened to the lock since the last check. The notifications of a fair waiter are in the
    /// facts.
    pub fn notified(&mut self) {
        self.is_notified = !self.is_fair;
    }

    /// Whether a notification causes a check.
    pub fn heeds_notifications(&self) -> bool {
        self.is_fair || (self.leads() && !matches!(self.seen, Check::Split { .. }))
    }

    /// Whether it checks for the waiters behind it, and has to report its results to them.
    pub fn leads(&self) -> bool {
        self.role != Role::Follower
    }

    /// The result of the last check that counts.
    pub fn seen(&self) -> &Check {
        &self.seen
    }

    /// The result of the last check that counts, at the end of the wait.
    pub fn into_seen(self) -> Check {
        self.seen
    }

    /// Takes the newest result, if there is one since the last call.
    pub fn report(&mut self) -> Option<Check> {
        self.report.take()
    }

    /// Takes the result of a check that began at `began` and had the time limit `limit`.
    pub fn checked(&mut self, look: Check, began: Time, limit: Duration, facts: &Facts<'_>) {
        let look = match look {
            Check::Held { holder, tracked, needs } => {
                let tracked = tracked && (self.is_fair || self.role == Role::Leader);
                Check::Held { holder, tracked, needs }
            }
            // A check that had no time for an answer says nothing about the server: the result before it stays.
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
        // A check that failed was repeated on a route that tracks nothing. Now that the server answers, check again,
        // tracked.
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
            // The first has the lock tracked, because it takes a lock that becomes free other than by a release. So has
            // the second, which may be the first by now, and would have to poll once more for that.
            Some(queue) if queue.position.ticket.is_none() || queue.position.ahead > 1 => Route::Keeper,
            // The keys that show the sharers of a lock are not tracked: one of them changes with each renewal.
            _ if matches!(&self.seen, Check::Held { holder, .. } if holder.is_shared()) => Route::Keeper,
            _ if matches!(self.seen, Check::Failed(_)) => Route::Keeper,
            _ => facts.around.tracked(),
        }
    }

    /// The time after which a late leader counts as not polled. A leader that is polled waits only for a slot or an
    /// answer.
    fn leader_is_late_after(&self) -> Duration {
        backoff::LONGEST_PAUSE + self.command_timeout
    }
}

#[cfg(test)]
mod tests;
