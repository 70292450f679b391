//! A wait in line for what checks may find. [`WaitLoop`] decides when to check and how long to sleep; this does it.

use std::{future::Future, pin::pin, time::Duration};

use leasehold_protocol::{
    check::Check,
    message::Route,
    time::Time,
    wait_loop::{Action, Facts, Queued, Surroundings, WaitLoop},
};

use crate::{
    client::Client,
    error::Error,
    random,
    wait::{CheckSlot, CheckSlots, FairWaiter, InLine},
};

/// The party that waits: how it checks, and how it reacts to the results.
pub(super) trait Checks: Surroundings + Send {
    /// The aim of the wait.
    type Found;

    /// Asks the servers once. The inner error is what they said instead; the outer one ends the wait.
    fn check(&mut self, route: Route) -> impl Future<Output = Result<Result<Self::Found, Check>, Error>> + Send;

    /// How long a check may take that begins now.
    fn limit(&self, now: Time) -> Duration;

    /// Its place in the server's queue, if it has one.
    fn queued(&self) -> Option<Queued<'_>>;

    /// The notifications that are for it alone, if there are any; else it has those of its line.
    fn notified(&self) -> Option<&FairWaiter>;

    /// Reports the result of a check.
    fn tell(&mut self, look: &Check);

    /// The error when the time is over, and this is what the last check has found.
    fn over(&self, look: Check) -> Error;
}

/// Waits in line until a check finds it, or the time is over. `seen` is what a first check has found.
pub(super) async fn wait<C: Checks>(
    client: &Client,
    line: &InLine<'_>,
    until: Time,
    seen: Check,
    checks: &mut C,
) -> Result<C::Found, Error> {
    let (nodes, command_timeout, is_fair) =
        (client.quorum.len(), client.options.command_timeout, checks.queued().is_some());
    let mut wait = WaitLoop::new(is_fair, nodes, command_timeout, until, random::jitter());
    let mut seen_by_leader = line.seen();
    if !is_fair {
        // A plain follower knows only what the leader has found before.
        seen_by_leader.mark_changed();
    }
    // Made once, for it has its place in the line.
    let (mut turn, mut next_turn) = (line.turn_now(), pin!(line.turn()));
    wait.begins(seen, turn.is_some(), &facts(client, line, checks));
    loop {
        let action = wait.next(&facts(client, line, checks));
        if let Some(look) = wait.report() {
            checks.tell(&look);
        }
        let until = match action {
            Action::End => return Err(checks.over(wait.into_seen())),
            Action::Check(route) => match check(client, line, &mut wait, route, checks).await? {
                Some(found) => return Ok(found),
                None => continue,
            },
            Action::Sleep(until) => until,
        };
        let now = client.now();
        if wait.leads() {
            line.saw(wait.seen().clone(), now, until);
        }
        tokio::select! {
            biased;
            () = client.ended.cancelled() => return Err(client.end()),
            () = notification(line, checks.notified()), if wait.heeds_notifications() => wait.notified(),
            got = &mut next_turn, if turn.is_none() => {
                turn = Some(got);
                wait.has_turn(&facts(client, line, checks));
            }
            Ok(()) = seen_by_leader.changed(), if !wait.leads() => {
                wait.heard(seen_by_leader.borrow_and_update().clone());
            }
            () = client.host.sleep_until(now, until) => wait.slept(),
        }
    }
}

/// One check that the wait loop has asked for.
async fn check<C: Checks>(
    client: &Client,
    line: &InLine<'_>,
    wait: &mut WaitLoop,
    route: Route,
    checks: &mut C,
) -> Result<Option<C::Found>, Error> {
    let leads = wait.leads();
    let slots = client.check_slots(line.key());
    let _slot = slot(client, &slots, leads.then_some(line), checks).await;
    let began = client.now();
    let limit = checks.limit(began);
    if leads {
        line.checks_by(began + limit);
    }
    match checks.check(route).await? {
        Ok(found) => Ok(Some(found)),
        Err(look) => {
            wait.checked(look, began, limit, &facts(client, line, checks));
            Ok(None)
        }
    }
}

fn facts<'a>(client: &Client, line: &InLine<'_>, checks: &'a impl Checks) -> Facts<'a> {
    Facts { now: client.now(), leader_due: line.due(), queue: checks.queued(), around: checks }
}

/// Takes one of the few slots for checks, if there is one within the time for a check. The leader of a line tells those
/// behind it how long that takes.
async fn slot<'a>(
    client: &Client,
    slots: &'a CheckSlots,
    leads: Option<&InLine<'_>>,
    checks: &mut impl Checks,
) -> Option<CheckSlot<'a>> {
    let now = client.now();
    let until = now + checks.limit(now);
    if let Some(slot) = slots.take(now, until) {
        return Some(slot);
    }
    if let Some(line) = leads {
        line.waits_until(until);
    }
    client.check_slot(slots, until, move |now| checks.limit(now)).await
}

/// Completes when something may have happened to the lock.
async fn notification(line: &InLine<'_>, own: Option<&FairWaiter>) {
    match own {
        None => line.notified().await,
        Some(own) => own.heard().await,
    }
}
