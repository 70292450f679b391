//! A wait in line for a lock. [`WaitLoop`] decides when to check and how long to sleep; this carries it out.

use std::pin::pin;

use leasehold_protocol::{
    check::Check,
    holder::Holder,
    message::Route,
    wait_loop::{Action, Facts, WaitContext, WaitLoop},
};

use super::{Acquire, fair::QueuePlace, tell::ToldHolder};
use crate::{
    error::Error,
    lease::Lease,
    random,
    wait::{CheckSlot, CheckSlots, FairWaiter, InLine, Lines},
};

/// An acquire that waits in line, and in the server's queue too if it is fair.
struct Waiting<'a> {
    acquire: &'a Acquire,
    line: &'a InLine<'a>,
    place: Option<Box<QueuePlace<'a>>>,
    told: ToldHolder,
}

/// Waits in line until a check wins the lock, or the time has passed. `seen` is the result of a first check.
pub(super) async fn wait(
    acquire: &Acquire,
    lines: &Lines,
    place: Option<Box<QueuePlace<'_>>>,
    seen: Check,
) -> Result<Lease, Error> {
    let (engine, line) = (&acquire.engine, lines.join(&acquire.wanted.key));
    let (nodes, command_timeout, is_fair) = (engine.quorum.len(), engine.options.command_timeout, place.is_some());
    let mut wait = WaitLoop::new(is_fair, nodes, command_timeout, acquire.until, random::jitter());
    let mut waiting = Waiting { acquire, line: &line, place, told: ToldHolder::default() };
    let mut seen_by_leader = line.seen();
    if !is_fair {
        // A plain follower knows only what the leader has found before.
        seen_by_leader.mark_changed();
    }
    // Created once, because it has its place in the line.
    let (mut turn, mut next_turn) = (line.turn_now(), pin!(line.turn()));
    wait.begins(seen, turn.is_some(), &waiting.facts());
    loop {
        let action = wait.next(&waiting.facts());
        if let Some(look) = wait.report() {
            acquire.tell(&look, &mut waiting.told);
        }
        let until = match action {
            Action::End => return Err(acquire.over(wait.into_seen())),
            Action::Check(route) => match waiting.check(&mut wait, route).await? {
                Some(lease) => return Ok(lease),
                None => continue,
            },
            Action::Sleep(until) => until,
        };
        let now = engine.now();
        if wait.leads() {
            line.saw(wait.seen().clone(), now, until);
        }
        let own = waiting.place.as_ref().map(|place| &place.waiter);
        tokio::select! {
            biased;
            () = engine.ended.cancelled() => return Err(engine.end()),
            () = notification(&line, own), if wait.heeds_notifications() => wait.notified(),
            got = &mut next_turn, if turn.is_none() => {
                turn = Some(got);
                wait.has_turn(&waiting.facts());
            }
            Ok(()) = seen_by_leader.changed(), if !wait.leads() => {
                wait.heard(seen_by_leader.borrow_and_update().clone());
            }
            () = engine.host.sleep_until(now, until) => wait.slept(),
        }
    }
}

impl Waiting<'_> {
    /// Makes one check that the wait loop has asked for.
    async fn check(&mut self, wait: &mut WaitLoop, route: Route) -> Result<Option<Lease>, Error> {
        let (acquire, line, leads) = (self.acquire, self.line, wait.leads());
        let slots = acquire.engine.check_slots(line.key());
        let _slot = slot(acquire, &slots, leads.then_some(line)).await;
        let began = acquire.engine.now();
        let limit = acquire.limit(began);
        if leads {
            line.checks_by(began + limit);
        }
        let outcome = match &mut self.place {
            None => acquire.try_once(route).await?,
            Some(place) => place.poll_for_all(route).await?,
        };
        match outcome {
            Ok(lease) => Ok(Some(lease)),
            Err(look) => {
                wait.checked(look, began, limit, &self.facts());
                Ok(None)
            }
        }
    }

    fn facts(&self) -> Facts<'_> {
        let queue = self.place.as_deref().map(QueuePlace::queued);
        Facts { now: self.acquire.engine.now(), leader_due: self.line.due(), queue, around: self }
    }
}

impl WaitContext for Waiting<'_> {
    fn held_here(&self) -> Option<Holder> {
        self.acquire.engine.watchdog.held(&self.acquire.wanted.key)
    }

    fn tracks(&self) -> bool {
        self.acquire.engine.quorum.tracking_capacity() > 0
    }

    fn tracked(&self) -> Route {
        self.acquire.engine.watchdog.route()
    }
}

/// Takes one of the few slots for checks, if one is free within the time for a check. The leader of a line announces to
/// its followers how long that takes.
async fn slot<'a>(acquire: &Acquire, slots: &'a CheckSlots, leads: Option<&InLine<'_>>) -> Option<CheckSlot<'a>> {
    let now = acquire.engine.now();
    let until = now + acquire.limit(now);
    if let Some(slot) = slots.take(now, until) {
        return Some(slot);
    }
    if let Some(line) = leads {
        line.waits_until(until);
    }
    acquire.engine.check_slot(slots, until, |now| acquire.limit(now)).await
}

/// Completes when something may have happened to the lock.
async fn notification(line: &InLine<'_>, own: Option<&FairWaiter>) {
    match own {
        None => line.notified().await,
        Some(own) => own.heard().await,
    }
}
