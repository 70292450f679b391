//! The life of one held lease as a pure machine: the time and events go in, orders and the time of the next tick come
//! out. No clock, no I/O, no runtime: a driver feeds it.
//!
//! # Invariants
//!
//! 1. The deadline is the majority-th largest send that nodes confirmed, plus TTL, minus drift; it never moves back
//!    (rule 1).
//! 2. Every event first checks whether the time is up. From the deadline on the lease has ended, whatever the event
//!    says, and nothing revives it (rule 2).
//! 3. Only a definite "not yours" of a majority ends a lease before its deadline. Silence and errors put it at risk
//!    once no majority is left to confirm a round (rule 7).
//! 4. A confirmation counts for the round that it answers, however late it comes; rounds go out side by side (rule 7).
//! 5. After the end, for whatever reason, no renewal is ordered (rule 8).
//! 6. An end by loss orders, once, an undo of what may be left on the nodes. If a majority has denied the lease, the
//!    acquisition carries that out when the last holder lets go. `MaxHold` orders nothing: the key expires, and the job
//!    has the rest of its TTL to stop (rule 8).
//! 7. An unfinished lease always has a next tick, and never after the deadline. A renewal is never ordered twice for
//!    the same moment (no hot loop).
//! 8. Unanswered rounds go out at doubling gaps, up to a third of the TTL: a lease has a handful of requests under way,
//!    however long the outage. After a refusal the next round goes out between a twelfth and a sixth of the TTL later,
//!    because a refusal has to be lifted by hand.
//! 9. A [hint](HeldLease::hint) that the key has changed is not a verdict: it orders one renewal outside of the rounds,
//!    whose answer decides. Hints order at most one renewal in 20 ms, and no hint is forgotten.
//! 10. A node that lost the key while a majority confirmed it is repaired, before the deadline only.
//!     On one node that never happens.
//! 11. A lease that is not at risk joins the renewal of other leases in the last tenth before its own round. At one
//!     moment in eight it joins whenever its round is, if the others have its TTL and one batch takes all leases. This
//!     makes a renewal earlier, never later. How early a round comes by itself depends only on the seed and the moment
//!     of the round before it. So leases that were renewed together once come due together, and the others soon do.
//! 12. A hint from a node that lacks the key orders a repair of that node, and no renewal on the others. Each renewal
//!     would wake every waiter. Waiters would then ask the node that is free, and that would cause the next hint. Such
//!     hints order at most one repair in 20 ms, and none is forgotten while the lease is not at risk.
//! 13. From the moment on at which the work has [stalled](crate::progress) nothing is ordered that lengthens the key's
//!     life, so the lease ends by its deadline. The key is still checked, by a hint or a third of the TTL after the last
//!     request; the confirmation counts for nothing. A check leaves the key's life as it is, because a renewal before it
//!     may be confirmed later. If progress is reported before the deadline, a renewal goes out at once.

use std::time::Duration;

use crate::{
    failure::Failure,
    jitter::Jitter,
    loss::{Loss, LossReason},
    message::{Denial, Owned},
    progress::{Pace, Progress},
    tally::{Nodes, Tally, deadline},
    time::Time,
};

/// The least time between two renewals that hints order.
const GRAIN: Duration = Duration::from_millis(20);

/// One moment in this many makes the next round early, by up to a tenth. That spreads a fleet that renews in step
/// within a few rounds. If every round came early, it would take half as long, and one more renewal in twenty. At these
/// moments the leases of a process join each other.
const EARLY_ONES: u64 = 8;

/// A round that is unanswered for this many times the patience makes the connection suspect.
const SUSPECT_AFTER: u32 = 3;

/// The bounds of a lease's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseConfig {
    /// For how long a confirmed renewal keeps the key.
    pub ttl: Duration,
    /// For how long it may be held in all.
    pub max_hold: Option<Duration>,
    /// The longest wait for the answer to a round, before the next goes out beside it.
    pub patience: Duration,
    /// For how long it is renewed without progress of its work.
    pub stall_after: Option<Duration>,
}

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A majority confirms it.
    Held,
    /// Valid, but no majority is left to confirm a round, or none has for too long; or its work makes no progress.
    AtRisk,
    /// It has ended.
    Over {
        /// Why.
        reason: LossReason,
        /// When it stopped being valid.
        since: Time,
    },
}

/// A node's answer to a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenewalAnswer {
    /// The node has renewed the key.
    Confirmed,
    /// The key is not ours.
    Denied(Denial),
    /// There was no answer, or one that says nothing about the key.
    Unclear,
    /// The node refuses, for example for want of a right. That says nothing about the key either.
    Refused,
}

impl RenewalAnswer {
    /// The meaning of a node's failure.
    pub fn of(failure: &Failure) -> Self {
        if failure.is_refusal() { Self::Refused } else { Self::Unclear }
    }

    /// The meaning of a node's reply to one renewal.
    pub fn read(answer: &Result<Owned, Failure>) -> Self {
        match answer {
            Ok(Ok(())) => Self::Confirmed,
            Ok(Err(denial)) => Self::Denied(denial.clone()),
            Err(failure) => Self::of(failure),
        }
    }
}

/// The driver's orders for now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "orders are there to be carried out"]
pub struct Orders {
    /// Send a renewal to every node; it counts as sent at the time of this event.
    pub renew: bool,
    /// The connections to these nodes look dead: replace them.
    pub reconnect: Nodes,
    /// Restore the key on these nodes; it counts as sent at the time of this event.
    pub repair: Nodes,
    /// Take the token off every node (token-checked).
    pub undo: bool,
    /// The phase has changed.
    pub news: bool,
}

/// One held lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeldLease {
    ttl: Duration,
    /// How long a round waits for its answer before the lease is at risk.
    patience: Duration,
    tally: Tally,
    deadline: Time,
    hold_ends: Time,
    /// The phase by the answers of the nodes alone.
    phase: Phase,
    /// Boxed, because most leases need none.
    progress: Option<Box<Progress>>,
    next_round: Time,
    /// When a hint is to be followed.
    ask_at: Time,
    /// The nodes to repair because of a hint, and from when on.
    to_repair: Nodes,
    repairs_from: Time,
    /// When the last renewal was ordered.
    last_sent: Time,
    /// How many rounds went out since the last answer.
    unanswered: u32,
    suspect_at: Time,
    failures: u32,
    /// When a replica took over that may lack the key; zero if something sent later was confirmed.
    taken_over: Time,
    jitter: Jitter,
}

impl HeldLease {
    /// A lease as the winning attempt left it: `tally` has the nodes that granted, with the attempt's send.
    pub fn new(config: LeaseConfig, tally: Tally, jitter: Jitter) -> Self {
        let sent = tally.confirmed();
        let LeaseConfig { ttl, max_hold, patience, stall_after } = config;
        let mut lease = Self {
            ttl,
            patience: patience.min(ttl / 3 / 2),
            tally,
            deadline: deadline(sent, ttl),
            hold_ends: max_hold.map_or(Time::NEVER, |max| sent + max),
            phase: Phase::Held,
            progress: stall_after.map(|span| Box::new(Progress::new(span, sent))),
            next_round: Time::NEVER,
            ask_at: Time::NEVER,
            to_repair: Nodes::NONE,
            repairs_from: Time::ZERO,
            last_sent: Time::ZERO,
            unanswered: 0,
            suspect_at: Time::NEVER,
            failures: 0,
            taken_over: Time::ZERO,
            jitter,
        };
        lease.next_round = lease.third_after(sent);
        lease
    }

    /// The state of the lease.
    pub fn phase(&self) -> Phase {
        match self.phase {
            Phase::Held if self.awaits_progress() => Phase::AtRisk,
            phase => phase,
        }
    }

    /// Whether it is at risk because its work makes no progress: then the next tick is due when progress is reported.
    pub fn awaits_progress(&self) -> bool {
        self.pace() != Pace::Good
    }

    /// For how long it is renewed without progress of its work.
    pub fn stall_after(&self) -> Option<Duration> {
        self.progress.as_ref().map(|progress| progress.span())
    }

    /// Notes that its work has made progress at this time.
    pub fn progressed(&mut self, at: Time) {
        let Some(progress) = &mut self.progress else { return };
        if progress.report(at) && progress.pace() != Pace::Good {
            self.next_round = self.next_round.min(at);
        }
    }

    /// Why the lease ended, with what the nodes have said about it; `None` before its end.
    pub fn loss(&self) -> Option<Loss> {
        let Phase::Over { reason, .. } = self.phase else { return None };
        let denied = self.tally.denied().map(Loss::from).filter(|denied| denied.reason == reason);
        Some(denied.unwrap_or_else(|| reason.into()))
    }

    /// Whether a majority has confirmed what was sent at `sent`, or later.
    pub fn is_confirmed(&self, sent: Time) -> bool {
        self.tally.confirmed() >= sent
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.tally.nodes()
    }

    /// The nodes that may have something to release. A release that does not reach the others is not repeated, because
    /// a node that is away for an hour would leave a task for every lease of that hour.
    pub fn may_be_on(&self) -> Nodes {
        self.tally.may_hold()
    }

    /// Until when the holder may believe in the lease; zero once it has ended.
    pub fn valid_until(&self) -> Time {
        match self.phase {
            Phase::Over { .. } => Time::ZERO,
            Phase::Held | Phase::AtRisk => self.deadline.min(self.hold_ends),
        }
    }

    /// From when on the holder may not believe in the lease, however well it is renewed.
    pub fn hold_ends(&self) -> Time {
        self.hold_ends
    }

    /// When to call [`tick`](Self::tick) next; `None` once the lease has ended.
    pub fn next_tick(&self) -> Option<Time> {
        match self.phase {
            Phase::Over { .. } => None,
            Phase::Held | Phase::AtRisk => {
                let repairs = if self.to_repair.is_empty() { Time::NEVER } else { self.repairs_from };
                let next = self.next_round.min(self.ask_at).min(self.valid_until());
                Some(match &self.progress {
                    None => next.min(repairs),
                    Some(progress) if progress.pace() == Pace::Stalled => next,
                    Some(progress) => next.min(repairs).min(progress.next_look()),
                })
            }
        }
    }

    /// Ends the lease if its time is up (invariant 2).
    pub fn expire_if_due(&mut self, now: Time) -> Orders {
        let end = self.valid_until();
        let due = self.progress.as_ref().and_then(|_| self.next_tick());
        if let (Some(due), Some(progress)) = (due, &mut self.progress) {
            progress.stood_still(due, now);
        }
        if self.is_over() || now < end {
            return Orders::default();
        }
        let reason = match self.phase {
            _ if self.hold_ends <= self.deadline => LossReason::MaxHold,
            Phase::Held if self.pace() == Pace::Stalled => LossReason::Stalled,
            // If no round was in doubt, it was this process that stood still.
            Phase::AtRisk if self.tally.nodes() > 1 => LossReason::NoQuorum,
            _ => LossReason::Expired,
        };
        self.end(reason, end)
    }

    /// Something may have happened to the key: ask at this moment, or as soon after it as invariant 9 allows.
    pub fn hint(&mut self, at: Time) {
        self.ask_at = self.ask_at.min(at.max(self.last_sent + self.grain()));
    }

    /// A replica has taken over from the server that had the key, and may lack it.
    pub fn note_takeover(&mut self, now: Time) {
        self.taken_over = now;
    }

    /// Why the key has gone, if it has.
    pub fn reason_of_absence(&self) -> LossReason {
        if self.taken_over > Time::ZERO { LossReason::FailedOver } else { LossReason::Deleted }
    }

    /// Something has happened to the key on this node: ask about it now, or as soon as invariants 9 and 12 allow.
    pub fn hint_of(&mut self, node: usize, now: Time) {
        if self.tally.nodes() > 1 && self.tally.lacks(node) {
            self.to_repair.insert(node);
            self.repairs_from = self.repairs_from.max(now);
        } else {
            self.hint(now);
        }
    }

    /// Time has passed: ends the lease, or renews it if that is due.
    pub fn tick(&mut self, now: Time) -> Orders {
        let mut orders = self.expire_if_due(now);
        if self.is_over() {
            return orders;
        }
        orders.news |= self.follow_progress(now);
        if self.pace() == Pace::Stalled {
            if now >= self.ask_at.min(self.last_sent + self.third()) {
                self.ask_at = Time::NEVER;
                self.last_sent = now;
                self.progress.iter_mut().for_each(|progress| progress.checks(now));
                orders.renew = true;
            }
            // A driver may have missed that progress was reported.
            self.next_round = now + self.third() / 8;
            return orders;
        }
        if now >= self.ask_at {
            self.ask_at = Time::NEVER;
            orders.renew = true;
        }
        if now >= self.next_round {
            self.begin_round(now, &mut orders);
        }
        if orders.renew {
            self.last_sent = now;
        }
        if !self.to_repair.is_empty() && now >= self.repairs_from {
            let nodes = std::mem::take(&mut self.to_repair);
            // While it is at risk, its rounds find out which nodes lack it.
            if self.phase == Phase::Held {
                orders.repair = self.tally.repairs_of(nodes);
                self.repairs_from = now + self.grain();
            }
        }
        orders
    }

    /// Other leases are renewed at this moment: decides whether this one joins them (invariant 11). A driver asks
    /// leases in the order of their next ticks, and stops at the first that does not join. `meets` is the TTL of the
    /// lease that is due, if one batch takes all leases.
    pub fn go_along(&mut self, now: Time, meets: Option<Duration>) -> Orders {
        let mut orders = self.expire_if_due(now);
        let is_well = self.phase == Phase::Held
            && self.progress.as_ref().is_none_or(|progress| progress.pace_at(now) != Pace::Stalled);
        if !is_well || self.unanswered > 0 || self.last_sent + self.grain() > now {
            return orders;
        }
        // Hints are spread, so that they do not all come at once: they join their nearest neighbours only.
        if self.ask_at <= now + self.grain() {
            self.ask_at = Time::NEVER;
            orders.renew = true;
        }
        let meets = meets == Some(self.ttl) && self.jitter.at(now).is_one_of(EARLY_ONES);
        if self.next_round <= now + self.third() / if meets { 1 } else { 10 } {
            self.begin_round(now, &mut orders);
        }
        if orders.renew {
            self.last_sent = now;
        }
        orders
    }

    /// Begins a round: one renewal, followed until it is answered.
    fn begin_round(&mut self, now: Time, orders: &mut Orders) {
        orders.renew = true;
        if self.unanswered == 0 {
            self.suspect_at = now + self.patience * SUSPECT_AFTER;
        } else {
            // The round before this one was not answered within the patience.
            orders.news |= self.move_to(Phase::AtRisk);
        }
        if now >= self.suspect_at {
            orders.reconnect = self.tally.silent_since(self.last_sent);
            self.suspect_at = now + self.patience * SUSPECT_AFTER;
        }
        // Every round waits for its answer until the deadline: during an outage they must not pile up (invariant 8).
        let gap = self.patience.saturating_mul(1 << self.unanswered.min(16));
        self.next_round = now + gap.min(self.third());
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// `node` has said something about the renewal that was sent at `sent`.
    pub fn answer(&mut self, now: Time, node: usize, sent: Time, answer: RenewalAnswer) -> Orders {
        let orders = self.expire_if_due(now);
        if self.is_over() {
            return orders;
        }
        let recovers = self.follow_progress(now);
        let mut orders = match answer {
            RenewalAnswer::Confirmed => self.confirmed(node, sent),
            RenewalAnswer::Denied(_) | RenewalAnswer::Unclear | RenewalAnswer::Refused => {
                self.not_confirmed(now, node, sent, answer)
            }
        };
        orders.news |= recovers;
        if self.is_over() || self.pace() == Pace::Stalled {
            return orders;
        }
        Orders { repair: self.tally.repairs(), ..orders }
    }

    /// The holder lets go, or its `Client` closes. The caller releases what is left on the nodes.
    pub fn finish(&mut self, now: Time, reason: LossReason) -> Orders {
        let orders = self.expire_if_due(now);
        if self.is_over() {
            return orders;
        }
        Orders { undo: false, ..self.end(reason, now) }
    }

    /// Whether a renewal that was ordered at this time only checks the key.
    pub fn is_check(&self, sent: Time) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.is_check(sent))
    }

    fn confirmed(&mut self, node: usize, sent: Time) -> Orders {
        if self.is_check(sent) {
            return Orders::default();
        }
        let before = self.tally.confirmed();
        self.tally.confirm(node, sent);
        let confirmed = self.tally.confirmed();
        if confirmed <= before {
            return Orders::default();
        }
        self.deadline = self.deadline.max(deadline(confirmed, self.ttl));
        if confirmed >= self.taken_over {
            self.taken_over = Time::ZERO;
        }
        self.unanswered = 0;
        self.failures = 0;
        // It may be the late answer to a round that was followed by others.
        self.next_round = self.third_after(confirmed).max(self.last_sent + self.patience);
        Orders { news: self.move_to(Phase::Held), ..Orders::default() }
    }

    fn not_confirmed(&mut self, now: Time, node: usize, sent: Time, answer: RenewalAnswer) -> Orders {
        let was_hopeless = self.tally.is_hopeless(sent);
        let is_refused = answer == RenewalAnswer::Refused;
        match answer {
            RenewalAnswer::Denied(denial) => self.tally.deny(node, sent, denial),
            RenewalAnswer::Unclear | RenewalAnswer::Refused | RenewalAnswer::Confirmed => {
                self.tally.note_unclear(node, sent);
            }
        }
        if let Some(denial) = self.tally.denied() {
            let reason = match denial {
                Denial::Gone => self.reason_of_absence(),
                denial => Loss::from(denial).reason,
            };
            return self.end(reason, now);
        }
        // The round is confirmed, or may still be, or was hopeless before this answer; or it was to confirm nothing.
        if was_hopeless || !self.tally.is_hopeless(sent) || self.is_check(sent) {
            return Orders::default();
        }
        self.unanswered = 0;
        self.failures = self.failures.saturating_add(1);
        self.next_round = if is_refused {
            now + self.half_to_all(self.third() / 2, sent)
        } else {
            self.next_round.min(now + self.backoff(sent))
        };
        Orders { news: self.move_to(Phase::AtRisk), ..Orders::default() }
    }

    fn end(&mut self, reason: LossReason, since: Time) -> Orders {
        self.phase = Phase::Over { reason, since };
        Orders { news: true, undo: reason != LossReason::MaxHold, ..Orders::default() }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    fn move_to(&mut self, phase: Phase) -> bool {
        let before = self.phase();
        self.phase = phase;
        self.phase() != before
    }

    fn pace(&self) -> Pace {
        self.progress.as_ref().map_or(Pace::Good, |progress| progress.pace())
    }

    fn follow_progress(&mut self, now: Time) -> bool {
        if self.progress.is_none() {
            return false;
        }
        let before = self.phase();
        self.progress.iter_mut().for_each(|progress| progress.look(now));
        self.phase() != before
    }

    fn third(&self) -> Duration {
        self.ttl / 3
    }

    fn grain(&self) -> Duration {
        GRAIN.min(self.third() / 8)
    }

    /// A third of the TTL after `sent`, or sometimes up to a tenth earlier, so that a fleet does not renew in step.
    fn third_after(&self, sent: Time) -> Time {
        let (third, mut jitter) = (self.third(), self.jitter.at(sent));
        let early = if jitter.is_one_of(EARLY_ONES) { jitter.below(third / 10) } else { Duration::ZERO };
        sent + third.saturating_sub(early)
    }

    /// The backoff doubles from a small part of the TTL up to the patience; the result is between half and all of that.
    fn backoff(&self, sent: Time) -> Duration {
        let first = (self.third() / 64).max(Duration::from_millis(2));
        let doubled = first.saturating_mul(1 << self.failures.saturating_sub(1).min(16));
        self.half_to_all(doubled.min(self.patience), sent)
    }

    /// Between half of `most` and all of it, depending on `sent`: leases that failed together try again together.
    fn half_to_all(&self, most: Duration, sent: Time) -> Duration {
        most / 2 + self.jitter.at(sent).below(most / 2)
    }
}

#[cfg(test)]
mod tests;
