//! One acquire from its start to its lease: who asks, one look or many, and the wait between them.

use std::{pin::pin, sync::Arc, time::Duration};

use leasehold_protocol::{
    backoff::{Backoff, LONGEST_PAUSE},
    failure::Failure,
    holder::{self, Holder},
    look::Look,
    tally::{Nodes, WakeCondition},
    time::Time,
};

use crate::{
    error::AcquireError,
    lease::Lease,
    node::Lane,
    owner::{Claim, Owner, Seat},
    random,
    shared::{Outcome, Shared, Wanted},
    sync::SemaphorePermit,
    wait::{LookSlot, Waiter},
    watchdog::{Entry, Hold},
};

mod fair;

/// What is left of a wait may be too short for any server's answer; a look gets at least this.
const SHORTEST_LOOK: Duration = Duration::from_millis(15);

/// So often a try may find the votes split by the same token again: it was being taken back.
const SAME_SPLITS: u32 = 2;

/// The program's own ear for whom it waits for.
pub(crate) type OnWait = Arc<dyn Fn(&Holder) + Send + Sync>;

/// How long an acquire waits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// One try.
    None,
    Within(Duration),
    Unlimited,
}

/// One acquire under way.
pub(crate) struct Acquire {
    shared: Arc<Shared>,
    wanted: Wanted,
    owner: Owner,
    reentrant: bool,
    on_wait: Option<OnWait>,
    started: Time,
    until: Time,
}

impl Acquire {
    pub(crate) fn new(
        shared: Arc<Shared>,
        wanted: Wanted,
        owner: Owner,
        reentrant: bool,
        patience: Patience,
        on_wait: Option<OnWait>,
    ) -> Self {
        let started = shared.now();
        let until = match patience {
            Patience::Unlimited => Time::NEVER,
            Patience::Within(limit) => started + limit,
            Patience::None => started,
        };
        Self { shared, wanted, owner, reentrant, on_wait, started, until }
    }

    /// Runs it to its end. The owner is whoever polls this first.
    pub(crate) async fn run(self) -> Result<Lease, AcquireError> {
        let shared = &self.shared;
        let Some(owner) = self.owner.resolve() else { return self.compete(None).await };
        loop {
            match shared.owners.claim(owner, &self.wanted.key, self.reentrant, shared.now()) {
                Claim::Free(seat) => return self.compete(Some(seat)).await,
                Claim::Held(hold, seat) => {
                    if let Some(lease) = self.enter(hold, seat).await? {
                        return Ok(lease);
                    }
                }
                Claim::Refused { pending } => return Err(self.already_held(pending)),
            }
        }
    }

    /// Shares an acquisition of our own. `None`: it has ended, start over.
    async fn enter(&self, hold: Arc<Hold>, seat: Arc<Seat>) -> Result<Option<Lease>, AcquireError> {
        let shared = &self.shared;
        let mut backoff = Backoff::new(random::jitter());
        loop {
            let now = shared.now();
            let (entry, ruling) = hold.enter(now);
            shared.watchdog.obey(&hold, ruling);
            match entry {
                Entry::Shared(signal) => return Ok(Some(Lease::new(shared.clone(), hold, signal, Some(seat)))),
                Entry::Over => return Ok(None),
                Entry::AtRisk => {}
            }
            // At risk: not before a renewal has gone through.
            let limit = self.limit(now);
            let renewed = shared.watchdog.renew_now(&hold, shared.quorum.lane(), limit).await;
            if hold.is_over() {
                return Ok(None);
            }
            match renewed {
                Err(failure) if self.is_over() => return Err(AcquireError::Unavailable(failure.into())),
                // Even a confirmation brings nothing while the clock stands still.
                Err(_) | Ok(()) => self.pause(backoff.next(None)).await?,
            }
        }
    }

    /// Competes with everybody else: asks at once unless others of this process wait already.
    async fn compete(&self, seat: Option<Arc<Seat>>) -> Result<Lease, AcquireError> {
        if self.wanted.fair {
            return self.queue_up(seat).await;
        }
        let shared = &self.shared;
        let mut seen = Look::NotYet;
        if self.until == self.started || !shared.lines.has(&self.wanted.key) {
            seen = match self.try_once(shared.quorum.lane()).await? {
                Ok(won) => return Ok(seated(won, seat)),
                Err(look) => look,
            };
            if self.until == self.started {
                return Ok(seated(self.settle(seen).await?, seat));
            }
            if self.is_over() {
                return Err(self.over(seen));
            }
        }
        let waiter = shared.lines.join(&self.wanted.key);
        let mut told = Told::default();
        // Whoever is told that we wait may rely on our place, so take it first.
        let turn = if let Some(turn) = waiter.turn_now() {
            self.tell(&seen, &mut told);
            Some(turn)
        } else {
            // By then what we saw ourselves is out of date.
            seen = Look::NotYet;
            self.stand_in_line(&waiter, &mut told).await?
        };
        let won = self.watch(&waiter, turn.is_some(), seen, &mut told).await?;
        Ok(seated(won, seat))
    }

    /// The end of a try that has seen this. When several try at once and split the nodes' votes, nobody holds the lock: they
    /// go on until one does, for a command time-out in all. What stands in the way each time is none of these.
    async fn settle(&self, mut seen: Look) -> Result<Lease, AcquireError> {
        let shared = &self.shared;
        let (mut backoff, mut again) = (Backoff::new(random::jitter()), 0);
        loop {
            let pause = backoff.after(&seen);
            let other = match &seen {
                // Each attempt has a token of its own, and another library's is not known.
                Look::Split { holder, .. } if holder.token().is_some() && again < SAME_SPLITS => holder.clone(),
                _ => return Err(self.over(seen)),
            };
            if pause >= self.limit(shared.now()) {
                return Err(self.over(seen));
            }
            tokio::select! {
                biased;
                () = shared.ended.cancelled() => return Err(shared.end()),
                () = shared.host.sleep(pause) => {}
            }
            match self.try_once(shared.quorum.lane()).await? {
                Ok(won) => return Ok(won),
                Err(look) => {
                    let is_same = matches!(&look, Look::Split { holder, .. } if holder::is_same(holder, &other));
                    (seen, again) = (look, again + u32::from(is_same));
                }
            }
        }
    }

    /// Looks whenever something may have happened, until the lock is ours. Without the turn nobody alerts us, and we
    /// have to poll.
    async fn watch(
        &self,
        waiter: &Waiter<'_>,
        has_turn: bool,
        mut seen: Look,
        told: &mut Told,
    ) -> Result<Lease, AcquireError> {
        let shared = &self.shared;
        let mut backoff = Backoff::new(random::jitter());
        // The first try does not pay for being watched, so look again at once; unless that brings nothing.
        let mut pause = match &seen {
            Look::NotYet => None,
            Look::Split { .. } => Some(backoff.after(&seen)),
            look if shared.quorum.room() == 0 => Some(backoff.after(look)),
            _ => None,
        };
        loop {
            let mut alerted = false;
            if let Some(pause) = pause {
                let now = shared.now();
                waiter.saw(seen.clone(), now, now + pause);
                // After split votes everybody undoes what it was granted, and hears of the others' undoing: whoever followed
                // that would meet them again at once.
                let heeds_alerts = !matches!(seen, Look::Split { .. });
                alerted = tokio::select! {
                    biased;
                    () = waiter.alerted(), if heeds_alerts => true,
                    paused = self.pause(pause) => { paused?; false }
                };
            }
            let has_failed = matches!(seen, Look::Failed(_));
            // What is held here ends here, with an alert; until then there is nothing to ask the server.
            seen = if let Some(holder) = shared.watchdog.held(&self.wanted.key).filter(|_| !alerted) {
                let needs = WakeCondition { count: shared.quorum.majority(), of: Nodes::all(shared.quorum.len()) };
                Look::Held { holder, watched: has_turn, needs }
            } else {
                let lane = match &seen {
                    Look::Failed(_) => Lane::Keeper,
                    Look::Held { .. } | Look::Split { .. } | Look::NotYet => shared.watchdog.lane(),
                };
                let _slot = self.slot(Some(waiter)).await;
                let began = shared.now();
                waiter.looks_by(began + self.limit(began));
                match self.try_once(lane).await? {
                    Ok(won) => return Ok(won),
                    Err(Look::Held { holder, watched, needs }) => {
                        Look::Held { holder, watched: watched && has_turn, needs }
                    }
                    Err(look) => self.unless_cut_off(look, &seen, began),
                }
            };
            self.tell(&seen, told);
            if self.is_over() {
                return Err(self.over(seen));
            }
            pause = match &seen {
                // What failed was not tried again on the lane that is watched; now that the server answers, it is.
                Look::Held { watched: false, .. } if has_failed && shared.quorum.room() > 0 => None,
                look => Some(backoff.after(look)),
            };
        }
    }

    /// One attempt. The inner error is what it saw instead of a lease; the outer one ends the acquire.
    async fn try_once(&self, lane: Lane) -> Result<Result<Lease, Look>, AcquireError> {
        let shared = &self.shared;
        // `close` waits for what is under way, and for its undoing.
        let _under_way = shared.host.token();
        self.may_begin()?;
        let ended = shared.ended.cancelled();
        let outcome = tokio::select! {
            biased;
            outcome = shared.attempt(&self.wanted, lane, self.limit(shared.now())) => outcome,
            () = ended => return Err(shared.end()),
        };
        self.judge(outcome)
    }

    /// `close` waits for what was under way before it was called; it may be done waiting. To be asked by who counts as under
    /// way.
    fn may_begin(&self) -> Result<(), AcquireError> {
        if self.shared.ended.is_cancelled() { Err(self.shared.end()) } else { Ok(()) }
    }

    fn judge(&self, outcome: Outcome) -> Result<Result<Lease, Look>, AcquireError> {
        match outcome {
            Outcome::Won(hold, signal) => {
                // From here on somebody owns the hold, whatever panics or is dropped.
                let lease = Lease::new(self.shared.clone(), hold, signal, None);
                // `close` has seen every hold that was there before it was called, and this sees that it was. So it is with
                // the end of the keeper's runtime.
                if self.shared.ended.is_cancelled() {
                    return Err(self.shared.end());
                }
                Ok(Ok(lease))
            }
            Outcome::Busy { holder, needs, watched } => Ok(Err(Look::Held { holder, watched, needs })),
            Outcome::Split { holder, answered, took } => Ok(Err(Look::Split { holder, answered, took })),
            Outcome::Failed(_) if self.shared.ended.is_cancelled() => Err(self.shared.end()),
            Outcome::Failed(failure) if failure.is_refusal() => Err(AcquireError::Refused(failure.into())),
            Outcome::Failed(failure) => Ok(Err(Look::Failed(failure))),
        }
    }

    /// Waits until everybody before us has gone, telling what they see. `None`: whose turn it is does not look any more,
    /// so we go on without it. It may stand on a runtime that nobody polls, and must not hang us.
    async fn stand_in_line<'w>(
        &self,
        waiter: &'w Waiter<'_>,
        told: &mut Told,
    ) -> Result<Option<SemaphorePermit<'w>>, AcquireError> {
        // Who is polled is not as late as that.
        let deaf = self.deaf_after();
        let mut looks = waiter.looks();
        looks.mark_changed();
        let mut turn = pin!(waiter.turn());
        let mut end = pin!(self.end());
        loop {
            let pause = waiter.pause_until_late(self.shared.now(), deaf);
            tokio::select! {
                biased;
                turn = &mut turn => return Ok(Some(turn)),
                ended = &mut end => {
                    let look = looks.borrow_and_update().clone();
                    return match ended {
                        // Something has happened, and whoever has the turn did not look: a last look of our own.
                        None if self.shared.now() > waiter.due() + SHORTEST_LOOK => Ok(None),
                        ended => Err(ended.unwrap_or_else(|| self.over(look))),
                    };
                }
                Ok(()) = looks.changed() => {
                    let look = looks.borrow_and_update().clone();
                    self.tell(&look, told);
                }
                () = self.shared.host.sleep(pause) => if self.shared.now() > waiter.due() + deaf {
                    return Ok(None);
                },
            }
        }
    }

    /// A waiter that is this much later than it said is not polled: one that is only waits for a slot, or for an answer.
    fn deaf_after(&self) -> Duration {
        LONGEST_PAUSE + self.shared.options.command_timeout
    }

    /// One of the few slots for looks, within the time for a look: then this looks without one. `None` also once the
    /// acquire must end. Who has the turn of its line tells those behind it how long that takes.
    async fn slot(&self, line: Option<&Waiter<'_>>) -> Option<LookSlot<'_>> {
        let shared = &self.shared;
        let mut now = shared.now();
        let until = now + self.limit(now);
        loop {
            if let Some(slot) = shared.looks.take(now, now + self.limit(now)) {
                return Some(slot);
            }
            if now >= until || shared.ended.is_cancelled() {
                return None;
            }
            if let Some(waiter) = line {
                waiter.waits_until(until);
            }
            let again = shared.looks.next_lapse().map_or(now, |lapse| lapse.min(until));
            tokio::select! {
                biased;
                () = shared.looks.freed() => {}
                () = shared.ended.cancelled() => {}
                () = shared.host.sleep(again.since(now)) => {}
            }
            now = shared.now();
        }
    }

    /// Leaves the server alone for a while, not beyond our time; an error if the acquire ends meanwhile.
    async fn pause(&self, pause: Duration) -> Result<(), AcquireError> {
        let shared = &self.shared;
        let pause = pause.min(self.until.since(shared.now()));
        tokio::select! {
            biased;
            () = shared.ended.cancelled() => Err(shared.end()),
            // A timer takes a millisecond for nothing, which is ten times what a call takes to get here.
            () = std::future::ready(()), if pause.is_zero() => Ok(()),
            () = shared.host.sleep(pause) => Ok(()),
        }
    }

    /// Completes when the acquire must end without its turn having come: `None` when its time is over.
    async fn end(&self) -> Option<AcquireError> {
        let shared = &self.shared;
        let over = async {
            while !self.is_over() {
                shared.host.sleep(self.until.since(shared.now())).await;
            }
        };
        tokio::select! {
            biased;
            () = shared.ended.cancelled() => Some(shared.end()),
            () = over => None,
        }
    }

    fn is_over(&self) -> bool {
        self.shared.now() >= self.until
    }

    /// How long one look may take: a command time-out, less when the wait ends before. A try has one for all its looks.
    fn limit(&self, now: Time) -> Duration {
        let most = self.shared.options.command_timeout;
        let until = if self.until == self.started { self.started + most } else { self.until };
        until.since(now).max(SHORTEST_LOOK).min(most)
    }

    /// A last look whose answer there was no time for says nothing of the server: what was seen before it stands.
    fn unless_cut_off(&self, look: Look, before: &Look, began: Time) -> Look {
        let limit = self.limit(began);
        let is_cut_off = limit < self.shared.options.command_timeout && self.shared.now().since(began) >= limit;
        match (&look, before) {
            (Look::Failed(_), Look::Held { .. } | Look::Split { .. }) if is_cut_off => before.clone(),
            _ => look,
        }
    }

    /// The end of a wait, from its last look.
    fn over(&self, look: Look) -> AcquireError {
        match look {
            Look::Failed(failure) => AcquireError::Unavailable(failure.into()),
            Look::NotYet => {
                AcquireError::Unavailable(Failure::unavailable("the wait ended before the server had answered").into())
            }
            Look::Held { holder, .. } | Look::Split { holder, .. } => AcquireError::TimedOut {
                name: self.name(),
                waited: self.shared.now().since(self.started),
                holder: Box::new(holder),
            },
        }
    }

    fn name(&self) -> String {
        self.wanted.key.name().into()
    }

    fn already_held(&self, pending: bool) -> AcquireError {
        AcquireError::AlreadyHeld { name: self.name(), pending }
    }

    /// Tells the log and the program whom we wait for, when that is news.
    fn tell(&self, look: &Look, told: &mut Told) {
        let lock = self.wanted.key.name();
        match look {
            // Who it will be is not known yet.
            Look::NotYet | Look::Split { .. } => {}
            Look::Failed(failure) => {
                tracing::warn!(name: "wait", target: "leasehold", lock, %failure, "waiting for the server");
            }
            Look::Held { holder, .. } if told.is(holder) => {}
            Look::Held { holder, .. } => {
                tracing::info!(name: "wait", target: "leasehold", lock, holder = holder.label(), remaining = ?holder.remaining(), "waiting for {holder}");
                if let Some(on_wait) = &self.on_wait {
                    on_wait(holder);
                }
                *told = Told(Some(holder.token().map(Into::into)));
            }
        }
    }
}

/// The holder that was last told about.
#[derive(Debug, Default)]
struct Told(Option<Option<Box<str>>>);

impl Told {
    fn is(&self, holder: &Holder) -> bool {
        self.0.as_ref().is_some_and(|token| token.as_deref() == holder.token())
    }
}

/// A lease takes the place of the acquire that has won it.
fn seated(mut lease: Lease, seat: Option<Arc<Seat>>) -> Lease {
    lease.sit(seat);
    let (lock, label, fence) = (lease.name(), lease.label(), u64::from(lease.fence()));
    tracing::debug!(name: "acquired", target: "leasehold", lock, label, fence);
    lease
}
